"""A data set's privacy budget: every release is charged here first, durably.

A crash may waste budget, never lose track of it. All processes that release something about one
data set share one ledger file; the check and the charge happen under one lock, so together they
cannot overspend. Guarantee: docs/proofs/ledger.md.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import math
import os
import secrets
import stat
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NoReturn, Self

from halfmask.accounting.budget import Budget, printed, printed_room
from halfmask.accounting.events import (
    RELATIONS,
    Event,
    Relation,
    check_relation,
    covers,
    event_from_json,
    event_to_json,
    unsampled,
)
from halfmask.errors import (
    AccountingError,
    BudgetExceededError,
    HalfmaskError,
    InputError,
    LedgerError,
)
from halfmask.storage import sync_folder, write_all, write_durably

# --- The text of a ledger: a header line, then one hash-chained JSON line per charge.
#     {"kind":"header","version":1,"epsilon":..,"delta":..,"relation":..,"created":..,
#      "id":..,"hash":..}
#     {"seq":1,"time":..,"what":..,"events":[..],"previous":<hash above>,"hash":..}
# A charge may also say `"seeded":true` (its noise can be drawn again) and `"run":<id>`: then
# nothing is released of it before a further line `"part_of":<seq>` says which part of the run has
# begun. A line `"refunds":<seq>` takes back a charge of which nothing was released. Each hash is
# SHA-256 over the line without its hash, and a line must be spelled exactly as it was written, so
# no byte can change unnoticed. The head (count and hash of the last acknowledged charge) lies in a
# second file: without it the removal of whole lines at the end could not be seen.
# Guarantee: docs/proofs/ledger.md.


VERSION = 1
_MOST = 1e300  # of an epsilon: beyond it no number is one
HEADER_START = b'{"kind":"header",'
RESTORE = (
    "Restore the ledger and its .head file together from a backup; do not train with it until then."
)


@dataclass(frozen=True, kw_only=True)
class Header:
    """The budget a ledger was created with."""

    budget: Budget
    created: str
    hash: str


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One charge; or what is said of an earlier one: a part of it begins, or it is taken back."""

    seq: int
    time: str
    what: str
    events: tuple[Event, ...]
    hash: str
    seeded: bool
    run: str | None
    part_of: int | None
    refunds: int | None


@dataclass(frozen=True, kw_only=True)
class Head:
    """How many charges were acknowledged, and the hash of the last (or of the header)."""

    count: int
    hash: str


@dataclass(frozen=True, kw_only=True)
class HashChain:
    """A verified ledger, and what an interrupted charge has left at its end."""

    header: Header
    entries: tuple[Entry, ...]
    size: int  # bytes up to the end of the last valid line
    torn_bytes: int  # bytes after it: a charge that was cut off while being written
    head_behind: (
        bool  # the last line is whole, but its writer was stopped before the head was written
    )

    @property
    def charges(self) -> tuple[Entry, ...]:
        """What was charged and not taken back, in order."""
        return tuple(
            entry
            for entry in self.entries
            if entry.part_of is None and entry.refunds is None and entry.seq not in self.refunded
        )

    @property
    def refunded(self) -> frozenset[int]:
        """The charges that were taken back."""
        return frozenset(e.refunds for e in self.entries if e.refunds is not None)

    def begun(self, seq: int) -> tuple[Event, ...]:
        """What has begun of the charge `seq`, which was made for a run."""
        return tuple(e for entry in self.entries if entry.part_of == seq for e in entry.events)

    @property
    def head(self) -> Head:
        """What the head file has to say about these lines."""
        last = self.entries[-1].hash if self.entries else self.header.hash
        return Head(count=len(self.entries), hash=last)


def _dumps(fields: Mapping[str, Any]) -> bytes:
    # numpy scalars know their Python value as .item(); nothing else may be stored.
    text = json.dumps(
        fields, separators=(",", ":"), allow_nan=False, default=lambda value: value.item()
    )
    return text.encode("ascii")


def _sealed(fields: dict[str, Any]) -> bytes:
    digest = hashlib.sha256(_dumps(fields)).hexdigest()
    return _dumps({**fields, "hash": digest}) + b"\n"


