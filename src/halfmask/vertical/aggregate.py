"""A combination rule from DP aggregates: how often each party's score and label occur together.

After training, each party counts its own training rows by bin of score and class, and releases the
counts once with noise. The label holder learns from them how far each expert can be trusted: it is
recalibrated on its own counts, the best of them counts in full, the others are damped. A party
whose columns say nothing gets a weight near zero instead of adding its noise, and the order of the
parties no longer matters. How scores of different parties depend on each other is not in the counts
(no party could count it), so the damping stays a constant.

Guarantee: docs/proofs/experts.md, "A DP aggregate".
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from scipy.special import expit

from halfmask.mechanisms.release import Sensitivity
from halfmask.vertical.block import Vector
from halfmask.vertical.newton import ExpertCosts

BINS, REACH = 16, 4.0
"""Equal bins of log-odds from -REACH to REACH; scores beyond lie in the outermost ones."""

SHARE = 0.05
"""The part of a party's μ² that its counts take, where they are asked for."""

_STEPS = 50


def count_scores(scores: Vector, targets: Vector) -> Vector:
    """(2, BINS): the sum of 1 - target, and of the target, over the rows of each bin.

    For labels in clear these are the rows of either class. A score that is not a number counts in
    the first bin, so that every row is in exactly one.
    """
    finite = np.nan_to_num(scores, nan=-REACH, posinf=REACH, neginf=-REACH)
    place = np.floor((np.clip(finite, -REACH, REACH) + REACH) / (2 * REACH) * BINS).astype(int)
    bins = np.minimum(place, BINS - 1)
    return np.stack(
        [np.bincount(bins, weights=w, minlength=BINS) for w in (1 - targets, targets)]
    ).astype(np.float64)


def count_sensitivity(excess: float) -> Sensitivity:
    """How far one row moves the counts, its target lying in [-excess, 1 + excess].

    A row whose columns are withheld has the score 0 and is still counted, in the bin of 0: it moves
    from bin to bin like a replaced one. Guarantee: docs/proofs/experts.md, "A DP aggregate".
    """
    bound = math.sqrt(2) * math.hypot(1 + excess, excess)
    return Sensitivity(replace=bound, withhold=bound)


def count_costs(ratio: float, excess: float) -> ExpertCosts:
    """What counts released at `ratio` cost one row. Guarantee: docs/proofs/experts.md."""
    relabelled = ratio * (1 + 2 * excess) / math.hypot(1 + excess, excess)
    return ExpertCosts(
        block=ratio,
        withhold=ratio,
        label=relabelled,
        person=max(ratio, relabelled),
    )


def recalibrated(counts: Vector) -> tuple[float, float, float]:
    """(intercept, slope, gain): logit P = intercept + slope·score fitted to noisy counts.

    `gain` is the log loss a row saves against knowing the frequency of the classes only. Counts
    that noise made negative are taken as zero; a slope below zero is noise and becomes zero.
    """
    weights = np.maximum(counts, 0.0)
    middle = (np.arange(BINS) + 0.5) * (2 * REACH / BINS) - REACH
    total, ones = weights.sum(axis=0), weights[1]
    rows = max(float(total.sum()), 1.0)
    frequency = min(max(float(ones.sum()) / rows, 1 / (rows + 1)), rows / (rows + 1))
    design = np.column_stack([np.ones(BINS), middle])
    # One row's worth of a prior at "no information" keeps the problem strictly convex.
    base = np.array([math.log(frequency / (1 - frequency)), 0.0])
    fitted = base.copy()
    for _ in range(_STEPS):
        p = expit(design @ fitted)
        gradient = design.T @ (total * p - ones) + (fitted - base)
        curvature = (design * (total * p * (1 - p))[:, None]).T @ design + np.eye(2)
        step = np.linalg.solve(curvature, gradient)
        # A damped Newton step: the loss is self-concordant in this sense (Bach 2010).
        fitted = fitted - step / (1 + float(np.abs(design @ step).max()))
    if fitted[1] <= 0:
        return float(base[0]), 0.0, 0.0
    gain = (_loss(base, design, total, ones) - _loss(fitted, design, total, ones)) / rows
    return float(fitted[0]), float(fitted[1]), gain


def _loss(w: Vector, design: Vector, total: Vector, ones: Vector) -> float:
    scores = design @ w
    return float(np.sum(total * np.logaddexp(0, scores) - ones * scores))


def weights_from_counts(
    counts: Sequence[Vector], prior: float, damping: float
) -> tuple[tuple[float, ...], float]:
    """Weights and intercept: the expert that gains most in full, every other one damped.

    Post-processing of noisy counts and the class prior.
    """
    log_odds = math.log(prior / (1 - prior))
    found = [recalibrated(each) for each in counts]
    best = max(range(len(found)), key=lambda index: found[index][2])
    factors = [1.0 if index == best else damping for index in range(len(found))]
    weights = tuple(f * slope for f, (_, slope, _) in zip(factors, found, strict=True))
    offsets = (f * (a - log_odds) for f, (a, _, _) in zip(factors, found, strict=True))
    return weights, log_odds + sum(offsets)
