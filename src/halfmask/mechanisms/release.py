"""The only way out for a private statistic: charge the ledger, add noise, return.

Guarantee: docs/proofs/gaussian.md and docs/proofs/floating_point.md.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np

from halfmask.accounting.budget import Budget
from halfmask.accounting.events import (
    Contribution,
    Event,
    GaussianEvent,
    PoissonGaussianEvent,
    RandomisedResponseEvent,
    Relation,
    counted,
)
from halfmask.accounting.ledger import BudgetLedger
from halfmask.errors import AccountingError, HalfmaskError, InputError, MachineLostError
from halfmask.mechanisms.clipping import check_clip_norm, clip_weights
from halfmask.mechanisms.noise import (
    NoiseSource,
    add_gaussian,
    noise_grid,
    noise_source,
    padding_generator,
)
from halfmask.mechanisms.shards import ALONE, Machines, Shards
from halfmask.progress import tell
from halfmask.types import Floats, Integers, Vector


def poisson_rows(rows: int, rate: float, source: NoiseSource) -> Integers:
    """The rows of one Poisson batch, in order; it may be empty.

    Jumps between chosen rows are geometric, so the work grows with the batch, not with the table.
    """
    if not 0 < rate <= 1:
        raise InputError(f"Expected a sampling rate in (0, 1], got {rate}.")
    if rate == 1:
        return np.arange(rows)
    log_skip = math.log1p(-rate)
    chosen: list[Integers] = []
    last = -1
    while True:
        expected = (rows - 1 - last) * rate
        uniforms = source.uniform(int(expected + 6 * math.sqrt(expected) + 16))
        # A jump past the last row ends the batch, so nothing larger needs to be represented.
        jumps = np.minimum(np.floor(np.log(uniforms) / log_skip), float(rows)) + 1
        positions = last + np.cumsum(jumps)
        chosen.append(positions[positions < rows].astype(np.int64))
        if positions[-1] >= rows:
            return np.concatenate(chosen)
        last = int(positions[-1])


def uniform_rows(rows: int, size: int, generator: np.random.Generator) -> Integers:
    """A uniform public batch without repetition (all rows where size >= rows)."""
    if size >= rows:
        return np.arange(rows)
    return generator.choice(rows, size=size, replace=False, shuffle=False)


# Relative reserve on every sensitivity for the rounding of sums in double precision.
SUM_RESERVE = 2.0**-20
_UNIT_ROUNDING = 2.0**-53
_ANY_ORDER, _IN_BLOCKS = 1 << 22, 1 << 15


def sum_reserve(rows: int) -> float:
    """The reserve that rounding of a sum of `rows` rows needs: for any order up to 2^22 of them.

    Beyond that for sums in blocks of 2^15 rows. Guarantee: docs/proofs/floating_point.md, "Sums".
    """
    any_order = 2 * min(rows, _ANY_ORDER) ** 2 * _UNIT_ROUNDING
    in_blocks = 2 * rows * (_IN_BLOCKS + rows / _IN_BLOCKS) * _UNIT_ROUNDING
    return max(SUM_RESERVE, any_order, in_blocks if rows > _ANY_ORDER else 0.0)


@dataclass(frozen=True, kw_only=True)
class Interrupted:
    """The charge of a training that ended before its time, and what of it has begun."""

    charge: int
    events: tuple[Event, ...]
    begun: tuple[Event, ...]
    seeded: bool


@dataclass(frozen=True, kw_only=True)
class Sensitivity:
    """The most a statistic moves (Euclidean norm) between neighbours, under each relation."""

    replace: float
    withhold: float

    def __post_init__(self) -> None:
        if not (math.isfinite(self.replace) and math.isfinite(self.withhold)):
            raise AccountingError("Expected a finite sensitivity.")
        if not (self.replace > 0 and self.withhold > 0):
            raise AccountingError(
                "Expected a sensitivity > 0: what no private value touches needs no noise."
            )

    @classmethod
    def of_clipped_sum(cls, clip_norm: float, *, rows_per_unit: int = 1) -> Sensitivity:
        """A sum of rows clipped to `clip_norm`, a unit having at most `rows_per_unit` of them."""
        bound = clip_norm * rows_per_unit
        return cls(replace=2 * bound, withhold=bound)

    def under(self, relation: Relation) -> float:
        """The number that belongs to `relation`."""
        return self.replace if relation == "replace" else self.withhold

    def event(self, noise_std: float, *, count: int = 1) -> GaussianEvent:
        """What `count` releases with that noise cost."""
        return GaussianEvent(
            replace=self.replace / noise_std, withhold=self.withhold / noise_std, count=count
        )


INTERRUPTED = (
    "This training was interrupted and went on within what it had charged: steps that were lost "
    "count as taken, and the numbers above hold whenever and why ever it was interrupted."
)


class Releaser:
    """Couples a ledger with a source of noise; remembers, as pure data, what was released.

    `budget` is what a method may spend by it: all that the ledger was made for, or less where a
    data set's ledger is to serve others too. It is what methods calibrate to; that no more is spent
    is up to the ledger.
    With `whole_plan`, as in every training, all that is opened before the first release is one
    plan: it is charged as one entry at that release, or refused as a whole and costs nothing.
    Nothing can be opened afterwards. Without it each thing is charged when it is opened.
    A training that tells the ledger which parts of it begin can go on after an interruption: `run`
    is its name there, and `interrupted` what the ledger holds of it.
    Where rows are spread over several machines, `shards` says so and statistics are those of this
    machine's rows (see `SharedReleaser`); `notes` belong into a statement.
    An audit records and replays a training by a releaser of its own (halfmask.audit.transcript).
    Guarantee: docs/proofs/ledger.md.
    """

    shards: Shards = ALONE
    notes: tuple[str, ...] = ()
    rows: int = 0
    """How many rows a statistic sums, in all: noise is widened for the rounding of that many."""

    def __init__(
        self,
        book: BudgetLedger,
        noise: NoiseSource,
        *,
        budget: Budget | None = None,
        whole_plan: bool = False,
        run: str = "",
        interrupted: Interrupted | None = None,
    ) -> None:
        if budget is not None and budget.relation != book.relation:
            raise AccountingError(
                f"The ledger is kept under {book.relation!r}, the budget under {budget.relation!r}."
            )
        self._book, self._budget = book, budget
        self.noise = noise
        self.whole_plan = whole_plan
        self._run, self._interrupted = run, interrupted
        self._events: list[Event] = []
        self._released: list[str] = []
        self._plan: list[tuple[Event, str]] = []
        self._in_parts = False
        self._charge: int | None = None
        self._given = False  # whether a value may have been handed out
        self._done = self._planned = 0  # releases

    @property
    def budget(self) -> Budget:
        """What a method may spend."""
        return self._book.budget if self._budget is None else self._budget

    @property
    def relation(self) -> Relation:
        """The relation under which the budget is kept."""
        return self._book.relation

    @property
    def events(self) -> tuple[Event, ...]:
        """Everything charged through this releaser, in order."""
        return tuple(self._events)

    @property
    def released(self) -> tuple[str, ...]:
        """What was released, in words, in order."""
        return tuple(self._released)

    def open(self, event: Event, what: str, *, in_parts: bool = False) -> None:
        """Take one event into the plan; whoever releases it calls `pay` first.

        `in_parts`: the caller also calls `begin_part` before each part of it.
        """
        if self.whole_plan and self._events:
            raise AccountingError(
                "A training charges its whole plan before its first release: open this earlier."
            )
        planned = [*self._plan, (event, what)]
        if self.whole_plan:
            self._check_room([each for each, _ in planned])
        self._plan, self._in_parts = planned, in_parts
        if not self.whole_plan:
            self.pay()

    def pay(self) -> None:
        """Charge everything that is open and not charged yet, as one entry, or raise."""
        if not self._plan:
            return
        plan, self._plan = self._plan, []
        try:
            self._pay([event for event, _ in plan], counted(what for _, what in plan))
        except BaseException:
            # What was refused stays open: the next release asks again. Without a plan it is gone.
            self._plan = plan if self.whole_plan else []
            raise
        self._planned += sum(_releases(event) for event, _ in plan)
        self._events += [event for event, _ in plan]
        self._released += [what for _, what in plan]

    def _check_room(self, events: Sequence[Event]) -> None:
        """Refuse a plan before work is put into it; what counts is the charge."""
        if self.goes_on(events) is None:
            self._book.check_room(events)

    def _pay(self, events: Sequence[Event], what: str) -> None:
        before = self.goes_on(events)
        if before is not None:
            self._charge, self.notes = before.charge, (*self.notes, INTERRUPTED)
            self._given = True  # by the run that was interrupted
            return
        marks = {"run": self._run} if self._in_parts else {}
        seeded = not self.noise.secure
        self._charge = self._book.charge(events, what, seeded=seeded, **marks)

    def take_back(self) -> None:
        """Take the charge back after Ctrl-C, if nothing was handed out since; it may come any time.

        For an interruption alone: an error may follow from a private value, and tell of it.
        """
        if self.whole_plan and self._charge is not None and not self._given:
            charge, self._charge = self._charge, None
            self._book.refund(charge)

    def goes_on(self, events: Sequence[Event]) -> Interrupted | None:
        """The interrupted run, if this is its plan."""
        before = self._interrupted
        if before is None or tuple(events) != before.events:
            return None
        return before if before.seeded != self.noise.secure else None

    def begin_part(self, event: Event, what: str) -> None:
        """Record durably that a part of the plan is about to be released."""
        self.pay()
        assert self._charge is not None
        self._book.begin_part(self._charge, [event], what)

    def gaussian(
        self, value: Floats, *, sensitivity: Sensitivity, noise_std: float, what: str
    ) -> Floats:
        """One noisy copy of `value`; charged first. Guarantee: docs/proofs/gaussian.md."""
        series = self.gaussian_series(
            sensitivity=sensitivity, noise_std=noise_std, count=1, what=what
        )
        return series.release(value)

    def gaussian_series(
        self,
        *,
        sensitivity: Sensitivity,
        noise_std: float,
        count: int,
        what: str,
        remaining: int | None = None,
    ) -> GaussianSeries:
        """Up to `count` noisy values, charged once and in full before the first.

        `remaining` of them, where the series goes on in another process that charged for all.
        """
        if count < 1:
            raise InputError(f"Expected count >= 1 releases, got {count}.")
        noise_grid(noise_std)  # refuses noise that cannot be drawn before anything is charged
        event = sensitivity.event(noise_std, count=count)
        if remaining is None:
            self.open(event, what)
        return GaussianSeries(
            sensitivity,
            noise_std,
            count if remaining is None else remaining,
            add=partial(self.noisy, event=event, what=what),
            reserve=sum_reserve(self.rows),
        )

    def unpaid_normal(self, size: int) -> Floats:
        """Standard normals for noise as a paper has it: no guarantee, and nothing is charged."""
        return self.noise.normal(size)

    def randomised_response(self, answers: Floats, *, epsilon: float, what: str) -> Floats:
        """0/1 `answers`, each flipped with probability 1/(1 + e^ε); charged first.

        Guarantee: docs/proofs/randomised_response.md.
        """
        if not (math.isfinite(epsilon) and epsilon > 0):
            raise InputError(f"Expected an epsilon > 0 for randomised response, got {epsilon}.")
        values = np.asarray(answers, dtype=np.float64)
        if not np.isin(values, (0.0, 1.0)).all():
            raise InputError("Expected answers of two kinds as 0 and 1.")
        self.open(RandomisedResponseEvent(epsilon=epsilon, categories=2), what)
        return self.answered(values, epsilon, what)

    def answered(self, answers: Floats, epsilon: float, what: str) -> Floats:
        """0/1 `answers` of which some are flipped, charged by now: for mechanisms."""
        self.pay()
        flipped = self.noise.uniform(len(answers)) < 1 / (1 + math.exp(epsilon))
        answered = np.where(flipped, 1 - answers, answers)
        self._given = True
        return answered

    def noisy(
        self, value: Floats, noise_std: float, event: Event | None = None, what: str = ""
    ) -> Floats:
        """`value` with noise that is charged by now: for mechanisms, not for methods.

        `event` pays for it, under the name `what`.
        """
        self.pay()
        noisy = add_gaussian(value, noise_std, self.noise)
        self._given = True
        self._done += 1
        if self.whole_plan:
            tell("releasing with noise", self._done / max(self._planned, 1))
        return noisy

    def batch(self, rows: int, draw: Callable[[], Integers]) -> Integers:
        """Which of `rows` rows the next release is about, by a secret `draw`: for mechanisms."""
        return draw()

    def padding(self) -> np.random.Generator:
        """Secret randomness for the padding of private rows, drawn apart from the noise."""
        return padding_generator(self.noise)


class SharedReleaser(Releaser):
    """A releaser whose statistics are sums over the rows of all machines.

    Guarantee: docs/proofs/distributed.md.
    """

    def __init__(
        self, book: BudgetLedger, noise: NoiseSource, machines: Machines, **how: Any
    ) -> None:
        super().__init__(book, noise, **how)
        self._machines = self.shards = machines
        self.notes = (
            f"Rows were spread over {machines.count} machines that trust each other: the first one "
            "saw exact sums of the others, and added the noise to their total.",
        )

    def _check_room(self, events: Sequence[Event]) -> None:
        """Left to the charge, of which all machines hear."""

    def _pay(self, events: Sequence[Event], what: str) -> None:
        """Charge the one ledger; no machine goes on before it is charged."""
        if self._machines.leads:
            try:
                super()._pay(events, what)
            except HalfmaskError:
                self._machines.first(np.zeros(1))
                raise
            self._machines.first(np.ones(1))
            return
        if not self._machines.first(np.zeros(1))[0]:
            raise MachineLostError("The first machine could not charge the ledger: see its error.")

    def noisy(
        self, value: Floats, noise_std: float, event: Event | None = None, what: str = ""
    ) -> Floats:
        """The sum over all machines with the first one's noise, which was charged already."""
        self.pay()
        total = self._machines.to_first(value)
        return self._machines.first(
            super().noisy(total, noise_std) if self._machines.leads else total
        )


