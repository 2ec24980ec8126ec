"""Bounds, reserves, plans and rows of a release, each against its proof or written out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import norm

from halfmask.accounting.events import (
    Event,
    GaussianEvent,
    PoissonGaussianEvent,
    RandomisedResponseEvent,
)
from halfmask.accounting.ledger import MemoryLedger
from halfmask.errors import AccountingError, BudgetExceededError, InputError, MachineLostError
from halfmask.mechanisms.noise import (
    SystemNoise,
    UnsafeSeededNoise,
    noise_grid,
    noise_source,
    padding_generator,
)
from halfmask.mechanisms.release import (
    Interrupted,
    PaidRows,
    PrivateStep,
    Releaser,
    Sensitivity,
    SharedReleaser,
    batch_of,
    poisson_rows,
    sum_reserve,
    widened_std,
)
from halfmask.mechanisms.shards import own_place, rows_in_all, total_of

Floats = NDArray[np.float64]
ONE = Sensitivity(replace=2.0, withhold=1.0)


def seeded(epsilon: float = 1e6, **how: object) -> Releaser:
    book = MemoryLedger(epsilon=epsilon, delta=1e-5)
    return Releaser(book, UnsafeSeededNoise(0), **how)  # type: ignore[arg-type]


def test_reserves_are_those_of_the_proof() -> None:
    """docs/proofs/floating_point.md, "Sums"."""
    unit = 2.0**-53
    assert sum_reserve(10**6) == 2 * 10**12 * unit
    assert sum_reserve(1 << 22) == 2 * (1 << 44) * unit
    rows = 10**9
    assert sum_reserve(rows) == pytest.approx(2 * rows * (2**15 + rows / 2**15) * unit, rel=1e-12)
    # Just beyond any order, blocks need less, and the reserve does not fall.
    assert sum_reserve((1 << 22) + 1) == sum_reserve(1 << 22)


def test_noise_is_widened_by_the_reserve_and_the_grid() -> None:
    grid = noise_grid(2 * 0.75)
    expected = 0.75 * (1 + 1e-3 + 1.5 * grid * 10 / 1.0)
    assert widened_std(0.75, 100, ONE, reserve=1e-3) == pytest.approx(expected, rel=1e-15)
    least = Sensitivity(replace=0.5, withhold=1.0)
    small = widened_std(0.75, 100, least, reserve=0.0)
    assert small - 0.75 == pytest.approx(0.75 * 1.5 * grid * 10 / 0.5, rel=1e-5)
    assert widened_std(0.75, 0, ONE, reserve=0.0) == widened_std(0.75, 1, ONE, reserve=0.0)
    assert widened_std(1.0, 1, ONE, reserve=0.4) == pytest.approx(1.4)
    for bad in (-1e-9, 0.5, math.nan):
        with pytest.raises(InputError, match="represented exactly"):
            widened_std(1.0, 1, ONE, reserve=bad)


def test_a_sensitivity_scales_and_has_the_cost_of_its_noise() -> None:
    assert Sensitivity.of_clipped_sum(0.5, rows_per_unit=3) == Sensitivity(
        replace=3.0, withhold=1.5
    )
    assert Sensitivity.of_clipped_sum(0.5) == Sensitivity(replace=1.0, withhold=0.5)
    assert (ONE.under("replace"), ONE.under("withhold")) == (2.0, 1.0)
    assert ONE.scaled(0.25) == Sensitivity(replace=0.5, withhold=0.25)
    assert ONE.event(4.0) == GaussianEvent(replace=0.5, withhold=0.25)
    assert ONE.event(4.0, count=7) == GaussianEvent(replace=0.5, withhold=0.25, count=7)
    for wrong in ((0.0, 1.0), (1.0, 0.0), (math.inf, 1.0), (1.0, math.nan)):
        with pytest.raises(AccountingError, match="sensitivity"):
            Sensitivity(replace=wrong[0], withhold=wrong[1])


@pytest.mark.parametrize(
    "wrong", [[0, 0], [-1], [5], [0.0], [[0]], ["a"], [True], [0, 1, 2, 3, 4, 4]]
)
def test_a_batch_names_rows_of_the_table_each_once(wrong: object) -> None:
    with pytest.raises(InputError, match="each once"):
        batch_of(wrong, 5)


def test_a_batch_keeps_its_order() -> None:
    batch = batch_of(np.array([4, 0, 2], dtype=np.uint8), 5)
    assert batch.tolist() == [4, 0, 2]
    assert batch.dtype == np.int64
    assert len(batch_of(np.array([], dtype=np.int64), 5)) == 0


def test_each_row_is_asked_about_as_often_as_it_was_paid_for() -> None:
    releaser = seeded()
    rows = PaidRows(releaser, rows=4, sensitivity=ONE, noise_std=2.0, count=2, what="scores")
    assert releaser.events == (GaussianEvent(replace=1.0, withhold=0.5, count=2),)
    asked: list[list[int]] = []

    def statistic(batch: NDArray[np.int64]) -> Floats:
        asked.append(batch.tolist())
        return np.full(3, 1e6)

    first = rows.release(np.array([0, 1]), statistic)
    assert first.shape == (3,)
    assert np.all(np.abs(first - 1e6) < 30)
    assert len(np.unique(first)) == 3
    rows.release(np.array([1, 2]), statistic)
    with pytest.raises(InputError, match="more often than the 2 times"):
        rows.release(np.array([3, 1]), statistic)
    # What was refused costs the others nothing, and nothing was computed of it.
    rows.release(np.array([0, 2, 3]), statistic)
    rows.release(np.array([3]), statistic)
    assert asked == [[0, 1], [1, 2], [0, 2, 3], [3]]
    with pytest.raises(InputError, match="more often"):
        rows.release(np.array([3]), statistic)


def test_a_row_whose_statistic_fails_is_used_up() -> None:
    rows = PaidRows(seeded(), rows=2, sensitivity=ONE, noise_std=2.0, count=1, what="scores")

    def fails(batch: NDArray[np.int64]) -> Floats:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        rows.release(np.array([0]), fails)
    with pytest.raises(InputError, match="more often"):
        rows.release(np.array([0]), lambda batch: np.zeros(1))


@pytest.mark.parametrize("count", [0, -1])
def test_no_releases_are_not_paid_for(count: int) -> None:
    releaser = seeded()
    with pytest.raises(InputError, match="count >= 1"):
        PaidRows(releaser, rows=2, sensitivity=ONE, noise_std=1.0, count=count, what="a")
    with pytest.raises(InputError, match="count >= 1"):
        releaser.gaussian_series(sensitivity=ONE, noise_std=1.0, count=count, what="a")
    assert releaser.events == ()


def test_a_series_that_goes_on_has_what_is_left_and_charges_nothing() -> None:
    releaser = seeded()
    series = releaser.gaussian_series(
        sensitivity=ONE, noise_std=1.0, count=5, what="a", remaining=2
    )  # fmt: skip
    series.release(np.zeros(1))
    series.release(np.zeros(1))
    with pytest.raises(AccountingError, match="used up"):
        series.release(np.zeros(1))
    assert releaser.events == ()


def test_a_whole_plan_is_one_charge_at_the_first_release() -> None:
    book = MemoryLedger(epsilon=1e6, delta=1e-5)
    releaser = Releaser(book, UnsafeSeededNoise(0), whole_plan=True)
    first = releaser.gaussian_series(sensitivity=ONE, noise_std=1.0, count=1, what="a")
    releaser.gaussian_series(sensitivity=ONE, noise_std=2.0, count=3, what="b")
    assert releaser.events == ()
    assert book.events() == ()
    first.release(np.zeros(2))
    assert releaser.events == (ONE.event(1.0), ONE.event(2.0, count=3))
    assert releaser.released == ("a", "b")
    assert book.events() == releaser.events
    with pytest.raises(AccountingError, match="whole plan"):
        releaser.gaussian_series(sensitivity=ONE, noise_std=1.0, count=1, what="c")


def test_a_plan_without_room_is_refused_when_it_is_opened() -> None:
    releaser = seeded(epsilon=1.0, whole_plan=True)
    releaser.gaussian_series(sensitivity=ONE, noise_std=20.0, count=1, what="fits")
    with pytest.raises(BudgetExceededError):
        releaser.gaussian_series(sensitivity=ONE, noise_std=1.0, count=1, what="does not")
    # What was refused is no part of the plan.
    releaser.pay()
    assert releaser.released == ("fits",)


def test_an_interrupted_run_goes_on_only_with_its_own_plan_and_kind_of_noise() -> None:
    events: tuple[Event, ...] = (ONE.event(1.0),)
    for noise, was_seeded, goes_on in (
        (UnsafeSeededNoise(0), True, True),
        (UnsafeSeededNoise(0), False, False),
        (SystemNoise(), False, True),
        (SystemNoise(), True, False),
    ):
        before = Interrupted(charge=1, events=events, begun=(), seeded=was_seeded)
        releaser = Releaser(MemoryLedger(epsilon=9.0, delta=1e-5), noise, interrupted=before)
        assert (releaser.goes_on(events) is before) == goes_on
        assert releaser.goes_on((*events, ONE.event(2.0))) is None
    assert seeded().goes_on(events) is None


def test_answers_are_flipped_at_their_rate_and_charged() -> None:
    releaser = seeded()
    answered = releaser.randomised_response(np.ones(20_000), epsilon=1.0, what="labels")
    assert releaser.events == (RandomisedResponseEvent(epsilon=1.0, categories=2),)
    assert set(answered.tolist()) == {0.0, 1.0}
    assert 1 - answered.mean() == pytest.approx(1 / (1 + math.e), abs=0.02)
    for bad in (0.0, -1.0, math.inf, math.nan):
        with pytest.raises(InputError, match="epsilon > 0"):
            releaser.randomised_response(np.ones(2), epsilon=bad, what="labels")
    with pytest.raises(InputError, match="two kinds"):
        releaser.randomised_response(np.array([0.0, 0.5]), epsilon=1.0, what="labels")
    assert len(releaser.events) == 1


def test_steps_are_means_over_the_rows_of_all_machines() -> None:
    class Ones:
        def clipped_sum(self, rows: NDArray[np.int64], clip_norm: float) -> Floats:
            return np.full(1, 1e9 * clip_norm)

    releaser = seeded()
    step = PrivateStep(
        releaser, rows=10, rate=0.5, clip_norm=2.0, noise_multiplier=3.0, steps=1,
        what="gradients", rows_in_all=40,
    )  # fmt: skip
    event = PoissonGaussianEvent(noise_multiplier=3.0, rate=0.5, steps=1)
    assert releaser.events == (event,)
    assert step.release(Ones())[0] == pytest.approx(2e9 / (0.5 * 40), rel=1e-6)
    with pytest.raises(AccountingError, match="used up"):
        step.release(Ones())


class AllChosen:
    """Uniforms that say yes (or no) to every row."""

    secure, description = False, "fixed"

    def __init__(self, value: float) -> None:
        self.value, self.asked = value, 0

    def uniform(self, size: int) -> Floats:
        self.asked += size
        return np.full(size, self.value)

    def normal(self, size: int) -> Floats:
        return np.zeros(size)


def test_jumps_between_rows_are_geometric() -> None:
    """u = (1 − q)^k means k rows are skipped: the next one is the first of its kind."""
    # A word just below (1 - q)^3 skips three rows each time.
    found = poisson_rows(20, 0.5, AllChosen(0.5**3 * 0.999))
    assert found.tolist() == [3, 7, 11, 15, 19]
    assert poisson_rows(6, 0.5, AllChosen(1.0)).tolist() == [0, 1, 2, 3, 4, 5]
    assert poisson_rows(5, 0.5, AllChosen(1e-300)).tolist() == []
    assert poisson_rows(0, 0.5, AllChosen(1.0)).tolist() == []


def test_machines_have_streams_of_their_own_and_padding_is_apart_from_noise() -> None:
    alone = noise_source(5).normal(4)
    assert np.array_equal(noise_source(5, machine=0).normal(4), alone)
    assert np.array_equal(noise_source(5, machine=2).normal(4), noise_source(5 + 2**33).normal(4))
    assert not np.array_equal(noise_source(5, machine=1).normal(4), alone)
    assert not noise_source(0).secure
    assert noise_source().secure
    first = padding_generator(UnsafeSeededNoise(3)).random(4)
    assert np.array_equal(first, padding_generator(UnsafeSeededNoise(3)).random(4))
    assert not np.array_equal(first, padding_generator(UnsafeSeededNoise(4)).random(4))
    assert not np.array_equal(
        padding_generator(SystemNoise()).random(4), padding_generator(SystemNoise()).random(4)
    )


def test_the_grid_ends_where_numbers_do() -> None:
    assert noise_grid(1.1e-250) > 0
    assert noise_grid(0.9e250) < math.inf
    assert noise_grid(1.0) == 2.0**-32
    assert noise_grid(1.999) == 2.0**-32
    assert noise_grid(2.0) == 2.0**-31
    for bad in (0.9e-250, 1.1e250):
        with pytest.raises(InputError, match="rescale"):
            noise_grid(bad)


class Second:
    """The second of three machines with 2, 3 and 4 rows."""

    rank, count = 1, 3

    def sum(self, value: Floats) -> Floats:
        return value + 6.0

    def gather(self, rows: Floats) -> Floats:
        return np.concatenate([[2.0], rows, [4.0]])

    def first(self, value: Floats) -> Floats:
        return value


def test_rows_of_machines_lie_one_after_another() -> None:
    assert own_place(3, Second()) == slice(2, 5)
    assert rows_in_all(3, Second()) == 9
    assert total_of(np.array([1.0, 2.5]), Second()) == 9.5


@pytest.mark.parametrize("bad", [0.0, -1.0, math.inf, math.nan])
def test_noise_that_is_none_has_no_grid(bad: float) -> None:
    with pytest.raises(InputError, match="finite noise standard deviation"):
        noise_grid(bad)


def test_one_number_is_widened_by_one_grid() -> None:
    assert widened_std(1.0, 1, ONE, reserve=0.0) == 1 + 1.5 * noise_grid(2.0)


def test_steps_on_one_row_are_steps() -> None:
    how = {"rate": 0.5, "clip_norm": 1.0, "noise_multiplier": 4.0, "steps": 1, "what": "one row"}
    PrivateStep(seeded(), rows=1, **how)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="at least one row"):
        PrivateStep(seeded(), rows=0, **how)  # type: ignore[arg-type]


class OtherMachine:
    """Machines of which this one is the second; the first says whether it has paid."""

    leads, count, rank = False, 2, 1

    def __init__(self, paid: float) -> None:
        self.paid = paid

    def first(self, value: Floats) -> Floats:
        return np.full_like(value, self.paid)


class FirstMachine(OtherMachine):
    leads, rank = True, 0

    def __init__(self) -> None:
        self.told: list[float] = []

    def first(self, value: Floats) -> Floats:
        self.told.append(float(value[0]))
        return value


def test_no_machine_goes_on_before_the_first_has_paid() -> None:
    event = GaussianEvent(replace=0.1, withhold=0.1)
    book = MemoryLedger(epsilon=1.0, delta=1e-5)
    for paid in (1.0, 0.0):
        machine = OtherMachine(paid)
        door = SharedReleaser(book, UnsafeSeededNoise(0), machines=machine)  # type: ignore[arg-type]
        if paid:
            door._pay([event], "sums")
        else:
            with pytest.raises(MachineLostError, match="could not charge"):
                door._pay([event], "sums")
    assert book.spent() == 0.0
    first = FirstMachine()
    door = SharedReleaser(book, UnsafeSeededNoise(0), machines=first)  # type: ignore[arg-type]
    door._pay([event], "sums")
    assert first.told == [1.0]
    assert book.spent() > 0
    with pytest.raises(BudgetExceededError):
        door._pay([GaussianEvent(replace=9.0, withhold=9.0)], "too much")
    assert first.told == [1.0, 0.0]


def test_tails_of_the_noise_hold_their_part_and_have_no_gap() -> None:
    """Beyond 3.65 the lowest layer is asked: Φ gives 2.6e-4 there, half of it beyond 3.83."""
    drawn = np.abs(UnsafeSeededNoise(5).normal(400_000))
    edge = float(norm.isf(2.6e-4 / 2))
    middle = float(norm.isf(2.6e-4 / 4))
    beyond, far = int((drawn > edge).sum()), int((drawn > middle).sum())
    assert abs(beyond - 104) < 5.5 * math.sqrt(104)
    assert abs(far - 52) < 5.5 * math.sqrt(52)
    near = int(((drawn > 3.0) & (drawn < 3.3)).sum())
    expected = 400_000 * 2 * float(norm.sf(3.0) - norm.sf(3.3))
    assert abs(near - expected) < 5.5 * math.sqrt(expected)
