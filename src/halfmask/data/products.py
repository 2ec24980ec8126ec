"""Scores, sums and products over all rows of a table: looked-up weights and weighted counts.

Rows are taken in parts of one size, each part by one thread, and what the parts give is added in
their order: a model under an unsafe seed is the same to the byte on any number of threads.
"""

from __future__ import annotations

import math
import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property, lru_cache
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import ThreadpoolController

from halfmask.data.scratch import Room
from halfmask.mechanisms.shards import Shards, rows_in_all
from halfmask.table import CodedColumn, CodedFeatures, KeptColumn, Table
from halfmask.types import Floats

_Result = TypeVar("_Result")

PART = 1 << 13
# Products of fewer numbers are done before a thread has started.
_WORTH_THREADS = 1 << 20
# Systems of more features than these are worth a library's own threads: docs/scale.md.
_MOST_FEATURES = 2000


@contextmanager
def fixed_order(features: int) -> Iterator[None]:
    """Let libraries of linear algebra work on one thread: ours take parts of rows instead."""
    if features > _MOST_FEATURES:
        yield
        return
    # Looking for libraries takes as long as a small fit; none comes without a module.
    with _libraries(len(sys.modules)).limit(limits=1, user_api="blas"):
        yield


@lru_cache(maxsize=1)
def _libraries(modules: int) -> ThreadpoolController:
    return ThreadpoolController()


def parts_of(rows: int, size: int = PART) -> list[slice]:
    """All rows in parts of one size; the last may be shorter."""
    return [slice(start, min(start + size, rows)) for start in range(0, rows, size)]


def in_order(
    parts: list[slice], work: Callable[[slice], _Result], *, numbers: int
) -> Iterator[_Result]:
    """`work` on each part, several at a time where `numbers` are many; results in order."""
    threads = min(_threads(), len(parts))
    if threads < 2 or numbers < _WORTH_THREADS:
        yield from map(work, parts)
        return
    with ThreadPoolExecutor(threads) as pool:
        yield from pool.map(work, parts)


class RowMatrix(ABC):
    """Rows that are known by what their products are."""

    shape: tuple[int, int]

    @abstractmethod
    def times(self, weights: np.ndarray) -> np.ndarray:
        """rows @ weights."""

    @abstractmethod
    def crossed(self, values: np.ndarray) -> np.ndarray:
        """rowsᵀ @ values."""

    @abstractmethod
    def block(self, rows: slice | np.ndarray) -> np.ndarray:
        """Some of the rows, by position, as an array."""

    def __len__(self) -> int:
        return self.shape[0]

    def __matmul__(self, weights: np.ndarray) -> np.ndarray:
        return self.times(weights)


Rows = np.ndarray | RowMatrix


def rows_times(rows: Any, weights: np.ndarray) -> np.ndarray:
    """rows @ weights, of an array, a `RowMatrix` or a sparse matrix."""
    if isinstance(rows, RowMatrix):
        return rows.times(weights)
    if not isinstance(rows, np.ndarray):
        return np.asarray(rows @ weights)
    found = np.empty((len(rows), *weights.shape[1:]))

    def fill(part: slice) -> None:
        found[part] = rows[part] @ weights

    for _ in in_order(parts_of(len(rows)), fill, numbers=rows.size):
        pass
    return found


def crossed(first: Any, second: np.ndarray) -> np.ndarray:
    """firstᵀ @ second, a sum over rows; the first may be a `RowMatrix` or a sparse matrix."""
    if isinstance(first, RowMatrix):
        return first.crossed(second)
    if not isinstance(first, np.ndarray):
        return np.asarray(first.T @ second)
    total = np.zeros((*first.shape[1:], *second.shape[1:]))
    work = in_order(
        parts_of(len(first)),
        lambda part: first[part].T @ second[part],
        numbers=first.size + second.size,
    )
    for part in work:
        total += part
    return total


def block(rows: Rows, some: slice | np.ndarray) -> np.ndarray:
    """Some of the rows, by position, as an array."""
    return rows.block(some) if isinstance(rows, RowMatrix) else rows[some]


def _threads() -> int:
    given = os.environ.get("OMP_NUM_THREADS", "")
    if given.isdecimal() and int(given):
        return int(given)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1


# --- Scores and sums over rows of codes: looked-up weights and weighted counts, in blocks of rows.
# A few columns share one packed code, so that a step over all rows is one look-up and one count for
# all of them. A block's codes stay in the processor's cache between the two.


