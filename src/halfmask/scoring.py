"""How well a model predicts labelled rows. The result is not covered by any guarantee."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.special import expit, softmax
from sklearn.metrics import log_loss, r2_score, roc_auc_score, root_mean_squared_error

from halfmask.data.frames import check_columns
from halfmask.errors import DataError
from halfmask.model import Model
from halfmask.progress import part_of, tell
from halfmask.table import CodedFeatures, Table
from halfmask.types import Floats

_SHOWN = {"log_loss": "log loss", "auc": "AUC", "rmse": "RMSE", "r2": "R²"}
_NO_LABEL = "No row has a label: pass rows of which some have one."
_ROUNDING = 1e-15  # what is left of a zero


def shown_score(name: str) -> str:
    """The name of a score as people read it."""
    return _SHOWN.get(name, name)


def shown_value(value: float) -> str:
    """A score to four places; a smaller one, as of a label in a small unit, to four digits."""
    return f"{value:.4g}" if _ROUNDING < abs(value) < 1e-3 else f"{value:.4f}"


def told_scores(found: Mapping[str, Any]) -> str:
    """Scores in a line, a dash where one is not defined."""
    shown = {
        n: "-" if v is None else f"{v:,}" if n == "rows" else shown_value(v)
        for n, v in found.items()
    }
    return ", ".join(f"{shown_score(name)} {value}" for name, value in shown.items())


def scores(model: Model, rows: Table | Iterable[Table]) -> dict[str, float | None]:
    """rows with accuracy, log_loss and auc, or with rmse and r2; rows without a label are left out.

    Rows may come in several tables, of which one is held at a time. With more than two classes, auc
    is the mean over classes of one against the rest; None where the rows lack a class.
    """
    labels, found = [], []
    for table in [rows] if isinstance(rows, Table) else rows:
        if table.unlabelled.all():
            continue
        known = table.labelled()
        assert known.label is not None
        labels.append(known.label)
        found.append(_predicted(model, known))
    if not labels:
        raise DataError(_NO_LABEL)
    label, predicted = np.concatenate(labels), np.concatenate(found)
    return score_rows(label, predicted, numbers=model.task == "regression")


def score_rows(
    label: NDArray[Any], predicted: NDArray[np.float64], *, numbers: bool
) -> dict[str, float | None]:
    """The same of labels (numbers, or codes of classes) and predictions (or probabilities)."""
    if numbers:
        return {
            "rows": len(label),
            "rmse": float(root_mean_squared_error(label, predicted)),
            "r2": float(r2_score(label, predicted)) if len(label) > 1 else None,
        }
    return class_scores(label, predicted)


def beside_a_constant(
    label: NDArray[Any], predicted: NDArray[np.float64], *, numbers: bool
) -> dict[str, Any]:
    """What `score_rows` finds, and what a constant would reach on these rows."""
    result: dict[str, Any] = dict(score_rows(label, predicted, numbers=numbers))
    result["constant"] = _constant(label, 0 if numbers else predicted.shape[1])
    main = "rmse" if numbers else "log_loss"
    result["better_than_constant"] = bool(result[main] < result["constant"][main])
    return result


def class_scores(label: NDArray[Any], predicted: NDArray[np.float64]) -> dict[str, float | None]:
    """rows, accuracy, log_loss and auc of class codes and the predicted chance of each class."""
    classes = predicted.shape[1]
    present = len(np.unique(label)) == classes
    auc = None
    if present and classes == 2:
        auc = float(roc_auc_score(label, predicted[:, 1]))
    elif present:
        auc = float(roc_auc_score(label, predicted, multi_class="ovr"))
    best = predicted.argmax(axis=1)
    return {
        "rows": len(label),
        "accuracy": float((best == label).mean()),
        "log_loss": float(log_loss(label, predicted, labels=np.arange(classes))) + 0.0,
        "auc": auc,
    }


# --- Is it any good? Scores on labelled rows beside a constant and beside the public columns alone.
# Everything here is computed from the labels of rows the user passes: no guarantee covers it.


_PARTS = 10
_MOST_GROUPS = 50


def check_by(frame: Any, by: str, model: Model) -> None:
    """The column whose values are groups is there."""
    beside = () if model.encoder is None else model.encoder.schema.read
    check_columns(frame, [by], beside=beside, advice="Name a column of the data with --by.")


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
        raise DataError(_NO_LABEL)
    label, predicted = np.concatenate(labels), np.concatenate(found)
    numbers = model.task == "regression"
    result = beside_a_constant(label, predicted, numbers=numbers)
    result["without_label"] = start - len(label)
    if free:
        result["public_columns_alone"] = _brief(label, np.concatenate(free), numbers=numbers)
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
    if any(offset is None for offset in found):
        return None
    if len(found) > 1:
        return _of_pools(model.details, np.column_stack(found))
    scores: Floats = np.asarray(found[0], dtype=np.float64)
    if model.task == "regression":
        assert model.label_bounds is not None
        low, high = model.label_bounds
        return np.clip((high + low) / 2 + (high - low) / 2 * scores, low, high)
    second = expit(scores)
    return np.column_stack([1 - second, second])


def _of_pools(details: Mapping[str, Any], scores: Floats) -> Floats | None:
    """Chances of classes; rare ones that share a score have their share of its chance."""
    if not details.get("pooled_classes"):
        chances: Floats = softmax(scores, axis=1)
        return chances
    pool, share = details.get("pool"), np.asarray(details.get("base"), dtype=np.float64)
    if pool is None or not len(pool) == len(share) == scores.shape[1]:
        return None  # an older model does not say which classes share a score
    _, first, pools = np.unique(pool, return_index=True, return_inverse=True)
    within = share / np.bincount(pools, share)[pools]
    found: Floats = softmax(scores[:, first], axis=1)[:, pools] * within
    return found


def _brief(label: NDArray[Any], predicted: Floats, *, numbers: bool) -> dict[str, float | None]:
    """`score_rows` without the number of rows."""
    scored = score_rows(label, predicted, numbers=numbers)
    return {name: value for name, value in scored.items() if name != "rows"}


def constant_of(rows: Table) -> dict[str, float]:
    """What one answer for all of these rows would reach; an error where none has a label."""
    if rows.unlabelled.all():
        raise DataError(_NO_LABEL)
    known = rows.labelled()
    assert known.label is not None
    return _constant(known.label, len(rows.classes or ()))


def _constant(label: NDArray[Any], classes: int) -> dict[str, float]:
    """One answer for all rows: the mean of these rows, or the share of each class in them."""
    if not classes:
        return {"rmse": float(np.std(label)), "r2": 0.0}
    share = np.bincount(label, minlength=classes) / len(label)
    seen = share[share > 0]
    return {"accuracy": float(share.max()), "log_loss": float(-(seen * np.log(seen)).sum()) + 0.0}


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


class CalibrationBin(NamedTuple):
    """Rows with neighbouring predictions: what was predicted, what was there, how many."""

    predicted: float
    observed: float
    rows: int


def calibration_bins(predicted: Floats, observed: NDArray[Any]) -> tuple[CalibrationBin, ...]:
    """Up to ten bins of equally many rows, in the order of their predictions."""
    order = np.argsort(predicted, kind="stable")
    return tuple(
        CalibrationBin(
            predicted=float(predicted[part].mean()),
            observed=float(observed[part].mean()),
            rows=len(part),
        )
        for part in np.array_split(order, min(_PARTS, len(order)))
    )


def _calibration_error(predicted: Floats, observed: NDArray[np.bool_]) -> float:
    """The mean distance of predicted and observed shares in `calibration_bins`."""
    bins = calibration_bins(predicted, observed)
    return sum(abs(each.predicted - each.observed) * each.rows for each in bins) / len(predicted)


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


# --- What the same rows give without privacy: boosted trees and a logistic (or linear) model.
# On request only. Whatever is printed of it was computed from exact private values: it is covered
# by no guarantee, charged to no ledger and stored in no model.


REFERENCE_NOT_PRIVATE = "NOT PRIVATE: computed from exact private values. Keep it to yourself."
_NAMES = {"boosted_trees": "boosted trees", "linear": "a linear model of levels"}
_MOST_ROWS = 50_000
_MOST_LEVELS = 255  # of a category in scikit-learn's boosted trees
_FOLDS = 3


def reference(training: Table, tables: Iterable[Table] | None = None) -> dict[str, Any]:
    """Scores of models without privacy, fitted on `training` and scored on `tables`.

    Without `tables`, on the rows of `training` themselves, each by a model that did not see it. Of
    more than 50,000 rows as many are taken by chance.
    """
    rows = _some(training.labelled())
    assert rows.label is not None
    if rows.classes is not None and len(np.unique(rows.label)) < 2:
        raise DataError("The rows for the reference hold one class only: pass more rows.")
    found: dict[str, Any] = {"rows": rows.n, "private": False, "not_private": REFERENCE_NOT_PRIVATE}
    tested = None if tables is None else [t.labelled() for t in tables if not t.unlabelled.all()]
    for place, kind in enumerate(_NAMES):
        tell("fitting the reference without privacy", place / len(_NAMES))
        with part_of("fitting the reference without privacy"):
            label, predicted = _held_out(kind, rows) if tested is None else _on(kind, rows, tested)
        found[kind] = _brief(label, predicted, numbers=rows.classes is None)
    return found


def reference_lines(found: dict[str, Any], where: str) -> list[str]:
    """The reference for a terminal, marked."""
    lines = [f"  {name}: {told_scores(found[kind])}" for kind, name in _NAMES.items()]
    return ["", f"Without privacy, {where}:", *lines, REFERENCE_NOT_PRIVATE]


def _some(table: Table) -> Table:
    if table.n <= _MOST_ROWS:
        return table
    chosen = np.random.default_rng(0).choice(table.n, _MOST_ROWS, replace=False)
    return table.kept(np.sort(chosen))


def _held_out(kind: str, rows: Table) -> tuple[NDArray[Any], Floats]:
    assert rows.label is not None
    fold = np.random.default_rng(0).permutation(rows.n) % _FOLDS
    places = [np.flatnonzero(fold == k) for k in range(_FOLDS)]
    parts = [
        _of(_fitted(kind, rows.kept(np.flatnonzero(fold != k))), kind, rows, rows.kept(apart))
        for k, apart in enumerate(places)
    ]
    return rows.label, np.concatenate(parts)[np.argsort(np.concatenate(places))]


def _on(kind: str, rows: Table, tables: list[Table]) -> tuple[NDArray[Any], Floats]:
    if not tables:
        raise DataError("No row has a label: pass rows of which some have one.")
    labels = np.concatenate([np.asarray(table.label) for table in tables])
    model = _fitted(kind, rows)
    return labels, np.concatenate([_of(model, kind, rows, table) for table in tables])


def _fitted(kind: str, rows: Table) -> Any:
    from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
    from sklearn.linear_model import LogisticRegression, Ridge

    numbers = rows.classes is None
    if kind == "linear":
        model: Any = Ridge(alpha=3.0) if numbers else LogisticRegression(C=1.0, max_iter=300)
    else:
        made = HistGradientBoostingRegressor if numbers else HistGradientBoostingClassifier
        model = made(
            categorical_features=_categories(rows),
            learning_rate=0.06,
            max_leaf_nodes=16,
            max_iter=200,
            early_stopping=rows.n > 1000,
            random_state=0,
        )
    return model.fit(_features(kind, rows), rows.label)


def _of(model: Any, kind: str, rows: Table, others: Table) -> Floats:
    seen = _features(kind, others)
    if rows.classes is None:
        return np.asarray(model.predict(seen), dtype=np.float64)
    # A class that the training rows lack has no chance; none is exactly nought.
    chances = np.full((others.n, len(rows.classes)), 1e-6)
    chances[:, model.classes_] += model.predict_proba(seen)
    found: Floats = chances / chances.sum(axis=1, keepdims=True)
    return found


def _categories(rows: Table) -> list[bool] | None:
    if not isinstance(rows.features, CodedFeatures) or rows.schema is None:
        return None
    kinds = {column.name: column.kind for column in rows.schema.columns}
    return [
        kinds[column.name] not in ("number", "date") and column.cells.count <= _MOST_LEVELS
        for column in rows.features.columns
    ]


def _features(kind: str, rows: Table) -> Any:
    if kind == "linear" or not isinstance(rows.features, CodedFeatures):
        return sparse.csr_matrix(np.hstack([rows.public, rows.private]))
    return np.column_stack(
        [
            column.codes.astype(np.float64) if column.numbers is None else column.numbers
            for column in rows.features.columns
        ]
    )
