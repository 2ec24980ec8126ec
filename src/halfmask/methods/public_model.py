"""A free model of the user's choice: a scikit-learn estimator of a public label on public columns.

It is handed an array of public values and public labels, and nothing else: no frame, no table and
no private column can be reached from what it is given. Guarantee: docs/proofs/additive.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, logit

from halfmask.errors import InputError
from halfmask.methods.free_model import Task, fold_of_rows
from halfmask.table import CodedColumn

Floats = NDArray[np.float64]
Codes = NDArray[np.integer[Any]]

# Chances are held off 0 and 1, where log odds are infinite.
_LEAST_CHANCE = 1e-4
_LARGEST = 1e30
# A slope or intercept of the calibration beyond this says that the chances are of no use.
_STEEPEST = 20.0


@dataclass(frozen=True, kw_only=True, eq=False)
class PublicModel:
    """A fitted estimator; `values[j][code]` is what it sees of a level of its column j.

    For classes, scores are slope · (log odds of its chances) + shift: that line was fitted to
    scores out of fold, so that an estimator whose chances are too bold starts calibrated. For
    numbers the line takes the label's own units to those of a fit.
    """

    estimator: Any
    values: tuple[Floats, ...]
    task: Task
    slope: float = 1.0
    shift: float = 0.0

    @property
    def name(self) -> str:
        """The estimator's class."""
        return type(self.estimator).__name__

    def scores(self, codes: Codes) -> Floats:
        """Log odds of the second class, or the number, for each row."""
        seen = np.column_stack([v[codes[:, j]] for j, v in enumerate(self.values)])
        raw = 0.0 if self.estimator is None else _raw_scores(self.estimator, seen, self.task)
        return self.slope * raw + np.full(len(seen), self.shift)


def level_values(column: CodedColumn) -> Floats:
    """What a level is handed over as: a number's value, a category's place; missing is NaN."""
    if column.values is not None:
        # Many estimators compute in single precision, where larger numbers are infinite.
        return np.append(np.clip(column.values, -_LARGEST, _LARGEST), np.nan)
    places = np.arange(column.levels, dtype=np.float64)
    places[-1] = np.nan
    return places


def cross_fitted_public(
    estimator: Any,
    codes: Codes,
    target: Floats,
    *,
    values: Sequence[Floats],
    task: Task,
    folds: int,
    groups: NDArray[Any] | None,
    weights: Floats | None,
    middle: float = 0.0,
    half: float = 1.0,
) -> tuple[Floats, PublicModel]:
    """Scores of each row by a copy that did not see it, and the model fitted on all rows.

    Precondition: codes, target, groups and weights are public. Folds follow from the number of rows
    or groups alone. `weights` is None where all rows weigh the same. A number is handed over in its
    own units, middle + half · target, and scores are in those of `target`.
    """
    fresh, label = unfitted(estimator, task), middle + half * target
    seen = np.column_stack([v[codes[:, j]] for j, v in enumerate(values)])
    fold = fold_of_rows(len(target), folds, groups)
    raw = np.zeros(len(target))
    for part in np.unique(fold):
        rest, held = np.flatnonzero(fold != part), np.flatnonzero(fold == part)
        fitted = _fitted(fresh, seen[rest], label[rest], weights, rest, task)
        raw[held] = middle if fitted is None else _raw_scores(fitted, seen[held], task)
    everything = np.arange(len(target))
    slope, shift = 1 / half, -middle / half
    if task == "classification":
        slope, shift = _calibrated(raw, target, weights)
    model = PublicModel(
        estimator=_fitted(fresh, seen, label, weights, everything, task),
        values=tuple(values),
        task=task,
        slope=slope,
        shift=shift,
    )
    return slope * raw + shift, model


