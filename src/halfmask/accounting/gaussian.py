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
from scipy.special import log_ndtr, ndtr

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
    return _end(lambda epsilon: gaussian_delta(mu, epsilon) - delta, towards=2.0)


def gaussian_mu(epsilon: float, delta: float) -> float:
    """The largest sensitivity / std that is (`epsilon`, `delta`)-private."""
    check_epsilon(epsilon)
    check_delta(delta)
    return _largest_mu(float(epsilon), float(delta))


@lru_cache(maxsize=1024)
def _largest_mu(epsilon: float, delta: float) -> float:
    mu = _end(lambda mu: gaussian_delta(mu, epsilon) - delta, towards=0.5)
    if not mu:
        raise AccountingError(f"No noise gives epsilon={epsilon} at delta={delta}.")
    return mu


def _end(excess: Callable[[float], float], *, towards: float) -> float:
    """The point at which `excess` stops being positive, by doubling or halving; not before it.

    `towards` is 2 or ½: beyond the point in that direction nothing is in excess.
    """
    safe = 1.0
    while excess(safe) > 0:
        safe *= towards
    if safe == 0:
        return 0.0
    above = safe
    while excess(above) <= 0:
        safe, above = above, above / towards
    root: float = brentq(excess, above, safe, xtol=1e-300, rtol=1e-13)
    step = 1e-15
    while excess(root) > 0:
        root, step = root + (safe - root) * step, 2 * step
    return root
