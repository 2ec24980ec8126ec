"""The audit of the encoding: frames that differ in one private row, encoded side by side.

Frames choose the type of a column by all of its cells, so a cell of another type can change how
every other row is held. Each private column of a pair is a case, with one cell replaced: both
frames are encoded, and the other rows that changed in that column are counted.
Guarantee: docs/proofs/encoding.md.
"""

from __future__ import annotations

import csv
import datetime as dt
import importlib.util
import io
import itertools
import json
import random
import re
import secrets
import tempfile
import uuid
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet

from halfmask.accounting.budget import Budget
from halfmask.audit.distinguish import Finding
from halfmask.data.cells import cell_text
from halfmask.data.encoding import same_levels
from halfmask.data.reading import read_csv, read_frame
from halfmask.errors import DataError, InputError
from halfmask.schema import Column, Label, Schema
from halfmask.table import Encoder, Table

NAME = "encoding"
_CLAIM = Budget(epsilon=1.0, delta=1e-5)
DEFAULT_CASES = 10_000

_COLUMNS = 24
_PAIRS_PER_FRAME = 8
_REFUSED_SHARE = 0.01
_SHOWN = 10
_PUBLIC = ("north", "south", "north", "1.0", "1", "", "south", "2020-01-01")

_DAY = dt.datetime(2020, 1, 1)
_UTC = dt.UTC


class _Odd:
    """A value of a class that no table knows."""

    def __str__(self) -> str:
        raise RuntimeError("cannot be printed")


FAMILIES: dict[str, list[Any]] = {
    "small integers": [0, 1, 2, 3],
    "long integers": [2**53 + 1, 2**53 + 3, 2**60 + 1, -(2**62) - 1],
    "truth values": [True, False],
    "decimals": [Decimal(1), Decimal(2), Decimal("3.0")],
    "decimals with digits": [Decimal("0.3"), Decimal("250.10"), Decimal("250.1"), Decimal("7.25")],
    "whole floats": [1.0, 2.0, 3.0, -4.0],
    "floats": [0.1, 0.3, 1e-7, 250.1, 1.5e300],
    "single floats": [np.float32(0.1), np.float32(2.5), np.float32(3)],
    "days": [dt.date(2020, 1, 1), dt.date(1999, 12, 31), dt.date(2024, 2, 29)],
    "midnights": [_DAY, dt.datetime(1999, 12, 31), dt.datetime(2024, 2, 29)],
    "times": [_DAY.replace(hour=12), _DAY.replace(microsecond=5), dt.datetime(1999, 1, 1, 6, 30)],
    "times with a zone": [_DAY.replace(tzinfo=_UTC), _DAY.replace(hour=3, tzinfo=_UTC)],
    "texts of integers": ["0", "1", "2", "003"],
    "texts of numbers": ["1.0", "250.10", "250.1", "1e3", "-0"],
    "texts of days": ["2020-01-01", "1999-12-31", "2024-02-29 00:00:00"],
    "texts of truth": ["true", "False", "TRUE"],
    "words": ["a", "b", " c ", "NA", ""],
    "bytes": [b"a", b"b", b"1"],
}
"""Values that a column holds in all rows, so that its type is theirs."""

_NUMERIC = (
    "small integers",
    "long integers",
    "truth values",
    "decimals",
    "decimals with digits",
    "whole floats",
    "floats",
    "single floats",
    "texts of integers",
    "texts of numbers",
)
_DATED = ("days", "midnights", "times", "times with a zone", "texts of days")

STRANGE: list[Any] = [
    *(value for family in FAMILIES.values() for value in family),
    *(None, float("nan"), float("inf"), -0.0, 0.5, 1.5, 2**63, 2**70, -(2**70), 10**400),
    *(Decimal("1.5"), Decimal("1.00000000001"), Decimal("1E+30"), Decimal("NaN"), Decimal("sNaN")),
    *("x", "NA", "nan", "yes", "no", "inf", "1_0", "0x1", "2020-13-45", "\0", "\ud800", "z" * 3000),
    *(b"\xff", b"", 1j, complex(2, 0), Fraction(1, 3), uuid.UUID(int=1), _Odd(), len, type),
    *(dt.time(12), dt.timedelta(days=1), dt.datetime.max, dt.datetime.min, dt.date(1, 1, 1)),
    _DAY.replace(tzinfo=dt.timezone(dt.timedelta(hours=5))),
    *(np.int8(1), np.float64(1), np.bool_(True), np.datetime64("2020-01-01"), np.str_("a")),
    *(np.datetime64("NaT"), np.timedelta64(5, "m")),
]
"""What takes the place of one cell."""

