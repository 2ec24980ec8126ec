"""Games on real mechanisms: a method that fits, and a step that is handed its contributions.

An *input canary* is a table in which one row's private part takes its most telling values; the
method runs as it is. A *gradient canary* hands the step itself two contributions of the largest
norm that it lets pass, which no input can exceed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halfmask.accounting.accountant import epsilon as account
from halfmask.accounting.budget import Budget
from halfmask.accounting.calibrate import noise_multiplier
from halfmask.accounting.events import Contribution, Event, PoissonGaussianEvent, Relation
from halfmask.accounting.ledger import MemoryLedger
from halfmask.audit.distinguish import Game
from halfmask.audit.transcript import Recorder, Release, Replayer, Transcript, log_likelihood_ratio
from halfmask.mechanisms.noise import noise_source
from halfmask.mechanisms.release import PrivateStep, Releaser, WeighedRows
from halfmask.table import Table
from halfmask.types import Floats

Fit = Callable[[Any, Releaser], Any]

# Runs whose noise is drawn at a time.
_TOGETHER = 1024


def enough_runs(epsilon: float, *, least: int = 96_000, most: int = 640_000) -> int:
    """Runs after which the guesser's advantage, about epsilon/10, is known to a few per cent.

    Without other numbers they are for games whose runs share their fits, and cost their noise.
    """
    return int(min(max(most / epsilon**2, least), most))


@dataclass(eq=False)
class FitGame(Game):
    """`fit(table, releaser)` on two neighbouring inputs, observed through all its releases.

    The claim is what the method charged. The score is the exact log-likelihood ratio, by replay;
    for sampled steps it is exact where only the canary (unit 0) contributes.
    `stage` names the releases of one event: then the claim is that event alone, and the releases
    before it are those of one recorded run, which the guarantee of a stage holds for whatever they
    are. Without `runs` they are enough for the budget's epsilon.
    """

    mechanism: str
    budget: Budget
    inputs: tuple[Any, Any]
    fit: Fit
    _: KW_ONLY
    runs: int = 0
    stage: str | None = None

    def __post_init__(self) -> None:
        self.first, self.second = self.inputs
        self.runs = self.runs or enough_runs(self.budget.epsilon)
        self.relation = self.accounted = self.budget.relation
        self.delta = self.budget.delta
        told = Recorder(self._ledger(), noise_source(), whole_plan=True).run(self.fit, self.first)
        named = [
            place
            for place, release in enumerate(told.releases)
            if self.stage is None or release.what == self.stage
        ]
        self.events = told.events if self.stage is None else (told.releases[named[0]].event,)
        self.claimed = account(self.events, delta=self.delta, relation=self.relation)
        self._told, self._begin, self._end = told, named[0], named[-1] + 1
        self._fixed = self._independent_of_noise()

    def _independent_of_noise(self) -> tuple[list[Floats], list[Floats]] | None:
        """The exact values of both inputs, where they are the same whatever was released before."""
        once, again = (self._exact(self._record(False), False) for _ in range(2))
        same = all(
            np.array_equal(a, b)
            for one, other in zip(once, again, strict=True)
            for a, b in zip(one, other, strict=True)
        )
        return once if same else None

    def _ledger(self) -> MemoryLedger:
        return MemoryLedger.of(self.budget)

    def _recorder(self) -> Recorder:
        given: dict[str, Any] = {"whole_plan": True, "last": self._end}
        if self._begin == 0:
            return Recorder(self._ledger(), noise_source(), **given)
        return Replayer(self._told, self._ledger(), noise_source(), until=self._begin, **given)

    def _record(self, second: bool) -> Transcript:
        return self._recorder().run(self.fit, self.inputs[second])

    def _exact(self, told: Transcript, second: bool) -> tuple[list[Floats], list[Floats]]:
        """What either input would have released without noise, where `told` was made by one."""

        def replayed(given: Any) -> list[Floats]:
            replayer = Replayer(
                told, self._ledger(), noise_source(), alone=0, last=self._end, whole_plan=True
            )
            found = replayer.run(self.fit, given).releases[self._begin :]
            return [release.value for release in found]

        if any(release.sampled for release in told.releases):
            return replayed(self.first), replayed(self.second)
        own = [release.value for release in told.releases[self._begin :]]
        return (replayed(self.first), own) if second else (own, replayed(self.second))

    def play(self, second: bool) -> float:
        """Fit once, then ask which input explains the releases better."""
        told = self._record(second)
        seen = told.releases[self._begin :]
        exact = self._fixed if self._is_fixed(seen, second) else self._exact(told, second)
        assert exact is not None
        return float(log_likelihood_ratio(seen, *exact)[0])

    def _is_fixed(self, seen: Sequence[Release], second: bool) -> bool:
        """Whether the exact values of a run are those that do not depend on noise."""
        if self._fixed is None:
            return False
        pairs = zip(seen, self._fixed[second], strict=True)
        return all(each.sampled or np.array_equal(each.value, value) for each, value in pairs)

    def plays(self, coins: Sequence[bool]) -> Floats:
        """Play once for each coin.

        Where the exact values are the same whatever was released before, both inputs are fitted
        once: nothing but the noise differs between runs, and it is drawn for each.
        """
        second = np.array(coins, dtype=bool)
        if self._fixed is None or any(release.sampled for release in self._told.releases):
            return np.array([self.play(bool(coin)) for coin in second])
        scores = np.empty(len(second))
        for side, given in enumerate(self.inputs):
            recorder = self._recorder()
            releases = recorder.run(self.fit, given).releases[self._begin :]
            if not self._is_fixed(releases, bool(side)):
                return np.array([self.play(bool(coin)) for coin in second])
            mine = np.flatnonzero(second == bool(side))
            for start in range(0, len(mine), _TOGETHER):
                some = mine[start : start + _TOGETHER]
                seen = [recorder.again(release, len(some)) for release in releases]
                scores[some] = log_likelihood_ratio(seen, *self._fixed)
        return scores

    def reach(self) -> float:
        """How far apart the inputs are in units of noise, along one run on the first."""
        told = self._record(False)
        first, second = self._exact(told, False)
        pairs = zip(told.releases[self._begin :], first, second, strict=True)
        return math.sqrt(
            sum(float(np.sum((two - one) ** 2)) / each.noise_std**2 for each, one, two in pairs)
        )


def fit_of(method: Callable[..., Any], config: Any = None) -> Fit:
    """A method of tables as a game runs it; the releaser holds what the game claims."""
    return lambda table, releaser: method(table, releaser, config)


def furthest(games: Sequence[FitGame]) -> FitGame:
    """The game whose two inputs are furthest apart: the auditor's choice of neighbours."""
    return max(games, key=lambda game: game.reach())


