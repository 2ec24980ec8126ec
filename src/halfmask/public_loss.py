"""A learning curve that costs nothing: the loss of public values at iterates that were released.

What a method notes here must be a function of public columns, a public label, released values and
public randomness. It is then post-processing, and may be stored with the model.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

Watch = Callable[[int, float], None]
"""Told the number of a step, from 1, and the public loss before it."""

MOST_POINTS = 100


class PublicLoss:
    """Up to MOST_POINTS pairs of step and loss; `of` says in words whose loss it is."""

    def __init__(self, of: str, *, steps: int) -> None:
        self._of = of
        self._every = max(1, math.ceil(steps / MOST_POINTS))
        self._sums: dict[int, tuple[float, int]] = {}

    def wanted(self, step: int) -> bool:
        """Whether a step is kept: then its loss is worth computing."""
        return (step - 1) % self._every == 0

    def note(self, step: int, loss: float) -> None:
        """The loss at a step; of several at one step (networks trained in turn), the mean."""
        if self.wanted(step) and math.isfinite(loss):
            total, count = self._sums.get(step, (0.0, 0))
            self._sums[step] = (total + loss, count + 1)

    def details(self) -> dict[str, Any]:
        """The curve as public facts of a fit; nothing where nothing was noted."""
        if not self._sums:
            return {}
        points = [[step, total / count] for step, (total, count) in sorted(self._sums.items())]
        return {"public_loss": points, "public_loss_of": self._of}
