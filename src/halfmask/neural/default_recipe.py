"""The default recipe of `mlp` where the label is public: `default_way` picks one of three.

- *Class means.* Those of the private features are released once. A discriminant made of them, and
  networks trained on public rows padded by draws from them, are added up into one network: the
  discriminant holds out against noise, the networks know what is not linear. Where there are rows
  enough, the rest of the budget corrects its scores with a few private steps.
- *Warm start.* Class means know nothing of relations between columns. Where counts or public
  columns say that those matter, or where noise would drown the means, a network is trained on the
  public columns for free, and taught the private ones by private steps.
- *DP-SGD* (neural.method) where there is no public column to start from.

Every number follows from n, the budget and public columns. Guarantee: docs/proofs/network.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from halfmask.accounting.calibrate import noise_multiplier
from halfmask.data.products import parts_of
from halfmask.losses import PublicLoss
from halfmask.mechanisms.noise import public_generator
from halfmask.mechanisms.release import PrivateStep, Releaser
from halfmask.mechanisms.shards import ALONE, Shards, rows_in_all
from halfmask.methods.auto import class_means_suffice
from halfmask.neural.checkpoint import Checkpoint
from halfmask.neural.class_means import (
    Discriminant,
    PublicClasses,
    losses_at,
    plan_class_means,
    sum_sensitivity,
)
from halfmask.neural.config import MlpConfig
from halfmask.neural.ghost import StructuredRows, TensorRows
from halfmask.neural.network import Mlp
from halfmask.neural.padding import Padding, free_padding
from halfmask.neural.pretrain import (
    NetworkRows,
    PretrainConfig,
    PublicRows,
    as_rows,
    pretrain,
    summed,
)
from halfmask.neural.trainer import (
    TrainedNetwork,
    TrainerConfig,
    TrainingRows,
    noise_factor,
    plan_steps,
    train_privately,
)
from halfmask.types import Integers

Way = Literal["class-means", "warm-start", "dp-sgd"]

# Noise of a class mean, in units of its size, above which public columns alone tell more. Held-out
# rows of Location-30 and of a drawn table like Purchase100 change sides between 0.95 and 1.47.
_MOST_NOISE_OF_MEANS = 1.1
# Public columns and rows below which the comparison says nothing, and rows that are enough for it.
_LEAST_COLUMNS, _LEAST_ROWS, _ROWS_ENOUGH = 8, 500, 10_000
# Points of accuracy that tell a relation between columns from chance.
_CLEARLY = 0.05


def default_way(
    data: NetworkRows, releaser: Releaser, config: MlpConfig, *, label_private: bool
) -> Way:
    """Which way to take, from counts, the budget and public columns alone.

    A release that is noisier than what it tells is of no use; steps of a network need more rows
    than there are class means, and relations between columns that are worth it. An explicit share
    of the budget for the release asks for the release.
    """
    if label_private:
        return "dp-sgd"
    if config.release_share is not None:
        return "class-means"
    public, features = data.public_features.shape[1], data.private_features.shape[1]
    columns = len(np.unique(data.inputs.group))
    if not class_means_suffice(private_columns=columns, classes=data.classes):
        return "warm-start" if public else "dp-sgd"
    if not public:
        return "class-means"
    rows = rows_in_all(len(data.labels), releaser.shards)
    moved = sum_sensitivity(1.0, non_negative=data.inputs.non_negative).under(releaser.relation)
    noise = moved / releaser.budget.mu * data.classes / rows
    if noise > _MOST_NOISE_OF_MEANS / math.sqrt(features):
        return "warm-start"
    enough = rows >= features * data.classes
    related = enough and columns_work_together(data, config, releaser.shards)
    return "warm-start" if related else "class-means"


def columns_work_together(data: NetworkRows, config: MlpConfig, shards: Shards) -> bool:
    """Whether a network on public columns loses clearly where their relation is taken away."""
    rows = rows_in_all(len(data.labels), shards)
    if len(np.unique(data.columns)) < _LEAST_COLUMNS or rows < _LEAST_ROWS:
        return False
    own = math.ceil(len(data.labels) * min(1.0, _ROWS_ENOUGH / rows))
    known, held = (data.public_rows.take(np.arange(first, own, 2)) for first in (0, 1))
    trial = replace(config.pretrain, networks=1, crossover=0.0)
    reached = []
    for rows_of_trial in (known, _unrelated(known, public_generator(config.public_seed))):
        network = _public_network(rows_of_trial, data, trial, config.public_seed, shards)
        with torch.no_grad():
            scores = network(torch.from_numpy(held.features[:].astype(np.float32)))
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
    features = rows.features[:][picked[:, rows.columns], np.arange(rows.features.shape[1])]
    return replace(rows, features=features)


# Of the warm start's steps; fixed on held-out training images of MNIST, the same for every table.
_WARM_EPOCHS, _WARM_STEPS = 20, 160
_WARM_RATE, _WARM_CLIP_NORM, _WARM_LEARNING_RATE = 1 / 8, 1.0, 0.5
# Noise of a mean gradient above which steps become shorter.
_WARM_TOLERATED_NOISE = 0.0016


def warm_start(
    data: NetworkRows,
    releaser: Releaser,
    config: MlpConfig,
    checkpoint: str | Path | None = None,
) -> TrainedNetwork:
    """A network of the public columns, taught the private ones by Algorithm 1.

    Its steps are stored in the file `checkpoint`.
    """
    shards = releaser.shards
    rows = rows_in_all(len(data.labels), shards)
    taught = replace(config.pretrain, networks=1, epochs=_WARM_EPOCHS, crossover=0.0)
    of_public = _public_network(data.public_rows, data, taught, config.public_seed, shards)
    network = _widened(of_public, data.private_features.shape[1])
    own = config.warm_start
    steps, clip_norm = own.steps or _WARM_STEPS, own.clip_norm or _WARM_CLIP_NORM
    rate = own.rate or _WARM_RATE
    noise = noise_multiplier(releaser.budget, rate=rate, steps=steps)
    factor = noise_factor(noise * clip_norm / (rate * rows), _WARM_TOLERATED_NOISE)
    trainer = TrainerConfig(
        steps=steps,
        rate=rate,
        clip_norm=clip_norm,
        noise_multiplier=noise,
        learning_rate=own.learning_rate or _WARM_LEARNING_RATE * factor,
        momentum=own.momentum,
        schedule="cosine",
        aggregate="ema",
        public_batch=math.ceil(rate * rows),
        public_seed=config.public_seed,
    )
    padding = free_padding("zero", data.inputs, public_generator(config.public_seed))
    real = StructuredRows(
        data.real,
        public=data.public_features.shape[1],
        table=torch.from_numpy(padding.table.astype(np.float32)),
    )
    curve = PublicLoss(
        "mean loss of public batches whose private columns are zero, by steps", steps=steps
    )
    train_privately(
        network,
        TrainingRows(real=real, labels=torch.from_numpy(data.labels)),
        trainer,
        releaser,
        checkpoint=None if checkpoint is None else Checkpoint.of_run(checkpoint, steps),
        watch=curve.note,
    )
    return TrainedNetwork(network=network, steps=trainer, padding="zero", curve=curve)


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


# Of the correction, whose inputs have length 3; fixed beforehand, the same for every table.
_CORRECTION_CLIP_NORM, _CORRECTION_LEARNING_RATE, _CORRECTION_STEPS = 3.0, 8.3, 10
# Noise of a mean gradient above which a correction costs more than it mends.
_CORRECTION_TOLERATED_NOISE = 0.0057
_SHARE_BEFORE_CORRECTION = 0.9
# Size of the networks' scores beside those of the discriminant.
_NETWORKS = 0.5
_PROBE = 4096
_SCORE_FACTORS = np.geomspace(0.02, 1.0, 30)


def class_means_network(data: NetworkRows, releaser: Releaser, config: MlpConfig) -> TrainedNetwork:
    """A network from one release of class means, its scores corrected if that pays.

    It takes seconds, so that nothing of it is stored on the way.
    """
    curve = PublicLoss(
        "mean loss of rows whose private columns are drawn from the released class means: by "
        "epochs of the networks trained on such rows, then by steps of the correction, if any",
        steps=config.pretrain.epochs,
    )
    shards, seed = releaser.shards, config.public_seed
    rows = rows_in_all(len(data.labels), shards)
    own = config.correction
    steps, clip_norm = own.steps or _CORRECTION_STEPS, own.clip_norm or _CORRECTION_CLIP_NORM
    share = config.release_share or _release_share(rows, releaser, steps, clip_norm)
    classes = PublicClasses.of(data.public_features, data.labels, data.classes, shards)
    # The release and the correction are opened together, so that they are one charge.
    cost, release = plan_class_means(data, releaser, share=share, public=classes)
    trainer: TrainerConfig | None = None
    step: PrivateStep | None = None
    if share < 1.0:
        noise = noise_multiplier(releaser.budget, rate=1.0, steps=steps, spent=(cost,))
        # Less where the noise of a mean gradient would drown what it corrects.
        factor = noise_factor(noise * clip_norm / rows, _CORRECTION_TOLERATED_NOISE)
        trainer = TrainerConfig(
            steps=steps,
            rate=1.0,
            clip_norm=clip_norm,
            noise_multiplier=noise,
            learning_rate=own.learning_rate or _CORRECTION_LEARNING_RATE * factor**1.5,
            momentum=own.momentum,
            aggregate="tail",
            public_seed=seed,
        )
        what = "noisy mean gradients of a map of the scores"
        step = plan_steps(trainer, len(data.labels), releaser, what=what)
    released = release()
    padding = Padding(name="class-samples", table=released.means, inputs=data.inputs)
    discriminant = Discriminant.of(
        classes,
        released.means,
        private_norm=data.inputs.private_norm,
        noise_variance=released.noise_variance,
    ).calibrated(classes, data.public_features, data.labels, shards)
    generator = public_generator(seed)
    networks = pretrain(
        data.public_rows,
        padding,
        data.classes,
        config.pretrain,
        generator,
        shards=shards,
        watch=curve.note,
    )
    network = _together(discriminant.network(), networks, classes, padding)
    _calibrate(network, data, padding, shards)
    if trainer is not None:

        def padded(some: slice) -> Tensor:
            return as_rows(data.public_features[some], padding.fill(data.labels[some], generator))

        labels = torch.from_numpy(data.labels)
        correction = Correction.of(network, data.real, padded, labels, trainer, shards)
        trainer = correction.trainer
        train_privately(
            correction.head,
            correction.rows,
            trainer,
            releaser,
            step=step,
            watch=lambda step, loss: curve.note(config.pretrain.epochs + step, loss),
        )
        network = correction.corrected()
    return TrainedNetwork(network=network, steps=trainer, padding="class-samples", curve=curve)


def _release_share(rows: int, releaser: Releaser, steps: int, clip_norm: float) -> float:
    """The whole budget for the release, unless a small part of it pays for useful corrections."""
    moved = (2.0 if releaser.relation == "replace" else 1.0) * clip_norm
    mu = math.sqrt(1.0 - _SHARE_BEFORE_CORRECTION) * releaser.budget.mu
    useful = moved * math.sqrt(steps) / mu / rows <= _CORRECTION_TOLERATED_NOISE
    return _SHARE_BEFORE_CORRECTION if useful else 1.0


def _together(first: Mlp, second: Mlp, classes: PublicClasses, padding: Padding) -> Mlp:
    """Both networks' scores added, the second scaled to its share of the first's size.

    Sizes are those on drawn rows around the public means, the same rows on all machines.
    """
    generator = np.random.default_rng(0)
    labels = generator.integers(0, len(classes.means), _PROBE)
    drawn = padding.fill(labels, generator)
    public = classes.means[labels]
    with torch.no_grad():
        sizes = [
            float((scores - scores.mean(1, keepdim=True)).square().mean().sqrt())
            for scores in (network(as_rows(public, drawn)) for network in (first, second))
        ]
    weight = _NETWORKS * sizes[0] / max(sizes[1], 1e-12)
    return summed([first, second], [1.0 / (1.0 + _NETWORKS), weight / (1.0 + _NETWORKS)])


def _calibrate(network: Mlp, data: NetworkRows, padding: Padding, shards: Shards) -> None:
    """Scale scores down in place where they are surer than drawn rows justify.

    The likeliest class stays the likeliest; of real rows, whose private columns are not drawn one
    by one, more may be wrong than of these, so scores are never scaled up.
    """
    some = slice(0, _PROBE)
    labels = data.labels[some]
    rows = as_rows(data.public_features[some], padding.fill(labels, np.random.default_rng(0)))
    with torch.no_grad():
        scores = network(rows).double().numpy()
    losses = losses_at(_SCORE_FACTORS, scores, labels)
    best = float(_SCORE_FACTORS[int(np.argmin(shards.sum(losses)))])
    with torch.no_grad():
        network.linear[-1].weight.mul_(best)
        network.linear[-1].bias.mul_(best)


# Root mean square length of the scaled scores, against 1 for the constant of the bias.
_LENGTH = 3.0
# Rows that go through the network at a time.
_BLOCK = 1 << 12


@dataclass(frozen=True, kw_only=True, eq=False)
class Scaling:
    """z = (centred scores − mean) · factor: one factor for all, so that weak directions stay weak.

    Whitening would give every direction of the scores the same room, and the noise with it.
    """

    mean: Tensor
    factor: float

    @classmethod
    def of(cls, scores: Tensor, shards: Shards = ALONE) -> Scaling:
        """From the scores of padded rows of all machines, in float64."""
        centred = scores - scores.mean(1, keepdim=True)
        count = float(shards.sum(np.array([float(len(scores))]))[0])
        mean = torch.from_numpy(shards.sum(centred.sum(0).numpy()) / count)
        squares = shards.sum((centred - mean).square().sum().reshape(1).numpy())
        length = float(np.sqrt(squares[0] / count))
        return cls(mean=mean, factor=_LENGTH / max(length, 1e-12))

    def apply(self, scores: Tensor) -> Tensor:
        """Scaled scores."""
        return (scores - scores.mean(1, keepdim=True) - self.mean) * self.factor


@dataclass(frozen=True, kw_only=True, eq=False)
class Correction:
    """A map of a network's scores, to be learnt by private steps on `rows` and then folded in.

    Steps are no longer than padded rows bear: where scores hardly vary but in one direction, a rate
    that suits other tables would overshoot.
    """

    network: Mlp
    scaling: Scaling
    head: Mlp
    rows: TrainingRows
    trainer: TrainerConfig

    @classmethod
    def of(
        cls,
        network: Mlp,
        real: Tensor | TensorRows,
        padded: Callable[[slice], Tensor],
        labels: Tensor,
        trainer: TrainerConfig,
        shards: Shards,
    ) -> Correction:
        """The map that changes nothing, with the rows to learn it from.

        `padded` gives the padded rows of a block and is asked for each block once, in order. They
        are fixed beforehand from public randomness, for the pairs and the public gradient alike:
        which rows a private batch holds cannot show in them. Guarantee: docs/proofs/network.md.
        """
        places = parts_of(len(real), _BLOCK)
        with torch.no_grad():
            padded_scores = torch.cat([network(padded(some)).double() for some in places])
            scaling = Scaling.of(padded_scores, shards)
            scores = torch.cat([network(real[some]).double() for some in places])
            inputs = scaling.apply(scores).float()
            padded_inputs = scaling.apply(padded_scores).float()
        classes = network.widths[-1]
        head = Mlp((classes, classes))
        with torch.no_grad():
            head.linear[0].weight.copy_(torch.eye(classes) / scaling.factor)
            head.linear[0].bias.copy_(scaling.mean)
        longest = 1.0 / _steepest(padded_inputs, head, shards)

        def fill(rows: Integers, generator: object) -> Tensor:
            return padded_inputs[torch.from_numpy(rows)]

        return cls(
            network=network,
            scaling=scaling,
            head=head,
            rows=TrainingRows(real=inputs, labels=labels, fill=fill),
            trainer=replace(trainer, learning_rate=min(trainer.learning_rate, longest)),
        )

    def corrected(self) -> Mlp:
        """One network that computes head(scaled scores of `network`)."""
        classes = self.network.widths[-1]
        result = Mlp(self.network.widths)
        result.load_state_dict(self.network.state_dict())
        with torch.no_grad():
            last, layer = self.network.linear[-1], self.head.linear[0]
            centre = torch.eye(classes, dtype=torch.float64) - 1.0 / classes
            linear = layer.weight.double() * self.scaling.factor
            result.linear[-1].weight.copy_(linear @ centre @ last.weight.double())
            bias = linear @ (centre @ last.bias.double() - self.scaling.mean) + layer.bias.double()
            result.linear[-1].bias.copy_(bias)
        return result


def _steepest(inputs: Tensor, head: Mlp, shards: Shards) -> float:
    """A bound on the curvature of the mean loss at `head` over padded rows of all machines.

    A row with chances p adds (diag(p) − ppᵀ) ⊗ zzᵀ, and diag(p) − ppᵀ is at most 2·p·(1 − p) of the
    class where that is largest (Gershgorin); for two classes it is just that.
    """
    rows = torch.cat([inputs, torch.ones(len(inputs), 1)], dim=1).double()
    with torch.no_grad():
        chances = torch.softmax(head.linear[0](inputs), dim=1).double()
    curved = (2.0 * chances * (1.0 - chances)).amax(1, keepdim=True)
    count = float(shards.sum(np.array([float(len(inputs))]))[0])
    total = shards.sum(((rows * curved).T @ rows).numpy()) / count
    return max(float(np.linalg.eigvalsh(total)[-1]), 1e-12)
