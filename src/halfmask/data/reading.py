"""CSV files, Parquet files and folders of these as tables; errors name file, row and remedy.

A CSV is read as text throughout, so that "01" stays "01" until the schema says it is a number. No
error quotes a cell: the reader does not know which columns are private.
"""

from __future__ import annotations

import bisect
import csv
import io
import os
import re
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.ipc
from pyarrow import parquet

from halfmask.data.spool import at_hand
from halfmask.errors import DataError
from halfmask.progress import tell

_PARQUET_MAGIC = b"PAR1"
_OFFICE_MAGIC = (b"PK\x03\x04", b"\xd0\xcf\x11\xe0")  # xlsx and ods are zip files; xls is older
_NOT_TEXT = {
    b"\x1f\x8b": "is packed by gzip: let its name end in .gz, or unpack it.",
    b"\xfd7zXZ": "is packed by xz: unpack it.",
    b"BZh": "is packed by bzip2: unpack it.",
    b"\x28\xb5\x2f\xfd": "is packed by zstd: unpack it.",
    b"ARROW1": "is an Arrow (Feather) file: write it as Parquet or CSV.",
}
# Rows decoded at once: enough for the work per piece to count, few enough for little memory.
_PIECE = 1 << 15
# A larger CSV is converted piece by piece, a smaller one read whole.
_LARGE_CSV = 1 << 26
_CSV_BLOCK = 1 << 23
_ROW = re.compile(r"', row (\d+)")


class FileRows:
    """The rows of an open file: whole columns, or all rows piece by piece; none is held."""

    def __init__(self, names: Sequence[str], num_rows: int) -> None:
        self.column_names = list(names)
        self.num_rows = num_rows

    def columns(self, names: Sequence[str]) -> pa.Table:
        """The columns `names` of all rows."""
        pieces = [piece for _, piece in self.pieces(names)]
        return pa.concat_tables(pieces) if pieces else pa.table({})

    def pieces(self, names: Sequence[str]) -> Iterator[tuple[int, pa.Table]]:
        """The columns `names`, piece by piece, with the position of each piece's first row."""
        start = 0
        for batch in self._batches(list(names)):
            if start + batch.num_rows > self.num_rows:
                break
            yield start, pa.Table.from_batches([batch]).select(list(names))
            start += batch.num_rows
            tell("reading rows", start / max(self.num_rows, 1))
        if start != self.num_rows:
            raise DataError(
                f"The file names {self.num_rows} rows and holds another number: write it again."
            )

    def part(self, own: range) -> FileRows:
        """Some of the rows, one after the other."""
        return _PartRows(self, own)

    def _batches(self, names: list[str]) -> Iterator[pa.RecordBatch]:
        raise NotImplementedError


class _PartRows(FileRows):
    def __init__(self, rows: FileRows, own: range) -> None:
        super().__init__(rows.column_names, len(own))
        self._rows, self._own = rows, own

    def _batches(self, names: list[str]) -> Iterator[pa.RecordBatch]:
        start = 0
        for batch in self._rows._batches(names):
            low = max(self._own.start - start, 0)
            high = min(self._own.stop - start, batch.num_rows)
            if low < high:
                yield batch.slice(low, high - low)
            start += batch.num_rows
            if start >= self._own.stop:
                return


class _ParquetRows(FileRows):
    def __init__(self, file: Any, path: Path) -> None:
        super().__init__(file.schema_arrow.names, file.metadata.num_rows)
        self._file, self._path = file, path

    def _batches(self, names: list[str]) -> Iterator[pa.RecordBatch]:
        batches = self._file.iter_batches(batch_size=_PIECE, columns=names)
        while True:
            try:
                batch = next(batches, None)
            except (pa.ArrowException, OSError):
                raise _not_parquet(self._path) from None
            if batch is None:
                return
            yield batch


class _FolderRows(FileRows):
    """The rows of all Parquet files of a folder, file by file in the order of their names.

    One file is open at a time.
    """

    def __init__(self, folder: Path) -> None:
        self._files = _parquet_files(folder)
        first = _parquet_schema(self._files[0])
        self._ends: list[int] = []
        count = 0
        for file in self._files:
            _check_same(first, _parquet_schema(file), self._files[0], file)
            with _opened_parquet(file) as rows:
                count += rows.num_rows
            self._ends.append(count)
        _check_rows(count, str(folder))
        super().__init__(first.names, count)

    def _batches(self, names: list[str]) -> Iterator[pa.RecordBatch]:
        for file in self._files:
            with _opened_parquet(file) as rows:
                yield from rows._batches(names)

    def named(self, error: DataError) -> DataError:
        """The error with the file of the row it is about, and the row's number in that file."""

        def place(found: re.Match[str]) -> str:
            row = int(found[1])
            at = bisect.bisect_left(self._ends, row)
            if at == len(self._files):
                return found[0]
            before = self._ends[at - 1] if at else 0
            return f"{found[0]} (row {row - before} of {self._files[at].name})"

        return DataError(_ROW.sub(place, str(error), count=1))


