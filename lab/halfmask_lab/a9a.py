"""a9a over two parties (A, Figures 1 and 3): columns 1 to 66 and 67 to 123.

Beside A's curves (ADMM, SGD, noise levels, central and local baselines) stands what A does not
show: the ε that each curve really has, and experts, the default of the vertical mode. ρ and the
step size of the runs without noise are chosen on held-out training rows; everything with an ε runs
with the defaults of the commands.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss

from halfmask.vertical.admm import AdmmConfig, DivergenceWarning, ShareNoiseName, Update
from halfmask.vertical.fdml import FdmlConfig
from halfmask.vertical.files import VerticalTable
from halfmask.vertical.simulation import Simulation, simulate_admm, simulate_experts, simulate_fdml
from halfmask_lab.loaders import load_a9a
from halfmask_lab.results import Progress, experiment, result_row, saved, silent
from halfmask_lab.vertical_runs import (
    as_written_noise,
    choose_rho,
    choose_step_size,
    loss_row,
    panels,
    repeated,
    task_of,
)

CUTS = (0, 66, 123)
# One-hot groups of Adult behind the two halves: a row has at most one 1 in each of them.
GROUPS = (8, 6)
DELTA = 1e-6
RHO, STRENGTH, ROUNDS = 0.1, 1.0, 30
RHOS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5)
STEP_SIZES = (0.1, 0.2, 0.5, 1.0, 2.0)
AS_WRITTEN_STDS = (0.03, 0.1, 0.3)
EXPERT_EPSILONS = (0.3, 1.0, 3.0)


def a9a_task(data: Path | None) -> VerticalTable:
    """The two parties of A."""
    return task_of(load_a9a(data), CUTS, GROUPS, nonnegative=True)


def baselines(task: VerticalTable) -> dict[str, float]:
    """scikit-learn's logistic regression on all columns and on the first party's, without noise."""
    levels = {}
    for name, parts in (("central", task.columns), ("local", task.columns[:1])):
        stack = sparse.hstack if sparse.issparse(parts[0].train) else np.hstack
        train, test = (stack([getattr(part, of) for part in parts]) for of in ("train", "test"))
        model = LogisticRegression(C=1 / STRENGTH, max_iter=5000).fit(train, task.labels)
        levels[name] = float(log_loss(task.test_labels, model.predict_proba(test)))
    return levels


def run(
    data: Path | None = None,
    out: Path | None = None,
    tell: Progress = silent,
    *,
    seed: int = 0,
    draws: int = 10,
) -> dict[str, Any]:
    """Every curve and every number; test rows are used for nothing but the test loss."""
    task = a9a_task(data)
    tell(0.0, "baselines")
    levels = baselines(task)
    rows = [result_row(name, "log_loss", [value]) for name, value in levels.items()]

    tell(0.1, "rho and step size on held-out training rows")
    without_noise = AdmmConfig(rounds=ROUNDS, strength=STRENGTH, noise="none")
    sgd_config = FdmlConfig(epochs=ROUNDS, strength=STRENGTH, noise="none")
    rho = choose_rho(task, RHOS, without_noise)
    step = choose_step_size(task, STEP_SIZES, sgd_config)
    tell(0.3, "ADMM and SGD without noise")
    admm = simulate_admm(task, replace(without_noise, rho=rho.value))
    fdml = simulate_fdml(task, replace(sgd_config, step_size=step.value))
    with warnings.catch_warnings(action="ignore", category=DivergenceWarning):
        # A's own update, at its own best rho: all parties move at once against the whole residual.
        config = replace(without_noise, update="as-written")
        written_rho = choose_rho(task, RHOS, config)
        written = simulate_admm(task, replace(config, rho=written_rho.value))
    named = {"admm": admm, "admm-as-written": written, "fdml-sgd": fdml}
    curves = {name: simulation.history for name, simulation in named.items()}
    for name, simulation in named.items():
        rows.append(loss_row(name, [simulation], rounds=ROUNDS))
        objective = simulation.history[-1]["objective"]
        rows.append(result_row(name, "train_objective", [objective], rounds=ROUNDS))

    tell(0.4, "ADMM with noise")
    rhos: dict[Update, float] = {"sharing": rho.value, "as-written": written_rho.value}
    noisy_rows, noisy = _noisy(task, rhos, seed, min(draws, 5))
    rows += noisy_rows

    for place, epsilon in enumerate(EXPERT_EPSILONS):
        tell(0.7 + 0.1 * place, f"experts, epsilon {epsilon:g}")
        for label_private in (False, True):
            rows.append(_experts(task, epsilon, label_private, seed, draws))
    expert_level = next(r["mean"] for r in rows if r["method"] == "experts" and r["epsilon"] == 1.0)
    figure = partial(
        panels,
        title="a9a, columns 1-66 at party 1 and 67-123 at party 2",
        curves=curves,
        noisy=noisy,
        levels={**levels, "experts, ε = 1": expert_level},
    )
    settings = {"rho": rho, "rho_as_written": written_rho, "sgd_step_size": step}
    near: dict[str, Any] = {
        "rounds_to_within_0.001_of_central": rounds_to(admm, levels["central"] + 0.001)
    }
    return experiment(
        "a9a",
        rows,
        figure=saved(out and out / "a9a.png", figure),
        settings={name: choice.to_json() for name, choice in settings.items()},
        **near,
        curves={name: [dict(r) for r in history] for name, history in curves.items()},
    )


def rounds_to(simulation: Simulation, level: float) -> int | None:
    """The first round from which the test loss stays at or below `level`."""
    losses = [record["test_loss"] for record in simulation.history]
    above = [index for index, loss in enumerate(losses, start=1) if loss > level]
    first = (above[-1] if above else 0) + 1
    return first if first <= len(losses) else None


def _noisy(
    task: VerticalTable, rhos: Mapping[Update, float], seed: int, draws: int
) -> tuple[list[dict[str, Any]], dict[str, tuple[Mapping[str, float], ...]]]:
    """Eq. (8) at several levels (no ε), then row and column noise at a row-level ε of 8 and 1."""
    rows: list[dict[str, Any]] = []
    curves: dict[str, tuple[Mapping[str, float], ...]] = {}
    drawn = partial(repeated, delta=DELTA, seed=seed, draws=draws)

    def add(name: str, runs: list[Simulation], epsilon: float | None, **more: Any) -> None:
        rows.append(loss_row(name, runs, epsilon, DELTA, **more))
        told = "no ε" if epsilon is None else f"ε = {epsilon:g}"
        curves[f"{name}, {told}"] = runs[0].history

    common = AdmmConfig(rounds=ROUNDS, strength=STRENGTH)
    for name, runs in as_written_noise(task, common, rhos, AS_WRITTEN_STDS, drawn).items():
        add(name, runs, None, why="one share reveals the table")
    for epsilon in (8.0, 1.0):
        kinds: dict[ShareNoiseName, float] = {"row": 10.0, "column": 1e4}
        for kind, strength in kinds.items():
            config = AdmmConfig(rho=RHO, rounds=3, strength=strength, noise=kind)
            runs = drawn(simulate_admm, task, config, epsilon=epsilon)
            more = {"column_epsilon": runs[0].costs["column"]} if kind == "column" else {}
            add(f"admm-{kind}-noise", runs, epsilon, **more)
        sgd_config = FdmlConfig(epochs=2, batch=2048, step_size=0.05)
        sgd = drawn(simulate_fdml, task, sgd_config, epsilon=epsilon)
        add("fdml-sgd", sgd, epsilon)
    return rows, curves


def _experts(
    task: VerticalTable, epsilon: float, label_private: bool, seed: int, draws: int
) -> dict[str, Any]:
    given: dict[str, Any] = {"epsilon": epsilon, "delta": DELTA, "seed": seed, "draws": draws}
    runs = repeated(simulate_experts, task, label_private=label_private, **given)
    return loss_row(
        "experts-private-label" if label_private else "experts",
        runs,
        epsilon,
        DELTA,
        label="private" if label_private else "public",
        label_epsilon=runs[0].costs.get("label"),
        all_columns_epsilon=runs[0].costs["columns at all parties"],
    )
