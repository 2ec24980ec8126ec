"""Adult by default: every column and the label private, and three nested sets of roles.

Numbers are one-hot in equal-width bins of declared bounds; nothing is tuned. Published with
everything private, at epsilon 0.1 and delta 1/n²: DP-GD 0.809, DP-SGD 0.804, AMP 0.793.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sklearn.linear_model import LogisticRegression

from halfmask.datasets import adult_roles, adult_tables, all_private, load_adult
from halfmask.table import Table
from halfmask_lab.results import (
    Progress,
    accuracy,
    accuracy_figure,
    experiment,
    models,
    result_row,
    silent,
)

EPSILONS = (0.1, 0.3, 1.0, 3.0)
PUBLISHED_AT_A_TENTH = {"DP-GD": 0.809, "DP-SGD": 0.804, "AMP": 0.793}


def erm(
    data: Path | None = None,
    out: Path | None = None,
    tell: Progress = silent,
    *,
    seed: int = 0,
    draws: int = 10,
    epsilons: tuple[float, ...] = EPSILONS,
) -> dict[str, Any]:
    """Test accuracy of the default and of `dp-sgd` against epsilon, and without privacy."""
    _, table, test = adult_tables(data, all_private(load_adult()[2]))
    delta = 1 / table.n**2
    rows = [result_row("non-private", "accuracy", [_without_privacy(table, test)])]
    chosen = {}
    for place, epsilon in enumerate(epsilons):
        for method in ("auto", "dp-sgd"):
            tell(place / len(epsilons), f"{method} at epsilon {epsilon:g}")
            found = models(table, epsilon, delta, draws=draws, seed=1000 * seed, method=method)
            chosen[method] = found[-1].method
            reached = [accuracy(model, test) for model in found]
            rows.append(result_row(method, "accuracy", reached, epsilon, delta))

    def published(axes: Any) -> None:
        for reached in PUBLISHED_AT_A_TENTH.values():
            axes.plot(0.1, reached, "x", color="gray")

    figure = accuracy_figure(
        out and out / "adult-erm.png",
        rows,
        {"auto": "Halfmask, default", "dp-sgd": "dp-sgd"},
        title="Adult, every column and the label private (crosses: published)",
        budget="replace, delta = 1/n²",
        besides=published,
    )
    size = {"rows": table.n, "features": table.private.shape[1]}
    return experiment("adult-erm", rows, figure=figure, chosen=chosen["auto"], **size)


def _without_privacy(table: Table, test: Table) -> float:
    model = LogisticRegression(max_iter=1000).fit(table.private, table.label)
    return float(model.score(test.private, test.label))


def roles(
    data: Path | None = None,
    out: Path | None = None,
    tell: Progress = silent,
    *,
    seed: int = 0,
    draws: int = 10,
    epsilons: tuple[float, ...] = (0.1, 1.0),
) -> dict[str, Any]:
    """Test accuracy of the default for each role set: does making columns public ever hurt?"""
    rows, chosen, role_sets = [], {}, adult_roles()
    for place, (name, schema) in enumerate(role_sets.items()):
        _, table, test = adult_tables(data, schema)
        delta = 1 / table.n**2
        for epsilon in epsilons:
            tell(place / len(role_sets), f"{name}, epsilon {epsilon:g}")
            found = models(table, epsilon, delta, draws=draws, seed=1000 * seed)
            chosen[name] = found[-1].method
            reached = [accuracy(model, test) for model in found]
            rows.append(result_row("auto", "accuracy", reached, epsilon, delta, roles=name))
    return experiment("adult-roles", rows, chosen=chosen)
