"""Digits of which a fixed random sixth of the pixels, and the digit, are public.

Some of the 60,000 training images are used unless more are asked for; pixels are declared as
numbers from 0 to 255.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from halfmask.schema import Column, Label, Schema
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
)
from halfmask_lab.loaders import load_mnist
from halfmask_lab.results import Progress

PIXELS, CLASSES = 784, 10
PUBLIC_PIXELS = PIXELS // 6
TRAIN_ROWS, TEST_ROWS = 8_000, 4_000
_PIXEL_SEED = 6
_HELD_OUT = 0.2


def pixel_schema() -> Schema:
    """Every pixel a number; the public ones are the same in every draw."""
    public = public_columns(PIXELS, PUBLIC_PIXELS, _PIXEL_SEED)
    return Schema(
        label=Label(name="digit", role="public", classes=tuple(range(CLASSES))),
        columns=tuple(
            Column(
                name=f"p{index}",
                role="public" if index in public else "private",
                kind="number",
                bounds=(0.0, 255.0),
                bins=0,
            )
            for index in range(PIXELS)
        ),
    )


def tables_of(train: tuple[np.ndarray, np.ndarray], test: tuple[np.ndarray, np.ndarray]) -> Tables:
    """Training and scored tables; a seed draws the rows that are held out."""
    schema = pixel_schema()
    rows, labels = (np.concatenate(pair) for pair in zip(train, test, strict=True))
    known, scored = np.arange(len(train[1])), np.arange(len(train[1]), len(labels))

    def tables(seed: int, part: Part) -> tuple[Table, Table]:
        if part == "test":
            return encoded(rows, labels, schema, known, scored)
        mixed = np.random.default_rng(seed).permutation(known)
        apart = int(_HELD_OUT * len(known))
        return encoded(rows, labels, schema, mixed[apart:], mixed[:apart])

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
    split = load_mnist(data)
    check_rows(train_rows, len(split.y_train), test_rows=0)
    figure = Figure(
        name="mnist-pixels",
        title="MNIST, a sixth of the pixels and the digit public",
        data="real",
        setting=f"the first {train_rows} of 60,000 training images and the first {test_rows} of "
        f"10,000 test images, {PUBLIC_PIXELS} of {PIXELS} pixels and the label public, replace",
        tables=tables_of(
            (split.x_train[:train_rows], split.y_train[:train_rows]),
            (split.x_test[:test_rows], split.y_test[:test_rows]),
        ),
        baselines=FEWER_AXES,
        draws=draws,
        epsilons=epsilons,
    )
    return run_figure(figure, out, progress, seed=seed)
