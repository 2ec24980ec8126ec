"""Releases: charged first, never more than paid for, and silent about the batch."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray

from halfmask.accounting.events import Event, GaussianEvent, PoissonGaussianEvent, Relation
from halfmask.accounting.ledger import MemoryLedger
from halfmask.errors import AccountingError, BudgetExceededError, HalfmaskError
from halfmask.mechanisms.noise import SystemNoise, UnsafeSeededNoise
from halfmask.mechanisms.release import (
    SUM_RESERVE,
    PrivateStep,
    Releaser,
    Sensitivity,
    WeighedRows,
    sum_reserve,
)

Floats = NDArray[np.float64]
SENSITIVITY = Sensitivity.of_clipped_sum(1.0)


class Rows(WeighedRows):
    """Contributions given as a matrix."""

    def __init__(self, matrix: Floats) -> None:
        self.matrix = np.asarray(matrix, dtype=np.float64)

    def norms(self, rows: NDArray[np.int64]) -> Floats:
        lengths: Floats = np.sqrt((self.matrix[rows] ** 2).sum(axis=1))
        return lengths

    def weighted_sum(self, rows: NDArray[np.int64], weights: Floats) -> Floats:
        total: Floats = weights @ self.matrix[rows]
        return total


class Journal:
    """A budget and a noise source that write down the order in which they are used."""

    relation: Relation = "replace"
    secure = False
    description = "a journal"

    def __init__(self, *, refuse: bool = False) -> None:
        self.lines: list[str] = []
        self.refuse = refuse

    def charge(self, events: Sequence[Event], what: str, *, seeded: bool = False) -> int:
        self.lines.append("charge")
        if self.refuse:
            raise BudgetExceededError("spent")
        return 1

    def normal(self, size: int) -> Floats:
        self.lines.append("noise")
        return np.zeros(size)

    def uniform(self, size: int) -> Floats:
        self.lines.append("sample")
        return np.full(size, 0.5)


def private_step(
    releaser: Releaser, *, rows: int = 4, rate: float = 0.5, steps: int = 2
) -> PrivateStep:
    return PrivateStep(
        releaser,
        rows=rows,
        rate=rate,
        clip_norm=1.0,
        noise_multiplier=1.0,
        steps=steps,
        what="gradients",
    )


def seeded(seed: int = 0, budget: float = 1e6) -> Releaser:
    return Releaser(MemoryLedger(epsilon=budget, delta=1e-5), UnsafeSeededNoise(seed))


def test_a_release_is_charged_before_noise_is_drawn() -> None:
    journal = Journal()
    Releaser(journal, journal).gaussian(
        np.zeros(3), sensitivity=SENSITIVITY, noise_std=1.0, what="a sum"
    )
    assert journal.lines == ["charge", "noise"]


def test_a_step_is_charged_before_rows_are_drawn() -> None:
    journal = Journal()
    step = private_step(Releaser(journal, journal))
    assert journal.lines == ["charge"]
    step.release(Rows(np.zeros((4, 2))))
    assert journal.lines == ["charge", "sample", "noise"]


def test_a_refused_charge_draws_and_releases_nothing() -> None:
    journal = Journal(refuse=True)
    releaser = Releaser(journal, journal)
    with pytest.raises(BudgetExceededError):
        releaser.gaussian(np.zeros(3), sensitivity=SENSITIVITY, noise_std=1.0, what="a sum")
    with pytest.raises(BudgetExceededError):
        private_step(releaser)
    assert journal.lines == ["charge", "charge"]
    assert releaser.events == ()
    assert releaser.released == ()


@pytest.mark.parametrize("noise_std", [0.0, -1.0, math.nan, math.inf])
def test_noise_that_cannot_be_drawn_is_refused_before_it_is_charged(noise_std: float) -> None:
    journal = Journal()
    with pytest.raises(HalfmaskError):
        Releaser(journal, journal).gaussian(
            np.zeros(3), sensitivity=SENSITIVITY, noise_std=noise_std, what="a sum"
        )
    assert journal.lines == []


@pytest.mark.parametrize(
    ("name", "value"),
    [("rows", 0), ("rate", 0.0), ("rate", 1.5), ("clip_norm", math.inf), ("noise_multiplier", 0.0)],
)
def test_a_step_that_makes_no_sense_is_refused_before_it_is_charged(
    name: str, value: float
) -> None:
    journal = Journal()
    settings_ = {"rows": 4, "rate": 0.5, "clip_norm": 1.0, "noise_multiplier": 1.0, name: value}
    with pytest.raises(HalfmaskError):
        PrivateStep(Releaser(journal, journal), steps=1, what="gradients", **settings_)  # type: ignore[arg-type]
    assert journal.lines == []


def test_no_more_is_released_than_was_paid_for() -> None:
    releaser = seeded()
    step = private_step(releaser, steps=2)
    contributions = Rows(np.ones((4, 2)))
    step.release(contributions)
    step.release(contributions)
    with pytest.raises(AccountingError, match="used up"):
        step.release(contributions)
    series = releaser.gaussian_series(sensitivity=SENSITIVITY, noise_std=2.0, count=1, what="a sum")
    series.release(np.zeros(2))
    with pytest.raises(AccountingError, match="used up"):
        series.release(np.zeros(2))
    assert releaser.events == (
        PoissonGaussianEvent(noise_multiplier=1.0, rate=0.5, steps=2),
        GaussianEvent(replace=1.0, withhold=0.5),
    )
    assert releaser.released == ("gradients", "a sum")


def test_a_step_that_fails_is_used_up() -> None:
    """Otherwise a caller could draw batches until one suits."""
    step = private_step(seeded(), steps=1, rate=1.0)

    class Broken(Rows):
        def weighted_sum(self, rows: NDArray[np.int64], weights: Floats) -> Floats:
            raise ValueError("no sum")

    with pytest.raises(ValueError, match="no sum"):
        step.release(Broken(np.ones((4, 2))))
    with pytest.raises(AccountingError, match="used up"):
        step.release(Rows(np.ones((4, 2))))


def test_rows_that_are_not_finite_count_as_zero() -> None:
    matrix = np.ones((6, 3))
    broken = matrix.copy()
    broken[1], broken[4] = math.nan, math.inf
    zero = matrix.copy()
    zero[[1, 4]] = 0.0
    with np.errstate(invalid="ignore"):
        first = private_step(seeded(3), rows=6, rate=0.8).release(Rows(broken))
    assert np.array_equal(first, private_step(seeded(3), rows=6, rate=0.8).release(Rows(zero)))


def test_an_empty_batch_releases_noise() -> None:
    step = private_step(seeded(), rows=4, rate=1e-12)
    released = step.release(Rows(np.full((4, 5), 1e9)))
    assert released.shape == (5,)
    assert np.abs(released * (1e-12 * 4)).max() < 10
    assert released.any()


def test_the_divisor_is_the_expected_batch_size() -> None:
    journal = Journal()  # its noise is zero, and at rate 1 every row takes part
    released = private_step(Releaser(journal, journal), rows=8, rate=1.0).release(
        Rows(np.tile([1.0, 0.0], (8, 1)))
    )
    assert released == pytest.approx([1.0, 0.0], abs=1e-8)


def test_nothing_that_is_left_behind_tells_the_size_of_the_batch() -> None:
    """After a step on no row and on all rows the objects hold the same, counter included."""
    noise = SystemNoise()
    left = []
    for uniform in (0.999999, 1e-9):
        budget = Journal()
        releaser = Releaser(budget, noise)
        step = private_step(releaser, rows=50, rate=0.5)
        # Jumps are made so long that the batch is empty, or so short that it is full.
        step._noise = _Fixed(1e-300 if uniform < 0.5 else 1.0)
        step.release(Rows(np.ones((50, 3))))
        doors = ("_noise", "_noisy", "_pay", "_batch")
        kept = {name: value for name, value in vars(step).items() if name not in doors}
        left.append((kept, vars(releaser)["_events"], vars(releaser)["_released"], budget.lines))
    assert left[0] == left[1]
    fixed = {"_rows", "_rows_in_all", "_rate", "_clip_norm", "_noise_std", "_reserve"}
    assert set(left[0][0]) == fixed | {"_remaining"}
    assert vars(noise) == {}


class _Fixed(SystemNoise):
    """Uniforms of one value: 1 takes every row, a tiny one takes none."""

    def __init__(self, value: float) -> None:
        self.value = value

    def uniform(self, size: int) -> Floats:
        return np.full(size, self.value)

    def normal(self, size: int) -> Floats:
        return np.zeros(size)


@given(
    rows=arrays(
        np.float64, st.tuples(st.integers(1, 12), st.just(3)), elements=st.floats(-1e9, 1e9)
    ),
    other=arrays(np.float64, 3, elements=st.floats(-1e9, 1e9)),
    clip=st.floats(1e-3, 1e3),
    at=st.integers(0, 11),
)
@settings(max_examples=100, deadline=None)
def test_clipped_sums_of_neighbours_are_as_close_as_claimed(
    rows: Floats, other: Floats, clip: float, at: int
) -> None:
    def clipped_sum(matrix: Floats) -> Floats:
        return Rows(matrix).clipped_sum(np.arange(len(matrix)), clip)

    at %= len(rows)
    replaced, withheld = rows.copy(), rows.copy()
    replaced[at], withheld[at] = other, 0.0
    claim = Sensitivity.of_clipped_sum(clip)
    room = 1 + 2.0**-20
    here = clipped_sum(rows)
    assert np.linalg.norm(here - clipped_sum(replaced)) <= claim.under("replace") * room
    assert np.linalg.norm(here - clipped_sum(withheld)) <= claim.under("withhold") * room


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf])
def test_a_sensitivity_that_is_none_is_refused(bad: float) -> None:
    with pytest.raises(AccountingError, match="sensitivity"):
        Sensitivity(replace=bad, withhold=1.0)


def test_the_ledger_s_budget_stops_a_release() -> None:
    releaser = seeded(budget=1.0)
    with pytest.raises(BudgetExceededError):
        private_step(releaser, steps=1000)
    assert releaser.events == ()


def test_noise_is_widened_for_the_rounding_of_as_many_rows_as_are_summed() -> None:
    unit = 2.0**-53
    assert sum_reserve(0) == sum_reserve(1 << 16) == SUM_RESERVE
    for rows in (70_000, 10**6, 1 << 22):
        # Two tables, each off by rows·unit·Σ norms in any order of summation.
        assert sum_reserve(rows) >= 2 * rows**2 * unit
    for rows in (10**7, 10**8, 10**9):
        assert sum_reserve(rows) >= 2 * rows * (2**15 + rows / 2**15) * unit
        assert sum_reserve(rows) < 0.03
    assert sum_reserve(10**7) >= sum_reserve(1 << 22)
    found = []
    for rows in (0, 1 << 22):
        releaser = Releaser(MemoryLedger(epsilon=9.0, delta=1e-6), UnsafeSeededNoise(1))
        releaser.rows = rows
        series = releaser.gaussian_series(
            sensitivity=SENSITIVITY, noise_std=10.0, count=1, what="a sum"
        )
        found.append(series.release(np.zeros(4)))
    assert np.allclose(found[1] / found[0], 1 + sum_reserve(1 << 22), rtol=1e-5)
