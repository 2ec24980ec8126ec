"""The network of section 3 of the feature-DP paper: fully connected, with ReLU in between."""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import pairwise
from typing import cast

import torch
from torch import Tensor, nn

from halfmask.errors import InputError


def own_device() -> torch.device:
    """The GPU that torchrun's LOCAL_RANK names (the first one otherwise), or the CPU."""
    local = int(os.environ.get("LOCAL_RANK", "0"))
    if torch.cuda.is_available() and local < torch.cuda.device_count():
        return torch.device("cuda", local)
    return torch.device("cpu")


class FlatParameters:
    """`vector` holds every parameter that requires a gradient, in the order of the network."""

    def __init__(self, network: nn.Module) -> None:
        parameters = [value for value in network.parameters() if value.requires_grad]
        self.vector: Tensor = torch.cat([value.detach().reshape(-1) for value in parameters])
        at = 0
        for value in parameters:
            value.data = self.vector[at : at + value.numel()].view_as(value)
            at += value.numel()

    def __len__(self) -> int:
        return len(self.vector)

    def gradient(self, network: nn.Module) -> Tensor:
        """The .grad of every parameter as one vector; zero where there is none."""
        parts = [
            (torch.zeros_like(value) if value.grad is None else value.grad).reshape(-1)
            for value in network.parameters()
            if value.requires_grad
        ]
        return torch.cat(parts)


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
