"""A party: its rows, its own budget, and the requests it has agreed to answer.

A party answers only the kinds of request it was opened for; what each may cost is fixed, and
charged to the party's own ledger, before the first answer. The coordinator cannot ask for more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from halfmask.errors import InputError
from halfmask.vertical.admm_party import AdmmParty
from halfmask.vertical.alignment import id_hashes
from halfmask.vertical.channel import Message
from halfmask.vertical.stranger import word

Handler = Callable[[Message], Message]


class Party:
    """The rows of one organisation in the order of their ids, and its handlers."""

    def __init__(self, name: str, *, rows: int, ids: Sequence[Any] | None = None) -> None:
        self.name = name
        self.rows = rows
        self._ids = None if ids is None else list(ids)
        if self._ids is not None and len(self._ids) != rows:
            raise InputError(f"Party {name!r} has {rows} rows and {len(self._ids)} ids.")
        self._handlers: dict[str, Handler] = {"ids": self._hashes}
        self._run: str | None = None

    def answers(self, kind: str, handler: Handler) -> None:
        """Agree to answer requests of this kind."""
        self._handlers[kind] = handler

    def answer(self, request: Message) -> Message:
        """The reply, for a kind that was agreed to and the run that was joined first."""
        if request.kind not in self._handlers:
            raise InputError(f"Party {self.name!r} does not answer {request.kind!r}.")
        word(request.run, "run")
        if self._run is None:
            self._run = request.run
        if request.run != self._run:
            raise InputError(f"Party {self.name!r} takes part in another run.")
        return self._handlers[request.kind](request)

    def _hashes(self, request: Message) -> Message:
        if self._ids is None:
            raise InputError(f"Party {self.name!r} has no ids to align by.")
        return request.reply(arrays={"ids": id_hashes(self._ids, request.run)})


def admm_party(name: str, side: AdmmParty, ids: Sequence[Any] | None = None) -> Party:
    """A party that answers `admm-share` with the shares of `side`."""
    party = Party(name, rows=side.block.rows, ids=ids)

    def share(request: Message) -> Message:
        released = side.share(
            residual=request.arrays.get("residual"),
            dual=request.arrays.get("dual"),
            rho=request.values.get("rho"),
            divisor=request.values.get("divisor"),
        )
        return request.reply(arrays={"share": released})

    party.answers("admm-share", share)
    return party
