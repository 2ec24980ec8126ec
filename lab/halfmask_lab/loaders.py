"""Published data sets, each checked against its hash before it is read."""

from __future__ import annotations

import io
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
from sklearn.datasets import load_svmlight_file

from halfmask.data.reading import read_csv
from halfmask.datasets import Split, data_dir, decompressed, find_file, read_published
from halfmask.errors import DataError
from halfmask.schema import Schema

LOCATION_COLUMNS, LOCATION_CLASSES = 446, 30
PURCHASE_COLUMNS, PURCHASE_CLASSES = 600, 100
_SHUFFLE_SEED, _KINDS = 100, 3
_CLASS_SPREAD, _KIND_SPREAD = 0.55, 0.8


def _split(train: tuple[Any, np.ndarray], test: tuple[Any, np.ndarray]) -> Split:
    return Split(x_train=train[0], y_train=train[1], x_test=test[0], y_test=test[1])


def load_location30(folder: str | Path | None = None) -> tuple[np.ndarray, np.ndarray]:
    """5,010 rows of 446 binary columns (uint8), and labels 0..29 (int64)."""
    name = "location30.csv"
    return _parse_binary(read_published(folder, name), LOCATION_COLUMNS, LOCATION_CLASSES, name)


def load_purchase100(path: str | Path) -> tuple[np.ndarray, np.ndarray]:
    """The published `dataset_purchase`: rows of 600 binary columns (uint8), labels 0..99 (int64).

    Its hash is not known here; columns, values and labels are checked instead.
    """
    file = Path(path)
    return _parse_binary(decompressed(file), PURCHASE_COLUMNS, PURCHASE_CLASSES, str(file))


def make_purchase_like(rows: int) -> tuple[np.ndarray, np.ndarray]:
    """A stand-in for Purchase100: rows of 600 binary columns (uint8), labels 0..99 (int64).

    Every column has a popularity; every class buys some things more often and others less, and so
    do the three kinds of buyers of each class. Accuracies on it say how methods compare, not what
    they reach on the real table, and it is never called by its name.
    """
    # RandomState's stream is frozen by numpy, so that the table is the same everywhere.
    draw = np.random.RandomState(_SHUFFLE_SEED)
    popularity = draw.beta(1.0, 4.0, PURCHASE_COLUMNS).clip(0.005, 0.95)
    base = np.log(popularity / (1 - popularity))
    classes = base + _CLASS_SPREAD * draw.standard_normal((PURCHASE_CLASSES, PURCHASE_COLUMNS))
    kinds = _KIND_SPREAD * draw.standard_normal((PURCHASE_CLASSES, _KINDS, PURCHASE_COLUMNS))
    labels = draw.randint(0, PURCHASE_CLASSES, rows).astype(np.int64)
    kind = draw.randint(0, _KINDS, rows)
    values = np.empty((rows, PURCHASE_COLUMNS), dtype=np.uint8)
    for start in range(0, rows, 4096):
        some = slice(start, start + 4096)
        odds = classes[labels[some]] + kinds[labels[some], kind[some]]
        values[some] = draw.random_sample(odds.shape) < 1 / (1 + np.exp(-odds))
    return values, labels


def _parse_binary(
    content: bytes, columns: int, classes: int, name: str
) -> tuple[np.ndarray, np.ndarray]:
    wrong = DataError(
        f"{name} is not in the published format: expected a label 1..{classes}, then {columns} "
        f"values 0 or 1, in every row."
    )
    names = [f"x{index}" for index in range(columns + 1)]
    try:
        table = pa.csv.read_csv(
            pa.BufferReader(content),
            read_options=pa.csv.ReadOptions(column_names=names),
            convert_options=pa.csv.ConvertOptions(
                column_types=dict.fromkeys(names, pa.uint8()), null_values=[]
            ),
        )
    except pa.ArrowInvalid:
        raise wrong from None
    rows = np.empty((table.num_rows, columns), dtype=np.uint8)
    for index in range(columns):
        rows[:, index] = np.asarray(table.column(index + 1))
    labels = np.asarray(table.column(0)).astype(np.int64) - 1
    if rows.max(initial=0) > 1 or labels.min(initial=0) < 0 or labels.max(initial=0) >= classes:
        raise wrong
    return rows, labels


# --- MNIST in IDX format.


_UNSIGNED_BYTE = 8


def load_mnist(folder: str | Path | None = None) -> Split:
    """60,000 and 10,000 rows of 784 pixels 0..255 (uint8), and digits (int64)."""
    parts = []
    for part in ("train", "t10k"):
        images = read_idx(read_published(folder, f"mnist-{part}-images-idx3-ubyte"))
        labels = read_idx(read_published(folder, f"mnist-{part}-labels-idx1-ubyte"))
        parts.append((images.reshape(len(images), -1), labels.astype(np.int64)))
    return _split(*parts)


def read_idx(content: bytes) -> np.ndarray:
    """An array of bytes in IDX format: two zeros, the type, the rank, the sizes, the values."""
    if len(content) < 4 or content[:2] != b"\0\0" or content[2] != _UNSIGNED_BYTE:
        raise DataError("Not an IDX file of bytes: fetch it again.")
    rank = content[3]
    start = 4 + 4 * rank
    if len(content) < start:
        raise DataError("An IDX file is cut off: fetch it again.")
    shape = struct.unpack(f">{rank}I", content[4:start])
    values = np.frombuffer(content, dtype=np.uint8, offset=start)
    if values.size != int(np.prod(shape)):
        raise DataError("An IDX file does not hold as many values as it says: fetch it again.")
    return values.reshape(shape)