Indices = NDArray[np.intp]

BLOCK = 1 << 15
# The most levels of columns together: their table of weights stays in the cache. No more than rows,
# or adding up cells takes longer than rows; but so many in any case.
_PACKED, _FEW_CELLS = 1 << 14, 1 << 8
_FEW_ROWS = 1 << 17
# Of more pairs of levels than these, the sums of a block would take longer to add than its rows.
_MANY_CELLS = 1 << 17


class CodeSums:
    """The columns' codes, some in one; `packed=False` serves sums and scores of pairs alone."""

    def __init__(self, columns: Sequence[CodedColumn], *, packed: bool = True) -> None:
        self.levels = [column.levels for column in columns]
        self._columns = columns
        self.rows = columns[0].rows if columns else 0
        self._packs: list[tuple[list[int], NDArray[np.integer]]] = []
        members = _together(self.levels, self.rows) if packed else []
        kinds = [np.min_scalar_type(int(np.prod([self.levels[m] for m in ms]))) for ms in members]
        with Room(self.rows * sum(kind.itemsize for kind in kinds)) as room:
            for places, kind in zip(members, kinds, strict=True):
                self._packs.append((places, self._packed(places, kind, room)))

    def _packed(self, places: list[int], kind: np.dtype[Any], room: Room) -> NDArray[np.integer]:
        """One code for the levels of a few columns."""
        first = self._columns[places[0]]
        codes: NDArray[np.integer]
        if len(places) == 1 and first.held:
            codes = first.codes
        else:
            codes = room.zeros(self.rows, kind)
            for start in range(0, self.rows, BLOCK):
                at = slice(start, start + BLOCK)
                codes[at] = first.codes_of(at)
                for place in places[1:]:
                    codes[at] *= kind.type(self.levels[place])
                    codes[at] += self._columns[place].codes_of(at).astype(kind)
        # What few rows have is kept as numpy wants it, so that no step has to convert it.
        return codes.astype(np.intp) if self.rows <= _FEW_ROWS else codes

    def scores(self, weights: Sequence[Floats]) -> Floats:
        """Σ over columns of the weight of the row's level."""
        tables = self._tables(weights)
        found = np.zeros(self.rows)
        for start, codes in self._blocks():
            part = found[start : start + BLOCK]
            for table, code in zip(tables, codes, strict=True):
                part += table[code]
        return found

    def sums(self, values: Floats) -> list[Floats]:
        """For each column, `values` summed by level."""
        totals = self._totals()
        for start, codes in self._blocks():
            _count(totals, codes, values[start : start + BLOCK])
        return self._by_column(totals)

    def sums_at(
        self, weights: Sequence[Floats], value: Callable[[Floats, slice], Floats]
    ) -> tuple[list[Floats], float]:
        """`sums` of value(scores, rows) in one pass over the rows, and the total of the values."""
        tables, totals, total = self._tables(weights), self._totals(), 0.0
        for start, codes in self._blocks():
            scores = np.zeros(len(codes[0]) if codes else 0)
            for table, code in zip(tables, codes, strict=True):
                scores += table[code]
            values = value(scores, slice(start, start + len(scores)))
            _count(totals, codes, values)
            total += float(values.sum())
        return self._by_column(totals), total

    def class_sums_at(
        self, weights: Sequence[Floats], value: Callable[[Floats, slice], Floats]
    ) -> tuple[list[Floats], Floats]:
        """`sums_at` for tables of one weight per level and class: scores are classes x rows."""
        classes = weights[0].shape[1]
        tables = [self._tables([w[:, k] for w in weights]) for k in range(classes)]
        totals, total = [self._totals() for _ in range(classes)], np.zeros(classes)
        for start, codes in self._blocks():
            scores = np.zeros((classes, len(codes[0])))
            for score, own in zip(scores, tables, strict=True):
                for table, code in zip(own, codes, strict=True):
                    score += table[code]
            values = value(scores, slice(start, start + scores.shape[1]))
            for each, summed in zip(values, totals, strict=True):
                _count(summed, codes, each)
            total += values.sum(axis=1)
        by_class = [self._by_column(summed) for summed in totals]
        return [np.stack(parts) for parts in zip(*by_class, strict=True)], total

    def pair_sums(
        self,
        maps: Sequence[Indices],
        sizes: Sequence[int],
        values: Floats,
        *,
        pairs: Iterable[tuple[int, int]] | None = None,
    ) -> tuple[list[Floats], dict[tuple[int, int], Floats]]:
        """`values` summed by group and by pairs of groups (i > j); `maps` from levels to groups.

        `pairs` names the pairs that are wanted; all are, unless told.
        """
        alone = [np.zeros(size) for size in sizes]
        if pairs is None:
            pairs = [(i, j) for i in range(len(sizes)) for j in range(i)]
        totals = {(i, j): np.zeros(sizes[i] * sizes[j]) for i, j in pairs}
        both = np.empty(min(BLOCK, self.rows), dtype=np.intp)
        for start in range(0, self.rows, BLOCK):
            at = slice(start, start + BLOCK)
            some = values[at]
            groups = [c.mapped(found, at) for found, c in zip(maps, self._columns, strict=True)]
            _count(alone, groups, some)
            for (i, j), total in totals.items():
                pair = np.multiply(groups[i], sizes[j], out=both[: len(some)])
                np.add(pair, groups[j], out=pair)
                if len(total) > _MANY_CELLS:
                    np.add.at(total, pair, some)
                else:
                    _count([total], [pair], some)
        return alone, {
            (i, j): total.reshape(sizes[i], sizes[j]) for (i, j), total in totals.items()
        }

    def pair_scores(
        self,
        alone: Sequence[Floats],
        pairs: Mapping[tuple[int, int], Floats],
        *,
        maps: Sequence[Indices] | None = None,
    ) -> Floats:
        """Σ of the weights of the row's levels and of those of its pairs of levels (i > j).

        With `maps` from levels to groups, tables are by group.
        """
        found = np.zeros(self.rows)
        tables = {(i, j): np.ascontiguousarray(table).ravel() for (i, j), table in pairs.items()}
        every = [np.arange(levels) for levels in self.levels] if maps is None else maps
        for start in range(0, self.rows, BLOCK):
            at = slice(start, start + BLOCK)
            part = found[at]
            levels = [c.mapped(groups, at) for groups, c in zip(every, self._columns, strict=True)]
            for table, level in zip(alone, levels, strict=True):
                part += table.take(level)
            for (i, j), table in tables.items():
                pair = np.multiply(levels[i], len(alone[j]))
                part += table.take(np.add(pair, levels[j], out=pair))
        return found

    def _blocks(self) -> Iterator[tuple[int, list[Indices]]]:
        for start in range(0, self.rows, BLOCK):
            at = slice(start, start + BLOCK)
            yield start, [codes[at].astype(np.intp, copy=False) for _, codes in self._packs]

    def _tables(self, weights: Sequence[Floats]) -> list[Floats]:
        tables = []
        for members, _ in self._packs:
            table = np.asarray(weights[members[0]], dtype=np.float64)
            for member in members[1:]:
                table = np.add.outer(table, weights[member]).ravel()
            tables.append(table)
        return tables

    def _totals(self) -> list[Floats]:
        sizes = [[self.levels[member] for member in members] for members, _ in self._packs]
        return [np.zeros(int(np.prod(size))) for size in sizes]

    def _by_column(self, totals: Sequence[Floats]) -> list[Floats]:
        found: list[Floats] = [np.zeros(0)] * len(self.levels)
        for (members, _), total in zip(self._packs, totals, strict=True):
            for member in members[1:][::-1]:
                # The last column of the code, then what is left of it.
                split = total.reshape(-1, self.levels[member])
                found[member], total = split.sum(axis=0), split.sum(axis=1)
            found[members[0]] = total
        return found


