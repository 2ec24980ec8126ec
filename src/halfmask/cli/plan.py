"""`halfmask plan` and `halfmask account`: what to expect, and what was spent, before any data is
touched.
"""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from halfmask.accounting.budget import Budget, printed, round_up
from halfmask.accounting.events import PAIRS, check_relation
from halfmask.cli.options import PATH, RELATION, read_schema
from halfmask.cli.output import emit, grid, json_option, note
from halfmask.errors import InputError

if TYPE_CHECKING:
    from halfmask.accounting.events import Contribution, Relation
    from halfmask.methods.planner import RunFacts, RunPlan, TablePlan


# --- `halfmask account`: the missing one of epsilon, noise and steps.


@click.command()
@click.option(
    "--q", default=1.0, show_default=True, help="Sampling rate of a row; 1 uses all rows."
)
@click.option("--noise", type=float, help="Noise multiplier: noise std / clip norm.")
@click.option("--steps", type=int, help="Number of releases.")
@click.option("--epsilon", type=float, help="Leave out --noise (or --steps) to find it.")
@click.option("--delta", type=float, required=True, help="Between 0 and 1, well below 1/rows.")
@click.option(
    "--relation",
    type=click.Choice(PAIRS),
    default="replace",
    show_default=True,
    help="What may differ: a row's private part replaced or withheld, or a private label whose "
    "contributions are orthogonal.",
)
@json_option
def account(
    *,
    q: float,
    noise: float | None,
    steps: int | None,
    epsilon: float | None,
    delta: float,
    relation: str,
    as_json: bool,
) -> None:
    """The missing one of epsilon, noise and steps, of Gaussian steps on Poisson-sampled rows.

    \b
    halfmask account --q 0.0625 --noise 1 --steps 160 --delta 1e-5     epsilon
    halfmask account --q 0.0625 --epsilon 1 --steps 160 --delta 1e-5   noise multiplier
    halfmask account --q 0.0625 --epsilon 1 --noise 1 --delta 1e-5     most steps
    """
    _check(q=q, noise=noise, steps=steps, epsilon=epsilon, delta=delta)
    from halfmask.accounting import accountant
    from halfmask.accounting.calibrate import most_steps, noise_multiplier
    from halfmask.accounting.events import PoissonGaussianEvent

    under: Relation = "withhold" if relation == "withhold" else "replace"
    contribution: Contribution = "label" if relation == "label" else "general"

    def spent(noise: float, steps: int) -> float:
        event = PoissonGaussianEvent(
            noise_multiplier=noise, rate=q, steps=steps, contribution=contribution
        )
        return accountant.epsilon([event], delta=delta, relation=under)

    shown = "" if noise is None else f"{noise:.6g}"
    budget = None if epsilon is None else Budget(epsilon=epsilon, delta=delta, relation=under)
    if noise is None:
        assert budget is not None
        assert steps is not None
        noise = noise_multiplier(budget, rate=q, steps=steps, contribution=contribution)
        shown = f"{round_up(noise):.6g}"  # whoever copies it must not pay more
    elif steps is None:
        assert budget is not None
        steps = most_steps(budget, rate=q, noise_multiplier=noise, contribution=contribution)
        if steps == 0:
            raise InputError(
                f"Not even one step with noise {noise:g} stays within epsilon "
                f"{printed(budget.epsilon)}. Give a larger --noise or --epsilon."
            )
    accounted = spent(noise, steps)
    claimed = accounted if epsilon is None else epsilon
    data = {
        "epsilon": claimed,
        "delta": delta,
        "relation": relation,
        "noise_multiplier": noise,
        "q": q,
        "steps": steps,
        "accounted_epsilon": accounted,
        "holds_for": _HOLDS_FOR[relation],
    }
    rows = "all rows" if q == 1 else f"rows sampled at rate {q:g}"
    text = (
        f"epsilon {printed(claimed)} at delta {delta:g} ({relation}): {steps} steps on {rows}, "
        f"noise multiplier {shown}"
    )
    emit(data, f"{text}\nIt holds for {_HOLDS_FOR[relation]}.", as_json)


_HOLDS_FOR = {
    "replace": "every public function f of a row: differential privacy under replacement is "
    "feature differential privacy for all of them (Proposition 2.3 of the feature-DP paper)",
    "withhold": "every public function f of a row whose private part is withheld, not replaced",
    "label": "f(x, y) = x alone: public features and contributions of labels that are orthogonal",
}


