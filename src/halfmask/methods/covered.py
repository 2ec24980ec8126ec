"""Scores of a model on its own training rows that the guarantee covers, with noise bars.

They follow from one release, paid for like any other: for classes the sum of the rows' log losses
and a histogram of score by label, for numbers the sum of squared errors.
Guarantee: docs/proofs/additive.md.

A bar is two standard errors of the difference to the same score on as many other rows: it holds the
noise, and the luck of these rows and of those. What a model has learnt by heart of its own rows is
not in it; under a guarantee that is little.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, log_softmax

from halfmask.methods.additive_descent import Stage
from halfmask.types import Floats

_PARTS = 16
# Scores are held within so many spreads of the base rate's.
_ENDS = 3.0
# Of the release's squared length: what the loss may take, the rest is the histogram's.
_LOSS_PART = 0.4
# Bins of the histogram are joined until so many standard deviations of noise are below their rows.
_CLEAR = 10.0
# Squared errors are cut at so many spreads.
_LONGEST = 4.0


def covered_classes(
    scores: Floats,
    target: Floats,
    weights: Floats,
    stage: Stage,
    base: float,
    spread: float,
    *,
    rows: float | None,
    most: float,
) -> dict[str, Any]:
    """Log loss, AUC and reliability; edges and the longest loss follow from releases alone.

    A loss lies in [0, longest] and a row in one cell. `rows` is the weight of all rows, None where
    labels may be missing and their number is private; a unit's rows weigh at most `most`.
    """
    low, high = base - _ENDS * spread, base + _ENDS * spread
    longest = float(np.logaddexp(0, max(-low, high)))
    held = np.clip(scores, low, high)
    losses = np.logaddexp(0, held) - target * held
    edges = np.linspace(low, high, _PARTS + 1)
    middles = (edges[1:] + edges[:-1]) / 2
    codes = np.searchsorted(edges[1:-1], held) + _PARTS * (target > 0.5)
    found = _released(losses, codes, weights, stage, longest, rows)
    histogram, of_count, total, loss = found.histogram, found.noise, found.rows, found.loss
    each = np.stack([np.logaddexp(0, middles), np.logaddexp(0, -middles)])
    counts = np.maximum(histogram, 0.0)
    spread_of_loss = float((counts * (each - loss) ** 2).sum()) / max(float(counts.sum()), 1.0)
    auc, auc_bar = _auc(histogram, of_count, most)
    return {
        "rows": total,
        "log_loss": loss,
        "log_loss_bar": _bar(found.loss_noise, most * spread_of_loss / total),
        "auc": auc,
        "auc_bar": auc_bar,
        "reliability": _reliability(histogram, of_count, expit(middles), most),
    }


def covered_many(
    scores: Floats,
    pool: NDArray[np.intp],
    within: Floats,
    target: NDArray[np.intp],
    weights: Floats,
    stage: Stage,
    *,
    rows: float | None,
    most: float,
) -> dict[str, Any]:
    """Log loss, accuracy and reliability of the likeliest class, of several classes.

    `scores` are pools of classes x rows, `pool` and `within` the pool of each class and its log
    share of it. A loss lies in [0, longest], a row in one cell of the likeliest class's chance by
    whether it is right.
    """
    classes = len(pool)
    longest = math.log(classes) + 3
    chances = log_softmax(scores, axis=0)
    every = np.arange(len(target))
    losses = np.clip(-(chances[pool[target], every] + within[target]), 0.0, longest)
    members = [np.flatnonzero(pool == place) for place in range(len(scores))]
    likeliest = np.array([own[np.argmax(within[own])] for own in members])
    chances += within[likeliest][:, None]
    best = chances.argmax(axis=0)
    sure = np.exp(chances[best, every])
    right = likeliest[best] == target
    codes = np.minimum((sure * _PARTS).astype(np.intp), _PARTS - 1) + _PARTS * right
    found = _released(losses, codes, weights, stage, longest, rows)
    histogram, of_count, total, loss = found.histogram, found.noise, found.rows, found.loss
    # A number in [0, longest] of mean m varies by at most m·(longest − m).
    by_rows = most * loss * (longest - loss) / total
    accuracy = min(max(float(histogram[1].sum()) / total, 0.0), 1.0)
    of_accuracy = of_count * math.sqrt(_PARTS * (2 if rows is None else 1)) / total
    middles = (np.arange(_PARTS) + 0.5) / _PARTS
    return {
        "rows": total,
        "log_loss": loss,
        "log_loss_bar": _bar(found.loss_noise, by_rows),
        "accuracy": accuracy,
        "accuracy_bar": _bar(of_accuracy, most * accuracy * (1 - accuracy) / total),
        "reliability": _reliability(histogram, of_count, middles, most),
    }


class _Released(NamedTuple):
    """What one release tells of the loss and of two histograms, one above the other."""

    histogram: Floats
    noise: float
    rows: float
    loss: float
    loss_noise: float


def _released(
    losses: Floats,
    codes: NDArray[np.intp],
    weights: Floats,
    stage: Stage,
    longest: float,
    rows: float | None,
) -> _Released:
    """Losses in [0, longest] and a cell for each row, in one release.

    Replaced, a row moves the loss by `longest` and the histogram by √2; withheld, the last by 1.
    """
    counts = np.bincount(codes, weights, minlength=2 * _PARTS).astype(np.float64)
    by_loss = math.sqrt(_LOSS_PART) / longest
    by_count = math.sqrt((1 - _LOSS_PART) / 2)
    value = np.concatenate([[by_loss * (weights @ losses)], by_count * counts])
    moves = (1.0, math.sqrt(_LOSS_PART + (1 - _LOSS_PART) / 2))
    noisy, noise = stage.release(value, moves), stage.noise(moves)
    histogram, of_count = noisy[1:].reshape(2, _PARTS) / by_count, noise / by_count
    total = rows if rows is not None else max(float(histogram.sum()), 1.0)
    loss = min(max(float(noisy[0]) / by_loss / total, 0.0), longest)
    by_noise = noise / by_loss / total
    if rows is None:
        by_noise = math.hypot(by_noise, loss * of_count * math.sqrt(2 * _PARTS) / total)
    return _Released(histogram, of_count, total, loss, by_noise)


def _bar(noise: float, by_rows: float) -> float:
    """Two standard errors; `by_rows` is the variance by the luck of rows, which others have too."""
    return 2 * math.sqrt(noise**2 + 2 * by_rows)


def _auc(histogram: Floats, noise: float, most: float) -> tuple[float, float]:
    """The area under the ROC curve and its bar; noise in both classes is independent."""
    negative, positive = histogram
    first, second = float(negative.sum()), float(positive.sum())
    if min(first, second) <= 2 * noise * math.sqrt(_PARTS):
        return 0.5, 0.5  # one class cannot be told from noise
    below = (np.cumsum(negative) - negative / 2) / first
    above = (np.cumsum(positive[::-1])[::-1] - positive / 2) / second
    auc = float(positive @ below) / second
    parts = ((positive, below, second), (negative, above, first))
    by_noise = sum(noise**2 * float(((s - auc) ** 2).sum()) / n**2 for _, s, n in parts)
    by_rows = sum(most * float(np.maximum(p, 0) @ (s - auc) ** 2) / n**2 for p, s, n in parts)
    return min(max(auc, 0.0), 1.0), min(_bar(math.sqrt(by_noise), by_rows), 1.0)


def _reliability(
    histogram: Floats, noise: float, chance: Floats, most: float
) -> list[dict[str, float]]:
    """Predicted and observed shares, neighbouring bins joined until their rows tower over noise."""
    parts: list[dict[str, float]] = []
    for bins in _joined(histogram.sum(axis=0), noise * math.sqrt(2)):
        negative, positive = (float(side[bins].sum()) for side in histogram)
        rows = negative + positive
        counts = np.maximum(histogram[:, bins].sum(axis=0), 0.0)
        observed = min(max(positive / rows, 0.0), 1.0)
        by_noise = noise * math.sqrt(len(bins) * (observed**2 + (1 - observed) ** 2)) / rows
        parts.append(
            {
                "predicted": float(counts @ chance[bins] / counts.sum()),
                "observed": observed,
                "bar": _bar(by_noise, most * observed * (1 - observed) / rows),
                "rows": rows,
            }
        )
    return parts


def _joined(rows: Floats, noise: float) -> list[list[int]]:
    """Runs of neighbouring bins, each with clearly more rows than noise; none, if all have not."""
    runs: list[list[int]] = []
    run: list[int] = []
    for place in range(len(rows)):
        run.append(place)
        if rows[run].sum() > _CLEAR * noise * math.sqrt(len(run)):
            runs.append(run)
            run = []
    if runs and run:
        runs[-1] = runs[-1] + run
    return [run for run in runs if rows[run].sum() > _CLEAR * noise]


def covered_numbers(
    errors: Floats,
    weights: Floats,
    stage: Stage,
    unit: float,
    half: float,
    *,
    rows: float | None,
    most: float,
) -> dict[str, Any]:
    """The root mean square error, errors beyond four spreads counted as four.

    `rows` is the weight of all rows, None where labels may be missing and their number is private:
    it is released beside the sum then, and both together move by √2.
    """
    limit = _LONGEST * unit
    value = [weights @ np.minimum((errors / limit) ** 2, 1.0)]
    value += [weights.sum()] if rows is None else []
    moves = (math.sqrt(len(value)), math.sqrt(len(value)))
    noisy, noise = stage.release(np.array(value), moves), stage.noise(moves)
    count = max(float(noisy[1]), 1.0) if rows is None else rows
    mean = min(max(float(noisy[0]) / count, 0.0), 1.0)
    # A number in [0, 1] of mean m varies by at most m·(1 − m).
    bar = _bar(
        noise / count * math.sqrt(1 + mean**2 * (rows is None)), most * mean * (1 - mean) / count
    )
    rmse = math.sqrt(mean)
    return {
        "rows": count,
        "rmse": half * limit * rmse,
        "rmse_bar": half * limit * min(bar / max(2 * rmse, 1e-9), math.sqrt(bar), 1.0),
    }
