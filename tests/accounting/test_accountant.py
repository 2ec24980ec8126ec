"""Golden numbers, exact references and edge cases of the accountant."""

from __future__ import annotations

import math
import time

import numpy as np
import pytest

from halfmask.accounting.accountant import (
    Composition,
    Direction,
    delta,
    epsilon,
    gaussian_losses,
    grid_interval,
    loss_moments,
)
from halfmask.accounting.events import (
    Event,
    GaussianEvent,
    PoissonGaussianEvent,
    RandomisedResponseEvent,
)
from halfmask.accounting.gaussian import gaussian_delta, gaussian_epsilon, gaussian_mu
from halfmask.errors import AccountingError

# q, noise multiplier, steps: withhold, replace, label at delta = 1e-5.
GOLDEN = [
    (1 / 16, 1.0, 16, 2.2423, 2.6803, 2.4148),
    (1 / 16, 1.0, 160, 5.4179, 8.0679, 6.7062),
    (1 / 16, 1.0, 320, 7.6275, 12.0869, 9.8791),
    (1 / 16, 1.0, 1600, 18.9115, 34.2134, 27.0152),
    (0.01, 1.0, 1000, 1.8282, 2.8434, 2.3958),
    (1 / 16, 2.0, 1600, 6.2461, 13.1539, 9.1559),
    (1.0, 20.0, 100, 1.9931, 4.3772, 2.9432),
]


def step(noise: float, rate: float, steps: int = 1, label: bool = False) -> PoissonGaussianEvent:
    return PoissonGaussianEvent(
        noise_multiplier=noise,
        rate=rate,
        steps=steps,
        contribution="label" if label else "general",
    )


@pytest.mark.parametrize(("rate", "noise", "steps", "withhold", "replace", "label"), GOLDEN)
def test_golden_numbers_are_met_within_two_thousandths_and_never_undercut(
    rate: float, noise: float, steps: int, withhold: float, replace: float, label: float
) -> None:
    general, orthogonal = step(noise, rate, steps), step(noise, rate, steps, label=True)
    found = (
        epsilon([general], delta=1e-5, relation="withhold"),
        epsilon([general], delta=1e-5, relation="replace"),
        epsilon([orthogonal], delta=1e-5, relation="replace"),
    )
    for ours, printed in zip(found, (withhold, replace, label), strict=True):
        assert ours >= printed - 0.5e-4
        assert ours <= printed * 1.002


def unsampled(mu: float, steps: int) -> Composition:
    """`steps` unsampled releases as one would compose them numerically: in all, one Gaussian."""
    noise = 2 * math.sqrt(steps) / mu
    interval = grid_interval([(*loss_moments(noise, 1.0, "replace"), steps)])
    losses = gaussian_losses(
        noise=noise, rate=1.0, count=steps, direction="replace", interval=interval
    )
    return Composition([losses])


@pytest.mark.parametrize("steps", [1, 10, 1_000, 10_000, 1_000_000])
@pytest.mark.parametrize("mu", [0.01, 1.0, 5.0, 20.0])
def test_composed_epsilon_is_never_below_the_closed_form(mu: float, steps: int) -> None:
    composed = unsampled(mu, steps)
    for target in (1e-2, 1e-5, 1e-8, 1e-10, 1e-12):
        exact = gaussian_epsilon(mu, target)
        assert exact <= composed.epsilon(target) <= exact * 1.001 + 1e-9


@pytest.mark.parametrize("steps", [1, 10_000])
def test_composed_delta_is_never_below_the_closed_form(steps: int) -> None:
    composed = unsampled(1.0, steps)
    for at in (0.1, 1.0, 4.0, 7.0):
        exact = gaussian_delta(1.0, at)
        assert exact <= composed.delta(at) <= exact * 1.01


