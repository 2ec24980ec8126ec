"""The method `mlp`: a network on public and private columns.

With a public label the default recipe releases class means of the private features once, pretrains
on rows padded from them, and corrects the scores with a few private steps. Every number of it
follows from n, epsilon, delta and public columns. By name there is Algorithm 1 of the paper with
any padding, and DP-SGD, which is also the default where the label is private.
Guarantee: docs/proofs/network.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch

from halfmask.accounting.calibrate import noise_multiplier, round_down
from halfmask.accounting.events import GaussianEvent
from halfmask.accounting.gaussian import gaussian_mu
from halfmask.errors import InputError
from halfmask.mechanisms.noise import public_generator
from halfmask.mechanisms.release import Releaser
from halfmask.mechanisms.shards import rows_in_all
from halfmask.neural.class_means import release_class_means, sum_sensitivity
from halfmask.neural.correction import correct_scores
from halfmask.neural.inputs import Inputs
from halfmask.neural.mapped import network_rows
from halfmask.neural.network import Mlp
from halfmask.neural.padding import PAID, Padding, free_padding
from halfmask.neural.pretrain import PretrainConfig, as_rows, pretrain
from halfmask.neural.rows import NetworkRows
from halfmask.neural.structured import StructuredRows
from halfmask.neural.trainer import TrainerConfig, TrainingRows, train_privately
from halfmask.table import Table

# Of the correction, whose inputs have length 3; fixed beforehand, the same for every table.
_CLIP_NORM = 3.0
_LEARNING_RATE = 8.3
_QUIET = 0.0057

Recipe = Literal["default", "algorithm-1", "dp-sgd"]


@dataclass(frozen=True, kw_only=True)
class MlpConfig:
    """Options of `mlp`; None means: from public facts.

    `release_share` is the part of the budget (of μ²) that pays for the release; steps and learning
    rate of the default recipe are those of the correction, of the others those of the network.
    """

    recipe: Recipe = "default"
    padding: str | None = None
    release_share: float = 0.75
    steps: int | None = None
    rate: float | None = None
    clip_norm: float | None = None
    learning_rate: float | None = None
    momentum: float | None = None
    alpha: float = 1.0
    private_norm: float | None = None
    pretrain: PretrainConfig = field(default_factory=PretrainConfig)
    public_seed: int | None = 0

    def __post_init__(self) -> None:
        if self.recipe not in ("default", "algorithm-1", "dp-sgd"):
            raise InputError(
                f"Unknown recipe {self.recipe!r}: expected default, algorithm-1 or dp-sgd."
            )
        if not 0 < self.release_share < 1:
            raise InputError(f"Expected release_share in (0, 1), got {self.release_share}.")


@dataclass(frozen=True, kw_only=True, eq=False)
class NetworkFit:
    """A fitted network, the map of its inputs, and public facts of the run."""

    network: Mlp
    inputs: Inputs
    details: dict[str, Any]


def fit_mlp(
    table: Table, releaser: Releaser, *, epsilon: float, delta: float, **options: Any
) -> NetworkFit:
    """Fit a network under (epsilon, delta). Guarantee: docs/proofs/network.md."""
    config = _config(options)
    if table.task != "classification" or table.classes is None or table.label is None:
        raise InputError("mlp predicts classes: use gd or one-shot for a number.")
    if table.max_rows > 1:
        raise InputError("mlp protects one row each: use gd where a unit has several rows.")
    data = network_rows(table, private_norm=config.private_norm, shards=releaser.shards)
    if config.recipe == "dp-sgd" or table.label_private:
        return _whole_network(data, releaser, epsilon, delta, config, padding=None)
    if not table.private.shape[1]:
        raise InputError("Nothing is private: any ordinary method serves better.")
    if config.recipe == "algorithm-1":
        return _algorithm_1(data, releaser, epsilon, delta, config)
    return _default(data, releaser, epsilon, delta, config)


def _default(
    data: NetworkRows, releaser: Releaser, epsilon: float, delta: float, config: MlpConfig
) -> NetworkFit:
    """Release, pretrain, correct."""
    generator = public_generator(config.public_seed)
    padding, spent = _paid_padding("class-samples", data, releaser, epsilon, delta, config)
    shards = releaser.shards
    network = pretrain(
        data.public, padding, data.classes, config.pretrain, generator, shards=shards
    )
    steps = config.steps or 10
    clip_norm = config.clip_norm or _CLIP_NORM
    rows = rows_in_all(len(data.labels), shards)
    noise = _noise(releaser, epsilon, delta, 1.0, steps, spent)
    trainer = TrainerConfig(
        steps=steps,
        rate=1.0,
        clip_norm=clip_norm,
        noise_multiplier=noise,
        learning_rate=config.learning_rate or _learning_rate(noise * clip_norm / rows),
        momentum=config.momentum or 0.0,
        aggregate="tail",
        public_seed=config.public_seed,
    )

    def padded(some: slice) -> torch.Tensor:
        return as_rows(data.shown[some], padding.fill(data.labels[some], generator))

    labels = torch.from_numpy(data.labels)
    network = correct_scores(network, data.real, padded, labels, trainer, releaser)
    return _fit(data, network, trainer, "default", "class-samples")


def _learning_rate(noise_of_mean: float) -> float:
    """Of the correction: less where the noise of a mean gradient would drown what it corrects."""
    return float(_LEARNING_RATE * min(1.0, _QUIET / noise_of_mean) ** 1.5)


def _algorithm_1(
    data: NetworkRows, releaser: Releaser, epsilon: float, delta: float, config: MlpConfig
) -> NetworkFit:
    """Algorithm 1 on the whole network, as the paper has it, with the padding asked for."""
    name = config.padding or "gaussian"
    if name in PAID:
        padding, spent = _paid_padding(name, data, releaser, epsilon, delta, config)
    else:
        padding, spent = free_padding(name, data.inputs), ()
    return _whole_network(data, releaser, epsilon, delta, config, padding=padding, spent=spent)


def _whole_network(
    data: NetworkRows,
    releaser: Releaser,
    epsilon: float,
    delta: float,
    config: MlpConfig,
    *,
    padding: Padding | None,
    spent: tuple[GaussianEvent, ...] = (),
) -> NetworkFit:
    n, public = rows_in_all(len(data.labels), releaser.shards), data.shown
    rate = config.rate or min(1.0, max(256, n // 16) / n)
    steps = config.steps or 160
    trainer = TrainerConfig(
        steps=steps,
        rate=rate,
        clip_norm=config.clip_norm or 1.0,
        noise_multiplier=_noise(releaser, epsilon, delta, rate, steps, spent),
        learning_rate=config.learning_rate or 0.5,
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
    train_privately(network, rows, trainer, releaser)
    recipe = "dp-sgd" if padding is None else "algorithm-1"
    return _fit(data, network, trainer, recipe, None if padding is None else padding.name)


def _paid_padding(
    name: str,
    data: NetworkRows,
    releaser: Releaser,
    epsilon: float,
    delta: float,
    config: MlpConfig,
) -> tuple[Padding, tuple[GaussianEvent, ...]]:
    by_class = name != "means"
    mu = math.sqrt(config.release_share) * gaussian_mu(round_down(epsilon), delta)
    norm, non_negative = data.inputs.private_norm, data.inputs.non_negative
    released = release_class_means(
        data.private,
        data.labels if by_class else np.zeros_like(data.labels),
        data.classes if by_class else 1,
        norm=norm,
        non_negative=non_negative,
        mu=mu,
        releaser=releaser,
    )
    sensitivity = sum_sensitivity(norm, non_negative=non_negative)
    event = GaussianEvent(
        replace=sensitivity.replace / released.noise_std,
        withhold=sensitivity.withhold / released.noise_std,
    )
    padding = Padding(name=name, table=released.means, inputs=data.inputs)  # type: ignore[arg-type]
    return padding, (event,)


def _noise(
    releaser: Releaser,
    epsilon: float,
    delta: float,
    rate: float,
    steps: int,
    spent: tuple[GaussianEvent, ...],
) -> float:
    return noise_multiplier(
        epsilon=epsilon,
        delta=delta,
        rate=rate,
        steps=steps,
        relation=releaser.relation,
        spent=spent,
    )


def _config(options: dict[str, Any]) -> MlpConfig:
    try:
        return MlpConfig(**options)
    except TypeError:
        known = ", ".join(MlpConfig.__dataclass_fields__)
        raise InputError(
            f"Unknown option among {', '.join(sorted(options))}: expected some of {known}."
        ) from None


def _fit(
    data: NetworkRows, network: Mlp, trainer: TrainerConfig, recipe: str, padding: str | None
) -> NetworkFit:
    details = {
        "recipe": recipe,
        "padding": padding,
        "widths": list(network.widths),
        "private_norm": data.inputs.private_norm,
        "steps": trainer.steps,
        "rate": trainer.rate,
        "clip_norm": trainer.clip_norm,
        "noise_multiplier": trainer.noise_multiplier,
        "learning_rate": trainer.learning_rate,
    }
    return NetworkFit(network=network, inputs=data.inputs, details=details)
