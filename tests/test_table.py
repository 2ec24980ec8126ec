"""Frames become blocks: what is learnt, how values are read, and that nothing private is learnt."""

from __future__ import annotations

import json
import resource
import time
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from halfmask.data.encoding import learnt_coding
from halfmask.errors import DataError, SchemaError
from halfmask.schema import Column, Label, Schema, Unit
from halfmask.table import Encoder, Table

CLASSES = Label("y", "private", classes=("no", "yes"))
SCHEMA = Schema(
    CLASSES,
    (
        Column("age", "public", "number", bins=4),
        Column("city", "public", "category"),
        Column("hours", "private", "number", bounds=(0, 100), bins=4),
        Column("wage", "private", "number", bounds=(-1, 1), bins=0),
        Column("work", "private", "category", categories=("a", "b")),
    ),
)
DATA = {
    "age": ["20", "30", "40", "50", ""],
    "city": ["Bonn", "Ulm", " Bonn", "NA", "Ulm"],
    "hours": ["0", "24.9", "25", "1e9", "-inf"],
    "wage": ["-1", "0", "7", "NaN", " 0.5 "],
    "work": ["a", " b", "zebra", "", "a "],
    "y": ["no", "yes", "no", "yes", "no"],
    "unread": ["x"] * 5,
}


def frame(**changed: list[Any]) -> pa.Table:
    return pa.table({**DATA, **changed})


def encoded(**changed: list[Any]) -> Table:
    return Encoder.fit(SCHEMA, frame(**changed)).encode(frame(**changed))


def one_hot(*codes: int, width: int) -> np.ndarray:
    return np.eye(width)[list(codes)]


def test_every_kind_of_value_lands_where_the_rules_say() -> None:
    table = encoded()
    hours, wage, work = table.private[:, :5], table.private[:, 5:7], table.private[:, 7:]
    np.testing.assert_array_equal(hours, one_hot(0, 0, 1, 3, 0, width=5))
    np.testing.assert_array_equal(wage, [[-1, 0], [0, 0], [1, 0], [0, 1], [0.5, 0]])
    np.testing.assert_array_equal(work, one_hot(0, 1, 2, 3, 0, width=4))
    city = table.public[:, -4:]
    np.testing.assert_array_equal(city, one_hot(0, 1, 0, 3, 1, width=4))
    np.testing.assert_array_equal(table.public[:, :5], one_hot(0, 1, 2, 3, 4, width=5))
    assert table.label is not None
    np.testing.assert_array_equal(table.label, [0, 1, 0, 1, 0])
    assert table.label.dtype == np.int64
    assert (table.n, table.units, table.label_private) == (5, 5, True)


def test_names_sources_and_norms_describe_the_blocks() -> None:
    table, encoder = encoded(), Encoder.fit(SCHEMA, frame())
    public, private = encoder.public_names, encoder.private_names
    assert len(public) == len(table.public_sources) == table.public.shape[1]
    assert len(private) == len(table.private_sources) == table.private.shape[1]
    assert table.private_sources == ("hours",) * 5 + ("wage",) * 2 + ("work",) * 4
    assert private[:2] == ("hours=..25", "hours=25..50")
    assert private[5:7] == ("wage", "wage=<missing>")
    assert private[-2:] == ("work=<other>", "work=<missing>")
    assert table.private_norm == pytest.approx(3**0.5)
    assert table.public_norm == pytest.approx(2**0.5)
    assert encoder.names == public + private


odd_numbers = st.one_of(
    st.floats(allow_nan=True, allow_infinity=True).map(repr),
    st.sampled_from(["", "NA", "NaN", " 3 ", "inf", "-inf", "1e999"]),
)
odd_words = st.one_of(st.text(max_size=3), st.sampled_from(["a", "b ", "", "NA", "true"]))
rows = st.tuples(odd_numbers, odd_numbers, odd_words, st.sampled_from(["no", "yes"]))


@given(st.lists(rows, min_size=5, max_size=5))
def test_nothing_is_learnt_from_a_private_value(changed: list[tuple[str, ...]]) -> None:
    hours, wage, work, label = (list(values) for values in zip(*changed, strict=True))
    other_frame = frame(hours=hours, wage=wage, work=work, y=label)
    here, there = Encoder.fit(SCHEMA, frame()), Encoder.fit(SCHEMA, other_frame)
    assert json.dumps(here.to_json()) == json.dumps(there.to_json())
    one, other = here.encode(frame()), there.encode(other_frame)
    assert one.private.shape == other.private.shape
    assert one.public.tobytes() == other.public.tobytes()
    assert one.rows.tobytes() == other.rows.tobytes()
    sources = (one.public_sources, one.private_sources)
    assert sources == (other.public_sources, other.private_sources)
    assert here.names == there.names
    norms = np.linalg.norm(other.private, axis=1)
    assert norms.max() <= other.private_norm * (1 + 1e-12)


