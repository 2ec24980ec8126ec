"""What a label is to a loss, and coefficients back in the label's own units."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from halfmask.errors import InputError
from halfmask.table import Table

Floats = NDArray[np.float64]


def coded_targets(table: Table, outputs: int) -> Floats:
    """0/1 for two classes and one output, one-hot for more, [−1, 1] for a number: rows x outputs.

    A missing label is the middle of all labels, at which a fixed slope is zero, so that whatever
    holds for two labels holds for a label and none (docs/proofs/missing_labels.md).
    """
    if table.label is None:
        raise InputError("The table has no label: encode it with its label to fit a model.")
    missing = table.skipped
    if table.classes is None:
        middle, half = label_scale(table)
        scaled = (np.asarray(table.label, dtype=np.float64) - middle) / half
        inside: Floats = np.clip(np.where(missing, 0.0, scaled), -1.0, 1.0)
        return inside[:, None]
    codes = np.asarray(table.label)
    if outputs == 1:
        second: Floats = np.where(missing, 0.5, (codes == 1).astype(np.float64))
        return second[:, None]
    coded: Floats = np.eye(outputs)[codes]
    coded[missing] = 1 / outputs
    return coded


def label_scale(table: Table) -> tuple[float, float]:
    """Middle and half width of the declared bounds of a number."""
    if table.label_bounds is None:
        raise InputError("A regression needs bounds for its label: declare them in the schema.")
    low, high = table.label_bounds
    return (high + low) / 2, (high - low) / 2


def in_label_units(table: Table, coef: Floats, intercept: Floats) -> tuple[Floats, Floats]:
    """Coefficients of coded targets (outputs x features) as those of the label itself."""
    if table.classes is None:
        middle, half = label_scale(table)
        return coef * half, intercept * half + middle
    if len(table.classes) == 2 and len(coef) == 2:
        return coef[1:] - coef[:1], intercept[1:] - intercept[:1]
    return coef, intercept
