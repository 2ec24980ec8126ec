"""`sgd`: noisy gradient descent with public columns (Algorithm 1 of feature DP), and `dp-sgd`.

Each step adds a noisy mean of private contributions, over a Poisson batch that only the mechanism
sees, to the gradient of the public loss over a uniform batch drawn from randomness of its own. The
two batches cannot be the same one: the first never leaves `PrivateStep`, the second comes from a
generator that knows nothing of it. Guarantee: docs/proofs/sgd.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from halfmask.accounting.budget import Budget
from halfmask.accounting.calibrate import noise_multiplier
from halfmask.accounting.events import Contribution, Relation
from halfmask.data.products import Rows, block, feature_rows, parts_of
from halfmask.errors import InputError, check_below_one, check_one_of, check_positive
from halfmask.losses import (
    Loss,
    LossName,
    PublicCurve,
    Softmax,
    default_loss,
    in_ball,
    loss_named,
    public_slope,
)
from halfmask.mechanisms.noise import public_generator
from halfmask.mechanisms.release import PrivateStep, Releaser, WeighedRows, uniform_rows
from halfmask.methods.fitted import LinearFit, coded_targets, in_label_units
from halfmask.table import Table
from halfmask.types import Floats, Integers

# Units are summed explicitly, this many numbers at a time.
_CHUNK = 1 << 22


class BatchRows:
    """Features of rows, with a constant 1 behind them if asked for; made for the rows in use."""

    def __init__(self, rows: Rows, *, constant: bool) -> None:
        self._rows, self._constant = rows, constant
        self.shape = (len(rows), rows.shape[1] + constant)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: slice | Integers) -> Floats:
        made = block(self._rows, rows)
        return np.hstack([made, np.ones((len(made), 1))]) if self._constant else made

    def squares(self) -> Floats:
        """The squared length of each row."""
        found = [_squares(self[part]) for part in parts_of(len(self))]
        return np.concatenate([np.zeros(0), *found])


@dataclass(frozen=True, kw_only=True, eq=False)
class SplitRows:
    """Rows as the split loss sees them. Coefficients have the columns [public, constant, private].

    With `public_loss=False` the public loss is zero and everything is private. `skipped` rows have
    no label, and a slope of zero.
    """

    public: BatchRows
    private: BatchRows
    target: Floats
    loss: Loss
    label_private: bool
    public_loss: bool
    unit: NDArray[np.int64] | None
    rows_per_unit: int = 1
    skipped: NDArray[np.bool_] | None = None

    @classmethod
    def of(
        cls, table: Table, *, loss: str | None = None, everything_private: bool = False
    ) -> SplitRows:
        """The rows of `table`; `everything_private` ignores that some columns are public."""
        classes = 0 if table.classes is None else len(table.classes)
        chosen = loss_named(loss or default_loss(classes), classes=classes)
        # Without the target a public loss needs public features, and a loss that splits.
        splits = chosen.linear_in_target and table.widths[0] > 0
        public, private = (feature_rows(table, private=each) for each in (False, True))
        return cls(
            public=BatchRows(public, constant=True),
            private=BatchRows(private, constant=False),
            target=coded_targets(table, chosen.outputs),
            loss=chosen,
            label_private=table.label_private or everything_private,
            public_loss=not everything_private and (splits or not table.label_private),
            unit=table.unit,
            rows_per_unit=table.rows_per_unit,
            skipped=table.skipped,
        )

    @property
    def labels_only(self) -> bool:
        """Whether contributions follow from the label and public features, whatever the weights."""
        return self.public_loss and self.label_private and not self.private.shape[1]

    @property
    def shape(self) -> tuple[int, int]:
        """Outputs x coefficients."""
        return self.target.shape[1], self.public.shape[1] + self.private.shape[1]

    def public_gradient(self, coef: Floats, rows: Integers) -> Floats:
        """The mean gradient of the public loss over `rows`: no private value is read."""
        gradient = np.zeros(self.shape)
        if self.public_loss and len(rows):
            block = self.public[rows]
            padded = self.padded_slope(block @ coef[:, : self.public.shape[1]].T, rows)
            gradient[:, : self.public.shape[1]] = padded.T @ block / len(rows)
        return gradient

    def padded_slope(self, scores: Floats, rows: Integers) -> Floats:
        """The public loss's slope at the padded rows, whose scores are given."""
        return public_slope(self.loss, scores, None if self.label_private else self.target[rows])


