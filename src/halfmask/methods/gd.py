"""`gd`: noisy projected gradient descent on the whole table, averaged (the lecture's method).

Every step releases the sum of clipped row gradients with Gaussian noise; the releases compose
exactly. Steps, step size, momentum and radius follow from (n, d, epsilon, delta) alone. Where only
the label is private and the loss is linear in it, one release serves every step. With a public
label the noise follows how far private features can move the gradient at the current weights.
Guarantee: docs/proofs/gd.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from halfmask.errors import InputError
from halfmask.losses import Loss, LossName, clip_slopes, default_loss, in_ball, loss_named
from halfmask.mechanisms.release import Releaser
from halfmask.mechanisms.shards import rows_in_all
from halfmask.methods.coded_rows import feature_rows
from halfmask.methods.fitted import LinearFit
from halfmask.methods.gd_lecture import LectureConfig, fit_lecture
from halfmask.methods.gd_sensitivity import (
    BlockMoves,
    label_statistic,
    spectral_norm,
    whole_gradient,
)
from halfmask.methods.one_shot import OneShotConfig, plan_one_shot
from halfmask.methods.public_curve import PublicCurve
from halfmask.methods.targets import coded_targets, in_label_units, label_scale
from halfmask.methods.unit_rows import UnitRows, unit_rows, weighed_by_unit
from halfmask.row_products import times
from halfmask.table import Table

Floats = NDArray[np.float64]
Aggregate = Literal["last", "average", "tail"]


@dataclass(frozen=True, kw_only=True)
class GdConfig:
    """Constants fixed beforehand; the same for every table.

    `spread` is the guessed standard deviation of a row's score (log odds, or half ranges of a
    numeric label): descent stops when a weight that only noise moves has wandered as far.
    `steps` is the most steps taken: fewer if that is long enough, with momentum if it is not.
    `radius` is in multiples of √weights. `clip` bounds slopes (None: the loss's own). `loss` is
    named as in halfmask.losses (None: the task's own). `penalty` is a public regulariser. With a
    private label and some public features, `public_start` fits those by one release first and
    descends on all features from there (default loss and no penalty only).
    """

    method: ClassVar[str] = "gd"
    recipe: ClassVar[str] = "default"

    spread: float | None = None
    steps: int = 120
    radius: float = 4.0
    clip: float | None = None
    aggregate: Aggregate = "tail"
    precondition: float = 0.25
    ridge: float = 0.0
    loss: LossName | None = None
    public_start: bool = True
    penalty: PublicPenalty | None = None

    def __post_init__(self) -> None:
        if self.steps < 1 or self.radius <= 0 or self.ridge < 0:
            raise InputError("Expected steps >= 1, radius > 0 and ridge >= 0.")
        if self.aggregate not in ("last", "average", "tail"):
            raise InputError(
                f"Unknown aggregate {self.aggregate!r}: expected last, average or tail."
            )
        for name in ("spread", "clip"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise InputError(f"Expected a finite {name} > 0, got {value}.")


@dataclass(frozen=True, kw_only=True)
class PublicPenalty:
    """A public regulariser ℓ_reg(f(D), θ): it sees the public block and the weights, nothing else.

    `gradient(public, coef, intercept)` returns its derivatives by coef and intercept; `smoothness`
    bounds how fast they change with the weights.
    """

    gradient: Callable[[Floats, Floats, Floats], tuple[Floats, Floats]]
    smoothness: float


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The schedule: public, and fixed before the first release."""

    steps: int
    step_size: float
    momentum: float
    radius: float

    @classmethod
    def of(cls, config: GdConfig, *, smoothness: float, time: float, weights: int) -> Plan:
        """Descend for `time` = step size x steps / (1 − momentum), in at most `config.steps`."""
        longest = 1 / smoothness
        needed = max(1, math.ceil(time / longest))
        radius = config.radius * math.sqrt(weights)
        if needed <= config.steps:
            return cls(steps=needed, step_size=time / needed, momentum=0.0, radius=radius)
        momentum = 1 - longest * config.steps / time
        # Beyond 1 − 4/steps momentum has no time to come to rest.
        momentum = min(momentum, max(0.0, 1 - 4 / config.steps))
        return cls(steps=config.steps, step_size=longest, momentum=momentum, radius=radius)


def fit_gd(
    table: Table, releaser: Releaser, config: GdConfig | LectureConfig | None = None
) -> LinearFit:
    """Fit within the releaser's budget, by the recipe of `config`. Guarantee: docs/proofs/gd.md."""
    if config is None:
        config = GdConfig()
    elif not isinstance(config, GdConfig):
        return fit_lecture(table, releaser, config)
    loss, penalty, shards = config.loss, config.penalty, releaser.shards
    plain = loss is None and penalty is None
    if config.public_start and plain and _starts_from_public(table):
        return _from_public_start(table, releaser, config)
    classes = 0 if table.classes is None else len(table.classes)
    chosen = loss_named(loss or default_loss(classes), classes=classes)
    targets = coded_targets(table, chosen.outputs)
    if not (table.label_private or table.widths[1]):
        raise InputError("Nothing is private: any ordinary method serves better.")
    if table.n == 0:
        raise InputError("The table has no rows: there is nothing to fit.")
    mu = releaser.budget.mu
    rows = weighed_by_unit(
        unit_rows(table, precondition=config.precondition, shards=shards),
        table,
        outputs=chosen.outputs,
        mu=mu,
        relation=releaser.relation,
    )
    extra = 0.0 if penalty is None else penalty.smoothness * rows.stretch**2
    descent = Descent(
        rows,
        targets,
        chosen,
        config,
        table.label_private,
        releaser,
        mu,
        extra_smoothness=extra,
        skipped=table.skipped,
    )
    curve = None
    if table.widths[0] and not table.label_private:
        curve = PublicCurve.of(table, targets, chosen, steps=descent.plan.steps)
    by_penalty = None
    if penalty is not None:
        by_penalty = _by_theta(shards.gather(table.public), rows, penalty)
    theta = descent.run(by_penalty, curve)
    coef, intercept = rows.unfold(theta)
    coef, intercept = in_label_units(table, coef, intercept)
    details = descent.details | ({} if curve is None else curve.details())
    return LinearFit(coef=coef, intercept=intercept, details=details)


def _starts_from_public(table: Table) -> bool:
    """Whether to fit public features ahead of the descent: from roles alone."""
    return table.label_private and min(table.widths) > 0


def _from_public_start(table: Table, releaser: Releaser, config: GdConfig) -> LinearFit:
    """A private label and some public features: fit those first, then descend on all.

    Of the public features only their sums by label are private: one release, and the best model of
    the label by public features follows for free (`one-shot`). Noisy descent starts there. It
    learns the private features' weights and corrects the public ones, which need little room for
    that: rows are shorter than those of a descent from zero, and so its noise is smaller.
    Both are opened before the first one releases, so that they are one charge.
    Guarantee: docs/proofs/gd.md, "Public start".
    """
    budget = releaser.budget
    share = _public_share(table, budget.mu, rows_in_all(table.n, releaser.shards))
    first, second = budget.split(share)
    fit_start = plan_one_shot(_only_public(table), releaser, first, OneShotConfig())
    classes = 0 if table.classes is None else len(table.classes)
    loss = loss_named(default_loss(classes), classes=classes)
    middle, half = label_scale(table) if table.classes is None else (0.0, 1.0)
    rows = weighed_by_unit(
        unit_rows(table, precondition=config.precondition, shards=releaser.shards, started=True),
        table,
        outputs=loss.outputs,
        mu=second.mu,
        relation=releaser.relation,
    )
    descent = Descent(
        rows,
        coded_targets(table, loss.outputs),
        loss,
        config,
        True,
        releaser,
        second.mu,
        skipped=table.skipped,
    )
    start = fit_start()
    descent.start_from(
        (times(feature_rows(table, private=False), start.coef.T) + start.intercept - middle) / half
    )
    coef, intercept = rows.unfold(descent.run(None))
    coef *= half
    coef[:, : table.widths[0]] += start.coef
    return LinearFit(
        coef=coef,
        intercept=start.intercept + intercept * half,
        details={**descent.details, "public_start_share": share, "public_start": start.details},
    )


def _public_share(table: Table, mu: float, rows: int) -> float:
    """The share of mu² for the public start, from declarations and sizes alone.

    At most that of public columns, the label counted as one. Less where noise hardly limits the
    descent, which then finds by itself what the start would have told it: a descent to the end
    moves the score of a unit row by about 4d/(μn), the gradient's noise over a curvature of 1/(4d).
    """
    features = sum(table.widths)
    limited = min(1.0, 4 * features / (mu * rows))
    if table.schema is None:
        return limited / 3
    return limited * len(table.schema.public) / (len(table.schema.columns) + 1)


def _only_public(table: Table) -> Table:
    """`table` without its private features; the label stays private."""
    return replace(
        table,
        features=table.features.only_public(),
        private_norm=0.0,
        private_names=(),
        private_sources=(),
    )


class Descent:
    """One run: picks the one bound that applies, opens all its releases, then descends."""

    def __init__(
        self,
        rows: UnitRows,
        targets: Floats,
        loss: Loss,
        config: GdConfig,
        label_private: bool,
        releaser: Releaser,
        mu: float,
        *,
        extra_smoothness: float = 0.0,
        skipped: NDArray[np.bool_] | None = None,
    ) -> None:
        """`skipped` rows have no label: what is released of them is nothing."""
        self._rows, self._targets, self._loss, self._config = rows, targets, loss, config
        self._skipped = skipped
        self._shards = releaser.shards
        self._moves: BlockMoves | None = None
        weights = rows.d * loss.outputs
        plan_clip = config.clip or loss.clip
        radius = config.radius * math.sqrt(weights)
        self._clip = min(plan_clip, loss.slope_bound(radius))
        self._once = label_private and rows.bounds.private == 0 and loss.linear_in_target
        what = "noisy sums of gradients over all rows"
        if self._once:
            sensitivity = label_statistic(rows.bounds, loss)
            reach, what = sensitivity.under(releaser.relation), "noisy sums of features by label"
        elif label_private:
            sensitivity = whole_gradient(rows.bounds, self._clip)
            reach = sensitivity.under(releaser.relation)
        else:
            self._moves = BlockMoves(
                bounds=rows.bounds, loss=loss, clip=self._clip, relation=releaser.relation
            )
            sensitivity, reach = self._moves.sensitivity(), self._moves.together()
        self.plan = Plan.of(
            config,
            smoothness=loss.smoothness + config.ridge + extra_smoothness,
            time=self._time(mu, reach),
            weights=weights,
        )
        count = 1 if self._once else self.plan.steps
        noise_std = math.sqrt(count) * sensitivity.under(releaser.relation) / mu
        self._series = releaser.gaussian_series(
            sensitivity=sensitivity, noise_std=noise_std, count=count, what=what
        )
        self.sensitivity = sensitivity
        self._fixed: Floats | None = None
        self.details = self._public_facts(noise_std, count)

    def start_from(self, offset: Floats) -> None:
        """Descend from these scores of each row: the bounds hold whatever they are."""
        self._rows = replace(self._rows, offset=offset)

    def _time(self, mu: float, reach: float) -> float:
        """How long to descend until noise alone moves a score by `spread`."""
        outputs = self._loss.outputs
        spread = self._config.spread or (1.5 if self._loss.one_sided else 0.15)
        # Scores of several outputs are compared by their differences.
        return spread * mu * self._rows.n / (reach * (math.sqrt(2) if outputs > 1 else 1.0))

    def statistic(self, theta: Floats) -> tuple[Floats, Floats]:
        """What is about to be released at `theta`, and the factors by which it was scaled.

        Between neighbours it moves by at most `sensitivity`, whatever `theta` is.
        """
        rows, loss = self._rows, self._loss
        if self._once:
            return rows.gradient_sum(loss.fixed_slope(self._targets)), np.ones((rows.d, 1))
        slopes = clip_slopes(loss.slope(rows.scores(theta), self._targets), self._clip)
        if self._skipped is not None:
            slopes[self._skipped] = 0.0
        exact = rows.gradient_sum(slopes)
        if self._moves is None:
            return exact, np.ones((rows.d, 1))
        first = rows.public_columns
        sizes = (first * loss.outputs, (rows.d - first) * loss.outputs)
        scales = self._moves.scales(spectral_norm(theta[first:].T), sizes)
        factors = np.repeat(scales, (first, rows.d - first))[:, None]
        return exact * factors, factors

    def _gradient(self, theta: Floats) -> Floats:
        """The noisy mean gradient at `theta`."""
        rows = self._rows
        if self._fixed is not None:
            free = self._loss.free_slope(rows.scores(theta))
            return (self._shards.sum(rows.gradient_sum(free)) + self._fixed) / rows.n
        value, factors = self.statistic(theta)
        released: Floats = self._series.release(value) / factors
        return released / rows.n

    def run(
        self, penalty: Callable[[Floats], Floats] | None, curve: PublicCurve | None = None
    ) -> Floats:
        """Descent with momentum; every point at which a gradient is taken is projected."""
        plan, ridge = self.plan, self._config.ridge
        start = {"last": plan.steps - 1, "average": 0, "tail": (3 * plan.steps) // 4}
        first = start[self._config.aggregate]
        theta = np.zeros((self._rows.d, self._loss.outputs))
        point, total = theta, np.zeros_like(theta)
        if self._once:
            self._fixed = self._series.release(self.statistic(theta)[0])
        for step in range(plan.steps):
            if curve is not None and curve.curve.wanted(step + 1):
                coef, intercept = self._rows.unfold(point)
                curve.note(step + 1, coef[:, : self._rows.public_size], intercept)
            gradient = self._gradient(point) + ridge * point
            if penalty is not None:
                gradient = gradient + penalty(point)
            moved = in_ball(point - plan.step_size * gradient, plan.radius)
            point = in_ball(moved + plan.momentum * (moved - theta), plan.radius)
            theta = moved
            if step >= first:
                total += theta
        return total / (plan.steps - first)

    def _public_facts(self, noise_std: float, count: int) -> dict[str, Any]:
        return {
            "loss": type(self._loss).__name__,
            "steps": self.plan.steps,
            "releases": count,
            "step_size": self.plan.step_size,
            "momentum": self.plan.momentum,
            "radius": self.plan.radius,
            "clip": self._clip,
            "aggregate": self._config.aggregate,
            "noise_std": noise_std,
            "sensitivity": asdict(self.sensitivity),
        }


def _by_theta(public: Floats, rows: UnitRows, penalty: PublicPenalty) -> Callable[[Floats], Floats]:
    """The penalty's gradient by θ."""

    def gradient(theta: Floats) -> Floats:
        by_coef, by_intercept = penalty.gradient(public, *rows.unfold(theta))
        return rows.fold_gradient(np.asarray(by_coef), np.asarray(by_intercept))

    return gradient
