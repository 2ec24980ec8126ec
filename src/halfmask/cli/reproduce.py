"""`halfmask reproduce NAME`: run a published experiment again, on real data where it is at hand."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click

from halfmask.cli.output import emit, json_option, note, reporting

EXPERIMENTS = {
    "adult-erm": "halfmask.experiments.adult_erm",
    "adult-roles": "halfmask.experiments.adult_roles",
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
@json_option
def reproduce(
    name: str, data: Path | None, out: Path | None, unsafe_seed: int, as_json: bool
) -> None:
    """Run the experiment NAME; ends within 40 minutes on two cores."""
    module = import_module(EXPERIMENTS[name])
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
    with reporting(f"reproduce {name}") as report:
        result: dict[str, Any] = module.run(data, out, report, seed=unsafe_seed)
    if out is not None:
        import json

        from halfmask.cli.output import plain

        path = out / f"{name}.json"
        path.write_text(json.dumps(plain(result), indent=2), encoding="utf-8")
        note(f"Results written to {path}.")
    emit(result, _table(result), as_json)


def _table(result: dict[str, Any]) -> object:
    from rich.table import Table

    table = Table(title=f"{result['name']} ({result['data']})")
    for heading in ("method", "epsilon", "delta", "relation", "metric", "mean", "std", "draws"):
        table.add_column(heading)
    for row in result["results"]:
        epsilon = "none" if row["epsilon"] is None else f"{row['epsilon']:g}"
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
