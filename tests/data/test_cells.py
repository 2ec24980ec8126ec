"""A cell reads by its own value: no neighbour, type of column or container changes it."""

from __future__ import annotations

import datetime as dt
import io
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from halfmask.audit.neighbours import CONTAINERS, FAMILIES, STRANGE, _held, _made, _neighbours
from halfmask.data.cells import cell_text, moment, moment_text
from halfmask.data.encoding import same_levels
from halfmask.data.reading import read_csv, read_frame
from halfmask.errors import DataError
from halfmask.estimators import HalfmaskClassifier
from halfmask.schema import Column, Label, Schema
from halfmask.table import Encoder, Table

CLASSES = Label("y", "private", classes=("no", "yes"))


def of_category(*levels: Any) -> Schema:
    return Schema(CLASSES, (Column("x", "private", "category", categories=levels),))


def codes(schema: Schema, x: Any) -> list[int]:
    """The place of each row in the block of column x."""
    table = encoded(schema, x)
    assert (table.private.sum(axis=1) == 1).all()
    return table.private.argmax(axis=1).tolist()


def encoded(schema: Schema, x: Any) -> Table:
    if isinstance(x, (pa.Table, pd.DataFrame, pl.DataFrame)):
        frame = x
    elif isinstance(x, pl.Series):
        frame = pl.DataFrame({"x": x, "y": ["no"] * len(x)})
    elif isinstance(x, (pa.Array, pa.ChunkedArray)):
        frame = pa.table({"x": x, "y": ["no"] * len(x)})
    else:
        frame = pd.DataFrame({"x": x, "y": "no"})
    return Encoder.fit(schema, frame).encode(frame)


OBJECT = {"dtype": object}
ONE_TWO = of_category(1, 2)


@pytest.mark.parametrize(
    ("schema", "cells", "new"),
    [
        (ONE_TWO, [Decimal(1), Decimal(2)], Decimal("1.5")),
        (ONE_TWO, [1, 2], float("nan")),
        (ONE_TWO, [1, 2], 2**70),
        (ONE_TWO, [1, 2], "x"),
        (ONE_TWO, [1, 2], 1j),
        (of_category(2**53 + 1, 2**60 + 1), [2**53 + 1, 2**60 + 1], None),
        (of_category(2**53 + 1, 2**60 + 1), [2**53 + 1, 2**60 + 1], 0.5),
        (of_category("true", "false"), [True, False], 0.5),
        (of_category("true", "false"), [True, False], 2**70),
        (of_category("2020-01-01", "2020-01-02T12:00"), "dates", "soon"),
        (of_category("a", "b"), ["a", "b"], b"\xff"),
    ],
)
def test_one_private_cell_of_another_type_leaves_every_other_row_as_it_was(
    schema: Schema, cells: Any, new: Any
) -> None:
    if cells == "dates":
        cells = [dt.datetime(2020, 1, 1), dt.datetime(2020, 1, 2, 12)]
    before = codes(schema, pd.Series([*cells, cells[0]], **OBJECT))
    after = codes(schema, pd.Series([*cells, new], **OBJECT))
    assert before == [0, 1, 0]
    assert after[:2] == [0, 1]


def test_integers_keep_their_digits_wherever_the_frame_does() -> None:
    long = [2**53 + 1, None, 2**53 + 2]
    schema = of_category(2**53 + 2, 2**53 + 1)
    for made in (
        pa.array(long),
        pl.Series("x", long),
        pd.Series(long, dtype="Int64"),
        pd.Series(long, **OBJECT),
        pd.Series(long, **OBJECT).astype("category"),
    ):
        assert codes(schema, made) == [1, 3, 0]


def test_decimals_of_parquet_read_alike_at_every_scale(tmp_path: Path) -> None:
    """0.3 in a column of five digits is 0.30000000000000004 to Arrow's own cast."""
    number = Schema(CLASSES, (Column("x", "private", "number", bounds=(0, 1), bins=0),))
    read = {}
    for digits, other in ((1, "0.5"), (5, "0.50001")):
        values = pa.array([Decimal("0.3"), Decimal(other)], pa.decimal128(20, digits))
        pa.parquet.write_table(pa.table({"x": values, "y": ["no", "no"]}), tmp_path / "d.parquet")
        frame = read_frame(tmp_path / "d.parquet")
        read[digits] = encoded(number, frame).private[0, 0]
        assert codes(of_category("0.3"), frame) == [0, 1]
    assert read[1] == read[5] == 2 * 0.3 - 1


@pytest.mark.parametrize("cell", ["1", 1, 1.0, "1.0", " 1 ", Decimal("1.00"), np.int8(1), b"1"])
def test_one_number_is_one_level_however_it_is_written(cell: Any) -> None:
    assert codes(ONE_TWO, pd.Series([cell, "z"], **OBJECT)) == [0, 2]


