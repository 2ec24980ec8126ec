"""Products with all rows of a table, whose digits do not follow from the number of threads.

How a library shares a long sum among its threads decides where it rounds. So rows are taken in
parts of one size, each part by one thread, and what the parts give is added in their order: a model
under an unsafe seed is the same to the byte on any number of threads.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np
from threadpoolctl import threadpool_limits

Result = TypeVar("Result")

PART = 1 << 13
# Products of fewer numbers are done before a thread has started.
_WORTH_THREADS = 1 << 20
# Systems of more features than these are worth a library's own threads: docs/scale.md.
_MOST_FEATURES = 2000


@contextmanager
def fixed_order(features: int) -> Iterator[None]:
    """Let libraries of linear algebra work on one thread: ours take parts of rows instead."""
    if features > _MOST_FEATURES:
        yield
        return
    with threadpool_limits(limits=1, user_api="blas"):
        yield


def parts_of(rows: int, size: int = PART) -> list[slice]:
    """All rows in parts of one size; the last may be shorter."""
    return [slice(start, min(start + size, rows)) for start in range(0, rows, size)]


def in_order(
    parts: list[slice], work: Callable[[slice], Result], *, numbers: int
) -> Iterator[Result]:
    """`work` on each part, several at a time where `numbers` are many; results in order."""
    threads = min(_threads(), len(parts))
    if threads < 2 or numbers < _WORTH_THREADS:
        yield from map(work, parts)
        return
    with ThreadPoolExecutor(threads) as pool:
        yield from pool.map(work, parts)


class RowMatrix(ABC):
    """Rows that are known by what their products are."""

    shape: tuple[int, int]

    @abstractmethod
    def times(self, weights: np.ndarray) -> np.ndarray:
        """rows @ weights."""

    @abstractmethod
    def crossed(self, values: np.ndarray) -> np.ndarray:
        """rowsᵀ @ values."""

    @abstractmethod
    def block(self, rows: slice | np.ndarray) -> np.ndarray:
        """Some of the rows, by position, as an array."""

    def __len__(self) -> int:
        return self.shape[0]


Rows = np.ndarray | RowMatrix


def times(rows: Any, weights: np.ndarray) -> np.ndarray:
    """rows @ weights, of an array, a `RowMatrix` or a sparse matrix."""
    if isinstance(rows, RowMatrix):
        return rows.times(weights)
    if not isinstance(rows, np.ndarray):
        return np.asarray(rows @ weights)
    found = np.empty((len(rows), *weights.shape[1:]))

    def fill(part: slice) -> None:
        found[part] = rows[part] @ weights

    for _ in in_order(parts_of(len(rows)), fill, numbers=rows.size):
        pass
    return found


def crossed(first: Any, second: np.ndarray) -> np.ndarray:
    """firstᵀ @ second, a sum over rows; the first may be a `RowMatrix` or a sparse matrix."""
    if isinstance(first, RowMatrix):
        return first.crossed(second)
    if not isinstance(first, np.ndarray):
        return np.asarray(first.T @ second)
    total = np.zeros((*first.shape[1:], *second.shape[1:]))
    work = in_order(
        parts_of(len(first)),
        lambda part: first[part].T @ second[part],
        numbers=first.size + second.size,
    )
    for part in work:
        total += part
    return total


def block(rows: Rows, some: slice | np.ndarray) -> np.ndarray:
    """Some of the rows, by position, as an array."""
    return rows.block(some) if isinstance(rows, RowMatrix) else rows[some]


def _threads() -> int:
    given = os.environ.get("OMP_NUM_THREADS", "")
    if given.isdecimal() and int(given):
        return int(given)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