def header_line(budget: Budget, *, created: str) -> bytes:
    """The first line of a new ledger."""
    return _sealed(
        {
            "kind": "header",
            "version": VERSION,
            "epsilon": budget.epsilon,
            "delta": budget.delta,
            "relation": budget.relation,
            "created": created,
            "id": secrets.token_hex(16),  # no two ledgers have lines in common
        }
    )


def entry_line(
    *,
    head: Head,
    time: str,
    what: str,
    events: tuple[Event, ...],
    seeded: bool = False,
    run: str | None = None,
    part_of: int | None = None,
    refunds: int | None = None,
) -> bytes:
    """The line that follows `head`: a charge, or what is said of an earlier one."""
    fields: dict[str, Any] = {
        "seq": head.count + 1,
        "time": time,
        "what": what,
        "events": [event_to_json(event) for event in events],
    }
    marks = {"seeded": seeded or None, "run": run, "part_of": part_of, "refunds": refunds}
    # They are written where they say something: lines of older ledgers have none.
    fields |= {name: mark for name, mark in marks.items() if mark is not None}
    return _sealed({**fields, "previous": head.hash})


def head_text(head: Head) -> bytes:
    """The content of the head file."""
    return _dumps({"kind": "head", "count": head.count, "hash": head.hash}) + b"\n"


def parse_head(content: bytes, name: str) -> Head:
    """Read the head file called `name`."""
    try:
        fields = json.loads(content)
        head = Head(count=fields["count"], hash=fields["hash"])
        if type(head.count) is int and head.count >= 0 and head_text(head) == content:
            return head
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        pass
    raise LedgerError(f"{name} is damaged or was edited. {RESTORE}")


def _unsealed(line: bytes, where: str) -> dict[str, Any]:
    """The fields of a line whose hash and spelling are right."""
    try:
        fields = json.loads(line)
        if not isinstance(fields, dict):
            raise ValueError
        stored = fields.pop("hash", None)
        intact = _sealed(fields) == line and isinstance(stored, str)
    except (ValueError, RecursionError):
        raise LedgerError(f"{where} is not a line of a ledger (no valid JSON). {RESTORE}") from None
    if not intact:
        raise LedgerError(f"{where} was edited or damaged: its hash does not match. {RESTORE}")
    return {**fields, "hash": stored}


def parse_header(line: bytes, name: str) -> Header:
    """Read the first line of the file called `name`."""
    if not line.startswith(HEADER_START):
        raise LedgerError(
            f"{name} is not a ledger: line 1 is no ledger header. "
            "Name a file made by `halfmask ledger create`."
        )
    fields = _unsealed(line, f"{name}, line 1,")
    if fields.get("version") != VERSION:
        raise LedgerError(
            f"{name} is a ledger of version {fields.get('version')}, this halfmask reads version "
            f"{VERSION}. Use the halfmask that wrote it, or a newer one."
        )
    relation = next((each for each in RELATIONS if fields.get("relation") == each), None)
    if relation is None:
        raise LedgerError(f"{name}, line 1, names no known relation. {RESTORE}")
    epsilon: Any = fields.get("epsilon")
    delta: Any = fields.get("delta")
    numbers = all(type(each) in (int, float) for each in (epsilon, delta))
    if not numbers or not (0 < epsilon < _MOST and 0 < delta < 1):
        raise LedgerError(f"{name}, line 1, names no budget of a ledger. {RESTORE}")
    budget = Budget(epsilon=float(epsilon), delta=float(delta), relation=relation)
    return Header(
        budget=budget, created=_text(fields, "created", f"{name}, line 1,"), hash=fields["hash"]
    )


def _text(fields: Mapping[str, Any], name: str, where: str) -> str:
    found = fields.get(name)
    if not isinstance(found, str):
        raise LedgerError(f"{where} has no text {name!r}, which every such line has. {RESTORE}")
    return found


