"""Bounds, reserves, plans and rows of a release, each against its proof or written out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import norm

from halfmask.accounting.budget import Budget
from halfmask.accounting.events import (
    Event,
    GaussianEvent,
    PoissonGaussianEvent,
    RandomisedResponseEvent,
)
from halfmask.accounting.ledger import MemoryLedger
from halfmask.errors import AccountingError, BudgetExceededError, InputError, MachineLostError
from halfmask.mechanisms.clipping import clip_rows, clip_weights, norm_of
from halfmask.mechanisms.noise import (
    SystemNoise,
    UnsafeSeededNoise,
    add_gaussian,
    noise_grid,
    noise_source,
    padding_generator,
    public_generator,
    uniforms,
)
from halfmask.mechanisms.release import (
    Interrupted,
    PaidRows,
    PrivateStep,
    Releaser,
    Sensitivity,
    SharedReleaser,
    _releases,
    batch_of,
    poisson_rows,
    sum_reserve,
    uniform_rows,
    widened_std,
)
from halfmask.mechanisms.shards import ALONE, own_place, rows_in_all, total_of
from halfmask.progress import heard_by

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
    # Widened by a half exactly, and by more.
    for bad in (0.5 - 1.5 * noise_grid(2.0), -1e-9, 0.5, math.nan):
        with pytest.raises(InputError, match="represented exactly"):
            widened_std(1.0, 1, ONE, reserve=bad)


def test_a_sensitivity_is_that_of_a_sum_and_has_the_cost_of_its_noise() -> None:
    assert Sensitivity.of_clipped_sum(0.5, rows_per_unit=3) == Sensitivity(
        replace=3.0, withhold=1.5
    )
    assert Sensitivity.of_clipped_sum(0.5) == Sensitivity(replace=1.0, withhold=0.5)
    assert (ONE.under("replace"), ONE.under("withhold")) == (2.0, 1.0)
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
    for bad in (0.9e-250, 1e-250, 1e250, 1.1e250):
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
        assert value.shape == (1,)  # all machines send the same number of numbers
        return np.full_like(value, self.paid)


class FirstMachine(OtherMachine):
    leads, rank = True, 0

    def __init__(self) -> None:
        self.told: list[float] = []

    def first(self, value: Floats) -> Floats:
        assert value.shape == (1,)
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


def test_a_row_with_one_number_that_is_none_is_zero_as_a_whole() -> None:
    rows = np.array([[math.nan, 1.0], [2.0, math.inf], [3.0, 4.0], [0.0, 0.0], [0.3, 0.4]])
    clipped = clip_rows(rows, 1.0)
    assert clipped[:2].tolist() == [[0.0, 0.0], [0.0, 0.0]]
    assert clipped[2] == pytest.approx([0.6, 0.8])
    assert clipped[3:].tolist() == rows[3:].tolist()


def test_a_row_as_long_as_the_bound_keeps_every_bit() -> None:
    for seed in range(50):
        row = np.random.default_rng(seed).normal(size=(1, 7))
        assert np.array_equal(clip_rows(row, norm_of(row)), row)


def test_a_factor_with_all_its_digits_is_kept_and_one_with_fewer_is_zero() -> None:
    """2^-1022 is the smallest double that has all of them."""
    assert clip_weights(np.array([2.0**1022, 2.0**1023]), 1.0).tolist() == [2.0**-1022, 0.0]


def test_the_norm_of_numbers_whose_squares_vanish() -> None:
    assert norm_of(np.array([3e-200, 4e-200])) == pytest.approx(5e-200, rel=1e-14, abs=0)
    assert norm_of(np.array([3e200, 4e200])) == pytest.approx(5e200, rel=1e-14)


def test_uniforms_are_the_middles_of_their_words() -> None:
    """(k + ½)/2⁶⁴; a word below 2⁵³ is followed by another one for its further bits."""
    given = [np.array([0, 3, 1 << 63], dtype=np.uint64), np.array([0, 5], dtype=np.uint64)]

    def words(count: int) -> NDArray[np.uint64]:
        drawn = given.pop(0)
        assert len(drawn) == count
        return drawn

    found = uniforms(3, words)
    assert found.tolist() == [2.0**-129, 3 * 2.0**-64 + 5.5 * 2.0**-128, 0.5]


def test_streams_of_a_seed_stay_what_they_are() -> None:
    """A stored seed has to give the same numbers in later versions: 0 is noise, 1 is public."""
    first = np.random.Generator(np.random.Philox(np.random.SeedSequence(7, spawn_key=(0,))))
    assert np.array_equal(UnsafeSeededNoise(7).normal(5), first.standard_normal(5))
    second = np.random.default_rng(np.random.SeedSequence(7, spawn_key=(1,)))
    assert np.array_equal(public_generator(7).random(5), second.random(5))
    assert not np.array_equal(public_generator().random(5), public_generator().random(5))


def test_seeded_padding_is_made_of_four_words_of_the_noise() -> None:
    source = AllChosen(0.5)
    expected = np.random.default_rng(np.full(4, 2**31, dtype=np.uint64))
    assert np.array_equal(padding_generator(source).random(5), expected.random(5))
    assert source.asked == 4


def test_a_statistic_that_cannot_be_noised_says_why() -> None:
    with pytest.raises(InputError, match="not finite"):
        add_gaussian(np.array([math.nan, 1.0]), 1.0, AllChosen(0.5))
    with pytest.raises(InputError, match="too large"):
        add_gaussian(np.array([1e300, 1.0]), 1e-5, AllChosen(0.5))


def test_a_batch_that_needs_several_draws_goes_on_where_the_last_one_ended() -> None:
    """Every row is chosen, far more than expected at this rate."""
    source = AllChosen(1.0)
    assert poisson_rows(1_000, 0.01, source).tolist() == list(range(1_000))
    # Ten are expected: 10 + 6·√10 + 16 = 44.97 numbers at the first draw.
    first = AllChosen(1e-300)
    poisson_rows(1_000, 0.01, first)
    assert first.asked == 44


def test_a_jump_right_behind_the_last_row_ends_the_batch() -> None:
    """122 rows at rate 1/2 ask for 123 numbers: the last of them points right behind the rows."""
    source = AllChosen(1.0)
    assert poisson_rows(122, 0.5, source).tolist() == list(range(122))
    assert source.asked == 123


def test_a_public_batch_of_all_rows_has_them_in_order() -> None:
    assert uniform_rows(50, 50, np.random.default_rng(0)).tolist() == list(range(50))


def test_a_releaser_spends_its_own_budget_under_the_relation_of_its_ledger() -> None:
    book = MemoryLedger(epsilon=2.0, delta=1e-5)
    part = Budget(epsilon=1.0, delta=1e-5)
    assert Releaser(book, UnsafeSeededNoise(0), budget=part).budget is part
    assert Releaser(book, UnsafeSeededNoise(0)).budget == book.budget
    other = Budget(epsilon=1.0, delta=1e-5, relation="withhold")
    with pytest.raises(AccountingError, match="kept under 'replace'"):
        Releaser(book, UnsafeSeededNoise(0), budget=other)


def planned(**how: object) -> tuple[MemoryLedger, Releaser]:
    """A training that has charged its plan of one Gaussian release and one set of answers."""
    book = MemoryLedger(epsilon=100.0, delta=1e-5)
    releaser = Releaser(book, UnsafeSeededNoise(0), **{"whole_plan": True, **how})  # type: ignore[arg-type]
    releaser.open(ONE.event(2.0), "sums")
    releaser.pay()
    return book, releaser


def test_a_charge_is_taken_back_as_long_as_nothing_was_handed_out() -> None:
    book, releaser = planned()
    assert book.spent() > 0
    releaser.take_back()
    assert book.spent() == 0
    releaser.take_back()  # once only
    assert book.spent() == 0


@pytest.mark.parametrize("kind", ["noisy", "answered"])
def test_a_charge_stays_once_a_value_was_handed_out(kind: str) -> None:
    book, releaser = planned()
    if kind == "noisy":
        releaser.noisy(np.zeros(2), 2.0)
    else:
        releaser.answered(np.zeros(2), 1.0, "labels")
    spent = book.spent()
    releaser.take_back()
    assert book.spent() == spent > 0


def test_what_is_charged_piece_by_piece_is_not_taken_back() -> None:
    book, releaser = planned(whole_plan=False)
    releaser.take_back()
    assert book.spent() > 0
    unpaid = Releaser(MemoryLedger(epsilon=1.0, delta=1e-5), UnsafeSeededNoise(0), whole_plan=True)
    unpaid.take_back()


def test_a_run_that_goes_on_keeps_the_charge_of_the_interrupted_one() -> None:
    book = MemoryLedger(epsilon=100.0, delta=1e-5)
    event = ONE.event(2.0)
    number = book.charge([event], "sums", run="first")
    before = Interrupted(charge=number, events=(event,), begun=(), seeded=True)
    releaser = Releaser(book, UnsafeSeededNoise(0), whole_plan=True, interrupted=before)
    spent = book.spent()
    releaser.open(event, "sums")
    releaser.pay()
    assert book.spent() == spent
    assert len(releaser.notes) == 1
    # The run before may have handed out something.
    releaser.take_back()
    assert book.spent() == spent
    releaser.begin_part(event, "all of it")
    with pytest.raises(AccountingError, match="More would be released"):
        releaser.begin_part(event, "once more")


def test_a_charge_says_whether_its_noise_can_be_drawn_again_and_its_run() -> None:
    class Book(MemoryLedger):
        marks: dict[str, object]

        def charge(self, events: object, what: str, **marks: object) -> int:  # type: ignore[override]
            self.marks = marks
            return 1

    for noise, seeded_noise in ((UnsafeSeededNoise(0), True), (SystemNoise(), False)):
        for in_parts in (False, True):
            book = Book(epsilon=100.0, delta=1e-5)
            releaser = Releaser(book, noise, whole_plan=True, run="mine")
            releaser.open(ONE.event(2.0), "sums", in_parts=in_parts)
            releaser.pay()
            assert book.marks == {"seeded": seeded_noise, **({"run": "mine"} if in_parts else {})}


def test_one_value_is_one_release() -> None:
    releaser = seeded()
    releaser.gaussian(np.zeros(3), sensitivity=ONE, noise_std=2.0, what="sums")
    assert releaser.events == (ONE.event(2.0),)


def test_answers_of_both_kinds_are_answered() -> None:
    answered = seeded().randomised_response(np.zeros(9), epsilon=50.0, what="labels")
    assert answered.tolist() == [0.0] * 9


def test_a_plan_tells_how_far_it_is() -> None:
    heard: list[float] = []
    releaser = seeded(whole_plan=True)
    series = releaser.gaussian_series(sensitivity=ONE, noise_std=9.0, count=3, what="a")
    releaser.open(RandomisedResponseEvent(epsilon=0.1, categories=2), "answers")
    with heard_by(lambda what, share: heard.append(share)):
        for _ in range(3):
            series.release(np.zeros(1))
    assert heard == [0.25, 0.5, 0.75]
    assert _releases(PoissonGaussianEvent(noise_multiplier=1.0, rate=0.5, steps=7)) == 7
    # Without a plan it is not known how much is left.
    heard.clear()
    with heard_by(lambda what, share: heard.append(share)):
        seeded().gaussian(np.zeros(1), sensitivity=ONE, noise_std=2.0, what="sums")
        # What another process has charged has no plan here: the bar is full at once.
        going_on = seeded(whole_plan=True)
        going_on.gaussian_series(
            sensitivity=ONE, noise_std=9.0, count=2, what="a", remaining=2
        ).release(np.zeros(1))
    assert heard == [1.0]


class UnitNoise(AllChosen):
    """One standard deviation for every number."""

    def normal(self, size: int) -> Floats:
        return np.ones(size)


class Nothing:
    def clipped_sum(self, rows: NDArray[np.int64], clip_norm: float) -> Floats:
        return np.zeros(2)


def test_the_noise_of_a_step_is_its_multiple_of_the_clip_norm() -> None:
    book = MemoryLedger(epsilon=1e6, delta=1e-5)
    step = PrivateStep(
        Releaser(book, UnitNoise(0.9)), rows=10, rate=0.5, clip_norm=4.0, noise_multiplier=3.0,
        steps=1, what="gradients",
    )  # fmt: skip
    assert step.release(Nothing()) == pytest.approx(12.0 / (0.5 * 10), rel=1e-5)


@pytest.mark.parametrize("summed", ["rows", "rows of units", "rows of all machines"])
def test_the_noise_of_a_step_is_widened_for_the_rounding_of_all_rows(summed: str) -> None:
    found = []
    for most in (10, 1 << 21):
        releaser = Releaser(MemoryLedger(epsilon=1e6, delta=1e-5), UnitNoise(0.9))
        releaser.rows = most if summed == "rows of units" else 0
        step = PrivateStep(
            releaser,
            rows=most if summed == "rows" else 10,
            rate=0.5,
            clip_norm=1.0,
            noise_multiplier=1.0,
            steps=1,
            what="gradients",
            rows_in_all=most if summed == "rows of all machines" else None,
        )
        divisor = 10 if summed == "rows of units" else most
        found.append(float(step.release(Nothing())[0]) * 0.5 * divisor)
    assert found[1] / found[0] == pytest.approx(1 + sum_reserve(1 << 21), abs=1e-5)


def test_the_noise_of_paid_rows_is_widened_for_the_rounding_of_a_batch() -> None:
    found = []
    for size in (10, 1 << 21):
        releaser = Releaser(MemoryLedger(epsilon=1e6, delta=1e-5), UnitNoise(0.9))
        rows = PaidRows(releaser, rows=size, sensitivity=ONE, noise_std=2.0, count=1, what="sums")
        found.append(float(rows.release(np.arange(size), lambda _: np.zeros(1))[0]))
    assert found[1] / found[0] == pytest.approx(1 + sum_reserve(1 << 21), abs=1e-5)


def test_a_step_whose_noise_cannot_be_drawn_is_refused_before_it_is_charged() -> None:
    releaser = seeded()
    with pytest.raises(InputError, match="rescale"):
        PrivateStep(
            releaser, rows=10, rate=0.5, clip_norm=1e-240, noise_multiplier=1e-20, steps=1,
            what="gradients",
        )  # fmt: skip
    assert releaser.events == ()


def test_alone_a_machine_is_the_first_of_one() -> None:
    assert (ALONE.rank, ALONE.count) == (0, 1)
    assert own_place(3, ALONE) == slice(0, 3)
