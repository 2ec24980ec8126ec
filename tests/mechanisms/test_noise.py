"""Noise: its distribution, its grid, and the independence of its streams."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from halfmask.errors import InputError
from halfmask.mechanisms.noise import (
    NoiseSource,
    SystemNoise,
    UnsafeSeededNoise,
    add_gaussian,
    noise_grid,
    noise_source,
    public_generator,
)
from halfmask.mechanisms.release import SUM_RESERVE, Sensitivity, widened_std

DRAWS = 200_000
# Kolmogorov: P(√n·D > x) is about 2 exp(−2x²), so 3.5 is passed by chance with 5e-11.
KOLMOGOROV = 3.5 / math.sqrt(DRAWS)


@pytest.mark.parametrize("source", [SystemNoise(), UnsafeSeededNoise(3)])
def test_normals_are_normal_and_neighbours_uncorrelated(source: NoiseSource) -> None:
    drawn = source.normal(DRAWS)
    assert stats.kstest(drawn, "norm").statistic < KOLMOGOROV
    for power in (1, 2):
        pair = np.corrcoef(drawn[::2] ** power, drawn[1::2] ** power)[0, 1]
        assert abs(pair) < 7 / math.sqrt(DRAWS / 2)


@pytest.mark.parametrize("source", [SystemNoise(), UnsafeSeededNoise(3)])
def test_uniforms_are_uniform_and_never_zero(source: NoiseSource) -> None:
    drawn = source.uniform(DRAWS)
    assert drawn.min() > 0
    assert drawn.max() <= 1
    assert stats.kstest(drawn, "uniform").statistic < KOLMOGOROV


def test_small_uniforms_have_as_many_digits_as_large_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sixty-four bits alone leave so few large radii that a pair gives its value away."""
    words = [bytes(8 * 1000), np.arange(1000, dtype=np.uint64).tobytes()]
    monkeypatch.setattr("ssl.RAND_bytes", lambda size: words.pop(0)[:size])
    drawn = SystemNoise().uniform(1000)
    assert len(np.unique(drawn)) == 1000
    assert 0 < drawn.max() < 2.0**-64


def test_an_odd_number_and_no_number_of_normals_can_be_drawn() -> None:
    assert SystemNoise().normal(3).shape == (3,)
    assert SystemNoise().normal(0).shape == (0,)


def test_system_noise_keeps_no_state_and_never_repeats() -> None:
    source = noise_source()
    assert vars(source) == {}
    assert source.secure
    assert not np.array_equal(source.normal(4), noise_source().normal(4))


@given(std=st.floats(1e-200, 1e200))
@settings(deadline=None)
def test_grid_is_a_power_of_two_far_below_the_noise(std: float) -> None:
    grid = noise_grid(std)
    assert math.frexp(grid)[0] == 0.5
    assert std * 2.0**-33 < grid <= std * 2.0**-32


@given(
    values=st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=20),
    std=st.floats(0.9, 1e6),
    seed=st.integers(0, 10),
)
@settings(deadline=None)
def test_released_values_are_whole_multiples_of_the_grid(
    values: list[float], std: float, seed: int
) -> None:
    grid = noise_grid(std)
    value = np.array(values)
    released = add_gaussian(value, std, UnsafeSeededNoise(seed))
    noise = add_gaussian(np.zeros(len(values)), std, UnsafeSeededNoise(seed))
    assert np.array_equal(np.rint(released / grid), released / grid)
    # Exact: taking the same noise away leaves the rounded value, bit for bit.
    assert np.array_equal(released - noise, np.rint(value / grid) * grid)


def test_low_bits_do_not_tell_two_values_apart() -> None:
    """Values that differ below the grid are released identically."""
    std = 1.0
    value = np.full(100, 1 / 3)
    nearby = value + noise_grid(std) / 1000
    first = add_gaussian(value, std, UnsafeSeededNoise(1))
    assert np.array_equal(first, add_gaussian(nearby, std, UnsafeSeededNoise(1)))


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 1e305])
def test_a_statistic_that_cannot_be_noised_is_refused(bad: float) -> None:
    with pytest.raises(InputError, match="statistic"):
        add_gaussian(np.array([0.0, bad]), 1e-5, UnsafeSeededNoise(0))


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf, 1e-300, 1e300])
def test_noise_without_a_usable_width_is_refused(bad: float) -> None:
    with pytest.raises(InputError, match="noise"):
        noise_grid(bad)


@given(
    ratio=st.floats(1e-3, 1e5),
    size=st.integers(1, 10**6),
    least=st.floats(1e-2, 10),
)
@settings(deadline=None)
def test_widened_noise_pays_for_rounding(ratio: float, size: int, least: float) -> None:
    std = ratio * least
    sensitivity = Sensitivity(replace=2 * least, withhold=least)
    wide = widened_std(std, size, sensitivity)
    rounded = least + noise_grid(wide) * math.sqrt(size) + SUM_RESERVE * least
    assert rounded / wide <= least / std * (1 + 1e-15)
    assert wide < 1.5 * std


def test_noise_that_rounding_would_swamp_is_refused() -> None:
    with pytest.raises(InputError, match="exactly"):
        widened_std(1e9, 10**6, Sensitivity(replace=2.0, withhold=1.0))


def test_one_unsafe_seed_gives_independent_private_and_public_streams() -> None:
    private = UnsafeSeededNoise(7).uniform(20_000)
    public = public_generator(7).random(20_000)
    again = UnsafeSeededNoise(7).uniform(20_000)
    assert np.array_equal(private, again)
    assert len(np.intersect1d(private, public)) == 0
    for shift in range(3):
        paired = np.corrcoef(private[: 19_000 - shift], public[shift:19_000])[0, 1]
        assert abs(paired) < 7 / math.sqrt(19_000)


def test_streams_of_large_and_small_seeds_do_not_meet() -> None:
    """A seed of several words must not run into the number of the stream."""
    other = UnsafeSeededNoise(7 + (1 << 32)).uniform(100)
    public = np.random.Generator(np.random.Philox(np.random.SeedSequence([7, 1])))
    assert not np.array_equal(other, 1.0 - public.random(100))
    assert not np.array_equal(other, UnsafeSeededNoise(7).uniform(100))


@pytest.mark.parametrize("bad", [-1, 1.5, True, "7"])
def test_a_seed_that_is_no_whole_number_is_refused(bad: object) -> None:
    with pytest.raises(InputError, match="unsafe_seed"):
        noise_source(bad)  # type: ignore[arg-type]


def test_a_seeded_source_says_that_it_is_not_private() -> None:
    source = noise_source(5)
    assert not source.secure
    assert "not private" in source.description