MakeReleaser = Callable[..., Releaser]
"""Makes a releaser of a ledger: tests and audits have their own."""


def system_releaser(book: BudgetLedger, **how: Any) -> Releaser:
    """A releaser with noise of the operating system."""
    return Releaser(book, noise_source(), **how)


def _releases(event: Event) -> int:
    """How many noisy values an event pays for."""
    if isinstance(event, GaussianEvent):
        return event.count
    return event.steps if isinstance(event, PoissonGaussianEvent) else 1


class GaussianSeries:
    """Releases that are paid for; one more than paid for is an error."""

    def __init__(
        self,
        sensitivity: Sensitivity,
        noise_std: float,
        count: int,
        *,
        add: Callable[[Floats, float], Floats],
        reserve: float = SUM_RESERVE,
    ) -> None:
        self._sensitivity, self._reserve = sensitivity, reserve
        self._noise_std = noise_std
        self._remaining = count
        self._add = add

    def release(self, value: Floats) -> Floats:
        """The next noisy value."""
        if self._remaining < 1:
            raise AccountingError("All releases that were paid for are used up.")
        self._remaining -= 1
        value = np.asarray(value, dtype=np.float64)
        std = widened_std(self._noise_std, value.size, self._sensitivity, reserve=self._reserve)
        return self._add(value, std)


