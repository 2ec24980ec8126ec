"""How one column becomes numbers: bins, one scaled number, or levels.

`declared` sees the declaration alone and is the only way to code a private column; `learnt_coding`
also sees values and refuses a private column. Every coding writes a part of norm at most 1 into a
row.
Guarantee: docs/proofs/encoding.md.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from halfmask.data.cells import Sameness, level_text, moment, moment_seconds, moment_text, sameness
from halfmask.data.derived import Derived, function_of
from halfmask.data.frames import (
    TEXT,
    as_arrow,
    check_columns,
    dates,
    names_of,
    numbered,
    numbers,
    pieces,
    texts,
)
from halfmask.data.reading import FileRows
from halfmask.errors import DataError, InputError, SchemaError
from halfmask.schema import DEFAULT_BINS, Column, Level, Schema

MAX_LEARNT_LEVELS = 1000
"""A public category without declared levels keeps its most frequent ones; the rest is "other"."""
FINE_BINS = 64
"""Equal parts of a private number's bounds in a grid, before its ends are refined."""
_WHOLE = 24
"""The least number of levels between whole-number bounds, which may be closer than that."""
_HALVES = 0.5 ** np.arange(1, 6)
"""Edges within the first and the last part of a grid: values crowd at declared ends."""
_NEAR = np.concatenate([2.0**k * (1 + np.arange(8) / 8) for k in range(-1, 3)])
"""Edges at growing distances, in parts, from zero or the lower end: amounts have long tails."""
_FINEST = 4096
_BLOCK = 1 << 16
PUBLIC_BINS = 128
"""The most levels of a public number in a grid: distinct values first, quantiles of the rest."""
RangeUnit = Literal["number", "date"]
"""What a range counts: the numbers of a column, or the seconds of its dates since 1970."""


def _range_values(table: pa.Table, column: str, unit: RangeUnit) -> np.ndarray:
    return dates(table, column) if unit == "date" else numbers(table, column)


def _edge_names(edges: Sequence[float], unit: RangeUnit) -> list[str]:
    if unit == "date":
        return [moment_text(round(edge * 10**6) * 1000) for edge in edges]
    return [f"{edge:.15g}" for edge in told_edges(edges)]


def told_edges(edges: Sequence[float]) -> tuple[float, ...]:
    """Ends of bins in few digits, within a hundredth of the narrower bin beside them; one just
    above zero, of a column that is often zero, is told as zero. A lone one has six digits."""
    least = 1e-6 * max(map(abs, edges), default=0.0)
    whole = [0.0 if abs(edge) < least else float(edge) for edge in edges]
    # Halves, since two ends may be as far apart as numbers get.
    halves = [0.0, *(high / 2 - low / 2 for low, high in itertools.pairwise(whole)), 0.0]
    told = []
    for edge, beside in zip(whole, itertools.pairwise(halves), strict=False):
        near = min((half for half in beside if half > 0), default=abs(edge) / 2e4) / 50
        shorter = (float(f"{edge:.{digits}g}") for digits in range(1, 18))
        told.append(next(short for short in shorter if abs(short - edge) <= near))
    apart = all(low < high for low, high in itertools.pairwise(told))
    return tuple(told) if apart else tuple(edges)


@dataclass(frozen=True, kw_only=True)
class _Intervals:
    """Intervals between inner edges, and one place for a missing number.

    The first and last interval are open, which is how values out of bounds clamp.
    """

    edges: tuple[float, ...]
    unit: RangeUnit = "number"

    @property
    def width(self) -> int:
        return len(self.edges) + 2

    def names(self, column: str) -> list[str]:
        ends = ["", *_edge_names(self.edges, self.unit), ""]
        spans = [f"{column}={low}..{high}" for low, high in itertools.pairwise(ends)]
        return [*spans, f"{column}=<missing>"]


@dataclass(frozen=True, kw_only=True)
class Bins(_Intervals):
    """One-hot intervals."""

    def to_json(self) -> dict[str, Any]:
        return {"edges": list(self.edges), **_unit_json(self.unit)}


