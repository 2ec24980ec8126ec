"""What a mechanism did, as pure data: necessary and sufficient to account for it.

An event never changes its meaning, never holds a value of the data, and survives JSON unchanged.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from itertools import groupby
from numbers import Integral, Real
from typing import Any, Literal, get_args

from halfmask.errors import AccountingError, InputError

# --- What a guarantee says: what two neighbouring tables may differ in, and which numbers it may
# have. Every printed guarantee names one of the two relations; `label` is only a name for
# accounting.


Relation = Literal["replace", "withhold"]
"""replace: the private part of one row (or unit) takes another value; its public part stays.
withhold: the private part of one row (or unit) contributes exactly zero."""

AccountingPair = Literal["replace", "withhold", "label"]
"""What `halfmask account` takes: `label` is replacement where the two contributions are orthogonal,
as they are for the split softmax loss with a private label and public features."""

RELATIONS: tuple[Relation, ...] = get_args(Relation)
PAIRS: tuple[AccountingPair, ...] = get_args(AccountingPair)


def check_relation(relation: str) -> Relation:
    """Return `relation`, or say which ones exist."""
    for known in RELATIONS:
        if relation == known:
            return known
    raise InputError(f"Unknown relation {relation!r}: expected one of {', '.join(RELATIONS)}.")


def check_epsilon(epsilon: float) -> None:
    """Refuse anything but a finite epsilon > 0."""
    if not (isinstance(epsilon, Real) and math.isfinite(epsilon) and epsilon > 0):
        raise AccountingError(f"Expected a finite epsilon > 0, got {_told(epsilon)}.")


def check_delta(delta: float) -> None:
    """Refuse anything but a delta strictly between 0 and 1."""
    if not (isinstance(delta, Real) and 0 < delta < 1):
        raise AccountingError(f"Expected delta strictly between 0 and 1, got {_told(delta)}.")


def _told(value: object) -> str:
    """A number as it is printed; anything else in quotes or by its type's own words."""
    return str(value) if isinstance(value, Real) else repr(value)


Contribution = Literal["general", "label"]

_FARTHEST = 1e100
"""Beyond it squares are no floats; nothing that is released has such a ratio to its noise."""


def _require(ok: bool, message: str) -> None:
    if not ok:
        raise AccountingError(message)


def _require_count(value: object, name: str, least: int) -> None:
    """Half a step would be half paid for: only whole numbers count, and those a float holds."""
    _require(
        isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= least,
        f"Expected a whole number {name} >= {least}, got {value!r}.",
    )
    _require(int(value) <= 2**53, f"Expected {name} of at most 2^53.")  # type: ignore[call-overload]


@dataclass(frozen=True, kw_only=True)
class GaussianEvent:
    """`count` adaptive Gaussian releases, each with sensitivity / noise std = mu.

    The ratio differs by relation: rows clipped to norm C give replace = 2C/σ and withhold = C/σ.
    Guarantee: docs/proofs/gaussian.md.
    """

    replace: float
    withhold: float
    count: int = 1

    def __post_init__(self) -> None:
        for name in ("replace", "withhold"):
            mu = getattr(self, name)
            _require(
                0 <= mu <= _FARTHEST,
                f"Expected a finite {name} ratio >= 0 of sensitivity to noise, got {mu}.",
            )
        _require_count(self.count, "count", 0)


