"""A logistic model of one party's columns by noisy Newton steps.

Gradient descent pays for every step; here most of the budget buys gradients and a little of it buys
curvature, so that a few dozen gradients are enough, and all of them are used: each tells
    g_t = H(w_t - w*) + noise,
and the next iterate is the posterior mean of w* under these, a normal prior, and a memory that
forgets early steps, taken where H was not yet right. Where the label is public, slopes p − t are
weighed by ω(p), which halves how far a row moves a gradient and leaves the model calibrated, as in
`additive`. What is released is the Gram matrix, the
curvature at the second iterate and the gradients; everything else is post-processing.

Guarantee: docs/proofs/experts.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import sparse
from scipy.special import expit

from halfmask.errors import InputError
from halfmask.mechanisms.release import GaussianSeries, Releaser, Sensitivity
from halfmask.vertical.block import Vector
from halfmask.vertical.rows import bounded_rows


@dataclass(frozen=True, kw_only=True)
class NewtonConfig:
    """Public settings: gradients, the weight of a step one step later, and the prior.

    `prior_reach` is the prior standard deviation of a coefficient times the row norm. The defaults
    are the best of a grid on held-out training rows of a9a (docs/vertical.md).
    """

    steps: int = 48
    memory: float = 0.85
    prior_reach: float = 2.0

    def __post_init__(self) -> None:
        if self.steps < 2:
            raise InputError(f"Expected at least 2 Newton steps, got {self.steps}.")
        if not (0 < self.memory <= 1 and self.prior_reach > 0):
            raise InputError("Expected memory in (0, 1] and prior_reach > 0.")

    @property
    def releases(self) -> int:
        """The gradients, the Gram matrix and the curvature: each gets an equal share of μ²."""
        return self.steps + 2


@dataclass(frozen=True, kw_only=True)
class ExpertRows:
    """What is known of the rows before they are seen: the norm, the signs, the range of targets.

    `target_excess` is a for targets in {-a, 1 + a}: 0 for true labels, more for labels that were
    randomised and debiased. `label_private`: the label is replaced together with the block.
    """

    row_norm: float
    nonnegative: bool
    label_private: bool
    target_excess: float = 0.0

    @property
    def longest(self) -> float:
        """The largest slope of a row: |p - target| times its weight (see `slope_weights`)."""
        return (1.0 if self.label_private else 0.5) + self.target_excess

    @property
    def gradient_replace(self) -> float:
        """How far a gradient sum can move when one row's private part is replaced."""
        same_orthant = self.nonnegative and not self.label_private
        return (math.sqrt(2) if same_orthant else 2) * self.longest * self.row_norm

    @property
    def withheld(self) -> float:
        """How far every release moves for a withheld row, in parts of its unit."""
        return self.longest * self.row_norm / self.gradient_replace

    @property
    def matrix_unit(self) -> float:
        """The unit of Σ xxᵀ: a withheld row moves it by `withheld`, a replaced one by at most 1."""
        return self.row_norm**2 / self.withheld

    def slope_weights(self, p: Vector) -> Vector:
        """ω(p) in (0, 1]: weighed by it, no |p - target| exceeds `longest`.

        A function of p alone, so weighed slopes still vanish on average where p is right. Slopes
        are not weighed where the label is private: noise would fall, but a label counts in full at
        p = 1/2, so that its own cost, which the label holder pays to every party, would double.
        """
        if self.label_private:
            return np.ones_like(p)
        further = np.maximum(1 + self.target_excess - p, p + self.target_excess)
        return np.asarray(self.longest / further, dtype=np.float64)


@dataclass(frozen=True, kw_only=True)
class ExpertCosts:
    """μ of one party's training when different things about one row are replaced.

    `label` alone and `person` (block and label) hold for labels that were given in clear.
    """

    block: float
    withhold: float
    label: float
    person: float


