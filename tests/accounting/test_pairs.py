"""The dominating pairs of one sampled step, attacked with contributions in the plane."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from halfmask.accounting.accountant import delta
from halfmask.accounting.events import Contribution, PoissonGaussianEvent

Floats = NDArray[np.float64]
EPSILONS = (0.0, 0.1, 0.4, 1.0, 2.5)


def plane_delta(u: Floats, v: Floats, noise: float, rate: float, epsilon: float) -> float:
    """delta of (1−q)N(0)+qN(u) against (1−q)N(0)+qN(v) in the plane, by integration."""
    reach = 1 + 8 * noise
    axis = np.linspace(-reach, reach, 801)
    x, y = axis[:, None], axis[None, :]

    def density(centre: Floats) -> Floats:
        square = (x - centre[0]) ** 2 + (y - centre[1]) ** 2
        values: Floats = np.exp(-square / (2 * noise**2)) / (2 * math.pi * noise**2)
        return values

    base = (1 - rate) * density(np.zeros(2))
    gap = base + rate * density(u) - math.exp(epsilon) * (base + rate * density(v))
    return float(np.maximum(gap, 0).sum() * (axis[1] - axis[0]) ** 2)


def claimed(noise: float, rate: float, epsilon: float, contribution: Contribution) -> float:
    event = PoissonGaussianEvent(noise_multiplier=noise, rate=rate, contribution=contribution)
    return delta([event], epsilon=epsilon, relation="replace")


def polar(length: float, angle: float) -> Floats:
    return length * np.array([math.cos(angle), math.sin(angle)])


def passes_label_test(u: Floats, v: Floats) -> bool:
    """The sufficient test of docs/proofs/label_pair.md at C = 1."""
    inner = float(u @ v)
    return max(u @ u, v @ v) <= 1 and max(u @ u, v @ v) - inner <= 1


lengths, angles = st.floats(0, 1), st.floats(0, 2 * math.pi)


@given(
    a=lengths,
    b=lengths,
    angle=angles,
    noise=st.floats(0.4, 3),
    rate=st.floats(0.02, 0.98),
)
@settings(max_examples=8, deadline=None)
def test_replace_pair_dominates_contributions_at_any_angle(
    a: float, b: float, angle: float, noise: float, rate: float
) -> None:
    for epsilon in EPSILONS:
        true = plane_delta(polar(a, 0), polar(b, angle), noise, rate, epsilon)
        assert true <= claimed(noise, rate, epsilon, "general") * (1 + 1e-4) + 1e-7


def test_replace_pair_is_attained_by_opposite_contributions() -> None:
    for epsilon in EPSILONS:
        true = plane_delta(polar(1, 0), polar(1, math.pi), 1.0, 0.25, epsilon)
        assert true == pytest.approx(claimed(1.0, 0.25, epsilon, "general"), rel=2e-2)


def test_label_pair_is_exact_for_orthogonal_contributions_of_full_norm() -> None:
    for noise, rate in ((1.0, 0.25), (0.5, 0.1), (2.0, 0.9)):
        for epsilon in EPSILONS:
            true = plane_delta(polar(1, 0), polar(1, math.pi / 2), noise, rate, epsilon)
            bound = claimed(noise, rate, epsilon, "label")
            assert true <= bound * (1 + 1e-4) + 1e-7
            assert true == pytest.approx(bound, rel=2e-2, abs=1e-7)


@given(
    a=lengths,
    b=lengths,
    angle=angles,
    noise=st.floats(0.4, 3),
    rate=st.floats(0.02, 0.98),
)
@settings(max_examples=10, deadline=None)
def test_label_pair_dominates_whatever_passes_the_sufficient_test(
    a: float, b: float, angle: float, noise: float, rate: float
) -> None:
    u, v = polar(a, 0), polar(b, angle)
    # Shrinking both keeps the angle and makes any pair pass in the end.
    while not passes_label_test(u, v):
        u, v = 0.9 * u, 0.9 * v
    for epsilon in EPSILONS:
        true = plane_delta(u, v, noise, rate, epsilon)
        assert true <= claimed(noise, rate, epsilon, "label") * (1 + 1e-4) + 1e-7


def test_one_weight_vector_for_two_classes_is_not_covered_by_the_label_pair() -> None:
    """±x/2-style contributions are opposite, not orthogonal: they need `replace`."""
    u, v = polar(1, 0), polar(1, math.pi)
    assert not passes_label_test(u, v)
    true = plane_delta(u, v, 1.0, 0.25, 1.0)
    assert true > 1.2 * claimed(1.0, 0.25, 1.0, "label")
    assert true <= claimed(1.0, 0.25, 1.0, "general") * (1 + 1e-4)


def test_uniform_centring_needs_the_full_norm() -> None:
    """e_y − 1/2 has norm √½, but opposite labels are opposite vectors: C = √½ is violated."""
    u = np.array([0.5, -0.5])
    true = plane_delta(u, -u, 1.0, 0.25, 1.0)
    assert true > 1.2 * claimed(math.sqrt(2), 0.25, 1.0, "label")
    assert passes_label_test(u, -u)
    assert true <= claimed(1.0, 0.25, 1.0, "label") * (1 + 1e-4)