def widened_std(
    noise_std: float, size: int, sensitivity: Sensitivity, *, reserve: float = SUM_RESERVE
) -> float:
    """`noise_std` widened so that rounding to the grid and in the sum is paid for.

    Rounding two tables' statistics to the grid moves them apart by at most grid·√size; half as
    much again covers the inner products of the label pair.
    Guarantee: docs/proofs/floating_point.md.
    """
    least = min(sensitivity.replace, sensitivity.withhold)
    # Widened by less than a half, the noise lives on a grid no coarser than this one.
    slack = 1.5 * noise_grid(2 * noise_std) * math.sqrt(max(size, 1)) / least
    if not (reserve >= 0 and reserve + slack < 0.5):
        raise InputError(
            f"Noise of {noise_std / least:.1e} times the sensitivity on {size} numbers cannot be "
            "represented exactly: use less noise or fewer numbers."
        )
    return noise_std * (1 + reserve + slack)


class RowContributions(Protocol):
    """What each row (or each unit, where units are protected) adds to the sum."""

    def clipped_sum(self, rows: Integers, clip_norm: float) -> Floats:
        """Σ of the contributions of `rows`, each scaled down to norm at most `clip_norm`.

        One that is not finite adds zero; without rows it is zeros of the right shape.
        """


class WeighedRows(ABC):
    """Contributions whose norms are found first and whose sum takes weights: clipped here."""

    @abstractmethod
    def norms(self, rows: Integers) -> Floats:
        """The Euclidean norm of each row's contribution."""

    @abstractmethod
    def weighted_sum(self, rows: Integers, weights: Floats) -> Floats:
        """Σ weight·contribution over `rows`; zeros of the right shape where there are none."""

    def clipped_sum(self, rows: Integers, clip_norm: float) -> Floats:
        """The sum with the weights that bring every norm to at most `clip_norm`."""
        weights = clip_weights(self.norms(rows), clip_norm)
        kept = weights > 0
        return self.weighted_sum(rows[kept], weights[kept])


