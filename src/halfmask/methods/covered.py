"""Scores of a model on its own training rows that the guarantee covers, with noise bars.

They follow from one release, paid for like any other: for classes the sum of the rows' log losses
and a histogram of score by label, for numbers the sum of squared errors. Where the label is private
and columns of both kinds take part, the same release tells how well the public columns do alone.
Guarantee: docs/proofs/additive.md.

A bar is two standard errors of the difference to the same score on as many other rows: it holds the
noise, and the luck of these rows and of those. What a model has learnt by heart of its own rows is
not in it; under a guarantee that is little.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, log_softmax

from halfmask.data.products import BLOCK
from halfmask.methods.additive_descent import Stage
from halfmask.types import Floats

_PARTS = 16
# Scores are held within so many spreads of the base rate's.
_ENDS = 3.0
# Of the release's squared length: what the loss may take, and what public columns alone gain; the
# rest is the histogram's. Of numbers: what the errors of public columns alone may take.
_LOSS_PART, _PUBLIC_PART, _PUBLIC_ERRORS = 0.4, 0.1, 0.3
# Public scores further from the base rate's than those of this part of the rows are held nearer,
# and no limit is below the second number.
_NEAR, _LEAST_LIMIT = 0.99, 0.05
# Bins of the histogram are joined until so many standard deviations of noise are below their rows.
_CLEAR = 10.0
# Squared errors are cut at so many spreads.
_LONGEST = 4.0


@dataclass(frozen=True, kw_only=True, eq=False)
class PublicAlone:
    """By how much public columns alone tell a private label better than the base rate does.

    `gains` are those of the rows' log losses. Scores are public, so a label moves a gain by no more
    than a score lies from the base rate's: `limit`. `variance` is that of a row's loss, by public
    scores. `constant` is the base rate's own loss, which has noise of `constant_noise`.
    """

    gains: Floats
    limit: float
    variance: float
    constant: float
    constant_noise: float

    @classmethod
    def of(
        cls,
        scores: Floats,
        everyone: Floats,
        base: Floats,
        target: NDArray[np.intp],
        *,
        constant: float,
        constant_noise: float,
    ) -> PublicAlone:
        """From public scores of these rows and of those of all machines.

        They are classes x rows, or of the second of two classes; `base` are the base rate's.
        """
        start = base[:, None]
        apart = np.concatenate([np.ptp(s - start, axis=0) for s in _blocks(everyone)])
        limit = max(float(np.quantile(apart, _NEAR)), _LEAST_LIMIT)
        told = log_softmax(base)
        mean = square = 0.0
        for block in _blocks(everyone):
            logs = _held(block, start, limit)
            chances = np.exp(logs)
            mean -= float(np.sum(chances * logs))
            square += float(np.sum(chances * logs**2))
        gains = np.zeros(len(target))
        for place, block in enumerate(_blocks(scores)):
            own = slice(place * BLOCK, place * BLOCK + block.shape[1])
            truth = target[own]
            gains[own] = _held(block, start, limit)[truth, np.arange(len(truth))] - told[truth]
        rows = everyone.shape[-1]
        return cls(
            gains=gains,
            limit=limit,
            variance=max(square / rows - (mean / rows) ** 2, 0.0),
            constant=constant,
            constant_noise=constant_noise,
        )


def _blocks(scores: Floats) -> Iterator[Floats]:
    """Classes x some rows at a time; the first of two classes has score 0."""
    for start in range(0, scores.shape[-1], BLOCK):
        block = scores[..., start : start + BLOCK]
        yield block if block.ndim > 1 else np.stack([np.zeros(len(block)), block])


def _held(scores: Floats, base: Floats, limit: float) -> Floats:
    """Log chances of scores, none further than `limit` from the base rate's."""
    apart = scores - base
    nearer = np.minimum(1.0, limit / np.maximum(np.ptp(apart, axis=0), 1e-12))
    found: Floats = log_softmax(base + nearer * apart, axis=0)
    return found


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
    public: PublicAlone | None = None,
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
    found = _released(losses, codes, weights, stage, longest, rows, public)
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
        **_told_alone(public, found, most),
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
    public: PublicAlone | None = None,
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
    found = _released(losses, codes, weights, stage, longest, rows, public)
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
        **_told_alone(public, found, most),
    }


