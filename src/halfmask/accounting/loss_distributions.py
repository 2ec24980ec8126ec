"""Privacy loss distributions of single releases, discretised by dp_accounting ("connect the dots").

Doroshenko et al. 2022 (arXiv:2207.04380v1) show that the discretised pair dominates the true one.
The only file that imports dp_accounting.
"""

from __future__ import annotations

import math
from typing import Literal

import numpy as np

from halfmask.accounting.composition import LossDistribution

Direction = Literal["remove", "add", "replace"]
"""Which of the two tables has the contribution: `replace` is symmetric."""

_MAX_BINS = 1 << 18  # dp_accounting spends about 10 microseconds a bin


def accountant_name() -> str:
    """The accountant and its version, as printed in statements."""
    from importlib.metadata import version

    return f"privacy loss distributions, dp-accounting {version('dp-accounting')}, tilted FFT"


def loss_moments(noise: float, rate: float, direction: Direction) -> tuple[float, float]:
    """Standard deviation and largest practical value of the loss of one sampled release."""
    x = np.linspace(-1 - 13 * noise, 1 + 13 * noise, 20_001)
    log_keep = math.log1p(-rate) if rate < 1 else -math.inf

    def log_mixture(centre: float) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        return np.logaddexp(log_keep, math.log(rate) + (2 * x * centre - 1) / (2 * noise**2))

    log_base = -(x**2) / (2 * noise**2)
    with_row = log_mixture(1.0)
    if direction == "remove":
        loss, log_density = with_row, log_base + with_row
    elif direction == "add":
        loss, log_density = -with_row, log_base
    else:
        loss, log_density = with_row - log_mixture(-1.0), log_base + with_row
    density = np.exp(log_density - log_density.max())
    density /= density.sum()
    mean = float(density @ loss)
    spread = math.sqrt(float(density @ (loss - mean) ** 2))
    return spread, float(np.abs(loss[density > 1e-22]).max())


def gaussian_losses(
    *, noise: float, rate: float, count: int, direction: Direction, interval: float
) -> LossDistribution:
    """One sampled Gaussian release of contributions of norm 1 (two of them for `replace`)."""
    from dp_accounting import NeighboringRelation
    from dp_accounting.pld import privacy_loss_distribution

    relation = (
        NeighboringRelation.REPLACE_ONE
        if direction == "replace"
        else NeighboringRelation.ADD_OR_REMOVE_ONE
    )
    pld = privacy_loss_distribution.from_gaussian_mechanism(
        standard_deviation=noise,
        sampling_prob=rate,
        value_discretization_interval=interval,
        log_mass_truncation_bound=-60,
        neighboring_relation=relation,
    )
    pmf = (pld._pmf_add if direction == "add" else pld._pmf_remove).to_dense_pmf()
    return LossDistribution(
        interval=interval,
        lower=int(pmf._lower_loss),
        probabilities=np.maximum(np.asarray(pmf._probs, dtype=np.float64), 0.0),
        infinity_mass=float(pmf._infinity_mass),
        count=count,
    )


def randomized_response_losses(
    *, epsilon: float, categories: int, count: int, interval: float
) -> LossDistribution:
    """Randomised response; losses ±ε are rounded up to the grid, which only costs."""
    total = math.exp(epsilon) + categories - 1
    top = math.ceil(epsilon / interval - 1e-12)
    bottom = math.ceil(-epsilon / interval - 1e-12)
    probabilities = np.zeros(top - bottom + 1)
    probabilities[0] = 1 / total
    probabilities[-bottom] += (categories - 2) / total
    probabilities[-1] += math.exp(epsilon) / total
    return LossDistribution(
        interval=interval, lower=bottom, probabilities=probabilities, infinity_mass=0.0, count=count
    )


def grid_interval(spreads: list[tuple[float, float, int]]) -> float:
    """A grid fine enough for the composed loss, from (spread, reach, count) of each part.

    Connect-the-dots adds at most interval²/4 to the variance of a step: keep that below 1e-4 of
    the total, and the interval below a thousandth of the total spread. Coarser is valid, but looser.
    """
    steps = sum(count for _, _, count in spreads)
    variance = sum(count * spread**2 for spread, _, count in spreads)
    reach = max(reach for _, reach, _ in spreads)
    total = math.sqrt(variance)
    wanted = min(0.02 * total / math.sqrt(steps), 1e-3 * total)
    return max(wanted, 2 * reach / _MAX_BINS, 1e-12)
