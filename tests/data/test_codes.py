"""A table holds each cell once, as a code: its blocks and levels are those of the value itself."""

from __future__ import annotations

import gzip
import io
import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from halfmask.accounting.budget import Budget
from halfmask.data import reading
from halfmask.data.encoding import Bins, Grid, Levels, Scaled, _Search, declared, level_codes
from halfmask.data.frames import dates, numbers, texts
from halfmask.data.products import CodedRows, feature_rows
from halfmask.data.reading import open_rows, read_frame
from halfmask.errors import DataError, InputError
from halfmask.mechanisms.noise import noise_source
from halfmask.schema import Column, Label, Schema, Unit
from halfmask.table import Encoder, Table
from halfmask.training import train

LABEL = Label("y", "private", classes=("no", "yes"))
WORDS = ("a", "b", "1", "true", "x y")
finite = st.floats(-1e6, 1e6, allow_nan=False)
wild = st.one_of(
    finite,
    st.floats(allow_nan=True),
    st.integers(-3, 70).map(float),
    st.sampled_from([0.0, -0.0, 5e-324, 1e308, -1e308, 0.5]),
)


@st.composite
def columns(draw: st.DrawFn, place: int, n: int) -> tuple[Column, Any]:
    """A column of any kind and role, and values that crowd at its edges."""
    name, role = f"c{place}", draw(st.sampled_from(["public", "private"]))
    kind: Any = draw(st.sampled_from(["number", "number", "date", "category", "bool"]))
    if kind == "category":
        levels = tuple(draw(st.lists(st.sampled_from(WORDS), unique=True, min_size=1)))
        known = role == "private" or draw(st.booleans())
        cells = draw(st.lists(st.sampled_from([*WORDS, "", "NA", " b "]), min_size=n, max_size=n))
        return Column(name, role, kind, categories=levels if known else None), cells
    if kind == "bool":
        cells = draw(st.lists(st.sampled_from(["true", "False", "1", ""]), min_size=n, max_size=n))
        return Column(name, role, kind), cells
    bins = draw(st.sampled_from([None, None, 0, 2, 7, 16, 64, 300]))
    known = role == "private" or draw(st.booleans())
    if kind == "date":
        days = st.integers(0, 20000) | st.integers(0, 3)
        cells = np.array(draw(st.lists(days, min_size=n, max_size=n)), dtype="datetime64[D]")
        bounds: Any = ("1970-01-01", draw(st.sampled_from(["1970-01-04", "2010-01-01"])))
        column = Column(name, role, kind, bounds=bounds if known else None, bins=bins)
        return column, pa.array(cells, mask=np.array(draw(masks(n))))
    low = draw(finite | st.integers(-5, 5).map(float))
    wide = draw(st.floats(1e-3, 1e6) | st.integers(1, 70).map(float))
    column = Column(name, role, kind, bounds=(low, low + wide) if known else None, bins=bins)
    parts = [low + wide * k / 64 for k in range(65)] + [low + wide * k / 16 for k in range(17)]
    if known and (bins or 0) > 0:
        parts += np.linspace(low, low + wide, (bins or 0) + 1).tolist()
    near = st.sampled_from(parts).flatmap(
        lambda at: st.sampled_from([at, np.nextafter(at, -np.inf), np.nextafter(at, np.inf)])
    )
    return column, draw(st.lists(near | wild, min_size=n, max_size=n))


def masks(n: int) -> st.SearchStrategy[list[bool]]:
    return st.lists(st.integers(0, 9).map(lambda chance: chance == 0), min_size=n, max_size=n)


@st.composite
def frames(draw: st.DrawFn) -> tuple[Schema, pa.Table]:
    n = draw(st.integers(1, 30))
    made = [draw(columns(place, n)) for place in range(draw(st.integers(1, 4)))]
    data = {column.name: cells for column, cells in made}
    data["y"] = draw(st.lists(st.sampled_from(["no", "yes"]), min_size=n, max_size=n))
    data["id"] = draw(st.lists(st.sampled_from(["u", "v", "w"]), min_size=n, max_size=n))
    unit = draw(st.none() | st.integers(1, 4).map(lambda most: Unit(column="id", max_rows=most)))
    return Schema(LABEL, tuple(column for column, _ in made), unit), pa.table(data)


