"""What is kept of a vertical training: a part of the model at each party, its sum at the label
holder.

A part is a party's encoder and coefficients, stored as JSON and npz that only its owner can read.
The label holder's file says how scores are added, and repeats every party's statement.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import expit

from halfmask import model_folder
from halfmask.errors import InputError
from halfmask.model import class_array
from halfmask.model_folder import damaged, read_arrays, read_json, rebuilt
from halfmask.table import Encoder
from halfmask.vertical.block import Vector
from halfmask.vertical.store import write_durably

PART, MODEL = "halfmask-vertical-part-1", "halfmask-vertical-1"
MODEL_FILE = "vertical.json"


@dataclass(frozen=True, kw_only=True, eq=False)
class Part:
    """One party's side of the model. `covered`: its coefficients are released values.

    Guarantee: docs/proofs/queries.md.
    """

    party: str
    method: str
    run: str
    encoder: Encoder
    coefficients: Vector
    covered: bool
    statement: Mapping[str, Any] = field(default_factory=dict)

    def scores(self, frame: Any) -> Vector:
        """⟨coefficients, row⟩ of every row of this party's columns."""
        table = self.encoder.encode(frame, with_label=False)
        rows = np.hstack([table.public, table.private])
        if rows.shape[1] != len(self.coefficients):
            damaged("a part has not one coefficient per feature")
        return np.asarray(rows @ self.coefficients, dtype=np.float64)

    def save(self, folder: Path) -> None:
        """part.npz, then part.json, each as a whole."""
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        buffer = io.BytesIO()
        np.savez(buffer, allow_pickle=False, coefficients=self.coefficients)
        write_durably(folder / "part.npz", buffer.getvalue())
        told = {
            "format": PART,
            "party": self.party,
            "method": self.method,
            "run": self.run,
            "covered": self.covered,
            "encoder": self.encoder.to_json(),
            "statement": dict(self.statement),
        }
        write_durably(folder / "part.json", json.dumps(told, indent=2).encode())

    @classmethod
    def load(cls, folder: Path) -> Part:
        """The inverse of `save`; a damaged folder is an error that says what is wrong."""
        if not (folder / "part.json").is_file():
            raise InputError(f"There is no part of a model in {str(folder)!r}: train first.")
        told = read_json(folder / "part.json")
        if not isinstance(told, dict) or told.get("format") != PART:
            damaged("part.json does not describe a part of a model")
        coefficients = read_arrays(folder / "part.npz").get("coefficients")
        if coefficients is None or coefficients.ndim != 1 or coefficients.dtype != np.float64:
            damaged("the coefficients of a part")
        return cls(
            party=model_folder.field(told, "party", str),
            method=model_folder.field(told, "method", str),
            run=model_folder.field(told, "run", str),
            covered=model_folder.field(told, "covered", bool),
            encoder=rebuilt(lambda: Encoder.from_json(told["encoder"]), "part.json"),
            coefficients=coefficients,
            statement=model_folder.field(told, "statement", dict),
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class VerticalModel:
    """How the parties' scores become a prediction: score = intercept + Σ weight · score of a party.

    `privacy` holds every party's statement as JSON; `details` are public facts of the training.
    """

    method: str
    run: str
    weights: Mapping[str, float]
    intercept: float
    rule: str
    label: str
    classes: tuple[Any, ...] | None
    id: str
    privacy: Mapping[str, Mapping[str, Any]]
    details: Mapping[str, Any] = field(default_factory=dict)
    label_bounds: tuple[float, float] | None = None

    @property
    def parties(self) -> tuple[str, ...]:
        """The names of the parties, in the order of the sum."""
        return tuple(self.weights)

    def score(self, scores: Mapping[str, Vector]) -> Vector:
        """The log-odds of the second class, or the number in units of half its range."""
        total = sum(weight * scores[name] for name, weight in self.weights.items())
        return np.asarray(self.intercept + total, dtype=np.float64)

    def probabilities(self, score: Vector) -> Vector:
        """One column per class."""
        second = expit(score)
        return np.column_stack([1 - second, second])

    def predicted(self, score: Vector) -> Any:
        """The likeliest class of each row, or the number within its bounds."""
        if self.classes is None:
            assert self.label_bounds is not None
            low, high = self.label_bounds
            return np.clip((high + low) / 2 + (high - low) / 2 * score, low, high)
        return class_array(self.classes)[(score > 0).astype(int)]

    def save(self, folder: Path) -> None:
        """Write vertical.json."""
        folder.mkdir(parents=True, exist_ok=True)
        told = {"format": MODEL, **vars(self), "classes": self.classes and list(self.classes)}
        told = {name: dict(v) if isinstance(v, Mapping) else v for name, v in told.items()}
        text = json.dumps(told, indent=2, allow_nan=False)
        write_durably(folder / MODEL_FILE, text.encode())

    @classmethod
    def load(cls, folder: Path) -> VerticalModel:
        """Read what `save` has written."""
        if not (folder / MODEL_FILE).is_file():
            raise InputError(
                f"There is no vertical model in {str(folder)!r}: pass the folder of "
                "`vertical simulate --out`, or the run file of a run that has ended."
            )
        told = read_json(folder / MODEL_FILE)
        if not isinstance(told, dict) or told.pop("format", None) != MODEL:
            damaged(f"{MODEL_FILE} does not describe a vertical model")
        return rebuilt(lambda: _checked(cls, told), MODEL_FILE)


def _checked(kind: type[VerticalModel], told: dict[str, Any]) -> VerticalModel:
    words = ("method", "run", "rule", "label", "id")
    for name in words:
        model_folder.field(told, name, str)
    weights = model_folder.field(told, "weights", dict)
    if not weights or not all(isinstance(w, int | float) for w in weights.values()):
        damaged("its weights")
    model_folder.field(told, "intercept", int, float)
    model_folder.field(told, "privacy", dict)
    model_folder.field(told, "details", dict)
    if told.get("classes") is None:
        bounds = model_folder.field(told, "label_bounds", list)
        plain = all(type(end) in (int, float) for end in bounds)
        if len(bounds) != 2 or not plain or not bounds[0] < bounds[1]:
            damaged("the bounds of its label")
        return kind(**{**told, "classes": None, "label_bounds": tuple(map(float, bounds))})
    classes = tuple(model_folder.field(told, "classes", list))
    if len(classes) != 2:
        damaged("its classes")
    return kind(**{**told, "classes": classes, "label_bounds": None})
