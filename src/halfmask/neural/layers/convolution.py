"""Convolutions are linear layers on patches: every output pixel is a position."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from torch import Tensor, nn
from torch.nn import functional

from halfmask.neural.factors import Dense, Gradient, Outer


def convolution_gradients(layer: nn.Module, given: Tensor, grad: Tensor) -> Mapping[str, Gradient]:
    """`given` is (rows, channels, length) or (rows, channels, height, width)."""
    layer = cast("nn.Conv1d | nn.Conv2d", layer)
    rows, groups = grad.shape[0], layer.groups
    left = grad.reshape(rows, groups, grad.shape[1] // groups, -1).transpose(2, 3)
    patches = _patches(layer, given)
    right = patches.reshape(rows, groups, patches.shape[1] // groups, -1).transpose(2, 3)
    return {"weight": Outer(left=left, right=right), "bias": Dense(value=grad.flatten(2).sum(2))}


def _patches(layer: nn.Conv1d | nn.Conv2d, given: Tensor) -> Tensor:
    """(rows, channels · kernel, positions), in the order of the kernel's own memory."""
    padded = _padded(layer, given)
    kernel, stride, dilation = layer.kernel_size, layer.stride, layer.dilation
    if padded.dim() == 3:
        padded = padded.unsqueeze(2)
        kernel, stride, dilation = (1, *kernel), (1, *stride), (1, *dilation)
    return functional.unfold(padded, kernel, dilation=dilation, stride=stride)


def _padded(layer: nn.Conv1d | nn.Conv2d, given: Tensor) -> Tensor:
    """What the kernel slides over, for every padding mode and for padding="same"."""
    if layer.padding == "valid":
        return given
    amounts: list[int] = []
    for axis in reversed(range(len(layer.kernel_size))):
        if layer.padding == "same":
            total = layer.dilation[axis] * (layer.kernel_size[axis] - 1)
            amounts += [total // 2, total - total // 2]
        else:
            amounts += [int(layer.padding[axis])] * 2
    if not any(amounts):
        return given
    mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
    return functional.pad(given, amounts, mode=mode)
