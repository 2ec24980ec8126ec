"""`sgd`: noisy gradient descent with public columns (Algorithm 1 of feature DP), and `dp-sgd`.

Each step adds a noisy mean of private contributions, over a Poisson batch that only the mechanism
sees, to the gradient of the public loss over a uniform batch drawn from randomness of its own. The two
batches cannot be the same one: the first never leaves `PrivateStep`, the second is drawn before the
private rows are looked at. Guarantee: docs/proofs/sgd.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from halfmask.accounting.calibrate import noise_multiplier
from halfmask.accounting.events import Contribution
from halfmask.accounting.gaussian import gaussian_mu
from halfmask.errors import InputError
from halfmask.mechanisms.noise import public_generator
from halfmask.mechanisms.private_step import PrivateStep
from halfmask.mechanisms.release import Releaser
from halfmask.mechanisms.sampling import uniform_rows
from halfmask.methods.fitted import LinearFit
from halfmask.methods.split import SplitContributions, SplitRows
from halfmask.table import Table

Floats = NDArray[np.float64]
Aggregate = Literal["last", "average", "tail"]
Regulariser = Callable[[Floats, Floats], Floats]

_LEAST_BATCH = 1024
_PUBLIC_BATCH = 8192


@dataclass(frozen=True, kw_only=True)
class SgdConfig:
    """Settings of `sgd`; None means: derived from public facts by `Settings.of`.

    `rate` is the chance of a row (or unit) to take part in a step, `radius` that of the ball to which
    coefficients are projected, `clip_norm` the longest contribution of a row (or unit). `aggregate`
    hands back the last coefficients, the average of all, or that of the second half (tail).
    `regulariser` maps (coefficients, public rows with a constant) to the gradient of a further public
    loss. `public_seed` draws public batches; it is no secret.
    """

    rate: float | None = None
    steps: int | None = None
    learning_rate: float | None = None
    radius: float | None = None
    clip_norm: float | None = None
    aggregate: Aggregate = "tail"
    public_batch: int | None = None
    regulariser: Regulariser | None = None
    public_seed: int = 0

    def __post_init__(self) -> None:
        if self.aggregate not in ("last", "average", "tail"):
            raise InputError(
                f"Unknown aggregate {self.aggregate!r}: expected last, average or tail."
            )
        if self.rate is not None and not 0 < self.rate <= 1:
            raise InputError(f"Expected a sampling rate in (0, 1], got {self.rate}.")
        for name in ("steps", "public_batch"):
            count = getattr(self, name)
            if count is not None and count < 1:
                raise InputError(f"Expected {name} >= 1, got {count}.")
        for name in ("learning_rate", "radius", "clip_norm"):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value > 0):
                raise InputError(f"Expected a finite {name} > 0, got {value}.")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Every number a run needs, fixed before a private value is read."""

    rate: float
    steps: int
    learning_rate: float
    radius: float
    clip_norm: float
    contribution: Contribution
    noise_multiplier: float


def fit_sgd(
    table: Table, releaser: Releaser, *, epsilon: float, delta: float, **options: Any
) -> LinearFit:
    """Algorithm 1 on a linear model; with nothing public it is plain DP-SGD.

    Guarantee: docs/proofs/sgd.md.
    """
    return _fit(table, releaser, SplitRows.of(table), epsilon, delta, config_of(options))


def fit_dp_sgd(
    table: Table, releaser: Releaser, *, epsilon: float, delta: float, **options: Any
) -> LinearFit:
    """The baseline that treats every column and the label as private.

    Guarantee: docs/proofs/sgd.md; it covers more than the declared private part.
    """
    rows = SplitRows.of(table, everything_private=True)
    return _fit(table, releaser, rows, epsilon, delta, config_of(options))


def config_of(options: dict[str, Any]) -> SgdConfig:
    """The options as a checked configuration."""
    try:
        return SgdConfig(**options)
    except TypeError:
        known = ", ".join(SgdConfig.__dataclass_fields__)
        raise InputError(
            f"Unknown option among {', '.join(sorted(options))}: expected some of {known}."
        ) from None


def settings_of(
    table: Table, rows: SplitRows, releaser: Releaser, epsilon: float, delta: float, config: SgdConfig
) -> Settings:
    """What the configuration leaves open, from n, d, epsilon, delta and public columns.

    The noise of a mean gradient hardly depends on the rate while rate·√steps is fixed: the rate is a
    matter of time, and batches of 1,024 or more leave little sampling noise beside it.
    """
    longest = row_norm(table, rows)
    clip, contribution = contribution_of(table, rows, config.clip_norm)
    units = table.units
    rate = config.rate or min(1.0, max(_LEAST_BATCH, 4 * math.isqrt(units)) / units)
    mu = gaussian_mu(epsilon, delta)
    outputs, width = rows.shape
    # Steps beyond this change less than the noise does (Theorem 1 of L at its optimum).
    enough = (units * mu / (2 * math.sqrt(width))) ** 2
    steps = config.steps or int(min(max(enough, 50), 400))
    radius = config.radius or 6.0 * math.sqrt(outputs)
    curvature = {"logistic": 0.25, "softmax": 0.5, "squared": 1.0}[rows.family] * longest**2
    noise = noise_multiplier(
        epsilon=epsilon,
        delta=delta,
        rate=rate,
        steps=steps,
        relation=releaser.relation,
        contribution=contribution,
    )
    std = noise * clip / (rate * table.n)
    spread = longest**2 + outputs * width * std**2
    rate_of_learning = config.learning_rate or min(
        1.0 / curvature, radius / math.sqrt(steps * spread)
    )
    return Settings(
        rate=rate,
        steps=steps,
        learning_rate=rate_of_learning,
        radius=radius,
        clip_norm=clip,
        contribution=contribution,
        noise_multiplier=noise,
    )


