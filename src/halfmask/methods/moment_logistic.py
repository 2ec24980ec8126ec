"""Logistic and softmax regression from noisy class sums of public features.

With public features the labels enter the log-loss only through S = ZᵀY; the log-partition is
exact. Noise in S would leave the loss unbounded below, so the quadratic penalty that the marginal
likelihood chose for the linear model is carried over: where labels have variance v around the
model, logistic coefficients are 1/v times linear ones and the same prior becomes v times the
penalty.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import numpy as np
from scipy.optimize import minimize_scalar
from scipy.special import expit, log_expit, logsumexp

from halfmask.methods.evidence import Ridge
from halfmask.row_products import Rows, block, crossed, in_order, parts_of, times

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

    `statistic` is Σ weight·row·y with y in {-1, 1} and noise of variance `noise` an entry. Of a
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
        odds = times(rows, turned @ w)
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
    factor cannot. The noise that the scores share with the statistic (variance `noise` an entry) is
    taken out of their product by Stein's identity.
    """
    scores = times(rows, ridge.coef)
    shared = noise * statistic.shape[1] * float((1 / (ridge.eigenvalues + ridge.penalty)).sum())
    product = float((statistic * ridge.coef).sum()) - shared

    def loss(factor: float) -> float:
        level = float(row_weights @ logsumexp(factor * scores, axis=1))
        return float(level - factor * product)

    found = minimize_scalar(loss, bounds=(0.0, _LARGEST_FACTOR), method="bounded")
    coef: np.ndarray = ridge.coef * found.x
    return coef
