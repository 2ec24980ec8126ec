"""`halfmask evaluate`: scores on rows of the user's own, which no guarantee covers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
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
@click.option(
    "--party",
    "parties",
    multiple=True,
    metavar="NAME=FILE",
    help="For a vertical model, whose DATA has ids and labels: each party's rows, or its own file.",
)
@json_option
def evaluate(model: Path, data: Path, parties: tuple[str, ...], as_json: bool) -> None:
    """Score MODEL on the labelled rows of DATA: accuracy, log loss, AUC; or RMSE and R²."""
    from halfmask.errors import DataError, InputError
    from halfmask.model import Model
    from halfmask.reading import open_rows
    from halfmask.scoring import scores

    if is_vertical(model):
        _emit(_vertical_scores(model, data, parties), as_json)
        return
    if parties:
        raise InputError("--party is for a vertical model: this one has all its columns in DATA.")
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
    _emit(measured, as_json)


def is_vertical(model: Path) -> bool:
    """Whether this is a model whose columns different parties hold, or the run file of one."""
    from halfmask.vertical.part import MODEL_FILE

    return model.suffix == ".toml" or (model / MODEL_FILE).is_file()


def _vertical_scores(run: Path, data: Path, parties: tuple[str, ...]) -> dict[str, float | None]:
    from halfmask.cli.vertical_predict import load_model, named_files, scores_of
    from halfmask.encoding import level_codes
    from halfmask.errors import DataError
    from halfmask.frames import check_columns, texts
    from halfmask.scoring import class_scores
    from halfmask.table import read_frame
    from halfmask.vertical.queries import read_ids

    model = load_model(run)
    frame = read_frame(data)
    check_columns(frame, [model.id, model.label])
    codes = level_codes(texts(frame, model.label), model.classes)
    if (codes < 0).any():
        row = int((codes < 0).argmax()) + 1
        raise DataError(
            f"Column {model.label!r}, row {row}: expected one of the classes that were declared."
        )
    found = scores_of(run, model, read_ids(data, model.id), named_files(parties, "--party"))
    return class_scores(codes, model.probabilities(found))


def _emit(measured: Mapping[str, float | None], as_json: bool) -> None:
    lines = [f"{name:>10}  {_shown(value)}" for name, value in measured.items()]
    result = {**measured, "covered_by_guarantee": False}
    emit(result, "\n".join([*lines, NOT_COVERED]), as_json)


def _shown(value: float | None) -> str:
    if value is None:
        return "undefined: these rows hold one class only"
    return f"{value:,}" if isinstance(value, int) else f"{value:.4f}"
