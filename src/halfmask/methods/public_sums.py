"""Public columns under a private label: one release of sums by label carries all they tell.

Features are public, so every curvature is free; only Σ feature · label is private. Guarantee:
docs/proofs/additive.md.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, softmax

from halfmask.methods.additive_descent import Stage
from halfmask.methods.code_sums import CodeSums
from halfmask.methods.smooth_codes import LevelFeatures, level_features
from halfmask.table import CodedColumn

Floats = NDArray[np.float64]

_WHITEN = 0.25
_CONSTANT = 0.3
# Rows longer than this quantile are weighed down to it.
_LONG = 0.7
_ROUNDS = 6
_CLASS_ROUNDS, _CLASS_STEP = 15, 0.6
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
) -> tuple[list[Floats], float]:
    """Weights of the levels of each column, and a start, in the label's scores.

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
    prepared = _Prepared.of(columns, weights, alone)
    longest = prepared.longest
    moves = (longest * wide, longest * wide / 2)
    scale = prepared.scale
    noisy = stage.release(scale * prepared.summed(labelled * (target - middle)), moves)
    known = noisy / scale + middle * prepared.summed(np.ones(len(target)))
    std = stage.noise(moves) / scale
    solved = _Solver(prepared, known, std, number).solve(start)
    return prepared.by_level(solved), float(solved[-1])


def fit_public_class_sums(
    columns: Sequence[CodedColumn],
    target: NDArray[np.intp],
    *,
    labelled: NDArray[np.bool_],
    weights: Floats,
    stage: Stage,
    start: Floats,
) -> tuple[list[Floats], Floats]:
    """`fit_public_sums` for classes: weights of levels x classes, and a start for each class.

    The released sums are those of weight · feature ⊗ (e − centre), e the indicator of the class and
    centre the released shares exp(start): a label moves them by at most weight · ‖feature‖ · √2.
    A missing label counts as the centre.
    """
    rows, centre = float(weights.sum()), np.exp(start)
    longest_label = float(np.sqrt(centre @ centre + 1 - 2 * centre.min()))
    sampling = math.sqrt(rows * float(np.mean(centre * (1 - centre))))
    noise = stage.noise((math.sqrt(2), longest_label)) * math.sqrt(len(columns))
    alone = min(max(_ALONE * sampling / noise, _LEAST_ALONE), _MOST_ALONE)
    prepared = _Prepared.of(columns, weights, alone)
    moves = (prepared.longest * math.sqrt(2), prepared.longest * longest_label)
    values = [labelled * ((target == k) - share) for k, share in enumerate(centre)]
    exact = np.stack([prepared.summed(value) for value in values])
    noisy = stage.release(prepared.scale * exact, moves)
    known = noisy / prepared.scale + np.outer(centre, prepared.summed(np.ones(len(target))))
    std = stage.noise(moves) / prepared.scale
    solved = _ClassSolver(prepared, known, std).solve(start)
    by_class = [prepared.by_level(each) for each in solved]
    return [np.stack(tables, axis=1) for tables in zip(*by_class, strict=True)], solved[:, -1]


@dataclass(frozen=True, kw_only=True, eq=False)
class _Prepared:
    """Features of public columns and weights by which no row is long; all of it is public."""

    features: list[LevelFeatures]
    sums: CodeSums
    weights: Floats
    longest: float
    scale: Floats

    @classmethod
    def of(cls, columns: Sequence[CodedColumn], weights: Floats, alone: float) -> _Prepared:
        rows = float(weights.sum())
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
        row_weights *= weights
        scale = np.ones(sum(f.vectors.shape[1] for f in features) + 1)
        scale[-1] = constant
        return cls(features=features, sums=sums, weights=row_weights, longest=longest, scale=scale)

    def summed(self, values: Floats) -> Floats:
        """Σ weight · value · feature, the constant last."""
        weighed = self.weights * values
        pairs = zip(self.features, self.sums.sums(weighed), strict=True)
        return np.concatenate([*(f.sums(total) for f, total in pairs), [float(weighed.sum())]])

    def by_level(self, theta: Floats) -> list[Floats]:
        """What the levels of each column add to a score."""
        ends = np.cumsum([f.vectors.shape[1] for f in self.features])
        parts = np.split(theta[:-1], ends[:-1])
        return [f.by_level(part) for f, part in zip(self.features, parts, strict=True)]

    def scores(self, theta: Floats) -> Floats:
        return self.sums.scores(self.by_level(theta)) + float(theta[-1])

    def gram(self, weights: Floats) -> Floats:
        """Σ weight · feature · featureᵀ, constant last, by counts of pairs of levels."""
        features, widths = self.features, [f.vectors.shape[1] for f in self.features]
        ends = np.cumsum(widths)
        starts = ends - widths
        gram = np.zeros((len(self.scale), len(self.scale)))
        sizes = [len(f.share) for f in features]
        totals, counts = self.sums.pair_sums([f.groups for f in features], sizes, weights)
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


def _groups(features: Sequence[LevelFeatures]) -> NDArray[np.intp]:
    """Directions of one prior scale: a column's, an ordered one's smooth and rough ones apart."""
    keys = [(place, bool(small)) for place, f in enumerate(features) for small in f.size < _ROUGH]
    known: dict[tuple[int, bool], int] = {}
    return np.array([known.setdefault(key, len(known)) for key in keys], dtype=np.intp)


