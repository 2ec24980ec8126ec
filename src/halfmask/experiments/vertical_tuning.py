"""Settings of the vertical reproductions, chosen on training rows that are held out.

Every fifth training row is kept away; each candidate is trained on the others and scored on these.
No test row is looked at. The choice itself is not covered by any ε: it concerns runs without noise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from halfmask.vertical.admm import AdmmConfig, Update
from halfmask.vertical.block import Block
from halfmask.vertical.fdml import FdmlConfig
from halfmask.vertical.simulation import simulate_admm, simulate_fdml
from halfmask.vertical.task import Task

EVERY = 5


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The candidate with the smallest loss on held-out rows, and the losses of all of them."""

    value: float
    losses: dict[str, float]

    @classmethod
    def of(cls, losses: dict[float, float]) -> Choice:
        """The best of `losses`, which are by candidate."""
        return cls(
            value=min(losses, key=lambda candidate: losses[candidate]),
            losses={f"{candidate:g}": loss for candidate, loss in losses.items()},
        )

    def to_json(self) -> dict[str, Any]:
        """What was compared, on which rows, and what was chosen."""
        rows = f"every {EVERY}th training row, held out"
        return {"chosen": self.value, "held_out_log_loss": self.losses, "rows": rows}


def held_out(task: Task) -> Task:
    """The task with every fifth training row in the place of the test rows, and without them."""
    away = np.arange(len(task.labels)) % EVERY == EVERY - 1
    inside, outside = np.flatnonzero(~away), np.flatnonzero(away)
    return Task(
        columns=tuple(
            replace(part, train=part.train[inside], test=part.train[outside])
            for part in task.columns
        ),
        labels=task.labels[inside],
        test_labels=task.labels[outside],
    )


def decomposed(task: Task) -> Task:
    """The same task with one decomposition per party that serves every run without clipping."""
    columns = tuple(replace(part, train=Block(part.train)) for part in task.columns)
    return Task(columns=columns, labels=task.labels, test_labels=task.test_labels)


def choose_rho(
    task: Task,
    candidates: Sequence[float],
    *,
    rounds: int,
    strength: float,
    update: Update = "sharing",
) -> Choice:
    """ρ of ADMM without noise, by the loss after `rounds`."""
    inner = decomposed(held_out(task))

    def loss(rho: float) -> float:
        config = AdmmConfig(rho=rho, rounds=rounds, update=update)
        return _loss(simulate_admm(inner, config, strength=strength))

    return Choice.of({rho: loss(rho) for rho in candidates})


def choose_step_size(
    task: Task, candidates: Sequence[float], *, epochs: int, strength: float
) -> Choice:
    """The step size of SGD without noise, by the loss after `epochs`."""
    inner = held_out(task)
    return Choice.of(
        {
            size: _loss(
                simulate_fdml(inner, FdmlConfig(epochs=epochs, step_size=size), strength=strength)
            )
            for size in candidates
        }
    )


def _loss(simulation: Any) -> float:
    return float(simulation.test_loss)
