"""Pairs of columns in `additive`: what two levels add together, beyond what each adds alone.

Levels are merged to a few groups by released or public counts, and every group of a column is a
short vector; a pair of groups is the product of its two vectors. One noisy gradient by all pairs
tells which of them say something; these few are learnt by a descent of their own, on top of the
scores there are. Guarantee: docs/proofs/additive.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from halfmask.data.products import BLOCK, CodeSums
from halfmask.methods.additive_descent import Descent, PrivatePart, Stage, log_evidence
from halfmask.methods.smooth_codes import LevelFeatures
from halfmask.table import CodedColumn
from halfmask.types import Floats

Pair = tuple[int, int]

# Groups of a column, directions of its vectors, and the smallest variance of one in parts of the
# largest: what hardly a row has would take length from all others.
_GROUPS, _DIRECTIONS, _SMALLEST = 8, 5, 0.02
# Vectors longer than so many times their typical length are cut to it.
_LONG = 1.0
# How much likelier a pair's gradient must be than noise (natural log), and how many pairs are kept.
_CLEAR, _MOST = -2.0, 12
PAIR_STEPS = 20
# Counts of the chosen pairs and their worth are released beside the steps.
RELEASES = PAIR_STEPS + 2


def pair_count(private: int, public: int, *, label_private: bool) -> int:
    """How many pairs there are to choose from. Public ones are free where the label is public."""
    every = private + public
    free = 0 if label_private else public * (public - 1) // 2
    return every * (every - 1) // 2 - free


def candidates(private: Sequence[bool], *, label_private: bool) -> list[Pair]:
    """The pairs themselves, as places (i > j) among the columns."""
    return [
        (i, j)
        for i in range(len(private))
        for j in range(i)
        if label_private or private[i] or private[j]
    ]


@dataclass(frozen=True, kw_only=True, eq=False)
class PairWeights:
    """What two columns (places `first` > `second`) add to a score, by groups of their levels."""

    first: int
    second: int
    first_groups: NDArray[np.intp]
    second_groups: NDArray[np.intp]
    weights: Floats

    @classmethod
    def of(cls, pair: Pair, grouped: Sequence[Grouped], table: Floats) -> PairWeights:
        """From one number for each pair of groups, in a row."""
        one, two = (grouped[place] for place in pair)
        return cls(
            first=pair[0],
            second=pair[1],
            first_groups=one.groups,
            second_groups=two.groups,
            weights=table.reshape(len(one.share), len(two.share)),
        )

    def scores(self, columns: Sequence[CodedColumn]) -> Floats:
        """What each row gets."""
        found = np.zeros(columns[self.first].rows)
        for start in range(0, len(found), BLOCK):
            at = slice(start, start + BLOCK)
            first = columns[self.first].mapped(self.first_groups, at)
            found[at] = self.weights[first, columns[self.second].mapped(self.second_groups, at)]
        return found

    def scaled(self, factor: float) -> PairWeights:
        """The same with all weights multiplied."""
        return replace(self, weights=factor * self.weights)

    def among(self, places: Sequence[int]) -> PairWeights:
        """The same where the columns it names are those at `places`, in order, of others."""
        return replace(self, first=places[self.first], second=places[self.second])

    def by_level(self) -> Floats:
        """Levels of the first column x levels of the second."""
        found: Floats = self.weights[np.ix_(self.first_groups, self.second_groups)]
        return found


@dataclass(frozen=True, kw_only=True, eq=False)
class PairsPart:
    """The pairs that were found, an intercept, and the spread of their scores over rows."""

    pairs: tuple[PairWeights, ...]
    intercept: float
    spread: float

    def scores(self, columns: Sequence[CodedColumn]) -> Floats:
        found = np.full(columns[0].rows, self.intercept)
        for pair in self.pairs:
            found += pair.scores(columns)
        return found


@dataclass(frozen=True, kw_only=True, eq=False)
class Grouped:
    """Few groups of a column's levels, each with a vector in the unit ball, centred over rows."""

    groups: NDArray[np.intp]
    vectors: Floats
    share: Floats
    size: Floats

    @classmethod
    def of(cls, feature: LevelFeatures, directions: int = _DIRECTIONS) -> Grouped:
        """At most so many directions of a column's features, which follow from counts."""
        merged = _merged(feature)
        share = np.asarray(np.bincount(merged, feature.share), dtype=np.float64)
        totals = np.maximum(share, 1e-300)[:, None]
        sums = np.zeros((len(share), feature.vectors.shape[1]))
        np.add.at(sums, merged, feature.share[:, None] * feature.vectors)
        vectors = sums / totals
        vectors = np.where(share[:, None] > 0, vectors, feature.mean)
        vectors = vectors - share @ vectors
        values, axes = np.linalg.eigh((vectors.T * share) @ vectors)
        kept = np.argsort(-values)[:directions]
        kept = kept[values[kept] > max(_SMALLEST * float(values.max(initial=0.0)), 1e-9)]
        vectors = vectors @ axes[:, kept]
        lengths = np.sqrt(np.sum(vectors**2, axis=1))
        limit = min(_LONG * math.sqrt(float(share @ lengths**2)), float(lengths.max(initial=0.0)))
        vectors = vectors / np.maximum(lengths, max(limit, 1e-12))[:, None]
        size = np.sqrt(values[kept] / values[kept].max(initial=1e-300))
        return cls(groups=merged[feature.groups], vectors=vectors, share=share, size=size)


