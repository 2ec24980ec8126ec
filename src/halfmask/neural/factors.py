"""Per-example gradients in the form that never has to be multiplied out.

The gradient of one row with respect to a weight matrix is a sum of outer products: one per
position at which the layer was applied to that row (one for a table, one per token or pixel for a
sequence or an image, and again for every further use of the same weights). `Outer` holds those
factors; `Dense` holds the per-row gradients that are no larger than an activation (biases, scales
of a norm).

A *difference* of two gradients is the same object with the second row's factors subtracted, which
is why paired clipping needs no code of its own here.

Guarantee: docs/proofs/ghost.md (the norms are those of the gradients, up to a relative rounding
that the clipping margin covers).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from halfmask.neural.pair_norms import PairProducts
from halfmask.neural.structured import Products

# Of a squared norm in float64, relative to the square of the length of its terms.
SQUARE_ROUNDING = 64.0 * 2.0**-52
# Rows are taken a few at a time so that a temporary never exceeds this many numbers (64 MiB).
_TEMPORARY = 1 << 24


@dataclass(frozen=True, kw_only=True)
class Outer:
    """Rows of Σ_t left_t ⊗ right_t, for every group of a grouped layer.

    `left` is (rows, groups, positions, out), or (rows, groups, positions) of integers where each
    stands for a unit vector (the rows of a table that an embedding looks up); `right` is
    (rows, groups, positions, in). `sign` is -1 for the subtracted half of a pair.
    """

    left: Tensor
    right: Tensor
    sign: float = 1.0

    @property
    def positions(self) -> int:
        return int(self.right.shape[2])

    @property
    def looks_up(self) -> bool:
        return not self.left.is_floating_point()

    def silenced(self, rows: Tensor) -> Outer:
        """The same with the marked rows exactly zero, whatever they held (0 * NaN is NaN)."""
        right = self.right.masked_fill(rows.view(-1, 1, 1, 1), 0.0)
        if self.looks_up:
            return Outer(left=self.left, right=right, sign=self.sign)
        left = self.left.masked_fill(rows.view(-1, 1, 1, 1), 0.0)
        return Outer(left=left, right=right, sign=self.sign)

    def doubled(self, rows: Tensor) -> Outer:
        """The chosen rows in double precision."""
        left = self.left[rows] if self.looks_up else self.left[rows].double()
        return Outer(left=left, right=self.right[rows].double(), sign=self.sign)


@dataclass(frozen=True, kw_only=True)
class Dense:
    """Rows of a per-example gradient that is small enough to hold: (rows, *shape of parameter)."""

    value: Tensor
    sign: float = 1.0

    def silenced(self, rows: Tensor) -> Dense:
        mask = rows.view(-1, *[1] * (self.value.dim() - 1))
        return Dense(value=self.value.masked_fill(mask, 0.0), sign=self.sign)

    def doubled(self, rows: Tensor) -> Dense:
        """The chosen rows in double precision."""
        return Dense(value=self.value[rows].double(), sign=self.sign)


Gradient = Outer | Dense


def squared_norms(parts: Sequence[Gradient]) -> Tensor:
    """The squared norm of each row's gradient with respect to one parameter, as float64.

    `parts` are all uses of the parameter, signed; they must be of one kind.
    """
    dense = [part for part in parts if isinstance(part, Dense)]
    if dense:
        total = dense[0].value * dense[0].sign
        for part in dense[1:]:
            total = total + part.value * part.sign
        return total.flatten(1).square().sum(1, dtype=torch.float64)
    outer = [part for part in parts if isinstance(part, Outer)]
    positions = sum(part.positions for part in outer)
    if positions == 1:
        return _single(outer[0])
    if positions == 2 and len(outer) == 2 and not any(part.looks_up for part in outer):
        return _pair(*outer)
    return _many(outer, positions)


def term_lengths(parts: Sequence[Gradient]) -> Tensor:
    """How long each row's terms are together: what they add up to can be shorter, as float64."""
    total: Tensor | None = None
    for part in parts:
        if isinstance(part, Dense):
            found = _lengths(part.value.flatten(1))
        else:
            found = _lengths(part.right)
            found = (found if part.looks_up else found * _lengths(part.left)).flatten(1).sum(1)
        total = found if total is None else total + found
    assert total is not None
    return total


def _lengths(rows: Tensor) -> Tensor:
    return rows.square().sum(-1, dtype=torch.float64).sqrt()


