"""Short schemas say the same as long ones, and nothing becomes public by a default."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from halfmask.cli import main
from halfmask.errors import SchemaError
from halfmask.model import Model
from halfmask.schema import Schema

LABEL = """
[label]
name = "y"
role = "private"
classes = ["a", "b"]
"""
NAMES = ["id", "lab_a", "lab_b", "age", "ward", "smoker", "y"]


def made(text: str, names: list[str] | None = None) -> Schema:
    return Schema.from_dict(tomllib.loads(LABEL + text), columns=names or NAMES)


def refused(text: str, names: list[str] | None = None) -> str:
    with pytest.raises(SchemaError) as caught:
        made(text, names)
    return str(caught.value)


SHORT = """
[defaults]
role = "private"
kind = "number"
bounds = [0, 10]
bins = 4
[columns."lab_*"]
bounds = [0, 500]
[columns.lab_b]
role = "public"
[columns.age]
[columns.ward]
kind = "category"
categories = ["n", "s"]
[groups.flags]
columns = ["smoker"]
kind = "bool"
"""


def test_a_short_schema_is_its_long_form() -> None:
    short = made(SHORT, NAMES[1:])
    columns = {column.name: column for column in short.columns}
    assert columns["lab_a"].bounds == (0, 500)
    assert columns["lab_a"].bins == 4
    assert columns["lab_b"].role == "public"
    assert columns["age"].bounds == (0, 10)
    assert columns["ward"].bounds is None
    assert columns["smoker"].kind == "bool"
    assert columns["smoker"].bins is None
    assert all(c.role == "private" for n, c in columns.items() if n != "lab_b")
    assert Schema.from_dict(short.to_dict()) == short


def test_a_default_cannot_make_anything_public() -> None:
    message = refused('[defaults]\nrole = "public"\n[columns.age]\nkind = "number"')
    assert "[defaults] can only make columns private" in message
    assert "every column public" in refused('[columns."*"]\nrole = "public"\nkind = "number"')
    message = refused('[groups.all]\ncolumns = ["**"]\nrole = "public"\nkind = "number"')
    assert "every column public" in message


def test_bounds_by_default_are_for_private_columns() -> None:
    column = made(SHORT.replace("[columns.age]", '[columns.age]\nrole = "public"'), NAMES[1:])
    assert next(c for c in column.columns if c.name == "age").bounds is None


def test_a_column_that_nothing_matches_is_an_error_where_patterns_are_used() -> None:
    message = refused('[columns."lab_*"]\nrole = "public"\nkind = "number"')
    for name in ("'id'", "'age'", "'ward'", "'smoker'", "ignore ="):
        assert name in message
    assert "'y'" not in message
    all_but_one = ["lab_a", "age", "y"]
    message = refused('[columns."lab_*"]\nrole = "public"\nkind = "number"', all_but_one)
    assert 'ignore = ["age"]' in message


def test_a_pattern_that_matches_nothing_is_an_error() -> None:
    message = refused('[columns."lbo_*"]\nrole = "public"\nkind = "number"')
    assert 'columns."lbo_*"' in message
    assert "matches no column" in message


def test_two_patterns_that_disagree_are_an_error() -> None:
    text = """
