"""A data set's privacy budget: every release is charged here first, durably.

A crash may waste budget, never lose track of it. All processes that release something about one
data set share one ledger file; the check and the charge happen under one lock, so together they
cannot overspend. Guarantee: docs/proofs/ledger.md.
"""

from __future__ import annotations

import math
import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import NoReturn, Self

from halfmask.accounting.budget import Budget, printed, printed_room
from halfmask.accounting.events import Event, GaussianEvent, PoissonGaussianEvent, covers
from halfmask.accounting.ledger_chain import (
    Chain,
    Entry,
    Head,
    entry_line,
    header_line,
    parse_chain,
    parse_entry,
)
from halfmask.accounting.ledger_file import (
    append,
    creation_unfinished,
    cut,
    head_path,
    locked,
    read_all,
    read_head,
    resolved,
    sync_folder,
    write_head,
)
from halfmask.accounting.relations import Relation, check_relation
from halfmask.errors import AccountingError, BudgetExceededError, InputError, LedgerError

_SLACK = 1e-9  # calibration lands on the budget itself; rounding must not refuse it


def _composed(events: Sequence[Event], delta: float, relation: Relation) -> float:
    if not events:
        return 0.0
    from halfmask.accounting.accountant import epsilon  # loads scipy; not needed to read a ledger

    return epsilon(events, delta=delta, relation=relation)


def _unsampled(events: Sequence[Event]) -> bool:
    """Whether all of them are Gaussian releases about every row."""
    return all(
        isinstance(event, GaussianEvent)
        or (isinstance(event, PoissonGaussianEvent) and event.rate == 1)
        for event in events
    )


def _room(before: Sequence[Event], budget: Budget) -> float:
    """Unsampled Gaussian releases are one, whose squares of mu add up."""
    epsilon, delta = budget.epsilon, budget.delta
    if not before:
        return epsilon
    spent = _composed(before, delta, budget.relation)
    if not _unsampled(before) or spent >= epsilon:
        return max(0.0, epsilon - spent)
    from halfmask.accounting.gaussian import gaussian_epsilon, gaussian_mu

    left = gaussian_mu(epsilon, delta) ** 2 - gaussian_mu(spent, delta) ** 2
    # A hair below, so that a training of just this epsilon is not refused for its rounding.
    return gaussian_epsilon(math.sqrt(left) * (1 - 1e-6), delta) if left > 0 else 0.0


def _checked(epsilon: float, delta: float, relation: str) -> Budget:
    if not (math.isfinite(epsilon) and epsilon > 0):
        raise InputError(f"Expected a budget epsilon > 0, got {epsilon}.")
    if not 0 < delta < 1:
        raise InputError(f"Expected delta strictly between 0 and 1, got {delta}.")
    checked = check_relation(relation)
    return Budget(epsilon=float(epsilon), delta=float(delta), relation=checked)


