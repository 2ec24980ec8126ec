"""`halfmask init`, `derive` and `check`: a schema is written, widened, held against its file."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from textwrap import TextWrapper, fill
from typing import TYPE_CHECKING, Any

import click
import tomli_w

from halfmask.accounting.budget import Budget, printed
from halfmask.accounting.events import check_relation
from halfmask.cli.options import PATH, RELATION, schema_option
from halfmask.cli.output import check_target, emit, json_option, note
from halfmask.errors import DataError, InputError
from halfmask.storage import replacing, write_text

if TYPE_CHECKING:
    import pyarrow as pa

    from halfmask.checking import Checked, Expectation


_HEAD = """\
# A schema for halfmask. Every column is private until you write role = "public".
# A private column needs bounds or categories: fill them in from what is known without the data.
# Remove a column to leave it out of the model.
"""

_WIDE = 60
_SHORT_HEAD = """\
# A schema for halfmask. Every column is private until you write role = "public" for it.
# Bounds and categories are from what is known without the data. A star matches any text;
# a declaration of its own, such as [columns.NAME], overrides what a pattern or group says.
# ignore = ["NAME"] at the top leaves columns out of the model.
"""

_FILL_IN = {
    "number": "# bounds = [LOW, HIGH]      # required while private; values beyond are clamped",
    "category": '# categories = ["A", "B"]   # required while private; any other value is "other"',
    "date": "# bounds = [LOW, HIGH]      # required while private: two dates such as 2024-01-31",
    "bool": "# Nothing to fill in.",
}

_LABEL_HINT = {
    "category": """\
# classes = []              # required: every class, such as ["no", "yes"]
# bounds = [LOW, HIGH]      # instead of classes, if the label is a number to predict""",
    "number": """\
# bounds = [LOW, HIGH]      # required, if the label is a number to predict
# classes = []              # instead of bounds, if its numbers are classes, such as [0, 1]""",
}


@click.command()
@click.argument("file", type=click.Path())
@click.option("--label", metavar="NAME", help="The column to predict.")
@click.option(
    "--dictionary",
    type=click.Path(),
    help="A table (CSV) of column names, kinds, bounds and categories to declare.",
)
@click.option(
    "--short", is_flag=True, help="Columns alike in one table, by patterns; for wide files."
)
@json_option
def init(file: str, label: str | None, dictionary: str | None, short: bool, as_json: bool) -> None:
    """Write a schema template for FILE (CSV or Parquet) to standard output.

    It holds the names of the columns and their kinds, never a value or a range. Every
    column and the label are private; you mark what is public and fill in bounds and categories.

    A data dictionary fills them in: a CSV with the headings name, kind, low, high and categories
    (separated by |), of which only name is required. Columns alike are then declared together.
    """
    from halfmask.data.reading import read_frame

    kinds = column_kinds(read_frame(file))
    if kinds.pop("", None) is not None:
        note("A column without a name is left out: name it in the file to use it.")
    _check_header(file, list(kinds))
    _check_label(kinds, label)
    if not short and dictionary is None:
        if len(kinds) > _WIDE:
            note(f"{len(kinds)} columns: --short declares columns alike together.")
        text = template_toml(kinds, label).rstrip()
        emit({"schema": template(kinds, label)}, text, as_json, a_file=True)
        return
    declared = declarations(kinds, dictionary)
    data = short_template(declared, label)
    emit({"schema": data}, short_toml(data, label, kinds).rstrip(), as_json, a_file=True)


def declarations(kinds: dict[str, str], dictionary: str | None) -> dict[str, dict[str, Any]]:
    """Each column's kind, bounds and categories, by the dictionary or, without, the kind alone."""
    from halfmask.data.frames import meant
    from halfmask.dictionary import read_dictionary

    known = {} if dictionary is None else read_dictionary(dictionary)
    strange = [name for name in known if name not in kinds]
    if strange:
        raise DataError(
            f"{dictionary} describes columns that the data does not have: "
            f"{', '.join(map(repr, strange[:8]))}."
            f"{meant(strange[0], list(kinds), list(known))} Correct the names, or remove these "
            "rows."
        )
    return {name: known.get(name, {"kind": kind}) for name, kind in kinds.items()}


