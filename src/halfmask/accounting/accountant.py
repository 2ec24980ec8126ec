"""From events to epsilon and back: the composition of everything a ledger holds, by relation.

Unsampled Gaussians have a closed form; everything else is composed as privacy loss distributions.
The answer is never below the truth and never above the bound that ignores sampling. Guarantee:
docs/proofs/composition.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.fft import irfft, next_fast_len, rfft
from scipy.optimize import minimize_scalar
from scipy.special import log_ndtr, ndtr

from halfmask.accounting.events import (
    Event,
    GaussianEvent,
    PoissonGaussianEvent,
    RandomisedResponseEvent,
    Relation,
    check_delta,
    check_relation,
)
from halfmask.accounting.gaussian import gaussian_delta, gaussian_epsilon
from halfmask.errors import AccountingError
from halfmask.types import Floats

# --- Composition of privacy loss distributions with relative accuracy in the tail.
# A plain FFT convolution has an absolute error near 1e-15 times the number of steps, which at small
# delta turns into an epsilon *below* the truth. Here the distributions are first tilted by e^{θx}
# so that the losses near the answer carry most of the mass; after the FFT the tilt is undone, and
# the error is relative. What the FFT window cuts off is bounded by Chernoff and added to delta.
# Guarantee: docs/proofs/composition.md.


_MAX_WINDOW = 1 << 22
_CUT = 46.0  # the tilted mass outside the window is at most e^-46, about 1e-20
_DELTA_RESERVE = 1e-6  # relative reserve on delta for sums, which are off by at most 1e-9
_UNIT = 2.0**-53
_TRANSFORM = 20 * _UNIT  # relative error of an FFT in the 2-norm, per doubling of its size
_PRODUCT = 2.25 * _UNIT  # relative error of one complex product, at least √5 units
_DROPPED = 80.0  # where the composed spectrum is at most e^-80 it is set to zero
_SPARE = 1.01  # for the rounding of the bounds on rounding
_TILTS = (-9.0, 25.0)  # logarithms of the tilts among which the best is looked for
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
        return self._log_moment(theta) - theta * epsilon + _log_peak(theta)

    def _rounding(self, theta: float, epsilon: float = 0.0) -> float:
        """A bound on the rounding error of `_log_bound`."""
        error = 4 * _UNIT * abs(theta * epsilon) + 4 * _UNIT * (1 + theta) * math.log1p(theta)
        for index, log_p, count in self._parts:
            weights = log_p + theta * self._interval * index
            total = _log_sum_exp(weights)
            one = _weight_error(log_p, weights, total, np.exp(weights - total))
            error += count * (one + _UNIT * (80 + 8 * abs(total)))
        return _SPARE * error

    def _chernoff(self, log_delta: float) -> tuple[float, float]:
        """The best epsilon that Chernoff gives at delta, and its tilt: valid, a little loose."""

        def epsilon_at(log_theta: float) -> float:
            theta = math.exp(log_theta)
            return (self._log_bound(theta, 0.0) - log_delta) / theta

        found = minimize_scalar(
            epsilon_at, bounds=_TILTS, method="bounded", options={"xatol": 1e-3}
        )
        theta = math.exp(float(found.x))
        spare = self._rounding(theta) + 4 * _UNIT * abs(log_delta)
        return float(found.fun) + spare / theta, theta

    def _window(self, theta: float) -> tuple[int, int]:
        """Grid indices outside of which the tilted composition has mass at most e^-_CUT a side."""
        base = self._log_moment(theta)
        mean, variance = self._tilted_moments(theta)
        spread = math.sqrt(variance) + self._interval

        def reach(sign: int) -> float:
            best = math.inf
            for scale in range(1, 14):  # every one gives a bound that holds
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
        tau = theta * self._interval
        parts = [_Tilted.of(index, log_p, count, tau, size) for index, log_p, count in self._parts]
        mass = _convolved(parts, size)
        base = math.fsum(part.count * part.total for part in parts)
        grid = low + np.arange(size)
        log_untilt = base - tau * grid
        sizes = sum(abs(part.count * part.total) for part in parts) + np.abs(tau * grid)
        raised = 1 + _SPARE * _UNIT * (sizes + np.abs(log_untilt) + 8)
        with np.errstate(over="ignore"):
            probabilities = raised * mass[grid % size] * np.exp(np.minimum(log_untilt, 700.0))
        losses = grid * self._interval
        # Each loss at or above its exact value, so that rounding can only add.
        losses += 4 * _UNIT * max(abs(float(losses[0])), abs(float(losses[-1])))
        # The exponents of the window are rounded, too: by far less than one.
        above = math.exp(min(0.0, float(log_untilt[-1]) - (_CUT - 1)))
        return losses, probabilities, above

    def delta(self, epsilon: float) -> float:
        """A delta that holds at `epsilon`, tight to about one part in a million."""
        found = minimize_scalar(
            lambda t: self._log_bound(math.exp(t), epsilon), bounds=_TILTS, method="bounded"
        )
        theta = math.exp(float(found.x))
        losses, probabilities, above = self._tail(theta)
        inside = _hockey_stick(losses, probabilities, epsilon) if epsilon >= losses[0] else math.inf
        chernoff = math.exp(min(0.0, float(found.fun) + self._rounding(theta, epsilon)))
        bound = min(inside * (1 + _DELTA_RESERVE) + above, chernoff)
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
        target = (remaining - above) / (1 + _DELTA_RESERVE)
        low = max(0.0, float(losses[0]))
        if target <= 0 or safe <= low:
            return safe
        if _hockey_stick(losses, probabilities, low) <= target:
            return low
        root = max(low, _crossing(losses, probabilities, target, low))
        # Near the smallest doubles the crossing is off by far more: steps that double soon pass it.
        step = 1e-13 + 1e-9 * root
        while root < safe and _hockey_stick(losses, probabilities, root) > target:
            root, step = root + step, 2 * step
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


@dataclass(frozen=True, kw_only=True, eq=False)
class _Tilted:
    """One part after tilting: its spectrum, and how far rounding may have moved it."""

    spectrum: NDArray[np.complex128]
    count: int
    total: float
    transform_error: float
    """Of the whole spectrum, in the 2-norm."""
    weight_error: float
    """Of each entry."""

    @classmethod
    def of(
        cls, index: NDArray[np.int64], log_p: Floats, count: int, tau: float, size: int
    ) -> _Tilted:
        weights = log_p + tau * index
        total = _log_sum_exp(weights)
        tilted = np.exp(weights - total)
        wrapped = np.bincount(index % size, tilted, minlength=size)
        folds = len(index) // size + 1
        error = _weight_error(log_p, weights, total, tilted) + _UNIT * folds
        norm = math.sqrt(size * float(wrapped @ wrapped))
        return cls(
            spectrum=rfft(wrapped),
            count=count,
            total=total,
            transform_error=_SPARE * _transform_error(size) * norm,
            weight_error=_SPARE * error,
        )

    @property
    def largest(self) -> Floats:
        """A bound on the exact spectrum's size at each frequency."""
        size: Floats = np.abs(self.spectrum)
        return (1 + 8 * _UNIT) * size + (self.transform_error + self.weight_error)


