"""`halfmask compare`: methods side by side on the user's file, under one budget that is charged."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from halfmask.cli.interrupts import after_this
from halfmask.cli.options import settings_options, training_options
from halfmask.cli.output import emit, json_option, note, plain, reporting
from halfmask.cli.schemas import read_schema

if TYPE_CHECKING:
    from halfmask.comparison import Trained

SPENDS = (
    "Comparing spends budget: every method is trained on the same rows, and all of them together "
    "cost the total below, even if you keep one model only."
)
NOT_COVERED = "Scores are computed from the labels of the test rows: not covered by the guarantee."


@click.command()
@training_options(
    epsilon="The budget of all methods together.", ledger="a ledger in the folder of --out"
)
@click.option(
    "--methods",
    default="auto,gd,dp-sgd",
    show_default=True,
    help="Methods by name, separated by commas.",
)
@settings_options("METHOD.NAME")
@click.option(
    "--test",
    "test_file",
    type=click.Path(path_type=Path),
    help="Labelled rows that were not trained on, to score every method.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    help="A new folder for the models, compare.json and compare.svg.",
)
@json_option
def compare(
    data: Path,
    schema_file: Path,
    methods: str,
    settings: tuple[str, ...],
    config_file: Path | None,
    epsilon: float,
    delta: float,
    relation: str,
    test_file: Path | None,
    ledger_file: Path | None,
    out: Path | None,
    as_json: bool,
) -> None:
    """Train several methods on DATA (CSV or Parquet) and score them side by side."""
    from halfmask import comparison
    from halfmask.accounting.budget import Budget
    from halfmask.accounting.ledger import Ledger
    from halfmask.accounting.relations import check_relation
    from halfmask.errors import InputError
    from halfmask.model_folder import write_text
    from halfmask.model_ledger import link_ledger
    from halfmask.settings import configs_for_methods
    from halfmask.table import Encoder, read_frame

    budget = Budget(epsilon=epsilon, delta=delta, relation=check_relation(relation))
    if test_file is None and out is None:
        raise InputError(
            "Nothing would come of it: pass --test FILE to score the methods, or --out FOLDER to "
            "keep their models."
        )
    if out is not None and out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise InputError(f"{str(out)!r} exists already: name a new folder with --out.")
    names = [name.strip() for name in methods.split(",") if name.strip()]
    configs = configs_for_methods(names, settings, config_file)
    schema = read_schema(schema_file, data)
    frame = read_frame(data)
    encoder = Encoder.fit(schema, frame)
    table = encoder.encode(frame)
    test = None
    if test_file is not None:
        test = encoder.encode(read_frame(test_file), with_label=True, with_unit=False)
    note(SPENDS)
    planned = comparison.plan(table, names, budget, configs=configs)
    book = None
    if ledger_file is not None:
        book = Ledger.open(ledger_file)
        comparison.check_ledger(planned, book)
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        if book is None:
            book = Ledger.create(
                out / "ledger.jsonl", epsilon=epsilon, delta=delta, relation=relation
            )
    if book is None:
        note("No ledger keeps this: pass --ledger FILE, or count the total by hand.")

    def keep(item: Trained) -> None:
        if out is not None:
            assert book is not None
            with after_this():
                item.model.save(out / item.choice.method)
                link_ledger(out / item.choice.method, book.path)

    with reporting("compare") as progress:
        trained, total = comparison.run(
            table,
            planned,
            budget,
            encoder=encoder,
            book=book,
            keep=keep,
            progress=progress,
        )
    rows = [_row(item, planned.auto, test, out) for item in trained]
    result: dict[str, Any] = {
        "epsilon": epsilon,
        "delta": delta,
        "relation": relation,
        "epsilon_each": planned.each,
        "spent": total.spent(),
        "rows": table.n,
        "methods": rows,
        "covered_by_guarantee": False,
        "ledger": None if book is None else str(book.path),
        "figure": None,
    }
    if out is not None:
        result["figure"] = _figure(rows, out)
        text = json.dumps(plain(result), indent=2, allow_nan=False)
        write_text(out / "compare.json", text)
    emit(result, _shown(result), as_json)


def _row(item: Trained, auto: str | None, test: Any, out: Path | None) -> dict[str, Any]:
    from halfmask.scoring import scores

    model, name = item.model, item.choice.method
    row: dict[str, Any] = {
        "method": name,
        "auto": name == auto,
        "epsilon": model.privacy.epsilon,
        "seconds": item.seconds,
        "model": None if out is None else str(out / name),
    }
    if test is not None:
        measured = scores(model, test)
        row |= {"test_rows": measured.pop("rows"), **measured}
    return row


def _metric(rows: Sequence[Mapping[str, Any]]) -> str | None:
    return next((name for name in ("accuracy", "rmse") if name in rows[0]), None)


def _figure(rows: Sequence[Mapping[str, Any]], out: Path) -> str | None:
    """compare.svg, where there are scores to draw and matplotlib to draw them with."""
    from importlib.util import find_spec

    metric = _metric(rows)
    if metric is None or find_spec("matplotlib") is None:
        return None
    from halfmask.model_folder import replacing
    from halfmask.report.plots import house_style, method_bars

    named = [(_name(row), float(row[metric])) for row in rows]
    figure = method_bars(named, metric=f"{metric} on the test rows").get_figure(root=True)
    assert figure is not None
    path = out / "compare.svg"
    with house_style(), replacing(path) as drawn:
        figure.savefig(drawn)
    return str(path)


def _name(row: Mapping[str, Any]) -> str:
    return f"{row['method']} (auto)" if row["auto"] else str(row["method"])


def _shown(result: Mapping[str, Any]) -> object:
    from rich.console import Group
    from rich.table import Table

    from halfmask.accounting.budget import printed

    rows = result["methods"]
    left_out = {"method", "auto", "epsilon", "seconds", "model", "test_rows"}
    metrics = [name for name in rows[0] if name not in left_out]
    title = (
        f"Budget of all together: epsilon {printed(result['spent'])} of "
        f"{printed(result['epsilon'])} at delta {result['delta']:g} ({result['relation']})"
    )
    table = Table(title=title)
    for heading in ("method", "epsilon", *(name.replace("_", " ") for name in metrics), "seconds"):
        table.add_column(heading)
    for row in rows:
        measured = ["undefined" if row[m] is None else f"{row[m]:.4f}" for m in metrics]
        table.add_row(_name(row), printed(row["epsilon"]), *measured, f"{row['seconds']}")
    words: list[Any] = [table]
    words += [NOT_COVERED] if metrics else []
    if result["ledger"]:
        words.append(f"Charged to {result['ledger']}.")
    folder = next((row["model"] for row in rows if row["model"]), None)
    if folder:
        words.append(f"The models are in {Path(folder).parent}.")
    return Group(*words)
