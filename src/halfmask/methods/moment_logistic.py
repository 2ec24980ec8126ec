"""Logistic and softmax regression from noisy class sums of public features.

With public features the labels enter the log-loss only through S = ZᵀY; the log-partition is
exact. Noise in S would leave the loss unbounded below, so the quadratic penalty that the marginal
likelihood chose for the linear model is carried over: where labels have variance v around the
model, logistic coefficients are 1/v times linear ones and the same prior becomes v times the
penalty.
"""

from __future__ import annotations

import numpy as np
from scipy.optimize import minimize, minimize_scalar
from scipy.special import expit, log_expit, logsumexp

from halfmask.methods.evidence import Ridge

_STEPS = 100
_LARGEST_FACTOR = 50.0


def logistic_from_sums(
    rows: np.ndarray, row_weights: np.ndarray, statistic: np.ndarray, ridge: Ridge
) -> np.ndarray:
    """Coefficients (width x 1) of the log-odds; `statistic` is Σ weight·row·y with y in {-1, 1}."""
    design, scale = _whitened(rows, ridge)
    # Σ weight·row·t with t in {0, 1}, from the signed sums and the public ones.
    target = scale * (ridge.basis.T @ (statistic[:, 0] + rows.T @ row_weights)) / 2
    penalty = scale**2 * _penalty(ridge, 4.0)
    weighted = design * row_weights[:, None]

    def loss(w: np.ndarray) -> tuple[float, np.ndarray]:
        odds = design @ w
        value = -float(row_weights @ log_expit(-odds)) - float(target @ w)
        gradient = expit(odds) @ weighted - target
        return value + float(penalty @ w**2) / 2, gradient + penalty * w

    start = np.zeros(design.shape[1])
    found = minimize(loss, start, jac=True, method="L-BFGS-B", options={"maxiter": _STEPS})
    coef: np.ndarray = ridge.basis @ (scale * found.x)
    return coef[:, None]


def softmax_of_ridge(
    rows: np.ndarray, row_weights: np.ndarray, statistic: np.ndarray, ridge: Ridge, noise: float
) -> np.ndarray:
    """The linear scores of one-hot labels times the one factor that fits the log-loss best.

    A full softmax would chase the noise where classes are far apart and its curvature vanishes; one
    factor cannot. The noise that the scores share with the statistic (variance `noise` an entry) is
    taken out of their product by Stein's identity.
    """
    scores = rows @ ridge.coef
    shared = noise * statistic.shape[1] * float((1 / (ridge.eigenvalues + ridge.penalty)).sum())
    product = float((statistic * ridge.coef).sum()) - shared

    def loss(factor: float) -> float:
        level = float(row_weights @ logsumexp(factor * scores, axis=1))
        return level - factor * product

    found = minimize_scalar(loss, bounds=(0.0, _LARGEST_FACTOR), method="bounded")
    coef: np.ndarray = ridge.coef * found.x
    return coef


def _whitened(rows: np.ndarray, ridge: Ridge) -> tuple[np.ndarray, np.ndarray]:
    """Rows in coordinates in which linear curvature and penalty add up to 1, for the optimiser."""
    scale = 1 / np.sqrt(ridge.eigenvalues + ridge.penalty)
    design: np.ndarray = rows @ (ridge.basis * scale)
    return design, scale


def _penalty(ridge: Ridge, coding: float) -> np.ndarray:
    """The linear penalty times the variance of a 0/1 label; a signed one has `coding` times it."""
    return ridge.penalty * max(ridge.label_variance / coding, 1e-3)
