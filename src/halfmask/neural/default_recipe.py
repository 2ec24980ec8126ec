"""The default recipe of `mlp` where the label is public: release, read, and correct if that pays.

Class means of the private features are released once. A discriminant made of them, and networks
trained on public rows padded by draws from them, are added up into one network: the discriminant
holds out against noise, the networks know what is not linear. Where there are rows enough, the rest
of the budget corrects its scores with a few private steps. Class means know nothing of relations
between columns; where counts (methods.auto.class_means_tell) or public columns say that those
matter, or where noise would drown the means, neural.warm_start takes over, or DP-SGD if there is
nothing to start from. Every number follows from n, the budget and public columns.
Guarantee: docs/proofs/network.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from halfmask.accounting.calibrate import noise_multiplier
from halfmask.mechanisms.noise import public_generator
from halfmask.mechanisms.private_step import PrivateStep
from halfmask.mechanisms.release import Releaser
from halfmask.mechanisms.shards import Shards, rows_in_all
from halfmask.methods.auto import class_means_tell
from halfmask.neural.class_means import sum_sensitivity
from halfmask.neural.config import MlpConfig
from halfmask.neural.correction import correct_scores, plan_correction
from halfmask.neural.discriminant import Discriminant, PublicClasses, losses_at
from halfmask.neural.network import Mlp
from halfmask.neural.padding import Padding, PaddingName
from halfmask.neural.paid import Spent, plan_means, quietness
from halfmask.neural.pretrain import as_rows, pretrain, summed
from halfmask.neural.rows import NetworkRows
from halfmask.neural.trainer import TrainerConfig
from halfmask.neural.warm_start import WARM_STEPS, columns_work_together, warm_start
from halfmask.public_loss import PublicLoss

# Of the correction, whose inputs have length 3; fixed beforehand, the same for every table.
_CLIP_NORM = 3.0
_LEARNING_RATE = 8.3
_STEPS = 10
# Noise of a class mean, in units of its size, above which public columns alone tell more. Held-out
# rows of Location-30 and of a drawn table like Purchase100 change sides between 0.95 and 1.47.
_LOUD = 1.1
# Noise of a mean gradient above which a correction costs more than it mends.
_QUIET = 0.0057
_SHARE_BEFORE_CORRECTION = 0.9
# Size of the networks' scores beside those of the discriminant.
_NETWORKS = 0.5
_PROBE = 4096
_COOLING = np.geomspace(0.02, 1.0, 30)


@dataclass(frozen=True, kw_only=True, eq=False)
class Recipe:
    """A network, its private steps if there were any, how rows were padded, and a public curve."""

    network: Mlp
    steps: TrainerConfig | None
    padding: PaddingName
    curve: PublicLoss


def default_recipe(
    data: NetworkRows,
    releaser: Releaser,
    config: MlpConfig,
    checkpoint: str | Path | None = None,
) -> Recipe:
    """A network within the releaser's budget. An explicit share of a release asks for the release.

    A warm start's steps are stored in the file `checkpoint`; a release takes seconds and is not.
    """
    if config.release_share is None and _steps_serve_better(data, releaser, config):
        curve = PublicLoss(
            "mean loss of public batches whose private columns are zero, by steps",
            steps=config.warm_start.steps or WARM_STEPS,
        )
        network, warm = warm_start(data, releaser, config, curve.note, checkpoint=checkpoint)
        return Recipe(network=network, steps=warm, padding="zero", curve=curve)
    curve = PublicLoss(
        "mean loss of rows whose private columns are drawn from the released class means: by "
        "epochs of the networks trained on such rows, then by steps of the correction, if any",
        steps=config.pretrain.epochs,
    )
    rows = rows_in_all(len(data.labels), releaser.shards)
    share = config.release_share or _share(rows, releaser, config)
    classes = PublicClasses.of(data.shown, data.labels, data.classes, releaser.shards)
    # The release and the correction are opened together, so that they are one charge.
    spent, release = plan_means(data, releaser, share=share, public=classes)
    trainer: TrainerConfig | None = None
    step: PrivateStep | None = None
    if share < 1.0:
        trainer = _steps(rows, releaser, config, spent)
        step = plan_correction(trainer, len(data.labels), releaser)
    released = release()
    padding = Padding(name="class-samples", table=released.means, inputs=data.inputs)
    discriminant = Discriminant.of(
        classes,
        released.means,
        private_norm=data.inputs.private_norm,
        left=released.left,
    ).cooled(classes, data.shown, data.labels, releaser.shards)
    generator = public_generator(config.public_seed)
    networks = pretrain(
        data.public,
        padding,
        data.classes,
        config.pretrain,
        generator,
        shards=releaser.shards,
        watch=curve.note,
    )
    network = _together(discriminant.network(), networks, classes, padding)
    _cool(network, data, padding, releaser.shards)
    if trainer is None:
        return Recipe(network=network, steps=None, padding="class-samples", curve=curve)

    def padded(some: slice) -> torch.Tensor:
        return as_rows(data.shown[some], padding.fill(data.labels[some], generator))

    def watch(step: int, loss: float) -> None:
        curve.note(config.pretrain.epochs + step, loss)

    labels = torch.from_numpy(data.labels)
    corrected, done = correct_scores(
        network, data.real, padded, labels, trainer, releaser, step=step, watch=watch
    )
    return Recipe(network=corrected, steps=done, padding="class-samples", curve=curve)


def means_tell(data: NetworkRows) -> bool:
    """Whether class means serve this table, from its counts."""
    columns = len(np.unique(data.inputs.group))
    return class_means_tell(private_columns=columns, classes=data.classes)


def _steps_serve_better(data: NetworkRows, releaser: Releaser, config: MlpConfig) -> bool:
    """Whether to start from public columns and take private steps, instead of a release.

    A release that is louder than what it tells is of no use; steps of a network need more rows
    than there are class means, and relations between columns that are worth it.
    """
    if not data.shown.shape[1]:
        return False
    if not means_tell(data):
        return True
    rows, features = rows_in_all(len(data.labels), releaser.shards), data.private.shape[1]
    moved = sum_sensitivity(1.0, non_negative=data.inputs.non_negative).under(releaser.relation)
    noise = moved / releaser.budget.mu * data.classes / rows
    if noise > _LOUD / math.sqrt(features):
        return True
    return rows >= features * data.classes and columns_work_together(data, config, releaser.shards)


def _share(rows: int, releaser: Releaser, config: MlpConfig) -> float:
    """The whole budget for the release, unless a small part of it makes quiet corrections."""
    own = config.correction
    steps, clip_norm = own.steps or _STEPS, own.clip_norm or _CLIP_NORM
    moved = (2.0 if releaser.relation == "replace" else 1.0) * clip_norm
    mu = math.sqrt(1.0 - _SHARE_BEFORE_CORRECTION) * releaser.budget.mu
    quiet = moved * math.sqrt(steps) / mu / rows <= _QUIET
    return _SHARE_BEFORE_CORRECTION if quiet else 1.0


def _together(first: Mlp, second: Mlp, classes: PublicClasses, padding: Padding) -> Mlp:
    """Both networks' scores added, the second scaled to its share of the first's size.

    Sizes are those on drawn rows around the public means, the same rows on all machines.
    """
    generator = np.random.default_rng(0)
    labels = generator.integers(0, len(classes.means), _PROBE)
    drawn = padding.fill(labels, generator)
    shown = classes.means[labels]
    with torch.no_grad():
        sizes = [
            float((scores - scores.mean(1, keepdim=True)).square().mean().sqrt())
            for scores in (network(as_rows(shown, drawn)) for network in (first, second))
        ]
    weight = _NETWORKS * sizes[0] / max(sizes[1], 1e-12)
    return summed([first, second], [1.0 / (1.0 + _NETWORKS), weight / (1.0 + _NETWORKS)])


def _cool(network: Mlp, data: NetworkRows, padding: Padding, shards: Shards) -> None:
    """Scale scores down in place where they are surer than drawn rows justify.

    The likeliest class stays the likeliest; of real rows, whose private columns are not drawn one
    by one, more may be wrong than of these, so scores are never scaled up.
    """
    some = slice(0, _PROBE)
    labels = data.labels[some]
    rows = as_rows(data.shown[some], padding.fill(labels, np.random.default_rng(0)))
    with torch.no_grad():
        scores = network(rows).double().numpy()
    losses = losses_at(_COOLING, scores, labels)
    best = float(_COOLING[int(np.argmin(shards.sum(losses)))])
    with torch.no_grad():
        network.linear[-1].weight.mul_(best)
        network.linear[-1].bias.mul_(best)


def _steps(
    rows: int,
    releaser: Releaser,
    config: MlpConfig,
    spent: Spent,
) -> TrainerConfig:
    own = config.correction
    steps, clip_norm = own.steps or _STEPS, own.clip_norm or _CLIP_NORM
    noise = noise_multiplier(releaser.budget, rate=1.0, steps=steps, spent=spent)
    # Less where the noise of a mean gradient would drown what it corrects.
    quiet = quietness(noise * clip_norm / rows, _QUIET)
    return TrainerConfig(
        steps=steps,
        rate=1.0,
        clip_norm=clip_norm,
        noise_multiplier=noise,
        learning_rate=own.learning_rate or _LEARNING_RATE * quiet**1.5,
        momentum=own.momentum,
        aggregate="tail",
        public_seed=config.public_seed,
    )