@dataclass(frozen=True, kw_only=True)
class Scaled:
    """One number in [-1, 1] over the range, and an indicator of a missing one (the number is 0)."""

    low: float
    high: float
    unit: RangeUnit = "number"
    width = 2

    def names(self, column: str) -> list[str]:
        return [column, f"{column}=<missing>"]

    def scaled(self, values: np.ndarray) -> np.ndarray:
        """The numbers in [-1, 1]; 0 where one is missing."""
        # Halves, since the width of a learnt range may overflow; two of them may also be equal.
        half = self.high / 2 - self.low / 2
        if not half > 0:
            return np.zeros(len(values))
        inside = np.clip(values, self.low, self.high)
        # Within [0, 1]: rounding never swaps two numbers, and `half` is that of the upper end.
        share = (inside / 2 - self.low / 2) / half
        return np.where(np.isnan(values), 0.0, share * 2 - 1)

    def unscaled(self, numbers: np.ndarray) -> np.ndarray:
        """Values that `scaled` brings near these numbers; NaN stays NaN, for a missing one."""
        return (self.low / 2 + self.high / 2) + numbers * (self.high / 2 - self.low / 2)

    def to_json(self) -> dict[str, Any]:
        return {"range": [self.low, self.high], **_unit_json(self.unit)}


def _unit_json(unit: RangeUnit) -> dict[str, str]:
    return {} if unit == "number" else {"unit": unit}


_TRUTHS = ("false", "true")
# Other words for these, in capitals or not. A category of just these two levels reads the same.
_TRUTH_WORDS = ("no", "yes", "n", "y", "f", "t")


@dataclass(frozen=True, kw_only=True)
class Levels:
    """One-hot levels, then one place for any other value and one for a missing one."""

    levels: tuple[str, ...]

    @property
    def width(self) -> int:
        return len(self.levels) + 2

    def names(self, column: str) -> list[str]:
        return [f"{column}={level}" for level in (*self.levels, "<other>", "<missing>")]

    def codes(self, table: pa.Table, column: str) -> np.ndarray:
        values = texts(table, column)
        codes = level_codes(values, self.levels)
        if self.levels == _TRUTHS:
            words = level_codes(pc.utf8_lower(values), _TRUTH_WORDS)
            codes = np.where((codes < 0) & (words >= 0), words % 2, codes)
        missing = np.asarray(pc.is_null(values))
        codes[codes < 0] = len(self.levels)
        codes[missing] = len(self.levels) + 1
        return codes

    def to_json(self) -> dict[str, Any]:
        return {"levels": list(self.levels)}


@dataclass(frozen=True, kw_only=True)
class Grid(_Intervals):
    """Ordered levels between inner edges, each with the number it stands for, and a missing one.

    Codes only: what a level adds to a score is the method's business.
    """

    values: tuple[float, ...]

    def to_json(self) -> dict[str, Any]:
        return {"grid": list(self.edges), "values": list(self.values), **_unit_json(self.unit)}


Coding = Bins | Scaled | Levels


class _Search:
    """How many of the sorted `edges` lie at or below a value: np.searchsorted, but much faster.

    The range of edges is cut into equal buckets. Rounding never swaps two values, so edges of lower
    buckets lie below a value and those of higher ones above it: only those of its own are compared.
    """

    _BUCKETS = 4096
    _MOST = 4  # more edges in one bucket are searched for in halves
    _BLOCK = 1 << 14

    def __init__(self, edges: np.ndarray) -> None:
        self._edges = edges
        self._turns = self._MOST + 1
        if not len(edges):
            return
        self._low = edges[0] / 2
        wide = edges[-1] / 2 - self._low
        with np.errstate(over="ignore", divide="ignore"):
            self._scale = (self._BUCKETS - 1) / wide
        if not np.isfinite(self._scale):
            return
        own = self._bucket(edges)
        counts = np.bincount(own, minlength=self._BUCKETS)
        self._below = np.cumsum(counts) - counts
        self._turns = int(counts.max())
        self._padded = np.append(edges, np.inf)

    def _bucket(self, values: np.ndarray) -> np.ndarray:
        # fmax and fmin take the other number for NaN.
        place = (values / 2 - self._low) * self._scale
        np.fmin(np.fmax(place, 0.0, out=place), self._BUCKETS - 1.0, out=place)
        found: np.ndarray = place.astype(np.intp)
        return found

    def __call__(self, values: np.ndarray) -> np.ndarray:
        """As np.searchsorted(edges, values, side="right"), but NaN may come out anywhere."""
        if self._turns > self._MOST:
            return np.searchsorted(self._edges, values, side="right")
        found = np.empty(len(values), dtype=np.intp)
        for start in range(0, len(values), self._BLOCK):
            block = values[start : start + self._BLOCK]
            with np.errstate(invalid="ignore", over="ignore"):
                codes = self._below.take(self._bucket(block))
                for _ in range(self._turns):
                    codes += self._padded.take(codes, mode="clip") <= block
            found[start : start + self._BLOCK] = np.minimum(codes, len(self._edges))
        return found


