"""What a private label adds to a step of a network whose inputs are all public.

With public inputs x the private part of the gradient under label y is Jᵀ(1/K − e_y), J being the
Jacobian of the scores. Every row is scaled by one weight for all labels, found from J alone, so
that any two labels pass the test of the label pair: less noise than for rows that are clipped by
their own norm. Guarantee: docs/proofs/label_pair.md, "Networks with public inputs".
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from halfmask.errors import InputError
from halfmask.mechanisms.sampling import Indices
from halfmask.neural.network import Mlp

Floats = NDArray[np.float64]

# The clip norm is lowered by this part, far more than double precision rounds.
_MARGIN = 1e-4
_CHUNK = 2048


class LabelContributions:
    """Scaled contributions of labels (negative: none, which adds zero) at the network's weights.

    Everything is computed in double precision. Guarantee: docs/proofs/label_pair.md.
    """

    def __init__(self, network: Mlp, rows: Tensor, labels: Tensor) -> None:
        if len(network.linear) != 2:
            raise InputError("Label contributions are for networks with one hidden layer.")
        self._network = network
        self._rows = rows
        self._labels = labels

    def clipped_sum(self, rows: Indices, clip_norm: float) -> Floats:
        """Σ of the scaled contributions of `rows`, in the order of `network.parameters()`."""
        total = np.zeros(sum(p.numel() for p in self._network.parameters()))
        with torch.no_grad():
            for low in range(0, len(rows), _CHUNK):
                chosen = torch.from_numpy(rows[low : low + _CHUNK])
                total += self._chunk(chosen, clip_norm).numpy()
        return total

    def _chunk(self, chosen: Tensor, clip_norm: float) -> Tensor:
        first, last = self._network.linear
        inside = first.weight.detach().cpu().double(), first.bias.detach().cpu().double()
        outside = last.weight.detach().cpu().double()
        given = self._rows[chosen].cpu().double()
        hidden = torch.relu(given @ inside[0].T + inside[1])
        weights = label_free_weights(given, hidden, outside, clip_norm)
        labels = self._labels[chosen].cpu()
        weights = torch.where(labels >= 0, weights, torch.zeros_like(weights))
        classes = outside.shape[0]
        slopes = torch.full((len(chosen), classes), 1.0 / classes, dtype=torch.float64)
        slopes[torch.arange(len(chosen)), labels.clamp_min(0)] -= 1.0
        slopes *= weights[:, None]
        below = (slopes @ outside) * (hidden > 0)
        parts = (below.T @ given, below.sum(0), slopes.T @ hidden, slopes.sum(0))
        return torch.cat([part.reshape(-1) for part in parts])


def row_weights(network: Mlp, rows: Tensor, clip_norm: float) -> Tensor:
    """The weights of rows at the network's weights, in double precision."""
    first, last = network.linear
    with torch.no_grad():
        given = rows.cpu().double()
        inside = first.weight.cpu().double(), first.bias.cpu().double()
        hidden = torch.relu(given @ inside[0].T + inside[1])
        return label_free_weights(given, hidden, last.weight.cpu().double(), clip_norm)


def label_free_weights(given: Tensor, hidden: Tensor, outside: Tensor, clip_norm: float) -> Tensor:
    """s = min(1, C/√m) of every row, from inputs, hidden features and weights: no label enters.

    Where m is not finite the row counts as zero.
    """
    classes = outside.shape[0]
    active = (hidden > 0).to(outside)
    gram = torch.einsum("kh,nh,lh->nkl", outside, active, outside)
    gram *= (1.0 + given.square().sum(1))[:, None, None]
    gram += (1.0 + hidden.square().sum(1))[:, None, None] * torch.eye(classes, dtype=gram.dtype)
    centred = gram - gram.mean(1, keepdim=True)
    centred = centred - centred.mean(2, keepdim=True)
    own = centred.diagonal(dim1=1, dim2=2)
    apart = own[:, :, None] - centred
    most = torch.maximum(own.amax(1), apart.amax((1, 2)))
    bound = clip_norm * (1.0 - _MARGIN)
    weights = torch.clamp(bound / most.clamp_min(1e-300).sqrt(), max=1.0)
    return torch.where(torch.isfinite(most), weights, torch.zeros_like(weights))
