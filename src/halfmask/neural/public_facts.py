"""What the map of a network's inputs is told of public columns; parts of a table add up.

A part may be a batch of a file that is read piece by piece, or the rows of one machine.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from halfmask.mechanisms.shards import Shards
from halfmask.schema import Column

Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, eq=False)
class PublicFacts:
    """The number of rows, the range of each public feature, and the size of each public column.

    `sizes` are sums over rows of squares, each column anchored as a private one would be.
    """

    rows: int
    low: Floats
    high: Floats
    sizes: Floats

    @classmethod
    def of(
        cls, public: Floats, sources: tuple[str, ...], columns: tuple[Column, ...]
    ) -> PublicFacts:
        """The facts of rows whose features come from the columns named in `sources`."""
        width = public.shape[1]
        return cls(
            rows=len(public),
            low=public.min(axis=0, initial=np.inf) if width else np.zeros(0),
            high=public.max(axis=0, initial=-np.inf) if width else np.zeros(0),
            sizes=np.array([_size(public, sources, column) for column in columns]),
        )

    def with_more(self, other: PublicFacts) -> PublicFacts:
        """The facts of both parts together."""
        return PublicFacts(
            rows=self.rows + other.rows,
            low=np.minimum(self.low, other.low),
            high=np.maximum(self.high, other.high),
            sizes=self.sizes + other.sizes,
        )

    def everywhere(self, shards: Shards) -> PublicFacts:
        """The facts of the rows of all machines."""
        return PublicFacts(
            rows=int(shards.sum(np.array([float(self.rows)]))[0]),
            low=shards.gather(self.low[None, :]).min(axis=0),
            high=shards.gather(self.high[None, :]).max(axis=0),
            sizes=shards.sum(self.sizes),
        )

    @property
    def varies(self) -> NDArray[np.bool_]:
        """Features that are not the same in every row."""
        return self.high > self.low if self.rows else np.ones(len(self.low), dtype=bool)

    @property
    def fullness(self) -> float:
        """The mean squared size of a public column; 1 where there is none."""
        if not (self.rows and len(self.sizes)):
            return 1.0
        return float(self.sizes.mean()) / self.rows


def _size(public: Floats, sources: tuple[str, ...], column: Column) -> float:
    places = [place for place, source in enumerate(sources) if source == column.name]
    if column.scaled:
        number, missing = public[:, places[0]], public[:, places[1]]
        return float(np.sum(((number + 1.0 - missing) / 2.0) ** 2))
    return float(np.sum(1.0 - public[:, places[0]] ** 2))
