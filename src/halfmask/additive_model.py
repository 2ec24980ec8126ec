"""The method `additive` as a whole: its fit, whatever the label, and the models that come of it.

A model is tables of weights by level, and a free model beside them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from halfmask.errors import InputError
from halfmask.mechanisms.release import Releaser
from halfmask.methods.additive import AdditiveFit, AdditiveRun
from halfmask.methods.additive_classes import ClassesFit, ClassesRun
from halfmask.methods.additive_pairs import PairWeights
from halfmask.methods.free_model import FreeModel, PublicModel, unfitted
from halfmask.model import Model
from halfmask.table import Table
from halfmask.types import Floats

_DIMENSIONS = 3
_PAIR_PARTS = ("columns", "first", "second", "weights")


@dataclass(frozen=True, kw_only=True, eq=False)
class AdditiveConfig:
    """What a caller may hand to `additive`; all of it counts as public.

    `public_model` takes the place of the free model (see `public_model.cross_fitted_public`).
    `sample_weight` are weights of the rows, not negative, of which the largest counts as 1.
    `free_models`, one for each class of several, are taken as they are. That is for imagined rows
    (halfmask.effects): on rows that they have seen, their errors would be too small.
    """

    public_model: Any = None
    sample_weight: Floats | None = None
    free_models: tuple[FreeModel | PublicModel, ...] = ()


def fit_additive(
    table: Table, releaser: Releaser, config: AdditiveConfig | None = None
) -> AdditiveFit | ClassesFit:
    """The run for the table's label: two classes, a number, or several classes.

    Guarantee: docs/proofs/additive.md.
    """
    config = config or AdditiveConfig()
    public_model, sample_weight = config.public_model, config.sample_weight
    if not table.coded:
        raise InputError("Method 'additive' needs a schema: a bare array has no levels.")
    if not (table.label_private or any(column.private for column in table.coded)):
        raise InputError("Nothing is private: any ordinary method serves better.")
    if releaser.shards.count > 1 and sample_weight is not None:
        raise InputError("Method 'additive' takes no sample_weight on several machines.")
    if public_model is not None:
        _check_public_model(table, public_model)
    mu = releaser.budget.mu
    if table.classes is not None and len(table.classes) > 2:
        run: AdditiveRun = ClassesRun(table, releaser, mu, public_model, sample_weight)
    else:
        run = AdditiveRun(table, releaser, mu, public_model, sample_weight)
    run.free_models = list(config.free_models)
    return run.run()


def _check_public_model(table: Table, public_model: Any) -> None:
    """Refuse what could not be free, before anything is charged."""
    if table.label_private:
        raise InputError(
            "public_model needs a public label: with a private one, what it learnt from the label "
            "would have to be paid for."
        )
    if all(column.private for column in table.coded):
        raise InputError("public_model needs a public column: all of them are private.")
    unfitted(public_model, table.task)


@dataclass(frozen=True, kw_only=True, eq=False)
class AdditiveModel(Model):
    """Scores are sums of one number per column and level."""

    kind: ClassVar[str] = "additive"

    fit: AdditiveFit | ClassesFit

    @property
    def _outputs(self) -> tuple[AdditiveFit, ...]:
        return self.fit.outputs if isinstance(self.fit, ClassesFit) else (self.fit,)

    def scores(self, table: Table) -> Floats:
        """One column, the log odds of the second class or a number; for K > 2 classes K columns."""
        levels = [column.levels for column in table.coded]
        if levels != [len(weights) for weights in self._outputs[0].weights]:
            raise InputError("The rows have other levels than this model was fitted on.")
        found = self.fit.scores(table.coded)
        return found if found.ndim > 1 else found[:, None]

    def why_not_storable(self) -> str | None:
        """A user's estimator is not: only pickle could hold it, and reading a pickle runs code."""
        free = self._outputs[0].free
        if not isinstance(free, PublicModel):
            return None
        return (
            f"This model holds the {free.name} given as public_model. It could only be "
            "stored by pickle, and reading a pickle can run any code: keep this model in memory, "
            "or train without public_model to get one that can be stored."
        )

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Those of a fit, or of all classes one behind the other; see `_arrays`."""
        if not isinstance(self.fit, ClassesFit):
            return _arrays(self.fit)
        return _joined([_arrays(fit) for fit in self.fit.outputs])

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]], **common: Any) -> AdditiveModel:
        """The inverse of `arrays`."""
        if "weights" in arrays:
            return cls(fit=_fit(arrays, common["details"]), **common)
        classes = common["classes"]
        parts = _parted(arrays, len(classes or ()))
        if sorted(parts) != list(range(len(classes or ()))):
            raise ValueError("a class has no weights")
        outputs = tuple(_fit(parts[place], {}) for place in sorted(parts))
        if len({tuple(len(w) for w in output.weights) for output in outputs}) != 1:
            raise ValueError("the classes have different levels")
        return cls(fit=ClassesFit(outputs=outputs, details=common["details"]), **common)


def _joined(parts: Sequence[Mapping[str, NDArray[Any]]]) -> dict[str, NDArray[Any]]:
    """The arrays of every class as few: those of one name in a row, and how long each is.

    One array each would be thousands, of which an archive holds no more than it lists.
    """
    stored: dict[str, NDArray[Any]] = {}
    for name in dict.fromkeys(name for part in parts for name in part):
        held = [part.get(name) for part in parts]
        some = [array for array in held if array is not None]
        stored[f"all.{name}"] = np.concatenate([array.ravel() for array in some])
        # The number of dimensions (-1: this class has no such array), then their lengths.
        shapes = np.full((len(parts), 1 + _DIMENSIONS), -1, dtype=np.int64)
        for place, array in enumerate(held):
            if array is not None:
                shapes[place, : 1 + array.ndim] = (array.ndim, *array.shape)
        stored[f"shape.{name}"] = shapes
    return stored


def _parted(arrays: Mapping[str, NDArray[Any]], classes: int) -> dict[int, dict[str, Any]]:
    """The inverse of `_joined`; older models have each class's arrays behind its number."""
    parts: dict[int, dict[str, NDArray[Any]]] = {}
    for name, array in arrays.items():
        place, _, own = name.partition(".")
        if place == "all":
            start = 0
            shapes = arrays[f"shape.{own}"]
            if array.ndim != 1 or shapes.shape != (classes, 1 + _DIMENSIONS):
                raise ValueError("the shapes of a class")
            for number, (dimensions, *lengths) in enumerate(shapes.tolist()):
                if dimensions < 0:
                    continue
                shape = lengths[:dimensions]
                end = start + math.prod(shape)
                if dimensions > _DIMENSIONS or min(shape, default=0) < 0 or end > len(array):
                    raise ValueError("the shapes of a class")
                parts.setdefault(number, {})[own] = array[start:end].reshape(shape)
                start = end
            if start != len(array):
                raise ValueError("the shapes of a class")
        elif place != "shape":
            parts.setdefault(int(place), {})[own] = array
    return parts


