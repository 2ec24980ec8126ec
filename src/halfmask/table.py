"""Frames in, tables of small codes out, without a look at private values.

An `Encoder` is fitted on public columns only and stored with a model; it turns a frame into a
`Table`, the form in which every method receives data. A table holds each cell once, as a code;
blocks of numbers and levels are made from codes on demand, so they cannot disagree.
Guarantee: docs/proofs/encoding.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Literal

import numpy as np
import pyarrow as pa

from halfmask.data.arrays import bare_label, bare_rows
from halfmask.data.encoding import (
    Cells,
    Coding,
    Grid,
    Levels,
    coding_from_json,
    declared,
    declared_grid,
    grid_from_json,
    learnt_both,
    level_codes,
    with_made,
)
from halfmask.data.frames import (
    CLASSES_OTHERWISE,
    OR_LEAVE_OUT,
    UNIT_NEEDED,
    as_arrow,
    check_columns,
    names_of,
    numbered,
    numbers,
    pieces,
    texts,
)
from halfmask.data.reading import read_frame
from halfmask.data.scratch import Room
from halfmask.data.units import first_rows, unit_codes
from halfmask.errors import DataError, InputError, SchemaError
from halfmask.progress import part_of, tell
from halfmask.schema import Column, Label, Schema

__all__ = ["Encoder", "Table", "read_frame"]

Task = Literal["classification", "regression"]


class CodedColumn:
    """One column as levels: a small code per row, the number of levels, and what numbers stand for.

    `values` are those of the ordered levels of a number or date; its last level is "missing". A
    category has none: its last two levels are "other" and "missing". With `level_of`, codes are
    finer than levels, and levels are looked up whenever they are read, so that none are held twice.
    """

    def __init__(
        self,
        *,
        name: str,
        private: bool,
        codes: np.ndarray,
        levels: int,
        values: np.ndarray | None,
        level_of: np.ndarray | None = None,
    ) -> None:
        self.name, self.private, self.levels, self.values = name, private, levels, values
        self._codes, self._level_of = codes, level_of

    @property
    def rows(self) -> int:
        """The number of rows."""
        return len(self._codes)

    @property
    def codes(self) -> np.ndarray:
        """The level of each row."""
        return self.codes_of(slice(None))

    @property
    def held(self) -> bool:
        """Whether levels are there as they are, so that reading them all takes no memory."""
        return self._level_of is None

    def codes_of(self, rows: slice) -> np.ndarray:
        """The levels of some rows."""
        if self._level_of is None:
            return self._codes[rows]
        found: np.ndarray = self._level_of[self._codes[rows]]
        return found

    def mapped(self, groups: np.ndarray, rows: slice) -> np.ndarray:
        """`groups` of the levels of some rows."""
        if self._level_of is not None:
            groups = groups[self._level_of]
        found: np.ndarray = groups[self._codes[rows]]
        return found


@dataclass(frozen=True, eq=False)
class KeptColumn:
    """The cells of one column: a code each (see `Cells`), and numbers where it is kept as such."""

    name: str
    private: bool
    cells: Cells
    codes: np.ndarray
    numbers: np.ndarray | None

    @property
    def width(self) -> int:
        """The number of features that it is in a block."""
        return self.cells.coding.width

    def write(self, block: np.ndarray) -> None:
        """Its features, into a block of zeros."""
        if self.cells.places is not None:
            block[np.arange(len(block)), self.cells.places[self.codes]] = 1.0
        else:
            block[:, 0] = self.numbers
            block[:, 1] = self.codes == self.cells.count - 1

    def coded(self) -> CodedColumn:
        """Its levels, as the method `additive` reads them."""
        grid, level_of = self.cells.grid, self.cells.level_of
        assert grid is not None
        small = np.min_scalar_type(grid.width)
        return CodedColumn(
            name=self.name,
            private=self.private,
            codes=self.codes,
            levels=grid.width,
            values=np.asarray(grid.values) if isinstance(grid, Grid) else None,
            level_of=None if level_of is None else level_of.astype(small),
        )

    def kept(self, rows: np.ndarray | slice) -> KeptColumn:
        """The same column of some rows."""
        numbers = None if self.numbers is None else self.numbers[rows]
        return replace(self, codes=self.codes[rows], numbers=numbers)

    def filled(self, values: np.ndarray) -> KeptColumn:
        """The column with other values: codes, or numbers in [-1, 1] if it is kept as such.

        NaN is a missing number.
        """
        scaled = self.cells.scaled
        if scaled is None:
            return replace(self, codes=values.astype(self.codes.dtype))
        codes = self.cells.of_values(scaled.unscaled(values))
        return replace(self, codes=codes, numbers=np.where(np.isnan(values), 0.0, values))

    def planted(self, rows: np.ndarray, other: KeptColumn) -> KeptColumn:
        """The column with the cells of `other` in place of its own in `rows`."""
        return replace(
            self,
            codes=_with(self.codes, rows, other.codes),
            numbers=None if self.numbers is None else _with(self.numbers, rows, other.numbers),
        )


def _with(array: np.ndarray, rows: np.ndarray, values: np.ndarray | None) -> np.ndarray:
    copied = array.copy()
    copied[rows] = values
    return copied


@dataclass(frozen=True, kw_only=True, eq=False)
class Blocks:
    """Features as two blocks of float64: those of a bare array, or made by hand."""

    public: np.ndarray
    private: np.ndarray
    coded: ClassVar[tuple[CodedColumn, ...]] = ()

    @property
    def n(self) -> int:
        return len(self.private)

    @property
    def widths(self) -> tuple[int, int]:
        return self.public.shape[1], self.private.shape[1]

    def only_public(self) -> Blocks:
        return replace(self, private=np.zeros((self.n, 0)))

    def kept(self, rows: np.ndarray | slice) -> Blocks:
        return Blocks(public=self.public[rows], private=self.private[rows])

    def planted(self, rows: np.ndarray, other: Blocks | CodedFeatures) -> Blocks:
        return replace(self, private=_with(self.private, rows, other.private))

    def blank(self) -> Blocks:
        """The same without a private value."""
        return replace(self, private=np.zeros_like(self.private))


@dataclass(frozen=True, kw_only=True, eq=False)
class CodedFeatures:
    """Features as codes, in the order of the schema; blocks and levels are made when asked for."""

    columns: tuple[KeptColumn, ...]
    n: int

    @cached_property
    def public(self) -> np.ndarray:
        return self._block(private=False)

    @cached_property
    def private(self) -> np.ndarray:
        return self._block(private=True)

    @cached_property
    def coded(self) -> tuple[CodedColumn, ...]:
        if any(column.cells.grid is None for column in self.columns):
            return ()
        return tuple(column.coded() for column in self.columns)

    @property
    def widths(self) -> tuple[int, int]:
        """The number of public and of private features."""
        public = sum(column.width for column in self.columns if not column.private)
        return public, sum(column.width for column in self.columns) - public

    def only_public(self) -> CodedFeatures:
        """The same without private columns."""
        return replace(self, columns=tuple(c for c in self.columns if not c.private))

    def _block(self, *, private: bool) -> np.ndarray:
        columns = [column for column in self.columns if column.private == private]
        block = np.zeros((self.n, sum(column.width for column in columns)))
        start = 0
        for column in columns:
            column.write(block[:, start : start + column.width])
            start += column.width
        return block

    def read(self, table: pa.Table, start: int) -> None:
        """Write the rows of `table` from row `start` on. Guarantee: docs/proofs/encoding.md."""
        at = slice(start, start + table.num_rows)
        for column in self.columns:
            codes, numbers = column.cells.read(table, column.name)
            column.codes[at] = codes
            if column.numbers is not None:
                column.numbers[at] = numbers

    def kept(self, rows: np.ndarray | slice) -> CodedFeatures:
        columns = tuple(column.kept(rows) for column in self.columns)
        if isinstance(rows, slice):
            return CodedFeatures(columns=columns, n=len(range(self.n)[rows]))
        return CodedFeatures(
            columns=columns, n=int(rows.sum()) if rows.dtype == bool else len(rows)
        )

    def planted(self, rows: np.ndarray, other: Blocks | CodedFeatures) -> CodedFeatures:
        if not isinstance(other, CodedFeatures):
            raise InputError("Rows of a bare array cannot be planted in a table with a schema.")
        pairs = zip(self.columns, other.columns, strict=True)
        columns = tuple(
            mine.planted(rows, theirs) if mine.private else mine for mine, theirs in pairs
        )
        return replace(self, columns=columns)

    def blank(self) -> CodedFeatures:
        """The same without a private value."""
        columns = (c.filled(np.zeros(self.n)) if c.private else c for c in self.columns)
        return replace(self, columns=tuple(columns))

    def filled(self, name: str, values: np.ndarray) -> CodedFeatures:
        columns = (c.filled(values) if c.name == name else c for c in self.columns)
        return replace(self, columns=tuple(columns))


@dataclass(frozen=True, kw_only=True, eq=False)
class Table:
    """Rows: codes of columns, or blocks of a bare array; a label, a unit, and what is known of all.

    `public` and `private` are the features as two blocks of float64, known to have norms of at most
    `public_norm`, `private_norm`; `*_sources` name the column behind each feature of a block.
    `coded` are the same columns as levels, in the order of the schema; a bare array has none.
    `label` holds class codes (int64, positions in `classes`) or targets clamped to `label_bounds`;
    a missing label is the code -1 or NaN.
    `unit` holds the code of each row's unit, `rows` its position in the frame it came from.
    """

    features: Blocks | CodedFeatures
    label: np.ndarray | None
    unit: np.ndarray | None
    rows: np.ndarray
    public_norm: float
    private_norm: float
    public_sources: tuple[str, ...]
    private_sources: tuple[str, ...]
    label_private: bool
    task: Task
    classes: tuple[Any, ...] | None
    label_bounds: tuple[float, float] | None
    max_rows: int
    schema: Schema | None

    @property
    def public(self) -> np.ndarray:
        """The public features, one row each."""
        return self.features.public

    @property
    def private(self) -> np.ndarray:
        """The private features, one row each."""
        return self.features.private

    @property
    def widths(self) -> tuple[int, int]:
        """The number of public and of private features, for which no block is made."""
        return self.features.widths

    @property
    def coded(self) -> tuple[CodedColumn, ...]:
        """The columns as levels."""
        return self.features.coded

    @property
    def n(self) -> int:
        """The number of rows, which is public."""
        return len(self.rows)

    @property
    def units(self) -> int:
        """The number of units of privacy: rows, unless a unit column was declared."""
        return self.n if self.unit is None or not self.n else int(self.unit.max()) + 1

    @cached_property
    def rows_per_unit(self) -> int:
        """The most rows that a unit has: every sensitivity follows from this number.

        Ids are public, so it is counted; `max_rows` is what the declaration would allow.
        """
        return self.max_rows if self.unit is None else int(np.bincount(self.unit).max(initial=1))

    @cached_property
    def unlabelled(self) -> np.ndarray:
        """Rows whose label is missing. With a private label that is private: never count or show.

        Guarantee: docs/proofs/missing_labels.md.
        """
        if self.label is None:
            return np.ones(self.n, dtype=bool)
        return np.isnan(self.label) if self.classes is None else self.label < 0

    @property
    def skipped(self) -> np.ndarray:
        """Rows that a fit takes without their private label, which is missing: their slope is 0."""
        if not self.label_private and self.unlabelled.any():
            raise InputError(
                "Some rows lack their public label: fit the rows that have one (table.labelled())."
            )
        return self.unlabelled

    def labelled(self) -> Table:
        """The rows that have a label: where it is public, or for scores on rows of the user's."""
        if not self.unlabelled.any():
            return self
        kept = np.flatnonzero(~self.unlabelled)
        if not len(kept):
            raise DataError("No row has a label: pass rows of which some have one.")
        if self.features.n != self.n:
            raise InputError("The file was decoded with rows that lack a label: read it anew.")
        return self.kept(kept)

    def kept(self, rows: np.ndarray) -> Table:
        """Some of the rows, by position; units are counted anew."""
        return replace(
            self,
            features=self.features.kept(rows),
            label=None if self.label is None else self.label[rows],
            unit=None if self.unit is None else np.unique(self.unit[rows], return_inverse=True)[1],
            rows=self.rows[rows],
        )

    def planted(self, rows: np.ndarray, other: Table) -> Table:
        """The private values and the labels of `other`, one of its rows for each of `rows`."""
        features = self.features.planted(rows, other.features)
        label = None if self.label is None else _with(self.label, rows, other.label)
        return replace(self, features=features, label=label)

    def filled(self, column: str, values: np.ndarray) -> Table:
        """The table with other values of a column: see `KeptColumn.filled`."""
        if not isinstance(self.features, CodedFeatures):
            raise InputError("A bare array has no columns with a meaning: encode with a schema.")
        return replace(self, features=self.features.filled(column, values))

    def with_blocks(
        self, *, public: np.ndarray | None = None, private: np.ndarray | None = None
    ) -> Table:
        """The table with other features, which have no levels any more."""
        features = Blocks(
            public=self.public if public is None else public,
            private=self.private if private is None else private,
        )
        return replace(self, features=features)

    @classmethod
    def from_arrays(
        cls,
        X: Any,
        y: Any = None,
        *,
        row_norm: float = 1.0,
        task: Task = "classification",
        label_bounds: tuple[float, float] | None = None,
    ) -> Table:
        """A bare array: every column and the label private, rows clipped to `row_norm` (L2).

        The set of classes present in `y` counts as public. A regression needs `label_bounds`.
        """
        block = bare_rows(X, row_norm)
        label, classes = bare_label(y, len(block), task, label_bounds)
        return cls(
            features=Blocks(public=np.zeros((len(block), 0)), private=block),
            label=label,
            unit=None,
            rows=np.arange(len(block)),
            public_norm=0.0,
            private_norm=float(row_norm),
            public_sources=(),
            private_sources=tuple(f"x{index}" for index in range(block.shape[1])),
            label_private=True,
            task=task,
            classes=classes,
            label_bounds=label_bounds,
            max_rows=1,
            schema=None,
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class _Block:
    """The columns of one role with their codings, in the order of the schema."""

    columns: tuple[Column, ...]
    codings: tuple[Coding, ...]

    @property
    def names(self) -> tuple[str, ...]:
        pairs = zip(self.columns, self.codings, strict=True)
        return tuple(name for column, coding in pairs for name in coding.names(column.name))

    @property
    def sources(self) -> tuple[str, ...]:
        pairs = zip(self.columns, self.codings, strict=True)
        return tuple(column.name for column, coding in pairs for _ in range(coding.width))

    @property
    def norm(self) -> float:
        return math.sqrt(len(self.columns))


def _or_derive(schema: Schema, present: list[str]) -> str:
    """What to do about missing columns: those that `halfmask derive` makes are named with how."""
    made = [
        f"{column.name} = {column.derived}"
        for column in schema.columns
        if column.derived is not None and column.name not in present
    ]
    if not made:
        return "Add {it}."
    told = "; ".join(made).replace("{", "{{").replace("}", "}}")
    return f"Add {{it}}: `halfmask derive` makes {told}."


class Encoder:
    """Turns frames into tables. It holds the schema and what was learnt from public columns.

    Guarantee: docs/proofs/encoding.md: equal for any two tables with equal public columns.
    """

    def __init__(
        self,
        schema: Schema,
        learnt: dict[str, Coding],
        grids: dict[str, Grid | Levels] | None = None,
    ) -> None:
        open_columns = {column.name for column in schema.columns if declared(column) is None}
        if set(learnt) != open_columns:
            raise SchemaError("An encoder learns exactly the public columns left open.")
        self.schema = schema
        self._learnt = dict(learnt)
        public = {column.name for column in schema.columns if column.role == "public"}
        if grids is not None and set(grids) != public:
            raise SchemaError("An encoder learns grids of exactly the public columns.")
        self._grids = grids
        self._public = self._block("public")
        self._private = self._block("private")
        codings = {
            column.name: coding
            for block in (self._public, self._private)
            for column, coding in zip(block.columns, block.codings, strict=True)
        }
        whole = self.grids or {}
        self._cells = {
            column.name: Cells(codings[column.name], whole.get(column.name))
            for column in schema.columns
        }

    def _block(self, role: str) -> _Block:
        columns = tuple(column for column in self.schema.columns if column.role == role)
        codings = tuple(declared(column) or self._learnt[column.name] for column in columns)
        return _Block(columns=columns, codings=codings)

    @classmethod
    def fit(cls, schema: Schema, frame: Any) -> Encoder:
        """Learn levels, quantile bins and ranges of the public columns that leave them open."""
        frame = with_made(frame, schema)
        names = [column.name for column in schema.columns]
        check_columns(frame, names, advice=OR_LEAVE_OUT)
        public = [column for column in schema.columns if column.role == "public"]
        codings: dict[str, Coding] = {}
        grids: dict[str, Grid | Levels] = {}
        for place, column in enumerate(public):
            tell("learning the levels of public columns", place / len(public))
            with part_of("learning the levels of public columns"):
                coding, grids[column.name] = learnt_both(column, frame)
            if coding is not None:
                codings[column.name] = coding
        return cls(schema, codings, grids)

    @property
    def public_names(self) -> tuple[str, ...]:
        return self._public.names

    @property
    def private_names(self) -> tuple[str, ...]:
        return self._private.names

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all encoded features: the public block, then the private one."""
        return (*self.public_names, *self.private_names)

    def encode(
        self, frame: Any, with_label: bool = True, *, with_unit: bool | None = None
    ) -> Table:
        """The frame's rows as a table; with a unit, each unit's first `max_rows` rows only.

        Without the label (new rows to predict) every row is kept; `with_unit=False` keeps every
        row of labelled data too, as an evaluation wants, and allows labels to be missing. The rows
        of a file (`FileRows`) are read piece by piece.
        Guarantee: docs/proofs/units.md: which rows are kept does not depend on private values.
        """
        schema = self.schema
        frame = with_made(frame, schema)
        unit = schema.unit if (with_label if with_unit is None else with_unit) else None
        names = [column.name for column in schema.columns]
        names += [schema.label.name] if with_label else []
        check_columns(frame, names, advice=_or_derive(schema, names_of(frame)))
        if unit is not None:
            check_columns(frame, [unit.column], beside=names, advice=UNIT_NEEDED)
        skip = schema.label.missing == "skip" or with_unit is False
        n, parts = pieces(frame, names)
        if n == 0:
            raise DataError("The data has no rows: pass at least one.")
        kind = np.float64 if schema.label.classes is None else np.int64
        label = np.zeros(n, dtype=kind) if with_label else None
        features = self._reserved(n, schema.columns)
        for start, table in parts:
            with numbered(start):
                if label is not None:
                    found = label_codes(table, schema.label, skip=skip)
                    label[start : start + table.num_rows] = found
                features.read(table, start)
            tell("encoding rows", (start + table.num_rows) / n)
        rows, codes = np.arange(n), None
        if unit is not None:
            ids = texts(as_arrow(frame, [unit.column]), unit.column)
            rows, codes = first_rows(unit_codes(ids, unit.column), unit)
            if len(rows) < n:
                features = features.kept(rows)
                label = None if label is None else label[rows]
        return Table(
            features=features,
            label=label,
            unit=codes,
            rows=rows,
            public_norm=self._public.norm,
            private_norm=self._private.norm,
            public_sources=self._public.sources,
            private_sources=self._private.sources,
            label_private=schema.label.role == "private",
            task=schema.label.task,
            classes=schema.label.classes,
            label_bounds=schema.label.bounds,
            max_rows=1 if schema.unit is None else schema.unit.max_rows,
            schema=schema,
        )

    @property
    def grids(self) -> dict[str, Grid | Levels] | None:
        """How each column becomes levels, in order; None in models that were stored before."""
        if self._grids is None:
            return None
        return {
            column.name: declared_grid(column)
            if column.role == "private"
            else self._grids[column.name]
            for column in self.schema.columns
        }

    def cells(self, column: str) -> Cells:
        """How a column is kept."""
        return self._cells[column]

    def ends(self) -> CodedFeatures:
        """Two made-up rows: the first code of every column, and the last."""
        ends = self._reserved(2, self.schema.columns)
        for column in ends.columns:
            column.codes[1] = column.cells.count - 1
            if column.numbers is not None:
                column.numbers[0] = -1.0
        return ends

    def _reserved(self, n: int, columns: tuple[Column, ...]) -> CodedFeatures:
        """Room for the codes of `n` rows, mapped from a file where memory is short."""
        kept = []
        known = [self._cells[column.name] for column in columns]
        by_row = sum(each.dtype.itemsize + 8 * (each.scaled is not None) for each in known)
        with Room(n * by_row) as room:
            for column, cells in zip(columns, known, strict=True):
                numbers = None if cells.scaled is None else room.zeros(n, np.float64)
                codes = room.zeros(n, cells.dtype)
                private = column.role == "private"
                kept.append(KeptColumn(column.name, private, cells, codes, numbers))
        return CodedFeatures(columns=tuple(kept), n=n)

    def encode_public(self, frame: Any) -> np.ndarray:
        """The public features of a frame's rows; no other column is read."""
        frame = with_made(frame, self.schema)
        table = as_arrow(frame, [column.name for column in self._public.columns])
        features = self._reserved(table.num_rows, self._public.columns)
        features.read(table, 0)
        return features.public

    def to_json(self) -> dict[str, Any]:
        """The schema, and what was learnt of public columns: nothing else is known."""
        return {
            "format": "halfmask-encoder-1",
            "schema": self.schema.to_dict(),
            "learnt": {name: coding.to_json() for name, coding in self._learnt.items()},
            **(
                {}
                if self._grids is None
                else {"grids": {name: grid.to_json() for name, grid in self._grids.items()}}
            ),
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Encoder:
        """The inverse of `to_json`."""
        if data.get("format") != "halfmask-encoder-1":
            raise DataError("The stored encoder is of another format: train the model again.")
        codings = {name: coding_from_json(coding) for name, coding in data["learnt"].items()}
        grids = data.get("grids")
        stored = grids and {name: grid_from_json(grid) for name, grid in grids.items()}
        return cls(Schema.from_dict(data["schema"]), codings, stored)


def label_codes(table: pa.Table, label: Label, *, skip: bool) -> np.ndarray:
    """Class codes or clamped targets, -1 or NaN for missing ones where `skip` allows them.

    A foreign label, or a missing one that is not allowed, is an error naming its row.
    """
    if label.classes is None:
        values = numbers(table, label.name, otherwise=CLASSES_OTHERWISE)
        if not skip:
            _first_bad(np.isnan(values), label.name, _NO_LABEL)
        assert label.bounds is not None
        low, high = label.bounds
        clamped: np.ndarray = np.clip(values, low, high)
        return clamped
    words = texts(table, label.name)
    missing = np.asarray(words.is_null())
    if not skip:
        _first_bad(missing, label.name, _NO_LABEL)
    codes = level_codes(words, label.classes)
    _first_bad(
        (codes < 0) & ~missing,
        label.name,
        "the label is not among the declared classes: correct it or add its class to the schema",
    )
    return codes


# Not "remove the row": which rows are left would tell whose private label is missing.
_NO_LABEL = (
    'the label is missing: write missing = "skip" in the [label] table of the schema, and rows '
    "without a label take part as far as they safely can"
)


def _first_bad(bad: np.ndarray, column: str, problem: str) -> None:
    if bad.any():
        raise DataError(f"Column {column!r}, row {int(bad.argmax()) + 1}: {problem}.")