def _check(
    *, q: float, noise: float | None, steps: int | None, epsilon: float | None, delta: float
) -> None:
    if not 0 < q <= 1:
        raise InputError(
            f"Expected --q in (0, 1], got {q:g}. It is the rate at which rows are drawn."
        )
    if not 0 < delta < 1:
        raise InputError(
            f"Expected --delta strictly between 0 and 1, got {delta:g}. Take one well below 1/rows."
        )
    for name, value in (("--noise", noise), ("--epsilon", epsilon)):
        if value is not None and not (math.isfinite(value) and value > 0):
            raise InputError(f"Expected a finite {name} > 0, got {value:g}.")
    if steps is not None and steps < 1:
        raise InputError(f"Expected --steps >= 1, got {steps}.")
    asked = {"--noise": noise, "--steps": steps, "--epsilon": epsilon}
    given = [name for name, value in asked.items() if value is not None]
    if len(given) != 2:
        found = " and ".join(given) or "none of them"
        raise InputError(
            f"Give two of --noise, --steps and --epsilon to find the third; got {found}."
        )


_METHODS = ("auto", "additive", "one-shot", "gd", "sgd", "dp-sgd", "label-span")
_TARGET_ERROR = 0.01
_ASSUMES = "rows of norm at most 1 and coefficients in the unit ball"


@click.command()
@click.option("--rows", type=int, help="Rows to train on (or persons).")
@click.option(
    "--columns", type=int, help="Features after encoding; for additive, columns of the table."
)
@click.option(
    "--schema",
    "schema_file",
    type=PATH,
    help="Take columns, roles and classes from this schema: the plan of the default for tables.",
)
@click.option(
    "--data",
    type=PATH,
    help="With --schema: count the rows (and rows per person) of this file, as train will.",
)
@click.option("--epsilon", type=float, required=True, help="The budget.")
@click.option("--delta", type=float, required=True, help="Between 0 and 1, well below 1/rows.")
@click.option(
    "--target-error",
    type=float,
    help=f"The excess risk for which rows are counted.  [default: {_TARGET_ERROR:g}]",
)
@click.option("--classes", type=int, help="Classes; 0 predicts a number.  [default: 2]")
@click.option(
    "--public",
    type=int,
    help="How many columns are public: the plan of the default for tables.  [default: 0]",
)
@click.option("--public-label", is_flag=True, help="The label is public.")
@click.option("--relation", type=RELATION, default="replace", show_default=True)
@click.option("--method", type=click.Choice(_METHODS), default="auto", show_default=True)
@click.option(
    "--bound",
    type=click.Choice(("own", "lecture", "paper")),
    default="own",
    show_default=True,
    help="The sharpest bound here; with --method gd Theorem 1 of the DP-ERM lecture; with --method "
    "sgd Theorems 2.1 and 2.4 of the feature-DP paper.",
)
@click.option("--plot", type=PATH, help="Write error against rows and epsilon here.")
@json_option
def plan(
    *,
    rows: int | None,
    columns: int | None,
    schema_file: Path | None,
    data: Path | None,
    epsilon: float,
    delta: float,
    target_error: float | None,
    classes: int | None,
    public: int | None,
    public_label: bool,
    relation: str,
    method: str,
    bound: str,
    plot: Path | None,
    as_json: bool,
) -> None:
    """Noise, steps and error to expect, and the rows that a target error needs.

    \b
    halfmask plan --rows 32561 --columns 120 --epsilon 1 --delta 1e-6
    halfmask plan --rows 60000 --columns 784 --public 784 --classes 10 --epsilon 1 --delta 1e-5
    halfmask plan --schema people.toml --data people.csv --epsilon 1 --delta 1e-6

    With a schema: what the default method for tables will release, how often, and which share of
    the budget each release gets. With a file its rows are counted, and nothing else of it is used.

    Otherwise: a bound on the excess risk on the training rows (a difference of mean losses) for
    rows of norm at most 1 and coefficients in the unit ball. Nothing is charged.
    """
    from halfmask.methods.planner import RunFacts
    from halfmask.methods.planner import plan_run as make_plan

    budget = Budget(epsilon=epsilon, delta=delta, relation=check_relation(relation))
    if schema_file is not None or data is not None:
        if (columns, classes, public, public_label) != (None, None, None, False):
            raise InputError(
                "The schema says which columns there are: leave out --columns, --classes, --public "
                "and --public-label."
            )
        task, counted = _from_schema(schema_file, data, rows, budget)
    else:
        if rows is None or columns is None:
            raise InputError("Pass --rows and --columns, or --schema with --rows or --data.")
        task = RunFacts(
            rows=rows,
            columns=columns,
            epsilon=epsilon,
            delta=delta,
            relation=budget.relation,
            classes=2 if classes is None else classes,
            public=public or 0,
            label_private=not public_label,
        )
        counted = float(rows)
    target = _TARGET_ERROR if target_error is None else target_error
    if bound != "own":
        wanted = {"lecture": "gd", "paper": "sgd"}[bound]
        if method != wanted or schema_file is not None or plot is not None:
            raise InputError(
                f"--bound {bound} is for --method {wanted}, with --rows and --columns and without "
                "--plot."
            )
        emit_bound = _emit_lecture if bound == "lecture" else _emit_paper
        emit_bound(task, target, as_json)
        return
    # Public columns matter to the default on tables alone: then that is planned.
    reason = _additive(task, method, with_schema=schema_file is not None or bool(public))
    if reason is not None:
        if target_error is not None:
            note(
                "There is no error bound of additive, so that --target-error is not used: the rows "
                "needed are those to learn from columns at all. `halfmask check` says how much of "
                "what columns tell will be kept."
            )
        _emit_table_plan(task, counted, reason, plot, as_json)
        return
    if schema_file is not None:
        raise InputError(
            f"A schema is for the plan of additive: for {method}, pass --rows and --columns "
            "(features after encoding)."
        )
    made = make_plan(task, target_error=target, method=method)
    found: dict[str, Any] = {
        **made.to_json(),
        **_asked(task),
        "assumes": _ASSUMES,
        "plot": None,
    }
    if plot is not None:
        draw(made, plot)
        found["plot"] = str(plot)
        note(f"Plot written to {plot}.")
    emit(found, _text(made), as_json)


