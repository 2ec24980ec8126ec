"""Adult with every column and the label private: what private ERM reaches by default.

Numbers are one-hot in equal-width bins of declared bounds; nothing is tuned. Published at
epsilon 0.1, delta 1/n²: DP-GD 0.809, DP-SGD 0.804, AMP 0.793.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from halfmask.accounting.budget import Budget
from halfmask.datasets import adult_tables, all_private, load_adult
from halfmask.mechanisms.noise import noise_source
from halfmask.model import Model
from halfmask.table import Table
from halfmask.training import train
from halfmask_lab.results import Progress, result_row, silent

EPSILONS = (0.1, 0.3, 1.0, 3.0)
PUBLISHED_AT_A_TENTH = {"DP-GD": 0.809, "DP-SGD": 0.804, "AMP": 0.793}


def accuracy(model: Model, table: Table) -> float:
    """The share of rows whose likeliest class is right."""
    return float((model.probabilities(table).argmax(axis=1) == table.label).mean())


def run(
    data: Path | None = None,
    out: Path | None = None,
    progress: Progress | None = None,
    *,
    seed: int = 0,
    draws: int = 10,
    epsilons: tuple[float, ...] = EPSILONS,
) -> dict[str, Any]:
    """Test accuracy of the default and of `dp-sgd` against epsilon, and without privacy."""
    tell = progress or silent
    schema = all_private(load_adult()[2])
    _, table, test = adult_tables(data, schema)
    delta = 1 / table.n**2
    rows = [result_row("non-private", "accuracy", [_without_privacy(table, test)])]
    chosen = {}
    for place, epsilon in enumerate(epsilons):
        for method in ("auto", "dp-sgd"):
            tell(place / len(epsilons), f"{method} at epsilon {epsilon:g}")
            reached = []
            for draw in range(draws):
                model = train(
                    table,
                    Budget(epsilon=epsilon, delta=delta),
                    method=method,
                    noise=noise_source(1000 * seed + draw),
                )
                reached.append(accuracy(model, test))
            chosen[method] = model.method
            row = result_row(
                method, "accuracy", reached, epsilon=epsilon, delta=delta, relation="replace"
            )
            rows.append(row)
    result = {
        "name": "adult-erm",
        "data": "real",
        "rows": table.n,
        "features": table.private.shape[1],
        "seeded": True,
        "chosen": chosen["auto"],
        "results": rows,
        "figure": None,
    }
    if out is not None:
        result["figure"] = str(_figure(rows, out / "adult-erm.png"))
    return result


def _without_privacy(table: Table, test: Table) -> float:
    from sklearn.linear_model import LogisticRegression

    model = LogisticRegression(max_iter=1000).fit(table.private, table.label)
    return float(model.score(test.private, test.label))


def _figure(rows: list[dict[str, Any]], path: Path) -> Path:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.add_subplot()
    for method, marker in (("auto", "o"), ("dp-sgd", "s")):
        own = [row for row in rows if row["method"] == method]
        axes.errorbar(
            [row["epsilon"] for row in own],
            [row["mean"] for row in own],
            yerr=[row["std"] for row in own],
            marker=marker,
            capsize=3,
            label="Halfmask, default" if method == "auto" else method,
        )
    axes.axhline(rows[0]["mean"], color="black", linestyle=":", label="without privacy")
    published = np.array(list(PUBLISHED_AT_A_TENTH.values()))
    axes.plot(np.full(len(published), 0.1), published, "x", color="gray", label="published")
    axes.set_xscale("log")
    axes.set_xlabel("epsilon (replace, delta = 1/n²)")
    axes.set_ylabel("test accuracy")
    axes.set_title("Adult, every column and the label private")
    axes.legend()
    figure.savefig(path, dpi=150)
    return path
