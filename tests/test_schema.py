"""The declaration: what it accepts, what it gives back, and that every error names the fix."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halfmask.errors import SchemaError
from halfmask.schema import Column, Label, Schema, Unit

LABEL = {"name": "income", "role": "private", "classes": ["<=50K", ">50K"]}
AGE = {"role": "public", "kind": "number"}
FULL = """
[label]
name = "income"
role = "private"
classes = ["<=50K", ">50K"]
[columns.age]
role = "public"
kind = "number"
[columns."hours-per-week"]
role = "private"
kind = "number"
bounds = [0, 100]
bins = 0
[columns.workclass]
role = "private"
kind = "category"
categories = ["Private", "State-gov"]
party = "bank"
[unit]
column = "id"
max_rows = 3
"""


def schema(**parts: Any) -> Schema:
    return Schema.from_dict({"label": LABEL, "columns": {"age": AGE}, **parts})


def one_column(**keys: Any) -> Schema:
    return schema(columns={"age": keys})


def written(folder: Path, text: str | bytes) -> Path:
    path = folder / "people.toml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_the_documented_form_is_read(tmp_path: Path) -> None:
    read = Schema.from_toml(written(tmp_path, FULL))
    assert read.label == Label("income", "private", classes=("<=50K", ">50K"))
    assert read.public == ("age",)
    assert read.private == ("hours-per-week", "workclass")
    assert read.columns[1] == Column(
        "hours-per-week", "private", "number", bounds=(0.0, 100.0), bins=0
    )
    assert read.columns[2].party == "bank"
    assert read.unit == Unit(column="id", max_rows=3)


def test_toml_and_dictionary_survive_a_round_trip(tmp_path: Path) -> None:
    read = Schema.from_toml(written(tmp_path, FULL))
    assert Schema.from_toml(written(tmp_path, read.to_toml())) == read
    assert Schema.from_dict(read.to_dict()) == read


names = st.text(min_size=1, max_size=8).filter(lambda name: bool(name.strip()))
columns = st.builds(
    lambda name, role, number, bounds, levels, bins: Column(
        name,
        role,
        "number" if number else "category",
        bounds=tuple(sorted(bounds)) if number else None,
        bins=bins if number else None,
        categories=None if number else tuple(levels),
    ),
    names,
    st.sampled_from(["public", "private"]),
    st.booleans(),
    st.lists(st.integers(-1000, 1000), min_size=2, max_size=2, unique=True),
    st.lists(st.sampled_from("abcdef"), min_size=1, unique=True),
    st.sampled_from([None, 0, 2, 7]),
)


@given(st.lists(columns, min_size=1, max_size=5, unique_by=lambda column: column.name))
def test_any_schema_survives_toml(declared: list[Column]) -> None:
    label = Label("the label " * 2, "private", classes=(0, 1))
    original = Schema(label, tuple(declared))
    import tomllib

    assert Schema.from_dict(tomllib.loads(original.to_toml())) == original


DATED = """
[label]
name = "y"
role = "private"
classes = [0, 1]
[columns.day]
role = "private"
kind = "date"
bounds = [2015-01-01, 2024-12-31]
[columns.time]
role = "private"
kind = "date"
bounds = [2015-01-01T06:30:00+01:00, "2024-12-31 12:00"]
bins = 0
[columns.seen]
role = "public"
kind = "date"
[columns.smoker]
role = "private"
kind = "bool"
"""


def test_dates_and_truth_values_survive_a_round_trip(tmp_path: Path) -> None:
    read = Schema.from_toml(written(tmp_path, DATED))
    assert read.columns[0].bounds == ("2015-01-01", "2024-12-31")
    assert read.columns[1].bounds == ("2015-01-01T05:30:00", "2024-12-31T12:00:00")
    assert [column.scaled for column in read.columns] == [False, True, False, False]
    assert Schema.from_toml(written(tmp_path, read.to_toml())) == read
    assert Schema.from_dict(json.loads(json.dumps(read.to_dict()))) == read


def test_classes_keep_the_type_they_were_declared_with() -> None:
    for classes in ([0, 1], [True, False], ["no", "yes"]):
        label = schema(label={**LABEL, "classes": classes}).label
        assert label.classes == tuple(classes)
        assert label.task == "classification"
    assert Label("y", "public", bounds=(0, 1)).task == "regression"


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        (
            {"role": "private", "kind": "number"},
            ["'age'", "private number", "bounds ="],
        ),
        ({"role": "private", "kind": "category"}, ["'age'", "categories = ["]),
        ({"kind": "number"}, ["'age'", "role"]),
        ({"role": "public"}, ["'age'", "kind"]),
        ({"role": "privat", "kind": "number"}, ["'age'", "'privat'", "Did you mean 'private'?"]),
        ({**AGE, "bonds": [0, 1]}, ["age", "'bonds'", "Did you mean 'bounds'?"]),
        ({**AGE, "bounds": [5, 1]}, ["'age'", "[5, 1]", "first must be below"]),
        ({**AGE, "bounds": [1, 1]}, ["'age'", "first must be below"]),
        ({**AGE, "bounds": [0, float("nan")]}, ["'age'", "two finite numbers"]),
        ({**AGE, "bounds": [0]}, ["'age'", "two finite numbers"]),
        ({**AGE, "bounds": "01"}, ["'age'", "two finite numbers"]),
        ({**AGE, "bounds": [False, True]}, ["'age'", "two finite numbers"]),
        ({**AGE, "bounds": [-1.7e308, 1.7e308]}, ["'age'", "too far apart"]),
        ({**AGE, "bins": 1}, ["'age'", "bins 1"]),
        ({**AGE, "bins": -3}, ["'age'", "bins -3"]),
        ({**AGE, "bins": True}, ["'age'", "bins True"]),
        ({**AGE, "bins": 10**9}, ["'age'", "at most"]),
        ({**AGE, "categories": ["a"]}, ["'age'", "number with categories"]),
        ({"role": "public", "kind": "category", "bins": 3}, ["'age'", "category with bins"]),
        ({"role": "public", "kind": "category", "categories": []}, ["'age'", "empty list"]),
        ({"role": "public", "kind": "category", "categories": "ab"}, ["'age'", "not a list"]),
        ({"role": "public", "kind": "category", "categories": ["a", "a "]}, ["'a' twice"]),
        ({"role": "public", "kind": "category", "categories": ["1", 1]}, ["'1' twice"]),
        ({"role": "public", "kind": "category", "categories": ["a", "NA"]}, ["'NA'", "missing"]),
        ({"role": "public", "kind": "category", "categories": [1.5]}, ["'age'", "quote them"]),
        ({**AGE, "party": 3}, ["'age'", "party"]),
        ({"role": "private", "kind": "date"}, ["'age'", "private date", "bounds ="]),
        ({"role": "public", "kind": "date", "bounds": [1, 2]}, ["'age'", "two dates"]),
        ({"role": "public", "kind": "date", "bounds": ["2020-01-01", "x"]}, ["two dates"]),
        (
            {"role": "public", "kind": "date", "bounds": ["2021-01-01", "2020-01-01"]},
            ["first must be below"],
        ),
        ({"role": "public", "kind": "date", "categories": ["a"]}, ["date with categories"]),
        ({"role": "public", "kind": "date", "bins": 1}, ["bins 1"]),
        ({"role": "public", "kind": "bool", "bounds": [0, 1]}, ["truth value with bounds"]),
        ({"role": "public", "kind": "bool", "categories": [0, 1]}, ["truth value with categories"]),
    ],
)
def test_a_wrong_column_is_named_with_its_fix(keys: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(SchemaError) as caught:
        one_column(**keys)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ({"label": {**LABEL, "classes": ["one"]}}, ["'income'", "1 classes", "at least two"]),
        ({"label": {**LABEL, "classes": []}}, ["'income'", "at least two"]),
        ({"label": {"name": "income", "role": "private"}}, ["'income'", "classes or bounds"]),
        ({"label": {**LABEL, "bounds": [0, 1]}}, ["'income'", "either classes or bounds"]),
        ({"label": {**LABEL, "name": ""}}, ["[label]", "name"]),
        ({"label": {**LABEL, "clases": []}}, ["'clases'", "Did you mean 'classes'?"]),
        ({"label": {**LABEL, "name": "age"}}, ["'age'", "label and also a column", "columns.age"]),
        ({"label": 3}, ["label", "not a table"]),
        ({"columns": {}}, ["no column"]),
        ({"columns": 3}, ["[columns] is not a table"]),
        ({"columns": {"age": 3}}, ["columns.age", "not a table"]),
        ({"unit": {"column": "age", "max_rows": 2}}, ["'age'", "unit"]),
        ({"unit": {"column": "income", "max_rows": 2}}, ["'income'", "unit"]),
        ({"unit": {"column": "id"}}, ["max_rows"]),
        ({"unit": {"column": "id", "max_rows": 0}}, ["max_rows"]),
        ({"unit": {"max_rows": 2}}, ["[unit]", "column"]),
        ({"colums": {}}, ["'colums'", "Did you mean 'columns'?"]),
    ],
)
def test_a_wrong_schema_is_named_with_its_fix(parts: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(SchemaError) as caught:
        schema(**parts)
    for word in words:
        assert word in str(caught.value)


def test_all_wrong_columns_are_reported_at_once() -> None:
    private = {"role": "private", "kind": "number"}
    with pytest.raises(SchemaError) as caught:
        schema(columns={"one": private, "two": private}, label={**LABEL, "classes": ["x"]})
    assert all(name in str(caught.value) for name in ("'one'", "'two'", "'income'"))


def test_a_column_declared_twice_in_python_is_an_error() -> None:
    age = Column("age", "public", "number")
    with pytest.raises(SchemaError, match="'age' is declared twice"):
        Schema(Label("y", "public", classes=(0, 1)), (age, age))


@pytest.mark.parametrize("bounds", [(0.0, 5e-324), (1e308, 1.7e308), (-1.7e308, -1e308)])
def test_label_bounds_without_a_middle_or_a_half_are_refused(bounds: tuple[float, float]) -> None:
    """Divided by a half that is zero, some private labels were no number, and others were."""
    with pytest.raises(SchemaError, match=r"'y' has bounds .* in another unit"):
        Label("y", "private", bounds=bounds)


def test_no_label_at_all_is_an_error() -> None:
    with pytest.raises(SchemaError, match=r"no \[label\]"):
        Schema.from_dict({"columns": {"age": AGE}})


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[label\nname = 1", ["not valid TOML", "line 1"]),
        (FULL + '\n[columns.age]\nrole = "public"', ["not valid TOML", "age", "line"]),
        (b"\xff\xfe", ["not UTF-8"]),
        (FULL.replace("bounds = [0, 100]", ""), ["people.toml", "'hours-per-week'"]),
    ],
)
def test_a_broken_file_is_named_with_line_or_column(
    tmp_path: Path, text: str | bytes, words: list[str]
) -> None:
    with pytest.raises(SchemaError) as caught:
        Schema.from_toml(written(tmp_path, text))
    for word in words:
        assert word in str(caught.value)


def test_a_missing_schema_file_points_to_init(tmp_path: Path) -> None:
    with pytest.raises(SchemaError, match="halfmask init"):
        Schema.from_toml(tmp_path / "none.toml")
    with pytest.raises(SchemaError, match="Cannot read"):
        Schema.from_toml(tmp_path)
