"""Rows of a table as one matrix whose rows have norm at most 1, known before a value is seen.

Private features keep the scale of their declaration. Public ones may be looked at: each is scaled
by a power of its mean square (preconditioning, which is free), and rows that become long are
weighed down.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from halfmask.encoding import Scaled, declared
from halfmask.mechanisms.clipping import clip_rows
from halfmask.methods.gd_sensitivity import RowBounds
from halfmask.table import Table

Floats = NDArray[np.float64]

# Below this share of non-zero entries a sparse product is the faster one.
_SPARSE = 0.25
# The constant's least share of a row's squared norm, one-hot columns counted in.
_CONSTANT = 0.25
# Up to this private share of a row's squared norm, public features are preconditioned.
_MOSTLY_PUBLIC = 0.25


@dataclass(frozen=True, kw_only=True, eq=False)
class UnitRows:
    """weights · (constant, public, private) · scale, as a dense or sparse matrix.

    `row_weights` (in (0, 1], public) multiply a row's gradient; `scale` makes features columns.
    """

    matrix: Any
    scale: Floats
    constant: float
    public_size: int
    row_weights: Floats
    bounds: RowBounds

    @property
    def n(self) -> int:
        """The number of rows."""
        return int(self.matrix.shape[0])

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
        found: Floats = np.asarray(self.matrix @ theta)
        return found

    def gradient_sum(self, slopes: Floats) -> Floats:
        """The sum of slope ⊗ row over all rows, as columns x outputs."""
        found: Floats = np.asarray(self.matrix.T @ (slopes * self.row_weights[:, None]))
        return found

    def unfold(self, theta: Floats) -> tuple[Floats, Floats]:
        """Coefficients (outputs x features) and intercepts for rows as they are in the table."""
        first = int(self.constant > 0)
        coef = (theta[first:] * self.scale[:, None]).T
        intercept = theta[0] * self.constant if first else np.zeros(theta.shape[1])
        return np.ascontiguousarray(coef), intercept


def unit_rows(table: Table, *, precondition: float) -> UnitRows:
    """The rows of `table`; what is read of private values is nothing but the rows themselves."""
    public, public_scale, row_weights, public_norm = _public_block(table, precondition)
    private_norm = table.private_norm if table.private.shape[1] else 0.0
    non_negative = _non_negative(table)
    private = _bounded(table.private, private_norm, non_negative)
    squared = public_norm**2 + private_norm**2
    missing = _CONSTANT * squared - _one_hot_columns(table)
    constant = float(np.sqrt(max(missing, 0.0)))
    length = float(np.sqrt(squared + constant**2)) or 1.0
    blocks = [np.full((len(public), 1), constant)] if constant else []
    whole = np.hstack([*blocks, public, private]) / length
    matrix: Any = whole
    if np.count_nonzero(whole) < _SPARSE * whole.size:
        matrix = sparse.csr_array(whole)
    return UnitRows(
        matrix=matrix,
        scale=np.concatenate([public_scale, np.ones(private.shape[1])]) / length,
        constant=constant / length,
        public_size=public.shape[1],
        row_weights=row_weights,
        bounds=RowBounds(
            public=float(np.hypot(public_norm, constant)) / length,
            private=private_norm / length,
            non_negative=non_negative,
            rows_per_unit=table.max_rows,
        ),
    )


def _public_block(table: Table, power: float) -> tuple[Floats, Floats, Floats, float]:
    """Scaled public features, their scale, row weights, and the norm weighted rows keep to."""
    block = table.public
    n, width = block.shape
    if width == 0 or n == 0 or table.public_norm == 0:
        return block, np.ones(width), np.ones(n), 0.0
    # A feature of a function f has any size; an encoded one has that of its declaration.
    target = table.public_norm if table.schema is not None else max(table.private_norm, 1.0)
    private_norm = table.private_norm if table.private.shape[1] else 0.0
    if table.schema is not None and private_norm**2 > _MOSTLY_PUBLIC * (
        target**2 + private_norm**2
    ):
        # What is gained on public features would be lost on private ones, whose share shrinks.
        return block, np.ones(width), np.ones(n), target
    mean_square = np.einsum("ij,ij->j", block, block) / n
    # A level seen in fewer rows than this says nothing that survives any noise.
    floor = max(1e-3 * float(mean_square.max()), np.finfo(float).tiny)
    scale = np.maximum(mean_square, floor) ** -power
    norms = np.sqrt(np.einsum("ij,j->i", block**2, scale**2))
    typical = float(np.median(norms)) or 1.0
    scale *= target / typical
    weights = np.minimum(1.0, typical / np.maximum(norms, np.finfo(float).tiny))
    return block * scale, scale, weights, target


def _bounded(private: Floats, norm: float, non_negative: bool) -> Floats:
    """The declared norm and signs, enforced: they are what the sensitivity stands on."""
    if non_negative and private.size and private.min() < 0:
        private = np.maximum(private, 0.0)
    squares = np.einsum("ij,ij->i", private, private)
    # Not `any(squares > bound)`: that would let a NaN pass.
    if np.all(squares <= norm**2 * (1 + 1e-9)):
        return private
    return clip_rows(private, norm) if norm else np.zeros_like(private)


def _one_hot_columns(table: Table) -> int:
    """Columns whose features add up to 1 in every row, and so hold a constant already."""
    if table.schema is None:
        return 0
    return sum(
        column.kind == "category" or column.bins is None or column.bins > 0
        for column in table.schema.columns
    )


def _non_negative(table: Table) -> bool:
    """Whether the declaration makes every private feature a 0/1 level."""
    if table.schema is None:
        return False
    private = [column for column in table.schema.columns if column.role == "private"]
    return not any(isinstance(declared(column), Scaled) for column in private)
