"""The lecture's promise, measured: excess empirical risk of gd against the bound of Theorem 1.

Rows are drawn on the unit sphere, labels from a logistic model; everything is private. One of rows,
columns and epsilon moves at a time. `lecture` is the recipe of the lecture, for which the bound is
proved, with as many steps as make both of its terms equal; its risk is over the best of the ball.
`gd` is our default on the same rows: no ball holds it, so its risk is over the best of all. Slopes
are those of straight lines through the logarithms.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from halfmask.accounting.gaussian import gaussian_mu
from halfmask.cli.output import grid
from halfmask.losses import Logistic, Loss, in_ball
from halfmask.methods.gd import LectureConfig, balanced_steps
from halfmask.table import Table
from halfmask.types import Floats
from halfmask_lab.results import (
    Progress,
    experiment,
    log_slope,
    mean_loss,
    minimum,
    models,
    result_row,
    saved,
    silent,
)

DELTA, RADIUS, MOST_STEPS = 1e-6, 3.0, 20_000
MIDDLE = {"rows": 1000, "columns": 20, "epsilon": 1.0}
SWEEPS: dict[str, tuple[float, ...]] = {
    "rows": (250, 500, 1000, 2000, 4000),
    "columns": (5, 10, 20, 40, 80),
    "epsilon": (0.25, 0.5, 1.0, 2.0, 4.0),
}


def drawn(rows: int, columns: int, seed: int) -> tuple[Floats, NDArray[np.int64]]:
    """Rows on the unit sphere and labels of a logistic model of norm R."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(rows, columns))
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    truth = rng.normal(size=columns)
    # Scores of a random direction have a deviation of 1/√d: scaled up, so that labels can be told.
    truth *= 3 * np.sqrt(columns) / np.linalg.norm(truth)
    return X, (rng.random(rows) < expit(X @ truth)).astype(np.int64)


def risk(theta: Floats, X: Floats, y: NDArray[np.int64]) -> float:
    """The mean logistic loss; the last weight is the constant's."""
    return mean_loss(*_problem(X, y), theta[None])


def _problem(X: Floats, y: NDArray[np.int64]) -> tuple[Loss, Floats, Floats]:
    """The loss, the rows with a constant, and the targets."""
    return Logistic(), np.column_stack([X, np.ones(len(X))]), y[:, None].astype(np.float64)


def best_in_ball(X: Floats, y: NDArray[np.int64], radius: float = math.inf) -> float:
    """The least mean loss over the ball: without the ball, or on its surface by a multiplier."""

    def solved(ridge: float) -> Floats:
        return minimum(*_problem(X, y), ridge).ravel()

    low, high = 0.0, 1.0
    if np.linalg.norm(solved(low)) <= radius:
        return risk(solved(low), X, y)
    for _ in range(60):
        middle = (low + high) / 2
        outside = np.linalg.norm(solved(middle)) > radius
        low, high = (middle, high) if outside else (low, middle)
        if high - low < 1e-9:
            break
    return risk(in_ball(solved(high), radius), X, y)


def run(
    data: Path | None = None,
    out: Path | None = None,
    tell: Progress = silent,
    *,
    seed: int = 0,
    draws: int = 5,
) -> dict[str, Any]:
    """Mean excess risk along each sweep, the bound beside it, and the slopes of both."""
    results: list[dict[str, Any]] = []
    points = [(name, value) for name, values in SWEEPS.items() for value in values]
    for place, (name, value) in enumerate(points):
        tell(place / len(points), f"{name} {value:g}")
        setting = {**MIDDLE, name: value}
        results += _point(name, setting, seed, draws)
    slopes = {
        name: {
            of: _slope([r for r in results if r["sweep"] == name and r["method"] == "lecture"], of)
            for of in ("mean", "bound")
        }
        for name in SWEEPS
    }
    above = [row for row in results if row["method"] == "lecture" and row["mean"] > row["bound"]]
    return experiment(
        "dp-erm",
        results,
        figure=saved(out and out / "dp-erm.png", lambda: _figure(results)),
        data="stand-in: rows on a sphere, labels of a logistic model",
        radius=RADIUS,
        slopes=slopes,
        means_above_the_bound=len(above),
    )