def test_the_encoder_stores_only_the_declaration_of_private_columns() -> None:
    data = Encoder.fit(SCHEMA, frame(work=["Geheim"] * 5, hours=["77"] * 5)).to_json()
    assert data["schema"] == SCHEMA.to_dict()
    assert set(data["learnt"]) == {"age", "city"}
    assert "Geheim" not in json.dumps(data)
    assert "77" not in json.dumps(data)


def test_learning_from_a_private_column_cannot_be_asked_for() -> None:
    private = Column("hours", "private", "number", bounds=(0, 1))
    with pytest.raises(SchemaError, match="private"):
        learnt_coding(private, frame())
    stored = Encoder.fit(SCHEMA, frame()).to_json()
    stored["learnt"]["hours"] = {"edges": [1.0]}
    with pytest.raises(SchemaError, match="public"):
        Encoder.from_json(stored)


def test_a_private_column_is_not_even_read_while_fitting() -> None:
    unreadable = frame(hours=[{"deep": 1}] * 5)
    assert Encoder.fit(SCHEMA, unreadable).to_json() == Encoder.fit(SCHEMA, frame()).to_json()


def test_an_encoder_survives_json_and_knows_unseen_public_levels_as_other() -> None:
    encoder = Encoder.fit(SCHEMA, frame())
    again = Encoder.from_json(json.loads(json.dumps(encoder.to_json())))
    new = frame(city=["Rom", "Bonn", "", "Ulm", "Ulm"], age=["-5", "1e9", "", "35", "inf"])
    one, other = encoder.encode(new), again.encode(new)
    assert one.public.tobytes() == other.public.tobytes()
    np.testing.assert_array_equal(one.public[:, -4:], one_hot(2, 0, 3, 1, 1, width=4))
    np.testing.assert_array_equal(one.public[:, :5], one_hot(0, 3, 4, 1, 3, width=5))


def test_a_damaged_or_foreign_encoder_is_refused() -> None:
    data = Encoder.fit(SCHEMA, frame()).to_json()
    with pytest.raises(DataError, match="train the model again"):
        Encoder.from_json({**data, "format": "other"})
    with pytest.raises(DataError, match="damaged"):
        Encoder.from_json({**data, "learnt": {**data["learnt"], "age": {"edge": 1}}})


def test_new_rows_need_no_label_and_keep_their_order() -> None:
    encoder = Encoder.fit(SCHEMA, frame())
    table = encoder.encode(frame().drop_columns(["y"]), with_label=False)
    assert table.label is None
    assert table.private.tobytes() == encoder.encode(frame()).private.tobytes()


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"hours": ["1", "2", "SECRET", "4", "5"]}, ["'hours'", "row 3", "not a number"]),
        ({"hours": ["1", "2", "3", "4", "0x10"]}, ["'hours'", "row 5"]),
        ({"hours": ["1,5", "2", "3", "4", "5"]}, ["'hours'", "row 1"]),
        ({"y": ["no", "SECRET", "no", "no", "no"]}, ["'y'", "row 2", "declared classes"]),
        ({"y": ["no", "no", "no", "", "no"]}, ["'y'", "row 4", "missing"]),
        ({"y": ["no", "no", None, "no", "no"]}, ["'y'", "row 3", "missing"]),
        ({"hours": [b"\xff"] * 5}, ["'hours'", "binary"]),
        ({"work": [["SECRET"]] * 5}, ["'work'", "list"]),
    ],
)
def test_a_wrong_value_is_named_by_column_and_row_but_never_shown(
    changed: dict[str, list[Any]], words: list[str]
) -> None:
    with pytest.raises(DataError) as caught:
        encoded(**changed)
    assert "SECRET" not in str(caught.value)
    for word in words:
        assert word in str(caught.value)