class Cells:
    """How a column is kept: one small code per cell, fine enough for its features and its levels.

    The codes of a number or date are the parts between all edges of its coding and of its grid, the
    last one is "missing"; those of a category are its levels. `places` is the one-hot feature that
    a code stands for (None of a column kept as a number), `level_of` the grid's level (None where
    that is the code itself).
    """

    def __init__(self, coding: Coding, grid: Grid | Levels | None) -> None:
        self.coding, self.grid = coding, grid
        self.scaled = coding if isinstance(coding, Scaled) else None
        self.places: np.ndarray | None = None
        self.level_of: np.ndarray | None = None
        if isinstance(coding, Levels):
            if grid is not None and grid != coding:
                raise DataError("The stored encoder is damaged: train the model again.")
            self.count = coding.width
            self.places = np.arange(self.count)
            return
        edges = [each.edges for each in (coding, grid) if isinstance(each, Bins | Grid)]
        self._edges = np.unique(np.concatenate([np.zeros(0), *map(np.asarray, edges)]))
        self._search = _Search(self._edges)
        self.count = len(self._edges) + 2
        if isinstance(coding, Bins):
            self.places = self._part_of(coding.edges)
        if isinstance(grid, Grid) and not np.array_equal(grid.edges, self._edges):
            self.level_of = self._part_of(grid.edges)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The smallest type that holds all codes."""
        return np.min_scalar_type(self.count)

    def _part_of(self, edges: tuple[float, ...]) -> np.ndarray:
        """The part between coarser edges that each code lies in: as many of them lie below."""
        below = np.searchsorted(np.asarray(edges), self._edges, side="right")
        return np.concatenate([[0], below, [len(edges) + 1]])

    def read(self, table: pa.Table, column: str) -> tuple[np.ndarray, np.ndarray | None]:
        """The code of every cell and, of a column kept as a number, its number in [-1, 1]."""
        if isinstance(self.coding, Levels):
            return self.coding.codes(table, column).astype(self.dtype), None
        values = _range_values(table, column, self.coding.unit)
        return self.of_values(values), None if self.scaled is None else self.scaled.scaled(values)

    def of_values(self, values: np.ndarray) -> np.ndarray:
        """The codes of numbers or dates, NaN for missing ones."""
        codes = self._search(values)
        codes[np.isnan(values)] = self.count - 1
        return codes.astype(self.dtype)


def declared(column: Column) -> Coding | None:
    """The coding that follows from the declaration; None if a public column leaves it open."""
    if column.kind == "category":
        return None if column.categories is None else Levels(levels=column.categories)
    if column.kind == "bool":
        return Levels(levels=_TRUTHS)
    if column.bounds is None:
        return None
    low, high = (_bound(end) for end in column.bounds)
    bins = DEFAULT_BINS if column.bins is None else column.bins
    if bins == 0:
        return Scaled(low=low, high=high, unit=_unit(column))
    edges = np.linspace(low, high, bins + 1)[1:-1]
    return Bins(edges=tuple(edges.tolist()), unit=_unit(column))


def declared_grid(column: Column) -> Grid | Levels:
    """The levels of a private column, from its declaration alone.

    Whole-number bounds that are close give a level around each whole number and as many between
    two as make at least _WHOLE: values may be whole or not. Others give equal parts of the bounds,
    ever smaller ones towards zero, or the lower end where zero is no value between, and levels of
    their own for both ends and for zero: values often crowd there. `bins` of the schema overrides
    it.
    """
    coding = declared(column)
    if isinstance(coding, Levels):
        return coding
    assert column.bounds is not None
    low, high = (_bound(end) for end in column.bounds)
    wide = high - low
    if column.bins:
        edges = np.linspace(low, high, column.bins + 1)[1:-1]
    elif column.kind == "number" and low.is_integer() and high.is_integer() and wide <= FINE_BINS:
        parts = math.ceil(_WHOLE / wide)
        steps = np.arange(int(wide) * parts + 1)
        return _grid(low + (steps[:-1] + 0.5) / parts, low + steps / parts, "number")
    else:
        part = wide / FINE_BINS
        margin = 1e-9 * wide
        near, halves = part * np.concatenate([_HALVES, _NEAR]), part * _HALVES
        crowded = [low + halves, high - halves, [low + margin, high - margin]]
        crowded += [near, -near, [-margin, margin]] if low < 0 < high else [low + near]
        inner = low + part * np.arange(1, FINE_BINS)
        edges = np.unique(np.concatenate([inner, *crowded]))
        edges = edges[(edges > low) & (edges < high)]
    values = np.concatenate([[low], edges[1:] / 2 + edges[:-1] / 2, [high]])
    if not len(edges):  # no number lies between the bounds
        values = np.array([low])
    return _grid(edges, values, _unit(column))


def learnt_grid(column: Column, table: pa.Table) -> Grid | Levels:
    """The levels of a public column, by its values."""
    if column.role != "public":
        raise SchemaError(f"Column {column.name!r} is private: nothing may be learnt from it.")
    if column.kind in ("category", "bool"):
        coding = declared(column) or learnt_coding(column, table)
        assert isinstance(coding, Levels)
        return coding
    return _learnt_grid(column, _finite(column, table))


def _finite(column: Column, frame: Any) -> np.ndarray:
    n, parts = pieces(frame, [column.name])
    values = np.empty(n)
    for start, table in parts:
        with numbered(start):
            found = _range_values(table, column.name, _unit(column))
        values[start : start + len(found)] = found
    finite = np.isfinite(values)
    return values if finite.all() else values[finite]


def _learnt_grid(column: Column, finite: np.ndarray, ordered: np.ndarray | None = None) -> Grid:
    ordered = np.sort(finite) if ordered is None else ordered
    edges = _distinct_edges(ordered, column.bins or PUBLIC_BINS)
    search = _Search(edges)
    counts = np.diff(np.searchsorted(ordered, edges, side="left"), prepend=0, append=len(ordered))
    means = np.zeros(len(edges) + 1)
    for start in range(0, len(finite), _BLOCK):
        some = finite[start : start + _BLOCK]
        places = search(some)
        np.add.at(means, places, some / counts[places])
    return _grid(edges, means, _unit(column))


def learnt_both(column: Column, frame: Any) -> tuple[Coding | None, Grid | Levels]:
    """`learnt_coding` (None of a declared coding) and `learnt_grid`, reading values once.

    Of a frame or of the rows of a file; no other column is read.
    """
    known = declared(column)
    if column.role != "public" or column.kind in ("category", "bool"):
        grid = learnt_grid(column, as_arrow(frame, [column.name]))
        return (None if known is not None or isinstance(grid, Grid) else grid), grid
    finite = _finite(column, frame)
    ordered = np.sort(finite)
    coding = None if known is not None else _learnt_range(column, ordered)
    return coding, _learnt_grid(column, finite, ordered)


def _grid(edges: np.ndarray, values: np.ndarray, unit: RangeUnit) -> Grid:
    return Grid(edges=tuple(edges.tolist()), values=tuple(values.tolist()), unit=unit)


def _distinct_edges(values: np.ndarray, bins: int) -> np.ndarray:
    """Edges between distinct values: a value that fills a bin has its own, the rest share evenly.

    Values come in order. Quantiles alone would leave one bin for a column of mostly zeros.
    """
    # The first place of each distinct value; at most a few numbers per value are held at a time.
    first = np.flatnonzero(np.append(True, values[1:] != values[:-1]))[: len(values)]
    if len(first) <= bins:
        return values[first[1:]] / 2 + values[first[:-1]] / 2
    counts = np.diff(first, append=len(values))
    # Neighbours that are rare together cannot fill a bin: they are one value from here on.
    ranks = np.cumsum(counts)
    ranks *= _FINEST
    ranks //= len(values)
    heavy = counts >= len(values) / _FINEST
    apart = (ranks[1:] != ranks[:-1]) | heavy[1:] | heavy[:-1]
    del ranks
    last = np.flatnonzero(np.append(apart, True))
    counts = np.diff(np.cumsum(counts)[last], prepend=0)
    ends = even_parts(counts, bins)
    value, following = values[first[last[ends]]], values[first[last[ends] + 1]]
    return np.unique(following / 2 + value / 2)


def even_parts(counts: np.ndarray, most: int) -> np.ndarray:
    """The last place of each part but the final one, of at most `most` parts of `counts` in order.

    A place that fills a part has its own, the rest share evenly.
    """
    ends: list[int] = []
    rest, held = float(counts.sum()), 0.0
    for place, count in enumerate(counts[:-1].tolist()):
        parts = most - len(ends)
        if parts == 1:
            break
        if held >= 0.3 * rest / parts and count >= rest / parts:
            ends.append(place - 1)
            rest, held = rest - held, 0.0
        held += count
        if len(ends) < most - 1 and held >= rest / (most - len(ends)):
            ends.append(place)
            rest, held = rest - held, 0.0
    return np.unique(np.array(ends, dtype=np.intp))


def grid_from_json(data: dict[str, Any]) -> Grid | Levels:
    """The inverse of `to_json` of what codes a column into levels."""
    if "grid" not in data:
        coding = coding_from_json(data)
        if not isinstance(coding, Levels):
            raise DataError("The stored encoder is damaged: train the model again.")
        return coding
    try:
        edges, values = np.array(data["grid"], dtype=float), np.array(data["values"], dtype=float)
        sound = edges.ndim == 1 and values.shape == (len(edges) + 1,)
        sound = sound and bool(np.isfinite(edges).all() and np.isfinite(values).all())
    except (KeyError, TypeError, ValueError):
        sound = False
    if not sound or (np.diff(edges) <= 0).any():
        raise DataError("The stored encoder is damaged: train the model again.")
    return _grid(edges, values, "date" if data.get("unit") == "date" else "number")


def _unit(column: Column) -> RangeUnit:
    return "date" if column.kind == "date" else "number"


def _bound(end: float | str) -> float:
    if not isinstance(end, str):
        return end
    found = moment(end)
    assert found is not None  # the column has checked it
    return moment_seconds(found)


def learnt_coding(column: Column, table: pa.Table) -> Coding:
    """The coding of a public column by its values: frequent levels, quantile bins or range."""
    if column.role != "public":
        raise SchemaError(f"Column {column.name!r} is private: nothing may be learnt from it.")
    if column.kind == "category":
        return Levels(levels=_frequent_levels(texts(table, column.name)))
    return _learnt_range(column, np.sort(_finite(column, table)))


def _learnt_range(column: Column, finite: np.ndarray) -> Bins | Scaled:
    """Of the values in order."""
    unit = _unit(column)
    bins = DEFAULT_BINS if column.bins is None else column.bins
    if bins == 0:
        ends = (finite.min(), finite.max()) if finite.size else (0.0, 0.0)
        return Scaled(low=float(ends[0]), high=float(ends[1]), unit=unit)
    if not finite.size:
        return Bins(edges=(), unit=unit)
    inner = np.quantile(finite, np.linspace(0, 1, bins + 1)[1:-1], method="higher")
    # An edge at the minimum would leave an interval without a row.
    return Bins(edges=tuple(np.unique(inner[inner > finite.min()]).tolist()), unit=unit)


def coding_from_json(data: dict[str, Any]) -> Coding:
    """The inverse of a coding's `to_json`."""
    try:
        if "levels" in data:
            return Levels(levels=tuple(str(level) for level in data["levels"]))
        unit: RangeUnit = "date" if data.get("unit") == "date" else "number"
        if "edges" in data:
            return Bins(edges=tuple(float(edge) for edge in data["edges"]), unit=unit)
        low, high = data["range"]
        return Scaled(low=float(low), high=float(high), unit=unit)
    except (KeyError, TypeError, ValueError):
        raise DataError("The stored encoder is damaged: train the model again.") from None


