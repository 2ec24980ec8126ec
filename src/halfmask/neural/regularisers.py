"""Public regularisers ℓ_reg(f(D), θ) of Algorithm 1: unsupervised losses of the hidden features.

They see the network and padded rows, whose private columns hold no private value, and no label: so
they cost nothing (Proposition 2.2 of the paper). Which helps is a matter of the data: see
docs/methods.md for what they did on MNIST.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from halfmask.errors import InputError
from halfmask.neural.network import Mlp
from halfmask.neural.trainer import Regulariser


def hidden_features(network: Mlp, rows: Tensor) -> Tensor:
    """What the first layer makes of the rows."""
    return torch.relu(network.linear[0](rows))


def reconstruct(network: Mlp, rows: Tensor) -> Tensor:
    """How badly the first layer's own weights bring the rows back from their hidden features."""
    back = hidden_features(network, rows) @ network.linear[0].weight
    return (back - rows).square().sum(1).mean()


def decorrelate(network: Mlp, rows: Tensor) -> Tensor:
    """The mean squared correlation of two hidden features over the rows."""
    hidden = hidden_features(network, rows)
    centred = hidden - hidden.mean(0)
    scaled = centred / (centred.square().mean(0).sqrt() + 1e-3)
    products = scaled.T @ scaled / len(rows)
    width = products.shape[0]
    return (products.square().sum() - products.diagonal().square().sum()) / (width * (width - 1))


_NAMED = {"reconstruct": reconstruct, "decorrelate": decorrelate}


def regulariser_of(asked: Any) -> Regulariser | None:
    """The regulariser of a configuration: a name or a function."""
    if asked == "none":
        return None
    if callable(asked):
        made: Regulariser = asked
        return made
    if asked not in _NAMED:
        raise InputError(f"Unknown regulariser {asked!r}: expected none, {', '.join(_NAMED)}.")
    return _NAMED[asked]
