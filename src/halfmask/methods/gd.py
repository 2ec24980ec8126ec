"""`gd`: noisy projected gradient descent on the whole table, averaged (the lecture's method).

Every step releases the sum of clipped row gradients with Gaussian noise; the releases compose
exactly. Steps, step size, momentum and radius follow from (n, d, epsilon, delta) alone. Where only
the label is private and the loss is linear in it, one release serves every step. With a public
label the noise follows how far private features can move the gradient at the current weights.
Guarantee: docs/proofs/gd.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from halfmask.accounting.events import Relation
from halfmask.data.products import CodedRows, RowMatrix, Rows, crossed, feature_rows, rows_times
from halfmask.data.units import unit_weights
from halfmask.errors import InputError, check_one_of, check_positive
from halfmask.losses import (
    Loss,
    LossName,
    PublicCurve,
    clip_slopes,
    default_loss,
    in_ball,
    loss_named,
)
from halfmask.mechanisms.clipping import clip_rows
from halfmask.mechanisms.release import Releaser, Sensitivity
from halfmask.mechanisms.shards import ALONE, Shards, rows_in_all
from halfmask.methods import bounds
from halfmask.methods.fitted import (
    LinearFit,
    coded_targets,
    in_label_units,
    label_scale,
    private_levels_only,
)
from halfmask.methods.one_shot import OneShotConfig, plan_one_shot
from halfmask.table import Table
from halfmask.types import Floats

GdAggregate = Literal["last", "average", "tail"]


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
    aggregate: GdAggregate = "tail"
    precondition: float = 0.25
    ridge: float = 0.0
    loss: LossName | None = None
    public_start: bool = True
    penalty: PublicPenalty | None = None

    def __post_init__(self) -> None:
        if self.steps < 1 or self.radius <= 0 or self.ridge < 0:
            raise InputError("Expected steps >= 1, radius > 0 and ridge >= 0.")
        check_one_of(self, aggregate=("last", "average", "tail"))
        check_positive(self, "spread", "clip")


@dataclass(frozen=True, kw_only=True)
class PublicPenalty:
    """A public regulariser ℓ_reg(f(D), θ): it sees the public block and the weights, nothing else.

    `gradient(public, coef, intercept)` returns its derivatives by coef and intercept; `smoothness`
    bounds how fast they change with the weights.
    """

    gradient: Callable[[Floats, Floats, Floats], tuple[Floats, Floats]]
    smoothness: float


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
        check_positive(self, "radius")
        if self.steps is not None and self.steps < 2:
            raise InputError(f"Expected steps >= 2, got {self.steps}.")


def fit_gd(
    table: Table, releaser: Releaser, config: GdConfig | LectureConfig | None = None
) -> LinearFit:
    """Fit within the releaser's budget, by the recipe of `config`. Guarantee: docs/proofs/gd.md.

    With a private label and some public features, those are fitted ahead of the descent: of them
    only their sums by label are private, so that one release gives the best model of the label by
    public features for free (`one-shot`). The descent starts there, learns the private features'
    weights and corrects the public ones, which need little room for that: rows are shorter than
    those of a descent from zero, and its noise is smaller. Both are opened before the first one
    releases, so that they are one charge ("Public start" in the proof).
    """
    if isinstance(config, LectureConfig):
        return fit_lecture(table, releaser, config)
    config = config or GdConfig()
    penalty, shards = config.penalty, releaser.shards
    classes = 0 if table.classes is None else len(table.classes)
    loss = loss_named(config.loss or default_loss(classes), classes=classes)
    targets = coded_targets(table, loss.outputs)
    if not (table.label_private or table.widths[1]):
        raise InputError("Nothing is private: any ordinary method serves better.")
    if table.n == 0:
        raise InputError("The table has no rows: there is nothing to fit.")
    started = config.public_start and config.loss is None and penalty is None
    started = started and table.label_private and min(table.widths) > 0
    budget, share = releaser.budget, 0.0
    if started:
        share = _public_share(table, budget.mu, rows_in_all(table.n, shards))
        first, budget = budget.split(share)
        public = table.features.only_public()
        alone = replace(table, features=public, private_norm=0.0, private_sources=())
        fit_start = plan_one_shot(alone, releaser, first, OneShotConfig())
    rows = weighed_by_unit(
        descent_rows(table, precondition=config.precondition, shards=shards, started=started),
        table,
        outputs=loss.outputs,
        mu=budget.mu,
        relation=releaser.relation,
    )
    descent = GradientDescent(
        rows,
        targets,
        loss,
        config,
        table.label_private,
        releaser,
        budget.mu,
        extra_smoothness=0.0 if penalty is None else penalty.smoothness * rows.stretch**2,
        skipped=table.skipped,
    )
    if started:
        middle, half = label_scale(table) if table.classes is None else (0.0, 1.0)
        start = fit_start()
        known = rows_times(feature_rows(table, private=False), start.coef.T) + start.intercept
        descent.start_from((known - middle) / half)
        coef, intercept = rows.unfold(descent.run(None))
        coef *= half
        coef[:, : table.widths[0]] += start.coef
        return LinearFit(
            coef=coef,
            intercept=start.intercept + intercept * half,
            details={**descent.details, "public_start_share": share, "public_start": start.details},
        )
    curve = None
    if table.widths[0] and not table.label_private:
        curve = PublicCurve.of(table, targets, loss, steps=descent.schedule.steps)
    by_penalty = None
    if penalty is not None:
        everyone = shards.gather(table.public)

        def by_theta(theta: Floats) -> Floats:
            by_coef, by_intercept = penalty.gradient(everyone, *rows.unfold(theta))
            return rows.fold_gradient(np.asarray(by_coef), np.asarray(by_intercept))

        by_penalty = by_theta
    coef, intercept = rows.unfold(descent.run(by_penalty, curve))
    coef, intercept = in_label_units(table, coef, intercept)
    details = descent.details | ({} if curve is None else curve.details())
    return LinearFit(coef=coef, intercept=intercept, details=details)


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


class GradientDescent:
    """One run: picks the one bound that applies, opens all its releases, then descends."""

    def __init__(
        self,
        rows: DescentRows,
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
        radius = config.radius * math.sqrt(weights)
        self._clip = min(config.clip or loss.clip, loss.slope_bound(radius))
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
        self.schedule = DescentSchedule.of(
            config,
            smoothness=loss.smoothness + config.ridge + extra_smoothness,
            time=self._time(mu, reach),
            weights=weights,
        )
        count = 1 if self._once else self.schedule.steps
        noise_std = math.sqrt(count) * sensitivity.under(releaser.relation) / mu
        self._series = releaser.gaussian_series(
            sensitivity=sensitivity, noise_std=noise_std, count=count, what=what
        )
        self.sensitivity = sensitivity
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

    def run(
        self, penalty: Callable[[Floats], Floats] | None, curve: PublicCurve | None = None
    ) -> Floats:
        """Descent with momentum; every point at which a gradient is taken is projected."""
        rows, schedule = self._rows, self.schedule
        start = {"last": schedule.steps - 1, "average": 0, "tail": (3 * schedule.steps) // 4}
        first = start[self._config.aggregate]
        theta = np.zeros((rows.d, self._loss.outputs))
        point, total = theta, np.zeros_like(theta)
        if self._once:
            fixed = self._series.release(self.statistic(theta)[0])
        for step in range(schedule.steps):
            if curve is not None and curve.curve.wanted(step + 1):
                coef, intercept = rows.unfold(point)
                curve.note(step + 1, coef[:, : rows.public_size], intercept)
            if self._once:
                free = rows.gradient_sum(self._loss.free_slope(rows.scores(point)))
                gradient = (self._shards.sum(free) + fixed) / rows.n
            else:
                exact, factors = self.statistic(point)
                gradient = self._series.release(exact) / factors / rows.n
            gradient = gradient + self._config.ridge * point
            if penalty is not None:
                gradient = gradient + penalty(point)
            moved = in_ball(point - schedule.step_size * gradient, schedule.radius)
            point = in_ball(moved + schedule.momentum * (moved - theta), schedule.radius)
            theta = moved
            if step >= first:
                total += theta
        return total / (schedule.steps - first)

    def _public_facts(self, noise_std: float, count: int) -> dict[str, Any]:
        return {
            "loss": type(self._loss).__name__,
            "steps": self.schedule.steps,
            "releases": count,
            "step_size": self.schedule.step_size,
            "momentum": self.schedule.momentum,
            "radius": self.schedule.radius,
            "clip": self._clip,
            "aggregate": self._config.aggregate,
            "noise_std": noise_std,
            "sensitivity": asdict(self.sensitivity),
        }


@dataclass(frozen=True, kw_only=True)
class DescentSchedule:
    """Public, and fixed before the first release."""

    steps: int
    step_size: float
    momentum: float
    radius: float

    @classmethod
    def of(
        cls, config: GdConfig, *, smoothness: float, time: float, weights: int
    ) -> DescentSchedule:
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


# Below this share of non-zero entries a sparse product is the faster one.
_SPARSE = 0.25
# The constant's least share of a row's squared norm, one-hot columns counted in.
_CONSTANT = 0.25
# Public rows beyond this quantile of norms are weighed down to it.
_LONG = 0.6
# Up to this private share of a row's squared norm, public features are preconditioned.
_MOSTLY_PUBLIC = 0.25
# What is left of public features' lengths where descent only corrects what is known of them.
_STARTED = 0.25


@dataclass(frozen=True, kw_only=True, eq=False)
class DescentRows:
    """((constant, public, private) − centre) · scale, row by row, as a dense or sparse matrix.

    `row_weights` (in (0, 1], public) multiply a row's gradient; `scale` makes features columns.
    `offset` is added to the scores: what a model that is known already says of each row.
    `n` counts the rows of all machines, among them those of this one; a row of a unit that is
    weighed down counts as its weight.
    """

    matrix: Any
    centre: Floats
    scale: Floats
    constant: float
    public_size: int
    row_weights: Floats
    bounds: DescentBounds
    n: float
    offset: Floats | float = 0.0

    @property
    def d(self) -> int:
        """The number of columns, the constant included if there is one."""
        return int(self.matrix.shape[1])

    @property
    def public_columns(self) -> int:
        """How many leading columns are public: the constant and the public features."""
        return self.public_size + (self.constant > 0)

    def scores(self, theta: Floats) -> Floats:
        """One column of scores per output."""
        found: Floats = rows_times(self.matrix, theta) - self.centre @ theta
        return found + self.offset

    def gradient_sum(self, slopes: Floats) -> Floats:
        """The sum of slope ⊗ row over all rows, as columns x outputs."""
        weighted = slopes * self.row_weights[:, None]
        found: Floats = crossed(self.matrix, weighted)
        return found - np.outer(self.centre, weighted.sum(axis=0))

    def unfold(self, theta: Floats) -> tuple[Floats, Floats]:
        """Coefficients (outputs x features) and intercepts for rows as they are in the table."""
        first = int(self.constant > 0)
        coef = (theta[first:] * self.scale[:, None]).T
        intercept = theta[0] * self.constant if first else np.zeros(theta.shape[1])
        intercept = intercept - self.centre @ theta
        return np.ascontiguousarray(coef), intercept

    @property
    def stretch(self) -> float:
        """A bound on how much longer coefficients and intercept are than the θ they come from."""
        slopes = float(np.abs(self.scale).max(initial=0.0))
        return float(np.sqrt(slopes**2 + self.constant**2 + self.centre @ self.centre))

    def fold_gradient(self, by_coef: Floats, by_intercept: Floats) -> Floats:
        """A gradient by coefficients and intercepts as one by θ: the chain rule of `unfold`."""
        parts = (by_coef * self.scale).T
        if self.constant > 0:
            parts = np.vstack([by_intercept[None, :] * self.constant, parts])
        return parts - np.outer(self.centre, by_intercept)


class ScaledRows(RowMatrix):
    """(constant, features · scale) of all rows, by sums over codes."""

    def __init__(self, features: Sequence[RowMatrix], constant: float, scale: Floats) -> None:
        self._features, self._constant, self._scale = features, constant, scale
        self._first = int(constant > 0)
        self._ends = np.cumsum([each.shape[1] for each in features])
        self.shape = (len(features[0]), self._first + len(scale))

    def times(self, weights: Floats) -> Floats:
        """rows @ weights."""
        scaled = weights[self._first :] * self._scale[:, None]
        parts = np.split(scaled, self._ends[:-1])
        found = sum(each.times(part) for each, part in zip(self._features, parts, strict=True))
        return np.asarray(found + self._constant * weights[0] if self._first else found)

    def crossed(self, values: Floats) -> Floats:
        """rowsᵀ @ values."""
        sums = np.concatenate([each.crossed(values) for each in self._features])
        parts = [self._constant * values.sum(axis=0)[None]] if self._first else []
        return np.concatenate([*parts, sums * self._scale[:, None]])

    def block(self, rows: slice | NDArray[np.integer]) -> Floats:
        """Some of the rows."""
        made = np.hstack([each.block(rows) for each in self._features]) * self._scale
        constant = np.full((len(made), self._first), self._constant)
        return np.hstack([constant, made])


def descent_rows(
    table: Table, *, precondition: float, shards: Shards = ALONE, started: bool = False
) -> DescentRows:
    """The rows of `table`; what is read of private values is nothing but the rows themselves.

    With `started`, a model of the public features is known already: they are kept short, for
    corrections only, and a row is weighed down by its whole length instead of its public part's.
    """
    public_size, private_size = table.widths
    private_norm = table.private_norm if private_size else 0.0
    public = _public_block(table, private_norm, precondition, shards, started)
    non_negative = private_levels_only(table)
    squared = public.norm**2 + private_norm**2
    missing = _CONSTANT * squared - _private_one_hot_columns(table)
    # Columns that are all constant leave nothing else to learn from.
    constant = float(np.sqrt(max(missing, 0.0))) if squared else 1.0
    length = float(np.sqrt(squared + constant**2)) or 1.0
    scale = np.concatenate([public.scale, np.ones(private_size)]) / length
    lengths, limit = public.norms, public.norm
    if started:
        lengths, limit = np.hypot(public.norms, np.hypot(private_norm, constant)), length
    weights = np.ones_like(lengths)
    np.divide(limit, lengths, out=weights, where=lengths > limit)
    return DescentRows(
        matrix=_matrix(table, constant / length, scale, private_norm, non_negative),
        centre=np.concatenate(
            [
                np.zeros(int(constant > 0)),
                public.centre * public.scale / length,
                np.zeros(private_size),
            ]
        ),
        scale=scale,
        constant=constant / length,
        public_size=public_size,
        row_weights=weights,
        bounds=DescentBounds(
            public=float(np.hypot(public.longest if started else public.norm, constant)) / length,
            private=private_norm / length,
            limit=1.0,
            non_negative=non_negative,
            rows_per_unit=table.rows_per_unit,
        ),
        n=rows_in_all(table.n, shards),
    )


def _matrix(
    table: Table, constant: float, scale: Floats, private_norm: float, non_negative: bool
) -> Any:
    """(constant, features · scale): by codes, or as an array, sparse where that is faster."""
    found = [feature_rows(table, private=each) for each in (False, True)]
    coded = [each for each in found if isinstance(each, RowMatrix)]
    if len(coded) == len(found):
        return ScaledRows([each for each in coded if each.shape[1]], constant, scale)
    private = _bounded(table.private, private_norm, non_negative)
    blocks = [np.full((len(private), 1), constant)] if constant else []
    whole = np.hstack([*blocks, np.hstack([table.public, private]) * scale])
    if np.count_nonzero(whole) < _SPARSE * whole.size:
        return sparse.csr_array(whole)
    return whole


def weighed_by_unit(
    rows: DescentRows, table: Table, *, outputs: int, mu: float, relation: Relation
) -> DescentRows:
    """`rows` with those of units that have many of them weighed down: docs/proofs/units.md."""
    if table.unit is None:
        return rows
    weights = unit_weights(table.unit, numbers=rows.d * outputs, mu=mu, relation=relation)
    return replace(
        rows,
        row_weights=rows.row_weights * weights.rows,
        bounds=replace(rows.bounds, rows_per_unit=weights.most),
        n=weights.total,
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class _Public:
    """(public − centre) · scale: the norms of its rows, the longest, and what counts as long."""

    centre: Floats
    scale: Floats
    norms: Floats
    longest: float
    norm: float


def _public_block(
    table: Table, private_norm: float, power: float, shards: Shards, started: bool
) -> _Public:
    """Centred and scaled by public values: a centred level is short where it is common."""
    rows = feature_rows(table, private=False)
    n, width = rows.shape
    if width == 0 or n == 0:
        empty = np.zeros(width)
        return _Public(centre=empty, scale=empty + 1, norms=np.zeros(n), longest=0.0, norm=0.0)
    everywhere = rows_in_all(n, shards)
    sums, squares = _sums_and_squares(rows)
    centre = shards.sum(sums) / everywhere
    squares = shards.sum(squares)
    mean_square = np.maximum(squares / everywhere - centre**2, 0.0)
    total = float(mean_square.sum())
    scale = np.ones(width)
    mostly_public = private_norm**2 <= _MOSTLY_PUBLIC * (table.public_norm**2 + private_norm**2)
    if total > 0 and (mostly_public or started or table.schema is None):
        # A feature that hardly varies says nothing that survives any noise.
        scale = np.maximum(mean_square, 1e-3 * float(mean_square.max())) ** -power
        scale *= np.sqrt(total / float(mean_square @ scale**2))
    if table.schema is None and total > 0:
        # A feature of a function f has any size; bring it to that of the private row.
        scale *= max(private_norm, 1.0) / np.sqrt(total)
    if started:
        scale *= _STARTED
    norms = _lengths(rows, centre, scale)
    everyone = shards.gather(norms)
    long, longest = float(np.quantile(everyone, _LONG)), float(everyone.max())
    return _Public(centre=centre, scale=scale, norms=norms, longest=longest, norm=long)


def _sums_and_squares(rows: Rows) -> tuple[Floats, Floats]:
    """The sum of each feature over all rows, and that of its square."""
    if isinstance(rows, CodedRows):
        return rows.column_sums()
    assert isinstance(rows, np.ndarray)
    return rows.sum(axis=0), np.einsum("ij,ij->j", rows, rows)


def _lengths(rows: Rows, centre: Floats, scale: Floats) -> Floats:
    """The length of (row − centre) · scale, for each row."""
    if isinstance(rows, CodedRows):
        return rows.lengths_scaled(centre, scale)
    assert isinstance(rows, np.ndarray)
    squares = np.einsum("ij,ij,j->i", rows, rows, scale**2)
    squares += float(centre**2 @ scale**2) - 2 * rows_times(rows, centre * scale**2)
    lengths: Floats = np.sqrt(np.maximum(squares, 0.0))
    return lengths


def _bounded(private: Floats, norm: float, non_negative: bool) -> Floats:
    """The declared norm and signs, enforced: they are what the sensitivity stands on."""
    if non_negative and private.size and private.min() < 0:
        private = np.maximum(private, 0.0)
    squares = np.einsum("ij,ij->i", private, private)
    # Not `any(squares > bound)`: that would let a NaN pass.
    if np.all(squares <= norm**2 * (1 + 1e-9)):
        return private
    return clip_rows(private, norm) if norm else np.zeros_like(private)


def _private_one_hot_columns(table: Table) -> int:
    """Private columns whose features add up to 1 in every row, and so hold a constant already."""
    if table.schema is None:
        return 0
    return sum(not column.scaled for column in table.schema.columns if column.role == "private")


# Where no private value can move a block yet, it still gets this share of the other's bound.
_FLOOR = 1e-3


@dataclass(frozen=True, kw_only=True)
class DescentBounds:
    """What is known beforehand of a row: norms of its parts, signs, and rows per unit.

    `rows_per_unit` bounds the sum of the weights of a unit's rows: their number where none has one.
    `limit` bounds the norm of the whole row where that is known to be less than its parts allow.
    """

    public: float
    private: float
    non_negative: bool
    rows_per_unit: int = 1
    limit: float = math.inf

    @property
    def whole(self) -> float:
        """The norm of the whole row."""
        return min(math.hypot(self.public, self.private), self.limit)

    @property
    def apart(self) -> float:
        """The largest distance of two private parts."""
        return self.private * (math.sqrt(2) if self.non_negative else 2.0)


def whole_gradient(bounds: DescentBounds, clip: float) -> Sensitivity:
    """Label and features private: any two clipped gradients, or one and nothing."""
    return Sensitivity.of_clipped_sum(clip * bounds.whole, rows_per_unit=bounds.rows_per_unit)


def label_statistic(bounds: DescentBounds, loss: Loss) -> Sensitivity:
    """Label private, features public: the sum of fixed slopes ⊗ x, which no θ enters."""
    apart, longest = loss.fixed_bounds()
    reach = bounds.whole * bounds.rows_per_unit
    return Sensitivity(replace=apart * reach, withhold=longest * reach)


@dataclass(frozen=True, kw_only=True)
class BlockMoves:
    """Label public, features private: how far the gradient's two blocks move, at given weights."""

    bounds: DescentBounds
    loss: Loss
    clip: float
    relation: Relation

    def _apart_slopes(self) -> float:
        """The largest distance of two clipped slopes at one target, in multiples of the clip."""
        if not self.loss.one_sided:
            return 2.0
        return 1.0 if self.loss.outputs == 1 else math.sqrt(2)

    def private_block(self) -> float:
        """The v-coordinates, at any weights."""
        bounds = self.bounds
        if self.relation == "withhold":
            return self.clip * bounds.private * bounds.rows_per_unit
        close = bounds.non_negative and self.loss.one_sided
        factor = math.sqrt(2) if close else 2.0
        return factor * self.clip * bounds.private * bounds.rows_per_unit

    def public_block(self, weight_norm: float) -> float:
        """The u-coordinates, at private features' weights of spectral norm `weight_norm`."""
        bounds = self.bounds
        most = self.clip * self._apart_slopes()
        apart = bounds.private if self.relation == "withhold" else bounds.apart
        moved = min(most, self.loss.smoothness * weight_norm * apart)
        return moved * bounds.public * bounds.rows_per_unit

    def together(self) -> float:
        """Both blocks at once, at any weights: less than the sum, since slopes cannot do both."""
        bounds, loss = self.bounds, self.loss
        if self.relation == "withhold":
            moved = math.hypot(self._apart_slopes() * bounds.public, bounds.private)
        elif loss.one_sided:
            moved = max(self._apart_slopes() * bounds.whole, bounds.apart)
        else:
            moved = 2 * bounds.whole
        return moved * self.clip * bounds.rows_per_unit

    def scales(self, weight_norm: float, sizes: tuple[int, int]) -> tuple[float, float]:
        """What to multiply the (u, v) blocks by, so that together they move by at most 1.

        Of the bound on both at once and the bounds on each, shared out to minimise the squared
        noise over `sizes` coordinates, the one with less noise; both are known before the release.
        """
        both, private = self.together(), self.private_block()
        public = max(self.public_block(weight_norm), _FLOOR * private)
        first, second = public * math.sqrt(sizes[0]), private * math.sqrt(sizes[1])
        if both * math.sqrt(sum(sizes)) <= first + second:
            return 1 / both, 1 / both
        share = first + second
        return math.sqrt(first / share) / public, math.sqrt(second / share) / private

    def sensitivity(self) -> Sensitivity:
        """Of the scaled blocks: 1 under the relation, and a bound under the other one."""
        if self.relation == "replace":
            # The withheld bound is below the replaced one at any weights.
            return Sensitivity(replace=1.0, withhold=1.0)
        return Sensitivity(replace=2.0, withhold=1.0)


def spectral_norm(weights: Floats) -> float:
    """The largest factor by which `weights` (outputs x features) stretch a vector."""
    if weights.size == 0:
        return 0.0
    return float(np.linalg.norm(weights, 2))


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
