"""`halfmask bench NAME`: time us against others, side by side in one run."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any

import click

from halfmask.cli.output import emit, json_option, reporting

BENCHES = {
    "linear": "halfmask.bench.linear",
    "step": "halfmask.bench.step",
    "admm": "halfmask.bench.admm",
    "scale": "halfmask.bench.scale",
}


def available() -> list[str]:
    """The benchmarks that are part of this installation."""
    return [name for name, module in BENCHES.items() if find_spec(module)]


@click.command()
@click.argument("name", type=click.Choice(available()))
@click.option("--rows", type=int, help="Rows of the drawn file (scale alone).")
@click.option("--columns", type=int, help="Columns of the drawn file (scale alone).")
@json_option
def bench(name: str, rows: int | None, columns: int | None, as_json: bool) -> None:
    """Run the benchmark NAME; a ratio is the time of `what` over the time of `against`."""
    module = import_module(BENCHES[name])
    asked = {"rows": rows, "columns": columns}
    sizes = {key: size for key, size in asked.items() if size is not None}
    if sizes and name != "scale":
        raise click.UsageError(f"--{next(iter(sizes))} is for bench scale alone.")
    with reporting(f"bench {name}") as report:
        result: dict[str, Any] = module.run(report, **sizes)
    emit(result, _table(result), as_json)


def _table(result: dict[str, Any]) -> object:
    from rich.table import Table

    what = "time" if result["name"] != "scale" else "cost"
    table = Table(title=f"bench {result['name']}: {what} of what / {what} of against")
    for heading in ("what", "against", "setting", "ratio", "low", "high"):
        table.add_column(heading)
    for row in result["ratios"]:
        numbers = (f"{row[key]:.3g}" for key in ("ratio", "low", "high"))
        table.add_row(row["what"], row["against"], str(row["setting"]), *numbers)
    return table
