"""Columns of a frame as texts, numbers or dates, by the rules the schema promises.

A frame picks one type per column by all of its cells; what is read here follows from each cell
alone (see `cells`). Empty, NA and NaN are missing. Errors name the column and the data row, never
the value, and errors of other libraries, which quote values, do not pass.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import narwhals as nw
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from halfmask.data.cells import (
    BINARY,
    MISSING_WORDS,
    NESTED,
    TRUTHS,
    UNREADABLE,
    cell_text,
    clock_text,
    duration_text,
    moment,
    moment_seconds,
    moment_text,
)
from halfmask.data.reading import FileRows
from halfmask.errors import DataError, suggest

TEXT = pa.large_string()

# This and `_literal` do without pa.scalar and pa.array, which import pandas to look at values.
_NO_TEXT = pa.nulls(1, TEXT)[0]
_MISSING = rf"\A({'|'.join(MISSING_WORDS)})\z"
# Times that Arrow reads as `moment` does, for speed.
_PLAIN_MOMENT = r"\A\d{4}-\d\d-\d\d([T ][0-2]\d:[0-5]\d:[0-5]\d(\.\d{1,6})?)?\z"
_ROW = re.compile(r"(?<=', row )\d+")
_VALUE = re.compile(r"[-+]?[.\d][\d.,:/%\s+TZeE-]*")
_SHOWN = 8  # names in one message
A_NUMBER = "a number such as 1234.5, with a point and without a unit"
_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}


def check_columns(
    frame: Any, names: Sequence[str], *, beside: Sequence[str] = (), advice: str = "Add {it}."
) -> None:
    """Every name is there once; no value is read.

    `beside` are other names that the data should have, by which a header is told from a row.
    `advice` says what to do about a missing column, which it may call {it}.
    """
    _check_present(names_of(frame), names, beside, advice)


OR_LEAVE_OUT = "Add {it}, or leave {it} out of the schema."
"""What to do about a feature that is not there, before training."""

UNIT_NEEDED = "Add {it}: without [unit] the guarantee protects one row, not one person."


def reads_as_value(name: str) -> bool:
    """Whether a column's name is written as a number, a date or a time."""
    return _VALUE.fullmatch(name) is not None


def perhaps_a_row(columns: Sequence[str], wanted: Sequence[str]) -> bool:
    """Whether the names of the columns may be the first row of a file without a header.

    They are then private values, and no message may quote them. One name that is wanted in vain
    may be misspelt; where several are wanted, one is found in a file that has a header.
    """
    known = set(wanted)
    lost = len(known) > 1 and known.isdisjoint(columns)
    return lost or any(reads_as_value(name) for name in columns if name not in known)


def meant(word: str, columns: Sequence[str], wanted: Sequence[str] = ()) -> str:
    """What to add to a message about a column that is not there: a name that is close to it.

    A column that is wanted itself was not meant by another name.
    """
    if perhaps_a_row(columns, wanted):
        return " (Is the line with the names of the columns there?)"
    known = set(wanted)
    return suggest(word, [column for column in columns if column not in known])


def names_of(frame: Any) -> list[str]:
    """The names of a frame's or a file's columns; no value is read."""
    if isinstance(frame, FileRows):
        return list(frame.column_names)
    opened = _opened(frame)
    return list(opened.column_names if isinstance(opened, pa.Table) else opened.columns)


def as_arrow(frame: Any, names: Sequence[str]) -> pa.Table:
    """The columns `names` of a pandas, polars, pyarrow or other narwhals frame, in that order.

    A column of Python objects becomes one of texts, cell by cell. A file is read by
    whole columns.
    """
    if isinstance(frame, FileRows):
        check_columns(frame, names)
        return frame.columns(names)
    opened = _opened(frame)
    check_columns(opened, names)
    if isinstance(opened, pa.Table):
        return opened.select(list(names))
    if not names:
        return pa.table({})
    return pa.table([_column(opened[name], name) for name in names], names=list(names))


def pieces(frame: Any, names: Sequence[str]) -> tuple[int, Iterator[tuple[int, pa.Table]]]:
    """The number of rows, and `as_arrow` of a frame as one piece or of a file in many.

    Each comes with the position of its first row.
    """
    if isinstance(frame, FileRows):
        check_columns(frame, names)
        return frame.num_rows, frame.pieces(names)
    table = as_arrow(frame, names)
    return table.num_rows, iter([(0, table)])


