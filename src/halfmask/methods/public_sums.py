"""Public columns under a private label: sums of their features by label carry all they tell.

Features are public, so every curvature is free; only Σ feature · label is private. Sums are
released a few times, in directions and with noise by direction that follow from the features'
Gram matrix and from what earlier looks left in doubt. Where columns tell clearly more than noise,
the last looks also have products of the columns that tell most. Guarantee: docs/proofs/additive.md.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import block_diag, cho_factor, cho_solve
from scipy.linalg.lapack import dpotri
from scipy.special import expit, softmax

from halfmask.data.products import CodeSums
from halfmask.mechanisms.shards import ALONE, Shards, rows_in_all, total_of
from halfmask.methods.additive_descent import Stage, allocated
from halfmask.methods.additive_pairs import Grouped, Pair, PairWeights, paired_column
from halfmask.methods.smooth_codes import LevelFeatures, level_features, noise_by_level
from halfmask.table import CodedColumn
from halfmask.types import Floats

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
# Rounds before the last look.
_FIRST_ROUNDS = 2
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
# The smallest part of a number's variance that earlier looks may be thought to leave.
_LEAST_LEFT = 0.1
# Products are looked for where the part of the label's variance that columns tell, times the rows
# over the noise that one row's label can have in all looks together, is at least this.
_CLEAR = 180.0
# At most so many products, each of so many directions of its two columns; and how far all of them
# may typically vary scores, in parts of the variance that columns make.
_MOST_PAIRS, _DIRECTIONS, _PAIRED = 10, 3, 0.05


@dataclass(frozen=True, kw_only=True, eq=False)
class PublicFit:
    """By column what its levels add and how noisy that is; a start; and what products add."""

    weights: list[Floats]
    noise: list[Floats]
    start: float
    pairs: list[PairWeights]


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
    start_doubt: float = 0.0,
    pair_looks: int = 0,
) -> PublicFit:
    """What public columns tell, in the label's scores.

    `start` comes from a release whose noise is `start_doubt`; 0 where that is not known. In the
    last `pair_looks` of the releases products of columns may take part.

    The released sums are those of weight · feature · (label − middle of its range): a label moves
    them by at most weight · ‖feature‖ · range. A missing label counts as the middle. A number comes
    uncut, in units of its spread, and what is left of it is cut to the range.
    """
    low, high = label_range
    middle, wide = (low + high) / 2, high - low
    chance = float(expit(start))
    bend = 1.0 if number else chance * (1 - chance)
    moves = (wide, wide / 2)
    space = _Space.of(columns, weights, bend, stage, moves, shards)
    solver = _Solver(space, np.array([start]), number, start_doubt)
    values = (labelled * (target - middle))[None]
    for look in range(1, stage.count + 1):
        rounds = _ROUNDS if look == stage.count else _FIRST_ROUNDS
        if look == stage.count - pair_looks + 1:
            strength = total_of(weights, shards) * math.sqrt(stage.count) * wide / space.loud
            space = solver.widened(_CLEAR / (strength * bend))
        known, left = None, 1.0
        if number:
            # What earlier looks predict is taken off before a number is cut, and the cut is nearer.
            known = space.scores(solver.theta[0])
            left = math.sqrt(max(1 - space.mean(known**2), _LEAST_LEFT))
            cut: Floats = np.clip(target - known, left * low, left * high)
            values = (labelled * cut)[None]
        own = (left * moves[0], left * moves[1])
        solver.listen(stage, values, np.array([middle]), own, rounds, known)
    solved, own_columns = solver.theta[0], slice(0, len(columns))
    return PublicFit(
        weights=space.by_level(solved)[own_columns],
        noise=space.noise_by_level(solver.noise())[own_columns],
        start=float(solved[-1]),
        pairs=space.pair_weights(solved),
    )


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
    bend = float(np.mean(centre * (1 - centre)))
    moves = (math.sqrt(2), float(np.sqrt(centre @ centre + 1 - 2 * centre.min())))
    space = _Space.of(columns, weights, bend, stage, moves, shards)
    solver = _Solver(space, start, number=False)
    values = np.stack([labelled * ((target == k) - share) for k, share in enumerate(centre)])
    for look in range(1, stage.count + 1):
        rounds = _CLASS_ROUNDS if look == stage.count else _FIRST_ROUNDS
        solver.listen(stage, values, centre, moves, rounds)
    by_class = [space.by_level(each) for each in solver.theta]
    return [np.stack(tables, axis=1) for tables in zip(*by_class, strict=True)], solver.theta[:, -1]


@dataclass(frozen=True, kw_only=True, eq=False)
class _Look:
    """Directions of one release, and weights of rows.

    A row's vector is its features and a constant, turned by `turn`; with its weight, no row's is
    longer than `longest`. All of it is public, or follows from earlier releases.
    """

    weights: Floats
    longest: float
    turn: Floats
    unturn: Floats


@dataclass(frozen=True, kw_only=True, eq=False)
class _Space:
    """Features of public columns, their sums, and the choice of directions.

    `bend`: how fast a mean label changes with its score; `loud`: the noise of one look at rows of
    norm 1; `scale`: of the features, 1, and of the constant that stands beside them. The products
    `pairs` of columns are columns of their own behind the others, by their groups of levels.
    """

    columns: Sequence[CodedColumn]
    features: list[LevelFeatures]
    sums: CodeSums
    weights: Floats
    shards: Shards
    bend: float
    loud: float
    values: Floats
    axes: Floats
    scale: Floats
    pairs: Sequence[Pair] = ()
    grouped: Sequence[Grouped] = ()

    @classmethod
    def of(
        cls,
        columns: Sequence[CodedColumn],
        weights: Floats,
        bend: float,
        stage: Stage,
        moves: tuple[float, float],
        shards: Shards,
    ) -> _Space:
        rows, sums = total_of(weights, shards), CodeSums(columns)
        loud = stage.noise(moves)
        louder = loud * math.sqrt(len(columns) / stage.count)
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
        bare = cls(
            columns=columns,
            features=features,
            sums=sums,
            weights=weights,
            shards=shards,
            bend=bend,
            loud=loud,
            values=np.zeros(0),
            axes=np.zeros((0, 0)),
            scale=np.zeros(0),
        )
        return bare._with_axes()

    def _with_axes(self) -> _Space:
        rows = total_of(self.weights, self.shards)
        gram = self.gram(self.weights) / rows
        scale = np.ones(len(gram))
        scale[-1] = max(_CONSTANT * math.sqrt(float(np.trace(gram)) - gram[-1, -1]), 1e-3)
        gram *= np.outer(scale, scale)
        if len(gram) <= _TURNED:
            values, axes = np.linalg.eigh(gram)
        else:
            values, axes = np.diag(gram).copy(), np.zeros((0, 0))
        values = np.maximum(values, 1e-6 * values.max())
        return replace(self, values=values, axes=axes, scale=scale)

    @property
    def alone(self) -> int:
        """How many columns are no products."""
        return len(self.columns) - len(self.pairs)

    def with_pairs(self, told: Floats) -> _Space:
        """With products of the columns that vary scores most: by `told`, the variances they make.

        The same space where there are none, or no room for them.
        """
        grouped = [Grouped.of(feature, _DIRECTIONS) for feature in self.features]
        widths = [each.vectors.shape[1] for each in grouped]
        able = [(i, j) for i in range(len(told)) for j in range(i) if told[i] * told[j] > 0]
        able.sort(key=lambda pair: -told[pair[0]] * told[pair[1]])
        room = _TURNED - 1 - sum(feature.vectors.shape[1] for feature in self.features)
        pairs: list[Pair] = []
        for i, j in able:
            if len(pairs) < _MOST_PAIRS and 0 < widths[i] * widths[j] <= room:
                pairs.append((i, j))
                room -= widths[i] * widths[j]
        if not pairs or not self.axes.size:
            return self
        made = [paired_column(self.columns, grouped, pair) for pair in pairs]
        counts = CodeSums([column for column, _ in made]).sums(self.weights)
        products = [
            _of_rows(feature, self.shards.sum(own) / total_of(self.weights, self.shards))
            for (_, feature), own in zip(made, counts, strict=True)
        ]
        # A product may be the same for all rows: of two halves, one the copy of the other.
        kept = [place for place, feature in enumerate(products) if feature.vectors.shape[1]]
        if not kept:
            return self
        columns = [*self.columns, *(made[place][0] for place in kept)]
        wider = replace(
            self,
            columns=columns,
            features=[*self.features, *(products[place] for place in kept)],
            sums=CodeSums(columns),
            pairs=[pairs[place] for place in kept],
            grouped=grouped,
        )
        return wider._with_axes()

    def pair_weights(self, theta: Floats) -> list[PairWeights]:
        """What the products add to a score."""
        tables = self.by_level(theta)[self.alone :]
        return [
            PairWeights.of(pair, self.grouped, table)
            for pair, table in zip(self.pairs, tables, strict=True)
        ]

    def look(self, doubt: Floats | None) -> _Look:
        """Directions for coefficients whose covariance is `doubt`; None: nothing is known of them.

        In directions in which scores vary alike (unit variance over rows) and in which what is not
        known of them is uncorrelated, norm goes where it lessens the expected loss most.
        """
        rows, roots = total_of(self.weights, self.shards), np.sqrt(self.values)
        unknown = _EFFECT / math.sqrt(self.alone) * roots
        turned, root, unroot = self.axes, roots[:, None], 1 / roots[:, None]
        if self.axes.size:
            root, unroot = (self.axes * roots) @ self.axes.T, (self.axes / roots) @ self.axes.T
            if doubt is not None:
                whole = root / self.scale
                found, turned = np.linalg.eigh(whole @ doubt @ whole.T)
                unknown = np.sqrt(np.maximum(found, 1e-12))
        bends = list(np.full((len(unknown), 1, 1), rows * self.bend))
        factors = allocated(bends, unknown, np.ones(len(unknown)), 0.0, self.loud)
        # Turned back after it is scaled: noise is alike in all directions, and a matrix that does
        # not follow from the order and signs of axes is the same, but for digits, on any machine.
        if self.axes.size:
            turn = unroot @ ((turned * factors) @ turned.T)
            unturn = ((turned / factors) @ turned.T) @ root
        else:
            turn, unturn = np.diag(factors / roots), np.diag(roots / factors)
        turn, unturn = self.scale[:, None] * turn, unturn / self.scale
        lengths = self.lengths(turn)
        limit = float(np.quantile(self.shards.gather(lengths), _LONG))
        # In place where it can be: at millions of rows, numbers by row are what fills memory.
        row_weights = np.divide(limit, lengths)
        np.minimum(1.0, row_weights, out=row_weights)
        lengths *= row_weights
        longest = float(self.shards.gather(np.array([lengths.max()])).max()) * (1 + 1e-9)
        del lengths
        row_weights *= self.weights
        return _Look(weights=row_weights, longest=longest, turn=turn, unturn=unturn)

    def lengths(self, turn: Floats) -> Floats:
        """The norm of each row's turned vector, by products of pairs of levels; never too small."""
        ends = np.cumsum([f.vectors.shape[1] for f in self.features])
        parts = [
            f.vectors @ part
            for f, part in zip(self.features, np.split(turn[:-1], ends[:-1]), strict=True)
        ]
        alone = [np.einsum("ij,ij->i", part, part) + 2 * (part @ turn[-1]) for part in parts]
        pairs = {(i, j): 2 * (parts[i] @ parts[j].T) for i in range(len(parts)) for j in range(i)}
        found = self.sums.pair_scores(alone, pairs, maps=[f.groups for f in self.features])
        # No sum of these products is rounded by more.
        furthest = sum(float(np.linalg.norm(p, axis=1).max()) for p in [*parts, turn[-1:]])
        rounding = (turn.shape[1] + len(parts) ** 2) * np.finfo(np.float64).eps
        found += float(turn[-1] @ turn[-1]) + rounding * furthest**2
        return np.sqrt(np.maximum(found, 1e-18, out=found), out=found)

    def summed(self, weighed: Floats) -> Floats:
        """Σ value · feature, the constant last."""
        pairs = zip(self.features, self.sums.sums(weighed), strict=True)
        return np.concatenate([*(f.sums(total) for f, total in pairs), [float(weighed.sum())]])

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

    def noise_by_level(self, covariance: Floats) -> list[Floats]:
        """What this covariance of coefficients leaves in the levels of each column."""
        found, end = [], 0
        for f in self.features:
            own = slice(end, end := end + f.vectors.shape[1])
            found.append(noise_by_level(f, covariance[own, own]))
        return found

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


