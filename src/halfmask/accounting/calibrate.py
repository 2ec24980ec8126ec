"""The inverse questions: how much noise, how many steps, for a budget that may be partly spent.

Every answer is on the safe side: accounting for it again gives at most the target. Targets are
first rounded down, as printed numbers are rounded up, to `DIGITS` significant digits, so that what
is printed never exceeds what was asked for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from halfmask.accounting.accountant import epsilon as account
from halfmask.accounting.events import Contribution, Event, PoissonGaussianEvent
from halfmask.accounting.gaussian import check_delta, check_epsilon, gaussian_mu
from halfmask.accounting.relations import Relation, check_relation
from halfmask.errors import AccountingError

DIGITS = 5
_TOLERANCE = 5e-4  # relative, on epsilon


def round_up(epsilon: float) -> float:
    """`epsilon` rounded up to `DIGITS` significant digits, for printing."""
    return _rounded(epsilon, math.ceil)


def round_down(epsilon: float) -> float:
    """`epsilon` rounded down to `DIGITS` significant digits, for calibrating."""
    return _rounded(epsilon, math.floor)


def _rounded(value: float, whole: Callable[[float], int]) -> float:
    if value == 0 or not math.isfinite(value):
        return value
    places = DIGITS - 1 - math.floor(math.log10(value))
    nearest = float(f"{value:.{DIGITS - 1}e}")
    if math.isclose(nearest, value, rel_tol=1e-12):
        return nearest  # already that short: 0.1 must not become 0.10001
    return float(f"{whole(value * 10.0**places) / 10.0**places:.{DIGITS - 1}e}")


def noise_multiplier(
    *,
    epsilon: float,
    delta: float,
    rate: float,
    steps: int,
    relation: Relation,
    contribution: Contribution = "general",
    spent: Sequence[Event] = (),
) -> float:
    """The least noise std / clip norm for `steps` Poisson steps to stay within (epsilon, delta).

    `spent` is composed with them. The result costs between 99.9% and 100% of `epsilon`.
    """
    check_epsilon(epsilon)
    check_delta(delta)
    check_relation(relation)
    if not 0 < rate <= 1:
        raise AccountingError(f"Expected a sampling rate q in (0, 1], got {rate}.")
    if steps < 1:
        raise AccountingError(f"Expected steps >= 1, got {steps}.")
    target = round_down(epsilon)
    already = account(spent, delta=delta, relation=relation) if spent else 0.0
    if already >= target:
        raise AccountingError(
            f"epsilon={epsilon:g} is spent already ({round_up(already):g} at delta={delta:g}): "
            "no noise is large enough for a further step."
        )

    def cost(noise: float) -> float:
        step = PoissonGaussianEvent(
            noise_multiplier=noise, rate=rate, steps=steps, contribution=contribution
        )
        return account((*spent, step), delta=delta, relation=relation)

    if rate == 1 and not spent:
        sensitivity = {"replace": 2.0, "withhold": 1.0}[relation]
        if relation == "replace" and contribution == "label":
            sensitivity = math.sqrt(2)
        noise = sensitivity * math.sqrt(steps) / gaussian_mu(target, delta)
        while cost(noise) > target:
            noise *= 1 + 1e-12
        return noise
    # Without sampling this much noise would do; with it, less is enough.
    high = 2 * math.sqrt(steps) / gaussian_mu(target, delta)
    while cost(high) > target:
        high *= 2
    low = high / 2
    while (below := cost(low)) <= target and low > 1e-6:
        high, low = low, low / 2
    above = cost(high)
    for _ in range(60):
        if target * (1 - _TOLERANCE) <= above or high / low < 1 + 1e-9:
            return high
        # Epsilon is close to a power of the noise in between: aim a little to the safe side.
        if above > already and below > above:
            slope = math.log(high / low) / math.log(below / above)
            middle = high * (above / (target * (1 - _TOLERANCE / 3))) ** slope
            middle = min(max(middle, low * (high / low) ** 0.02), low * (high / low) ** 0.98)
        else:
            middle = math.sqrt(low * high)
        at_middle = cost(middle)
        if at_middle <= target:
            high, above = middle, at_middle
        else:
            low, below = middle, at_middle
    return high


def most_steps(
    *,
    epsilon: float,
    delta: float,
    rate: float,
    noise_multiplier: float,
    relation: Relation,
    contribution: Contribution = "general",
    limit: int = 10_000_000,
) -> int:
    """The most Poisson steps at this noise within (epsilon, delta); 0 if not even one fits."""
    check_epsilon(epsilon)
    check_delta(delta)

    def fits(steps: int) -> bool:
        step = PoissonGaussianEvent(
            noise_multiplier=noise_multiplier, rate=rate, steps=steps, contribution=contribution
        )
        return account([step], delta=delta, relation=relation) <= epsilon

    if not fits(1):
        return 0
    low, high = 1, 2
    while fits(high):
        low, high = high, 2 * high
        if low >= limit:
            raise AccountingError(
                f"More than {limit} steps fit: give a smaller budget or less noise."
            )
    while high - low > max(1, low // 10_000):
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
