"""What the network is given: features anchored at the first level or the lower bound.

A category drops its first level (the others say it all), a private number counts from its lower
bound, and a private value that is missing or not declared counts as the first level. Where that is
the usual one, as for absent/present columns, rows become short, and short rows need little noise.
Longer rows are scaled down to a norm that follows from public columns alone. Of many columns it is
the direction of a row that tells its class, and how many of them are filled tells little: short
rows are then scaled up as well, which the noise, made for the longest row, has paid for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import reduce
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from halfmask.data.encoding import Levels, Scaled, declared
from halfmask.data.products import parts_of
from halfmask.mechanisms.clipping import clip_rows
from halfmask.mechanisms.shards import ALONE, Shards
from halfmask.methods.auto import MANY_COLUMNS
from halfmask.model_folder import damaged
from halfmask.schema import Column
from halfmask.table import Table
from halfmask.types import Floats


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


# Of the norm that private rows would have if they were as full as the public ones. A shorter row
# loses little of its direction, and noise falls with it; one value for every table.
_SHARE = 0.75
_PLACES = ("public_kept", "kept", "group")


@dataclass(frozen=True, kw_only=True, eq=False)
class Inputs:
    """A fixed map from tables to rows of numbers; `private_norm` bounds the private part.

    `kept` are the private features that stay, `half` marks those that are (x + 1 − missing)/2,
    `group` numbers the column behind each kept feature, `sampled` marks those that are 0 or 1;
    `public_kept` are the public features that stay, `public_half` marks them likewise. With
    `scaled_up` every private row has the norm `private_norm` (or 0); public rows have the norm
    `public_norm` unless it is 0, which leaves them as they are.
    """

    public_kept: NDArray[np.int64]
    kept: NDArray[np.int64]
    half: NDArray[np.bool_]
    group: NDArray[np.int64]
    sampled: NDArray[np.bool_]
    private_norm: float
    non_negative: bool
    public_half: NDArray[np.bool_]
    scaled_up: bool
    public_norm: float

    @classmethod
    def of(
        cls, table: Table, *, private_norm: float | None = None, shards: Shards = ALONE
    ) -> Inputs:
        """The map of a table: from its declaration and its public columns."""
        columns, public = _columns(table, "public"), table.features.only_public()
        # At least one part, which may be without rows.
        found = [
            PublicFacts.of(public.kept(part).public, table.public_sources, columns)
            for part in parts_of(public.n) or [slice(0, 0)]
        ]
        facts = reduce(PublicFacts.with_more, found)
        return cls.of_facts(table, facts.everywhere(shards), private_norm=private_norm)

    @classmethod
    def of_facts(
        cls, table: Table, facts: PublicFacts, *, private_norm: float | None = None
    ) -> Inputs:
        """The same from facts that were collected elsewhere; no row of `table` is read."""
        kept, half, group, sampled = _anchored(table)
        private, public = (len(_columns(table, role)) for role in ("private", "public"))
        scaled_up = private >= MANY_COLUMNS
        share = 1.0 if scaled_up else _SHARE
        norm = private_norm or share * _typical_norm(table, facts, private)
        public_kept = _public_kept(table, facts)
        return cls(
            public_kept=public_kept,
            kept=np.array(kept, dtype=np.int64),
            half=np.array(half, dtype=bool),
            group=np.array(group, dtype=np.int64),
            sampled=np.array(sampled, dtype=bool),
            private_norm=float(norm),
            non_negative=table.schema is not None,
            public_half=np.isin(_public_columns(table)[public_kept], _numbers(table)),
            scaled_up=scaled_up,
            public_norm=_typical_norm(table, facts, public) if public >= MANY_COLUMNS else 0.0,
        )

    def private(self, table: Table) -> Floats:
        """The private part of every row, of norm at most `private_norm`."""
        values = _from_bound(table.private, self.kept, self.half)
        if not len(self.kept):
            return values  # there is nothing to clip, and no norm to clip to
        if self.non_negative:
            np.maximum(values, 0.0, out=values)
        if self.scaled_up:
            values = _lengthened(values, self.private_norm)
        return clip_rows(values, self.private_norm)

    def public(self, table: Table) -> Floats:
        """The public features that stay."""
        if not self.public_norm:
            return table.public[:, self.public_kept]
        values = _from_bound(table.public, self.public_kept, self.public_half)
        return clip_rows(_lengthened(values, self.public_norm), self.public_norm)

    def rows(self, table: Table) -> NDArray[np.float32]:
        """Public features, then the private ones."""
        whole = np.hstack([self.public(table), self.private(table)])
        return whole.astype(np.float32)

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """Everything `rows` needs."""
        return {each.name: np.asarray(getattr(self, each.name)) for each in fields(self)}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> Inputs:
        """The inverse of `to_arrays`."""
        for name in ("public_kept", "kept", "half", "group", "sampled", "public_half"):
            array, kind = arrays[name], np.int64 if name in _PLACES else np.bool_
            if array.dtype != kind or array.ndim != 1 or (name in _PLACES and (array < 0).any()):
                damaged(f"the array 'inputs.{name}'")
        for name in ("private_norm", "public_norm"):
            if not float(arrays[name]) >= 0:
                damaged(f"the array 'inputs.{name}'")
        values = {each.name: arrays[each.name] for each in fields(cls)}
        plain = {name: array.item() for name, array in values.items() if array.ndim == 0}
        return cls(**values | plain)


# Rows that are made at a time, in double precision: they stay in the cache.
_MADE = 1 << 10


class MadeRows:
    """Rows of a network that are made of a table's codes whenever some of them are read."""

    def __init__(
        self, table: Table, inputs: Inputs, part: Literal["rows", "public", "private"] = "rows"
    ) -> None:
        public, private = len(inputs.public_kept), len(inputs.kept)
        width = {"rows": public + private, "public": public, "private": private}[part]
        self._features, self._table, self._inputs = table.features, table, inputs
        if part == "public":
            self._features = table.features.only_public()
        self._make = getattr(inputs, part)
        self.shape = (table.features.n, width)

    @property
    def public(self) -> MadeRows:
        """The public features; no private column is read."""
        return MadeRows(self._table, self._inputs, "public")

    @property
    def private(self) -> MadeRows:
        """The private features."""
        return MadeRows(self._table, self._inputs, "private")

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: slice | NDArray[np.int64]) -> NDArray[np.float32]:
        places = range(len(self))[rows] if isinstance(rows, slice) else rows
        made = np.empty((len(places), self.shape[1]), dtype=np.float32)
        for part in parts_of(len(places), _MADE):
            some = places[part]
            at = slice(some.start, some.stop, some.step) if isinstance(some, range) else some
            features = self._features.kept(at)
            made[part] = self._make(replace(self._table, features=features))
        return made