_NESTED: list[Any] = [[], [1], ["a"], {"a": 1}, (1, 2), {1}, np.array([1, 2])]
_MISSING: list[Any] = [None, float("nan"), Decimal("NaN"), "", "NA", np.datetime64("NaT")]
_READABLE = {
    "number": [value for name in _NUMERIC for value in FAMILIES[name]]
    + [*_MISSING, float("inf"), 0.5, 2**70, 10**400, Decimal("1.00000000001"), complex(2, 0)],
    "date": [value for name in _DATED for value in FAMILIES[name]]
    + [*_MISSING, dt.datetime.max, dt.date(1, 1, 1), np.datetime64("1999-01-01"), b"2020-01-01"],
}
"""Cells that a column of that kind reads; any other ends the encoding with an error."""

Values = dict[str, list[Any]]


def _arrow(values: Any) -> Any:
    if 0 < sum(isinstance(value, np.datetime64) for value in values) < len(values):
        raise ValueError("pyarrow ends the process over datetime64 among other types of numpy")
    return pa.array(values, from_pandas=True)


def _pandas(values: list[Any], **how: Any) -> Any:
    import pandas as pd  # type: ignore[import-untyped]

    return pd.Series(values, **how)


def _polars(values: list[Any]) -> Any:
    import polars as pl

    if any(isinstance(value, Decimal) and not value.is_finite() for value in values):
        raise ValueError("polars ends the process over a decimal that is not a number")
    for value in values:
        str(value)  # what fails here fails in polars too, with a note on standard error
    return pl.Series("x", values, strict=False)


def _polars_texts(values: list[Any]) -> Any:
    column = _polars(values)
    if column.dtype.is_nested() or str(column.dtype) in ("Binary", "Object"):
        raise ValueError("a CSV has no place for it")
    return column


def _writable(values: list[Any]) -> list[Any]:
    for value in values:
        str(value).encode()
        if isinstance(value, Decimal) and value.is_snan():
            raise ValueError("pandas cannot write it")
    return values


def _pandas_frame(columns: dict[str, Any]) -> Any:
    import pandas as pd

    return pd.DataFrame(columns)


def _polars_frame(columns: dict[str, Any]) -> Any:
    import polars as pl

    return pl.DataFrame([column.alias(name) for name, column in columns.items()])


def _through_parquet(columns: dict[str, Any]) -> pa.Table:
    with tempfile.TemporaryDirectory() as folder:
        pa.parquet.write_table(pa.table(columns), Path(folder) / "rows.parquet")
        return read_frame(Path(folder) / "rows.parquet")


def _through_csv(columns: dict[str, Any]) -> pa.Table:
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(columns)
    writer.writerows(zip(*columns.values(), strict=True))
    return read_csv(text.getvalue().encode(), "rows.csv")


@dataclass(frozen=True, kw_only=True)
class Container:
    """A frame or a file of Python values, made as its users make it.

    `column` takes the cells of a column, or fails where the container has no place for them.
    """

    column: Callable[[list[Any]], Any]
    frame: Callable[[dict[str, Any]], Any]


CONTAINERS = {
    "pyarrow": Container(column=_arrow, frame=pa.table),
    "parquet": Container(column=_arrow, frame=_through_parquet),
    "csv": Container(column=_writable, frame=_through_csv),
    "pandas": Container(column=_pandas, frame=_pandas_frame),
    "pandas objects": Container(
        column=lambda values: _pandas(values, dtype=object), frame=_pandas_frame
    ),
    "pandas nullable": Container(
        column=lambda values: _pandas(values).convert_dtypes(), frame=_pandas_frame
    ),
    "pandas categories": Container(
        column=lambda values: _pandas(values).astype("category"), frame=_pandas_frame
    ),
    "pandas csv": Container(
        column=lambda values: _pandas(_writable(values)),
        frame=lambda made: read_csv(_pandas_frame(made).to_csv(index=False).encode(), "rows.csv"),
    ),
    "pandas parquet": Container(
        column=lambda values: _arrow(_pandas(values)), frame=_through_parquet
    ),
    "polars": Container(column=_polars, frame=_polars_frame),
    "polars csv": Container(
        column=_polars_texts,
        frame=lambda made: read_csv(_polars_frame(made).write_csv().encode(), "rows.csv"),
    ),
}