def level_codes(values: pa.ChunkedArray, levels: tuple[Level, ...]) -> np.ndarray:
    """The position of each text among `levels`, -1 where it is not among them or missing.

    The same text wins. Any other text is looked up once by what it equals (see `_Alike`).
    """
    words = [level_text(level) for level in levels]
    found = pc.index_in(values, value_set=pa.array(words, TEXT))
    codes = np.asarray(pc.fill_null(found, -1)).astype(np.int64)
    alike = _Alike(words)
    if not alike.places:
        return codes
    rest = pc.unique(values.filter(pa.array(codes < 0))).drop_null()
    known = [(word, code) for word in rest.to_pylist() if (code := alike.code(word)) >= 0]
    if not known:
        return codes
    found = pc.index_in(values, value_set=pa.array([word for word, _ in known], TEXT))
    place = np.asarray(pc.fill_null(found, len(known)))
    others = np.array([*(code for _, code in known), -1], dtype=np.int64)[place]
    return np.where(codes < 0, others, codes)


def same_levels(levels: tuple[Level, ...]) -> bool:
    """Whether two of the levels equal one value, so that only their spelling tells them apart."""
    places = _Alike([level_text(level) for level in levels]).places
    values = Counter(value for kind, value in places if kind != "date")
    return any(len(codes) > 1 for codes in places.values()) or max(values.values(), default=0) > 1


