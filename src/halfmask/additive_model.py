"""Models of the method `additive`: tables of weights by level, and a free model beside them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from halfmask.errors import InputError
from halfmask.methods.additive import AdditiveFit
from halfmask.methods.free_model import FreeModel
from halfmask.methods.public_model import PublicModel
from halfmask.model import Model
from halfmask.table import Table

Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, eq=False)
class AdditiveModel(Model):
    """Scores are sums of one number per column and level."""

    kind: ClassVar[str] = "additive"

    fit: AdditiveFit

    def scores(self, table: Table) -> Floats:
        """One column: the log odds of the second class, or a number."""
        levels = [column.levels for column in table.coded]
        if levels != [len(weights) for weights in self.fit.weights]:
            raise InputError("The rows have other levels than this model was fitted on.")
        return self.fit.scores(table.coded)[:, None]

    def why_not_storable(self) -> str | None:
        """A user's estimator is not: only pickle could hold it, and reading a pickle runs code."""
        if not isinstance(self.fit.free, PublicModel):
            return None
        return (
            f"This model holds the {self.fit.free.name} given as public_model. It could only be "
            "stored by pickle, and reading a pickle can run any code: keep this model in memory, "
            "or train without public_model to get one that can be stored."
        )

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Tables one behind the other; those of a free model behind the prefix `free.`."""
        fit = self.fit
        numbers = [fit.intercept, fit.offset_start, fit.offset_scale]
        stored: dict[str, NDArray[Any]] = {
            "weights": np.concatenate(fit.weights),
            "levels": np.array([len(weights) for weights in fit.weights]),
            "numbers": np.array(numbers),
            "bend": fit.bend,
            "bend_edges": fit.bend_edges,
            "free_columns": np.array(fit.free_columns, dtype=np.int64),
        }
        if fit.offset_weights is not None:
            stored["offset_weights"] = np.concatenate(fit.offset_weights)
        if isinstance(fit.free, FreeModel):
            stored |= {f"free.{name}": array for name, array in fit.free.to_arrays().items()}
        return stored

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]], **common: Any) -> AdditiveModel:
        """The inverse of `arrays`."""
        numbers = ("weights", "numbers", "bend", "bend_edges", "offset_weights")
        if not all(np.isfinite(arrays[name]).all() for name in numbers if name in arrays):
            raise ValueError("a weight is not a finite number")
        ends = np.cumsum(arrays["levels"])[:-1]
        offset = arrays.get("offset_weights")
        free = {n.removeprefix("free."): a for n, a in arrays.items() if n.startswith("free.")}
        bend, edges = arrays["bend"], arrays["bend_edges"]
        if len(bend) and len(bend) != len(edges) + 1:
            raise ValueError("bend")
        intercept, start, scale = (float(number) for number in arrays["numbers"])
        fit = AdditiveFit(
            weights=tuple(np.split(arrays["weights"], ends)),
            intercept=intercept,
            offset_weights=None if offset is None else tuple(np.split(offset, ends)),
            offset_start=start,
            offset_scale=scale,
            free=FreeModel.from_arrays(free) if free else None,
            free_columns=tuple(int(place) for place in arrays["free_columns"]),
            bend=bend,
            bend_edges=edges,
            details=common["details"],
        )
        return cls(fit=fit, **common)
