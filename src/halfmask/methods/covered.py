"""Scores of a model on its own training rows that the guarantee covers, with noise bars.

They follow from one released histogram (classes) or one released sum (numbers), paid for like any
other release. Guarantee: docs/proofs/additive.md.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from halfmask.methods.additive_descent import Stage

Floats = NDArray[np.float64]

_PARTS = 24


def covered_classes(
    scores: Floats, target: Floats, weights: Floats, stage: Stage, base: float, spread: float
) -> dict[str, Any]:
    """Log loss, AUC and calibration by bins of scores, from a noisy histogram of bin by label.

    Edges follow from releases alone. A row is in one cell: replaced it moves the histogram by √2.
    """
    edges = base + spread * np.linspace(-3, 3, _PARTS - 1)
    middles = np.concatenate([[edges[0]], (edges[1:] + edges[:-1]) / 2, [edges[-1]]])
    codes = np.searchsorted(edges, scores) + _PARTS * (target > 0.5)
    counts = np.bincount(codes, weights, minlength=2 * _PARTS)
    moves = (math.sqrt(2), 1.0)
    noisy = stage.release(counts.astype(np.float64), moves).reshape(2, _PARTS)
    noise = stage.noise(moves)
    total = max(float(noisy.sum()), 1.0)
    chance = expit(middles)
    losses = np.stack([-np.log1p(-chance), -np.log(chance)])
    loss = float((noisy * losses).sum() / total)
    by_noise = noise * math.sqrt(float(((losses - loss) ** 2).sum())) / total
    shown = np.maximum(noisy, 0.0)
    by_rows = math.sqrt(float((shown * (losses - loss) ** 2).sum()) / total / total)
    negative, positive = shown
    below = np.cumsum(negative) - negative / 2
    pairs = float(negative.sum() * positive.sum())
    auc = float(positive @ below / pairs) if pairs > 0 else 0.5
    rows = noisy.sum(axis=0)
    clear = rows > 3 * noise * math.sqrt(2)
    reliability = [
        {
            "predicted": float(chance[place]),
            "observed": float(np.clip(noisy[1, place] / rows[place], 0, 1)),
            "bar": float(2 * noise / rows[place]),
        }
        for place in np.flatnonzero(clear)
    ]
    return {
        "log_loss": loss,
        "log_loss_bar": 2 * math.hypot(by_noise, by_rows),
        "auc": min(max(auc, 0.0), 1.0),
        "reliability": reliability,
    }


def covered_numbers(
    errors: Floats,
    weights: Floats,
    stage: Stage,
    unit: float,
    half: float,
    *,
    rows: float | None,
) -> dict[str, Any]:
    """The root mean square error, errors beyond three spreads counted as three.

    `rows` is the weight of all rows, None where labels may be missing and their number is private:
    it is released beside the sum then, and both together move by √2.
    """
    limit = 3 * unit
    value = [weights @ np.minimum((errors / limit) ** 2, 1.0)]
    value += [weights.sum()] if rows is None else []
    moves = (math.sqrt(len(value)), math.sqrt(len(value)))
    noisy, noise = stage.release(np.array(value), moves), stage.noise(moves)
    count = max(float(noisy[1]), 1.0) if rows is None else rows
    mean = max(float(noisy[0]) / count, 0.0) * limit**2
    bar = 2 * noise / count * limit**2
    rmse = math.sqrt(mean)
    return {"rmse": half * rmse, "rmse_bar": half * bar / max(2 * rmse, 1e-9)}
