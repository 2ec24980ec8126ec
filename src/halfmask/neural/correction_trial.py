"""The correction on three rows of which one differs: what the audit plays."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from halfmask.accounting.relations import Relation
from halfmask.mechanisms.release import Releaser
from halfmask.neural.correction import correct_scores
from halfmask.neural.network import Mlp
from halfmask.neural.trainer import TrainerConfig


def correction_trial(
    trainer: TrainerConfig, relation: Relation
) -> tuple[Tensor, Tensor, Callable[[Tensor, Releaser], object]]:
    """Two neighbouring tables, and the correction of a network by either.

    The first row is on one side of its padded one; in the other table it is on the other side, or,
    withheld, at its padded one. Other rows equal theirs and add nothing.
    """
    network = Mlp((1, 2))
    with torch.no_grad():
        # Scores so small that both rows are as uncertain as the padded one.
        network.linear[0].weight.copy_(torch.tensor([[1e-4], [-1e-4]]))
        network.linear[0].bias.zero_()
    padded = torch.tensor([[0.0], [1.0], [-1.0]])
    labels = torch.zeros(3, dtype=torch.long)

    def fit(real: Tensor, releaser: Releaser) -> object:
        return correct_scores(network, real, lambda some: padded[some], labels, trainer, releaser)

    first, second = padded.clone(), padded.clone()
    first[0] = 1.0
    second[0] = -1.0 if relation == "replace" else 0.0
    return first, second, fit
