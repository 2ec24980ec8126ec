"""`halfmask init`: a schema template with names and types only, everything private."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from halfmask.cli.output import emit, json_option

if TYPE_CHECKING:
    import pyarrow as pa

_HEAD = """\
# A schema for halfmask. Every column is private until you write role = "public".
# A private column needs bounds or categories: fill them in from what is known without the data.
# Remove a column to leave it out of the model.
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
@json_option
def init(file: str, label: str | None, as_json: bool) -> None:
    """Write a schema template for FILE (CSV or Parquet) to standard output.

    It holds the names of the columns and their kinds, never a value or a range. Every
    column and the label are private; you mark what is public and fill in bounds and categories.
    """
    from halfmask.reading import read_frame

    kinds = column_kinds(read_frame(file))
    _check_label(kinds, label)
    emit({"schema": template(kinds, label)}, template_toml(kinds, label).rstrip(), as_json)


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
