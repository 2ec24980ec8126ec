"""The network's mechanisms as games: sampled steps, the release of class means, the correction.

All of them run the code that trains; torch is imported when a game is made.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from halfmask.accounting.budget import Budget
from halfmask.accounting.calibrate import noise_multiplier
from halfmask.audit.distinguish import Game
from halfmask.audit.games import RATE, STANDSTILL, STEPS, FitGame, fit_of, one_row, sampled_fit
from halfmask.mechanisms.release import Releaser
from halfmask.table import Table


def mlp(claim: Budget) -> Game:
    """A network with everything private; the two labels of a row have opposite gradients."""
    from halfmask.neural.config import NetworkDpSgdConfig
    from halfmask.neural.method import fit_mlp

    config = NetworkDpSgdConfig(
        rate=RATE, steps=STEPS, clip_norm=0.01, learning_rate=STANDSTILL, hidden=4
    )
    return sampled_fit("mlp", fit_mlp, one_row(classes=2), config, claim)


def mlp_means(claim: Budget) -> Game:
    """The default recipe on few rows: its one release, the sums of private features by class."""
    from halfmask.methods.auto import MANY_COLUMNS
    from halfmask.neural.config import MlpConfig
    from halfmask.neural.method import fit_mlp
    from halfmask.neural.pretrain import PretrainConfig

    # As many classes and columns as this recipe asks for.
    rows = np.eye(3, MANY_COLUMNS)
    table = replace(Table.from_arrays(rows, np.arange(3), row_norm=1.0), label_private=False)
    rows = table.private.copy()
    rows[0] *= -1.0 if claim.relation == "replace" else 0.0
    small = PretrainConfig(hidden=2, networks=1, epochs=1)

    fit = fit_of(fit_mlp, MlpConfig(pretrain=small))
    return FitGame("mlp-means", claim, (table, table.with_blocks(private=rows)), fit)


def mlp_correction(claim: Budget) -> Game:
    """The default recipe's private steps: a row on either side of its padded one.

    Withheld, the row is its padded one. Other rows equal theirs and add nothing.
    """
    import torch

    from halfmask.neural.default_recipe import Correction
    from halfmask.neural.network import Mlp
    from halfmask.neural.trainer import TrainerConfig, train_privately

    trainer = TrainerConfig(
        steps=STEPS,
        rate=1.0,
        clip_norm=0.01,
        noise_multiplier=noise_multiplier(claim, rate=1.0, steps=STEPS),
        learning_rate=STANDSTILL,
        aggregate="last",
    )
    network = Mlp((1, 2))
    with torch.no_grad():
        # Scores so small that both rows are as uncertain as the padded one.
        network.linear[0].weight.copy_(torch.tensor([[1e-4], [-1e-4]]))
        network.linear[0].bias.zero_()
    padded = torch.tensor([[0.0], [1.0], [-1.0]])
    labels = torch.zeros(3, dtype=torch.long)

    def fit(real: Any, releaser: Releaser) -> object:
        correction = Correction.of(
            network, real, lambda some: padded[some], labels, trainer, releaser.shards
        )
        train_privately(correction.head, correction.rows, correction.trainer, releaser)
        return correction.corrected()

    first, second = padded.clone(), padded.clone()
    first[0] = 1.0
    second[0] = -1.0 if claim.relation == "replace" else 0.0
    return FitGame("mlp-correction", claim, (first, second), fit)
