"""What the same rows give without privacy: boosted trees and a logistic (or linear) model.

On request only. Whatever is printed of it was computed from exact private values: it is covered by
no guarantee, charged to no ledger and stored in no model.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halfmask.errors import DataError
from halfmask.scoring import score_rows
from halfmask.signs import part_of, tell
from halfmask.table import Codes, Table

Floats = NDArray[np.float64]

NOT_PRIVATE = "NOT PRIVATE: computed from exact private values. Keep it to yourself."
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
    found: dict[str, Any] = {"rows": rows.n, "private": False, "not_private": NOT_PRIVATE}
    tested = None if tables is None else [t.labelled() for t in tables if not t.unlabelled.all()]
    for place, kind in enumerate(_NAMES):
        tell("fitting the reference without privacy", place / len(_NAMES))
        with part_of("fitting the reference without privacy"):
            label, predicted = _held_out(kind, rows) if tested is None else _on(kind, rows, tested)
        scores = score_rows(label, predicted, numbers=rows.classes is None)
        found[kind] = {name: value for name, value in scores.items() if name != "rows"}
    return found


def reference_lines(found: dict[str, Any], where: str) -> list[str]:
    """The reference for a terminal, marked."""
    lines = ["", f"Without privacy, {where}:"]
    for kind, name in _NAMES.items():
        told = ", ".join(
            f"{n.replace('_', ' ')} {'-' if v is None else format(v, '.4f')}"
            for n, v in found[kind].items()
        )
        lines.append(f"  {name}: {told}")
    return [*lines, NOT_PRIVATE]


def _some(table: Table) -> Table:
    if table.n <= _MOST_ROWS:
        return table
    chosen = np.random.default_rng(0).choice(table.n, _MOST_ROWS, replace=False)
    return table.kept(np.sort(chosen))


def _held_out(kind: str, rows: Table) -> tuple[NDArray[Any], Floats]:
    assert rows.label is not None
    fold = np.random.default_rng(0).permutation(rows.n) % _FOLDS
    outside, inside = zip(
        *((np.flatnonzero(fold != k), np.flatnonzero(fold == k)) for k in range(_FOLDS)),
        strict=True,
    )
    parts = [
        _of(_fitted(kind, rows.kept(known)), kind, rows, rows.kept(apart))
        for known, apart in zip(outside, inside, strict=True)
    ]
    return rows.label, np.concatenate(parts)[np.argsort(np.concatenate(inside))]


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
        numbers: Floats = np.asarray(model.predict(seen), dtype=np.float64)
        return numbers
    # A class that the training rows lack has no chance; none is exactly nought.
    chances = np.full((others.n, len(rows.classes)), 1e-6)
    chances[:, model.classes_] += model.predict_proba(seen)
    found: Floats = chances / chances.sum(axis=1, keepdims=True)
    return found


def _categories(rows: Table) -> list[bool] | None:
    if not isinstance(rows.features, Codes) or rows.schema is None:
        return None
    kinds = {column.name: column.kind for column in rows.schema.columns}
    return [
        kinds[column.name] not in ("number", "date") and column.cells.count <= _MOST_LEVELS
        for column in rows.features.columns
    ]


def _features(kind: str, rows: Table) -> Any:
    if kind == "linear" or not isinstance(rows.features, Codes):
        from scipy import sparse

        return sparse.csr_matrix(np.hstack([rows.public, rows.private]))
    return np.column_stack(
        [
            column.codes.astype(np.float64) if column.numbers is None else column.numbers
            for column in rows.features.columns
        ]
    )
