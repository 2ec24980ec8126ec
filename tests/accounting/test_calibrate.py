"""What calibration and composition promise, for any parameters."""

from __future__ import annotations

import json
import math
import random
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from halfmask.accounting.accountant import epsilon
from halfmask.accounting.budget import Budget, round_down, round_up
from halfmask.accounting.calibrate import most_steps, noise_multiplier
from halfmask.accounting.events import (
    Contribution,
    Event,
    GaussianEvent,
    PoissonGaussianEvent,
    RandomisedResponseEvent,
    Relation,
    event_from_json,
    event_to_json,
)
from halfmask.errors import AccountingError

few = settings(max_examples=12, deadline=None)
relations = st.sampled_from(["replace", "withhold"])
noises = st.floats(0.6, 20)
rates = st.floats(1e-3, 0.9)
counts = st.integers(1, 500)
events = st.one_of(
    st.builds(GaussianEvent, replace=st.floats(0.01, 2), withhold=st.floats(0.01, 1)),
    st.builds(
        PoissonGaussianEvent,
        noise_multiplier=noises,
        rate=rates,
        steps=st.integers(1, 50),
        contribution=st.sampled_from(["general", "label"]),
    ),
    st.builds(
        RandomisedResponseEvent,
        epsilon=st.floats(0.01, 3),
        categories=st.integers(2, 9),
        count=st.integers(1, 5),
    ),
)

# The grid moves with the parameters, so two close answers may differ by its width.
GRID = 1.0005


def cost(
    noise: float,
    rate: float,
    steps: int,
    relation: Relation,
    *,
    delta: float = 1e-5,
    contribution: Contribution = "general",
) -> float:
    step = PoissonGaussianEvent(
        noise_multiplier=noise, rate=rate, steps=steps, contribution=contribution
    )
    return epsilon([step], delta=delta, relation=relation)


@given(noise=noises, rate=rates, steps=counts, relation=relations)
@settings(max_examples=6, deadline=None)
def test_epsilon_grows_with_steps_and_rate_and_falls_with_noise_and_delta(
    noise: float, rate: float, steps: int, relation: Relation
) -> None:
    here = cost(noise, rate, steps, relation)
    room = here * GRID + 1e-9
    assert cost(noise, rate, 2 * steps, relation) * GRID + 1e-9 >= here
    assert cost(noise, min(1.0, 1.3 * rate), steps, relation) * GRID + 1e-9 >= here
    assert cost(1.3 * noise, rate, steps, relation) <= room
    assert cost(noise, rate, steps, relation, delta=1e-4) <= room
    assert cost(noise, rate, steps, "withhold") <= cost(noise, rate, steps, "replace") * GRID + 1e-9
    label = cost(noise, rate, steps, "replace", contribution="label")
    assert label <= cost(noise, rate, steps, "replace") * GRID + 1e-9


@given(
    budget=st.floats(0.05, 20),
    rate=st.one_of(st.just(1.0), rates),
    steps=counts,
    relation=relations,
    contribution=st.sampled_from(["general", "label"]),
    delta=st.sampled_from([1e-5, 1e-8]),
)
@few
def test_calibrated_noise_spends_at_most_the_budget_and_nearly_all_of_it(
    budget: float,
    rate: float,
    steps: int,
    relation: Relation,
    contribution: Contribution,
    delta: float,
) -> None:
    noise = noise_multiplier(
        Budget(epsilon=budget, delta=delta, relation=relation),
        rate=rate,
        steps=steps,
        contribution=contribution,
    )
    spent = cost(noise, rate, steps, relation, delta=delta, contribution=contribution)
    assert 0.995 * budget <= spent <= budget
    assert round_up(spent) <= budget * (1 + 1e-12)


@pytest.mark.parametrize(("budget", "delta"), [(0.01, 1e-5), (100.0, 1e-5), (1.0, 1e-12)])
def test_extreme_budgets_are_calibrated(budget: float, delta: float) -> None:
    noise = noise_multiplier(Budget(epsilon=budget, delta=delta), rate=0.1, steps=50)
    assert 0.995 * budget <= cost(noise, 0.1, 50, "replace", delta=delta) <= budget


@given(already=st.lists(events, min_size=1, max_size=2), relation=relations)
@settings(max_examples=6, deadline=None)
def test_what_is_spent_already_is_composed_with(already: list[Event], relation: Relation) -> None:
    budget = epsilon(already, delta=1e-5, relation=relation) + 0.5
    noise = noise_multiplier(
        Budget(epsilon=budget, delta=1e-5, relation=relation), rate=0.2, steps=20, spent=already
    )
    step = PoissonGaussianEvent(noise_multiplier=noise, rate=0.2, steps=20)
    total = epsilon([*already, step], delta=1e-5, relation=relation)
    assert 0.995 * budget <= total <= budget