def weighted_sum(parts: Sequence[Gradient], weights: Tensor, shape: torch.Size) -> Tensor:
    """Σ_rows weight · gradient for one parameter: one product per use, accumulated in place.

    A row of weight zero contributes exactly zero even if its gradient is not finite.
    """
    total = torch.zeros(shape, dtype=weights.dtype, device=weights.device)
    silent = weights == 0
    if bool(silent.any()):
        parts = [part.silenced(silent) for part in parts]
    for part in parts:
        signed = weights * part.sign
        if isinstance(part, Dense):
            total.view(-1).addmv_(part.value.flatten(1).t(), signed)
        elif part.looks_up:
            scaled = part.right * signed.view(-1, 1, 1, 1)
            total.index_add_(0, part.left.reshape(-1), scaled.reshape(-1, scaled.shape[-1]))
        else:
            _accumulate(total, part, signed)
    return total


def _accumulate(total: Tensor, part: Outer, signed: Tensor) -> None:
    scaled = part.left * signed.view(-1, 1, 1, 1)
    groups, out, width = part.left.shape[1], part.left.shape[3], part.right.shape[3]
    target = total.view(groups, out, width)
    for group in range(groups):
        left = scaled[:, group].reshape(-1, out)
        target[group].addmm_(left.t(), part.right[:, group].reshape(-1, width))


def _single(part: Outer) -> Tensor:
    right = part.right[:, :, 0].square().sum(2, dtype=torch.float64)
    if part.looks_up:
        return right.sum(1)
    left = part.left[:, :, 0].square().sum(2, dtype=torch.float64)
    return (left * right).sum(1)


def _pair(first: Outer, second: Outer) -> Tensor:
    """‖u⊗a − v⊗b‖² as ‖(u−v)⊗a + v⊗(a−b)‖²: no cancellation when the two rows are alike.

    Expanding into norms of u, v, a, b instead would lose every digit of a difference much smaller
    than the gradients, and the row would be clipped less than the guarantee assumes.
    """
    u, a = first.left[:, :, 0], first.right[:, :, 0]
    v, b = second.left[:, :, 0], second.right[:, :, 0]
    v = v * (second.sign * -first.sign)
    du, da = u - v, a - b
    pair = PairProducts(
        apart=_dot(du, du),
        padded=_dot(v, v),
        cross=_dot(du, v),
        given=Products(own=_dot(a, a), gap=_dot(da, da), cross=_dot(a, da)),
        unit=torch.finfo(a.dtype).eps,
    )
    return pair.squares().sum(1)


def _dot(one: Tensor, two: Tensor) -> Tensor:
    return torch.mul(one, two).sum(2, dtype=torch.float64)


def _many(parts: Sequence[Outer], positions: int) -> Tensor:
    """Many positions: multiply out a few rows at a time, or use Gram matrices, if less work.

    Gram matrices are taken in float64: with signs their sum cancels almost entirely.
    """
    rows, groups, _, width = parts[0].right.shape
    out = next((part.left.shape[3] for part in parts if not part.looks_up), None)
    multiply_out = out is not None and not any(part.looks_up for part in parts)
    multiply_out = multiply_out and out * width <= positions * (out + width)
    size = out * width if multiply_out and out is not None else 2 * positions**2
    step = max(1, _TEMPORARY // max(1, groups * size))
    result = torch.empty(rows, dtype=torch.float64, device=parts[0].right.device)
    for low in range(0, rows, step):
        some = slice(low, min(rows, low + step))
        if multiply_out:
            result[some] = _multiplied(parts, some)
        else:
            result[some] = _gram(parts, some)
    return result


def _multiplied(parts: Sequence[Outer], rows: slice) -> Tensor:
    total = None
    for part in parts:
        product = torch.matmul(part.left[rows].transpose(2, 3), part.right[rows])
        product = product if part.sign > 0 else -product
        total = product if total is None else total.add_(product)
    assert total is not None
    return total.flatten(1).square().sum(1, dtype=torch.float64)


def _gram(parts: Sequence[Outer], rows: slice) -> Tensor:
    result: Tensor | None = None
    for i, one in enumerate(parts):
        for j, two in enumerate(parts[: i + 1]):
            right = torch.matmul(one.right[rows].double(), two.right[rows].double().transpose(2, 3))
            term = (_left_products(one, two, rows) * right).flatten(1).sum(1)
            term = term * (one.sign * two.sign * (1.0 if i == j else 2.0))
            result = term if result is None else result + term
    assert result is not None
    return result.clamp_min(0.0)


def _left_products(one: Outer, two: Outer, rows: slice) -> Tensor:
    first, second = one.left[rows], two.left[rows]
    if one.looks_up and two.looks_up:
        return first.unsqueeze(3).eq(second.unsqueeze(2)).double()
    if one.looks_up:
        return _picked(second, first).transpose(2, 3)
    if two.looks_up:
        return _picked(first, second)
    return torch.matmul(first.double(), second.double().transpose(2, 3))


def _picked(dense: Tensor, index: Tensor) -> Tensor:
    """⟨dense_s, e_index_t⟩ for all positions s, t: a gather instead of a product."""
    return dense.gather(3, index.unsqueeze(2).expand(-1, -1, dense.shape[2], -1)).double()