@contextmanager
def numbered(start: int) -> Iterator[None]:
    """Errors about a piece that begins at row `start`, with rows counted from the file's first."""
    try:
        yield
    except DataError as error:
        if not start:
            raise
        message = _ROW.sub(lambda found: str(int(found[0]) + start), str(error))
        raise DataError(message) from None


def values_column(values: Any, name: str) -> pa.Array | pa.ChunkedArray:
    """A series, an array or a list as a column; None of its cells is changed on the way."""
    if isinstance(values, (pa.Array, pa.ChunkedArray)):
        return values
    if isinstance(values, np.ndarray):
        if values.ndim == 2 and values.shape[1] == 1:
            values = values[:, 0]
        if values.ndim != 1:
            raise DataError(f"Expected one value of {name!r} per row, got shape {values.shape}.")
        typed = values.dtype.kind in "iufb"
        return pa.array(values) if typed else _objects(list(values))
    try:
        series = nw.from_native(values, series_only=True)
    except TypeError:
        pass
    else:
        return _column(series, name)
    try:
        frame = nw.from_native(values, eager_only=True)
    except TypeError:
        return _objects(_listed(values, name))
    if len(frame.columns) != 1:
        raise DataError(f"Expected one value of {name!r} per row, got shape {frame.shape}.")
    return _column(frame[frame.columns[0]], name)


def _listed(values: Any, name: str) -> list[Any]:
    if isinstance(values, (str, bytes)) or not hasattr(values, "__iter__"):
        raise DataError(f"Expected one value of {name!r} per row, got a {type(values).__name__}.")
    shape = np.shape(values) if hasattr(values, "__array__") else (0,)
    if len(shape) != 1:
        raise DataError(f"Expected one value of {name!r} per row, got shape {shape}.")
    return list(values)


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
    if not isinstance(wrapped, nw.LazyFrame):
        return wrapped
    try:
        return wrapped.collect()
    except Exception:
        raise DataError("The lazy frame cannot be computed: collect it first to see why.") from None


def _column(series: Any, name: str) -> pa.Array | pa.ChunkedArray:
    """One column behind narwhals. Whatever its library raises may quote a value, so nothing passes.

    Columns that the library can only hand over as Python objects are read cell by cell.
    """
    native = nw.to_native(series)
    try:
        if nw.dependencies.is_pandas_series(native):
            return _pandas_column(native)
        if series.dtype == nw.Object:
            return _objects(series.to_list())
        try:
            return series.to_arrow()
        except Exception:
            return _objects(series.to_list())
    except Exception:
        raise DataError(
            f"Column {name!r} of type {series.dtype} cannot be read: convert it to text or numbers."
        ) from None


def _pandas_column(series: Any) -> pa.Array:
    """A pandas column; where Arrow would choose a type by looking at objects, it is not asked."""
    if series.dtype.name == "category":
        codes = series.cat.codes.to_numpy()
        levels = _pandas_column(series.cat.categories.to_series())
        return levels.take(pa.array(codes, mask=codes < 0))
    if series.dtype == object:
        return _objects(series.to_list())
    try:
        found = pa.Array.from_pandas(series)
    except Exception:
        return _objects(list(series))
    if isinstance(found, pa.ChunkedArray):
        found = pa.concat_arrays(found.chunks) if found.num_chunks else pa.nulls(0, found.type)
    # A period is an integer to Arrow.
    return _objects(list(series)) if isinstance(found.type, pa.BaseExtensionType) else found


def _objects(values: list[Any]) -> pa.Array:
    """Python objects as texts, one by one; a shortcut where all are of one plain type."""
    kinds = {kind for kind in set(map(type, values)) if kind.__name__ not in ("NoneType", "NAType")}
    if kinds <= {str, float} or kinds in ({int}, {bool}):
        # A gap among texts is the float NaN in pandas; any other float is refused here.
        kind = next((arrow for python, arrow in _PLAIN if python in kinds), TEXT)
        try:
            return pa.array(values, kind, from_pandas=True)
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            pass
    return _text_array([cell_text(value) for value in values])


_PLAIN = ((str, TEXT), (float, pa.float64()), (int, pa.int64()), (bool, pa.bool_()))


def _text_array(words: list[str | None]) -> pa.Array:
    try:
        return pa.array(words, TEXT)
    except UnicodeEncodeError:
        # Half of a surrogate pair has no UTF-8.
        safe = (
            None if word is None else word.encode("utf-8", "backslashreplace") for word in words
        )
        return pa.array([None if word is None else word.decode() for word in safe], TEXT)