def parse_entry(line: bytes, head: Head, where: str) -> Entry:
    """Read the charge that must follow `head`."""
    fields = _unsealed(line, where)
    if fields.get("seq") != head.count + 1 or fields.get("previous") != head.hash:
        raise LedgerError(
            f"{where} does not follow the line before it: a line is missing, was moved or was "
            f"replaced. {RESTORE}"
        )
    try:
        events = tuple(event_from_json(event) for event in fields["events"])
    except (HalfmaskError, TypeError, ValueError, KeyError, OverflowError):
        raise LedgerError(
            f"{where} holds an event unknown to this halfmask. Use the halfmask that wrote it."
        ) from None
    part_of, refunds = fields.get("part_of"), fields.get("refunds")
    for earlier, what in ((part_of, "is part of"), (refunds, "takes back")):
        if earlier is not None and not (type(earlier) is int and 1 <= earlier <= head.count):
            raise LedgerError(f"{where} {what} a charge that does not come before it. {RESTORE}")
    run = fields.get("run")
    if run is not None and not isinstance(run, str):
        raise LedgerError(f"{where} names a run that is no text. {RESTORE}")
    return Entry(
        seq=fields["seq"],
        time=_text(fields, "time", where),
        what=_text(fields, "what", where),
        events=events,
        hash=fields["hash"],
        seeded=fields.get("seeded") is True,
        run=run,
        part_of=part_of,
        refunds=refunds,
    )


def parse_chain(content: bytes, head: Head | None, name: str) -> HashChain:
    """Verify the ledger `content` of the file called `name` against its head.

    Everything the head has acknowledged must be there, whole. Beyond it there may be one line: a
    whole one counts as spent, anything else is a charge that never returned to its caller, so
    nothing was released for it.
    """
    *whole, rest = content.split(b"\n")
    lines = [line + b"\n" for line in whole] + ([rest] if rest else [])
    if not lines or not lines[0].endswith(b"\n"):
        raise LedgerError(
            f"{name} has no complete first line. If its creation was interrupted, run "
            f"`halfmask ledger create` again; otherwise it was truncated. {RESTORE}"
        )
    header = parse_header(lines[0], name)
    missing = False
    if head is None:
        if len(lines) > 1:
            raise LedgerError(
                f"{name}.head is missing, so removed charges could not be noticed. "
                f"Copy it together with the ledger. {RESTORE}"
            )
        head, missing = Head(count=0, hash=header.hash), True
    at, size, entries = Head(count=0, hash=header.hash), len(lines[0]), []
    for number, line in enumerate(lines[1 : head.count + 1], start=2):
        entry = parse_entry(line, at, f"{name}, line {number},")
        at, size = Head(count=entry.seq, hash=entry.hash), size + len(line)
        entries.append(entry)
    if at.count < head.count:
        raise LedgerError(
            f"{name} was truncated: it ends after line {at.count + 1}, but {head.count} charges "
            f"were acknowledged. {RESTORE}"
        )
    if at.hash != head.hash:
        raise LedgerError(
            f"{name}, line {at.count + 1}, is not the line that {name}.head remembers: one of the "
            f"two files was replaced. {RESTORE}"
        )
    beyond = lines[head.count + 1 :]
    if len(beyond) > 1:
        raise LedgerError(
            f"{name}.head is older than the ledger: it remembers {head.count} charges, and "
            f"{len(beyond)} lines follow. {RESTORE}"
        )
    adopted = False
    if beyond:
        try:
            entries.append(parse_entry(beyond[0], at, ""))
            size, adopted = size + len(beyond[0]), True
        except LedgerError:
            pass
    return HashChain(
        header=header,
        entries=tuple(entries),
        size=size,
        torn_bytes=len(content) - size,
        head_behind=adopted or missing,
    )


# --- Reading and writing a ledger's two files: locks, durable writes, and errors that say what to
# do. The lock is taken on the ledger itself, which is never replaced by another file, so it also
# covers the head file beside it. Guarantee: docs/proofs/ledger.md.

_LONGEST_HEAD = 4096


def resolved(path: str | os.PathLike[str]) -> Path:
    """The file itself: two links to one ledger must share one head file."""
    return Path(os.path.realpath(path))


