"""One party's columns, and the least-squares problem it solves every round.

    x = argmin  ½‖Dx - a‖² + κ R(x)  over a convex set,   R one of ½‖x‖², ‖x‖₁, 0

The smaller of the two Gram matrices is decomposed once into eigenvectors; every later round, every
κ and every radius of a ball then costs two products with D. Codes stay codes, sparse blocks sparse.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, cast, get_args

import numpy as np
from scipy import sparse
from scipy.linalg import eigh

from halfmask.data.products import CodedRows
from halfmask.errors import InputError
from halfmask.mechanisms.clipping import clip_rows, norm_of
from halfmask.types import Vector

# A dozen vectors of this length stay in the processor's cache, and their memory is used again.
# Vectors of millions of rows get fresh pages from the system each time they are made, so that with
# them a row of a large table costs several times one of a small table.
_ROWS_AT_ONCE = 8192


def row_parts(rows: int) -> Iterator[slice]:
    """The rows of a table in parts for which arithmetic needs no large vectors in between."""
    return (slice(first, first + _ROWS_AT_ONCE) for first in range(0, rows, _ROWS_AT_ONCE))


def bounded_rows(matrix: Any, norm: float) -> Any:
    """Rows scaled down to at most `norm`, those that are not finite to zero; sparse ones too.

    Codes are no longer than their number of columns says, by construction: docs/proofs/encoding.md.
    """
    if isinstance(matrix, CodedRows):
        if matrix.norm <= norm * (1 + 1e-12):
            return matrix
        matrix = matrix.block(slice(None))
    if not sparse.issparse(matrix):
        return clip_rows(np.asarray(matrix, dtype=np.float64), norm)
    rows = sparse.csr_array(matrix).astype(np.float64)
    norms = np.sqrt(np.asarray(rows.multiply(rows).sum(axis=1)).ravel())
    broken = ~np.isfinite(norms)
    scale = np.minimum(1.0, norm / np.maximum(norms, 1e-300))
    scale[broken] = 0.0
    # An error would tell whether some private cell is not finite; such rows count as zero instead.
    rows.data[~np.isfinite(rows.data)] = 0.0
    return sparse.csr_array(sparse.diags_array(scale) @ rows)


Regulariser = Literal["l2", "l1", "none"]
REGULARISERS: tuple[Regulariser, ...] = get_args(Regulariser)

_PROXIMAL_STEPS = 20_000
_RANK_TOLERANCE = 1e-12


@dataclass(frozen=True, kw_only=True)
class Ball:
    """‖x‖ <= radius."""

    radius: float

    def __post_init__(self) -> None:
        if not self.radius > 0:
            raise InputError(f"Expected a radius > 0 of the ball, got {self.radius}.")

    def project(self, x: Vector) -> Vector:
        norm = norm_of(x)
        return x if norm <= self.radius else x * (self.radius / norm)


@dataclass(frozen=True, kw_only=True)
class Box:
    """low <= every coefficient <= high, with 0 inside."""

    low: float
    high: float

    def __post_init__(self) -> None:
        if not self.low <= 0 <= self.high:
            raise InputError(f"Expected a box around 0, got [{self.low}, {self.high}].")

    def project(self, x: Vector) -> Vector:
        return np.clip(x, self.low, self.high)


Constraint = Ball | Box | None


class Block:
    """A party's matrix D (codes, an array or scipy sparse) with its cached decomposition."""

    def __init__(self, matrix: Any) -> None:
        if isinstance(matrix, CodedRows) and matrix.shape[1] > matrix.shape[0]:
            matrix = matrix.block(slice(None))  # few rows
        if isinstance(matrix, CodedRows):
            self.matrix: Any = matrix
        elif sparse.issparse(matrix):
            self.matrix = sparse.csr_array(matrix).astype(np.float64)
            # The transpose is stored as CSR of its own: CSR times a vector is the fast direction.
            self._transposed: Any = sparse.csr_array(self.matrix.T)
        else:
            self.matrix = np.ascontiguousarray(matrix, dtype=np.float64)
            if self.matrix.ndim != 2:
                raise InputError(
                    f"Expected a matrix of rows and columns, got {self.matrix.ndim}-d."
                )
            self._transposed = self.matrix.T
        self.rows, self.columns = (int(n) for n in self.matrix.shape)

    @property
    def is_sparse(self) -> bool:
        """Whether the columns are held as a sparse matrix."""
        return bool(sparse.issparse(self.matrix))

    def scores(self, x: Vector) -> Vector:
        """Dx: one number per row."""
        return cast(Vector, np.asarray(self.matrix @ x, dtype=np.float64))

    def correlate(self, a: Vector) -> Vector:
        """Dᵀa: one number per column."""
        if isinstance(self.matrix, CodedRows):
            return self.matrix.crossed(a)
        return cast(Vector, np.asarray(self._transposed @ a, dtype=np.float64))

    @property
    def wide(self) -> bool:
        """More columns than rows: the decomposition is of DDᵀ instead of DᵀD."""
        return self.columns > self.rows

    @cached_property
    def _gram(self) -> Vector:
        if isinstance(self.matrix, CodedRows):
            return self.matrix.gram(np.ones(self.rows))
        product = self.matrix @ self._transposed if self.wide else self._transposed @ self.matrix
        return cast(Vector, product.toarray() if self.is_sparse else product)

    @cached_property
    def _spectrum(self) -> tuple[Vector, Vector]:
        values, vectors = eigh(self._gram, check_finite=True)
        return np.maximum(values, 0.0), vectors

    def solve(
        self,
        target: Vector,
        *,
        kappa: float,
        regulariser: Regulariser = "l2",
        constraint: Constraint = None,
        start: Vector | None = None,
    ) -> Vector:
        """The x above; `start` speeds up the proximal solver and does not change the answer."""
        strength = 0.0 if regulariser == "none" else kappa
        if regulariser != "l1" and not isinstance(constraint, Box):
            return self._ridge(target, strength, constraint)
        return self._proximal(target, strength, regulariser, constraint, start)

    def _ridge(self, target: Vector, kappa: float, ball: Ball | None) -> Vector:
        values, vectors = self._spectrum
        if self.wide:
            coordinates = vectors.T @ target
            squares = values * coordinates**2
        else:
            coordinates = vectors.T @ self.correlate(target)
            squares = coordinates**2
        shifted = values + kappa
        # Without a regulariser the least-norm solution: directions D does not reach stay at zero.
        reached = shifted > _RANK_TOLERANCE * max(float(values[-1]), 1e-300)
        inverse = np.zeros_like(shifted)
        np.divide(1.0, shifted, out=inverse, where=reached)
        if ball is not None and float(np.sum(squares * inverse**2)) > ball.radius**2:
            nu = _multiplier(squares[reached], shifted[reached], ball.radius)
            np.divide(1.0, shifted + nu, out=inverse, where=reached)
        x = vectors @ (coordinates * inverse)
        if self.wide:
            x = self.correlate(x)
        return x if ball is None else ball.project(x)

    def _proximal(
        self,
        target: Vector,
        kappa: float,
        regulariser: Regulariser,
        constraint: Constraint,
        start: Vector | None,
    ) -> Vector:
        """Accelerated proximal gradient with restarts (Beck and Teboulle 2009)."""
        linear = self.correlate(target)
        ridge = kappa if regulariser == "l2" else 0.0
        curvature = max(float(self._spectrum[0][-1]) + ridge, 1e-300)
        threshold = kappa / curvature if regulariser == "l1" else 0.0
        x = np.zeros(self.columns) if start is None else start
        ahead, momentum = x, 1.0
        tolerance = 1e-11 * max(float(np.linalg.norm(linear)) / curvature, 1e-300)
        for _ in range(_PROXIMAL_STEPS):
            product = self.correlate(self.scores(ahead)) if self.wide else self._gram @ ahead
            moved = ahead - (product + ridge * ahead - linear) / curvature
            if threshold:
                moved = np.sign(moved) * np.maximum(np.abs(moved) - threshold, 0.0)
            # Soft threshold, then projection, is the proximal map of the sum: both are separable
            # for a box around 0, and the ball only scales (‖·‖₁ is positively homogeneous).
            new = moved if constraint is None else constraint.project(moved)
            if float(np.linalg.norm(new - ahead)) <= tolerance:
                return new
            if float(np.dot(ahead - new, new - x)) > 0:
                momentum = 1.0
            following = (1 + np.sqrt(1 + 4 * momentum**2)) / 2
            ahead = new + (momentum - 1) / following * (new - x)
            x, momentum = new, following
        return x


def _multiplier(squares: Vector, shifted: Vector, radius: float) -> float:
    """ν > 0 with Σ squares/(shifted + ν)² = radius², by Newton on 1/‖x(ν)‖, concave in ν."""
    nu = 0.0
    for _ in range(200):
        inverse = 1 / (shifted + nu)
        norm = float(np.sqrt(np.sum(squares * inverse**2)))
        if abs(norm - radius) <= 1e-14 * radius:
            break
        slope = float(np.sum(squares * inverse**3)) / norm**3
        step = (1 / radius - 1 / norm) / slope
        nu = max(nu + step, 0.0)
    return nu
