"""Public columns under a private label: one release of sums by label carries all they tell.

Features are public, so every curvature is free; only Σ feature · label is private. Guarantee:
docs/proofs/additive.md.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from halfmask.methods.additive_descent import Stage
from halfmask.methods.code_sums import CodeSums
from halfmask.methods.level_facts import noise_by_level
from halfmask.methods.smooth_codes import LevelFeatures, level_features
from halfmask.table import CodedColumn

Floats = NDArray[np.float64]

_WHITEN = 0.25
_CONSTANT = 0.3
# Rows longer than this quantile are weighed down to it.
_LONG = 0.7
_ROUNDS = 6
# Directions of an ordered column that are smaller than this part of its largest one are rough.
_ROUGH = 0.3
# The share of effects that levels of a number have by themselves, for every unit by which errors of
# sampling exceed the noise.
_ALONE, _LEAST_ALONE, _MOST_ALONE = 0.01, 0.02, 0.1


def fit_public_sums(
    columns: Sequence[CodedColumn],
    target: Floats,
    *,
    labelled: NDArray[np.bool_],
    weights: Floats,
    stage: Stage,
    start: float,
    label_range: tuple[float, float],
    number: bool,
) -> tuple[list[Floats], float, list[Floats]]:
    """Weights of the levels of each column, a start, and the weights' noise, in label's scores.

    The released sums are those of weight · feature · (label − middle of its range): a label moves
    them by at most weight · ‖feature‖ · range. A missing label counts as the middle.
    """
    rows = float(weights.sum())
    low, high = label_range
    middle, wide = (low + high) / 2, high - low
    chance = float(expit(start))
    sampling = math.sqrt(rows * (1.0 if number else chance * (1 - chance)))
    noise = stage.noise((wide, wide / 2)) * math.sqrt(len(columns))
    alone = min(max(_ALONE * sampling / noise, _LEAST_ALONE), _MOST_ALONE)
    sums = CodeSums(columns)
    features = [
        level_features(column, counts, 0.0, rows, alone=alone).whitened(_WHITEN)
        for column, counts in zip(columns, sums.sums(weights), strict=True)
    ]
    squares = [np.einsum("ij,ij->i", f.vectors, f.vectors)[f.groups] for f in features]
    # In place where it can be: at millions of rows, numbers by row are what fills memory.
    lengths = sums.scores(squares)
    np.sqrt(np.maximum(lengths, 0.0, out=lengths), out=lengths)
    constant = max(_CONSTANT * math.sqrt(float(np.mean(lengths**2))), 1e-3)
    np.hypot(lengths, constant, out=lengths)
    limit = float(np.quantile(lengths, _LONG))
    row_weights = np.divide(limit, lengths)
    np.minimum(1.0, row_weights, out=row_weights)
    lengths *= row_weights
    longest = float(lengths.max()) * (1 + 1e-9)
    del lengths
    moves = (longest * wide, longest * wide / 2)
    row_weights *= weights

    def summed(values: Floats) -> Floats:
        weighed = row_weights * values
        parts = [f.sums(total) for f, total in zip(features, sums.sums(weighed), strict=True)]
        return np.concatenate([*parts, [float(weighed.sum())]])

    scale = np.ones(sum(f.vectors.shape[1] for f in features) + 1)
    scale[-1] = constant
    noisy = stage.release(scale * summed(labelled * (target - middle)), moves)
    known = noisy / scale + middle * summed(np.ones(len(target)))
    std = stage.noise(moves) / scale
    solver = _Solver(features, sums, row_weights, known, std, number)
    solved = solver.solve(start)
    ends = np.cumsum([f.vectors.shape[1] for f in features])
    parts = np.split(solved[:-1], ends[:-1])
    starts = [end - f.vectors.shape[1] for f, end in zip(features, ends, strict=True)]
    uncertain = [
        noise_by_level(f, solver.covariance[start:end, start:end])
        for f, start, end in zip(features, starts, ends, strict=True)
    ]
    placed = [f.by_level(part) for f, part in zip(features, parts, strict=True)]
    return placed, float(solved[-1]), uncertain


def _groups(features: Sequence[LevelFeatures]) -> NDArray[np.intp]:
    """Directions of one prior scale: a column's, an ordered one's smooth and rough ones apart."""
    keys = [(place, bool(small)) for place, f in enumerate(features) for small in f.size < _ROUGH]
    known: dict[tuple[int, bool], int] = {}
    return np.array([known.setdefault(key, len(known)) for key in keys], dtype=np.intp)


class _Solver:
    """The likeliest coefficients given the noisy sums: Gauss-Newton, a prior scale per group."""

    def __init__(
        self,
        features: Sequence[LevelFeatures],
        sums: CodeSums,
        weights: Floats,
        known: Floats,
        std: Floats,
        number: bool,
    ) -> None:
        self._features, self._sums, self._weights = features, sums, weights
        self._known, self._std, self._number = known, std, number
        sizes = [f.vectors.shape[1] for f in features]
        self._ends, self._sizes = np.cumsum(sizes), np.array(sizes)
        self._group = _groups(features)
        self._members = np.bincount(self._group)
        self.covariance: Floats = np.zeros((0, 0))
        """What the noise of the sums leaves in the coefficients."""

    def solve(self, start: float) -> Floats:
        """The coefficients, the constant last."""
        theta = np.zeros(len(self._known))
        theta[-1] = start
        scales = np.full(len(self._members), 1.0 / max(len(self._features), 1))
        # A standardised number has residuals of variance below one; classes at most their p(1−p).
        variance = 0.8 if self._number else 1.0
        for turn in range(1 if self._number else _ROUNDS):
            chance = self._scores(theta)
            curve = self._weights
            if not self._number:
                expit(chance, out=chance)
                curve = chance * (1 - chance)
                np.maximum(curve, 0.01, out=curve)
                curve *= self._weights
            curvature = self._gram(curve)
            del curve
            rest = self._known - self._summed(self._weights * chance) + curvature @ theta
            del chance
            spread = variance * curvature + np.diag(self._std**2 + 1e-9 * np.trace(curvature))
            weighed = np.linalg.solve(spread, curvature)
            precision, right = curvature.T @ weighed, weighed.T @ rest
            for _ in range((12, 4)[turn] if turn < 2 else 0):
                scales = self._again(precision, right, scales)
            step = np.linalg.solve(precision + np.diag(self._prior(scales)), right) - theta
            moved = math.sqrt(float(np.mean(self._scores(step) ** 2)))
            theta = theta + step * (1.0 if self._number else min(1.0, 1.0 / max(moved, 1e-9)))
            if moved < 0.02:
                break
        passed = np.linalg.solve(precision + np.diag(self._prior(scales)), weighed.T) * self._std
        self.covariance = passed @ passed.T
        return theta

    def _prior(self, scales: Floats) -> Floats:
        return np.append(1 / scales[self._group], 1e-4)

    def _again(self, precision: Floats, right: Floats, scales: Floats) -> Floats:
        covariance = np.linalg.inv(precision + np.diag(self._prior(scales)))
        mean = covariance @ right
        energy = np.bincount(self._group, (mean**2 + np.diag(covariance))[:-1])
        pooled = 2 * energy.sum() / max(self._members.sum(), 1)
        found: Floats = np.maximum((energy + pooled) / (self._members + 2), 1e-8)
        return found

    def _scores(self, theta: Floats) -> Floats:
        parts = np.split(theta[:-1], self._ends[:-1])
        tables = [f.by_level(part) for f, part in zip(self._features, parts, strict=True)]
        return self._sums.scores(tables) + float(theta[-1])

    def _summed(self, weighed: Floats) -> Floats:
        pairs = zip(self._features, self._sums.sums(weighed), strict=True)
        return np.concatenate([*(f.sums(total) for f, total in pairs), [float(weighed.sum())]])

    def _gram(self, weights: Floats) -> Floats:
        """Σ weight · feature · featureᵀ, constant last, by counts of pairs of levels."""
        features, ends = self._features, self._ends
        starts = ends - self._sizes
        gram = np.zeros((len(self._known), len(self._known)))
        sizes = [len(f.share) for f in features]
        totals, counts = self._sums.pair_sums([f.groups for f in features], sizes, weights)
        for i, first in enumerate(features):
            mine = slice(starts[i], ends[i])
            gram[mine, mine] = (first.vectors.T * totals[i]) @ first.vectors
            gram[-1, mine] = gram[mine, -1] = totals[i] @ first.vectors
            for j in range(i):
                second, theirs = features[j], slice(starts[j], ends[j])
                gram[mine, theirs] = first.vectors.T @ counts[i, j] @ second.vectors
                gram[theirs, mine] = gram[mine, theirs].T
        gram[-1, -1] = weights.sum()
        return gram
