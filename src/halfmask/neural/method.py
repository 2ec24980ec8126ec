"""The method `mlp`: a network on public and private columns.

`fit_mlp` picks the recipe. By name there are Algorithm 1 of the paper with any padding, and DP-SGD:
both train the whole network here. The default recipe is neural.default_recipe, or DP-SGD where the
label is private. Algorithm 1 takes a private label too: its public loss then has none.
Guarantee: docs/proofs/network.md.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from halfmask.accounting.calibrate import noise_multiplier
from halfmask.accounting.events import Contribution, Event
from halfmask.data.products import parts_of
from halfmask.errors import InputError
from halfmask.features import Chain, NeighbourGraph, PublicPCA, UnitRows
from halfmask.losses import PublicLoss
from halfmask.mechanisms.noise import public_generator
from halfmask.mechanisms.release import Releaser
from halfmask.mechanisms.shards import Shards, rows_in_all
from halfmask.model import Model
from halfmask.model_folder import damaged
from halfmask.neural.checkpoint import Checkpoint
from halfmask.neural.class_means import PublicClasses, plan_class_means
from halfmask.neural.config import Algorithm1Config, MlpConfig, NetworkDpSgdConfig
from halfmask.neural.default_recipe import class_means_network, default_way, warm_start
from halfmask.neural.ghost import StructuredRows
from halfmask.neural.inputs import Inputs, MadeRows
from halfmask.neural.mapped import network_rows
from halfmask.neural.network import Mlp
from halfmask.neural.padding import BY_CLASS, PADDINGS, PAID, Padding, PaddingName, free_padding
from halfmask.neural.pretrain import NetworkRows, Singles, as_rows
from halfmask.neural.trainer import (
    NetworkRegulariser,
    TrainedNetwork,
    TrainerConfig,
    TrainingRows,
    noise_factor,
    plan_steps,
    train_privately,
)
from halfmask.table import Table
from halfmask.types import Floats


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
    config = config or MlpConfig()
    if table.task != "classification" or table.classes is None or table.label is None:
        raise InputError("mlp predicts classes: use gd or one-shot for a number.")
    if table.rows_per_unit > 1:
        raise InputError("mlp protects one row each: use gd where a unit has several rows.")
    if config.recipe != "dp-sgd" and not (table.widths[1] or table.label_private):
        raise InputError("Nothing is private: any ordinary method serves better.")
    data = network_rows(table, private_norm=config.private_norm, shards=releaser.shards)
    if isinstance(config, MlpConfig):
        way = default_way(data, releaser, config, label_private=table.label_private)
        if way == "dp-sgd":
            config = NetworkDpSgdConfig.of(config)
    if isinstance(config, NetworkDpSgdConfig):
        done = train_whole_network(data, releaser, config, checkpoint, table.label_private)
    elif way == "warm-start":
        done = warm_start(data, releaser, config, checkpoint)
    else:
        done = class_means_network(data, releaser, config)
    details: dict[str, Any] = {
        "recipe": config.recipe,
        "padding": done.padding,
        "widths": list(done.network.widths),
        "private_norm": data.inputs.private_norm,
    }
    if done.steps is not None:
        names = ("steps", "rate", "clip_norm", "noise_multiplier", "learning_rate", "contribution")
        details |= {name: getattr(done.steps, name) for name in names}
    details |= done.curve.details()
    return NetworkFit(network=done.network, inputs=data.inputs, details=details)


# The share of the budget for a padding that has to be paid for.
_RELEASE_SHARE = 0.75
# Noise of a mean gradient above which steps of the whole network become shorter.
_TOLERATED_NOISE = 0.0064


def train_whole_network(
    data: NetworkRows,
    releaser: Releaser,
    config: NetworkDpSgdConfig,
    checkpoint: str | Path | None,
    label_private: bool,
) -> TrainedNetwork:
    """DP-SGD from weights that no row has told, or Algorithm 1 with the padding asked for."""
    public, width = data.public_features, data.private_features.shape[1]
    name: PaddingName | None = None
    if isinstance(config, Algorithm1Config):
        # Without private columns there is nothing to fill in, and nothing to pay for.
        name = config.padding if width else "zero"
        if label_private and name in BY_CLASS:
            raise InputError(
                f"padding={name!r} goes by each row's class, and the label is private here: use "
                f"one of {', '.join(other for other in PADDINGS if other not in BY_CLASS)}."
            )
    # Two labels of a row with public features are less far apart than two rows.
    label_alone = name is not None and label_private and not width
    pair: Contribution = "label" if label_alone and releaser.relation == "replace" else "general"
    padding, step = None, None
    if isinstance(config, Algorithm1Config) and name in PAID:
        classes = None
        if name != "means":
            classes = PublicClasses.of(public, data.labels, data.classes, releaser.shards)
        # The release and the steps are opened together, so that they are one charge.
        cost, release = plan_class_means(
            data, releaser, share=config.release_share or _RELEASE_SHARE, public=classes
        )
        trainer = _steps_of(data, releaser, config, spent=(cost,))
        step = plan_steps(trainer, len(data.labels), releaser)
        padding = Padding(name=name, table=release().means, inputs=data.inputs)
        # A release is not stored: an interrupted run would have to pay for it again.
        checkpoint = None
    else:
        trainer = _steps_of(data, releaser, config, contribution=pair)
        if name is not None:
            # Padding that is drawn once is the same on all machines.
            drawn = public_generator(config.public_seed).spawn(1)[0]
            padding = free_padding(name, data.inputs, drawn)
            padding = replace(padding, table=releaser.shards.first(padding.table))
    stored = None if checkpoint is None else Checkpoint.of_run(checkpoint, trainer.steps)
    seed = torch.Generator().manual_seed(int(public_generator(config.public_seed).integers(2**62)))
    network = Mlp((public.shape[1] + width, config.hidden, data.classes), generator=seed)
    if isinstance(config, Algorithm1Config) and config.start == "neighbours":
        learn_public_features(network, public, seed)
    what = "mean loss of the padded rows of each public batch"
    rows = TrainingRows(real=data.real, labels=torch.from_numpy(data.labels))
    if padding is not None:
        rows = replace(rows, label_private=label_private, label_alone=label_alone)
        what += ", every class alike" if label_private else ""
        # Padding must not see a private label, not even where it makes no difference.
        known = np.zeros_like(data.labels) if label_private else data.labels
        if padding.drawn:
            fill = padding.fill
            rows = replace(
                rows,
                fill=lambda some, generator: as_rows(public[some], fill(known[some], generator)),
            )
        else:
            real = StructuredRows(
                data.real,
                public=public.shape[1],
                table=torch.from_numpy(padding.table.astype(np.float32)),
                codes=torch.from_numpy(padding.lines(known)),
            )
            rows = replace(rows, real=real)
    curve = PublicLoss(what, steps=trainer.steps)
    train_privately(
        network, rows, trainer, releaser, step=step, checkpoint=stored, watch=curve.note
    )
    return TrainedNetwork(network=network, steps=trainer, padding=name, curve=curve)


def _steps_of(
    data: NetworkRows,
    releaser: Releaser,
    config: NetworkDpSgdConfig,
    *,
    spent: tuple[Event, ...] = (),
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
    factor = noise_factor(noise * clip_norm / (rate * n), _TOLERATED_NOISE)
    trainer = TrainerConfig(
        steps=steps,
        rate=rate,
        clip_norm=clip_norm,
        noise_multiplier=noise,
        learning_rate=config.learning_rate or 0.5 * factor,
        momentum=config.momentum,
        schedule=config.schedule,
        radius=config.radius,
        aggregate=config.aggregate,
        ema_decay=config.ema_decay,
        public_batch=math.ceil(rate * n),
        public_seed=config.public_seed,
        contribution=contribution,
    )
    if not isinstance(config, Algorithm1Config):
        return trainer
    return replace(
        trainer,
        alpha=config.alpha,
        public_batch=config.public_batch or trainer.public_batch,
        regulariser=regulariser_of(config.regulariser),
        regulariser_weight=config.regulariser_weight,
        span=principal_directions(data.public_features, config.span, releaser.shards),
    )


def principal_directions(
    public: Singles | MadeRows, count: int | None, shards: Shards
) -> NDArray[np.float64] | None:
    """Orthonormal columns that span what public rows mostly lie in; None where none are asked for.

    They are not centred: gradients are sums of rows, not of differences.
    """
    width = public.shape[1]
    if count is None or not width:
        return None
    moments = np.zeros((width, width))
    for some in parts_of(len(public), 8192):
        part = np.asarray(public[some], dtype=np.float64)
        moments += part.T @ part
    _, vectors = np.linalg.eigh(shards.sum(moments))
    return np.ascontiguousarray(vectors[:, -min(count, width) :])


def hidden_features(network: Mlp, rows: Tensor) -> Tensor:
    """What the first layer makes of the rows."""
    return torch.relu(network.linear[0](rows))


def reconstruct(network: Mlp, rows: Tensor) -> Tensor:
    """How badly the first layer's own weights bring the rows back from their hidden features."""
    back = hidden_features(network, rows) @ network.linear[0].weight
    return (back - rows).square().sum(1).mean()