def containers() -> list[str]:
    """Those whose library is installed."""
    found = {name for name in ("pandas", "polars") if importlib.util.find_spec(name)}
    known = {"pyarrow", "parquet", "csv", *found}
    return [name for name in CONTAINERS if name.split()[0] in known]


@dataclass(frozen=True, kw_only=True, eq=False)
class _Drawn:
    """A private column, or the label, with cells that fit it and are all of one family."""

    name: str
    kind: str
    family: str
    cells: list[Any]
    levels: tuple[str, ...]
    keys: dict[str, Any]

    @classmethod
    def of(cls, draw: random.Random, name: str, kind: str, size: int) -> _Drawn:
        families = {"number": _NUMERIC, "date": _DATED}.get(kind) or tuple(FAMILIES)
        family = draw.choice([each for each in families if kind != "label" or each != "words"])
        cells = [draw.choice(FAMILIES[family]) for _ in range(size)]
        if kind != "label" and draw.random() < 0.2:
            cells[draw.randrange(size)] = None
        levels = _levels(family) if kind in ("category", "label") else ()
        keys: dict[str, Any] = {}
        if kind == "category":
            levels = tuple(draw.sample(levels, draw.randint(1, len(levels))))
            keys = {"categories": levels}
        elif kind in ("number", "date"):
            ends = (-5, 300) if kind == "number" else ("1990-01-01", "2024-12-31T12:00:00")
            keys = {"bounds": ends, "bins": draw.choice([0, 3, 16])}
        return cls(name=name, kind=kind, family=family, cells=cells, levels=levels, keys=keys)

    def strange(self, draw: random.Random) -> Any:
        """A new cell, mostly one that ends no encoding."""
        if draw.random() < _REFUSED_SHARE:
            return draw.choice([*STRANGE, *_NESTED])
        if self.kind == "label":
            return draw.choice([*FAMILIES[self.family], *self.levels])
        return draw.choice(_READABLE.get(self.kind, STRANGE))


def _levels(family: str) -> tuple[str, ...]:
    """Levels as their owner would write them: those of the family, and one that no row has."""
    words: list[str] = []
    for value in FAMILIES[family]:
        text = value.decode() if isinstance(value, bytes) else str(value).strip()
        text = text.casefold() if text.casefold() in ("true", "false") else text
        if text not in ("", "NA"):
            words.append(text)
    return (*dict.fromkeys(words), "none of these")


@dataclass(frozen=True, kw_only=True, eq=False)
class _Encoded:
    """What one frame became: a table and what was learnt, or the words of a refusal."""

    learnt: str = ""
    table: Table | None = None
    refusal: str = ""

    @classmethod
    def of(cls, schema: Schema, frame: Any) -> _Encoded:
        try:
            encoder = Encoder.fit(schema, frame)
            table = encoder.encode(frame)
        except DataError as error:
            return cls(refusal=str(error))
        except Exception as error:
            return cls(refusal=f"not an error of ours: {type(error).__name__}")
        return cls(learnt=json.dumps(encoder.to_json()), table=table)

    def changed(self, other: _Encoded, row: int) -> dict[str, int]:
        """How many rows but `row` differ, by column; "" stands for all that is public."""
        one, two = self.table, other.table
        assert one is not None
        assert two is not None
        if self.learnt != other.learnt or one.n != two.n or (one.public != two.public).any():
            return {"": one.n - 1}
        differs = one.private != two.private
        differs[row] = False
        rows = Counter[str]()
        for name in {one.private_sources[place] for place in np.flatnonzero(differs.any(axis=0))}:
            places = [place for place, source in enumerate(one.private_sources) if source == name]
            rows[name] = int(differs[:, places].any(axis=1).sum())
        for first, second in zip(one.coded, two.coded, strict=True):
            moved = first.codes != second.codes
            moved[row] &= not first.private
            rows[first.name] = max(rows[first.name], int(moved.sum()))
        labels = np.asarray(one.label != two.label)
        labels[row] = False
        rows["y"] = int(labels.sum())
        return {name: count for name, count in rows.items() if count}


