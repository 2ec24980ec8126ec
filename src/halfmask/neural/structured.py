"""Rows whose padding is a small table: the public columns and one line of constants.

A padded row g(f(x)) equals x in the public columns and a line of a table in the private ones: one
line for a constant or the released means, one line per class for released class means. Its first
layer then costs a lookup, and the lengths and products that the norms of that layer need do not
change while the network does: they are computed once for the whole table.

Guarantee: docs/proofs/ghost.md.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from halfmask.errors import InputError

# Rounding of each product, in units of the last place of its longest possible value.
_ROUNDING = 32.0
# A sum shorter than so many units in the last place of its terms (2⁻⁹ of them in single precision)
# cannot be formed to a relative 2⁻¹¹.
_SHORTEST = 2.0**14


@dataclass(frozen=True, kw_only=True)
class Products:
    """Of a = (x, 1) and d = x − g(f(x)), per row: ⟨a,a⟩, ⟨d,d⟩ and ⟨a,d⟩ (d's bias entry is 0)."""

    own: Tensor
    gap: Tensor
    cross: Tensor

    def take(self, rows: Tensor | slice) -> Products:
        return Products(own=self.own[rows], gap=self.gap[rows], cross=self.cross[rows])


def products(real: Tensor, padded: Tensor) -> Products:
    """The products of rows and padded rows; sums are accumulated in float64."""
    gap = real - padded
    return Products(own=_dot(real, real).add_(1.0), gap=_dot(gap, gap), cross=_dot(real, gap))


def _dot(one: Tensor, two: Tensor) -> Tensor:
    return torch.mul(one, two).sum(1, dtype=torch.float64)


@dataclass(frozen=True, kw_only=True)
class PairProducts:
    """The norm of u⊗a − v⊗b from products of its factors, never smaller than what will be summed.

    A norm that comes out too small lets a row exceed the clip norm. u⊗a − v⊗b = (u−v)⊗a + v⊗(a−b)
    loses nothing where the two rows are alike, but its two terms can cancel each other, and then
    the norm is the rounding of their products: so the largest rounding is added. And where u⊗a and
    v⊗b are so much longer than their difference that single precision cannot subtract them, the
    row counts as longer than it is.

    Held are ‖u−v‖², ‖v‖² and ⟨u−v, v⟩ of output gradients, and the products of a and a−b, in
    float64.
    `unit` is the relative spacing of the numbers that u, v, a and b are held in.
    """

    apart: Tensor
    padded: Tensor
    cross: Tensor
    given: Products
    unit: float

    def squares(self) -> Tensor:
        """‖u⊗a − v⊗b‖², with its largest rounding added."""
        given = self.given
        terms = self.apart * given.own + self.padded * given.gap
        found = terms * (1.0 + _ROUNDING * self.unit) + 2.0 * self.cross * given.cross
        return found.clamp_min(0.0)

    def summable(self) -> Tensor:
        """`squares`, but no less than what the sum of u⊗a and −v⊗b may lose by rounding."""
        long, length = self.given.own.sqrt(), self.padded.sqrt()
        terms = (self.apart.sqrt() + 2.0 * length) * long + length * self.given.gap.sqrt()
        return self.squares().maximum((_SHORTEST * self.unit * terms).square())


class StructuredRows:
    """Rows with `public` leading public columns, padded from `table` by each row's `codes`.

    `table` is (lines, private columns) and must be free of private values: declared constants, or
    the output of a paid release. `codes` (one line number per row) must be public; without them
    the table has one line.
    """

    def __init__(
        self, rows: Tensor, *, public: int, table: Tensor, codes: Tensor | None = None
    ) -> None:
        if table.dim() != 2 or table.shape[1] != rows.shape[1] - public:
            raise InputError(
                f"Expected a table of {rows.shape[1] - public} private columns, "
                f"got {tuple(table.shape)}."
            )
        if codes is None:
            if len(table) != 1:
                raise InputError(f"A table of {len(table)} lines needs a line number per row.")
            codes = torch.zeros(len(rows), dtype=torch.long, device=rows.device)
        if codes.shape != (len(rows),):
            raise InputError(f"Expected {len(rows)} line numbers, got {tuple(codes.shape)}.")
        self.rows = rows
        self.public = public
        self.table = table.to(rows)
        self.codes = codes
        gap_own = [torch.zeros(len(rows), dtype=torch.float64) for _ in range(3)]
        self.products = Products(own=gap_own[0], gap=gap_own[1], cross=gap_own[2])
        for low in range(0, len(rows), 8192):
            some = slice(low, low + 8192)
            found = products(rows[some], self.padded(some))
            self.products.own[some] = found.own
            self.products.gap[some] = found.gap
            self.products.cross[some] = found.cross

    def __len__(self) -> int:
        return len(self.rows)

    def padded(self, rows: Tensor | slice) -> Tensor:
        """g(f(x)) written out, for the public batch and for tests."""
        real = self.rows[rows]
        return torch.cat([real[:, : self.public], self.table[self.codes[rows]]], dim=1)

    def to(self, device: torch.device) -> StructuredRows:
        """The same rows on another device."""
        if self.rows.device == device:
            return self
        moved = object.__new__(StructuredRows)
        moved.rows, moved.public, moved.table = (
            self.rows.to(device),
            self.public,
            self.table.to(device),
        )
        moved.codes, held = self.codes.to(device), self.products
        moved.products = Products(
            own=held.own.to(device), gap=held.gap.to(device), cross=held.cross.to(device)
        )
        return moved

    def take(self, rows: Tensor | slice) -> StructuredRows:
        """Some of the rows, with the products they already have."""
        chosen = object.__new__(StructuredRows)
        chosen.rows, chosen.public, chosen.table = self.rows[rows], self.public, self.table
        chosen.codes, chosen.products = self.codes[rows], self.products.take(rows)
        return chosen