def _parquet_files(folder: Path) -> list[Path]:
    """The folder's files; names that start with a dot or an underscore are notes of other tools."""
    found = sorted(file for file in folder.iterdir() if file.name[0] not in "._")
    for file in found:
        if not is_parquet(file):
            raise DataError(
                f"{folder} holds {file.name!r}, which is not a Parquet file: a folder is read as "
                "the rows of all its Parquet files. Move it elsewhere."
            )
    if not found:
        raise DataError(f"Cannot read {folder}: it holds no Parquet file. Check the path.")
    return found


def _parquet_schema(file: Path) -> pa.Schema:
    try:
        schema = parquet.read_schema(file)
        names = schema.names
    except UnicodeDecodeError:
        raise DataError(
            f"{file} has a column whose name is not UTF-8 text: write the file with other names."
        ) from None
    except (pa.ArrowException, OSError):
        raise _not_parquet(file) from None
    _check_names(names, str(file))
    return schema


def _check_same(first: pa.Schema, other: pa.Schema, first_file: Path, file: Path) -> None:
    """Refuse files that are not parts of one table."""
    for name in sorted({*first.names} ^ {*other.names}):
        has, lacks = (first_file, file) if name in first.names else (file, first_file)
        raise DataError(
            f"Column {name!r} is in {has.name} but not in {lacks.name}: all files of a folder need "
            "the same columns."
        )
    for name in first.names:
        types = first.field(name).type, other.field(name).type
        if types[0] != types[1]:
            raise DataError(
                f"Column {name!r} is {types[0]} in {first_file.name} and {types[1]} in {file.name}:"
                " write all files of a folder with the same types."
            )


class _HeldRows(FileRows):
    def __init__(self, table: pa.Table) -> None:
        super().__init__(table.column_names, table.num_rows)
        self._table = table

    def columns(self, names: Sequence[str]) -> pa.Table:
        return self._table.select(list(names))

    def _batches(self, names: list[str]) -> Iterator[pa.RecordBatch]:
        yield from self._table.select(names).to_batches(max_chunksize=_PIECE)


class _ConvertedRows(FileRows):
    """A CSV as texts in a temporary file of Arrow's."""

    def __init__(self, store: IO[bytes], names: Sequence[str], num_rows: int) -> None:
        super().__init__(names, num_rows)
        self._store = store

    def _batches(self, names: list[str]) -> Iterator[pa.RecordBatch]:
        fields = sorted(self.column_names.index(name) for name in names)
        self._store.seek(0)
        options = pa.ipc.IpcReadOptions(included_fields=fields)
        reader = pa.ipc.open_stream(pa.PythonFile(self._store, mode="r"), options=options)
        yield from reader


@contextmanager
def _opened_parquet(file: Path) -> Iterator[_ParquetRows]:
    _parquet_schema(file)  # names that cannot be read, in words of ours
    try:
        # A buffer, since row groups may be as large as the file.
        opened = parquet.ParquetFile(file, buffer_size=1 << 18, pre_buffer=False)
    except (pa.ArrowException, OSError):
        raise _not_parquet(file) from None
    with opened:
        yield _ParquetRows(opened, file)


@contextmanager
def open_rows(path: str | Path) -> Iterator[FileRows]:
    """The rows of a file or folder (see `read_frame`) that may be larger than memory."""
    file = at_hand(path)
    if os.path.isdir(file):  # unlike Path's, false where the name is too long for one
        rows_of_all = _FolderRows(file)
        try:
            yield rows_of_all
        except DataError as error:
            raise rows_of_all.named(error) from None
        return
    if is_parquet(file):
        with _opened_parquet(file) as found:
            _check_names(found.column_names, str(file))
            _check_rows(found.num_rows, str(file))
            yield found
        return
    if not os.path.isfile(file) or file.stat().st_size < _LARGE_CSV:
        yield _HeldRows(read_frame(file))
        return
    with tempfile.TemporaryFile() as store:
        try:
            rows = _converted(file, store)
        except (pa.ArrowException, DataError):
            # Read whole, it says where the error is; or it has a row longer than a piece.
            rows = None
        yield rows or _HeldRows(read_frame(file))


