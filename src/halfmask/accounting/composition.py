"""Composition of privacy loss distributions with relative accuracy in the tail.

A plain FFT convolution has an absolute error near 1e-15 times the number of steps, which at small
delta turns into an epsilon *below* the truth. Here the distributions are first tilted by e^{θx} so
that the losses near the answer carry most of the mass; after the FFT the tilt is undone, and the
error is relative. What the FFT window cuts off is bounded by Chernoff and added to delta.
Guarantee: docs/proofs/composition.md.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.fft import irfft, next_fast_len, rfft
from scipy.optimize import minimize_scalar

from halfmask.errors import AccountingError

_MAX_WINDOW = 1 << 22
_CUT = 46.0  # the tilted mass outside the window is at most e^-46, about 1e-20
_ROUNDING = 1e-6  # relative reserve on delta for floating point, besides the error of the FFT
_UNIT = 2.0**-53
_MAX_STEPS = 1_000_000_000  # beyond, rounding in the power of the spectrum is no longer small


@dataclass(frozen=True, kw_only=True, eq=False)
class LossDistribution:
    """A loss distribution on the grid `interval`·(lower + 0, 1, 2, ...), composed `count` times."""

    interval: float
    lower: int
    probabilities: NDArray[np.float64]
    infinity_mass: float
    count: int

    @property
    def indices(self) -> NDArray[np.int64]:
        """Loss of each bin in units of the interval."""
        return self.lower + np.arange(len(self.probabilities))


class GridTooFineError(AccountingError):
    """The composed loss does not fit into the FFT window; a coarser grid stays valid."""


class Composition:
    """The composition of several loss distributions on one grid."""

    def __init__(self, parts: Sequence[LossDistribution]) -> None:
        self._interval = parts[0].interval
        self._parts = []
        infinity = 0.0
        for part in parts:
            if part.interval != self._interval:
                raise AccountingError("Loss distributions on different grids cannot be composed.")
            keep = part.probabilities > 0
            self._parts.append((part.indices[keep], np.log(part.probabilities[keep]), part.count))
            infinity += part.count * part.infinity_mass
        self._infinity_mass = infinity
        self._steps = sum(part.count for part in parts)
        if self._steps > _MAX_STEPS:
            raise AccountingError(
                f"Expected at most {_MAX_STEPS} sampled steps, got {self._steps}: "
                "their composition would not be accurate. Use fewer steps."
            )

    def _log_moment(self, theta: float) -> float:
        """log E[e^{θX}], X the composed loss."""
        return sum(
            count * _log_sum_exp(log_p + theta * self._interval * index)
            for index, log_p, count in self._parts
        )

    def _tilted_moments(self, theta: float) -> tuple[float, float]:
        """Mean and variance of the composed loss after tilting by e^{θx}."""
        mean = variance = 0.0
        for index, log_p, count in self._parts:
            losses = index * self._interval
            weights = log_p + theta * losses
            tilted = np.exp(weights - _log_sum_exp(weights))
            first = float(tilted @ losses)
            mean += count * first
            variance += count * float(tilted @ (losses - first) ** 2)
        return mean, variance

    def _log_bound(self, theta: float, epsilon: float) -> float:
        """log of a bound on delta(epsilon): sup_x (1 − e^{ε−x})₊ e^{−θ(x−ε)} is θ^θ/(1+θ)^{1+θ}."""
        peak = theta * math.log(theta) - (1 + theta) * math.log1p(theta)
        rounding = 8 * _UNIT * self._steps
        return self._log_moment(theta) - theta * epsilon + peak + rounding

    def _chernoff(self, log_delta: float) -> tuple[float, float]:
        """The best epsilon that Chernoff gives at delta, and its tilt: valid, a little loose."""

        def epsilon_at(log_theta: float) -> float:
            theta = math.exp(log_theta)
            return (self._log_bound(theta, 0.0) - log_delta) / theta

        found = minimize_scalar(
            epsilon_at, bounds=(-9.0, 25.0), method="bounded", options={"xatol": 1e-3}
        )
        return float(found.fun), math.exp(float(found.x))

    def _window(self, theta: float) -> tuple[int, int]:
        """Grid indices outside of which the tilted composition has mass at most e^-_CUT a side."""
        base = self._log_moment(theta)
        mean, variance = self._tilted_moments(theta)
        spread = math.sqrt(variance) + self._interval

        def reach(sign: int) -> float:
            best = math.inf
            for scale in (0.5, 1, 2, 3, 4, 5, 6, 7, 8, 10, 13):
                step = sign * scale / spread
                shifted = self._log_moment(theta + step)
                best = min(best, (shifted - base + _CUT) / abs(step) - sign * mean)
            return best

        top, bottom = mean + reach(1), mean - reach(-1)
        return math.floor(bottom / self._interval), math.ceil(top / self._interval)

    def _tail(self, theta: float) -> tuple[NDArray[np.float64], NDArray[np.float64], float]:
        """Losses and probabilities near the tilted mean, and a bound on the mass above them."""
        low, high = self._window(theta)
        size = next_fast_len(high - low + 1, real=True)
        if size > _MAX_WINDOW:
            raise GridTooFineError(
                "The privacy loss is spread too widely to be composed on a grid: "
                "use fewer steps, more noise or a larger delta."
            )
        spectrum = np.ones(size // 2 + 1, dtype=np.complex128)
        base = 0.0
        for index, log_p, count in self._parts:
            weights = log_p + theta * self._interval * index
            total = _log_sum_exp(weights)
            base += count * total
            wrapped = np.bincount(index % size, np.exp(weights - total), minlength=size)
            spectrum *= _power(rfft(wrapped), count)
        # The error of every bin is bounded and added, so that rounding can never hide mass.
        error = 8 * _UNIT * (self._steps + math.log2(size)) * float(np.abs(spectrum).mean())
        mass = np.maximum(irfft(spectrum, size), 0.0) + error
        grid = low + np.arange(size)
        losses = grid * self._interval
        log_untilt = base - theta * losses
        with np.errstate(over="ignore"):
            probabilities = mass[grid % size] * np.exp(np.minimum(log_untilt, 700.0))
        above = math.exp(min(0.0, base - theta * losses[-1] - _CUT))
        return losses, probabilities, above

    def delta(self, epsilon: float) -> float:
        """A delta that holds at `epsilon`, tight to about one part in a million."""
        found = minimize_scalar(
            lambda t: self._log_bound(math.exp(t), epsilon), bounds=(-9.0, 25.0), method="bounded"
        )
        losses, probabilities, above = self._tail(math.exp(float(found.x)))
        inside = _hockey_stick(losses, probabilities, epsilon) if epsilon >= losses[0] else math.inf
        bound = min(inside * (1 + _ROUNDING) + above, math.exp(min(0.0, float(found.fun))))
        return min(1.0, bound + self._infinity_mass)

    def epsilon(self, delta: float) -> float:
        """An epsilon >= 0 that holds at `delta`."""
        remaining = delta - self._infinity_mass
        if remaining <= 0:
            raise AccountingError(
                f"delta={delta} is too small for this many steps: a tail of mass "
                f"{self._infinity_mass:.1e} is cut off. Use a larger delta."
            )
        safe, theta = self._chernoff(math.log(remaining))
        if safe <= 0:
            return 0.0
        losses, probabilities, above = self._tail(theta)
        target = (remaining - above) / (1 + _ROUNDING)
        low = max(0.0, float(losses[0]))
        if target <= 0 or safe <= low:
            return safe
        if _hockey_stick(losses, probabilities, low) <= target:
            return low
        root = max(low, _crossing(losses, probabilities, target, low))
        while root < safe and _hockey_stick(losses, probabilities, root) > target:
            root += 1e-13 + 1e-9 * root
        return min(safe, root)


def _crossing(
    losses: NDArray[np.float64], probabilities: NDArray[np.float64], target: float, low: float
) -> float:
    """Where delta(ε) falls to `target`: between grid points it is A − e^ε B of two tail sums."""
    start = max(0, int(np.searchsorted(losses, low, side="right")) - 1)
    base, offsets = float(losses[start]), losses[start:] - losses[start]
    discount = np.exp(-offsets)
    mass = np.cumsum(probabilities[:start:-1])[::-1]
    discounted = np.cumsum((probabilities[start:] * discount)[:0:-1])[::-1]
    # Entry i is delta at the start of cell i, above which the tail sums count everything.
    above = np.flatnonzero(mass - discounted / np.maximum(discount[:-1], 1e-300) > target)
    cell = int(above[-1]) if len(above) else 0
    if discounted[cell] <= 0 or mass[cell] <= target:
        return float(losses[start + cell])
    return base + math.log((mass[cell] - target) / discounted[cell])


def _power(spectrum: NDArray[np.complex128], count: int) -> NDArray[np.complex128]:
    """spectrum**count, where it is not negligible (below e^-80): most of it is, at many steps."""
    if count == 1:
        return spectrum
    kept = np.abs(spectrum) > math.exp(-80.0 / count)
    powered = np.zeros_like(spectrum)
    powered[kept] = np.power(spectrum[kept], count)
    return powered


def _log_sum_exp(values: NDArray[np.float64]) -> float:
    # scipy's logsumexp spends most of its time on signs and axes that do not occur here.
    top = float(values.max())
    return top + math.log(float(np.exp(values - top).sum()))


def _hockey_stick(
    losses: NDArray[np.float64], probabilities: NDArray[np.float64], epsilon: float
) -> float:
    start = int(np.searchsorted(losses, epsilon, side="right"))
    return float(probabilities[start:] @ -np.expm1(epsilon - losses[start:]))
