"""Closed forms of the error: their algebra, their inverses, and runs that must stay below them."""

from __future__ import annotations

import inspect
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from halfmask.accounting.gaussian import gaussian_mu
from halfmask.errors import InputError
from halfmask.losses import in_ball
from halfmask.methods import bounds

positive = st.floats(0.1, 10)


@given(
    radius=positive,
    steps=st.integers(1, 10_000),
    moment=positive,
    d=st.integers(1, 500),
    std=positive,
    factor=st.floats(0.1, 10),
)
def test_the_best_learning_rate_of_theorem_2_4_is_the_best(
    radius: float, steps: int, moment: float, d: int, std: float, factor: float
) -> None:
    common = {
        "radius": radius, "steps": steps, "second_moment": moment, "parameters": d, "noise_std": std
    }  # fmt: skip
    rate = bounds.best_learning_rate(**common)
    best = bounds.excess_of_theorem_2_4(learning_rate=rate, **common)
    assert best == pytest.approx(radius * math.sqrt((moment + d * std**2) / steps))
    other = bounds.excess_of_theorem_2_4(learning_rate=rate * factor, **common)
    assert other >= best * (1 - 1e-12)


def test_theorem_2_4_keeps_the_full_gradient() -> None:
    """F drops the term of the whole gradient; without sampling noise or noise it must stay."""
    moment = bounds.second_moment(lipschitz=3.0, private_lipschitz=1.0, rate=1.0, rows=100)
    assert moment == 9.0
    excess = bounds.excess_of_theorem_2_4(
        radius=1.0, steps=10, learning_rate=0.5, second_moment=moment, parameters=7, noise_std=0.0
    )
    assert excess == pytest.approx(1 / 10 + 0.25 * 9)


def test_theorem_2_1_has_no_batch_size() -> None:
    """F's noise carries a factor m that belongs to a sum; the mean's noise does not know it."""
    assert "batch" not in " ".join(inspect.signature(bounds.noise_of_theorem_2_1).parameters)
    common = {"pair_lipschitz": 2.0, "epsilon": 1.0, "delta": 1e-5, "steps": 100}
    one = bounds.noise_of_theorem_2_1(rows=1000, **common)
    assert bounds.noise_of_theorem_2_1(rows=2000, **common) == pytest.approx(one / 2)
    exact = bounds.noise_of_whole_batches(
        sensitivity=2.0, rows=1000, mu=gaussian_mu(1.0, 1e-5), steps=100
    )
    assert 0.1 < exact / one < 1  # the same order, and less than the textbook form at c = 1


def test_no_closed_form_gives_an_epsilon() -> None:
    """Budgets go in, errors and noise come out: nothing here could be printed as a guarantee."""
    functions = dict(inspect.getmembers(bounds, inspect.isfunction))
    own = {name for name, f in functions.items() if f.__module__ == bounds.__name__}
    assert len(own) > 10
    assert not any("epsilon" in name or "delta" in name for name in own)