def _converted(file: Path, store: IO[bytes]) -> FileRows:
    """The CSV written to `store` piece by piece. It has no name, so nobody else can open it."""
    compression = "gzip" if file.suffix == ".gz" else None
    with pa.input_stream(file, compression=compression) as stream:
        header, delimiter = _header(stream.read(1 << 20), str(file))
    names = [column.strip() for column in header]
    _check_names(names, str(file))
    schema = pa.schema([(name, pa.string()) for name in names])
    count, size = 0, file.stat().st_size
    with (
        pa.input_stream(file, compression=compression) as stream,
        pa.csv.open_csv(stream, **_csv_options(header, delimiter, block_size=_CSV_BLOCK)) as reader,
        pa.ipc.new_stream(pa.PythonFile(store, mode="w"), schema) as written,
    ):
        if len(reader.schema) != len(header):
            raise DataError("the header line cannot be read")
        for batch in reader:
            written.write_batch(pa.RecordBatch.from_arrays(batch.columns, schema=schema))
            count += batch.num_rows
            tell("reading the file", stream.tell() / size if compression is None else 0.5)
    _check_rows(count, str(file))
    return _ConvertedRows(store, names, count)


def read_frame(path: str | Path) -> pa.Table:
    """The file as a table: Parquet by its first bytes, anything else as CSV with a header.

    A folder is the rows of all its Parquet files, in the order of their names; `-` is standard
    input.
    """
    file = at_hand(path)
    if os.path.isdir(file):  # unlike Path's, false where the name is too long for one
        with open_rows(file) as rows:
            return rows.columns(rows.column_names)
    try:
        with file.open("rb") as stream:
            start = stream.read(len(_PARQUET_MAGIC))
    except OSError as error:
        raise DataError(f"Cannot read {file}: {error.strerror}. Check the path.") from None
    if not start:
        raise DataError(f"{file} is empty: expected a header line and at least one row.")
    if start == _PARQUET_MAGIC:
        return _read_parquet(file)
    if start in _OFFICE_MAGIC:
        raise DataError(
            f"{file} is a spreadsheet or an archive, not a table of text: open it and save the "
            "sheet as CSV (UTF-8)."
        )
    try:
        return read_csv(file.read_bytes() if file.suffix != ".gz" else _unpacked(file), str(file))
    except DataError:
        if file.suffix not in (".parquet", ".pq"):
            raise
        raise DataError(
            f"{file} is named like a Parquet file and is none, nor a CSV that can be read: write "
            "it again."
        ) from None


def column_names(path: str | Path) -> list[str]:
    """The names of a file's columns; no row is read."""
    file = at_hand(path)
    try:
        if is_parquet(file):
            names = list(_parquet_schema(file).names)
        else:
            compression = "gzip" if file.suffix == ".gz" else None
            with pa.input_stream(str(file), compression=compression) as stream:
                names = [name.strip() for name in _header(stream.read(1 << 20), str(file))[0]]
    except DataError:
        raise
    except (pa.ArrowException, OSError):
        names = list(read_frame(file).column_names)  # it says what is wrong
    _check_names(names, str(file))
    return names


def is_parquet(path: str | Path) -> bool:
    """Whether the file starts like Parquet; a file that cannot be opened does not."""
    try:
        with at_hand(path).open("rb") as stream:
            return stream.read(len(_PARQUET_MAGIC)) == _PARQUET_MAGIC
    except OSError:
        return False


def read_csv(content: bytes, name: str) -> pa.Table:
    """CSV text as a table of text columns; `name` is what errors call the file."""
    header, delimiter = _header(content, name)
    _check_names([column.strip() for column in header], name)
    options = _csv_options(header, delimiter)
    try:
        table = pa.csv.read_csv(pa.BufferReader(content), **options)
    except pa.ArrowInvalid:
        raise _csv_error(content, name, options) from None
    if table.num_columns != len(header):
        raise DataError(f"{name}: the header line cannot be read: check its quotes.")
    _check_rows(table.num_rows, name)
    return table.rename_columns([column.strip() for column in header])