def _arrays(fit: AdditiveFit) -> dict[str, NDArray[Any]]:
    """Tables one behind the other; a free model's behind `free.`, those of pairs behind `pair.`.

    Pairs of the offset are behind `offset_pair.`
    """
    numbers = [fit.intercept, fit.offset_start, fit.offset_scale, float(fit.log_chance)]
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
    for kind, pairs in (("pair", fit.pairs), ("offset_pair", fit.offset_pairs)):
        for place, pair in enumerate(pairs):
            stored |= {
                f"{kind}.{place}.columns": np.array([pair.first, pair.second], dtype=np.int64),
                f"{kind}.{place}.first": pair.first_groups.astype(np.int64),
                f"{kind}.{place}.second": pair.second_groups.astype(np.int64),
                f"{kind}.{place}.weights": pair.weights,
            }
    if isinstance(fit.free, FreeModel):
        stored |= {f"free.{name}": array for name, array in fit.free.to_arrays().items()}
    return stored


def _fit(arrays: Mapping[str, NDArray[Any]], details: Mapping[str, Any]) -> AdditiveFit:
    """The inverse of `_arrays`."""
    numbers = ("weights", "numbers", "bend", "bend_edges", "offset_weights")
    if not all(np.isfinite(arrays[name]).all() for name in numbers if name in arrays):
        raise ValueError("a weight is not a finite number")
    ends = np.cumsum(arrays["levels"])[:-1]
    offset = arrays.get("offset_weights")
    free = {n.removeprefix("free."): a for n, a in arrays.items() if n.startswith("free.")}
    bend, edges = arrays["bend"], arrays["bend_edges"]
    if len(bend) and len(bend) != len(edges) + 1:
        raise ValueError("bend")
    offset_pairs = _pairs(arrays, "offset_pair")
    if offset_pairs and offset is None:
        raise ValueError("pairs of columns that belong to no offset")
    # Models stored before there were several classes have three numbers.
    intercept, start, scale, *log_chance = (float(number) for number in arrays["numbers"])
    return AdditiveFit(
        weights=tuple(np.split(arrays["weights"], ends)),
        intercept=intercept,
        offset_weights=None if offset is None else tuple(np.split(offset, ends)),
        offset_start=start,
        offset_scale=scale,
        free=FreeModel.from_arrays(free) if free else None,
        free_columns=tuple(int(place) for place in arrays["free_columns"]),
        log_chance=bool(log_chance and log_chance[0]),
        bend=bend,
        bend_edges=edges,
        offset_pairs=offset_pairs,
        pairs=_pairs(arrays, "pair"),
        details=details,
    )


def _pairs(arrays: Mapping[str, NDArray[Any]], kind: str) -> tuple[PairWeights, ...]:
    """The pairs among `_arrays`, checked: a look-up must not go beyond its table."""
    levels = arrays["levels"]
    found: list[PairWeights] = []
    while (name := f"{kind}.{len(found)}") + ".columns" in arrays:
        first, second = (int(place) for place in arrays[f"{name}.columns"])
        groups = [arrays[f"{name}.{part}"].astype(np.intp) for part in ("first", "second")]
        weights = arrays[f"{name}.weights"]
        if not 0 <= second < first < len(levels) or not np.isfinite(weights).all():
            raise ValueError("a pair of columns")
        for place, own, size in zip((first, second), groups, weights.shape, strict=True):
            if len(own) != levels[place] or own.min() < 0 or own.max() >= size:
                raise ValueError("a pair's groups")
        found.append(
            PairWeights(
                first=first,
                second=second,
                first_groups=groups[0],
                second_groups=groups[1],
                weights=weights,
            )
        )
    if sum(name.startswith(f"{kind}.") for name in arrays) != len(_PAIR_PARTS) * len(found):
        raise ValueError("a part of a pair of columns")
    return tuple(found)
