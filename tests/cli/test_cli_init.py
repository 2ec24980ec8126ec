"""`halfmask init` shows names and types, never a value; its template asks for the rest."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from halfmask.cli import main
from halfmask.cli.schema import column_kinds, template_toml
from halfmask.errors import SchemaError
from halfmask.schema import Schema

CSV = 'age,"work class",ok,income\n31,Baker,true,low-40\nNA,Miller,,high-40\n 4e1 ,,false,low-40\n'


@pytest.fixture
def people(tmp_path: Path) -> Path:
    path = tmp_path / "people.csv"
    path.write_text(CSV)
    return path


def run(*args: object) -> Result:
    return CliRunner().invoke(main, ["init", *map(str, args)])


def test_the_template_holds_names_and_types_only(people: Path) -> None:
    done = run(people, "--label", "income")
    assert done.exit_code == 0
    assert tomllib.loads(done.stdout) == {
        "label": {"name": "income", "role": "private"},
        "columns": {
            "age": {"role": "private", "kind": "number"},
            "work class": {"role": "private", "kind": "category"},
            "ok": {"role": "private", "kind": "bool"},
        },
    }
    for value in ("31", "4e1", "40", "Baker", "Miller", "low", "true"):
        assert value not in done.stdout


def test_json_holds_the_same_schema(people: Path) -> None:
    done = run(people, "--label", "income", "--json")
    toml = run(people, "--label", "income")
    assert json.loads(done.stdout) == {"schema": tomllib.loads(toml.stdout)}


def test_an_unfilled_template_is_refused_naming_every_column(people: Path, tmp_path: Path) -> None:
    """Except a bool's, which needs nothing."""
    path = tmp_path / "people.toml"
    path.write_text(run(people, "--label", "income").stdout)
    with pytest.raises(SchemaError) as caught:
        Schema.from_toml(path)
    for word in (
        "'age'",
        "'work class'",
        "'income'",
        "bounds =",
        "categories =",
        "classes =",
    ):
        assert word in str(caught.value)


def test_a_filled_template_is_a_schema(people: Path, tmp_path: Path) -> None:
    text = run(people, "--label", "income").stdout
    text = text.replace("# classes = []", 'classes = ["low-40", "high-40"]')
    text = text.replace('# categories = ["A", "B"]', 'categories = ["A", "B"]')
    text = text.replace(
        "# bounds = [LOW, HIGH]      # required while", "bounds = [0, 99]   # while"
    )
    path = tmp_path / "people.toml"
    path.write_text(text)
    schema = Schema.from_toml(path)
    assert schema.private == ("age", "work class", "ok")
    assert schema.columns[0].bounds == (0, 99)


def test_without_a_label_the_template_asks_for_its_name(people: Path) -> None:
    done = run(people)
    assert done.exit_code == 0
    with pytest.raises(SchemaError, match=r"\[label\] has no name"):
        Schema.from_dict(tomllib.loads(done.stdout))


@pytest.mark.parametrize(
    ("cells", "kind"),
    [(("true", "false", ""), "bool"), (("TRUE", "True"), "bool"), (("true", "1"), "category")],
)
def test_a_column_of_true_and_false_is_a_bool(
    tmp_path: Path, cells: tuple[str, ...], kind: str
) -> None:
    (tmp_path / "rows.csv").write_text("active,y\n" + "".join(f"{cell},1\n" for cell in cells))
    made = tomllib.loads(run(tmp_path / "rows.csv").stdout)
    assert made["columns"]["active"]["kind"] == kind


def test_a_label_that_is_not_there_is_suggested(people: Path) -> None:
    done = run(people, "--label", "incme")
    assert done.exit_code == 2
    assert done.stdout == ""
    assert "Did you mean 'income'?" in done.stderr
    assert "Baker" not in done.stderr


def test_a_broken_file_ends_with_exit_code_2(tmp_path: Path) -> None:
    assert run(tmp_path / "none.csv").exit_code == 2


def test_kinds_of_parquet_follow_its_types(tmp_path: Path) -> None:
    table = pa.table(
        {
            "f": [1.5],
            "i": [1],
            "b": [True],
            "s": ["x"],
            "d": pa.array([0], pa.date32()),
            "t": pa.array([0], pa.timestamp("us", "Europe/Berlin")),
        }
    )
    pa.parquet.write_table(table, tmp_path / "t.parquet")
    done = run(tmp_path / "t.parquet", "--json")
    columns = json.loads(done.stdout)["schema"]["columns"]
    kinds = {name: column["kind"] for name, column in columns.items()}
    assert kinds == {
        "f": "number",
        "i": "number",
        "b": "bool",
        "s": "category",
        "d": "date",
        "t": "date",
    }


def test_iso_dates_of_a_csv_are_proposed_as_dates_without_one_being_shown(tmp_path: Path) -> None:
    path = tmp_path / "visits.csv"
    path.write_text("seen,left\n1987-05-04,1987-05-04 10:00\nNA,\n1988-01-01,soon\n")
    done = run(path)
    columns = tomllib.loads(done.stdout)["columns"]
    assert {name: column["kind"] for name, column in columns.items()} == {
        "seen": "date",
        "left": "category",
    }
    assert "198" not in done.stdout
    bounds = "bounds = [1980-01-01, 1990-01-01]  # two"
    filled = done.stdout.replace(
        "# bounds = [LOW, HIGH]      # required while private: two", bounds
    )
    filled = filled.replace('# categories = ["A", "B"]', 'categories = ["soon"]')
    filled = filled.replace('name = ""', 'name = "y"').replace("# classes = []", "classes = [0, 1]")
    (tmp_path / "visits.toml").write_text(filled)
    read = Schema.from_toml(tmp_path / "visits.toml")
    assert read.columns[0].bounds == ("1980-01-01", "1990-01-01")


