"""The bounds themselves: textbook values, closed forms, and coverage."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom, norm

from halfmask.accounting import accountant
from halfmask.accounting.events import GaussianEvent, PoissonGaussianEvent, RandomisedResponseEvent
from halfmask.accounting.gaussian import gaussian_epsilon
from halfmask.audit.distinguish import (
    at_least,
    at_most,
    curve_epsilon,
    direct_epsilon,
    with_less_noise,
)


@given(trials=st.integers(1, 300), share=st.floats(0, 1), alpha=st.sampled_from([0.05, 1e-3]))
@settings(max_examples=60, deadline=None)
def test_clopper_pearson_is_the_edge_of_the_binomial_test(trials, share, alpha):
    hits = round(share * trials)
    low, high = at_least(hits, trials, alpha), at_most(hits, trials, alpha)
    assert 0 <= low <= hits / trials <= high <= 1
    if hits:
        assert binom.sf(hits - 1, trials, low) == pytest.approx(alpha, rel=1e-6)
    if hits < trials:
        assert binom.cdf(hits, trials, high) == pytest.approx(alpha, rel=1e-6)


def test_direct_bound_of_a_sure_event_is_the_logarithm_of_the_runs():
    second = np.arange(2000) < 1000
    found = direct_epsilon(second, second, delta=0.0, alpha=0.05, towards_second=True)
    expected = math.log(at_least(1000, 1000, 0.025) / at_most(0, 1000, 0.025))
    assert found == pytest.approx(expected)
    assert 5 < found < math.log(1000)


def test_delta_is_taken_off_before_the_direct_bound_claims_anything():
    second = np.arange(2000) < 1000
    rare = second & (np.arange(2000) < 20)
    without = direct_epsilon(rare, second, delta=0.0, alpha=0.05, towards_second=True)
    assert without > 0.5
    assert direct_epsilon(rare, second, delta=0.05, alpha=0.05, towards_second=True) == 0


@given(mu=st.floats(0.3, 3.0), seen=st.floats(0.05, 3.0))
@settings(max_examples=30, deadline=None)
def test_curve_bound_of_a_gaussian_is_its_closed_form(mu, seen):
    advantage = 2 * norm.cdf(seen / 2) - 1
    event = GaussianEvent(replace=mu, withhold=mu / 2)
    found = curve_epsilon([event], advantage=advantage, delta=1e-5, relation="replace")
    exact = gaussian_epsilon(seen, 1e-5)
    assert exact * 0.97 - 1e-3 <= found <= exact + 1e-9


@pytest.mark.parametrize("relation", ["replace", "withhold"])
@pytest.mark.parametrize(
    "event",
    [
        PoissonGaussianEvent(noise_multiplier=1.5, rate=0.25, steps=6),
        PoissonGaussianEvent(noise_multiplier=1.2, rate=0.1, steps=10, contribution="label"),
        RandomisedResponseEvent(epsilon=1.0, categories=2),
    ],
)
def test_an_advantage_the_claim_allows_never_refutes_it(event, relation):
    claimed = accountant.epsilon([event], delta=1e-5, relation=relation)
    most = accountant.delta([event], epsilon=0.0, relation=relation)
    found = curve_epsilon([event], advantage=most, delta=1e-5, relation=relation)
    assert 0.97 * claimed <= found <= claimed * (1 + 1e-9)
    more = curve_epsilon([event], advantage=min(0.999, 1.2 * most), delta=1e-5, relation=relation)
    assert more > claimed


def test_an_advantage_beyond_what_sampling_allows_still_gives_a_number():
    event = PoissonGaussianEvent(noise_multiplier=1.0, rate=0.01, steps=2)
    claimed = accountant.epsilon([event], delta=1e-5, relation="replace")
    found = curve_epsilon([event], advantage=0.9, delta=1e-5, relation="replace")
    assert math.isfinite(found)
    assert found > 2 * claimed


def test_no_advantage_gives_no_bound():
    event = GaussianEvent(replace=1.0, withhold=1.0)
    assert curve_epsilon([event], advantage=-0.1, delta=1e-5, relation="replace") == 0


def test_less_noise_scales_every_kind_of_event():
    events = [
        GaussianEvent(replace=1.0, withhold=0.5, count=2),
        PoissonGaussianEvent(noise_multiplier=2.0, rate=0.5, steps=3),
        RandomisedResponseEvent(epsilon=1.0, categories=3),
    ]
    gaussian, sampled, answer = with_less_noise(events, 2.0)
    assert (gaussian.replace, gaussian.withhold, gaussian.count) == (2.0, 1.0, 2)
    assert (sampled.noise_multiplier, sampled.rate, sampled.steps) == (1.0, 0.5, 3)
    assert (answer.epsilon, answer.categories) == (2.0, 3)