def row_norm(table: Table, rows: SplitRows) -> float:
    """A bound on the norm of a full row with its constant, known without private values."""
    return math.sqrt(table.public_norm**2 + table.private_norm**2 + 1)


def contribution_of(
    table: Table, rows: SplitRows, clip_norm: float | None
) -> tuple[float, Contribution]:
    """The clip norm, and which pair of contributions the accountant may assume."""
    if not rows.labels_only:
        return clip_norm or row_norm(table, rows) * table.max_rows, "general"
    norms = np.linalg.norm(rows.public, axis=1)
    if rows.unit is not None:
        norms = np.bincount(rows.unit, weights=norms)
    # Public features alone decide how long a contribution can be. The hair covers rounding.
    longest = float(norms.max()) * (1 + 1e-12)
    bound = longest / 2 if rows.family == "logistic" else longest
    if clip_norm is not None and clip_norm < bound:
        return clip_norm, "general"
    return bound, "label" if rows.family == "softmax" else "general"


def _fit(
    table: Table,
    releaser: Releaser,
    rows: SplitRows,
    epsilon: float,
    delta: float,
    config: SgdConfig,
) -> LinearFit:
    if not (rows.label_private or rows.private.shape[1]):
        raise InputError("Nothing is private: any ordinary method serves better.")
    settings = settings_of(table, rows, releaser, epsilon, delta, config)
    step = PrivateStep(
        releaser,
        rows=table.units,
        rate=settings.rate,
        clip_norm=settings.clip_norm,
        noise_multiplier=settings.noise_multiplier,
        steps=settings.steps,
        contribution=settings.contribution,
        what=f"{settings.steps} noisy mean gradients of the private part of the loss",
    )
    coef = descend(step, rows, settings, config, units_per_row=table.units / table.n)
    return as_fit(table, rows, coef, _details(settings, config))


def descend(
    step: PrivateStep,
    rows: SplitRows,
    settings: Settings,
    config: SgdConfig,
    *,
    units_per_row: float,
) -> Floats:
    """Algorithm 1: `settings.steps` noisy projected steps from zero, aggregated."""
    generator = public_generator(config.public_seed)
    size = config.public_batch or min(len(rows.public), _PUBLIC_BATCH)
    coef = np.zeros(rows.shape)
    contributions = SplitContributions(rows, coef)
    kept = 0 if config.aggregate == "average" else settings.steps // 2
    total, count = np.zeros(rows.shape), 0
    for index in range(settings.steps):
        if index >= kept:
            total, count = total + coef, count + 1
        contributions.coef = coef
        batch = uniform_rows(len(rows.public), size, generator)
        gradient = rows.public_gradient(coef, batch) + units_per_row * step.release(contributions)
        if config.regulariser is not None:
            gradient = gradient + config.regulariser(coef, rows.public)
        coef = project(coef - settings.learning_rate * gradient, settings.radius)
    return coef if config.aggregate == "last" else total / count


def project(coef: Floats, radius: float) -> Floats:
    """The nearest point of the ball of that radius around zero."""
    norm = float(np.linalg.norm(coef))
    return coef if norm <= radius else coef * (radius / norm)


def as_fit(table: Table, rows: SplitRows, coef: Floats, details: dict[str, Any]) -> LinearFit:
    """Coefficients in the order and units of `LinearFit`."""
    place = table.public.shape[1]
    slopes, intercept = np.delete(coef, place, axis=1), coef[:, place]
    if rows.family == "squared":
        assert table.label_bounds is not None
        low, high = table.label_bounds
        slopes, intercept = slopes * (high - low) / 2, (intercept + 1) * (high - low) / 2 + low
    return LinearFit(coef=slopes, intercept=intercept, details=details)


def _details(settings: Settings, config: SgdConfig) -> dict[str, Any]:
    return {
        "steps": settings.steps,
        "rate": settings.rate,
        "learning_rate": settings.learning_rate,
        "radius": settings.radius,
        "clip_norm": settings.clip_norm,
        "noise_multiplier": settings.noise_multiplier,
        "contribution": settings.contribution,
        "aggregate": config.aggregate,
    }