def test_plain_fft_composition_falls_below_the_truth_and_ours_does_not() -> None:
    """Why there is a tilted FFT: at delta 1e-12 the usual self-composition undercuts."""
    from dp_accounting.pld import privacy_loss_distribution

    steps, target = 10_000, 1e-12
    noise = math.sqrt(steps)
    exact = gaussian_epsilon(1.0, target)
    usual = privacy_loss_distribution.from_gaussian_mechanism(
        standard_deviation=noise, value_discretization_interval=1e-4
    ).self_compose(steps)
    assert usual.get_epsilon_for_delta(target) < exact
    ours = unsampled(1.0, steps).epsilon(target)
    assert exact <= ours <= exact * 1.001


@pytest.mark.parametrize(
    ("noise", "rate", "interval"), [(1.0, 1 / 16, 1e-3), (0.5, 0.3, 1e-2), (30.0, 0.2, 1e-4)]
)
@pytest.mark.parametrize("direction", ["remove", "add", "replace"])
def test_our_connected_dots_are_those_of_dp_accounting(
    noise: float, rate: float, interval: float, direction: Direction
) -> None:
    from dp_accounting import NeighboringRelation
    from dp_accounting.pld import privacy_loss_distribution

    relation = (
        NeighboringRelation.REPLACE_ONE
        if direction == "replace"
        else NeighboringRelation.ADD_OR_REMOVE_ONE
    )
    reference = privacy_loss_distribution.from_gaussian_mechanism(
        standard_deviation=noise,
        sampling_prob=rate,
        value_discretization_interval=interval,
        log_mass_truncation_bound=-60,
        neighboring_relation=relation,
    )
    theirs = reference._pmf_add if direction == "add" else reference._pmf_remove
    ours = gaussian_losses(noise=noise, rate=rate, count=1, direction=direction, interval=interval)
    assert ours.probabilities.sum() + ours.infinity_mass == pytest.approx(1, abs=1e-12)
    for at in (0.0, interval, 5 * interval, 0.1, 0.5, 1.0):
        kept = ours.indices * interval > at
        gains = -np.expm1(at - ours.indices[kept] * interval)
        found = float(ours.probabilities[kept] @ gains) + ours.infinity_mass
        assert found == pytest.approx(theirs.get_delta_for_epsilon(at), rel=1e-6, abs=1e-12)


def test_withhold_is_within_one_percent_of_the_prv_accountant() -> None:
    from opacus.accountants import PRVAccountant

    peer = PRVAccountant()
    peer.history = [(1.0, 1 / 16, 160)]
    theirs = peer.get_epsilon(1e-5, eps_error=0.02)
    ours = epsilon([step(1.0, 1 / 16, 160)], delta=1e-5, relation="withhold")
    assert ours == pytest.approx(theirs, rel=0.01)


@pytest.mark.parametrize("relation", ["replace", "withhold"])
@pytest.mark.parametrize("target", [1e-5, 1e-12])
@pytest.mark.parametrize(
    ("noise", "rate", "steps"),
    [
        (1.0, 1.0, 1),
        (1.0, 0.5, 1),
        (0.05, 0.01, 1),
        (0.3, 1e-4, 1_000_000),
        (50.0, 0.01, 1_000_000),
        (1e6, 0.5, 100),
        (1.0, 1e-9, 1),
        (2.0, 1 - 1e-12, 1_000),
        (1e-5, 0.1, 10),
    ],
)
def test_edges_are_answered_soon_with_a_sound_number(
    noise: float, rate: float, steps: int, target: float, relation: str
) -> None:
    start = time.monotonic()
    found = epsilon([step(noise, rate, steps)], delta=target, relation=relation)  # type: ignore[arg-type]
    assert math.isfinite(found)
    assert 0 <= found <= gaussian_epsilon(2 * math.sqrt(steps) / noise, target) * (1 + 1e-12)
    assert time.monotonic() - start < 30


def test_sampling_at_rate_one_is_the_plain_gaussian() -> None:
    sampled = epsilon([step(10.0, 1.0, 25)], delta=1e-6, relation="replace")
    plain = GaussianEvent(replace=0.2, withhold=0.1, count=25)
    assert sampled == pytest.approx(gaussian_epsilon(1.0, 1e-6), rel=1e-12)
    assert sampled == pytest.approx(epsilon([plain], delta=1e-6, relation="replace"), rel=1e-12)


