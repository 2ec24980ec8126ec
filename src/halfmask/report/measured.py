"""Scores, ROC and calibration on rows of the user's own, which no guarantee covers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halfmask.errors import DataError
from halfmask.frames import as_arrow, check_columns, texts
from halfmask.judging import judge
from halfmask.model import Model
from halfmask.table import Table

NOT_COVERED = "Computed from the labels of the rows that were passed: not covered by the guarantee."

NO_BETTER = (
    "On these rows the model is no better than a constant. More rows, a larger epsilon or more "
    "public columns may help."
)
_SCORES = ("rows", "accuracy", "log_loss", "auc", "rmse", "r2")
_BINS = 10
_MOST_POINTS = 101

Point = tuple[float, float]


@dataclass(frozen=True, kw_only=True)
class CalibrationBin:
    """Rows with neighbouring predictions: what was predicted, what was there, how many."""

    predicted: float
    observed: float
    rows: int


@dataclass(frozen=True, kw_only=True)
class Measured:
    """`scores` as `evaluate` prints them; curves by class, or none for a number to predict."""

    scores: Mapping[str, float | None]
    constant: Mapping[str, float | None]
    public_alone: Mapping[str, float | None]
    better_than_constant: bool
    roc: Mapping[str, tuple[Point, ...]]
    calibration: Mapping[str, tuple[CalibrationBin, ...]]
    classes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    confusion: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    groups: Mapping[str, Mapping[str, float | None]] = field(default_factory=dict)
    by: str | None = None
    reference: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """The measurement as a JSON object."""
        return {
            **self.scores,
            "constant": dict(self.constant),
            "public_columns_alone": dict(self.public_alone),
            "better_than_constant": self.better_than_constant,
            "covered_by_guarantee": False,
            "classes": {name: dict(each) for name, each in self.classes.items()},
            "confusion": {name: dict(each) for name, each in self.confusion.items()},
            "by": self.by,
            "groups": {name: dict(each) for name, each in self.groups.items()},
            "reference": dict(self.reference) or None,
            "roc": {name: [list(point) for point in points] for name, points in self.roc.items()},
            "calibration": {
                name: [[b.predicted, b.observed, b.rows] for b in bins]
                for name, bins in self.calibration.items()
            },
        }


def measure(model: Model, frame: Any, *, by: str | None = None, reference: Any = None) -> Measured:
    """Score `model` on a frame that has the label; by the groups of a column of it, too.

    `reference` is a frame of training rows, for models without privacy to be compared with.
    """
    if model.encoder is None:
        raise DataError(
            "This model was fitted on a bare array, so a file cannot be scored with it: leave out "
            "--data."
        )
    table = model.encode(frame, with_label=True)
    judged = _judged(model, table, frame, by)
    if reference is not None:
        from halfmask.reference import reference as without_privacy

        judged["reference"] = without_privacy(model.encode(reference, with_label=True), [table])
    table = table.labelled()
    assert table.label is not None
    if model.task == "regression":
        curve = calibration_bins(model.predict(table).astype(np.float64), table.label)
        return Measured(**judged, roc={}, calibration={"predicted": curve})
    probabilities = model.probabilities(table)
    classes = [str(name) for name in model.classes or ()]
    shown = [1] if len(classes) == 2 else list(range(len(classes)))
    roc, calibration = {}, {}
    for place in shown:
        truth = (table.label == place).astype(np.float64)
        calibration[classes[place]] = calibration_bins(probabilities[:, place], truth)
        if 0 < truth.mean() < 1:
            roc[classes[place]] = roc_points(probabilities[:, place], truth)
    return Measured(**judged, roc=roc, calibration=calibration)


def _judged(model: Model, table: Table, frame: Any, by: str | None) -> dict[str, Any]:
    """Scores, and what they are held against."""
    groups = None
    if by is not None:
        check_columns(frame, [by])
        groups = texts(as_arrow(frame, [by]), by).to_pylist()
    found = judge(model, [table], groups)
    return {
        "scores": {name: found[name] for name in _SCORES if name in found},
        "constant": found["constant"],
        "public_alone": found.get("public_columns_alone", {}),
        "better_than_constant": found["better_than_constant"],
        "classes": found.get("classes", {}),
        "confusion": found.get("confusion", {}),
        "groups": found.get("groups", {}),
        "by": by,
    }


def calibration_bins(
    predicted: NDArray[np.float64], observed: NDArray[np.float64]
) -> tuple[CalibrationBin, ...]:
    """Up to ten bins of equally many rows, in the order of their predictions."""
    order = np.argsort(predicted, kind="stable")
    return tuple(
        CalibrationBin(
            predicted=float(predicted[part].mean()),
            observed=float(observed[part].mean()),
            rows=len(part),
        )
        for part in np.array_split(order, min(_BINS, len(order)))
    )


def roc_points(score: NDArray[np.float64], truth: NDArray[np.float64]) -> tuple[Point, ...]:
    """(false positive rate, true positive rate), thinned to at most a hundred points."""
    from sklearn.metrics import roc_curve

    false, true, _ = roc_curve(truth, score)
    kept = np.unique(np.linspace(0, len(false) - 1, min(len(false), _MOST_POINTS)).astype(int))
    return tuple((float(false[place]), float(true[place])) for place in kept)
