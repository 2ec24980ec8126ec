"""The definition: gradients one row at a time, in float64, clipped and added up."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional


def cross_entropy(scores: Tensor, labels: Tensor) -> Tensor:
    return functional.cross_entropy(scores, labels, reduction="none")


def row_gradient(model: nn.Module, loss: Any, row: Any, target: Tensor) -> Tensor:
    parameters = [value for value in model.parameters() if value.requires_grad]
    given = row if isinstance(row, tuple) else (row,)
    found = torch.autograd.grad(loss(model(*given), target).sum(), parameters, allow_unused=True)
    parts = [
        (torch.zeros_like(value) if grad is None else grad).reshape(-1)
        for value, grad in zip(parameters, found, strict=True)
    ]
    return torch.cat(parts).double()


def differences(
    model: nn.Module, loss: Any, rows: Any, targets: Tensor, padded: Any = None
) -> Tensor:
    def one(given: Any, i: int) -> Any:
        if isinstance(given, tuple):
            return tuple(part[i : i + 1] for part in given)
        return given[i : i + 1]

    result = []
    for i in range(len(targets)):
        value = row_gradient(model, loss, one(rows, i), targets[i : i + 1])
        if padded is not None:
            value = value - row_gradient(model, loss, one(padded, i), targets[i : i + 1])
        result.append(value)
    return torch.stack(result)


def clipped(gradients: Tensor, clip_norm: float) -> Tensor:
    norms = gradients.norm(dim=1)
    weights = torch.where(norms > clip_norm, clip_norm / norms, torch.ones_like(norms))
    return (gradients * weights.unsqueeze(1)).sum(0)


def relative_error(got: Tensor, expected: Tensor, terms: float = 0.0) -> float:
    """Relative to `expected`, or to a billionth of its `terms` where those cancel each other."""
    scale = max(float(expected.norm()), 1e-9 * terms)
    return float((got.double() - expected).norm()) / (scale if scale > 0 else 1.0)
