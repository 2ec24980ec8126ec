"""Adult under three nested role sets: does making columns public ever hurt the default method?"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from halfmask.accounting.budget import Budget
from halfmask.datasets import adult_roles, adult_tables
from halfmask.mechanisms.noise import noise_source
from halfmask.training import train
from halfmask_lab.adult_erm import accuracy
from halfmask_lab.results import Progress, result_row, silent


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
    rows, chosen, role_sets = [], {}, adult_roles()
    for place, (roles, schema) in enumerate(role_sets.items()):
        _, table, test = adult_tables(data, schema)
        delta = 1 / table.n**2
        for epsilon in epsilons:
            tell(place / len(role_sets), f"{roles}, epsilon {epsilon:g}")
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
