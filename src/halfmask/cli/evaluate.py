"""`halfmask evaluate`: scores on rows of the user's own, which no guarantee covers."""

from __future__ import annotations

from pathlib import Path

import click

from halfmask.cli.output import emit, json_option

NOT_COVERED = "Computed from the labels of these rows: not covered by the guarantee."


@click.command()
@click.argument("model", type=click.Path(path_type=Path))
@click.argument("data", type=click.Path(path_type=Path))
@json_option
def evaluate(model: Path, data: Path, as_json: bool) -> None:
    """Score MODEL on the labelled rows of DATA: accuracy, log loss, AUC; or RMSE and R²."""
    from halfmask.errors import DataError
    from halfmask.model import Model
    from halfmask.scoring import scores
    from halfmask.table import read_frame

    fitted = Model.load(model)
    frame = read_frame(data)
    label = None if fitted.encoder is None else fitted.encoder.schema.label.name
    if label is not None and label not in frame.column_names:
        raise DataError(
            f"Evaluating needs the label: {str(data)!r} has no column {label!r}. "
            "Use predict for rows without it."
        )
    table = fitted.encode(frame, with_label=True)
    measured = scores(fitted, table)
    lines = [f"{name:>10}  {_shown(value)}" for name, value in measured.items()]
    result = {**measured, "covered_by_guarantee": False}
    emit(result, "\n".join([*lines, NOT_COVERED]), as_json)


def _shown(value: float | None) -> str:
    if value is None:
        return "undefined: these rows hold one class only"
    return f"{value:,}" if isinstance(value, int) else f"{value:.4f}"