def test_levels_that_are_one_number_are_told_apart_by_their_spelling_alone() -> None:
    schema = of_category("250.1", "250.10", "7")
    assert codes(schema, pd.Series(["250.1", "250.10", "250.100", "7.0"])) == [0, 1, 3, 2]


def test_truth_values_and_dates_have_fixed_forms() -> None:
    truth = of_category("true", "false")
    written = [True, "TRUE", "true", 1, "0", False, "yes", np.bool_(True), 0.5]
    assert codes(truth, pd.Series(written, **OBJECT)) == [0, 0, 0, 0, 1, 1, 2, 0, 2]
    day = of_category("2020-01-01")
    written = [
        dt.date(2020, 1, 1),
        dt.datetime(2020, 1, 1),
        "2020-01-01 00:00:00",
        "2020-01-01T01:00:00+01:00",
        pd.Timestamp("2020-01-01", tz="UTC"),
        np.datetime64("2020-01-01"),
        "2020-01-02",
        "20200101",
    ]
    assert codes(day, pd.Series(written, **OBJECT)) == [0] * 6 + [1] * 2


def test_a_csv_that_pandas_wrote_with_1_0_reads_as_the_declared_1() -> None:
    frame = pd.DataFrame({"x": [1, 2, None], "y": "no"})
    content = frame.to_csv(index=False)
    assert "1.0" in content
    assert codes(ONE_TWO, read_csv(content.encode(), "people.csv")) == [0, 1, 3]


def test_a_missing_value_is_missing_in_every_form() -> None:
    gaps = [None, float("nan"), pd.NaT, pd.NA, Decimal("NaN"), Decimal("sNaN"), "", "NA", " nan "]
    gaps += [np.datetime64("NaT"), np.float32("nan")]
    assert codes(ONE_TWO, pd.Series([*gaps, 1], **OBJECT)) == [3] * len(gaps) + [0]


def test_classes_read_as_levels_do() -> None:
    schema = Schema(Label("y", "private", classes=(0, 1)), (Column("x", "public", "category"),))
    frame = pd.DataFrame({"x": "a", "y": pd.Series([0, 1.0, "1", Decimal("0.0"), True], **OBJECT)})
    label = Encoder.fit(schema, frame).encode(frame).label
    assert label is not None
    assert label.tolist() == [0, 1, 1, 0, 1]


values = st.one_of(
    st.sampled_from(STRANGE),
    st.integers(-(2**80), 2**80),
    st.floats(),
    st.decimals(),
    st.text(max_size=4),
    st.binary(max_size=3),
    st.datetimes(),
    st.dates(),
    st.booleans(),
    st.none(),
)


@given(
    st.sampled_from(sorted(CONTAINERS)),
    st.sampled_from(sorted(FAMILIES)),
    st.sampled_from(["category", "bool"]),
    st.data(),
)
@settings(max_examples=400, deadline=None)
def test_replacing_one_cell_by_anything_changes_no_other_row(
    container: str, family: str, kind: str, data: st.DataObject
) -> None:
    cells = data.draw(st.lists(st.sampled_from(FAMILIES[family]), min_size=2, max_size=5))
    row = data.draw(st.integers(0, len(cells) - 1))
    new = data.draw(values)
    other = [*cells[:row], new, *cells[row + 1 :]]
    levels = tuple(
        dict.fromkeys(
            text.casefold() if text.casefold() in ("true", "false") else text
            for text in (str(cell_text(value) or "a").strip() or "a" for value in FAMILIES[family])
            if text != "NA"
        )
    )
    keys = {"categories": levels} if kind == "category" else {}
    schema = Schema(
        CLASSES,
        (Column("p", "public", "category"), Column("x", "private", kind, **keys)),  # type: ignore[arg-type]
    )
    make = CONTAINERS[container]
    columns = [_made(make, cells), _made(make, other)]
    assume(all(column is not None for column in columns))
    fixed = {"p": ["u", "v", "1", "1.0", ""][: len(cells)], "y": ["no"] * len(cells)}
    fixed = {name: make.column(column) for name, column in fixed.items()}
    try:
        pair = [make.frame({**fixed, "x": column}) for column in columns]
    except Exception:
        assume(False)
    assume(_neighbours(*(_held(frame, "x") for frame in pair), row, same_levels(levels)))
    one, two = (Encoder.fit(schema, frame) for frame in pair)
    assert json.dumps(one.to_json()) == json.dumps(two.to_json())
    first, second = one.encode(pair[0]), two.encode(pair[1])
    rest = np.arange(len(cells)) != row
    assert first.public.tobytes() == second.public.tobytes()
    assert first.private[rest].tobytes() == second.private[rest].tobytes()
    for one, two in zip(first.coded, second.coded, strict=True):
        assert one.codes[rest].tobytes() == two.codes[rest].tobytes()
    assert first.private.shape == second.private.shape


