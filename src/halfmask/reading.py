"""CSV and Parquet files as pyarrow tables, with errors that name file, row and remedy.

A CSV is read as text throughout, so that "01" stays "01" until the schema says it is a number. No
error quotes a cell: the reader does not know which columns are private.
"""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.csv

from halfmask.errors import DataError

_PARQUET_MAGIC = b"PAR1"


def read_frame(path: str | Path) -> pa.Table:
    """The file as a table: Parquet by its first bytes, anything else as CSV with a header."""
    file = Path(path)
    try:
        with file.open("rb") as stream:
            start = stream.read(len(_PARQUET_MAGIC))
    except OSError as error:
        raise DataError(f"Cannot read {file}: {error.strerror}. Check the path.") from None
    if not start:
        raise DataError(f"{file} is empty: expected a header line and at least one row.")
    if start == _PARQUET_MAGIC:
        return _read_parquet(file)
    return read_csv(file.read_bytes() if file.suffix != ".gz" else _unpacked(file), str(file))


def is_parquet(path: str | Path) -> bool:
    """Whether the file starts like Parquet; a file that cannot be opened does not."""
    try:
        with Path(path).open("rb") as stream:
            return stream.read(len(_PARQUET_MAGIC)) == _PARQUET_MAGIC
    except OSError:
        return False


def parquet_rows(path: str | Path) -> int:
    """The number of rows of a Parquet file, from its footer."""
    from pyarrow import parquet

    try:
        return int(parquet.read_metadata(path).num_rows)
    except (pa.ArrowException, OSError):
        raise DataError(
            f"{path} starts like a Parquet file but cannot be read as one: write it again."
        ) from None


def read_csv(content: bytes, name: str) -> pa.Table:
    """CSV text as a table of text columns; `name` is what errors call the file."""
    header, delimiter = _header(content, name)
    _check_names([column.strip() for column in header], name)
    broken: list[pa.csv.InvalidRow] = []

    def note(row: pa.csv.InvalidRow) -> str:
        broken.append(row)
        return "error"

    try:
        table = pa.csv.read_csv(
            pa.BufferReader(content),
            # Row numbers in errors are known only without threads.
            read_options=pa.csv.ReadOptions(use_threads=False),
            parse_options=pa.csv.ParseOptions(
                delimiter=delimiter,
                newlines_in_values=True,
                invalid_row_handler=note,
                # A blank line of a one-column file is a row whose only value is missing.
                ignore_empty_lines=len(header) > 1,
            ),
            convert_options=pa.csv.ConvertOptions(
                column_types=dict.fromkeys(header, pa.string()),
                strings_can_be_null=False,
                check_utf8=True,
            ),
        )
    except pa.ArrowInvalid as error:
        raise _csv_error(str(error), broken, name, content) from None
    if table.num_columns != len(header):
        raise DataError(f"{name}: the header line cannot be read: check its quotes.")
    return _checked(table.rename_columns([column.strip() for column in header]), name)


def _unpacked(file: Path) -> bytes:
    import gzip
    import zlib

    try:
        return gzip.decompress(file.read_bytes())
    except (OSError, EOFError, zlib.error):
        raise DataError(f"{file} is not a valid gzip file: copy it again.") from None


def _read_parquet(file: Path) -> pa.Table:
    from pyarrow import parquet

    try:
        _check_names(parquet.read_schema(file).names, str(file))
        return _checked(parquet.read_table(file), str(file))
    except (pa.ArrowException, OSError):
        raise DataError(
            f"{file} starts like a Parquet file but cannot be read as one: write it again."
        ) from None


def _header(content: bytes, name: str) -> tuple[list[str], str]:
    """The column names and the delimiter: the most frequent of comma, semicolon and tab."""
    try:
        text = io.TextIOWrapper(io.BytesIO(content), encoding="utf-8-sig", newline="")
        line = next((line for line in text if line.strip()), "")
        if not line:
            raise DataError(f"{name} is empty: expected a header line and at least one row.")
        delimiter = max((",", ";", "\t"), key=line.count)
        record = next(csv.reader(_then(line, text), delimiter=delimiter, strict=True))
    except UnicodeDecodeError:
        raise _not_utf8(name, content) from None
    except csv.Error:
        raise DataError(f"{name}: the header line cannot be read: check its quotes.") from None
    return record, delimiter


def _then(first: str, rest: Iterable[str]) -> list[str]:
    """The header's lines: a quoted name may run over more than one."""
    lines = [first]
    for line in rest:
        if sum(part.count('"') for part in lines) % 2 == 0:
            break
        lines.append(line)
    return lines


def _check_names(names: Sequence[str], name: str) -> None:
    twice = [column for column, count in Counter(names).items() if count > 1]
    if twice:
        raise DataError(f"{name} has the column {twice[0]!r} twice: rename or remove one of them.")


def _checked(table: pa.Table, name: str) -> pa.Table:
    if table.num_rows == 0:
        raise DataError(f"{name} has a header but no data rows: add at least one row.")
    return table


def _csv_error(
    message: str, broken: Sequence[pa.csv.InvalidRow], name: str, content: bytes
) -> DataError:
    """A friendly error; the reader's own message quotes the row, so only its kind is used."""
    if "UTF8" in message:
        return _not_utf8(name, content)
    if broken:
        row = broken[0]
        where = "" if row.number is None else f", data row {row.number - 1}"
        return DataError(
            f"{name}{where}: expected {row.expected_columns} values as in the header, got "
            f"{row.actual_columns}. Check for a missing or extra delimiter or an unclosed quote."
        )
    return DataError(f"{name} is not a CSV file that can be read: check delimiters and quotes.")


def _not_utf8(name: str, content: bytes) -> DataError:
    try:
        content.decode("utf-8")
        line = 1
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
    return DataError(f"{name}, line {line}: not UTF-8 text. Save the file as UTF-8.")
