"""The noisy descent of `additive` over private columns. Guarantee: docs/proofs/additive.md.

Slopes are weighed by the predicted chance, (p − y)·ω(p) with ω(p) = min(1, lo/(1 − p), hi/p), so
that they lie in [−lo, hi] and vanish on average exactly where p is right: unlike clipped slopes,
they leave the model calibrated.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq, minimize
from scipy.special import expit

from halfmask.data.products import BLOCK, CodeSums
from halfmask.mechanisms.release import GaussianSeries, Releaser, Sensitivity
from halfmask.methods.smooth_codes import LevelFeatures
from halfmask.types import Floats

_GRID = np.exp(np.linspace(math.log(0.01), math.log(3.0), 24))
# Logs of columns' scales vary about a common one by this much; the common one is guessed weakly.
_SPREAD = 1.2
_COMMON, _COMMON_SPREAD = math.log(0.15), 1.2
# A normal score: nodes of its spread, and their shares.
NODES = np.linspace(-4, 4, 81)
NODE_SHARES = np.exp(-0.5 * NODES**2) / np.exp(-0.5 * NODES**2).sum()
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


Moves = tuple[float, float]

_CONSTANT = 1.0
_RESIDUAL = 1.2
_SMOOTHER = (0.0, 0.25, 0.5, 1.0)
_AGAIN = (0.4, 0.6, 0.8)
# A label of which a smaller part than this is of one class is treated as rare.
_RARE = 0.35
_MOMENTUM = 0.85
# Effects of columns on a score, in log odds or spreads of a number, where nothing else is known.
_TYPICAL = 0.5


def slope_bounds(rate: float, radius: float, diameter: float) -> tuple[float, float]:
    """lo and hi for a class of rate `rate`: in proportion to what slopes are at that rate.

    The larger class's side may grow until (lo + hi)·radius reaches lo·diameter, at no cost.
    """
    rare = min(rate, 1 - rate)
    short = long = 1 - rare
    if rare < _RARE:
        short = max(min(diameter / radius - 1, 1.0) * (1 - rare), rare)
    return (long, short) if rate <= 0.5 else (short, long)


def slope_moves(low: float, high: float, radius: float, diameter: float) -> Moves:
    """How far a row moves the gradient, label and private features unknown: (replace, withhold)."""
    longest = max(low, high)
    return max(longest * diameter, (low + high) * radius), longest * radius


def public_label_moves(most: float, radius: float, diameter: float) -> Moves:
    """The same where the label is public, so that a row's slopes have one sign."""
    return most * max(radius, diameter), most * radius


class Stage:
    """Releases whose μ is fixed; how far a statistic can move may follow from earlier releases.

    Statistics are released in units of their own move, so that the noise has one known size.
    """

    def __init__(
        self, releaser: Releaser, mu: float, share: float, count: int, most: float, what: str
    ) -> None:
        self._replace = releaser.relation == "replace"
        # A replaced row is one withheld and one added; no statistic here moves further when a
        # row is withheld than when it is replaced.
        unit = Sensitivity(replace=1.0 if self._replace else 2.0, withhold=1.0)
        self.count = count
        self._std = math.sqrt(count) / (mu * math.sqrt(share))
        self._most = most
        self._series: GaussianSeries = releaser.gaussian_series(
            sensitivity=unit, noise_std=self._std, count=count, what=what
        )

    def noise(self, moves: tuple[float, float]) -> float:
        """The noise's standard deviation for a row's `moves` under (replace, withhold)."""
        return self._std * self._unit(moves)

    def release(self, value: Floats, moves: tuple[float, float]) -> Floats:
        """The statistic with noise."""
        unit = self._unit(moves)
        return self._series.release(np.asarray(value) / unit) * unit

    def _unit(self, moves: tuple[float, float]) -> float:
        return self._most * (moves[0] if self._replace else moves[1])