def decorrelate(network: Mlp, rows: Tensor) -> Tensor:
    """The mean squared correlation of two hidden features over the rows."""
    hidden = hidden_features(network, rows)
    centred = hidden - hidden.mean(0)
    scaled = centred / (centred.square().mean(0).sqrt() + 1e-3)
    products = scaled.T @ scaled / len(rows)
    width = products.shape[0]
    return (products.square().sum() - products.diagonal().square().sum()) / (width * (width - 1))


NETWORK_REGULARISERS = {"reconstruct": reconstruct, "decorrelate": decorrelate}


def regulariser_of(asked: Any) -> NetworkRegulariser | None:
    """The regulariser of a configuration: a name or a function."""
    if asked == "none":
        return None
    if callable(asked):
        made: NetworkRegulariser = asked
        return made
    if asked not in NETWORK_REGULARISERS:
        raise InputError(
            f"Unknown regulariser {asked!r}: expected none, {', '.join(NETWORK_REGULARISERS)}."
        )
    return NETWORK_REGULARISERS[asked]


# Constants fixed beforehand. The search for neighbours grows with the square of the rows.
_MOST_ROWS = 50_000
_DIRECTIONS = 50
_NEIGHBOURS = 10
_FUNCTIONS = 20
_SMOOTHING = 4.0
_EPOCHS = 8
_BATCH = 256
# Few rows are seen more often: which of equally smooth functions are found follows from digits, and
# all of them have to be learnt.
_LEAST_STEPS = 400
_LEARNING_RATE = 3e-3
# Hidden features of this length on average: what a private step releases of the last layer then
# weighs more than what it releases of the first, which is good already.
LENGTH = 10.0