def _merged(feature: LevelFeatures) -> NDArray[np.intp]:
    """The coarse group of each group: neighbours of a number, the rare ones of a category."""
    count = len(feature.share)
    if count <= _GROUPS:
        return np.arange(count)
    if not feature.smooth:
        order = np.argsort(-feature.share, kind="stable")
        found = np.full(count, _GROUPS - 1)
        found[order[: _GROUPS - 1]] = np.arange(_GROUPS - 1)
        return found
    # The last group is that of missing numbers. Roots of shares: rare ends keep their own groups.
    parts = np.sqrt(feature.share[:-1])
    middles = (np.cumsum(parts) - parts / 2) / parts.sum()
    places = np.floor(middles * (_GROUPS - 1)).astype(np.intp)
    _, places = np.unique(places, return_inverse=True)
    return np.append(places, places.max() + 1)


def _pair_features(one: Grouped, two: Grouped, share: Floats) -> LevelFeatures:
    """A vector for each pair of groups: the products of their vectors' numbers."""
    vectors = np.einsum("ai,bj->abij", one.vectors, two.vectors)
    cells = len(one.share) * len(two.share)
    return LevelFeatures(
        groups=np.arange(cells),
        vectors=vectors.reshape(cells, -1),
        share=share,
        size=np.outer(one.size, two.size).ravel(),
        smooth=True,
    )


def coded_pair(
    columns: Sequence[CodedColumn], grouped: Sequence[Grouped], pair: Pair, *, private: bool
) -> CodedColumn:
    """The groups of two columns as one column."""
    (one, first), (two, second) = ((grouped[place], columns[place]) for place in pair)
    levels = len(one.share) * len(two.share)
    codes = np.empty(first.rows, dtype=np.min_scalar_type(levels))
    for start in range(0, first.rows, BLOCK):
        at = slice(start, start + BLOCK)
        codes[at] = first.mapped(one.groups, at) * len(two.share)
        codes[at] += second.mapped(two.groups, at).astype(codes.dtype)
    name = f"{first.name} and {second.name}"
    return CodedColumn(name=name, private=private, codes=codes, levels=levels, values=None)


def paired_column(
    columns: Sequence[CodedColumn], grouped: Sequence[Grouped], pair: Pair
) -> tuple[CodedColumn, LevelFeatures]:
    """Two public columns as one, and a vector for each pair of their groups."""
    one, two = (grouped[place] for place in pair)
    share = np.outer(one.share, two.share).ravel()
    column = coded_pair(columns, grouped, pair, private=False)
    return column, _pair_features(one, two, share)


class _CandidateSums(CodeSums):
    """Sums by pairs of groups, at scores that no pair has changed yet."""

    def __init__(
        self, columns: Sequence[CodedColumn], grouped: Sequence[Grouped], pairs: Sequence[Pair]
    ) -> None:
        super().__init__(columns, packed=False)
        self._grouped, self._candidates = grouped, pairs

    def sums_at(
        self, weights: Sequence[Floats], value: Callable[[Floats, slice], Floats]
    ) -> tuple[list[Floats], float]:
        assert not any(table.any() for table in weights)
        values = np.empty(self.rows)
        for start in range(0, self.rows, BLOCK):
            at = slice(start, min(start + BLOCK, self.rows))
            values[at] = value(np.zeros(at.stop - start), at)
        sizes = [len(g.share) for g in self._grouped]
        maps = [g.groups for g in self._grouped]
        _, found = self.pair_sums(maps, sizes, values, pairs=self._candidates)
        return [found[pair].ravel() for pair in self._candidates], float(values.sum())