class _Alike:
    """Levels by what they equal, as a number, a date or a truth value, where one alone does.

    So 1.0 is the declared 1 and TRUE the declared true, while 250.1 and 250.10 stay two levels if
    both are declared. A truth value is also the number that columns of numbers make of it.
    """

    def __init__(self, words: list[str]) -> None:
        self.places: dict[Sameness, list[int]] = {}
        for code, word in enumerate(words):
            same = sameness(word)
            if same is not None:
                self.places.setdefault(same, []).append(code)

    def code(self, word: str) -> int:
        same = sameness(word)
        if same is None:
            return -1
        swapped = {"truth": "number", "number": "truth"}
        kind, value = same
        fitting = self.places.get(same) or self.places.get((swapped.get(kind, kind), value), [])
        return fitting[0] if len(fitting) == 1 else -1


def _frequent_levels(values: pa.ChunkedArray) -> tuple[str, ...]:
    counts = pc.value_counts(values.drop_null())
    pairs = [(-entry["counts"], entry["values"]) for entry in counts.to_pylist()]
    kept = sorted(pairs)[:MAX_LEARNT_LEVELS]
    return tuple(sorted(level for _, level in kept))


def with_made(frame: Any, schema: Schema) -> Any:
    """The rows of a frame or of a file with the columns that the schema makes of others."""
    made = [function_of(c.name, c.public) for c in schema.columns if c.public is not None]
    if not made:
        return frame
    there = names_of(frame)
    for each in made:
        if each.name in there:
            raise DataError(
                f"The data has a column {each.name!r}, which the schema makes of "
                f"{' and '.join(map(repr, each.columns))}: rename or remove one of the two."
            )
    if isinstance(frame, FileRows):
        return _MadeRows(frame, made)
    unit = [] if schema.unit is None else [schema.unit.column]
    read = dict.fromkeys([*schema.read, *unit, schema.label.name])
    table = as_arrow(frame, [name for name in read if name in there])
    for each in made:
        table = table.append_column(each.name, each.cells(table))
    return table