@given(st.integers(0, 999), st.integers(1, 7))
@settings(max_examples=30)
def test_the_first_unparsable_row_is_found_across_chunks(bad: int, chunks: int) -> None:
    values = ["1"] * 1000
    values[bad] = "x"
    values[-1] = "x"
    pieces = [list(part) for part in np.array_split(np.array(values), chunks)]
    column = pa.chunked_array([pa.array(piece, pa.string()) for piece in pieces])
    table = pa.table({"n": column, "y": pa.array(["no"] * 1000)})
    schema = Schema(CLASSES, (Column("n", "private", "number", bounds=(0, 1)),))
    with pytest.raises(DataError, match=f"row {bad + 1}:"):
        Encoder.fit(schema, table).encode(table)


def test_missing_and_repeated_columns_are_named() -> None:
    with pytest.raises(DataError, match=r"no column 'hours'.*Did you mean 'hour'"):
        Encoder.fit(
            SCHEMA, frame().rename_columns(["age", "city", "hour", "wage", "work", "y", "z"])
        )
    with pytest.raises(DataError, match="'hours' twice"):
        Encoder.fit(SCHEMA, frame().append_column("hours", frame()["hours"]))
    with pytest.raises(DataError, match="no column 'y'"):
        Encoder.fit(SCHEMA, frame()).encode(frame().drop_columns(["y"]))
    twice = pd.DataFrame([[1, 2]], columns=["hours", "hours"])
    with pytest.raises(DataError, match="'hours' twice"):
        Encoder.fit(SCHEMA, twice)


TYPED = {
    "n": [1.5, None, float("inf"), 3.0],
    "c": [1, 2, None, 9],
    "b": [True, False, None, True],
    "y": [0, 1, 1, 0],
}
TYPED_SCHEMA = Schema(
    Label("y", "public", classes=(0, 1)),
    (
        Column("n", "private", "number", bounds=(0, 4), bins=4),
        Column("c", "private", "category", categories=("1", "2")),
        Column("b", "public", "category"),
    ),
)


@pytest.mark.parametrize(
    "made",
    [
        lambda: pa.table(TYPED),
        lambda: pd.DataFrame(TYPED),
        lambda: pd.DataFrame(TYPED).convert_dtypes(),
        lambda: pd.DataFrame(TYPED).astype({"c": "category", "y": "category"}),
        lambda: pd.DataFrame({**TYPED, "c": pd.Series([1, "2", None, 9.0], dtype=object)}),
        lambda: pl.DataFrame(TYPED),
        lambda: pl.DataFrame(TYPED).lazy(),
        lambda: pl.DataFrame(TYPED).with_columns(pl.col("c").cast(pl.String)),
        lambda: pa.table({**TYPED, "n": [Decimal("1.5"), None, Decimal("99"), Decimal("3")]}),
        lambda: pa.table({**TYPED, "b": ["true", "FALSE", "", "True"]}),
    ],
)
def test_frames_of_every_kind_encode_alike(made: Any) -> None:
    native = made()
    if isinstance(native, pa.Table) and pa.types.is_string(native["b"].type):
        schema = Schema(
            TYPED_SCHEMA.label,
            (
                *TYPED_SCHEMA.columns[:2],
                Column("b", "public", "category", categories=("False", True)),
            ),
        )
    else:
        schema = TYPED_SCHEMA
    table = Encoder.fit(schema, native).encode(native)
    np.testing.assert_array_equal(table.private[:, :5], one_hot(1, 4, 3, 3, width=5))
    np.testing.assert_array_equal(table.private[:, 5:], one_hot(0, 1, 3, 2, width=4))
    np.testing.assert_array_equal(table.public, one_hot(1, 0, 3, 1, width=4))
    np.testing.assert_array_equal(table.label, [0, 1, 1, 0])
    assert table.classes == (0, 1)
    assert not table.label_private


def test_what_is_no_frame_is_refused() -> None:
    with pytest.raises(DataError, match="bare array"):
        Encoder.fit(SCHEMA, np.zeros((2, 2)))
    with pytest.raises(DataError, match="Cannot read a list"):
        Encoder.fit(SCHEMA, [1, 2])
    with pytest.raises(DataError, match="no rows"):
        Encoder.fit(SCHEMA, frame()).encode(frame().slice(0, 0))


def test_a_category_of_digits_stays_text() -> None:
    schema = Schema(CLASSES, (Column("zip", "private", "category", categories=("01", "1")),))
    data = pa.table({"zip": ["01", "1", "001"], "y": ["no"] * 3})
    table = Encoder.fit(schema, data).encode(data)
    np.testing.assert_array_equal(table.private, one_hot(0, 1, 2, width=4))