def _csv_options(
    header: list[str], delimiter: str, block_size: int | None = None
) -> dict[str, Any]:
    return {
        # Row numbers in errors are known only without threads.
        "read_options": pa.csv.ReadOptions(use_threads=False, block_size=block_size),
        "parse_options": pa.csv.ParseOptions(
            delimiter=delimiter,
            newlines_in_values=True,
            # A blank line of a one-column file is a row whose only value is missing.
            ignore_empty_lines=len(header) > 1,
        ),
        "convert_options": pa.csv.ConvertOptions(
            column_types=dict.fromkeys(header, pa.string()),
            strings_can_be_null=False,
            check_utf8=True,
        ),
    }


def _unpacked(file: Path) -> bytes:
    import gzip
    import zlib

    try:
        return gzip.decompress(file.read_bytes())
    except (OSError, EOFError, zlib.error):
        raise DataError(f"{file} is not a valid gzip file: copy it again.") from None


def _read_parquet(file: Path) -> pa.Table:
    try:
        _parquet_schema(file)
        table = parquet.read_table(file)
    except (pa.ArrowException, OSError):
        raise _not_parquet(file) from None
    _check_rows(table.num_rows, str(file))
    return table


def _not_parquet(file: str | Path) -> DataError:
    return DataError(
        f"{file} starts like a Parquet file but cannot be read as one: write it again."
    )


def _header(content: bytes, name: str) -> tuple[list[str], str]:
    """The column names and the delimiter: the most frequent of comma, semicolon, tab and bar."""
    try:
        text = io.TextIOWrapper(io.BytesIO(content), encoding="utf-8-sig", newline="")
        line = next((line for line in text if line.strip()), "")
        if not line:
            raise DataError(f"{name} is empty: expected a header line and at least one row.")
        if line.lstrip().startswith(('{"', "[{")):
            raise DataError(f"{name} seems to be JSON: write it as CSV or Parquet.")
        delimiter = max((",", ";", "\t", "|"), key=line.count)
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
    """Names by their places: of a CSV without its header they are the values of a row."""
    twice = [column for column, count in Counter(names).items() if count > 1]
    if "" in twice:
        raise DataError(
            f"{name} has columns without a name, {_places(names, '')}: name or remove them. (A "
            "spreadsheet leaves such columns at its right edge.)"
        )
    if twice:
        parts = [f"columns {_places(names, each)}" for each in twice[:8]]
        raise DataError(
            f"{name} has one name for {', and one for '.join(parts)}: rename or remove one of "
            "them. (Is the line with the names of the columns there?)"
        )


def _places(names: Sequence[str], name: str) -> str:
    found = (str(place) for place, each in enumerate(names, start=1) if each == name)
    return " and ".join(found)


def _check_rows(count: int, name: str) -> None:
    if count == 0:
        raise DataError(f"{name} has a header but no data rows: add at least one row.")


def _csv_error(content: bytes, name: str, options: dict[str, Any]) -> DataError:
    """A friendly error: read again for the row's number, as the reader's own message quotes it."""
    try:
        content.decode("utf-8")
    except UnicodeDecodeError:
        # Before the rows: the reader would print a traceback on its own where a row is not UTF-8.
        return _not_utf8(name, content)
    broken: list[pa.csv.InvalidRow] = []

    def note(row: pa.csv.InvalidRow) -> str:
        broken.append(row)
        return "error"

    options["parse_options"].invalid_row_handler = note
    with suppress(pa.ArrowInvalid):
        pa.csv.read_csv(pa.BufferReader(content), **options)
    if broken:
        row = broken[0]
        where = "" if row.number is None else f", data row {row.number - 1}"
        values = "1 value" if row.expected_columns == 1 else f"{row.expected_columns} values"
        # A title, a comment or Excel's "sep=;" above the names is found at the first row.
        above = " Is the first line the one with the names of the columns?"
        return DataError(
            f"{name}{where}: expected {values} as in the header, got {row.actual_columns}. Check "
            f"for a missing or extra delimiter or an unclosed quote.{above * (row.number == 2)}"
        )
    return DataError(f"{name} is not a CSV file that can be read: check delimiters and quotes.")


def _not_utf8(name: str, content: bytes) -> DataError:
    for start, told in _NOT_TEXT.items():
        if content.startswith(start):
            return DataError(f"{name} {told}")
    try:
        content.decode("utf-8")
        line = 1
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
    return DataError(f"{name}, line {line}: not UTF-8 text. Save the file as UTF-8.")