class BudgetLedger(ABC):
    """What is charged before a release: a budget, and the events that were charged against it."""

    budget: Budget
    _name = "The ledger"

    @property
    def epsilon(self) -> float:
        """Epsilon of the budget."""
        return self.budget.epsilon

    @property
    def delta(self) -> float:
        """Delta of the budget."""
        return self.budget.delta

    @property
    def relation(self) -> Relation:
        """The relation under which the budget is kept."""
        return self.budget.relation

    @abstractmethod
    def charge(
        self, events: Sequence[Event], what: str, *, seeded: bool = False, run: str | None = None
    ) -> int:
        """Record `events` or raise BudgetExceededError; release only after it has returned.

        `seeded` says that the noise can be drawn again. Of a charge for a named `run`
        nothing may be released before `begin_part` has returned. Returns the number of the charge.
        """

    @abstractmethod
    def begin_part(self, charge: int, events: Sequence[Event], what: str) -> None:
        """Record that `events`, a part of the charge of that number, are about to be released."""

    @abstractmethod
    def refund(self, charge: int) -> None:
        """Take back a charge of which nothing was released: the caller answers for that."""

    @abstractmethod
    def events(self) -> tuple[Event, ...]:
        """Everything charged so far."""

    def spent(self) -> float:
        """Epsilon at the ledger's delta, under its relation, of everything charged so far."""
        return _composed(self.events(), self.delta, self.relation)

    def holds_if_adaptive(self) -> bool:
        """Whether the total holds even if noise levels were chosen after a look at earlier results.

        Proved for Gaussian releases without sampling; others need levels fixed beforehand.
        """
        return _unsampled(self.events())

    def room(self) -> float:
        """The largest epsilon, at the ledger's delta, of one more training that still fits.

        Charges compose, so it is more than the budget less what is spent. That difference is what
        is told, as a lower bound, where steps were sampled: their compositions take long.
        """
        return _room(self.events(), self.budget)

    def check_room(self, events: Sequence[Event]) -> None:
        """Raise BudgetExceededError where `events` do not fit now; charges nothing."""
        self._check(self.events(), events)

    def _check(self, before: Sequence[Event], asked: Sequence[Event]) -> None:
        total = _composed([*before, *asked], self.delta, self.relation)
        if total <= self.epsilon * (1 + _SLACK):
            return
        spent = _composed(before, self.delta, self.relation)
        alone = _composed(asked, self.delta, self.relation)
        left = _room(before, self.budget)
        raise BudgetExceededError(
            f"{self._name} refuses the charge; nothing was released. "
            f"Budget: epsilon {printed(self.epsilon)} at delta {self.delta:.3g} "
            f"({self.relation}). Spent: {printed(spent)}. Asked: {printed(alone)}, which would "
            f"bring the total to {printed(total)}. Left: a training with epsilon "
            f"{printed_room(left)} still fits. Ask for a smaller "
            "epsilon (more noise, fewer steps), or use other rows: a new ledger for the same rows "
            "would not make the guarantee true."
        )


class MemoryLedger(BudgetLedger):
    """A ledger that lives as long as its process; for fits whose caller keeps no file.

    There is one of it wherever it goes: threads take turns, copies are the ledger itself, and
    another process can neither be sent one nor charge what it inherited by a fork.
    """

    def __init__(self, *, epsilon: float, delta: float, relation: Relation = "replace") -> None:
        self.budget = _checked(epsilon, delta, relation)
        self._charges: tuple[tuple[Event, ...], ...] = ()
        self._begun: dict[int, tuple[Event, ...]] = {}
        self._lock = threading.RLock()
        self._process = os.getpid()

    @classmethod
    def of(cls, budget: Budget) -> Self:
        """A ledger of this budget, of which nothing is spent."""
        return cls(epsilon=budget.epsilon, delta=budget.delta, relation=budget.relation)

    def charge(
        self, events: Sequence[Event], what: str, *, seeded: bool = False, run: str | None = None
    ) -> int:
        """Record `events`, or raise BudgetExceededError and record nothing."""
        self._stay_in_process()
        with self._lock:
            self._check(self.events(), events)
            self._charges = (*self._charges, tuple(events))
            number = len(self._charges)
            if run is not None:
                self._begun[number] = ()
            return number

    def begin_part(self, charge: int, events: Sequence[Event], what: str) -> None:
        """Record that a part of a charge begins."""
        self._stay_in_process()
        with self._lock:
            if charge not in self._begun:
                raise AccountingError(f"Charge {charge} was not made for a run.")
            begun = (*self._begun[charge], *events)
            _check_part(self._charges[charge - 1], begun)
            self._begun[charge] = begun

    def refund(self, charge: int) -> None:
        """Take back a charge of which nothing was released."""
        self._stay_in_process()
        with self._lock:
            self._charges = tuple(
                () if place == charge else events
                for place, events in enumerate(self._charges, start=1)
            )
            self._begun.pop(charge, None)

    def events(self) -> tuple[Event, ...]:
        """Everything charged so far."""
        return tuple(event for charge in self._charges for event in charge)

    def _stay_in_process(self) -> None:
        # Before the lock: a fork may have copied it while another thread held it.
        if os.getpid() != self._process:
            raise LedgerError(f"This ledger was made in another process. {_USE_A_FILE}")

    def __copy__(self) -> MemoryLedger:
        return self

    def __deepcopy__(self, memo: object) -> MemoryLedger:
        return self

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise LedgerError(f"A MemoryLedger cannot be pickled or sent elsewhere. {_USE_A_FILE}")


