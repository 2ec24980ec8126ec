"""Fitted models: what predicts, with its guarantee, stored as npz and JSON without pickle."""

from __future__ import annotations

import html
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from dataclasses import field as dataclass_field
from pathlib import Path
from pkgutil import resolve_name
from types import NoneType
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, softmax

from halfmask.accounting.ledger import Ledger
from halfmask.data.products import feature_rows, rows_times
from halfmask.errors import DataError, InputError
from halfmask.methods.fitted import LinearFit
from halfmask.model_folder import (
    VERTICAL_FILE,
    damaged,
    field,
    ledger_of,
    read_arrays,
    read_json,
    rebuilt,
    without_objects,
)
from halfmask.settings import options_from_json, options_to_json
from halfmask.statement import Statement
from halfmask.storage import json_text, replacing, write_text
from halfmask.table import Blocks, CodedFeatures, Encoder, Table, Task
from halfmask.types import Floats

FORMAT = "halfmask-model-1"
_KINDS = {
    "linear": "halfmask.model:LinearModel",
    "additive": "halfmask.additive_model:AdditiveModel",
    "mlp": "halfmask.neural.method:NeuralModel",
}


@dataclass(frozen=True, kw_only=True, eq=False)
class Model(ABC):
    """A fitted model. `encoder` is None where it was fitted on bare arrays.

    `options` are those of the method it was trained with; None where a file cannot hold them.
    """

    kind: ClassVar[str]

    encoder: Encoder | None
    task: Task
    classes: tuple[Any, ...] | None
    label_bounds: tuple[float, float] | None
    row_norm: float | None
    method: str
    reason: str
    privacy: Statement
    details: Mapping[str, Any] = dataclass_field(default_factory=dict)
    options: Mapping[str, Any] | None = dataclass_field(default_factory=dict)

    @abstractmethod
    def scores(self, table: Table) -> Floats:
        """K columns for K > 2 classes, else one: the log odds of the second class, or a number."""

    @abstractmethod
    def arrays(self) -> dict[str, NDArray[Any]]:
        """Everything `scores` needs, as arrays."""

    @classmethod
    @abstractmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]], **common: Any) -> Model:
        """The inverse of `arrays`; `common` are the fields of this class."""

    def why_not_storable(self) -> str | None:
        """Why a file cannot hold this model, where it cannot."""
        return None

    def encode(self, frame: Any, *, with_label: bool = False) -> Table:
        """A frame (or a bare array, where the model was fitted on one) as a table, row by row."""
        if self.encoder is not None:
            return self.encoder.encode(frame, with_label, with_unit=False)
        if self.row_norm is None:
            raise InputError("This model was fitted on a table without a schema: pass it a table.")
        return Table.from_arrays(
            frame, row_norm=self.row_norm, task=self.task, label_bounds=self.label_bounds
        )

    def probabilities(self, table: Table) -> Floats:
        """The probability of each class, one row each, summing to one."""
        if self.task != "classification":
            raise InputError("A regression model predicts numbers: it has no class probabilities.")
        scores = self._finite_scores(table)
        if scores.shape[1] > 1:
            spread: Floats = softmax(scores, axis=1)
            return spread
        second = expit(scores[:, 0])
        return np.column_stack([1 - second, second])

    def predict(self, table: Table) -> NDArray[Any]:
        """The likeliest class of each row, or its number clamped to the declared bounds."""
        scores = self._finite_scores(table)
        if self.task == "regression":
            assert self.label_bounds is not None
            return np.clip(scores[:, 0], *self.label_bounds)
        best = scores.argmax(axis=1) if scores.shape[1] > 1 else (scores[:, 0] > 0).astype(int)
        predicted: NDArray[Any] = class_array(self.classes)[best]
        return predicted

    def _finite_scores(self, table: Table) -> Floats:
        with np.errstate(over="ignore", invalid="ignore"):
            scores = self.scores(table)
        if not np.isfinite(scores).all():
            damaged("its weights give no finite number for a row")
        return scores

    def _repr_html_(self) -> str:
        """The model for a notebook: how it was made, and what is promised."""
        made = f"A {self.task} model by the method {self.method}: {self.reason}."
        return f"<p>{html.escape(made)}</p>{self.privacy._repr_html_()}"

    def save(self, folder: str | Path, *, overwrite: bool = False) -> None:
        """Write model.npz, then model.json; a folder without the latter holds no finished model.

        A folder that holds anything is refused, unless `overwrite` says that a model there may be
        replaced; its other files stay. A ledger among them must hold the charges of both models.
        """
        if (reason := self.why_not_storable()) is not None:
            raise InputError(reason)
        folder = Path(folder)
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError):
            raise InputError(f"{str(folder)!r} is a file, or in one: name a folder.") from None
        if not overwrite and any(folder.iterdir()):
            held = "holds a model" if (folder / "model.json").exists() else "is not empty"
            raise InputError(
                f"{str(folder)!r} {held}: name a new folder, or pass overwrite=True to replace "
                "the model there."
            )
        self._check_replaced(folder)
        with replacing(folder / "model.npz") as path, path.open("wb") as file:
            np.savez_compressed(file, **without_objects(self.arrays()))
        description = {
            "format": FORMAT,
            "kind": self.kind,
            "task": self.task,
            "classes": None if self.classes is None else list(self.classes),
            "label_bounds": self.label_bounds,
            "row_norm": self.row_norm,
            "method": self.method,
            "reason": self.reason,
            "details": dict(self.details),
            "options": None if self.options is None else options_to_json(self.options),
            "encoder": None if self.encoder is None else self.encoder.to_json(),
            "features": None if self.encoder is None else _widths(self.encoder),
            "privacy": self.privacy.to_json(),
        }
        # Numbers that are not finite become null: JSON has none, and all is paid by now.
        write_text(folder / "model.json", json_text(description))

    def _check_replaced(self, folder: Path) -> None:
        """Refuse to leave a ledger beside this model that was charged for another one alone.

        What that one spent stays spent, and reports would take its charge for this model's.
        """
        ledger = ledger_of(folder) if (folder / "model.json").exists() else None
        if ledger is None:
            return
        there = Model.load(folder)
        mine, theirs = self.arrays(), there.arrays()
        if list(mine) == list(theirs) and all(np.array_equal(mine[n], theirs[n]) for n in mine):
            return  # the same model, described anew
        both = Counter([*there.privacy.events, *self.privacy.events])
        if both - Counter(Ledger.open(ledger).events()):
            raise InputError(
                f"{str(folder)!r} has the ledger {ledger.name!r}, which was charged for the model "
                "there and not for this one: name a new folder. What a replaced model spent would "
                "stay spent."
            )

    @staticmethod
    def load(folder: str | Path) -> Model:
        """Read what `save` has written; a damaged folder is an error that says what is wrong."""
        folder = Path(folder)
        if not (folder / "model.json").is_file():
            if (folder / VERTICAL_FILE).is_file():
                raise InputError(
                    f"{str(folder)!r} is a model of several parties, which this command does not "
                    "read: `halfmask vertical predict`, `evaluate` and `report` do."
                )
            raise InputError(
                f"There is no model in {str(folder)!r}: pass the folder named by --out of train."
            )
        description = read_json(folder / "model.json")
        if not isinstance(description, dict):
            damaged("model.json does not describe a model")
        if description.get("format") != FORMAT:
            raise DataError(f"The model in {str(folder)!r} is of another format: train it again.")
        common = rebuilt(lambda: _common(description), "model.json")
        kind: type[Model] = resolve_name(_KINDS[description["kind"]])
        arrays = read_arrays(folder / "model.npz")
        return rebuilt(lambda: _tried(kind.from_arrays(arrays, **common)), "model.npz")


