"""The method `mlp`: a network on public and private columns.

With a public label there is a default recipe (neural.default_recipe). By name there is Algorithm 1
of the paper with any padding, and DP-SGD, which is also the default where the label is private.
Guarantee: docs/proofs/network.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from halfmask.errors import InputError
from halfmask.mechanisms.noise import public_generator
from halfmask.mechanisms.release import Releaser
from halfmask.mechanisms.shards import rows_in_all
from halfmask.neural.checkpoint import Checkpoint
from halfmask.neural.config import MlpConfig
from halfmask.neural.default_recipe import default_recipe, means_tell
from halfmask.neural.discriminant import PublicClasses
from halfmask.neural.inputs import Inputs
from halfmask.neural.mapped import network_rows
from halfmask.neural.network import Mlp
from halfmask.neural.padding import PAID, Padding, free_padding
from halfmask.neural.paid import Spent, noise_of_steps, pay_for_means, quietness
from halfmask.neural.pretrain import as_rows
from halfmask.neural.rows import NetworkRows
from halfmask.neural.structured import StructuredRows
from halfmask.neural.trainer import TrainerConfig, TrainingRows, train_privately
from halfmask.public_loss import PublicLoss
from halfmask.table import Table

# Of Algorithm 1 with a padding that has to be paid for.
_RELEASE_SHARE = 0.75
# Noise of a mean gradient above which steps of the whole network become shorter.
_QUIET = 0.0064


@dataclass(frozen=True, kw_only=True, eq=False)
class NetworkFit:
    """A fitted network, the map of its inputs, and public facts of the run."""

    network: Mlp
    inputs: Inputs
    details: dict[str, Any]


def fit_mlp(
    table: Table,
    releaser: Releaser,
    *,
    epsilon: float,
    delta: float,
    checkpoint: str | Path | None = None,
    **options: Any,
) -> NetworkFit:
    """Fit a network under (epsilon, delta). Guarantee: docs/proofs/network.md.

    Private steps of the whole network are stored in the file `checkpoint`, and go on from there.
    """
    config = MlpConfig.of(options)
    if table.task != "classification" or table.classes is None or table.label is None:
        raise InputError("mlp predicts classes: use gd or one-shot for a number.")
    if table.rows_per_unit > 1:
        raise InputError("mlp protects one row each: use gd where a unit has several rows.")
    if config.recipe == "algorithm-1" and table.label_private:
        raise InputError(
            "algorithm-1 takes the loss of padded rows, and with it the label, for public: the "
            "label is private here. Use recipe='dp-sgd'."
        )
    data = network_rows(table, private_norm=config.private_norm, shards=releaser.shards)
    if config.recipe == "dp-sgd" or table.label_private:
        return _whole_network(
            data, releaser, epsilon, delta, config, padding=None, checkpoint=checkpoint
        )
    if not table.private.shape[1]:
        raise InputError("Nothing is private: any ordinary method serves better.")
    if config.recipe == "algorithm-1":
        return _algorithm_1(data, releaser, epsilon, delta, config, checkpoint)
    if config.release_share is None and not means_tell(data) and not data.shown.shape[1]:
        return _whole_network(
            data, releaser, epsilon, delta, config, padding=None, checkpoint=checkpoint
        )
    made = default_recipe(data, releaser, epsilon, delta, config, checkpoint)
    return _fit(data, made.network, made.steps, "default", made.padding, made.curve)


def _algorithm_1(
    data: NetworkRows,
    releaser: Releaser,
    epsilon: float,
    delta: float,
    config: MlpConfig,
    checkpoint: str | Path | None,
) -> NetworkFit:
    """Algorithm 1 on the whole network, as the paper has it, with the padding asked for."""
    name = config.padding or "gaussian"
    if name in PAID:
        # A release is not stored: an interrupted run would have to pay for it again.
        checkpoint = None
        padding, spent = _paid_padding(name, data, releaser, epsilon, delta, config)
    else:
        # Padding that is drawn once is the same on all machines.
        drawn = public_generator(config.public_seed).spawn(1)[0]
        padding, spent = free_padding(name, data.inputs, drawn), ()
        padding = replace(padding, table=releaser.shards.first(padding.table))
    return _whole_network(
        data,
        releaser,
        epsilon,
        delta,
        config,
        padding=padding,
        spent=spent,
        checkpoint=checkpoint,
    )


def _whole_network(
    data: NetworkRows,
    releaser: Releaser,
    epsilon: float,
    delta: float,
    config: MlpConfig,
    *,
    padding: Padding | None,
    spent: Spent = (),
    checkpoint: str | Path | None,
) -> NetworkFit:
    n, public = rows_in_all(len(data.labels), releaser.shards), data.shown
    rate = config.rate or min(1.0, max(256, n // 16) / n)
    steps = config.steps or 160
    stored = None if checkpoint is None else Checkpoint.of_run(checkpoint, steps)
    clip_norm = config.clip_norm or 1.0
    noise = noise_of_steps(
        releaser,
        epsilon=epsilon,
        delta=delta,
        rate=rate,
        steps=steps,
        spent=spent,
        checkpoint=stored,
    )
    quiet = quietness(noise * clip_norm / (rate * n), _QUIET)
    trainer = TrainerConfig(
        steps=steps,
        rate=rate,
        clip_norm=clip_norm,
        noise_multiplier=noise,
        learning_rate=config.learning_rate or 0.5 * quiet,
        momentum=0.9 if config.momentum is None else config.momentum,
        alpha=config.alpha,
        schedule="cosine",
        aggregate="ema",
        public_batch=math.ceil(rate * n),
        public_seed=config.public_seed,
    )
    seed = torch.Generator().manual_seed(int(public_generator(config.public_seed).integers(2**62)))
    width = public.shape[1] + data.private.shape[1]
    network = Mlp((width, config.pretrain.hidden, data.classes), generator=seed)
    labels = torch.from_numpy(data.labels)
    if padding is None:
        rows = TrainingRows(real=data.real, labels=labels)
    elif padding.drawn:
        rows = TrainingRows(
            real=data.real,
            labels=labels,
            fill=lambda some, generator: as_rows(
                public[some], padding.fill(data.labels[some], generator)
            ),
        )
    else:
        table = torch.from_numpy(padding.table.astype(np.float32))
        codes = torch.from_numpy(padding.lines(data.labels))
        real = StructuredRows(data.real, public=public.shape[1], table=table, codes=codes)
        rows = TrainingRows(real=real, labels=labels)
    curve = PublicLoss("mean loss of the padded rows of each public batch", steps=steps)
    train_privately(network, rows, trainer, releaser, checkpoint=stored, watch=curve.note)
    recipe = "dp-sgd" if padding is None else "algorithm-1"
    return _fit(data, network, trainer, recipe, None if padding is None else padding.name, curve)


def _paid_padding(
    name: str,
    data: NetworkRows,
    releaser: Releaser,
    epsilon: float,
    delta: float,
    config: MlpConfig,
) -> tuple[Padding, Spent]:
    public = None
    if name != "means":
        public = PublicClasses.of(data.shown, data.labels, data.classes, releaser.shards)
    share = config.release_share or _RELEASE_SHARE
    released, spent = pay_for_means(
        data, releaser, epsilon=epsilon, delta=delta, share=share, public=public
    )
    padding = Padding(name=name, table=released.means, inputs=data.inputs)  # type: ignore[arg-type]
    return padding, spent


def _fit(
    data: NetworkRows,
    network: Mlp,
    trainer: TrainerConfig | None,
    recipe: str,
    padding: str | None,
    curve: PublicLoss,
) -> NetworkFit:
    details: dict[str, Any] = {
        "recipe": recipe,
        "padding": padding,
        "widths": list(network.widths),
        "private_norm": data.inputs.private_norm,
    }
    if trainer is not None:
        names = ("steps", "rate", "clip_norm", "noise_multiplier", "learning_rate")
        details |= {name: getattr(trainer, name) for name in names}
    return NetworkFit(network=network, inputs=data.inputs, details=details | curve.details())
