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
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from halfmask.accounting import accountant
from halfmask.accounting.events import Event
from halfmask.accounting.relations import Relation
from halfmask.audit.finding import Finding
from halfmask.audit.lower_bounds import (
    Bits,
    Floats,
    at_least,
    at_most,
    curve_epsilon,
    direct_epsilon,
)
from halfmask.errors import InputError
from halfmask.forked import forked_pool

LOOKS = (0.25, 0.5, 1.0)
"""Shares of the runs after which the audit looks; each look may err equally often."""

TOGETHER = 10
"""How many audits hold at the stated confidence at once."""

_PILOT = 0.1
_SETTLED = 0.82
_CHUNKS = 16

Report = Callable[[float, str], None]


class Game(Protocol):
    """A mechanism, two neighbouring inputs, an optimal observer, and the claim to test."""

    @property
    def mechanism(self) -> str:
        """Its name."""

    @property
    def relation(self) -> Relation:
        """How the two inputs differ."""

    @property
    def claimed(self) -> float:
        """The epsilon that is claimed at `delta`."""

    @property
    def delta(self) -> float:
        """The delta of the claim."""

    @property
    def events(self) -> tuple[Event, ...]:
        """What is charged for one run."""

    @property
    def accounted(self) -> Relation:
        """The relation under which the claim was accounted: `relation`, unless it is wrong."""

    @property
    def runs(self) -> int:
        """How many runs are enough for a telling bound."""

    def play(self, second: bool) -> float:
        """Run once, on the second input or the first; large where the second looks likelier."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Trials:
    """Which input each run had, and the score it got."""

    second: Bits
    scores: Floats

    def first(self, count: int) -> Trials:
        """The first `count` runs."""
        return Trials(second=self.second[:count], scores=self.scores[:count])


def distinguish(
    game: Game,
    *,
    confidence: float = 0.95,
    runs: int | None = None,
    workers: int | None = None,
    report: Report | None = None,
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
    with _players(game, workers) as play:
        pilot = play(pilot_size, lambda share: _tell(report, share * _PILOT, "choosing thresholds"))
        thresholds = _Thresholds.of(pilot)
        for share in LOOKS:
            wanted = math.ceil(share * (runs - pilot_size)) - len(done.scores)
            start = _PILOT + (1 - _PILOT) * (share - wanted / (runs - pilot_size))
            width = (1 - _PILOT) * wanted / (runs - pilot_size)
            more = play(wanted, lambda part: _tell(report, start + width * part, "counting"))  # noqa: B023
            done = Trials(
                second=np.concatenate([done.second, more.second]),
                scores=np.concatenate([done.scores, more.scores]),
            )
            found = judge(game, done, thresholds, alpha=alpha, confidence=confidence)
            # Each look holds with its own share of the error, so their maximum holds with all of
            # it.
            if finding is None or found.lower_bound >= finding.lower_bound:
                finding = found
            if finding.refuted or _settled(game, found):
                break
    assert finding is not None
    return finding


def judge(
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


_shared: Game | None = None
"""The game that forked workers inherit: games hold closures, which cannot be sent to them."""


def _chunk(runs: int) -> Trials:
    assert _shared is not None
    coins = np.frombuffer(os.urandom(runs), dtype=np.uint8) % 2 == 1
    many = getattr(_shared, "plays", None)  # where one run serves for several
    played = many(coins) if many else [_shared.play(bool(coin)) for coin in coins]
    scores = np.array(played, dtype=np.float64)
    return Trials(second=coins, scores=np.nan_to_num(scores, nan=0.0))


@contextmanager
def _players(
    game: Game, workers: int | None
) -> Iterator[Callable[[int, Callable[[float], None]], Trials]]:
    """A function that plays many times, on all cores where processes can be forked."""
    global _shared
    outer, _shared = _shared, game
    pool = forked_pool(workers)
    try:

        def play(runs: int, advance: Callable[[float], None]) -> Trials:
            sizes = [len(part) for part in np.array_split(np.arange(runs), _CHUNKS) if len(part)]
            parts: list[Trials] = []
            for part in map(_chunk, sizes) if pool is None else pool.imap(_chunk, sizes):
                parts.append(part)
                advance(len(parts) / len(sizes))
            return _joined(parts)

        yield play
    finally:
        _shared = outer
        if pool is not None:
            pool.terminate()
            pool.join()


def _joined(parts: Sequence[Trials]) -> Trials:
    return Trials(
        second=np.concatenate([part.second for part in parts]),
        scores=np.concatenate([part.scores for part in parts]),
    )


def _tell(report: Report | None, share: float, text: str) -> None:
    if report is not None:
        report(min(share, 1.0), text)
