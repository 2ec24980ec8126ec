"""The distinguishing audit: many independent runs, each on one of two neighbouring inputs by a
coin.

A game runs the real mechanism on one of its two inputs and gives a number that is larger where the
second input looks likelier; it sees everything the mechanism releases and knows both inputs. A
tenth of the runs choose the thresholds, the others are counted. The audit looks three times, with
a share of the error probability for each look, and stops early once the question is settled. Audits
are repeated, so the stated confidence is that of ten of them together.
Guarantee: docs/proofs/audit.md.
"""

from __future__ import annotations

import math
import os
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import beta

from halfmask.accounting import accountant
from halfmask.accounting.budget import printed, printed_room
from halfmask.accounting.events import Event, GaussianEvent, PoissonGaussianEvent, Relation
from halfmask.errors import AccountingError, InputError
from halfmask.progress import workers as at_work
from halfmask.types import Floats

# --- What an audit found: the claim, the lower bound, and whether the one refutes the other.


@dataclass(frozen=True, kw_only=True)
class Finding:
    """`lower_bound` holds with probability `confidence`; above `claimed` it refutes the claim."""

    mechanism: str
    claimed: float
    lower_bound: float
    confidence: float
    relation: Relation
    delta: float
    runs: int
    details: Mapping[str, Any] = field(default_factory=dict)

    @property
    def refuted(self) -> bool:
        """Whether the claim is false, up to the confidence."""
        return self.lower_bound > self.claimed

    def to_json(self) -> dict[str, Any]:
        """The finding as a JSON object."""
        told = {name: value for name, value in vars(self).items() if name != "details"}
        return {**told, "refuted": self.refuted, **self.details}

    def text(self) -> str:
        """The finding in words."""
        verdict = "REFUTED: what was seen contradicts the claim."
        if not self.refuted:
            found = "no leak (lower bound 0)" if self.lower_bound <= 0 else "less than is claimed"
            verdict = f"The attack found {found}; this does not prove the claim."
        return (
            f"{self.mechanism}: claimed epsilon {printed(self.claimed)} at delta {self.delta:g} "
            f"({self.relation}); at least {printed_room(self.lower_bound)} with confidence "
            f"{self.confidence:g} after {self.runs} run{'s' * (self.runs != 1)}. {verdict}"
        )


# --- From right and wrong guesses to a lower bound on epsilon, with a stated confidence.
# Two bounds, both from runs whose threshold was chosen on other runs:
# * direct: (ε, δ) alone limits how often an event may happen in one world given the other. It
#   assumes nothing, and cannot exceed the logarithm of the number of runs.
# * curve: the events that were charged promise a whole trade-off curve, not one point of it. The
#   guesser's advantage is at most the total variation of that curve, so an advantage seen says how
#   much *less* noise the charged events would need to explain it; the bound is the epsilon of the
#   events with that noise.
# Guarantee: docs/proofs/audit.md.


Bits = NDArray[np.bool_]

# The grid on which noise is varied: steps per doubling, and its ends.
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

    def less(event: Event) -> Event:
        if isinstance(event, GaussianEvent):
            return replace(event, replace=event.replace * scale, withhold=event.withhold * scale)
        if isinstance(event, PoissonGaussianEvent):
            return replace(event, noise_multiplier=event.noise_multiplier / scale)
        return replace(event, epsilon=event.epsilon * scale)

    return tuple(less(event) for event in events)


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
    between = range(low + 1, high)
    explains = partial(_variation, charged, relation)
    return epsilon(low + bisect_left(between, advantage, key=explains))


def _scale(place: int) -> float:
    return float(2.0 ** (place / _STEPS))


@lru_cache(maxsize=4096)
def _variation(events: tuple[Event, ...], relation: Relation, place: int) -> float:
    """δ(0) of the events with noise divided by 2^(place/_STEPS): a grid, so that looks share it."""
    less = with_less_noise(events, _scale(place))
    return accountant.delta(less, epsilon=0.0, relation=relation)


LOOKS = (0.25, 0.5, 1.0)
"""Shares of the runs after which the audit looks; each look may err equally often."""

TOGETHER = 10
"""How many audits hold at the stated confidence at once."""

_PILOT = 0.1
_SETTLED = 0.82
# Parts of a look, each of which may fit its inputs anew: at most so many, of so many runs or more.
_CHUNKS, _LEAST = 16, 256

Report = Callable[[float, str], None]