def short_template(declared: dict[str, dict[str, Any]], label: str | None) -> dict[str, Any]:
    """The template with columns alike declared together; everything is private."""
    from halfmask.dictionary import grouped

    data: dict[str, Any] = {"label": {"name": label or "", "role": "private"}}
    target = declared.get(label or "", {})
    if "categories" in target:
        data["label"]["classes"] = target["categories"]
    elif "bounds" in target and target["kind"] == "number":
        data["label"]["bounds"] = target["bounds"]
    data["defaults"] = {"role": "private"}
    columns: dict[str, Any] = {}
    groups: dict[str, Any] = {}
    names = [name for name in declared if name != label]
    for members, keys in grouped(names, {name: declared[name] for name in names}):
        if len(members) == 1 or _lacking(keys):
            # What is still to be filled in differs from column to column.
            columns |= {member: dict(keys) for member in members}
        else:
            groups[f"{keys['kind']}_{len(groups) + 1}"] = {"columns": members, **keys}
    return {**data, **{k: v for k, v in (("columns", columns), ("groups", groups)) if v}}


def short_toml(data: dict[str, Any], label: str | None, kinds: dict[str, str]) -> str:
    """The short template as TOML: a line for a column or pattern, a table for a group."""
    pairs = (f"{key} = {_toml_value(value)}" for key, value in data["label"].items())
    head = "\n".join(["[label]", *pairs])
    known = {"classes", "bounds"} & set(data["label"])
    hint = "" if known else f"\n{_label_hint(kinds, label)}"
    parts = [_SHORT_HEAD, f"{head}{hint}\n", tomli_w.dumps({"defaults": data["defaults"]})]
    lines = [
        f"{_toml_key(name)} = {_inline(keys)}" for name, keys in data.get("columns", {}).items()
    ]
    if lines:
        parts.append("\n".join(["[columns]", *lines]) + "\n")
    for name, group in data.get("groups", {}).items():
        keys = {key: value for key, value in group.items() if key != "columns"}
        wrapped = _wrapped([_toml_value(each) for each in group["columns"]])
        rest = "\n".join(f"{key} = {_toml_value(value)}" for key, value in keys.items())
        parts.append(f"[groups.{name}]\ncolumns = [\n{wrapped}\n]\n{rest}\n")
    return "\n".join(parts)


def _lacking(keys: dict[str, Any]) -> str:
    needed = {"number": "bounds", "date": "bounds", "category": "categories"}.get(keys["kind"])
    return _FILL_IN[keys["kind"]] if needed is not None and needed not in keys else ""


def _inline(keys: dict[str, Any]) -> str:
    pairs = ", ".join(f"{key} = {_toml_value(value)}" for key, value in keys.items())
    lacking = _lacking(keys).split("  #")[0].removeprefix("# ").strip()
    return f"{{ {pairs} }}" + (f"  # fill in: {lacking}" if lacking else "")


def _toml_value(value: Any) -> str:
    """A value on one line; dates in quotes are dates to the schema all the same."""
    if isinstance(value, list):
        return f"[{', '.join(map(_toml_value, value))}]"
    return tomli_w.dumps({"x": value}).removeprefix("x = ").strip()


def _wrapped(words: list[str], width: int = 98) -> str:
    """Words with commas in lines of `width`; no word is broken, since it may be in quotes."""
    lines = [" "]
    for word in words:
        if len(lines[-1]) + len(word) + 2 > width:
            lines.append(" ")
        lines[-1] += f" {word},"
    return "\n".join(lines)


def _toml_key(name: str) -> str:
    return tomli_w.dumps({name: 0}).removesuffix(" = 0\n")


def column_kinds(table: pa.Table) -> dict[str, str]:
    """Each column's kind: by its type in the file; for text, what all of it reads as."""
    import pyarrow as pa

    from halfmask.data.frames import kind_of_texts

    types = pa.types
    kinds = {}
    for field in table.schema:
        kind = field.type
        if types.is_boolean(kind):
            kinds[field.name] = "bool"
        elif types.is_timestamp(kind) or types.is_date(kind):
            kinds[field.name] = "date"
        elif types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind):
            kinds[field.name] = "number"
        else:
            kinds[field.name] = kind_of_texts(table, field.name)
    return kinds


def _check_label(kinds: dict[str, str], label: str | None) -> None:
    from halfmask.data.frames import meant, perhaps_a_row

    if label is not None and label not in kinds:
        names = list(kinds)
        listed = "" if perhaps_a_row(names, [label]) else f" Its columns are: {', '.join(names)}."
        raise DataError(
            f"The data has no column {label!r} for the label.{meant(label, names)}{listed}"
        )


