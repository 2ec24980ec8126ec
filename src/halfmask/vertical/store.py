"""A party's memory between messages: the last round it answered, in a folder only it can read.

A round that is asked for again gets the *same* answer back, never fresh noise, so a repeated or
resumed message costs nothing and reveals nothing. Rounds are paid for in advance, so an old memory,
or a copy of it, could buy the same rounds again: every answer is therefore noted in the ledger that
paid for it, by the memory's hash, before it leaves. A memory is trusted only if it is the one that
was noted last. Guarantee: docs/proofs/rounds.md.

Order of an answer, all under one lock beside the ledger: charge (in the first round), compute,
write the new memory beside the old one, note it in the ledger, put it in place, answer. A crash
before the note leaves the old memory (and wastes the charge of a first round); a crash after it
leaves a noted memory that is put in place by the next message.
"""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from halfmask.accounting.ledger import Ledger, locked, resolved
from halfmask.errors import DataError
from halfmask.model_folder import MOST_ARRAYS, field, opened, rebuilt
from halfmask.model_folder import packed as packed
from halfmask.model_folder import unpacked as unpacked
from halfmask.storage import sync_folder, write_durably


@dataclass(frozen=True, kw_only=True)
class PartyMemory:
    """Coefficients, and of admm also the last released share and the terms of the noise."""

    x: np.ndarray
    released: np.ndarray | None = None
    terms: np.ndarray | None = None


@dataclass(frozen=True, kw_only=True)
class AnsweredRound:
    """The run a party takes part in, the last round it answered, what it answered and remembers.

    `key` is drawn for the first memory of a folder and stays: its copies are known by it.
    """

    run: str
    kind: str
    round: int
    reply: Mapping[str, np.ndarray]
    memory: PartyMemory
    key: str = ""


class RoundStore:
    """One file, replaced as a whole after every answer."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise DataError(
                f"The party's folder {self.folder} cannot be made: {error.strerror}. Name another "
                "one as state."
            ) from None
        self._file = self.folder / "party.npz"
        self._next = self.folder / "party.next.npz"

    @contextmanager
    def alone(self, ledger: Path) -> Iterator[None]:
        """Nobody else answers from this ledger meanwhile, from this folder or from a copy of it."""
        path = resolved(ledger)
        with locked(path.with_name(path.name + ".rounds"), write=True, create=True):
            yield

    def load(self, ledger: Ledger | None = None) -> AnsweredRound | None:
        """What was stored last, or nothing before the first answer.

        With the ledger that paid for the rounds, only what was noted there last is trusted.
        """
        held = _content(self._file)
        if ledger is None:
            return None if held is None else self._memory_of(held)
        prepared = _content(self._next)
        if prepared is not None and _is_noted(ledger, self._key(prepared), prepared):
            # Noted, and so perhaps answered, but a crash came before it was put in place.
            os.replace(self._next, self._file)
            held = prepared
        if held is None:
            return None
        stored = self._memory_of(held)
        if not _is_noted(ledger, stored.key, held):
            raise DataError(
                f"The party's memory {self._file} is not the one that {ledger.path.name} noted "
                "last: it is an older one, a copy whose original went on, or of another ledger. "
                "Its rounds may have been answered already, so nothing is answered from it. "
                "Restore the newest memory and ledger, or begin a new run, which is charged anew, "
                "with another state folder."
            )
        return stored

    def save(self, stored: AnsweredRound, ledger: Ledger | None = None) -> None:
        """Durably replace what was stored; a crash leaves the old file or the new one.

        With a ledger, the new memory is noted there before it is put in place; only then may the
        answer leave.
        """
        key = stored.key or secrets.token_hex(8)
        head = {"run": stored.run, "kind": stored.kind, "round": stored.round, "key": key}
        arrays = {f"reply/{k}": v for k, v in stored.reply.items()}
        arrays |= {f"memory/{k}": v for k, v in vars(stored.memory).items() if v is not None}
        content = packed(head, arrays)
        write_durably(self._next, content)
        if ledger is not None:
            ledger.charge([], _note(key, content))
        os.replace(self._next, self._file)
        sync_folder(self.folder)

    def _key(self, content: bytes) -> str:
        """The key of a memory that may be torn: a crash while it was written noted nothing."""
        try:
            return self._memory_of(content).key
        except DataError:
            return ""

    def _memory_of(self, content: bytes) -> AnsweredRound:
        try:
            return rebuilt(lambda: _answered(content, self._file.name), self._file.name)
        except DataError:
            raise _unreadable(self._file) from None


def _answered(content: bytes, name: str) -> AnsweredRound:
    head, arrays = unpacked(content, name)
    return AnsweredRound(
        run=field(head, "run", str),
        kind=field(head, "kind", str),
        round=field(head, "round", int),
        key=field(head, "key", str),
        reply=_part(arrays, "reply/"),
        memory=PartyMemory(**_part(arrays, "memory/")),
    )


def _unreadable(path: Path) -> DataError:
    return DataError(
        f"The party's memory {path} cannot be read: restore it, or start a new run, which is "
        "charged anew, with another state folder."
    )


def _content(path: Path) -> bytes | None:
    if not os.path.lexists(path):
        return None
    try:
        with opened(path, MOST_ARRAYS) as file:
            return file.read()
    except DataError:
        raise _unreadable(path) from None


def _about(key: str) -> str:
    return f"memory {key}: "


def _note(key: str, content: bytes) -> str:
    """What the ledger is told of a memory: its key and its hash. It charges nothing."""
    return f"{_about(key)}answered, sha256 {hashlib.sha256(content).hexdigest()}"


def _is_noted(ledger: Ledger, key: str, content: bytes) -> bool:
    """Whether the last that this ledger was told of the memory `key` is `content`."""
    told = [entry.what for entry in ledger.entries() if entry.what.startswith(_about(key))]
    return bool(key) and told[-1:] == [_note(key, content)]


def _part(arrays: Mapping[str, np.ndarray], prefix: str) -> dict[str, np.ndarray]:
    return {k.removeprefix(prefix): v for k, v in arrays.items() if k.startswith(prefix)}
