"""A free model: boosted trees that predict a public label from public columns.

Precondition: label and columns public. Nothing here is private, adds noise or charges a ledger; a
caller that hands over a private column, or a private label, has no guarantee of any kind.

Columns come as small whole numbers (codes). Each tree has up to `_LEAVES` leaves and is grown by
its best split first, on histograms of gradient and curvature (Newton) for each level. A tree is
kept as the list of its splits in the order they were made: split k sends part of one leaf to the
new leaf k + 1. So a model is a few plain arrays, and scoring needs no walk from node to node.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, logit

from halfmask.errors import InputError
from halfmask.methods.smooth_codes import level_features
from halfmask.progress import tell
from halfmask.table import CodedColumn, Task
from halfmask.types import Floats

Codes = NDArray[np.integer]

_LEAVES = 12
_RATE = 0.08
_TREES = 400
# The number of trees is settled once this many more did not lower the held-out loss.
_PATIENCE = 20
_L2 = 5.0
_ROWS_PER_LEAF = 40
# Beyond this many rows: two folds and half the trees, each with twice the rate. The loss of so
# many rows is measured well enough by two folds, and the time stays near that of fewer rows. One
# model of several, as for many classes, has as few trees for the same reason.
_MANY_ROWS = 200_000
# Up to so many rows a second set of trees starts from an additive model: its penalties, its steps,
# and the parts that it may have in the blend of both.
_FEW_ROWS = 50_000
# Below so many rows there are no trees: their leaves would hold a handful of rows each.
_TREES_FROM = 100
_PENALTIES = (1000.0, 100.0, 10.0, 1.0)
_STEPS, _BEND = 30, 1.3
_BLENDS = (0.0, 0.25, 0.5, 0.75, 1.0)
# Of the mean target of a category: so many rows of the overall mean are added.
_SMOOTHING = 10.0
# Gains are in units of the loss of one row. A little below zero still counts, because neither half
# of an exclusive or gains anything alone.
_LEAST_GAIN = -1e-3
# Splits whose gains differ by rounding only are the same split: the first one is taken.
_SAME_GAIN = 1e-9


@dataclass(frozen=True, kw_only=True, eq=False)
class FreeModel:
    """Boosted trees on codes + an additive start. Precondition: label and columns public.

    Scores are log odds of class 1 (two classes), or the number itself (regression).

    `by_level[starts[j] + code]` is what a level of column j adds to `start`, and
    `order[starts[j] + code]` its place among the levels of its column; a split sends places above
    its threshold to the new leaf, and the missing level of an ordered column where `missing` says.
    Splits and values are trees x (splits or leaves); unused splits have leaf -1.
    """

    start: float
    by_level: Floats
    levels: NDArray[np.int64]
    ordered: NDArray[np.bool_]
    order: NDArray[np.int64]
    leaf: NDArray[np.int64]
    column: NDArray[np.int64]
    threshold: NDArray[np.int64]
    missing: NDArray[np.bool_]
    values: Floats

    def scores(self, codes: Codes) -> Floats:
        """One score per row; a code beyond the levels goes where the last level goes."""
        columns = _as_columns(codes, self.levels)
        scores = self.start + columns.added(self.by_level)
        for tree in range(len(self.leaf)):
            scores += self._tree_scores(tree, columns)
        return scores

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """Plain arrays, to be stored without pickle."""
        arrays = {name: getattr(self, name) for name in _ARRAYS}
        return {"start": np.array(self.start), **arrays}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> FreeModel:
        """The model that `to_arrays` took apart."""
        if "by_level" not in arrays:  # stored before models had one
            arrays = {**arrays, "by_level": np.zeros_like(arrays.get("order", 0.0), dtype=float)}
        absent = [name for name in ("start", *_ARRAYS) if name not in arrays]
        if absent:
            raise InputError(f"The arrays of a free model lack {', '.join(absent)}.")
        kept: dict[str, Any] = {
            name: np.array(arrays[name], dtype=kind) for name, kind in _ARRAYS.items()
        }
        model = cls(start=float(arrays["start"]), **kept)
        model._check()
        return model

    def _check(self) -> None:
        """Refuse arrays that do not belong together, which would score without an error."""
        fits = (
            self.levels.ndim == 1
            and self.leaf.ndim == 2
            and self.leaf.shape[1] < 255
            and bool(np.all(self.levels >= 1))
            and self.ordered.shape == self.levels.shape
            and self.order.shape == self.by_level.shape == (int(self.levels.sum()),)
            and all(a.shape == self.leaf.shape for a in (self.column, self.threshold, self.missing))
            and self.values.shape == (self.leaf.shape[0], self.leaf.shape[1] + 1)
            and bool(np.all((self.leaf >= -1) & (self.leaf <= np.arange(self.leaf.shape[1]))))
            and bool(np.all((self.leaf[:, 1:] < 0) | (self.leaf[:, :-1] >= 0)))
            and bool(np.all((self.column >= 0) & (self.column < max(len(self.levels), 1))))
            and (len(self.levels) > 0 or bool(np.all(self.leaf < 0)))
            and bool(np.isfinite(self.start))
            and all(bool(np.isfinite(each).all()) for each in (self.by_level, self.values))
        )
        if not fits:
            raise InputError("The arrays of a free model do not fit together: store it again.")

    def blended(self, other: FreeModel, part: float) -> FreeModel:
        """`part` of another model of the same rows, and the rest of this one."""
        own = {
            name: np.concatenate([getattr(self, name), getattr(other, name)])
            for name in ("leaf", "column", "threshold", "missing")
        }
        return replace(
            self,
            start=self.start + part * (other.start - self.start),
            by_level=self.by_level + part * (other.by_level - self.by_level),
            values=np.concatenate([(1 - part) * self.values, part * other.values]),
            **own,
        )

    def _tree_scores(self, tree: int, columns: _Columns) -> Floats:
        steps = []
        for k in range(int(np.count_nonzero(self.leaf[tree] >= 0))):
            j = int(self.column[tree, k])
            right = _goes_right(
                self.order[columns.starts[j] : columns.starts[j + 1]],
                int(self.threshold[tree, k]),
                bool(self.missing[tree, k]) if self.ordered[j] else None,
            )
            steps.append((int(self.leaf[tree, k]), j, right))
        scores: Floats = self.values[tree].take(_leaf_of_rows(columns, steps))
        return scores


_ARRAYS: dict[str, type] = {
    "by_level": np.float64,
    "levels": np.int64,
    "ordered": np.bool_,
    "order": np.int64,
    "leaf": np.int64,
    "column": np.int64,
    "threshold": np.int64,
    "missing": np.bool_,
    "values": np.float64,
}


def cross_fitted(
    codes: Codes,
    target: NDArray[Any],
    *,
    levels: Sequence[int],
    ordered: Sequence[bool],
    task: Task,
    folds: int = 5,
    groups: NDArray[Any] | None = None,
    seed: int = 0,
    weights: Floats | None = None,
    trees: int | None = None,
    outputs: int = 1,
) -> tuple[Floats, FreeModel]:
    """Scores of each row by a model that did not see it, and the model fitted on all rows.

    Precondition: label and columns public. `target` is 0 or 1 for two classes, else numbers. Column
    j has codes in [0, levels[j]); if `ordered[j]`, they are an ordered number whose last level is
    "missing or other", else a category. A weight w counts as w equal rows.

    Folds are a shuffle of rows, or of `groups` (rows of
    one group share a fold), that depends on `seed` and the number of rows or groups only. One
    number of trees serves all models: the one with the least loss on held-out rows, unless `trees`
    gives it. Up to 50,000 rows other trees start from an additive model, and the scores of both are
    blended by that loss, unless `trees` is given; below 100 rows there are no trees and the blend
    is of the base rate and the additive model. Above 200,000 rows there are two folds, and at
    most 200 trees of twice the rate. Where this is one of several `outputs`, there are three folds
    and as few trees.
    """
    data = _read(codes, target, levels, ordered, task, weights, outputs)
    folds = min(folds, 3) if outputs > 1 else folds
    fold = fold_of_rows(data.columns.rows, _whole_number("folds", folds, least=2), groups, seed)
    fixed = None if trees is None else _whole_number("trees", trees)
    most = 0 if fixed is None and data.columns.rows < _TREES_FROM else fixed
    none = [np.zeros(data.columns.starts[-1])] * (len(np.unique(fold)) + 1)
    scores, model = _boosted(data, fold, none, most)
    few = data.columns.rows <= _FEW_ROWS and len(none) > 2 and len(levels) > 0
    if not few or fixed is not None or (data.many and most is None):
        return scores, model
    other, second = _boosted(data, fold, _additive_starts(data, fold), most)
    everyone = np.ones(data.columns.rows, dtype=np.bool_)
    losses = [_loss(data, everyone, scores + part * (other - scores)) for part in _BLENDS]
    part = _BLENDS[int(np.argmin(losses))] if min(losses) < losses[0] * (1 - 1e-6) else 0.0
    if part == 0:
        return scores, model
    return scores + part * (other - scores), model.blended(second, part)


def _boosted(
    data: _Data, fold: NDArray[np.int64], starts: Sequence[Floats], trees: int | None
) -> tuple[Floats, FreeModel]:
    """Scores out of fold and the model of all rows, trees beginning at `starts`."""
    number, fits = _choose(data, fold, starts, trees)
    scores = np.zeros(data.columns.rows)
    for fit in fits:
        scores[fit.held_out] = fit.model(number).scores(data.columns.codes[:, fit.held_out].T)
    return scores, _fit(data, number, starts[-1])


@dataclass(frozen=True, kw_only=True, eq=False)
class _Columns:
    """Codes as columns x rows in the smallest type; levels of column j start at `starts[j]`."""

    codes: Codes
    starts: list[int]

    @property
    def rows(self) -> int:
        return int(self.codes.shape[1])

    def added(self, by_level: Floats) -> Floats:
        """What the levels of each row add up to."""
        found = np.zeros(self.rows)
        for j, codes in enumerate(self.codes):
            found += by_level[self.starts[j] : self.starts[j + 1]].take(codes)
        return found


@dataclass(frozen=True, kw_only=True, eq=False)
class _Data:
    columns: _Columns
    levels: NDArray[np.int64]
    ordered: NDArray[np.bool_]
    target: Floats
    weights: Floats
    logistic: bool
    many: bool


def _as_columns(codes: Codes, levels: NDArray[np.int64]) -> _Columns:
    codes = np.asarray(codes)
    if codes.ndim != 2 or codes.shape[1] != len(levels):
        raise InputError(f"Expected codes of rows x {len(levels)} columns, got {codes.shape}.")
    if codes.shape[1] and not np.issubdtype(codes.dtype, np.integer):
        raise InputError(f"Expected codes that are whole numbers, got {codes.dtype}.")
    if codes.size and codes.min() < 0:
        row, column = np.argwhere(codes < 0)[0]
        raise InputError(f"Expected codes from 0: row {row} of column {column} has a lower one.")
    small = np.min_scalar_type(max(int(levels.max(initial=1)) - 1, 0))
    kept = np.minimum(codes, levels - 1).astype(small, copy=False)
    starts = [0, *np.cumsum(levels).tolist()]
    return _Columns(codes=np.ascontiguousarray(kept.T), starts=starts)


def _read(
    codes: Codes,
    target: NDArray[Any],
    levels: Sequence[int],
    ordered: Sequence[bool],
    task: Task,
    weights: Floats | None,
    outputs: int = 1,
) -> _Data:
    sizes, kinds = np.array(levels, dtype=np.int64), np.array(ordered, dtype=np.bool_)
    if sizes.shape != kinds.shape or np.any(sizes < 1):
        raise InputError("Expected one number of levels, 1 or more, and one `ordered` per column.")
    if task not in ("classification", "regression"):
        raise InputError(f"Expected task 'classification' or 'regression', got {task!r}.")
    columns = _as_columns(codes, sizes)
    numbers = np.asarray(target, dtype=np.float64)
    each = np.ones(columns.rows) if weights is None else np.asarray(weights, dtype=np.float64)
    if numbers.shape != (columns.rows,) or each.shape != (columns.rows,):
        raise InputError(f"Expected one target and one weight for each of {columns.rows} rows.")
    if not np.all(np.isfinite(numbers)):
        raise InputError(f"The target of row {np.argmin(np.isfinite(numbers))} is not a number.")
    if not np.all(np.isfinite(each) & (each >= 0)):
        raise InputError("Expected weights that are finite and not negative.")
    logistic = task == "classification"
    if logistic and not np.all((numbers == 0) | (numbers == 1)):
        raise InputError("Expected targets 0 and 1 for two classes.")
    return _Data(
        columns=columns,
        levels=sizes,
        ordered=kinds,
        target=numbers,
        weights=each,
        logistic=logistic,
        many=outputs > 1 or columns.rows > _MANY_ROWS,
    )


def _whole_number(name: str, value: int, least: int = 0) -> int:
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        raise InputError(f"Expected {name} to be a whole number from {least}, got {value!r}.")
    return int(value)


def fold_of_rows(
    rows: int, folds: int, groups: NDArray[Any] | None, seed: int = 0
) -> NDArray[np.int64]:
    """The fold of each row; it reads no target and no code."""
    members = np.arange(rows)
    if groups is not None:
        members = np.unique(np.asarray(groups), return_inverse=True)[1].reshape(-1)
        if len(members) != rows:
            raise InputError(f"Expected one group for each of {rows} rows, got {len(members)}.")
    if rows > _MANY_ROWS:
        folds = 2
    shuffled = np.random.default_rng(seed).permutation(int(members.max(initial=-1)) + 1)
    fold: NDArray[np.int64] = shuffled[members] % folds
    return fold


def _choose(
    data: _Data, fold: NDArray[np.int64], starts: Sequence[Floats], trees: int | None
) -> tuple[int, list[_Fit]]:
    """The number of trees, and one fit per fold that has as many (or can grow no more)."""
    fits = [
        _Fit(data, np.flatnonzero(fold != k), np.flatnonzero(fold == k), start)
        for k, start in zip(np.unique(fold), starts, strict=False)
    ]
    most = (_TREES // 2 if data.many else _TREES) if trees is None else trees
    best, least = 0, sum(fit.held_out_loss() for fit in fits)
    for number in range(1, most + 1):
        tell("fitting the free model of the public columns", _near(number, best, most))
        # All grow, also after the first that cannot: `any` on a list, not on a generator.
        if not any([fit.grow() for fit in fits]):
            break
        loss = sum(fit.held_out_loss() for fit in fits)
        if loss < least:
            best, least = number, loss
        elif trees is None and number >= best + _PATIENCE:
            break
    return best if trees is None else trees, fits


def _additive_starts(data: _Data, fold: NDArray[np.int64]) -> list[Floats]:
    """What each level adds before the first tree: for the rows outside each fold, then for all.

    An additive model of smooth levels, ridge or logistic, whose penalty is the one of least loss on
    held-out rows. It tells more of few rows than trees do; of many it tells nothing that trees
    would not find.
    """
    parts = np.unique(fold)
    vectors = _vectors(data)
    rows = np.concatenate(
        [each.take(codes, axis=0) for each, codes in zip(vectors, data.columns.codes, strict=True)],
        axis=1,
    )
    grams = [(rows[fold == k].T * data.weights[fold == k]) @ rows[fold == k] for k in parts]
    found = [
        _ridge(data, rows, fold != k, whole)
        for k, whole in zip(parts, sum(grams) - np.array(grams), strict=True)
    ]
    losses = [
        sum(
            _loss(data, fold == k, own[place][0] + rows[fold == k] @ own[place][1])
            for k, own in zip(parts, found, strict=True)
        )
        for place in range(len(_PENALTIES))
    ]
    best = int(np.argmin(losses))
    found.append(_ridge(data, rows, fold >= 0, sum(grams)))
    ends = np.cumsum([each.shape[1] for each in vectors])[:-1]
    return [
        np.concatenate(
            [each @ w for each, w in zip(vectors, np.split(own[best][1], ends), strict=True)]
        )
        for own in found
    ]


def _vectors(data: _Data) -> list[Floats]:
    """The centred smooth features of the levels of each column."""
    found = []
    for j, (levels, ordered) in enumerate(
        zip(data.levels.tolist(), data.ordered.tolist(), strict=True)
    ):
        values = np.arange(levels - 1.0) if ordered and levels > 1 else None
        column = CodedColumn(
            name="", private=False, codes=data.columns.codes[j], levels=levels, values=values
        )
        counts = np.bincount(column.codes, data.weights, minlength=levels).astype(np.float64)
        feature = level_features(column, counts, 0.0, float(counts.sum()))
        found.append((feature.vectors - feature.mean)[feature.groups])
        if not ordered:
            found[-1][counts == 0] = 0.0  # a category that no row has adds nothing
    return found


def _ridge(
    data: _Data, rows: Floats, some: NDArray[np.bool_], gram: Floats
) -> list[tuple[float, Floats]]:
    """Intercept and weights for each of `_PENALTIES`; logistic ones by accelerated steps."""
    rows, target, weights = rows[some], data.target[some], data.weights[some]
    total = max(float(weights.sum()), 1e-300)
    mean = float(weights @ target) / total
    sizes, axes = np.linalg.eigh(gram)
    sizes = np.maximum(sizes, 0.0)
    found: list[tuple[float, Floats]] = []
    weight, start = np.zeros(rows.shape[1]), mean
    if data.logistic:
        mean = min(max(mean, 0.5 / (total + 1)), 1 - 0.5 / (total + 1))
        start = float(logit(mean))
    for penalty in _PENALTIES:
        if not data.logistic:
            own = axes.T @ (rows.T @ (weights * (target - mean)))
            found.append((mean, axes @ (own / (sizes + penalty))))
            continue
        ahead, pace = weight, 1.0
        for _ in range(_STEPS):
            chance = expit(start + rows @ ahead)
            error = weights * (target - chance)
            slope = rows.T @ error - penalty * ahead
            after = ahead + axes @ (
                (axes.T @ slope) / (_BEND * mean * (1 - mean) * sizes + penalty)
            )
            start += float(error.sum() / max(weights @ (chance * (1 - chance)), 1e-9))
            faster = (1 + np.sqrt(1 + 4 * pace**2)) / 2
            ahead = after + (pace - 1) / faster * (after - weight)
            weight, pace = after, faster
        found.append((start, weight))
    return found


def _loss(data: _Data, some: NDArray[Any], scores: Floats) -> float:
    """Log loss or half the squared error, summed over some rows."""
    weights, target = data.weights[some], data.target[some]
    if data.logistic:
        return float(weights @ (np.logaddexp(0, scores) - target * scores))
    return float(weights @ (scores - target) ** 2) / 2


def _near(number: int, best: int, most: int) -> float:
    """How far growing is: to the most trees, or to where it will stop if nothing gets better."""
    return number / min(most + 1, max(best + _PATIENCE, number) + 1)


def _fit(data: _Data, trees: int, start: Floats) -> FreeModel:
    fit = _Fit(data, np.arange(data.columns.rows), np.arange(0), start)
    for _ in range(trees):
        if not fit.grow():
            break
    return fit.model(trees)


@dataclass(frozen=True, kw_only=True, eq=False)
class _Split:
    """Places above `threshold` leave; so does the missing level of a number if `missing`."""

    gain: float
    column: int
    threshold: int
    missing: bool


@dataclass(eq=False)
class _Leaf:
    """Its rows, its sums for each level (gradient and curvature), and its best split."""

    rows: NDArray[np.intp]
    histogram: Floats
    split: _Split | None = None


class _Fit:
    """Trees grown on some rows, with the scores of these and of held-out rows kept up to date.

    Numbers are fitted in units of their own spread, so that no constant above depends on theirs.
    """

    def __init__(
        self,
        data: _Data,
        rows: NDArray[np.intp],
        held_out: NDArray[np.intp],
        by_level: Floats,
    ) -> None:
        self.data, self.held_out = data, held_out
        rows = rows[data.weights[rows] > 0]
        self.columns = _Columns(
            codes=np.ascontiguousarray(data.columns.codes[:, rows]), starts=data.columns.starts
        )
        self.aside = _Columns(
            codes=np.ascontiguousarray(data.columns.codes[:, held_out]), starts=data.columns.starts
        )
        self.weights, target = data.weights[rows], data.target[rows]
        total = float(self.weights.sum())
        mean = float(self.weights @ target) / total if total > 0 else 0.0
        self.shift, self.scale = 0.0, 1.0
        if data.logistic:
            rate = (mean * total + 0.5) / (total + 1)
            self.start = float(np.log(rate / (1 - rate)))
            row_curvature = rate * (1 - rate)
        else:
            spread = float(np.sqrt(self.weights @ (target - mean) ** 2 / max(total, 1e-300)))
            self.shift, self.scale = mean, spread if spread > 0 else 1.0
            self.start, row_curvature = 0.0, 1.0
        self.target = (target - self.shift) / self.scale
        rows_per_leaf = min(_ROWS_PER_LEAF, max(2.0, total / 50))
        # In curvature, of which a row at the start value has `row_curvature`; a hair less, or the
        # last digit of a sum decides whether just so many rows are enough.
        self.least_in_leaf = row_curvature * rows_per_leaf * (1 - 1e-9)
        self.rate = _RATE * (2 if data.many else 1)
        self.by_level = by_level / self.scale
        self.scores = self.start + self.columns.added(self.by_level)
        self.scores_aside = self.start + self.aside.added(self.by_level)
        self.order, rare = self._order_of_levels(
            (mean - self.shift) / self.scale, rows_per_leaf / 2
        )
        self._place_levels(rare)
        self.leaf: list[list[int]] = []
        self.splits: list[list[_Split]] = []
        self.values: list[Floats] = []
        self.done = not len(rows) or bool(np.all(target == target[0]))

    def _order_of_levels(
        self, mean: float, least: float
    ) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """The place of each level: its own for numbers, that of its mean target for categories.

        Categories of fewer than `least` rows are marked rare and lie side by side, at their common
        mean: their own means would say little but the targets of the very rows to be fitted.
        """
        places, rares = [np.zeros(0, dtype=np.int64)], [np.zeros(0, dtype=np.bool_)]
        for j, (levels, ordered) in enumerate(
            zip(self.data.levels.tolist(), self.data.ordered.tolist(), strict=True)
        ):
            place, rare = np.arange(levels), np.zeros(levels, dtype=np.bool_)
            if not ordered:
                codes = self.columns.codes[j]
                count = np.bincount(codes, self.weights, minlength=levels)
                sums = np.bincount(codes, self.weights * (self.target - mean), minlength=levels)
                rare = count < least
                count[rare], sums[rare] = count[rare].sum(), sums[rare].sum()
                means = np.round(sums / (count + _SMOOTHING), 10)
                place[np.lexsort((rare, means))] = np.arange(levels)
            places.append(place)
            rares.append(rare)
        return np.concatenate(places), np.concatenate(rares)

    def _place_levels(self, rare: NDArray[np.bool_]) -> None:
        """What a search over splits needs: levels of all columns side by side, each in order."""
        starts = np.array(self.columns.starts)
        widths = self.data.levels
        column = np.repeat(np.arange(len(widths)), widths)
        self.column_of = column
        self.level_at = np.empty(len(column), dtype=np.intp)
        self.level_at[starts[column] + self.order] = np.arange(len(column))
        # No threshold lies between two rare levels of one column.
        rare = rare[self.level_at]
        self.among_rare = np.zeros(len(column), dtype=np.bool_)
        self.among_rare[:-1] = rare[:-1] & rare[1:] & (column[:-1] == column[1:])
        self.first_of = starts[column]
        self.missing_of = starts[column + 1] - 1
        ordered = self.data.ordered[column]
        self.may_miss = ordered.astype(np.float64)
        self.one_sided = ~ordered | (np.arange(len(column)) == self.missing_of)
        self.any_missing = any(
            bool(np.any(self.columns.codes[j] == self.data.levels[j] - 1))
            for j in np.flatnonzero(self.data.ordered)
        )

    def grow(self) -> bool:
        """Add one tree; False if no split is worth making, now and later."""
        if self.done:
            return False
        if self.data.logistic:
            chance = expit(self.scores)
            gradient = self.weights * (chance - self.target)
            curvature = self.weights * chance * (1 - chance)
        else:
            gradient = self.weights * (self.scores - self.target)
            curvature = self.weights
        root = _Leaf(
            rows=np.arange(len(self.scores)), histogram=self._histogram(gradient, curvature, None)
        )
        (root.split,) = self._best_splits([root])
        leaves, parents, splits = [root], [], []
        while len(leaves) < _LEAVES:
            gains = [-np.inf if leaf.split is None else leaf.split.gain for leaf in leaves]
            chosen = int(np.argmax(gains))
            leaf, split = leaves[chosen], leaves[chosen].split
            if split is None:
                break
            codes = self.columns.codes[split.column].take(leaf.rows)
            moved = self._right(split).take(codes)
            if not np.any(codes == self.data.levels[split.column] - 1):
                # No row of this leaf tells where a missing value belongs: with the larger part.
                weights = self.weights.take(leaf.rows)
                split = replace(split, missing=bool(weights @ moved > weights.sum() / 2))
            parents.append(chosen)
            splits.append(split)
            stay, go = leaf.rows.compress(~moved), leaf.rows.compress(moved)
            # Only the smaller part is counted: the other is what remains.
            counted = self._histogram(gradient, curvature, stay if len(stay) < len(go) else go)
            rest = leaf.histogram - counted
            pair = (counted, rest) if len(stay) < len(go) else (rest, counted)
            new = [_Leaf(rows=stay, histogram=pair[0]), _Leaf(rows=go, histogram=pair[1])]
            if len(leaves) + 1 < _LEAVES:
                for part, best in zip(new, self._best_splits(new), strict=True):
                    part.split = best
            leaves[chosen] = new[0]
            leaves.append(new[1])
        if not splits:
            self.done = True
            return False
        values = np.zeros(_LEAVES)
        for k, leaf in enumerate(leaves):
            slope, bend = gradient.take(leaf.rows).sum(), curvature.take(leaf.rows).sum()
            values[k] = -self.rate * slope / (bend + _L2)
            self.scores[leaf.rows] += values[k]
        self.leaf.append(parents)
        self.splits.append(splits)
        self.values.append(values)
        if len(self.held_out):
            steps = [(p, s.column, self._right(s)) for p, s in zip(parents, splits, strict=True)]
            self.scores_aside += values.take(_leaf_of_rows(self.aside, steps))
        return True

    def _histogram(
        self, gradient: Floats, curvature: Floats, rows: NDArray[np.intp] | None
    ) -> Floats:
        """Sums of gradient and curvature for each level of each column."""
        starts = self.columns.starts
        sums = np.empty((2, starts[-1]))
        if rows is not None:
            gradient, curvature = gradient.take(rows), curvature.take(rows)
        for j, codes in enumerate(self.columns.codes):
            own = (codes if rows is None else codes.take(rows)).astype(np.intp)
            place = slice(starts[j], starts[j + 1])
            width = starts[j + 1] - starts[j]
            sums[0, place] = np.bincount(own, gradient, minlength=width)
            sums[1, place] = np.bincount(own, curvature, minlength=width)
        return sums

    def _best_splits(self, leaves: list[_Leaf]) -> list[_Split | None]:
        """The split of most gain for each leaf, over all columns at once."""
        if not len(self.column_of):
            return [None for _ in leaves]
        # leaves x (gradient, curvature) x levels in order
        sums = np.array([leaf.histogram for leaf in leaves])[:, :, self.level_at]
        whole = sums[:, :, : self.columns.starts[1]].sum(axis=2, keepdims=True)
        running = np.cumsum(sums, axis=2)
        left = running - (running - sums)[:, :, self.first_of]
        missing = sums[:, :, self.missing_of] * self.may_miss
        # First with the missing level on the right, then, where there is one, on the left.
        sides = np.array([left, left + missing] if self.any_missing else [left])
        gradient, curvature = sides[:, :, 0], sides[:, :, 1]
        all_gradient, all_curvature = whole[:, 0], whole[:, 1]
        rest = all_curvature - curvature
        gain = (
            gradient**2 / (np.maximum(curvature, 0) + _L2)
            + (all_gradient - gradient) ** 2 / (np.maximum(rest, 0) + _L2)
            - all_gradient**2 / (all_curvature + _L2)
        ) / 2
        gain[np.minimum(curvature, rest) < self.least_in_leaf] = -np.inf
        gain[:, :, self.among_rare] = -np.inf
        # For categories both sides are the same split. At the missing level itself, the sums of the
        # second side count it twice.
        gain[1:, :, self.one_sided] = -np.inf
        return [self._pick(gain[:, k]) for k in range(len(leaves))]

    def _pick(self, gain: Floats) -> _Split | None:
        best = float(gain.max())
        if best < _LEAST_GAIN:
            return None
        first = int(np.argmax(gain >= best - _SAME_GAIN * max(1.0, abs(best))))
        side, place = divmod(first, gain.shape[1])
        return _Split(
            gain=best,
            column=int(self.column_of[place]),
            threshold=int(place - self.first_of[place]),
            missing=side == 0,
        )

    def _right(self, split: _Split) -> NDArray[np.bool_]:
        j = split.column
        places = self.order[self.columns.starts[j] : self.columns.starts[j + 1]]
        ordered = bool(self.data.ordered[j])
        return _goes_right(places, split.threshold, split.missing if ordered else None)

    def held_out_loss(self) -> float:
        """Log loss or half the squared error, summed over the held-out rows."""
        return _loss(self.data, self.held_out, self.shift + self.scale * self.scores_aside)

    def model(self, trees: int) -> FreeModel:
        """The first `trees` trees as a model."""
        kept = len(self.splits[:trees])
        shape = (kept, _LEAVES - 1)
        leaf, column = np.full(shape, -1, dtype=np.int64), np.zeros(shape, dtype=np.int64)
        threshold, missing = np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=np.bool_)
        for t in range(kept):
            for k, split in enumerate(self.splits[t]):
                leaf[t, k], column[t, k] = self.leaf[t][k], split.column
                threshold[t, k], missing[t, k] = split.threshold, split.missing
        values = np.array(self.values[:kept]).reshape(kept, _LEAVES)
        return FreeModel(
            start=self.shift + self.scale * self.start,
            by_level=self.scale * self.by_level,
            levels=self.data.levels,
            ordered=self.data.ordered,
            order=self.order,
            leaf=leaf,
            column=column,
            threshold=threshold,
            missing=missing,
            values=self.scale * values,
        )


def _goes_right(
    places: NDArray[np.int64], threshold: int, missing: bool | None
) -> NDArray[np.bool_]:
    """For each level: is it sent to the new leaf? `missing` is None for categories."""
    right: NDArray[np.bool_] = places > threshold
    if missing is not None:
        right[-1] = missing
    return right


def _leaf_of_rows(
    columns: _Columns, steps: list[tuple[int, int, NDArray[np.bool_]]]
) -> NDArray[np.uint8]:
    """The leaf of each row, after splits given as (leaf, column, levels that leave it)."""
    leaves = np.zeros(columns.rows, dtype=np.uint8)
    for k, (leaf, column, right) in enumerate(steps):
        moved = right.take(columns.codes[column])
        moved &= leaves == leaf
        leaves[moved] = k + 1
    return leaves


# Chances are held off 0 and 1, where log odds are infinite.
_LEAST_CHANCE = 1e-4
_LARGEST = 1e30
# A slope or intercept of the calibration beyond this says that the chances are of no use.
_STEEPEST = 20.0


@dataclass(frozen=True, kw_only=True, eq=False)
class PublicModel:
    """A fitted estimator; `values[j][code]` is what it sees of a level of its column j.

    For classes, scores are slope · (log odds of its chances) + shift: that line was fitted to
    scores out of fold, so that an estimator whose chances are too bold starts calibrated. For
    numbers the line takes the label's own units to those of a fit.
    """

    estimator: Any
    values: tuple[Floats, ...]
    task: Task
    slope: float = 1.0
    shift: float = 0.0

    @property
    def name(self) -> str:
        """The estimator's class."""
        return type(self.estimator).__name__

    def scores(self, codes: Codes) -> Floats:
        """Log odds of the second class, or the number, for each row."""
        seen = np.column_stack([v[codes[:, j]] for j, v in enumerate(self.values)])
        raw = 0.0 if self.estimator is None else _raw_scores(self.estimator, seen, self.task)
        return self.slope * raw + np.full(len(seen), self.shift)


