"""The rule for arrays without a schema: everything is private, rows are clipped to a fixed norm.

Guarantee: docs/proofs/encoding.md, "Bare arrays".
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from halfmask.data.cells import cell_text
from halfmask.errors import DataError, InputError
from halfmask.schema import has_middle

_Checked = TypeVar("_Checked")

# What scikit-learn says of types, counts and column names. Of any other text, its own included,
# not a word is passed on: "could not convert string to float: ..." ends with a cell's content.
_SHAPE = r"\([\d, ]*\)"
_WITHOUT_VALUES = [
    re.compile(pattern, re.DOTALL)
    for pattern in (
        r"Input(?: [Xy]| sample_weight)? contains (?:NaN|infinity)",
        rf"Found array with \d+ (?:sample|feature)\(s\) \(shape={_SHAPE}\) while a minimum of \d+ "
        r"is required(?: by \w+)?",
        r"Found array with dim \d+, while dim <= 2 is required(?: by \w+)?",
        r"Found input variables with inconsistent numbers of samples: \[[\d, ]+\]",
        r"X has \d+ features, but \w+ is expecting \d+ features as input",
        r"The feature names should match those that were passed during fit\..*",
        r"Feature names are only supported if all input features have string names.*",
        r"Expected 2D array, got (?:1D|scalar) array instead",
        rf"y should be a 1d array, got an array of shape {_SHAPE} instead",
        r"y cannot be None",
        r"Complex data not supported",
        r"Sparse data was passed(?: for [Xy])?, but dense data is required",
        r"Unknown label type: [\w-]+",
        r"float\(\) argument must be a string or a real number, not '\w+'",
    )
]
_HINTS = {
    "Expected 2D": "Reshape your data: array.reshape(-1, 1) for one column, (1, -1) for one row",
    "Sparse": "Use '.toarray()' to convert to a dense array",
    "float": "Encode the column, or pass a schema",
    "Unknown": "Expected classes for a classifier, and numbers for a regressor",
}


def without_values(check: Callable[[], _Checked], **data: Any) -> _Checked:
    """What `check` returns; its errors say no value of `data` (arrays or frames by their name).

    scikit-learn and numpy quote the cell that does not convert, and an error that is raised while
    another is handled keeps that one in its chain: so ours is raised after the other is gone.
    """
    try:
        return check()
    except (ValueError, TypeError, ArithmeticError) as error:
        kind = TypeError if isinstance(error, TypeError) else DataError
        message = None if isinstance(error, DataError) else _known_words(str(error))
        own = error if isinstance(error, InputError) else None
    if own is not None:
        own.__context__ = None
        raise own
    if message is not None:
        raise kind(message)
    for name, values in data.items():
        where = _first_that_is_no_number(name, values)
        if where is not None:
            raise DataError(f"{where}: expected numbers only. Encode it, or pass a schema.")
    raise DataError(f"Cannot read {' and '.join(data)} as numbers: encode them, or pass a schema.")


def _known_words(message: str) -> str | None:
    for pattern in _WITHOUT_VALUES:
        found = pattern.match(message)
        if found is not None:
            hint = next((h for start, h in _HINTS.items() if message.startswith(start)), None)
            return f"{found.group()}. {hint}." if hint else f"{found.group()}."
    return None


def _first_that_is_no_number(name: str, values: Any) -> str | None:
    """Where the first cell lies that is no number; None where none can be named."""
    columns = getattr(values, "columns", None)
    if columns is not None:
        # No frame has two columns of one name here: a position would name the wrong one.
        pairs = [(f"Column {str(label)!r}", values[label]) for label in columns]
    else:
        try:
            cells = np.asarray(values, dtype=object)
        except ValueError:
            return None
        if cells.ndim == 1:
            pairs = [(name, cells)]
        elif cells.ndim == 2:
            pairs = [(f"{name}, column {place}", part) for place, part in enumerate(cells.T)]
        else:
            return None
    for place, column in pairs:
        for row, cell in enumerate(np.asarray(column, dtype=object).ravel(), start=1):
            if not _is_number(cell):
                return f"{place}, row {row}"
    return None


def _is_number(cell: Any) -> bool:
    try:
        float(cell)
    except Exception:  # whatever an object's own conversion may raise
        return False
    return True


def refuse_missing_labels(y: Any) -> None:
    """Name the first missing label among texts or objects: scikit-learn says nothing of use there.

    Of numbers it does.
    """
    try:
        cells = np.asarray(y)
    except ValueError:
        return  # not one label per row: said elsewhere
    if cells.dtype.kind != "O" or cells.size != len(cells):
        return
    for row, cell in enumerate(cells.ravel(), start=1):
        if cell_text(cell) is None:
            raise DataError(
                f"y, row {row}: the label is missing. Fill it in, or pass a frame with a schema "
                'whose [label] table says missing = "skip".'
            )


def bare_rows(X: Any, row_norm: float) -> np.ndarray:
    """Rows of a 2-d array scaled down to L2 norm `row_norm` where longer; NaN is an error."""
    if not (math.isfinite(row_norm) and row_norm > 0):
        raise InputError(f"Expected a finite row_norm > 0, got {row_norm}.")
    block: np.ndarray = without_values(lambda: np.array(X, dtype=np.float64), X=X)
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
    sorted_values = _classes(values)
    if sorted_values is None:
        raise DataError("y mixes labels of different types: make them all text.")
    classes, codes = sorted_values
    if len(classes) < 2:
        raise DataError(f"y has {len(classes)} class: a classifier needs at least two classes.")
    return codes.astype(np.int64), tuple(classes.tolist())


def _classes(values: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
    try:
        classes, codes = np.unique(values, return_inverse=True)
    except TypeError:
        return None
    return classes, codes


def _targets(values: np.ndarray, bounds: tuple[float, float] | None) -> np.ndarray:
    if bounds is None:
        raise InputError(
            "A private regression target needs label_bounds=(low, high): learning them would leak."
        )
    if not bounds[0] < bounds[1]:
        raise InputError(f"Expected label_bounds low < high, got {bounds}.")
    if not has_middle(*bounds):
        raise InputError(
            f"Expected label_bounds that are finite and not too close or too large to calculate "
            f"with, got {bounds}."
        )
    targets: np.ndarray = without_values(lambda: values.astype(np.float64), y=values)
    _refuse_gaps(targets, "y")
    clamped: np.ndarray = np.clip(targets, *bounds)
    return clamped


def _refuse_gaps(values: np.ndarray, name: str) -> None:
    bad = ~np.isfinite(values)
    bad = bad.any(axis=1) if bad.ndim == 2 else bad
    if bad.any():
        raise DataError(
            f"{name} contains NaN or infinity at row {int(bad.argmax()) + 1}: fill it in, or pass "
            f"a schema, which gives missing values a place of their own."
        )