def _emit_lecture(task: RunFacts, target_error: float, as_json: bool) -> None:
    from halfmask.methods.planner import lecture_plan

    made = lecture_plan(task, target_error=target_error)
    lines = [
        f"gd as the lecture has it: {made['steps']:,} steps of mean gradients over all rows, noise "
        f"{made['noise_multiplier']:.4g} times the longest gradient of a row.",
        f"Excess risk at most {made['error_bound']:.4g} (Theorem 1, RB/√T); "
        f"{made['error_without_noise']:.4g} of it would remain without noise.",
        f"For {target_error:g}: {made['rows_needed']:,} rows and {made['steps_needed']:,} steps; "
        f"{made['rows_as_written']:,} and {made['steps_as_written']:,} as the lecture adds up its "
        "two terms.",
        "By simple composition, (ε/k, δ/k) for each of k steps, the noise would be "
        f"{made['noise_multiplier_naive']:.4g} times the longest gradient.",
        f"Assumes {_ASSUMES}; everything is private.",
    ]
    emit({**made, **_asked(task), "assumes": _ASSUMES}, "\n".join(lines), as_json)


def _emit_paper(task: RunFacts, target_error: float, as_json: bool) -> None:
    from halfmask.methods.planner import paper_plan

    made = paper_plan(task, target_error=target_error)
    lines = [
        f"Algorithm 1: {made['steps']:,} steps at rate {made['rate']:.4g}, noise "
        f"{made['noise_multiplier']:.4g} times the longest private contribution "
        f"({made['noise_std']:.4g} on a mean gradient; Theorem 2.1 with c = 1: "
        f"{made['noise_of_theorem_2_1']:.4g}).",
        f"Excess risk at most {made['error_bound']:.4g} (Theorem 2.4, corrected).",
        f"For {target_error:g}: "
        + (
            "more steps than these, however many rows."
            if made["rows_needed"] is None
            else f"{made['rows_needed']:,} rows at this rate, noise and number of steps."
        ),
    ]
    if made["crossover"] is not None:
        found = made["crossover"]
        lines.append(
            f"Sums over the table have a lower bound than one label at a time (label-span) from "
            f"{found['rows']:,.0f} rows on; the paper says from √(d/K) = "
            f"{found['claimed_rows']:.3g}."
        )
    lines.append(f"Assumes {_ASSUMES}.")
    emit({**made, **_asked(task), "assumes": _ASSUMES}, "\n".join(lines), as_json)


def _asked(task: RunFacts) -> dict[str, Any]:
    return {
        "rows": task.rows,
        "columns": task.columns,
        "epsilon": task.epsilon,
        "delta": task.delta,
        "relation": task.relation,
        "classes": task.classes,
    }


