"""Games on methods whose steps are Poisson-sampled: one row, which takes part by chance."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from halfmask.accounting.budget import Budget
from halfmask.audit.distinguish import Game
from halfmask.audit.games import enough_runs, fit_game, fit_of, step_game
from halfmask.table import Table

RATE, STEPS = 0.25, 4
STANDSTILL = 1e-30
"""A step size that leaves the weights what they were: the auditor chooses public settings, and what
a canary contributes is then the same in every step."""


def one_row(*, classes: int) -> Table:
    """A single private row of norm 1, with a label that has `classes` values."""
    table = Table.from_arrays(np.array([[1.0, 0.0]] * classes), np.arange(classes), row_norm=1.0)
    return replace(table.kept(np.arange(1)), label=np.array([0]))


def sampled_steps(name: str, claim: Budget) -> Game:
    """Gradient canaries in sampled steps: a withheld contribution needs no method around it."""
    return step_game(
        name,
        claim,
        rate=RATE,
        steps=STEPS,
        contribution="label" if name == "label" else "general",
        runs=enough_runs(claim.epsilon, least=10_000, most=40_000),
    )


def sampled_fit(
    name: str,
    method: Callable[..., Any],
    tables: tuple[Table, Table],
    config: Any,
    claim: Budget,
) -> Game:
    """`method` on two tables of one row, which is in a step with the chance RATE."""
    fit = fit_of(method, config)
    return fit_game(
        name, claim, tables, fit, runs=enough_runs(claim.epsilon, least=10_000, most=40_000)
    )