@dataclass(frozen=True, kw_only=True, eq=False)
class Canary(WeighedRows):
    """One unit's contribution, the same in every step; nobody else contributes anything."""

    value: Floats

    def norms(self, rows: NDArray[np.int64]) -> Floats:
        """The norm of each row in `rows`; only row 0 has one."""
        size = float(np.linalg.norm(self.value))
        return np.where(rows == 0, size, 0.0)

    def weighted_sum(self, rows: NDArray[np.int64], weights: Floats) -> Floats:
        """The canary times its weight, if it takes part."""
        return self.value * float(weights[rows == 0].sum())


def step_game(
    name: str,
    claim: Budget,
    *,
    rate: float,
    steps: int,
    contribution: Contribution = "general",
    runs: int,
) -> FitGame:
    """`PrivateStep` with gradient canaries, and the least noise that keeps within the claim.

    They are the most telling pair that the relation and the kind of contribution allow, twice as
    long as the clip norm of 1.
    """
    noise = noise_multiplier(claim, rate=rate, steps=steps, contribution=contribution)
    event = PoissonGaussianEvent(
        noise_multiplier=noise, rate=rate, steps=steps, contribution=contribution
    )
    one = np.array([2.0, 0.0])
    other = -one if contribution == "general" else np.array([0.0, 2.0])
    pair = (np.zeros(2), one) if claim.relation == "withhold" else (other, one)
    return FitGame(name, claim, pair, partial(canary_steps, event), runs=runs)


def canary_steps(event: PoissonGaussianEvent, value: Floats, releaser: Releaser) -> list[Floats]:
    """What `PrivateStep` releases of a canary, in steps that are charged as `event`."""
    step = PrivateStep(
        releaser,
        rows=1,
        rate=event.rate,
        clip_norm=1.0,
        noise_multiplier=event.noise_multiplier,
        steps=event.steps,
        contribution=event.contribution,
        what="gradient canaries",
    )
    return [step.release(Canary(value=value)) for _ in range(event.steps)]


@dataclass(kw_only=True, eq=False)
class ScoreGame(Game):
    """Any mechanism at all: `run(second)` runs it once and scores what its observer saw."""

    mechanism: str
    relation: Relation
    accounted: Relation
    delta: float
    events: tuple[Event, ...]
    runs: int
    run: Callable[[bool], float]

    def __post_init__(self) -> None:
        self.claimed = account(self.events, delta=self.delta, relation=self.accounted)

    def play(self, second: bool) -> float:
        """Run once."""
        return self.run(second)


RATE, STEPS = 0.25, 4
# --- Games on methods whose steps are Poisson-sampled: one row, which takes part by chance.


STANDSTILL = 1e-30
"""A step size that leaves the weights what they were: the auditor chooses public settings, and what
a canary contributes is then the same in every step."""


def one_row(*, classes: int) -> tuple[Table, Table]:
    """A single private row of norm 1, with the first and the second of `classes` labels."""
    table = Table.from_arrays(np.array([[1.0, 0.0]] * classes), np.arange(classes), row_norm=1.0)
    first, second = (replace(table.kept(np.arange(1)), label=np.array([code])) for code in (0, 1))
    return first, second


def sampled_fit(
    name: str,
    method: Callable[..., Any],
    tables: tuple[Table, Table],
    config: Any,
    claim: Budget,
) -> Game:
    """`method` on two tables of one row, which is in a step with the chance RATE.

    A withheld contribution needs no method around it: gradient canaries, then.
    """
    runs = enough_runs(claim.epsilon, least=10_000, most=40_000)
    if claim.relation == "replace":
        return FitGame(name, claim, tables, fit_of(method, config), runs=runs)
    contribution: Contribution = "label" if name == "label" else "general"
    return step_game(name, claim, rate=RATE, steps=STEPS, contribution=contribution, runs=runs)