def _from_schema(
    schema_file: Path | None,
    data: Path | None,
    rows: int | None,
    budget: Budget,
) -> tuple[RunFacts, float]:
    """The facts of a table, and how many rows it counts as: a person with several counts as one."""
    from halfmask.methods.planner import RunFacts

    if schema_file is None:
        raise InputError("A file of rows needs its schema: pass --schema as well.")
    if (rows is None) == (data is None):
        raise InputError("Pass either --rows or --data with a schema: one of them says how many.")
    schema = read_schema(schema_file, *([] if data is None else [data]))
    label = schema.label
    task = RunFacts(
        rows=1 if rows is None else rows,
        columns=len(schema.columns),
        epsilon=budget.epsilon,
        delta=budget.delta,
        relation=budget.relation,
        classes=len(label.classes or ()),
        public=len(schema.public),
        label_private=label.role == "private",
    )
    if data is None:
        return task, float(task.rows)
    from halfmask.data.reading import read_frame
    from halfmask.methods.additive import row_weights
    from halfmask.table import Encoder

    frame = read_frame(data)
    table = Encoder.fit(schema, frame).encode(frame)
    table = table if task.label_private else table.labelled()
    _, most, total = row_weights(table, budget.relation, budget.mu)
    return replace(task, rows=table.n), total / most


def _additive(task: RunFacts, method: str, *, with_schema: bool) -> str | None:
    """Why additive is planned for; None where another method is."""
    from halfmask.methods.planner import default_method

    if method == "additive":
        return "asked for by name"
    if method != "auto" or not with_schema:
        return None
    choice = default_method(task, levels=True)
    return choice.reason if choice.method == "additive" else None


def _emit_table_plan(
    task: RunFacts, counted: float, reason: str, plot: Path | None, as_json: bool
) -> None:
    from halfmask.methods.planner import table_plan

    if plot is not None:
        raise InputError("There is no error bound of additive to draw: leave out --plot.")
    made = table_plan(task, rows=counted, reason=reason)
    data = {**made.to_json(), **_asked(task), "rows_counted": counted, "plot": None}
    emit(data, _table_plan_text(made, task), as_json)


def _table_plan_text(made: TablePlan, task: RunFacts) -> object:
    from rich.console import Group

    words = [f"method       additive: {made.reason}"]
    if made.base_rate_only:
        words.append(
            f"outcome      the base rate alone: {made.rows_needed} rows, or a larger epsilon, "
            "are needed to learn from columns"
        )
    words += [
        f"budget       epsilon {printed(task.epsilon)} at delta {task.delta:g} ({task.relation}); "
        "all releases together are one Gaussian release that costs just that",
        "noise        in units of the farthest that a row (or person) can move the release",
    ]
    rows = [
        (
            each["what"],
            str(each["releases"]),
            f"{100 * each['share']:.3g}%",
            f"{each['noise_multiplier']:.3g}",
            printed(each["epsilon_alone"]),
        )
        for each in made.stages
    ]
    headings = ("what", "times", "share of budget", "noise", "epsilon alone")
    table = grid("What will be released, in order", headings, rows)
    return Group("\n".join(words), table)


def _text(made: RunPlan) -> object:
    from rich.console import Group

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
    budgets = dict.fromkeys(row["epsilon"] for row in made.table)
    headings = ("rows", *(f"epsilon {printed(budget)}" for budget in budgets))
    rows = [
        [f"{n}", *(f"{row['error_bound']:.3g}" for row in made.table if row["rows"] == n)]
        for n in dict.fromkeys(row["rows"] for row in made.table)
    ]
    table = grid("Error bound by rows and epsilon", headings, rows)
    return Group("\n".join(words), table)


def draw(made: RunPlan, path: Path) -> None:
    """Error against rows, a line for each epsilon, as a picture file."""
    from matplotlib.figure import Figure

    from halfmask.storage import replacing

    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.add_subplot()
    for budget in dict.fromkeys(row["epsilon"] for row in made.table):
        own = [row for row in made.table if row["epsilon"] == budget]
        axes.plot(
            [row["rows"] for row in own],
            [row["error_bound"] for row in own],
            marker="o",
            label=f"epsilon {printed(budget)}",
        )
    axes.axhline(made.target_error, color="gray", linestyle=":", label="target")
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("rows")
    axes.set_ylabel("bound on excess risk")
    axes.set_title(f"{made.method}: what to expect")
    axes.legend()
    try:
        with replacing(path) as drawn:
            figure.savefig(drawn, dpi=150)
    except ValueError:
        raise InputError(
            f"Cannot draw a file that ends in {path.suffix!r}: use .png, .svg or .pdf."
        ) from None