def level_values(column: CodedColumn) -> Floats:
    """What a level is handed over as: a number's value, a category's place; missing is NaN."""
    if column.values is not None:
        # Many estimators compute in single precision, where larger numbers are infinite.
        return np.append(np.clip(column.values, -_LARGEST, _LARGEST), np.nan)
    places = np.arange(column.levels, dtype=np.float64)
    places[-1] = np.nan
    return places


def cross_fitted_public(
    estimator: Any,
    codes: Codes,
    target: Floats,
    *,
    values: Sequence[Floats],
    task: Task,
    folds: int,
    groups: NDArray[Any] | None,
    weights: Floats | None,
    middle: float = 0.0,
    half: float = 1.0,
) -> tuple[Floats, PublicModel]:
    """Scores of each row by a copy that did not see it, and the model fitted on all rows.

    Precondition: codes, target, groups and weights are public. Folds follow from the number of rows
    or groups alone. `weights` is None where all rows weigh the same. A number is handed over in its
    own units, middle + half · target, and scores are in those of `target`.
    """
    fresh, label = unfitted(estimator, task), middle + half * target
    seen = np.column_stack([v[codes[:, j]] for j, v in enumerate(values)])
    fold = fold_of_rows(len(target), folds, groups)
    raw = np.zeros(len(target))
    for part in np.unique(fold):
        rest, held = np.flatnonzero(fold != part), np.flatnonzero(fold == part)
        fitted = _fitted(fresh, seen[rest], label[rest], weights, rest, task)
        raw[held] = middle if fitted is None else _raw_scores(fitted, seen[held], task)
    everything = np.arange(len(target))
    slope, shift = 1 / half, -middle / half
    if task == "classification":
        slope, shift = _calibrated(raw, target, weights)
    model = PublicModel(
        estimator=_fitted(fresh, seen, label, weights, everything, task),
        values=tuple(values),
        task=task,
        slope=slope,
        shift=shift,
    )
    return slope * raw + shift, model