@given(values, values)
def test_the_text_of_a_value_does_not_depend_on_its_column(cell: Any, beside: Any) -> None:
    alone = Encoder.fit(ONE_TWO, pa.table({"x": ["1"], "y": ["no"]}))

    def code(*cells: Any) -> list[float]:
        frame = pd.DataFrame({"x": pd.Series(list(cells), **OBJECT), "y": "no"})
        return alone.encode(frame).private[0].tolist()

    assert code(cell) == code(cell, beside) == code(cell, None) == code(cell, "x")


@given(st.integers(-(10**20), 10**20))
@example(-62_167_219_200_000_000_001)
def test_moments_survive_their_text(count: int) -> None:
    assert moment(moment_text(count)) == count


@given(st.datetimes())
def test_moments_are_those_of_python(time: dt.datetime) -> None:
    since = time - dt.datetime(1970, 1, 1)
    micros = (since.days * 86_400 + since.seconds) * 10**6 + since.microseconds
    assert moment(time.isoformat()) == moment(str(time)) == micros * 1000


SEEN = Column("x", "private", "date", bounds=("2020-01-01", "2020-01-05"), bins=4)
DATES = Schema(CLASSES, (SEEN,))


@pytest.mark.parametrize(
    "made",
    [
        lambda: pd.Series(
            pd.to_datetime(["2020-01-01", "2020-01-02 12:00", None, "2031-01-01"], format="ISO8601")
        ),
        lambda: pd.Series(
            [dt.date(2020, 1, 1), "2020-01-02T12:00", None, np.datetime64("2031-01-01")], **OBJECT
        ),
        lambda: pl.Series(["2020-01-01 01:00+01:00", "2020-01-02 12:00", "NA", "2031-01-01"]),
        lambda: pl.Series(
            [dt.datetime(2020, 1, 1), dt.datetime(2020, 1, 2, 12), None, dt.datetime(2031, 1, 1)]
        ),
        lambda: pa.array([0, 36, None, 96384], pa.int64()),
        lambda: pa.array(["2020-01-01", "2020-01-02 12:00:00", "", "2031-01-01"]),
    ],
)
def test_dates_of_every_type_fall_into_the_same_bins(made: Any) -> None:
    column = made()
    if isinstance(column, pa.Array) and pa.types.is_integer(column.type):
        hours = pa.compute.multiply(column, 3600)
        column = pa.compute.add(hours, 1_577_836_800).cast(pa.timestamp("s", "Asia/Tokyo"))
    assert codes(DATES, column) == [0, 1, 4, 3]


def test_a_date_may_be_one_scaled_number_or_learn_its_bins_if_public() -> None:
    scaled = Schema(
        CLASSES, (Column("x", "private", "date", bounds=("2020-01-01", "2020-01-05"), bins=0),)
    )
    block = encoded(scaled, pa.array([dt.date(2020, 1, 3), dt.date(1990, 1, 1), None])).private
    np.testing.assert_array_equal(block, [[0, 0], [-1, 0], [0, 1]])
    public = Schema(CLASSES, (Column("x", "public", "date", bins=2),))
    frame = pa.table({"x": [dt.date(2020, 1, day) for day in (1, 2, 3, 4)], "y": ["no"] * 4})
    encoder = Encoder.fit(public, frame)
    assert encoder.public_names == ("x=..2020-01-03", "x=2020-01-03..", "x=<missing>")
    again = Encoder.from_json(json.loads(json.dumps(encoder.to_json())))
    assert again.encode(frame).public.tobytes() == encoder.encode(frame).public.tobytes()
    assert Encoder.fit(DATES, frame).private_names[0] == "x=..2020-01-02"


@pytest.mark.parametrize("cell", ["SECRET", 20200101, "2020-02-30", "2020-13-01", True, b"\xff"])
def test_what_is_no_date_is_named_by_its_row(cell: Any) -> None:
    with pytest.raises(DataError, match=r"Column 'x', row 2: .*not a date") as caught:
        codes(DATES, pd.Series(["2020-01-01", cell], **OBJECT))
    assert "SECRET" not in str(caught.value)


