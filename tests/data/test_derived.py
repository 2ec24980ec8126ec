"""Named public functions: each cell by its own row, nothing learnt, neighbours stay neighbours."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pytest
from click.testing import CliRunner
from hypothesis import example, given
from hypothesis import strategies as st

from halfmask import HalfmaskClassifier, HalfmaskRegressor
from halfmask.accounting.gaussian import gaussian_mu
from halfmask.audit import record, replay
from halfmask.audit.model_audit import Canaries
from halfmask.cli import main
from halfmask.data.derived import FUNCTIONS, PublicLabel, function_of, parse
from halfmask.data.encoding import with_derived
from halfmask.errors import DataError, InputError, SchemaError
from halfmask.model import Model
from halfmask.schema import Column, Label, Schema
from halfmask.statement import made_notes
from halfmask.table import Encoder

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


def invoked(*words: Any) -> str:
    done = CliRunner().invoke(main, [str(word) for word in words])
    assert done.exit_code == 0, done.output
    return " ".join(done.output.split())


@pytest.fixture
def derived_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with rows and a schema as `derive` writes them, and the current one meanwhile."""
    monkeypatch.chdir(tmp_path)
    pyarrow.csv.write_csv(people(), "people.csv")
    Path("people.toml").write_text(SCHEMA.to_toml(), encoding="utf-8")
    functions = ("decade = round(age, 10)", "same = round(age, 1)", "area = prefix('post code', 1)")
    public = [word for text in functions for word in ("--public", text)]
    out = ("--out", "f.csv", "--schema-out", "f.toml")
    invoked("derive", "people.csv", "--schema", "people.toml", *public, *out)
    return tmp_path


def test_a_derived_column_is_stated_as_the_function_that_it_is(derived_files: Path) -> None:
    said = invoked("train", "f.csv", "--schema", "f.toml", "--epsilon", 1, "--out", "model")
    functions = "decade = round(age, 10), same = round(age, 1), area = prefix('post code', 1)"
    for text in (said, Model.load("model").privacy.text(10_000)):
        assert f"known of every row, with whether there is a value at all: {functions}." in text
        assert "What they tell of private columns is not protected." in text
    page = invoked("report", "model", "--out", "report.html") and Path("report.html").read_text()
    assert "decade = round(age, 10)" in page


def test_a_derived_column_that_tells_all_of_a_private_one_is_warned_of(derived_files: Path) -> None:
    done = CliRunner().invoke(main, ["check", "f.csv", "--schema", "f.toml", "--json"])
    found = json.loads(done.stdout)
    told = {each["column"]: each["message"] for each in found["warnings"]}
    assert "nothing of 'age' stays private" in told["same"]
    assert "stays private" not in "".join(text for name, text in told.items() if name != "same")
    # Whoever keeps the function from the model keeps it from the statement as well.
    schema = Schema.from_toml("f.toml")
    columns = (replace(c, role="private", bounds=(0, 100)) if c.name == "same" else c
               for c in schema.columns)  # fmt: skip
    Path("f.toml").write_text(replace(schema, columns=tuple(columns)).to_toml(), encoding="utf-8")
    assert "nothing of 'age'" not in invoked("check", "f.csv", "--schema", "f.toml")
    said = invoked("train", "f.csv", "--schema", "f.toml", "--epsilon", 1, "--out", "model")
    assert "decade = round(age, 10), area" in said


def test_a_derived_column_is_read_and_never_made_again(derived_files: Path) -> None:
    schema = Schema.from_toml("f.toml")
    decade = schema.columns[2]
    assert (decade.derived, decade.public, decade.made_of) == ("round(age, 10)", None, ())
    assert (decade.role, decade.kind) == ("public", "number")
    assert schema.read == ("age", "post code", "decade", "same", "area")
    assert Schema.from_dict(schema.to_dict()) == schema
    plain = replace(schema, columns=tuple(replace(c, derived=None) for c in schema.columns))
    frame = pyarrow.csv.read_csv("f.csv")
    cells = pa.array(np.full(frame.num_rows, 7.0))  # not what the function would make of any age
    frame = frame.set_column(frame.column_names.index("decade"), "decade", cells)
    encoders = [Encoder.fit(each, frame) for each in (schema, plain)]
    one, two = (encoder.encode(frame) for encoder in encoders)
    np.testing.assert_array_equal(one.public, two.public)
    stored = Encoder.from_json(json.loads(json.dumps(encoders[0].to_json())))
    assert stored.schema == schema
    with pytest.raises(DataError, match="decade"):
        stored.encode(people())  # rows to predict have to be derived, too


