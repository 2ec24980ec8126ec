"""The text of a ledger: a header line, then one hash-chained JSON line per charge.

    {"kind":"header","version":1,"epsilon":..,"delta":..,"relation":..,"created":..,
     "id":..,"hash":..}
    {"seq":1,"time":..,"what":..,"events":[..],"previous":<hash above>,"hash":..}

A charge may also say `"seeded":true` (its noise can be drawn again) and `"run":<id>`: then nothing
is released of it before a further line `"part_of":<seq>` says which part of the run has begun.
A line `"refunds":<seq>` takes back a charge of which nothing was released.
Each hash is SHA-256 over the line without its hash, and a line must be spelled exactly as it was
written, so no byte can change unnoticed. The head (count and hash of the last acknowledged charge)
lies in a second file: without it the removal of whole lines at the end could not be seen.
This file does no input or output. Guarantee: docs/proofs/ledger.md.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from halfmask.accounting.budget import Budget
from halfmask.accounting.events import Event, event_from_json, event_to_json
from halfmask.accounting.relations import RELATIONS
from halfmask.errors import HalfmaskError, LedgerError

VERSION = 1
HEADER_START = b'{"kind":"header",'
_RESTORE = (
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
    previous: str
    hash: str
    seeded: bool = False
    run: str | None = None
    part_of: int | None = None
    refunds: int | None = None


@dataclass(frozen=True, kw_only=True)
class Head:
    """How many charges were acknowledged, and the hash of the last (or of the header)."""

    count: int
    hash: str


@dataclass(frozen=True, kw_only=True)
class Chain:
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


def _digest(fields: Mapping[str, Any]) -> str:
    return hashlib.sha256(_dumps(fields)).hexdigest()


def _sealed(fields: dict[str, Any]) -> bytes:
    return _dumps({**fields, "hash": _digest(fields)}) + b"\n"


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
    # Marks are written where they say something: lines of older ledgers have none.
    if seeded:
        fields["seeded"] = True
    if run is not None:
        fields["run"] = run
    if part_of is not None:
        fields["part_of"] = part_of
    if refunds is not None:
        fields["refunds"] = refunds
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
    except (ValueError, TypeError, KeyError, AttributeError):
        pass
    raise LedgerError(f"{name} is damaged or was edited. {_RESTORE}")


def _unsealed(line: bytes, where: str) -> dict[str, Any]:
    """The fields of a line whose hash and spelling are right."""
    try:
        fields = json.loads(line)
        if not isinstance(fields, dict):
            raise ValueError
        stored = fields.pop("hash", None)
        intact = _sealed(fields) == line and isinstance(stored, str)
    except (ValueError, RecursionError):
        raise LedgerError(
            f"{where} is not a line of a ledger (no valid JSON). {_RESTORE}"
        ) from None
    if not intact:
        raise LedgerError(f"{where} was edited or damaged: its hash does not match. {_RESTORE}")
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
    for relation in RELATIONS:
        if fields.get("relation") == relation:
            epsilon, delta = float(fields["epsilon"]), float(fields["delta"])
            budget = Budget(epsilon=epsilon, delta=delta, relation=relation)
            return Header(budget=budget, created=fields["created"], hash=fields["hash"])
    raise LedgerError(f"{name}, line 1, names no known relation. {_RESTORE}")


def parse_entry(line: bytes, head: Head, where: str) -> Entry:
    """Read the charge that must follow `head`."""
    fields = _unsealed(line, where)
    if fields.get("seq") != head.count + 1 or fields.get("previous") != head.hash:
        raise LedgerError(
            f"{where} does not follow the line before it: a line is missing, was moved or was "
            f"replaced. {_RESTORE}"
        )
    try:
        events = tuple(event_from_json(event) for event in fields["events"])
    except (HalfmaskError, TypeError, ValueError, KeyError):
        raise LedgerError(
            f"{where} holds an event unknown to this halfmask. Use the halfmask that wrote it."
        ) from None
    part_of = fields.get("part_of")
    if part_of is not None and not (type(part_of) is int and 1 <= part_of <= head.count):
        raise LedgerError(f"{where} is part of a charge that does not come before it. {_RESTORE}")
    refunds = fields.get("refunds")
    if refunds is not None and not (type(refunds) is int and 1 <= refunds <= head.count):
        raise LedgerError(f"{where} takes back a charge that does not come before it. {_RESTORE}")
    return Entry(
        seq=fields["seq"],
        time=fields["time"],
        what=fields["what"],
        events=events,
        previous=fields["previous"],
        hash=fields["hash"],
        seeded=fields.get("seeded") is True,
        run=fields.get("run"),
        part_of=part_of,
        refunds=refunds,
    )


def parse_chain(content: bytes, head: Head | None, name: str) -> Chain:
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
            f"`halfmask ledger create` again; otherwise it was truncated. {_RESTORE}"
        )
    header = parse_header(lines[0], name)
    missing = False
    if head is None:
        if len(lines) > 1:
            raise LedgerError(
                f"{name}.head is missing, so removed charges could not be noticed. "
                f"Copy it together with the ledger. {_RESTORE}"
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
            f"were acknowledged. {_RESTORE}"
        )
    if at.hash != head.hash:
        raise LedgerError(
            f"{name}, line {at.count + 1}, is not the line that {name}.head remembers: one of the "
            f"two files was replaced. {_RESTORE}"
        )
    beyond = lines[head.count + 1 :]
    if len(beyond) > 1:
        raise LedgerError(
            f"{name}.head is older than the ledger: it remembers {head.count} charges, and "
            f"{len(beyond)} lines follow. {_RESTORE}"
        )
    adopted = False
    if beyond:
        try:
            entries.append(parse_entry(beyond[0], at, ""))
            size, adopted = size + len(beyond[0]), True
        except LedgerError:
            pass
    return Chain(
        header=header,
        entries=tuple(entries),
        size=size,
        torn_bytes=len(content) - size,
        head_behind=adopted or missing,
    )