def _together(levels: Sequence[int], rows: int) -> list[list[int]]:
    """Columns whose levels are counted as one code: the widest first, with the widest that fit."""
    found = []
    most = min(_PACKED, max(rows, _FEW_CELLS))
    waiting = sorted(range(len(levels)), key=lambda place: -levels[place])
    while waiting:
        members, cells = [waiting[0]], levels[waiting[0]]
        for place in waiting[1:]:
            if cells * levels[place] <= most:
                members.append(place)
                cells *= levels[place]
        waiting = [place for place in waiting if place not in members]
        # The widest last: cells are added up along it first.
        found.append(members[::-1])
    return found


def _count(totals: list[Floats], codes: list[Indices], values: Floats) -> None:
    for total, code in zip(totals, codes, strict=True):
        np.add(total, np.bincount(code, values, minlength=len(total)), out=total)


# --- The features of a table as a matrix that is never made: looked-up weights and weighted counts.
# A one-hot feature is a level of a column, so a product with all features of a row is a sum of one
# number per column, a sum over rows a count by level, and a sum of products a count by pairs of
# levels. A column that is kept as a number is two features, the number and whether it is missing.
# Guarantee: docs/proofs/encoding.md: a row of k columns has a norm of at most √k.


def feature_rows(table: Table, *, private: bool) -> Rows:
    """The public or the private features of a table's rows, as codes if it has them.

    Codes need no clipping: their rows are no longer than the table says, by construction.
    """
    features, norm = table.features, table.private_norm if private else table.public_norm
    if isinstance(features, CodedFeatures):
        columns = [column for column in features.columns if column.private == private]
        if len(columns) <= norm**2 * (1 + 1e-12):
            return CodedRows(columns, features.n)
    return features.private if private else features.public


