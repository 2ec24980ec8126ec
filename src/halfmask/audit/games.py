"""Games on real mechanisms: a method that fits, and a step that is handed its contributions.

An *input canary* is a table in which one row's private part takes its most telling values; the
method runs as it is. A *gradient canary* hands the step itself two contributions of the largest
norm that it lets pass, which no input can exceed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halfmask.accounting.accountant import epsilon as account
from halfmask.accounting.events import Contribution, Event, PoissonGaussianEvent
from halfmask.accounting.ledger import MemoryLedger
from halfmask.accounting.relations import Relation
from halfmask.audit.transcript import (
    Seen,
    distance,
    log_likelihood_ratio,
    recording,
    replaying,
)
from halfmask.mechanisms.noise import noise_source
from halfmask.mechanisms.private_step import PrivateStep
from halfmask.mechanisms.release import Releaser

Floats = NDArray[np.float64]
Fit = Callable[[Any, Releaser], Any]


def enough_runs(epsilon: float, *, least: int = 24_000, most: int = 160_000) -> int:
    """Runs after which the guesser's advantage, about epsilon/10, is known to a few per cent."""
    return int(min(max(most / epsilon**2, least), most))


@dataclass(frozen=True, kw_only=True, eq=False)
class FitGame:
    """`fit(table, releaser)` on two neighbouring inputs, observed through all its releases.

    The claim is what the method charged. The score is the exact log-likelihood ratio, by replay;
    for sampled steps it is exact where only the canary (unit 0) contributes.
    """

    mechanism: str
    relation: Relation
    epsilon: float
    delta: float
    first: Any
    second: Any
    fit: Fit
    runs: int
    events: tuple[Event, ...] = field(init=False)
    claimed: float = field(init=False)
    _releases: int = field(init=False)
    _fixed: tuple[list[Floats], list[Floats]] | None = field(init=False)

    def __post_init__(self) -> None:
        releaser = self._releaser()
        with recording() as seen:
            self.fit(self.first, releaser)
        claimed = account(releaser.events, delta=self.delta, relation=self.relation)
        values = {"events": releaser.events, "claimed": claimed, "_releases": len(seen)}
        for name, value in values.items():
            object.__setattr__(self, name, value)
        object.__setattr__(self, "_fixed", self._independent_of_noise())

    @property
    def accounted(self) -> Relation:
        """The claim is accounted as the inputs differ."""
        return self.relation

    def _independent_of_noise(self) -> tuple[list[Floats], list[Floats]] | None:
        """The exact values of both inputs, where they are the same whatever was released before."""
        once, again = (self._exact(self._record(self.first)) for _ in range(2))
        same = all(
            np.array_equal(a, b)
            for one, other in zip(once, again, strict=True)
            for a, b in zip(one, other, strict=True)
        )
        return once if same else None

    def _releaser(self) -> Releaser:
        ledger = MemoryLedger(epsilon=self.epsilon, delta=self.delta, relation=self.relation)
        return Releaser(ledger, noise_source())

    def _record(self, table: Any) -> list[Seen]:
        with recording(last=self._releases) as seen:
            self.fit(table, self._releaser())
        return seen

    def _exact(self, seen: list[Seen]) -> tuple[list[Floats], list[Floats]]:
        with replaying(seen) as first:
            self.fit(self.first, self._releaser())
        with replaying(seen) as second:
            self.fit(self.second, self._releaser())
        return first, second

    def play(self, second: bool) -> float:
        """Fit once, then ask which input explains the releases better."""
        seen = self._record(self.second if second else self.first)
        return log_likelihood_ratio(seen, *(self._fixed or self._exact(seen)))

    def reach(self) -> float:
        """How far apart the inputs are in units of noise, along one run on the first."""
        seen = self._record(self.first)
        return distance(seen, *self._exact(seen))


def furthest(games: Sequence[FitGame]) -> FitGame:
    """The game whose two inputs are furthest apart: the auditor's choice of neighbours."""
    return max(games, key=lambda game: game.reach())