class _MadeRows(FileRows):
    """The rows of a file with made columns, which exist batch by batch alone."""

    def __init__(self, rows: FileRows, made: Sequence[Derived]) -> None:
        super().__init__([*rows.column_names, *(each.name for each in made)], rows.num_rows)
        self._rows, self._made = rows, made

    def _batches(self, names: list[str]) -> Iterator[pa.RecordBatch]:
        made = [each for each in self._made if each.name in names]
        own = [name for name in names if name not in {each.name for each in made}]
        read = dict.fromkeys([*own, *(source for each in made for source in each.columns)])
        check_columns(self._rows, list(read))
        start = 0
        for batch in self._rows._batches(list(read)):
            table = pa.Table.from_batches([batch])
            with numbered(start):
                for each in made:
                    table = table.append_column(each.name, each.cells(table))
            start += batch.num_rows
            yield from table.select(names).combine_chunks().to_batches()


def with_derived(schema: Schema, derived: Sequence[Derived]) -> Schema:
    """The schema with the new columns declared public, in order, and with where they come from."""
    for each in derived:
        known = {column.name: column for column in schema.columns}
        taken = {*known, schema.label.name, *([schema.unit.column] if schema.unit else [])}
        if each.name in taken:
            raise InputError(f"The schema has a column {each.name!r} already: choose another name.")
        for source in each.columns:
            if source == schema.label.name:
                raise InputError(
                    f"{each.name!r} is made of the label {source!r}: a model that reads it could "
                    "not predict rows whose label is unknown. A coarser label that is public goes "
                    'into the schema: [label] public = "...".'
                )
            if source not in known:
                raise InputError(
                    f"The schema has no column {source!r}: expected one of {', '.join(known)}."
                )
        party = known[each.columns[0]].party
        kind: Any = each.kind
        column = Column(each.name, "public", kind, party=party, derived=each.text)
        schema = replace(schema, columns=(*schema.columns, column))
    return schema
