"""How rows that are spread over several machines come together.

Methods call these functions on public values: counts, ranges, public gradients. What is private
has one way out, the releaser, whatever the number of machines. Alone, nothing has to be done.
Guarantee: docs/proofs/distributed.md.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from halfmask.types import Floats


class Shards(Protocol):
    """The machines among which the rows of one table are divided; all of them make each call."""

    @property
    def rank(self) -> int:
        """The number of this machine, from 0."""

    @property
    def count(self) -> int:
        """How many machines there are."""

    def sum(self, value: Floats) -> Floats:
        """The sum of all machines' public values."""

    def gather(self, rows: Floats) -> Floats:
        """The public rows of all machines, one below the other in the order of the machines."""

    def first(self, value: Floats) -> Floats:
        """The first machine's public value."""


class Machines(Shards, Protocol):
    """Several machines: the first of them adds up what is private, for the releaser."""

    @property
    def leads(self) -> bool:
        """Whether this is the first machine, which holds the ledger."""

    def to_first(self, value: Floats) -> Floats:
        """The sum of all machines' private values on the first machine; zeros on the others."""


class Alone:
    """One machine that holds every row."""

    rank = 0
    count = 1

    def sum(self, value: Floats) -> Floats:
        """`value` itself."""
        return value

    def gather(self, rows: Floats) -> Floats:
        """`rows` themselves."""
        return rows

    def first(self, value: Floats) -> Floats:
        """`value` itself."""
        return value


ALONE = Alone()


def rows_in_all(rows: int, shards: Shards) -> int:
    """The number of rows on all machines, which is public."""
    return int(shards.sum(np.array([float(rows)]))[0])


def total_of(values: Floats, shards: Shards) -> float:
    """The sum of public numbers by row over the rows of all machines."""
    return float(shards.sum(np.array([values.sum()]))[0])


def own_place(rows: int, shards: Shards) -> slice:
    """Where this machine's rows are among the gathered ones."""
    counts = shards.gather(np.array([float(rows)])).astype(np.int64)
    start = int(counts[: shards.rank].sum())
    return slice(start, start + rows)
