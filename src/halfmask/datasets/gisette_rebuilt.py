"""gisette-rebuilt: the published recipe of gisette, applied to MNIST.

gisette (NIPS 2003 feature selection challenge) separates the digits 4 and 9 by 2,500 features made
of pixels from the middle top of the image and of products of such pixels, hidden among 2,500 probes
that have the features' distribution and no relation to the digit. The real choice of pixels and
pairs was not published, so this is another draw of the same recipe and never called gisette.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from halfmask.datasets.files import Split
from halfmask.datasets.mnist import load_mnist

REAL_FEATURES = 2500
ROWS_PER_DIGIT = {"train": 3000, "test": 500}
_SEED = 49
_PIXEL_ROWS, _PIXEL_COLUMNS = range(4, 20), range(5, 23)


def load_gisette_rebuilt(folder: str | Path | None = None) -> Split:
    """6,000 and 1,000 dense rows of 5,000 features in [-1, 1]; 4 is -1, 9 is +1.

    The first rows of each digit are taken, then everything is drawn from one fixed seed.
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
