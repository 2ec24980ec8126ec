"""Listening to a network: what went into each layer and what gradient came back, for every row.

Parameters are frozen while listening, so that autograd spends nothing on the batch's own weight
gradients: the only products of the backward pass are those that carry the gradient further down.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from halfmask.errors import InputError

Loss = Callable[[Any, Any], Tensor]


@dataclass(frozen=True, kw_only=True)
class Use:
    """One application of one layer to the whole batch."""

    layer: nn.Module
    given: Tensor
    grad: Tensor


class _Tap(torch.autograd.Function):  # type: ignore[misc]
    """The identity, which hands the gradient that passes through it to `hear`.

    The output is the very same tensor (no copy), and the anchor makes it require a gradient even
    where nothing before it does. Autograd sees later changes in place as usual.
    """

    @staticmethod
    def forward(ctx: Any, output: Tensor, anchor: Tensor, hear: Callable[[Tensor], None]) -> Tensor:
        ctx.mark_dirty(output)
        ctx.hear = hear
        return output

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        ctx.hear(grads[0])
        return grads[0], None, None


def listen(
    model: nn.Module,
    names: dict[nn.Module, str],
    parameters: Sequence[nn.Parameter],
    loss: Loss,
    inputs: tuple[Any, ...],
    targets: Any,
    rows: int,
) -> list[Use]:
    """Every use of the layers in `names` in one forward and one backward pass of Σ_rows loss."""
    uses: list[Use] = []
    anchor = torch.zeros((), device=parameters[0].device, requires_grad=True)

    def hook(layer: nn.Module, args: Any, kwargs: Any, output: Any) -> Any:
        given = args[0] if args else next(iter(kwargs.values()))
        if output.shape[:1] != (rows,):
            raise InputError(
                f"layer {names[layer]!r} returned {tuple(output.shape)} for a batch of {rows} "
                "rows: the first axis must be the row, or the rows cannot be told apart"
            )
        version = given._version

        def hear(grad: Tensor) -> None:
            if given._version != version:
                raise InputError(
                    f"the input of layer {names[layer]!r} is changed in place after the layer was "
                    "applied: assign the result to a new tensor instead"
                )
            uses.append(Use(layer=layer, given=given.detach(), grad=grad))

        return _Tap.apply(output, anchor, hear)

    with frozen(parameters), _hooks(names, hook), torch.enable_grad():
        losses = row_losses(loss, model(*inputs), targets, rows)
        if losses.requires_grad:
            torch.autograd.grad(losses.sum(), anchor, allow_unused=True)
    return uses


def row_losses(loss: Loss, outputs: Any, targets: Any, rows: int) -> Tensor:
    """The loss of every row, refused where it has already been averaged or summed."""
    losses = loss(outputs, targets)
    if losses.shape != (rows,):
        raise InputError(
            f"the loss must return one value per row, of shape ({rows},); "
            f"got {tuple(losses.shape)} (pass reduction='none')"
        )
    return losses


@contextmanager
def frozen(parameters: Sequence[nn.Parameter]) -> Iterator[None]:
    """No parameter asks for a gradient inside; each gets its own answer back afterwards."""
    before = [parameter.requires_grad for parameter in parameters]
    for parameter in parameters:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter, asked in zip(parameters, before, strict=True):
            parameter.requires_grad_(asked)


@contextmanager
def _hooks(layers: dict[nn.Module, str], hook: Callable[..., Any]) -> Iterator[None]:
    handles = [layer.register_forward_hook(hook, with_kwargs=True) for layer in layers]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