_USE_A_FILE = (
    "A copy of it could spend the same budget again; nothing was charged or released. Use a ledger "
    "file, which all processes share: make one with `halfmask ledger create` and pass its path."
)


def _check_part(paid: Sequence[Event], begun: Sequence[Event]) -> None:
    if not covers(paid, begun):
        raise AccountingError("More would be released than this training has charged.")


class Ledger(BudgetLedger):
    """A ledger in a file: append-only, hash-chained, locked while it is read and written.

    Use `create`, `open` or `open_or_create`. Guarantee: docs/proofs/ledger.md.

    Attributes
    ----------
    epsilon, delta, relation : float, float, str
        The budget.
    path : Path
        The file; what was acknowledged lies beside it, in a file that ends in `.head`.
    created : str
        When.
    charged_here : set of int
        The charges made through this object and not taken back.

    Examples
    --------
    >>> from halfmask import Ledger
    >>> ledger = Ledger.create("people.ledger", epsilon=2.0, delta=1e-6)
    >>> print(ledger.spent(), ledger.room())
    0.0 2.0
    """

    def __init__(self, path: Path, chain: Chain) -> None:
        self.path, self._name = path, path.name
        self.budget = chain.header.budget
        self.created = chain.header.created
        self._header_hash = chain.header.hash
        self._seen = chain.head
        self.charged_here: set[int] = set()

    @classmethod
    def create(
        cls,
        path: str | os.PathLike[str],
        *,
        epsilon: float,
        delta: float,
        relation: str = "replace",
    ) -> Ledger:
        """A new ledger; only what an interrupted creation left behind is ever replaced."""
        budget = _checked(epsilon, delta, relation)
        file = resolved(path)
        with locked(file, write=True, create=True) as fd:
            if not creation_unfinished(read_all(fd)) or head_path(file).exists():
                raise LedgerError(
                    f"{file.name} or {file.name}.head exists already. Name another file, or use "
                    "the ledger as it is."
                )
            line = header_line(budget, created=_now())
            chain = parse_chain(line, None, file.name)
            cut(fd, 0)
            append(fd, line)
            sync_folder(file.parent)
            write_head(file, chain.head)
        return cls(file, chain)

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Ledger:
        """An existing ledger, verified."""
        file = resolved(path)
        with locked(file, write=False) as fd:
            return cls(file, parse_chain(read_all(fd), read_head(file), file.name))

    @classmethod
    def open_or_create(
        cls,
        path: str | os.PathLike[str],
        *,
        epsilon: float,
        delta: float,
        relation: str = "replace",
    ) -> Ledger:
        """The ledger at `path`, whose budget must be the one named, or a new one."""
        if not resolved(path).exists():
            try:
                return cls.create(path, epsilon=epsilon, delta=delta, relation=relation)
            except LedgerError:
                if not resolved(path).exists():
                    raise  # otherwise another process was faster
        ledger = cls.open(path)
        if (ledger.epsilon, ledger.delta, ledger.relation) != (epsilon, delta, relation):
            raise LedgerError(
                f"{ledger.path.name} has the budget epsilon {printed(ledger.epsilon)}, delta "
                f"{ledger.delta:g}, {ledger.relation}; asked for was epsilon {printed(epsilon)}, "
                f"delta {delta:g}, {relation}. Ask for the same budget, or name another file."
            )
        return ledger

    def charge(
        self, events: Sequence[Event], what: str, *, seeded: bool = False, run: str | None = None
    ) -> int:
        """Record `events` durably, or raise: then nothing may be released.

        Order: the line, fsync, the head, fsync. Whatever interrupts it leaves either no trace, a
        torn last line (cut off by the next charge) or a whole line, which counts as spent. Ctrl-C
        takes its own line back: nothing was released for it.
        """
        asked = tuple(events)
        number: int | None = None
        try:
            with locked(self.path, write=True) as fd:
                chain = self._verified(fd)
                self._check(_events(chain), asked)
                try:
                    number = self._write(fd, chain, what, asked, seeded=seeded, run=run)
                except KeyboardInterrupt:
                    self._unwrite(fd, chain)
                    raise
        except KeyboardInterrupt:
            if number is not None:
                self.refund(number)
            raise
        self.charged_here.add(number)
        return number

    def refund(self, charge: int) -> None:
        """Take back, durably, a charge of which nothing was released."""
        with locked(self.path, write=True) as fd:
            chain = self._verified(fd)
            paid = next((entry for entry in chain.charges if entry.seq == charge), None)
            if paid is None:
                raise AccountingError(f"There is no charge {charge} to take back.")
            what = f"charge {charge} taken back: interrupted before its first release"
            self._write(fd, chain, what, (), seeded=paid.seeded, refunds=charge)
        self.charged_here.discard(charge)

    def begin_part(self, charge: int, events: Sequence[Event], what: str) -> None:
        """Record durably that a part of a charge begins; what has begun is never begun again."""
        asked = tuple(events)
        with locked(self.path, write=True) as fd:
            chain = self._verified(fd)
            paid = next((e for e in chain.charges if e.seq == charge and e.run is not None), None)
            if paid is None:
                raise AccountingError(f"Charge {charge} was not made for a run.")
            _check_part(paid.events, (*chain.begun(charge), *asked))
            self._write(fd, chain, what, asked, seeded=paid.seeded, part_of=charge)

    def _write(
        self,
        fd: int,
        chain: Chain,
        what: str,
        events: tuple[Event, ...],
        *,
        seeded: bool,
        run: str | None = None,
        part_of: int | None = None,
        refunds: int | None = None,
    ) -> int:
        line = entry_line(
            head=chain.head,
            time=_now(),
            what=str(what),
            events=events,
            seeded=seeded,
            run=run,
            part_of=part_of,
            refunds=refunds,
        )
        entry = parse_entry(line, chain.head, self.path.name)
        if chain.torn_bytes or chain.head_behind:
            cut(fd, chain.size)
            write_head(self.path, chain.head)
        append(fd, line)
        self._seen = Head(count=entry.seq, hash=entry.hash)
        write_head(self.path, self._seen)
        return entry.seq

    def _unwrite(self, fd: int, chain: Chain) -> None:
        """What `_write` has begun, still under its lock: nobody else has seen it.

        The head first: a crash in between leaves a whole line beyond it, which counts as spent.
        """
        write_head(self.path, chain.head)
        cut(fd, chain.size)
        self._seen = chain.head

    def verify(self) -> Chain:
        """Read the whole file again; raises LedgerError where it cannot be trusted."""
        with locked(self.path, write=False) as fd:
            return self._verified(fd)

    def entries(self) -> tuple[Entry, ...]:
        """Every charge, in order."""
        return self.verify().charges

    def events(self) -> tuple[Event, ...]:
        """Everything charged so far, by any process."""
        return _events(self.verify())

    def _verified(self, fd: int) -> Chain:
        chain = parse_chain(read_all(fd), read_head(self.path), self.path.name)
        seen = self._seen
        hashes = [chain.header.hash, *(entry.hash for entry in chain.entries)]
        if hashes[0] != self._header_hash or hashes[seen.count : seen.count + 1] != [seen.hash]:
            raise LedgerError(
                f"{self.path.name} no longer holds the charges it held before: it was replaced by "
                "another or an older copy. Restore the newest one."
            )
        self._seen = chain.head
        return chain


def _events(chain: Chain) -> tuple[Event, ...]:
    return tuple(event for entry in chain.charges for event in entry.events)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
