"""How well a model predicts labelled rows. The result is not covered by any guarantee."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import log_loss, r2_score, roc_auc_score, root_mean_squared_error

from halfmask.errors import DataError
from halfmask.model import Model
from halfmask.table import Table


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
        number = model.task == "regression"
        found.append(model.predict(known) if number else model.probabilities(known))
    if not labels:
        raise DataError("No row has a label: pass rows of which some have one.")
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
        "log_loss": float(log_loss(label, predicted, labels=np.arange(classes))),
        "auc": auc,
    }
