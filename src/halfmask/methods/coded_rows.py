"""The features of a table as a matrix that is never made: looked-up weights and weighted counts.

A one-hot feature is a level of a column, so a product with all features of a row is a sum of one
number per column, a sum over rows a count by level, and a sum of products a count by pairs of
levels. A column that is kept as a number is two features, the number and whether it is missing.
Guarantee: docs/proofs/encoding.md: a row of k columns has a norm of at most √k.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from halfmask.methods.code_sums import CodeSums
from halfmask.row_products import RowMatrix, Rows, crossed, times
from halfmask.table import CodedColumn, Codes, KeptColumn, Table

Floats = NDArray[np.float64]


def feature_rows(table: Table, *, private: bool) -> Rows:
    """The public or the private features of a table's rows, as codes if it has them.

    Codes need no clipping: their rows are no longer than the table says, by construction.
    """
    features, norm = table.features, table.private_norm if private else table.public_norm
    if isinstance(features, Codes):
        columns = [column for column in features.columns if column.private == private]
        if len(columns) <= norm**2 * (1 + 1e-12):
            return CodedRows(columns, features.n)
    return features.private if private else features.public


class CodedRows(RowMatrix):
    """Some columns of a table, one after the other, as one matrix."""

    def __init__(self, columns: list[KeptColumn], n: int) -> None:
        self._columns = columns
        self._starts = np.cumsum([0, *(column.width for column in columns)])
        self.shape = (n, int(self._starts[-1]))
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
        found = times(self._numbers, weights[self._number_at])
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
        lengths: Floats = np.sqrt(np.maximum(squares, 0.0))
        return lengths

    @property
    def _coded_at(self) -> NDArray[np.bool_]:
        coded = np.ones(self.shape[1], dtype=bool)
        coded[self._number_at] = False
        return coded

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