class PrivateStep:
    """`steps` Poisson-sampled, clipped and noised means, paid for before the first is drawn.

    `rows` is the number of protected units (rows, or persons). The divisor is the expected batch
    size rate·rows; an empty batch releases noise. Contributions that are not finite count as zero.
    Where rows are spread over machines, `rows` are those of this one and `rows_in_all` all of them:
    each machine draws from its own rows, and together these draws are one Poisson batch.
    `reserve` is for the rounding of the sum, by default what doubles need for all rows.
    Guarantee: docs/proofs/poisson_gaussian.md.
    """

    def __init__(
        self,
        releaser: Releaser,
        *,
        rows: int,
        rate: float,
        clip_norm: float,
        noise_multiplier: float,
        steps: int,
        contribution: Contribution = "general",
        what: str,
        reserve: float | None = None,
        rows_in_all: int | None = None,
        in_parts: bool = False,
    ) -> None:
        if rows < 1:
            raise InputError(f"Expected at least one row, got {rows}.")
        check_clip_norm(clip_norm)
        if not rate > 0:
            raise InputError(f"Expected a sampling rate in (0, 1], got {rate}.")
        noise_grid(noise_multiplier * clip_norm)  # refuses what cannot be drawn before charging
        event = PoissonGaussianEvent(
            noise_multiplier=noise_multiplier, rate=rate, steps=steps, contribution=contribution
        )
        releaser.open(event, what, in_parts=in_parts)
        self._noise, self._batch, self._pay = releaser.noise, releaser.batch, releaser.pay
        self._noisy = partial(releaser.noisy, event=event, what=what)
        self._rows = rows
        self._rows_in_all = rows if rows_in_all is None else rows_in_all
        self._rate = rate
        self._clip_norm = clip_norm
        self._noise_std = noise_multiplier * clip_norm
        self._remaining = steps
        # A batch may hold every row; of units, `rows` are fewer than what is summed.
        most = max(releaser.rows, self._rows_in_all)
        self._reserve = sum_reserve(most) if reserve is None else reserve

    def release(self, contributions: RowContributions) -> Floats:
        """The next noisy mean: (Σ clipped rows of a Poisson batch + noise) / (rate·rows)."""
        if self._remaining < 1:
            raise AccountingError("All steps that were paid for are used up.")
        self._pay()  # before a row is drawn
        self._remaining -= 1
        batch = self._batch(self._rows, lambda: poisson_rows(self._rows, self._rate, self._noise))
        total = contributions.clipped_sum(batch, self._clip_norm)
        std = widened_std(
            self._noise_std,
            total.size,
            Sensitivity.of_clipped_sum(self._clip_norm),
            reserve=self._reserve,
        )
        return self._noisy(total, std) / (self._rate * self._rows_in_all)