def _from_bound(block: Floats, kept: NDArray[np.int64], half: NDArray[np.bool_]) -> Floats:
    """The kept features of a block, those marked counted from their lower bound."""
    values: Floats = np.take(block, kept, axis=1)
    if half.any():
        missing = np.take(block, kept[half] + 1, axis=1)
        values[:, half] = (values[:, half] + 1.0 - missing) / 2.0
    return values


def _lengthened(rows: Floats, norm: float) -> Floats:
    """Rows of norm at least `norm`, but for those that are zero or not finite."""
    lengths = np.sqrt(np.einsum("ij,ij->i", rows, rows))
    short = (lengths > 1e-9) & (lengths < norm)
    return rows * np.where(short, norm / np.where(short, lengths, 1.0), 1.0)[:, None]


def _anchored(table: Table) -> tuple[list[int], list[bool], list[int], list[bool]]:
    width = table.widths[1]
    if table.schema is None:
        return list(range(width)), [False] * width, list(range(width)), [False] * width
    kept: list[int] = []
    half: list[bool] = []
    group: list[int] = []
    sampled: list[bool] = []
    at = 0
    for number, column in enumerate(_columns(table, "private")):
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


def _public_kept(table: Table, facts: PublicFacts) -> NDArray[np.int64]:
    """Public features that vary, without the first level of a category."""
    varies = facts.varies
    if table.schema is not None and len(varies):
        sources = _public_columns(table)
        first = np.concatenate([[True], sources[1:] != sources[:-1]])
        varies = varies & (~first | np.isin(sources, _numbers(table)))
    return np.flatnonzero(varies)


def _public_columns(table: Table) -> NDArray[np.str_]:
    """The column behind each public feature."""
    return np.array(table.public_sources, dtype=str)


def _numbers(table: Table) -> list[str]:
    """Columns that stay one number."""
    columns = _columns(table, "public")
    return [column.name for column in columns if column.scaled]


def _typical_norm(table: Table, facts: PublicFacts, columns: int) -> float:
    """How long rows of so many columns are if each is as full as the public ones."""
    if table.schema is None:
        return table.private_norm
    return float(np.sqrt(max(facts.fullness, 1e-2) * max(columns, 1)))


def _columns(table: Table, role: str) -> tuple[Column, ...]:
    """The declared columns of a role; none where nothing was declared."""
    columns = () if table.schema is None else table.schema.columns
    return tuple(column for column in columns if column.role == role)
