"""`halfmask evaluate`: scores on rows of the user's own, which no guarantee covers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from halfmask.cli.output import emit, json_option, reporting
from halfmask.cli.rows import encoded_pieces

if TYPE_CHECKING:
    from halfmask.table import Table

NOT_COVERED = "Computed from the labels of these rows: not covered by the guarantee."


@click.command()
@click.argument("model", type=click.Path(path_type=Path))
@click.argument("data", type=click.Path(path_type=Path))
@json_option
def evaluate(model: Path, data: Path, as_json: bool) -> None:
    """Score MODEL on the labelled rows of DATA: accuracy, log loss, AUC; or RMSE and R²."""
    from halfmask.errors import DataError
    from halfmask.model import Model
    from halfmask.reading import open_rows
    from halfmask.scoring import scores

    fitted = Model.load(model)
    with open_rows(data) as rows, reporting("evaluate") as report:
        label = None if fitted.encoder is None else fitted.encoder.schema.label.name
        if label is not None and label not in rows.column_names:
            raise DataError(
                f"Evaluating needs the label: {str(data)!r} has no column {label!r}. "
                "Use predict for rows without it."
            )

        def tables() -> Iterator[Table]:
            for start, table in encoded_pieces(fitted, rows, with_label=True):
                yield table
                report((start + table.n) / rows.num_rows, f"{start + table.n:,} rows")

        measured = scores(fitted, tables())
    lines = [f"{name:>10}  {_shown(value)}" for name, value in measured.items()]
    result = {**measured, "covered_by_guarantee": False}
    emit(result, "\n".join([*lines, NOT_COVERED]), as_json)


def _shown(value: float | None) -> str:
    if value is None:
        return "undefined: these rows hold one class only"
    return f"{value:,}" if isinstance(value, int) else f"{value:.4f}"
