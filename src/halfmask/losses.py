"""Losses of linear scores: value, slope, constants, and the split into a public and a private part.

A model gives each row `outputs` scores z = θx. A loss ℓ(z, target) has a slope s = ∂ℓ/∂z, and the
gradient of the row is s ⊗ x, of norm ‖s‖·‖x‖. Some losses are linear in the target, up to a term
without θ: there s = free(z) + fixed(target), and a private label enters only the fixed part.
Guarantee: docs/proofs/losses.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol, get_args

import numpy as np
from scipy.special import expit, logsumexp, softmax

from halfmask.errors import InputError
from halfmask.table import Table
from halfmask.types import Floats

LossName = Literal["logistic", "softmax", "squared", "huber", "smoothed-hinge"]
LOSSES: tuple[LossName, ...] = get_args(LossName)


_ONE_PIECE = "This loss is not linear in its target: its slope cannot be split."


class Loss(Protocol):
    """A convex loss of a row's scores; arrays are rows x outputs.

    lipschitz: the largest norm of a slope; infinite for the squared loss.
    smoothness: how fast the slope moves: ‖s(z) − s(z')‖ ≤ smoothness·‖z − z'‖.
    clip: the bound on slopes that private methods use unless told otherwise.
    one_sided: two slopes at one target never point apart (⟨s, s'⟩ ≥ 0), clipped or not.
    linear_in_target: whether `free_slope` and `fixed_slope` exist and add up to the slope.
    """

    @property
    def outputs(self) -> int: ...
    @property
    def lipschitz(self) -> float: ...
    @property
    def smoothness(self) -> float: ...
    @property
    def clip(self) -> float: ...
    @property
    def one_sided(self) -> bool: ...
    @property
    def linear_in_target(self) -> bool: ...

    def value(self, scores: Floats, targets: Floats) -> Floats:
        """The loss of every row."""

    def slope(self, scores: Floats, targets: Floats) -> Floats:
        """The derivative by the scores of every row."""

    def free_slope(self, scores: Floats) -> Floats:
        """The part of the slope that no target enters."""
        raise InputError(_ONE_PIECE)

    def fixed_slope(self, targets: Floats) -> Floats:
        """The part of the slope that no score enters."""
        raise InputError(_ONE_PIECE)

    def slope_bound(self, reach: float) -> float:
        """The largest norm of a slope among scores of norm at most `reach`."""

    def fixed_bounds(self) -> tuple[float, float]:
        """The largest distance between two fixed slopes, and the largest norm of one."""
        raise InputError(_ONE_PIECE)


@dataclass(frozen=True)
class Logistic:
    """log(1 + e^z) − t·z for a target t in {0, 1}; z is the log odds of class 1."""

    outputs: ClassVar[int] = 1
    lipschitz: ClassVar[float] = 1.0
    smoothness: ClassVar[float] = 0.25
    # At z = 0 no slope is longer, so nothing is clipped until a row is misclassified.
    clip: ClassVar[float] = 0.5
    one_sided: ClassVar[bool] = True
    linear_in_target: ClassVar[bool] = True

    def value(self, scores: Floats, targets: Floats) -> Floats:
        rows: Floats = np.logaddexp(0.0, scores) - targets * scores
        return rows[:, 0]

    def slope(self, scores: Floats, targets: Floats) -> Floats:
        slopes: Floats = expit(scores) - targets
        return slopes

    def free_slope(self, scores: Floats) -> Floats:
        slopes: Floats = expit(scores) - 0.5
        return slopes

    def fixed_slope(self, targets: Floats) -> Floats:
        return 0.5 - targets

    def slope_bound(self, reach: float) -> float:
        return float(expit(reach))

    def fixed_bounds(self) -> tuple[float, float]:
        return 1.0, 0.5


@dataclass(frozen=True)
class Softmax:
    """logsumexp(z) − ⟨t, z⟩ for a one-hot target t over `outputs` classes."""

    outputs: int
    lipschitz: ClassVar[float] = math.sqrt(2)
    smoothness: ClassVar[float] = 0.5
    # Two classes with two weight vectors then clip exactly where the logistic loss does.
    clip: ClassVar[float] = math.sqrt(0.5)
    one_sided: ClassVar[bool] = True
    linear_in_target: ClassVar[bool] = True

    def value(self, scores: Floats, targets: Floats) -> Floats:
        rows: Floats = logsumexp(scores, axis=1) - np.einsum("ij,ij->i", targets, scores)
        return rows

    def slope(self, scores: Floats, targets: Floats) -> Floats:
        slopes: Floats = softmax(scores, axis=1) - targets
        return slopes

    def free_slope(self, scores: Floats) -> Floats:
        slopes: Floats = softmax(scores, axis=1) - 1 / self.outputs
        return slopes

    def fixed_slope(self, targets: Floats) -> Floats:
        return 1 / self.outputs - targets

    def slope_bound(self, reach: float) -> float:
        return self.lipschitz

    def fixed_bounds(self) -> tuple[float, float]:
        return math.sqrt(2), math.sqrt(1 - 1 / self.outputs)


@dataclass(frozen=True)
class Squared:
    """½(z − t)² for a target t in [−1, 1]."""

    outputs: ClassVar[int] = 1
    lipschitz: ClassVar[float] = math.inf
    smoothness: ClassVar[float] = 1.0
    # A quarter of the label's range: longer residuals are rare and would set all the noise.
    clip: ClassVar[float] = 0.5
    one_sided: ClassVar[bool] = False
    linear_in_target: ClassVar[bool] = True

    def value(self, scores: Floats, targets: Floats) -> Floats:
        rows: Floats = 0.5 * (scores - targets) ** 2
        return rows[:, 0]

    def slope(self, scores: Floats, targets: Floats) -> Floats:
        return scores - targets

    def free_slope(self, scores: Floats) -> Floats:
        return scores

    def fixed_slope(self, targets: Floats) -> Floats:
        return -targets

    def slope_bound(self, reach: float) -> float:
        return reach + 1.0

    def fixed_bounds(self) -> tuple[float, float]:
        return 2.0, 1.0


@dataclass(frozen=True)
class Huber(Loss):
    """Squared up to a residual of `width`, linear beyond, for a target in [−1, 1]."""

    width: float = 0.5
    outputs: ClassVar[int] = 1
    linear_in_target: ClassVar[bool] = False
    smoothness: ClassVar[float] = 1.0
    one_sided: ClassVar[bool] = False

    @property
    def lipschitz(self) -> float:
        """The slope is the residual clipped to the width."""
        return self.width

    @property
    def clip(self) -> float:
        """Nothing is left to clip."""
        return self.width

    def value(self, scores: Floats, targets: Floats) -> Floats:
        far = np.abs(scores - targets)[:, 0]
        return np.where(far <= self.width, 0.5 * far**2, self.width * (far - 0.5 * self.width))

    def slope(self, scores: Floats, targets: Floats) -> Floats:
        return np.clip(scores - targets, -self.width, self.width)

    def slope_bound(self, reach: float) -> float:
        return min(self.width, reach + 1.0)


@dataclass(frozen=True)
class SmoothedHinge(Loss):
    """max(0, 1 − m) of the margin m = ±z, its corner rounded over `width`; targets in {0, 1}."""

    width: float = 1.0
    outputs: ClassVar[int] = 1
    linear_in_target: ClassVar[bool] = False
    lipschitz: ClassVar[float] = 1.0
    clip: ClassVar[float] = 1.0
    one_sided: ClassVar[bool] = True

    @property
    def smoothness(self) -> float:
        """The slope falls from 1 to 0 over the width."""
        return 1 / self.width

    def value(self, scores: Floats, targets: Floats) -> Floats:
        gap = (1 - (2 * targets - 1) * scores)[:, 0]
        curved = 0.5 * np.clip(gap, 0, self.width) ** 2 / self.width
        return curved + np.maximum(gap - self.width, 0)

    def slope(self, scores: Floats, targets: Floats) -> Floats:
        signs = 2 * targets - 1
        return -signs * np.clip((1 - signs * scores) / self.width, 0, 1)

    def slope_bound(self, reach: float) -> float:
        return min(1.0, (1 + reach) / self.width)


def loss_named(name: str, *, classes: int) -> Loss:
    """The loss called `name` for a label of `classes` classes, 0 meaning a number."""
    if name not in LOSSES:
        raise InputError(f"Unknown loss {name!r}: expected one of {', '.join(LOSSES)}.")
    if classes == 1:
        raise InputError("The label has one class: declare at least two.")
    fitting = {0: ("squared", "huber"), 2: ("logistic", "softmax", "smoothed-hinge")}
    allowed = fitting.get(classes, ("softmax",))
    if name not in allowed:
        kind = f"{classes} classes" if classes else "a number"
        raise InputError(f"Loss {name!r} does not fit {kind}: expected {' or '.join(allowed)}.")
    simple: dict[str, Loss] = {"logistic": Logistic(), "squared": Squared()}
    others: dict[str, Loss] = {"huber": Huber(), "smoothed-hinge": SmoothedHinge()}
    return {**simple, **others}.get(name) or Softmax(classes)


def default_loss(classes: int) -> LossName:
    """Squared for a number, logistic for two classes, softmax for more."""
    return "squared" if classes == 0 else "logistic" if classes == 2 else "softmax"


def public_slope(loss: Loss, public_scores: Floats, targets: Floats | None) -> Floats:
    """The slope of ℓ_pub: the loss at the scores of the public part, without a private label.

    With a public label, ℓ_pub is the loss itself at the padded row; with a private one (None) it
    is what no target enters. The private part is the rest: slope ⊗ x − public_slope ⊗ x_pub.
    """
    if targets is None:
        return loss.free_slope(public_scores)
    return loss.slope(public_scores, targets)


def clip_slopes(slopes: Floats, bound: float) -> Floats:
    """Each row's slope scaled down to norm at most `bound`; NaN becomes zero."""
    if slopes.shape[1] == 1:
        return np.clip(np.nan_to_num(slopes, nan=0.0), -bound, bound)
    norms = np.sqrt(np.einsum("ij,ij->i", slopes, slopes))
    finite = np.isfinite(norms)
    factors = np.where(finite, bound / np.maximum(norms, bound), 0.0)
    return np.where(finite[:, None], slopes, 0.0) * factors[:, None]


def in_ball(point: Floats, radius: float) -> Floats:
    """The nearest point of norm at most `radius`."""
    norm = float(np.linalg.norm(point))
    return point if norm <= radius else point * (radius / norm)


# --- A learning curve that costs nothing: the loss of public values at iterates that were released.
# What a method notes here must be a function of public columns, a public label, released values and
# public randomness. It is then post-processing, and may be stored with the model.


LossWatch = Callable[[int, float], None]
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


# --- The learning curve of a linear method where the label is public: public columns only.


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
