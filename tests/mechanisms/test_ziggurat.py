"""The ziggurat: its layers, and whether what it draws can be told from normals."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from halfmask.mechanisms import noise as ziggurat
from halfmask.mechanisms.noise import SystemNoise, noise_grid

DRAWS = 4_000_000
# A right sampler fails a test of this level once in a thousand million runs.
LEVEL = 1e-9


@pytest.fixture(scope="module")
def drawn() -> NDArray[np.float64]:
    return SystemNoise().normal(DRAWS)


def words(seed: int) -> ziggurat.Words:
    generator = np.random.default_rng(seed)
    return lambda count: generator.integers(0, 1 << 64, count, dtype=np.uint64)


def test_all_layers_have_one_area_and_end_at_the_top_of_the_curve() -> None:
    edge = ziggurat._EDGE
    height = np.exp(-0.5 * edge**2)
    areas = edge[1:-1] * np.diff(height[1:])
    tail = math.sqrt(2 * math.pi) * stats.norm.sf(ziggurat.TAIL)
    lowest = ziggurat.TAIL * height[1] + tail
    assert len(areas) + 1 == ziggurat.LAYERS
    assert np.allclose(areas, lowest, rtol=1e-11, atol=0)
    assert edge[0] * height[1] == pytest.approx(lowest, rel=1e-12)


def test_every_cell_of_the_grid_holds_many_points_of_every_layer() -> None:
    assert noise_grid(1.0) / ziggurat._STEP.max() > 2**21
    # For a width just below a power of two the grid is half as fine against it.
    wide = 2.0 - 2.0**-40
    assert noise_grid(wide) / wide / ziggurat._STEP.max() > 2**20


def test_moments_are_those_of_a_normal(drawn: NDArray[np.float64]) -> None:
    for power, (moment, variance) in {1: (0, 1), 2: (1, 2), 3: (0, 15), 4: (3, 96)}.items():
        found = float(np.mean(drawn**power))
        assert abs(found - moment) < 7 * math.sqrt(variance / DRAWS)


def test_kolmogorov_and_smirnov_see_a_normal(drawn: NDArray[np.float64]) -> None:
    # P(√n·D > x) is about 2 exp(−2x²), so 3.5 is passed by chance with 5e-11.
    found = stats.kstest(drawn[:1_000_000], "norm").statistic
    assert found < 3.5 / math.sqrt(1_000_000)


@pytest.mark.parametrize("beyond", [3.0, ziggurat.TAIL, 4.0, 4.5])
@pytest.mark.parametrize("sign", [-1.0, 1.0])
def test_tails_are_as_heavy_as_they_should_be(
    drawn: NDArray[np.float64], beyond: float, sign: float
) -> None:
    found = int(np.count_nonzero(sign * drawn > beyond))
    assert stats.binomtest(found, DRAWS, stats.norm.sf(beyond)).pvalue > LEVEL


def test_the_tail_alone_follows_the_normal_beyond_its_start() -> None:
    found = ziggurat._tail(200_000, words(1))
    share = stats.norm.sf(found) / stats.norm.sf(ziggurat.TAIL)
    assert stats.kstest(share, "uniform").statistic < 3.5 / math.sqrt(len(found))


def test_rectangles_and_wedges_hold_their_share_and_the_sign_is_independent_of_both(
    drawn: NDArray[np.float64],
) -> None:
    """Halves of the strips between the layers: wedges that are always or never kept show here."""
    edge = ziggurat._EDGE[1:][::-1]
    bounds = np.sort(np.concatenate([edge, (edge[:-1] + edge[1:]) / 2, [math.inf]]))
    shares = 2 * np.diff(stats.norm.cdf(bounds))
    positive = np.histogram(drawn[drawn > 0], bounds)[0]
    negative = np.histogram(-drawn[drawn < 0], bounds)[0]
    assert stats.chisquare(positive + negative, shares / shares.sum() * DRAWS).pvalue > LEVEL
    assert stats.chi2_contingency([positive, negative]).pvalue > LEVEL


def test_the_layer_takes_bits_that_the_point_does_not_use() -> None:
    high = np.arange(-3, 4, dtype=np.int64) * (1 << 40) + 12_345
    for layer in (0, 1, 100, 255):
        point = np.empty(len(high))
        found, outside = ziggurat._points(
            point, lambda count, layer=layer: ((high << 8) + layer).view(np.uint64)
        )
        assert (found == layer).all()
        assert len(outside) == 0 or layer == 255
        assert np.array_equal(point, high * ziggurat._STEP[layer])


def test_neighbours_are_uncorrelated(drawn: NDArray[np.float64]) -> None:
    for shift in (1, 2, 256):
        for power in (1, 2):
            values = drawn**power
            found = np.corrcoef(values[shift:], values[:-shift])[0, 1]
            assert abs(found) < 7 / math.sqrt(DRAWS)


def test_a_deep_tail_uniform_still_has_a_doubles_digits() -> None:
    """Every k below 2¹¹ of the first word, told apart by the second."""
    given = [np.zeros(2000, np.uint64), np.arange(2000, dtype=np.uint64) << np.uint64(11)]
    found = ziggurat.uniforms(2000, lambda count: given.pop(0))
    assert len(np.unique(found)) == 2000
    assert 0 < found.max() < 2.0**-64


@pytest.mark.parametrize("std", [1.0, 1.3, 2.0 - 2.0**-40])
def test_cells_of_the_grid_have_the_probability_of_the_normal(std: float) -> None:
    """Counted word by word: how far the points and their rounding are from the ideal."""
    scale = std / noise_grid(std)
    cells = np.random.default_rng(0).uniform(0, 3.6 * scale, 400).round()[:, None]
    edge = ziggurat._EDGE

    def words_below(bound: NDArray[np.float64]) -> NDArray[np.int64]:
        """In every layer, the words whose noise is rounded to less than `bound`."""
        low = np.zeros((len(bound), ziggurat.LAYERS), dtype=np.int64)
        high = np.full_like(low, 1 << 55)
        while (low < high).any():
            middle = (low + high) // 2
            below = np.rint(middle.astype(np.float64) * ziggurat._STEP * scale) < bound
            low, high = np.where(below, middle + 1, low), np.where(below, high, middle)
        return low

    counts = words_below(cells + 1) - words_below(cells)
    point = cells / scale
    density = np.exp(-0.5 * point**2)
    floor, roof = np.exp(-0.5 * edge[:-1] ** 2), np.exp(-0.5 * edge[1:] ** 2)
    kept = np.clip((density - floor) / (roof - floor), 0.0, 1.0)
    kept[:, 0] = 1.0
    area = ziggurat.LAYERS * edge[0] * roof[0]
    found = (counts * kept).sum(1) * 2.0**-55 / ziggurat.LAYERS
    error = found * scale * area / density[:, 0] - 1.0
    assert np.abs(error).max() < 2.0**-16
    assert math.sqrt(np.average(error**2, weights=density[:, 0])) < 2.0**-18