def _check_present(
    columns: Sequence[str], names: Sequence[str], beside: Sequence[str] = (), advice: str = ""
) -> None:
    counts = Counter(columns)
    lost = [name for name in names if counts[name] == 0]
    if lost:
        more = f" and {len(lost) - _SHOWN} more" if len(lost) > _SHOWN else ""
        what, it = ("column", "it") if len(lost) == 1 else ("columns", "them")
        raise DataError(
            f"The data has no {what} {', '.join(map(repr, lost[:_SHOWN]))}{more}."
            f"{meant(lost[0], columns, [*names, *beside])} {advice.format(it=it)}"
        )
    for name in names:
        if counts[name] > 1:
            raise DataError(f"The data has the column {name!r} twice: rename or remove one.")


def texts(table: pa.Table, name: str) -> pa.ChunkedArray:
    """The column as trimmed texts, null where the value is missing; a cell of many is an error."""
    words = _texts(table, name)
    nested = pc.equal(words, _literal(NESTED))
    if pc.any(nested).as_py():
        raise DataError(
            f"Column {name!r}, row {pc.index(nested, True).as_py() + 1}: holds a list or a table, "
            f"which is neither text nor a number: convert it to text."
        )
    return words


def _texts(table: pa.Table, name: str) -> pa.ChunkedArray:
    words = _cell_texts(_decoded(table.column(name)))
    try:
        words.validate(full=True)  # trimming alone lets some of what is no UTF-8 pass
        words = pc.utf8_trim_whitespace(words)
    except pa.ArrowException:
        # Text of a file that is not UTF-8: read the bytes of each cell.
        words = pc.utf8_trim_whitespace(_cell_texts(words.cast(pa.large_binary())))
    missing = pc.match_substring_regex(words, _MISSING)
    return pc.if_else(missing, _NO_TEXT, words)


