"""The learning curve of a linear method where the label is public: public columns only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halfmask.losses import Loss
from halfmask.public_loss import PublicLoss
from halfmask.table import Table

Floats = NDArray[np.float64]

_ROWS = 512
_OF = (
    "mean loss of {rows} rows with their private columns at zero, before each step: public columns "
    "and the public label only"
)


@dataclass(frozen=True, kw_only=True, eq=False)
class PublicCurve:
    """Some rows of public features and their public targets; every k-th row, whatever it holds."""

    features: Floats
    targets: Floats
    loss: Loss
    curve: PublicLoss

    @classmethod
    def of(cls, table: Table, targets: Floats, loss: Loss, *, steps: int) -> PublicCurve:
        """`targets` must be public."""
        every = max(1, -(-table.n // _ROWS))
        some = table.features.kept(np.arange(0, table.n, every)).public
        curve = PublicLoss(_OF.format(rows=len(some)), steps=steps)
        return cls(features=some, targets=targets[::every], loss=loss, curve=curve)

    def note(self, step: int, coef: Floats, intercept: Floats) -> None:
        """The loss at weights of the public features (outputs x features) and intercepts."""
        if self.curve.wanted(step):
            scores = self.features @ coef.T + intercept
            self.curve.note(step, float(np.mean(self.loss.value(scores, self.targets))))

    def details(self) -> dict[str, Any]:
        """The curve as public facts of a fit."""
        return self.curve.details()
