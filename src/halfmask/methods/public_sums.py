"""Public columns under a private label: one release of sums by label carries all they tell.

Features are public, so every curvature is free; only Σ feature · label is private. The directions
in which sums are released, and the noise in each, follow from the features' Gram matrix. Guarantee:
docs/proofs/additive.md.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve
from scipy.linalg.lapack import dpotri
from scipy.special import expit, softmax

from halfmask.mechanisms.shards import ALONE, Shards, rows_in_all, total_of
from halfmask.methods.additive_descent import Stage
from halfmask.methods.code_sums import BLOCK, CodeSums
from halfmask.methods.level_facts import noise_by_level
from halfmask.methods.level_priors import allocated
from halfmask.methods.smooth_codes import LevelFeatures, level_features
from halfmask.table import CodedColumn

Floats = NDArray[np.float64]

_WHITEN = 0.25
_CONSTANT = 0.3
# A column of k directions is k to this power times as long: each of them has to be heard.
_WIDTH = 0.3
# Of all columns together: how far scores may typically vary, for the choice of noise by direction.
_EFFECT = 0.8
# Rows longer than this quantile are weighed down to it.
_LONG = 0.3
# Beyond so many features their directions are those of the columns: turning them takes too long.
_TURNED = 1000
# Rounds of the solver for two classes, for more of them, and the part of a step that these take.
_ROUNDS, _CLASS_ROUNDS, _CLASS_STEP = 6, 15, 0.6
# Turns at the prior scales in a first and second round, and beyond so many features.
_WIDE = 300
_AGAIN: tuple[int, int] = (30, 6)
_AGAIN_WIDE: tuple[int, int] = (8, 2)
# Effects fall off with a direction's size to one of these powers.
_SMOOTHER = (0.0, 0.5, 1.0)
# Prior scales are drawn to their mean as if by so many more directions, and to one at which all
# columns together would vary scores by this variance, as if by so many.
_POOLED, _TYPICAL, _BY_TYPICAL = 5.0, 0.5, 2.0
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
    shards: Shards = ALONE,
) -> tuple[list[Floats], float, list[Floats]]:
    """Weights of the levels of each column, a start, and the weights' noise, in label's scores.

    The released sums are those of weight · feature · (label − middle of its range): a label moves
    them by at most weight · ‖feature‖ · range. A missing label counts as the middle.
    """
    low, high = label_range
    middle, wide = (low + high) / 2, high - low
    chance = float(expit(start))
    bend = 1.0 if number else chance * (1 - chance)
    prepared = _Prepared.of(columns, weights, bend, stage.noise((wide, wide / 2)), shards)
    moves = (prepared.longest * wide, prepared.longest * wide / 2)
    exact = prepared.summed(labelled * (target - middle))
    noisy = stage.release(prepared.turned(exact), moves)
    known = prepared.back(noisy) + middle * prepared.summed_by_all(np.ones(len(target)))
    noise = prepared.noise(stage.noise(moves))
    solver = _Solver(prepared, known[None], noise, number)
    solved = solver.solve(np.array([start]))[0]
    covariance, uncertain, end = solver.covariance(), [], 0
    for f in prepared.features:
        own = slice(end, end := end + f.vectors.shape[1])
        uncertain.append(noise_by_level(f, covariance[own, own]))
    return prepared.by_level(solved), float(solved[-1]), uncertain


def fit_public_class_sums(
    columns: Sequence[CodedColumn],
    target: NDArray[np.intp],
    *,
    labelled: NDArray[np.bool_],
    weights: Floats,
    stage: Stage,
    start: Floats,
    shards: Shards = ALONE,
) -> tuple[list[Floats], Floats]:
    """`fit_public_sums` for classes: weights of levels x classes, and a start for each class.

    The released sums are those of weight · feature ⊗ (e − centre), e the indicator of the class and
    centre the released shares exp(start): a label moves them by at most weight · ‖feature‖ · √2.
    A missing label counts as the centre.
    """
    centre = np.exp(start)
    longest_label = float(np.sqrt(centre @ centre + 1 - 2 * centre.min()))
    bend = float(np.mean(centre * (1 - centre)))
    noise = stage.noise((math.sqrt(2), longest_label))
    prepared = _Prepared.of(columns, weights, bend, noise, shards)
    moves = (prepared.longest * math.sqrt(2), prepared.longest * longest_label)
    values = [labelled * ((target == k) - share) for k, share in enumerate(centre)]
    exact = np.stack([prepared.turned(prepared.summed(value)) for value in values])
    noisy = stage.release(exact, moves)
    known = prepared.back(noisy) + np.outer(centre, prepared.summed_by_all(np.ones(len(target))))
    covariance = prepared.noise(stage.noise(moves))
    solved = _Solver(prepared, known, covariance, number=False).solve(start)
    by_class = [prepared.by_level(each) for each in solved]
    return [np.stack(tables, axis=1) for tables in zip(*by_class, strict=True)], solved[:, -1]


@dataclass(frozen=True, kw_only=True, eq=False)
class _Prepared:
    """Features of public columns, the directions of their release, and weights of rows.

    A row's vector is its features and a constant, turned by `turn`; with its weight, no row's is
    longer than `longest`. All of it is public, or follows from earlier releases.
    """

    features: list[LevelFeatures]
    sums: CodeSums
    weights: Floats
    longest: float
    turn: Floats
    unturn: Floats
    shards: Shards

    @classmethod
    def of(
        cls,
        columns: Sequence[CodedColumn],
        weights: Floats,
        bend: float,
        noise: float,
        shards: Shards,
    ) -> _Prepared:
        """`bend`: how fast a mean label changes with its score; `noise`: for rows of norm 1."""
        rows, sums = total_of(weights, shards), CodeSums(columns)
        louder = noise * math.sqrt(len(columns))
        alone = min(max(_ALONE * math.sqrt(rows * bend) / louder, _LEAST_ALONE), _MOST_ALONE)
        features = [
            level_features(column, counts, 0.0, rows, alone=alone).whitened(_WHITEN)
            for column, counts in zip(columns, map(shards.sum, sums.sums(weights)), strict=True)
        ]
        widths = np.array([max(f.vectors.shape[1], 1) for f in features]) ** _WIDTH
        widths = widths / math.sqrt(float(np.mean(widths**2)))
        features = [
            replace(f, vectors=width * f.vectors) for f, width in zip(features, widths, strict=True)
        ]
        unturned = cls(
            features=features,
            sums=sums,
            weights=weights,
            longest=0.0,
            turn=np.zeros((0, 0)),
            unturn=np.zeros((0, 0)),
            shards=shards,
        )
        gram = unturned.gram(weights) / rows
        scale = np.ones(len(gram))
        scale[-1] = max(_CONSTANT * math.sqrt(float(np.trace(gram)) - gram[-1, -1]), 1e-3)
        gram *= np.outer(scale, scale)
        if len(gram) <= _TURNED:
            values, axes = np.linalg.eigh(gram)
        else:
            values, axes = np.diag(gram).copy(), np.eye(len(gram))
        values = np.maximum(values, 1e-6 * values.max())
        prior = np.full(len(values), _EFFECT / math.sqrt(len(columns)))
        factors = allocated(
            list(rows * bend * values[:, None, None]), prior, np.sqrt(values), 0.0, noise
        )
        turn = scale[:, None] * axes * factors
        unturn = (axes / factors).T / scale
        lengths = unturned.lengths(columns, turn)
        limit = float(np.quantile(shards.gather(lengths), _LONG))
        # In place where it can be: at millions of rows, numbers by row are what fills memory.
        row_weights = np.divide(limit, lengths)
        np.minimum(1.0, row_weights, out=row_weights)
        lengths *= row_weights
        longest = float(shards.gather(np.array([lengths.max()])).max()) * (1 + 1e-9)
        del lengths
        row_weights *= weights
        return replace(unturned, weights=row_weights, longest=longest, turn=turn, unturn=unturn)

    def lengths(self, columns: Sequence[CodedColumn], turn: Floats) -> Floats:
        """The norm of each row's turned vector."""
        found = np.empty(self.sums.rows)
        ends = np.cumsum([f.vectors.shape[1] for f in self.features])
        parts = [
            (f.vectors @ part)[f.groups]
            for f, part in zip(self.features, np.split(turn[:-1], ends[:-1]), strict=True)
        ]
        for start in range(0, len(found), BLOCK // 4):
            rows = slice(start, min(start + BLOCK // 4, len(found)))
            turned = np.repeat(turn[-1:], rows.stop - rows.start, axis=0)
            for column, part in zip(columns, parts, strict=True):
                turned += part[column.codes_of(rows)]
            found[rows] = np.sqrt(np.einsum("ij,ij->i", turned, turned))
        return np.maximum(found, 1e-9)

    def turned(self, sums: Floats) -> Floats:
        """Sums of features as sums of turned vectors."""
        return sums @ self.turn

    def back(self, turned: Floats) -> Floats:
        """The inverse of `turned`."""
        return turned @ self.unturn

    def noise(self, std: float) -> Floats:
        """The covariance of noise in sums of features where turned ones have noise of `std`."""
        found: Floats = std**2 * self.unturn.T @ self.unturn
        return found

    def summed(self, values: Floats) -> Floats:
        """Σ weight · value · feature, the constant last."""
        weighed = self.weights * values
        pairs = zip(self.features, self.sums.sums(weighed), strict=True)
        return np.concatenate([*(f.sums(total) for f, total in pairs), [float(weighed.sum())]])

    def summed_by_all(self, values: Floats) -> Floats:
        """`summed` over the rows of all machines; values must be public."""
        return self.shards.sum(self.summed(values))

    def mean(self, values: Floats) -> float:
        """The mean over the rows of all machines, the same digits on each of them."""
        if self.shards.count == 1:
            return float(np.mean(values))
        found = total_of(values, self.shards) / rows_in_all(len(values), self.shards)
        return float(self.shards.first(np.array([found]))[0])

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
        gram = np.zeros((int(sum(widths)) + 1,) * 2)
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
        return self.shards.sum(gram)


class _Solver:
    """The likeliest coefficients given the noisy sums: Gauss-Newton, a prior scale per column.

    One row of coefficients per class, or one for two classes and numbers. The curvature of a class
    among several is its mean p·(1 − p) times one Gram matrix.
    """

    def __init__(self, prepared: _Prepared, known: Floats, noise: Floats, number: bool) -> None:
        self._prepared, self._known, self._noise, self._number = prepared, known, noise, number
        features = prepared.features
        widths = [f.vectors.shape[1] for f in features]
        self._column = np.repeat(np.arange(len(features)), widths)
        self._members = np.array(widths, dtype=np.float64)
        self._size = np.concatenate([np.ones(0), *(f.size for f in features)])
        self._several = len(known) > 1
        self._gram = np.zeros((0, 0))
        if self._several or number:
            self._gram = prepared.gram(prepared.weights)
        self._weighed: Floats = np.zeros((0, 0))
        self._precision: Floats = np.zeros((0, 0))

    def solve(self, start: Floats) -> Floats:
        """The coefficients, the constant last."""
        theta: Floats = np.zeros_like(self._known)
        theta[:, -1] = start
        turns = _AGAIN if theta.shape[1] <= _WIDE else _AGAIN_WIDE
        scales = np.full(len(self._members), 1.0 / max(len(self._members), 1))
        power = _SMOOTHER[0]
        rounds = _CLASS_ROUNDS if self._several else _ROUNDS
        for turn in range(rounds):
            systems = self._systems(theta)
            if turn == 0:
                tried = []
                for each in _SMOOTHER:
                    found = scales
                    for _ in range(turns[0]):
                        found = self._again(systems, found, each)
                    tried.append((self._evidence(systems, found, each), each, found))
                _, power, scales = max(tried, key=lambda one: one[0])
            elif turn == 1:
                for _ in range(turns[1]):
                    scales = self._again(systems, scales, power)
            prior = np.diag(self._prior(scales, power))
            step = np.stack([np.linalg.solve(p + prior, right) for p, right in systems]) - theta
            self._precision = systems[0][0] + prior
            if self._number:
                return theta + step
            moved = max(
                math.sqrt(self._prepared.mean(self._prepared.scores(each) ** 2)) for each in step
            )
            # Classes pull at each other: part of a step, and none longer than one.
            most = _CLASS_STEP if self._several else 1.0
            theta = theta + step * min(most, 1.0 / max(moved, 1e-9))
            if moved < 0.02:
                break
        return theta

    def _systems(self, theta: Floats) -> list[tuple[Floats, Floats]]:
        """Precision and right side for each row of coefficients, linear around `theta`."""
        prepared, weights = self._prepared, self._prepared.weights
        gram = self._gram
        if self._several:
            chances = softmax(np.stack([prepared.scores(each) for each in theta]), axis=0)
            bends = prepared.shards.sum((chances * (1 - chances)) @ weights)
            bends = bends / total_of(weights, prepared.shards)
            rest = [
                k - prepared.summed_by_all(p) for k, p in zip(self._known, chances, strict=True)
            ]
            curvatures = [max(float(bend), 1e-6) * gram for bend in bends]
        else:
            chance = prepared.scores(theta[0])
            if not self._number:
                expit(chance, out=chance)
                gram = prepared.gram(weights * np.maximum(chance * (1 - chance), 0.01))
            rest, curvatures = [self._known[0] - prepared.summed_by_all(chance)], [gram]
        # A standardised number has residuals of variance below one; classes at most their p(1−p).
        variance = 0.8 if self._number else 1.0
        found = []
        for curvature, left, own in zip(curvatures, rest, theta, strict=True):
            spread = variance * curvature + self._noise
            spread[np.diag_indices_from(spread)] += 1e-9 * np.trace(curvature)
            weighed: Floats = np.asarray(np.linalg.solve(spread, curvature), dtype=np.float64)
            found.append((curvature.T @ weighed, weighed.T @ (left + curvature @ own)))
            self._weighed = weighed if len(found) == 1 else self._weighed
        return found

    def covariance(self) -> Floats:
        """What the noise of the sums leaves in the coefficients of the first row."""
        passed = np.linalg.solve(self._precision, self._weighed.T)
        found: Floats = passed @ self._noise @ passed.T
        return found

    def _prior(self, scales: Floats, power: float) -> Floats:
        falls = np.maximum(self._size ** (2 * power), 1e-6)
        return np.append(1 / (scales[self._column] * falls), 1e-4)

    def _again(
        self, systems: Sequence[tuple[Floats, Floats]], scales: Floats, power: float
    ) -> Floats:
        """Prior scales once more: squares over how many of them the data determine."""
        prior, columns = self._prior(scales, power), len(self._members)
        squares, known = np.zeros(columns), np.zeros(columns)
        for precision, right in systems:
            factor = cho_factor(precision + np.diag(prior), lower=True)
            mean = cho_solve(factor, right)
            falls = 1 / (scales[self._column] * prior[:-1])
            squares += np.bincount(self._column, mean[:-1] ** 2 / falls, minlength=columns)
            told = 1 - np.diag(dpotri(factor[0], lower=1)[0])[:-1] * prior[:-1]
            known += np.bincount(self._column, told, minlength=columns)
        many = len(systems) * self._members
        known = np.maximum(known, 1e-6 * many + 1e-12)
        energy = self._members * np.minimum(squares / known, 4 * scales + 1e-9)
        pooled = _POOLED * energy.sum() / max(self._members.sum(), 1)
        pooled += _BY_TYPICAL * _TYPICAL / columns
        found: Floats = (energy + pooled) / (self._members + _POOLED + _BY_TYPICAL)
        return found

    def _evidence(
        self, systems: Sequence[tuple[Floats, Floats]], scales: Floats, power: float
    ) -> float:
        """How likely the sums are under the prior, but for a constant."""
        prior, total = self._prior(scales, power), 0.0
        for precision, right in systems:
            both = precision + np.diag(prior)
            total -= 0.5 * (float(np.linalg.slogdet(both)[1]) - float(np.log(prior).sum()))
            total += 0.5 * float(right @ np.linalg.solve(both, right))
        return total