def _check_header(file: str, names: Sequence[str]) -> None:
    """Refuse a first line that reads as a row: a template would spread its private values.

    Numbers that count up by one (years, or pandas' own names) are names.
    """
    from halfmask.data.frames import reads_as_value
    from halfmask.data.reading import is_parquet

    values = [name for name in names if reads_as_value(name)]
    whole = [int(name) for name in values if name.isdecimal()]
    steps = {after - before for before, after in pairwise(whole)}
    counting = len(whole) == len(values) > 1 and steps == {1}
    if not values or counting or Path(file).is_dir() or is_parquet(file):
        return
    several = f"{len(values)} of {len(names)} names in the first line read as numbers or dates"
    if 2 * len(values) > len(names):
        raise DataError(
            f"{several}, so that it seems to be a row: add a line with the names of the columns "
            "above it. If they are names, write them with a letter, such as y2020."
        )
    note(
        f"{several}. (Is the line with the names of the columns there? If not, this template shows "
        "a row: add that line, and remove the template.)"
    )


def template(kinds: dict[str, str], label: str | None) -> dict[str, Any]:
    """The template in the form that `Schema.from_dict` reads once it is filled in."""
    return {
        "label": {"name": label or "", "role": "private"},
        "columns": {
            name: {"role": "private", "kind": kind} for name, kind in kinds.items() if name != label
        },
    }


def template_toml(kinds: dict[str, str], label: str | None) -> str:
    """The template as TOML, with a commented line wherever the user has to fill something in."""
    data = template(kinds, label)
    head = tomli_w.dumps({"label": data["label"]}).rstrip()
    parts = [_HEAD, f"{head}\n{_label_hint(kinds, label)}\n"]
    for name, column in data["columns"].items():
        table = tomli_w.dumps({"columns": {name: column}}).rstrip()
        parts.append(f"{table}\n{_FILL_IN[column['kind']]}\n")
    return "\n".join(parts)


def _label_hint(kinds: dict[str, str], label: str | None) -> str:
    return _LABEL_HINT["number" if label and kinds[label] == "number" else "category"]


# --- `halfmask derive`: public columns that are functions of private ones.


@click.command()
@click.argument("data", type=PATH)
@schema_option
@click.option(
    "--public",
    "functions",
    multiple=True,
    required=True,
    metavar="'NAME = FUNCTION(COLUMN, ...)'",
    help="A function that becomes a public column, repeatable: round, band, prefix, presence, top, "
    "join.",
)
@click.option("--out", required=True, type=PATH, help="The CSV to write.")
@click.option("--schema-out", type=PATH, help="Write the schema with the new columns here.")
@click.option("--overwrite", is_flag=True, help="Replace these files if they are there.")
@json_option
def derive(
    data: Path,
    schema_file: Path,
    functions: tuple[str, ...],
    out: Path,
    schema_out: Path | None,
    overwrite: bool,
    as_json: bool,
) -> None:
    """Make functions of private columns public: any f of feature privacy, by name.

    \b
    halfmask derive people.csv --schema people.toml --public "decade = round(age, 10)" \\
        --out people-f.csv --schema-out people-f.toml

    The new columns count as public from then on: whoever sees a model may know them of every row.
    The private column stays private in all but that. Rows to predict need them too: derive them
    with the same functions.
    """
    import pyarrow.csv

    from halfmask.data.derived import parse
    from halfmask.data.encoding import with_derived
    from halfmask.schema import Schema
    from halfmask.table import read_frame

    read = {"DATA": data, "--schema": schema_file}
    check_target(out, "--out", overwrite=overwrite, read=read)
    if schema_out is not None:
        check_target(schema_out, "--schema-out", overwrite=overwrite, read=read)
        if schema_out.absolute() == out.absolute():
            raise InputError("--schema-out and --out name one file: name two.")
    derived = [parse(text) for text in functions]
    frame = read_frame(data)
    schema = with_derived(Schema.from_toml(schema_file, columns=frame.column_names), derived)
    for each in derived:
        if each.name in frame.column_names:
            raise InputError(f"The data has a column {each.name!r} already: choose another name.")
        frame = frame.append_column(each.name, each.cells(frame))
    with replacing(out) as path:
        pyarrow.csv.write_csv(frame, path)
    if schema_out is not None:
        write_text(schema_out, schema.to_toml())
    names = [each.name for each in derived]
    note(f"Public from now on, for every row: {', '.join(names)}.")
    result = {
        "out": str(out),
        "schema": None if schema_out is None else str(schema_out),
        "rows": frame.num_rows,
        "public": names,
    }
    emit(result, f"{frame.num_rows} rows written to {out}.", as_json)


