"""A network's trainable parameters as one vector.

Noise, momentum, averages and projections act on the whole vector; the parameters become views of
it, so an update is one operation and nothing has to be copied back.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


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
