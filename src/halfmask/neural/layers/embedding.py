"""Embedding: the left factor is a unit vector, kept as its index."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from torch import Tensor, nn

from halfmask.neural.factors import Gradient, Outer


def embedding_gradients(layer: nn.Module, given: Tensor, grad: Tensor) -> Mapping[str, Gradient]:
    """`given` is (rows, ...) of indices, `grad` (rows, ..., width)."""
    layer = cast(nn.Embedding, layer)
    rows, width = grad.shape[0], grad.shape[-1]
    index = given.reshape(rows, 1, -1).long()
    right = grad.reshape(rows, 1, -1, width)
    if layer.padding_idx is not None:
        right = right.masked_fill(index.eq(layer.padding_idx).unsqueeze(3), 0.0)
    return {"weight": Outer(left=index, right=right)}
