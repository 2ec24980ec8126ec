"""Per-example gradients one by one, for parameters of layers that no rule covers.

Slower by far (the whole network is differentiated per row, by torch.func where it can and in a loop
where it cannot), and only a few rows' gradients are held at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from halfmask.neural.tap import Loss, row_losses

_TEMPORARY = 1 << 24

Side = tuple[tuple[Any, ...], Any, Loss]


class ExactGradients:
    """The named parameters of a network, differentiated row by row."""

    def __init__(self, model: nn.Module, names: tuple[str, ...]) -> None:
        self._model = model
        self._parameters = {
            name: parameter for name, parameter in model.named_parameters() if name in names
        }
        self._size = sum(parameter.numel() for parameter in self._parameters.values())

    def squared_norms(self, sides: list[tuple[Side, float]], rows: int) -> tuple[Tensor, Tensor]:
        """Squared norms of Σ_sides sign · gradient, and Σ_sides of their norms, row by row."""
        step = max(1, _TEMPORARY // max(1, self._size))
        squares, lengths = [], []
        for low in range(0, rows, step):
            total: dict[str, Tensor] = {}
            length: Tensor | float = 0.0
            for (inputs, targets, loss), sign in sides:
                some = slice(low, min(rows, low + step))
                found = self._rows(loss, take(inputs, some), take(targets, some))
                length = length + _squares(found).sqrt()
                for name, value in found.items():
                    signed = value if sign > 0 else -value
                    total[name] = total[name] + signed if name in total else signed
            squares.append(_squares(total))
            lengths.append(torch.as_tensor(length))
        return torch.cat(squares), torch.cat(lengths)

    def weighted_sum(self, sides: list[tuple[Side, float]], weights: Tensor) -> dict[str, Tensor]:
        """Σ_rows weight · gradient, as the gradient of a weighted loss of the rows that count."""
        total = {name: torch.zeros_like(value) for name, value in self._parameters.items()}
        kept = weights.nonzero().flatten()
        if len(kept) == 0:
            return total
        for (inputs, targets, loss), sign in sides:
            losses = row_losses(
                loss, self._model(*take(inputs, kept)), take(targets, kept), len(kept)
            )
            wanted = list(self._parameters.values())
            found = torch.autograd.grad((losses * weights[kept]).sum(), wanted, allow_unused=True)
            for name, value in zip(self._parameters, found, strict=True):
                if value is not None:
                    total[name].add_(value, alpha=sign)
        return total

    def _rows(self, loss: Loss, inputs: tuple[Any, ...], targets: Any) -> Mapping[str, Tensor]:
        parameters = {name: value.detach() for name, value in self._parameters.items()}

        def one(parameters: Mapping[str, Tensor], inputs: tuple[Any, ...], target: Any) -> Tensor:
            alone = _map(lambda part: part.unsqueeze(0), inputs)
            outputs = functional_call(self._model, dict(parameters), alone)
            return row_losses(loss, outputs, _map(lambda part: part.unsqueeze(0), target), 1)[0]

        try:
            found: Mapping[str, Tensor] = vmap(grad(one), in_dims=(None, 0, 0))(
                parameters, inputs, targets
            )
            return found
        except (RuntimeError, NotImplementedError):
            # Some operators (recurrent layers among them) have no batching rule.
            each = [
                grad(one)(parameters, take(inputs, row), take(targets, row))
                for row in range(_rows_of(inputs))
            ]
            return {name: torch.stack([part[name] for part in each]) for name in parameters}


def _squares(gradients: Mapping[str, Tensor]) -> Tensor:
    found = [v.flatten(1).square().sum(1, dtype=torch.float64) for v in gradients.values()]
    return torch.stack(found).sum(0)


def take(given: Any, rows: Any) -> Any:
    """Some rows of tensors, however nested."""
    return _map(lambda part: part[rows], given)


def _rows_of(given: Any) -> int:
    return int(given[0].shape[0]) if not isinstance(given[0], tuple | list) else _rows_of(given[0])


def _map(function: Callable[[Tensor], Tensor], given: Any) -> Any:
    if isinstance(given, tuple | list):
        return type(given)(_map(function, part) for part in given)
    return function(given)
