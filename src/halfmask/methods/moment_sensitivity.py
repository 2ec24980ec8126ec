"""How far one row can move the statistics that `one-shot` releases.

A row has a public part p, a private part r and a coded label y. Its contribution is the vector
(α·p⊗r, β·svec(r rᵀ), γ·p⊗y, κ·r⊗y), a block that touches nothing private left out. svec counts
each off-diagonal pair once, times √2, so that its norm is the Frobenius norm.

Guarantee: docs/proofs/one_shot.md, Theorem 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from halfmask.errors import InputError

Coding = Literal["public", "one-hot", "signed"]
"""What is known of two labels: equal; unit vectors, equal or orthogonal; numbers in [-1, 1]."""

_INNER: dict[Coding, tuple[float, ...]] = {
    "public": (1.0,),
    "one-hot": (1.0, 0.0),
    "signed": (1.0, -1.0),
}


@dataclass(frozen=True, kw_only=True)
class RowBounds:
    """What the declaration and the public columns say about every row.

    ‖p‖ ≤ `public`, ‖r‖ ≤ `private`, ‖y‖ ≤ 1; `non_negative` promises that ⟨r, r'⟩ ≥ 0 for any two
    private parts. The weights of the rows of a unit of privacy add up to at most `rows`.
    """

    public: float
    private: float
    label: Coding
    non_negative: bool = False
    rows: int = 1

    def __post_init__(self) -> None:
        if not (math.isfinite(self.public) and self.public >= 0):
            raise InputError(f"Expected a finite public norm >= 0, got {self.public}.")
        if not (math.isfinite(self.private) and self.private >= 0):
            raise InputError(f"Expected a finite private norm >= 0, got {self.private}.")
        if self.rows < 1:
            raise InputError(f"Expected at least one row a unit, got {self.rows}.")


@dataclass(frozen=True, kw_only=True)
class BlockWeights:
    """The factors of the four blocks before noise of one size is added to all of them."""

    public_private: float
    private_private: float
    public_label: float
    private_label: float


def replace_sensitivity(bounds: RowBounds, weights: BlockWeights) -> float:
    """The largest change of the weighted sum when one unit's private part takes another value."""
    norm, square = bounds.public**2, bounds.private**2
    cross = weights.public_private**2 * norm
    own = weights.private_private**2
    with_public = weights.public_label**2 * norm
    with_private = weights.private_label**2
    lowest = 0.0 if bounds.non_negative else -square
    worst = 0.0
    for same in _INNER[bounds.label]:
        # A concave parabola in the inner product t of the two private parts.
        slope = -2 * (cross + with_private * same)
        t = square if slope >= 0 else lowest
        if own > 0:
            t = min(max(slope / (4 * own), lowest), square)
        worst = max(
            worst,
            cross * (2 * square - 2 * t)
            + own * (2 * square**2 - 2 * t**2)
            + with_public * (2 - 2 * same)
            + with_private * (2 * square - 2 * t * same),
        )
    return bounds.rows * math.sqrt(worst)


def withhold_sensitivity(bounds: RowBounds, weights: BlockWeights) -> float:
    """The largest norm of one unit's contribution, which withholding turns to zero."""
    norm, square = bounds.public**2, bounds.private**2
    with_public = 0.0 if bounds.label == "public" else weights.public_label**2 * norm
    total = (
        weights.public_private**2 * norm * square
        + weights.private_private**2 * square**2
        + with_public
        + weights.private_label**2 * square
    )
    return bounds.rows * math.sqrt(total)


def choose_weights(bounds: RowBounds, *, coefficient: float) -> BlockWeights:
    """Factors that balance the blocks, from public quantities alone.

    Noise in a block with the label moves the solution as it is; noise in a second moment is first
    multiplied by the coefficients, whose size is guessed to be `coefficient`. For independent noise
    of standard deviation 1/weight, the smallest Σ cost/weight² at a given Σ weight²·size² has
    weight² = √cost / size, where size is what the block alone can change.
    """

    def weight(cost: float, size: float) -> float:
        return math.sqrt(math.sqrt(cost) / size) if size > 0 else 0.0

    apart = math.sqrt(2.0 if bounds.non_negative else 4.0)
    label = {"public": 0.0, "one-hot": math.sqrt(2.0), "signed": 2.0}[bounds.label]
    joint = apart if bounds.label == "public" else max(apart, label)
    public, private = bounds.public, bounds.private
    return BlockWeights(
        public_private=weight(coefficient**2, apart * public * private),
        private_private=weight(coefficient**2, math.sqrt(2.0) * private**2),
        public_label=weight(1.0, label * public),
        private_label=weight(1.0, joint * private),
    )
