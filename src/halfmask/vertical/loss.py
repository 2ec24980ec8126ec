"""Losses of one score per row, and their proximal step over all rows at once.

The central node of ADMM sharing solves, for every row on its own,
    z_i = argmin l(z_i) + c/2 (z_i - q_i)²,
which is strictly convex in one number. Here it is a closed form where there is one, and otherwise a
Newton iteration on whole arrays, kept inside a bracket that is known beforehand.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol, cast, get_args

import numpy as np
import numpy.typing as npt
from scipy.special import expit

from halfmask.errors import InputError

Vector = npt.NDArray[np.float64]
LossName = Literal["logistic", "squared", "hinge", "smoothed-hinge"]
LOSSES: tuple[LossName, ...] = get_args(LossName)

_NEWTON_STEPS = 100
_TOLERANCE = 1e-13


class Loss(Protocol):
    """A convex loss of one score per row; the targets are -1 and +1, or numbers for `squared`."""

    @property
    def linear_in_target(self) -> bool:
        """Whether an unbiased estimate of the target gives an unbiased loss, to hide labels."""
        ...

    def value(self, scores: Vector, targets: Vector) -> Vector:
        """The loss of every row."""
        ...

    def slope(self, scores: Vector, targets: Vector) -> Vector:
        """A (sub)derivative by the score of every row."""
        ...

    def prox(self, points: Vector, targets: Vector, c: float, start: Vector) -> Vector:
        """argmin over z of value(z) + c/2 (z - points)², row by row."""
        ...


@dataclass(frozen=True)
class Logistic:
    """log(1 + e^z) - z (1 + target)/2: log loss for targets -1 and +1, linear in any other."""

    linear_in_target: bool = True

    def value(self, scores: Vector, targets: Vector) -> Vector:
        softplus = np.maximum(scores, 0) + np.log1p(np.exp(-np.abs(scores)))
        return cast(Vector, softplus - scores * (1 + targets) / 2)

    def slope(self, scores: Vector, targets: Vector) -> Vector:
        return cast(Vector, expit(scores) - (1 + targets) / 2)

    def prox(self, points: Vector, targets: Vector, c: float, start: Vector) -> Vector:
        # The derivative expit(z) + c z - (level) is increasing and expit lies in (0, 1), so the
        # root lies in [low, low + 1/c]; Newton steps that leave the shrinking bracket are replaced
        # by bisection.
        level = c * points + (1 + targets) / 2
        low = (level - 1) / c
        high = level / c
        z = np.clip(start, low, high)
        scale = _TOLERANCE * (1 + np.abs(level))
        last = high - low
        for _ in range(_NEWTON_STEPS):
            p = expit(z)
            residual = p + c * z - level
            settled = np.abs(residual) <= scale
            if settled.all():
                break
            above = residual > 0
            np.copyto(high, z, where=above)
            np.copyto(low, z, where=~above)
            step = -residual / (c + p * (1 - p))
            # Bisect where Newton leaves the bracket, and where its steps do not shrink: far from
            # the root it can jump from one end to the other for ever.
            poor = (z + step <= low) | (z + step >= high) | (np.abs(step) > 0.5 * last)
            if poor.any():
                step = np.where(poor, 0.5 * (low + high) - z, step)
            # Rows that have settled stay: at rounding level steps no longer shrink, and a bisection
            # would throw them back.
            step[settled] = 0.0
            z = z + step
            last = np.abs(step)
        return z


@dataclass(frozen=True)
class Squared:
    """(z - target)²/2."""

    linear_in_target: bool = True

    def value(self, scores: Vector, targets: Vector) -> Vector:
        return 0.5 * (scores - targets) ** 2

    def slope(self, scores: Vector, targets: Vector) -> Vector:
        return scores - targets

    def prox(self, points: Vector, targets: Vector, c: float, start: Vector) -> Vector:
        return (targets + c * points) / (1 + c)


@dataclass(frozen=True)
class Hinge:
    """max(0, 1 - target·z)."""

    linear_in_target: bool = False

    def value(self, scores: Vector, targets: Vector) -> Vector:
        return np.maximum(0.0, 1 - targets * scores)

    def slope(self, scores: Vector, targets: Vector) -> Vector:
        return np.where(targets * scores < 1, -targets, 0.0)

    def prox(self, points: Vector, targets: Vector, c: float, start: Vector) -> Vector:
        margin = targets * points
        # Either the hinge is active all the way (a shift by 1/c), or not at all, or z stops at the
        # kink.
        return targets * np.maximum(margin, np.minimum(margin + 1 / c, 1.0))


@dataclass(frozen=True)
class SmoothedHinge:
    """The hinge with its kink replaced by a parabola of width `width` below 1."""

    width: float = 0.5
    linear_in_target: bool = False

    def value(self, scores: Vector, targets: Vector) -> Vector:
        gap = np.maximum(0.0, 1 - targets * scores)
        return np.where(gap < self.width, gap**2 / (2 * self.width), gap - self.width / 2)

    def slope(self, scores: Vector, targets: Vector) -> Vector:
        gap = np.clip(1 - targets * scores, 0.0, self.width)
        return -targets * gap / self.width

    def prox(self, points: Vector, targets: Vector, c: float, start: Vector) -> Vector:
        margin = targets * points
        inside = (c * margin + 1 / self.width) / (c + 1 / self.width)
        moved = np.where(margin + 1 / c <= 1 - self.width, margin + 1 / c, inside)
        return targets * np.where(margin >= 1, margin, moved)


def loss_named(name: str) -> Loss:
    """The loss of that name, or an error that lists them."""
    known: dict[str, Loss] = {
        "logistic": Logistic(),
        "squared": Squared(),
        "hinge": Hinge(),
        "smoothed-hinge": SmoothedHinge(),
    }
    if name not in known:
        raise InputError(f"Unknown loss {name!r}: expected one of {', '.join(LOSSES)}.")
    return known[name]