@dataclass(frozen=True, kw_only=True, eq=False)
class Canary:
    """One unit's contribution, the same in every step; nobody else contributes anything."""

    value: Floats

    def norms(self, rows: NDArray[np.int64]) -> Floats:
        """The norm of each row in `rows`; only row 0 has one."""
        size = float(np.linalg.norm(self.value))
        return np.where(rows == 0, size, 0.0)

    def weighted_sum(self, rows: NDArray[np.int64], weights: Floats) -> Floats:
        """The canary times its weight, if it takes part."""
        return self.value * float(weights[rows == 0].sum())


@dataclass(frozen=True, kw_only=True, eq=False)
class StepGame:
    """`PrivateStep` with gradient canaries; the contributions are larger than the clip norm."""

    mechanism: str
    relation: Relation
    delta: float
    event: PoissonGaussianEvent
    claimed: float
    runs: int
    clip_norm: float = 1.0
    rows: int = 1

    @classmethod
    def calibrated(
        cls,
        mechanism: str,
        *,
        relation: Relation,
        epsilon: float,
        delta: float,
        rate: float,
        steps: int,
        contribution: Contribution = "general",
        runs: int,
    ) -> StepGame:
        """Steps with the least noise that keeps within (epsilon, delta)."""
        from halfmask.accounting.calibrate import noise_multiplier

        noise = noise_multiplier(
            epsilon=epsilon,
            delta=delta,
            rate=rate,
            steps=steps,
            relation=relation,
            contribution=contribution,
        )
        event = PoissonGaussianEvent(
            noise_multiplier=noise, rate=rate, steps=steps, contribution=contribution
        )
        claimed = account([event], delta=delta, relation=relation)
        return cls(
            mechanism=mechanism,
            relation=relation,
            delta=delta,
            event=event,
            claimed=claimed,
            runs=runs,
        )

    @property
    def accounted(self) -> Relation:
        """The claim is accounted as the inputs differ."""
        return self.relation

    @property
    def events(self) -> tuple[Event, ...]:
        """The one event that is charged."""
        return (self.event,)

    def contributions(self) -> tuple[Floats, Floats]:
        """The most telling pair that the relation and the kind of contribution allow."""
        size = 2 * self.clip_norm
        if self.relation == "withhold":
            return np.zeros(2), np.array([size, 0.0])
        if self.event.contribution == "label":
            return np.array([size, 0.0]), np.array([0.0, size])
        return np.array([-size, 0.0]), np.array([size, 0.0])

    def play(self, second: bool) -> float:
        """All steps once; the score is the log-likelihood ratio of the two mixtures."""
        pair = self.contributions()
        ledger = MemoryLedger(epsilon=self.claimed, delta=self.delta, relation=self.relation)
        with recording() as seen:
            self._steps(Releaser(ledger, noise_source()), Canary(value=pair[second]))
        means = [value * min(1.0, self.clip_norm / (np.linalg.norm(value) or 1)) for value in pair]
        count = self.event.steps
        return log_likelihood_ratio(seen, [means[0]] * count, [means[1]] * count)

    def _steps(self, releaser: Releaser, canary: Canary) -> None:
        step = PrivateStep(
            releaser,
            rows=self.rows,
            rate=self.event.rate,
            clip_norm=self.clip_norm,
            noise_multiplier=self.event.noise_multiplier,
            steps=self.event.steps,
            contribution=self.event.contribution,
            what="gradient canaries",
        )
        for _ in range(self.event.steps):
            step.release(canary)


@dataclass(frozen=True, kw_only=True, eq=False)
class ScoreGame:
    """Any mechanism at all: `run(second)` runs it once and scores what its observer saw."""

    mechanism: str
    relation: Relation
    accounted: Relation
    delta: float
    events: tuple[Event, ...]
    runs: int
    run: Callable[[bool], float]
    claimed: float = field(init=False)

    def __post_init__(self) -> None:
        claimed = account(self.events, delta=self.delta, relation=self.accounted)
        object.__setattr__(self, "claimed", claimed)

    def play(self, second: bool) -> float:
        """Run once."""
        return self.run(second)
