"""The package's own mechanisms as games, by the name that `halfmask audit --mechanism` takes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np

from halfmask.accounting.calibrate import noise_multiplier
from halfmask.accounting.relations import Relation
from halfmask.audit.distinguish import Game
from halfmask.audit.games import FitGame, StepGame, enough_runs, furthest
from halfmask.audit.mechanisms_vertical import admm_column, admm_row, experts
from halfmask.mechanisms.release import Releaser
from halfmask.table import Table

Make = Callable[[float, float, Relation], Game]

_RATE, _STEPS = 0.25, 4
# Steps so short that the weights stay what they were: the auditor chooses public settings, and what
# a canary contributes is then the same in every step.
_STANDSTILL = 1e-30


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
            second = replace(second, private=private)
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
        return _sampled("sgd", epsilon, delta, relation)
    from halfmask.methods import sgd as method

    first, second = _neighbours("replace", rows=1, width=2)
    options = {"rate": _RATE, "steps": _STEPS, "clip_norm": 0.25, "learning_rate": _STANDSTILL}
    return _sampled_fit("sgd", method, method.fit_sgd, (first, second), options, epsilon, delta)


def label(epsilon: float, delta: float, relation: Relation) -> Game:
    """Algorithm 1 with a private label of three classes and public features."""
    if relation == "withhold":
        return _sampled("label", epsilon, delta, relation)
    from halfmask.methods import sgd as method

    base = _one_row(classes=3)
    table = replace(
        base,
        public=base.private,
        private=np.zeros((1, 0)),
        public_norm=1.0,
        private_norm=0.0,
        public_names=base.private_names,
        private_names=(),
        public_sources=base.private_sources,
        private_sources=(),
    )
    first = replace(table, label=np.array([0]))
    second = replace(table, label=np.array([1]))
    options = {"rate": _RATE, "steps": _STEPS}
    return _sampled_fit("label", method, method.fit_sgd, (first, second), options, epsilon, delta)


def mlp(epsilon: float, delta: float, relation: Relation) -> Game:
    """A network with everything private; the two labels of a row have opposite gradients.

    Steps are so short that single precision keeps the weights, and the canary's gradient, fixed.
    """
    if relation == "withhold":
        return _sampled("mlp", epsilon, delta, relation)
    from halfmask.neural import method
    from halfmask.neural.pretrain import PretrainConfig

    table = _one_row(classes=2)
    first = replace(table, label=np.array([0]))
    second = replace(table, label=np.array([1]))
    options = {
        "recipe": "dp-sgd",
        "rate": _RATE,
        "steps": _STEPS,
        "clip_norm": 0.01,
        "learning_rate": _STANDSTILL,
        "pretrain": PretrainConfig(hidden=4),
    }
    return _sampled_fit("mlp", method, method.fit_mlp, (first, second), options, epsilon, delta)


def _one_row(*, classes: int) -> Table:
    """A single private row of norm 1, with a label that has `classes` values."""
    table = Table.from_arrays(np.array([[1.0, 0.0]] * classes), np.arange(classes), row_norm=1.0)
    return replace(
        table,
        public=table.public[:1],
        private=table.private[:1],
        label=np.array([0]),
        rows=np.arange(1),
    )


def _sampled(name: str, epsilon: float, delta: float, relation: Relation) -> Game:
    return StepGame.calibrated(
        name,
        relation=relation,
        epsilon=epsilon,
        delta=delta,
        rate=_RATE,
        steps=_STEPS,
        contribution="label" if name == "label" else "general",
        runs=enough_runs(epsilon, least=10_000, most=40_000),
    )


def _sampled_fit(
    name: str,
    module: Any,
    method: Callable[..., Any],
    tables: tuple[Table, Table],
    options: dict[str, Any],
    epsilon: float,
    delta: float,
) -> Game:
    # Calibration is a deterministic function of public numbers: once is enough for all runs.
    known = lru_cache(maxsize=None)(noise_multiplier)

    def calibrated(*, spent: Any = (), **numbers: Any) -> float:
        return known(spent=tuple(spent), **numbers)

    def fit(table: Table, releaser: Releaser) -> Any:
        kept, module.noise_multiplier = module.noise_multiplier, calibrated
        try:
            return method(table, releaser, epsilon=epsilon, delta=delta, **options)
        finally:
            module.noise_multiplier = kept

    return FitGame(
        mechanism=name,
        relation="replace",
        epsilon=epsilon,
        delta=delta,
        first=tables[0],
        second=tables[1],
        fit=fit,
        # A network's step takes ten times as long.
        runs=4_000 if name == "mlp" else enough_runs(epsilon, least=10_000, most=40_000),
    )


MECHANISMS: dict[str, Make] = {
    "sgd": sgd,
    "gd": gd,
    "one-shot": one_shot,
    "mlp": mlp,
    "label": label,
    "admm-column": admm_column,
    "admm-row": admm_row,
    "experts": experts,
    "full-batch": full_batch,
}