def test_rows_without_a_derived_column_are_told_how_it_is_made(derived_files: Path) -> None:
    invoked("train", "f.csv", "--schema", "f.toml", "--epsilon", 1, "--out", "model")
    done = CliRunner().invoke(main, ["predict", "model", "people.csv"])
    assert done.exit_code == 2
    words = " ".join(done.stderr.split())
    assert "no columns 'decade', 'same', 'area'." in words
    assert "`halfmask derive` makes decade = round(age, 10); same = round(age, 1); area" in words
    pyarrow.csv.write_csv(pyarrow.csv.read_csv("f.csv").drop_columns(["age"]), "less.csv")
    other = CliRunner().invoke(main, ["predict", "model", "less.csv"]).stderr
    assert "no column 'age'. Add it." in " ".join(other.split())


def test_a_function_of_a_derived_column_and_one_of_a_column_that_is_left_out() -> None:
    twice = with_derived(with_derived(SCHEMA, [parse("d = round(age, 10)")]),
                         [parse("e = band(d, 50)")])  # fmt: skip
    assert [c.derived for c in twice.columns[2:]] == ["round(age, 10)", "band(d, 50)"]
    without = replace(twice, columns=twice.columns[1:])
    assert "d = round(age, 10), e = band(d, 50)" in made_notes(without)[0]


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"derived": 3}, "derived that is no text"),
        ({"derived": "mean(age, 3)"}, "derived = .*expected FUNCTION"),
        ({"derived": "round(age, 10)", "public": "round(age, 10)"}, "public and derived"),
        ({"deriver": "round(age, 10)"}, "Did you mean 'derived'"),
    ],
)
def test_what_is_no_function_is_not_taken_as_one(keys: dict[str, Any], words: str) -> None:
    age = {"role": "private", "kind": "number", "bounds": [0, 100]}
    kept = {} if "public" in keys else {"role": "public", "kind": "number"}
    label = {"name": "ill", "role": "private", "classes": ["no", "yes"]}
    with pytest.raises(SchemaError, match=words):
        Schema.from_dict({"label": label, "columns": {"age": age, "d": {**kept, **keys}}})


def test_the_command_takes_a_schema_with_patterns(tmp_path: Path) -> None:
    (tmp_path / "people.csv").write_text("age,dose1,dose2,ill\n34,1,2,no\n51,3,4,yes\n")
    (tmp_path / "people.toml").write_text(
        '[label]\nname = "ill"\nrole = "private"\nclasses = ["no", "yes"]\n'
        '[defaults]\nrole = "private"\nkind = "number"\nbounds = [0, 100]\n'
        '[columns]\nage = {}\n"dos*" = { bounds = [0, 10] }\n'
    )
    words = [
        *("derive", tmp_path / "people.csv", "--schema", tmp_path / "people.toml"),
        *("--public", "decade = round(age, 10)"),
        *("--out", tmp_path / "f.csv", "--schema-out", tmp_path / "f.toml"),
    ]
    done = CliRunner().invoke(main, [str(word) for word in words])
    assert done.exit_code == 0, done.output
    written = Schema.from_toml(tmp_path / "f.toml")
    assert written.private == ("age", "dose1", "dose2")
    assert written.public == ("decade",)


# --- in a schema

MADE = Schema(
    Label("ill", "private", classes=("no", "yes")),
    (
        Column("age", "private", "number", bounds=(0, 100)),
        Column("post code", "private", "category", categories=("8001", "8002", "9000")),
        Column("decade", public="round(age, 10)"),
        Column("area", public="prefix('post code', 1)"),
    ),
)


