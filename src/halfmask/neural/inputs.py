"""What the network is given: features anchored at the first level or the lower bound.

A category drops its first level (the others say it all), a private number counts from its lower
bound, and a private value that is missing or not declared counts as the first level. Where that is
the usual one, as for absent/present columns, rows become short, and short rows need little noise.
Longer rows are scaled down to a norm that follows from public columns alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halfmask.encoding import Levels, Scaled, declared
from halfmask.mechanisms.clipping import clip_rows
from halfmask.schema import Column
from halfmask.table import Table

Floats = NDArray[np.float64]

# Of the norm that private rows would have if they were as full as the public ones. A shorter row
# loses little of its direction, and noise falls with it; one value for every table.
_SHARE = 0.75


@dataclass(frozen=True, kw_only=True, eq=False)
class Inputs:
    """A fixed map from tables to rows of numbers; `private_norm` bounds the private part.

    `kept` are the private features that stay, `half` marks those that are (x + 1 − missing)/2,
    `group` numbers the column behind each kept feature, `sampled` marks those that are 0 or 1;
    `public_kept` are the public features that stay.
    """

    public_kept: NDArray[np.int64]
    kept: NDArray[np.int64]
    half: NDArray[np.bool_]
    group: NDArray[np.int64]
    sampled: NDArray[np.bool_]
    private_norm: float
    non_negative: bool

    @classmethod
    def of(cls, table: Table, *, private_norm: float | None = None) -> Inputs:
        """The map of a table: from its declaration and its public columns."""
        kept, half, group, sampled = _anchored(table)
        norm = private_norm or _typical_norm(table)
        return cls(
            public_kept=_public_kept(table),
            kept=np.array(kept, dtype=np.int64),
            half=np.array(half, dtype=bool),
            group=np.array(group, dtype=np.int64),
            sampled=np.array(sampled, dtype=bool),
            private_norm=float(norm),
            non_negative=table.schema is not None,
        )

    def private(self, table: Table) -> Floats:
        """The private part of every row, of norm at most `private_norm`."""
        values = table.private[:, self.kept].copy()
        missing = np.minimum(self.kept + 1, table.private.shape[1] - 1)
        moved = (values + 1.0 - table.private[:, missing]) / 2.0
        values[:, self.half] = moved[:, self.half]
        if self.non_negative:
            np.maximum(values, 0.0, out=values)
        return clip_rows(values, self.private_norm)

    def public(self, table: Table) -> Floats:
        """The public features that stay."""
        kept: Floats = table.public[:, self.public_kept]
        return kept

    def rows(self, table: Table) -> NDArray[np.float32]:
        """Public features, then the private ones."""
        whole = np.hstack([self.public(table), self.private(table)])
        return whole.astype(np.float32)

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """Everything `rows` needs."""
        return {
            "public_kept": self.public_kept,
            "kept": self.kept,
            "half": self.half,
            "group": self.group,
            "sampled": self.sampled,
            "private_norm": np.array(self.private_norm),
            "non_negative": np.array(self.non_negative),
        }

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> Inputs:
        """The inverse of `to_arrays`."""
        return cls(
            public_kept=arrays["public_kept"],
            kept=arrays["kept"],
            half=arrays["half"],
            group=arrays["group"],
            sampled=arrays["sampled"],
            private_norm=float(arrays["private_norm"]),
            non_negative=bool(arrays["non_negative"]),
        )


def _anchored(table: Table) -> tuple[list[int], list[bool], list[int], list[bool]]:
    width = table.private.shape[1]
    if table.schema is None:
        return list(range(width)), [False] * width, list(range(width)), [False] * width
    kept: list[int] = []
    half: list[bool] = []
    group: list[int] = []
    sampled: list[bool] = []
    at = 0
    columns = [column for column in table.schema.columns if column.role == "private"]
    for number, column in enumerate(columns):
        coding = declared(column)
        assert coding is not None
        scaled = isinstance(coding, Scaled)
        # The last places are for missing and undeclared values, which few tables have.
        unlisted = 2 if isinstance(coding, Levels) else 1
        places = range(at if scaled else at + 1, at + coding.width - unlisted)
        kept += places
        half += [scaled and place == at for place in places]
        group += [number] * len(places)
        sampled += [not scaled] * len(places)
        at += coding.width
    return kept, half, group, sampled


def _public_kept(table: Table) -> NDArray[np.int64]:
    """Public features that vary, without the first level of a category."""
    if table.public.shape[1] == 0:
        return np.zeros(0, dtype=np.int64)
    varies = np.ptp(table.public, axis=0) > 0 if table.n else np.ones(table.public.shape[1], bool)
    if table.schema is not None:
        sources = np.array(table.public_sources)
        first = np.concatenate([[True], sources[1:] != sources[:-1]])
        numbers = {column.name for column in table.schema.columns if column.bins == 0}
        varies &= ~first | np.isin(sources, list(numbers))
    return np.flatnonzero(varies)


def _typical_norm(table: Table) -> float:
    """How long private rows would be if their columns were as full as the public ones."""
    if table.schema is None:
        return table.private_norm
    private = [column for column in table.schema.columns if column.role == "private"]
    public = [column for column in table.schema.columns if column.role == "public"]
    full = _fullness(table, public) if public and table.n else 1.0
    return _SHARE * float(np.sqrt(max(full, 1e-2) * max(len(private), 1)))


def _fullness(table: Table, public: list[Column]) -> float:
    """Mean squared size of a public column, anchored as a private one would be."""
    sources = np.array(table.public_sources)
    total = 0.0
    for column in public:
        block = table.public[:, sources == column.name]
        if column.kind == "number" and column.bins == 0:
            total += float(np.mean(((block[:, 0] + 1.0 - block[:, 1]) / 2.0) ** 2))
        else:
            total += float(np.mean(1.0 - block[:, 0] ** 2))
    return total / len(public)