def unfitted(estimator: Any, task: Task) -> Any:
    """A copy to fit, all of whose parts are unfitted, its random choices fixed; else an error."""
    from sklearn.base import BaseEstimator, clone, is_classifier, is_regressor

    wanted = "predict_proba" if task == "classification" else "predict"
    fits_task = is_classifier if task == "classification" else is_regressor
    named = type(estimator).__name__
    # A class is no instance of BaseEstimator either.
    if not isinstance(estimator, BaseEstimator) or not fits_task(estimator):
        given = f"the class {estimator.__name__}" if isinstance(estimator, type) else named
        raise InputError(
            f"public_model takes an unfitted scikit-learn estimator for {task}, got {given}."
        )
    if not hasattr(estimator, wanted):
        raise InputError(
            f"public_model: {named} has no {wanted}. Set it up so that it has, or wrap it in "
            "CalibratedClassifierCV."
        )
    for part in (*_parts(estimator), *_parts(copy := clone(estimator))):
        if _is_fitted(part):
            raise InputError(
                f"public_model: its {type(part).__name__} is fitted already (or frozen), and what "
                "it has seen cannot be checked. Pass an unfitted one."
            )
    fixed = {
        name: 0
        for name, value in copy.get_params(deep=True).items()
        if value is None and (name == "random_state" or name.endswith("__random_state"))
    }
    return copy.set_params(**fixed)


def _parts(value: Any) -> Iterator[Any]:
    """Every estimator within `value`, itself included, also in lists and mappings."""
    from sklearn.base import BaseEstimator

    if isinstance(value, BaseEstimator):
        yield value
        for each in value.get_params(deep=False).values():
            yield from _parts(each)
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from _parts(each)
    elif isinstance(value, list | tuple | set | frozenset):
        for each in value:
            yield from _parts(each)


def _is_fitted(estimator: Any) -> bool:
    from sklearn.exceptions import NotFittedError
    from sklearn.frozen import FrozenEstimator
    from sklearn.utils import get_tags
    from sklearn.utils.validation import check_is_fitted

    if isinstance(estimator, FrozenEstimator):
        return True
    if not hasattr(estimator, "fit") or not get_tags(estimator).requires_fit:
        return False
    try:
        check_is_fitted(estimator)
    except NotFittedError:
        return False
    return True


def _fitted(
    fresh: Any,
    seen: Floats,
    target: Floats,
    weights: Floats | None,
    rows: NDArray[np.intp],
    task: Task,
) -> Any:
    from sklearn.base import clone
    from sklearn.utils.validation import has_fit_parameter

    label = target.astype(np.int64) if task == "classification" else target
    if len(np.unique(label)) < (2 if task == "classification" else 1):
        return None  # no row, or one class alone: nothing can be learnt
    given = {}
    if weights is not None:
        if not has_fit_parameter(fresh, "sample_weight"):
            raise InputError(
                f"public_model: {type(fresh).__name__} takes no sample_weight, and rows (or rows "
                "of a unit) have different weights. Use an estimator whose fit takes one."
            )
        given["sample_weight"] = weights[rows]
    try:
        return clone(fresh).fit(seen, label, **given)
    except Exception as error:
        # Only public values were handed over, so the message may be shown.
        raise InputError(
            f"public_model: {type(fresh).__name__} cannot be fitted on the public columns "
            f"({type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}). They "
            "are an array with one column each: numbers as they are, categories as whole numbers, "
            "missing values as NaN. A pipeline can impute and encode them."
        ) from None


def _raw_scores(estimator: Any, seen: Floats, task: Task) -> Floats:
    if task == "regression":
        found = np.asarray(estimator.predict(seen), dtype=np.float64)
    else:
        chance = np.asarray(estimator.predict_proba(seen), dtype=np.float64)[:, 1]
        found = logit(np.clip(chance, _LEAST_CHANCE, 1 - _LEAST_CHANCE))
    if found.shape != (len(seen),) or not np.isfinite(found).all():
        raise InputError(
            f"public_model: {type(estimator).__name__} gave no finite number for some row."
        )
    return found


def _calibrated(raw: Floats, target: Floats, weights: Floats | None) -> tuple[float, float]:
    """Slope and shift of the scores that fit the public labels best, by Newton steps."""
    each = np.ones(len(raw)) if weights is None else weights
    design = np.column_stack([raw, np.ones(len(raw))])
    found = np.array([1.0, 0.0])
    for _ in range(25):
        chance = expit(design @ found)
        gradient = design.T @ (each * (chance - target))
        curve = design.T @ (design * (each * chance * (1 - chance))[:, None])
        found = found - np.linalg.solve(curve + 1e-6 * np.eye(2), gradient)
        if not (np.abs(found) <= _STEEPEST).all():
            rate = np.clip(np.average(target, weights=each), _LEAST_CHANCE, 1 - _LEAST_CHANCE)
            return 0.0, float(logit(rate))
    return float(found[0]), float(found[1])
