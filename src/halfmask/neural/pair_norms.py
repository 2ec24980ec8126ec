"""The norm of u⊗a − v⊗b from products of its factors, never smaller than what will be summed.

A norm that comes out too small lets a row exceed the clip norm. u⊗a − v⊗b = (u−v)⊗a + v⊗(a−b)
loses nothing where the two rows are alike, but its two terms can cancel each other, and then the
norm is the rounding of their products: so the largest rounding is added. And where u⊗a and v⊗b are
so much longer than their difference that single precision cannot subtract them, the row counts as
longer than it is.

Guarantee: docs/proofs/ghost.md.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from halfmask.neural.structured import Products

# Rounding of each product, in units of the last place of its longest possible value.
_ROUNDING = 32.0
# A sum shorter than so many units in the last place of its terms (2⁻⁹ of them in single precision)
# cannot be formed to a relative 2⁻¹¹.
_SHORTEST = 2.0**14


@dataclass(frozen=True, kw_only=True)
class PairProducts:
    """‖u−v‖², ‖v‖² and ⟨u−v, v⟩ of output gradients, and the products of a and a−b, in float64.

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