@dataclass(frozen=True, kw_only=True)
class Case:
    """One private column of two frames that differ in one row, and how many other rows changed."""

    container: str
    kind: str
    cells: str
    replaced_by: str
    other_rows_changed: int


def audit_encoding(
    *,
    cases: int = DEFAULT_CASES,
    claim: Budget = _CLAIM,
    seed: int | None = None,
    report: Callable[[float, str], None] = lambda share, text: None,
) -> Finding:
    """Encode `cases` pairs of private columns that differ in one cell.

    The lower bound is that of a count of encoded rows whose Laplace noise is scaled for one row:
    if k rows more than the replaced one move, it has (k + 1) times the epsilon claimed.
    """
    if cases < 1:
        raise InputError(f"Expected at least 1 case, got {cases}.")
    seed = secrets.randbits(32) if seed is None else seed
    counts: Counter[str] = Counter()
    wrong: list[dict[str, Any]] = []
    most = 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # libraries warn of the values they are given here
        for number, case in enumerate(itertools.islice(_cases(random.Random(seed)), cases), 1):
            counts[case.container] += 1
            if case.other_rows_changed:
                most = max(most, case.other_rows_changed)
                wrong.append({"case": number, **asdict(case)})
            if number % 1000 == 0:
                report(number / cases, f"{number} cases")
    return Finding(
        mechanism=NAME,
        claimed=claim.epsilon,
        lower_bound=claim.epsilon * (1 + most) if most else 0.0,
        confidence=1.0,
        relation="replace",
        delta=claim.delta,
        runs=cases,
        details={
            "cases": cases,
            "cases_that_changed_other_rows": len(wrong),
            "found": wrong[:_SHOWN],
            "containers": dict(sorted(counts.items())),
            "seed": seed,
        },
    )


def _cases(draw: random.Random) -> Iterator[Case]:
    """Cases without end: frames of many private columns, and for each frame several new rows."""
    names = containers()
    while True:
        container, size = draw.choice(names), draw.randint(2, len(_PUBLIC))
        kinds = ["category", "category", "number", "date", "bool"]
        drawn = [_Drawn.of(draw, f"x{at}", draw.choice(kinds), size) for at in range(_COLUMNS)]
        drawn.append(_Drawn.of(draw, "y", "label", size))
        yield from _of_frame(draw, container, drawn)


def _of_frame(draw: random.Random, container: str, drawn: list[_Drawn]) -> Iterator[Case]:
    size = len(drawn[-1].cells)
    make = CONTAINERS[container]
    place = make.column(list(_PUBLIC[:size]))
    base: dict[str, Any] = {each.name: _made(make, each.cells) for each in drawn}
    drawn = [each for each in drawn if base[each.name] is not None]
    if not drawn or drawn[-1].kind != "label":
        return
    schema = _schema(drawn)
    base = {"place": place, **{each.name: base[each.name] for each in drawn}}
    frame = make.frame(base)
    here = _Encoded.of(schema, frame)
    if here.table is None:
        name = _refused(here.refusal, None)
        rest = [each for each in drawn if each.name != name]
        # A container may hold cells so that their own column refuses them; it is left out.
        if name is not None and name != "y" and len(rest) > 1:
            yield from _of_frame(draw, container, rest)
        return
    held = {each.name: _held(frame, each.name) for each in drawn}
    for _ in range(_PAIRS_PER_FRAME):
        row = draw.randrange(size)
        new = {each.name: each.strange(draw) for each in drawn}
        yield from _of_pair(container, drawn, schema, base, held, here, row, new)


