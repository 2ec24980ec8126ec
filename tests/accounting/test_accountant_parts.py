"""Each part of the accountant against a calculation of its own, done another way."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.integrate import quad
from scipy.stats import binom, norm

from halfmask.accounting import accountant, calibrate
from halfmask.accounting.accountant import Composition, Direction, LossDistribution
from halfmask.accounting.budget import MARGIN, Budget, printed, printed_room, round_up
from halfmask.accounting.events import (
    Event,
    GaussianEvent,
    PoissonGaussianEvent,
    RandomisedResponseEvent,
    check_relation,
    counted,
    covers,
    event_from_json,
    event_to_json,
    unsampled,
)
from halfmask.accounting.gaussian import _made_safe, gaussian_delta, gaussian_epsilon, gaussian_mu
from halfmask.errors import AccountingError, InputError

Floats = NDArray[np.float64]
SIDES: tuple[Direction, ...] = ("remove", "add", "replace")


def densities(x: Floats, noise: float, rate: float, side: Direction) -> tuple[Floats, Floats]:
    """(P, Q) of one sampled release, as docs/proofs/poisson_gaussian.md has them."""

    def mixture(shift: float) -> Floats:
        return (1 - rate) * norm.pdf(x, 0, noise) + rate * norm.pdf(x, shift, noise)

    plain = norm.pdf(x, 0, noise)
    pairs = {"remove": (mixture(1), plain), "add": (plain, mixture(1))}
    return pairs.get(side, (mixture(1), mixture(-1)))


def grid(noise: float) -> tuple[Floats, float]:
    x = np.linspace(-2 - 14 * noise, 2 + 14 * noise, 40_001)
    return x, float(x[1] - x[0])


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize(
    ("noise", "rate"), [(1.0, 1 / 16), (0.4, 0.3), (0.11, 0.02), (5.0, 0.9), (2.0, 1.0)]
)
def test_the_curve_of_a_sampled_release_is_its_integral(
    noise: float, rate: float, side: Direction
) -> None:
    x, width = grid(noise)
    first, second = densities(x, noise, rate, side)
    at = np.array([0.0, 0.01, 0.3, 0.99, 1.0, 1.7, 4.0])
    found = accountant._sampled_delta(at, noise, rate, side)
    for value, one in zip(found, at, strict=True):
        exact = float(np.maximum(first - math.exp(one) * second, 0).sum() * width)
        assert value == pytest.approx(exact, rel=2e-5, abs=1e-9)


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize(("noise", "rate"), [(1.0, 1 / 16), (0.4, 0.3), (3.0, 1.0)])
def test_spread_and_reach_are_those_of_the_loss(noise: float, rate: float, side: Direction) -> None:
    x, width = grid(noise)
    first, second = densities(x, noise, rate, side)
    kept = (first > 0) & (second > 0)
    loss, mass = np.log(first[kept] / second[kept]), first[kept] * width
    spread, reach = accountant.loss_moments(noise, rate, side)
    mean = float(mass @ loss)
    assert spread == pytest.approx(math.sqrt(float(mass @ (loss - mean) ** 2)), rel=1e-4)

    def loss_at(at: float) -> float:
        p, q = densities(np.array([at]), noise, rate, side)
        return float(np.log(p / q)[0])

    # Eleven standard deviations beyond the mean, on the side of the larger loss.
    ends = (-11 * noise, 1 + 11 * noise) if side != "replace" else (-1 - 11 * noise, 1 + 11 * noise)
    assert reach == pytest.approx(max(abs(loss_at(end)) for end in ends), rel=1e-9)


@pytest.mark.parametrize("side", SIDES)
def test_connected_dots_lie_on_the_curve_and_above_it_between(side: Direction) -> None:
    noise, rate, interval = 0.8, 0.2, 0.05
    made = accountant.gaussian_losses(
        noise=noise, rate=rate, count=3, direction=side, interval=interval
    )
    assert made.count == 3
    assert made.probabilities.sum() + made.infinity_mass == pytest.approx(1, abs=1e-8)
    assert 0 <= made.infinity_mass < 1e-26
    losses = made.indices * interval
    assert losses[0] <= -accountant._reach(noise, rate, accountant._REVERSE[side])
    assert losses[-1] >= accountant._reach(noise, rate, side)
    x, width = grid(noise)
    first, second = densities(x, noise, rate, side)
    dots = interval * np.arange(-20, 41)
    exact = [float(np.maximum(first - math.exp(at) * second, 0).sum() * width) for at in dots]
    for at in (*dots, *(dots[:-1] + interval / 3)):
        mine = float(made.probabilities @ np.maximum(-np.expm1(at - losses), 0))
        # Straight lines in e^ε, which lie above a convex curve.
        lined = np.interp(math.exp(at), np.exp(dots), exact)
        assert mine == pytest.approx(float(lined), abs=1e-6)


def test_randomised_response_has_the_losses_of_its_table() -> None:
    made = accountant.randomised_response_losses(epsilon=1.5, categories=4, count=7, interval=0.15)
    total = math.exp(1.5) + 3
    expected = {10: math.exp(1.5) / total, 0: 2 / total, -10: 1 / total}
    assert made.count == 7
    assert made.infinity_mass == pytest.approx(0, abs=1e-12)
    for index, chance in zip(made.indices, made.probabilities, strict=True):
        assert chance == pytest.approx(expected.get(int(index), 0.0), rel=1e-7, abs=1e-7)


def test_the_grid_is_as_fine_as_the_composed_loss_needs() -> None:
    one = accountant.grid_interval([(0.5, 3.0, 1)])
    assert one == pytest.approx(0.01 * 0.5)
    many = accountant.grid_interval([(0.5, 3.0, 900)])
    assert many == pytest.approx(0.02 * 0.5)
    both = accountant.grid_interval([(0.3, 3.0, 1), (0.4, 3.0, 1)])
    assert both == pytest.approx(0.01 * 0.5)
    # No more bins than fit, and never nothing.
    assert accountant.grid_interval([(1e-9, 3.0, 1)]) == pytest.approx(6.0 / 2**19)
    assert accountant.grid_interval([(0.0, 0.0, 1)]) == 1e-12


def two_losses(chance: float, count: int, interval: float = 1.0) -> LossDistribution:
    return LossDistribution(
        interval=interval, lower=0, probabilities=np.array([1 - chance, chance]),
        infinity_mass=0.0, count=count,
    )  # fmt: skip


def test_moments_of_a_composition_are_those_of_a_binomial() -> None:
    made = Composition([two_losses(0.3, 20, 0.5), two_losses(0.3, 5, 0.5)])
    theta = 0.7
    factor = 0.7 + 0.3 * math.exp(theta * 0.5)
    assert made._log_moment(theta) == pytest.approx(25 * math.log(factor), rel=1e-12)
    tilted = 0.3 * math.exp(theta * 0.5) / factor
    mean, variance = made._tilted_moments(theta)
    assert mean == pytest.approx(25 * tilted * 0.5, rel=1e-12)
    assert variance == pytest.approx(25 * tilted * (1 - tilted) * 0.25, rel=1e-12)


@pytest.mark.parametrize("theta", [0.1, 1.0, 7.0])
def test_chernoffs_bound_has_the_highest_point_of_its_curve(theta: float) -> None:
    y = np.linspace(1e-6, 40, 400_001)
    highest = float(np.max(np.log(-np.expm1(-y)) - theta * y))
    assert accountant._log_peak(theta) == pytest.approx(highest, abs=1e-6)


@pytest.mark.parametrize("theta", [0.0, 0.4, 2.0])
def test_the_window_leaves_out_no_more_than_it_says(theta: float) -> None:
    made = Composition([two_losses(0.1, 5_000)])
    low, high = made._window(theta)
    tilted = 0.1 * math.exp(theta) / (0.9 + 0.1 * math.exp(theta))
    spread = math.sqrt(5_000 * tilted * (1 - tilted))
    assert binom.logsf(high, 5_000, tilted) <= -46
    assert binom.logcdf(low - 1, 5_000, tilted) <= -46
    assert high - low <= 25 * spread


def test_delta_of_a_composition_is_that_of_a_binomial() -> None:
    made = Composition([two_losses(0.2, 30, 0.3)])
    losses = 0.3 * np.arange(31)
    mass = binom.pmf(np.arange(31), 30, 0.2)
    for at in (1.0, 2.05, 3.0, 4.5, 7.0):
        exact = float(mass @ np.maximum(-np.expm1(at - losses), 0))
        assert exact <= made.delta(at) <= exact * (1 + 2e-6) + 1e-18
        found = made.epsilon(exact)
        assert at - 1e-9 <= found <= at + 1e-5


def test_what_is_cut_off_counts_as_lost_in_every_step() -> None:
    part = LossDistribution(
        interval=1.0, lower=0, probabilities=np.array([0.7, 0.299]), infinity_mass=1e-3, count=4
    )
    made = Composition([part, part])
    assert made.delta(100.0) == pytest.approx(8e-3, rel=1e-9)
    with pytest.raises(AccountingError, match="larger delta"):
        made.epsilon(8e-3)
    assert made.epsilon(9e-3) <= 8.0


def test_grids_that_differ_are_not_composed() -> None:
    with pytest.raises(AccountingError, match="different grids"):
        Composition([two_losses(0.2, 3, 0.3), two_losses(0.2, 3, 0.31)])


@pytest.mark.parametrize("steps", [10**9, 10**9 + 1])
def test_a_billion_steps_is_the_most(steps: int) -> None:
    if steps == 10**9:
        Composition([two_losses(0.2, steps)])
    else:
        with pytest.raises(AccountingError, match="at most"):
            Composition([two_losses(0.2, steps)])


def test_the_crossing_has_the_delta_that_was_asked_for() -> None:
    rng = np.random.default_rng(5)
    losses = 0.1 * np.arange(-20, 41)
    chances = rng.dirichlet(np.ones(61))
    for at in (0.0, 0.02, 0.35, 1.0, 2.71):
        target = accountant._hockey_stick(losses, chances, at)
        found = accountant._crossing(losses, chances, target, 0.0)
        assert found == pytest.approx(at, abs=1e-9)
        exact = float(chances @ np.maximum(-np.expm1(at - losses), 0))
        assert target == pytest.approx(exact, rel=1e-12)


def sampled(noise: float, rate: float, steps: int, kind: str = "general") -> PoissonGaussianEvent:
    return PoissonGaussianEvent(
        noise_multiplier=noise, rate=rate, steps=steps, contribution=kind  # type: ignore[arg-type]
    )  # fmt: skip


def test_equal_events_are_added_up_and_gaussians_by_their_squares() -> None:
    answers = RandomisedResponseEvent(epsilon=1.0, categories=3, count=2)
    events = [
        GaussianEvent(replace=0.3, withhold=0.1, count=2),
        sampled(2.0, 0.5, 3),
        sampled(4.0, 1.0, 5),
        sampled(2.0, 0.5, 4),
        sampled(2.0, 0.5, 1, "label"),
        sampled(4.0, 1.0, 2, "label"),
        answers,
        answers,
        RandomisedResponseEvent(epsilon=1.0, categories=4),
    ]
    first, *rest = accountant._merge(events)
    assert isinstance(first, GaussianEvent)
    assert first.count == 1
    replaced = 2 * 0.3**2 + 5 * (2 / 4) ** 2 + 2 * 2 / 16
    assert math.sqrt(replaced) <= first.replace <= math.sqrt(replaced) * (1 + 1e-14)
    withheld = 2 * 0.1**2 + 7 / 16
    assert math.sqrt(withheld) <= first.withhold <= math.sqrt(withheld) * (1 + 1e-14)
    assert rest == [
        sampled(2.0, 0.5, 7),
        sampled(2.0, 0.5, 1, "label"),
        RandomisedResponseEvent(epsilon=1.0, categories=3, count=4),
        RandomisedResponseEvent(epsilon=1.0, categories=4),
    ]
    assert accountant._merge(events[::-1]) == (first, *rest)


def test_a_release_that_one_relation_alone_sees_is_kept() -> None:
    for names in ({"replace": 1.0, "withhold": 0.0}, {"replace": 0.0, "withhold": 1.0}):
        assert len(accountant._merge([GaussianEvent(**names)])) == 1
    with pytest.raises(AccountingError, match="hardly any noise"):
        accountant._merge([GaussianEvent(replace=1e100, withhold=1.0, count=2)])
    with pytest.raises(AccountingError, match="hardly any noise"):
        accountant._merge([GaussianEvent(replace=1.0, withhold=1e100, count=2)])


@pytest.mark.parametrize(("relation", "mu"), [("replace", 2 / 3), ("withhold", 1 / 3)])
def test_without_sampling_squares_and_pure_epsilons_add_up(relation: str, mu: float) -> None:
    events = (
        GaussianEvent(replace=0.5, withhold=0.5, count=3),
        sampled(3.0, 0.1, 4),
        RandomisedResponseEvent(epsilon=0.7, categories=2, count=5),
    )
    square, pure = accountant._without_sampling(events, relation)  # type: ignore[arg-type]
    assert square == pytest.approx(math.sqrt(0.75 + 4 * mu**2))
    assert pure == pytest.approx(3.5)
    label = (sampled(3.0, 0.1, 4, "label"),)
    wanted = 2 * (math.sqrt(2) / 3 if relation == "replace" else 1 / 3)
    assert accountant._without_sampling(label, relation) == pytest.approx((wanted, 0.0))  # type: ignore[arg-type]


@pytest.mark.parametrize(("relation", "mu"), [("replace", 2 / 3), ("withhold", 1 / 3)])
def test_total_variations_add_up_and_sampling_multiplies_by_its_rate(
    relation: str, mu: float
) -> None:
    def apart(ratio: float) -> float:
        return 2 * float(norm.cdf(ratio / 2)) - 1

    event = GaussianEvent(replace=0.5, withhold=0.25, count=3)
    answers = RandomisedResponseEvent(epsilon=0.7, categories=5, count=2)
    whole = apart(math.sqrt(3) * getattr(event, relation)) + 4 * 0.1 * apart(mu)
    whole += 2 * (math.exp(0.7) - 1) / (math.exp(0.7) + 4)
    events = (event, sampled(3.0, 0.1, 4), answers)
    found = accountant._total_variation(events, relation)  # type: ignore[arg-type]
    assert found == pytest.approx(whole, rel=1e-9)


def test_noise_below_a_thousandth_is_bounded_as_if_nothing_were_sampled() -> None:
    assert accountant._hardly_any_noise((sampled(9.9e-4, 0.1, 1),))
    assert not accountant._hardly_any_noise((sampled(1e-3, 0.1, 1),))
    event = sampled(9.9e-4, 0.1, 2)
    for relation, factor in (("replace", 2.0), ("withhold", 1.0)):
        mu = math.sqrt(2) * factor / 9.9e-4
        found = accountant.epsilon([event], delta=1e-5, relation=relation)  # type: ignore[arg-type]
        assert found == pytest.approx(gaussian_epsilon(mu, 1e-5), rel=1e-9)


def test_delta_of_gaussians_is_the_closed_form() -> None:
    events = [GaussianEvent(replace=0.6, withhold=0.3), GaussianEvent(replace=0.8, withhold=0.4)]
    for relation, mu in (("replace", 1.0), ("withhold", 0.5)):
        for at in (0.0, 0.5, 2.0):
            found = accountant.delta(events, epsilon=at, relation=relation)  # type: ignore[arg-type]
            assert found == pytest.approx(gaussian_delta(mu, at), rel=1e-9)
    for bad in (-0.1, math.inf, math.nan):
        with pytest.raises(AccountingError, match="epsilon"):
            accountant.delta(events, epsilon=bad, relation="replace")


def test_each_relation_composes_its_own_pairs() -> None:
    general, label = sampled(2.0, 0.1, 3), sampled(2.0, 0.1, 3, "label")
    plain = GaussianEvent(replace=0.5, withhold=0.25)
    merged = (plain, general, label)
    assert accountant._gaussians(merged, "replace", "replace") == [
        (2.0, 1.0, 1, "remove"),
        (2.0, 0.1, 3, "replace"),
        (2.0, 0.1, 3, "remove"),
        (2.0, 0.1, 3, "add"),
    ]
    assert accountant._gaussians(merged, "withhold", "add") == [
        (4.0, 1.0, 1, "remove"),
        (2.0, 0.1, 3, "add"),
        (2.0, 0.1, 3, "add"),
    ]
    unseen = (GaussianEvent(replace=0.5, withhold=0.0),)
    assert accountant._gaussians(unseen, "withhold", "remove") == []


@pytest.mark.parametrize("bad", [-1.0, math.inf, math.nan])
def test_a_ratio_that_is_none_has_no_epsilon(bad: float) -> None:
    with pytest.raises(AccountingError, match="ratio"):
        gaussian_epsilon(bad, 1e-5)


def test_no_information_costs_nothing_and_delta_may_cover_all() -> None:
    assert gaussian_delta(0.0, 0.0) == 0
    assert gaussian_epsilon(0.0, 1e-5) == 0
    assert gaussian_epsilon(0.1, 0.5) == 0
    assert gaussian_delta(1e9, 0.0) == 1


@pytest.mark.parametrize("target", [0.5, 1e-3, 1e-9])
@pytest.mark.parametrize("mu", [0.03, 1.0, 40.0])
def test_the_least_epsilon_is_the_least(mu: float, target: float) -> None:
    found = gaussian_epsilon(mu, target)
    assert gaussian_delta(mu, found) <= target
    if found:
        assert gaussian_delta(mu, found * (1 - 1e-9)) > target
    largest = gaussian_mu(2.0, target)
    assert gaussian_delta(largest, 2.0) <= target < gaussian_delta(largest * (1 + 1e-9), 2.0)


def test_numbers_are_printed_rounded_against_their_owner() -> None:
    assert printed(1.234511) == "1.2346"
    assert printed_room(1.234589) == "1.2345"
    assert printed(0.00123451) == "0.0012346"
    assert printed(123451.0) == "1.2346e+05"
    assert printed(0.0) == "0"
    assert round_up(math.inf) == math.inf


def test_a_budget_keeps_a_hair_and_scales_by_mu() -> None:
    budget = Budget(epsilon=2.0, delta=1e-6, relation="withhold")
    assert MARGIN == 1e-9
    assert budget.mu == pytest.approx(gaussian_mu(2.0, 1e-6) * (1 - 1e-9), rel=1e-13)
    half = budget.scaled(0.5)
    assert (half.delta, half.relation) == (1e-6, "withhold")
    assert half.mu == pytest.approx(0.5 * budget.mu, rel=1e-8)
    small, large = budget.split(0.2)
    assert small.mu**2 == pytest.approx(0.2 * budget.mu**2, rel=1e-7)
    assert large.mu**2 == pytest.approx(0.8 * budget.mu**2, rel=1e-7)


def test_events_take_the_ends_of_their_ranges_and_nothing_beyond() -> None:
    GaussianEvent(replace=0.0, withhold=0.0, count=0)
    sampled(1e-100, 0.0, 0)
    sampled(1.0, 1.0, 1)
    RandomisedResponseEvent(epsilon=0.0, categories=2, count=0)
    wrong = [
        lambda: GaussianEvent(replace=-1e-9, withhold=0.0),
        lambda: GaussianEvent(replace=0.0, withhold=math.inf),
        lambda: GaussianEvent(replace=1.0, withhold=1.0, count=-1),
        lambda: GaussianEvent(replace=1.0, withhold=1.0, count=True),
        lambda: sampled(0.0, 0.5, 1),
        lambda: sampled(math.inf, 0.5, 1),
        lambda: sampled(1.0, -1e-9, 1),
        lambda: sampled(1.0, 1 + 1e-9, 1),
        lambda: sampled(1.0, 0.5, -1),
        lambda: sampled(1.0, 0.5, 1, "other"),
        lambda: RandomisedResponseEvent(epsilon=-1e-9, categories=2),
        lambda: RandomisedResponseEvent(epsilon=math.inf, categories=2),
        lambda: RandomisedResponseEvent(epsilon=1.0, categories=1),
        lambda: RandomisedResponseEvent(epsilon=1.0, categories=2, count=-1),
    ]
    for make in wrong:
        with pytest.raises(AccountingError, match="Expected"):
            make()


def test_what_was_paid_covers_its_like_exactly() -> None:
    paid = [GaussianEvent(replace=0.6, withhold=0.3), sampled(2.0, 0.1, 5)]
    halves = [GaussianEvent(replace=0.3, withhold=0.15, count=4)]
    assert covers(paid, halves)
    assert not covers(paid, [GaussianEvent(replace=0.3, withhold=0.15, count=5)])
    assert not covers(paid, [GaussianEvent(replace=0.3, withhold=0.31)])
    assert covers(paid, [sampled(2.0, 0.1, 2), sampled(2.0, 0.1, 3)])
    assert not covers(paid, [sampled(2.0, 0.1, 2), sampled(2.0, 0.1, 4)])
    assert not covers(paid, [sampled(2.0, 0.2, 1)])
    answers = RandomisedResponseEvent(epsilon=1.0, categories=2, count=2)
    assert not covers(paid, [answers])
    assert covers([answers], [RandomisedResponseEvent(epsilon=1.0, categories=2)] * 2)
    assert not covers([answers], [RandomisedResponseEvent(epsilon=1.0, categories=2)] * 3)
    assert unsampled([paid[0], sampled(2.0, 1.0, 1)])
    assert not unsampled([paid[0], sampled(2.0, 0.9, 1)])
    assert not unsampled([answers])
    assert counted(["a", "b", "b", "a"]) == "a; b (2 times); a"


@pytest.mark.parametrize("guess", [1e-3, 0.9, 2.0, 2.2, 5e4])
@pytest.mark.parametrize("power", [0.5, 1.0, 3.0])
def test_a_search_ends_within_its_tolerance_and_on_the_safe_side(
    guess: float, power: float
) -> None:
    asked: list[float] = []

    def cost(noise: float) -> float:
        asked.append(noise)
        return noise**-power

    found = calibrate._falling_root(cost, 0.5, guess, least=0.0)
    assert found is not None
    assert 0.5 * (1 - 5e-4) <= cost(found) <= 0.5
    assert len(asked) < 40


def test_a_search_for_what_is_not_there_ends() -> None:
    assert calibrate._falling_root(lambda _: 2.0, 0.5, 1.0, least=0.0) is None
    # Free at any noise: as little as is looked for.
    found = calibrate._falling_root(lambda _: 0.0, 0.5, 1.0, least=0.0)
    assert found is not None
    assert 1e-8 < found < 1e-3


@pytest.mark.parametrize(
    ("relation", "kind", "factor"),
    [("replace", "general", 2.0), ("replace", "label", math.sqrt(2)), ("withhold", "label", 1.0)],
)
def test_noise_of_whole_batches_is_the_closed_form(relation: str, kind: str, factor: float) -> None:
    budget = Budget(epsilon=1.5, delta=1e-6, relation=relation)  # type: ignore[arg-type]
    found = calibrate.noise_multiplier(budget, rate=1.0, steps=9, contribution=kind)  # type: ignore[arg-type]
    assert found == pytest.approx(factor * 3 / gaussian_mu(1.5, 1e-6), rel=1e-9)


@pytest.mark.parametrize(("rate", "steps"), [(0.0, 1), (1.1, 1), (-0.1, 1), (0.5, 0)])
def test_steps_that_are_none_have_no_noise(rate: float, steps: int) -> None:
    with pytest.raises(AccountingError, match="Expected"):
        calibrate.noise_multiplier(Budget(epsilon=1.0, delta=1e-6), rate=rate, steps=steps)


@pytest.mark.parametrize("noise", [2.0, 8.3, 51.0])
def test_the_most_whole_batches_are_the_most(noise: float) -> None:
    budget = Budget(epsilon=1.0, delta=1e-6)
    found = calibrate.most_steps(budget, rate=1.0, noise_multiplier=noise)
    exact = (noise * gaussian_mu(1.0, 1e-6) / 2) ** 2
    assert found == math.floor(exact)


def test_guesses_between_two_counts_stay_between_them() -> None:
    for low, high, below, above in ((10, 12, 1.0, 1.2), (10, 1000, 1.0, 9.0), (1, 2**40, 0.0, 3.0)):
        for target in (1.0, 1.1, 2.0, 8.99):
            assert low < calibrate._between(low, high, below, above, target) < high
    # A cost that is the root of the steps is met at once.
    assert calibrate._between(100, 10_000, 10.0, 100.0, 30.0) == pytest.approx(900, abs=1)


@pytest.mark.parametrize("relation", ["replace", "withhold"])
def test_the_first_guess_has_the_spread_of_the_gaussian_that_is_wanted(relation: str) -> None:
    noise = calibrate._guess(0.8, 0.1, 25, relation, "general")  # type: ignore[arg-type]
    side: Direction = "replace" if relation == "replace" else "remove"
    assert accountant.loss_moments(noise, 0.1, side)[0] == pytest.approx(0.16, rel=0.02)
    both = calibrate._guess(0.8, 0.1, 25, "replace", "label")
    sides = [accountant.loss_moments(both, 0.1, s)[0] for s in ("remove", "add")]  # type: ignore[arg-type]
    assert math.hypot(*sides) == pytest.approx(0.16, rel=0.02)


@pytest.mark.parametrize("at", [33.0, 37.0, 41.0])
def test_the_curve_of_a_row_that_stands_out_is_its_integral(at: float) -> None:
    """Where e^{1/2σ²} is so large that the quadratic is solved in logarithms."""
    noise, rate = 0.11, 0.02
    x, width = grid(noise)
    first, second = densities(x, noise, rate, "replace")
    exact = float(np.maximum(first - math.exp(at) * second, 0).sum() * width)
    found = accountant._sampled_delta(np.array([at]), noise, rate, "replace")
    assert float(found[0]) == pytest.approx(exact, rel=1e-5)


@pytest.mark.parametrize("noise", [1e-2, 1.0, 1e6])
def test_curves_are_raised_more_where_noise_leaves_them_fewer_digits(
    noise: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    curves = []

    def caught(upper: object, lower: object, **_: object) -> None:
        curves.extend([upper, lower])

    monkeypatch.setattr(accountant, "connect_the_dots", caught)
    accountant.gaussian_losses(noise=noise, rate=0.25, count=1, direction="remove", interval=0.1)
    exact = 0.25 * math.erf(1 / (2 * math.sqrt(2) * noise))
    for curve in curves:
        above = float(curve(np.array([0.0]))[0]) / exact - 1
        assert above == pytest.approx(1e-9 + 1e-13 * noise, abs=1e-12 + 1e-14 * noise)


def test_dots_end_with_the_first_one_beyond_the_reach() -> None:
    interval = 0.05
    made = accountant.gaussian_losses(
        noise=0.8, rate=0.2, count=1, direction="remove", interval=interval
    )
    up, down = (accountant._reach(0.8, 0.2, side) for side in ("remove", "add"))
    losses = made.indices * interval
    assert up <= losses[-1] < up + interval
    assert -down - interval < losses[0] <= -down


def test_a_crossing_beyond_all_losses_is_where_the_search_began() -> None:
    losses, chances = 0.5 * np.arange(5), np.full(5, 0.2)
    assert accountant._crossing(losses, chances, 1.0, 0.6) == 0.5


@pytest.mark.parametrize("log_delta", [-5.0, -30.0, -300.0])
def test_chernoffs_epsilon_is_the_least_over_all_tilts(log_delta: float) -> None:
    made = Composition([two_losses(0.1, 400)])
    tilts = np.exp(np.linspace(-9, 25, 4_001))
    least = min((made._log_bound(float(t), 0.0) - log_delta) / float(t) for t in tilts)
    found, tilt = made._chernoff(log_delta)
    assert found == pytest.approx(least, rel=1e-5)
    assert (made._log_bound(tilt, 0.0) - log_delta) / tilt <= found


def test_what_lies_above_the_window_is_what_is_cut_off_there() -> None:
    """At tilt 0 the mass outside is e^-46 at most, and a part e stands for rounding."""
    made = Composition([two_losses(0.3, 40)])
    losses, _, above = made._tail(0.0)
    assert above == pytest.approx(math.exp(-45), rel=1e-9, abs=0)
    largest = np.abs(losses).max()
    raised = losses - np.round(losses)
    assert np.allclose(raised, 4 * 2.0**-53 * largest, rtol=0, atol=2.0**-52 * largest)
    assert raised.max() >= 3 * 2.0**-53 * largest


def test_answers_beside_other_releases_cost_no_more_than_each_at_its_part_of_delta() -> None:
    answers = RandomisedResponseEvent(epsilon=3.0, categories=2)
    small = GaussianEvent(replace=1e-3, withhold=1e-3)
    apart = 3.0 + gaussian_epsilon(1e-3, 0.5e-6)
    found = accountant.epsilon([answers, small], delta=1e-6, relation="replace")
    # Together they cost at least what answers cost alone at the whole delta.
    alone = accountant.epsilon([answers], delta=1e-6, relation="replace")
    assert alone < found <= apart * (1 + 1e-9)
    assert found == pytest.approx(apart, rel=1e-4)


@pytest.mark.parametrize("share", [0.0, 1.0, -0.1, 1.1, math.nan])
def test_a_budget_is_split_into_two_that_are_there(share: float) -> None:
    with pytest.raises(AccountingError, match="strictly between"):
        Budget(epsilon=1.0, delta=1e-6).split(share)


@pytest.mark.parametrize("bad", [0.0, 1.0, 1.5, -1e-9, math.nan])
def test_a_delta_that_is_none_is_refused(bad: float) -> None:
    with pytest.raises(AccountingError, match="delta"):
        gaussian_epsilon(1.0, bad)


@pytest.mark.parametrize(("mu", "at"), [(1.0, 0.0), (0.3, 0.01), (3.0, 2.0), (40.0, 790.0)])
def test_the_closed_form_is_raised_by_its_rounding(mu: float, at: float) -> None:
    """docs/proofs/gaussian.md: 2^-50 times the size of each term and of its arguments."""
    near, far = mu / 2 - at / mu, -mu / 2 - at / mu
    left, right = float(norm.cdf(near)), math.exp(at + float(norm.logcdf(far)))
    raised = left * (1 + abs(near) * (mu + at / mu)) + right * (1 + far**2 + at)
    found = gaussian_delta(mu, at) - (float(norm.cdf(near)) - right)
    assert found == pytest.approx(2.0**-50 * raised, rel=0.02, abs=2 * 2.0**-53)


def test_what_the_window_leaves_out_is_added_to_delta(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Composition([two_losses(0.3, 40)])
    losses, probabilities, _ = made._tail(0.0)
    monkeypatch.setattr(Composition, "_tail", lambda self, theta: (losses, probabilities, 1e-3))
    inside = accountant._hockey_stick(losses, probabilities, 15.0)
    assert made.delta(15.0) == pytest.approx(inside * (1 + 1e-6) + 1e-3, rel=1e-9)
    found = made.epsilon(0.1)
    left = accountant._hockey_stick(losses, probabilities, found) * (1 + 1e-6)
    assert left == pytest.approx(0.1 - 1e-3, rel=1e-6)


def test_noise_of_one_step_and_of_whole_batches_stays_within_the_budget() -> None:
    budget = Budget(epsilon=1.0, delta=1e-6)
    for rate in (0.3, 1.0):
        noise = calibrate.noise_multiplier(budget, rate=rate, steps=1)
        spent = accountant.epsilon([sampled(noise, rate, 1)], delta=1e-6, relation="replace")
        assert 0.999 <= spent <= 1.0
    # More noise is taken where rounding of the closed form would cost more than there is.
    asked: list[float] = []

    def dear(events: object, **_: object) -> float:
        asked.append(events[-1].noise_multiplier)  # type: ignore[index]
        return 2.0 if len(asked) < 3 else 0.0

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(calibrate, "account", dear)
        found = calibrate._least_noise.__wrapped__(budget, 1.0, 4, "general", ())
    assert found == asked[-1]
    assert asked[0] < asked[1] < asked[2] < asked[0] * (1 + 1e-11)


def test_a_guess_near_an_end_stays_a_step_away_from_it() -> None:
    assert calibrate._between(1, 6, 1.0, 2.0, 1.999) == 5
    assert calibrate._between(100, 105, 1.0, 2.0, 1.001) == 101
    assert calibrate._between(4, 16, 0.0, 2.0, 1.0) == 8


def test_searches_end_within_a_few_looks_where_the_guess_is_good() -> None:
    asked: list[float] = []

    def cost(noise: float) -> float:
        asked.append(noise)
        return 1 / noise**2

    found = calibrate._falling_root(cost, 0.5, 1.0, least=0.0)
    assert found == pytest.approx(math.sqrt(2), rel=2.6e-4)
    assert len(asked) <= 12
    # Where powers tell nothing (all is spent already), it halves.
    flat = calibrate._falling_root(lambda n: 0.5 if n > 3 else 1.0, 0.6, 2.0, least=0.9)
    assert flat == pytest.approx(3.0, rel=1e-6)


def test_where_the_window_leaves_out_more_than_delta_chernoff_alone_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = Composition([two_losses(0.3, 40)])
    losses, probabilities, _ = made._tail(0.0)
    safe, _ = made._chernoff(math.log(0.1))
    monkeypatch.setattr(Composition, "_tail", lambda self, theta: (losses, probabilities, 0.2))
    assert made.epsilon(0.1) == safe


@pytest.mark.parametrize("bad", [0.0, -1.0, math.inf, math.nan])
def test_an_epsilon_that_is_none_has_no_noise(bad: float) -> None:
    with pytest.raises(AccountingError, match="epsilon"):
        gaussian_mu(bad, 1e-6)
    with pytest.raises(AccountingError, match="epsilon"):
        Budget(epsilon=bad, delta=1e-6)


def test_counts_end_where_floats_stop_holding_them() -> None:
    GaussianEvent(replace=0.0, withhold=0.0, count=2**53)
    with pytest.raises(AccountingError, match="at most"):
        GaussianEvent(replace=0.0, withhold=0.0, count=2**53 + 1)


def test_sampled_steps_beside_plain_releases_are_not_told_as_if_unsampled() -> None:
    plain, steps = GaussianEvent(replace=0.2, withhold=0.1), sampled(1.0, 0.01, 50)
    found = accountant.epsilon([plain, steps], delta=1e-6, relation="replace")
    assert found < 0.2 * gaussian_epsilon(math.hypot(0.2, 2 * math.sqrt(50)), 1e-6)
    at = accountant.delta([plain, steps], epsilon=found, relation="replace")
    assert at == pytest.approx(1e-6, rel=0.01)


# --- The window, the tail and the answers of a composition.

UNIT = 2.0**-53


def certain(place: int, interval: float = 1.0, count: int = 1) -> LossDistribution:
    """A loss of `place` intervals in every step."""
    return LossDistribution(
        interval=interval, lower=place, probabilities=np.array([1.0]), infinity_mass=0.0,
        count=count,
    )  # fmt: skip


@pytest.mark.parametrize("interval", [1.0, 0.25])
@pytest.mark.parametrize("place", [-40, 3, 700])
def test_the_window_of_a_certain_loss_ends_four_bins_beside_it(place: int, interval: float) -> None:
    """Chernoff at 13 per interval: e^-46 is reached 46/13 = 3.54 intervals away."""
    low, high = Composition([certain(place, interval)])._window(0.0)
    assert (low, high) == (place - 4, place + 4)


@pytest.mark.parametrize("theta", [0.0, -3.0])
@pytest.mark.parametrize("chance", [0.998, 0.002])
def test_the_window_reaches_further_on_the_side_of_the_longer_tail(
    chance: float, theta: float
) -> None:
    made = Composition([two_losses(chance, 50_000, 0.5)])
    low, high = made._window(theta)
    tilted = chance * math.exp(theta / 2) / (1 - chance + chance * math.exp(theta / 2))
    assert binom.logsf(high, 50_000, tilted) <= -46
    assert binom.logcdf(low - 1, 50_000, tilted) <= -46
    mean = 50_000 * tilted
    longer = (high - mean) > (mean - low)
    assert longer == (tilted < 0.5)
    assert high - low <= 25 * (math.sqrt(mean * (1 - tilted)) + 1)


def windowed(
    monkeypatch: pytest.MonkeyPatch, low: int, high: int, place: int = 0
) -> tuple[Floats, Floats, float]:
    """The tail at tilt 1 where a circle of equal masses stands for the composition."""
    monkeypatch.setattr(Composition, "_window", lambda self, theta: (low, high))
    monkeypatch.setattr(accountant, "_convolved", lambda parts, size: np.ones(size))
    return Composition([certain(place)])._tail(1.0)


def test_the_circle_holds_the_window_and_no_more_than_its_size_needs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # 27 = 3^3 is a size of its own, the next ones are 30 and 32.
    losses, probabilities, _ = windowed(monkeypatch, 0, 26)
    assert len(losses) == len(probabilities) == 27
    monkeypatch.setattr(accountant, "_MAX_WINDOW", 27)
    assert len(windowed(monkeypatch, 0, 26)[0]) == 27
    monkeypatch.setattr(accountant, "_MAX_WINDOW", 26)
    with pytest.raises(accountant.GridTooFineError, match="too widely"):
        windowed(monkeypatch, 0, 26)


def test_a_window_of_more_than_four_million_bins_is_too_fine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(accountant.GridTooFineError, match="too widely"):
        windowed(monkeypatch, 0, 1 << 22)


@pytest.mark.parametrize(("low", "high"), [(-900, 599), (-599, 900)])
def test_the_tilt_is_undone_and_each_bin_raised_by_the_rounding_of_that(
    low: int, high: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """5.5 of docs/proofs/composition.md for a loss of zero at tilt 1: |tau j| is |j| twice."""
    losses, probabilities, above = windowed(monkeypatch, low, high)
    grid = np.arange(low, high + 1)
    assert len(grid) == len(losses) == 1500
    some = np.abs(grid) <= 600
    raised = probabilities[some] / np.exp(-grid[some]) - 1
    assert np.allclose(raised, 1.01 * UNIT * (2 * np.abs(grid[some]) + 8), rtol=0, atol=4 * UNIT)
    # Beyond e^700 nothing overflows: so much is infinite already.
    assert np.isfinite(probabilities).all()
    # Losses are raised by 4 units of the largest, which is exact where the loss is zero.
    assert losses[-low] == 4 * UNIT * 900
    assert above == pytest.approx(math.exp(-high - 45), rel=1e-12, abs=0)


def test_a_window_far_below_the_losses_leaves_all_of_them_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert windowed(monkeypatch, -100, -61)[2] == 1.0


def test_bins_without_mass_do_not_count() -> None:
    full = Composition([two_losses(0.3, 5)])
    gap = LossDistribution(
        interval=1.0, lower=-1, probabilities=np.array([0.0, 0.7, 0.3, 0.0]), infinity_mass=0.0,
        count=5,
    )  # fmt: skip
    with np.errstate(divide="raise"):
        made = Composition([gap])
    assert made._rounding(0.7, 1.0) == full._rounding(0.7, 1.0)
    assert made.epsilon(0.01) == full.epsilon(0.01)


def test_the_bound_of_a_tilt_is_moment_times_peak() -> None:
    """docs/proofs/composition.md, 6: M(θ)·e^{−θε}·θ^θ/(1+θ)^{1+θ}."""
    made = Composition([two_losses(0.3, 20, 0.5)])
    moment = (0.7 + 0.3 * math.exp(0.35)) ** 20
    bound = moment * math.exp(-0.7 * 4.0) * 0.7**0.7 / 1.7**1.7
    assert made._log_bound(0.7, 4.0) == pytest.approx(math.log(bound), rel=1e-12)
    assert made._rounding(0.7) == made._rounding(0.7, 0.0) < made._rounding(0.7, 1.0)


@pytest.mark.parametrize("log_delta", [-30.0, -20.0])
def test_chernoffs_epsilon_is_raised_by_the_rounding_of_its_logarithms(
    log_delta: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Composition([two_losses(0.1, 40)])
    monkeypatch.setattr(Composition, "_rounding", lambda self, theta, epsilon=0.0: 0.0)
    found, tilt = made._chernoff(log_delta)
    least = (made._log_bound(tilt, 0.0) - log_delta) / tilt
    assert 0 < (found - least) * tilt <= 8 * UNIT * abs(log_delta)
    monkeypatch.setattr(Composition, "_rounding", lambda self, theta, epsilon=0.0: 0.5)
    raised, same = made._chernoff(log_delta)
    assert same == tilt
    assert raised - found == pytest.approx(0.5 / tilt, rel=1e-9)


def with_tail(
    monkeypatch: pytest.MonkeyPatch, losses: list[float], chances: list[float], above: float = 0.0
) -> Composition:
    """A composition whose bound by Chernoff is far above what its tail is made to say."""
    tail = (np.array(losses), np.array(chances), above)
    monkeypatch.setattr(Composition, "_tail", lambda self, theta: tail)
    return Composition([two_losses(0.3, 40)])


@pytest.mark.parametrize("at", [1.0, 1.5])
def test_delta_counts_bins_from_the_first_of_the_window_on(
    at: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = with_tail(monkeypatch, [1.0, 2.0, 3.0], [0.1, 0.02, 0.03])
    exact = 0.02 * (1 - math.exp(at - 2)) + 0.03 * (1 - math.exp(at - 3))
    assert made.delta(at) == pytest.approx(exact * (1 + 1e-6), rel=1e-12)


def test_below_the_window_delta_is_chernoffs_raised_by_its_rounding(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = with_tail(monkeypatch, [31.0, 32.0], [0.1, 0.1])
    for rounding in (0.0, 0.25):
        monkeypatch.setattr(Composition, "_rounding", lambda self, t, e=0.0, r=rounding: r)
        tilts = np.exp(np.linspace(-9, 5, 2_001))
        least = min(made._log_bound(float(t), 30.0) for t in tilts)
        assert made.delta(30.0) == pytest.approx(math.exp(least + rounding), rel=1e-4)


def test_delta_is_never_more_than_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Composition, "_tail", lambda self, t: (np.array([9.0]), np.ones(1), 0.0))
    monkeypatch.setattr(Composition, "_rounding", lambda self, theta, epsilon=0.0: 5.0)
    part = LossDistribution(
        interval=1.0, lower=0, probabilities=np.array([0.7, 0.2]), infinity_mass=0.1, count=4
    )
    assert Composition([part]).delta(0.5) == 1.0


def test_epsilon_of_losses_below_one_is_found_below_one() -> None:
    made = Composition([two_losses(0.2, 30, 0.02)])
    losses, mass = 0.02 * np.arange(31), binom.pmf(np.arange(31), 30, 0.2)
    for at in (0.05, 0.11, 0.2):
        exact = float(mass @ np.maximum(-np.expm1(at - losses), 0))
        assert at - 1e-9 <= made.epsilon(exact) <= at + 1e-5


def test_a_delta_that_covers_all_costs_no_epsilon() -> None:
    assert Composition([two_losses(1e-3, 1)]).epsilon(0.99) == 0.0


def test_epsilon_begins_with_the_first_bin_of_the_window(monkeypatch: pytest.MonkeyPatch) -> None:
    # All that lies above the first bin is less than delta.
    made = with_tail(monkeypatch, [0.5, 2.0, 3.0], [0.9, 1e-4, 1e-4])
    assert made.epsilon(0.1) == 0.5
    # A window that begins below zero: an answer between zero and one.
    made = with_tail(monkeypatch, [-1.0, 0.2, 0.9], [0.5, 0.3, 0.2])
    target = 0.2 * (1 - math.exp(0.4 - 0.9))
    assert made.epsilon(target * (1 + 1e-6)) == pytest.approx(0.4, rel=1e-6)
    assert with_tail(monkeypatch, [-1.0, 0.2], [0.95, 0.05]).epsilon(0.2) == 0.0


def test_epsilon_is_chernoffs_where_the_window_lies_above_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = with_tail(monkeypatch, [100.0, 101.0], [0.5, 0.05])
    assert made.epsilon(0.1) == made._chernoff(math.log(0.1))[0] < 100


def test_the_parts_of_rounding_are_those_of_the_proof() -> None:
    """docs/proofs/composition.md, 5.1 to 5.3."""
    assert accountant._transform_error(1024) == 20 * UNIT * 10
    assert accountant._transform_error(1) == accountant._transform_error(2) == 20 * UNIT
    with pytest.raises(AccountingError, match="not known"):
        accountant._transform_error(7)
    log_p, weights, tilted = np.array([-1.0, -2.0]), np.array([0.5, -3.0]), np.array([0.75, 0.25])
    found = accountant._weight_error(log_p, weights, 0.25, tilted)
    assert found == UNIT * (0.75 * (5 + 1 + 0.25) + 0.25 * (10 + 6 + 3.25) + 4)
    # Nine bins on a circle of four lie in three layers.
    nine = accountant._Tilted.of(np.arange(9), np.full(9, -math.log(9)), 1, 0.0, 4)
    even = UNIT * (8 * math.log(9) + 4) + 3 * UNIT
    assert nine.weight_error == pytest.approx(1.01 * even, rel=1e-9, abs=0)
    wrapped = np.array([3, 2, 2, 2]) / 9
    norm_of = math.sqrt(4 * float(wrapped @ wrapped))
    assert nine.transform_error == pytest.approx(1.01 * 40 * UNIT * norm_of, rel=1e-9, abs=0)


def tilted(size: complex, count: int, transform: float = 0.0, weight: float = 0.0) -> object:
    return accountant._Tilted(
        spectrum=np.full(3, size), count=count, total=0.0, transform_error=transform,
        weight_error=weight,
    )  # fmt: skip


def test_the_size_of_a_spectrum_is_bounded_from_above() -> None:
    assert tilted(1.0, 1).largest.tolist() == [1 + 8 * UNIT] * 3  # type: ignore[attr-defined]
    moved = tilted(0.6 + 0.8j, 1, 0.25, 0.125).largest  # type: ignore[attr-defined]
    assert np.allclose(moved, 1.375, rtol=1e-12)


def test_frequencies_below_e_to_the_minus_eighty_are_dropped_and_paid_for() -> None:
    dropped = accountant._convolved([tilted(0.5, 200)], 4)  # type: ignore[list-item]
    assert dropped == pytest.approx(np.full(4, 1.01 * math.exp(-80)), rel=1e-9, abs=0)
    kept = accountant._convolved([tilted(math.exp(-0.7), 100)], 4)  # type: ignore[list-item]
    assert kept.max() > 0.5 * math.exp(-70)


# --- Curves of single releases.


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("noise", [0.02, 0.05])
def test_the_spread_of_a_row_that_stands_out_counts_both_tables(
    noise: float, side: Direction
) -> None:
    """A row that takes part shows almost surely: its loss is one of two numbers, and normal."""
    rate = 0.3
    spread, _ = accountant.loss_moments(noise, rate, side)
    # Where the row is in, log q + (2x − 1)/(2σ²); where it is out, log(1 − q).
    inside, outside, wide = 1 / (2 * noise**2) + math.log(rate), math.log(1 - rate), 1 / noise
    if side == "replace":
        inside, outside = inside - math.log(1 - rate), 0.0
    both = rate * (1 - rate) * (inside - outside) ** 2 + rate * wide**2
    assert spread == pytest.approx(0.0 if side == "add" else math.sqrt(both), rel=1e-3, abs=1e-3)


def test_the_reach_of_a_row_that_is_left_out_is_eleven_deviations() -> None:
    """At rate 1 the loss is linear: (1 − 2x)/(2σ²) at x = −11σ."""
    assert accountant._reach(3.0, 1.0, "add") == pytest.approx(67 / 18, rel=1e-12)
    assert accountant._reach(3.0, 1.0, "remove") == pytest.approx(67 / 18, rel=1e-12)
    assert accountant._reach(3.0, 1.0, "replace") == pytest.approx(2 * 68 / 18, rel=1e-12)


def test_a_grid_coarser_than_the_reach_has_one_bin_a_side() -> None:
    made = accountant.gaussian_losses(
        noise=50.0, rate=0.01, count=1, direction="remove", interval=1.0
    )
    assert (made.lower, len(made.probabilities)) == (-1, 3)


def test_dots_are_connected_from_wherever_the_grid_begins() -> None:
    """mu = 1, and most of the losses below zero are cut off: they lie in the first bin."""

    def curve(at: Floats) -> Floats:
        return norm.cdf(0.5 - at) - np.exp(at) * norm.cdf(-0.5 - at)

    made = accountant.connect_the_dots(
        curve, curve, interval=0.05, highest=8.0, lowest=0.5, count=1
    )
    losses = made.indices * 0.05
    assert losses[0] == pytest.approx(-0.5)
    assert made.probabilities.sum() + made.infinity_mass == pytest.approx(1, rel=1e-9)
    for at in losses[:12]:
        found = float(made.probabilities @ np.maximum(-np.expm1(at - losses), 0))
        exact = norm.cdf(0.5 - at) - math.exp(at) * norm.cdf(-0.5 - at)
        assert found + made.infinity_mass == pytest.approx(float(exact), rel=1e-9)


def test_the_curve_of_answers_is_raised_by_a_billionth(monkeypatch: pytest.MonkeyPatch) -> None:
    curves = []
    monkeypatch.setattr(
        accountant, "connect_the_dots", lambda up, low, **_: curves.append((up, low))
    )
    accountant.randomised_response_losses(epsilon=1.0, categories=3, count=1, interval=0.1)
    exact = (math.e - 1) / (math.e + 2)
    for curve in curves[0]:
        assert float(curve(np.zeros(1))[0]) / exact - 1 == pytest.approx(1e-9, rel=1e-5)


def test_the_grid_is_coarse_enough_for_the_farthest_loss_of_any_part() -> None:
    found = accountant.grid_interval([(1e-9, 3.0, 1), (1e-9, 5.0, 1), (1e-9, 1.0, 1)])
    assert found == pytest.approx(10.0 / 2**19)


# --- From events to answers.


@pytest.fixture
def nothing_kept() -> Iterator[None]:
    """Answers of parts that are put in for a test are none of the accountant's."""
    accountant._epsilon.cache_clear()
    yield
    accountant._epsilon.cache_clear()


