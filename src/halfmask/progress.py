"""Signs of life: long work tells how far it is, and whoever listens (the command line) shows it.

Only public counts are told: rows read, trees grown, releases made of those that were planned; never
anything about a private batch.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from multiprocessing.pool import Pool
from typing import Any, TypeVar

from threadpoolctl import threadpool_limits

Listener = Callable[[str, float], None]


@dataclass(frozen=True)
class _BarPart:
    """The part of a bar that is left to the work below, and whose bar it is."""

    label: str = ""
    low: float = 0.0
    width: float = 1.0


_listener: ContextVar[Listener | None] = ContextVar("listener", default=None)
_part: ContextVar[_BarPart] = ContextVar("part", default=_BarPart())  # noqa: B039  (frozen)


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


@contextmanager
def part_of(label: str, low: float = 0.0, high: float = 0.0) -> Iterator[None]:
    """Within, what is told moves the bar `label` from `low` to `high`, or not at all."""
    token = _part.set(_BarPart(label, low, high - low))
    try:
        yield
    finally:
        _part.reset(token)


# --- Processes forked for independent work, one per core.


_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


def forked_pool(workers: int | None = None) -> Pool | None:
    """A pool of `workers` (default: one per core); None where one is enough or there is no fork."""
    count = workers or (len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1)
    if count < 2 or "fork" not in multiprocessing.get_all_start_methods():
        return None
    return multiprocessing.get_context("fork").Pool(count, initializer=_one_thread)


def _one_thread() -> None:
    """A worker has a core of its own, and waits for ever on threads that a fork left behind."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which ends its workers
    _listener.set(None)  # the bar is the parent's
    os.environ["OMP_NUM_THREADS"] = "1"  # for our own threads: libraries have read it by now
    threadpool_limits(limits=1, user_api="blas")
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(1)


_shared: Callable[[Any], Any] | None = None
"""The work that forked workers inherit: closures cannot be sent to them."""


@contextmanager
def workers(
    work: Callable[[_Item], _Result], count: int | None = None
) -> Iterator[Callable[[Sequence[_Item], Callable[[int], None]], list[_Result]]]:
    """A function that does `work` on items, in order, and tells how many are finished."""
    global _shared
    outer, _shared = _shared, work
    pool = forked_pool(count)

    def worked(items: Sequence[_Item], done: Callable[[int], None]) -> list[_Result]:
        results: list[_Result] = []
        for result in map(work, items) if pool is None else pool.imap(_of_shared, items):
            results.append(result)
            done(len(results))
        return results

    try:
        yield worked
    finally:
        _shared = outer
        if pool is not None:
            pool.terminate()
            pool.join()


def side_by_side(
    work: Callable[[_Item], _Result], items: Sequence[_Item], done: Callable[[int], None]
) -> list[_Result]:
    """`work` of each item, in order; `done` is told how many are finished."""
    with workers(work) as worked:
        return worked(items, done)


def _of_shared(item: Any) -> Any:
    assert _shared is not None
    return _shared(item)
