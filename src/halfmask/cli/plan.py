"""`halfmask plan`: noise, steps, error to expect and rows needed, before any data is touched."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from halfmask.accounting.relations import RELATIONS
from halfmask.cli.output import emit, json_option, note

if TYPE_CHECKING:
    from halfmask.methods.planner import Plan, Task

_METHODS = ("auto", "one-shot", "gd", "sgd", "dp-sgd", "label-span")
_ASSUMES = "rows of norm at most 1 and coefficients in the unit ball"


@click.command()
@click.option("--rows", type=int, required=True, help="Rows to train on (or persons).")
@click.option("--columns", type=int, required=True, help="Features after encoding.")
@click.option("--epsilon", type=float, required=True, help="The budget.")
@click.option("--delta", type=float, required=True, help="Between 0 and 1, well below 1/rows.")
@click.option(
    "--target-error",
    type=float,
    default=0.01,
    show_default=True,
    help="The excess risk for which rows are counted.",
)
@click.option(
    "--classes", type=int, default=2, show_default=True, help="Classes; 0 predicts a number."
)
@click.option("--public", type=int, default=0, show_default=True, help="How many are public.")
@click.option("--public-label", is_flag=True, help="The label is public.")
@click.option("--relation", type=click.Choice(RELATIONS), default="replace", show_default=True)
@click.option("--method", type=click.Choice(_METHODS), default="auto", show_default=True)
@click.option(
    "--plot", type=click.Path(path_type=Path), help="Write error against rows and epsilon here."
)
@json_option
def plan(
    *,
    rows: int,
    columns: int,
    epsilon: float,
    delta: float,
    target_error: float,
    classes: int,
    public: int,
    public_label: bool,
    relation: str,
    method: str,
    plot: Path | None,
    as_json: bool,
) -> None:
    """Noise, steps and error to expect, and the rows that a target error needs.

    \b
    halfmask plan --rows 32561 --columns 120 --epsilon 1 --delta 1e-6
    halfmask plan --rows 60000 --columns 784 --public 784 --classes 10 --epsilon 1 --delta 1e-5

    The error is a bound on the excess risk on the training rows (a difference of mean losses) for
    rows of norm at most 1 and coefficients in the unit ball. No data is read, nothing is charged.
    """
    from halfmask.accounting.relations import check_relation
    from halfmask.methods.planner import Task
    from halfmask.methods.planner import plan as make_plan

    task = Task(
        rows=rows,
        columns=columns,
        epsilon=epsilon,
        delta=delta,
        relation=check_relation(relation),
        classes=classes,
        public=public,
        label_private=not public_label,
    )
    made = make_plan(task, target_error=target_error, method=method)
    data: dict[str, Any] = {
        **made.to_json(),
        "rows": rows,
        "columns": columns,
        "epsilon": epsilon,
        "delta": delta,
        "relation": relation,
        "classes": classes,
        "assumes": _ASSUMES,
        "plot": None,
    }
    if plot is not None:
        draw(made, plot)
        data["plot"] = str(plot)
        note(f"Plot written to {plot}.")
    emit(data, _text(made, task), as_json)


def _text(made: Plan, task: Task) -> object:
    from rich.console import Group
    from rich.table import Table

    sampled = "all rows" if made.rate == 1 else f"rows drawn at rate {made.rate:.3g}"
    words = [
        f"method       {made.method}: {made.reason}",
        f"noise        {made.noise_multiplier:.4g} x the longest contribution of a row",
        f"steps        {made.steps} on {sampled}",
        f"error bound  {made.error_bound:.3g} in the mean loss ({_ASSUMES})",
        f"rows needed  {made.rows_needed} for an error of {made.target_error:g}",
    ]
    if made.numbers_of != made.method:
        words.append(
            f"numbers      of {made.numbers_of}: those of {made.method} have no closed form"
        )
    table = Table(title="Error bound by rows and epsilon")
    table.add_column("rows", justify="right")
    budgets = list(dict.fromkeys(row["epsilon"] for row in made.table))
    for budget in budgets:
        table.add_column(f"epsilon {budget:g}", justify="right")
    for n in dict.fromkeys(row["rows"] for row in made.table):
        cells = [f"{row['error_bound']:.3g}" for row in made.table if row["rows"] == n]
        table.add_row(f"{n}", *cells)
    return Group("\n".join(words), table)


def draw(made: Plan, path: Path) -> None:
    """Error against rows, a line for each epsilon, as a picture file."""
    from matplotlib.figure import Figure

    from halfmask.errors import InputError

    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.add_subplot()
    for budget in dict.fromkeys(row["epsilon"] for row in made.table):
        own = [row for row in made.table if row["epsilon"] == budget]
        axes.plot(
            [row["rows"] for row in own],
            [row["error_bound"] for row in own],
            marker="o",
            label=f"epsilon {budget:g}",
        )
    axes.axhline(made.target_error, color="gray", linestyle=":", label="target")
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("rows")
    axes.set_ylabel("bound on excess risk")
    axes.set_title(f"{made.method}: what to expect")
    axes.legend()
    try:
        figure.savefig(path, dpi=150)
    except ValueError:
        raise InputError(
            f"Cannot draw a file that ends in {path.suffix!r}: use .png, .svg or .pdf."
        ) from None
