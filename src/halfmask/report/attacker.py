"""What an attacker can at most gain: bounds on beliefs and right guesses, from charged events.

The attacker knows the model, everything released, all public columns and every other row, and asks
whether one person's private part is a certain value or another. Derivation: docs/threat-model.md.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from halfmask.accounting.accountant import delta as delta_at
from halfmask.accounting.accountant import epsilon as epsilon_at
from halfmask.accounting.events import Event
from halfmask.errors import InputError

PRIORS = (0.01, 0.1, 0.5, 0.9)
_SPLITS = (0.3, 0.1, 0.03, 0.01, 0.003)


@dataclass(frozen=True, kw_only=True)
class Gain:
    """One row of the table: beliefs and shares of right guesses, before and at most after."""

    prior: float
    belief: float
    guess_before: float
    guess_after: float


def attacker_gains(
    events: Sequence[Event], *, delta: float, priors: Sequence[float] = PRIORS
) -> tuple[Gain, ...]:
    """The bounds for attackers who start from each prior, under the relation `replace`."""
    rise = most_evidence(events, delta=delta)
    return tuple(
        Gain(
            prior=prior,
            belief=belief_after(prior, rise),
            guess_before=max(prior, 1 - prior),
            guess_after=most_right_guesses(events, prior),
        )
        for prior in priors
    )


def most_evidence(events: Sequence[Event], *, delta: float) -> float:
    """How far the log odds of a private value can rise, except with probability at most `delta`.

    For every share s of delta, P[loss > t] <= δ(ε)/(1 − e^(ε−t)), with ε where δ(ε) = s·delta and
    t = ε − ln(1−s); the least t is taken. Plain ε would promise this only for delta = 0.
    """
    if not events:
        return 0.0
    return min(
        epsilon_at(events, delta=share * delta, relation="replace") - math.log1p(-share)
        for share in _SPLITS
    )


def belief_after(prior: float, rise: float) -> float:
    """The belief whose log odds lie `rise` above those of `prior`."""
    _check_prior(prior)
    return prior / (prior + (1 - prior) * math.exp(-rise))


def most_right_guesses(events: Sequence[Event], prior: float) -> float:
    """The largest share of right guesses of any attacker with this prior; no exception to it.

    With m the smaller of the two prior probabilities it is 1 − m + m·δ(ln((1−m)/m)): the most by
    which a test can exceed its cost is what the privacy curve δ(ε) bounds.
    """
    _check_prior(prior)
    least = min(prior, 1 - prior)
    odds = math.log((1 - least) / least)
    gained = delta_at(events, epsilon=odds, relation="replace") if events else 0.0
    return 1 - least + least * gained


def _check_prior(prior: float) -> None:
    if not 0 < prior < 1:
        raise InputError(f"Expected a prior strictly between 0 and 1, got {prior}.")