@contextmanager
def locked(path: Path, *, write: bool, create: bool = False) -> Iterator[int]:
    """Open and lock the ledger: alone to write, together with others to read."""
    flags = os.O_RDWR | os.O_APPEND if write else os.O_RDONLY
    flags |= os.O_CLOEXEC | os.O_NONBLOCK | (os.O_CREAT if create else 0)
    try:
        while True:
            # The file may be exchanged while we wait for its lock: then the lock is on the old one.
            fd = os.open(path, flags, 0o666)
            try:
                mode = os.fstat(fd).st_mode
                if not stat.S_ISREG(mode):
                    instead = "Name another one."
                    if stat.S_ISDIR(mode):
                        instead = "Name the ledger in it: that of a model is called ledger.jsonl."
                    raise LedgerError(f"{path.name} is not a regular file. {instead}")
                fcntl.flock(fd, fcntl.LOCK_EX if write else fcntl.LOCK_SH)
                if _is_at(fd, path):
                    yield fd
                    return
            finally:
                # A child forked meanwhile holds the file open too: closing alone would not unlock.
                with suppress(OSError):
                    fcntl.flock(fd, fcntl.LOCK_UN)
                os.close(fd)
    except FileNotFoundError:
        if not path.parent.is_dir():
            advice = "Create it first." if create else "Check the path."
            message = f"The folder of {path.name} does not exist. {advice}"
        else:
            # A second ledger for the same rows would forget what is spent: the path comes first.
            message = (
                f"There is no ledger {path.name}. Check the path; for rows that have none yet, "
                "make one with `halfmask ledger create`."
            )
        raise LedgerError(message) from None
    except OSError as error:
        raise LedgerError(
            f"{path.name} cannot be used as a ledger ({error.strerror}); nothing was released. "
            "Check its permissions and the space on its disk."
        ) from error


def _is_at(fd: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), os.stat(path))
    except FileNotFoundError:
        return False


def read_all(fd: int) -> bytes:
    """The whole content of a locked file."""
    pieces, offset = [], 0
    while piece := os.pread(fd, 1 << 20, offset):
        pieces.append(piece)
        offset += len(piece)
    return b"".join(pieces)


def append(fd: int, line: bytes) -> None:
    """Add a line durably; where the disk is full, take back what was written of it."""
    size = os.fstat(fd).st_size
    try:
        write_all(fd, line)
    except OSError:
        with suppress(OSError):
            os.ftruncate(fd, size)
        raise
    os.fsync(fd)


def cut(fd: int, size: int) -> None:
    """Remove a torn last line durably."""
    os.ftruncate(fd, size)
    os.fsync(fd)


def head_path(path: Path) -> Path:
    """The file that remembers how far the ledger was acknowledged."""
    return path.with_name(path.name + ".head")