class _Released(NamedTuple):
    """What one release tells of the loss, of two histograms, one above the other, and of the gain
    of public columns alone.
    """

    histogram: Floats
    noise: float
    rows: float
    loss: float
    loss_noise: float
    gain: float = 0.0
    gain_noise: float = 0.0


def _released(
    losses: Floats,
    codes: NDArray[np.intp],
    weights: Floats,
    stage: Stage,
    longest: float,
    rows: float | None,
    public: PublicAlone | None,
) -> _Released:
    """Losses in [0, longest], a cell for each row and gains within a limit, in one release.

    Replaced, a row moves the loss by `longest`, the gains by their limit and the histogram by √2;
    withheld, the last by 1.
    """
    counts = np.bincount(codes, weights, minlength=2 * _PARTS).astype(np.float64)
    gained = 0.0 if public is None else _PUBLIC_PART
    counted = 1 - _LOSS_PART - gained
    by_loss, by_count = math.sqrt(_LOSS_PART) / longest, math.sqrt(counted / 2)
    value = np.concatenate([[by_loss * (weights @ losses)], by_count * counts])
    by_gain = 1.0
    if public is not None:
        by_gain = math.sqrt(gained) / public.limit
        value = np.append(value, by_gain * (weights @ public.gains))
    moves = (1.0, math.sqrt(_LOSS_PART + gained + counted / 2))
    noisy, noise = stage.release(value, moves), stage.noise(moves)
    histogram = noisy[1 : 1 + 2 * _PARTS].reshape(2, _PARTS) / by_count
    of_count = noise / by_count
    total = rows if rows is not None else max(float(histogram.sum()), 1.0)
    loss = min(max(float(noisy[0]) / by_loss / total, 0.0), longest)
    by_noise = noise / by_loss / total
    of_total = 0.0 if rows is not None else of_count * math.sqrt(2 * _PARTS) / total
    found = _Released(histogram, of_count, total, loss, math.hypot(by_noise, loss * of_total))
    if public is None:
        return found
    gain = float(np.clip(noisy[-1] / by_gain / total, -public.limit, public.limit))
    gain_noise = math.hypot(noise / by_gain / total, gain * of_total)
    return found._replace(gain=gain, gain_noise=gain_noise)


def _told_alone(public: PublicAlone | None, found: _Released, most: float) -> dict[str, Any]:
    """The log loss of public columns alone: the base rate's less the gain."""
    if public is None:
        return {}
    noise = math.hypot(found.gain_noise, public.constant_noise)
    bar = _bar(noise, most * public.variance / found.rows)
    loss = max(public.constant - found.gain, 0.0)
    return {"public_alone": {"log_loss": loss, "log_loss_bar": bar}}


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
    public: Floats | None = None,
) -> dict[str, Any]:
    """The root mean square error, errors beyond four spreads counted as four.

    `rows` is the weight of all rows, None where labels may be missing and their number is private:
    it is released beside the sum then, and both together move by √2. `public` are the errors of the
    public columns alone: their sum takes a part of the release.
    """
    limit = _LONGEST * unit
    alone = 0.0 if public is None else _PUBLIC_ERRORS
    each = np.full(1 if rows is not None else 2, 1 - alone)
    value = [weights @ np.minimum((errors / limit) ** 2, 1.0)]
    value += [weights.sum()] if rows is None else []
    if public is not None:
        value.append(weights @ np.minimum((public / limit) ** 2, 1.0))
        each = np.append(each, alone)
    parts = np.sqrt(each)
    moves = (float(np.linalg.norm(parts)),) * 2
    noisy, noise = stage.release(parts * value, moves) / parts, stage.noise(moves) / parts
    count = max(float(noisy[1]), 1.0) if rows is None else rows
    of_count = float(noise[0]) / count if rows is None else 0.0

    def told(place: int) -> dict[str, float]:
        mean = min(max(float(noisy[place]) / count, 0.0), 1.0)
        by_noise = math.hypot(float(noise[place]) / count, mean * of_count)
        # A number in [0, 1] of mean m varies by at most m·(1 − m).
        bar = _bar(by_noise, most * mean * (1 - mean) / count)
        rmse = math.sqrt(mean)
        widest = min(bar / max(2 * rmse, 1e-9), math.sqrt(bar), 1.0)
        return {"rmse": half * limit * rmse, "rmse_bar": half * limit * widest}

    beside = {} if public is None else {"public_alone": told(-1)}
    return {"rows": count, **told(0), **beside}