def _point(sweep: str, setting: dict[str, float], seed: int, draws: int) -> list[dict[str, Any]]:
    rows, columns, epsilon = int(setting["rows"]), int(setting["columns"]), setting["epsilon"]
    X, y = drawn(rows, columns, seed)
    table = Table.from_arrays(X, y, row_norm=1.0, task="classification")
    least = {"lecture": best_in_ball(X, y, RADIUS), "gd": best_in_ball(X, y)}
    steps = balanced_steps(
        rows=rows,
        weights=columns + 1,
        lipschitz=1.0,
        reach=2.0,
        mu=gaussian_mu(epsilon, DELTA),
        most=MOST_STEPS,
    )
    found: dict[str, list[float]] = {"lecture": [], "gd": []}
    bound = 0.0
    for name, method in (("lecture", LectureConfig(radius=RADIUS, steps=steps)), ("gd", "gd")):
        for model in models(table, epsilon, DELTA, draws=draws, seed=100_003 * seed, method=method):
            fit = model.fit  # type: ignore[attr-defined]
            theta = np.append(fit.coef[0], fit.intercept[0])
            found[name].append(risk(theta, X, y) - least[name])
            bound = max(bound, float(model.details.get("error_bound", 0.0)))
    return [
        result_row(
            name,
            "train_excess_risk",
            values,
            epsilon,
            DELTA,
            sweep=sweep,
            rows=rows,
            columns=columns,
            steps=steps if name == "lecture" else model.details["steps"],
            bound=bound if name == "lecture" else None,
        )
        for name, values in found.items()
    ]


def _slope(rows: list[dict[str, Any]], of: str) -> float:
    axis = rows[0]["sweep"]
    return log_slope([row[axis] for row in rows], [max(row[of], 1e-12) for row in rows])


def _figure(results: list[dict[str, Any]]) -> Any:
    """Excess risk along each sweep with the bound."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import NullLocator

    figure = Figure(figsize=(10, 3.4), layout="constrained")
    for place, name in enumerate(SWEEPS):
        axes = figure.add_subplot(1, 3, place + 1)
        for method, marker in (("lecture", "o"), ("gd", "s")):
            own = [r for r in results if r["sweep"] == name and r["method"] == method]
            x = [row[name] for row in own]
            ball = method == "lecture"
            label = "gd, the lecture's recipe" if ball else "gd, default (over the best of all)"
            axes.plot(x, [max(row["mean"], 1e-4) for row in own], marker=marker, label=label)
            if method == "lecture":
                bound = [row["bound"] for row in own]
                axes.plot(x, bound, color="black", linestyle=":", label="bound of Theorem 1")
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xticks(SWEEPS[name], [f"{value:g}" for value in SWEEPS[name]])
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_xlabel(name)
        if place == 0:
            axes.set_ylabel("excess risk over the best of the ball")
            axes.legend(fontsize=7)
    return figure


def for_terminal(result: dict[str, Any]) -> object:
    """The table of the experiment, with its bound."""
    from rich.console import Group

    def cells(row: dict[str, Any]) -> tuple[str, ...]:
        bound = "" if row["bound"] is None else f"{row['bound']:.4f}"
        sizes = (str(row["rows"]), str(row["columns"]), f"{row['epsilon']:g}")
        return row["method"], *sizes, f"{row['mean']:.4f}", f"{row['std']:.4f}", bound

    headings = ("method", "rows", "columns", "epsilon", "excess risk", "std", "bound")
    table = grid(f"dp-erm ({result['data']})", headings, map(cells, result["results"]))
    lines = [
        f"slope in {name}: measured {each['mean']:+.2f}, bound {each['bound']:+.2f}"
        for name, each in result["slopes"].items()
    ]
    return Group(table, *lines, f"means above the bound: {result['means_above_the_bound']}")
