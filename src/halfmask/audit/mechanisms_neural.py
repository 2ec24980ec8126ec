"""The network's mechanisms as games: sampled steps, the release of class means, the correction.

All of them run the code that trains; torch is imported when a game is made.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from halfmask.accounting.calibrate import noise_multiplier
from halfmask.accounting.relations import Relation
from halfmask.audit.distinguish import Game
from halfmask.audit.games import FitGame, enough_runs
from halfmask.audit.sampled import RATE, STANDSTILL, STEPS, one_row, sampled_fit, sampled_steps
from halfmask.mechanisms.release import Releaser
from halfmask.table import Table


def mlp(epsilon: float, delta: float, relation: Relation) -> Game:
    """A network with everything private; the two labels of a row have opposite gradients."""
    if relation == "withhold":
        return sampled_steps("mlp", epsilon, delta, relation)
    from halfmask.neural.method import fit_mlp
    from halfmask.neural.pretrain import PretrainConfig

    table = one_row(classes=2)
    first = replace(table, label=np.array([0]))
    second = replace(table, label=np.array([1]))
    options = {
        "recipe": "dp-sgd",
        "rate": RATE,
        "steps": STEPS,
        "clip_norm": 0.01,
        "learning_rate": STANDSTILL,
        "pretrain": PretrainConfig(hidden=4),
    }
    return sampled_fit("mlp", fit_mlp, (first, second), options, epsilon, delta)


def mlp_means(epsilon: float, delta: float, relation: Relation) -> Game:
    """The default recipe on few rows: its one release, the sums of private features by class."""
    from halfmask.neural.inputs import MANY_COLUMNS
    from halfmask.neural.method import fit_mlp
    from halfmask.neural.pretrain import PretrainConfig

    # As many classes and columns as this recipe asks for.
    rows = np.eye(3, MANY_COLUMNS)
    table = replace(Table.from_arrays(rows, np.arange(3), row_norm=1.0), label_private=False)
    rows = table.private.copy()
    rows[0] *= -1.0 if relation == "replace" else 0.0
    small = PretrainConfig(hidden=2, networks=1, epochs=1)

    def fit(table: Table, releaser: Releaser) -> Any:
        return fit_mlp(table, releaser, epsilon=epsilon, delta=delta, pretrain=small)

    return FitGame(
        mechanism="mlp-means",
        relation=relation,
        epsilon=epsilon,
        delta=delta,
        first=table,
        second=table.with_blocks(private=rows),
        fit=fit,
        runs=enough_runs(epsilon, least=10_000, most=40_000),
    )


def mlp_correction(epsilon: float, delta: float, relation: Relation) -> Game:
    """The default recipe's private steps: a row on either side of its padded one.

    Withheld, the row is its padded one. Other rows equal theirs and add nothing.
    """
    from halfmask.neural.correction_trial import correction_trial
    from halfmask.neural.trainer import TrainerConfig

    trainer = TrainerConfig(
        steps=STEPS,
        rate=1.0,
        clip_norm=0.01,
        noise_multiplier=noise_multiplier(
            epsilon=epsilon, delta=delta, rate=1.0, steps=STEPS, relation=relation
        ),
        learning_rate=STANDSTILL,
        aggregate="last",
    )

    first, second, fit = correction_trial(trainer, relation)
    return FitGame(
        mechanism="mlp-correction",
        relation=relation,
        epsilon=epsilon,
        delta=delta,
        first=first,
        second=second,
        fit=fit,
        runs=enough_runs(epsilon, least=6_000, most=20_000),
    )