class SplitContributions(WeighedRows):
    """What each row, or each unit, adds to the private gradient at `coef`.

    (slope - padded slope) ⊗ p on the public columns and slope ⊗ x on the private ones.
    """

    def __init__(self, rows: SplitRows, coef: Floats) -> None:
        self._rows = rows
        self.coef = coef
        self._members = None if rows.unit is None else _Members(rows.unit)

    def norms(self, rows: Integers) -> Floats:
        """The Euclidean norm of each contribution."""
        if self._members is None:
            return self._row_norms(rows)
        found = [np.zeros(0)]
        numbers = int(np.prod(self._rows.shape)) * self._members.largest
        for part in parts_of(len(rows), max(1, _CHUNK // numbers)):
            chunk = rows[part]
            members, starts = self._members.of(chunk)
            on_public, on_private = self._factors(members)
            square = np.zeros(len(chunk))
            for factor, made in (
                (on_public, self._rows.public[members]),
                (on_private, self._rows.private[members]),
            ):
                outer = factor[:, :, None] * made[:, None, :]
                if outer.size:
                    total = np.add.reduceat(outer.reshape(len(members), -1), starts, axis=0)
                    square += np.einsum("ij,ij->i", total, total)
            found.append(np.sqrt(square))
        return np.concatenate(found)

    def weighted_sum(self, rows: Integers, weights: Floats) -> Floats:
        """Σ weight · contribution, outputs x coefficients."""
        if self._members is not None:
            members, starts = self._members.of(rows)
            sizes = np.diff(np.append(starts, len(members)))
            rows, weights = members, np.repeat(weights, sizes)
        on_public, on_private = self._factors(rows)
        return np.hstack(
            [
                (on_public * weights[:, None]).T @ self._rows.public[rows],
                (on_private * weights[:, None]).T @ self._rows.private[rows],
            ]
        )

    def _factors(self, rows: Integers) -> tuple[Floats, Floats]:
        split = self._rows
        if split.labels_only:
            # The label's part alone, zero without one: what scores add is the same in both losses.
            factor = split.loss.fixed_slope(split.target[rows])
            return factor, factor
        width = split.public.shape[1]
        padded = split.public[rows] @ self.coef[:, :width].T
        scores = padded + split.private[rows] @ self.coef[:, width:].T
        full = split.loss.slope(scores, split.target[rows])
        if split.skipped is not None:
            full[split.skipped[rows]] = 0.0
        if not split.public_loss:
            return full, full
        return full - split.padded_slope(padded, rows), full

    def _row_norms(self, rows: Integers) -> Floats:
        on_public, on_private = self._factors(rows)
        return np.sqrt(
            _squares(on_public) * _squares(self._rows.public[rows])
            + _squares(on_private) * _squares(self._rows.private[rows])
        )


class _Members:
    """The rows of each unit."""

    def __init__(self, unit: NDArray[np.int64]) -> None:
        self._order = np.argsort(unit, kind="stable")
        self._counts = np.bincount(unit)
        self._starts = np.cumsum(self._counts) - self._counts
        self.largest = int(self._counts.max(initial=1))

    def of(self, units: Integers) -> tuple[Integers, Integers]:
        """The rows of `units` one unit after the other, and where each unit starts."""
        counts = self._counts[units]
        starts = np.cumsum(counts) - counts
        within = np.arange(counts.sum()) - np.repeat(starts, counts)
        return self._order[np.repeat(self._starts[units], counts) + within], starts


def _squares(rows: Floats) -> Floats:
    squares: Floats = np.einsum("ij,ij->i", rows, rows)
    return squares


SgdAggregate = Literal["last", "average", "tail", "ema"]
Schedule = Literal["constant", "linear", "cosine"]
LinearRegulariser = Callable[[Floats, Floats], Floats]

# Constants fixed beforehand, the same for every table.
_LEAST_BATCH = 1024
_MOST_STEPS = 400
_RADIUS = 6.0  # for each output
_CLIP = 0.7  # of a slope


@dataclass(frozen=True, kw_only=True)
class DpSgdConfig:
    """Settings of `dp-sgd`; None means: derived from public facts by `settings_of`.

    `loss` is named as in halfmask.losses. `rate` is the chance of a row (or unit) to take part in a
    step, `radius` that of the ball to which coefficients are projected, `clip_norm` the longest
    contribution of a row (or unit). The learning rate stays, or falls to zero by `schedule`;
    `momentum` keeps a part of the last step. `aggregate` hands back the last coefficients, the
    average of all or of the second half (tail), or an exponential one of decay `ema_decay`.
    """

    method: ClassVar[str] = "dp-sgd"

    loss: LossName | None = None
    rate: float | None = None
    steps: int | None = None
    learning_rate: float | None = None
    schedule: Schedule = "constant"
    momentum: float = 0.0
    radius: float | None = None
    clip_norm: float | None = None
    aggregate: SgdAggregate = "tail"
    ema_decay: float = 0.9

    def __post_init__(self) -> None:
        check_one_of(self, aggregate=get_args(SgdAggregate), schedule=get_args(Schedule))
        check_below_one(self, "momentum", "ema_decay")
        if self.rate is not None and not 0 < self.rate <= 1:
            raise InputError(f"Expected a sampling rate in (0, 1], got {self.rate}.")
        if self.steps is not None and self.steps < 1:
            raise InputError(f"Expected steps >= 1, got {self.steps}.")
        check_positive(self, "learning_rate", "radius", "clip_norm")


def scheduled(schedule: Schedule, learning_rate: float, done: float) -> float:
    """The learning rate of a step after the share `done` of all steps."""
    if schedule == "linear":
        return learning_rate * (1.0 - done)
    if schedule == "cosine":
        return learning_rate * 0.5 * (1.0 + math.cos(math.pi * done))
    return learning_rate


@dataclass(frozen=True, kw_only=True)
class SgdConfig(DpSgdConfig):
    """Settings of `sgd`, Algorithm 1 on a linear model: those of `dp-sgd`, and of the public part.

    `alpha` weighs the private part against the public one. `public_batch` rows are drawn for each
    public gradient, by `public_seed`, which is no secret. `regulariser` maps (coefficients, public
    rows with a constant) to the gradient of a further public loss.
    """

    method: ClassVar[str] = "sgd"

    alpha: float = 1.0
    public_batch: int | None = None
    regulariser: LinearRegulariser | None = None
    public_seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.public_batch is not None and self.public_batch < 1:
            raise InputError(f"Expected public_batch >= 1, got {self.public_batch}.")
        check_positive(self, "alpha")


@dataclass(frozen=True, kw_only=True)
class SgdPlan:
    """Every number a run needs, fixed before a private value is read."""

    rate: float
    steps: int
    learning_rate: float
    radius: float
    clip_norm: float
    contribution: Contribution
    noise_multiplier: float


def fit_sgd(table: Table, releaser: Releaser, config: SgdConfig | None = None) -> LinearFit:
    """Algorithm 1 on a linear model; with nothing public it is plain DP-SGD.

    Guarantee: docs/proofs/sgd.md.
    """
    config = config or SgdConfig()
    rows = SplitRows.of(table, loss=config.loss)
    return _fit(table, releaser, rows, config)


def fit_dp_sgd(table: Table, releaser: Releaser, config: DpSgdConfig | None = None) -> LinearFit:
    """The baseline that treats every column and the label as private.

    Guarantee: docs/proofs/sgd.md; it covers more than the declared private part.
    """
    chosen = config or DpSgdConfig()
    rows = SplitRows.of(table, loss=chosen.loss, everything_private=True)
    # With nothing public there is no public batch, and no public loss to weigh.
    split = SgdConfig(**{each.name: getattr(chosen, each.name) for each in fields(chosen)})
    return _fit(table, releaser, rows, split)


def settings_of(table: Table, rows: SplitRows, budget: Budget, config: SgdConfig) -> SgdPlan:
    """What the configuration leaves open, from n, d, the budget and public columns.

    Rate: the noise of a mean gradient hardly depends on it while rate·√steps is fixed, so it is a
    matter of time; batches of 1,024 or more add little sampling noise of their own. Steps: beyond
    (nμ)²/4d they change less than the noise does. Learning rate: 1/smoothness, or less where noise
    alone would walk out of the ball within those steps.
    """
    clip, contribution = contribution_of(table, rows, budget.relation, config.clip_norm)
    units, (outputs, width) = table.units, rows.shape
    rate = config.rate or min(1.0, max(_LEAST_BATCH, 4 * math.isqrt(units)) / units)
    enough = (units * budget.mu) ** 2 / (4 * width)
    steps = config.steps or int(min(max(enough, 50), _MOST_STEPS))
    radius = config.radius or _RADIUS * math.sqrt(outputs)
    noise = noise_multiplier(budget, rate=rate, steps=steps, contribution=contribution)
    walk = noise * clip / (rate * table.n) * math.sqrt(outputs * width * steps)
    smooth = rows.loss.smoothness * _row_bound(table) ** 2
    return SgdPlan(
        rate=rate,
        steps=steps,
        learning_rate=config.learning_rate or min(1 / smooth, radius / walk),
        radius=radius,
        clip_norm=clip,
        contribution=contribution,
        noise_multiplier=noise,
    )


def contribution_of(
    table: Table, rows: SplitRows, relation: Relation, clip_norm: float | None
) -> tuple[float, Contribution]:
    """The clip norm, and which pair of contributions the accountant may assume."""
    if not rows.labels_only:
        return clip_norm or _typical_bound(table, rows) * rows.rows_per_unit, "general"
    norms = np.sqrt(rows.public.squares())
    if rows.unit is not None:
        norms = np.bincount(rows.unit, weights=norms)
    # Public features alone decide how long a contribution can be. The last digits cover rounding.
    longest = float(norms.max()) * (1 + 1e-9)
    orthogonal = isinstance(rows.loss, Softmax) and relation == "replace"
    bound = longest if orthogonal else longest * rows.loss.fixed_bounds()[1]
    if clip_norm is not None and clip_norm < bound:
        return clip_norm, "general"
    return bound, "label" if orthogonal else "general"


def _row_bound(table: Table) -> float:
    """A bound on the norm of a full row with its constant, known without private values."""
    private = table.private_norm if table.widths[1] else 0.0
    return math.sqrt(_public_bound(table) ** 2 + private**2 + 1)


def _public_bound(table: Table) -> float:
    return table.public_norm if table.widths[0] else 0.0


def _typical_bound(table: Table, rows: SplitRows) -> float:
    """Where to clip a row that holds private features, from the declaration alone.

    Slopes beyond 0.7 are rare where a model is of use. On public features the contribution has the
    difference of two slopes, which is smaller, and much smaller where the label is public.
    """
    public = _CLIP if rows.label_private else 0.25
    private = table.private_norm if table.widths[1] else 0.0
    slope = min(1.0, rows.loss.lipschitz)
    return slope * math.hypot(_CLIP * private, public * math.hypot(_public_bound(table), 1))


def _fit(table: Table, releaser: Releaser, rows: SplitRows, config: SgdConfig) -> LinearFit:
    if not (rows.label_private or rows.private.shape[1]):
        raise InputError("Nothing is private: any ordinary method serves better.")
    settings = settings_of(table, rows, releaser.budget, config)
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
    curve = None
    if rows.public_loss and not rows.label_private:
        curve = PublicCurve.of(table, rows.target, rows.loss, steps=settings.steps)
    coef = descend(step, rows, settings, config, units_per_row=table.units / table.n, curve=curve)
    details = asdict(settings) | {"aggregate": config.aggregate}
    details |= {} if curve is None else curve.details()
    return as_fit(table, coef, details)


def descend(
    step: PrivateStep,
    rows: SplitRows,
    settings: SgdPlan,
    config: SgdConfig,
    *,
    units_per_row: float,
    curve: PublicCurve | None = None,
) -> Floats:
    """Algorithm 1: `settings.steps` noisy projected steps from zero, aggregated."""
    public = rows.public.shape[1] - 1
    generator = public_generator(config.public_seed)
    size = config.public_batch or math.ceil(4 * settings.rate * len(rows.public))
    coef = np.zeros(rows.shape)
    contributions = SplitContributions(rows, coef)
    every_row = None if config.regulariser is None else rows.public[:]
    kept = 0 if config.aggregate == "average" else settings.steps // 2
    total, count = np.zeros(rows.shape), 0
    velocity, smooth = np.zeros(rows.shape), np.zeros(rows.shape)
    for index in range(settings.steps):
        if index >= kept:
            total, count = total + coef, count + 1
        contributions.coef = coef
        if curve is not None:
            curve.note(index + 1, coef[:, :public], coef[:, public])
        batch = uniform_rows(len(rows.public), size, generator)
        private = config.alpha * units_per_row * step.release(contributions)
        gradient = rows.public_gradient(coef, batch) + private
        if config.regulariser is not None and every_row is not None:
            gradient = gradient + config.regulariser(coef, every_row)
        velocity = config.momentum * velocity + gradient
        rate = scheduled(config.schedule, settings.learning_rate, index / settings.steps)
        coef = in_ball(coef - rate * velocity, settings.radius)
        smooth = config.ema_decay * smooth + (1 - config.ema_decay) * coef
    if config.aggregate == "ema":
        # From zeros, so that the first steps would count too little without the divisor.
        return smooth / (1 - config.ema_decay**settings.steps)
    return coef if config.aggregate == "last" else total / count


def as_fit(table: Table, coef: Floats, details: dict[str, Any]) -> LinearFit:
    """Coefficients in the order and units of `LinearFit`."""
    place = table.widths[0]
    slopes, intercept = np.delete(coef, place, axis=1), coef[:, place]
    slopes, intercept = in_label_units(table, slopes, intercept)
    return LinearFit(coef=slopes, intercept=intercept, details=details)