# --- Data sets in LIBSVM format: a9a, and gisette, the real one or one by its published recipe.


A9A_COLUMNS = 123
GISETTE_COLUMNS = 5000
GISETTE_ROWS = (6000, 1000)
REAL_FEATURES = 2500
ROWS_PER_DIGIT = {"train": 3000, "test": 500}
_SEED = 49
_PIXEL_ROWS, _PIXEL_COLUMNS = range(4, 20), range(5, 23)


def load_a9a(folder: str | Path | None = None) -> Split:
    """a9a: 32,561 and 16,281 rows of 123 binary features (CSR), labels -1 and +1 (int64).

    Rows are those of Adult, in the same order.
    """
    names = ("a9a", "a9a.t")
    return _split(*(_parse_libsvm(read_published(folder, n), A9A_COLUMNS, n) for n in names))


def load_gisette(folder: str | Path | None = None) -> Split:
    """The published `gisette_scale` and `gisette_scale.t`: 6,000 and 1,000 dense rows of 5,000.

    Its hash is not known here, so that the number of rows and columns is what is checked.
    """
    parts = []
    for name, rows in zip(("gisette_scale", "gisette_scale.t"), GISETTE_ROWS, strict=True):
        file = find_file(data_dir(folder), name)
        x, y = _parse_libsvm(decompressed(file), GISETTE_COLUMNS, str(file))
        if len(y) != rows:
            raise DataError(f"{file} has {len(y)} rows, the published file {rows}: fetch it again.")
        parts.append((x.toarray(), y))
    return _split(*parts)


def _parse_libsvm(content: bytes, columns: int, name: str) -> tuple[Any, np.ndarray]:
    try:
        x, y = load_svmlight_file(io.BytesIO(content), n_features=columns, zero_based=False)
    except (ValueError, UnicodeDecodeError):
        raise DataError(f"{name} is not in LIBSVM format with {columns} columns.") from None
    return x, y.astype(np.int64)


def load_gisette_rebuilt(folder: str | Path | None = None) -> Split:
    """gisette's recipe, applied to MNIST: 6,000 and 1,000 dense rows of 5,000 features in [-1, 1].

    gisette (NIPS 2003 feature selection challenge) separates the digits 4 (-1) and 9 (+1) by 2,500
    features made of pixels from the middle top of the image and of products of such pixels, hidden
    among 2,500 probes that have the features' distribution and no relation to the digit. The real
    choice of pixels and pairs was not published, so this is another draw of the same recipe and
    never called gisette. The first rows of each digit are taken, then everything is drawn from one
    fixed seed.
    """
    mnist = load_mnist(folder)
    # RandomState's stream is frozen by numpy, so that the table is the same everywhere.
    draw = np.random.RandomState(_SEED)
    pixels = np.array([28 * row + column for row in _PIXEL_ROWS for column in _PIXEL_COLUMNS])
    pairs = draw.choice(pixels, size=(REAL_FEATURES - len(pixels), 2))
    order = draw.permutation(2 * REAL_FEATURES)
    parts = []
    for part, x, y in (
        ("train", mnist.x_train, mnist.y_train),
        ("test", mnist.x_test, mnist.y_test),
    ):
        chosen = np.concatenate([np.flatnonzero(y == d)[: ROWS_PER_DIGIT[part]] for d in (4, 9)])
        chosen = draw.permutation(chosen)
        features = _with_probes(x[chosen] / 255.0, pixels, pairs, draw)
        parts.append(
            (np.ascontiguousarray(features[:, order]) * 2 - 1, np.where(y[chosen] == 9, 1, -1))
        )
    return _split(*parts)


def _with_probes(
    images: np.ndarray, pixels: np.ndarray, pairs: np.ndarray, draw: np.random.RandomState
) -> np.ndarray:
    """Pixels and products, then a copy of each of these columns with its rows permuted."""
    features = np.empty((len(images), 2 * REAL_FEATURES), order="F")
    features[:, : len(pixels)] = images[:, pixels]
    features[:, len(pixels) : REAL_FEATURES] = images[:, pairs[:, 0]] * images[:, pairs[:, 1]]
    for index in range(REAL_FEATURES):
        features[:, REAL_FEATURES + index] = features[draw.permutation(len(images)), index]
    return features


# --- Tables of people as published, each with a schema beside it: bank, default, diabetes, visits.
# The schema states what a code book would: bounds, categories, and one half-masked set of roles.


PEOPLE = ("bank", "default", "diabetes", "visits")


def load_people(name: str, folder: str | Path | None = None) -> tuple[pa.Table, Schema]:
    """The rows of `tables/NAME.csv` in the data folder, and the schema `tables/NAME.toml`."""
    tables = data_dir(folder) / "tables"
    rows = read_csv(read_published(tables, f"{name}.csv"), f"{name}.csv")
    return rows, Schema.from_toml(tables / f"{name}.toml")
