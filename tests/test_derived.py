"""Named public functions: each cell by its own row, nothing learnt, neighbours stay neighbours."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from halfmask import HalfmaskClassifier
from halfmask.audit import record, replay
from halfmask.cli import main
from halfmask.derived import FUNCTIONS, parse, with_derived
from halfmask.errors import InputError
from halfmask.schema import Column, Label, Schema

SCHEMA = Schema(
    Label("ill", "private", classes=("no", "yes")),
    (
        Column("age", "private", "number", bounds=(0, 100)),
        Column("post code", "private", "category", categories=("8001", "8002", "9000")),
    ),
)
AGES = st.one_of(st.none(), st.floats(-1e6, 1e6))
WORDS = st.one_of(st.none(), st.sampled_from(["8001", "8002", "9000", "x"]))


def cells(text: str, **columns: Any) -> list[Any]:
    made: list[Any] = parse(text).cells(pa.table(columns)).to_pylist()
    return made


def test_what_the_functions_make() -> None:
    age = [34.0, None, 36.0, -3.0]
    assert cells("d = round(age, 10)", age=age) == [30.0, None, 40.0, 0.0]
    bands = ["18 to 35", None, "35 and more", "below 18"]
    assert cells("b = band(age, 18, 35)", age=age) == bands
    assert cells("p = prefix('post code', 2)", **{"post code": ["8001", None]}) == ["80", None]
    assert cells("k = presence(age)", age=age) == ["yes", "no", "yes", "yes"]
    assert cells("t = top(x, 'a', 'b')", x=["a", "c", None]) == ["a", "other", None]
    assert cells("j = join(x, y)", x=["a", None], y=["b", "c"]) == ["a and b", None]


@given(
    rows=st.lists(st.tuples(AGES, WORDS), min_size=1, max_size=12),
    text=st.sampled_from(
        [
            "f = round(age, 7)",
            "f = band(age, 0, 10, 65)",
            "f = prefix(word, 1)",
            "f = presence(age)",
            "f = top(word, '8001')",
            "f = join(age, word)",
        ]
    ),
    seed=st.integers(0, 99),
)
def test_every_cell_depends_on_its_own_row_alone(
    rows: list[tuple[Any, Any]], text: str, seed: int
) -> None:
    def made(chosen: list[tuple[Any, Any]]) -> list[Any]:
        age = pa.array([row[0] for row in chosen], pa.float64())
        word = pa.array([row[1] for row in chosen], pa.string())
        return cells(text, age=age, word=word)

    order = np.random.default_rng(seed).permutation(len(rows))
    whole = made(rows)
    assert made([rows[i] for i in order]) == [whole[i] for i in order]
    assert [made([row])[0] for row in rows] == whole


@pytest.mark.parametrize(
    "text",
    [
        "round(age, 10)",
        "d = round(age)",
        "d = round(age, 0)",
        "d = round(age, 10, 3)",
        "d = band(age)",
        "d = band(age, 30, 20)",
        "d = prefix(age, 1.5)",
        "d = presence(age, 1)",
        "d = top(age)",
        "d = join(age)",
        "d = __import__('os').system('x')",
        "d = age + 1",
        "d = mean(age, 3)",
        "d = round(age, step=10)",
    ],
)
def test_anything_else_is_answered_with_what_there_is(text: str) -> None:
    with pytest.raises(InputError) as caught:
        parse(text)
    assert any(words in str(caught.value) for words in FUNCTIONS.values())


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("age = round(age, 10)", "already"),
        ("ill = round(age, 10)", "already"),
        ("d = presence(ill)", "label"),
        ("d = presence(height)", "no column 'height'"),
    ],
)
def test_the_schema_says_what_cannot_be(text: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        with_derived(SCHEMA, [parse(text)])


def test_neighbours_with_equal_f_move_a_fit_by_no_more_than_its_charge() -> None:
    """Definition 1.1: a row's age changes within its decade; what is released moves as charged."""
    derived = parse("decade = round(age, 10)")
    schema = with_derived(SCHEMA, [derived])
    assert schema.public == ("decade",)
    rng = np.random.default_rng(0)
    ages = rng.uniform(0, 100, 60)
    other = ages.copy()
    other[7] = np.round(ages[7] / 10) * 10 + (4.9 if ages[7] % 10 > 5 else -4.9)
    frames = []
    codes, labels = rng.permutation(["8001", "9000"] * 30), rng.permutation(["no", "yes"] * 30)
    for values in (ages, other):
        frame = pa.table({"age": values, "post code": codes, "ill": labels})
        frames.append(frame.append_column("decade", derived.cells(frame)))
    assert frames[0]["decade"].to_pylist() == frames[1]["decade"].to_pylist()
    estimator = HalfmaskClassifier(schema, method="gd", epsilon=1.0, unsafe_seed=1)
    told = record(estimator, frames[0])
    again = replay(estimator, frames[1], told)
    moved = [
        float(np.linalg.norm(np.asarray(a.value) - np.asarray(b.value)) / a.noise_std)
        for a, b in zip(told.releases, again.releases, strict=True)
    ]
    from halfmask.accounting.gaussian import gaussian_mu

    assert 0 < np.sqrt(np.sum(np.square(moved))) <= gaussian_mu(1.0, 1e-6) * (1 + 1e-9)


def test_the_command_writes_rows_and_schema_that_train(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    frame = pa.table(
        {
            "age": rng.integers(0, 100, 200),
            "post code": rng.choice(["8001", "9000"], 200),
            "ill": rng.choice(["no", "yes"], 200),
        }
    )
    pyarrow.csv.write_csv(frame, tmp_path / "people.csv")
    (tmp_path / "people.toml").write_text(SCHEMA.to_toml(), encoding="utf-8")
    words = [
        *("derive", tmp_path / "people.csv", "--schema", tmp_path / "people.toml", "--json"),
        *("--public", "decade = round(age, 10)", "--public", "area = prefix('post code', 1)"),
        *("--out", tmp_path / "f.csv", "--schema-out", tmp_path / "f.toml"),
    ]
    done = CliRunner().invoke(main, [str(word) for word in words])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["public"] == ["decade", "area"]
    assert "Public from now on" in done.stderr
    assert Schema.from_toml(tmp_path / "f.toml").public == ("decade", "area")
    train = ["train", "f.csv", "--schema", "f.toml", "--epsilon", "1", "--out", "model"]
    train = [str(tmp_path / w) if w in ("f.csv", "f.toml", "model") else w for w in train]
    assert CliRunner().invoke(main, train).exit_code == 0