def _of_rows(product: LevelFeatures, share: Floats) -> LevelFeatures:
    """A product whitened over the rows there are; what none of them has is as the average row.

    A product that hardly varies over rows is stretched: by levels that no row has together it would
    say anything.
    """
    vectors = np.where(share[:, None] > 0, product.vectors, share @ product.vectors)
    return replace(product, share=share, vectors=vectors).whitened(_WHITEN)


class _Solver:
    """The likeliest coefficients given all noisy sums: Gauss-Newton, a prior scale per column.

    One row of coefficients per class, or one for two classes and numbers. The curvature of a class
    among several is its mean p·(1 − p) times one Gram matrix. Sums of several looks are one long
    vector: their sampling errors are correlated, their noises are not.
    """

    def __init__(
        self, space: _Space, start: Floats, number: bool, start_doubt: float = 0.0
    ) -> None:
        self._space, self._number = space, number
        # The mean of predictions that the start stands for, and how sure it is.
        self._mean = float(start[0] if number else expit(start[0]))
        doubt = start_doubt * (1.0 if number else self._mean * (1 - self._mean))
        self._surely = 1 / doubt**2 if doubt > 0 else 0.0
        self._looks: list[_Look] = []
        # Which coefficients each look has sums of; how far products typically vary scores.
        self._places: list[NDArray[np.intp]] = []
        self._of_pairs: Floats = np.zeros(0)
        self._scales, self._power = np.zeros(0), _SMOOTHER[0]
        self._seen = 0
        self._known: Floats = np.zeros((len(start), 0))
        self._noise: Floats = np.zeros((0, 0))
        self._enter(space)
        self._several = len(start) > 1
        self.theta: Floats = np.zeros((len(start), len(self._column) + 1))
        self.theta[:, -1] = start
        self._curvature: Floats = np.zeros((0, 0))
        self._sampling: Floats = np.zeros((0, 0))
        self._weighed: Floats = np.zeros((0, 0))
        self._precisions: list[Floats] = []

    def _enter(self, space: _Space) -> None:
        """Coefficients are from now on those of this space."""
        self._space = space
        widths = [f.vectors.shape[1] for f in space.features]
        self._column = np.repeat(np.arange(len(widths)), widths)
        self._members = np.array(widths, dtype=np.float64)
        self._size = np.concatenate([np.ones(0), *(f.size for f in space.features)])

    def widened(self, least: float) -> _Space:
        """Products take part from now on, if columns vary scores by a variance of `least`."""
        space, ends = self._space, np.cumsum(self._members[:-1].astype(np.intp))
        parts = zip(space.features, np.split(self.theta[0][:-1], ends), strict=True)
        told = space.shards.first(np.array([part @ f.covariance @ part for f, part in parts]))
        wider = space.with_pairs(told) if told.sum() >= least else space
        if wider is space:
            return space
        before = len(self._column)
        self._enter(wider)
        last = len(self._column)
        self.theta = np.insert(self.theta, [before] * (last - before), 0.0, axis=1)
        self._places = [np.where(place == before, last, place) for place in self._places]
        # Columns that tell much by themselves are likelier to tell something together.
        both = np.array([told[i] * told[j] for i, j in wider.pairs])
        self._of_pairs = _PAIRED * told.sum() * both / both.sum()
        prior = np.diag(self._prior(np.append(self._scales, self._of_pairs), self._power))
        self._precisions = [precision + prior for precision, _ in self._systems(0)]
        return wider

    def _doubt(self) -> Floats | None:
        """What is not known of the coefficients yet, as a covariance (of several, their mean)."""
        if not self._precisions:
            return None
        found: Floats = np.mean([np.linalg.inv(each) for each in self._precisions], axis=0)
        return found

    def listen(
        self,
        stage: Stage,
        values: Floats,
        centre: Floats,
        moves: tuple[float, float],
        rounds: int,
        known_scores: Floats | None = None,
    ) -> None:
        """Release the sums of `values`, labels less `centre`, by row of coefficients, and solve.

        Of numbers `known_scores` were taken off too. `moves`: how far a row of norm 1 moves them
        under (replace, withhold).
        """
        space = self._space
        look = space.look(self._doubt())
        own = (look.longest * moves[0], look.longest * moves[1])
        exact = np.stack([space.summed(look.weights * value) @ look.turn for value in values])
        back = stage.release(exact, own) @ look.unturn
        known = back + np.outer(centre, space.shards.sum(space.summed(look.weights)))
        if known_scores is not None:
            known = known + space.shards.sum(space.summed(look.weights * known_scores))
        noise = stage.noise(own) ** 2 * look.unturn.T @ look.unturn
        if self._looks and not space.axes.size:
            # The same directions once more: the mean of all looks is one look with less noise.
            seen, self._seen = self._seen, self._seen + 1
            self._known = (seen * self._known + known) / self._seen
            self._noise = self._noise * seen / self._seen
        else:
            self._looks.append(look)
            self._places.append(np.arange(len(self._column) + 1))
            self._seen = 1
            self._known = np.hstack([self._known, known])
            self._noise = block_diag(self._noise, noise) if len(self._looks) > 1 else noise
        self._solve(rounds)

    def _solve(self, rounds: int) -> None:
        turns = _AGAIN if self.theta.shape[1] <= _WIDE else _AGAIN_WIDE
        alone, power = self._space.alone, _SMOOTHER[0]
        scales = np.append(np.full(alone, 1.0 / max(alone, 1)), self._of_pairs)
        for turn in range(rounds):
            systems = self._systems(turn)
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
            self._scales, self._power = scales, power
            self._precisions = [precision + prior for precision, _ in systems]
            solved = [
                np.linalg.solve(precision, right)
                for precision, (_, right) in zip(self._precisions, systems, strict=True)
            ]
            step = np.stack(solved) - self.theta
            if self._number:
                self.theta = self.theta + step
                return
            moved = max(math.sqrt(self._space.mean(self._space.scores(each) ** 2)) for each in step)
            # Classes pull at each other: part of a step, and none longer than one.
            most = _CLASS_STEP if self._several else 1.0
            self.theta = self.theta + step * min(most, 1.0 / max(moved, 1e-9))
            if moved < 0.02:
                break

    def _systems(self, turn: int) -> list[tuple[Floats, Floats]]:
        """Precision and right side for each row of coefficients, linear around `theta`."""
        chances = np.stack([self._space.scores(each) for each in self.theta])
        if self._several:
            chances = softmax(chances, axis=0)
        elif not self._number:
            expit(chances, out=chances)
        rest = self._known - np.stack([self._stacked(chance) for chance in chances])
        # One Gram matrix for numbers and several classes; of two, each row bends by its own score.
        parts, bend = np.ones(1), np.ones(chances.shape[1])
        if self._several:
            weights = self._looks[0].weights
            parts = self._space.shards.sum((chances * (1 - chances)) @ weights)
            parts = parts / total_of(weights, self._space.shards)
        elif not self._number:
            bend = np.maximum(chances[0] * (1 - chances[0]), 0.01)
        alike = self._several or self._number
        if turn == 0 or not alike:
            self._curvature = self._bent(bend)
        if turn == 0 or (turn == 1 and not alike and len(self._looks) == 1):
            self._sampling = self._sampled(bend)
        own_bend = self._space.weights / total_of(self._space.weights, self._space.shards)
        # A standardised number has residuals of variance below one; classes at most their p(1−p).
        variance = 0.8 if self._number else 1.0
        found = []
        for part, left, own in zip(np.maximum(parts, 1e-6), rest, self.theta, strict=True):
            curvature = part * self._curvature
            errors = variance * part * self._sampling + self._noise
            # Its own part of the first look: with products that has fewer rows than columns.
            own_part = curvature[np.arange(len(self._places[0])), self._places[0]]
            errors[np.diag_indices_from(errors)] += 1e-9 * own_part.sum()
            weighed: Floats = np.asarray(np.linalg.solve(errors, curvature), dtype=np.float64)
            precision, right = curvature.T @ weighed, weighed.T @ (left + curvature @ own)
            if self._surely > 0:
                # The release that the start is from tells the mean of predictions.
                off = self._mean - total_of(own_bend * chances[0], self._space.shards)
                slope = self._space.shards.sum(self._space.summed(own_bend * bend))
                precision += self._surely * np.outer(slope, slope)
                right += self._surely * slope * (off + float(slope @ own))
            found.append((precision, right))
            self._weighed = weighed if len(found) == 1 else self._weighed
        return found

    def _stacked(self, values: Floats) -> Floats:
        """The sums of public `values` in all looks, over the rows of all machines."""
        space = self._space
        each = [
            space.shards.sum(space.summed(look.weights * values))[places]
            for look, places in zip(self._looks, self._places, strict=True)
        ]
        return np.concatenate(each)

    def _bent(self, bend: Floats) -> Floats:
        """How the sums of all looks change with coefficients."""
        pairs = zip(self._looks, self._places, strict=True)
        return np.vstack([self._space.gram(look.weights * bend)[p] for look, p in pairs])

    def _sampled(self, bend: Floats) -> Floats:
        """The covariance of the errors of sampling in the sums of all looks."""
        known = list(zip(self._looks, self._places, strict=True))
        cells: list[list[Floats]] = [[] for _ in known]
        for place, (one, mine) in enumerate(known):
            for other, (two, theirs) in enumerate(known[: place + 1]):
                whole = self._space.gram(one.weights * two.weights * bend)
                cells[place].append(whole[np.ix_(mine, theirs)])
                if other < place:
                    cells[other].append(cells[place][other].T)
        return np.block(cells)

    def noise(self) -> Floats:
        """The covariance that the noise of the sums leaves in the first row of coefficients."""
        passed = np.linalg.solve(self._precisions[0], self._weighed.T)
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
        alone = slice(self._space.alone)
        pooled = np.empty(columns)
        pooled[alone] = _POOLED * energy[alone].sum() / max(self._members[alone].sum(), 1)
        pooled[alone] += _BY_TYPICAL * _TYPICAL / max(self._space.alone, 1)
        if self._space.pairs:
            own = slice(self._space.alone, None)
            part = self._of_pairs / self._of_pairs.mean()
            pooled[own] = _POOLED * energy[own].sum() / self._members[own].sum() * part
            pooled[own] += _BY_TYPICAL * self._of_pairs
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
