"""The embedded Adult census, and how published files are found and checked.

A folder of published files is passed, or named by HALFMASK_DATA.
"""

from __future__ import annotations

import bz2
import gzip
import hashlib
import lzma
import os
import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path

import numpy as np
import pyarrow as pa

from halfmask.data.reading import read_csv
from halfmask.errors import DataError
from halfmask.schema import Schema
from halfmask.table import Encoder, Table

# --- Published data files, found in a folder and checked by the hash of their unpacked content.


SHA256 = {
    "a9a": "f5d5ffd8d865ff41328e7ee043e4b020816914ff6843ff15b98905ddbedce906",
    "a9a.t": "1f448a153f0320399a7e40836eb207655b0bde0f21fc941cc472193daa9f5de9",
    "adult.data": "5b00264637dbfec36bdeaab5676b0b309ff9eb788d63554ca0a249491c86603d",
    "adult.test": "a2a9044bc167a35b2361efbabec64e89d69ce82d9790d2980119aac5fd7e9c05",
    "bank.csv": "fe206a9d6ece69fd8b31cd1f30af596a20dd95b6df77ac14239adbdacccf8eff",
    "default.csv": "6d26abae2f7d5b62221249b9235a5e96e27283d1571a496418a4811bdb24290d",
    "diabetes.csv": "893459ce888c40e0d13e90f595d5c877fc15ddfc08161e8dd686bfb3e395507e",
    "location30.csv": "2ca8f7fc231251e089823e44d39f2d1eed124574cc351c7f80368cfe631dd718",
    "visits.csv": "7bb133ac6262b6a25f0fc91c6c8f5046802f9aa3295e8403f4083da00564b8af",
    "mnist-train-images-idx3-ubyte": (
        "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db"
    ),
    "mnist-train-labels-idx1-ubyte": (
        "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5"
    ),
    "mnist-t10k-images-idx3-ubyte": (
        "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7"
    ),
    "mnist-t10k-labels-idx1-ubyte": (
        "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2"
    ),
}

_UNPACK: dict[str, Callable[[bytes], bytes]] = {
    "": lambda content: content,
    ".xz": lzma.decompress,
    ".gz": gzip.decompress,
    ".bz2": bz2.decompress,
}


@dataclass(frozen=True, kw_only=True, eq=False)
class Split:
    """Training and test rows; `x_*` is dense or a scipy CSR matrix, as the loader says."""

    x_train: np.ndarray
    y_train: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray


def data_dir(folder: str | Path | None) -> Path:
    """The folder given, or the one that HALFMASK_DATA names."""
    chosen = folder or os.environ.get("HALFMASK_DATA")
    if not chosen:
        raise DataError(
            "No folder of data files was given: pass one, or set HALFMASK_DATA to a folder that "
            "holds the published files."
        )
    if not Path(chosen).is_dir():
        raise DataError(f"{chosen} is not a folder: pass the folder that holds the data files.")
    return Path(chosen)


def decompressed(file: Path) -> bytes:
    """The content of a file, decompressed by its suffix."""
    unpack = _UNPACK.get(file.suffix, _UNPACK[""])
    try:
        return unpack(file.read_bytes())
    except (OSError, EOFError, lzma.LZMAError, zlib.error, ValueError):
        raise DataError(f"{file} cannot be read or unpacked: copy it again.") from None


def find_file(folder: Path, name: str) -> Path:
    """The file `name` of a folder, plain or packed."""
    for suffix in _UNPACK:
        file = folder / f"{name}{suffix}"
        if file.is_file():
            return file
    raise DataError(f"{folder} has no file {name} (nor {name}.xz, .gz or .bz2): put it there.")


def check_sha256(content: bytes, expected: str, name: str) -> bytes:
    """The content, if it is what was published."""
    if hashlib.sha256(content).hexdigest() != expected:
        raise DataError(f"{name} is not the published file (its SHA-256 differs): fetch it again.")
    return content


def read_published(folder: str | Path | None, name: str) -> bytes:
    """The unpacked content of a published file, checked against its hash."""
    file = find_file(data_dir(folder), name)
    return check_sha256(decompressed(file), SHA256[name], str(file))


# --- The Adult census of UCI: embedded in the package, and from the published files.
# Rows and their order are as published. Values are trimmed, "?" becomes a missing value, and the
# labels of the test part lose their full stop, so that both parts read alike.


COLUMNS = (
    "age",
    "workclass",
    "fnlwgt",
    "education",
    "education-num",
    "marital-status",
    "occupation",
    "relationship",
    "race",
    "sex",
    "capital-gain",
    "capital-loss",
    "hours-per-week",
    "native-country",
    "income",
)

_EMBEDDED = {
    "adult-train.csv.xz": "5138b5b5c98caed85f1d168fa268339cfe6e9d033c3957515ab3a00396877174",
    "adult-test.csv.xz": "db06b64a90951207cb7afb8d792ba8d327c2d8a78679ce5145157a8ec753ae4f",
}


def load_adult() -> tuple[pa.Table, pa.Table, Schema]:
    """The embedded census: 32,561 training rows, 16,281 test rows, and a schema for them."""
    train, test = (_embedded(name, sha256) for name, sha256 in _EMBEDDED.items())
    with resources.as_file(resources.files(__package__) / "data" / "adult.toml") as path:
        return train, test, Schema.from_toml(path)


def load_adult_files(folder: str | Path | None = None) -> tuple[pa.Table, pa.Table]:
    """Training and test rows from the published `adult.data` and `adult.test`."""
    parts = ("adult.data", "adult.test")
    train, test = (normalised(read_published(folder, part)) for part in parts)
    return read_csv(train, parts[0]), read_csv(test, parts[1])


def normalised(published: bytes) -> bytes:
    """The published text as a CSV with a header, which is what the package embeds."""
    rows = [",".join(COLUMNS)]
    for line in published.decode("utf-8").splitlines():
        values = [value.strip() for value in line.split(",")]
        if len(values) == len(COLUMNS):
            values[-1] = values[-1].rstrip(".")
            rows.append(",".join("" if value == "?" else value for value in values))
    return ("\n".join(rows) + "\n").encode()


def _embedded(name: str, sha256: str) -> pa.Table:
    packed = (resources.files(__package__) / "data" / name).read_bytes()
    return read_csv(check_sha256(lzma.decompress(packed), sha256, name), name)


def all_private(schema: Schema) -> Schema:
    """`schema` with every column and the label private."""
    columns = tuple(replace(column, role="private") for column in schema.columns)
    return replace(schema, label=replace(schema.label, role="private"), columns=columns)


def adult_roles() -> dict[str, Schema]:
    """Nested role sets of Adult: every column that one makes public is public in the next."""
    half = load_adult()[2]
    everything = replace(
        half, columns=tuple(replace(column, role="public") for column in half.columns)
    )
    return {
        "nothing public": all_private(half),
        "half of the columns public": half,
        "all columns public, label private": everything,
    }


def adult_tables(data: Path | None, schema: Schema) -> tuple[Encoder, Table, Table]:
    """Adult encoded by `schema`: the published files in `data`, or the embedded copy of them."""
    train_frame, test_frame, _ = load_adult()
    if data is not None:
        train_frame, test_frame = load_adult_files(data)
    encoder = Encoder.fit(schema, train_frame)
    return encoder, encoder.encode(train_frame), encoder.encode(test_frame)


__all__ = ["Split", "adult_roles", "adult_tables", "all_private", "load_adult", "load_adult_files"]