def _common(description: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of `Model` from model.json, each checked against what `save` writes."""
    if field(description, "kind", str) not in _KINDS:
        damaged("a kind of model that this halfmask does not know")
    task = field(description, "task", str)
    stored = field(description, "encoder", dict, NoneType)
    encoder = None if stored is None else Encoder.from_json(stored)
    listed = field(description, "classes", list, NoneType)
    classes = None if listed is None else tuple(listed)
    bounds = field(description, "label_bounds", list, NoneType)
    row_norm = field(description, "row_norm", float, int, NoneType)
    options = field(description, "options", dict, NoneType)
    if task == "classification":
        known = classes is not None and all(isinstance(c, str | int | float) for c in classes)
        if not known or len(set(classes or ())) != len(classes or ()) or len(classes or ()) < 2:
            damaged("its classes")
    elif task != "regression" or classes is not None:
        damaged("its task")
    if bounds is not None:
        low, high = (float(end) for end in bounds)
        if not low < high:
            damaged("its label bounds")
        bounds = (low, high)
    elif task == "regression":
        damaged("it has no label bounds")
    widths = None if encoder is None else _widths(encoder)
    # Older folders do not say how wide their rows are.
    if description.get("features", widths) != widths:
        damaged("its schema gives other features than it was trained on")
    if encoder is not None:
        label = encoder.schema.label
        if (task, classes, bounds) != (label.task, label.classes, label.bounds):
            damaged("its label is not the one of its schema")
    if row_norm is not None and not row_norm > 0:
        damaged("its row norm")
    return {
        "encoder": encoder,
        "task": task,
        "classes": classes,
        "label_bounds": bounds,
        "row_norm": None if row_norm is None else float(row_norm),
        "method": field(description, "method", str),
        "reason": field(description, "reason", str),
        "privacy": Statement.from_json(field(description, "privacy", dict)),
        "details": field(description, "details", dict),
        "options": None if options is None else options_from_json(options),
    }


def _widths(encoder: Encoder) -> list[int]:
    """The number of public and of private features of a row."""
    return [len(encoder.public_names), len(encoder.private_names)]


def _tried(model: Model) -> Model:
    """The model, after it has scored rows of zeros and ones: its arrays fit the schema."""
    if model.encoder is not None:
        names = (model.encoder.public_names, model.encoder.private_names)
    elif model.row_norm is not None:
        names = (model.privacy.public, model.privacy.private)
    else:
        return model  # fitted on a table made by hand, whose rows no file describes
    public, private = (np.outer([0.0, 1.0], np.ones(len(part))) for part in names)
    features: Blocks | CodedFeatures = Blocks(public=public, private=private)
    if model.kind == "additive" and model.encoder is not None:
        features = model.encoder.ends()
    rows = replace(
        Table.from_arrays(np.zeros((2, 0)), task=model.task, label_bounds=model.label_bounds),
        features=features,
        schema=None if model.encoder is None else model.encoder.schema,
    )
    outputs = len(model.classes or ()) if len(model.classes or ()) > 2 else 1
    if model._finite_scores(rows).shape != (2, outputs):
        damaged("its weights do not fit its classes")
    return model


@dataclass(frozen=True, kw_only=True, eq=False)
class LinearModel(Model):
    """Scores are linear in the (mapped) public features and the private ones."""

    kind: ClassVar[str] = "linear"

    fit: LinearFit

    def scores(self, table: Table) -> Floats:
        """[public, private] @ coef.T + intercept, without copying the blocks together."""
        mapped = self.fit.feature_map
        public, private = (feature_rows(table, private=each) for each in (False, True))
        if mapped is not None:
            public = mapped.transform(table.public)
        split, width = public.shape[1], public.shape[1] + private.shape[1]
        if width != self.fit.coef.shape[1]:
            raise DataError(
                f"The rows have {width} features, this model was fitted "
                f"on {self.fit.coef.shape[1]}: pass rows like those it was trained on."
            )
        scores: Floats = (
            rows_times(public, self.fit.coef[:, :split].T)
            + rows_times(private, self.fit.coef[:, split:].T)
            + self.fit.intercept
        )
        return scores

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Coefficients, and the feature map's arrays behind the prefix `map.`."""
        stored: dict[str, NDArray[Any]] = {"coef": self.fit.coef, "intercept": self.fit.intercept}
        if self.fit.feature_map is not None:
            arrays = self.fit.feature_map.to_arrays()
            stored |= {f"map.{name}": array for name, array in arrays.items()}
        return stored

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]], **common: Any) -> LinearModel:
        """The inverse of `arrays`."""
        mapped = {n.removeprefix("map."): a for n, a in arrays.items() if n.startswith("map.")}
        feature_map = None
        if mapped:
            from halfmask.features import feature_map_from_arrays

            feature_map = feature_map_from_arrays(mapped)
        coef, intercept = arrays["coef"], arrays["intercept"]
        numbers = coef.dtype == intercept.dtype == np.float64
        if not numbers or coef.ndim != 2 or intercept.shape != coef.shape[:1]:
            damaged("its coefficients")
        fit = LinearFit(
            coef=coef,
            intercept=intercept,
            details=common["details"],
            feature_map=feature_map,
        )
        return cls(fit=fit, **common)


def class_array(classes: tuple[Any, ...] | None) -> NDArray[Any]:
    """Classes as an array of their own type; mixed types stay objects."""
    assert classes is not None
    same = len({type(value) for value in classes}) == 1
    return np.array(list(classes), dtype=None if same else object)
