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
from typing import Any, ClassVar, Protocol

import numpy as np

from halfmask.accounting.budget import Budget
from halfmask.derived import PublicLabel
from halfmask.encoding import Scaled, declared
from halfmask.errors import InputError
from halfmask.mechanisms.clipping import clip_rows
from halfmask.mechanisms.release import Releaser
from halfmask.mechanisms.shards import own_place
from halfmask.methods.coded_rows import feature_rows
from halfmask.methods.evidence import Ridge, evidence_ridge
from halfmask.methods.fitted import FeatureMap, LinearFit
from halfmask.methods.moment_logistic import logistic_from_sums, softmax_of_ridge
from halfmask.methods.moment_sensitivity import Coding, RowBounds, choose_weights
from halfmask.methods.moment_solve import MomentFit, known_zeros, solve_moments
from halfmask.methods.public_basis import PublicBasis, public_basis
from halfmask.methods.released_moments import (
    Moments,
    check_rows,
    plan_moments,
    released_numbers,
)
from halfmask.methods.targets import coded_targets, in_label_units
from halfmask.row_products import RowMatrix, Rows, crossed
from halfmask.table import Table
from halfmask.units import unit_weights

# The least share of a class and the most of its covariance that a discriminant believes in.
_LEAST_SHARE = 1e-3
_MOST_EXPLAINED = 0.75


class PublicMap(FeatureMap, Protocol):
    """Any transformer of public rows that can be stored; see halfmask.features."""

    def fit_transform(self, X: np.ndarray) -> np.ndarray:
        """Fit on public rows and return their new coordinates."""


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
    feature_map: PublicMap | None = None

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
    if feature_map is not None or shards.count > 1:
        # A map needs numbers, and so do public rows that come from other machines.
        mapped, private = shards.gather(table.public), table.private
        mapped = mapped if feature_map is None else feature_map.fit_transform(mapped)
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
        check_rows(basis.rows, basis.row_weights, bounds)
        unit = unit_weights(
            table.unit,
            numbers=released_numbers(basis.rows.shape[1], private.shape[1], label.shape[1], bounds),
            mu=budget.mu,
            relation=releaser.relation,
        )
        basis = replace(basis, row_weights=basis.row_weights * unit.rows)
        bounds = replace(bounds, rows=unit.most)
    release = plan_moments(
        basis.rows,
        private,
        label,
        row_weights=basis.row_weights,
        bounds=bounds,
        weights=choose_weights(bounds, coefficient=config.coefficient),
        releaser=releaser,
        mu=budget.mu,
        what=_words(table),
        own=own_place(table.n, shards),
    )

    def fit() -> LinearFit:
        moments = release()
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


@dataclass(frozen=True, kw_only=True, eq=False)
class _KnownLabel:
    """What is public of a private label, as codes: y = middle + reach · rest, |rest| at most 1.

    For classes `groups` (classes x groups) says which go together, `middle` has one column a group
    (which of them a row is in), and the label itself is released: the sums of a group are known.
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
        left = 1 - len(sizes) / len(self.groups)
        return replace(
            moments,
            public_label=noisy - error @ self.groups.T,
            public_label_variance=moments.public_label_variance * left,
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


def _ridge(moments: Moments, statistic: np.ndarray, label_scale: float) -> Ridge:
    return evidence_ridge(
        moments.public_public,
        statistic,
        rows=moments.rows,
        statistic_variance=moments.public_label_variance,
        label_scale=label_scale,
    )


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
    coding: Coding = "one-hot" if many else "signed"
    if not (table.widths[1] or table.label_private):
        raise InputError("Nothing is private: any ordinary method serves better.")
    return RowBounds(
        public=0.0,
        private=table.private_norm if table.widths[1] else 0.0,
        label=coding if table.label_private else "public",
        non_negative=_non_negative(table),
        rows=table.rows_per_unit,
    )


def _non_negative(table: Table) -> bool:
    """Whether the declaration makes every private feature a 0/1 level, so that ⟨r, r'⟩ ≥ 0."""
    if table.schema is None or not table.widths[1]:
        return False
    private = [column for column in table.schema.columns if column.role == "private"]
    return not any(isinstance(declared(column), Scaled) for column in private)


def _words(table: Table) -> str:
    """What is released, in public words."""
    label = "label" if table.label_private else "public label"
    if not table.widths[1]:
        return "sums of public features by label"
    return f"second moments of private features, with public features and the {label}"


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
