"""The package's own mechanisms as games, by the name that `halfmask audit --mechanism` takes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from halfmask.accounting.relations import Relation
from halfmask.audit.distinguish import Game
from halfmask.audit.games import FitGame, StepGame, enough_runs, furthest
from halfmask.audit.mechanisms_neural import mlp, mlp_correction, mlp_means
from halfmask.audit.mechanisms_vertical import admm_column, admm_row, experts
from halfmask.audit.sampled import RATE, STANDSTILL, STEPS, one_row, sampled_fit, sampled_steps
from halfmask.mechanisms.release import Releaser
from halfmask.table import Table

Make = Callable[[float, float, Relation], Game]


def number_table(rows: np.ndarray, label: np.ndarray, *, label_private: bool) -> Table:
    """A regression on private features in the unit ball and a label in [-1, 1]."""
    table = Table.from_arrays(
        rows, label, row_norm=1.0, task="regression", label_bounds=(-1.0, 1.0)
    )
    return replace(table, label_private=label_private)


def _neighbours(relation: Relation, *, rows: int, width: int) -> tuple[Table, Table]:
    """One row against its opposite; withheld, with a public label, against a row of zeros.

    A private label cannot be withheld in a table: every label counts. So there it is public.
    """
    X = np.zeros((rows, width))
    y = np.zeros(rows)
    X[0, 0], y[0] = 1.0, 1.0
    other, label = X.copy(), y.copy()
    if relation == "replace":
        label[0] = -1.0
    else:
        other[0] = 0.0
    private = relation == "replace"
    return (
        number_table(X, y, label_private=private),
        number_table(other, label, label_private=private),
    )


def full_batch(epsilon: float, delta: float, relation: Relation) -> Game:
    """Gradient canaries in steps that every row takes part in."""
    return StepGame.calibrated(
        "full-batch",
        relation=relation,
        epsilon=epsilon,
        delta=delta,
        rate=1.0,
        steps=2,
        runs=enough_runs(epsilon),
    )


def gd(epsilon: float, delta: float, relation: Relation) -> Game:
    """Noisy gradient descent; slopes are clipped low and the ball is small, so that the gradient
    of the canary reaches the bound in every step (one, where a row is withheld).
    """
    from halfmask.methods.gd import GdConfig, fit_gd

    steps = 3 if relation == "replace" else 1
    config = GdConfig(clip=0.05, radius=1e-3, spread=1e6, steps=steps)
    first, second = _neighbours(relation, rows=1, width=2 if relation == "replace" else 128)

    def fit(table: Table, releaser: Releaser) -> Any:
        return fit_gd(table, releaser, epsilon=epsilon, delta=delta, config=config)

    return FitGame(
        mechanism="gd",
        relation=relation,
        epsilon=epsilon,
        delta=delta,
        first=first,
        second=second,
        fit=fit,
        runs=enough_runs(epsilon),
    )


def one_shot(epsilon: float, delta: float, relation: Relation) -> Game:
    """One release of moments; the auditor tries angles between the two private parts."""
    from halfmask.methods.one_shot import fit_one_shot

    def fit(table: Table, releaser: Releaser) -> Any:
        return fit_one_shot(table, releaser, epsilon=epsilon, delta=delta)

    def game(angle: float) -> FitGame:
        first, second = _neighbours(relation, rows=2, width=2)
        if relation == "replace":
            private = second.private.copy()
            private[0] = np.cos(angle), np.sin(angle)
            second = second.with_blocks(private=private)
        return FitGame(
            mechanism="one-shot",
            relation=relation,
            epsilon=epsilon,
            delta=delta,
            first=first,
            second=second,
            fit=fit,
            runs=enough_runs(epsilon),
        )

    angles = np.linspace(0, np.pi, 13) if relation == "replace" else [0.0]
    return furthest([game(float(angle)) for angle in angles])


def sgd(epsilon: float, delta: float, relation: Relation) -> Game:
    """Algorithm 1 on a table of one row, all of it private; withheld, gradient canaries."""
    if relation == "withhold":
        return sampled_steps("sgd", epsilon, delta, relation)
    from halfmask.methods.sgd import fit_sgd

    first, second = _neighbours("replace", rows=1, width=2)
    options = {"rate": RATE, "steps": STEPS, "clip_norm": 0.25, "learning_rate": STANDSTILL}
    return sampled_fit("sgd", fit_sgd, (first, second), options, epsilon, delta)


def label(epsilon: float, delta: float, relation: Relation) -> Game:
    """Algorithm 1 with a private label of three classes and public features."""
    if relation == "withhold":
        return sampled_steps("label", epsilon, delta, relation)
    from halfmask.methods.sgd import fit_sgd

    base = one_row(classes=3)
    table = replace(
        base.with_blocks(public=base.private, private=np.zeros((1, 0))),
        public_norm=1.0,
        private_norm=0.0,
        public_names=base.private_names,
        private_names=(),
        public_sources=base.private_sources,
        private_sources=(),
    )
    first = replace(table, label=np.array([0]))
    second = replace(table, label=np.array([1]))
    options = {"rate": RATE, "steps": STEPS}
    return sampled_fit("label", fit_sgd, (first, second), options, epsilon, delta)


MECHANISMS: dict[str, Make] = {
    "sgd": sgd,
    "gd": gd,
    "one-shot": one_shot,
    "mlp": mlp,
    "mlp-means": mlp_means,
    "mlp-correction": mlp_correction,
    "label": label,
    "admm-column": admm_column,
    "admm-row": admm_row,
    "experts": experts,
    "full-batch": full_batch,
}