@dataclass(frozen=True, kw_only=True, eq=False)
class PrivatePart:
    """What the descent found: features and coefficients of its columns, and an intercept."""

    features: list[LevelFeatures]
    theta: list[Floats]
    intercept: Any  # a number, or one per class
    doubt: Sequence[Floats] = ()  # by column and level: how far off effects may be
    intercept_noise: Any = 0.0  # the standard deviation of the noise in the intercept

    @property
    def spread(self) -> float:
        """The standard deviation of its score over rows, by released counts."""
        return float(math.sqrt(np.mean(self.variance)))

    @property
    def variance(self) -> Floats:
        """The variance of its score, or of that of each class."""
        pairs = zip(self.features, self.theta, strict=True)
        found: Floats = np.sum([np.sum((t @ f.covariance) * t, axis=-1) for f, t in pairs], axis=0)
        return found

    @property
    def mean(self) -> Any:
        """The mean of its score over rows, or of that of each class, by released counts."""
        pairs = zip(self.features, self.theta, strict=True)
        return self.intercept + np.sum([t @ f.mean for f, t in pairs], axis=0)

    def by_level(self) -> list[Floats]:
        return [f.by_level(t.T) for f, t in zip(self.features, self.theta, strict=True)]


class Descent:
    """Worth of columns, then `steps` noisy gradients, averaged."""

    def __init__(
        self,
        *,
        sums: CodeSums,
        hidden: Sequence[bool],
        features: Sequence[LevelFeatures],
        target: NDArray[Any],
        labelled: NDArray[np.bool_],
        weights: Floats,
        rows: float,
        offset: Floats | None,
        known: Floats | None,
        start: Any,
        number: bool,
        label_private: bool,
        steps: int,
        worth: Stage,
        gradients: Stage,
        cut: float = _RESIDUAL,
    ) -> None:
        self._cut = cut
        self._sums, self._features = sums, list(features)
        self._hidden = np.array(hidden, dtype=bool)
        self._target = target
        self._weights = weights if labelled.all() else weights * labelled
        # Offsets are public: what follows from all of them is that of the rows of all machines.
        self._rows, self._offset, self._known, self._start = rows, offset, known, start
        self._number, self._label_private = number, label_private
        self._steps, self._worth, self._gradients = steps, worth, gradients
        self._effects = [np.zeros(len(f.share)) for f in features]
        self._rate = self._known_rate()
        self._doubt: list[Floats] = []
        self._intercept_noise: Any = 0.0

    def run(self) -> PrivatePart:
        """Guarantee: docs/proofs/additive.md."""
        scales, factors = self._weigh_columns()
        theta, intercept = self._descend(scales, factors)
        return PrivatePart(
            features=self._features,
            theta=theta,
            intercept=intercept,
            doubt=self._doubt,
            intercept_noise=self._intercept_noise,
        )

    def _known_rate(self) -> float:
        """The rate of the second class, as far as it is known."""
        if self._number:
            return 0.5
        return float(expit(self._start) if self._known is None else np.mean(expit(self._known)))

    # --- sensitivities

    def _lengths(self, factors: Floats) -> tuple[float, float]:
        """The largest norm of a row in columns scaled by `factors`, and distance of two rows."""
        radii = np.array([f.radius for f in self._features])
        diameters = np.array([f.diameter for f in self._features]) * self._hidden
        radius = math.sqrt(float(factors**2 @ radii**2) + _CONSTANT**2)
        return radius, math.sqrt(float(factors**2 @ diameters**2))

    def _bounds(self, factors: Floats) -> tuple[float, float, Moves]:
        """Slope bounds lo and hi, and the moves of a gradient in columns scaled by `factors`."""
        radius, diameter = self._lengths(factors)
        if self._number:
            # Residuals change their sign with a private feature, whatever the label's role.
            return self._cut, self._cut, slope_moves(self._cut, self._cut, radius, diameter)
        if not self._label_private:
            return 0.5, 0.5, public_label_moves(0.5, radius, diameter)
        low, high = slope_bounds(self._rate, radius, diameter)
        return low, high, slope_moves(low, high, radius, diameter)

    def _slopes(self, low: float, high: float, start: Any) -> Callable[[Floats, slice], Floats]:
        """The bounded slope of each row, given its score without offset and start."""
        offset, target, weights = self._offset, self._target, self._weights

        def slopes(scores: Floats, rows: slice) -> Floats:
            slope: Floats
            scores = scores + start
            if offset is not None:
                scores = scores + offset[rows]
            if self._number:
                slope = np.clip(scores - target[rows], -low, high)
                return weights[rows] * slope
            chance = expit(scores)
            bounded = (chance - target[rows]) * bounded_weight(chance, low, high)
            slope = np.clip(bounded, -low, high)
            return weights[rows] * slope

        return slopes

    def _curvature(self, low: float, high: float) -> Any:
        """How fast slopes change with scores, at the start."""
        if self._number:
            return 1.0
        if self._known is None:
            return float(_bend(np.asarray(expit(self._start)), low, high))
        bends = expit(self._known)
        for start in range(0, len(bends), BLOCK):
            some = slice(start, start + BLOCK)
            bends[some] = _bend(bends[some], low, high)
        return float(np.mean(bends))

    def _bent(self, effects: Sequence[Floats], low: float, high: float) -> list[Floats]:
        """The columns' curvatures where their levels have these effects.

        A level far from the rest bends much more than rows do on average, where one class is rare:
        the most on its way counts, or steps would be too long for it.
        """
        if self._number:
            return [self._rows * f.covariance for f in self._features]
        known = np.full(1, self._start)
        if self._known is not None:
            known = np.quantile(self._known, (np.arange(10) + 0.5) / 10)
        found = []
        for f, effect in zip(self._features, effects, strict=True):
            way = np.multiply.outer(np.linspace(0, 1, 5), effect - f.share @ effect)
            bends = _bend(expit(known[:, None, None] + way), low, high).mean(axis=0).max(axis=0)
            weights = f.share * bends
            centred = f.vectors - weights @ f.vectors / weights.sum()
            found.append(self._rows * (centred.T * weights) @ centred)
        return found

    # --- stages

    def _released(
        self,
        theta: Sequence[Floats],
        start: Any,
        factors: Floats,
        bounds: tuple[float, float, Moves],
        stage: Stage,
    ) -> tuple[list[Floats], Any]:
        """Noisy gradients by column (centred by the mean row) and by the intercept."""
        low, high, moves = bounds
        tables = [f.by_level(t.T) for f, t in zip(self._features, theta, strict=True)]
        middle = _mean_score(self._features, theta)
        by_level, total = self._summed(tables, self._slopes(low, high, start - middle))
        scaled = [
            factor * f.sums(sums)
            for f, sums, factor in zip(self._features, by_level, factors, strict=True)
        ]
        everything = [*scaled, _CONSTANT * np.asarray(total)[..., None]]
        noisy = stage.release(np.concatenate(everything, axis=-1), moves)
        ends = np.cumsum([part.shape[-1] for part in scaled])
        by_start = noisy[..., -1] / _CONSTANT
        parts = np.split(noisy[..., :-1], ends[:-1], axis=-1)
        return [
            part / factor - np.multiply.outer(by_start, f.mean)
            for part, factor, f in zip(parts, factors, self._features, strict=True)
        ], by_start

    def _summed(
        self, tables: Sequence[Floats], slopes: Callable[[Floats, slice], Floats]
    ) -> tuple[list[Floats], Any]:
        """Slopes summed by column and level, and over all rows."""
        return self._sums.sums_at(tables, slopes)

    def _weigh_columns(self) -> tuple[Floats, Floats]:
        """Prior scales and factors of the columns, from one noisy gradient at the start."""
        ones = np.ones(len(self._features))
        bounds = self._bounds(ones)
        gradients, _ = self._released(self._zeros(), self._start, ones, bounds, self._worth)
        noise = self._worth.noise(bounds[2])
        bend = self._curvature(*bounds[:2]) * self._rows
        curvatures = [np.multiply.outer(bend, f.covariance) for f in self._features]
        tried = [
            (*evidence(gradients, curvatures, noise, [f.size**p for f in self._features]), p)
            for p in _SMOOTHER
        ]
        scales, _, power = max(tried, key=lambda each: each[1])
        sizes = [f.size**power for f in self._features]
        self._effects = [
            _guess(gradient, curvature, noise, scale * size) @ f.vectors.T
            for f, gradient, curvature, scale, size in zip(
                self._features, gradients, curvatures, scales, sizes, strict=True
            )
        ]
        for place, each in enumerate(self._features):
            self._features[place], divided = each.smoother(power)
            scales[place] *= divided
        # Columns share what they tell: the joint effect of one is smaller than its effect alone.
        scales = np.maximum(scales * len(self._features) ** -0.4, 1e-3)
        hidden = self._hidden
        if not hidden.all():
            typical = math.sqrt(float(np.mean(scales[hidden] ** 2)))
            scales = np.where(hidden, scales, np.maximum(scales, 0.5 * typical))
        moves = self._bounds(ones)[2]
        radii = np.array([f.radius for f in self._features])
        length = math.sqrt(float(radii @ radii) + _CONSTANT**2)
        total = self._gradients.noise(moves) / math.sqrt(self._steps)
        curvatures = [np.multiply.outer(bend, f.covariance) for f in self._features]
        factors = allocated(curvatures, scales, radii, _CONSTANT, total / length)
        return scales, factors

    def _descend(self, scales: Floats, factors: Floats) -> tuple[list[Floats], Any]:
        """Preconditioned descent with momentum; the average of its points, corrected once."""
        features, steps = self._features, self._steps
        bounds = self._bounds(factors)
        total = self._gradients.noise(bounds[2]) / math.sqrt(steps)
        bend = self._curvature(*bounds[:2]) * self._rows
        coupling = max(1.5, 0.8 * len(features))
        curvatures = self._bent(self._effects, *bounds[:2])
        noises = total / factors
        ridges, quick, slow = _preconditioners(curvatures, scales, noises, coupling)
        theta = self._zeros()
        point, points, gradients = list(theta), list(theta), list(theta)
        start = at = self._start
        starts = by_starts = 0.0 * self._start
        by_start_step = 1 / (bend + total)
        again = {int(part * steps) for part in _AGAIN}
        visited = []
        for step in range(steps):
            visited.append(point)
            found, by_start = self._released(point, at, factors, bounds, self._gradients)
            found = [g + times(r, p) for g, r, p in zip(found, ridges, point, strict=True)]
            points = [a + p for a, p in zip(points, point, strict=True)]
            gradients = [a + g for a, g in zip(gradients, found, strict=True)]
            starts, by_starts = starts + at, by_starts + by_start
            if step in again:
                seen = step + 1
                guesses = [
                    p / seen - times(q, g / seen)
                    for p, g, q in zip(points, gradients, slow, strict=True)
                ]
                louder = noises * math.sqrt(steps / seen)
                effects = [g @ f.vectors.T for f, g in zip(features, guesses, strict=True)]
                curvatures = self._bent(effects, *bounds[:2])
                scales = _again(guesses, curvatures, scales, louder)
                ridges, quick, slow = _preconditioners(curvatures, scales, noises, coupling)
            moved = [p - times(q, g) for p, q, g in zip(point, quick, found, strict=True)]
            moved_start = at - 0.5 * by_start_step * by_start
            momentum = min(step / (step + 3), _MOMENTUM)
            point = [m + momentum * (m - t) for m, t in zip(moved, theta, strict=True)]
            at = moved_start + 0.3 * (moved_start - start)
            theta, start = moved, moved_start
        theta = [
            p / steps - times(q, g / steps) for p, g, q in zip(points, gradients, slow, strict=True)
        ]
        start = starts / steps - by_start_step * by_starts / steps
        if not self._number and np.ndim(start) == 0:
            # Noisy points vary more than their average: an intercept that fits them is off for it.
            known = np.full(1, self._start) if self._known is None else score_nodes(self._known)
            variance = self._variance(theta)
            apart = [
                self._variance([p - t for p, t in zip(each, theta, strict=True)])
                for each in visited[steps // 2 :]
            ]
            start += levelled(known, 0.0, variance)
            start -= levelled(known, 0.0, variance + float(np.mean(apart)))
        if not self._number:
            self._intercept_noise = total / (_CONSTANT * bend)
        if all(curvature.ndim == 2 for curvature in curvatures):
            each = zip(features, curvatures, noises, scales, strict=True)
            self._doubt = [doubts(f, c, n, max(s, _TYPICAL)) for f, c, n, s in each]
        return theta, start - _mean_score(features, theta)

    def _variance(self, theta: Sequence[Floats]) -> float:
        """The variance of these coefficients' scores over rows, by released counts."""
        return float(PrivatePart(features=self._features, theta=[*theta], intercept=0.0).variance)

    def _zeros(self) -> list[Floats]:
        return [np.zeros(f.vectors.shape[1]) for f in self._features]


def levelled(offsets: Floats, mean: float, variance: float, slope: float = 1.0) -> float:
    """What, added to offset + slope · z, z normal, gives the same mean chance as the offset alone.

    A score that varies more has a mean chance nearer to ½, and noise makes scores vary.
    """
    spread = slope * math.sqrt(max(variance, 0.0))
    scores = np.asarray(offsets)[:, None] + slope * mean + spread * NODES
    wanted = float(expit(offsets).mean())

    def off(shift: float) -> float:
        return float(expit(scores + shift).mean(axis=0) @ NODE_SHARES) - wanted

    reach = 1 + abs(slope * mean) + 5 * spread
    if spread == slope * mean == 0 or not off(-reach) < 0 < off(reach):
        return 0.0  # nothing is added, or all chances are sure
    return float(brentq(off, -reach, reach, xtol=1e-13))


def score_nodes(scores: Floats | float) -> Floats:
    """Twenty quantiles of scores that are public, or one released number as often."""
    found: Floats = np.quantile(scores, (np.arange(20) + 0.5) / 20)
    return found


def _mean_score(features: Sequence[LevelFeatures], theta: Sequence[Floats]) -> Any:
    """The score of the mean row: a number, or one per class."""
    return sum(t @ f.mean for f, t in zip(features, theta, strict=True))


def _guess(gradient: Floats, curvature: Floats, noise: float, scales: Floats) -> Floats:
    """The likeliest coefficients by one noisy gradient at zero, under prior scales."""
    told = curvature * scales**2
    spread = told @ curvature + curvature + noise**2 * np.eye(gradient.shape[-1])
    solved = np.asarray(np.linalg.solve(spread, gradient[..., None])[..., 0], dtype=np.float64)
    return -times(turned(told), solved)


def doubts(feature: LevelFeatures, curvature: Floats, noise: float, scale: float) -> Floats:
    """How far off what was found of each level may be, where effects are about `scale` long.

    The posterior deviation by noise and rows: also of a column that one draw of noise took for
    worthless and shrank to nothing. Follows from releases alone.
    """
    values, axes = np.linalg.eigh(curvature)
    values = np.maximum(values, 1e-9)
    variance = 1 / (1 / scale**2 + values**2 / (values + noise**2))
    share = np.maximum(feature.share, 0.0)
    centred = feature.vectors - share @ feature.vectors / max(float(share.sum()), 1e-12)
    found: Floats = np.sqrt((centred @ axes) ** 2 @ variance)[feature.groups]
    return found


def _bend(chance: Floats, low: float, high: float) -> Floats:
    """How fast the slope of a row with chance p changes with its score."""
    bend: Floats = chance * (1 - chance) * bounded_weight(chance, low, high)
    return bend


def bounded_weight(chance: Floats, low: float, high: float) -> Floats:
    """ω(p): what brings both slopes of a row with chance p into [−low, high]."""
    tiny = 1e-12
    weight: Floats = np.minimum(
        1.0,
        np.minimum(low / np.maximum(1 - chance, tiny), high / np.maximum(chance, tiny)),
    )
    return weight


def _preconditioners(
    curvatures: Sequence[Floats], scales: Floats, noises: Floats, coupling: float
) -> tuple[list[Floats], list[Floats], list[Floats]]:
    """Ridges that shrink each direction as its noise asks, and inverses for steps.

    A direction of curvature h and noise σ under the prior τ is best shrunk by h²τ²/(h²τ² + h + σ²):
    that is a ridge of (h + σ²)/(hτ²).
    """
    ridges, quick, slow = [], [], []
    for curvature, scale, noise in zip(curvatures, scales, noises, strict=True):
        values, axes = np.linalg.eigh(curvature)
        values = np.maximum(values, 1e-9)
        ridge = (values + noise**2) / (scale**2 * values)
        most = values.max(axis=-1, initial=1.0, keepdims=True)
        ridge = np.minimum(ridge, 1e3 * (most + noise / scale))[..., None, :]
        values, back = values[..., None, :], turned(axes)
        ridges.append((axes * ridge) @ back)
        quick.append((axes / (coupling * values + ridge)) @ back)
        slow.append((axes / (math.sqrt(coupling) * values + ridge)) @ back)
    return ridges, quick, slow


def _again(
    guesses: Sequence[Floats], curvatures: Sequence[Floats], scales: Floats, noises: Floats
) -> Floats:
    """Prior scales by what the descent has found so far: squares plus what is still unknown."""
    found = []
    for guess, curvature, scale, noise in zip(guesses, curvatures, scales, noises, strict=True):
        values = np.maximum(np.linalg.eigvalsh(curvature), 1e-9)
        unknown = 1 / (1 / scale**2 + values**2 / (values + noise**2))
        square = (float(np.sum(guess**2)) + float(unknown.sum()) + 0.02) / (guess.size + 2)
        found.append(math.sqrt(square) if guess.size else scale)
    return np.array(found)
