"""`one-shot`: release once the statistics that touch private parts; everything after it is free.

| private | released | then |
|---|---|---|
| the label | sums of public features by label | ridge, logistic, softmax of ridge scores |
| features | their products with public features, each other, the label | ridge, discriminant |
| both | all of these, and the public features' products with the label | the same |
| everything | the second moments of a row | the same |

Ridge strength and scale are chosen by rules that read released and public values only.
Guarantee: docs/proofs/one_shot.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import numpy as np
from scipy.optimize import minimize_scalar
from scipy.special import expit, log_expit, logsumexp

from halfmask.accounting.budget import Budget
from halfmask.data.derived import PublicLabel
from halfmask.data.products import (
    RowMatrix,
    Rows,
    block,
    crossed,
    feature_rows,
    gathered,
    in_order,
    parts_of,
    rows_times,
)
from halfmask.data.units import unit_weights
from halfmask.errors import InputError
from halfmask.features import FeatureMap
from halfmask.mechanisms.clipping import clip_rows
from halfmask.mechanisms.release import Releaser
from halfmask.mechanisms.shards import own_place
from halfmask.methods.fitted import (
    LinearFit,
    coded_targets,
    in_label_units,
    private_levels_only,
)
from halfmask.methods.moments import (
    LabelCoding,
    Moments,
    MomentSums,
    PublicBasis,
    RowBounds,
    block_shapes,
    check_row_norms,
    choose_weights,
    public_basis,
)
from halfmask.table import Table


@dataclass(frozen=True, kw_only=True)
class OneShotConfig:
    """Constants fixed beforehand: nothing here follows from private values.

    `whiten` is the power of the public whitening (1 is full), `constant` the size of the constant
    coordinate relative to a typical row, `row_quantile` the length to which longer public rows are
    weighed down, and `coefficient` the guessed size of the coefficients, which sets how the noise
    is shared between second moments and products with the label. `feature_map` maps the public
    part; it is fitted on public values alone.
    """

    method: ClassVar[str] = "one-shot"

    whiten: float = 0.25
    constant: float = 0.3
    row_quantile: float = 0.5
    coefficient: float = 0.5
    feature_map: FeatureMap | None = None

    def __post_init__(self) -> None:
        if not (0 <= self.whiten <= 1 and 0 < self.row_quantile <= 1):
            raise InputError("Expected whiten in [0, 1] and row_quantile in (0, 1].")
        if not (0 < self.constant < math.inf and 0 < self.coefficient < math.inf):
            raise InputError("Expected constant > 0 and coefficient > 0, both finite.")


def fit_one_shot(
    table: Table, releaser: Releaser, config: OneShotConfig | None = None
) -> LinearFit:
    """A linear model from one Gaussian release within the releaser's budget.

    Guarantee: docs/proofs/one_shot.md.
    """
    return plan_one_shot(table, releaser, releaser.budget, config or OneShotConfig())()


def plan_one_shot(
    table: Table, releaser: Releaser, budget: Budget, config: OneShotConfig
) -> Callable[[], LinearFit]:
    """Open the release, for `budget`; what is returned makes it, once, and fits the model.

    The outputs are log-odds for two classes, log-probabilities up to a constant for more, and
    values for a number. A feature map is fitted here, on the public block alone.
    Guarantee: docs/proofs/one_shot.md.
    """
    feature_map = config.feature_map
    label, bounds = _coded_label(table), _bounds(table)
    shards = releaser.shards
    if not table.label_private:
        label = shards.gather(label)
    mapped, private = (feature_rows(table, private=each) for each in (False, True))
    if feature_map is not None:
        # A map needs numbers.
        mapped = feature_map.fit_transform(shards.gather(table.public))
    elif shards.count > 1:
        mapped = gathered(mapped, shards)
    basis = public_basis(
        mapped,
        # A map given by the user is trusted to have put its features on the scale it wants.
        whiten=config.whiten if feature_map is None else None,
        constant=config.constant,
        row_quantile=config.row_quantile,
    )
    bounds = replace(bounds, public=basis.norm)
    private = _enforced(private, bounds)
    known = _known_label(table) if not private.shape[1] else None
    if known is not None:
        label = known.rest(label)
        known = replace(known, middle=shards.gather(known.middle))
    if table.unit is not None:
        check_row_norms(basis.rows, basis.row_weights, bounds)
        shapes = block_shapes(basis.rows.shape[1], private.shape[1], label.shape[1], bounds)
        unit = unit_weights(
            table.unit,
            numbers=sum(math.prod(shape) for shape in shapes.values()),
            mu=budget.mu,
            relation=releaser.relation,
        )
        basis = replace(basis, row_weights=basis.row_weights * unit.rows)
        bounds = replace(bounds, rows=unit.most)
    sums = MomentSums(
        public=basis.rows,
        private=private,
        label=label,
        row_weights=basis.row_weights,
        bounds=bounds,
        weights=choose_weights(bounds, coefficient=config.coefficient),
        own=own_place(table.n, shards),
    )
    sensitivity = sums.sensitivity()
    noise_std = sensitivity.under(releaser.relation) / budget.mu
    series = releaser.gaussian_series(
        sensitivity=sensitivity, noise_std=noise_std, count=1, what=_words(table)
    )

    def fit() -> LinearFit:
        moments = sums.read(series.release(sums.exact()), noise_std)
        if known is not None:
            moments = known.adjusted(moments, basis)
        if bounds.non_negative:
            zeroed = known_zeros(moments.private_private, table.private_sources)
            moments = replace(moments, private_private=zeroed)
        if private.shape[1]:
            coef, intercept, chosen = _from_moments(table, basis, moments)
        else:
            coef, intercept, chosen = _from_sums(table, basis, moments, known)
        return LinearFit(coef=coef, intercept=intercept, details=chosen, feature_map=feature_map)

    return fit


def _coded_label(table: Table) -> np.ndarray:
    """One column in [-1, 1] for two classes or a number, one-hot columns for more classes.

    A missing label is the middle of all codes, so that no bound grows by it
    (docs/proofs/missing_labels.md).
    """
    classes = len(table.classes or ())
    coded = coded_targets(table, classes if classes > 2 else 1)
    return 2 * coded - 1 if classes == 2 else coded


def _bounds(table: Table) -> RowBounds:
    """What the declaration promises about private parts; the public norm is filled in later."""
    many = table.classes is not None and len(table.classes) > 2
    coding: LabelCoding = "one-hot" if many else "signed"
    if not (table.widths[1] or table.label_private):
        raise InputError("Nothing is private: any ordinary method serves better.")
    return RowBounds(
        public=0.0,
        private=table.private_norm if table.widths[1] else 0.0,
        label=coding if table.label_private else "public",
        non_negative=private_levels_only(table),
        rows=table.rows_per_unit,
    )


def _words(table: Table) -> str:
    """What is released, in public words."""
    label = "label" if table.label_private else "public label"
    if not table.widths[1]:
        return "sums of public features by label"
    return f"second moments of private features, with public features and the {label}"


def _enforced(private: Rows, bounds: RowBounds) -> Rows:
    """Private rows within what the declaration promised; codes are, by construction."""
    if isinstance(private, RowMatrix):
        return private
    squares = np.einsum("ij,ij->i", private, private)
    # √k squared may fall short of k; the releaser's reserve covers such rounding many times.
    if not (squares <= bounds.private**2 * (1 + 1e-12)).all():
        private = clip_rows(private, bounds.private)
    if bounds.non_negative and private.min(initial=0.0) < 0:
        private = np.maximum(private, 0.0)
    return private


@dataclass(frozen=True, kw_only=True, eq=False)
class _KnownLabel:
    """What is public of a private label, as codes: y = middle + reach · rest, |rest| at most 1.

    For classes `groups` (classes x groups) says which go together, `middle` has one column per
    group (which of them a row is in), and the label itself is released: the sums of a group are
    known.
    Guarantee: docs/proofs/one_shot.md, Theorem 4.
    """

    middle: np.ndarray
    reach: float = 1.0
    groups: np.ndarray | None = None

    def rest(self, label: np.ndarray) -> np.ndarray:
        """What is left to release: of a number its place around the middle."""
        if self.groups is not None:
            return label
        rest: np.ndarray = np.clip((label - self.middle) / self.reach, -1, 1)
        return rest

    def adjusted(self, moments: Moments, basis: PublicBasis) -> Moments:
        """The noisy sums less what is known of their noise: the sums of a group are public."""
        if self.groups is None:
            return moments
        sizes, noisy = self.groups.sum(axis=0), moments.public_label
        error = (noisy @ self.groups - self._exact(basis)) / sizes
        remaining = 1 - len(sizes) / len(self.groups)
        return replace(
            moments,
            public_label=noisy - error @ self.groups.T,
            public_label_variance=moments.public_label_variance * remaining,
        )

    def added(self, coef: np.ndarray, moments: Moments, basis: PublicBasis) -> np.ndarray:
        """Coefficients of what was released, with those of the public part, which has no noise."""
        exact = self._exact(basis)
        public = replace(moments, public_label_variance=0.0)
        if self.groups is None:
            return _ridge(public, exact, 1.0).coef + self.reach * coef
        # Chances of a group from its exact sums; of a class within its group from the noisy ones.
        sizes = self.groups.sum(axis=0)
        many = len(sizes)
        even = crossed(basis.rows, basis.row_weights) / many
        ridge = _ridge(public, exact - even[:, None], 1 / many * (1 - 1 / many))
        between = softmax_of_ridge(basis.rows, basis.row_weights, exact, ridge, 0.0)
        between[0] -= np.log(sizes) / basis.constant
        within = coef - (coef @ self.groups / sizes) @ self.groups.T
        both: np.ndarray = within + between @ self.groups.T
        return both

    def _exact(self, basis: PublicBasis) -> np.ndarray:
        return crossed(basis.rows, self.middle * basis.row_weights[:, None])


def _known_label(table: Table) -> _KnownLabel | None:
    known = None if table.schema is None else PublicLabel.of(table.schema.label)
    if known is None:
        return None
    assert table.label is not None
    if known.groups:
        groups = np.eye(max(known.groups) + 1)[list(known.groups)]
        return _KnownLabel(middle=groups[np.asarray(table.label)], groups=groups)
    assert table.label_bounds is not None
    low, high = table.label_bounds
    half = (high - low) / 2
    middles, reach = known.middles(np.asarray(table.label, dtype=np.float64))
    return _KnownLabel(middle=((middles - (high + low) / 2) / half)[:, None], reach=reach / half)


def _from_sums(
    table: Table, basis: PublicBasis, moments: Moments, known: _KnownLabel | None
) -> tuple[np.ndarray, np.ndarray, dict[str, Any]]:
    """All features public: the label's sums are all that is needed."""
    classes = len(table.classes or ())
    sums, noise = moments.public_label, moments.public_label_variance
    chosen: dict[str, Any] = {}
    if classes > 2:
        # Around 1/K the sums of rare classes start from a prior of equal shares.
        even = crossed(basis.rows, basis.row_weights) / classes
        ridge = _ridge(moments, sums - even[:, None], 1 / classes * (1 - 1 / classes))
        coef = softmax_of_ridge(basis.rows, basis.row_weights, sums, ridge, noise)
        head = "softmax"
    elif classes:
        ridge = _ridge(moments, sums, 1.0)
        coef, factor = logistic_from_sums(basis.rows, basis.row_weights, sums, ridge, noise)
        # Under much noise the best model can be the constant one, with no finite penalty.
        chosen["penalty_factor"] = factor if math.isfinite(factor) else None
        head = "logistic"
    else:
        ridge = _ridge(moments, sums, 1.0)
        coef, head = ridge.coef, "ridge"
    if known is not None:
        coef = known.added(coef, moments, basis)
    slopes, intercept = basis.unfold(coef)
    if not classes:
        slopes, intercept = in_label_units(table, slopes, intercept)
    chosen |= {"head": head, "prior": ridge.prior, "label_variance": ridge.label_variance}
    return slopes.T, intercept, chosen


