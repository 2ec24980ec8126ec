"""How large the error of private training can be: closed forms, and the questions turned round.

Theorems 2.1 and 2.4 of feature DP (F) and Theorem 1 of the DP-ERM lecture (L), their constants
corrected. All bound E[mean loss] - min over the ball of the mean loss on the training rows, for
convex losses. They say what to expect, never what is private: epsilon goes in and never comes out.
Derivations: docs/proofs/bounds.md.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable

from halfmask.errors import InputError

_MOST_ROWS = 10**15


def second_moment(*, lipschitz: float, private_lipschitz: float, rate: float, rows: int) -> float:
    """G²: the second moment of Algorithm 1's gradient before noise, at most."""
    return lipschitz**2 + sampling_variance(
        private_lipschitz=private_lipschitz, rate=rate, rows=rows
    )


def sampling_variance(
    *,
    private_lipschitz: float,
    rate: float,
    rows: int,
    public_lipschitz: float = 0.0,
    public_batch: int | None = None,
) -> float:
    """What the two batches add: (1-q)L'²/(qn) for the Poisson one, and that of the uniform one."""
    poisson = (1 - rate) / (rate * rows) * private_lipschitz**2
    batch = rows if public_batch is None else min(public_batch, rows)
    # Without repetition: no variance is left where all rows are taken.
    missing = (rows - batch) / max(rows - 1, 1)
    return poisson + missing * public_lipschitz**2 / batch


def noise_on_mean(*, noise_multiplier: float, clip_norm: float, rate: float, rows: int) -> float:
    """The standard deviation of the noise on each coordinate of a mean gradient."""
    return noise_multiplier * clip_norm / (rate * rows)


def noise_of_theorem_2_1(
    *, pair_lipschitz: float, rows: int, epsilon: float, delta: float, steps: int
) -> float:
    """c·L_f/(εn)·√(T·log(1/δ)·log(T/δ)), F's form for a mean gradient, without its factor m; c = 1.

    A formula for orders of magnitude; noise that is used comes from accounting.calibrate.
    """
    logs = math.log(1 / delta) * math.log(steps / delta)
    return pair_lipschitz / (epsilon * rows) * math.sqrt(steps * logs)


def noise_of_whole_batches(*, sensitivity: float, rows: int, mu: float, steps: int) -> float:
    """Δ√T/(nμ): what T mean gradients over all rows need exactly, Δ being that of their sum."""
    return sensitivity * math.sqrt(steps) / (rows * mu)


def excess_of_theorem_2_4(
    *,
    radius: float,
    steps: int,
    learning_rate: float,
    second_moment: float,
    parameters: int,
    noise_std: float,
) -> float:
    """M²/(2ηT) + η/2·(G² + dσ²), for the average of the iterates of Algorithm 1."""
    spread = second_moment + parameters * noise_std**2
    return radius**2 / (2 * learning_rate * steps) + learning_rate / 2 * spread


def best_learning_rate(
    *, radius: float, steps: int, second_moment: float, parameters: int, noise_std: float
) -> float:
    """M/√(T(G² + dσ²)), which makes the bound of Theorem 2.4 M·√((G² + dσ²)/T)."""
    return radius / math.sqrt(steps * (second_moment + parameters * noise_std**2))


def excess_if_smooth(
    *, distance: float, steps: int, learning_rate: float, smoothness: float, variance: float
) -> float:
    """D²/(2ηT) + η/(1-ηβ)·V/2, for η < 1/β: variance alone, and not the gradient itself.

    For the average of the iterates after each of `steps` steps from a point at `distance` D of the
    optimum; V = dσ² + sampling variance.
    """
    sharper = _sharper(learning_rate, smoothness)
    return distance**2 / (2 * learning_rate * steps) + sharper * variance / 2


def excess_of_smooth_tail(
    *, radius: float, steps: int, learning_rate: float, smoothness: float, variance: float
) -> float:
    """The same for the average of the second half of the iterates, which starts where it may.

    Each step moves the expected D² up by η²/(1-ηβ)·V at most, and the ball keeps it below 4M².
    """
    first = steps // 2
    drift = first * learning_rate * _sharper(learning_rate, smoothness) * variance
    return excess_if_smooth(
        distance=math.sqrt(min(4 * radius**2, radius**2 + drift)),
        steps=steps - first,
        learning_rate=learning_rate,
        smoothness=smoothness,
        variance=variance,
    )


def _sharper(learning_rate: float, smoothness: float) -> float:
    if not 0 < learning_rate * smoothness < 1:
        raise InputError("Expected a learning rate between 0 and 1/smoothness.")
    return learning_rate / (1 - learning_rate * smoothness)


def excess_of_lecture(
    *,
    radius: float,
    lipschitz: float,
    parameters: int,
    rows: int,
    steps: int,
    mu: float,
    sensitivity: float | None = None,
) -> float:
    """Theorem 1 of L: RB/√T with B² = C² + dσ², at the exact σ = Δ√T/(nμ), Δ = 2C by default."""
    noise = noise_of_whole_batches(
        sensitivity=2 * lipschitz if sensitivity is None else sensitivity,
        rows=rows,
        mu=mu,
        steps=steps,
    )
    return radius * math.sqrt((lipschitz**2 + parameters * noise**2) / steps)


def steps_of_lecture(*, radius: float, lipschitz: float, error: float) -> int:
    """T = 2(RC/α)²: what optimisation leaves of α² is then the half."""
    check_error(error)
    return math.ceil(2 * (radius * lipschitz / error) ** 2)


def rows_of_lecture(
    *,
    radius: float,
    lipschitz: float,
    parameters: int,
    error: float,
    mu: float,
    sensitivity: float | None = None,
) -> int:
    """n = √(2d)·RΔ/(αμ), which with `steps_of_lecture` brings the bound of Theorem 1 to α."""
    check_error(error)
    moved = 2 * lipschitz if sensitivity is None else sensitivity
    return math.ceil(radius * moved * math.sqrt(2 * parameters) / (error * mu))


def excess_of_label_span(
    *,
    radius: float,
    row_norm: float,
    slope_bound: float,
    directions: int,
    noise_std: float,
    overhead: float,
    steps: int,
) -> float:
    """R·r·√((s² + (K-1)·overhead·σ²)/T) for uniform draws at the best learning rate.

    σ is the noise of one copy of a label and `overhead` what several copies cost (see
    `label_span.budget_shares`). It falls with √T only, and σ does not fall with n at all.
    """
    spread = slope_bound**2 + directions * overhead * noise_std**2
    return radius * row_norm * math.sqrt(spread / steps)


def excess_of_one_release(*, radius: float, parameters: int, noise_std: float, rows: int) -> float:
    """2R·σ√d/n: a private label enters through one noisy sum, minimised over the ball."""
    return 2 * radius * noise_std * math.sqrt(parameters) / rows


def rows_for_error(bound: Callable[[int], float], error: float) -> int:
    """The fewest rows at which `bound`, falling in them, is at most `error`."""
    check_error(error)
    low, high = 0, 1
    while bound(high) > error:
        low, high = high, 2 * high
        if high > _MOST_ROWS:
            raise InputError(
                f"No number of rows brings the bound to {error:g}: ask for a larger error, "
                "or allow more steps."
            )
    return low + 1 + bisect_left(range(low + 1, high), True, key=lambda n: bound(n) <= error)


def check_error(error: float) -> None:
    """Refuse a target that no error can reach."""
    if not (math.isfinite(error) and error > 0):
        raise InputError(f"Expected a target error > 0, got {error}.")
