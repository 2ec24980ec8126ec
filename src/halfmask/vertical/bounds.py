"""The privacy claims of A (Learning Privately over Distributed Features), kept for comparison only.

They are formulas of the paper, not guarantees of this package: Lemma 1 is false
(docs/proofs/admm_column.md), so nothing here is ever printed as an epsilon of a run.
"""

from __future__ import annotations

import math

from halfmask.errors import InputError


def lemma_1(
    *, columns: int, rho: float, strength: float, curvature: float, parties: int, norm_bound: float
) -> float:
    """A's claimed sensitivity 3/(d_m ρ)·[λc₁ + (1 + Mρ)b₁]. False: unit rows do not make DᵀD = d_m
    I.
    """
    return 3 / (columns * rho) * (strength * curvature + (1 + parties * rho) * norm_bound)


def theorem_1_noise(*, epsilon: float, delta: float, sensitivity: float) -> float:
    """A's noise std for one round, √(2 ln(1.25/δ))·C/ε, for ε in (0, 1]."""
    if not 0 < epsilon <= 1:
        raise InputError(f"Theorem 1 holds for epsilon in (0, 1], got {epsilon}.")
    return math.sqrt(2 * math.log(1.25 / delta)) * sensitivity / epsilon


def corollary_1(
    *, epsilon: float, delta: float, rounds: int, delta_slack: float
) -> tuple[float, float]:
    """A's (ε', Tδ + δ') after T rounds of (ε, δ) each: √(2T ln(1/δ'))·ε + Tε(e^ε - 1)."""
    total = math.sqrt(2 * rounds * math.log(1 / delta_slack)) * epsilon
    total += rounds * epsilon * math.expm1(epsilon)
    return total, rounds * delta + delta_slack


def exact_ratio(*, epsilon: float, delta: float, rounds: int) -> float:
    """μ = √T·ε/√(2 ln(1.25/δ)): the same noise composed exactly, under A's own sensitivity.

    `halfmask.accounting.gaussian.gaussian_epsilon(μ, δ)` turns it into the ε that A's noise would
    have if Lemma 1 were true.
    """
    return math.sqrt(rounds) / theorem_1_noise(epsilon=epsilon, delta=delta, sensitivity=1.0)