def test_sums_of_squares_are_raised_by_four_units() -> None:
    """The sum is exact; a product, a root and a product are off by half a unit each."""
    merged = accountant._merge([GaussianEvent(replace=0.6, withhold=1.0)])[0]
    assert isinstance(merged, GaussianEvent)
    assert merged.withhold == 1 + 2.0**-50


def test_what_releases_nothing_is_no_event() -> None:
    nothing = [
        GaussianEvent(replace=0.0, withhold=0.0),
        GaussianEvent(replace=1.0, withhold=1.0, count=0),
        sampled(1.0, 0.0, 5),
        sampled(1.0, 0.5, 0),
        sampled(1.0, 1.0, 0),
        RandomisedResponseEvent(epsilon=0.0, categories=2, count=5),
        RandomisedResponseEvent(epsilon=1.0, categories=2, count=0),
    ]
    for event in nothing:
        assert accountant._merge([event]) == ()


def test_pure_answers_leave_the_rest_of_epsilon_to_the_others() -> None:
    answers = RandomisedResponseEvent(epsilon=0.5, categories=2)
    plain = GaussianEvent(replace=1.0, withhold=1.0)
    with pytest.MonkeyPatch.context() as patched:
        # What no composition could undercut is the bound without one.
        patched.setattr(accountant, "_composed", lambda *_: 1.0)
        assert accountant.delta([answers], epsilon=0.3, relation="replace") == 1.0
        found = accountant.delta([answers, plain], epsilon=2.0, relation="replace")
        assert found == pytest.approx(gaussian_delta(1.0, 1.5), rel=1e-9)
        patched.setattr(accountant, "_composed", lambda *_: 3.0)
        assert accountant.delta([answers], epsilon=0.3, relation="replace") == 1.0


