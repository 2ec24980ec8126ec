"""Codings and grids of single columns, written out by hand."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from halfmask.data import encoding
from halfmask.data.encoding import (
    Bins,
    Cells,
    Grid,
    Levels,
    Scaled,
    coding_from_json,
    declared,
    declared_grid,
    even_parts,
    grid_from_json,
    learnt_both,
    learnt_coding,
    learnt_grid,
    level_codes,
    same_levels,
    told_edges,
)
from halfmask.errors import DataError, SchemaError
from halfmask.schema import DEFAULT_BINS, Column


def number(role: str = "private", **how: Any) -> Column:
    return Column("x", role, "number", **how)  # type: ignore[arg-type]


def test_a_declaration_alone_gives_the_coding() -> None:
    assert declared(number(bounds=(0.0, 10.0), bins=4)) == Bins(edges=(2.5, 5.0, 7.5))
    assert declared(number(bounds=(-2.0, 6.0), bins=0)) == Scaled(low=-2.0, high=6.0)
    default = declared(number(bounds=(0.0, 1.0)))
    assert isinstance(default, Bins)
    assert default.width == DEFAULT_BINS + 1
    assert declared(number("public")) is None
    assert declared(Column("x", "public", "category")) is None
    named = declared(Column("x", "private", "category", categories=("a", "b")))
    assert named == Levels(levels=("a", "b"))
    assert declared(Column("x", "private", "bool")) == Levels(levels=("false", "true"))
    dated = declared(Column("x", "private", "date", bounds=("1970-01-01", "1970-01-03"), bins=2))
    assert dated == Bins(edges=(86400.0,), unit="date")


def test_widths_and_names_of_a_coding() -> None:
    bins = Bins(edges=(2.5, 5.0))
    assert bins.width == 4
    assert bins.names("x") == ["x=..2.5", "x=2.5..5", "x=5..", "x=<missing>"]
    levels = Levels(levels=("a", "b"))
    assert levels.width == 4
    assert levels.names("x") == ["x=a", "x=b", "x=<other>", "x=<missing>"]
    assert Scaled(low=0.0, high=1.0).width == 2
    assert Scaled(low=0.0, high=1.0).names("x") == ["x", "x=<missing>"]
    dated = Bins(edges=(86400.0,), unit="date").names("x")
    assert dated == ["x=..1970-01-02", "x=1970-01-02..", "x=<missing>"]
    timed = Bins(edges=(90061.5,), unit="date").names("x")
    assert timed[0] == "x=..1970-01-02T01:01:01.5"


def test_ends_of_bins_are_told_in_few_digits() -> None:
    """Each within a hundredth of the narrower bin beside it, so that none runs into another."""
    edges = (1e-9, 39.0625, 195.3125, 1562.5, 5625.0, 19960.9)
    assert told_edges(edges) == (0, 39, 195, 1560, 5600, 20000)
    for some in (edges, (0.001234, 0.002234), (1234567.891, 1234568.5), (-7.25, 3.5)):
        told, widths = np.array(told_edges(some)), np.diff(some)
        near = np.minimum([*widths, np.inf], [np.inf, *widths])
        assert (np.abs(told - some) <= near / 100 + 1e-6).all()
    assert (told_edges(()), told_edges((3.7,))) == ((), (3.7,))


@pytest.mark.parametrize(
    "edges",
    [
        (1e6, 2e6, 3e6),
        (1234567.0, 1234568.0, 1234569.0),
        (1e-9, 2e-9, 1.0),
        (-1.7e308, 0.0, 1.7e308),
        (5e-324, 1e-323),
        (999999.25, 999999.5),
    ],
)
def test_every_bin_has_a_name_of_its_own_however_large_its_ends(edges: tuple[float, ...]) -> None:
    names = Bins(edges=edges).names("x")
    assert len(set(names)) == len(edges) + 2
    lows = [float(name.split("=")[1].split("..")[0]) for name in names[1:-1]]
    assert lows == sorted(set(lows))


def test_ends_above_a_million_are_told_in_all_their_digits() -> None:
    assert Bins(edges=(1234567.0, 2234567.5)).names("x")[1] == "x=1230000..2230000"
    assert Bins(edges=(1234567.0, 1234569.0)).names("x")[1] == "x=1234567..1234569"
    assert Bins(edges=(2e6,)).names("x")[0] == "x=..2000000"


def test_a_scaled_number_stays_within_one_and_a_missing_one_is_zero() -> None:
    coding = Scaled(low=-2.0, high=6.0)
    values = np.array([-2.0, 2.0, 6.0, -10.0, 99.0, math.inf, math.nan, 0.0])
    assert coding.scaled(values).tolist() == [-1.0, 0.0, 1.0, -1.0, 1.0, 1.0, 0.0, -0.5]
    assert coding.unscaled(np.array([-1.0, 0.0, 1.0, 0.5])).tolist() == [-2.0, 2.0, 6.0, 4.0]
    assert Scaled(low=3.0, high=3.0).scaled(values).tolist() == [0.0] * 8
    huge = Scaled(low=-1.7e308, high=1.7e308).scaled(np.array([-1.7e308, 0.0, 1.7e308]))
    assert huge.tolist() == [-1.0, 0.0, 1.0]


def test_levels_are_followed_by_other_and_missing() -> None:
    table = pa.table({"x": ["b", "z", None, "a"]})
    assert Levels(levels=("a", "b")).codes(table, "x").tolist() == [1, 2, 3, 0]


@pytest.mark.parametrize(
    "bounds", [(1.0, 1.0000000000000002), (0.0, 5e-324), (1.0, 1.000000000001)]
)
def test_a_grid_has_a_value_for_each_level_however_close_its_bounds(
    bounds: tuple[float, float],
) -> None:
    grid = declared_grid(number(bounds=bounds, bins=0))
    assert isinstance(grid, Grid)
    assert len(grid.values) == len(grid.edges) + 1 == grid.width - 1
    assert all(bounds[0] < edge < bounds[1] for edge in grid.edges)


def test_bins_of_the_schema_are_the_grid_with_middles_for_values() -> None:
    grid = declared_grid(number(bounds=(0.0, 10.0), bins=4))
    assert grid == Grid(edges=(2.5, 5.0, 7.5), values=(0.0, 3.75, 6.25, 10.0))
    assert grid.width == 5


@pytest.mark.parametrize(("high", "parts"), [(10, 3), (24, 1), (64, 1), (1, 24), (5, 5)])
def test_close_whole_bounds_have_a_level_around_each_whole_number(high: int, parts: int) -> None:
    grid = declared_grid(number(bounds=(-3.0, float(high - 3))))
    assert isinstance(grid, Grid)
    values, edges = np.array(grid.values), np.array(grid.edges)
    assert np.allclose(values, -3 + np.arange(high * parts + 1) / parts)
    assert np.allclose(edges, (values[1:] + values[:-1]) / 2)


@pytest.mark.parametrize("bounds", [(0.0, 65.0), (0.5, 1.5), (2.0, 900.0)])
def test_other_bounds_have_equal_parts_and_finer_ones_at_the_lower_end(
    bounds: tuple[float, float],
) -> None:
    low, high = bounds
    grid = declared_grid(number(bounds=bounds))
    assert isinstance(grid, Grid)
    edges, part = np.array(grid.edges), (high - low) / 64
    assert low < edges[0]
    assert edges[-1] < high
    assert (np.diff(edges) > 0).all()

    def has(edge: float) -> bool:
        return bool(np.isclose(edges, edge, rtol=1e-12, atol=1e-13 * (high - low)).any())

    for step in range(1, 64):
        assert has(low + step * part)
    for distance in (1 / 32, 1 / 16, 1 / 8, 1 / 4, 1 / 2):
        assert has(low + distance * part)
        assert has(high - distance * part)
    # Eight to a doubling from half a part on, from the lower end alone.
    for distance in (9 / 16, 5 / 8, 1.125, 2.25, 4.5, 7.5):
        assert has(low + distance * part)
    assert not has(high - 1.125 * part)
    assert not has(low + 8.5 * part)
    # None finer than a 32nd of a part but the ends, nor eight to a doubling below a half.
    assert not has(low + part / 64)
    assert not has(low + 9 / 32 * part)
    # Ends have levels of their own.
    assert edges[0] == pytest.approx(low + 1e-9 * (high - low), rel=1e-12)
    assert edges[-1] == pytest.approx(high - 1e-9 * (high - low), rel=1e-12)
    assert grid.values[0] == low
    assert grid.values[-1] == high
    assert np.allclose(grid.values[1:-1], (edges[1:] + edges[:-1]) / 2)


def test_bounds_on_both_sides_of_zero_are_finer_around_it() -> None:
    grid = declared_grid(number(bounds=(-100.0, 61.0)))
    assert isinstance(grid, Grid)
    edges, part = np.array(grid.edges), 161 / 64
    for distance in (1 / 32, 1 / 2, 1.125, 4.5):
        for sign in (-1, 1):
            assert np.isclose(edges, sign * distance * part, rtol=1e-12).any()
    own = np.searchsorted(edges, 0.0)
    assert edges[own] == pytest.approx(161e-9)
    assert edges[own - 1] == pytest.approx(-161e-9)
    assert not np.isclose(edges, -100 + 1.125 * part, rtol=1e-12).any()
    for distance in (1 / 32, 1 / 4, 1, 2):
        assert np.isclose(edges, -100 + distance * part, rtol=1e-12).any()


def test_a_public_number_keeps_its_distinct_values_with_their_means() -> None:
    table = pa.table({"x": [5.0, 1.0, 2.0, 1.0, None, math.inf]})
    grid = learnt_grid(number("public"), table)
    assert grid == Grid(edges=(1.5, 3.5), values=(1.0, 2.0, 5.0))
    coding, both = learnt_both(number("public", bins=0), table)
    assert coding == Scaled(low=1.0, high=5.0)
    assert both == grid
    coding, both = learnt_both(number("public", bins=2), table)
    assert coding == learnt_coding(number("public", bins=2), table)
    assert isinstance(both, Grid)
    assert len(both.edges) == 1
    known, _ = learnt_both(number("public", bounds=(0.0, 9.0)), table)
    assert known is None


def test_mostly_zeros_leave_bins_for_the_rest() -> None:
    values = np.concatenate([np.zeros(940), np.arange(1, 61)])
    edges = encoding._distinct_edges(values, 16)
    assert len(edges) == 15
    assert edges[0] == 0.5
    counts = np.diff(np.searchsorted(values, edges), prepend=0, append=1000)
    assert counts[0] == 940
    # Sixty rare values in fifteen bins: four each.
    assert counts[1:].tolist() == [4] * 15


def test_values_that_fit_have_an_edge_between_any_two() -> None:
    assert encoding._distinct_edges(np.array([1.0, 1.0, 4.0]), 2).tolist() == [2.5]
    assert encoding._distinct_edges(np.array([1.0]), 2).tolist() == []
    assert encoding._distinct_edges(np.array([]), 2).tolist() == []
    assert len(encoding._distinct_edges(np.arange(100.0), 10)) == 9


@pytest.mark.parametrize(
    ("counts", "most", "ends"),
    [
        ([1, 1, 1, 1], 4, [0, 1, 2]),
        ([1, 1, 1, 1], 2, [1]),
        ([1, 1, 1, 1], 1, []),
        ([5, 1, 1, 1], 2, [0]),
        ([3, 9, 1, 1], 3, [0, 1]),
        ([1, 1, 1, 1, 1, 1], 3, [1, 3]),
        ([3, 9, 0, 0, 0], 2, [0]),
    ],
)
def test_parts_are_even_and_a_heavy_place_has_its_own(
    counts: list[int], most: int, ends: list[int]
) -> None:
    assert even_parts(np.array(counts), most).tolist() == ends


def test_a_public_number_learns_quantiles_above_its_least_value() -> None:
    values = np.sort(np.concatenate([np.zeros(50), np.arange(1.0, 51.0)]))
    found = encoding._learnt_range(number("public", bins=4), values)
    assert found == Bins(edges=(1.0, 26.0))
    even = encoding._learnt_range(number("public", bins=4), np.arange(100.0))
    assert even == Bins(edges=(25.0, 50.0, 75.0))
    assert encoding._learnt_range(number("public", bins=4), np.array([])) == Bins(edges=())
    empty = encoding._learnt_range(number("public", bins=0), np.array([]))
    assert empty == Scaled(low=0.0, high=0.0)


def test_nothing_is_learnt_from_a_private_column() -> None:
    table = pa.table({"x": [1.0, 2.0]})
    for ask in (learnt_coding, learnt_grid):
        with pytest.raises(SchemaError, match="private"):
            ask(number(bounds=(0.0, 1.0)), table)


@pytest.mark.parametrize(
    "coding",
    [
        Bins(edges=(1.0, 2.5)),
        Bins(edges=(86400.0,), unit="date"),
        Scaled(low=-1.0, high=2.0),
        Levels(levels=("a", "b")),
    ],
)
def test_codings_survive_json(coding: Any) -> None:
    assert coding_from_json(json.loads(json.dumps(coding.to_json()))) == coding


@pytest.mark.parametrize(
    "grid",
    [
        Grid(edges=(1.0, 2.5), values=(0.0, 2.0, 3.0)),
        Grid(edges=(1.0, 1.5), values=(0.0, 1.25, 2.0)),
        Grid(edges=(), values=(0.0,), unit="date"),
        Levels(levels=("a",)),
    ],
)
def test_grids_survive_json(grid: Any) -> None:
    assert grid_from_json(json.loads(json.dumps(grid.to_json()))) == grid


@pytest.mark.parametrize(
    "stored",
    [
        {"grid": [1.0, 2.0], "values": [0.0, 1.0]},
        {"grid": [1.0, 1.0], "values": [0.0, 1.0, 2.0]},
        {"grid": [2.0, 1.0], "values": [0.0, 1.0, 2.0]},
        {"grid": [1.0, math.inf], "values": [0.0, 1.0, 2.0]},
        {"grid": [1.0], "values": [0.0, math.nan]},
        {"grid": [[1.0]], "values": [0.0, 1.0]},
        {"grid": [1.0]},
        {"grid": ["a"], "values": [0.0, 1.0]},
        {"edges": [1.0]},
        {"range": [1.0, 2.0]},
        {},
    ],
)
def test_a_damaged_grid_is_refused(stored: dict[str, Any]) -> None:
    with pytest.raises(DataError, match="damaged"):
        grid_from_json(stored)


def test_the_same_text_wins_and_what_equals_two_levels_is_neither() -> None:
    values = pa.chunked_array([["1", "1.0", "2.50", "2.5", "x", None, "TRUE", "true"]])
    assert level_codes(values, ("1", "2.5", "2.50")).tolist() == [0, 0, 2, 1, -1, -1, 0, 0]
    ambiguous = pa.chunked_array([["2.500", "2.5"]])
    assert level_codes(ambiguous, ("2.5", "2.50")).tolist() == [-1, 0]
    assert same_levels(("2.5", "2.50"))
    assert same_levels(("1", "true"))
    assert not same_levels(("1", "2", "x"))
    assert not same_levels(("x", "y"))
    assert same_levels(("2.5", "2.50", "3"))
    assert same_levels(("1", "true", "5"))


def test_the_most_frequent_levels_are_kept_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoding, "MAX_LEARNT_LEVELS", 2)
    values = pa.chunked_array([["c", "b", "c", None, "a", "b", "c"]])
    assert encoding._frequent_levels(values) == ("b", "c")
    # Equal counts: the first by name.
    assert encoding._frequent_levels(pa.chunked_array([["c", "b", "a"]])) == ("a", "b")


@pytest.mark.parametrize("edges", [(), (0.0,), (-1.0, 0.5, 2.0)])
def test_cells_know_feature_and_level_of_every_value(edges: tuple[float, ...]) -> None:
    coding = Bins(edges=(0.0, 1.0))
    grid = Grid(edges=edges, values=tuple(range(len(edges) + 1)))
    cells = Cells(coding, grid)
    values = np.array([-5.0, -1.0, -0.5, 0.0, 0.25, 0.5, 1.0, 1.5, 2.0, 9.0, math.nan])
    codes = cells.of_values(values)
    assert codes.dtype == np.uint8
    assert codes.max() == cells.count - 1
    for made, own in ((cells.places, coding.edges), (cells.level_of, edges)):
        assert made is not None
        expected = np.searchsorted(np.array(own), values, side="right")
        expected[-1] = len(own) + 1
        assert made[codes].tolist() == expected.tolist()


def test_cells_of_equal_edges_are_the_levels() -> None:
    same = Cells(Bins(edges=(0.0, 1.0)), Grid(edges=(0.0, 1.0), values=(0.0, 1.0, 2.0)))
    assert same.level_of is None
    assert same.count == 4
    scaled = Cells(Scaled(low=0.0, high=1.0), None)
    assert scaled.places is None
    assert scaled.count == 2
    levels = Levels(levels=("a", "b"))
    named = Cells(levels, levels)
    assert named.count == 4
    assert named.places is not None
    assert named.places.tolist() == [0, 1, 2, 3]
    with pytest.raises(DataError, match="damaged"):
        Cells(levels, Levels(levels=("a",)))


@pytest.mark.parametrize("spread", ["even", "crowded", "one", "none", "huge"])
def test_searching_by_buckets_is_searching(spread: str) -> None:
    rng = np.random.default_rng(1)
    edges = {
        "even": np.linspace(-1, 1, 200),
        "crowded": np.concatenate([np.arange(6) * 1e-9, [5.0]]),
        "one": np.array([0.3]),
        "none": np.array([]),
        "huge": np.array([-1.7e308, 0.0, 1.7e308]),
    }[spread]
    values = np.concatenate([edges, rng.normal(size=40_000), [-math.inf, math.inf]])
    found = encoding._Search(edges)(values)
    assert np.array_equal(found, np.searchsorted(edges, values, side="right"))


@pytest.mark.parametrize(
    ("edges", "told"),
    [
        # A bin of 0.5: a number may be off by 0.005, and by no more.
        ((10.00495, 10.50495), (10.0, 10.5)),
        ((10.0051, 10.5051), (10.01, 10.51)),
        # A bin of 8: one digit is enough.
        ((5.06, 13.06), (5.0, 13.0)),
        # A lone one is off by a millionth at most.
        ((1.0000009,), (1.0,)),
        ((1.0000011,), (1.000001,)),
        # Below a millionth of the largest it is zero, from there on it is not.
        ((9e-7, 1.0), (0.0, 1.0)),
        ((1e-6, 1.0), (1e-6, 1.0)),
        ((1.5e-6, 1.0), (2e-6, 1.0)),
    ],
)
def test_an_end_is_told_within_a_hundredth_of_its_bin(
    edges: tuple[float, ...], told: tuple[float, ...]
) -> None:
    assert told_edges(edges) == told


def test_a_range_narrower_than_two_is_scaled_too() -> None:
    assert Scaled(low=0.0, high=1.0).scaled(np.array([0.0, 0.25, 1.0])).tolist() == [-1, -0.5, 1]
    assert Scaled(low=2.0, high=2.5).scaled(np.array([2.125])).tolist() == [-0.5]


@pytest.mark.parametrize("ends", [(-3.0, 5.0), (0.0, 0.5), (-1e-3, 1e-3), (7.0, 9.0)])
def test_edges_that_are_evenly_spread_lie_in_buckets_of_their_own(
    ends: tuple[float, float],
) -> None:
    """Four thousand edges, 4096 buckets: each value is compared with one edge."""
    edges = np.linspace(*ends, 4_000)
    search = encoding._Search(edges)
    assert search._turns == 1
    values = np.concatenate([edges, edges[1:] - 1e-9, [-1e9, 1e9]])
    assert np.array_equal(search(values), np.searchsorted(edges, values, side="right"))


def test_a_thousand_levels_are_learnt_and_a_hundred_and_twenty_eight_parts() -> None:
    words = pa.chunked_array([[f"{n:04d}" for n in range(1_001)]])
    assert len(encoding._frequent_levels(words)) == 1_000
    grid = learnt_grid(number("public"), pa.table({"x": np.arange(129.0)}))
    assert isinstance(grid, Grid)
    assert len(grid.values) == 128
    exact = learnt_grid(number("public"), pa.table({"x": np.arange(128.0)}))
    assert isinstance(exact, Grid)
    assert exact.values == tuple(range(128))


def test_the_value_of_a_level_is_the_mean_of_its_numbers_however_many() -> None:
    """More numbers than are added at a time, of which some are missing or infinite."""
    values = np.tile([1.0, 2.0, 4.0, 8.0], 40_000)
    values[3::4] += np.arange(40_000) % 2
    table = pa.table({"x": np.concatenate([values, [math.nan, math.inf, -math.inf]])})
    grid = learnt_grid(number("public", bins=4), table)
    assert isinstance(grid, Grid)
    assert grid.edges == (1.5, 3.0, 6.0)
    assert grid.values == pytest.approx((1.0, 2.0, 4.0, 8.5), rel=1e-9)


def test_what_is_declared_is_not_learnt_and_the_rest_is() -> None:
    words = pa.table({"x": ["b", "a", "b"]})
    open_column = Column("x", "public", "category")
    assert learnt_both(open_column, words) == (Levels(levels=("a", "b")), Levels(levels=("a", "b")))
    closed = Column("x", "public", "category", categories=("b", "c"))
    assert learnt_both(closed, words) == (None, Levels(levels=("b", "c")))
    truth = Column("x", "public", "bool")
    assert learnt_both(truth, pa.table({"x": [True]})) == (None, Levels(levels=("false", "true")))
    with pytest.raises(SchemaError, match="private"):
        learnt_both(number(bounds=(0.0, 1.0)), pa.table({"x": [0.5]}))


def test_rare_neighbours_are_one_value_and_frequent_ones_are_not() -> None:
    """Ten thousand rare numbers after three frequent ones, in eight parts."""
    heavy = np.repeat([1.0, 2.0, 3.0], 4_000)
    values = np.concatenate([heavy, 10 + np.arange(10_000.0)])
    edges = encoding._distinct_edges(values, 8)
    assert edges[:3].tolist() == [1.5, 2.5, 6.5]
    counts = np.diff(np.searchsorted(values, edges), prepend=0, append=len(values))
    assert counts[:3].tolist() == [4_000] * 3
    # The rare ones share five parts evenly, to a 4096th of all.
    assert len(counts) == 8
    assert np.abs(counts[3:] - 2_000).max() <= 2 * len(values) / 4096 + 1


def test_a_frequent_value_among_rare_ones_keeps_a_part_of_its_own() -> None:
    rare = np.arange(20_000.0)
    values = np.sort(np.concatenate([rare, np.full(8_000, 13_500.0)]))
    edges = encoding._distinct_edges(values, 5)
    assert 13_499.5 in edges
    assert 13_500.5 in edges


@pytest.mark.parametrize(
    ("counts", "most", "ends"),
    [
        # 3 of 10 in two parts is a part of its own (0.3·10/2 = 1.5), 1 of 10 is not.
        ([3, 6, 1], 2, [0]),
        ([1, 8, 1], 2, [1]),
        # Exactly three tenths of a part are enough.
        ([3, 20, 17, 0], 4, [0, 1, 2]),
        # A place of exactly a part has its own.
        ([2, 5, 3], 2, [0]),
        # What is left is shared by the parts that are left.
        ([6, 1, 1, 1, 1, 1, 1], 4, [0, 2, 4]),
        ([1, 9, 1, 1, 1, 1], 4, [1, 3, 4]),
    ],
)
def test_parts_end_where_a_heavy_place_begins(
    counts: list[int], most: int, ends: list[int]
) -> None:
    assert even_parts(np.array(counts), most).tolist() == ends


def test_rare_values_are_counted_in_four_thousand_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neighbours that are rare together are one: parts are found in a time that does not grow."""
    seen: list[np.ndarray] = []
    usual = encoding.even_parts

    def noted(counts: np.ndarray, most: int) -> np.ndarray:
        seen.append(counts)
        return usual(counts, most)

    monkeypatch.setattr(encoding, "even_parts", noted)
    values = np.sort(np.concatenate([np.arange(20_000.0), np.full(480, 7_000.0)]))
    encoding._distinct_edges(values, 10)
    (counts,) = seen
    assert counts.sum() == len(values)
    assert 4_000 <= len(counts) <= 4_100
    # 20,480 values in 4096 groups are five each; a frequent one is a group of its own.
    assert np.median(counts) == 5
    assert counts.max() == 481


@pytest.mark.parametrize("seed", range(20))
def test_a_scaled_number_is_within_one_whatever_its_range(seed: int) -> None:
    """Ranges of all sizes, down to those of a few of the smallest doubles."""
    rng = np.random.default_rng(seed)
    sizes = rng.choice([1e-323, 1e-310, 1e-300, 1e-9, 1.0, 1e9, 1e308], 2)
    low, high = np.sort(rng.uniform(-1, 1, 2) * sizes)
    inside = rng.uniform(0, 1, 2_000) * (high / 2 - low / 2) * 2 + low
    values = np.concatenate([[low, high, -math.inf, math.inf, 0.0], inside])
    scaled = Scaled(low=float(low), high=float(high)).scaled(values)
    assert np.abs(scaled).max() <= 1
    if high > low:
        assert np.abs(scaled[:2]).tolist() in ([1.0, 1.0], [0.0, 0.0])
