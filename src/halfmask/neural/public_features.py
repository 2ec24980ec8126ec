"""A first layer that was learnt from public columns alone, before any private value is read.

Rows that look alike mostly share a class, so a class varies slowly over the graph of nearest
neighbours of public rows. The hidden layer is trained to tell the smoothest functions on that graph
(halfmask.features.NeighbourGraph): an unsupervised loss of public rows, free by Proposition 2.2 of
the feature-DP paper. The last layer starts at zero. Guarantee: docs/proofs/network.md, "Start".
"""

from __future__ import annotations

import numpy as np
import torch
from torch.nn import functional

from halfmask.errors import InputError
from halfmask.features import Chain, NeighbourGraph, PublicPCA, UnitRows
from halfmask.neural.network import Mlp
from halfmask.neural.rows import Singles

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


def learn_public_features(network: Mlp, public: Singles, generator: torch.Generator) -> None:
    """Give `network` (one hidden layer) a first layer that tells neighbours among public rows.

    `public` are the leading inputs; the others count as zero here, and their weights stay as they
    were drawn. Guarantee: docs/proofs/network.md, "Start".
    """
    rows = _some(public, generator)
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


def _some(public: Singles, generator: torch.Generator) -> Singles:
    """All public rows, or as many as the search for neighbours can take."""
    least = _NEIGHBOURS + 2
    if not public.shape[1] or len(public) < least:
        raise InputError(
            f"start=neighbours learns from public columns: expected at least one and {least} rows, "
            f"got {public.shape[1]} and {len(public)}. Use start=random."
        )
    if len(public) <= _MOST_ROWS:
        return np.ascontiguousarray(public, dtype=np.float32)
    chosen = torch.randperm(len(public), generator=generator)[:_MOST_ROWS].sort().values
    return np.ascontiguousarray(public[chosen.numpy()], dtype=np.float32)


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