def test_a_tiny_rate_that_delta_covers_costs_nothing() -> None:
    assert epsilon([step(1.0, 1e-7, 10)], delta=1e-5, relation="replace") == 0


def test_nothing_costs_nothing() -> None:
    nothing: list[Event] = [
        GaussianEvent(replace=0, withhold=0),
        step(1.0, 0.0, 5),
        step(1.0, 0.5, 0),
        RandomisedResponseEvent(epsilon=0.0, categories=3),
    ]
    assert epsilon([], delta=1e-5, relation="replace") == 0
    assert epsilon(nothing, delta=1e-5, relation="withhold") == 0


def test_delta_and_epsilon_are_each_other_s_inverse() -> None:
    events = [step(1.0, 1 / 16, 160), GaussianEvent(replace=0.5, withhold=0.25)]
    found = epsilon(events, delta=1e-6, relation="replace")
    assert delta(events, epsilon=found, relation="replace") == pytest.approx(1e-6, rel=1e-3)


def test_randomised_response_is_pure_and_exact_once() -> None:
    event = RandomisedResponseEvent(epsilon=1.5, categories=4)
    total = math.exp(1.5) + 3
    for at in (0.0, 0.5, 1.0):
        exact = (math.exp(1.5) - math.exp(at)) / total
        found = delta([event], epsilon=at, relation="replace")
        assert exact <= found <= exact * 1.001
    assert delta([event], epsilon=1.5, relation="replace") == pytest.approx(0, abs=1e-8)
    assert epsilon([event], delta=1e-9, relation="replace") <= 1.5
    assert epsilon([event] * 20, delta=1e-9, relation="withhold") <= 30


def test_many_randomised_responses_meet_their_exact_convolution() -> None:
    single = np.array([1, 2, math.exp(1.5)]) / (math.exp(1.5) + 3)
    exact = np.array([1.0])
    for _ in range(30):
        exact = np.convolve(exact, single)
    losses = 1.5 * np.arange(-30, 31)
    event = RandomisedResponseEvent(epsilon=1.5, categories=4, count=30)
    for at in (10.0, 20.0, 30.0):
        truth = float(exact @ np.maximum(-np.expm1(at - losses), 0))
        found = delta([event], epsilon=at, relation="replace")
        assert truth <= found <= truth * 1.01


@pytest.mark.parametrize("bad", [0.0, 1.0, -1.0, math.nan])
def test_a_delta_outside_of_zero_and_one_is_refused(bad: float) -> None:
    with pytest.raises(AccountingError, match="delta"):
        epsilon([step(1.0, 0.5)], delta=bad, relation="replace")


def test_more_steps_than_can_be_composed_are_refused_with_a_reason() -> None:
    with pytest.raises(AccountingError, match="fewer steps"):
        epsilon([step(1e5, 0.5, 10**10)], delta=1e-5, relation="replace")


@pytest.mark.parametrize("mu", [1e-12, 1e-6, 0.1, 1.0, 30.0, 1e4])
def test_the_closed_form_is_never_below_an_exact_evaluation(mu: float) -> None:
    """Fifty digits by the complementary error function of mpmath."""
    import mpmath

    with mpmath.workdps(50):

        def exact(at: float) -> float:
            m, e = mpmath.mpf(mu), mpmath.mpf(at)
            return mpmath.ncdf(m / 2 - e / m) - mpmath.exp(e) * mpmath.ncdf(-m / 2 - e / m)

        for multiple in (0.0, 0.5, 2.0, 6.0):
            at = mu * mu / 2 + multiple * mu if multiple else 0.0
            assert gaussian_delta(mu, at) >= exact(at)
            assert gaussian_delta(mu, at) == pytest.approx(float(exact(at)), rel=1e-2)


@pytest.mark.parametrize("target", [1e-2, 1e-5, 1e-12])
@pytest.mark.parametrize("budget", [0.01, 1.0, 100.0])
def test_the_largest_ratio_spends_the_budget_and_no_more(budget: float, target: float) -> None:
    mu = gaussian_mu(budget, target)
    assert gaussian_delta(mu, budget) <= target
    assert gaussian_epsilon(mu, target) == pytest.approx(budget, rel=1e-9)
