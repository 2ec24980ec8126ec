"""Is it any good? Scores on labelled rows beside a constant and beside the public columns alone.

Everything here is computed from the labels of rows the user passes: no guarantee covers it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, softmax

from halfmask.errors import DataError
from halfmask.model import Model
from halfmask.scoring import score_rows
from halfmask.table import Table

Floats = NDArray[np.float64]

_PARTS = 10
_MOST_GROUPS = 50


def judge(
    model: Model, tables: Iterable[Table], groups: Sequence[str | None] | None = None
) -> dict[str, Any]:
    """Scores, what they are to be held against, and where the model goes wrong.

    `groups` names the group of every row, rows without a label too; None is the group of those
    that have none.
    """
    labels, found, free, kept = [], [], [], []
    start = 0
    for table in tables:
        known = ~table.unlabelled
        kept.append(np.flatnonzero(known) + start)
        start += table.n
        if not known.any():
            continue
        rows = table.labelled()
        assert rows.label is not None
        labels.append(rows.label)
        found.append(_predicted(model, rows))
        alone = _public_alone(model, rows)
        free += [] if alone is None else [alone]
    if not labels:
        raise DataError("No row has a label: pass rows of which some have one.")
    label, predicted = np.concatenate(labels), np.concatenate(found)
    numbers = model.task == "regression"
    result: dict[str, Any] = dict(score_rows(label, predicted, numbers=numbers))
    result["constant"] = _constant(label, predicted, numbers=numbers)
    if free:
        result["public_columns_alone"] = _brief(label, np.concatenate(free), numbers=numbers)
    result["better_than_constant"] = _better(result, numbers=numbers)
    if not numbers:
        classes = [str(name) for name in model.classes or ()]
        result |= _by_class(label, predicted, classes)
    if groups is not None:
        names = np.array(["(missing)" if name is None else name for name in groups], dtype=object)
        result["groups"] = _by_group(label, predicted, names[np.concatenate(kept)], numbers)
    return result


def _predicted(model: Model, rows: Table) -> Floats:
    if model.task == "regression":
        return model.predict(rows).astype(np.float64)
    return model.probabilities(rows)


def _public_alone(model: Model, rows: Table) -> Floats | None:
    """What the public columns alone give: a free model, or the part that one release paid for."""
    fit = vars(model).get("fit")
    if model.kind != "additive" or fit is None or not rows.coded:
        return None
    outputs = getattr(fit, "outputs", (fit,))
    found = [output.offset(rows.coded) for output in outputs]
    if any(offset is None for offset in found) or model.details.get("pooled_classes"):
        return None
    if len(found) > 1:
        chances: Floats = softmax(np.column_stack(found), axis=1)
        return chances
    scores: Floats = np.asarray(found[0], dtype=np.float64)
    if model.task == "regression":
        assert model.label_bounds is not None
        low, high = model.label_bounds
        numbers: Floats = np.clip((high + low) / 2 + (high - low) / 2 * scores, low, high)
        return numbers
    second = expit(scores)
    return np.column_stack([1 - second, second])


def _brief(label: NDArray[Any], predicted: Floats, *, numbers: bool) -> dict[str, float | None]:
    scored = score_rows(label, predicted, numbers=numbers)
    return {name: value for name, value in scored.items() if name != "rows"}


def _constant(label: NDArray[Any], predicted: Floats, *, numbers: bool) -> dict[str, float | None]:
    """One answer for all rows: the mean of these rows, or the share of each class in them."""
    if numbers:
        return {"rmse": float(np.std(label)), "r2": 0.0}
    share = np.bincount(label, minlength=predicted.shape[1]) / len(label)
    seen = share[share > 0]
    return {"accuracy": float(share.max()), "log_loss": float(-(seen * np.log(seen)).sum())}


def _better(result: Mapping[str, Any], *, numbers: bool) -> bool:
    name = "rmse" if numbers else "log_loss"
    return bool(result[name] < result["constant"][name])


def _by_class(label: NDArray[Any], predicted: Floats, classes: Sequence[str]) -> dict[str, Any]:
    best = predicted.argmax(axis=1)
    counts = np.zeros((len(classes), len(classes)), dtype=int)
    np.add.at(counts, (label, best), 1)
    rows, called, right = counts.sum(axis=1), counts.sum(axis=0), np.diag(counts)
    return {
        "confusion": {
            name: dict(zip(classes, map(int, line), strict=True))
            for name, line in zip(classes, counts, strict=True)
        },
        "classes": {
            name: {
                "rows": int(rows[place]),
                "precision": float(right[place] / called[place]) if called[place] else None,
                "recall": float(right[place] / rows[place]) if rows[place] else None,
                "calibration_error": _calibration_error(predicted[:, place], label == place),
            }
            for place, name in enumerate(classes)
        },
    }


def _calibration_error(predicted: Floats, observed: NDArray[np.bool_]) -> float:
    """The mean distance of predicted and observed shares, in ten parts of equally many rows."""
    order = np.argsort(predicted, kind="stable")
    parts = [part for part in np.array_split(order, _PARTS) if len(part)]
    apart = [abs(predicted[part].mean() - observed[part].mean()) * len(part) for part in parts]
    return float(sum(apart) / len(order))


def _by_group(
    label: NDArray[Any], predicted: Floats, names: NDArray[Any], numbers: bool
) -> dict[str, Any]:
    found = dict.fromkeys(names.tolist())
    if len(found) > _MOST_GROUPS:
        raise DataError(
            f"--by names a column with {len(found):,} values: choose one with at most "
            f"{_MOST_GROUPS}, such as a category."
        )
    return {
        str(name): score_rows(label[names == name], predicted[names == name], numbers=numbers)
        for name in sorted(found)
    }