class Game(ABC):
    """A mechanism, two inputs that differ by `relation`, an optimal observer, and a claim to test.

    `claimed` is the epsilon that is claimed at `delta`. `events` is what is charged for one run,
    `accounted` the relation under which the claim was accounted: `relation`, unless it is wrong.
    `runs` says how many runs are enough for a telling bound.
    """

    mechanism: str
    relation: Relation
    accounted: Relation
    delta: float
    claimed: float
    events: tuple[Event, ...]
    runs: int

    @abstractmethod
    def play(self, second: bool) -> float:
        """Run once, on the second input or the first; large where the second looks likelier."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Trials:
    """Which input each run had, and the score it got."""

    second: Bits
    scores: Floats


def distinguish(
    game: Game,
    *,
    confidence: float = 0.95,
    runs: int | None = None,
    workers: int | None = None,
    report: Report = lambda share, text: None,
) -> Finding:
    """Play, and bound epsilon from below with probability at least `confidence`."""
    if not 0 < confidence < 1:
        raise InputError(f"Expected a confidence strictly between 0 and 1, got {confidence}.")
    runs = game.runs if runs is None else runs
    if runs < 100:
        raise InputError(f"Expected at least 100 runs, got {runs}.")
    pilot_size = max(50, int(_PILOT * runs))
    alpha = (1 - confidence) / (TOGETHER * len(LOOKS))
    done = Trials(second=np.zeros(0, dtype=bool), scores=np.zeros(0))
    finding = None
    with at_work(partial(_chunk, game), workers) as played:

        def play(runs: int, advance: Callable[[float], None]) -> Trials:
            chunks = min(_CHUNKS, math.ceil(runs / _LEAST))
            sizes = [len(part) for part in np.array_split(np.arange(runs), chunks)]
            return _joined(played(sizes, lambda done: advance(done / len(sizes))))

        pilot = play(pilot_size, lambda share: report(share * _PILOT, "choosing thresholds"))
        thresholds = _Thresholds.of(pilot)
        for share in LOOKS:
            wanted = math.ceil(share * (runs - pilot_size)) - len(done.scores)
            start = _PILOT + (1 - _PILOT) * (share - wanted / (runs - pilot_size))
            width = (1 - _PILOT) * wanted / (runs - pilot_size)
            more = play(wanted, lambda part: report(min(start + width * part, 1.0), "counting"))  # noqa: B023
            done = _joined([done, more])
            found = judge_trials(game, done, thresholds, alpha=alpha, confidence=confidence)
            # Each look holds with its own share of the error, so their maximum holds with all of
            # it.
            if finding is None or found.lower_bound >= finding.lower_bound:
                finding = found
            if finding.refuted or _settled(game, found):
                break
    assert finding is not None
    return finding


def judge_trials(
    game: Game, trials: Trials, thresholds: _Thresholds, *, alpha: float, confidence: float
) -> Finding:
    """The bounds of one look: most of `alpha` for the curve, the rest for the two direct events."""
    right = int(np.sum((trials.scores > thresholds.middle) == trials.second))
    count = len(trials.scores)
    advantage = 2 * at_least(right, count, 0.8 * alpha) - 1
    curve = 0.0
    if game.events:
        curve = curve_epsilon(
            game.events, advantage=advantage, delta=game.delta, relation=game.accounted
        )
    direct = 0.0
    for seen, towards in (
        (trials.scores > thresholds.high, True),
        (trials.scores < thresholds.low, False),
    ):
        bound = direct_epsilon(
            seen, trials.second, delta=game.delta, alpha=0.1 * alpha, towards_second=towards
        )
        direct = max(direct, bound)
    return Finding(
        mechanism=game.mechanism,
        claimed=game.claimed,
        lower_bound=max(curve, direct),
        confidence=confidence,
        relation=game.relation,
        delta=game.delta,
        runs=count,
        details={
            "bound_from_curve": curve,
            "bound_from_counts": direct,
            "right_guesses": right / count,
        },
    )


def _settled(game: Game, found: Finding) -> bool:
    """Whether more runs would add little: close to the claim, and no sign of lying above it."""
    if not game.events or found.lower_bound < _SETTLED * game.claimed:
        return False
    allowed = accountant.delta(game.events, epsilon=0.0, relation=game.accounted)
    return bool(2 * found.details["right_guesses"] - 1 <= 1.05 * allowed)


@dataclass(frozen=True, kw_only=True)
class _Thresholds:
    """Chosen on the pilot: for guessing, and for the events that tell most of each world."""

    middle: float
    high: float
    low: float

    @classmethod
    def of(cls, pilot: Trials) -> _Thresholds:
        levels = np.unique(np.quantile(pilot.scores, np.linspace(0.02, 0.98, 49)))
        return cls(
            middle=_guessing_threshold(pilot, levels),
            high=_telling(pilot.scores, pilot.second, levels),
            low=-_telling(-pilot.scores, ~pilot.second, -levels),
        )


def _guessing_threshold(pilot: Trials, levels: Floats) -> float:
    """Zero suits a log-likelihood ratio; another level only where it is clearly better."""

    def accuracy(level: float) -> float:
        return float(np.mean((pilot.scores > level) == pilot.second))

    best = max(levels, key=accuracy)
    clearly = 2 * math.sqrt(0.25 / len(pilot.scores))
    return float(best) if accuracy(best) > accuracy(0.0) + clearly else 0.0


def _telling(scores: Floats, likelier: Bits, levels: Floats) -> float:
    """The level above which scores are most one-sided, by a bound on the ratio of two chances."""

    def ratio(level: float) -> float:
        inside = int(np.sum(scores[likelier] > level))
        outside = int(np.sum(scores[~likelier] > level))
        low = at_least(inside, max(1, int(likelier.sum())), 0.05)
        return low / at_most(outside, max(1, int((~likelier).sum())), 0.05)

    return float(max(levels, key=ratio))


def _chunk(game: Game, runs: int) -> Trials:
    coins = np.frombuffer(os.urandom(runs), dtype=np.uint8) % 2 == 1
    many = getattr(game, "plays", None)  # where one run serves for several
    played = many(coins) if many else [game.play(bool(coin)) for coin in coins]
    scores = np.array(played, dtype=np.float64)
    return Trials(second=coins, scores=np.nan_to_num(scores, nan=0.0))


def _joined(parts: Sequence[Trials]) -> Trials:
    return Trials(
        second=np.concatenate([part.second for part in parts]),
        scores=np.concatenate([part.scores for part in parts]),
    )
