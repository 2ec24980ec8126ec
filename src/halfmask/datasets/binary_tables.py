"""Location-30 and Purchase100: a label and many binary columns per row, from one archive.

Both come as CSV without a header, the label 1..K first (quoted or not).
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv

from halfmask.datasets.files import read_published, unpacked
from halfmask.errors import DataError

LOCATION_COLUMNS, LOCATION_CLASSES = 446, 30
PURCHASE_COLUMNS, PURCHASE_CLASSES = 600, 100
_SEED, _KINDS = 100, 3
_CLASS_SPREAD, _KIND_SPREAD = 0.55, 0.8


def load_location30(folder: str | Path | None = None) -> tuple[np.ndarray, np.ndarray]:
    """5,010 rows of 446 binary columns (uint8), and labels 0..29 (int64)."""
    name = "location30.csv"
    return _parse(read_published(folder, name), LOCATION_COLUMNS, LOCATION_CLASSES, name)


def load_purchase100(path: str | Path) -> tuple[np.ndarray, np.ndarray]:
    """The published `dataset_purchase`: rows of 600 binary columns (uint8), labels 0..99 (int64).

    Its hash is not known here; columns, values and labels are checked instead.
    """
    file = Path(path)
    return _parse(unpacked(file), PURCHASE_COLUMNS, PURCHASE_CLASSES, str(file))


def make_purchase_like(rows: int) -> tuple[np.ndarray, np.ndarray]:
    """A stand-in for Purchase100: rows of 600 binary columns (uint8), labels 0..99 (int64).

    Every column has a popularity; every class buys some things more often and others less, and so
    do the three kinds of buyers of each class. Accuracies on it say how methods compare, not what
    they reach on the real table, and it is never called by its name.
    """
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


def _parse(content: bytes, columns: int, classes: int, name: str) -> tuple[np.ndarray, np.ndarray]:
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