def _from_moments(
    table: Table, basis: PublicBasis, moments: Moments
) -> tuple[np.ndarray, np.ndarray, dict[str, Any]]:
    """Private features: ridge from moments, and for classes a discriminant of its scores."""
    classes = len(table.classes or ())
    scale = 1.0 if classes <= 2 else 1 / classes * (1 - 1 / classes)
    fit = solve_moments(moments, private_norm=table.private_norm, label_scale=scale)
    coef = np.vstack([fit.public, fit.private])
    chosen = {"public_prior": fit.alone.prior, "private_prior": fit.private_prior}
    if not classes:
        slopes, intercept = _unfold(basis, coef)
        slopes, intercept = in_label_units(table, slopes, intercept)
        return slopes.T, intercept, {"head": "ridge", **chosen}
    gram = np.block(
        [
            [moments.public_public, moments.public_private],
            [moments.public_private.T, moments.private_private],
        ]
    )
    # Fitted rather than counted: under much noise the shares fall back to equal ones.
    counts = crossed(basis.rows, basis.row_weights) @ fit.alone.coef
    if classes == 2:
        # From one signed score to those of both classes: (1 ∓ f)/2.
        coef = np.hstack([-coef, coef]) / 2
        coef[0] += 0.5 / basis.constant
        counts = (moments.rows + np.array([-1.0, 1.0]) * counts) / 2
    coef, offsets = discriminant(coef, gram, counts)
    head = "discriminant"
    if classes == 2:
        coef, offsets = coef[:, 1:] - coef[:, :1], offsets[1:] - offsets[:1]
        if table.widths[0]:
            coef, offsets = _on_logistic(basis, moments, fit, coef), np.zeros(1)
            head = "logistic and discriminant"
    slopes, intercept = _unfold(basis, coef)
    return slopes.T, intercept + offsets, {"head": head, **chosen}