def people(rows: int = 200, seed: int = 0) -> pa.Table:
    rng = np.random.default_rng(seed)
    age = rng.integers(0, 100, rows)
    return pa.table(
        {
            "age": age,
            "post code": rng.choice(["8001", "9000"], rows),
            "ill": np.where(age + rng.normal(0, 10, rows) > 50, "yes", "no"),
        }
    )


def test_a_schema_keeps_its_functions_and_reads_back_the_same(tmp_path: Path) -> None:
    assert MADE.public == ("decade", "area")
    assert MADE.read == ("age", "post code")
    assert [c.kind for c in MADE.columns[2:]] == ["number", "category"]
    (tmp_path / "s.toml").write_text(MADE.to_toml(), encoding="utf-8")
    assert Schema.from_toml(tmp_path / "s.toml") == MADE
    short = {
        "label": {"name": "ill", "role": "private", "classes": ["no", "yes"]},
        "defaults": {"role": "private", "kind": "number", "bounds": [0, 100]},
        "columns": {"age": {}, "decade": {"public": "round(age, 10)"}},
    }
    decade = Schema.from_dict(short).columns[1]
    assert (decade.role, decade.kind, decade.bounds) == ("public", "number", None)


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_files_and_frames_are_read_with_the_made_columns(tmp_path: Path, kind: str) -> None:
    from pyarrow import parquet

    from halfmask.data.reading import open_rows

    frame = people()
    file = tmp_path / f"people.{kind}"
    (pyarrow.csv.write_csv if kind == "csv" else parquet.write_table)(frame, file)
    derived = frame
    for text in ("decade = round(age, 10)", "area = prefix('post code', 1)"):
        derived = derived.append_column(text.split()[0], parse(text).cells(frame))
    columns = tuple(replace(c, public=None) for c in MADE.columns)
    plain = replace(MADE, columns=columns)
    expected = Encoder.fit(plain, derived).encode(derived)
    with open_rows(file) as rows:
        encoder = Encoder.fit(MADE, rows)
        found = [encoder.encode(rows), encoder.encode(frame), encoder.encode(frame.to_pandas())]
        found.append(Encoder.from_json(json.loads(json.dumps(encoder.to_json()))).encode(rows))
    for table in found:
        np.testing.assert_array_equal(table.public, expected.public)
        np.testing.assert_array_equal(table.private, expected.private)
        assert table.public_sources == expected.public_sources


def test_a_file_of_pieces_is_made_as_one_and_names_the_row(monkeypatch: Any) -> None:
    from halfmask.data.reading import FileRows

    class Pieces(FileRows):
        def _batches(self, names: list[str]) -> Any:
            yield from frame.select(names).combine_chunks().to_batches(max_chunksize=64)

    frame = people()
    rows = Pieces(frame.column_names, frame.num_rows)
    whole = Encoder.fit(MADE, frame).encode(frame)
    np.testing.assert_array_equal(Encoder.fit(MADE, rows).encode(rows).public, whole.public)
    words = frame["age"].to_pylist()
    words[150] = "secret"
    frame = frame.set_column(0, "age", pa.array([str(word) for word in words]))
    with pytest.raises(DataError, match="'age', row 151") as caught:
        Encoder.fit(MADE, Pieces(frame.column_names, frame.num_rows))
    assert "secret" not in str(caught.value)


def test_a_network_reads_the_made_columns_of_a_parquet_file(tmp_path: Path) -> None:
    from pyarrow import parquet

    pytest.importorskip("torch")
    from halfmask.data.reading import open_rows
    from halfmask.neural.mapped import mapped_rows
    from halfmask.neural.pretrain import NetworkRows

    parquet.write_table(people(), tmp_path / "people.parquet")
    with (
        open_rows(tmp_path / "people.parquet") as rows,
        mapped_rows(rows, MADE) as (encoder, table),
    ):
        own = NetworkRows.of(encoder.encode(people()))
        np.testing.assert_allclose(table.decoded.values, own.values, atol=1e-6)