def learn_public_features(
    network: Mlp, public: Singles | MadeRows, generator: torch.Generator
) -> None:
    """Give `network` (one hidden layer) a first layer that tells neighbours among public rows.

    `public` are the leading inputs; the others count as zero here, and their weights stay as they
    were drawn. Guarantee: docs/proofs/network.md, "Start".
    """
    rows = _rows_for_neighbours(public, generator)
    wanted = torch.from_numpy(smooth_functions(rows))
    learner = Mlp((rows.shape[1], network.widths[1], wanted.shape[1]), generator=generator)
    _regress(learner, torch.from_numpy(rows), wanted, generator)
    taught, first, last = learner.linear[0], network.linear[0], network.linear[1]
    with torch.no_grad():
        hidden = torch.relu(taught(torch.from_numpy(rows)))
        scale = LENGTH / max(float(hidden.norm(dim=1).mean()), 1e-6)
        first.weight[:, : rows.shape[1]].copy_(scale * taught.weight)
        first.bias.copy_(scale * taught.bias)
        last.weight.zero_()
        last.bias.zero_()


def _rows_for_neighbours(public: Singles | MadeRows, generator: torch.Generator) -> Singles:
    """All public rows, or as many as the search for neighbours can take."""
    least = _NEIGHBOURS + 2
    if not public.shape[1] or len(public) < least:
        raise InputError(
            f"start=neighbours learns from public columns: expected at least one and {least} rows, "
            f"got {public.shape[1]} and {len(public)}. Use start=random."
        )
    if len(public) <= _MOST_ROWS:
        return np.ascontiguousarray(public[:], dtype=np.float32)
    chosen = torch.randperm(len(public), generator=generator)[:_MOST_ROWS].sort().values
    return np.ascontiguousarray(public[chosen.numpy()], dtype=np.float32)


