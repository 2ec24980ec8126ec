"""Labels for parties that may not see them: randomised once, debiased by the known rate.

Everything computed from the randomised labels afterwards, the broadcast dual of ADMM included, is
post-processing. Guarantee: docs/proofs/randomized_response.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from halfmask.errors import InputError
from halfmask.mechanisms.release import Releaser
from halfmask.vertical.block import Vector


@dataclass(frozen=True, kw_only=True)
class HiddenLabels:
    """Unbiased estimates of 0/1 labels: every value is -excess or 1 + excess."""

    targets: Vector
    excess: float
    epsilon: float

    @property
    def signed(self) -> Vector:
        """The same estimates for labels -1 and +1."""
        return 2 * self.targets - 1


def check_hidable(label_bounds: tuple[float, float] | None) -> None:
    """Randomised response is for classes."""
    if label_bounds is not None:
        raise InputError(
            "Labels are hidden by randomised response, which is for two classes: a number cannot "
            "be hidden. Learn whether it lies above a limit, or do without hidden labels."
        )


def check_expert_label(label_bounds: tuple[float, float] | None) -> None:
    """Experts are models of a chance."""
    if label_bounds is not None:
        raise InputError(
            "experts predict one of two classes, and the label is a number: use admm (or in a "
            "simulation fdml-sgd) with loss=squared."
        )


def hide_labels(labels: Vector, *, epsilon: float, releaser: Releaser) -> HiddenLabels:
    """Flip every 0/1 label with probability 1/(1 + e^ε); charged to the label holder's ledger.

    E[estimate] is the label: with flip probability q the estimate is (flipped - q)/(1 - 2q).
    """
    if not (math.isfinite(epsilon) and epsilon > 0):
        raise InputError(f"Expected a label epsilon > 0, got {epsilon}.")
    values = np.asarray(labels, dtype=np.float64)
    if not np.isin(values, (0.0, 1.0)).all():
        raise InputError("Expected labels of two classes as 0 and 1.")
    flipped = releaser.randomised_response(
        values, epsilon=epsilon, what="labels by randomised response"
    )
    flip = 1 / (1 + math.exp(epsilon))
    return HiddenLabels(
        targets=(flipped - flip) / (1 - 2 * flip), excess=flip / (1 - 2 * flip), epsilon=epsilon
    )
