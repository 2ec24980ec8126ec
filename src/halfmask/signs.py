"""Signs of life: long work tells how far it is, and whoever listens (the command line) shows it.

Only public counts are told: rows read, trees grown, releases made of those that were planned; never
anything about a private batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

Listener = Callable[[str, float], None]


@dataclass(frozen=True)
class _Part:
    """The part of a bar that is left to the work below, and whose bar it is."""

    label: str = ""
    low: float = 0.0
    width: float = 1.0


_listener: ContextVar[Listener | None] = ContextVar("listener", default=None)
_part: ContextVar[_Part] = ContextVar("part", default=_Part())  # noqa: B039  (frozen)


def tell(what: str, share: float) -> None:
    """`what` is done to this share (0 to 1)."""
    listener, part = _listener.get(), _part.get()
    if listener is None or (part.label and not part.width):
        return
    listener(part.label or what, part.low + part.width * min(max(share, 0.0), 1.0))


@contextmanager
def heard_by(listener: Listener | None) -> Iterator[None]:
    """Within, `listener` hears what is told; with None nobody does."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


def hush() -> None:
    """Nobody hears what this process tells from now on."""
    _listener.set(None)


@contextmanager
def part_of(label: str, low: float = 0.0, high: float = 0.0) -> Iterator[None]:
    """Within, what is told moves the bar `label` from `low` to `high`, or not at all."""
    token = _part.set(_Part(label, low, high - low))
    try:
        yield
    finally:
        _part.reset(token)