def unfitted(estimator: Any, task: Task) -> Any:
    """A copy to fit, all of whose parts are unfitted, its random choices fixed; else an error."""
    from sklearn.base import BaseEstimator, clone, is_classifier, is_regressor

    wanted = "predict_proba" if task == "classification" else "predict"
    fits_task = is_classifier if task == "classification" else is_regressor
    named = type(estimator).__name__
    # A class is no instance of BaseEstimator either.
    if not isinstance(estimator, BaseEstimator) or not fits_task(estimator):
        given = f"the class {estimator.__name__}" if isinstance(estimator, type) else named
        raise InputError(
            f"public_model takes an unfitted scikit-learn estimator for {task}, got {given}."
        )
    if not hasattr(estimator, wanted):
        raise InputError(
            f"public_model: {named} has no {wanted}. Set it up so that it has, or wrap it in "
            "CalibratedClassifierCV."
        )
    for part in (*_parts(estimator), *_parts(copy := clone(estimator))):
        if _is_fitted(part):
            raise InputError(
                f"public_model: its {type(part).__name__} is fitted already (or frozen), and what "
                "it has seen cannot be checked. Pass an unfitted one."
            )
    fixed = {
        name: 0
        for name, value in copy.get_params(deep=True).items()
        if value is None and (name == "random_state" or name.endswith("__random_state"))
    }
    return copy.set_params(**fixed)