def _convolved(parts: Sequence[_Tilted], size: int) -> Floats:
    """The composition of all parts on a circle of `size` bins, no bin below its exact mass.

    Where the spectrum z of a part is off by e, its power is off by at most T·e·(|z| + e)^(T−1).
    The sum of that over all frequencies bounds the error of every bin: by Cauchy and Schwarz for
    the transform, whose error is known in the 2-norm. Guarantee: docs/proofs/composition.md, 5.
    """
    bounded = [(part, part.largest) for part in parts]
    log_size = np.zeros(size // 2 + 1)
    for part, largest in bounded:
        log_size += part.count * np.log(largest)
    kept = log_size > -_DROPPED
    spectrum = np.ones(int(kept.sum()), dtype=np.complex128)
    composed = np.exp(log_size[kept])
    # Sums over the half that is stored count at most for half of the whole.
    error = 2 * _PRODUCT * (sum(part.count for part in parts) + len(parts)) * composed.sum()
    for part, largest in bounded:
        spectrum *= _power(part.spectrum[kept], part.count)
        moved = part.count * (composed / largest[kept])
        error += math.sqrt(2) * part.transform_error * float(np.linalg.norm(moved))
        error += 2 * part.weight_error * float(moved.sum())
    back = _transform_error(size) * math.sqrt(2 / size) * float(np.linalg.norm(composed))
    whole = np.zeros(size // 2 + 1, dtype=np.complex128)
    whole[kept] = spectrum
    reserve = _SPARE * (error / size + back + math.exp(-_DROPPED))
    mass: Floats = np.maximum(irfft(whole, size), 0.0) + reserve
    return mass


def _power(base: NDArray[np.complex128], count: int) -> NDArray[np.complex128]:
    """base**count by products alone, whose rounding is known."""
    power: NDArray[np.complex128] | None = None
    while True:
        if count & 1:
            power = base if power is None else power * base
        count >>= 1
        if not count:
            assert power is not None
            return power
        base = base * base


def _transform_error(size: int) -> float:
    """The relative error of an FFT of `size` points in the 2-norm."""
    rest = size
    for radix in (2, 3, 5):
        while rest % radix == 0:
            rest //= radix
    if rest != 1:
        raise AccountingError(f"The rounding of an FFT of {size} points is not known.")
    return _TRANSFORM * math.log2(max(size, 2))


def _weight_error(log_p: Floats, weights: Floats, total: float, tilted: Floats) -> float:
    """By how much rounding moves the tilted probabilities, all together."""
    sizes = 5 * np.abs(log_p) + 2 * np.abs(weights) + np.abs(weights - total)
    return _UNIT * (float(tilted @ sizes) + 4)


def _log_peak(theta: float) -> float:
    return theta * math.log(theta) - (1 + theta) * math.log1p(theta)


def _log_sum_exp(values: NDArray[np.float64]) -> float:
    # scipy's logsumexp spends most of its time on signs and axes that do not occur here.
    top = float(values.max())
    return top + math.log(float(np.exp(values - top).sum()))


def _hockey_stick(
    losses: NDArray[np.float64], probabilities: NDArray[np.float64], epsilon: float
) -> float:
    start = int(np.searchsorted(losses, epsilon, side="right"))
    return float(probabilities[start:] @ -np.expm1(epsilon - losses[start:]))


# --- Privacy loss distributions of single releases, put on a grid by connecting the dots.
# Doroshenko et al. 2022 (arXiv:2207.04380v1): take the exact curve delta(epsilon) at the grid
# points and draw straight lines (in e^epsilon) between them. The curve is convex, so the lines lie
# above it, and the discrete pair that has them as its curve dominates the true one. Everything here
# is a closed form evaluated on arrays. Guarantee: docs/proofs/composition.md.


Direction = Literal["remove", "add", "replace"]
"""Which of the two tables has the contribution: `replace` is symmetric."""

_MAX_BINS = 1 << 19
_REACH = 11.0  # standard deviations; what lies beyond, 2e-28 a release, counts as infinite loss
_REVERSE: dict[Direction, Direction] = {"remove": "add", "add": "remove", "replace": "replace"}


def _log_mixture(x: Floats | float, noise: float, rate: float) -> Floats:
    """log of ((1−q)N(0) + qN(1)) / N(0) at x."""
    log_keep = math.log1p(-rate) if rate < 1 else -math.inf
    shifted = math.log(rate) + (2 * np.asarray(x, dtype=np.float64) - 1) / (2 * noise**2)
    return np.logaddexp(log_keep, shifted)


def _reach(noise: float, rate: float, direction: Direction) -> float:
    """The largest loss that is not counted as infinite."""
    if direction == "add":
        return -float(_log_mixture(-_REACH * noise, noise, rate))
    top = 1 + _REACH * noise
    reach = float(_log_mixture(top, noise, rate))
    return reach if direction == "remove" else reach - float(_log_mixture(-top, noise, rate))


def loss_moments(noise: float, rate: float, direction: Direction) -> tuple[float, float]:
    """Standard deviation and largest size of the loss of one sampled release."""
    top = 1 + 13 * noise
    x = np.linspace(-top, top, 8_001)
    log_base = -(x**2) / (2 * noise**2)
    with_row = _log_mixture(x, noise, rate)
    log_density = log_base if direction == "add" else log_base + with_row
    # Of `add` it is the negative loss, which has the same spread.
    loss = with_row - _log_mixture(-x, noise, rate) if direction == "replace" else with_row
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
        with np.errstate(over="ignore", divide="ignore"):
            near = np.log1p(np.expm1(np.minimum(epsilon, 1.0)) / rate)
            beyond = epsilon - math.log(rate) + np.log1p(rest)
        inner = np.where(epsilon < 1, near, beyond)
        return rate * _plain(inner, 1 / noise)
    if direction == "add":
        log_keep = math.log1p(-rate) if rate < 1 else -math.inf
        scale: Floats = -np.expm1(np.minimum(epsilon + log_keep, 0.0))
        inner = math.log(rate) + epsilon - np.log(np.maximum(scale, 1e-300))
        return scale * _plain(inner, 1 / noise)
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
    # What is taken from a bin is rounded towards zero on a grid beyond e^709, which only adds.
    mass[:-1] += step / (math.expm1(interval) if interval < 700 else math.inf)
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


def randomised_response_losses(
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


_ROUNDING = 2.0**-50


def epsilon(events: Sequence[Event], *, delta: float, relation: Relation) -> float:
    """The epsilon of all `events` together at `delta`, under `relation`."""
    check_delta(delta)
    check_relation(relation)
    return _epsilon(_merge(events), delta, relation)


def delta(events: Sequence[Event], *, epsilon: float, relation: Relation) -> float:
    """The delta of all `events` together at `epsilon` >= 0, under `relation`."""
    if not (math.isfinite(epsilon) and epsilon >= 0):
        raise AccountingError(f"Expected a finite epsilon >= 0, got {epsilon}.")
    check_relation(relation)
    merged = _merge(events)
    mu, pure = _without_sampling(merged, relation)
    bound = 1.0 if epsilon < pure else gaussian_delta(mu, epsilon - pure)
    if _closed_form(merged) or _hardly_any_noise(merged):
        return bound
    return min(bound, _composed(merged, relation, lambda part: part.delta(epsilon)))


def _merge(events: Sequence[Event]) -> tuple[Event, ...]:
    """Drop what releases nothing, turn rate 1 into plain Gaussians, and add up equal events."""
    replace_squares: list[float] = []
    withhold_squares: list[float] = []
    sampled: dict[tuple[float, float, str], int] = {}
    responses: dict[tuple[float, int], int] = {}
    for event in events:
        if isinstance(event, GaussianEvent):
            replace_squares.append(event.count * (event.replace * event.replace))
            withhold_squares.append(event.count * (event.withhold * event.withhold))
        elif isinstance(event, PoissonGaussianEvent):
            if event.rate == 1:
                step, alone = _replace_mu(event), 1 / event.noise_multiplier
                replace_squares.append(event.steps * (step * step))
                withhold_squares.append(event.steps * (alone * alone))
            elif event.rate > 0 and event.steps > 0:
                key = (event.noise_multiplier, event.rate, event.contribution)
                sampled[key] = sampled.get(key, 0) + event.steps
        elif event.epsilon > 0 and event.count > 0:
            choice = (event.epsilon, event.categories)
            responses[choice] = responses.get(choice, 0) + event.count
    merged: list[Event] = []
    # Exact sums: neither the order of the events nor the rounding of many small ones matters.
    replace, withhold = math.fsum(replace_squares), math.fsum(withhold_squares)
    if max(replace, withhold) > 1e200:  # the square of the largest ratio that an event may have
        raise AccountingError("These releases have hardly any noise: epsilon would be infinite.")
    if replace > 0 or withhold > 0:
        merged.append(
            GaussianEvent(
                replace=math.sqrt(replace) * (1 + _ROUNDING),
                withhold=math.sqrt(withhold) * (1 + _ROUNDING),
            )
        )
    for (noise, rate, contribution), steps in sorted(sampled.items()):
        merged.append(
            PoissonGaussianEvent(
                noise_multiplier=noise,
                rate=rate,
                steps=steps,
                contribution="label" if contribution == "label" else "general",
            )
        )
    for (answer, categories), count in sorted(responses.items()):
        merged.append(RandomisedResponseEvent(epsilon=answer, categories=categories, count=count))
    return tuple(merged)


def _replace_mu(event: PoissonGaussianEvent) -> float:
    """Sensitivity to noise of one unsampled step: 2C/σ, or √2·C/σ for orthogonal contributions."""
    return (math.sqrt(2) if event.contribution == "label" else 2.0) / event.noise_multiplier


def _without_sampling(merged: tuple[Event, ...], relation: Relation) -> tuple[float, float]:
    """mu of all Gaussians as if every row took part in every step, and the pure epsilon."""
    square = pure = 0.0
    for event in merged:
        if isinstance(event, GaussianEvent):
            mu = getattr(event, relation)
            square += event.count * (mu * mu)
        elif isinstance(event, PoissonGaussianEvent):
            mu = _replace_mu(event) if relation == "replace" else 1 / event.noise_multiplier
            square += event.steps * (mu * mu)
        else:
            pure += event.count * event.epsilon
    return math.sqrt(square), pure


def _total_variation(merged: tuple[Event, ...], relation: Relation) -> float:
    """A bound on delta at epsilon 0: total variations add up, sampling multiplies by its rate."""
    total = 0.0
    for event in merged:
        if isinstance(event, GaussianEvent):
            total += gaussian_delta(getattr(event, relation) * math.sqrt(event.count), 0.0)
        elif isinstance(event, PoissonGaussianEvent):
            mu = _replace_mu(event) if relation == "replace" else 1 / event.noise_multiplier
            total += event.steps * event.rate * gaussian_delta(mu, 0.0)
        else:
            others = (event.categories - 1) * math.exp(-event.epsilon)
            total += event.count * -math.expm1(-event.epsilon) / (1 + others)
    return total


def _closed_form(merged: tuple[Event, ...]) -> bool:
    return all(isinstance(event, GaussianEvent) for event in merged)


def _hardly_any_noise(merged: tuple[Event, ...]) -> bool:
    """Whether epsilon is in the thousands anyway, where no grid is both fine and wide enough."""
    return any(
        isinstance(event, PoissonGaussianEvent) and event.noise_multiplier < 1e-3
        for event in merged
    )


@lru_cache(maxsize=256)
def _epsilon(merged: tuple[Event, ...], delta: float, relation: Relation) -> float:
    if not _closed_form(merged) and _total_variation(merged, relation) <= delta:
        return 0.0
    mu, pure = _without_sampling(merged, relation)
    bound = gaussian_epsilon(mu, delta) + pure
    if _closed_form(merged) or _hardly_any_noise(merged):
        return bound
    found = min(bound, _composed(merged, relation, lambda part: part.epsilon(delta)))
    if len(merged) > 1 and any(isinstance(event, RandomisedResponseEvent) for event in merged):
        # The loss of answers ends at epsilon, and has no tail in which the others' would drown: on
        # a grid wide enough for both, small others are rounded up to several times their cost.
        share = math.nextafter(delta / len(merged), 0.0)
        found = min(found, math.fsum(_epsilon((event,), share, relation) for event in merged))
    return found


def _composed(
    merged: tuple[Event, ...], relation: Relation, answer: Callable[[Composition], float]
) -> float:
    """The worst answer over the directions; replacement is symmetric, withholding is not."""
    directions: tuple[Direction, ...] = ("replace",) if relation == "replace" else ("remove", "add")
    interval = max(grid_interval(_spreads(merged, relation, side)) for side in directions)
    for _ in range(8):
        try:
            return max(
                answer(_composition(merged, relation, side, interval)) for side in directions
            )
        except GridTooFineError:
            interval *= 4
    raise AccountingError(
        "The privacy loss of these events is spread too widely to be composed: "
        "use fewer steps, more noise or a larger delta."
    )


def _gaussians(
    merged: tuple[Event, ...], relation: Relation, direction: Direction
) -> list[tuple[float, float, int, Direction]]:
    """(noise, rate, count, direction) of each Gaussian part, sampled or not, at sensitivity 1."""
    gaussians: list[tuple[float, float, int, Direction]] = []
    for event in merged:
        if isinstance(event, PoissonGaussianEvent):
            orthogonal = relation == "replace" and event.contribution == "label"
            sides: tuple[Direction, ...] = ("remove", "add") if orthogonal else (direction,)
            gaussians += [(event.noise_multiplier, event.rate, event.steps, s) for s in sides]
        elif isinstance(event, GaussianEvent):
            mu = getattr(event, relation)
            if mu > 0:
                gaussians.append((1 / mu, 1.0, event.count, "remove"))
    return gaussians


def _spreads(
    merged: tuple[Event, ...], relation: Relation, direction: Direction
) -> list[tuple[float, float, int]]:
    parts = _gaussians(merged, relation, direction)
    spreads = [(*loss_moments(noise, rate, side), count) for noise, rate, count, side in parts]
    return spreads + [
        (event.epsilon, event.epsilon, event.count)
        for event in merged
        if isinstance(event, RandomisedResponseEvent)
    ]


def _composition(
    merged: tuple[Event, ...], relation: Relation, direction: Direction, interval: float
) -> Composition:
    parts = [
        gaussian_losses(noise=noise, rate=rate, count=count, direction=side, interval=interval)
        for noise, rate, count, side in _gaussians(merged, relation, direction)
    ]
    parts += [
        randomised_response_losses(
            epsilon=event.epsilon, categories=event.categories, count=event.count, interval=interval
        )
        for event in merged
        if isinstance(event, RandomisedResponseEvent)
    ]
    return Composition(parts)
