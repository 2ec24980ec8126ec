"""A's figures as one picture, and settings of vertical runs, chosen on training rows."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, product
from typing import Any

import numpy as np
from scipy.sparse import csr_array, issparse

from halfmask.datasets import Split
from halfmask.vertical.admm import AdmmConfig, DivergenceWarning, Update
from halfmask.vertical.block import Block
from halfmask.vertical.fdml import FdmlConfig
from halfmask.vertical.files import PartyColumns, VerticalTable
from halfmask.vertical.simulation import Simulation, SimulationBudget, simulate_admm, simulate_fdml
from halfmask_lab.results import result_row

Curves = Mapping[str, Sequence[Mapping[str, float]]]


def panels(*, title: str, curves: Curves, noisy: Curves, levels: Mapping[str, float]) -> Any:
    """A figure: curves without noise, test loss under noise, baselines as lines."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13, 4), layout="constrained")
    objective, test, noise = figure.subplots(1, 3)
    for label, history in curves.items():
        epochs = range(1, len(history) + 1)
        objective.plot(epochs, [record["objective"] for record in history], label=label)
        test.plot(epochs, [record["test_loss"] for record in history], label=label)
    for label, history in noisy.items():
        values = [record["test_loss"] for record in history]
        noise.plot(
            range(1, len(history) + 1), values, label=label, marker="." if len(values) < 6 else ""
        )
    ends = [history[-1]["test_loss"] for history in (*curves.values(), *noisy.values())]
    reached = [*levels.values(), *ends]
    for axis in (test, noise):
        for place, (label, level) in enumerate(levels.items()):
            axis.axhline(
                level, linestyle="--", linewidth=0.8, color=f"C{7 + place % 3}", label=label
            )
        axis.set_ylim(0.93 * min(reached), 1.6 * max(levels.values()))
    for axis, what in (
        (objective, "training objective"),
        (test, "test log loss"),
        (noise, "test log loss under noise"),
    ):
        axis.set_xlabel("epoch")
        axis.set_title(what)
        axis.legend(fontsize=7)
    objective.set_yscale("log")
    figure.suptitle(title)
    return figure


def task_of(
    split: Split, cuts: Sequence[int], squared_norms: Sequence[int], *, nonnegative: bool
) -> VerticalTable:
    """A party for the columns between each two cuts; its rows have at most these squared norms."""

    def columns(x: Any, low: int, high: int) -> Any:
        return csr_array(x)[:, low:high] if issparse(x) else np.ascontiguousarray(x[:, low:high])

    parts = zip(pairwise(cuts), squared_norms, strict=True)
    return VerticalTable(
        columns=tuple(
            PartyColumns(
                name=f"party {index}",
                train=columns(split.x_train, *between),
                test=columns(split.x_test, *between),
                row_norm=math.sqrt(squared),
                nonnegative=nonnegative,
            )
            for index, (between, squared) in enumerate(parts, start=1)
        ),
        labels=(split.y_train + 1) / 2,
        test_labels=(split.y_test + 1) / 2,
    )


# --- Settings of the vertical reproductions, chosen on training rows that are held out.
# Every fifth training row is kept away; each candidate is trained on the others and scored on
# these. No test row is looked at. The choice itself is not covered by any ε: it concerns runs
# without noise.


EVERY = 5


@dataclass(frozen=True, kw_only=True)
class HeldOutChoice:
    """The candidate with the smallest loss on held-out rows, and the losses of all of them."""

    value: float
    losses: dict[str, float]

    def to_json(self) -> dict[str, Any]:
        """What was compared, on which rows, and what was chosen."""
        rows = f"every {EVERY}th training row, held out"
        return {"chosen": self.value, "held_out_log_loss": self.losses, "rows": rows}


def held_out(task: VerticalTable) -> VerticalTable:
    """The task with every fifth training row in the place of the test rows, and without them."""
    away = np.arange(len(task.labels)) % EVERY == EVERY - 1
    inside, outside = np.flatnonzero(~away), np.flatnonzero(away)
    return VerticalTable(
        columns=tuple(
            replace(part, train=part.train[inside], test=part.train[outside])
            for part in task.columns
        ),
        labels=task.labels[inside],
        test_labels=task.labels[outside],
    )


def decomposed(task: VerticalTable) -> VerticalTable:
    """The same task with one decomposition per party that serves every run without clipping."""
    columns = tuple(replace(part, train=Block(part.train)) for part in task.columns)
    return VerticalTable(columns=columns, labels=task.labels, test_labels=task.test_labels)


def choose_rho(
    task: VerticalTable, candidates: Sequence[float], config: AdmmConfig
) -> HeldOutChoice:
    """ρ of ADMM without noise, by the loss after all its rounds."""
    inner = decomposed(held_out(task))
    return _choose(candidates, lambda rho: simulate_admm(inner, replace(config, rho=rho)))


def choose_step_size(
    task: VerticalTable, candidates: Sequence[float], config: FdmlConfig
) -> HeldOutChoice:
    """The step size of SGD without noise, by the loss after all its epochs."""
    inner = held_out(task)
    return _choose(candidates, lambda size: simulate_fdml(inner, replace(config, step_size=size)))


def _choose(candidates: Sequence[float], simulate: Callable[[float], Simulation]) -> HeldOutChoice:
    losses = {candidate: test_loss(simulate(candidate)) for candidate in candidates}
    shown = {f"{candidate:g}": loss for candidate, loss in losses.items()}
    return HeldOutChoice(value=min(losses, key=losses.__getitem__), losses=shown)


def test_loss(simulation: Simulation) -> float:
    """The last test loss, which every run here has."""
    assert simulation.test_loss is not None
    return simulation.test_loss


def loss_row(
    name: str,
    runs: Sequence[Simulation],
    epsilon: float | None = None,
    delta: float | None = None,
    **more: Any,
) -> dict[str, Any]:
    """The test loss of several draws; with an epsilon, what all columns of a person cost too."""
    if epsilon is not None:
        more = {"person_epsilon": runs[0].costs["person"], **more}
    return result_row(name, "log_loss", [test_loss(run) for run in runs], epsilon, delta, **more)


def as_written_noise(
    task: VerticalTable,
    config: AdmmConfig,
    rhos: Mapping[Update, float],
    stds: Sequence[float],
    drawn: Callable[..., list[Simulation]],
) -> dict[str, list[Simulation]]:
    """Runs under Eq. (8) at several levels, beside both updates, each at its own ρ: no ε."""
    found = {}
    for std, (update, rho) in product(stds, rhos.items()):
        noisy = replace(config, rho=rho, update=update, noise="as-written", noise_std=std)
        name = f"admm-as-written-noise-{std:g}{'' if update == 'sharing' else '-and-update'}"
        found[name] = drawn(simulate_admm, task, noisy, epsilon=1.0)
    return found


def repeated(
    simulate: Callable[..., Simulation],
    task: VerticalTable,
    *config: Any,
    epsilon: float,
    delta: float,
    seed: int,
    draws: int,
    **how: Any,
) -> list[Simulation]:
    """One simulation for each of several draws of the noise, diverging ones too."""
    with warnings.catch_warnings(action="ignore", category=DivergenceWarning):
        return [
            simulate(
                task,
                *config,
                budget=SimulationBudget(
                    epsilon=epsilon, delta=delta, unsafe_seed=1000 * seed + draw
                ),
                **how,
            )
            for draw in range(draws)
        ]
