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

_STEPS = 60
_FACTORS = (256.0, 64.0, 16.0, 4.0, 1.0)
_LEAST_VARIANCE = 1e-3
_CURVATURE_ROWS = 4000
_LARGEST_FACTOR = 50.0


def logistic_from_sums(
    rows: np.ndarray, row_weights: np.ndarray, statistic: np.ndarray, ridge: Ridge, noise: float
) -> tuple[np.ndarray, float]:
    """Coefficients (width x 1) of the log-odds, and the factor on the penalty that was chosen.

    `statistic` is Σ weight·row·y with y in {-1, 1} and noise of variance `noise` an entry. Of a
    path of penalties the one with the least estimated loss is taken: the loss reached, plus what
    the fit gained by following release noise and label noise (Stein's and Takeuchi's traces).
    """
    design, scale = _whitened(rows, ridge)
    # Σ weight·row·t with t in {0, 1}, from the signed sums and the public ones.
    target = scale * (ridge.basis.T @ (statistic[:, 0] + rows.T @ row_weights)) / 2
    release_noise = scale**2 * noise / 4
    weighted = design * row_weights[:, None]
    base = scale**2 * ridge.penalty * max(ridge.label_variance / 4, _LEAST_VARIANCE)

    def loss(w: np.ndarray, penalty: np.ndarray) -> tuple[float, np.ndarray]:
        odds = design @ w
        value = -float(row_weights @ log_expit(-odds)) - float(target @ w)
        gradient = expit(odds) @ weighted - target
        return value + float(penalty @ w**2) / 2, gradient + penalty * w

    best = (np.inf, np.zeros(design.shape[1]), 0.0)
    w = best[1]
    for factor in _FACTORS:
        penalty = factor * base
        found = minimize(
            loss, w, args=(penalty,), jac=True, method="L-BFGS-B", options={"maxiter": _STEPS}
        )
        w = found.x
        curvature = _curvature(design, row_weights, w)
        inverse = np.linalg.inv(curvature + np.diag(penalty))
        gained = float(np.diag(inverse) @ release_noise) + float((inverse * curvature).sum())
        estimate = float(found.fun) - float(penalty @ w**2) / 2 + gained
        if estimate < best[0]:
            best = (estimate, w, factor)
    coef: np.ndarray = ridge.basis @ (scale * best[1])
    return coef[:, None], best[2]


def _curvature(design: np.ndarray, row_weights: np.ndarray, w: np.ndarray) -> np.ndarray:
    """The Hessian of the log-loss, from an even sample of the public rows where there are many."""
    step = max(1, len(design) // _CURVATURE_ROWS)
    rows = design[::step]
    chance = expit(rows @ w)
    share = row_weights[::step] * chance * (1 - chance) * (len(design) / max(len(rows), 1))
    hessian: np.ndarray = (rows * share[:, None]).T @ rows
    return hessian


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
        return float(level - factor * product)

    found = minimize_scalar(loss, bounds=(0.0, _LARGEST_FACTOR), method="bounded")
    coef: np.ndarray = ridge.coef * found.x
    return coef


def _whitened(rows: np.ndarray, ridge: Ridge) -> tuple[np.ndarray, np.ndarray]:
    """Rows in coordinates in which linear curvature and penalty add up to 1, for the optimiser."""
    scale = 1 / np.sqrt(ridge.eigenvalues + ridge.penalty)
    design: np.ndarray = rows @ (ridge.basis * scale)
    return design, scale