class _Finder(Descent):
    """One release by all pairs."""

    def likelier(self) -> Floats:
        """For each pair: how much likelier its gradient is if it adds something (natural log)."""
        ones = np.ones(len(self._features))
        bounds = self._bounds(ones)
        gradients, _ = self._released(self._zeros(), self._start, ones, bounds, self._worth)
        noise = self._worth.noise(bounds[2])
        bend = self._curvature(*bounds[:2]) * self._rows
        found = [
            log_evidence(gradient, bend * f.covariance, noise, f.size)
            for f, gradient in zip(self._features, gradients, strict=True)
        ]
        return np.array([each.max(initial=0.0) for each in found])


@dataclass(frozen=True, kw_only=True, eq=False)
class PairSearch:
    """What the search needs: rows, the scores so far, and two stages.

    `scores` are those of the rows, in the target's unit; `known` imagines scores of such a spread,
    from releases. `features` has those of every column.
    """

    columns: Sequence[CodedColumn]
    features: Sequence[LevelFeatures]
    scores: Floats
    target: Floats
    labelled: NDArray[np.bool_]
    weights: Floats
    rows: float
    known: Floats
    number: bool
    label_private: bool
    cut: float
    finding: Stage
    descent: Stage

    def run(self) -> PairsPart:
        """Guarantee: docs/proofs/additive.md."""
        chosen = self._chosen()
        if not chosen:
            return PairsPart(pairs=(), intercept=0.0, spread=0.0)
        coded = [coded_pair(self.columns, self._grouped, pair, private=True) for pair in chosen]
        sums = CodeSums(coded)
        features = self._counted(chosen, sums)
        part: PrivatePart = self._start(Descent, sums, features).run()
        tables = zip(chosen, part.by_level(), strict=True)
        found = [PairWeights.of(pair, self._grouped, table) for pair, table in tables]
        return PairsPart(pairs=tuple(found), intercept=float(part.intercept), spread=part.spread)

    @cached_property
    def _grouped(self) -> list[Grouped]:
        return [Grouped.of(feature) for feature in self.features]

    def _start(
        self, kind: type[Descent], sums: CodeSums, features: Sequence[LevelFeatures]
    ) -> Descent:
        return kind(
            sums=sums,
            hidden=[True] * len(features),
            features=features,
            target=self.target - self.scores if self.number else self.target,
            labelled=self.labelled,
            weights=self.weights,
            rows=self.rows,
            offset=None if self.number else self.scores,
            known=None if self.number else self.known,
            start=0.0,
            number=self.number,
            label_private=self.label_private,
            steps=PAIR_STEPS,
            worth=self.finding if kind is _Finder else self.descent,
            gradients=self.descent,
            cut=self.cut,
        )

    def _chosen(self) -> list[Pair]:
        """The pairs that a release by all of them makes clear, the clearest first."""
        hidden = [column.private for column in self.columns]
        told = [bool(g.vectors.shape[1]) for g in self._grouped]
        pairs = [
            (i, j)
            for i, j in candidates(hidden, label_private=self.label_private)
            if told[i] and told[j]
        ]
        if not pairs:
            return []
        features = [
            _pair_features(one, two, np.outer(one.share, two.share).ravel())
            for one, two in ((self._grouped[i], self._grouped[j]) for i, j in pairs)
        ]
        sums = _CandidateSums(self.columns, self._grouped, pairs)
        finder = self._start(_Finder, sums, features)
        assert isinstance(finder, _Finder)
        likelier = finder.likelier()
        clear = _CLEAR + math.log(len(pairs))
        order = np.argsort(-likelier, kind="stable")[:_MOST]
        return [pairs[place] for place in order if likelier[place] > clear]

    def _counted(self, chosen: Sequence[Pair], sums: CodeSums) -> list[LevelFeatures]:
        """Features of the chosen pairs, with their rows as a release counts them."""
        exact = sums.sums(self.weights)
        moves = (math.sqrt(2 * len(chosen)), math.sqrt(len(chosen)))
        noisy = self.descent.release(np.concatenate(exact), moves)
        counts = np.split(noisy, np.cumsum(sums.levels)[:-1])
        found = []
        for (i, j), own in zip(chosen, counts, strict=True):
            positive = np.maximum(own, 0.0) + 1e-6 * self.rows / len(own)
            share = positive / positive.sum()
            found.append(_pair_features(self._grouped[i], self._grouped[j], share))
        return found
