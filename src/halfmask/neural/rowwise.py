"""Refusing networks in which one row's loss depends on another row.

Clipping bounds what *one row* adds to a sum. Where a layer mixes rows there is no such thing as a
row's own gradient, and the guarantee would be empty. Known layers are refused by type; anything
else is tried out on made-up rows, so the answer cannot depend on the data.

Guarantee: docs/proofs/ghost.md (precondition: the loss of a row is a function of that row alone).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm, _LazyNormBase
from torch.nn.modules.instancenorm import _InstanceNorm

from halfmask.errors import InputError
from halfmask.neural.tap import Loss, row_losses

# Far above rounding, far below what averaging over two unlike rows does.
_SAME = 1e-3


def refuse_mixing_layers(model: nn.Module) -> None:
    """Raise InputError for a layer that is known to mix rows, by its name in the network."""
    for name, layer in model.named_modules():
        reason = _reason(layer)
        if reason is not None:
            shown = name or type(layer).__name__
            raise InputError(f"layer {shown!r} ({type(layer).__name__}) {reason}")


def _reason(layer: nn.Module) -> str | None:
    if isinstance(layer, _InstanceNorm):
        if layer.track_running_stats:
            return "keeps statistics over rows: set track_running_stats=False"
        return None
    if isinstance(layer, _BatchNorm | _LazyNormBase):
        return "averages over the rows of a batch: use GroupNorm or LayerNorm instead"
    if isinstance(layer, nn.Embedding | nn.EmbeddingBag):
        if layer.scale_grad_by_freq:
            return "scales a row's gradient by the other rows: set scale_grad_by_freq=False"
        if layer.max_norm is not None:
            return "rewrites its table during the forward pass: set max_norm=None"
    if isinstance(layer, nn.RNNBase | nn.MultiheadAttention) and not layer.batch_first:
        return "takes the second axis for the row: set batch_first=True"
    return None


def made_up(given: Any, generator: torch.Generator) -> Any:
    """Two rows of the same form as `given` that depend on its shape and type only."""
    if isinstance(given, tuple | list):
        return type(given)(made_up(part, generator) for part in given)
    if not isinstance(given, Tensor) or given.dim() == 0:
        return given
    shape = (2, *given.shape[1:])
    if given.is_floating_point():
        drawn = torch.randn(shape, generator=generator, dtype=torch.float64)
        return drawn.to(dtype=given.dtype, device=given.device)
    return torch.zeros(shape, dtype=given.dtype, device=given.device)


def check_rows_stay_apart(
    model: nn.Module, loss: Loss, inputs: tuple[Any, ...], targets: Any
) -> None:
    """Raise InputError if the first of two rows is treated differently when it comes alone."""
    together = _trace(model, loss, inputs, targets, rows=2)
    alone = _trace(model, loss, first_row(inputs), first_row(targets), rows=1)
    for (name, one), (_, two) in zip(alone, together, strict=False):
        if one.shape[:1] == (1,) and two.shape[:1] == (2,) and _differ(one[0], two[0]):
            raise InputError(
                f"layer {name!r} gives a row another output when other rows are in the batch: "
                "no row has a gradient of its own there, so it cannot be trained privately"
            )


def first_row(given: Any) -> Any:
    """The first row of tensors, however nested."""
    if isinstance(given, tuple | list):
        return type(given)(first_row(part) for part in given)
    return given[:1] if isinstance(given, Tensor) and given.dim() > 0 else given


def _differ(one: Tensor, two: Tensor) -> bool:
    scale = float(two.abs().max()) if two.numel() else 0.0
    return bool(((one - two).abs() > _SAME * max(scale, 1e-6)).any())


def _trace(
    model: nn.Module, loss: Loss, inputs: tuple[Any, ...], targets: Any, rows: int
) -> list[tuple[str, Tensor]]:
    seen: list[tuple[str, Tensor]] = []
    names = {layer: name for name, layer in model.named_modules() if not list(layer.children())}

    def hook(layer: nn.Module, args: Any, output: Any) -> None:
        if isinstance(output, Tensor) and output.is_floating_point():
            seen.append((names[layer] or type(layer).__name__, output.detach().clone()))

    handles = [layer.register_forward_hook(hook) for layer in names]
    try:
        with torch.no_grad(), without_dropout(model):
            losses = row_losses(loss, model(*inputs), targets, rows)
    finally:
        for handle in handles:
            handle.remove()
    return [*seen, (type(model).__name__, losses.detach())]


@contextmanager
def without_dropout(model: nn.Module) -> Iterator[None]:
    """Dropout is random, not a mixture of rows: switched off while the rows are compared."""
    layers = [
        layer
        for layer in model.modules()
        if isinstance(layer, nn.modules.dropout._DropoutNd) and layer.training
    ]
    for layer in layers:
        layer.eval()
    try:
        yield
    finally:
        for layer in layers:
            layer.train()