@given(
    st.lists(st.integers(0, 10**6).map(str), min_size=3, max_size=3),
    st.lists(st.text("abcxyz", min_size=1), min_size=3, max_size=3),
)
def test_the_template_depends_on_names_and_types_alone(
    numbers: list[str], words: list[str]
) -> None:
    kinds = column_kinds(pa.table({"n": numbers, "w": words}))
    assert kinds == {"n": "number", "w": "category"}


@given(st.text(min_size=1).filter(lambda name: name.strip() == name))
def test_any_column_name_survives_the_template(name: str) -> None:
    text = template_toml({name: "number"}, None)
    assert list(tomllib.loads(text)["columns"]) == [name]


def test_init_imports_nothing_heavy(people: Path) -> None:
    code = (
        "import sys; from halfmask.cli import main\n"
        f"try: main(['init', {str(people)!r}])\n"
        "except SystemExit as end: assert not end.code\n"
        "heavy = {'torch', 'dp_accounting', 'sklearn', 'pandas'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


DICTIONARY = """name,kind,low,high,categories
age,number,0,120,
work class,category,,,Baker|Miller
income,text,,,"low-40; high-40"
"""


def with_dictionary(people: Path, text: str) -> Result:
    (people.parent / "dictionary.csv").write_text(text)
    return run(people, "--label", "income", "--dictionary", people.parent / "dictionary.csv")


def test_a_dictionary_fills_in_what_a_private_column_needs(people: Path) -> None:
    done = with_dictionary(people, DICTIONARY)
    assert done.exit_code == 0, done.output
    data = tomllib.loads(done.stdout)
    assert data["label"] == {"name": "income", "role": "private", "classes": ["low-40", "high-40"]}
    assert data["defaults"] == {"role": "private"}
    assert data["columns"]["age"] == {"kind": "number", "bounds": [0, 120]}
    assert data["columns"]["work class"]["categories"] == ["Baker", "Miller"]
    assert data["columns"]["ok"] == {"kind": "bool"}
    assert "fill in" not in done.stdout
    less = with_dictionary(people, DICTIONARY.replace("work class,category,,,Baker|Miller\n", ""))
    assert "fill in: categories" in less.stdout, "work class is not described"


def test_a_dictionarys_own_words_for_true_and_false_are_kept(people: Path) -> None:
    done = with_dictionary(people, "name,kind,low,high,categories\nok,yesno,,,ja|nein\n")
    expected = {"kind": "category", "categories": ["ja", "nein"]}
    assert tomllib.loads(done.stdout)["columns"]["ok"] == expected
    plain = with_dictionary(people, "name,kind,low,high,categories\nok,yesno,,,\n")
    assert tomllib.loads(plain.stdout)["columns"]["ok"] == {"kind": "bool"}


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ("agee,number,0,1,", "'agee'"),
        ("age,numbr,0,1,", "Did you mean 'number'?"),
        ("age,number,0,,", "one bound without the other"),
        ("age,number,low,high,", "neither a number nor an ISO date"),
        ("age,,,,", "neither kind, bounds nor categories"),
        (",number,0,1,", "no name of a column"),
        ("age,number,0,1,\nage,number,0,1,", "described twice"),
    ],
)
def test_a_wrong_dictionary_names_the_row_and_the_fix(people: Path, row: str, words: str) -> None:
    done = with_dictionary(people, f"name,kind,low,high,categories\n{row}\n")
    assert done.exit_code == 2
    assert words in done.output


def test_a_dictionary_cannot_make_a_column_public(people: Path) -> None:
    done = with_dictionary(people, "name,role,kind,low,high\nage,public,number,0,99\n")
    assert done.exit_code == 0
    assert '= "public"' not in done.stdout.replace('write role = "public"', "")


names_alike = st.lists(
    st.from_regex(r"\A(lab|q|x y)[_ ]?[0-9a-c]{1,2}\Z"), min_size=1, max_size=12, unique=True
)


@given(names_alike, st.lists(st.integers(0, 2), min_size=12, max_size=12))
def test_a_short_template_declares_every_column_as_the_long_one(
    names: list[str], kinds: list[int]
) -> None:
    from halfmask.cli.schema import short_template, short_toml

    choices = (
        {"kind": "number", "bounds": [0, 1]},
        {"kind": "category", "categories": ["a  b", 'c"d']},
        {"kind": "date", "bounds": ["2000-01-01", "2001-01-01"]},
    )
    declared = {name: choices[kind] for name, kind in zip(names, kinds, strict=False)}
    declared["the label"] = {"kind": "category", "categories": ["no", "yes"]}
    data = short_template(declared, "the label")
    assert tomllib.loads(short_toml(data, "the label", {})) == data
    schema = Schema.from_dict(data, columns=list(declared))
    assert {column.name for column in schema.columns} == set(names)
    for column in schema.columns:
        assert column.role == "private"
        assert column.kind == declared[column.name]["kind"]