def batch_of(rows: object, total: int) -> Integers:
    """`rows` as positions in a table of `total` rows, each at most once; anything else is refused.

    A row that came twice would count twice in a sum, and the bound is for once.
    """
    batch = np.asarray(rows)
    whole = batch.ndim == 1 and batch.dtype.kind in "iu"
    inside = whole and bool(np.all((batch >= 0) & (batch < total)))
    if not inside or len(np.unique(batch)) != len(batch):
        raise InputError("A batch must name rows of the table, each once.")
    return batch.astype(np.int64)


class PaidRows:
    """Up to `count` releases about each of `rows` rows; charged in full before the first.

    `sensitivity` bounds how far one row of a batch moves the statistic of that batch.
    Guarantee: docs/proofs/fdml.md.
    """

    def __init__(
        self,
        releaser: Releaser,
        *,
        rows: int,
        sensitivity: Sensitivity,
        noise_std: float,
        count: int,
        what: str,
    ) -> None:
        if count < 1:
            raise InputError(f"Expected count >= 1 releases of each row, got {count}.")
        noise_grid(noise_std)  # refuses noise that cannot be drawn before anything is charged
        event = sensitivity.event(noise_std, count=count)
        releaser.open(event, what)
        self._releaser, self._event = releaser, event
        self._sensitivity, self._noise_std = sensitivity, noise_std
        self._remaining = np.full(rows, count)
        self._count, self._what = count, what

    def release(self, rows: Integers, statistic: Callable[[Integers], Vector]) -> Vector:
        """`statistic` of these rows with noise; it is computed only if every row is paid for."""
        batch = batch_of(rows, len(self._remaining))
        if np.any(self._remaining[batch] < 1):
            raise InputError(
                f"Asked about a row more often than the {self._count} times that were paid for "
                f"({self._what})."
            )
        self._releaser.pay()
        self._remaining[batch] -= 1
        value = np.asarray(statistic(batch), dtype=np.float64)
        reserve = sum_reserve(len(batch))
        std = widened_std(self._noise_std, value.size, self._sensitivity, reserve=reserve)
        return self._releaser.noisy(value, std, self._event, self._what)
