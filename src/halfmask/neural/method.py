"""The method `mlp`: a network on public and private columns.

With a public label there is a default recipe (neural.default_recipe). By name there is Algorithm 1
of the paper with any padding, and DP-SGD, which is also the default where the label is private.
Algorithm 1 takes a private label too: its public loss then has none.
Guarantee: docs/proofs/network.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from halfmask.accounting.calibrate import noise_multiplier
from halfmask.accounting.events import Contribution
from halfmask.errors import InputError
from halfmask.mechanisms.noise import public_generator
from halfmask.mechanisms.private_step import PrivateStep
from halfmask.mechanisms.release import Releaser
from halfmask.mechanisms.shards import Shards, rows_in_all
from halfmask.neural.checkpoint import Checkpoint
from halfmask.neural.config import Algorithm1Config, MlpConfig, NetworkDpSgdConfig
from halfmask.neural.default_recipe import default_recipe, means_tell
from halfmask.neural.discriminant import PublicClasses
from halfmask.neural.inputs import Inputs
from halfmask.neural.mapped import network_rows
from halfmask.neural.network import Mlp
from halfmask.neural.padding import BY_CLASS, PADDINGS, PAID, Padding, free_padding
from halfmask.neural.paid import Spent, plan_means, quietness
from halfmask.neural.pretrain import as_rows
from halfmask.neural.public_features import learn_public_features
from halfmask.neural.regularisers import regulariser_of
from halfmask.neural.rows import NetworkRows, Singles, blocks
from halfmask.neural.structured import StructuredRows
from halfmask.neural.trainer import TrainerConfig, TrainingRows, plan_steps, train_privately
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
    config: MlpConfig | NetworkDpSgdConfig | None = None,
    *,
    checkpoint: str | Path | None = None,
) -> NetworkFit:
    """Fit a network within the releaser's budget. Guarantee: docs/proofs/network.md.

    Private steps of the whole network are stored in the file `checkpoint`, and go on from there.
    """
    chosen: Any = config or MlpConfig()
    if table.task != "classification" or table.classes is None or table.label is None:
        raise InputError("mlp predicts classes: use gd or one-shot for a number.")
    if table.rows_per_unit > 1:
        raise InputError("mlp protects one row each: use gd where a unit has several rows.")
    hidden = table.label_private
    data = network_rows(table, private_norm=chosen.private_norm, shards=releaser.shards)
    default = isinstance(chosen, MlpConfig)
    if chosen.recipe == "dp-sgd" or (default and hidden):
        return _dp_sgd(data, releaser, chosen, checkpoint)
    if not (table.private.shape[1] or hidden):
        raise InputError("Nothing is private: any ordinary method serves better.")
    if isinstance(chosen, Algorithm1Config):
        return _algorithm_1(data, releaser, chosen, checkpoint, hidden)
    if chosen.release_share is None and not means_tell(data) and not data.shown.shape[1]:
        return _dp_sgd(data, releaser, chosen, checkpoint)
    made = default_recipe(data, releaser, chosen, checkpoint)
    return _fit(data, made.network, made.steps, "default", made.padding, made.curve)


def _dp_sgd(
    data: NetworkRows,
    releaser: Releaser,
    config: MlpConfig | NetworkDpSgdConfig,
    checkpoint: str | Path | None,
) -> NetworkFit:
    """DP-SGD on the whole network, from weights that no row has told."""
    chosen = NetworkDpSgdConfig.of(config) if isinstance(config, MlpConfig) else config
    trainer = _trainer(data, releaser, chosen)
    return _whole_network(data, releaser, chosen, trainer, checkpoint=checkpoint)


def _algorithm_1(
    data: NetworkRows,
    releaser: Releaser,
    config: Algorithm1Config,
    checkpoint: str | Path | None,
    label_private: bool,
) -> NetworkFit:
    """Algorithm 1 on the whole network, as the paper has it, with the padding asked for."""
    # Without private columns there is nothing to fill in, and nothing to pay for.
    name = config.padding if data.private.shape[1] else "zero"
    if label_private and name in BY_CLASS:
        raise InputError(
            f"padding={name!r} goes by each row's class, and the label is private here: use one "
            f"of {', '.join(other for other in PADDINGS if other not in BY_CLASS)}."
        )
    if name in PAID:
        public = None
        if name != "means":
            public = PublicClasses.of(data.shown, data.labels, data.classes, releaser.shards)
        share = config.release_share or _RELEASE_SHARE
        # The release and the steps are opened together, so that they are one charge.
        spent, release = plan_means(data, releaser, share=share, public=public)
        trainer = _trainer(data, releaser, config, spent)
        step = plan_steps(trainer, len(data.labels), releaser)
        padding = Padding(name=name, table=release().means, inputs=data.inputs)
        # A release is not stored: an interrupted run would have to pay for it again.
        return _whole_network(
            data,
            releaser,
            config,
            trainer,
            padding=padding,
            step=step,
            label_private=label_private,
        )
    # Padding that is drawn once is the same on all machines.
    drawn = public_generator(config.public_seed).spawn(1)[0]
    padding = free_padding(name, data.inputs, drawn)
    padding = replace(padding, table=releaser.shards.first(padding.table))
    # Two labels of a row with public features are less far apart than two rows.
    alone = label_private and not data.private.shape[1]
    pair: Contribution = "label" if alone and releaser.relation == "replace" else "general"
    trainer = _trainer(data, releaser, config, contribution=pair)
    return _whole_network(
        data,
        releaser,
        config,
        trainer,
        padding=padding,
        checkpoint=checkpoint,
        label_private=label_private,
    )


def _trainer(
    data: NetworkRows,
    releaser: Releaser,
    config: NetworkDpSgdConfig,
    spent: Spent = (),
    contribution: Contribution = "general",
) -> TrainerConfig:
    """Steps of the whole network with what is left of the budget after `spent`."""
    n = rows_in_all(len(data.labels), releaser.shards)
    rate = config.rate or min(1.0, max(256, n // 16) / n)
    steps = config.steps or 160
    clip_norm = config.clip_norm or 1.0
    noise = noise_multiplier(
        releaser.budget, rate=rate, steps=steps, spent=spent, contribution=contribution
    )
    quiet = quietness(noise * clip_norm / (rate * n), _QUIET)
    return TrainerConfig(
        steps=steps,
        rate=rate,
        clip_norm=clip_norm,
        noise_multiplier=noise,
        learning_rate=config.learning_rate or 0.5 * quiet,
        momentum=config.momentum,
        alpha=getattr(config, "alpha", 1.0),
        schedule=config.schedule,
        radius=config.radius,
        aggregate=config.aggregate,
        ema_decay=config.ema_decay,
        public_batch=getattr(config, "public_batch", None) or math.ceil(rate * n),
        public_seed=config.public_seed,
        regulariser=regulariser_of(getattr(config, "regulariser", "none")),
        regulariser_weight=getattr(config, "regulariser_weight", 1.0),
        contribution=contribution,
        span=principal_directions(data.shown, getattr(config, "span", None), releaser.shards),
    )


def principal_directions(
    public: Singles, count: int | None, shards: Shards
) -> NDArray[np.float64] | None:
    """Orthonormal columns that span what public rows mostly lie in; None where none are asked for.

    They are not centred: gradients are sums of rows, not of differences.
    """
    width = public.shape[1]
    if count is None or not width:
        return None
    moments = np.zeros((width, width))
    for some in blocks(len(public), 8192):
        part = np.asarray(public[some], dtype=np.float64)
        moments += part.T @ part
    _, vectors = np.linalg.eigh(shards.sum(moments))
    kept: NDArray[np.float64] = np.ascontiguousarray(vectors[:, -min(count, width) :])
    return kept


def _whole_network(
    data: NetworkRows,
    releaser: Releaser,
    config: NetworkDpSgdConfig,
    trainer: TrainerConfig,
    *,
    padding: Padding | None = None,
    step: PrivateStep | None = None,
    checkpoint: str | Path | None = None,
    label_private: bool = False,
) -> NetworkFit:
    public, steps = data.shown, trainer.steps
    stored = None if checkpoint is None else Checkpoint.of_run(checkpoint, steps)
    seed = torch.Generator().manual_seed(int(public_generator(config.public_seed).integers(2**62)))
    width = public.shape[1] + data.private.shape[1]
    network = Mlp((width, config.hidden, data.classes), generator=seed)
    if isinstance(config, Algorithm1Config) and config.start == "neighbours":
        learn_public_features(network, public, seed)
    labels = torch.from_numpy(data.labels)
    alone = label_private and not data.private.shape[1]
    # Padding must not see a private label, not even where it makes no difference.
    shown = np.zeros_like(data.labels) if label_private else data.labels
    if padding is None:
        rows = TrainingRows(real=data.real, labels=labels)
    elif padding.drawn:
        rows = TrainingRows(
            real=data.real,
            labels=labels,
            fill=lambda some, generator: as_rows(
                public[some], padding.fill(shown[some], generator)
            ),
            label_private=label_private,
            label_alone=alone,
        )
    else:
        table = torch.from_numpy(padding.table.astype(np.float32))
        codes = torch.from_numpy(padding.lines(shown))
        real = StructuredRows(data.real, public=public.shape[1], table=table, codes=codes)
        rows = TrainingRows(
            real=real, labels=labels, label_private=label_private, label_alone=alone
        )
    what = "mean loss of the padded rows of each public batch"
    curve = PublicLoss(what + (", every class alike" if label_private else ""), steps=steps)
    train_privately(
        network, rows, trainer, releaser, step=step, checkpoint=stored, watch=curve.note
    )
    recipe = "dp-sgd" if padding is None else "algorithm-1"
    return _fit(data, network, trainer, recipe, None if padding is None else padding.name, curve)


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
        names = ("steps", "rate", "clip_norm", "noise_multiplier", "learning_rate", "contribution")
        details |= {name: getattr(trainer, name) for name in names}
    return NetworkFit(network=network, inputs=data.inputs, details=details | curve.details())
