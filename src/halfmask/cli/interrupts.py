"""Ctrl-C: every command ends with 130, and what it is writing is whole or not there."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


class _Asked:
    """Whether Ctrl-C was pressed since the command began, and whether it has to wait."""

    now = False
    waits = 0
    raised = 0.0  # when, on the monotonic clock


_asked = _Asked()
_PATIENCE = 1.0
"""Seconds in which a second Ctrl-C does not disturb what cleans up after the first."""


@contextmanager
def heard(*, to_the_end: bool) -> Iterator[None]:
    """Within: Ctrl-C raises KeyboardInterrupt, also where Python would only print and forget it.

    `to_the_end`: nothing follows but the end of the process, where it has nothing left to stop.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    _asked.now, _asked.waits, _asked.raised = False, 0, -_PATIENCE
    before, shown = signal.signal(signal.SIGINT, _on_signal), sys.unraisablehook

    def unraised(lost: Any) -> None:
        # Raised in a destructor or a callback of C, where nobody can catch it: once more, then,
        # and from outside, since this is still the same place.
        if isinstance(lost.exc_value, KeyboardInterrupt):
            threading.Timer(0.02, _again).start()
        else:
            shown(lost)

    sys.unraisablehook = unraised
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN if to_the_end else before)
        sys.unraisablehook = shown


def _again() -> None:
    _asked.raised = -_PATIENCE
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)


def _on_signal(number: int, frame: FrameType | None) -> None:
    _asked.now = True
    if not _asked.waits and time.monotonic() - _asked.raised >= _PATIENCE:
        _asked.raised = time.monotonic()
        raise KeyboardInterrupt


def asked() -> bool:
    """Whether Ctrl-C was pressed: libraries may have turned it into an error of their own."""
    return _asked.now


@contextmanager
def after_this() -> Iterator[None]:
    """Ctrl-C waits for the end of this, which is short: what is paid for is not thrown away."""
    _asked.waits += 1
    try:
        yield
    finally:
        _asked.waits -= 1
    if _asked.now and not _asked.waits:
        raise KeyboardInterrupt