def _parts(value: Any) -> Iterator[Any]:
    """Every estimator within `value`, itself included, also in lists, mappings and functions.

    Of a function those are what `functools.partial` has bound, and the object of a method.
    """
    from functools import partial

    from sklearn.base import BaseEstimator

    if isinstance(value, BaseEstimator):
        yield value
        value = value.get_params(deep=False)
    elif isinstance(value, partial):
        value = [value.func, *value.args, *value.keywords.values()]
    elif callable(value):
        value = [getattr(value, "__self__", None)]
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list | tuple | set | frozenset):
        for each in value:
            yield from _parts(each)


def _is_fitted(estimator: Any) -> bool:
    from sklearn.exceptions import NotFittedError
    from sklearn.frozen import FrozenEstimator
    from sklearn.utils import get_tags
    from sklearn.utils.validation import check_is_fitted

    if isinstance(estimator, FrozenEstimator):
        return True
    if not hasattr(estimator, "fit") or not get_tags(estimator).requires_fit:
        return False
    try:
        check_is_fitted(estimator)
    except NotFittedError:
        return False
    return True


def _fitted(
    fresh: Any,
    seen: Floats,
    target: Floats,
    weights: Floats | None,
    rows: NDArray[np.intp],
    task: Task,
) -> Any:
    from sklearn.base import clone
    from sklearn.utils.validation import has_fit_parameter

    label = target.astype(np.int64) if task == "classification" else target
    if len(np.unique(label)) < (2 if task == "classification" else 1):
        return None  # no row, or one class alone: nothing can be learnt
    given = {}
    if weights is not None:
        if not has_fit_parameter(fresh, "sample_weight"):
            raise InputError(
                f"public_model: {type(fresh).__name__} takes no sample_weight, and rows (or rows "
                "of a unit) have different weights. Use an estimator whose fit takes one."
            )
        given["sample_weight"] = weights[rows]
    try:
        return clone(fresh).fit(seen, label, **given)
    except Exception as error:
        # Only public values were handed over, so the message may be shown.
        raise InputError(
            f"public_model: {type(fresh).__name__} cannot be fitted on the public columns "
            f"({type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}). They "
            "are an array with one column each: numbers as they are, categories as whole numbers, "
            "missing values as NaN. A pipeline can impute and encode them."
        ) from None