def values_of(column: Column, frame: pa.Table) -> np.ndarray:
    return (dates if column.kind == "date" else numbers)(frame, column.name)


def level_of_text(coding: Levels, frame: pa.Table, name: str) -> np.ndarray:
    words = texts(frame, name)
    codes = level_codes(words, coding.levels)
    codes[codes < 0] = len(coding.levels)
    codes[np.asarray(pc.is_null(words))] = len(coding.levels) + 1
    return codes


def features(coding: Any, column: Column, frame: pa.Table) -> np.ndarray:
    """The part of a block, from the values: one-hot bins or levels, or a scaled number."""
    block = np.zeros((frame.num_rows, coding.width))
    every = np.arange(frame.num_rows)
    if isinstance(coding, Levels):
        block[every, level_of_text(coding, frame, column.name)] = 1.0
        return block
    values = values_of(column, frame)
    missing = np.isnan(values)
    if isinstance(coding, Bins):
        codes = np.searchsorted(np.asarray(coding.edges), values, side="right")
        codes[missing] = len(coding.edges) + 1
        block[every, codes] = 1.0
        return block
    assert isinstance(coding, Scaled)
    half = coding.high / 2 - coding.low / 2
    if half > 0:
        share = (np.clip(values, coding.low, coding.high) / 2 - coding.low / 2) / half
        block[:, 0] = np.where(missing, 0.0, np.clip(share * 2 - 1, -1.0, 1.0))
    block[:, 1] = missing
    return block


def grid_levels(grid: Grid | Levels, column: Column, frame: pa.Table) -> np.ndarray:
    if isinstance(grid, Levels):
        return level_of_text(grid, frame, column.name)
    values = values_of(column, frame)
    codes = np.searchsorted(np.asarray(grid.edges), values, side="right")
    codes[np.isnan(values)] = len(grid.edges) + 1
    return codes


@given(frames())
@settings(max_examples=300, deadline=None)
def test_blocks_and_levels_made_of_codes_are_those_of_the_values(
    made: tuple[Schema, pa.Table],
) -> None:
    schema, frame = made
    encoder = Encoder.fit(schema, frame)
    table = encoder.encode(frame)
    for role, block in (("public", table.public), ("private", table.private)):
        parts = [
            features(declared(column) or encoder._learnt[column.name], column, frame)
            for column in schema.columns
            if column.role == role
        ]
        whole = np.hstack([np.zeros((frame.num_rows, 0)), *parts])[table.rows]
        assert block.dtype == np.float64
        assert block.tobytes() == whole.tobytes()
    grids = encoder.grids
    assert grids is not None
    for column, coded in zip(schema.columns, table.coded, strict=True):
        expected = grid_levels(grids[column.name], column, frame)[table.rows]
        np.testing.assert_array_equal(coded.codes, expected)
        assert coded.levels == grids[column.name].width


@given(
    edges=st.lists(st.floats(allow_nan=False, allow_infinity=False), max_size=40)
    | st.lists(st.floats(-10, 10), max_size=90)
    | st.integers(1, 200).map(lambda k: (np.arange(k) / 7).tolist()),
    data=st.data(),
)
@settings(max_examples=300, deadline=None)
def test_searching_by_buckets_is_searching_by_halves(
    edges: list[float], data: st.DataObject
) -> None:
    ordered = np.unique(np.array(edges))
    with np.errstate(over="ignore"):
        at = [each for edge in edges for each in np.nextafter(edge, [-np.inf, edge, np.inf])]
    more = data.draw(st.lists(st.floats(allow_nan=False), max_size=40))
    values = np.array([*at, *more, np.inf, -np.inf, 0.0, -0.0])
    expected = np.searchsorted(ordered, values, side="right")
    np.testing.assert_array_equal(_Search(ordered)(values), expected)


