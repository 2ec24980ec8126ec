"""Whether `auto` tells the truth: the default against every other method by name, on the tables.

Rows, roles and seeds are those of the experiment `tables`: every third row is held out. A method
beats the default where its mean log loss (for numbers: -R²) is lower by more than
0.005 + 2·min(se, 0.005), se being the standard error of the difference over draws.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from halfmask.cli.output import grid
from halfmask.progress import side_by_side
from halfmask.training import METHODS
from halfmask_lab.results import Progress, experiment, result_row, silent
from halfmask_lab.table_baselines import class_loss
from halfmask_lab.table_checks import Cell, margin
from halfmask_lab.tables import DELTA, ROLES, TABLES, check_among, fit_by_name, load_rows

EPSILONS = (0.5, 1.0, 4.0)
NAMED = tuple(method for method in METHODS if method not in ("auto", "additive"))
_METRIC = {"classification": "log_loss", "regression": "r2"}


def run(
    data: Path | None = None,
    out: Path | None = None,
    tell: Progress = silent,
    *,
    seed: int = 0,
    draws: int = 2,
    epsilons: Sequence[float] = EPSILONS,
    tables: Sequence[str] = TABLES,
    roles: Sequence[str] = ROLES,
    methods: Sequence[str] = NAMED,
) -> dict[str, Any]:
    """Fit all of them, two at a time; `beaten` lists what beats the default, and by how much."""
    check_among("table", tables, TABLES)
    check_among("role", roles, ROLES)
    check_among("method", methods, METHODS)
    loaded = {name: load_rows(name, data) for name in tables}
    named = ["auto", *(method for method in methods if method != "auto")]
    jobs = [
        (Cell(table, role, method, epsilon), draw)
        for table in tables
        for role in roles
        for method in reversed(named)
        for epsilon in epsilons
        for draw in range(draws)
    ]

    def fitted(job: tuple[Cell, int]) -> tuple[float | None, str]:
        cell, draw = job
        return _held_out(loaded[cell.table], cell, draw, seed)

    done = side_by_side(
        fitted, jobs, lambda count: tell(count / len(jobs), f"{count} of {len(jobs)} fits")
    )
    losses: dict[Cell, list[float]] = {}
    left_out: list[dict[str, str]] = []
    for (cell, _), (loss, reason) in zip(jobs, done, strict=True):
        if loss is None:
            entry = {"table": cell.table, "role": cell.role, "method": cell.method}
            if (entry := {**entry, "reason": reason}) not in left_out:
                left_out.append(entry)
        else:
            losses.setdefault(cell, []).append(loss)
    results = [
        result_row(
            cell.method,
            metric := _METRIC[loaded[cell.table].task],
            values if metric == "log_loss" else [-value for value in values],
            cell.epsilon,
            DELTA,
            table=cell.table,
            role=cell.role,
        )
        for cell, values in losses.items()
    ]
    return experiment("auto", results, beaten=_beaten(losses), left_out=left_out)


def _held_out(rows: Any, cell: Cell, draw: int, seed: int) -> tuple[float | None, str]:
    """Log loss, or -R², of the held-out rows; None and a reason where the method refuses."""
    assert cell.epsilon is not None
    predicted, said = fit_by_name(rows, cell.role, cell.method, cell.epsilon, draw=draw, seed=seed)
    if predicted is None:
        return None, said
    target = rows.target(rows.test)
    if rows.task == "regression":
        return float(np.mean((target - predicted) ** 2) / np.var(target) - 1), said
    return class_loss(target, predicted), said


def _beaten(losses: dict[Cell, list[float]]) -> list[dict[str, Any]]:
    """Every case in which a method by name is better than the default by more than the margin."""
    found = []
    for cell, values in losses.items():
        ours = losses.get(cell._replace(method="auto"))
        if cell.method == "auto" or ours is None:
            continue
        above, bar = float(np.mean(ours) - np.mean(values)), margin(ours, values)
        if above > bar:
            found.append({**cell._asdict(), "auto_above": above, "margin": bar})
    return sorted(found, key=lambda case: case["margin"] - case["auto_above"])


def for_terminal(result: dict[str, Any]) -> object:
    """One line per table, role and epsilon, and what beats the default below."""
    from rich.console import Group

    methods = list(dict.fromkeys(row["method"] for row in result["results"]))
    lines: dict[tuple[str, str, float], dict[str, str]] = {}
    for row in result["results"]:
        place = (row["table"], row["role"], row["epsilon"])
        lines.setdefault(place, {})[row["method"]] = f"{row['mean']:.4f}"
    table = grid(
        "held-out log loss (R² for numbers)",
        ("table", "role", "epsilon", *methods),
        (
            (name, role, f"{epsilon:g}", *(found.get(m, "") for m in methods))
            for (name, role, epsilon), found in lines.items()
        ),
    )
    beaten = [
        f"{case['method']} beats auto on {case['table']}, {case['role']}, epsilon "
        f"{case['epsilon']:g} by {case['auto_above']:.4f} (margin {case['margin']:.4f})."
        for case in result["beaten"]
    ]
    return Group(table, *(beaten or ["No method by name beats auto by more than the margin."]))
