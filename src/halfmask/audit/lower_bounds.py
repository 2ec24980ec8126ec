"""From right and wrong guesses to a lower bound on epsilon, with a stated confidence.

Two bounds, both from runs whose threshold was chosen on other runs:

* direct: (ε, δ) alone limits how often an event may happen in one world given the other. It assumes
  nothing, and cannot exceed the logarithm of the number of runs.
* curve: the events that were charged promise a whole trade-off curve, not one point of it. The
  guesser's advantage is at most the total variation of that curve, so an advantage seen says how
  much *less* noise the charged events would need to explain it; the bound is the epsilon of the
  events with that noise.

Guarantee: docs/proofs/audit.md.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.stats import beta

from halfmask.accounting import accountant
from halfmask.accounting.events import Event, GaussianEvent, PoissonGaussianEvent
from halfmask.accounting.events import RandomizedResponseEvent as Answer
from halfmask.accounting.relations import Relation
from halfmask.errors import AccountingError, InputError

Floats = NDArray[np.float64]
Bits = NDArray[np.bool_]

# The grid on which noise is varied: steps a doubling, and its ends.
_STEPS = 64
_LOWEST, _HIGHEST = 7 * _STEPS, 4 * _STEPS


def at_least(hits: int, trials: int, alpha: float) -> float:
    """Clopper-Pearson: the chance of a hit is at least this, but for a probability `alpha`."""
    if hits == 0:
        return 0.0
    return float(beta.ppf(alpha, hits, trials - hits + 1))


def at_most(hits: int, trials: int, alpha: float) -> float:
    """Clopper-Pearson: the chance of a hit is at most this, but for a probability `alpha`."""
    if hits == trials:
        return 1.0
    return float(beta.ppf(1 - alpha, hits + 1, trials - hits))


def direct_epsilon(
    seen: Bits, second: Bits, *, delta: float, alpha: float, towards_second: bool
) -> float:
    """log((P[event | likelier world] − δ) / P[event | other]), each end by Clopper-Pearson."""
    likelier = second if towards_second else ~second
    inside, outside = seen[likelier], seen[~likelier]
    if not len(inside) or not len(outside):
        return 0.0
    low = at_least(int(inside.sum()), len(inside), alpha / 2) - delta
    high = at_most(int(outside.sum()), len(outside), alpha / 2)
    return max(0.0, math.log(low / high)) if low > 0 else 0.0


def with_less_noise(events: Sequence[Event], scale: float) -> tuple[Event, ...]:
    """The same events with every noise divided by `scale`."""
    changed: list[Event] = []
    for event in events:
        if isinstance(event, GaussianEvent):
            changed.append(
                GaussianEvent(
                    replace=event.replace * scale,
                    withhold=event.withhold * scale,
                    count=event.count,
                )
            )
        elif isinstance(event, PoissonGaussianEvent):
            changed.append(
                PoissonGaussianEvent(
                    noise_multiplier=event.noise_multiplier / scale,
                    rate=event.rate,
                    steps=event.steps,
                    contribution=event.contribution,
                )
            )
        else:
            changed.append(
                Answer(
                    epsilon=event.epsilon * scale, categories=event.categories, count=event.count
                )
            )
    return tuple(changed)


def curve_epsilon(
    events: Sequence[Event], *, advantage: float, delta: float, relation: Relation
) -> float:
    """Epsilon at `delta` of the charged events with the most noise that explains `advantage`.

    `advantage` is 2·P[right guess] − 1 for a fair coin, at most δ(0), the total variation. Where no
    noise explains it (sampling alone forbids it), the answer is that of the least noise that can
    still be accounted for.
    """
    if not events:
        raise InputError("A claim without events promises epsilon 0: use the direct bound.")
    if advantage <= 0:
        return 0.0

    charged = tuple(events)

    def epsilon(place: int) -> float:
        less = with_less_noise(charged, _scale(place))
        return accountant.epsilon(less, delta=delta, relation=relation)

    low, high = -_LOWEST, 0
    if _variation(charged, relation, low) >= advantage:
        return 0.0
    while _variation(charged, relation, high) < advantage:
        low, high = high, high + _STEPS
        try:
            epsilon(high)
        except AccountingError:
            return epsilon(low)
        if high > _HIGHEST:
            return epsilon(low)
    # The lower end never explains the advantage: what is returned stays a lower bound.
    while high - low > 1:
        middle = (low + high) // 2
        below = _variation(charged, relation, middle) < advantage
        low, high = (middle, high) if below else (low, middle)
    return epsilon(low)


def _scale(place: int) -> float:
    return float(2.0 ** (place / _STEPS))


@lru_cache(maxsize=4096)
def _variation(events: tuple[Event, ...], relation: Relation, place: int) -> float:
    """δ(0) of the events with noise divided by 2^(place/_STEPS): a grid, so that looks share it."""
    less = with_less_noise(events, _scale(place))
    return accountant.delta(less, epsilon=0.0, relation=relation)
