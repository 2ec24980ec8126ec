"""What one row can contribute, and which rows take part."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray

from halfmask.errors import InputError
from halfmask.mechanisms.clipping import clip_rows, clip_weights, norm_of
from halfmask.mechanisms.noise import SystemNoise, UnsafeSeededNoise, public_generator
from halfmask.mechanisms.release import poisson_rows, uniform_rows

Floats = NDArray[np.float64]
any_float = st.floats(allow_nan=True, allow_infinity=True, allow_subnormal=True)
any_norm = st.one_of(st.floats(min_value=0), st.just(math.nan))
ROOM = 1 + 1e-12


def length(row: Floats) -> float:
    return math.hypot(*row.tolist())


@given(
    rows=arrays(np.float64, st.tuples(st.integers(0, 6), st.integers(1, 5)), elements=any_float),
    norm=st.floats(1e-300, 1e300),
)
@settings(max_examples=200, deadline=None)
def test_clipped_rows_never_exceed_the_norm_whatever_they_held(rows: Floats, norm: float) -> None:
    clipped = clip_rows(rows, norm)
    assert clipped.shape == rows.shape
    for before, after in zip(rows, clipped, strict=True):
        assert length(after) <= norm * ROOM
        if not np.isfinite(before).all():
            assert not after.any()
        elif length(before) <= norm * (1 - 1e-12):
            assert np.array_equal(before, after)


def test_huge_rows_keep_their_direction() -> None:
    clipped = clip_rows(np.array([[3e200, 4e200], [3e-200, 4e-200]]), 1.0)
    assert clipped[0] == pytest.approx([0.6, 0.8])
    assert clipped[1] == pytest.approx([3e-200, 4e-200], abs=0)


@given(
    norms=arrays(np.float64, st.integers(0, 8), elements=any_norm),
    clip=st.floats(1e-300, 1e300),
)
@settings(max_examples=200, deadline=None)
def test_weights_bring_every_norm_to_the_bound(norms: Floats, clip: float) -> None:
    weights = clip_weights(norms, clip)
    finite = np.isfinite(norms)
    assert ((weights >= 0) & (weights <= 1)).all()
    assert (weights[~finite] == 0).all()
    assert (weights[finite] * norms[finite] <= clip * ROOM).all()
    assert (weights[finite & (norms <= clip)] == 1).all()


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf])
def test_a_bound_that_bounds_nothing_is_refused(bad: float) -> None:
    with pytest.raises(InputError, match="clip_norm"):
        clip_weights(np.ones(2), bad)
    with pytest.raises(InputError, match="clip_norm"):
        clip_rows(np.ones((2, 2)), bad)


@pytest.mark.parametrize("rate", [0.003, 0.0625, 0.5, 0.97])
def test_every_row_takes_part_at_the_rate_independently_of_the_others(rate: float) -> None:
    rows, draws = 40, 8_000
    taken = np.zeros((draws, rows), dtype=bool)
    source = SystemNoise()
    for taking in taken:
        taking[poisson_rows(rows, rate, source)] = True
    # Six and a half standard deviations or more for each of about 120 counts: flakes below 1e-8.
    spread = math.sqrt(draws * rate * (1 - rate))
    assert (np.abs(taken.sum(axis=0) - draws * rate) < 7 * spread + 7).all()
    together = (taken[:, :-1] & taken[:, 1:]).sum(axis=0)
    joint = draws * rate**2
    assert (np.abs(together - joint) < 7 * math.sqrt(joint * (1 - rate**2)) + 12).all()
    sizes = taken.sum(axis=1)
    variance = rows * rate * (1 - rate)
    assert sizes.var() == pytest.approx(variance, rel=0.15)


def test_batches_are_sorted_rows_without_repetition() -> None:
    source = UnsafeSeededNoise(1)
    for rate in (1e-9, 0.01, 0.7, 1.0):
        batch = poisson_rows(10_000, rate, source)
        assert (np.diff(batch) > 0).all()
        assert batch.dtype == np.int64
        assert not len(batch) or (batch[0] >= 0 and batch[-1] < 10_000)


def test_an_empty_batch_is_legal_and_a_full_one_is_everything() -> None:
    assert len(poisson_rows(5, 1e-12, SystemNoise())) == 0
    assert poisson_rows(5, 1.0, SystemNoise()).tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("rate", [0.0, -0.1, 1.1, math.nan])
def test_a_rate_that_is_none_is_refused(rate: float) -> None:
    with pytest.raises(InputError, match="rate"):
        poisson_rows(5, rate, SystemNoise())


def test_public_batches_have_a_fixed_size_and_no_repetition() -> None:
    batch = uniform_rows(100, 30, public_generator(1))
    assert len(np.unique(batch)) == 30
    assert len(uniform_rows(10, 30, public_generator(1))) == 10


@given(st.lists(st.floats(-9e307, 9e307) | st.floats(-1e-150, 1e-150), max_size=3))
def test_a_norm_is_right_where_squares_overflow_or_vanish(values: list[float]) -> None:
    assert norm_of(np.array(values)) == pytest.approx(math.hypot(*values), rel=1e-14, abs=1e-323)
