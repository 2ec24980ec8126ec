"""A stand-in for Purchase100: 600 columns of 0 and 1 and 100 classes, drawn from a fixed recipe.

Every column has a popularity; every class buys some things more often and others less, and so do
the three kinds of buyers that each class has. It has the shape of the published table and is never
called by its name: accuracies on it say how methods compare, not what they reach on the real one.
"""

from __future__ import annotations

import numpy as np

from halfmask.datasets.binary_tables import PURCHASE_CLASSES, PURCHASE_COLUMNS

_SEED, _KINDS = 100, 3
_CLASS_SPREAD, _KIND_SPREAD = 0.55, 0.8


def make_purchase_like(rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows of 600 binary columns (uint8), and labels 0..99 (int64)."""
    # RandomState's stream is frozen by numpy, so that the table is the same everywhere.
    draw = np.random.RandomState(_SEED)
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