def _cell_texts(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """`cell_text` of every value; each distinct value of an unusual type is looked at once."""
    kind, types = values.type, pa.types
    texts = (types.is_string, types.is_large_string, types.is_string_view)
    if any(check(kind) for check in (*texts, types.is_integer, types.is_null)):
        return values.cast(TEXT)
    if pa.types.is_boolean(kind):
        return pc.if_else(values, _literal("True"), _literal("False"))
    if pa.types.is_float16(kind) or pa.types.is_float32(kind):
        # Exact, so that a value reads alike in a column of either width.
        values = values.cast(pa.float64())
    try:
        parts = pc.dictionary_encode(_joined(values))
    except (pa.ArrowException, NotImplementedError):
        return pa.chunked_array([_text_array([cell_text(value) for value in values.to_pylist()])])
    return pa.chunked_array([_text_array(_distinct_texts(parts.dictionary)).take(parts.indices)])


def _distinct_texts(values: pa.Array) -> list[str | None]:
    """Times by their counts: Python's own times end at microseconds and at the year 9999."""
    kind = values.type
    for check, text in _TIMES:
        if check(kind):
            counts, per = _counts(values)
            each = 10**9 // per
            return [None if count is None else text(count * each) for count in counts.to_pylist()]
    return [cell_text(value) for value in values.to_pylist()]


_TIMES = (
    (pa.types.is_timestamp, moment_text),
    (pa.types.is_date, moment_text),
    (pa.types.is_time, clock_text),
    (pa.types.is_duration, duration_text),
)


def _counts(values: Any) -> tuple[Any, int]:
    """Times as integers (null where missing), and how many of them make a second."""
    kind = values.type
    if pa.types.is_date32(kind):
        return pc.multiply(values.cast(pa.int32()).cast(pa.int64()), 86_400), 1
    per = 1000 if pa.types.is_date64(kind) else _PER_SECOND[kind.unit]
    return values.cast(pa.int32() if pa.types.is_time32(kind) else pa.int64()), per


# The same whatever the cell holds, of which a message tells no more than that it is no number.
_OTHERWISE = (
    ", or nothing, NA or NaN for a missing one; correct it, or declare the column as what it is: "
    'kind = "date" for ISO dates, kind = "category" for words'
)
CLASSES_OTHERWISE = "; if the labels are classes, write classes = [...] in [label], not bounds"
"""What to do about a label that is no number."""


def numbers(table: pa.Table, name: str, *, otherwise: str = _OTHERWISE) -> np.ndarray:
    """The column as float64, NaN where the value is missing; infinities are kept.

    `otherwise` ends the message about a cell that is no number.
    """
    return _as_numpy(arrow_numbers(table, name, otherwise=otherwise))


def arrow_numbers(table: pa.Table, name: str, *, otherwise: str = _OTHERWISE) -> pa.ChunkedArray:
    """The column as arrow float64; raises for the first value that is not a number."""
    values = _decoded(table.column(name))
    plain = (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean, pa.types.is_null)
    if any(check(values.type) for check in plain):
        return values.cast(pa.float64(), safe=False)
    if pa.types.is_decimal(values.type):
        # Through the text, since Arrow's own cast rounds by the scale of the whole column.
        return values.cast(TEXT).cast(pa.float64())
    words = _texts(table, name)
    if not _parses(words):
        for word, truth in TRUTHS.items():
            words = pc.if_else(pc.equal(words, _literal(word)), _literal(str(int(truth))), words)
    bad = _first_unparsable(words)
    if bad is None:
        return words.cast(pa.float64())
    raise DataError(
        f"Column {name!r}, row {bad + 1}: {_held(words[bad])}not a number. Expected "
        f"{A_NUMBER}{otherwise}."
    )


def kind_of_texts(table: pa.Table, name: str) -> str:
    """What a column reads as throughout: "bool", "number", "date" or, else, "category"."""
    distinct = [word for word in pc.unique(_texts(table, name)).to_pylist() if word is not None]
    if not TRUTHS.keys().isdisjoint(distinct):
        return "bool" if TRUTHS.keys() >= set(distinct) else "category"
    if distinct and all(moment(word) is not None for word in distinct):
        return "date"
    try:
        arrow_numbers(table, name)
    except DataError:
        return "category"
    return "number"


def dates(table: pa.Table, name: str) -> np.ndarray:
    """The column as seconds since 1970 in UTC, NaN where the value is missing."""
    values = _decoded(table.column(name))
    if not (pa.types.is_timestamp(values.type) or pa.types.is_date(values.type)):
        words = _texts(table, name)
        if not pc.all(pc.match_substring_regex(words, _PLAIN_MOMENT)).as_py():
            return _distinct_dates(words, name)
        try:
            values = words.cast(pa.timestamp("us"))
        except pa.ArrowInvalid:
            return _distinct_dates(words, name)
    counts, per = _counts(values)
    missing = np.asarray(counts.is_null())
    whole, rest = np.divmod(np.asarray(counts.drop_null()), per)
    read = np.full(len(missing), np.nan)
    read[~missing] = whole.astype(np.float64) + rest / per
    return read


def _distinct_dates(words: pa.ChunkedArray, name: str) -> np.ndarray:
    parts = pc.dictionary_encode(_joined(words), null_encoding="encode")
    distinct, indices = parts.dictionary.to_pylist(), np.asarray(parts.indices)
    found = [None if word is None else moment(word) for word in distinct]
    pairs = zip(distinct, found, strict=True)
    bad = np.array([each is None and word is not None for word, each in pairs], dtype=bool)
    if bad.any():
        row = int(bad[indices].argmax())
        raise DataError(
            f"Column {name!r}, row {row + 1}: {_held(words[row])}not a date. Expected an ISO date "
            f"or time such as 2024-01-31 or 2024-01-31T12:00:00, or nothing, NA or NaN for a "
            f"missing one; correct it, or declare the column as a category."
        )
    seconds = [np.nan if each is None else moment_seconds(each) for each in found]
    read: np.ndarray = np.array(seconds)[indices]
    return read


def _held(word: Any) -> str:
    """What a cell without a text holds, for an error about it."""
    text = word.as_py()
    return f"{text[1:]}, " if text in (BINARY, NESTED, UNREADABLE) else ""


def _literal(text: str) -> Any:
    data = text.encode()
    ends = pa.py_buffer(np.array([0, len(data)], dtype=np.int64))
    return pa.LargeStringArray.from_buffers(1, ends, pa.py_buffer(data))[0]


def _decoded(values: pa.ChunkedArray) -> pa.ChunkedArray:
    if not pa.types.is_dictionary(values.type):
        return values
    decoded = pa.chunked_array(
        [chunk.dictionary_decode() for chunk in values.chunks], values.type.value_type
    )
    return _decoded(decoded)


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


def _joined(values: Any) -> pa.Array:
    joined = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
    return pa.concat_arrays(joined.chunks) if isinstance(joined, pa.ChunkedArray) else joined


def _as_numpy(values: pa.ChunkedArray) -> np.ndarray:
    found, start = np.empty(len(values)), 0
    for chunk in values.chunks if isinstance(values, pa.ChunkedArray) else [values]:
        # Nulls become NaN.
        found[start : start + len(chunk)] = chunk.to_numpy(zero_copy_only=False)
        start += len(chunk)
    return found
