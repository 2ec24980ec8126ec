"""What linear methods share: their names, labels as targets, checks of settings, and a fit."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

import numpy as np

from halfmask.data.encoding import Scaled, declared
from halfmask.errors import InputError
from halfmask.mechanisms.release import Releaser
from halfmask.table import Table
from halfmask.types import Floats

if TYPE_CHECKING:
    from halfmask.features import FeatureMap


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


def private_levels_only(table: Table) -> bool:
    """Whether the declaration makes every private feature a 0/1 level, so that ⟨r, r'⟩ ≥ 0."""
    if table.schema is None or not table.widths[1]:
        return False
    private = [column for column in table.schema.columns if column.role == "private"]
    return not any(isinstance(declared(column), Scaled) for column in private)


@dataclass(frozen=True, kw_only=True, eq=False)
class LinearFit:
    """A fitted linear model: scores = [mapped public, private] @ coef.T + intercept.

    Two classes and regression have one output, K > 2 classes have K; for two classes it is the
    log odds of the second class. `details` holds public facts only (steps, noise, radius, ...).
    """

    coef: Floats
    intercept: Floats
    details: Mapping[str, Any] = field(default_factory=dict)
    feature_map: FeatureMap | None = None


LinearMethod = Callable[[Table, Releaser, Any], LinearFit]
"""Fits within the releaser's budget by the method's configuration (halfmask.settings), or None."""

_METHODS = {
    "one-shot": "halfmask.methods.one_shot:fit_one_shot",
    "gd": "halfmask.methods.gd:fit_gd",
    "sgd": "halfmask.methods.sgd:fit_sgd",
    "dp-sgd": "halfmask.methods.sgd:fit_dp_sgd",
    "label-span": "halfmask.methods.label_span:fit_label_span",
}

LINEAR_METHODS = tuple(_METHODS)


def linear_method(name: str) -> LinearMethod:
    """The method called `name`, imported when asked for."""
    if name not in _METHODS:
        raise InputError(f"Unknown method {name!r}: expected auto or one of {', '.join(_METHODS)}.")
    method: LinearMethod = resolve_name(_METHODS[name])
    return method
