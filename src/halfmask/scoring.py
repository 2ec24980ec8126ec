"""How well a model predicts labelled rows. The result is not covered by any guarantee."""

from __future__ import annotations

import numpy as np
from sklearn.metrics import log_loss, r2_score, roc_auc_score, root_mean_squared_error

from halfmask.model import Model
from halfmask.table import Table


def scores(model: Model, table: Table) -> dict[str, float | None]:
    """rows with accuracy, log_loss and auc, or with rmse and r2; rows without a label are left out.

    With more than two classes, auc is the mean over classes of one against the rest; None where
    the rows lack a class.
    """
    table = table.labelled()
    assert table.label is not None
    if model.task == "regression":
        predicted = model.predict(table)
        return {
            "rows": table.n,
            "rmse": float(root_mean_squared_error(table.label, predicted)),
            "r2": float(r2_score(table.label, predicted)) if table.n > 1 else None,
        }
    probabilities = model.probabilities(table)
    classes = probabilities.shape[1]
    present = len(np.unique(table.label)) == classes
    auc = None
    if present and classes == 2:
        auc = float(roc_auc_score(table.label, probabilities[:, 1]))
    elif present:
        auc = float(roc_auc_score(table.label, probabilities, multi_class="ovr"))
    best = probabilities.argmax(axis=1)
    return {
        "rows": table.n,
        "accuracy": float((best == table.label).mean()),
        "log_loss": float(log_loss(table.label, probabilities, labels=np.arange(classes))),
        "auc": auc,
    }