[columns."lab_*"]
role = "private"
kind = "number"
bounds = [0, 1]
[columns."*_a"]
role = "public"
[groups.rest]
columns = ["id", "age", "ward", "smoker"]
role = "public"
kind = "category"
"""
    message = refused(text)
    assert "'lab_a'" in message
    assert '"lab_*"' in message
    assert '"*_a"' in message
    assert "disagree on role" in message
    message = refused(text + '[columns.lab_a]\nrole = "private"')
    assert "disagree on role" in message, "a name of its own hides no disagreement"


def test_names_with_other_signs_are_no_patterns() -> None:
    names = ["open?", "a[1]", "2*3", "y"]
    text = "".join(f"[columns.'{name}']\nrole = 'public'\nkind = 'number'\n" for name in names[:3])
    assert made(text, names).public == tuple(names[:3])


def test_ignored_columns_leave_a_pattern() -> None:
    text = 'ignore = ["id", "ward", "lab_b"]\n' + LABEL + "[columns.'*']\nrole = 'private'\n"
    data = tomllib.loads(text + "kind = 'number'\nbounds = [0, 1]")
    schema = Schema.from_dict(data, columns=NAMES)
    assert schema.private == ("lab_a", "age", "smoker")
    with pytest.raises(SchemaError, match="'nowhere', which matches no column"):
        Schema.from_dict({**data, "ignore": ["nowhere"]}, columns=NAMES)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[defaults]\nkidn = 'number'", "Did you mean 'kind'?"),
        ("[groups.a]\nrole = 'private'", "[groups.a] has no columns"),
        ("[groups]\na = 3", "[groups.a] is not a table"),
        ("groups = 3", "[groups] is not a table"),
        ("ignore = 'a'", "not a list"),
        ("[columns.'lab_*']\nbonds = 1", "Did you mean 'bounds'?"),
    ],
)
def test_wrong_short_forms_are_named(text: str, words: str) -> None:
    data = {**tomllib.loads(text), "label": tomllib.loads(LABEL)["label"]}
    with pytest.raises(SchemaError) as caught:
        Schema.from_dict(data, columns=NAMES)
    assert words in str(caught.value)


def test_a_column_that_is_no_table_is_refused_though_a_pattern_has_it_too() -> None:
    text = "[columns]\nage = 'old'\n[columns.'*']\nrole = 'private'\nkind = 'number'\n"
    assert "columns.age" in refused(text + "bounds = [0, 9]")
    group = "[groups.a]\ncolumns = ['age']\nrole = 'private'\nkind = 'number'\nbounds = [0, 9]"
    assert "columns.age" in refused("[columns]\nage = 3\n" + group)


def test_a_long_value_is_quoted_by_its_beginning() -> None:
    many = "[columns.'*']\nrole = 'private'\nkind = 'number'\nbounds = [0, 9]\n"
    said = refused(f"{many}bins = ['{'x' * 9000}']")
    assert "Column 'age' has bins ['xxx" in said
    assert len(said) < 3000
    said = refused(f"[columns.age]\nrole = '{'x' * 9000}'\nkind = 'number'")
    assert "has role 'xxx" in said
    assert len(said) < 600


def test_a_file_includes_others(tmp_path: Path) -> None:
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "labs.toml").write_text(
        '[columns."lab_*"]\nkind = "number"\nbounds = [0, 9]\nrole = "private"\n'
    )
    own = 'include = ["parts/labs.toml"]\nignore = ["id", "age", "ward", "smoker"]\n' + LABEL
    (tmp_path / "own.toml").write_text(own + '[columns."lab_*"]\nbounds = [0, 5]\n')
    schema = Schema.from_toml(tmp_path / "own.toml", columns=NAMES)
    assert [(c.name, c.bounds) for c in schema.columns] == [("lab_a", (0, 5)), ("lab_b", (0, 5))]
    with pytest.raises(SchemaError, match="is a pattern"):
        Schema.from_toml(tmp_path / "own.toml")


def test_included_files_that_disagree_lack_or_circle_are_errors(tmp_path: Path) -> None:
    one, two = tmp_path / "one.toml", tmp_path / "two.toml"
    one.write_text('[columns.age]\nkind = "number"\n')
    two.write_text('[columns.age]\nkind = "category"\n')
    own = tmp_path / "own.toml"
    own.write_text('include = ["one.toml", "two.toml"]\n' + LABEL)
    with pytest.raises(SchemaError, match=r"disagree on columns\.age\.kind"):
        Schema.from_toml(own)
    own.write_text('include = "gone.toml"\n' + LABEL)
    with pytest.raises(SchemaError, match=r"gone\.toml.*included by own\.toml"):
        Schema.from_toml(own)
    own.write_text('include = "one.toml"\n' + LABEL)
    one.write_text('include = "own.toml"\n')
    with pytest.raises(SchemaError, match="includes itself"):
        Schema.from_toml(own)


roles = st.sampled_from(["public", "private"])


@given(
    st.lists(st.tuples(st.sampled_from(["a_", "b_", "c_"]), st.integers(0, 9)), max_size=8),
    st.dictionaries(st.sampled_from(["a_", "b_", "c_"]), roles, max_size=3),
    st.dictionaries(st.sampled_from(["a_1", "b_2", "c_3"]), roles, max_size=3),
)
def test_only_what_is_named_or_matched_as_public_is_public(
    columns: list[tuple[str, int]], by_pattern: dict[str, str], by_name: dict[str, str]
) -> None:
    names = [*dict.fromkeys(f"{prefix}{number}" for prefix, number in columns)]
    data: dict[str, Any] = {
        "label": {"name": "y", "role": "private", "classes": [0, 1]},
        "defaults": {"role": "private", "kind": "number", "bounds": [0, 1]},
        "columns": {f"{prefix}*": {"role": role} for prefix, role in by_pattern.items()}
        | {name: {"role": role} for name, role in by_name.items()},
    }
    try:
        schema = Schema.from_dict(data, columns=[*names, "y"])
    except SchemaError:
        return
    for name in schema.public:
        assert by_name.get(name, by_pattern.get(name[:2])) == "public"


def test_a_model_holds_the_schema_in_full(tmp_path: Path) -> None:
    """The statement lists what patterns matched, and no pattern is left in what is stored."""
    import pyarrow.csv

    rows = pa.table({name: [0.1, 0.9] * 40 for name in ("lab_a", "lab_b", "age")})
    rows = rows.append_column("y", pa.array(["a", "b"] * 40))
    pyarrow.csv.write_csv(rows, tmp_path / "rows.csv")
    text = LABEL + '[defaults]\nrole = "private"\nkind = "number"\nbounds = [0, 1]\n'
    text += '[columns."lab_*"]\n[columns.age]\nrole = "public"\n'
    (tmp_path / "short.toml").write_text(text)
    line = f"train {tmp_path}/rows.csv --schema {tmp_path}/short.toml --epsilon 1"
    run = CliRunner().invoke(main, [*line.split(), "--out", str(tmp_path / "model")])
    assert run.exit_code == 0, run.output
    model = Model.load(tmp_path / "model")
    assert set(model.privacy.private) == {"lab_a", "lab_b"}
    assert model.privacy.public == ("age",)
    assert "*" not in (tmp_path / "model" / "model.json").read_text()
