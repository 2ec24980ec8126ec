"""Rows as a network reads them, and networks trained on what is free: padded rows alone.

Public columns stay as they are, private ones are drawn from a release. Everything here is
post-processing of a release and of public values, so it may be repeated at will: several networks
are trained and their scores averaged, which is again one network, a wider one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from halfmask.losses import LossWatch
from halfmask.mechanisms.shards import ALONE, Shards, rows_in_all
from halfmask.neural.ghost import TensorRows
from halfmask.neural.inputs import Inputs, MadeRows
from halfmask.neural.network import Mlp
from halfmask.neural.padding import Padding
from halfmask.progress import tell
from halfmask.table import Table
from halfmask.types import Integers

# Bytes of rows that are made once and held.
_HELD = 1 << 28

Singles = NDArray[np.float32]


@dataclass(frozen=True, kw_only=True, eq=False)
class NetworkRows:
    """`values` has the public features of each row, then its private ones, clipped already.

    Few rows are held, many are made of codes batch by batch: memory grows with the batch.
    `columns` numbers the column behind each public feature; `labels` are class codes.
    """

    inputs: Inputs
    values: Singles | MadeRows
    labels: Integers
    classes: int
    columns: Integers

    @classmethod
    def of(
        cls, table: Table, *, private_norm: float | None = None, shards: Shards = ALONE
    ) -> NetworkRows:
        """The rows of a table with a label of classes."""
        inputs = Inputs.of(table, private_norm=private_norm, shards=shards)
        made = MadeRows(table, inputs)
        few = 4 * math.prod(made.shape) <= _HELD
        return cls.of_values(table, inputs, made[:] if few else made)

    @classmethod
    def of_values(cls, table: Table, inputs: Inputs, values: Singles | MadeRows) -> NetworkRows:
        """Rows that were made elsewhere; of `table` the label and the declaration are read."""
        assert table.label is not None
        assert table.classes is not None
        sources = np.array(table.public_sources, dtype=str)[inputs.public_kept]
        return cls(
            inputs=inputs,
            values=values,
            labels=table.label.astype(np.int64),
            classes=len(table.classes),
            columns=np.unique(sources, return_inverse=True)[1].astype(np.int64),
        )

    @property
    def real(self) -> Tensor | TensorRows:
        """All features of every row, sharing memory with `values` where these are held."""
        if isinstance(self.values, MadeRows):
            return TensorRows(self.values)
        return torch.from_numpy(np.asarray(self.values))

    @property
    def public_features(self) -> Singles | MadeRows:
        """The public features of every row."""
        if isinstance(self.values, MadeRows):
            return self.values.public
        return self.values[:, : len(self.inputs.public_kept)]

    @property
    def private_features(self) -> Singles | MadeRows:
        """The private features of every row, of norm at most `inputs.private_norm`."""
        if isinstance(self.values, MadeRows):
            return self.values.private
        return self.values[:, len(self.inputs.public_kept) :]

    @property
    def public_rows(self) -> PublicRows:
        """What a network may be trained on for free."""
        return PublicRows(features=self.public_features, columns=self.columns, labels=self.labels)


# Rows that are padded at a time: a table may be larger than memory.
_BLOCK = 1 << 13


@dataclass(frozen=True, kw_only=True)
class PretrainConfig:
    """Constants fixed beforehand, the same for every table.

    `crossover` is the share of public columns that a row takes from another row of its class:
    without it networks learn the public rows by heart, and private columns count for too little.
    """

    hidden: int = 300
    networks: int = 2
    epochs: int = 12
    batch: int = 128
    learning_rate: float = 1e-3
    crossover: float = 0.3


@dataclass(frozen=True, kw_only=True, eq=False)
class PublicRows:
    """Public features, the number of the column behind each, and public class codes."""

    features: NDArray[np.floating[Any]] | MadeRows
    columns: Integers
    labels: Integers

    def crossed(self, share: float, generator: np.random.Generator) -> NDArray[np.floating[Any]]:
        """Rows of which a share of columns comes from another row of the same class."""
        every = self.features[:]
        if every.shape[1] == 0 or share <= 0:
            return every
        partner = self._partners(generator)
        taken = generator.random((len(every), int(self.columns.max()) + 1)) < share
        return np.where(taken[:, self.columns], every[partner], every)

    def take(self, chosen: Integers) -> PublicRows:
        """Some of the rows."""
        return PublicRows(
            features=self.features[chosen], columns=self.columns, labels=self.labels[chosen]
        )

    def _partners(self, generator: np.random.Generator) -> Integers:
        order = np.lexsort((generator.random(len(self.labels)), self.labels))
        ends = np.searchsorted(self.labels[order], self.labels, side="right")
        starts = np.searchsorted(self.labels[order], self.labels, side="left")
        picked = starts + (generator.random(len(self.labels)) * (ends - starts)).astype(np.int64)
        return order[picked]


def pretrain(
    rows: PublicRows,
    padding: Padding,
    classes: int,
    config: PretrainConfig,
    generator: np.random.Generator,
    *,
    shards: Shards = ALONE,
    watch: LossWatch | None = None,
) -> Mlp:
    """The average of several networks trained on padded rows, as one network.

    `watch` is told the mean loss of every epoch, network by network.
    """
    members = [
        _member(rows, padding, classes, config, generator, shards, watch)
        for _ in range(config.networks)
    ]
    return summed(members, [1.0 / len(members)] * len(members))


def _member(
    rows: PublicRows,
    padding: Padding,
    classes: int,
    config: PretrainConfig,
    generator: np.random.Generator,
    shards: Shards,
    watch: LossWatch | None,
) -> Mlp:
    seed = torch.Generator().manual_seed(int(generator.integers(2**62)))
    count = len(rows.labels)
    width = rows.features.shape[1] + padding.table.shape[1]
    network = Mlp((width, config.hidden, classes), generator=seed)
    _take_first(network, shards)
    optimizer = torch.optim.Adam(network.parameters(), lr=config.learning_rate)
    everywhere = rows_in_all(count, shards)
    batch = max(config.batch, min(everywhere // 32, 4096))
    for epoch in range(config.epochs):
        tell("training a network on released sums", epoch / config.epochs)
        for group in optimizer.param_groups:
            group["lr"] = config.learning_rate * (1 - epoch / config.epochs)
        order = torch.randperm(count, generator=seed)
        # Machines must take equally many steps, whatever the number of their rows.
        steps = -(-everywhere // batch)
        chosen = order.split(batch) if shards.count == 1 else order.tensor_split(steps)
        lost = 0.0
        for padded, labels in _padded(rows, padding, config, chosen, generator):
            optimizer.zero_grad()
            kind = "mean" if len(labels) else "sum"
            loss = functional.cross_entropy(network(padded), labels, reduction=kind)
            loss.backward()
            lost += float(loss.detach()) * len(labels)
            _average_gradients(network, len(labels), shards)
            optimizer.step()
        if watch is not None:
            watch(epoch + 1, lost / max(count, 1))
    return network


def _padded(
    rows: PublicRows,
    padding: Padding,
    config: PretrainConfig,
    batches: tuple[Tensor, ...],
    generator: np.random.Generator,
) -> Iterator[tuple[Tensor, Tensor]]:
    """The batches as padded rows with their labels; a large table is padded in parts."""
    whole = len(rows.labels) <= _BLOCK
    together = len(batches) if whole else max(1, _BLOCK // max(len(batches[0]), 1))
    for start in range(0, len(batches), together):
        group = batches[start : start + together]
        chosen = torch.cat(group)
        part = rows if whole else rows.take(chosen.numpy())
        public = part.crossed(config.crossover, generator)
        padded = as_rows(public, padding.fill(part.labels, generator))
        labels = torch.from_numpy(part.labels)
        places = group if whole else torch.arange(len(chosen)).split([len(b) for b in group])
        for some in places:
            yield padded[some], labels[some]


def _take_first(network: Mlp, shards: Shards) -> None:
    """Start from the weights of the first machine."""
    if shards.count > 1:
        own = nn.utils.parameters_to_vector(network.parameters()).detach()
        first = torch.from_numpy(shards.first(own.double().numpy())).to(own)
        nn.utils.vector_to_parameters(first, network.parameters())


def _average_gradients(network: Mlp, rows: int, shards: Shards) -> None:
    """Mean gradients over all machines' batches, weighed by their sizes; all of it is public."""
    if shards.count == 1:
        return
    grads = [value.grad for value in network.parameters() if value.grad is not None]
    own = torch.cat([grad.reshape(-1) for grad in grads]).double().numpy()
    total = shards.sum(np.append(own * rows, float(rows)))
    mean = torch.from_numpy(total[:-1] / max(total[-1], 1.0))
    for grad, found in zip(grads, mean.split([grad.numel() for grad in grads]), strict=True):
        grad.copy_(found.view_as(grad))


def as_rows(public: NDArray[Any], private: NDArray[Any]) -> Tensor:
    """Inputs of a network, in single precision."""
    return torch.from_numpy(np.hstack([public, private]).astype(np.float32))


def summed(members: list[Mlp], weights: list[float]) -> Mlp:
    """One network whose scores are the weighted sum of the members' (one hidden layer each)."""
    first = [member.linear[0] for member in members]
    last = [member.linear[1] for member in members]
    hidden = sum(layer.out_features for layer in first)
    whole = Mlp((first[0].in_features, hidden, last[0].out_features))
    with torch.no_grad():
        whole.linear[0].weight.copy_(torch.cat([layer.weight for layer in first]))
        whole.linear[0].bias.copy_(torch.cat([layer.bias for layer in first]))
        parts = list(zip(weights, last, strict=True))
        whole.linear[1].weight.copy_(torch.cat([w * layer.weight for w, layer in parts], dim=1))
        whole.linear[1].bias.copy_(torch.stack([w * layer.bias for w, layer in parts]).sum(0))
    return whole
