"""What a linear method hands back, and the names of all methods."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from halfmask.errors import InputError
from halfmask.mechanisms.release import Releaser
from halfmask.table import Table

Floats = NDArray[np.float64]


class FeatureMap(Protocol):
    """A map of the public part, fitted on public values only."""

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


class LinearMethod(Protocol):
    """Fit within the releaser's budget; every release goes through the releaser."""

    def __call__(self, table: Table, releaser: Releaser, config: Any = None) -> LinearFit:
        """Calibrate, charge, release, and fit; `config` is the method's (halfmask.settings)."""


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
