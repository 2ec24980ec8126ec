"""`halfmask predict` and `halfmask evaluate`: new rows in, predictions or scores out."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from halfmask.cli.options import PATH, encoded_pieces
from halfmask.cli.output import check_target, emit, json_option, reporting
from halfmask.errors import DataError, InputError
from halfmask.storage import replacing

if TYPE_CHECKING:
    from halfmask.data.reading import FileRows
    from halfmask.model import Model
    from halfmask.table import Table


@click.command()
@click.argument("model", type=PATH)
@click.argument("data", type=PATH)
@click.option(
    "--out",
    type=PATH,
    help="The CSV file to write (default, or -: standard output).",
)
@click.option("--overwrite", is_flag=True, help="Replace the file of --out if there is one.")
@json_option
def predict(model: Path, data: Path, out: Path | None, overwrite: bool, as_json: bool) -> None:
    """Predict the rows of DATA with MODEL (a folder that train wrote); rows stay in order."""
    from halfmask.data.reading import open_rows
    from halfmask.model import Model

    out = None if str(out) == "-" else out
    if as_json and out is None:
        raise InputError("With --json, name the file to write with --out.")
    if out is not None:
        check_target(out, "--out", overwrite=overwrite, read={"MODEL": model, "DATA": data})
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


# --- `halfmask evaluate`: scores on rows of the user's own, which no guarantee covers.


EVALUATION_NOT_COVERED = "Computed from the labels of these rows: not covered by the guarantee."


@click.command()
@click.argument("model", type=PATH)
@click.argument("data", type=PATH)
@click.option(
    "--party",
    "parties",
    multiple=True,
    metavar="NAME=FILE",
    help="For a vertical model, whose DATA has ids and labels: each party's rows, or its own file.",
)
@click.option("--by", metavar="COLUMN", help="Scores for each value of this column of DATA.")
@click.option(
    "--reference",
    type=PATH,
    help="Fit models without privacy on this file (the training rows), to compare: NOT PRIVATE.",
)
@json_option
def evaluate(
    model: Path,
    data: Path,
    parties: tuple[str, ...],
    by: str | None,
    reference: Path | None,
    as_json: bool,
) -> None:
    """Score MODEL on the labelled rows of DATA: accuracy, log loss, AUC; or RMSE and R².

    Beside them: a constant, and the public columns alone where the model has such a part;
    precision, recall, calibration and the confusion matrix of classes; scores by group with --by.
    """
    from halfmask.data.frames import texts
    from halfmask.data.reading import open_rows
    from halfmask.model import Model
    from halfmask.report.covered import covered_scores
    from halfmask.scoring import check_by, judge

    if is_vertical(model):
        if by is not None or reference is not None:
            raise InputError("--by and --reference are for a model of one table.")
        scored = _vertical_scores(model, data, parties)
        lines = _main_lines(scored, "More rows or a larger\nepsilon may help.")
        text = "\n".join([*lines, EVALUATION_NOT_COVERED])
        emit({**scored, "covered_by_guarantee": False}, text, as_json)
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

        groups = None
        if by is not None:
            check_by(rows, by, fitted)
            groups = texts(rows.columns([by]), by).to_pylist()
        measured = judge(fitted, tables(), groups)
    if reference is not None:
        measured["reference"] = reference_of(fitted, reference, data)
    covered = covered_scores(fitted.details)
    result = {
        **measured,
        "covered_by_guarantee": False,
        "covered": None if covered is None else covered.to_json(),
    }
    emit(result, _text(measured, by), as_json)


_MAIN = ("rows", "accuracy", "log_loss", "auc", "rmse", "r2")


def _text(measured: dict[str, Any], by: str | None) -> str:
    """Within 80 columns."""
    from halfmask.scoring import reference_lines, told_scores

    lines = _main_lines(
        measured,
        "More rows, a larger\n"
        "epsilon or more public columns may help: halfmask check says how much.",
    )
    if "classes" in measured:
        lines += ["", f"{'class':<24}{'rows':>9}{'precision':>11}{'recall':>9}{'calibration':>13}"]
        for name, each in measured["classes"].items():
            cells = (each["precision"], each["recall"], each["calibration_error"])
            shown = ["-" if value is None else f"{value:.3f}" for value in cells]
            lines.append(
                f"{name[:23]:<24}{each['rows']:>9,}{shown[0]:>11}{shown[1]:>9}{shown[2]:>13}"
            )
        lines += _confusion(measured["confusion"])
    if by is not None:
        lines += ["", f"By {by}:"]
        for name, each in measured["groups"].items():
            lines.append(f"  {name[:20]:<20}  {told_scores(each)}")
    if "reference" in measured:
        lines += reference_lines(measured["reference"], "fitted on --reference, on these rows")
    return "\n".join([*lines, "", EVALUATION_NOT_COVERED])


def _main_lines(measured: Mapping[str, Any], advice: str) -> list[str]:
    """The scores, and what they are to be held against; `advice` where they are no better."""
    from halfmask.scoring import told_scores

    lines = _lines({name: measured[name] for name in _MAIN if name in measured})
    if measured.get("without_label"):
        lines.append(f"Left out, since they have no label: {measured['without_label']:,} rows.")
    for title, key in (
        ("a constant", "constant"),
        ("the public columns alone", "public_columns_alone"),
    ):
        if key in measured:
            lines.append(f"To compare, {title}: {told_scores(measured[key])}.")
    if not measured["better_than_constant"]:
        lines.append(f"On these rows the model is NO BETTER THAN A CONSTANT. {advice}")
    return lines


def reference_of(model: Model, training: Path, data: Path) -> dict[str, Any]:
    """Models without privacy, fitted on one file and scored on another."""
    from halfmask.data.reading import read_frame
    from halfmask.scoring import reference

    if model.encoder is None:
        raise InputError("A model of a bare array has no columns: leave out --reference.")
    rows = model.encode(read_frame(training), with_label=True)
    return reference(rows, [model.encode(read_frame(data), with_label=True)])


def _confusion(counts: dict[str, dict[str, int]]) -> list[str]:
    if len(counts) > 5:
        return ["Confusion matrix: --json shows it."]
    head = "".join(f"{name[:11]:>12}" for name in counts)
    rows = [
        f"{name[:15]:<16}" + "".join(f"{count:>12,}" for count in line.values())
        for name, line in counts.items()
    ]
    return ["", f"{'true / called':<16}{head}", *rows]


def is_vertical(model: Path) -> bool:
    """Whether this is a model whose columns different parties hold, or the run file of one."""
    from halfmask.model_folder import VERTICAL_FILE

    return model.suffix == ".toml" or (model / VERTICAL_FILE).is_file()


def _vertical_scores(run: Path, data: Path, parties: tuple[str, ...]) -> dict[str, Any]:
    import numpy as np

    from halfmask.cli.vertical import load_model, named_files, scores_of
    from halfmask.data.encoding import level_codes
    from halfmask.data.frames import check_columns, numbers, texts
    from halfmask.scoring import beside_a_constant
    from halfmask.table import read_frame
    from halfmask.vertical.queries import read_ids

    if not parties:
        raise InputError(
            "This model has columns of several parties: pass the rows of each with "
            "--party NAME=FILE."
        )
    model = load_model(run)
    frame = read_frame(data)
    check_columns(frame, [model.id, model.label])
    files = named_files(parties, "--party")
    if model.classes is None:
        wanted = numbers(frame, model.label, otherwise="")
        if np.isnan(wanted).any():
            row = int(np.isnan(wanted).argmax()) + 1
            raise DataError(f"Column {model.label!r}, row {row}: the label is missing.")
        found = scores_of(run, model, read_ids(data, model.id), files)
        return beside_a_constant(wanted, model.predicted(found), numbers=True)
    codes = level_codes(texts(frame, model.label), model.classes)
    if (codes < 0).any():
        row = int((codes < 0).argmax()) + 1
        raise DataError(
            f"Column {model.label!r}, row {row}: expected one of the classes that were declared."
        )
    found = scores_of(run, model, read_ids(data, model.id), files)
    return beside_a_constant(codes, model.probabilities(found), numbers=False)


def _lines(measured: Mapping[str, float | None]) -> list[str]:
    from halfmask.scoring import shown_score, shown_value

    def shown(value: float | None) -> str:
        if value is None:
            return "undefined: these rows hold one class only"
        return f"{value:,}" if isinstance(value, int) else shown_value(value)

    return [f"{shown_score(name):>10}  {shown(value)}" for name, value in measured.items()]