def test_a_model_of_a_schema_with_functions_trains_stores_and_predicts(tmp_path: Path) -> None:
    pyarrow.csv.write_csv(people(), tmp_path / "people.csv")
    pyarrow.csv.write_csv(people(20, 1).drop(["ill"]), tmp_path / "new.csv")
    (tmp_path / "s.toml").write_text(MADE.to_toml(), encoding="utf-8")
    for words in (
        "check people.csv --schema s.toml --epsilon 1",
        "train people.csv --schema s.toml --epsilon 1 --out model",
        "predict model new.csv --out scores.csv",
        "evaluate model people.csv",
        "report model --out report.html",
    ):
        given = [str(tmp_path / w) if "." in w or w == "model" else w for w in words.split()]
        done = CliRunner().invoke(main, given)
        assert done.exit_code == 0, f"{words}\n{done.output}"
    assert "decade = round(age, 10)" in Model.load(tmp_path / "model").privacy.text(10_000)
    assert len((tmp_path / "scores.csv").read_text(encoding="utf-8").splitlines()) == 21


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"d": {"public": "presence(ill)"}}, "in \\[label\\] instead"),
        ({"d": {"public": "presence(height)"}}, "no column of the data"),
        ({"d": {"public": "mean(age, 3)"}}, "expected FUNCTION"),
        ({"d": {"public": 3}}, "no text"),
        ({"d": {"public": "round(age, 10)", "role": "private"}}, "leave role out"),
        ({"d": {"public": "round(age, 10)", "kind": "category"}}, "leave kind out"),
        ({"d": {"public": "round(age, 9)"}, "e": {"public": "round(d, 9)"}}, "no column of"),
        ({"d": {"public": "round(age, 9)", "party": "bank"}}, "another party"),
    ],
)
def test_a_function_that_cannot_be_public_is_an_error_of_the_schema(
    columns: dict[str, Any], words: str
) -> None:
    declared = {"age": {"role": "private", "kind": "number", "bounds": [0, 100]}, **columns}
    label = {"name": "ill", "role": "private", "classes": ["no", "yes"]}
    with pytest.raises(SchemaError, match=words):
        Schema.from_dict({"label": label, "columns": declared})


def test_data_that_holds_a_made_column_already_is_refused() -> None:
    frame = people().append_column("decade", pa.array([0.0] * 200))
    with pytest.raises(DataError, match="'decade', which the schema makes of 'age'"):
        Encoder.fit(MADE, frame)


def moved(estimator: Any, one: Any, two: Any) -> float:
    """How far the releases of two tables lie apart, in parts of their noise."""
    told = record(estimator, one)
    again = replay(estimator, two, told)
    each = [
        float(np.linalg.norm(np.asarray(a.value) - np.asarray(b.value)) / a.noise_std)
        for a, b in zip(told.releases, again.releases, strict=True)
    ]
    return float(np.sqrt(np.sum(np.square(each))))


def test_neighbours_that_share_a_schemas_functions_move_a_fit_as_charged() -> None:
    one = people(60)
    ages = one["age"].to_pylist()
    ages[7] = 44 if ages[7] // 10 != 4 else 41
    one = one.set_column(0, "age", pa.array(ages))
    ages[7] = 36
    two = one.set_column(0, "age", pa.array(ages))
    made = [Encoder.fit(MADE, frame).encode(frame).public for frame in (one, two)]
    np.testing.assert_array_equal(*made)  # 36 and 44 are of one decade
    estimator = HalfmaskClassifier(MADE, method="gd", epsilon=1.0, unsafe_seed=1)
    assert 0 < moved(estimator, one, two) <= gaussian_mu(1.0, 1e-6) * (1 + 1e-9)


# --- a public function of the label

INCOME = Schema(
    Label("income", "private", bounds=(0, 100), public="round(income, 10)"),
    (Column("age", "public", "number", bounds=(0, 100)),),
)
DISEASE = Schema(
    Label("code", "private", classes=("A1", "A2", "B1", "B2", "C1"), public="prefix(code, 1)"),
    (Column("age", "public", "number", bounds=(0, 100)),),
)


