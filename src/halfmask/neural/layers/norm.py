"""Layer and group norms: scale and shift are as wide as an activation, so their rows are held."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from halfmask.neural.factors import Dense, Gradient


def layer_norm_gradients(layer: nn.Module, given: Tensor, grad: Tensor) -> Mapping[str, Gradient]:
    """Per row: Σ over positions of g · x̂ (scale) and of g (shift)."""
    layer = cast(nn.LayerNorm, layer)
    shape = tuple(layer.normalized_shape)
    normal = functional.layer_norm(given, shape, None, None, layer.eps)
    rows = grad.shape[0]
    scale = (grad * normal).reshape(rows, -1, *shape).sum(1)
    return {
        "weight": Dense(value=scale),
        "bias": Dense(value=grad.reshape(rows, -1, *shape).sum(1)),
    }


def group_norm_gradients(layer: nn.Module, given: Tensor, grad: Tensor) -> Mapping[str, Gradient]:
    """Per row and channel: Σ over space of g · x̂ (scale) and of g (shift)."""
    layer = cast(nn.GroupNorm, layer)
    normal = functional.group_norm(given, layer.num_groups, None, None, layer.eps)
    rows, channels = grad.shape[0], grad.shape[1]
    scale = torch.mul(grad, normal).reshape(rows, channels, -1).sum(2)
    return {
        "weight": Dense(value=scale),
        "bias": Dense(value=grad.reshape(rows, channels, -1).sum(2)),
    }
