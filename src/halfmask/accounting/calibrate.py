"""The inverse questions: how much noise, how many steps, for a budget that may be partly spent.

Every answer is on the safe side: accounting for it again gives at most the target. Targets are
first rounded down, as printed numbers are rounded up, to `DIGITS` significant digits, so that what
is printed never exceeds what was asked for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache, lru_cache

from halfmask.accounting.accountant import epsilon as account
from halfmask.accounting.budget import Budget, printed, round_down
from halfmask.accounting.events import Contribution, Event, PoissonGaussianEvent, Relation
from halfmask.accounting.gaussian import gaussian_mu
from halfmask.errors import AccountingError

_TOLERANCE = 5e-4  # relative, on epsilon


def noise_multiplier(
    budget: Budget,
    *,
    rate: float,
    steps: int,
    contribution: Contribution = "general",
    spent: Sequence[Event] = (),
) -> float:
    """The least noise std / clip norm for `steps` Poisson steps to stay within `budget`.

    `spent` is composed with them. The result costs between 99.9% and 100% of its epsilon.
    """
    if not 0 < rate <= 1:
        raise AccountingError(f"Expected a sampling rate q in (0, 1], got {rate}.")
    if steps < 1:
        raise AccountingError(f"Expected steps >= 1, got {steps}.")
    return _least_noise(budget, rate, steps, contribution, tuple(spent))


@lru_cache(maxsize=256)
def _least_noise(
    budget: Budget,
    rate: float,
    steps: int,
    contribution: Contribution,
    spent: tuple[Event, ...],
) -> float:
    epsilon, delta, relation = budget.epsilon, budget.delta, budget.relation
    target = round_down(epsilon)
    already = account(spent, delta=delta, relation=relation) if spent else 0.0
    if already >= target:
        raise AccountingError(
            f"epsilon={printed(epsilon)} is spent already ({printed(already)} at delta={delta:g}): "
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
    guess = _guess(gaussian_mu(target, delta), rate, steps, relation, contribution)
    found = _falling_root(cost, target, guess, least=already)
    if found is None:
        raise AccountingError(
            f"epsilon={printed(epsilon)} is all but spent ({printed(already)} at delta={delta:g}): "
            "no noise is large enough for a further step."
        )
    return found


def _guess(
    mu: float, rate: float, steps: int, relation: Relation, contribution: Contribution
) -> float:
    """The noise at which `steps` losses have the spread of one Gaussian of `mu`."""
    from halfmask.accounting.accountant import loss_moments

    wanted = mu / math.sqrt(steps)

    def spread(noise: float) -> float:
        if relation == "replace" and contribution == "label":
            return math.hypot(
                loss_moments(noise, rate, "remove")[0], loss_moments(noise, rate, "add")[0]
            )
        return loss_moments(noise, rate, "replace" if relation == "replace" else "remove")[0]

    low, high = math.log(1e-3), math.log(2 / wanted)
    for _ in range(12):
        middle = (low + high) / 2
        low, high = (middle, high) if spread(math.exp(middle)) > wanted else (low, middle)
    return math.exp(high)


def _falling_root(
    cost: Callable[[float], float], target: float, guess: float, *, least: float
) -> float | None:
    """An argument whose cost is at most `target` and within the tolerance of it.

    `cost` falls; None where even a million times the guess costs too much. The cost is close to a
    power of its argument, so secants of the logarithms converge in a few evaluations.
    """
    high, factor = guess, 1.05
    while (above := cost(high)) > target:
        high, factor = high * factor, min(factor**2, 100.0)
        if high > 1e6 * guess:
            return None
    low, factor = high / 1.05, 1.05
    while (below := cost(low)) <= target:
        high, above = low, below
        low, factor = low / factor, min(factor**2, 100.0)
        if low < 1e-6:
            return high
    for _ in range(60):
        if target * (1 - _TOLERANCE) <= above or high / low < 1 + 1e-9:
            break
        if above > least and below > above:
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
    budget: Budget,
    *,
    rate: float,
    noise_multiplier: float,
    contribution: Contribution = "general",
    limit: int = 10_000_000,
) -> int:
    """The most Poisson steps at this noise within `budget`; 0 if not even one fits."""
    target = round_down(budget.epsilon)

    @cache
    def cost(steps: int) -> float:
        step = PoissonGaussianEvent(
            noise_multiplier=noise_multiplier, rate=rate, steps=steps, contribution=contribution
        )
        return account([step], delta=budget.delta, relation=budget.relation)

    if cost(1) > target:
        return 0
    low, high = 1, 2
    while cost(high) <= target:
        low, high = high, 4 * high
        if low >= limit:
            raise AccountingError(
                f"More than {limit} steps fit: give a smaller budget or less noise."
            )
    while high - low > max(1, low // 10_000):
        middle = _between(low, high, cost(low), cost(high), target)
        low, high = (middle, high) if cost(middle) <= target else (low, middle)
    return low


def _between(low: int, high: int, below: float, above: float, target: float) -> int:
    """Where epsilon, a power of the steps from `low` to `high`, would meet `target`."""
    share = 0.5
    if 0 < below < above and high - low > 4:
        share = math.log(target / below) / math.log(above / below)
    # Never closer to an end than 2%, so that both ends keep moving.
    guess: float = low * (high / low) ** min(max(share, 0.02), 0.98)
    return min(max(round(guess), low + 1), high - 1)