def test_public_numbers_learn_quantiles_and_ranges_even_when_degenerate() -> None:
    columns = (Column("q", "public", "number", bins=4), Column("s", "public", "number", bins=0))
    schema = Schema(CLASSES, columns)

    def public(q: list[Any], s: list[Any]) -> np.ndarray:
        data = pa.table({"q": q, "s": s, "y": ["no"] * len(q)})
        return Encoder.fit(schema, data).encode(data).public

    skewed = public([0.0] * 50 + list(range(50)), [float(value) for value in range(100)])
    assert skewed[:, 0].sum() >= 50
    np.testing.assert_array_equal(skewed[:, :-2].sum(axis=1), 1)
    assert skewed[0, -2] == -1
    assert skewed[-1, -2] == 1
    constant = public([7.0, 7.0], [7.0, 7.0])
    np.testing.assert_array_equal(constant, [[1, 0, 0, 0]] * 2)
    missing = public([None, None], [float("nan"), None])
    np.testing.assert_array_equal(missing, [[0, 1, 0, 1]] * 2)
    assert np.isfinite(public([-1.7e308, 1.7e308], [-1.7e308, 1.7e308])).all()


def test_a_public_category_keeps_its_most_frequent_levels() -> None:
    schema = Schema(CLASSES, (Column("c", "public", "category"),))
    words = [f"w{index:05}" for index in range(1500)] + ["w01499"]
    data = pa.table({"c": words, "y": ["no"] * len(words)})
    table = Encoder.fit(schema, data).encode(data)
    assert table.public.shape[1] == 1002
    assert table.public[-1, -3] == 1
    assert table.public[:, -2].sum() == 500


def test_a_regression_target_is_clamped_to_its_bounds() -> None:
    schema = Schema(Label("y", "private", bounds=(0, 10)), (Column("c", "public", "category"),))
    data = pa.table({"c": ["a"] * 4, "y": ["-3", "4.5", "inf", "10"]})
    table = Encoder.fit(schema, data).encode(data)
    np.testing.assert_array_equal(table.label, [0, 4.5, 10, 10])
    assert (table.task, table.label_bounds) == ("regression", (0, 10))
    gap = pa.table({"c": ["a"] * 2, "y": ["1", "nan"]})
    with pytest.raises(DataError, match="'y', row 2: the label is missing"):
        Encoder.fit(schema, gap).encode(gap)


@pytest.mark.slow
@pytest.mark.alone
def test_a_million_rows_encode_in_seconds_and_in_memory() -> None:
    n = 1_000_000
    draw = np.random.default_rng(0)
    columns = [Column(f"n{i}", "private", "number", bounds=(-3, 3)) for i in range(6)]
    columns += [Column(f"c{i}", "private", "category", categories=("a", "b")) for i in range(6)]
    data = {f"n{i}": draw.normal(size=n) for i in range(6)}
    data |= {f"c{i}": draw.choice(["a", "b", " c", ""], size=n) for i in range(6)}
    data["y"] = draw.choice(["no", "yes"], size=n)
    data["id"] = np.arange(n) // 2
    table = pa.table(data)
    schema = Schema(CLASSES, tuple(columns), Unit(column="id", max_rows=2))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.process_time()
    encoded_table = Encoder.fit(schema, table).encode(table)
    seconds = time.process_time() - start
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    assert encoded_table.private.shape == (n, 6 * 17 + 6 * 4)
    assert seconds < 20
    assert grown < 1.5 * encoded_table.private.nbytes + 500e6


@pytest.mark.parametrize("ends", [(0.0, 5e-324), (-0.0, 0.0), (5e-324, 1e-323)])
@pytest.mark.parametrize("role", ["public", "private"])
def test_a_range_too_narrow_to_divide_gives_finite_numbers(
    role: str, ends: tuple[float, float]
) -> None:
    if role == "private" and not ends[0] < ends[1]:
        pytest.skip("such bounds are refused")
    column = Column("x", role, "number", bounds=ends if role == "private" else None, bins=0)
    schema = Schema(Label("y", "private", classes=("a", "b")), (column,))
    frame = pa.table({"x": [*ends, None], "y": ["a", "b", "a"]})
    table = Encoder.fit(schema, frame).encode(frame)
    block = table.public if role == "public" else table.private
    assert np.isfinite(block).all()
    assert (np.abs(block) <= 1).all()
