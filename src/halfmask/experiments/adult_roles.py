"""Adult under three nested role sets: does making columns public ever hurt the default method?"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from halfmask.accounting.budget import Budget
from halfmask.datasets import load_adult
from halfmask.experiments.adult_erm import accuracy, adult_tables, all_private
from halfmask.experiments.results import Progress, result_row, silent
from halfmask.mechanisms.noise import noise_source
from halfmask.schema import Schema
from halfmask.training import train

ROLE_SETS = ("nothing public", "half of the columns public", "all columns public, label private")


def role_sets() -> dict[str, Schema]:
    """Nested: every column that one set makes public is public in the next."""
    half = load_adult()[2]
    nothing = all_private(half)
    everything = Schema(
        label=half.label,
        columns=tuple(replace(column, role="public") for column in half.columns),
        unit=half.unit,
    )
    return dict(zip(ROLE_SETS, (nothing, half, everything), strict=True))


def run(
    data: Path | None = None,
    out: Path | None = None,
    progress: Progress | None = None,
    *,
    seed: int = 0,
    draws: int = 10,
    epsilons: tuple[float, ...] = (0.1, 1.0),
) -> dict[str, Any]:
    """Test accuracy of the default for each role set."""
    tell = progress or silent
    rows, chosen = [], {}
    for place, (roles, schema) in enumerate(role_sets().items()):
        _, table, test = adult_tables(data, schema)
        delta = 1 / table.n**2
        for epsilon in epsilons:
            tell(place / len(ROLE_SETS), f"{roles}, epsilon {epsilon:g}")
            reached = []
            for draw in range(draws):
                noise = noise_source(1000 * seed + draw)
                model = train(
                    table, Budget(epsilon=epsilon, delta=delta), method="auto", noise=noise
                )
                reached.append(accuracy(model, test))
            chosen[roles] = model.method
            rows.append(
                result_row(
                    "auto",
                    "accuracy",
                    reached,
                    epsilon=epsilon,
                    delta=delta,
                    relation="replace",
                    roles=roles,
                )
            )
    return {
        "name": "adult-roles",
        "data": "real",
        "seeded": True,
        "chosen": chosen,
        "results": rows,
        "figure": None,
    }