def _on_logistic(
    basis: PublicBasis, moments: Moments, fit: MomentFit, coef: np.ndarray
) -> np.ndarray:
    """Log-odds of the public part by logistic regression, plus what the private part adds to it.

    The private score enters less its regression on the public part, so that nothing counts twice
    and a private part that noise has shrunk to nothing leaves the model of the public columns.
    """
    width = basis.rows.shape[1]
    alone, _ = logistic_from_sums(
        basis.rows,
        basis.row_weights,
        moments.public_label,
        fit.alone,
        moments.public_label_variance,
    )
    added = coef[width:]
    return np.vstack([alone - fit.regression @ added, added])


def _unfold(basis: PublicBasis, coef: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    width = basis.rows.shape[1]
    slopes, intercept = basis.unfold(coef[:width])
    return np.vstack([slopes, coef[width:]]), intercept


def _ridge(moments: Moments, statistic: np.ndarray, label_scale: float) -> Ridge:
    return evidence_ridge(
        moments.public_public,
        statistic,
        rows=moments.rows,
        statistic_variance=moments.public_label_variance,
        label_scale=label_scale,
    )


_PRIOR_STEPS = 49
_HIGHEST = 1.0
# Bounds of a number are often far wider than its values, so the prior's range reaches far down.
_LOWEST = 1e-9
_UNEXPLAINED = (99.0, 9.0, 2.3, 1.0, 0.43, 0.11)
"""Variance of the label that the features leave, over what they explain: 1% to 90% explained."""
_LOST = 1e-12


@dataclass(frozen=True, kw_only=True, eq=False)
class Ridge:
    """The posterior mean of the coefficients, and the penalty matrix that gives it.

    `coef` solves (G + penalty)·w = S on the directions in `basis`; it is 0 on all others.
    """

    coef: np.ndarray
    basis: np.ndarray
    eigenvalues: np.ndarray
    penalty: np.ndarray
    prior: float
    label_variance: float


def evidence_ridge(
    gram: np.ndarray,
    statistic: np.ndarray,
    *,
    rows: float,
    statistic_variance: float,
    gram_variance: float = 0.0,
    row_square: float = 0.0,
    label_scale: float = 1.0,
) -> Ridge:
    """Coefficients (width x targets) for `statistic` ≈ `gram` @ w.

    `gram` is a sum over `rows` rows (or their total weight), each of mean square `row_square` where
    noise hides it. `statistic_variance` and `gram_variance` are those of the noise on an entry;
    `label_scale` is the variance of a label that nothing explains.
    """
    width, targets = statistic.shape
    values, vectors = np.linalg.eigh((gram + gram.T) / 2)
    # A noisy Gram matrix can have negative eigenvalues; a real one cannot.
    kept = values > _LOST * max(float(values.max(initial=0.0)), _LOST)
    values, vectors = values[kept], vectors[:, kept]
    if not values.size:
        empty = np.zeros((width, targets))
        return Ridge(
            coef=empty,
            basis=vectors,
            eigenvalues=values,
            penalty=values,
            prior=0.0,
            label_variance=label_scale,
        )
    energy = vectors.T @ statistic
    power = (energy**2).sum(axis=1)
    # Scores with this prior vary as much as labels do; a prior far above it can only be noise.
    full = label_scale * rows / max(float(values.sum()), rows * row_square)
    priors = (full * np.geomspace(_LOWEST, _HIGHEST, _PRIOR_STEPS))[:, None, None]
    # τ and s² cannot be told apart by S where all eigenvalues are alike; their ratio has a range.
    explained = priors * (float(values.sum()) / rows)
    labels = np.minimum(explained * np.asarray(_UNEXPLAINED)[None, :, None], label_scale)
    moment_noise = gram_variance * len(values)
    variance = priors * (values**2 + moment_noise) + labels * values + statistic_variance
    fit = targets * np.log(variance).sum(axis=2) + (power / variance).sum(axis=2)
    likely = np.exp((fit.min() - fit) / 2)[:, :, None]
    likely /= likely.sum()
    # The mean over all strengths, weighted by likelihood: a release that cannot tell them apart is
    # not taken for the one that happens to fit best.
    shrink = (likely * (priors * values / variance)).sum(axis=(0, 1))
    penalty = 1 / shrink - values
    return Ridge(
        coef=vectors @ (shrink[:, None] * energy),
        basis=vectors,
        eigenvalues=values,
        penalty=np.maximum(penalty, 0.0),
        prior=float(np.exp((likely * np.log(priors)).sum())),
        label_variance=float((likely * labels).sum()),
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class MomentFit:
    """Coefficients for the public and the private part, and what they were made from.

    `alone` is the ridge of the label on the public part only, `regression` (public x private) that
    of the private part on the public one.
    """

    public: np.ndarray
    private: np.ndarray
    alone: Ridge
    regression: np.ndarray
    private_prior: float


def solve_moments(moments: Moments, *, private_norm: float, label_scale: float) -> MomentFit:
    """Ridge regression of the coded label on [public | private]; ‖private‖ ≤ `private_norm`."""
    first = _ridge(moments, moments.public_label, label_scale)
    width = max(moments.private_private.shape[0], 1)
    onto = evidence_ridge(
        moments.public_public,
        moments.public_private,
        rows=moments.rows,
        statistic_variance=moments.public_private_variance,
        label_scale=private_norm**2 / width,
    )
    regression = onto.coef
    # The second moment of what the public part leaves of the private one, whatever its regression.
    crossed = regression.T @ moments.public_private
    residual = (
        moments.private_private
        - crossed
        - crossed.T
        + regression.T @ moments.public_public @ regression
    )
    explained = float((first.coef**2).sum(axis=0).mean())
    spread = float((regression**2).sum(axis=0).mean()) if regression.size else 0.0
    second = evidence_ridge(
        residual,
        moments.private_label
        - regression.T @ moments.public_label
        - (moments.public_private - moments.public_public @ regression).T @ first.coef,
        rows=moments.rows,
        statistic_variance=moments.private_label_variance
        + moments.public_private_variance * explained
        + moments.public_label_variance * spread,
        gram_variance=moments.private_private_variance
        + 2 * moments.public_private_variance * spread,
        row_square=private_norm**2,
        label_scale=label_scale,
    )
    public = first.coef - regression @ second.coef
    return MomentFit(
        public=public,
        private=second.coef,
        alone=first,
        regression=regression,
        private_prior=second.prior,
    )


def known_zeros(moment: np.ndarray, sources: tuple[str, ...]) -> np.ndarray:
    """The private second moment with the zeros that one-hot columns must have.

    Two levels of one column never occur together, whatever the noise says.
    """
    names = np.asarray(sources)
    same = names[:, None] == names[None, :]
    np.fill_diagonal(same, False)
    return np.where(same, 0.0, moment)


_STEPS = 30
_TOLERANCE = 0.01
"""In units of log-loss summed over rows: far below what a release can tell apart."""
_SHORTEST = 1e-4
_FACTORS = (1024.0, 256.0, 64.0, 16.0, 4.0, 1.0)
_LEAST_VARIANCE = 1e-3
_CURVATURE_ROWS = 4000
_LARGEST_FACTOR = 50.0


def logistic_from_sums(
    rows: Rows, row_weights: np.ndarray, statistic: np.ndarray, ridge: Ridge, noise: float
) -> tuple[np.ndarray, float]:
    """Coefficients (width x 1) of the log-odds, and the factor on the penalty that was chosen.

    `statistic` is Σ weight·row·y with y in {-1, 1} and noise of variance `noise` per entry. Of a
    path of penalties the one with the least estimated loss is taken: the loss reached, plus what
    the fit gained by following release noise and label noise (Stein's and Takeuchi's traces).
    """
    # Coordinates in which linear curvature and penalty add up to 1, for the optimiser.
    scale = 1 / np.sqrt(ridge.eigenvalues + ridge.penalty)
    turned = ridge.basis * scale
    step = max(1, len(rows) // _CURVATURE_ROWS)
    some, some_weights = block(rows, slice(None, None, step)) @ turned, row_weights[::step]
    some_weights = some_weights * (len(rows) / max(len(some), 1))
    # No labels could give sums beyond these.
    furthest = _absolute_sums(rows, row_weights)
    possible = np.clip(statistic[:, 0], -furthest, furthest)
    # Σ weight·row·t with t in {0, 1}, from the signed sums and the public ones.
    target = scale * (ridge.basis.T @ (possible + crossed(rows, row_weights))) / 2
    release_noise = scale**2 * noise / 4
    base = scale**2 * ridge.penalty * max(ridge.label_variance / 4, _LEAST_VARIANCE)

    def loss(penalty: np.ndarray, w: np.ndarray) -> tuple[float, np.ndarray]:
        odds = rows_times(rows, turned @ w)
        value = -float(row_weights @ log_expit(-odds)) - float(target @ w)
        gradient = turned.T @ crossed(rows, row_weights * expit(odds)) - target
        return value + float(penalty @ w**2) / 2, gradient + penalty * w

    w = np.zeros(turned.shape[1])
    # A release that says nothing must leave even odds.
    best = (float(row_weights.sum()) * float(np.log(2)), w, np.inf)
    before = np.inf
    for factor in _FACTORS:
        penalty = factor * base
        bend = partial(_curvature, some, some_weights, penalty)
        w, value, curvature = _minimise(partial(loss, penalty), bend, w)
        inverse = np.linalg.inv(curvature)
        # trace(H⁻¹·(H − penalty)) for label noise, trace(H⁻¹·noise) for the release.
        spread = np.diag(inverse)
        gained = float(spread @ release_noise) + len(w) - float(spread @ penalty)
        estimate = value - float(penalty @ w**2) / 2 + gained
        if estimate < best[0]:
            best = (estimate, w, factor)
        if estimate >= before:
            break
        before = estimate
    coef: np.ndarray = ridge.basis @ (scale * best[1])
    return coef[:, None], best[2]


def _minimise(
    loss: Callable[[np.ndarray], tuple[float, np.ndarray]],
    curvature: Callable[[np.ndarray], np.ndarray],
    w: np.ndarray,
) -> tuple[np.ndarray, float, np.ndarray]:
    """Damped Newton steps: the minimiser, its value and the curvature there."""
    value, gradient = loss(w)
    hessian = curvature(w)
    for _ in range(_STEPS):
        step = np.linalg.solve(hessian, gradient)
        decrease = float(gradient @ step)
        if decrease <= _TOLERANCE:
            break
        length = 1.0
        while length > _SHORTEST:
            tried, slope = loss(w - length * step)
            if tried <= value - 0.1 * length * decrease:
                break
            length /= 2
        else:
            break
        w, value, gradient = w - length * step, tried, slope
        hessian = curvature(w)
    return w, value, hessian


def _absolute_sums(rows: Rows, row_weights: np.ndarray) -> np.ndarray:
    parts = in_order(
        parts_of(len(rows)),
        lambda part: row_weights[part] @ np.abs(block(rows, part)),
        numbers=math.prod(rows.shape),
    )
    return sum(parts, np.zeros(rows.shape[1]))


def _curvature(
    some: np.ndarray, weights: np.ndarray, penalty: np.ndarray, w: np.ndarray
) -> np.ndarray:
    """The Hessian, from an even sample of the public rows where there are many."""
    chance = expit(some @ w)
    scaled = some * np.sqrt(weights * chance * (1 - chance))[:, None]
    hessian: np.ndarray = scaled.T @ scaled + np.diag(penalty)
    return hessian


def softmax_of_ridge(
    rows: Rows, row_weights: np.ndarray, statistic: np.ndarray, ridge: Ridge, noise: float
) -> np.ndarray:
    """The linear scores of one-hot labels times the one factor that fits the log-loss best.

    A full softmax would chase the noise where classes are far apart and its curvature vanishes; one
    factor cannot. The noise that the scores share with the statistic (variance `noise` per entry)
    is taken out of their product by Stein's identity.
    """
    scores = rows_times(rows, ridge.coef)
    shared = noise * statistic.shape[1] * float((1 / (ridge.eigenvalues + ridge.penalty)).sum())
    product = float((statistic * ridge.coef).sum()) - shared

    def loss(factor: float) -> float:
        level = float(row_weights @ logsumexp(factor * scores, axis=1))
        return float(level - factor * product)

    found = minimize_scalar(loss, bounds=(0.0, _LARGEST_FACTOR), method="bounded")
    coef: np.ndarray = ridge.coef * found.x
    return coef


# The least share of a class and the most of its covariance that a discriminant believes in.
_LEAST_SHARE = 1e-3
_MOST_EXPLAINED = 0.75


def discriminant(
    coef: np.ndarray, gram: np.ndarray, counts: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """(width x classes) coefficients and offsets of class log-probabilities, up to a constant.

    Scores f that are least-squares (or posterior mean) estimates of one-hot labels y have mean π,
    the shares of the classes, and cov(f, y) = cov(f). If they are Gaussian within classes with a
    common covariance, linear discriminant analysis needs nothing but π and
    R = Σ^-½·cov(f)·Σ^-½, the share of the label's covariance Σ = diag(π) − ππᵀ that is explained:

        log P(k | f) = (f − π)ᵀ A (e_k − π) − ½ (e_k − π)ᵀ Σ^-½ R (1 − R)⁻¹ Σ^-½ (e_k − π)
                       + log π_k + …

    with A = Σ^-½ (1 − R)⁻¹ Σ^-½. Nothing is divided by the noisy spread of the scores, so that
    noise cannot blow up the odds. Everything read was released or is public.

    `coef` (width x classes) gives the scores, `gram` is the second moment of the features and
    `counts` the number (or total weight) of rows of each class.
    """
    total = max(float(np.maximum(counts, 0).sum()), 1.0)
    shares = np.maximum(counts / total, _LEAST_SHARE)
    shares = shares / shares.sum()
    values, vectors = np.linalg.eigh(np.diag(shares) - np.outer(shares, shares))
    # The smallest eigenvalue is 0, along (1, …, 1): shares sum to one.
    root = (vectors[:, 1:] / np.sqrt(values[1:])) @ vectors[:, 1:].T
    spread = coef.T @ gram @ coef / total - np.outer(shares, shares)
    explained, axes = np.linalg.eigh(root @ (spread + spread.T) @ root / 2)
    explained = np.clip(explained, 0.0, _MOST_EXPLAINED)
    towards = root @ (np.eye(len(shares)) - shares[:, None])
    slopes = root @ (axes / (1 - explained)) @ axes.T @ towards
    size = (axes * (explained / (1 - explained))) @ axes.T
    offsets = np.log(shares) - 0.5 * np.einsum("ij,ik,kj->j", towards, size, towards)
    return coef @ slopes, offsets - shares @ slopes
