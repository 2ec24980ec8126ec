"""`halfmask derive`: public columns that are functions of private ones."""

from __future__ import annotations

from pathlib import Path

import click

from halfmask.cli.output import emit, json_option, note


@click.command()
@click.argument("data", type=click.Path(path_type=Path))
@click.option(
    "--schema",
    "schema_file",
    required=True,
    type=click.Path(path_type=Path),
    help="The TOML file that says which columns are private.",
)
@click.option(
    "--public",
    "functions",
    multiple=True,
    required=True,
    metavar="'NAME = FUNCTION(COLUMN, ...)'",
    help="A function that becomes a public column, repeatable: round, band, prefix, presence, top, "
    "join.",
)
@click.option("--out", required=True, type=click.Path(path_type=Path), help="The CSV to write.")
@click.option(
    "--schema-out",
    type=click.Path(path_type=Path),
    help="Write the schema with the new columns here.",
)
@json_option
def derive(
    data: Path,
    schema_file: Path,
    functions: tuple[str, ...],
    out: Path,
    schema_out: Path | None,
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

    from halfmask.derived import parse, with_derived
    from halfmask.errors import InputError
    from halfmask.model_folder import replacing, write_text
    from halfmask.schema import Schema
    from halfmask.table import read_frame

    derived = [parse(text) for text in functions]
    schema = with_derived(Schema.from_toml(schema_file), derived)
    frame = read_frame(data)
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
