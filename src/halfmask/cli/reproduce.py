"""`halfmask reproduce NAME`: run a published experiment again, on real data where it is at hand."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from inspect import signature
from pathlib import Path
from typing import Any

import click

from halfmask.accounting.budget import printed
from halfmask.cli.output import emit, json_option, note, reporting
from halfmask.errors import InputError

EXPERIMENTS = {
    "dp-erm": "halfmask.experiments.dp_erm",
    "adult-erm": "halfmask.experiments.adult_erm",
    "adult-roles": "halfmask.experiments.adult_roles",
    "tables": "halfmask.experiments.tables",
    "peers": "halfmask.experiments.peers",
    "auto": "halfmask.experiments.auto_truth",
    "mnist-labels": "halfmask.experiments.mnist_labels",
    "label-logistic": "halfmask.experiments.label_logistic",
    "location30": "halfmask.experiments.location30",
    "purchase100": "halfmask.experiments.purchase100",
    "mnist-pixels": "halfmask.experiments.mnist_pixels",
    "a9a": "halfmask.experiments.a9a",
    "gisette": "halfmask.experiments.gisette",
}


def available() -> list[str]:
    """The experiments that are part of this installation."""
    return [name for name, module in EXPERIMENTS.items() if find_spec(module)]


@click.command()
@click.argument("name", type=click.Choice(available()))
@click.option(
    "--data",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    envvar="HALFMASK_DATA",
    help="The folder of published files (or HALFMASK_DATA).",
)
@click.option("--out", type=click.Path(path_type=Path), help="Where the figure and JSON go.")
@click.option(
    "--unsafe-seed",
    type=int,
    default=0,
    show_default=True,
    help="Seed of the noise; the epsilon printed is the calibrated one.",
)
@click.option("--draws", type=click.IntRange(min=1), help="Draws of the noise, to average over.")
@click.option("--epsilon", "epsilons", type=float, multiple=True, help="May be repeated.")
@click.option(
    "--rows",
    "train_rows",
    type=click.IntRange(min=100),
    help="Training rows of `purchase100` (the paper has 197,324: with the published file), "
    "`mnist-pixels` and `location30`.",
)
@click.option(
    "--table", "tables", multiple=True, help="Of `tables`, `auto`: one of them. May be repeated."
)
@click.option(
    "--role",
    "roles",
    multiple=True,
    help="Of `tables`, `auto`: all, half, features or label private. May be repeated.",
)
@click.option(
    "--method",
    "methods",
    multiple=True,
    help="Of `tables`: a method to judge, or dp-ebm (default: auto and dp-ebm). Of `auto`: one to "
    "hold against it (default: all). May be repeated.",
)
@json_option
def reproduce(
    name: str,
    data: Path | None,
    out: Path | None,
    unsafe_seed: int,
    as_json: bool,
    **part: Any,
) -> None:
    """Run the experiment NAME; ends within 40 minutes on two cores."""
    module = import_module(EXPERIMENTS[name])
    chosen = _chosen(name, module.run, part)
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
    with reporting(f"reproduce {name}") as report:
        result: dict[str, Any] = module.run(data, out, report, seed=unsafe_seed, **chosen)
    if out is not None:
        import json

        from halfmask.cli.output import plain
        from halfmask.model_folder import write_text

        path = out / f"{name}.json"
        write_text(path, json.dumps(plain(result), indent=2))
        note(f"Results written to {path}.")
    shown = getattr(module, "shown", _table)
    emit(result, shown(result), as_json)


def _chosen(name: str, run: Callable[..., Any], part: dict[str, Any]) -> dict[str, Any]:
    """The options that were given, where the experiment knows them."""
    given = {option: value for option, value in part.items() if value not in (None, ())}
    for option in given:
        if option not in signature(run).parameters:
            word = {"draws": "draws", "train_rows": "rows"}.get(option, option.removesuffix("s"))
            raise InputError(f"reproduce {name} has no option --{word}: leave it out.")
    return given


def _table(result: dict[str, Any]) -> object:
    from rich.table import Table

    table = Table(title=f"{result['name']} ({result['data']})")
    for heading in ("method", "epsilon", "delta", "relation", "metric", "mean", "std", "draws"):
        table.add_column(heading)
    for row in result["results"]:
        epsilon = "none" if row["epsilon"] is None else printed(row["epsilon"])
        delta = "" if row.get("delta") is None else f"{row['delta']:.3g}"
        table.add_row(
            row["method"],
            epsilon,
            delta,
            row.get("relation") or "",
            row["metric"],
            f"{row['mean']:.4f}",
            f"{row['std']:.4f}",
            str(row["draws"]),
        )
    return table
