"""Noisy statistics of batches of rows, each row being paid for a fixed number of times.

Batches that share no row cost one row no more than a single release does. So what is paid for is
counted by row: `count` releases are charged once, before the first, and a batch that holds a row
whose releases are used up is refused before anything is computed from it.
Guarantee: docs/proofs/fdml.md.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from halfmask.errors import InputError
from halfmask.mechanisms.noise import noise_grid
from halfmask.mechanisms.release import Releaser, Sensitivity, widened_std

Rows = NDArray[np.int64]
Vector = NDArray[np.float64]


def batch_of(rows: object, total: int) -> Rows:
    """`rows` as positions in a table of `total` rows, each at most once; anything else is refused.

    A row that came twice would count twice in a sum, and the bound is for once.
    """
    batch = np.asarray(rows)
    whole = batch.ndim == 1 and batch.dtype.kind in "iu"
    inside = whole and bool(np.all((batch >= 0) & (batch < total)))
    if not inside or len(np.unique(batch)) != len(batch):
        raise InputError("A batch must name rows of the table, each once.")
    return batch.astype(np.int64)


class PaidRows:
    """Up to `count` releases about each of `rows` rows; charged in full before the first.

    `sensitivity` bounds how far one row of a batch moves the statistic of that batch.
    Guarantee: docs/proofs/fdml.md.
    """

    def __init__(
        self,
        releaser: Releaser,
        *,
        rows: int,
        sensitivity: Sensitivity,
        noise_std: float,
        count: int,
        what: str,
    ) -> None:
        if count < 1:
            raise InputError(f"Expected count >= 1 releases of each row, got {count}.")
        noise_grid(noise_std)  # refuses noise that cannot be drawn before anything is charged
        event = sensitivity.event(noise_std, count=count)
        releaser.open(event, what)
        self._releaser, self._event = releaser, event
        self._sensitivity, self._noise_std = sensitivity, noise_std
        self._left = np.full(rows, count)
        self._count, self._what = count, what

    def release(self, rows: Rows, statistic: Callable[[Rows], Vector]) -> Vector:
        """`statistic` of these rows with noise; it is computed only if every row is paid for."""
        batch = batch_of(rows, len(self._left))
        if np.any(self._left[batch] < 1):
            raise InputError(
                f"Asked about a row more often than the {self._count} times that were paid for "
                f"({self._what})."
            )
        self._releaser.pay()
        self._left[batch] -= 1
        value = np.asarray(statistic(batch), dtype=np.float64)
        std = widened_std(self._noise_std, value.size, self._sensitivity)
        return self._releaser.noisy(value, std, self._event, self._what)
