"""Correcting a pretrained network with few private steps: Algorithm 1 on its scores alone.

A network that learnt from padded rows mixes up classes in ways that one small linear map of the
scores can undo, and a map of classes x classes numbers needs little noise. Its inputs are the
scores, whitened on padded rows; afterwards it is folded into the last layer, so that the result is
a network like any other. Guarantee: docs/proofs/network.md.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from halfmask.mechanisms.release import Releaser
from halfmask.mechanisms.sampling import Indices
from halfmask.neural.network import Mlp
from halfmask.neural.trainer import TrainerConfig, TrainingRows, train_privately

# Root mean square length of the whitened scores, against 1 for the constant of the bias.
_LENGTH = 3.0
# Added to every variance before whitening, relative to their mean.
_FLOOR = 0.05


@dataclass(frozen=True, kw_only=True, eq=False)
class Whitening:
    """z = (centred scores − mean) @ forward, and scores = z @ back + mean."""

    mean: Tensor
    forward: Tensor
    back: Tensor

    @classmethod
    def of(cls, scores: Tensor) -> Whitening:
        """From the scores of padded rows, in float64."""
        centred = scores - scores.mean(1, keepdim=True)
        mean = centred.mean(0)
        values, vectors = torch.linalg.eigh(torch.cov(centred.t()).reshape(len(mean), -1))
        values = values.clamp_min(0.0)
        forward = vectors * (values + _FLOOR * values.mean().clamp_min(1e-12)).rsqrt()
        length = ((centred - mean) @ forward).square().sum(1).mean().sqrt().clamp_min(1e-12)
        forward = forward * (_LENGTH / length)
        return cls(mean=mean, forward=forward, back=torch.linalg.pinv(forward))

    def apply(self, scores: Tensor) -> Tensor:
        """Whitened scores."""
        return (scores - scores.mean(1, keepdim=True) - self.mean) @ self.forward


def correct_scores(
    network: Mlp,
    real: Tensor,
    padded: Tensor,
    labels: Tensor,
    config: TrainerConfig,
    releaser: Releaser,
) -> Mlp:
    """`network` with its scores corrected by private steps on `real` rows.

    `padded` rows are fixed beforehand from public randomness, for the pairs and the public gradient
    alike: which rows a private batch holds cannot show in them. Guarantee: docs/proofs/network.md.
    """
    with torch.no_grad():
        padded_scores = network(padded).double()
        whitening = Whitening.of(padded_scores)
        inputs = whitening.apply(network(real).double()).float()
        padded_inputs = whitening.apply(padded_scores).float()
    classes = network.widths[-1]
    head = Mlp((classes, classes))
    with torch.no_grad():
        head.linear[0].weight.copy_(whitening.back.t())
        head.linear[0].bias.copy_(whitening.mean)

    def fill(rows: Indices, generator: object) -> Tensor:
        return padded_inputs[torch.from_numpy(rows)]

    rows = TrainingRows(real=inputs, labels=labels, fill=fill)
    train_privately(
        head, rows, config, releaser, what="noisy mean gradients of a map of the scores"
    )
    return folded(network, whitening, head)


def folded(network: Mlp, whitening: Whitening, head: Mlp) -> Mlp:
    """One network that computes head(whitened scores of `network`)."""
    classes = network.widths[-1]
    result = Mlp(network.widths)
    result.load_state_dict(network.state_dict())
    with torch.no_grad():
        last = network.linear[-1]
        centre = torch.eye(classes, dtype=torch.float64) - 1.0 / classes
        layer = head.linear[0]
        linear = layer.weight.double() @ whitening.forward.t()
        result.linear[-1].weight.copy_(linear @ centre @ last.weight.double())
        bias = linear @ (centre @ last.bias.double() - whitening.mean) + layer.bias.double()
        result.linear[-1].bias.copy_(bias)
    return result
