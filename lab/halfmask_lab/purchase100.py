"""Figure 1 of the feature-DP paper on its own table: 100 of 600 columns and the label are public.

The published `dataset_purchase` is read where the data folder has it (plain or packed); otherwise a
table of the same shape is drawn, and figure and report say so. The paper trains on 197,324 rows;
here some of them are used unless more are asked for.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from halfmask.datasets import data_dir, find_file
from halfmask.errors import DataError
from halfmask.schema import Label, Schema
from halfmask.table import Table
from halfmask_lab.feature_privacy import (
    EPSILONS,
    FEWER_AXES,
    Figure,
    Part,
    Tables,
    check_rows,
    encoded,
    public_columns,
    run_figure,
    zero_or_one,
)
from halfmask_lab.loaders import (
    PURCHASE_CLASSES,
    PURCHASE_COLUMNS,
    load_purchase100,
    make_purchase_like,
)
from halfmask_lab.results import Progress

PUBLIC_COLUMNS, TRAIN_ROWS, TEST_ROWS = 100, 10_000, 4_000
FILE = "dataset_purchase"
_SPLIT_SEED = 2026
_HELD_OUT = 0.2


def load(data: Path | None, rows: int) -> tuple[np.ndarray, np.ndarray, str]:
    """Rows, labels and where they are from."""
    try:
        file = find_file(data_dir(data), FILE)
    except DataError:
        values, labels = make_purchase_like(rows)
        return values, labels, "stand-in: drawn table of the same shape"
    values, labels = load_purchase100(file)
    return values, labels, "real"


def tables_of(rows: np.ndarray, labels: np.ndarray, train_rows: int, test_rows: int) -> Tables:
    """Training and scored tables by seed: fixed rows, drawn public columns."""
    order = np.random.default_rng(_SPLIT_SEED).permutation(len(labels))
    known, test = order[:train_rows], order[train_rows : train_rows + test_rows]

    def tables(seed: int, part: Part) -> tuple[Table, Table]:
        public = public_columns(PURCHASE_COLUMNS, PUBLIC_COLUMNS, seed)
        schema = Schema(
            label=Label(name="style", role="public", classes=tuple(range(PURCHASE_CLASSES))),
            columns=tuple(zero_or_one(index, public) for index in range(PURCHASE_COLUMNS)),
        )
        if part == "test":
            return encoded(rows, labels, schema, known, test)
        apart = int(_HELD_OUT * len(known))
        return encoded(rows, labels, schema, known[apart:], known[:apart])

    return tables


def run(
    data: Path | None = None,
    out: Path | None = None,
    progress: Progress | None = None,
    *,
    seed: int = 0,
    draws: int = 3,
    epsilons: tuple[float, ...] = EPSILONS,
    train_rows: int = TRAIN_ROWS,
    test_rows: int = TEST_ROWS,
) -> dict[str, Any]:
    """All curves of the figure."""
    rows, labels, source = load(data, train_rows + test_rows)
    check_rows(train_rows, len(labels), test_rows=test_rows)
    figure = Figure(
        name="purchase100",
        title="Purchase100, 100 of 600 columns and the label public",
        data=source,
        setting=f"{train_rows} of 197,324 training rows, {PUBLIC_COLUMNS} of {PURCHASE_COLUMNS} "
        "columns and the label public, replace",
        tables=tables_of(rows, labels, train_rows, test_rows),
        baselines=FEWER_AXES,
        draws=draws,
        epsilons=epsilons,
    )
    return run_figure(figure, out, progress, seed=seed)
