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
}


def available() -> list[str]:
    """The benchmarks that are part of this installation."""
    return [name for name, module in BENCHES.items() if find_spec(module)]


@click.command()
@click.argument("name", type=click.Choice(available()))
@json_option
def bench(name: str, as_json: bool) -> None:
    """Run the benchmark NAME; a ratio is the time of `what` over the time of `against`."""
    module = import_module(BENCHES[name])
    with reporting(f"bench {name}") as report:
        result: dict[str, Any] = module.run(report)
    emit(result, _table(result), as_json)


def _table(result: dict[str, Any]) -> object:
    from rich.table import Table

    table = Table(title=f"bench {result['name']}: time of what / time of against")
    for heading in ("what", "against", "setting", "ratio", "low", "high"):
        table.add_column(heading)
    for row in result["ratios"]:
        numbers = (f"{row[key]:.3g}" for key in ("ratio", "low", "high"))
        table.add_row(row["what"], row["against"], str(row["setting"]), *numbers)
    return table