def _of_pair(
    container: str,
    drawn: list[_Drawn],
    schema: Schema,
    base: dict[str, Any],
    held: Values,
    here: _Encoded,
    row: int,
    new: dict[str, Any],
) -> Iterator[Case]:
    """The frame with the new row beside the old one; a column it is refused for is put back."""
    make = CONTAINERS[container]
    columns = dict(base)
    put: list[_Drawn] = []

    def case(each: _Drawn, changed: int) -> Case:
        return Case(
            container=container,
            kind=each.kind,
            cells=each.family,
            replaced_by=type(new[each.name]).__name__,
            other_rows_changed=changed,
        )

    for each in drawn:
        column = _made(make, [*each.cells[:row], new[each.name], *each.cells[row + 1 :]])
        if column is not None:
            columns[each.name] = column
            put.append(each)
    try:
        frame = make.frame(columns)
    except Exception:
        return  # the writer of a file has no place for one of the columns
    for each in list(put):
        if not _neighbours(held[each.name], _held(frame, each.name), row, same_levels(each.levels)):
            columns[each.name] = base[each.name]
            put.remove(each)
    if any(columns[each.name] is base[each.name] for each in drawn):
        frame = make.frame(columns)
    while put:
        there = _Encoded.of(schema, frame)
        if there.table is not None:
            changed = here.changed(there, row)
            yield from (case(each, changed.get(each.name, changed.get("", 0))) for each in put)
            return
        name = _refused(there.refusal, row)
        refused = next((each for each in put if each.name == name), None)
        if refused is None:
            # The words tell of another row, or the error is not ours: all rows depend on it.
            yield case(put[0], len(held["y"]) - 1)
            return
        yield case(refused, 0)
        columns[refused.name] = base[refused.name]
        put.remove(refused)
        frame = make.frame(columns)


def _refused(refusal: str, row: int | None) -> str | None:
    """The column that an error names together with `row` (None: with any row)."""
    which = r"\d+" if row is None else str(row + 1)
    found = re.match(rf"Column '(\w+)', row {which}:", refusal)
    return found[1] if found else None


def _schema(drawn: list[_Drawn]) -> Schema:
    private = [
        Column(each.name, "private", each.kind, **each.keys)  # type: ignore[arg-type]
        for each in drawn[:-1]
    ]
    label = Label("y", "private", classes=drawn[-1].levels)
    return Schema(label, (Column("place", "public", "category"), *private))


def _made(container: Container, cells: list[Any]) -> Any:
    """The column, or None where the container has no place for these cells."""
    try:
        return container.column(cells)
    except Exception:
        return None


def _held(frame: Any, name: str) -> list[Any]:
    """The cells as the container itself gives them back."""
    if not isinstance(frame, pa.Table):
        return list(frame[name].to_list())
    column = frame.column(name)
    try:
        return list(column.to_pylist())
    except (ValueError, OverflowError):
        # Times beyond Python's own.
        whole = pa.int32() if pa.types.is_date32(column.type) else pa.int64()
        return [f"time {count}" for count in column.cast(whole).to_pylist()]


def _neighbours(held: list[Any], other: list[Any], row: int, strict: bool) -> bool:
    """Whether all other cells have the same values: a container may round long integers.

    `strict`: two declared levels are one number, and only the spelling tells them apart.
    """
    pairs = [pair for place, pair in enumerate(zip(held, other, strict=True)) if place != row]
    if strict:
        return all(type(one) is type(two) and repr(one) == repr(two) for one, two in pairs)
    return all(_same(one, two) for one, two in pairs)


def _same(one: Any, two: Any) -> bool:
    """Whether two cells hold one value, however it is written."""
    if _is_missing(one) or _is_missing(two):
        return _is_missing(one) and _is_missing(two)
    if isinstance(one, (bool, np.bool_)) and isinstance(two, str):
        return str(one).casefold() == two.casefold()
    numbers = [_exact(one), _exact(two)]
    if numbers != [None, None]:
        return bool(numbers[0] == numbers[1])
    if isinstance(one, str) and isinstance(two, str):
        return one.casefold() == two.casefold() or _clock(one) == _clock(two) is not None
    if isinstance(one, dt.datetime) and type(two) is dt.date:
        return bool(one.replace(tzinfo=None) == dt.datetime.combine(two, dt.time()))
    return True


def _is_missing(value: Any) -> bool:
    return value is None or cell_text(value) in (None, "", "NA", "NaN", "nan")


def _exact(value: Any) -> Fraction | None:
    if isinstance(value, complex) and not value.imag:
        value = value.real
    try:
        return Fraction(value)
    except (TypeError, ValueError, ArithmeticError):
        return None


def _clock(text: str) -> dt.datetime | None:
    try:
        return dt.datetime.fromisoformat(text)
    except ValueError:
        return None
