"""`halfmask predict`: classes and probabilities, or numbers, for new rows."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from halfmask.cli.output import emit, json_option, reporting
from halfmask.cli.rows import encoded_pieces

if TYPE_CHECKING:
    from halfmask.model import Model
    from halfmask.reading import FileRows


@click.command()
@click.argument("model", type=click.Path(path_type=Path))
@click.argument("data", type=click.Path(path_type=Path))
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    help="The CSV file to write (default: standard output).",
)
@click.option("--overwrite", is_flag=True, help="Replace the file of --out if there is one.")
@json_option
def predict(model: Path, data: Path, out: Path | None, overwrite: bool, as_json: bool) -> None:
    """Predict the rows of DATA with MODEL (a folder that train wrote); rows stay in order."""
    from halfmask.errors import InputError
    from halfmask.model import Model
    from halfmask.model_folder import replacing
    from halfmask.reading import open_rows

    if as_json and out is None:
        raise InputError("With --json, name the file to write with --out.")
    if out is not None and out.exists() and not overwrite:
        raise InputError(f"{str(out)!r} exists already: name a new file, or pass --overwrite.")
    fitted = Model.load(model)
    with open_rows(data) as rows, reporting("predict") as report:
        parts = _parts(fitted, rows, report)
        if out is None:
            for part in parts:
                click.echo(part.decode("utf-8"), nl=False)
            return
        with replacing(out) as path, path.open("wb") as file:
            file.writelines(parts)
        count = rows.num_rows
    result = {"rows": count, "out": str(out), "columns": _names(fitted)}
    emit(result, f"{count} predictions written to {out}.", as_json)


def _names(fitted: Model) -> list[str]:
    return ["prediction", *(f"p_{name}" for name in fitted.classes or ())]


def _parts(fitted: Model, rows: FileRows, report: Callable[[float, str], None]) -> Iterator[bytes]:
    """The CSV piece by piece."""
    import pyarrow as pa
    import pyarrow.csv

    for start, table in encoded_pieces(fitted, rows, with_label=False):
        columns = [pa.array(fitted.predict(table).tolist())]
        if fitted.classes is not None:
            columns += [pa.array(each) for each in fitted.probabilities(table).T]
        written = io.BytesIO()
        options = pyarrow.csv.WriteOptions(include_header=start == 0)
        pyarrow.csv.write_csv(pa.table(columns, names=_names(fitted)), written, options)
        report((start + table.n) / rows.num_rows, f"{start + table.n:,} rows")
        yield written.getvalue()
