"""What each kind of layer contributes to a row's gradient.

A rule maps (layer, input, gradient of the output) to the parts of `neural.factors`, by the name of
the layer's own parameter. `rule_for` finds it by exact type: a subclass may compute anything.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch import Tensor, nn

from halfmask.neural.factors import Gradient
from halfmask.neural.layers.convolution import convolution_gradients
from halfmask.neural.layers.embedding import embedding_gradients
from halfmask.neural.layers.linear import linear_gradients
from halfmask.neural.layers.norm import group_norm_gradients, layer_norm_gradients

Rule = Callable[[nn.Module, Tensor, Tensor], Mapping[str, Gradient]]

_RULES: dict[type[nn.Module], Rule] = {
    nn.Linear: linear_gradients,
    nn.Conv1d: convolution_gradients,
    nn.Conv2d: convolution_gradients,
    nn.Embedding: embedding_gradients,
    nn.LayerNorm: layer_norm_gradients,
    nn.GroupNorm: group_norm_gradients,
}


def rule_for(layer: nn.Module) -> Rule | None:
    """The rule of this layer, or None where its rows must be differentiated one by one."""
    return _RULES.get(type(layer))


__all__ = ["Rule", "rule_for"]