def earners(rows: int = 400, seed: int = 0) -> pa.Table:
    rng = np.random.default_rng(seed)
    age = rng.uniform(0, 100, rows)
    code = rng.choice(["A1", "A2", "B1", "B2", "C1"], rows)
    income = np.clip(0.8 * age + rng.normal(0, 5, rows), 0, 100)
    return pa.table({"age": age, "income": income, "code": code})


@given(
    st.floats(-20, 120),
    st.floats(-20, 120),
    st.sampled_from(["round(y, 10)", "round(y, 7.5)", "band(y, 20, 50)", "band(y, 0, 1, 130)"]),
)
@example(5.0, 3.0, "round(y, 10)")
@example(15.0, 24.9, "round(y, 10)")
@example(94.0, 104.0, "round(y, 10)")
def test_what_is_taken_as_known_of_a_number_follows_from_its_public_function(
    one: float, two: float, text: str
) -> None:
    label = Label("y", "private", bounds=(0, 100), public=text)
    known = PublicLabel.of(label)
    assert known is not None
    told = function_of("y", text).cells(pa.table({"y": [one, two]})).to_pylist()
    values = np.clip([one, two], 0, 100)
    middles, reach = known.middles(values)
    assert np.all(np.abs(values - middles) <= reach * (1 + 1e-12))
    assert reach <= 50
    if told[0] == told[1]:
        assert middles[0] == middles[1]


def test_neighbours_that_share_the_labels_function_move_a_fit_as_charged() -> None:
    """And others, which the function rules out, move it further than was charged for."""
    one = earners()
    values = one["income"].to_pylist()
    values[3] = 44.9

    def with_income(value: float) -> pa.Table:
        return one.set_column(1, "income", pa.array([*values[:3], value, *values[4:]]))

    estimator = HalfmaskRegressor(INCOME, epsilon=1.0, unsafe_seed=1)
    mu = gaussian_mu(1.0, 1e-6)
    near = moved(estimator, with_income(44.9), with_income(35.1))
    assert 0.2 * mu < near <= mu * (1 + 1e-9)
    # Equal releases, other exact sums: a change that f rules out is no neighbour.
    far = HalfmaskRegressor(INCOME, epsilon=1.0, unsafe_seed=1)
    fits = [clone_of(far, frame).predict(one) for frame in (with_income(44.9), with_income(94.9))]
    assert not np.allclose(*fits, rtol=0, atol=1e-9)


def clone_of(estimator: Any, frame: pa.Table) -> Any:
    return type(estimator)(**estimator.get_params()).fit(frame)


def test_a_coarse_label_that_is_public_makes_the_fine_one_better() -> None:
    """Ten intervals instead of one: a tenth of the noise, which is most of the error here."""
    train, test = earners(300), earners(2000, 1)
    without = replace(INCOME, label=replace(INCOME.label, public=None))

    def error(schema: Schema, seed: int) -> float:
        model = HalfmaskRegressor(schema, epsilon=0.1, method="one-shot", unsafe_seed=seed)
        gap = model.fit(train).predict(test) - np.asarray(test["income"])
        return float(np.sqrt(np.mean(gap**2)))

    known, unknown = ([error(s, seed) for seed in range(5)] for s in (INCOME, without))
    assert np.mean(known) < 7 < 1.2 * np.mean(unknown)


def test_groups_of_classes_that_are_public_are_exact() -> None:
    """The chances of a group come out as without noise, whatever the classes' noise is."""
    rng = np.random.default_rng(0)
    age = np.repeat([10.0, 90.0], 300)
    old = np.where(rng.random(600) < 0.5, "B1", "B2")
    code = np.where(age < 50, np.where(rng.random(600) < 0.5, "A1", "A2"), old)
    frame = pa.table({"age": age, "code": code})
    model = HalfmaskClassifier(DISEASE, epsilon=0.05, unsafe_seed=3).fit(frame)
    assert model.method_ == "one-shot"
    assert "function of it is public" in model.reason_
    assert "prefix(code, 1)" in model.privacy_.text(10_000)
    groups = np.array([c[0] for c in model.classes_[model.predict_proba(frame).argmax(1)]])
    assert np.mean(groups == np.array([c[0] for c in code])) > 0.99
    estimator = HalfmaskClassifier(DISEASE, epsilon=1.0, unsafe_seed=1)
    at = code.tolist().index("A1")
    other = frame.set_column(1, "code", pa.array([*code[:at], "A2", *code[at + 1 :]]))
    assert 0 < moved(estimator, frame, other) <= gaussian_mu(1.0, 1e-6) * (1 + 1e-9)


