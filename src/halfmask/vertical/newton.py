"""A logistic model of one party's columns by noisy Newton steps.

Gradient descent pays for every step; here most of the budget buys gradients and a little of it buys
curvature, so that twelve gradients are enough, and all of them are used: each tells
    g_t = H(w_t - w*) + noise,
and the next iterate is the posterior mean of w* under these, a normal prior, and a memory that
forgets early steps, taken where H was not yet right. What is released is the Gram matrix, the
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
    """Public settings; `gram_part` and `curvature_part` are shares of the squared ratio μ².

    `prior_std` is the prior standard deviation of a coefficient, `memory` the weight of a step one
    step later.
    """

    steps: int = 12
    gram_part: float = 0.1
    curvature_part: float = 0.1
    memory: float = 0.8
    prior_std: float = 0.7

    def __post_init__(self) -> None:
        if self.steps < 2:
            raise InputError(f"Expected at least 2 Newton steps, got {self.steps}.")
        if not (self.gram_part > 0 and self.curvature_part > 0 and self.gradient_part > 0):
            raise InputError("Expected positive parts for Gram matrix, curvature and gradients.")
        if not (0 < self.memory <= 1 and self.prior_std > 0):
            raise InputError("Expected memory in (0, 1] and prior_std > 0.")

    @property
    def gradient_part(self) -> float:
        """The share of μ² that the gradients get."""
        return 1 - self.gram_part - self.curvature_part


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
    def weight(self) -> float:
        """The largest |p - target|."""
        return 1 + self.target_excess

    @property
    def gradient_replace(self) -> float:
        """How far a gradient sum can move when one row's private part is replaced."""
        same_orthant = self.nonnegative and not self.label_private
        return (math.sqrt(2) if same_orthant else 2) * self.weight * self.row_norm


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
    gradients = ratio * math.sqrt(config.gradient_part)
    matrices = ratio * math.sqrt(1 - config.gradient_part)
    unit = gradients / rows.gradient_replace
    span = 1 + 2 * rows.target_excess
    together = 2 * rows.weight * rows.row_norm * unit
    return ExpertCosts(
        block=ratio,
        withhold=math.hypot(matrices / math.sqrt(2), rows.weight * rows.row_norm * unit),
        label=span * rows.row_norm * unit,
        person=math.hypot(matrices, together),
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
    square = rows.row_norm**2

    def open_series(part: float, count: int, replace: float, withhold: float, of: str) -> _Opened:
        std = replace * math.sqrt(count / part) / ratio
        series = releaser.gaussian_series(
            sensitivity=Sensitivity(replace=replace, withhold=withhold),
            noise_std=std,
            count=count,
            what=f"{what}: {of}",
        )
        return _Opened(series=series, std=std)

    root = math.sqrt(2)
    gram_noise = open_series(config.gram_part, 1, root * square, square, "Gram matrix")
    bend_noise = open_series(config.curvature_part, 1, root * square / 4, square / 4, "curvature")
    step_noise = open_series(
        config.gradient_part,
        config.steps,
        rows.gradient_replace,
        rows.weight * rows.row_norm,
        "gradients",
    )

    gram = _released_gram(block, np.ones(len(targets)), gram_noise)
    values, vectors = _spectrum(gram, gram_noise)
    values = values / 4
    w = np.zeros(columns)
    seen = np.zeros(columns)
    evidence = np.zeros(columns)
    for step in range(config.steps):
        p = expit(block @ w)
        if step == 1:
            # The first iterate is near enough to weigh rows by p(1 - p); what came before is
            # dropped.
            bend = _released_gram(block, p * (1 - p), bend_noise)
            values, vectors = _spectrum(bend, bend_noise)
            seen[:], evidence[:] = 0.0, 0.0
        gradient = step_noise.series.release(np.asarray(block.T @ (p - targets)))
        inner = values * (values * (vectors.T @ w) - vectors.T @ gradient) / step_noise.std**2
        seen = config.memory * seen + inner
        evidence = config.memory * evidence + (values / step_noise.std) ** 2
        w = vectors @ (seen / (evidence + config.prior_std**-2))
    return np.asarray(w, dtype=np.float64)


@dataclass(frozen=True, kw_only=True)
class _Opened:
    series: GaussianSeries
    std: float


def _released_gram(block: Any, weights: Vector, noise: _Opened) -> Vector:
    """Σ weight·xxᵀ with noise that is isotropic in the Frobenius norm of symmetric matrices."""
    if sparse.issparse(block):
        exact = (block.T @ sparse.diags_array(weights) @ block).toarray()
    else:
        exact = block.T @ (block * weights[:, None])
    upper = np.triu_indices(exact.shape[0], 1)
    # Off-diagonal cells occur twice in the norm, so they are released as √2 times themselves.
    packed = np.concatenate([np.diag(exact), math.sqrt(2) * exact[upper]])
    noisy = noise.series.release(packed)
    size = exact.shape[0]
    result = np.diag(noisy[:size])
    result[upper] = noisy[size:] / math.sqrt(2)
    return np.asarray(result + np.triu(result, 1).T, dtype=np.float64)


def _spectrum(matrix: Vector, noise: _Opened) -> tuple[Vector, Vector]:
    """Eigenvalues, held above what noise alone would give, and eigenvectors."""
    values, vectors = np.linalg.eigh(matrix)
    floor = 0.5 * noise.std * math.sqrt(len(values) / 2)
    return np.maximum(values, floor), vectors
