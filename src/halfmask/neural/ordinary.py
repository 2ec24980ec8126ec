"""The same network without any privacy: the ceiling that experiments compare with."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from halfmask.neural.network import Mlp

Rows = NDArray[np.float32]


def ordinary_network(
    rows: Rows, labels: NDArray[np.int64], classes: int, *, seed: int, hidden: int = 300
) -> Mlp:
    """Adam for ten epochs on the true rows. Not private: nothing here may be released."""
    generator = torch.Generator().manual_seed(seed)
    network = Mlp((rows.shape[1], hidden, classes), generator=generator)
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-3)
    inputs, targets = torch.from_numpy(rows), torch.from_numpy(labels)
    for epoch in range(10):
        for group in optimizer.param_groups:
            group["lr"] = 1e-3 * (1 - epoch / 10)
        for some in torch.randperm(len(rows), generator=generator).split(128):
            optimizer.zero_grad()
            functional.cross_entropy(network(inputs[some]), targets[some]).backward()
            optimizer.step()
    return network


def predicted(network: Mlp, rows: Rows) -> NDArray[np.int64]:
    """The likeliest class of each row."""
    with torch.no_grad():
        best: NDArray[np.int64] = network(torch.from_numpy(rows)).argmax(1).numpy()
    return best