class _Solver:
    """The likeliest coefficients given the noisy sums: Gauss-Newton, a prior scale per group."""

    def __init__(self, prepared: _Prepared, known: Floats, std: Floats, number: bool) -> None:
        self._prepared, self._weights = prepared, prepared.weights
        self._known, self._std, self._number = known, std, number
        self._group = _groups(prepared.features)
        self._members = np.bincount(self._group)

    def solve(self, start: float) -> Floats:
        """The coefficients, the constant last."""
        theta = np.zeros(len(self._known))
        theta[-1] = start
        scales = np.full(len(self._members), 1.0 / max(len(self._prepared.features), 1))
        # A standardised number has residuals of variance below one; classes at most their p(1−p).
        variance = 0.8 if self._number else 1.0
        for turn in range(1 if self._number else _ROUNDS):
            chance = self._prepared.scores(theta)
            curve = self._weights
            if not self._number:
                expit(chance, out=chance)
                curve = chance * (1 - chance)
                np.maximum(curve, 0.01, out=curve)
                curve *= self._weights
            curvature = self._prepared.gram(curve)
            del curve
            rest = self._known - self._prepared.summed(chance) + curvature @ theta
            del chance
            spread = variance * curvature + np.diag(self._std**2 + 1e-9 * np.trace(curvature))
            weighed = np.linalg.solve(spread, curvature)
            precision, right = curvature.T @ weighed, weighed.T @ rest
            for _ in range((12, 4)[turn] if turn < 2 else 0):
                scales = self._again(precision, right, scales)
            step = np.linalg.solve(precision + np.diag(_prior(scales, self._group)), right) - theta
            moved = math.sqrt(float(np.mean(self._prepared.scores(step) ** 2)))
            theta = theta + step * (1.0 if self._number else min(1.0, 1.0 / max(moved, 1e-9)))
            if moved < 0.02:
                break
        return theta

    def _again(self, precision: Floats, right: Floats, scales: Floats) -> Floats:
        covariance = np.linalg.inv(precision + np.diag(_prior(scales, self._group)))
        mean = covariance @ right
        energy = np.bincount(self._group, (mean**2 + np.diag(covariance))[:-1])
        pooled = 2 * energy.sum() / max(self._members.sum(), 1)
        found: Floats = np.maximum((energy + pooled) / (self._members + 2), 1e-8)
        return found


class _ClassSolver:
    """The same for classes: each class's curvature is its mean p·(1 − p) times one Gram matrix."""

    def __init__(self, prepared: _Prepared, known: Floats, std: Floats) -> None:
        self._prepared, self._known, self._std = prepared, known, std
        self._group = _groups(prepared.features)
        self._members = np.bincount(self._group)

    def solve(self, start: Floats) -> Floats:
        """Classes x coefficients, the constant last."""
        prepared, classes = self._prepared, len(start)
        theta = np.zeros((classes, len(self._std)))
        theta[:, -1] = start
        gram = prepared.gram(prepared.weights)
        total = float(prepared.weights.sum())
        scales = np.full(len(self._members), 1.0 / max(len(prepared.features), 1))
        for turn in range(_CLASS_ROUNDS):
            chances = softmax(np.stack([prepared.scores(each) for each in theta]), axis=0)
            bends = (chances * (1 - chances)) @ prepared.weights / total
            rest = self._known - np.stack([prepared.summed(chance) for chance in chances])
            systems = [
                self._system(max(float(bend), 1e-6) * gram, rest[k], theta[k])
                for k, bend in enumerate(bends)
            ]
            for _ in range((12, 4)[turn] if turn < 2 else 0):
                scales = self._again(systems, scales)
            prior = np.diag(_prior(scales, self._group))
            step = np.stack([np.linalg.solve(p + prior, right) for p, right in systems]) - theta
            moved = max(math.sqrt(float(np.mean(prepared.scores(each) ** 2))) for each in step)
            # Classes pull at each other: half a step, and no longer than one.
            theta = theta + step * min(_CLASS_STEP, 1.0 / max(moved, 1e-9))
            if moved < 0.02:
                break
        return theta

    def _system(self, curvature: Floats, rest: Floats, theta: Floats) -> tuple[Floats, Floats]:
        spread = curvature + np.diag(self._std**2 + 1e-9 * np.trace(curvature))
        weighed = np.linalg.solve(spread, curvature)
        return curvature.T @ weighed, weighed.T @ (rest + curvature @ theta)

    def _again(self, systems: Sequence[tuple[Floats, Floats]], scales: Floats) -> Floats:
        energy = np.zeros(len(scales))
        for precision, right in systems:
            covariance = np.linalg.inv(precision + np.diag(_prior(scales, self._group)))
            mean = covariance @ right
            energy += np.bincount(self._group, (mean**2 + np.diag(covariance))[:-1])
        energy /= len(systems)
        pooled = 2 * energy.sum() / max(self._members.sum(), 1)
        found: Floats = np.maximum((energy + pooled) / (self._members + 2), 1e-8)
        return found


def _prior(scales: Floats, group: NDArray[np.intp]) -> Floats:
    return np.append(1 / scales[group], 1e-4)
