"""The rule for arrays without a schema: everything is private, rows are clipped to a fixed norm.

Guarantee: docs/proofs/encoding.md, "Bare arrays".
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from halfmask.errors import DataError, InputError


def bare_rows(X: Any, row_norm: float) -> np.ndarray:
    """Rows of a 2-d array scaled down to L2 norm `row_norm` where longer; NaN is an error."""
    if not (math.isfinite(row_norm) and row_norm > 0):
        raise InputError(f"Expected a finite row_norm > 0, got {row_norm}.")
    try:
        block = np.array(X, dtype=np.float64)
    except (TypeError, ValueError):
        raise DataError("X does not hold numbers only: encode it, or pass a schema.") from None
    if block.ndim != 2:
        raise DataError(
            f"Expected a 2-d array X, got {block.ndim}-d: reshape it to rows x columns."
        )
    _refuse_gaps(block, "X")
    # Dividing by the largest entry first keeps the squares of huge values finite.
    scale = np.max(np.abs(block), axis=1, keepdims=True, initial=np.finfo(float).tiny)
    norms = np.linalg.norm(block / scale, axis=1, keepdims=True) * scale
    too_long = norms[:, 0] > row_norm
    # A hair below, so that rounding cannot leave a norm above the bound.
    block[too_long] *= row_norm / norms[too_long] * (1 - 1e-12)
    return block


def bare_label(
    y: Any, n: int, task: str, label_bounds: tuple[float, float] | None
) -> tuple[np.ndarray | None, tuple[Any, ...] | None]:
    """Class codes with the classes present, or targets clamped to the bounds."""
    if task not in ("classification", "regression"):
        raise InputError(f"Unknown task {task!r}: expected 'classification' or 'regression'.")
    if y is None:
        return None, None
    values = np.asarray(y)
    if values.ndim != 1 or len(values) != n:
        raise DataError(f"Expected a 1-d array y of {n} labels, got shape {values.shape}.")
    if task == "regression":
        return _targets(values, label_bounds), None
    if values.dtype.kind == "f":
        _refuse_gaps(values, "y")
    if any(value is None or value != value for value in values if values.dtype.kind == "O"):
        raise DataError("y contains a missing label: remove its row or fill it in.")
    try:
        classes, codes = np.unique(values, return_inverse=True)
    except TypeError:
        raise DataError("y mixes labels of different types: make them all text.") from None
    if len(classes) < 2:
        raise DataError(f"y has {len(classes)} class: a classifier needs at least two classes.")
    return codes.astype(np.int64), tuple(classes.tolist())


def _targets(values: np.ndarray, bounds: tuple[float, float] | None) -> np.ndarray:
    if bounds is None:
        raise InputError(
            "A private regression target needs label_bounds=(low, high): learning them would leak."
        )
    if not bounds[0] < bounds[1]:
        raise InputError(f"Expected label_bounds low < high, got {bounds}.")
    try:
        targets = values.astype(np.float64)
    except (TypeError, ValueError):
        raise DataError("y does not hold numbers only: convert it.") from None
    _refuse_gaps(targets, "y")
    return np.clip(targets, *bounds)


def _refuse_gaps(values: np.ndarray, name: str) -> None:
    bad = ~np.isfinite(values)
    bad = bad.any(axis=1) if bad.ndim == 2 else bad
    if bad.any():
        raise DataError(
            f"{name} contains NaN or infinity at row {int(bad.argmax()) + 1}: fill it in, or pass "
            f"a schema, which gives missing values a place of their own."
        )
