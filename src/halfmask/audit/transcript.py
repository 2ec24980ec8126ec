"""Everything a mechanism releases, in order, and what its observer would make of it.

`recording` notes what leaves the doors of `mechanisms` while a real mechanism runs. `replaying`
runs the same code again on an input of the observer's choice and hands it the released values
instead of fresh ones, so that every iterate is the one of the recorded run; what it notes is the
value that *would* have been released without noise. The two together give the exact log-likelihood
ratio of two inputs, for any adaptive method, without a second implementation of it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halfmask.mechanisms.clipping import clip_weights
from halfmask.mechanisms.private_step import PrivateStep, RowContributions
from halfmask.mechanisms.release import GaussianSeries

Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, eq=False)
class Seen:
    """One released value with its public noise level; `rate` < 1 for a Poisson batch."""

    value: Floats
    std: float
    rate: float = 1.0


class _LastReleaseSeenError(Exception):
    """Ends a run after its last release: the rest is post-processing, which tells nothing more."""


@contextmanager
def recording(last: int | None = None) -> Iterator[list[Seen]]:
    """Note every release made inside the block; leave it after release number `last`."""
    seen: list[Seen] = []
    series, step = GaussianSeries.release, PrivateStep.release

    def note(released: Seen) -> None:
        seen.append(released)
        if len(seen) == last:
            raise _LastReleaseSeenError

    def series_release(self: GaussianSeries, value: Floats) -> Floats:
        released = series(self, value)
        note(Seen(value=np.array(released), std=self._noise_std))
        return released

    def step_release(self: PrivateStep, contributions: RowContributions) -> Floats:
        released = step(self, contributions)
        total = np.array(released) * (self._rate * self._rows)
        note(Seen(value=total, std=self._noise_std, rate=self._rate))
        return released

    with _doors(series_release, step_release), suppress(_LastReleaseSeenError):
        yield seen


@contextmanager
def replaying(seen: Sequence[Seen], *, unit: int = 0) -> Iterator[list[Floats]]:
    """Hand out `seen` again; note the exact values, for a Poisson batch those of `unit` alone."""
    exact: list[Floats] = []

    def answer(value: Floats) -> Floats:
        exact.append(np.array(value, dtype=np.float64))
        if len(exact) == len(seen):
            raise _LastReleaseSeenError
        return seen[len(exact) - 1].value

    def series_release(self: GaussianSeries, value: Floats) -> Floats:
        return answer(value)

    def step_release(self: PrivateStep, contributions: RowContributions) -> Floats:
        # Without sampling the sum of all rows is released, and the observer knows the others.
        rows = np.arange(self._rows) if self._rate == 1 else np.array([unit])
        weights = clip_weights(contributions.norms(rows), self._clip_norm)
        total = answer(contributions.weighted_sum(rows, weights))
        return total / (self._rate * self._rows)

    with _doors(series_release, step_release), suppress(_LastReleaseSeenError):
        yield exact


@contextmanager
def _doors(series_release: Any, step_release: Any) -> Iterator[None]:
    """Replace the two doors; a process plays one game at a time."""
    series, step = GaussianSeries.release, PrivateStep.release
    GaussianSeries.release = series_release  # type: ignore[method-assign]
    PrivateStep.release = step_release  # type: ignore[method-assign]
    try:
        yield
    finally:
        GaussianSeries.release = series  # type: ignore[method-assign]
        PrivateStep.release = step  # type: ignore[method-assign]


def log_likelihood_ratio(
    seen: Sequence[Seen], first: Sequence[Floats], second: Sequence[Floats]
) -> float:
    """log P[seen | second] − log P[seen | first]; a Poisson batch is a mixture with its rate."""
    total = 0.0
    for release, one, other in zip(seen, first, second, strict=True):
        total += _log_density(release, other) - _log_density(release, one)
    return total


def _log_density(release: Seen, mean: Floats) -> float:
    """Up to a constant: log of the density at `release.value` relative to that of mean zero."""
    product = float(np.vdot(release.value, mean)) - float(np.vdot(mean, mean)) / 2
    tilt = product / release.std**2
    if release.rate == 1:
        return tilt
    return float(np.logaddexp(math.log1p(-release.rate), math.log(release.rate) + tilt))


def distance(seen: Sequence[Seen], first: Sequence[Floats], second: Sequence[Floats]) -> float:
    """How far apart the two inputs are, in units of noise, over all releases."""
    return math.sqrt(
        sum(
            float(np.sum((other - one) ** 2)) / release.std**2
            for release, one, other in zip(seen, first, second, strict=True)
        )
    )
