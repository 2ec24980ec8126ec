"""How one column becomes numbers: bins, one scaled number, or levels.

`declared` sees the declaration alone and is the only way to code a private column; `learnt` also
sees values and refuses a private column. Every coding writes a part of norm at most 1 into a row.
Guarantee: docs/proofs/encoding.md.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from halfmask.errors import DataError, SchemaError
from halfmask.frames import TEXT, numbers, texts
from halfmask.schema import DEFAULT_BINS, Column, Level, level_text

MAX_LEARNT_LEVELS = 1000
"""A public category without declared levels keeps its most frequent ones; the rest is "other"."""


@dataclass(frozen=True, kw_only=True)
class Bins:
    """One-hot intervals between inner edges, and one place for a missing number.

    The first and last interval are open, which is how values out of bounds clamp.
    """

    edges: tuple[float, ...]

    @property
    def width(self) -> int:
        return len(self.edges) + 2

    def names(self, column: str) -> list[str]:
        ends = ["", *(f"{edge:g}" for edge in self.edges), ""]
        spans = [f"{column}={low}..{high}" for low, high in itertools.pairwise(ends)]
        return [*spans, f"{column}=<missing>"]

    def write(self, block: np.ndarray, table: pa.Table, column: str) -> None:
        values = numbers(table, column)
        codes = np.searchsorted(np.asarray(self.edges), values, side="right")
        codes[np.isnan(values)] = len(self.edges) + 1
        block[np.arange(len(codes)), codes] = 1.0

    def to_json(self) -> dict[str, Any]:
        return {"edges": list(self.edges)}


@dataclass(frozen=True, kw_only=True)
class Scaled:
    """One number in [-1, 1] over the range, and an indicator of a missing one (the number is 0)."""

    low: float
    high: float
    width = 2

    def names(self, column: str) -> list[str]:
        return [column, f"{column}=<missing>"]

    def write(self, block: np.ndarray, table: pa.Table, column: str) -> None:
        values = numbers(table, column)
        missing = np.isnan(values)
        if self.high > self.low:
            inside = np.clip(values, self.low, self.high)
            # Halves, since the width of a learnt range may overflow.
            share = (inside / 2 - self.low / 2) / (self.high / 2 - self.low / 2)
            scaled = np.clip(share * 2 - 1, -1.0, 1.0)
            block[:, 0] = np.where(missing, 0.0, scaled)
        block[:, 1] = missing

    def to_json(self) -> dict[str, Any]:
        return {"range": [self.low, self.high]}


@dataclass(frozen=True, kw_only=True)
class Levels:
    """One-hot levels, then one place for any other value and one for a missing one."""

    levels: tuple[str, ...]

    @property
    def width(self) -> int:
        return len(self.levels) + 2

    def names(self, column: str) -> list[str]:
        return [f"{column}={level}" for level in (*self.levels, "<other>", "<missing>")]

    def write(self, block: np.ndarray, table: pa.Table, column: str) -> None:
        values = texts(table, column)
        codes = level_codes(values, self.levels)
        missing = np.asarray(pc.is_null(values))
        codes[codes < 0] = len(self.levels)
        codes[missing] = len(self.levels) + 1
        block[np.arange(len(codes)), codes] = 1.0

    def to_json(self) -> dict[str, Any]:
        return {"levels": list(self.levels)}


Coding = Bins | Scaled | Levels


def declared(column: Column) -> Coding | None:
    """The coding that follows from the declaration; None if a public column leaves it open."""
    if column.kind == "category":
        return None if column.categories is None else Levels(levels=column.categories)
    if column.bounds is None:
        return None
    low, high = column.bounds
    bins = DEFAULT_BINS if column.bins is None else column.bins
    if bins == 0:
        return Scaled(low=low, high=high)
    return Bins(edges=tuple(np.linspace(low, high, bins + 1)[1:-1].tolist()))


def learnt(column: Column, table: pa.Table) -> Coding:
    """The coding of a public column by its values: frequent levels, quantile bins or range."""
    if column.role != "public":
        raise SchemaError(f"Column {column.name!r} is private: nothing may be learnt from it.")
    if column.kind == "category":
        return Levels(levels=_frequent_levels(texts(table, column.name)))
    values = numbers(table, column.name)
    finite = values[np.isfinite(values)]
    bins = DEFAULT_BINS if column.bins is None else column.bins
    if bins == 0:
        ends = (finite.min(), finite.max()) if finite.size else (0.0, 0.0)
        return Scaled(low=float(ends[0]), high=float(ends[1]))
    if not finite.size:
        return Bins(edges=())
    inner = np.quantile(finite, np.linspace(0, 1, bins + 1)[1:-1], method="higher")
    # An edge at the minimum would leave an interval without a row.
    return Bins(edges=tuple(np.unique(inner[inner > finite.min()]).tolist()))


def coding_from_json(data: dict[str, Any]) -> Coding:
    """The inverse of a coding's `to_json`."""
    try:
        if "levels" in data:
            return Levels(levels=tuple(str(level) for level in data["levels"]))
        if "edges" in data:
            return Bins(edges=tuple(float(edge) for edge in data["edges"]))
        low, high = data["range"]
        return Scaled(low=float(low), high=float(high))
    except (KeyError, TypeError, ValueError):
        raise DataError("The stored encoder is damaged: train the model again.") from None


def level_codes(values: pa.ChunkedArray, levels: tuple[Level, ...]) -> np.ndarray:
    """The position of each text among `levels`, -1 where it is not among them or missing."""
    spellings: list[str] = []
    position: list[int] = []
    for code, level in enumerate(levels):
        text = level_text(level)
        same = _spellings(text)
        spellings += same
        position += [code] * len(same)
    found = pc.index_in(values, value_set=pa.array(spellings, TEXT))
    place = pc.fill_null(found, len(spellings))
    codes: np.ndarray = np.asarray([*position, -1], dtype=np.int64)[np.asarray(place)]
    return codes


def _spellings(text: str) -> list[str]:
    """A truth value is written True, true or TRUE, depending on what wrote the file."""
    lowered = text.casefold()
    if lowered in ("true", "false"):
        return [lowered, lowered.title(), lowered.upper()]
    return [text]


def _frequent_levels(values: pa.ChunkedArray) -> tuple[str, ...]:
    counts = pc.value_counts(values.drop_null())
    pairs = [(-entry["counts"], entry["values"]) for entry in counts.to_pylist()]
    kept = sorted(pairs)[:MAX_LEARNT_LEVELS]
    return tuple(sorted(level for _, level in kept))