@given(
    error=st.floats(1e-4, 0.5), d=st.integers(1, 1000), epsilon=st.floats(0.05, 8), radius=positive
)
def test_rows_and_steps_of_the_lecture_reach_their_error(
    error: float, d: int, epsilon: float, radius: float
) -> None:
    common = {
        "radius": radius,
        "lipschitz": 1.0,
        "parameters": d,
        "mu": gaussian_mu(epsilon, 1e-6),
    }
    rows = bounds.rows_of_lecture(error=error, **common)
    steps = bounds.steps_of_lecture(radius=radius, lipschitz=1.0, error=error)
    reached = bounds.excess_of_lecture(rows=rows, steps=steps, **common)
    assert reached <= error * (1 + 1e-9)
    if rows > 20:
        assert bounds.excess_of_lecture(rows=rows // 2, steps=steps, **common) > error


def test_the_lecture_at_the_exact_noise_of_adult() -> None:
    """R·C·√(1/T + 4d/(nμ)²), by hand for n = 32561, d = 120, T = 1000, epsilon 1, delta 1e-9."""
    mu = gaussian_mu(1.0, 1e-9)
    by_hand = math.sqrt(1 / 1000 + 4 * 120 / (32561 * mu) ** 2)
    found = bounds.excess_of_lecture(
        radius=1.0, lipschitz=1.0, parameters=120, rows=32561, steps=1000, mu=mu
    )
    assert found == pytest.approx(by_hand)


@given(alpha=st.floats(1e-6, 1.0), power=st.sampled_from([0.5, 1.0, 2.0]), c=positive)
def test_rows_for_error_is_the_least_number(alpha: float, power: float, c: float) -> None:
    def bound(n: int) -> float:
        return c / n**power

    found = bounds.rows_for_error(bound, alpha)
    assert bound(found) <= alpha
    assert found == 1 or bound(found - 1) > alpha


def test_an_error_no_rows_reach_is_said_so() -> None:
    with pytest.raises(InputError, match="No number of rows"):
        bounds.rows_for_error(lambda n: 0.5, 0.1)
    with pytest.raises(InputError, match="target error > 0"):
        bounds.rows_for_error(lambda n: 0.5, 0.0)
    with pytest.raises(InputError, match="1/smoothness"):
        bounds.excess_if_smooth(
            distance=1.0, steps=1, learning_rate=1.0, smoothness=1.0, variance=1.0
        )


@pytest.mark.parametrize("learning_rate", [0.05, 0.4, 0.8])
@pytest.mark.parametrize("std", [0.02, 0.3])
def test_noisy_descent_on_a_hard_quadratic_stays_below_its_bounds(
    learning_rate: float, std: float
) -> None:
    """Curvatures from 1 down to 0, the optimum on the rim of the ball: means of 40 runs."""
    d, steps, radius = 20, 60, 2.0
    curvature = np.linspace(0, 1, d)
    optimum = np.full(d, radius / math.sqrt(d))
    rng = np.random.default_rng(0)
    whole, tail = [], []
    for _ in range(40):
        w = np.zeros(d)
        path = []
        for _ in range(steps):
            noise = rng.normal(scale=std, size=d)
            w = in_ball(w - learning_rate * (curvature * (w - optimum) + noise), radius)
            path.append(w)
        for kept, part in ((whole, path), (tail, path[steps // 2 - 1 : -1])):
            gap = np.mean(part, axis=0) - optimum
            kept.append(0.5 * float(curvature @ gap**2))
    common = {
        "steps": steps, "learning_rate": learning_rate, "smoothness": 1.0, "variance": d * std**2
    }  # fmt: skip
    assert np.mean(whole) <= bounds.excess_if_smooth(distance=radius, **common)
    assert np.mean(tail) <= bounds.excess_of_smooth_tail(radius=radius, **common)


def test_sampling_variance_is_that_of_the_two_batches() -> None:
    """Poisson sums divided by the expected size, and uniform means without repetition."""
    rng = np.random.default_rng(1)
    n, rate, batch = 40, 0.25, 10
    u = np.ones(n)  # norm 1 in one dimension: the bound is attained up to the mean
    poisson = [u[rng.random(n) < rate].sum() / (rate * n) for _ in range(20_000)]
    assert np.var(poisson) == pytest.approx(
        bounds.sampling_variance(private_lipschitz=1.0, rate=rate, rows=n), rel=0.05
    )
    v = np.where(np.arange(n) % 2, 1.0, -1.0)
    means = [v[rng.choice(n, batch, replace=False)].mean() for _ in range(10_000)]
    bound = bounds.sampling_variance(
        private_lipschitz=0.0, rate=1.0, rows=n, public_lipschitz=1.0, public_batch=batch
    )
    assert np.var(means) == pytest.approx(bound, rel=0.05)


def test_one_release_stays_below_its_bound() -> None:
    """A linear term with noise over the ball: the minimiser is known, and so is its excess."""
    rng = np.random.default_rng(2)
    n, d, std, radius = 100, 30, 2.0, 1.5
    slope = rng.normal(size=d)
    best = -radius * np.linalg.norm(slope)
    excess = []
    for _ in range(200):
        noisy = slope + rng.normal(scale=std / n, size=d)
        excess.append(-radius * float(slope @ noisy) / np.linalg.norm(noisy) - best)
    bound = bounds.excess_of_one_release(radius=radius, parameters=d, noise_std=std, rows=n)
    assert 0 < np.mean(excess) <= bound
