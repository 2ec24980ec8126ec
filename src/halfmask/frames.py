"""Values of a frame's columns as numbers or as texts, by the rules the schema promises.

Empty, NA and NaN are missing. Errors name the column and the data row, never the value.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import narwhals as nw
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from halfmask.errors import DataError
from halfmask.schema import MISSING_WORDS, level_text, suggest

TEXT = pa.large_string()

# Made without pa.scalar and pa.array, which import pandas to look at Python values.
_NO_TEXT = pa.nulls(1, TEXT)[0]
_MISSING = rf"\A({'|'.join(MISSING_WORDS)})\z"


def check_columns(frame: Any, names: Sequence[str]) -> None:
    """Every name is there once; no value is read."""
    opened = _opened(frame)
    columns = opened.column_names if isinstance(opened, pa.Table) else opened.columns
    _check_present(columns, names)


def as_arrow(frame: Any, names: Sequence[str]) -> pa.Table:
    """The columns `names` of a pandas, polars, pyarrow or other narwhals frame, in that order."""
    opened = _opened(frame)
    check_columns(opened, names)
    if isinstance(opened, pa.Table):
        return opened.select(list(names))
    if not names:
        return pa.table({})
    return pa.table([_column(opened[name]) for name in names], names=list(names))


def _opened(frame: Any) -> Any:
    """The frame as a pyarrow table or behind narwhals."""
    if isinstance(frame, (pa.Table, nw.DataFrame)):
        return frame
    if isinstance(frame, np.ndarray):
        raise DataError(
            "A bare array has no column names for the schema: pass a data frame, or leave the "
            "schema out (then every column is private)."
        )
    if nw.dependencies.is_pandas_dataframe(frame):
        names = [str(name) for name in frame.columns]
        _check_present(names, names)
        frame = frame.set_axis(names, axis="columns")
    try:
        wrapped = nw.from_native(frame)
    except TypeError:
        raise DataError(
            f"Cannot read a {type(frame).__name__} as a table: pass a pandas, polars or pyarrow "
            f"frame."
        ) from None
    return wrapped.collect() if isinstance(wrapped, nw.LazyFrame) else wrapped


def _column(series: Any) -> pa.Array | pa.ChunkedArray:
    try:
        return series.to_arrow()
    except (pa.ArrowException, TypeError, ValueError):
        # A column of mixed Python objects: the text of each is what a CSV would have held.
        return pa.array([_object_text(value) for value in series.to_list()], TEXT)


def _object_text(value: object) -> str | None:
    missing = value is None or value != value or str(value) in ("<NA>", "NaT")
    return None if missing else level_text(value)


def _check_present(columns: Sequence[str], names: Sequence[str]) -> None:
    counts = Counter(columns)
    for name in names:
        if counts[name] == 0:
            raise DataError(
                f"The data has no column {name!r}.{suggest(name, columns)} Add it, or remove it "
                f"from the schema."
            )
        if counts[name] > 1:
            raise DataError(f"The data has the column {name!r} twice: rename or remove one.")


def texts(table: pa.Table, name: str) -> pa.ChunkedArray:
    """The column as trimmed texts, null where the value is missing."""
    values = _decoded(table.column(name))
    kind = values.type
    try:
        if pa.types.is_boolean(kind):
            values = pc.if_else(values, pa.scalar("True", TEXT), pa.scalar("False", TEXT))
        elif pa.types.is_floating(kind):
            values = _float_texts(values)
        values = pc.utf8_trim_whitespace(values.cast(TEXT))
    except pa.ArrowException:
        raise DataError(
            f"Column {name!r} holds {kind}, which is neither text nor a number: convert it to text."
        ) from None
    missing = pc.match_substring_regex(values, _MISSING)
    return pc.if_else(missing, _NO_TEXT, values)


def numbers(table: pa.Table, name: str) -> np.ndarray:
    """The column as float64, NaN where the value is missing; infinities are kept."""
    return _as_numpy(arrow_numbers(table, name))


def arrow_numbers(table: pa.Table, name: str) -> pa.ChunkedArray:
    """The column as arrow float64; raises for the first value that is not a number."""
    values = _decoded(table.column(name))
    kind = values.type
    if _is_text(kind):
        values = texts(table, name)
        bad = _first_unparsable(values)
        if bad is not None:
            raise DataError(
                f"Column {name!r}, row {bad + 1}: not a number. Expected a number, or nothing, NA "
                f"or NaN for a missing one; correct it, or declare the column as a category."
            )
    elif not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or _is_other_number(kind)):
        raise DataError(
            f"Column {name!r} holds {kind}, which is not a number: convert it, or declare the "
            f"column as a category."
        )
    return values.cast(pa.float64(), safe=False)


def _is_text(kind: pa.DataType) -> bool:
    return any(
        check(kind)
        for check in (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
    )


def _is_other_number(kind: pa.DataType) -> bool:
    return any(
        check(kind) for check in (pa.types.is_boolean, pa.types.is_decimal, pa.types.is_null)
    )


def _decoded(values: pa.ChunkedArray) -> pa.ChunkedArray:
    if pa.types.is_dictionary(values.type):
        return values.cast(values.type.value_type)
    return values


def _float_texts(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """1.0 as "1": whole numbers of a column with gaps arrive as floats."""
    values = pc.if_else(pc.is_nan(values), pa.scalar(None, values.type), values)
    values = values.cast(pa.float64())
    whole = pc.and_(pc.less(pc.abs(values), 2.0**53), pc.equal(values, pc.floor(values)))
    as_int = pc.if_else(whole, values, 0.0).cast(pa.int64(), safe=False).cast(TEXT)
    return pc.if_else(whole, as_int, values.cast(TEXT))


def _parses(values: pa.ChunkedArray) -> bool:
    try:
        values.cast(pa.float64())
    except pa.ArrowInvalid:
        return False
    return True


def _first_unparsable(values: pa.ChunkedArray) -> int | None:
    """The index of the first text that is no number, by halving: the cast itself names no row."""
    if _parses(values):
        return None
    low, high = 0, len(values)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if _parses(values[low:middle]) else (low, middle)
    return low


def _as_numpy(values: pa.ChunkedArray) -> np.ndarray:
    joined = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
    if isinstance(joined, pa.ChunkedArray):
        joined = pa.concat_arrays(joined.chunks)
    filled = pc.fill_null(joined, float("nan"))
    return np.array(filled.to_numpy(zero_copy_only=False), dtype=np.float64)
