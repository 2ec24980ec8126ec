"""What parties and coordinator say to each other, and the way it travels.

A channel delivers one request to every party and brings back one reply from each. The one here
calls the parties in this process; `flower_app` carries the same messages between organisations.
Every reply is checked before it is used: a party that is silent, late, double, from another run,
of a wrong length or not finite ends the round with an error that names it, and nothing half-done
is kept.
"""

from __future__ import annotations

import math
import numbers as kinds
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from halfmask.errors import InputError
from halfmask.types import Vector
from halfmask.vertical.block import row_parts

MOST, LEAST = 1e100, 1e-100
"""Squares of both, and sums of any number of such squares, are far inside the range of doubles."""

LONGEST_WORD = 200


class RefusedError(InputError):
    """A message that is not as the protocol says, as anyone can tell from the message alone."""


def number_array(
    value: object, shape: tuple[int | None, ...], what: str, *, most: float = MOST
) -> Vector:
    """An array of `shape` (None: any length), finite, of at most `most`; tiny ones become zero."""
    found = _array(value, what)
    lengths = zip(found.shape, shape, strict=False)
    if found.ndim != len(shape) or any(n is not None and have != n for have, n in lengths):
        asked = " x ".join("any number" if n is None else str(n) for n in shape)
        raise RefusedError(f"{what} has shape {found.shape}, expected {asked} numbers.")
    if found.dtype.kind not in "fiu" or found.dtype.itemsize > 8:
        raise RefusedError(f"{what} is not made of numbers in double precision or less.")
    checked = np.asarray(found, dtype=np.float64)
    flat, own = checked.reshape(-1), checked is not found
    for part in row_parts(flat.size):
        size = np.abs(flat[part])
        # Written so that NaN, which the maximum keeps and no comparison holds for, is refused too.
        if not size.max(initial=0.0) <= most:
            raise RefusedError(f"{what} is not finite or beyond {most:g}.")
        tiny = size < LEAST
        if tiny.any() and size[tiny].any():
            if not own:  # the sender's array stays as it is
                checked, own = checked.copy(), True
                flat = checked.reshape(-1)
            flat[part][tiny] = 0.0
    return checked


def _array(value: object, what: str) -> npt.NDArray[Any]:
    try:
        return value if isinstance(value, np.ndarray) else np.asarray(value)
    except (ValueError, TypeError, OverflowError):  # lists of unequal lengths
        raise RefusedError(f"{what} is not an array.") from None


def one_number(value: object, what: str, *, least: float = LEAST, most: float = MOST) -> float:
    """One number from `least` to `most`; truth values and text are none."""
    plain = isinstance(value, kinds.Real) and not isinstance(value, bool | np.bool_)
    if not plain or not (least <= value <= most):  # type: ignore[operator]
        raise RefusedError(f"{what} must be a number from {least:g} to {most:g}.")
    found = float(value)  # type: ignore[arg-type]
    return found if abs(found) >= LEAST else 0.0


def whole(value: object, what: str, *, least: int, most: int) -> int:
    """One whole number from `least` to `most`."""
    found = one_number(value, what, least=least, most=most)
    if found != math.floor(found):
        raise RefusedError(f"{what} must be a whole number.")
    return int(found)


def word(value: object, what: str) -> str:
    """A short text."""
    if not isinstance(value, str) or not 0 < len(value) <= LONGEST_WORD:
        raise RefusedError(f"{what} must be a text of at most {LONGEST_WORD} characters.")
    return value


def hashes(value: object, what: str) -> npt.NDArray[np.uint64]:
    """One 64-bit hash per row, any number of rows."""
    found = _array(value, what)
    if found.ndim != 1 or found.dtype != np.uint64:
        raise RefusedError(f"{what} must be a list of 64-bit hashes.")
    return found.astype(np.uint64, copy=False)


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
        return replace(self, arrays=arrays or {}, values=values or {})


class Answering(Protocol):
    """Whatever can answer a request: a `Party`."""

    def answer(self, request: Message) -> Message:
        """The reply to one request."""
        ...


class Channel(Protocol):
    """Delivers a request to every party and returns their replies."""

    @property
    def parties(self) -> tuple[str, ...]:
        """The names of the parties, in a fixed order."""
        ...

    def exchange(self, request: Message) -> Mapping[str, Message]:
        """One reply per party that answered, unchecked: `checked_replies` is what reads them."""
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

    def exchange(self, request: Message) -> dict[str, Message]:
        replies: dict[str, Message] = {}
        for name in self.parties:
            replies[name] = self._parties[name].answer(request)
            for message in (request, replies[name]):
                self.messages += 1
                self.bytes += sum(np.asarray(array).nbytes for array in message.arrays.values())
        return replies


Shapes = Mapping[str, tuple[int, ...]]


def checked_replies(
    channel: Channel, request: Message, replies: Mapping[str, Message], shapes: Shapes | None = None
) -> dict[str, Message]:
    """The replies of all parties to `request`, with the arrays of `shapes` checked.

    `PartyError` names who did not answer, or answered something else than was asked.
    """
    missing = [repr(name) for name in channel.parties if name not in replies]
    if missing:
        raise PartyError(
            f"No answer from {', '.join(missing)} to {request.kind!r} in round {request.round}: "
            "check that the party runs, then resume from the last finished round."
        )
    return {
        name: _checked_reply(name, request, replies[name], shapes or {}) for name in channel.parties
    }


def checked_numbers(
    channel: Channel,
    request: Message,
    replies: Mapping[str, Message],
    name: str,
    shape: tuple[int, ...],
) -> dict[str, Vector]:
    """The array `name` of each party's reply, checked."""
    checked = checked_replies(channel, request, replies, {name: shape})
    return {party: reply.arrays[name] for party, reply in checked.items()}


def _checked_reply(party: str, request: Message, reply: Message, shapes: Shapes) -> Message:
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
        array = reply.arrays[name]
        if isinstance(array, np.ndarray) and array.shape != shape:
            raise PartyError(
                f"Party {party!r} sent {name!r} of shape {array.shape} in round {request.round}, "
                f"expected {shape}: its rows are not those of the other parties."
            )
        try:
            arrays[name] = number_array(array, shape, name)
        except RefusedError:
            size = " x ".join(map(str, shape))
            raise PartyError(
                f"Party {party!r} sent {name!r} that is not finite, beyond {MOST:g} or not made of "
                f"{size} numbers, in round {request.round}."
            ) from None
    return replace(reply, arrays=arrays)
