"""Data sets in LIBSVM format: a9a, and gisette, the real one or one by its published recipe."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np

from halfmask.datasets.files import Split, data_dir, find_file, read_published, unpacked
from halfmask.datasets.mnist import load_mnist
from halfmask.errors import DataError

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
    (x_train, y_train), (x_test, y_test) = parts
    return Split(x_train=x_train, y_train=y_train, x_test=x_test, y_test=y_test)


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