@given(frames(), st.data())
@settings(max_examples=100, deadline=None)
def test_rows_kept_and_planted_are_the_same_in_every_form(
    made: tuple[Schema, pa.Table], data: st.DataObject
) -> None:
    schema, frame = made
    table = Encoder.fit(schema, frame).encode(frame)
    places = st.lists(st.integers(0, table.n - 1), min_size=1, max_size=table.n)
    rows, source = (np.array(data.draw(places)) for _ in "12")
    rows = np.unique(rows)
    source = np.resize(source, len(rows))
    some = table.kept(source)
    planted = table.planted(rows, some)
    for whole, part, after in zip(forms(table), forms(some), forms(planted), strict=True):
        np.testing.assert_array_equal(part, whole[source])
        expected = whole.copy()
        expected[rows] = part
        np.testing.assert_array_equal(after[:, :-1], expected[:, :-1])
    np.testing.assert_array_equal(planted.public, table.public)


def forms(table: Table) -> list[np.ndarray]:
    """Private features and private levels, each with the label as its last column."""
    levels = [column.codes for column in table.coded if column.private]
    assert table.label is not None
    return [
        np.column_stack([table.private, table.label]),
        np.column_stack([*levels, table.label]),
    ]


def test_codes_take_a_byte_and_no_block_is_made_unasked() -> None:
    n = 1000
    frame = pa.table({"a": np.linspace(0, 9, n), "b": ["x", "y"] * (n // 2), "y": ["no"] * n})
    columns = (Column("a", "private", "number", bounds=(0, 9.5)), Column("b", "public", "category"))
    table = Encoder.fit(Schema(LABEL, columns), frame).encode(frame)
    assert [column.codes.dtype for column in table.features.columns] == [np.uint8, np.uint8]
    assert len(table.coded) == 2
    assert not {"public", "private"} & set(vars(table.features))


def test_a_bare_array_takes_no_column_by_name() -> None:
    table = Table.from_arrays(np.ones((4, 2)), [0, 1, 0, 1])
    with pytest.raises(InputError, match="schema"):
        table.filled("x0", np.zeros(4))
    other = Table.from_arrays(np.zeros((2, 2)), [0, 1])
    planted = table.planted(np.array([1, 2]), other)
    assert [row.any() for row in planted.private] == [True, False, False, True]
    pairs = itertools.pairwise(planted.label)
    assert list(pairs) == [(0, 0), (0, 1), (1, 1)]


@given(made=frames(), kind=st.sampled_from(["parquet", "csv", "csv.gz"]), size=st.integers(1, 9))
@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_a_file_read_piece_by_piece_is_the_file_read_whole(
    made: tuple[Schema, pa.Table],
    kind: str,
    size: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    schema, frame = made
    path = tmp_path / f"rows.{kind}"
    write(frame, path)
    monkeypatch.setattr(reading, "_PIECE", size)
    monkeypatch.setattr(reading, "_LARGE_CSV", 0)
    monkeypatch.setattr(reading, "_CSV_BLOCK", 300)
    whole = read_frame(path)
    encoder = Encoder.fit(schema, whole)
    expected = encoder.encode(whole)
    with open_rows(path) as rows:
        assert rows.num_rows == frame.num_rows
        again = Encoder.fit(schema, rows)
        table = again.encode(rows)
        sizes = [piece.num_rows for _, piece in rows.pieces(["y"])]
        assert kind != "parquet" or max(sizes) <= size
    assert again.to_json() == encoder.to_json()
    assert table.public.tobytes() == expected.public.tobytes()
    assert table.private.tobytes() == expected.private.tobytes()
    for one, other in zip(table.coded, expected.coded, strict=True):
        assert one.codes.tobytes() == other.codes.tobytes()
    np.testing.assert_array_equal(table.label, expected.label)
    np.testing.assert_array_equal(table.rows, expected.rows)
    np.testing.assert_array_equal(table.unit, expected.unit)


def write(frame: pa.Table, path: Path) -> None:
    if path.suffix == ".parquet":
        parquet.write_table(frame, path, row_group_size=7)
        return
    content = io.BytesIO()
    pa.csv.write_csv(frame, content)
    data = content.getvalue()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)


@pytest.mark.parametrize("kind", ["parquet", "csv"])
def test_an_error_in_a_later_piece_names_the_row_of_the_file(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "_PIECE", 10)
    monkeypatch.setattr(reading, "_LARGE_CSV", 0)
    cells = ["1"] * 95
    cells[72] = "SECRET"
    path = tmp_path / f"rows.{kind}"
    write(pa.table({"a": cells, "y": ["no", "yes", "no", "no", "no"] * 19}), path)
    schema = Schema(LABEL, (Column("a", "private", "number", bounds=(0, 1)),))
    monkeypatch.setattr(reading, "_CSV_BLOCK", 64)
    with open_rows(path) as rows:
        assert len(list(rows.pieces(["a"]))) > 5
        with pytest.raises(DataError, match="'a', row 73") as caught:
            Encoder.fit(schema, rows).encode(rows)
    assert "SECRET" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"a,y\n1,no\n2\n", "data row 2: expected 2 values"),
        (b"a,y\n1,no\n\xff,no\n", "line 3: not UTF-8"),
        (b"a,a\n1,no\n", "one name for columns 1 and 2"),
        (b"a,y\n", "no data rows"),
        (b"", "is empty"),
    ],
)
def test_a_large_file_that_is_broken_says_what_a_small_one_says(
    content: bytes, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "_LARGE_CSV", 0)
    path = tmp_path / "rows.csv"
    path.write_bytes(content)
    with pytest.raises(DataError, match=words), open_rows(path):
        pass