# --- `halfmask check`: a schema against a file before anything is spent.


_WIDTH = 80
_SHOWN = 8
FOR_THE_HOLDER = (
    "This output tells whether private values parse: it is for whoever holds the data, not for "
    "release."
)


@click.command()
@click.argument("file", type=PATH)
@schema_option
@click.option("--epsilon", type=float, default=1.0, show_default=True, help="The budget to come.")
@click.option("--delta", type=float, default=1e-6, show_default=True, help="The budget to come.")
@click.option("--relation", type=RELATION, default="replace", show_default=True)
@click.option(
    "--full",
    type=PATH,
    help="Write the schema here with patterns, groups and includes written out.",
)
@json_option
def check(
    file: Path,
    schema_file: Path,
    epsilon: float,
    delta: float,
    relation: str,
    full: Path | None,
    as_json: bool,
) -> None:
    """Check FILE against a schema: every fault at once, and warnings. Nothing is spent.

    Of a private column it says that it parses, or the first row at which it does not. It also says
    whether noise will win, and what making each private column public would buy: from the number
    of rows, the schema and the budget, never from private values.

    The output is for whoever holds the data, not for release. Ends with 2 where there are faults.
    """
    from halfmask.checking import check_file

    budget = Budget(epsilon=epsilon, delta=delta, relation=check_relation(relation))
    if full is not None and full.exists():
        raise InputError(f"{str(full)!r} exists already: name a new file with --full.")
    found = check_file(file, schema_file, budget)
    if full is not None and found.schema is not None:
        write_text(full, found.schema.to_toml())
    emit(found.to_json(), _text(found, file, epsilon), as_json)
    if found.faults:
        raise click.exceptions.Exit(2)


def _text(found: Checked, file: Path, epsilon: float) -> str:
    rows = "" if found.rows is None else f": {found.rows:,} rows"
    parts = [f"{file}{rows}, {_counted(found)}."]
    for title, findings in (("Faults", found.faults), ("Warnings", found.warnings)):
        if findings:
            bullet = TextWrapper(_WIDTH, initial_indent="  - ", subsequent_indent="    ")
            lines = [bullet.fill(finding.message) for finding in findings]
            parts.append("\n".join([f"{title} ({len(findings)}):", *lines]))
    if found.expectation is not None:
        parts.append(_expected(found.expectation, found.rows, epsilon))
    parts.append(fill(FOR_THE_HOLDER, _WIDTH))
    return "\n\n".join(parts)


def _counted(found: Checked) -> str:
    if not found.states:
        return "no declared column was read"
    parse = sum(state == "parses" for state in found.states.values())
    told = f"{parse} of {len(found.states)} declared columns parse"
    return told if found.faults else f"{told}, no faults"


def _expected(found: Expectation, rows: int | None, epsilon: float) -> str:
    part = (
        f"of what your columns tell, a model keeps about {_percent(found.middle)}, from "
        f"{_percent(found.kept[0])} (if each tells little) to {_percent(found.kept[1])} (if they "
        "tell much)."
    )
    if found.base_rate_only:
        part = "with so few rows and so small a budget only the base rate is released."
    elif found.verdict == "noise will win":
        part += " Expect hardly more than a constant, or than the free model of public columns."
    sentence = f"{found.verdict.capitalize()} at epsilon {printed(epsilon)}: {part}"
    if found.verdict != "noise will not win":
        sentence += f" About {found.rows_needed:,} rows, or a larger epsilon, would be safe."
    if rows is not None and found.counted < rows:
        sentence += (
            f" To protect all rows of a person, noise is larger: {rows:,} rows count as "
            f"{round(found.counted):,}."
        )
    lines = [fill(sentence, _WIDTH)]
    if found.if_public:
        lines.append("If one of these were public (most gained first):")
        width = min(max(len(change.column) for change in found.if_public[:_SHOWN]), 40)
        for change in found.if_public[:_SHOWN]:
            ends = " to ".join(map(_percent, change.kept))
            told = f"keeps about {_percent(change.middle)}, from {ends}"
            lines.append(f"  {change.column[:40]:<{width}}  {told}")
        if len(found.if_public) > _SHOWN:
            lines.append(f"  and {len(found.if_public) - _SHOWN} more (--json shows all)")
    lines.append("A rule of thumb from rows, schema and budget: docs/check.md.")
    return "\n".join(lines)


def _percent(part: float) -> str:
    return f"{100 * part:.0f}%"