def read_head(path: Path) -> Head | None:
    """The head of the ledger at `path`, None where there is no head file."""
    target = head_path(path)
    try:
        # Without O_NONBLOCK, opening a pipe would wait for somebody to write into it.
        fd = os.open(target, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise LedgerError(f"{target.name} is not a regular file. {RESTORE}")
        # No head is as long: what is cut off here is none.
        return parse_head(os.read(fd, _LONGEST_HEAD), target.name)
    finally:
        os.close(fd)


def write_head(path: Path, head: Head) -> None:
    """Replace the head atomically and durably; the caller holds the ledger's lock."""
    write_durably(head_path(path), head_text(head), mode=0o666)


def left_unfinished(path: Path) -> bool:
    """Whether a creation of the ledger at `path` was interrupted: no charge can be lost in it."""
    with locked(path, write=False) as fd:
        content = read_all(fd)
    return creation_unfinished(content) and not head_path(path).exists()


def creation_unfinished(content: bytes) -> bool:
    """Whether `content` can be what an interrupted creation leaves: less than a header line."""
    return b"\n" not in content and (
        content.startswith(HEADER_START) or HEADER_START.startswith(content)
    )


_SLACK = 1e-9  # calibration lands on the budget itself; rounding must not refuse it


def _composed(events: Sequence[Event], delta: float, relation: Relation) -> float:
    if not events:
        return 0.0
    from halfmask.accounting.accountant import epsilon  # loads scipy; not needed to read a ledger

    return epsilon(events, delta=delta, relation=relation)


def _room(before: Sequence[Event], budget: Budget) -> float:
    """Unsampled Gaussian releases are one, whose squares of mu add up."""
    epsilon, delta = budget.epsilon, budget.delta
    if not before:
        return epsilon
    spent = _composed(before, delta, budget.relation)
    if not unsampled(before) or spent >= epsilon:
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
        return unsampled(self.events())

    def room(self) -> float:
        """The largest epsilon, at the ledger's delta, of one more training that still fits.

        Charges compose, so it is more than the budget less what is spent. That difference is what
        is told, as a lower bound, where steps were sampled: their compositions take long.
        """
        return _room(self.events(), self.budget)

    def check_room(self, events: Sequence[Event]) -> None:
        """Raise BudgetExceededError where `events` do not fit now; charges nothing.

        They may be the beginning of a plan: what is asked for is told as a lower bound.
        """
        self._check(self.events(), events, "at least ")

    def _check(self, before: Sequence[Event], asked: Sequence[Event], least: str = "") -> None:
        total = _composed([*before, *asked], self.delta, self.relation)
        if total <= self.epsilon * (1 + _SLACK):
            return
        spent = _composed(before, self.delta, self.relation)
        alone = _composed(asked, self.delta, self.relation)
        left = _room(before, self.budget)
        smaller = "Ask for a smaller epsilon (more noise, fewer steps), or use other rows"
        raise BudgetExceededError(
            f"{self._name} refuses the charge; nothing was released. "
            f"Budget: epsilon {printed(self.epsilon)} at delta {self.delta:.3g} "
            f"({self.relation}). Spent: {printed(spent)}. Asked: {least}{printed(alone)}, which "
            f"would bring the total to {least}{printed(total)}. Left: "
            f"{room_in_words(left, self.epsilon)}. "
            f"{smaller if has_room(left, self.epsilon) else 'Use other rows'}: a new ledger for "
            "the same rows would not make the guarantee true."
        )


def has_room(room: float, budget: float) -> bool:
    """Whether anything is left to train with: what rounding leaves of a budget is nothing."""
    return room >= budget / 1000


def room_in_words(room: float, budget: float) -> str:
    """What still fits."""
    if has_room(room, budget):
        return f"a training with epsilon {printed_room(room)} still fits"
    return "no further training fits"


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

    def __init__(self, path: Path, chain: HashChain) -> None:
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
        file = resolved(path)
        if not os.path.exists(file) or left_unfinished(file):
            try:
                return cls.create(path, epsilon=epsilon, delta=delta, relation=relation)
            except LedgerError:
                if not os.path.exists(file) or left_unfinished(file):
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
        self, fd: int, chain: HashChain, what: str, events: tuple[Event, ...], **marks: Any
    ) -> int:
        line = entry_line(head=chain.head, time=_now(), what=str(what), events=events, **marks)
        entry = parse_entry(line, chain.head, self.path.name)
        if chain.torn_bytes or chain.head_behind:
            cut(fd, chain.size)
            write_head(self.path, chain.head)
        append(fd, line)
        self._seen = Head(count=entry.seq, hash=entry.hash)
        write_head(self.path, self._seen)
        return entry.seq

    def _unwrite(self, fd: int, chain: HashChain) -> None:
        """What `_write` has begun, still under its lock: nobody else has seen it.

        The head first: a crash in between leaves a whole line beyond it, which counts as spent.
        """
        write_head(self.path, chain.head)
        cut(fd, chain.size)
        self._seen = chain.head

    def verify(self) -> HashChain:
        """Read the whole file again; raises LedgerError where it cannot be trusted."""
        with locked(self.path, write=False) as fd:
            return self._verified(fd)

    def entries(self) -> tuple[Entry, ...]:
        """Every charge, in order."""
        return self.verify().charges

    def events(self) -> tuple[Event, ...]:
        """Everything charged so far, by any process."""
        return _events(self.verify())

    def _verified(self, fd: int) -> HashChain:
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


def _events(chain: HashChain) -> tuple[Event, ...]:
    return tuple(event for entry in chain.charges for event in entry.events)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