def test_a_parquet_file_cut_short_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    write(pa.table({"a": [1, 2]}), path)
    path.write_bytes(path.read_bytes()[:40])
    with pytest.raises(DataError, match="write it again"), open_rows(path):
        pass


@pytest.mark.parametrize("bounds", [(0, 1), (-4, 4), (0, 10), (1, 16), (0, 40), (0, 64), (0, 75)])
def test_close_whole_bounds_tell_whole_numbers_apart_and_numbers_between_them(
    bounds: tuple[int, int],
) -> None:
    column = Column("a", "private", "number", bounds=bounds)
    whole = np.arange(bounds[0], bounds[1] + 1)
    fine = np.linspace(*bounds, 10_001)
    frame = pa.table({"a": np.concatenate([whole, fine]), "y": ["no"] * (len(whole) + len(fine))})
    (coded,) = Encoder.fit(Schema(LABEL, (column,)), frame).encode(frame).coded
    assert len(np.unique(coded.codes[: len(whole)])) == len(whole) or len(whole) > 65
    assert coded.values is not None
    # A level stands for a number within it.
    apart = np.abs(coded.values[coded.codes[len(whole) :]] - fine)
    assert apart.max() <= (bounds[1] - bounds[0]) / 48 + 1e-9


def both_roles(table: Table) -> list[tuple[Any, np.ndarray]]:
    """Each role's rows as codes, and the block that they stand for."""
    return [
        (feature_rows(table, private=private), table.private if private else table.public)
        for private in (False, True)
    ]


@given(frames(), st.data())
@settings(max_examples=150, deadline=None)
def test_products_with_codes_are_those_with_blocks(
    made: tuple[Schema, pa.Table], data: st.DataObject
) -> None:
    schema, frame = made
    table = Encoder.fit(schema, frame).encode(frame)
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    weights = rng.random(table.n)
    for rows, block in both_roles(table):
        assert isinstance(rows, CodedRows)
        n, width = block.shape
        assert rows.shape == block.shape
        assert len(block[0]) == 0 or np.linalg.norm(block, axis=1).max() <= np.sqrt(width)
        right, left = rng.normal(size=(width, 2)), rng.normal(size=(n, 3))
        np.testing.assert_allclose(rows.times(right), block @ right, atol=1e-12)
        np.testing.assert_allclose(rows.times(right[:, 0]), block @ right[:, 0], atol=1e-12)
        np.testing.assert_allclose(rows.crossed(left), block.T @ left, atol=1e-12)
        weighed = block.T @ (block * weights[:, None])
        np.testing.assert_allclose(rows.gram(weights), weighed, atol=1e-12)
        some = rng.integers(0, n, 5)
        np.testing.assert_array_equal(rows.block(some), block[some])
        np.testing.assert_array_equal(rows.block(slice(1, None, 2)), block[1::2])
        middle, scale = rng.normal(size=width), rng.random(width)
        form = rng.normal(size=(width, width))
        form = form @ form.T
        moved = block - middle
        squares = np.einsum("ij,jk,ik->i", moved, form, moved)
        np.testing.assert_allclose(rows.lengths(form, middle) ** 2, squares, atol=1e-9)
        lengths = np.linalg.norm(moved * scale, axis=1)
        np.testing.assert_allclose(rows.lengths_scaled(middle, scale), lengths, atol=1e-6)
        sums, of_squares = rows.column_sums()
        np.testing.assert_allclose(sums, block.sum(axis=0), atol=1e-12)
        np.testing.assert_allclose(of_squares, (block**2).sum(axis=0), atol=1e-12)
    (public, first), (private, second) = both_roles(table)
    across = first.T @ (second * weights[:, None])
    np.testing.assert_allclose(public.crossed_with(private, weights), across, atol=1e-12)


