"""The Adult census of UCI: embedded in the package, and from the published files.

Rows and their order are as published. Values are trimmed, "?" becomes a missing value, and the
labels of the test part lose their full stop, so that both parts read alike.
"""

from __future__ import annotations

from importlib import resources
from pathlib import Path

import pyarrow as pa

from halfmask.datasets.files import check_sha256, read_published
from halfmask.reading import read_csv
from halfmask.schema import Schema

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
    import lzma

    packed = (resources.files(__package__) / "data" / name).read_bytes()
    return read_csv(check_sha256(lzma.decompress(packed), sha256, name), name)