def test_a_spent_budget_has_no_noise() -> None:
    spent = [GaussianEvent(replace=1.0, withhold=0.5)]
    used = epsilon(spent, delta=1e-5, relation="replace")
    for budget in (used / 2, used):
        with pytest.raises(AccountingError, match="spent"):
            noise_multiplier(Budget(epsilon=budget, delta=1e-5), rate=0.1, steps=5, spent=spent)


@given(budget=st.floats(0.3, 8), noise=st.floats(0.7, 5), rate=st.floats(0.01, 0.5))
@settings(max_examples=6, deadline=None)
def test_the_most_steps_fit_and_noticeably_more_do_not(
    budget: float, noise: float, rate: float
) -> None:
    steps = most_steps(Budget(epsilon=budget, delta=1e-5), rate=rate, noise_multiplier=noise)
    if steps:
        assert cost(noise, rate, steps, "replace") <= budget
    assert cost(noise, rate, steps + 1 + steps // 5_000, "replace") * GRID > round_down(budget)


def test_more_steps_than_the_limit_are_an_error() -> None:
    with pytest.raises(AccountingError, match="More than 1000 steps"):
        most_steps(Budget(epsilon=1.0, delta=1e-5), rate=1e-6, noise_multiplier=50.0, limit=1000)


# Answers whose loss never exceeds epsilon, and steps that hardly cost anything: on a grid that is
# wide enough for the first, the second seem to cost three times what they do.
@example(
    parts=[
        RandomisedResponseEvent(epsilon=1.5, categories=3),
        PoissonGaussianEvent(noise_multiplier=8.0, rate=0.001, steps=39),
    ],
    relation="replace",
    order=random.Random(0),
)
@example(
    parts=[
        RandomisedResponseEvent(epsilon=2.9, categories=4, count=3),
        RandomisedResponseEvent(epsilon=0.01, categories=6, count=4),
    ],
    relation="withhold",
    order=random.Random(0),
)
@given(
    parts=st.lists(events, min_size=2, max_size=3),
    relation=relations,
    order=st.randoms(use_true_random=False),
)
@few
def test_a_composition_costs_more_than_each_part_and_less_than_their_sum(
    parts: list[Event], relation: Relation, order: random.Random
) -> None:
    total = epsilon(parts, delta=1e-5, relation=relation)
    alone = [epsilon([part], delta=1e-5, relation=relation) for part in parts]
    share = [epsilon([part], delta=1e-5 / len(parts), relation=relation) for part in parts]
    assert total * GRID + 1e-9 >= max(alone)
    assert total <= sum(share) * GRID + 1e-9
    shuffled = order.sample(parts, len(parts))
    assert epsilon(shuffled, delta=1e-5, relation=relation) == total


@given(event=events)
@settings(max_examples=50, deadline=None)
def test_events_survive_json(event: Event) -> None:
    assert event_from_json(json.loads(json.dumps(event_to_json(event)))) == event


@pytest.mark.parametrize(
    "data",
    [
        {"kind": "laplace", "scale": 1.0},
        {"kind": "gaussian", "replace": 1.0},
        {"kind": "gaussian", "replace": "1", "withhold": 1.0, "count": 1},
        {"kind": "gaussian", "replace": math.nan, "withhold": 1.0, "count": 1},
        {"kind": "gaussian", "replace": 1.0, "withhold": 1.0, "count": 0.5},
        {"kind": "poisson-gaussian", "noise_multiplier": 1.0, "rate": 0.1, "steps": 0.25},
        {"kind": "poisson-gaussian", "noise_multiplier": 1.0, "rate": 1.1, "steps": 1},
        {"kind": "poisson-gaussian", "noise_multiplier": 0.0, "rate": 0.1, "steps": 1},
        {"kind": "randomized-response", "epsilon": 1.0, "categories": 1, "count": 1},
        {},
    ],
)
def test_an_event_that_would_understate_its_cost_is_refused(data: dict[str, Any]) -> None:
    with pytest.raises(AccountingError):
        event_from_json(data)


@given(value=st.floats(1e-300, 1e300))
@settings(max_examples=200, deadline=None)
def test_rounding_goes_the_way_it_says_and_stays_close(value: float) -> None:
    up, down = round_up(value), round_down(value)
    assert down <= value * (1 + 1e-12)
    assert up >= value * (1 - 1e-12)
    assert up <= value * 1.0002
    assert down >= value * 0.9998
    assert round_up(up) == up
    assert round_down(down) == down


@pytest.mark.parametrize("short", [0.1, 0.3, 1.0, 8.0679, 12.087, 100.0, 0.0])
def test_short_numbers_are_left_alone(short: float) -> None:
    assert round_up(short) == short
    assert round_down(short) == short
