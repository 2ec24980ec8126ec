"""`halfmask reproduce NAME` and `halfmask bench NAME`: published experiments run again, and times
against others, side by side in one run. Both live in the lab (`lab/halfmask_lab`)."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Callable, Iterable
from importlib import import_module
from importlib.util import find_spec
from inspect import signature
from pathlib import Path
from typing import Any

import click

from halfmask.accounting.budget import printed
from halfmask.cli.options import PATH
from halfmask.cli.output import emit, grid, json_option, note, reporting
from halfmask.errors import InputError
from halfmask.storage import json_text, write_text

EXPERIMENTS = {
    "dp-erm": "halfmask_lab.dp_erm",
    "adult-erm": "halfmask_lab.adult:erm",
    "adult-roles": "halfmask_lab.adult:roles",
    "tables": "halfmask_lab.tables",
    "peers": "halfmask_lab.peers",
    "auto": "halfmask_lab.auto_truth",
    "mnist-labels": "halfmask_lab.mnist_labels",
    "label-logistic": "halfmask_lab.label_logistic",
    "location30": "halfmask_lab.feature_privacy:location30",
    "purchase100": "halfmask_lab.feature_privacy:purchase100",
    "mnist-pixels": "halfmask_lab.feature_privacy:mnist_pixels",
    "a9a": "halfmask_lab.a9a",
    "gisette": "halfmask_lab.gisette",
}


def found(module: str) -> Any:
    """The module of an experiment or bench: of an installed lab, or of the folder beside src."""
    beside = Path(__file__).parents[3] / "lab"
    if find_spec("halfmask_lab") is None and (beside / "halfmask_lab").is_dir():
        sys.path.append(str(beside))
    if find_spec("halfmask_lab") is None:
        raise InputError(
            "Experiments and benchmarks are not part of the wheel: in a clone of the project, run "
            "`pip install ./lab`."
        )
    return import_module(module)


def _listed(names: Iterable[str]) -> str:
    """The names at the end of a help text, none of them broken at its hyphen."""
    words = textwrap.fill(f"NAME is one of {', '.join(names)}.", 76, break_on_hyphens=False)
    return f"\b\n{words}"


@click.command(epilog=_listed(EXPERIMENTS))
@click.argument("name", metavar="NAME", type=click.Choice(list(EXPERIMENTS)))
@click.option(
    "--data",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    envvar="HALFMASK_DATA",
    help="The folder of published files (or HALFMASK_DATA).",
)
@click.option("--out", type=PATH, help="Where the figure and JSON go.")
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
    place, _, function = EXPERIMENTS[name].partition(":")
    module = found(place)
    run = getattr(module, function or "run")
    chosen = _chosen(name, run, part)
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
    with reporting(f"reproduce {name}") as report:
        result: dict[str, Any] = run(data, out, report, seed=unsafe_seed, **chosen)
    if out is not None:
        path = out / f"{name}.json"
        write_text(path, json_text(result))
        note(f"Results written to {path}.")
    for_terminal = getattr(module, "for_terminal", _results)
    emit(result, for_terminal(result), as_json)


def _chosen(name: str, run: Callable[..., Any], part: dict[str, Any]) -> dict[str, Any]:
    """The options that were given, where the experiment knows them."""
    given = {option: value for option, value in part.items() if value not in (None, ())}
    for option in given:
        if option not in signature(run).parameters:
            word = {"draws": "draws", "train_rows": "rows"}.get(option, option.removesuffix("s"))
            raise InputError(f"reproduce {name} has no option --{word}: leave it out.")
    return given


def _results(result: dict[str, Any]) -> object:
    def cells(row: dict[str, Any]) -> tuple[str, ...]:
        epsilon = "none" if row["epsilon"] is None else printed(row["epsilon"])
        delta = "" if row.get("delta") is None else f"{row['delta']:.3g}"
        measured = (f"{row['mean']:.4f}", f"{row['std']:.4f}", str(row["draws"]))
        relation = row.get("relation") or ""
        return row["method"], epsilon, delta, relation, row["metric"], *measured

    headings = ("method", "epsilon", "delta", "relation", "metric", "mean", "std", "draws")
    return grid(f"{result['name']} ({result['data']})", headings, map(cells, result["results"]))


BENCHES = {
    "linear": "halfmask_lab.bench_linear",
    "step": "halfmask_lab.bench_step",
    "admm": "halfmask_lab.bench_admm",
    "scale": "halfmask_lab.bench_scale",
}


@click.command(epilog=_listed(BENCHES))
@click.argument("name", metavar="NAME", type=click.Choice(list(BENCHES)))
@click.option("--rows", type=int, help="Rows of the drawn file (scale alone).")
@click.option("--columns", type=int, help="Columns of the drawn file (scale alone).")
@json_option
def bench(name: str, rows: int | None, columns: int | None, as_json: bool) -> None:
    """Run the benchmark NAME; a ratio is the time of `what` over the time of `against`."""
    module = found(BENCHES[name])
    asked = {"rows": rows, "columns": columns}
    sizes = {key: size for key, size in asked.items() if size is not None}
    if sizes and name != "scale":
        raise click.UsageError(f"--{next(iter(sizes))} is for bench scale alone.")
    with reporting(f"bench {name}") as report:
        result: dict[str, Any] = module.run(report, **sizes)
    emit(result, _ratios(result), as_json)


def _ratios(result: dict[str, Any]) -> object:
    def cells(row: dict[str, Any]) -> tuple[str, ...]:
        numbers = (f"{row[key]:.3g}" for key in ("ratio", "low", "high"))
        return row["what"], row["against"], str(row["setting"]), *numbers

    what = "time" if result["name"] != "scale" else "cost"
    title = f"bench {result['name']}: {what} of what / {what} of against"
    headings = ("what", "against", "setting", "ratio", "low", "high")
    return grid(title, headings, map(cells, result["ratios"]))
