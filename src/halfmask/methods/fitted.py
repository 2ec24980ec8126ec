"""What linear methods share: their names, labels as targets, checks of settings, and a fit."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from halfmask.data.encoding import Scaled, declared
from halfmask.errors import InputError
from halfmask.mechanisms.release import Releaser
from halfmask.table import Table
from halfmask.types import Floats


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


def check_positive(config: Any, *names: str) -> None:
    """Refuse settings that are neither None nor positive and finite."""
    for name in names:
        value = getattr(config, name)
        if value is not None and not (math.isfinite(value) and value > 0):
            raise InputError(f"Expected a finite {name} > 0, got {value}.")


def check_below_one(config: Any, *names: str) -> None:
    """Refuse settings that are no shares kept of what was before: from 0 to below 1."""
    if not all(0 <= getattr(config, name) < 1 for name in names):
        raise InputError(f"Expected {' and '.join(names)} in [0, 1).")


def check_one_of(config: Any, **known: tuple[str, ...]) -> None:
    """Refuse settings that are none of the known words."""
    for name, words in known.items():
        value = getattr(config, name)
        if value not in words:
            listed = f"{', '.join(words[:-1])} or {words[-1]}"
            raise InputError(f"Unknown {name} {value!r}: expected {listed}.")


class FeatureMap(Protocol):
    """A map of the public part that can be stored (halfmask.features), fitted on public values."""

    def fit_transform(self, X: Floats) -> Floats:
        """Fit on public rows and return their new coordinates."""

    def transform(self, X: Floats) -> Floats:
        """The mapped public features of each row."""

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """Everything `transform` needs, as arrays that can be stored without pickle."""


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
    module, attribute = _METHODS[name].split(":")
    method: LinearMethod = getattr(import_module(module), attribute)
    return method
