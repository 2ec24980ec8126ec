"""The network of section 3 of the feature-DP paper: fully connected, with ReLU in between."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from halfmask.errors import InputError


class Mlp(nn.Module):  # type: ignore[misc]
    """`widths` are the inputs, the hidden layers and the outputs; two or more, all positive.

    The weights start from `generator` (drawn as torch draws those of nn.Linear), never from data.
    """

    def __init__(self, widths: Sequence[int], *, generator: torch.Generator | None = None) -> None:
        super().__init__()
        if len(widths) < 2 or min(widths) < 1:
            raise InputError(f"Expected widths={tuple(widths)} to be two or more positive numbers.")
        self.widths = tuple(widths)
        sizes = pairwise(widths)
        self.layers = nn.ModuleList(nn.Linear(inputs, outputs) for inputs, outputs in sizes)
        if generator is not None:
            for layer in self.linear:
                bound = layer.in_features**-0.5
                for parameter in (layer.weight, layer.bias):
                    nn.init.uniform_(parameter, -bound, bound, generator=generator)

    @property
    def linear(self) -> list[nn.Linear]:
        """The layers from input to output."""
        return [cast(nn.Linear, layer) for layer in self.layers]

    def predicted(self, rows: NDArray[np.float32]) -> NDArray[np.int64]:
        """The likeliest class of each row."""
        with torch.no_grad():
            best: NDArray[np.int64] = self(torch.from_numpy(rows)).argmax(1).numpy()
        return best

    def forward(self, rows: Tensor) -> Tensor:
        """Scores of every row: logits, or the prediction itself for a numeric target."""
        for layer in self.linear[:-1]:
            rows = torch.relu(layer(rows))
        return cast(Tensor, self.linear[-1](rows))


def without_privacy(
    rows: NDArray[np.float32], labels: NDArray[np.int64], classes: int, *, seed: int
) -> Mlp:
    """Adam for ten epochs on the true rows: the ceiling that experiments compare with.

    Not private: nothing of it may be released.
    """
    generator = torch.Generator().manual_seed(seed)
    network = Mlp((rows.shape[1], 300, classes), generator=generator)
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-3)
    inputs, targets = torch.from_numpy(rows), torch.from_numpy(labels)
    for epoch in range(10):
        for group in optimizer.param_groups:
            group["lr"] = 1e-3 * (1 - epoch / 10)
        for some in torch.randperm(len(rows), generator=generator).split(128):
            optimizer.zero_grad()
            nn.functional.cross_entropy(network(inputs[some]), targets[some]).backward()
            optimizer.step()
    return network
