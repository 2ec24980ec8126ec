"""Correcting a pretrained network with few private steps: Algorithm 1 on its scores alone.

A network that learnt from padded rows mixes up classes in ways that one small linear map of the
scores can undo, and a map of classes x classes numbers needs little noise. Its inputs are the
scores, scaled on padded rows; afterwards it is folded into the last layer, so that the result is
a network like any other. Guarantee: docs/proofs/network.md.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from halfmask.mechanisms.private_step import PrivateStep
from halfmask.mechanisms.release import Releaser
from halfmask.mechanisms.sampling import Indices
from halfmask.mechanisms.shards import ALONE, Shards
from halfmask.neural.network import Mlp
from halfmask.neural.rows import blocks
from halfmask.neural.trainer import TrainerConfig, TrainingRows, plan_steps, train_privately
from halfmask.public_loss import Watch

# Root mean square length of the scaled scores, against 1 for the constant of the bias.
_LENGTH = 3.0
# Rows that go through the network at a time.
_BLOCK = 1 << 12


@dataclass(frozen=True, kw_only=True, eq=False)
class Scaling:
    """z = (centred scores − mean) · factor: one factor for all, so that weak directions stay weak.

    Whitening would give every direction of the scores the same room, and the noise with it.
    """

    mean: Tensor
    factor: float

    @classmethod
    def of(cls, scores: Tensor, shards: Shards = ALONE) -> Scaling:
        """From the scores of padded rows of all machines, in float64."""
        centred = scores - scores.mean(1, keepdim=True)
        count = float(shards.sum(np.array([float(len(scores))]))[0])
        mean = torch.from_numpy(shards.sum(centred.sum(0).numpy()) / count)
        squares = shards.sum((centred - mean).square().sum().reshape(1).numpy())
        length = float(np.sqrt(squares[0] / count))
        return cls(mean=mean, factor=_LENGTH / max(length, 1e-12))

    def apply(self, scores: Tensor) -> Tensor:
        """Scaled scores."""
        return (scores - scores.mean(1, keepdim=True) - self.mean) * self.factor


def plan_correction(config: TrainerConfig, rows: int, releaser: Releaser) -> PrivateStep:
    """Open the private steps of a correction."""
    return plan_steps(config, rows, releaser, what="noisy mean gradients of a map of the scores")


def correct_scores(
    network: Mlp,
    real: Tensor,
    padded: Callable[[slice], Tensor],
    labels: Tensor,
    config: TrainerConfig,
    releaser: Releaser,
    *,
    step: PrivateStep | None = None,
    watch: Watch | None = None,
) -> tuple[Mlp, TrainerConfig]:
    """`network` with its scores corrected by private steps on `real` rows, and how it was done.

    Steps are no longer than padded rows bear: where scores hardly vary but in one direction, a rate
    that suits other tables would overshoot. `step` are the private steps, if they are open already.

    `padded` gives the padded rows of a block and is asked for each block once, in order. They are
    fixed beforehand from public randomness, for the pairs and the public gradient
    alike: which rows a private batch holds cannot show in them. Guarantee: docs/proofs/network.md.
    """
    places = list(blocks(len(real), _BLOCK))
    with torch.no_grad():
        padded_scores = torch.cat([network(padded(some)).double() for some in places])
        scaling = Scaling.of(padded_scores, releaser.shards)
        scores = torch.cat([network(real[some]).double() for some in places])
        inputs = scaling.apply(scores).float()
        padded_inputs = scaling.apply(padded_scores).float()
    classes = network.widths[-1]
    head = Mlp((classes, classes))
    with torch.no_grad():
        head.linear[0].weight.copy_(torch.eye(classes) / scaling.factor)
        head.linear[0].bias.copy_(scaling.mean)

    steepest = _steepest(padded_inputs, head, releaser.shards)
    config = replace(config, learning_rate=min(config.learning_rate, 1.0 / steepest))

    def fill(rows: Indices, generator: object) -> Tensor:
        return padded_inputs[torch.from_numpy(rows)]

    rows = TrainingRows(real=inputs, labels=labels, fill=fill)
    step = step or plan_correction(config, len(labels), releaser)
    train_privately(head, rows, config, releaser, step=step, watch=watch)
    return folded(network, scaling, head), config


def _steepest(inputs: Tensor, head: Mlp, shards: Shards) -> float:
    """A bound on the curvature of the mean loss at `head` over padded rows of all machines.

    A row with chances p adds (diag(p) − ppᵀ) ⊗ zzᵀ, and diag(p) − ppᵀ is at most 2·p·(1 − p) of the
    class where that is largest (Gershgorin); for two classes it is just that.
    """
    rows = torch.cat([inputs, torch.ones(len(inputs), 1)], dim=1).double()
    with torch.no_grad():
        chances = torch.softmax(head.linear[0](inputs), dim=1).double()
    curved = (2.0 * chances * (1.0 - chances)).amax(1, keepdim=True)
    count = float(shards.sum(np.array([float(len(inputs))]))[0])
    total = shards.sum(((rows * curved).T @ rows).numpy()) / count
    return max(float(np.linalg.eigvalsh(total)[-1]), 1e-12)


def folded(network: Mlp, scaling: Scaling, head: Mlp) -> Mlp:
    """One network that computes head(scaled scores of `network`)."""
    classes = network.widths[-1]
    result = Mlp(network.widths)
    result.load_state_dict(network.state_dict())
    with torch.no_grad():
        last = network.linear[-1]
        centre = torch.eye(classes, dtype=torch.float64) - 1.0 / classes
        layer = head.linear[0]
        linear = layer.weight.double() * scaling.factor
        result.linear[-1].weight.copy_(linear @ centre @ last.weight.double())
        bias = linear @ (centre @ last.bias.double() - scaling.mean) + layer.bias.double()
        result.linear[-1].bias.copy_(bias)
    return result