def gathered(rows: Rows, shards: Shards) -> Rows:
    """The public rows of all machines, one below the other: of codes the codes alone travel."""
    if not isinstance(rows, CodedRows):
        assert isinstance(rows, np.ndarray)
        return shards.gather(rows)
    columns = [
        replace(
            column,
            codes=shards.gather(column.codes.astype(np.float64)).astype(column.codes.dtype),
            numbers=None if column.numbers is None else shards.gather(column.numbers),
        )
        for column in rows.columns
    ]
    return CodedRows(columns, rows_in_all(len(rows), shards))


class CodedRows(RowMatrix):
    """Some columns of a table, one after the other, as one matrix."""

    def __init__(self, columns: list[KeptColumn], n: int) -> None:
        self.columns = columns
        self._starts = np.cumsum([0, *(column.width for column in columns)])
        self.shape = (n, int(self._starts[-1]))
        # No row is longer: each column has one feature of 1, or one number in [-1, 1].
        self.norm = math.sqrt(len(columns))
        places = [slice(*pair) for pair in zip(self._starts, self._starts[1:], strict=False)]
        one_hot = [column.cells.places is not None for column in columns]
        self._coded = [c for c, known in zip(columns, one_hot, strict=True) if known]
        self._places = [p for p, known in zip(places, one_hot, strict=True) if known]
        kept = [p for p, known in zip(places, one_hot, strict=True) if not known]
        self._number_at = np.array([at for p in kept for at in (p.start, p.start + 1)], dtype=int)
        numbers = [column for column, known in zip(columns, one_hot, strict=True) if not known]
        self._numbers = np.zeros((n, 2 * len(numbers)))
        for place, column in enumerate(numbers):
            column.write(self._numbers[:, 2 * place : 2 * place + 2])
        # The encoder's are: what the sensitivity stands on is enforced all the same.
        np.nan_to_num(np.clip(self._numbers, -1, 1, out=self._numbers), copy=False)
        self._numbers[:, 0::2][self._numbers[:, 1::2] > 0] = 0.0

    @cached_property
    def _sums(self) -> CodeSums:
        return CodeSums([_levels(column) for column in self._coded])

    def times(self, weights: Floats) -> Floats:
        """One row of scores per row."""
        if weights.ndim == 1:
            return self.times(weights[:, None])[:, 0]
        found = rows_times(self._numbers, weights[self._number_at])
        if self._coded:
            for output, own in enumerate(weights.T):
                found[:, output] += self._sums.scores([own[place] for place in self._places])
        return found

    def crossed(self, values: Floats) -> Floats:
        """The sum of feature ⊗ value over all rows."""
        if values.ndim == 1:
            return self.crossed(values[:, None])[:, 0]
        total = np.zeros((self.shape[1], values.shape[1]))
        total[self._number_at] = crossed(self._numbers, values)
        if self._coded:
            for output in range(values.shape[1]):
                sums = self._sums.sums(np.ascontiguousarray(values[:, output]))
                for place, found in zip(self._places, sums, strict=True):
                    total[place, output] = found
        return total

    def gram(self, weights: Floats) -> Floats:
        """The sum of weight · feature ⊗ feature over all rows: counts of pairs of levels."""
        total = np.zeros((self.shape[1], self.shape[1]))
        if len(self._number_at):
            by_number = self.crossed(self._numbers * weights[:, None])
            total[:, self._number_at], total[self._number_at] = by_number, by_number.T
        alone, pairs = self._sums.pair_sums(*_identity(self._coded), weights)
        for place, counts in zip(self._places, alone, strict=True):
            total[place, place] = np.diag(counts)
        for (i, j), counts in pairs.items():
            total[self._places[i], self._places[j]] = counts
            total[self._places[j], self._places[i]] = counts.T
        return total

    def crossed_with(self, other: CodedRows, weights: Floats) -> Floats:
        """The sum of weight · feature ⊗ feature of `other` over all rows."""
        total = np.zeros((self.shape[1], other.shape[1]))
        total[:, other._number_at] = self.crossed(other._numbers * weights[:, None])
        total[self._number_at] = other.crossed(self._numbers * weights[:, None]).T
        both = [*self._coded, *other._coded]
        first = len(self._coded)
        wanted = [(i, j) for i in range(first, len(both)) for j in range(first)]
        sums = CodeSums([_levels(column) for column in both], packed=False)
        _, pairs = sums.pair_sums(*_identity(both), weights, pairs=wanted)
        for (i, j), counts in pairs.items():
            total[self._places[j], other._places[i - first]] = counts.T
        return total

    def lengths(self, form: Floats, middle: Floats) -> Floats:
        """√((x − middle) · form · (x − middle)) of each row x: a look-up by pairs of levels."""
        towards = form @ middle
        alone = np.diag(form) - 2 * towards
        pairs = {
            (i, j): 2 * form[self._places[i], self._places[j]]
            for i in range(len(self._places))
            for j in range(i)
        }
        squares = np.zeros(self.shape[0])
        if self._coded:
            squares = self._sums.pair_scores([alone[place] for place in self._places], pairs)
        squares += float(middle @ towards)
        if len(self._number_at):
            linear = form[:, self._number_at].copy()
            # Of a number and itself once, of a number and a level twice.
            linear[self._coded_at] *= 2
            found = self.times(linear)
            squares += np.einsum("ij,ij->i", self._numbers, found)
            squares -= 2 * (self._numbers @ towards[self._number_at])
        return np.sqrt(np.maximum(squares, 0.0, out=squares), out=squares)

    def column_sums(self) -> tuple[Floats, Floats]:
        """The sum of each feature over all rows, and that of its square."""
        sums = self.crossed(np.ones(self.shape[0]))
        squares = sums.copy()
        squares[self._number_at] = np.einsum("ij,ij->j", self._numbers, self._numbers)
        return sums, squares

    def lengths_scaled(self, middle: Floats, scale: Floats) -> Floats:
        """The length of (x − middle) · scale, for each row x."""
        weights = scale**2
        linear = -2 * middle * weights
        linear[self._coded_at] += weights[self._coded_at]
        squares = self.times(linear) + float(middle**2 @ weights)
        squares += self._numbers**2 @ weights[self._number_at]
        return np.sqrt(np.maximum(squares, 0.0))

    @property
    def _coded_at(self) -> NDArray[np.bool_]:
        coded = np.ones(self.shape[1], dtype=bool)
        coded[self._number_at] = False
        return coded

    def part(self, rows: slice) -> CodedRows:
        """Rows that lie one after the other."""
        count = len(range(*rows.indices(self.shape[0])))
        return CodedRows([column.kept(rows) for column in self.columns], count)

    def block(self, rows: slice | NDArray[np.integer]) -> Floats:
        """The features of some rows, made."""
        count = len(range(*rows.indices(self.shape[0]))) if isinstance(rows, slice) else len(rows)
        made = np.zeros((count, self.shape[1]))
        every = np.arange(count)
        for place, column in zip(self._places, self._coded, strict=True):
            assert column.cells.places is not None
            made[every, place.start + column.cells.places[column.codes[rows]]] = 1.0
        made[:, self._number_at] = self._numbers[rows]
        return made


def _levels(column: KeptColumn) -> CodedColumn:
    """A column whose levels are its one-hot features."""
    places = column.cells.places
    assert places is not None
    same = np.array_equal(places, np.arange(column.width))
    return CodedColumn(
        name=column.name,
        private=column.private,
        codes=column.codes,
        levels=column.width,
        values=None,
        level_of=None if same else places.astype(np.min_scalar_type(column.width)),
    )


def _identity(columns: list[KeptColumn]) -> tuple[list[NDArray[np.intp]], list[int]]:
    widths = [column.width for column in columns]
    return [np.arange(width) for width in widths], widths