def smooth_functions(rows: Singles) -> Singles:
    """The smoothest functions on the graph of neighbours, at the rows, each of variance 1."""
    graph = Chain(
        [
            PublicPCA(components=min(_DIRECTIONS, rows.shape[1], len(rows))),
            UnitRows(),
            NeighbourGraph(components=_FUNCTIONS + 1, neighbours=_NEIGHBOURS, smoothing=_SMOOTHING),
        ]
    )
    found = graph.fit_transform(rows)
    spread = found.std(axis=0)
    # A constant is smooth too, and tells nothing.
    kept = spread > 1e-3 * max(float(spread.max(initial=0.0)), 1e-12)
    varied = found[:, kept]
    scaled: Singles = ((varied - varied.mean(axis=0)) / spread[kept]).astype(np.float32)
    return scaled


def _regress(
    learner: Mlp, rows: torch.Tensor, wanted: torch.Tensor, generator: torch.Generator
) -> None:
    optimizer = torch.optim.Adam(learner.parameters(), lr=_LEARNING_RATE)
    batches = -(-len(rows) // _BATCH)
    epochs = max(_EPOCHS, -(-_LEAST_STEPS // batches))
    steps = epochs * batches
    done = 0
    for _ in range(epochs):
        for some in torch.randperm(len(rows), generator=generator).split(_BATCH):
            for group in optimizer.param_groups:
                group["lr"] = _LEARNING_RATE * (1 - done / steps)
            done += 1
            optimizer.zero_grad()
            functional.mse_loss(learner(rows[some]), wanted[some]).backward()
            optimizer.step()


# Rows that go through the network at a time.
_SCORED = 1 << 13


@dataclass(frozen=True, kw_only=True, eq=False)
class NeuralModel(Model):
    """Fully connected layers with ReLU between them, on the rows of `inputs`."""

    kind: ClassVar[str] = "mlp"

    inputs: Inputs
    weights: tuple[NDArray[np.float32], ...]
    biases: tuple[NDArray[np.float32], ...]

    @classmethod
    def of(cls, fit: NetworkFit, **common: Any) -> NeuralModel:
        """The model of a fitted network; `common` is what every model has."""
        layers = fit.network.linear
        return cls(
            inputs=fit.inputs,
            weights=tuple(layer.weight.detach().numpy().copy() for layer in layers),
            biases=tuple(layer.bias.detach().numpy().copy() for layer in layers),
            details=fit.details,
            **common,
        )

    def scores(self, table: Table) -> Floats:
        """One column per class, or the log odds of the second of two classes."""
        made, last = MadeRows(table, self.inputs), len(self.weights) - 1
        scores = np.empty((len(made), len(self.biases[last])))
        for part in parts_of(len(made), _SCORED):
            rows = made[part]
            for place, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
                rows = rows @ weight.T + bias
                if place < last:
                    np.maximum(rows, 0.0, out=rows)
            scores[part] = rows
        if scores.shape[1] == 2:
            return scores[:, 1:] - scores[:, :1]
        return scores

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Weights and biases by number, and the inputs' arrays behind a prefix."""
        stored: dict[str, NDArray[Any]] = {}
        for place, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            stored[f"weight{place}"], stored[f"bias{place}"] = weight, bias
        return stored | {f"inputs.{name}": a for name, a in self.inputs.to_arrays().items()}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]], **common: Any) -> NeuralModel:
        """The inverse of `arrays`."""
        layers = sum(name.startswith("weight") for name in arrays)
        inputs = {n.removeprefix("inputs."): a for n, a in arrays.items() if "inputs." in n}
        weights = tuple(arrays[f"weight{place}"] for place in range(layers))
        biases = tuple(arrays[f"bias{place}"] for place in range(layers))
        for weight, bias in zip(weights, biases, strict=True):
            numbers = weight.dtype == bias.dtype == np.float32
            if not numbers or weight.ndim != 2 or bias.shape != weight.shape[:1]:
                damaged("the layers of its network")
        if not layers:
            damaged("its network has no layer")
        return cls(inputs=Inputs.from_arrays(inputs), weights=weights, biases=biases, **common)
