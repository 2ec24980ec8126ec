"""Data sets in LIBSVM format: a9a, and the real gisette where the user has it."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np

from halfmask.datasets.files import Split, data_dir, find_file, read_published, unpacked
from halfmask.errors import DataError

A9A_COLUMNS = 123
GISETTE_COLUMNS = 5000
GISETTE_ROWS = (6000, 1000)


def load_a9a(folder: str | Path | None = None) -> Split:
    """a9a: 32,561 and 16,281 rows of 123 binary features (CSR), labels -1 and +1 (int64).

    Rows are those of Adult, in the same order.
    """
    x_train, y_train = _parse(read_published(folder, "a9a"), A9A_COLUMNS, "a9a")
    x_test, y_test = _parse(read_published(folder, "a9a.t"), A9A_COLUMNS, "a9a.t")
    return Split(x_train=x_train, y_train=y_train, x_test=x_test, y_test=y_test)


def load_gisette(folder: str | Path | None = None) -> Split:
    """The published `gisette_scale` and `gisette_scale.t`: 6,000 and 1,000 dense rows of 5,000.

    Its hash is not known here, so that the number of rows and columns is what is checked.
    """
    parts = []
    for name, rows in zip(("gisette_scale", "gisette_scale.t"), GISETTE_ROWS, strict=True):
        file = find_file(data_dir(folder), name)
        x, y = _parse(unpacked(file), GISETTE_COLUMNS, str(file))
        if len(y) != rows:
            raise DataError(f"{file} has {len(y)} rows, the published file {rows}: fetch it again.")
        parts.append((x.toarray(), y))
    (x_train, y_train), (x_test, y_test) = parts
    return Split(x_train=x_train, y_train=y_train, x_test=x_test, y_test=y_test)


def _parse(content: bytes, columns: int, name: str) -> tuple[Any, np.ndarray]:
    from sklearn.datasets import load_svmlight_file

    try:
        x, y = load_svmlight_file(io.BytesIO(content), n_features=columns, zero_based=False)
    except (ValueError, UnicodeDecodeError):
        raise DataError(f"{name} is not in LIBSVM format with {columns} columns.") from None
    return x, y.astype(np.int64)
