"""How far one unit moves a clipped gradient sum, by what is private. Guarantee: docs/proofs/gd.md.

Rows are x = (u, v), public and private part, with ‖u‖ ≤ `public` and ‖v‖ ≤ `private`; a row's
gradient is s ⊗ x with ‖s‖ ≤ clip. Exactly one of three bounds applies:

| private | a row's move under replace | under withhold |
|---|---|---|
| label and features | 2·clip·‖x‖ | clip·‖x‖ |
| label, loss linear in it | distance of two fixed slopes · ‖x‖, once | longest one · ‖x‖, once |
| features | u and v apart, u by how far v can move the scores | likewise |
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from halfmask.accounting.relations import Relation
from halfmask.losses import Loss
from halfmask.mechanisms.release import Sensitivity

Floats = NDArray[np.float64]

# Where no private value can move a block yet, it still gets this share of the other's bound.
_FLOOR = 1e-3


@dataclass(frozen=True, kw_only=True)
class RowBounds:
    """What is known beforehand of a row: norms of its parts, signs, and rows per unit.

    `rows_per_unit` bounds the sum of the weights of a unit's rows: their number where none has one.
    `limit` bounds the norm of the whole row where that is known to be less than its parts allow.
    """

    public: float
    private: float
    non_negative: bool
    rows_per_unit: int = 1
    limit: float = math.inf

    @property
    def whole(self) -> float:
        """The norm of the whole row."""
        return min(math.hypot(self.public, self.private), self.limit)

    @property
    def apart(self) -> float:
        """The largest distance of two private parts."""
        return self.private * (math.sqrt(2) if self.non_negative else 2.0)


def whole_gradient(bounds: RowBounds, clip: float) -> Sensitivity:
    """Label and features private: any two clipped gradients, or one and nothing."""
    return Sensitivity.of_clipped_sum(clip * bounds.whole, rows_per_unit=bounds.rows_per_unit)


def label_statistic(bounds: RowBounds, loss: Loss) -> Sensitivity:
    """Label private, features public: the sum of fixed slopes ⊗ x, which no θ enters."""
    apart, longest = loss.fixed_bounds()
    reach = bounds.whole * bounds.rows_per_unit
    return Sensitivity(replace=apart * reach, withhold=longest * reach)


@dataclass(frozen=True, kw_only=True)
class BlockMoves:
    """Label public, features private: how far the gradient's two blocks move, at given weights."""

    bounds: RowBounds
    loss: Loss
    clip: float
    relation: Relation

    def _apart_slopes(self) -> float:
        """The largest distance of two clipped slopes at one target, in multiples of the clip."""
        if not self.loss.one_sided:
            return 2.0
        return 1.0 if self.loss.outputs == 1 else math.sqrt(2)

    def private_block(self) -> float:
        """The v-coordinates, at any weights."""
        bounds = self.bounds
        if self.relation == "withhold":
            return self.clip * bounds.private * bounds.rows_per_unit
        close = bounds.non_negative and self.loss.one_sided
        factor = math.sqrt(2) if close else 2.0
        return factor * self.clip * bounds.private * bounds.rows_per_unit

    def public_block(self, weight_norm: float) -> float:
        """The u-coordinates, at private features' weights of spectral norm `weight_norm`."""
        bounds = self.bounds
        most = self.clip * self._apart_slopes()
        apart = bounds.private if self.relation == "withhold" else bounds.apart
        moved = min(most, self.loss.smoothness * weight_norm * apart)
        return moved * bounds.public * bounds.rows_per_unit

    def together(self) -> float:
        """Both blocks at once, at any weights: less than the sum, since slopes cannot do both."""
        bounds, loss = self.bounds, self.loss
        if self.relation == "withhold":
            moved = math.hypot(self._apart_slopes() * bounds.public, bounds.private)
        elif loss.one_sided:
            moved = max(self._apart_slopes() * bounds.whole, bounds.apart)
        else:
            moved = 2 * bounds.whole
        return moved * self.clip * bounds.rows_per_unit

    def scales(self, weight_norm: float, sizes: tuple[int, int]) -> tuple[float, float]:
        """What to multiply the (u, v) blocks by, so that together they move by at most 1.

        Of the bound on both at once and the bounds on each, shared out to minimise the squared
        noise over `sizes` coordinates, the one with less noise; both are known before the release.
        """
        both, private = self.together(), self.private_block()
        public = max(self.public_block(weight_norm), _FLOOR * private)
        first, second = public * math.sqrt(sizes[0]), private * math.sqrt(sizes[1])
        if both * math.sqrt(sum(sizes)) <= first + second:
            return 1 / both, 1 / both
        share = first + second
        return math.sqrt(first / share) / public, math.sqrt(second / share) / private

    def sensitivity(self) -> Sensitivity:
        """Of the scaled blocks: 1 under the relation, and a bound under the other one."""
        if self.relation == "replace":
            # The withheld bound is below the replaced one at any weights.
            return Sensitivity(replace=1.0, withhold=1.0)
        return Sensitivity(replace=2.0, withhold=1.0)


def spectral_norm(weights: Floats) -> float:
    """The largest factor by which `weights` (outputs x features) stretch a vector."""
    if weights.size == 0:
        return 0.0
    return float(np.linalg.norm(weights, 2))
