"""What the tables' results are compared with: models without privacy, and DP-EBM.

Settings of the models without privacy are chosen by cross-validation on training rows, from the
small grids below; the number of trees is chosen with them. DP-EBM has its own published defaults.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from scipy import sparse
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import log_loss
from sklearn.model_selection import KFold

from halfmask.accounting.gaussian import gaussian_epsilon, gaussian_mu
from halfmask.data.frames import numbers, texts
from halfmask.schema import Column
from halfmask.table import Task as Task

Kind = Literal["binned", "boosted"]

BINS = 32
PENALTIES = (0.3, 3.0, 30.0, 300.0)
"""Ridge penalties of the binned model: 1 / C of a logistic one, alpha of a linear one."""
LEAVES = (8, 16, 32)
MOST_TREES, TREES_STEP = 300, 10
TREE_OPTIONS = {"learning_rate": 0.05, "min_samples_leaf": 40, "l2_regularization": 1.0}
_FOLDS, _FOLD_SEED = 3, 2026
_MOST_LEVELS = 250  # HistGradientBoosting takes 255 at most


@dataclass(frozen=True, kw_only=True, eq=False)
class BaselineFit:
    """Predictions for the test rows, the loss on held-out training rows, and what was chosen.

    Of a method that refuses there are none, and why.
    """

    predicted: np.ndarray | None
    held_out: float = np.nan
    setting: str = ""


def fit_without_privacy(
    kind: Kind,
    columns: Sequence[Column],
    train: pa.Table,
    target: np.ndarray,
    test: pa.Table,
    task: Task,
) -> BaselineFit:
    """The model of one kind on these columns, tuned on the training rows."""
    if not columns:
        spread = _loss(target, constant(target, len(target), task), task)
        same = constant(target, test.num_rows, task)
        return BaselineFit(predicted=same, held_out=spread, setting="constant")
    fit = _fit_binned if kind == "binned" else _fit_boosted
    return fit(columns, train, target, test, task)


def constant(target: np.ndarray, rows: int, task: Task) -> np.ndarray:
    """The mean label for each of `rows` rows; of three classes and more, the share of each."""
    if task == "regression" or target.max() < 2:
        return np.full(rows, float(np.mean(target)))
    return np.tile(np.bincount(target) / len(target), (rows, 1))


def _loss(target: np.ndarray, predicted: np.ndarray, task: Task) -> float:
    if task == "regression":
        return float(np.mean((target - predicted) ** 2))
    return class_loss(target, predicted)


def class_loss(target: np.ndarray, predicted: np.ndarray) -> float:
    """Log loss of the second class's chances, or of those of three classes and more."""
    classes = 2 if predicted.ndim == 1 else predicted.shape[1]
    return float(log_loss(target, predicted, labels=list(range(classes))))