def test_a_truth_value_needs_no_declaration() -> None:
    schema = Schema(CLASSES, (Column("x", "private", "bool"),))
    assert Encoder.fit(schema, pa.table({"x": [True], "y": ["no"]})).private_names == (
        "x=false",
        "x=true",
        "x=<other>",
        "x=<missing>",
    )
    assert codes(schema, pa.array([True, False, None])) == [1, 0, 3]
    assert codes(schema, pd.Series([True, False, None], dtype="boolean")) == [1, 0, 3]
    assert codes(schema, pd.Series([True, 0.5, None, "FALSE", 1.0], **OBJECT)) == [1, 2, 3, 0, 1]


@pytest.mark.parametrize("role", ["public", "private"])
def test_words_for_true_and_false_are_read_in_a_column_of_truth_values(role: Any) -> None:
    schema = Schema(CLASSES, (Column("x", role, "bool"), Column("z", "private", "bool")))
    written = ["yes", "No", "Y", "n", "T", "f", " YES ", "1", "maybe", "NA", "ja"]
    frame = pa.table({"x": written, "z": [True] * len(written), "y": ["no"] * len(written)})
    table = Encoder.fit(schema, frame).encode(frame)
    block = table.public if role == "public" else table.private
    assert np.asarray(block)[:, :4].argmax(axis=1).tolist() == [1, 0, 1, 0, 1, 0, 1, 1, 2, 3, 2]


def test_words_for_true_and_false_are_levels_of_their_own_in_a_category() -> None:
    assert codes(of_category("yes", "true"), pd.Series(["yes", "true", True, "Y"])) == [0, 1, 1, 2]


class Unprintable:
    def __str__(self) -> str:
        raise RuntimeError("SECRET")


@pytest.mark.parametrize(
    "column",
    [
        pd.Series(["SECRET", Unprintable()], **OBJECT),
        pd.Series([2**70, "SECRET"], **OBJECT),
        pd.Series(["SECRET", "\ud800"], **OBJECT),
        pd.Series([pd.Period("2020-01"), pd.Period("2020-02")]),
        pd.Series([pd.Interval(0, 1)] * 2),
        pd.Series(["SECRET", pd.NA], **OBJECT),
        pl.Series([["SECRET"], ["SECRET"]]),
        pl.Series([2**100, 1], dtype=pl.Int128),
        pl.Series(["SECRET", object()], dtype=pl.Object),
        pa.array([{"a": "SECRET"}] * 2),
        pa.array([b"SECRET", b"\xff"]),
        pa.array([1, 2], pa.duration("s")),
        pa.array([10**15, 1], pa.timestamp("s")),
    ],
)
@pytest.mark.parametrize("kind", ["number", "category", "date", "bool"])
def test_only_errors_of_ours_come_out_and_no_value_with_them(column: Any, kind: str) -> None:
    keys: dict[str, Any] = {
        "number": {"bounds": (0, 1)},
        "category": {"categories": ("a",)},
        "date": {"bounds": ("2020-01-01", "2021-01-01")},
    }.get(kind, {})
    schema = Schema(CLASSES, (Column("x", "private", kind, **keys),))  # type: ignore[arg-type]
    error = refusal(schema, column)
    if error is not None:
        assert "SECRET" not in str(error)
        assert error.__cause__ is None
        assert error.__suppress_context__ or error.__context__ is None
        assert "Column 'x', row " in str(error)


def refusal(schema: Schema, column: Any) -> DataError | None:
    try:
        encoded(schema, column)
    except DataError as error:
        return error
    return None


def test_a_lazy_frame_that_fails_shows_no_value() -> None:
    lazy = pl.scan_csv(
        io.BytesIO(b"x,y\n1,no\nSECRET,no\n"), schema={"x": pl.Int64, "y": pl.String}
    )
    with pytest.raises(DataError, match="lazy frame") as caught:
        Encoder.fit(ONE_TWO, lazy)
    assert "SECRET" not in str(caught.value)


@pytest.mark.parametrize("y", [["no", "SECRET", 3], pd.Series([2**70, "SECRET", None]), "SECRET"])
def test_labels_passed_apart_are_read_one_by_one(y: Any) -> None:
    model = HalfmaskClassifier(ONE_TWO, unsafe_seed=1)
    with pytest.raises(DataError) as caught:
        model.fit(pd.DataFrame({"x": [1, 2, 1]}), y)
    assert "SECRET" not in str(caught.value)


def test_labels_passed_apart_keep_their_own_types() -> None:
    """An array of numpy makes texts of all labels once one of them is text."""
    from halfmask.estimators import _with_label

    schema = Schema(
        Label("y", "private", classes=(2**53 + 1, 2)), (Column("x", "public", "category"),)
    )
    frame = _with_label(pd.DataFrame({"x": ["a", "b"]}), [2**53 + 1, 2.0], schema)
    label = Encoder.fit(schema, frame).encode(frame).label
    assert label is not None
    assert label.tolist() == [0, 1]
