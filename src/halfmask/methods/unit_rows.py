"""Rows of a table as one matrix whose rows have norm at most 1, known before a value is seen.

Private features keep the scale of their declaration. Public ones may be looked at: each is scaled
and centred (preconditioning, which is free), and rows that stay long are weighed down.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from halfmask.accounting.relations import Relation
from halfmask.encoding import Scaled, declared
from halfmask.mechanisms.clipping import clip_rows
from halfmask.mechanisms.shards import ALONE, Shards, rows_in_all
from halfmask.methods.coded_rows import CodedRows, feature_rows
from halfmask.methods.gd_sensitivity import RowBounds
from halfmask.row_products import RowMatrix, Rows, crossed, times
from halfmask.table import Table
from halfmask.units import unit_weights

Floats = NDArray[np.float64]

# Below this share of non-zero entries a sparse product is the faster one.
_SPARSE = 0.25
# The constant's least share of a row's squared norm, one-hot columns counted in.
_CONSTANT = 0.25
# Public rows beyond this quantile of norms are weighed down to it.
_LONG = 0.6
# Up to this private share of a row's squared norm, public features are preconditioned.
_MOSTLY_PUBLIC = 0.25
# What is left of public features' lengths where descent only corrects what is known of them.
_STARTED = 0.25


@dataclass(frozen=True, kw_only=True, eq=False)
class UnitRows:
    """((constant, public, private) − centre) · scale, row by row, as a dense or sparse matrix.

    `row_weights` (in (0, 1], public) multiply a row's gradient; `scale` makes features columns.
    `offset` is added to the scores: what a model that is known already says of each row.
    `n` counts the rows of all machines, among them those of this one; a row of a unit that is
    weighed down counts as its weight.
    """

    matrix: Any
    centre: Floats
    scale: Floats
    constant: float
    public_size: int
    row_weights: Floats
    bounds: RowBounds
    n: float
    offset: Floats | float = 0.0

    @property
    def d(self) -> int:
        """The number of columns, the constant included if there is one."""
        return int(self.matrix.shape[1])

    @property
    def public_columns(self) -> int:
        """How many leading columns are public: the constant and the public features."""
        return self.public_size + (self.constant > 0)

    def scores(self, theta: Floats) -> Floats:
        """One column of scores per output."""
        found: Floats = times(self.matrix, theta) - self.centre @ theta
        return found + self.offset

    def gradient_sum(self, slopes: Floats) -> Floats:
        """The sum of slope ⊗ row over all rows, as columns x outputs."""
        weighted = slopes * self.row_weights[:, None]
        found: Floats = crossed(self.matrix, weighted)
        return found - np.outer(self.centre, weighted.sum(axis=0))

    def unfold(self, theta: Floats) -> tuple[Floats, Floats]:
        """Coefficients (outputs x features) and intercepts for rows as they are in the table."""
        first = int(self.constant > 0)
        coef = (theta[first:] * self.scale[:, None]).T
        intercept = theta[0] * self.constant if first else np.zeros(theta.shape[1])
        intercept = intercept - self.centre @ theta
        return np.ascontiguousarray(coef), intercept

    @property
    def stretch(self) -> float:
        """A bound on how much longer coefficients and intercept are than the θ they come from."""
        slopes = float(np.abs(self.scale).max(initial=0.0))
        return float(np.sqrt(slopes**2 + self.constant**2 + self.centre @ self.centre))

    def fold_gradient(self, by_coef: Floats, by_intercept: Floats) -> Floats:
        """A gradient by coefficients and intercepts as one by θ: the chain rule of `unfold`."""
        parts = (by_coef * self.scale).T
        if self.constant > 0:
            parts = np.vstack([by_intercept[None, :] * self.constant, parts])
        folded: Floats = parts - np.outer(self.centre, by_intercept)
        return folded


class ScaledRows(RowMatrix):
    """(constant, features · scale) of all rows, by sums over codes."""

    def __init__(self, features: Sequence[RowMatrix], constant: float, scale: Floats) -> None:
        self._features, self._constant, self._scale = features, constant, scale
        self._first = int(constant > 0)
        self._ends = np.cumsum([each.shape[1] for each in features])
        self.shape = (len(features[0]), self._first + len(scale))

    def times(self, weights: Floats) -> Floats:
        """rows @ weights."""
        scaled = weights[self._first :] * self._scale[:, None]
        parts = np.split(scaled, self._ends[:-1])
        found = sum(each.times(part) for each, part in zip(self._features, parts, strict=True))
        return np.asarray(found + self._constant * weights[0] if self._first else found)

    def crossed(self, values: Floats) -> Floats:
        """rowsᵀ @ values."""
        sums = np.concatenate([each.crossed(values) for each in self._features])
        parts = [self._constant * values.sum(axis=0)[None]] if self._first else []
        return np.concatenate([*parts, sums * self._scale[:, None]])

    def block(self, rows: slice | NDArray[np.integer]) -> Floats:
        """Some of the rows."""
        made = np.hstack([each.block(rows) for each in self._features]) * self._scale
        constant = np.full((len(made), self._first), self._constant)
        return np.hstack([constant, made])


def unit_rows(
    table: Table, *, precondition: float, shards: Shards = ALONE, started: bool = False
) -> UnitRows:
    """The rows of `table`; what is read of private values is nothing but the rows themselves.

    With `started`, a model of the public features is known already: they are kept short, for
    corrections only, and a row is weighed down by its whole length instead of its public part's.
    """
    public_size, private_size = table.widths
    private_norm = table.private_norm if private_size else 0.0
    public = _public_block(table, private_norm, precondition, shards, started)
    non_negative = _non_negative(table)
    squared = public.norm**2 + private_norm**2
    missing = _CONSTANT * squared - _private_one_hot_columns(table)
    # Columns that are all constant leave nothing else to learn from.
    constant = float(np.sqrt(max(missing, 0.0))) if squared else 1.0
    length = float(np.sqrt(squared + constant**2)) or 1.0
    scale = np.concatenate([public.scale, np.ones(private_size)]) / length
    lengths, limit = public.norms, public.norm
    if started:
        lengths, limit = np.hypot(public.norms, np.hypot(private_norm, constant)), length
    weights = np.ones_like(lengths)
    np.divide(limit, lengths, out=weights, where=lengths > limit)
    return UnitRows(
        matrix=_matrix(table, constant / length, scale, private_norm, non_negative),
        centre=np.concatenate(
            [
                np.zeros(int(constant > 0)),
                public.centre * public.scale / length,
                np.zeros(private_size),
            ]
        ),
        scale=scale,
        constant=constant / length,
        public_size=public_size,
        row_weights=weights,
        bounds=RowBounds(
            public=float(np.hypot(public.longest if started else public.norm, constant)) / length,
            private=private_norm / length,
            limit=1.0,
            non_negative=non_negative,
            rows_per_unit=table.rows_per_unit,
        ),
        n=rows_in_all(table.n, shards),
    )


def _matrix(
    table: Table, constant: float, scale: Floats, private_norm: float, non_negative: bool
) -> Any:
    """(constant, features · scale): by codes, or as an array, sparse where that is faster."""
    found = [feature_rows(table, private=each) for each in (False, True)]
    coded = [each for each in found if isinstance(each, RowMatrix)]
    if len(coded) == len(found):
        return ScaledRows([each for each in coded if each.shape[1]], constant, scale)
    private = _bounded(table.private, private_norm, non_negative)
    blocks = [np.full((len(private), 1), constant)] if constant else []
    whole = np.hstack([*blocks, np.hstack([table.public, private]) * scale])
    if np.count_nonzero(whole) < _SPARSE * whole.size:
        return sparse.csr_array(whole)
    return whole


def weighed_by_unit(
    rows: UnitRows, table: Table, *, outputs: int, mu: float, relation: Relation
) -> UnitRows:
    """`rows` with those of units that have many of them weighed down: docs/proofs/units.md."""
    if table.unit is None:
        return rows
    weights = unit_weights(table.unit, numbers=rows.d * outputs, mu=mu, relation=relation)
    return replace(
        rows,
        row_weights=rows.row_weights * weights.rows,
        bounds=replace(rows.bounds, rows_per_unit=weights.most),
        n=weights.total,
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class _Public:
    """(public − centre) · scale: the norms of its rows, the longest, and what counts as long."""

    centre: Floats
    scale: Floats
    norms: Floats
    longest: float
    norm: float


def _public_block(
    table: Table, private_norm: float, power: float, shards: Shards, started: bool
) -> _Public:
    """Centred and scaled by public values: a centred level is short where it is common."""
    rows = feature_rows(table, private=False)
    n, width = rows.shape
    if width == 0 or n == 0:
        empty = np.zeros(width)
        return _Public(centre=empty, scale=empty + 1, norms=np.zeros(n), longest=0.0, norm=0.0)
    everywhere = rows_in_all(n, shards)
    sums, squares = _sums_and_squares(rows)
    centre = shards.sum(sums) / everywhere
    squares = shards.sum(squares)
    mean_square = np.maximum(squares / everywhere - centre**2, 0.0)
    total = float(mean_square.sum())
    scale = np.ones(width)
    mostly_public = private_norm**2 <= _MOSTLY_PUBLIC * (table.public_norm**2 + private_norm**2)
    if total > 0 and (mostly_public or started or table.schema is None):
        # A feature that hardly varies says nothing that survives any noise.
        scale = np.maximum(mean_square, 1e-3 * float(mean_square.max())) ** -power
        scale *= np.sqrt(total / float(mean_square @ scale**2))
    if table.schema is None and total > 0:
        # A feature of a function f has any size; bring it to that of the private row.
        scale *= max(private_norm, 1.0) / np.sqrt(total)
    if started:
        scale *= _STARTED
    norms = _lengths(rows, centre, scale)
    everyone = shards.gather(norms)
    long, longest = float(np.quantile(everyone, _LONG)), float(everyone.max())
    return _Public(centre=centre, scale=scale, norms=norms, longest=longest, norm=long)


def _sums_and_squares(rows: Rows) -> tuple[Floats, Floats]:
    """The sum of each feature over all rows, and that of its square."""
    if isinstance(rows, CodedRows):
        return rows.column_sums()
    assert isinstance(rows, np.ndarray)
    return rows.sum(axis=0), np.einsum("ij,ij->j", rows, rows)


def _lengths(rows: Rows, centre: Floats, scale: Floats) -> Floats:
    """The length of (row − centre) · scale, for each row."""
    if isinstance(rows, CodedRows):
        return rows.lengths_scaled(centre, scale)
    assert isinstance(rows, np.ndarray)
    squares = np.einsum("ij,ij,j->i", rows, rows, scale**2)
    squares += float(centre**2 @ scale**2) - 2 * times(rows, centre * scale**2)
    lengths: Floats = np.sqrt(np.maximum(squares, 0.0))
    return lengths


def _bounded(private: Floats, norm: float, non_negative: bool) -> Floats:
    """The declared norm and signs, enforced: they are what the sensitivity stands on."""
    if non_negative and private.size and private.min() < 0:
        private = np.maximum(private, 0.0)
    squares = np.einsum("ij,ij->i", private, private)
    # Not `any(squares > bound)`: that would let a NaN pass.
    if np.all(squares <= norm**2 * (1 + 1e-9)):
        return private
    return clip_rows(private, norm) if norm else np.zeros_like(private)


def _private_one_hot_columns(table: Table) -> int:
    """Private columns whose features add up to 1 in every row, and so hold a constant already."""
    if table.schema is None:
        return 0
    return sum(not column.scaled for column in table.schema.columns if column.role == "private")


def _non_negative(table: Table) -> bool:
    """Whether the declaration makes every private feature a 0/1 level."""
    if table.schema is None:
        return False
    private = [column for column in table.schema.columns if column.role == "private"]
    return not any(isinstance(declared(column), Scaled) for column in private)
