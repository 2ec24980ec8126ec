"""`halfmask init`: a schema template with names and types only, everything private."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from halfmask.cli.output import emit, json_option, note

if TYPE_CHECKING:
    import pyarrow as pa

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
    from halfmask.reading import read_frame

    kinds = column_kinds(read_frame(file))
    _check_label(kinds, label)
    if not short and dictionary is None:
        if len(kinds) > _WIDE:
            note(f"{len(kinds)} columns: --short declares columns alike together.")
        emit({"schema": template(kinds, label)}, template_toml(kinds, label).rstrip(), as_json)
        return
    declared = declarations(kinds, dictionary)
    data = short_template(declared, label)
    emit({"schema": data}, short_toml(data, label, kinds).rstrip(), as_json)


def declarations(kinds: dict[str, str], dictionary: str | None) -> dict[str, dict[str, Any]]:
    """Each column's kind, bounds and categories, by the dictionary or, without, the kind alone."""
    from halfmask.dictionary import read_dictionary
    from halfmask.errors import DataError
    from halfmask.schema import suggest

    known = {} if dictionary is None else read_dictionary(dictionary)
    strange = [name for name in known if name not in kinds]
    if strange:
        raise DataError(
            f"{dictionary} describes columns that the data does not have: "
            f"{', '.join(map(repr, strange[:8]))}.{suggest(strange[0], kinds)} Correct the names, "
            "or remove these rows."
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
    import tomli_w

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
    import tomli_w

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
    import tomli_w

    return tomli_w.dumps({name: 0}).removesuffix(" = 0\n")


def column_kinds(table: pa.Table) -> dict[str, str]:
    """Each column's kind: by its type in the file; for text, what all of it reads as."""
    import pyarrow as pa

    from halfmask.frames import kind_of_texts

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
    from halfmask.errors import DataError
    from halfmask.schema import suggest

    if label is not None and label not in kinds:
        raise DataError(
            f"The data has no column {label!r} for the label.{suggest(label, kinds)} "
            f"Its columns are: {', '.join(kinds)}."
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
    import tomli_w

    data = template(kinds, label)
    head = tomli_w.dumps({"label": data["label"]}).rstrip()
    parts = [_HEAD, f"{head}\n{_label_hint(kinds, label)}\n"]
    for name, column in data["columns"].items():
        table = tomli_w.dumps({"columns": {name: column}}).rstrip()
        parts.append(f"{table}\n{_FILL_IN[column['kind']]}\n")
    return "\n".join(parts)


def _label_hint(kinds: dict[str, str], label: str | None) -> str:
    return _LABEL_HINT["number" if label and kinds[label] == "number" else "category"]
