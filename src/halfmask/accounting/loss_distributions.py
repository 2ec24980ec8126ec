"""Privacy loss distributions of single releases, put on a grid by connecting the dots.

Doroshenko et al. 2022 (arXiv:2207.04380v1): take the exact curve delta(epsilon) at the grid points
and draw straight lines (in e^epsilon) between them. The curve is convex, so the lines lie above it,
and the discrete pair that has them as its curve dominates the true one. Everything here is a
closed form evaluated on arrays. Guarantee: docs/proofs/composition.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_ndtr, ndtr

from halfmask.accounting.composition import LossDistribution

Floats = NDArray[np.float64]
Direction = Literal["remove", "add", "replace"]
"""Which of the two tables has the contribution: `replace` is symmetric."""

_MAX_BINS = 1 << 19
_REACH = 11.0  # standard deviations; what lies beyond, 2e-28 a release, counts as infinite loss
_REVERSE: dict[Direction, Direction] = {"remove": "add", "add": "remove", "replace": "replace"}


def accountant_name() -> str:
    """How epsilon is computed, as printed in statements."""
    return (
        "privacy loss distributions by connected dots and tilted FFT, "
        "checked against dp-accounting 0.6"
    )


def _log_mixture(x: Floats | float, noise: float, rate: float) -> Floats:
    """log of ((1−q)N(0) + qN(1)) / N(0) at x."""
    log_keep = math.log1p(-rate) if rate < 1 else -math.inf
    shifted = math.log(rate) + (2 * np.asarray(x, dtype=np.float64) - 1) / (2 * noise**2)
    mixture: Floats = np.logaddexp(log_keep, shifted)
    return mixture


def _reach(noise: float, rate: float, direction: Direction) -> float:
    """The largest loss that is not counted as infinite."""
    if direction == "add":
        return -float(_log_mixture(-_REACH * noise, noise, rate))
    top = 1 + _REACH * noise
    reach = float(_log_mixture(top, noise, rate))
    return reach if direction == "remove" else reach - float(_log_mixture(-top, noise, rate))


def loss_moments(noise: float, rate: float, direction: Direction) -> tuple[float, float]:
    """Standard deviation and largest size of the loss of one sampled release."""
    x = np.linspace(-1 - 13 * noise, 1 + 13 * noise, 8_001)
    log_base = -(x**2) / (2 * noise**2)
    with_row = _log_mixture(x, noise, rate)
    if direction == "remove":
        loss, log_density = with_row, log_base + with_row
    elif direction == "add":
        loss, log_density = -with_row, log_base
    else:
        loss, log_density = with_row - _log_mixture(-x, noise, rate), log_base + with_row
    density = np.exp(log_density - log_density.max())
    density /= density.sum()
    mean = float(density @ loss)
    spread = math.sqrt(float(density @ (loss - mean) ** 2))
    return spread, max(_reach(noise, rate, d) for d in (direction, _REVERSE[direction]))


def _plain(epsilon: Floats, mu: float) -> Floats:
    """delta of N(mu) against N(0): Φ(μ/2 − ε/μ) − e^ε Φ(−μ/2 − ε/μ)."""
    far = np.exp(epsilon + log_ndtr(-mu / 2 - epsilon / mu))
    curve: Floats = np.maximum(ndtr(mu / 2 - epsilon / mu) - far, 0.0)
    return curve


def _sampled_delta(epsilon: Floats, noise: float, rate: float, direction: Direction) -> Floats:
    """The exact delta at each epsilon >= 0 of one Poisson-sampled release.

    remove: P − e^ε Q = q(N(1) − e^ε' N(0)); add: P − e^ε Q = c(N(0) − e^ε'' N(1)); both are plain
    Gaussian curves, so that small rates lose no digits. replace: the loss is monotone in x, and
    loss(x) = ε is a quadratic in e^{x/σ²}.
    """
    if direction == "remove":
        rest = -(1 - rate) * np.exp(-epsilon)
        with np.errstate(over="ignore"):
            near = np.log1p(np.expm1(np.minimum(epsilon, 1.0)) / rate)
        inner = np.where(epsilon < 1, near, epsilon - math.log(rate) + np.log1p(rest))
        return rate * _plain(inner, 1 / noise)
    if direction == "add":
        log_keep = math.log1p(-rate) if rate < 1 else -math.inf
        scale = np.where(epsilon + log_keep < 0, -np.expm1(epsilon + log_keep), 0.0)
        inner = math.log(rate) + epsilon - np.log(np.where(scale > 0, scale, 1.0))
        return np.where(scale > 0, scale * _plain(inner, 1 / noise), 0.0)
    if rate == 1:
        return _plain(epsilon, 2 / noise)
    # log(2 sinh(ε/2)(1 − q)/(2k)) with k = q e^{−1/2σ²}, which may underflow.
    with np.errstate(divide="ignore"):
        log_ratio = epsilon / 2 + np.log(-np.expm1(-epsilon) / 2)
    log_ratio = log_ratio + math.log1p(-rate) - math.log(rate) + 1 / (2 * noise**2)
    large = log_ratio > 30
    angle = np.where(large, log_ratio + math.log(2), np.arcsinh(np.exp(np.minimum(log_ratio, 30))))
    x = noise * (epsilon / 2 + angle)  # in standard deviations
    gain = rate * ndtr(1 / noise - x)
    loss = rate * np.exp(epsilon + log_ndtr(-1 / noise - x))
    kept = (1 - rate) * (np.exp(epsilon + log_ndtr(-x)) - ndtr(-x))
    curve: Floats = np.maximum(gain - loss - kept, 0.0)
    return curve


def connect_the_dots(
    upper: Callable[[Floats], Floats],
    lower: Callable[[Floats], Floats],
    *,
    interval: float,
    highest: float,
    lowest: float,
    count: int,
) -> LossDistribution:
    """The discrete loss distribution of a pair (P, Q) between −`lowest` and `highest`.

    `upper` is its delta at epsilon >= 0, `lower` that of (Q, P). Below zero delta is 1 − e^ε plus
    e^ε lower(−ε): only the second term carries mass there, and it alone is differenced, so that no
    digits cancel. Rounding errors that make a bin negative are cut off, which only adds.
    """
    top, bottom = max(1, math.ceil(highest / interval)), max(1, math.ceil(lowest / interval))
    above = upper(interval * np.arange(top + 1, dtype=np.float64))
    grid = interval * np.arange(bottom, 0, -1, dtype=np.float64)
    curve = np.concatenate([np.exp(-grid) * lower(grid), above])
    step = np.diff(curve)
    mass = np.zeros(len(curve))
    mass[:-1] += step / math.expm1(interval)
    mass[1:] += step / math.expm1(-interval)
    mass[0] -= curve[0]
    mass[bottom] += 1.0
    return LossDistribution(
        interval=interval,
        lower=-bottom,
        probabilities=np.maximum(mass, 0.0),
        infinity_mass=float(curve[-1]),
        count=count,
    )


def gaussian_losses(
    *, noise: float, rate: float, count: int, direction: Direction, interval: float
) -> LossDistribution:
    """One sampled Gaussian release of contributions of norm 1 (two of them for `replace`).

    The curves are raised by a relative 1e-9 or more, far above their rounding errors: the raised
    curve is that of a slightly larger loss, and stays above the true one.
    """
    raised = 1 + 1e-9 + 1e-13 * noise

    def curve(side: Direction) -> Callable[[Floats], Floats]:
        return lambda epsilon: raised * _sampled_delta(epsilon, noise, rate, side)

    other = _REVERSE[direction]
    return connect_the_dots(
        curve(direction),
        curve(other),
        interval=interval,
        highest=_reach(noise, rate, direction),
        lowest=_reach(noise, rate, other),
        count=count,
    )


def randomized_response_losses(
    *, epsilon: float, categories: int, count: int, interval: float
) -> LossDistribution:
    """Randomised response: losses ±ε and 0, the outer ones split between grid points."""
    total = 1 + (categories - 1) * math.exp(-epsilon)

    def curve(at: Floats) -> Floats:
        return (1 + 1e-9) * np.maximum(-np.expm1(at - epsilon), 0.0) / total

    return connect_the_dots(
        curve, curve, interval=interval, highest=epsilon, lowest=epsilon, count=count
    )


def grid_interval(spreads: list[tuple[float, float, int]]) -> float:
    """A grid fine enough for the composed loss, from (spread, reach, count) of each part.

    Connect-the-dots adds at most interval²/4 to the variance of a step: keep that below 1e-4 of
    the total, and the interval below a hundredth of the total spread. Coarser is valid, but looser.
    """
    steps = sum(count for _, _, count in spreads)
    variance = sum(count * spread**2 for spread, _, count in spreads)
    reach = max(reach for _, reach, _ in spreads)
    total = math.sqrt(variance)
    wanted = min(0.02 * total / math.sqrt(steps), 1e-2 * total)
    return max(wanted, 2 * reach / _MAX_BINS, 1e-12)
