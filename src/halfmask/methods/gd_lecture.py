"""`gd` with `recipe=lecture`: noisy gradient descent exactly as the DP-ERM lecture has it.

θ⁰ = 0; T − 1 steps of length η = R/(B√T) along noisy mean gradients, each projected to the ball of
radius R; the answer is the average of θ⁰, …, θ^{T−1}. Everything is private. Theorem 1 bounds its
excess risk, so it is the recipe to check the theory with; the default recipe is more accurate.
Guarantee: docs/proofs/gd.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from halfmask.errors import InputError
from halfmask.losses import Loss, LossName, default_loss, in_ball, loss_named
from halfmask.mechanisms.clipping import clip_rows
from halfmask.mechanisms.release import Releaser, Sensitivity
from halfmask.methods import bounds
from halfmask.methods.fitted import LinearFit
from halfmask.methods.targets import coded_targets, in_label_units
from halfmask.table import Table

Floats = NDArray[np.float64]
_MOST_STEPS = 1000


@dataclass(frozen=True, kw_only=True)
class LectureConfig:
    """`radius` is R, `steps` is T (None: as many as make noise and optimisation err alike, at most
    1,000); `loss` is named as in halfmask.losses (None: the task's own).
    """

    method: ClassVar[str] = "gd"
    recipe: ClassVar[str] = "lecture"

    radius: float = 1.0
    steps: int | None = None
    loss: LossName | None = None

    def __post_init__(self) -> None:
        if not (math.isfinite(self.radius) and self.radius > 0):
            raise InputError(f"Expected a finite radius > 0, got {self.radius}.")
        if self.steps is not None and self.steps < 2:
            raise InputError(f"Expected steps >= 2, got {self.steps}.")


def fit_lecture(table: Table, releaser: Releaser, config: LectureConfig) -> LinearFit:
    """Fit within the releaser's budget, everything private. Guarantee: docs/proofs/gd.md."""
    classes = 0 if table.classes is None else len(table.classes)
    loss = loss_named(config.loss or default_loss(classes), classes=classes)
    targets = coded_targets(table, loss.outputs)
    if releaser.shards.count > 1:
        raise InputError("The recipe 'lecture' needs all rows on one machine: start one process.")
    longest = math.hypot(
        table.public_norm if table.public.shape[1] else 0.0,
        table.private_norm if table.private.shape[1] else 0.0,
        1.0,
    )
    rows = np.column_stack([table.public, table.private, np.ones(table.n)])
    rows = clip_rows(rows, longest)
    lipschitz = longest * slope_bound(loss, config.radius * longest)
    weights = rows.shape[1] * loss.outputs
    moved = Sensitivity.of_clipped_sum(lipschitz, rows_per_unit=table.rows_per_unit)
    mu = releaser.budget.mu
    reach = moved.under(releaser.relation)
    steps = config.steps or balanced_steps(
        rows=table.n, weights=weights, lipschitz=lipschitz, reach=reach, mu=mu
    )
    noise_std = math.sqrt(steps - 1) * reach / mu
    series = releaser.gaussian_series(
        sensitivity=moved,
        noise_std=noise_std,
        count=steps - 1,
        what="noisy sums of gradients over all rows, everything private",
    )
    size = math.sqrt(lipschitz**2 + weights * (noise_std / table.n) ** 2)
    step_size = config.radius / (size * math.sqrt(steps))
    theta = np.zeros((rows.shape[1], loss.outputs))
    total = theta.copy()
    for _ in range(steps - 1):
        slopes = loss.slope(rows @ theta, targets)
        slopes[table.skipped] = 0.0
        gradient = series.release(rows.T @ slopes) / table.n
        theta = in_ball(theta - step_size * gradient, config.radius)
        total += theta
    mean = total / steps
    coef, intercept = in_label_units(table, mean[:-1].T, mean[-1])
    details: dict[str, Any] = {
        "recipe": "lecture",
        "loss": type(loss).__name__,
        "steps": steps,
        "releases": steps - 1,
        "step_size": step_size,
        "radius": config.radius,
        "lipschitz": lipschitz,
        "noise_std": noise_std,
        "error_bound": bounds.excess_of_lecture(
            radius=config.radius,
            lipschitz=lipschitz,
            parameters=weights,
            rows=table.n,
            steps=steps,
            mu=mu,
            sensitivity=reach,
        ),
    }
    return LinearFit(coef=coef, intercept=intercept, details=details)


def slope_bound(loss: Loss, reach: float) -> float:
    """The lecture's constant for a row of norm 1: the Lipschitz constant, where there is one."""
    return loss.lipschitz if math.isfinite(loss.lipschitz) else loss.slope_bound(reach)


def balanced_steps(
    *,
    rows: int,
    weights: int,
    lipschitz: float,
    reach: float,
    mu: float,
    most: int = _MOST_STEPS,
) -> int:
    """T at which both terms of B² are equal: C² = dT(Δ/nμ)². More steps gain less than √2."""
    even = (lipschitz * rows * mu / reach) ** 2 / weights
    return int(min(max(even, 2.0), most))