@pytest.mark.parametrize(
    ("label", "words"),
    [
        ({"bounds": [0, 9], "public": "round(z, 3)"}, "of the label 'y' itself"),
        ({"bounds": [0, 9], "public": "presence(y)"}, "of the label 'y' itself"),
        ({"bounds": [0, 9], "public": "round(y, 100)"}, "same for every label"),
        ({"bounds": [0, 9], "public": "band(y, 50)"}, "same for every label"),
        ({"bounds": [0, 9], "public": "round(y, 3)", "missing": "skip"}, "which rows have no"),
        ({"bounds": [0, 9], "public": "round(y, 3)", "role": "public"}, "remove public"),
        ({"classes": ["a", "b"], "public": "prefix(y, 1)"}, "tells every class"),
        ({"classes": ["a", "b"], "public": "round(y, 1)"}, "of the label 'y' itself"),
        ({"classes": ["aa", "ab"], "public": "prefix(y, 1)"}, "same for every label"),
    ],
)
def test_a_labels_function_that_cannot_be_is_an_error(label: dict[str, Any], words: str) -> None:
    column = {"role": "public", "kind": "number"}
    data = {"label": {"name": "y", "role": "private", **label}, "columns": {"x": column}}
    with pytest.raises(SchemaError, match=words):
        Schema.from_dict(data)


@pytest.mark.parametrize("schema", [INCOME, DISEASE], ids=["number", "classes"])
def test_an_audit_plants_labels_that_share_their_public_function(schema: Schema) -> None:
    known = PublicLabel.of(schema.label)
    assert known is not None
    one, two = known.two_labels(200, np.random.default_rng(0))
    assert (one != two).all()
    words = schema.label.classes
    if words is not None:
        one, two = ([words[code] for code in each] for each in (one, two))
    made = function_of("g", str(schema.label.public))
    told = [made.cells(pa.table({schema.label.name: each})).to_pylist() for each in (one, two)]
    assert told[0] == told[1]
    table = Encoder.fit(schema, earners()).encode(earners())
    planted = Canaries.planted(table, 50)
    assert not np.array_equal(np.asarray(planted.first.label), np.asarray(planted.second.label))


# --- a Python function beside a schema


@pytest.mark.parametrize("kind", ["arrow", "pandas", "polars"])
def test_a_python_function_beside_a_schema_is_public(kind: str) -> None:
    frame: Any = people()
    if kind != "arrow":
        frame = frame.to_pandas()
    if kind == "polars":
        frame = pytest.importorskip("polars").from_pandas(frame)
    seen: list[list[str]] = []

    def older(rows: Any) -> Any:
        seen.append(list(getattr(rows, "column_names", None) or rows.columns))
        return np.asarray(rows["age"]) > 50

    model = HalfmaskClassifier(SCHEMA, epsilon=20.0, public=older, unsafe_seed=0).fit(frame)
    assert model.model_.encoder.schema.public == ("public0",)
    assert model.privacy_.public == ("public0",)
    assert all(names == ["age", "post code"] for names in seen)  # the label is not handed over
    assert model.score(frame) > 0.8
    assert len(model.predict(frame)) == 200
    with pytest.raises(InputError, match="one row at a time"):
        HalfmaskClassifier(
            SCHEMA, public=lambda rows: np.asarray(rows["age"]) - np.mean(np.asarray(rows["age"]))
        ).fit(frame)


def test_all_is_no_function_beside_a_schema() -> None:
    with pytest.raises(InputError, match="A schema says which columns are public"):
        HalfmaskClassifier(SCHEMA, public="all").fit(people())
