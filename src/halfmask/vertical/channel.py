"""What parties and coordinator say to each other, and the way it travels.

A channel delivers one request to every party and brings back one reply from each. The one here
calls the parties in this process; `flower_app` carries the same messages between organisations.
Every reply is checked before it is used: a party that is silent, late, double, from another run,
of a wrong length or not finite ends the round with an error that names it, and nothing half-done
is kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np

from halfmask.errors import InputError
from halfmask.vertical.stranger import MOST, RefusedError, Vector, numbers


class PartyError(InputError):
    """A party did not answer as the protocol says; the message names it."""


@dataclass(frozen=True, kw_only=True)
class Message:
    """One request or reply: plain arrays and plain values, never code or pickles."""

    kind: str
    run: str
    round: int
    arrays: Mapping[str, Any] = field(default_factory=dict)
    values: Mapping[str, float | int | str] = field(default_factory=dict)

    def reply(
        self,
        arrays: Mapping[str, Any] | None = None,
        values: Mapping[str, float | int | str] | None = None,
    ) -> Message:
        """An answer to this request: same kind, run and round."""
        return Message(
            kind=self.kind,
            run=self.run,
            round=self.round,
            arrays=arrays or {},
            values=values or {},
        )


class Answering(Protocol):
    """Whatever can answer a request: a `Party`."""

    def answer(self, request: Message) -> Message:
        """The reply to one request."""
        ...


class Channel(Protocol):
    """Delivers requests to named parties and returns their replies."""

    @property
    def parties(self) -> tuple[str, ...]:
        """The names of the parties, in a fixed order."""
        ...

    def exchange(self, requests: Mapping[str, Message]) -> Mapping[str, Message]:
        """One reply per request; a party that cannot be reached raises `PartyError`."""
        ...


class LocalChannel:
    """All parties in this process; what goes to and fro is counted."""

    def __init__(self, parties: Mapping[str, Answering]) -> None:
        if not parties:
            raise InputError("Expected at least one party.")
        self._parties = dict(parties)
        self.messages, self.bytes = 0, 0

    @property
    def parties(self) -> tuple[str, ...]:
        return tuple(self._parties)

    def exchange(self, requests: Mapping[str, Message]) -> dict[str, Message]:
        replies = {name: self._parties[name].answer(request) for name, request in requests.items()}
        for message in (*requests.values(), *replies.values()):
            self.messages += 1
            self.bytes += sum(np.asarray(array).nbytes for array in message.arrays.values())
        return replies


def ask_all(
    channel: Channel, request: Message, *, shapes: Mapping[str, tuple[int, ...]] | None = None
) -> dict[str, Message]:
    """Send `request` to every party; return replies of this run that hold the arrays of `shapes`,
    checked.
    """
    replies = channel.exchange(dict.fromkeys(channel.parties, request))
    missing = [name for name in channel.parties if name not in replies]
    if missing:
        raise PartyError(
            f"No answer from {_quoted(missing)} to {request.kind!r} in round {request.round}: "
            "check that the party runs, then resume from the last finished round."
        )
    return {
        name: checked_reply(name, request, replies[name], shapes=shapes or {})
        for name in channel.parties
    }


def ask_numbers(
    channel: Channel, request: Message, name: str, shape: tuple[int, ...]
) -> dict[str, Vector]:
    """Send `request` to every party; return the array `name` of each reply, checked."""
    replies = ask_all(channel, request, shapes={name: shape})
    return {party: reply.arrays[name] for party, reply in replies.items()}


def checked_reply(
    party: str, request: Message, reply: Message, *, shapes: Mapping[str, tuple[int, ...]]
) -> Message:
    """The reply with the arrays of `shapes` checked; `PartyError` unless it is what was asked."""
    if reply.run != request.run:
        raise PartyError(f"Party {party!r} answered for another run: restart it for this one.")
    if (reply.kind, reply.round) != (request.kind, request.round):
        raise PartyError(
            f"Party {party!r} answered {reply.kind!r} of round {reply.round}, "
            f"expected {request.kind!r} of round {request.round}."
        )
    arrays = dict(reply.arrays)
    for name, shape in shapes.items():
        if name not in reply.arrays:
            raise PartyError(f"Party {party!r} sent no {name!r} in round {request.round}.")
        array = np.asarray(reply.arrays[name])
        if array.shape != shape:
            raise PartyError(
                f"Party {party!r} sent {name!r} of shape {array.shape} in round {request.round}, "
                f"expected {shape}: its rows are not those of the other parties."
            )
        try:
            arrays[name] = numbers(array, shape, name)
        except RefusedError:
            raise PartyError(
                f"Party {party!r} sent {name!r} that is not finite, or beyond {MOST:g}, in round "
                f"{request.round}."
            ) from None
    return replace(reply, arrays=arrays)


def _quoted(names: list[str]) -> str:
    return ", ".join(repr(name) for name in names)
