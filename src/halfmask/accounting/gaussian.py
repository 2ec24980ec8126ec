"""The exact privacy curve of Gaussian releases that are not sampled.

Any number of adaptive Gaussian releases is one Gaussian release with mu = sqrt(sum mu_t²), where
mu_t = sensitivity / noise std is fixed in advance. Balle and Wang 2018 (arXiv:1805.06530v2,
Theorem 8) give the curve; Dong, Roth and Su 2022 (Corollary 3.3) the composition.
Guarantee: docs/proofs/gaussian.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

from scipy.optimize import brentq
from scipy.special import log_ndtr, ndtr, ndtri

from halfmask.accounting.events import check_delta, check_epsilon
from halfmask.errors import AccountingError

_ROUNDING = 2.0**-50


def gaussian_delta(mu: float, epsilon: float) -> float:
    """The smallest delta at `epsilon` of a Gaussian release with sensitivity / std = `mu`.

    delta = Φ(μ/2 − ε/μ) − e^ε Φ(−μ/2 − ε/μ); zero noise-free information (mu = 0) gives 0.
    """
    if mu == 0:
        return 0.0
    near = mu / 2 - epsilon / mu
    far = -mu / 2 - epsilon / mu
    # In the far tail both terms are tiny and nearly equal: subtract their logarithms instead.
    log_near, log_far = float(log_ndtr(near)), epsilon + float(log_ndtr(far))
    left, right = math.exp(log_near), math.exp(min(log_far, 0.0))
    if log_far >= log_near:
        difference = 0.0
    elif log_near > -1:
        difference = max(0.0, float(ndtr(near)) - right)
    else:
        difference = left * -math.expm1(log_far - log_near)
    # What rounding of the arguments and logarithms can hide is added, never left out.
    rounding = left * (1 + abs(near) * (mu + epsilon / mu)) + right * (1 + far**2 + epsilon)
    return min(1.0, difference + _ROUNDING * rounding)


def gaussian_epsilon(mu: float, delta: float) -> float:
    """The smallest epsilon >= 0 at `delta` of a Gaussian release with sensitivity / std = `mu`."""
    check_delta(delta)
    if not (math.isfinite(mu) and mu >= 0):
        raise AccountingError(f"Expected a finite sensitivity-to-noise ratio >= 0, got {mu}.")
    if gaussian_delta(mu, 0.0) <= delta:
        return 0.0
    # Φ(μ/2 − ε/μ) <= δ at this ε, so the root lies below it.
    high = mu * (mu / 2 - float(ndtri(delta))) + 1e-12
    while gaussian_delta(mu, high) > delta:
        high *= 1 + 1e-6

    def excess(epsilon: float) -> float:
        return gaussian_delta(mu, epsilon) - delta

    root = brentq(excess, 0.0, high, xtol=1e-14, rtol=1e-14)
    return _made_safe(max(root, 1e-300), excess, upwards=1)


def gaussian_mu(epsilon: float, delta: float) -> float:
    """The largest sensitivity / std that is (`epsilon`, `delta`)-private."""
    check_epsilon(epsilon)
    check_delta(delta)
    return _largest_mu(float(epsilon), float(delta))


@lru_cache(maxsize=1024)
def _largest_mu(epsilon: float, delta: float) -> float:
    high = 1.0
    while gaussian_delta(high, epsilon) <= delta:
        high *= 2
    low = high
    while gaussian_delta(low, epsilon) > delta:
        low /= 2
        if low < 1e-300:
            raise AccountingError(f"No noise gives epsilon={epsilon} at delta={delta}.")

    def excess(mu: float) -> float:
        return gaussian_delta(mu, epsilon) - delta

    return _made_safe(brentq(excess, low, high, xtol=1e-300, rtol=1e-13), excess, upwards=-1)


def _made_safe(root: float, excess: Callable[[float], float], *, upwards: int) -> float:
    """`root` moved by steps that double, up (1) or down (-1), until nothing is in excess."""
    step = 1e-15
    while excess(root) > 0:
        root, step = root * (1 + upwards * step), 2 * step
    return root