@given(frames(), st.data())
@settings(max_examples=100, deadline=None)
def test_no_digit_of_a_public_sum_follows_from_private_codes(
    made: tuple[Schema, pa.Table], data: st.DataObject
) -> None:
    """Public sums are exact and stored: a last digit that private codes round would be a leak."""
    schema, frame = made
    table = Encoder.fit(schema, frame).encode(frame)
    order = np.array(data.draw(st.permutations(range(table.n))))
    other = table.planted(np.arange(table.n), table.kept(order))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    weights, values = rng.random(table.n), rng.normal(size=(table.n, 2))
    first, second = (feature_rows(each, private=False) for each in (table, other))
    assert first.gram(weights).tobytes() == second.gram(weights).tobytes()
    assert first.crossed(values).tobytes() == second.crossed(values).tobytes()


def test_a_number_beyond_its_bounds_cannot_lengthen_a_row() -> None:
    columns = (Column("a", "private", "number", bounds=(0, 1), bins=0),)
    frame = pa.table({"a": [0.1, 0.5], "y": ["no", "yes"]})
    table = Encoder.fit(Schema(LABEL, columns), frame).encode(frame)
    wild = table.filled("a", np.array([1e6, -np.inf]))
    rows = feature_rows(wild, private=True)
    assert np.linalg.norm(rows.block(slice(None)), axis=1).max() <= 1.0
    assert np.abs(rows.times(np.ones(2))).max() <= 1.0
    (column,) = table.features.columns
    both = replace(column, codes=np.full(2, column.cells.count - 1), numbers=np.ones(2))
    forged = CodedRows([both], 2).block(slice(None))
    np.testing.assert_array_equal(forged, [[0.0, 1.0], [0.0, 1.0]])


def test_linear_methods_make_no_block_of_a_table() -> None:
    rng = np.random.default_rng(0)
    frame = pa.table({**{name: rng.random(400) for name in "abcd"}, "y": ["no", "yes"] * 200})
    columns = tuple(
        Column(name, role, "number", bounds=(0, 1))
        for name, role in zip("abcd", ["public", "public", "private", "private"], strict=True)
    )
    for method in ("gd", "one-shot", "sgd", "dp-sgd"):
        table = Encoder.fit(Schema(LABEL, columns), frame).encode(frame)
        model = train(table, Budget(epsilon=1.0, delta=1e-6), method=method, noise=noise_source())
        model.predict(table)
        assert not {"public", "private"} & set(vars(table.features)), method


@pytest.mark.parametrize("kind", ["parquet", "csv"])
def test_parts_of_a_file_are_its_rows_in_order(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "_PIECE", 10)
    monkeypatch.setattr(reading, "_LARGE_CSV", 0)
    monkeypatch.setattr(reading, "_CSV_BLOCK", 64)
    cells = [str(place) for place in range(95)]
    path = tmp_path / f"rows.{kind}"
    write(pa.table({"a": cells, "y": ["no"] * 95}), path)
    with open_rows(path) as rows:
        for ends in ((0, 95), (0, 1), (7, 40), (40, 60), (94, 95)):
            part = rows.part(range(*ends))
            assert part.num_rows == ends[1] - ends[0]
            assert part.columns(["y", "a"])["a"].to_pylist() == cells[slice(*ends)]
            starts = [(start, piece.num_rows) for start, piece in part.pieces(["a"])]
            assert starts[0][0] == 0
            assert sum(count for _, count in starts) == part.num_rows