def expert_costs(rows: ExpertRows, ratio: float, config: NewtonConfig) -> ExpertCosts:
    """All ratios that follow from calibrating one of them. Guarantee: docs/proofs/experts.md."""
    gradients = ratio * math.sqrt(config.steps / config.releases)
    matrices = ratio * math.sqrt(2 / config.releases)
    unit = gradients / rows.gradient_replace
    span = 1 + 2 * rows.target_excess
    opposite = 2 * rows.longest * rows.row_norm * unit
    return ExpertCosts(
        block=ratio,
        withhold=ratio * rows.withheld,
        label=span * rows.row_norm * unit,
        person=math.hypot(matrices, opposite),
    )


def noisy_newton(
    matrix: Any,
    targets: Vector,
    *,
    rows: ExpertRows,
    ratio: float,
    releaser: Releaser,
    config: NewtonConfig | None = None,
    what: str = "expert",
) -> Vector:
    """Coefficients of a logistic model of `targets` (0 and 1, or their debiased estimates).

    `ratio` is μ for one replaced row over everything released here. The charge is made before the
    first release. Guarantee: docs/proofs/experts.md.
    """
    config = config or NewtonConfig()
    block = bounded_rows(matrix, rows.row_norm)
    low, high = -rows.target_excess, 1 + rows.target_excess
    targets = np.clip(np.asarray(targets, dtype=np.float64), low, high)
    columns = int(block.shape[1])
    std = math.sqrt(config.releases) / ratio
    # One charge for all: every release is made in a unit that no replaced row exceeds, and of which
    # a withheld row moves each of them by the same part.
    series = releaser.gaussian_series(
        sensitivity=Sensitivity(replace=1.0, withhold=rows.withheld),
        noise_std=std,
        count=config.releases,
        what=f"{what}: Gram matrix, curvature and {config.steps} gradients",
    )
    square = rows.matrix_unit
    values, vectors = _released_spectrum(block, np.ones(len(targets)), square, series, std)
    values = values / 4
    w = np.zeros(columns)
    seen = np.zeros(columns)
    evidence = np.zeros(columns)
    noise = std * rows.gradient_replace
    prior = (rows.row_norm / config.prior_reach) ** 2
    for step in range(config.steps):
        p = expit(block @ w)
        weights = rows.slope_weights(p)
        if step == 1:
            # The first iterate is near enough to weigh rows by p(1 - p)ω(p); what came before is
            # dropped.
            bends = p * (1 - p) * weights
            values, vectors = _released_spectrum(block, bends, square / 4, series, std)
            seen[:], evidence[:] = 0.0, 0.0
        exact = np.asarray(block.T @ ((p - targets) * weights)) / rows.gradient_replace
        gradient = rows.gradient_replace * series.release(exact)
        inner = values * (values * (vectors.T @ w) - vectors.T @ gradient) / noise**2
        seen = config.memory * seen + inner
        evidence = config.memory * evidence + (values / noise) ** 2
        w = vectors @ (seen / (evidence + prior))
    return np.asarray(w, dtype=np.float64)


def _released_spectrum(
    block: Any, weights: Vector, bound: float, series: GaussianSeries, std: float
) -> tuple[Vector, Vector]:
    """Eigenvalues and eigenvectors of a noisy Σ weight·xxᵀ, which one row moves by `bound`.

    The noise is isotropic in the Frobenius norm of symmetric matrices; eigenvalues are held above
    what noise alone would give.
    """
    if sparse.issparse(block):
        exact = (block.T @ sparse.diags_array(weights) @ block).toarray()
    else:
        exact = block.T @ (block * weights[:, None])
    size = exact.shape[0]
    upper = np.triu_indices(size, 1)
    # Off-diagonal cells occur twice in the norm, so they are released as √2 times themselves.
    packed = np.concatenate([np.diag(exact), math.sqrt(2) * exact[upper]])
    noisy = bound * series.release(packed / bound)
    result = np.diag(noisy[:size])
    result[upper] = noisy[size:] / math.sqrt(2)
    values, vectors = np.linalg.eigh(result + np.triu(result, 1).T)
    floor = 0.5 * bound * std * math.sqrt(size / 2)
    return np.maximum(values, floor), vectors