@dataclass(frozen=True, kw_only=True)
class PoissonGaussianEvent:
    """`steps` Poisson-sampled sums of rows clipped to C, each with noise std noise_multiplier·C.

    `contribution="label"` claims that the two contributions a row can make pass the test of
    docs/proofs/label_pair.md (orthogonal and of equal norm, or dominated by such a pair).
    Guarantee: docs/proofs/poisson_gaussian.md.
    """

    noise_multiplier: float
    rate: float
    steps: int = 1
    contribution: Contribution = "general"

    def __post_init__(self) -> None:
        _require(
            1 / _FARTHEST <= self.noise_multiplier <= _FARTHEST,
            f"Expected a finite noise multiplier > 0, got {self.noise_multiplier}.",
        )
        object.__setattr__(self, "noise_multiplier", float(self.noise_multiplier))
        _require(0 <= self.rate <= 1, f"Expected a sampling rate in [0, 1], got {self.rate}.")
        _require_count(self.steps, "steps", 0)
        _require(
            self.contribution in ("general", "label"),
            f"Expected contribution 'general' or 'label', got {self.contribution!r}.",
        )


@dataclass(frozen=True, kw_only=True)
class RandomisedResponseEvent:
    """`count` answers, each true with probability e^ε/(e^ε + categories − 1), else another value.

    Guarantee: docs/proofs/randomised_response.md; pure ε under both relations (under withhold the
    answer is drawn without the private value, and is at most as revealing).
    """

    epsilon: float
    categories: int
    count: int = 1

    def __post_init__(self) -> None:
        _require(
            0 <= self.epsilon <= _FARTHEST,
            f"Expected a finite epsilon >= 0, got {self.epsilon}.",
        )
        _require_count(self.categories, "categories", 2)
        _require_count(self.count, "count", 0)


Event = GaussianEvent | PoissonGaussianEvent | RandomisedResponseEvent


def unsampled(events: Sequence[Event]) -> bool:
    """Whether all of them are Gaussian releases about every row."""
    return all(
        isinstance(event, GaussianEvent)
        or (isinstance(event, PoissonGaussianEvent) and event.rate == 1)
        for event in events
    )


def counted(words: Iterable[str]) -> str:
    """What was charged, in words: in order, those that follow their likes counted."""
    groups = [(word, len(list(same))) for word, same in groupby(words)]
    return "; ".join(word if count == 1 else f"{word} ({count} times)" for word, count in groups)


def covers(paid: Sequence[Event], used: Sequence[Event]) -> bool:
    """Whether everything in `used` was paid for by `paid`, at every delta and in exact arithmetic.

    Gaussian releases are worth their squares, whatever their order; others are worth their like.
    """
    have, need = _worth(paid), _worth(used)
    return all(amount <= have.get(kind, 0) for kind, amount in need.items())


def _worth(events: Sequence[Event]) -> dict[object, Fraction]:
    worth: dict[object, Fraction] = {}
    for event in events:
        if isinstance(event, GaussianEvent):
            for name in ("replace", "withhold"):
                square = Fraction(float(getattr(event, name))) ** 2
                worth[name] = worth.get(name, Fraction(0)) + int(event.count) * square
        elif isinstance(event, PoissonGaussianEvent):
            step = replace(event, steps=1)
            worth[step] = worth.get(step, Fraction(0)) + int(event.steps)
        else:
            answer = replace(event, count=1)
            worth[answer] = worth.get(answer, Fraction(0)) + int(event.count)
    return worth


_KINDS: dict[str, type[Event]] = {
    "gaussian": GaussianEvent,
    "poisson-gaussian": PoissonGaussianEvent,
    "randomized-response": RandomisedResponseEvent,
}


def event_to_json(event: Event) -> dict[str, Any]:
    """The event as a JSON object with its kind."""
    kind = next(name for name, cls in _KINDS.items() if isinstance(event, cls))
    return {"kind": kind, **asdict(event)}


def event_from_json(data: dict[str, Any]) -> Event:
    """The inverse of `event_to_json`; an unknown kind or field is an error."""
    fields = dict(data)
    kind = fields.pop("kind", None)
    if kind not in _KINDS:
        raise AccountingError(f"Unknown event kind {kind!r}: expected one of {', '.join(_KINDS)}.")
    try:
        return _KINDS[kind](**fields)
    except TypeError as error:
        raise AccountingError(f"Event of kind {kind!r} has unexpected fields: {error}.") from None
