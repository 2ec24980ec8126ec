"""How far one share of ADMM sharing can move when a neighbour's table takes the place of a party's.

A share is D·x with x = argmin ½‖Dx - a‖² + κR(x) over a set, and a = v/ρ known from the transcript.
Guarantees: docs/proofs/admm_column.md and docs/proofs/admm_row.md; both are attacked in
tests/vertical/test_sensitivity.py.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from halfmask.errors import InputError

# Shares are computed in floating point (an eigendecomposition and a scalar root, relative error
# below 1e-9 on everything we tested); the bounds are widened by far more than that.
SLACK = 1 + 1e-6


@dataclass(frozen=True, kw_only=True)
class ShareSensitivity:
    """Bounds on the ℓ2 distance of two shares, for one replaced row, one withheld row, one moved
    column.
    """

    replace: float
    withhold: float
    column: float | None


def displacement_sensitivity(
    *, target_norm: float, kappa: float, displacement: float, exact_ridge: bool
) -> float:
    """‖a‖ · min{1, ‖D - D'‖/√κ}; the second branch only for the unconstrained ridge.

    `displacement` bounds the spectral norm ‖D - D'‖₂. Guarantee: docs/proofs/admm_column.md.
    """
    if not kappa >= 0:
        raise InputError(f"Expected kappa = strength/rho >= 0, got {kappa}.")
    factor = 1.0
    if exact_ridge and kappa > 0:
        factor = min(factor, displacement / math.sqrt(kappa))
    return SLACK * target_norm * factor


def column_sensitivity(
    *, target_norm: float, kappa: float, row_norm: float, exact_ridge: bool
) -> ShareSensitivity:
    """The bounds from the norm of the whole target; `row_norm` bounds every row of D.

    Guarantee: docs/proofs/admm_column.md.
    """

    def at(displacement: float) -> float:
        return displacement_sensitivity(
            target_norm=target_norm, kappa=kappa, displacement=displacement, exact_ridge=exact_ridge
        )

    return ShareSensitivity(replace=at(2 * row_norm), withhold=at(row_norm), column=at(1.0))


def row_sensitivity(
    *, target_bound: float, kappa: float, row_norm: float, radius: float
) -> ShareSensitivity:
    """Every |a_i| <= target_bound, every row norm <= row_norm, ‖x‖ <= radius, κ/2·‖x‖² added.

    Replace: Δ² <= (2rB)² + max over 0 <= h <= 2B of min{½A², 2rAh} - κh², with A = rB + b;
    withhold: half of each amplitude. Guarantee: docs/proofs/admm_row.md.
    """
    if not (target_bound > 0 and radius > 0 and row_norm > 0 and kappa >= 0):
        raise InputError(
            "Expected target_bound, radius and row_norm > 0 and kappa >= 0, got "
            f"{target_bound}, {radius}, {row_norm}, {kappa}."
        )
    reach = row_norm * radius
    amplitude = reach + target_bound
    others = _others(amplitude**2 / 2, 2 * row_norm * amplitude, kappa, 2 * radius)
    others_withheld = _others(amplitude**2 / 4, row_norm * amplitude, kappa, 2 * radius)
    return ShareSensitivity(
        replace=SLACK * math.sqrt((2 * reach) ** 2 + others),
        withhold=SLACK * math.sqrt(reach**2 + others_withheld),
        column=None,
    )


def _others(cap: float, slope: float, kappa: float, longest: float) -> float:
    """max over 0 <= h <= longest of min{cap, slope·h} - κh²: the other rows' part of the square."""
    peak = slope / (2 * kappa) if kappa > 0 else math.inf
    h = min(peak, cap / slope, longest)
    return min(cap, slope * h) - kappa * h * h
