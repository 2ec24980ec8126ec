"""`halfmask predict`: classes and probabilities, or numbers, for new rows."""

from __future__ import annotations

import io
from pathlib import Path

import click

from halfmask.cli.output import emit, json_option


@click.command()
@click.argument("model", type=click.Path(path_type=Path))
@click.argument("data", type=click.Path(path_type=Path))
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    help="The CSV file to write (default: standard output).",
)
@json_option
def predict(model: Path, data: Path, out: Path | None, as_json: bool) -> None:
    """Predict the rows of DATA with MODEL (a folder that train wrote); rows stay in order."""
    import pyarrow as pa
    import pyarrow.csv

    from halfmask.errors import InputError
    from halfmask.model import Model
    from halfmask.table import read_frame

    if as_json and out is None:
        raise InputError("With --json, name the file to write with --out.")
    fitted = Model.load(model)
    table = fitted.encode(read_frame(data))
    columns: dict[str, pa.Array] = {"prediction": pa.array(fitted.predict(table).tolist())}
    if fitted.classes is not None:
        probabilities = fitted.probabilities(table)
        for index, name in enumerate(fitted.classes):
            columns[f"p_{name}"] = pa.array(probabilities[:, index])
    written = io.BytesIO()
    pyarrow.csv.write_csv(pa.table(columns), written)
    if out is None:
        emit({}, written.getvalue().decode("utf-8").rstrip("\n"), False)
        return
    out.write_bytes(written.getvalue())
    result = {"rows": table.n, "out": str(out), "columns": list(columns)}
    emit(result, f"{table.n} predictions written to {out}.", as_json)
