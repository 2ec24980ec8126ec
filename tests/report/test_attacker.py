"""The bounds on attackers hold against the best attacker there is, and are tight."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from halfmask.accounting.accountant import epsilon
from halfmask.accounting.events import GaussianEvent, PoissonGaussianEvent
from halfmask.errors import InputError
from halfmask.report.facts import attacker_gains, belief_after, most_evidence, most_right_guesses

MU = st.floats(0.05, 4.0)
GRID = np.linspace(-12, 16, 60_001)


def gaussian(mu: float) -> list[GaussianEvent]:
    return [GaussianEvent(replace=mu, withhold=mu / 2)]


@settings(max_examples=25, deadline=None)
@given(mu=MU, prior=st.floats(0.01, 0.99))
def test_right_guesses_are_those_of_the_best_test(mu: float, prior: float) -> None:
    both = np.maximum(prior * norm.pdf(GRID, loc=mu), (1 - prior) * norm.pdf(GRID))
    best = float(both.sum() * (GRID[1] - GRID[0]))
    assert most_right_guesses(gaussian(mu), prior) == pytest.approx(best, abs=1e-6)


@settings(max_examples=50, deadline=None)
@given(mu=MU, delta=st.sampled_from([1e-8, 1e-6, 1e-4]))
def test_evidence_exceeds_its_bound_with_probability_delta_at_most(mu: float, delta: float) -> None:
    rise = most_evidence(gaussian(mu), delta=delta)
    assert norm.sf((rise - mu**2 / 2) / mu) <= delta


def test_plain_epsilon_would_not_bound_the_evidence() -> None:
    mu, delta = 1.0, 1e-6
    plain = epsilon(gaussian(mu), delta=delta, relation="replace")
    assert norm.sf((plain - mu**2 / 2) / mu) > 2 * delta
    assert plain < most_evidence(gaussian(mu), delta=delta) < 1.2 * plain


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 1000),
    prior=st.floats(0.02, 0.9),
    mu=st.floats(0.2, 2.0),
)
def test_one_value_against_a_mixture_of_others_is_covered(
    seed: int, prior: float, mu: float
) -> None:
    # Any two centres lie within mu of each other, as any two private values do.
    rng = np.random.default_rng(seed)
    centres = rng.uniform(0, mu, 4)
    weights = rng.dirichlet(np.ones(3)) * (1 - prior)
    mine = prior * norm.pdf(GRID, loc=centres[0])
    others = sum(w * norm.pdf(GRID, loc=c) for w, c in zip(weights, centres[1:], strict=True))
    best = float(np.maximum(mine, others).sum() * (GRID[1] - GRID[0]))
    assert best <= most_right_guesses(gaussian(mu), prior) + 1e-6


@given(prior=st.floats(0.001, 0.999), rise=st.floats(0, 5))
def test_beliefs_rise_by_the_log_odds(prior: float, rise: float) -> None:
    after = belief_after(prior, rise)
    odds = math.log(after / (1 - after)) - math.log(prior / (1 - prior))
    assert odds == pytest.approx(rise, abs=1e-6)


def test_sampled_steps_are_bounded_too() -> None:
    events = [PoissonGaussianEvent(noise_multiplier=2.0, rate=0.1, steps=20)]
    (gain,) = attacker_gains(events, delta=1e-5, priors=[0.5])
    assert 0.5 < gain.guess_after < gain.belief < 1


def test_nothing_released_gains_nothing() -> None:
    for gain in attacker_gains([], delta=1e-6):
        assert gain.belief == pytest.approx(gain.prior)
        assert gain.guess_after == pytest.approx(gain.guess_before)


@pytest.mark.parametrize("prior", [0.0, 1.0, -0.1, 2.0])
def test_a_prior_that_is_certain_already_is_refused(prior: float) -> None:
    with pytest.raises(InputError, match="prior"):
        most_right_guesses(gaussian(1.0), prior)
