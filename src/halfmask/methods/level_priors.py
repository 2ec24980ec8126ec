"""What a column may be worth, by evidence from one noisy gradient, and how to share a row's norm.

Everything here reads released gradients, released curvatures and known noise.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

Floats = NDArray[np.float64]

_GRID = np.exp(np.linspace(math.log(0.01), math.log(3.0), 24))
# Logs of columns' scales vary about a common one by this much; the common one is guessed weakly.
_SPREAD = 1.2
_COMMON, _COMMON_SPREAD = math.log(0.15), 1.2
# No column gets less than this part of the largest one's norm.
_LEAST_SCALE = 0.03


def times(matrix: Floats, vector: Floats) -> Floats:
    """Each matrix with its vector, over any first axes."""
    found: Floats = (matrix @ vector[..., None])[..., 0]
    return found


def turned(matrix: Floats) -> Floats:
    """Each matrix transposed, over any first axes."""
    found: Floats = np.swapaxes(matrix, -1, -2)
    return found


def evidence(
    gradients: Sequence[Floats],
    curvatures: Sequence[Floats],
    noise_std: float,
    sizes: Sequence[Floats] | None = None,
) -> tuple[Floats, float]:
    """Prior scales of the columns' coefficients, and the log evidence (comparable over `sizes`).

    A gradient is N(0, τ²H² + H + σ²) where coefficients are N(0, τ²). `sizes` multiply coordinates:
    a coefficient of a coordinate of size s has scale τ·s in the coordinates as given. A column may
    have one gradient and curvature per class, in a first axis: they share its scale.
    """
    found = np.zeros((len(gradients), len(_GRID)))
    for place, (gradient, curvature) in enumerate(zip(gradients, curvatures, strict=True)):
        if not gradient.size:
            continue
        size = np.ones(gradient.shape[-1]) if sizes is None else sizes[place]
        found[place] = _by_scale(gradient, curvature, noise_std, size, _GRID)
    logs = np.log(_GRID)
    best, weights = -math.inf, found
    for common in logs:
        prior = -0.5 * ((logs - common) / _SPREAD) ** 2
        prior -= np.logaddexp.reduce(prior)
        each = found + prior
        total = float(np.logaddexp.reduce(each, axis=1).sum())
        total -= 0.5 * ((common - _COMMON) / _COMMON_SPREAD) ** 2
        if total > best:
            best, weights = total, each
    weights = np.exp(weights - np.logaddexp.reduce(weights, axis=1)[:, None])
    scales: Floats = np.sqrt(weights @ _GRID**2)
    return scales, best


def _by_scale(
    gradient: Floats, curvature: Floats, noise_std: float, size: Floats, scales: Floats
) -> Floats:
    """The log density of a gradient, but for a constant, at each of `scales`."""
    noise = curvature + noise_std**2 * np.eye(gradient.shape[-1])
    root = np.linalg.inv(np.linalg.cholesky(noise))
    signal = root @ (curvature * size)
    values, axes = np.linalg.eigh(signal @ turned(signal))
    squares = np.ravel(times(turned(axes), times(root, gradient)) ** 2)
    variance = scales[:, None] ** 2 * np.maximum(np.ravel(values), 0.0) + 1
    constant = -2 * np.log(np.diagonal(root, axis1=-2, axis2=-1)).sum()
    found: Floats = -0.5 * (np.sum(np.log(variance) + squares / variance, axis=1) + constant)
    return found


def log_evidence(gradient: Floats, curvature: Floats, noise_std: float, size: Floats) -> Floats:
    """How much likelier (natural log) a gradient is at each scale of a grid than at scale zero."""
    found = _by_scale(gradient, curvature, noise_std, size, np.append(_GRID, 0.0))
    likelier: Floats = found[:-1] - found[-1]
    return likelier


def allocated(
    curvatures: Sequence[Floats], scales: Floats, radii: Floats, constant: float, noise: float
) -> Floats:
    """Factors in (0, 1] for the columns' vectors that make the expected loss of noise the least.

    A column with factor a has noise `noise`·√(Σ a²r² + constant²)/a; a direction of curvature h and
    prior scale τ then loses h/(1/τ² + h²/(h + σ²)) / 2.
    """
    count = len(curvatures)
    if count < 2:
        return np.ones(count)
    found_values = [np.ravel(np.maximum(np.linalg.eigvalsh(c), 1e-12)) for c in curvatures]
    place = np.repeat(np.arange(count), [len(found) for found in found_values])
    value, scale = np.concatenate(found_values), scales[place]
    squares = radii**2

    def loss(logs: Floats) -> tuple[float, Floats]:
        factors = np.exp(2 * logs)
        total = noise**2 * (factors @ squares + constant**2)
        variance = total / factors[place]
        precision = 1 / scale**2 + value**2 / (value + variance)
        lost = 0.5 * float(np.sum(value / precision))
        each = 0.5 * value**3 / (precision * (value + variance)) ** 2
        by_variance = np.bincount(place, each, minlength=count)
        slope = -2 * by_variance * total / factors
        slope += 2 * float(np.sum(by_variance / factors)) * noise**2 * factors * squares
        return lost, slope

    bounds = [(math.log(_LEAST_SCALE), 1.0)] * count
    options = {"maxiter": 60}
    found = minimize(
        loss, np.zeros(count), jac=True, method="L-BFGS-B", bounds=bounds, options=options
    )
    logs: Floats = found.x
    return np.asarray(np.exp(logs - logs.max()))