@pytest.mark.usefixtures("nothing_kept")
def test_delta_of_hardly_any_noise_and_of_gaussians_needs_no_composition(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def none(*_: object) -> float:
        raise AssertionError

    monkeypatch.setattr(accountant, "_composed", none)
    noisy = sampled(9e-4, 0.5, 1)
    for events in (
        [noisy],
        [GaussianEvent(replace=1.0, withhold=0.5)],
        [sampled(2.0, 0.5, 3), noisy],
    ):
        assert 0 < accountant.delta(events, epsilon=1.0, relation="withhold") <= 1
        assert accountant.epsilon(events, delta=1e-7, relation="withhold") > 0
    with pytest.raises(AssertionError):
        accountant.epsilon([sampled(2.0, 0.5, 3)], delta=1e-7, relation="withhold")
    with pytest.raises(AssertionError):
        accountant.delta([sampled(2.0, 0.5, 3)], epsilon=0.1, relation="withhold")


@pytest.mark.usefixtures("nothing_kept")
def test_what_total_variation_covers_costs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """One step at rate 1e-7: delta at epsilon 0 is at most the rate."""
    asked = []
    monkeypatch.setattr(accountant, "_composed", lambda *args: asked.append(args) or 0.25)
    assert accountant.epsilon([sampled(1.0, 1e-7, 1)], delta=1e-6, relation="replace") == 0.0
    assert not asked
    assert accountant.epsilon([sampled(1.0, 1e-7, 1)], delta=1e-8, relation="replace") == 0.25


@pytest.mark.usefixtures("nothing_kept")
@pytest.mark.parametrize("others", [1, 2])
def test_answers_beside_others_cost_at_most_their_sum_at_equal_parts_of_delta(
    others: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = [RandomisedResponseEvent(epsilon=0.5, categories=2)]
    events += [RandomisedResponseEvent(epsilon=0.25 + n, categories=2) for n in range(others)]
    whole = sum(event.epsilon for event in events)
    monkeypatch.setattr(accountant, "_composed", lambda *_: 100.0)
    found = accountant.epsilon(events, delta=1e-9, relation="replace")
    assert found == pytest.approx(whole, rel=1e-9)
    # The sum where it is less than the composition; the composition where that is less.
    plain = GaussianEvent(replace=1.0, withhold=1.0)
    apart = whole + gaussian_epsilon(1.0, 1e-9 / (len(events) + 1))
    both = accountant.epsilon([*events, plain], delta=1e-9, relation="replace")
    assert both <= min(apart, whole + gaussian_epsilon(1.0, 1e-9)) * (1 + 1e-9)
    monkeypatch.setattr(accountant, "_composed", lambda *_: 0.125)
    accountant._epsilon.cache_clear()
    assert accountant.epsilon([*events, plain], delta=1e-9, relation="replace") == 0.125


@pytest.mark.parametrize("relation", ["replace", "withhold"])
def test_the_worse_direction_counts_on_the_coarser_grid(
    relation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, float]] = []

    def made(merged: object, relation: str, side: str, interval: float) -> str:
        asked.append((side, interval))
        return side

    intervals = {"replace": 0.5, "remove": 0.25, "add": 0.125}
    monkeypatch.setattr(accountant, "_spreads", lambda merged, relation, side: side)
    monkeypatch.setattr(accountant, "grid_interval", lambda side: intervals[side])
    monkeypatch.setattr(accountant, "_composition", made)
    worst = {"replace": 1.0, "remove": 2.0, "add": 3.0}
    found = accountant._composed((), relation, lambda side: worst[side])  # type: ignore[arg-type,index]
    if relation == "replace":
        assert asked == [("replace", 0.5)]
        assert found == 1.0
    else:
        assert asked == [("remove", 0.25), ("add", 0.25)]
        assert found == 3.0


def test_a_grid_that_is_too_fine_is_made_coarser_a_few_times(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[float] = []

    def fine(merged: object, relation: str, side: str, interval: float) -> float:
        asked.append(interval)
        if interval < enough:
            raise accountant.GridTooFineError
        return interval

    monkeypatch.setattr(accountant, "_spreads", lambda *_: [])
    monkeypatch.setattr(accountant, "grid_interval", lambda _: 1.0)
    monkeypatch.setattr(accountant, "_composition", fine)
    enough = 50.0
    assert accountant._composed((), "replace", lambda made: made) == 64.0  # type: ignore[arg-type,return-value]
    assert asked == [1.0, 4.0, 16.0, 64.0]
    enough = math.inf
    with pytest.raises(AccountingError, match="spread too widely"):
        accountant._composed((), "replace", lambda made: made)  # type: ignore[arg-type,return-value]
    assert len(asked) == 4 + 8


# --- The closed form, searches and events.


@pytest.mark.parametrize(("mu", "at"), [(0.5, 4.0), (0.1, 0.9), (1.0, 7.0), (3.0, 30.0)])
def test_far_in_the_tail_the_closed_form_is_the_integral(mu: float, at: float) -> None:
    """∫ (φ(x − μ) − e^ε·φ(x)) over what is above zero: x > ε/μ + μ/2."""
    start = at / mu + mu / 2

    def gap(x: float) -> float:
        return float(norm.pdf(x - mu) - math.exp(at) * norm.pdf(x))

    exact, _ = quad(gap, start, start + 12, epsabs=0, epsrel=1e-11, limit=200)
    assert gaussian_delta(mu, at) == pytest.approx(exact, rel=1e-8, abs=0)


def test_where_no_digit_is_left_only_rounding_is_told() -> None:
    assert 0 < gaussian_delta(1e-18, 0.0) < 1e-14


@pytest.mark.parametrize("target", [1e-300, 1e-20, 1e-6, 0.3])
@pytest.mark.parametrize("at", [1e-3, 0.7, 3.0, 50.0, 2e4])
def test_ratio_and_epsilon_are_each_other_s_inverse(at: float, target: float) -> None:
    mu = gaussian_mu(at, target)
    assert gaussian_epsilon(mu, target) == pytest.approx(at, rel=1e-7)
    assert gaussian_delta(mu, at) <= target


def test_what_is_not_quite_safe_is_moved_until_it_is() -> None:
    up = _made_safe(0.7 * (1 - 1e-12), lambda x: 0.7 - x, upwards=1)
    assert 0.7 <= up <= 0.7 * (1 + 2e-12)
    down = _made_safe(0.7 * (1 + 1e-12), lambda x: x - 0.7, upwards=-1)
    assert 0.7 * (1 - 2e-12) <= down <= 0.7
    assert _made_safe(0.7, lambda x: 0.7 - x, upwards=1) == 0.7


def test_no_ratio_is_private_at_an_epsilon_that_rounding_hides() -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("halfmask.accounting.gaussian.gaussian_delta", lambda mu, _: float(mu > 0))
        with pytest.raises(AccountingError, match="No noise gives"):
            gaussian_mu(0.123456, 0.5)


@pytest.mark.parametrize("relation", ["replace", "withhold"])
def test_one_whole_batch_has_the_noise_of_one_release(relation: str) -> None:
    budget = Budget(epsilon=1.5, delta=1e-6, relation=relation)  # type: ignore[arg-type]
    factor = {"replace": 2.0, "withhold": 1.0}[relation]
    found = calibrate.noise_multiplier(budget, rate=1.0, steps=1)
    assert found == pytest.approx(factor / gaussian_mu(1.5, 1e-6), rel=1e-9)


def test_what_is_spent_leaves_no_room_for_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    budget = Budget(epsilon=1.0, delta=1e-6)
    spent = [GaussianEvent(replace=1.0, withhold=1.0)]
    with pytest.raises(AccountingError, match="is spent already"):
        calibrate.noise_multiplier(budget, rate=0.1, steps=1, spent=spent)
    # To the last digit: what is spent is the target itself.
    monkeypatch.setattr(calibrate, "account", lambda events, **_: 1.0)
    with pytest.raises(AccountingError, match="is spent already"):
        calibrate.noise_multiplier(budget, rate=0.11, steps=1, spent=spent)
    monkeypatch.setattr(calibrate, "account", lambda events, **_: 2.0 - (len(events) == 1) * 1.5)
    monkeypatch.setattr(calibrate, "_guess", lambda *_: 1.0)
    with pytest.raises(AccountingError, match="is all but spent"):
        calibrate.noise_multiplier(budget, rate=0.12, steps=1, spent=spent)


def looks(cost: Callable[[float], float], target: float, guess: float) -> list[float]:
    """Where a search has looked, in order."""
    asked: list[float] = []

    def noted(noise: float) -> float:
        asked.append(noise)
        return cost(noise)

    calibrate._falling_root(noted, target, guess, least=0.0)
    return asked


def test_a_search_takes_steps_of_five_percent_that_grow_up_to_a_hundredfold() -> None:
    """A good guess costs a look or two; a bad one is left soon."""
    steps = [1.05, 1.05**2, 1.05**4, 1.05**8, 1.05**16, 1.05**32, 1.05**64]
    up = looks(lambda noise: 1.0 / noise, 1e-4, 1.0)
    assert np.divide(up[1:8], up[:7]) == pytest.approx(steps, rel=1e-9)
    wide = looks(lambda noise: 1.0 / noise, 1e-5, 1.0)
    assert wide[8] / wide[7] == pytest.approx(100, rel=1e-9)
    down = looks(lambda noise: 1.0 / noise, 1e4, 1.0)
    assert down[0] / down[1] == pytest.approx(1.05, rel=1e-9)
    assert np.divide(down[1:7], down[2:8]) == pytest.approx(steps[:6], rel=1e-9)
    far = looks(lambda noise: 1.0 / noise, 9e5, 1.0)
    assert far[8] / far[9] == pytest.approx(100, rel=1e-9)


def test_a_search_looks_no_further_than_a_million_times_its_guess_or_a_millionth() -> None:
    for guess in (1.0, 20.0):
        beyond = looks(lambda noise: 9.0, 0.5, guess)
        assert beyond[-1] <= 1e6 * guess
        assert 100 * beyond[-1] > 1e6 * guess
        found = calibrate._falling_root(
            lambda noise, g=guess: 0.4 if noise >= 3e4 * g else 9.0, 0.5, guess, least=0.0
        )
        assert found == pytest.approx(3e4 * guess, rel=1e-6)
    free = looks(lambda noise: 0.0, 0.5, 1.0)
    assert free[-1] >= 1e-6
    assert free[-1] / 100 < 1e-6


def test_a_search_stays_two_percent_away_from_both_ends() -> None:
    """Of the logarithms: one end has all but the cost that is wanted, and misleads the secant."""
    low = looks(lambda noise: 0.5 if noise >= 1 else 1.0001, 1.0, 1.0)
    assert low[2] / low[1] == pytest.approx(1.05**0.02, rel=1e-9)
    high = looks(lambda noise: 1 - 6e-4 if noise >= 1 else 100.0, 1.0, 1.0)
    assert high[2] / high[1] == pytest.approx(1.05**0.98, rel=1e-9)


@pytest.mark.parametrize("power", [0.5, 2.0])
def test_a_guess_that_is_not_quite_good_enough_is_improved(power: float) -> None:
    """It costs 99.93% of the target, and 99.95% is asked for."""
    guess = (0.5 * 0.9993) ** (-1 / power)
    found = calibrate._falling_root(lambda noise: noise**-power, 0.5, guess, least=0.0)
    assert found is not None
    assert 0.5 * (1 - 5e-4) <= found**-power <= 0.5


def test_where_all_is_spent_already_a_search_halves() -> None:
    """The cost of a further step is what is above `least`: no power of the noise tells it."""
    asked: list[float] = []

    def cost(noise: float) -> float:
        asked.append(noise)
        return 0.9 if noise >= 1 else 2.0

    calibrate._falling_root(cost, 1.0, 1.0, least=0.9)
    assert asked[2] == pytest.approx(math.sqrt(1 / 1.05), rel=1e-12)


def test_the_most_whole_batches_are_the_most_for_every_noise() -> None:
    budget = Budget(epsilon=1.0, delta=1e-6)
    mu = gaussian_mu(1.0, 1e-6)
    for exact in (0.9, 1.5, 2.5, 3.5, 5.5, 6.5, 7.5, 9.5, 12.5, 17.5, 23.5, 41.5, 77.5):
        noise = 2 * math.sqrt(exact) / mu
        found = calibrate.most_steps(budget, rate=1.0, noise_multiplier=noise)
        assert found == math.floor(exact)


def test_more_steps_than_are_looked_for_are_named() -> None:
    budget = Budget(epsilon=1.0, delta=1e-6)
    with pytest.raises(AccountingError, match="More than 10 steps fit"):
        calibrate.most_steps(budget, rate=1.0, noise_multiplier=1e3, limit=10)
    # 1, 2, 8, 32 are looked at: 8 is where the limit is met.
    with pytest.raises(AccountingError, match="More than 8 steps fit"):
        calibrate.most_steps(budget, rate=1.0, noise_multiplier=1e3, limit=8)


def test_counts_between_two_ends_are_powers_and_keep_a_distance() -> None:
    # Few counts: the middle of the logarithms.
    assert calibrate._between(100, 103, 1.0, 2.0, 1.999) == 101
    assert calibrate._between(100, 104, 1.0, 2.0, 1.999) == 102
    # Two percent of the logarithms away from either end.
    assert calibrate._between(1, 1_000, 1.0, 2.0, 1.999999) == round(1_000**0.98)
    assert calibrate._between(1_000, 10**6, 1.0, 2.0, 1.000001) == round(1_000**1.02)


def test_a_relation_is_one_of_two() -> None:
    assert [check_relation(name) for name in ("replace", "withhold")] == ["replace", "withhold"]
    with pytest.raises(InputError, match="Unknown relation 'label'"):
        check_relation("label")


def test_ratios_end_at_ten_to_the_hundred() -> None:
    GaussianEvent(replace=1e100, withhold=0.0)
    sampled(1e100, 0.5, 1)
    RandomisedResponseEvent(epsilon=1e100, categories=2)
    for make in (
        lambda: GaussianEvent(replace=1.5e100, withhold=0.0),
        lambda: sampled(1.5e100, 0.5, 1),
        lambda: sampled(0.7e-100, 0.5, 1),
        lambda: RandomisedResponseEvent(epsilon=1.5e100, categories=2),
    ):
        with pytest.raises(AccountingError, match="Expected"):
            make()


def test_nothing_is_covered_by_nothing() -> None:
    nothing = [
        GaussianEvent(replace=1.0, withhold=1.0, count=0),
        sampled(1.0, 0.5, 0),
        RandomisedResponseEvent(epsilon=1.0, categories=2, count=0),
    ]
    for event in nothing:
        assert covers([], [event])
    assert not covers([], [GaussianEvent(replace=0.0, withhold=1e-9)])


@pytest.mark.parametrize(
    "event",
    [
        GaussianEvent(replace=0.5, withhold=0.25, count=3),
        PoissonGaussianEvent(noise_multiplier=2.0, rate=0.1),
        RandomisedResponseEvent(epsilon=1.0, categories=4),
    ],
)
def test_events_survive_json_and_unknown_ones_are_named(event: Event) -> None:
    stored = event_to_json(event)
    assert event_from_json(stored) == event
    assert stored.get("steps", 1) == 1
    with pytest.raises(AccountingError, match="Unknown event kind 'laplace'"):
        event_from_json({**stored, "kind": "laplace"})
    with pytest.raises(AccountingError, match="unexpected fields"):
        event_from_json({**stored, "colour": "red"})


def test_a_crossing_whose_digits_vanish_is_the_start_of_its_cell() -> None:
    """e^-800 is no double: the caller steps on from there."""
    losses, chances = np.array([0.0, 800.0, 1600.0]), np.array([0.2, 0.3, 0.5])
    assert accountant._crossing(losses, chances, 0.4, 0.0) == 800.0


def test_a_crossing_is_looked_for_from_the_first_loss_on() -> None:
    losses = 0.5 + 0.1 * np.arange(20)
    chances = np.full(20, 0.05)
    target = float(chances @ np.maximum(-np.expm1(0.53 - losses), 0))
    assert accountant._crossing(losses, chances, target, 0.0) == pytest.approx(0.53, abs=1e-9)


@pytest.mark.usefixtures("nothing_kept")
def test_answers_and_sampled_steps_are_also_told_apart_at_less_than_delta_in_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    deltas: list[float] = []

    class Found:
        def __init__(self, parts: int) -> None:
            self.answer = 100.0 if parts > 1 else 0.25

        def epsilon(self, delta: float) -> float:
            if self.answer < 1:
                deltas.append(delta)
            return self.answer

    monkeypatch.setattr(
        accountant, "_composed", lambda merged, relation, answer: answer(Found(len(merged)))
    )
    events = [RandomisedResponseEvent(epsilon=0.5, categories=2), sampled(1.0, 0.25, 9)]
    assert accountant.epsilon(events, delta=1e-7, relation="replace") == 0.5
    assert deltas[0] == deltas[1] == pytest.approx(0.5e-7, rel=1e-12)
    assert math.fsum(deltas) < 1e-7


def test_a_cost_of_just_the_target_fits() -> None:
    def found(guess: float) -> float | None:
        return calibrate._falling_root(lambda noise: 1 / noise, 0.5, guess, least=0.0)

    # The guess itself, and the first look below it (2.1/1.05).
    assert found(2.0) == found(2.1) == 2.0

    def stairs(noise: float) -> float:
        return 0.5 if noise >= 1 else 1.0 if noise >= 0.97 else 2.0

    between = calibrate._falling_root(stairs, 1.0, 1.0, least=0.0)
    assert between is not None
    assert stairs(between) == 1.0


def test_a_search_for_a_jump_ends_at_the_ninth_digit() -> None:
    """By halves: five percent are a billionth after 26 of them."""
    asked: list[float] = []

    def jump(noise: float) -> float:
        asked.append(noise)
        return 0.4 if noise >= 1.03 else 9.0

    found = calibrate._falling_root(jump, 0.5, 1.0, least=0.4)
    assert found == pytest.approx(1.03, rel=1e-9)
    assert len(asked) == 3 + 26


def test_noise_that_costs_just_the_target_is_not_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibrate, "account", lambda events, **_: 1.0)
    found = calibrate._least_noise.__wrapped__(
        Budget(epsilon=1.0, delta=1e-6), 1.0, 4, "general", ()
    )
    assert found == 2.0 * 2.0 / gaussian_mu(1.0, 1e-6)


def test_steps_that_cost_just_the_target_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a step costs one, as many fit as epsilon says."""
    asked: list[int] = []

    def account(events: list[PoissonGaussianEvent], **_: object) -> float:
        asked.append(events[0].steps)
        return float(events[0].steps)

    monkeypatch.setattr(calibrate, "account", account)
    for most in range(1, 41):
        asked.clear()
        budget = Budget(epsilon=float(most), delta=1e-6)
        assert calibrate.most_steps(budget, rate=0.5, noise_multiplier=1.0) == most
        assert len(asked) < 12
    assert asked[:4] == [1, 2, 8, 32]
    assert (
        calibrate.most_steps(Budget(epsilon=0.9, delta=1e-6), rate=0.5, noise_multiplier=1.0) == 0
    )
    with pytest.raises(AccountingError, match="More than 8 steps"):
        calibrate.most_steps(
            Budget(epsilon=8.5, delta=1e-6), rate=0.5, noise_multiplier=1.0, limit=8
        )
