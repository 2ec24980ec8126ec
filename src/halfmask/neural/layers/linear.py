"""Linear: the gradient of a row is Σ_t g_t ⊗ a_t over the positions the layer was applied to."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn

from halfmask.neural.factors import Dense, Gradient, Outer


def linear_gradients(layer: nn.Module, given: Tensor, grad: Tensor) -> Mapping[str, Gradient]:
    """`given` and `grad` are (rows, ..., width): every axis between is a position."""
    rows = grad.shape[0]
    left = grad.reshape(rows, 1, -1, grad.shape[-1])
    right = given.reshape(rows, 1, -1, given.shape[-1])
    return {"weight": Outer(left=left, right=right), "bias": Dense(value=left.sum((1, 2)))}
