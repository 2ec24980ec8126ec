"""The network of section 3 of the feature-DP paper: fully connected, with ReLU in between."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import cast

import torch
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

    def forward(self, rows: Tensor) -> Tensor:
        """Scores of every row: logits, or the prediction itself for a numeric target."""
        for layer in self.linear[:-1]:
            rows = torch.relu(layer(rows))
        return cast(Tensor, self.linear[-1](rows))