def _folds(rows: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Shuffled, since published files are often in order of time."""
    split: Iterator[tuple[np.ndarray, np.ndarray]] = KFold(
        _FOLDS, shuffle=True, random_state=_FOLD_SEED
    ).split(np.empty(rows))
    return split


def _fit_binned(
    columns: Sequence[Column], train: pa.Table, target: np.ndarray, test: pa.Table, task: Task
) -> BaselineFit:
    """Ridge regression, logistic or linear, on one-hot bins of numbers and levels of categories."""
    parts = [_one_hot(column, train, test) for column in columns]
    fitted, scored = (sparse.hstack(block, format="csr") for block in zip(*parts, strict=True))
    held = {penalty: 0.0 for penalty in PENALTIES}
    for known, apart in _folds(len(target)):
        for penalty in PENALTIES:
            model = _ridge(penalty, task).fit(fitted[known], target[known])
            loss = _loss(target[apart], _predicted(model, fitted[apart], task), task)
            held[penalty] += loss / _FOLDS
    best = min(held, key=lambda penalty: held[penalty])
    model = _ridge(best, task).fit(fitted, target)
    return BaselineFit(
        predicted=_predicted(model, scored, task), held_out=held[best], setting=f"penalty {best:g}"
    )


def _ridge(penalty: float, task: Task) -> Any:
    if task == "regression":
        return Ridge(alpha=penalty, solver="sparse_cg")
    return LogisticRegression(C=1 / penalty, max_iter=500)


def _predicted(model: Any, rows: Any, task: Task) -> np.ndarray:
    found: np.ndarray = model.predict(rows) if task == "regression" else model.predict_proba(rows)
    return _chances(found)


def _chances(found: np.ndarray) -> np.ndarray:
    """Of two classes the second one's; numbers, and the chances of more classes, as they are."""
    return found[:, 1] if found.ndim == 2 and found.shape[1] == 2 else found


def _one_hot(column: Column, train: pa.Table, test: pa.Table) -> tuple[Any, Any]:
    """Training and test rows of a column; numbers in bins of equal count, missing ones apart."""
    if column.kind != "number":
        first, second = _levels(column.name, train, test)
        width = _MOST_LEVELS + 2
    else:
        first, second = numbers(train, column.name), numbers(test, column.name)
        finite = first[np.isfinite(first)]
        edges = np.empty(0)
        if finite.size:
            inner = np.quantile(finite, np.arange(1, BINS) / BINS, method="higher")
            # The smallest value has a bin of its own where it is frequent.
            edges = np.unique(inner[inner > finite.min()])
            above = finite[finite > finite.min()]
            frequent = np.mean(finite == finite.min()) > 1 / BINS
            if frequent and above.size and (not edges.size or above.min() < edges[0]):
                edges = np.concatenate([[above.min()], edges])
        width = len(edges) + 2
        first, second = (
            np.where(np.isnan(v), width - 1, np.searchsorted(edges, v, side="right"))
            for v in (first, second)
        )

    def block(codes: np.ndarray) -> Any:
        places = (np.arange(len(codes)), codes.astype(np.int64))
        return sparse.csr_matrix((np.ones(len(codes)), places), shape=(len(codes), width))

    return block(first), block(second)


def _levels(name: str, train: pa.Table, test: pa.Table) -> tuple[np.ndarray, np.ndarray]:
    """Codes of the levels that training rows show, the frequent first; then other, missing."""
    seen, asked = texts(train, name).to_pylist(), texts(test, name).to_pylist()
    values, counts = np.unique(
        np.array([value for value in seen if value is not None], dtype=str), return_counts=True
    )
    frequent = values[np.argsort(-counts, kind="stable")][:_MOST_LEVELS]
    codes: dict[str | None, int] = {str(value): code for code, value in enumerate(frequent)}
    codes[None] = _MOST_LEVELS + 1
    first, second = (
        np.array([codes.get(v, _MOST_LEVELS) for v in part], dtype=np.int64)
        for part in (seen, asked)
    )
    return first, second


def _fit_boosted(
    columns: Sequence[Column], train: pa.Table, target: np.ndarray, test: pa.Table, task: Task
) -> BaselineFit:
    """Boosted trees; scikit-learn's own treatment of categories and missing values."""
    fitted = np.empty((train.num_rows, len(columns)))
    scored = np.empty((test.num_rows, len(columns)))
    for place, column in enumerate(columns):
        if column.kind != "number":
            fitted[:, place], scored[:, place] = _levels(column.name, train, test)
        else:
            fitted[:, place] = numbers(train, column.name)
            scored[:, place] = numbers(test, column.name)
    categories = [column.kind != "number" for column in columns]
    steps = np.arange(TREES_STEP, MOST_TREES + 1, TREES_STEP)
    held: dict[tuple[int, int], float] = dict.fromkeys(product(LEAVES, steps.tolist()), 0.0)
    for known, apart in _folds(len(target)):
        for leaves in LEAVES:
            model = _trees(leaves, MOST_TREES, categories, task).fit(fitted[known], target[known])
            for trees, predicted in enumerate(_staged(model, fitted[apart], task), start=1):
                if (leaves, trees) in held:
                    held[leaves, trees] += _loss(target[apart], predicted, task) / _FOLDS
    best = min(held, key=lambda setting: held[setting])
    model = _trees(*best, categories, task).fit(fitted, target)
    return BaselineFit(
        predicted=_predicted(model, scored, task),
        held_out=held[best],
        setting=f"{best[0]} leaves, {best[1]} trees",
    )


def _trees(leaves: int, trees: int, categories: list[bool], task: Task) -> Any:
    build = (
        HistGradientBoostingRegressor if task == "regression" else HistGradientBoostingClassifier
    )
    return build(
        max_leaf_nodes=leaves,
        max_iter=trees,
        categorical_features=categories if any(categories) else None,
        early_stopping=False,
        random_state=0,
        **TREE_OPTIONS,
    )


def _staged(model: Any, rows: np.ndarray, task: Task) -> Iterator[np.ndarray]:
    staged = model.staged_predict if task == "regression" else model.staged_predict_proba
    return map(_chances, staged(rows))


@dataclass(frozen=True, kw_only=True)
class EbmVariant:
    """A setting of DP-EBM; `relation` is the one under which its printed epsilon is a guarantee."""

    options: dict[str, float]
    relation: Literal["add-remove", "replace"]

    def epsilon(self, epsilon: float, delta: float) -> float:
        """The epsilon to ask of DP-EBM, whose own is for adding or removing a row.

        A replaced row is one removed and one added: the sensitivity doubles, so the release's mu
        must be half of what `epsilon` allows.
        """
        if self.relation == "add-remove":
            return epsilon
        return gaussian_epsilon(gaussian_mu(epsilon, delta) / 2, delta)


EBM_VARIANTS = {
    "dp-ebm": EbmVariant(options={}, relation="add-remove"),
    "dp-ebm lr 0.05": EbmVariant(options={"learning_rate": 0.05}, relation="add-remove"),
    "dp-ebm lr 0.05 replace": EbmVariant(options={"learning_rate": 0.05}, relation="replace"),
}


def ebm_class() -> Callable[..., Any] | None:
    """DP-EBM's classifier; None where interpret-core is not installed."""
    try:
        from interpret.privacy import DPExplainableBoostingClassifier
    except ImportError:
        return None
    found: Callable[..., Any] = DPExplainableBoostingClassifier
    return found


def fit_ebm(
    variant: EbmVariant,
    columns: Sequence[Column],
    train: pa.Table,
    target: np.ndarray,
    test: pa.Table,
    *,
    epsilon: float,
    delta: float,
    seed: int,
) -> np.ndarray:
    """Predicted probabilities of the test rows; bounds from the schema, none from the data."""
    build = ebm_class()
    assert build is not None
    widened = {c.name: _widened(_limits(c)) for c in columns if c.kind == "number"}
    model = build(
        feature_names=[column.name for column in columns],
        feature_types=["continuous" if c.kind == "number" else "nominal" for c in columns],
        privacy_bounds={name: (low, high) for name, (low, _, high) in widened.items()},
        epsilon=variant.epsilon(epsilon, delta),
        delta=delta,
        random_state=seed % 2**31,
        n_jobs=1,
        **variant.options,
    )
    with warnings.catch_warnings(action="ignore"):
        model.fit(_ebm_rows(columns, train, widened), target)
        found: np.ndarray = model.predict_proba(_ebm_rows(columns, test, widened))[:, 1]
    return found


_EBM_BINS = 62
"""Equal parts in which DP-EBM, by default, counts a number before it joins them to bins."""


def _limits(column: Column) -> tuple[float, float]:
    """The declared bounds of a number."""
    assert column.bounds is not None
    low, high = column.bounds
    return float(low), float(high)


def _widened(bounds: tuple[float, float]) -> tuple[float, float, float]:
    """A lower bound with one more part below the declared one, the missing number in it, the upper.

    DP-EBM refuses missing values. The declared lower bound lies inside the second part, so a value
    equal to it never falls on an edge.
    """
    low, high = bounds
    part = (high - low) / (_EBM_BINS - 1.5)
    return low - 1.5 * part, low - part, high


def _ebm_rows(
    columns: Sequence[Column], frame: pa.Table, widened: dict[str, tuple[float, float, float]]
) -> np.ndarray:
    rows = np.empty((frame.num_rows, len(columns)), dtype=object)
    for place, column in enumerate(columns):
        if column.kind != "number":
            values = texts(frame, column.name).to_pylist()
            rows[:, place] = ["<missing>" if value is None else value for value in values]
        else:
            found = numbers(frame, column.name)
            _, missing, _ = widened[column.name]
            rows[:, place] = np.where(np.isnan(found), missing, np.clip(found, *_limits(column)))
    return rows