def _raw_scores(estimator: Any, seen: Floats, task: Task) -> Floats:
    if task == "regression":
        found = np.asarray(estimator.predict(seen), dtype=np.float64)
    else:
        chance = np.asarray(estimator.predict_proba(seen), dtype=np.float64)[:, 1]
        found = logit(np.clip(chance, _LEAST_CHANCE, 1 - _LEAST_CHANCE))
    if found.shape != (len(seen),) or not np.isfinite(found).all():
        raise InputError(
            f"public_model: {type(estimator).__name__} gave no finite number for some row."
        )
    return found


def _calibrated(raw: Floats, target: Floats, weights: Floats | None) -> tuple[float, float]:
    """Slope and shift of the scores that fit the public labels best, by Newton steps."""
    each = np.ones(len(raw)) if weights is None else weights
    design = np.column_stack([raw, np.ones(len(raw))])
    found = np.array([1.0, 0.0])
    for _ in range(25):
        chance = expit(design @ found)
        gradient = design.T @ (each * (chance - target))
        curve = design.T @ (design * (each * chance * (1 - chance))[:, None])
        found = found - np.linalg.solve(curve + 1e-6 * np.eye(2), gradient)
        if not (np.abs(found) <= _STEEPEST).all():
            rate = np.clip(np.average(target, weights=each), _LEAST_CHANCE, 1 - _LEAST_CHANCE)
            return 0.0, float(logit(rate))
    return float(found[0]), float(found[1])
