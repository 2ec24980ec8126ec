"""Where columns say more together than each by itself: a warm start, then Algorithm 1.

Rows drawn from class means have no relation between columns, and a network trained on them expects
none. Whether there is one that matters can be seen on public columns, for free: a network trained
on public rows is compared with one trained on rows that take every column from another row of the
class. If the first is clearly better, or where class means do not tell anyway
(methods.auto.class_means_tell), nothing is released; a network learns public columns alone, and the
private ones are added by Algorithm 1, with zeros for padding. Guarantee: docs/proofs/network.md.
"""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from halfmask.accounting.calibrate import noise_multiplier
from halfmask.mechanisms.noise import public_generator
from halfmask.mechanisms.release import Releaser
from halfmask.mechanisms.shards import Shards, rows_in_all
from halfmask.neural.checkpoint import Checkpoint
from halfmask.neural.config import MlpConfig
from halfmask.neural.network import Mlp
from halfmask.neural.padding import Padding, free_padding
from halfmask.neural.paid import quietness
from halfmask.neural.pretrain import PretrainConfig, PublicRows, pretrain
from halfmask.neural.rows import NetworkRows
from halfmask.neural.structured import StructuredRows
from halfmask.neural.trainer import TrainerConfig, TrainingRows, train_privately
from halfmask.public_loss import Watch

# Public columns and rows below which the comparison says nothing, and rows that are enough for it.
_LEAST_COLUMNS, _LEAST_ROWS, _ROWS_ENOUGH = 8, 500, 10_000
# Points of accuracy that tell a relation between columns from chance.
_CLEARLY = 0.05
_EPOCHS = 20
# Of the steps; fixed on held-out training images of MNIST, the same for every table.
WARM_STEPS = 160
_RATE, _CLIP_NORM, _LEARNING_RATE = 1 / 8, 1.0, 0.5
# Noise of a mean gradient above which steps become shorter.
_QUIET = 0.0016


def columns_work_together(data: NetworkRows, config: MlpConfig, shards: Shards) -> bool:
    """Whether a network on public columns loses clearly where their relation is taken away."""
    rows = rows_in_all(len(data.labels), shards)
    if len(np.unique(data.columns)) < _LEAST_COLUMNS or rows < _LEAST_ROWS:
        return False
    own = math.ceil(len(data.labels) * min(1.0, _ROWS_ENOUGH / rows))
    known, held = (data.public.take(np.arange(first, own, 2)) for first in (0, 1))
    trial = replace(config.pretrain, networks=1, crossover=0.0)
    reached = []
    for rows_of_trial in (known, _unrelated(known, public_generator(config.public_seed))):
        network = _public_network(rows_of_trial, data, trial, config.public_seed, shards)
        with torch.no_grad():
            scores = network(torch.from_numpy(held.features.astype(np.float32)))
        right = float((scores.argmax(1).numpy() == held.labels).sum())
        counted = shards.sum(np.array([right, float(len(held.labels))]))
        reached.append(counted[0] / counted[1])
    return bool(reached[0] - reached[1] > _CLEARLY)


def _unrelated(rows: PublicRows, generator: np.random.Generator) -> PublicRows:
    """Rows whose columns come each from another row of the class."""
    order = np.argsort(rows.labels, kind="stable")
    starts = np.searchsorted(rows.labels[order], rows.labels, side="left")
    ends = np.searchsorted(rows.labels[order], rows.labels, side="right")
    uniforms = generator.random((len(rows.labels), int(rows.columns.max()) + 1))
    picked = order[starts[:, None] + (uniforms * (ends - starts)[:, None]).astype(np.int64)]
    features = rows.features[picked[:, rows.columns], np.arange(rows.features.shape[1])]
    return replace(rows, features=features)


def warm_start(
    data: NetworkRows,
    releaser: Releaser,
    config: MlpConfig,
    watch: Watch | None = None,
    *,
    checkpoint: str | Path | None = None,
) -> tuple[Mlp, TrainerConfig]:
    """A network of the public columns, taught the private ones by Algorithm 1."""
    shards = releaser.shards
    rows = rows_in_all(len(data.labels), shards)
    taught = replace(config.pretrain, networks=1, epochs=_EPOCHS, crossover=0.0)
    shown = _public_network(data.public, data, taught, config.public_seed, shards)
    network = _widened(shown, data.private.shape[1])
    own = config.warm_start
    steps, clip_norm = own.steps or WARM_STEPS, own.clip_norm or _CLIP_NORM
    rate = own.rate or _RATE
    stored = None if checkpoint is None else Checkpoint.of_run(checkpoint, steps)
    noise = noise_multiplier(releaser.budget, rate=rate, steps=steps)
    quiet = quietness(noise * clip_norm / (rate * rows), _QUIET)
    trainer = TrainerConfig(
        steps=steps,
        rate=rate,
        clip_norm=clip_norm,
        noise_multiplier=noise,
        learning_rate=own.learning_rate or _LEARNING_RATE * quiet,
        momentum=own.momentum,
        schedule="cosine",
        aggregate="ema",
        public_batch=math.ceil(rate * rows),
        public_seed=config.public_seed,
    )
    padding = free_padding("zero", data.inputs, public_generator(config.public_seed))
    real = StructuredRows(
        data.real,
        public=data.shown.shape[1],
        table=torch.from_numpy(padding.table.astype(np.float32)),
        codes=torch.zeros(len(data.labels), dtype=torch.int64),
    )
    labels = torch.from_numpy(data.labels)
    chosen = TrainingRows(real=real, labels=labels)
    train_privately(network, chosen, trainer, releaser, checkpoint=stored, watch=watch)
    return network, trainer


def _public_network(
    rows: PublicRows, data: NetworkRows, config: PretrainConfig, seed: int | None, shards: Shards
) -> Mlp:
    """A network that reads public features alone."""
    nothing = Padding(name="zero", table=np.zeros((1, 0)), inputs=data.inputs)
    generator = public_generator(seed)
    return pretrain(rows, nothing, data.classes, config, generator, shards=shards)


def _widened(network: Mlp, private: int) -> Mlp:
    """The same network with private features among its inputs, none of which counts yet."""
    first, last = network.linear
    wide = Mlp((first.in_features + private, first.out_features, last.out_features))
    with torch.no_grad():
        wide.linear[0].weight.zero_()
        wide.linear[0].weight[:, : first.in_features] = first.weight
        wide.linear[0].bias.copy_(first.bias)
        wide.linear[1].load_state_dict(last.state_dict())
    return wide
