"""Files as users have them: every mistake is a DataError that names the file and the remedy."""

from __future__ import annotations

import gzip
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
import pytest

from halfmask.data.reading import read_frame
from halfmask.errors import DataError


def written(folder: Path, content: bytes, name: str = "people.csv") -> Path:
    path = folder / name
    path.write_bytes(content)
    return path


def read(folder: Path, content: bytes) -> dict[str, list[str]]:
    table: dict[str, list[str]] = read_frame(written(folder, content)).to_pydict()
    return table


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"a,b\n01,x\n2,y\n", {"a": ["01", "2"], "b": ["x", "y"]}),
        (b"\xef\xbb\xbfa,b\n1,2\n", {"a": ["1"], "b": ["2"]}),
        (b'a,b\n"x\ny","1,5"\n', {"a": ["x\ny"], "b": ["1,5"]}),
        (b"a;b\n1,5;2\n", {"a": ["1,5"], "b": ["2"]}),
        (b"a\tb\n1\t2\n", {"a": ["1"], "b": ["2"]}),
        (b"a, b\r\n1, 2\r\n", {"a": ["1"], "b": [" 2"]}),
        (b"a,b\n1,2\n\n3,4", {"a": ["1", "3"], "b": ["2", "4"]}),
        (b"a\n1\n\n3\n", {"a": ["1", "", "3"]}),
        (b'"a\nb",c\nNA,\n', {"a\nb": ["NA"], "c": [""]}),
    ],
    ids=["text", "bom", "quotes", "semicolon", "tab", "crlf", "blank", "one-column", "header"],
)
def test_csv_is_read_as_text(
    tmp_path: Path, content: bytes, expected: dict[str, list[str]]
) -> None:
    assert read(tmp_path, content) == expected


def test_parquet_keeps_its_types_and_gzip_is_unpacked(tmp_path: Path) -> None:
    table = pa.table({"a": [1, 2], "b": ["x", None]})
    pa.parquet.write_table(table, tmp_path / "people.bin")
    assert read_frame(tmp_path / "people.bin").equals(table)
    packed = written(tmp_path, gzip.compress(b"a,b\n1,2\n"), "people.csv.gz")
    assert read_frame(str(packed)).to_pydict() == {"a": ["1"], "b": ["2"]}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", ["is empty", "header"]),
        (b"\n\n", ["is empty"]),
        (b"a,b\n", ["no data rows"]),
        (b"a,b\n1,2\nSECRET\n", ["data row 2", "expected 2 values", "got 1"]),
        (b"a,b\n1,2\n3,4,SECRET\n", ["data row 2", "got 3"]),
        (b"a,b\n1,2\n3,\xffSECRET\n", ["line 3", "UTF-8"]),
        (b"\xff,b\n1,2\n", ["line 1", "UTF-8"]),
        (b'a,b\n"SECRET,2\n3,4\n', ["data row 1"]),
        (b'a,"b\n1,2\n', ["header", "quotes"]),
        (b"SECRET,b,SECRET \n1,2,3\n", ["one name for columns 1 and 3", "rename"]),
        (b"PAR1 but not really", ["Parquet", "write it again"]),
    ],
)
def test_a_broken_file_is_explained_without_quoting_a_cell(
    tmp_path: Path, content: bytes, words: list[str]
) -> None:
    with pytest.raises(DataError) as caught:
        read(tmp_path, content)
    assert "people.csv" in str(caught.value)
    assert "SECRET" not in str(caught.value)
    for word in words:
        assert word in str(caught.value)


def test_a_ragged_row_deep_in_a_large_file_is_numbered(tmp_path: Path) -> None:
    rows = [b"a,b"] + [b"12345,12345"] * 300_000
    rows[250_001] = b"1,2,3"
    with pytest.raises(DataError, match="data row 250001"):
        read(tmp_path, b"\n".join(rows))


def test_a_missing_file_a_folder_and_a_false_gzip_are_explained(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"Cannot read .*none\.csv: No such file"):
        read_frame(tmp_path / "none.csv")
    with pytest.raises(DataError, match="Cannot read"):
        read_frame(tmp_path)
    with pytest.raises(DataError, match="not a valid gzip"):
        read_frame(written(tmp_path, b"a,b\n1,2\n", "people.csv.gz"))


def test_parquet_without_rows_or_with_a_column_twice_is_explained(tmp_path: Path) -> None:
    empty = pa.table({"a": pa.array([], pa.int64())})
    pa.parquet.write_table(empty, tmp_path / "empty.parquet")
    with pytest.raises(DataError, match="no data rows"):
        read_frame(tmp_path / "empty.parquet")
    twice = pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"])
    pa.parquet.write_table(twice, tmp_path / "twice.parquet")
    with pytest.raises(DataError, match="one name for columns 1 and 2"):
        read_frame(tmp_path / "twice.parquet")
