"""The scikit-learn face: estimators that take a schema, or a bare array in which all is private.

`fit(frame)` reads the label from the frame by the schema; `fit(frame, y)` takes it from `y`;
`fit(X, y)` without a schema treats every column and the label as private.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, Self

import narwhals as nw
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.compose import TransformedTargetRegressor
from sklearn.feature_selection import SelectorMixin, VarianceThreshold
from sklearn.frozen import FrozenEstimator
from sklearn.metrics import accuracy_score, r2_score
from sklearn.pipeline import Pipeline
from sklearn.utils import estimator_html_repr, get_tags
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from halfmask.accounting.budget import Budget
from halfmask.accounting.events import check_relation
from halfmask.accounting.ledger import BudgetLedger
from halfmask.data.arrays import refuse_missing_labels, without_values
from halfmask.data.cells import sameness
from halfmask.data.frames import as_arrow, names_of, values_column
from halfmask.effects import Effects, Explanation, effects, explain
from halfmask.errors import DataError, InputError
from halfmask.mechanisms.noise import noise_source
from halfmask.mechanisms.release import MakeReleaser, Releaser
from halfmask.model import Model, class_array
from halfmask.schema import Column, Schema
from halfmask.settings import MethodConfig
from halfmask.statement import Statement, python_notes
from halfmask.table import Encoder, Table, Task
from halfmask.training import train, weights_as_numbers
from halfmask.types import Floats

# --- Any public function f of a row (Definition 1.1 of feature differential privacy).
# Neighbours then differ in one row x -> x' with f(x) = f(x'): the values of f form the public
# block, the row itself the private one. With a schema they are public columns beside the declared
# ones. Guarantee: docs/proofs/encoding.md, "Public functions".


PublicPart = Callable[[Any], Any] | Literal["all"]
"""A function of rows whose value is public, or "all" columns (only the label is private)."""


def with_public_part(table: Table, X: Floats, public: PublicPart | None) -> Table:
    """`table` with f(X) as its public block; f takes all rows at once and must act row by row."""
    if public is None:
        return table
    if isinstance(public, str) and public == "all":
        moved = _public_block(table, X, table.private_sources)
        return replace(
            moved.with_blocks(private=np.zeros((len(X), 0))),
            private_norm=0.0,
            private_sources=(),
        )
    if not callable(public):
        raise InputError(f"Expected 'all' or a function of the rows as public, got {public!r}.")
    block = _values(public, X.copy(), len(X))
    _check_row_by_row(public, lambda part: X[part].copy(), block)
    return _public_block(table, block, _names(block))


def with_public_columns(
    frame: Any, schema: Schema, public: Callable[[Any], Any]
) -> tuple[pa.Table, Schema]:
    """The frame with f of its declared feature columns, and the schema with f's values public.

    f is handed a frame of the kind that was given, with these columns alone: not the label, which
    rows to predict do not have. It must act row by row.
    """
    given = nw.from_native(frame, eager_only=True).select(list(schema.read))
    block = _values(public, given.to_native(), len(given))
    _check_row_by_row(public, lambda part: given[part].to_native(), block)
    names = _names(block)
    unit = [] if schema.unit is None else [schema.unit.column]
    there = names_of(frame)
    for name in names:
        if name in there:
            raise InputError(
                f"The data has a column {name!r}, as the public function's: rename it."
            )
    kept = dict.fromkeys([*schema.read, *unit, schema.label.name])
    table = as_arrow(frame, [name for name in kept if name in there])
    for name, values in zip(names, block.T, strict=True):
        table = table.append_column(name, pa.array(values))
    columns = (Column(name, "public", "number") for name in names)
    return table, replace(schema, columns=(*schema.columns, *columns))


def _names(block: Floats) -> tuple[str, ...]:
    return tuple(f"public{index}" for index in range(block.shape[1]))


def _values(public: Callable[[Any], Any], rows: Any, count: int) -> Floats:
    """f of the rows, one line of finite numbers each.

    What f or a conversion says of its failure may quote a cell: its type alone is passed on, and
    the error is raised after the other is gone, which would stay in its chain otherwise.
    """
    failure: str | None = None
    block: Floats = np.empty(0)
    try:
        block = np.asarray(public(rows), dtype=np.float64)
    except Exception as error:
        failure = type(error).__name__
    if failure is not None:
        raise InputError(
            f"The public function failed ({failure}): expected one row of numbers per row. Its own "
            "message may quote private values and is not shown; call the function by itself, on "
            "rows that are not private, to see it."
        )
    if count == 1 and block.ndim < 2:
        block = block.reshape(1, -1)  # functions that squeeze make less than a row of a single one
    block = block[:, None] if block.ndim == 1 else block
    if block.ndim != 2 or len(block) != count:
        raise InputError(
            f"The public function must return one row of numbers per row: expected {count} rows, "
            f"got an array of shape {block.shape}."
        )
    if not np.isfinite(block).all():
        raise InputError("The public function returned NaN or infinity: give those rows a value.")
    return block


def _public_block(table: Table, block: Floats, names: tuple[str, ...]) -> Table:
    # The longest row is a public fact here.
    norm = float(np.sqrt(np.einsum("ij,ij->i", block, block)).max(initial=0.0))
    table = table.with_blocks(public=block)
    return replace(table, public_norm=norm, public_sources=names)


_SINGLE_ROWS = 10


def _check_row_by_row(
    public: Callable[[Any], Any], rows: Callable[[slice], Any], block: Floats
) -> None:
    """A function that mixes rows (ranks, means) would carry one row's private part to another's.

    f is tried again on both halves of the rows and on single ones, whose places follow from the
    number of rows alone: halves may share an extreme, a single row shares nothing with another.
    """
    count = len(block)
    if count < 2:
        return
    places = np.unique(np.linspace(0, count - 1, _SINGLE_ROWS).round().astype(int)).tolist()
    halves = (slice(0, count // 2), slice(count // 2, count))
    rounding = _rounding(block)
    for part in (*halves, *(slice(place, place + 1) for place in places)):
        before, again = block[part], None
        with suppress(InputError):
            again = _values(public, rows(part), len(before))
        if again is None or again.shape != before.shape:
            differs = "fails, or gives rows of another length,"
        elif (np.abs(again - before) > rounding + 1e-9 * np.abs(before)).any():
            differs = "gives other values"
        else:
            continue
        raise InputError(
            f"The public function {differs} when it sees fewer rows: it must depend on one row at "
            "a time, or it would reveal private values of other rows."
        )


def _rounding(block: Floats) -> Floats:
    """By how much values of each column may differ if they are computed beside other rows.

    Sums are rounded in an order that depends on the number of rows. Columns of numbers in single
    precision, such as a network's, are rounded more than others; whole numbers are exact.
    """
    with np.errstate(over="ignore"):
        single = (block.astype(np.float32) == block).all(axis=0)
    single &= (block != np.round(block)).any(axis=0)
    allowed: Floats = 1e-12 + np.where(single, 1e-4, 1e-12) * np.abs(block).max(axis=0)
    return allowed


class SpendsAgainWarning(UserWarning):
    """A clone is fitted: cross-validation and searches spend the budget once per fit."""


class UncoveredStepWarning(UserWarning):
    """A pipeline step before the estimator learns from private rows, outside the guarantee."""


class _HalfmaskEstimator(BaseEstimator):  # type: ignore[misc]
    """What classifiers and regressors share. `__init__` stores, `fit` validates."""

    _task: Task

    def __init__(
        self,
        schema: Schema | None = None,
        *,
        epsilon: float = 1.0,
        delta: float = 1e-6,
        relation: str = "replace",
        method: str | MethodConfig = "auto",
        row_norm: float = 1.0,
        public: PublicPart | None = None,
        public_model: BaseEstimator | None = None,
        ledger: str | Path | BudgetLedger | None = None,
        options: Mapping[str, Any] | None = None,
        unsafe_seed: int | None = None,
    ) -> None:
        self.schema = schema
        self.epsilon = epsilon
        self.delta = delta
        self.relation = relation
        self.method = method
        self.row_norm = row_norm
        self.public = public
        self.public_model = public_model
        self.ledger = ledger
        self.options = options
        self.unsafe_seed = unsafe_seed

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Train under (epsilon, delta); spends that budget on the rows of `X`.

        Parameters
        ----------
        X : frame or array
            With a schema a frame (pandas, polars, pyarrow) that has its columns; otherwise an
            array, all of it private.
        y : array, optional
            The label; with a schema it may be a column of the frame.
        sample_weight : array, optional
            One number >= 0 for each row. They count as public and must not be made from private
            columns; weights that differ are for the method additive.
        """
        if self.__dict__.get("_is_clone"):
            warnings.warn(
                f"Fitting a clone spends epsilon={self.epsilon} on these rows once more: k folds "
                "or k candidates spend k times. Pass ledger=... to have them composed and capped.",
                SpendsAgainWarning,
                stacklevel=2,
            )
        steps = _steps_that_learn(self, label_alone=self.public == "all")
        uncovered = _UNCOVERED_STEPS.format(steps=" and ".join(steps)) if steps else None
        if uncovered is not None:
            warnings.warn(uncovered, UncoveredStepWarning, stacklevel=2)
        model = self._trained(X, y, sample_weight=sample_weight)
        if uncovered is not None:
            stated = (*model.privacy.not_covered, uncovered)
            model = replace(model, privacy=replace(model.privacy, not_covered=stated))
        self._adopt(model)
        return self

    def _trained(
        self, X: Any, y: Any, make: MakeReleaser = Releaser, *, sample_weight: Any = None
    ) -> Model:
        """The model of these rows; `make` makes what releases (see halfmask.audit.transcript)."""
        encoder, table = self._training_table(X, y)
        rows = getattr(X, "shape", (None,))[0]
        weights = None if sample_weight is None else np.asarray(sample_weight)
        if weights is not None and weights.ndim == 1 and rows not in (None, len(weights)):
            raise InputError(f"Expected {rows} sample_weight, got {len(weights)}.")
        relation = check_relation(self.relation)
        model = train(
            table,
            Budget(epsilon=self.epsilon, delta=self.delta, relation=relation),
            method=self.method,
            noise=noise_source(self.unsafe_seed),
            encoder=encoder,
            ledger=self.ledger,
            row_norm=self.row_norm,
            options=self.options,
            make_releaser=make,
            public_model=self.public_model,
            sample_weight=weights,
        )
        if not callable(self.public):
            return model
        made = table.public_sources
        if self.schema is not None and encoder is not None:
            made = encoder.schema.public[len(self.schema.public) :]
        notes = (*model.privacy.notes, *python_notes(made))
        return replace(model, privacy=replace(model.privacy, notes=notes))

    def _adopt(self, model: Model) -> None:
        self.model_ = model
        self.method_ = model.method
        self.reason_ = model.reason

    @property
    def privacy_(self) -> Statement:
        """The guarantee of the fitted model."""
        check_is_fitted(self)
        return self.model_.privacy

    @property
    def effects_(self) -> Effects:
        """What each level of a column adds to the score, with bars for the noise in it.

        Found when first asked for, by a few trainings on imagined rows: no row of the data is
        read, and nothing is charged (docs/effects.md).
        """
        check_is_fitted(self)
        try:
            if getattr(self, "_effects_of", None) is not self.model_:
                self._effects, self._effects_of = effects(self.model_), self.model_
        except InputError as error:
            raise AttributeError(str(error)) from None
        return self._effects

    def explain(self, row: Any) -> Explanation:
        """What each column of one row added to its score.

        Parameters
        ----------
        row : frame of one row, or mapping
            The columns of the schema.

        Returns
        -------
        Explanation
            The average row's score, and what each column added to it.
        """
        check_is_fitted(self)
        return explain(self.model_, row)

    def _html_repr(self) -> str:
        """scikit-learn's diagram and, once fitted, what is promised."""
        drawn: str = estimator_html_repr(self)
        return drawn + (self.privacy_._repr_html_() if hasattr(self, "model_") else "")

    # scikit-learn 1.6 does not ask for _html_repr.
    def _repr_html_inner(self) -> str:
        return self._html_repr()

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, str]:
        bundle: dict[str, str] = super()._repr_mimebundle_(**kwargs)
        return bundle | ({"text/html": self._html_repr()} if "text/html" in bundle else {})

    @property
    def coef_(self) -> NDArray[np.float64]:
        """Weights of the (mapped) public features, then of the private ones, one row per output."""
        return self._linear("coef")

    @property
    def intercept_(self) -> NDArray[np.float64]:
        """One number per output."""
        return self._linear("intercept")

    def _linear(self, name: str) -> NDArray[np.float64]:
        check_is_fitted(self)
        fit = getattr(self.model_, "fit", None)
        if not hasattr(fit, name):
            raise AttributeError(f"Method {self.method_!r} has no {name}_: it is not linear.")
        array: NDArray[np.float64] = getattr(fit, name)
        return array

    def _label_bounds(self) -> tuple[float, float] | None:
        return None

    def _training_table(self, X: Any, y: Any) -> tuple[Encoder | None, Table]:
        if self.schema is not None:
            if not isinstance(self.schema, Schema):
                raise InputError("Expected a Schema: read one with Schema.from_toml(path).")
            if self.schema.label.task != self._task:
                raise InputError(
                    f"{type(self).__name__} is for {self._task}, but the schema declares the label "
                    f"{self.schema.label.name!r} for {self.schema.label.task}."
                )
            frame, schema = X if y is None else _with_label(X, y, self.schema), self.schema
            if callable(self.public):
                frame, schema = with_public_columns(frame, schema, self.public)
            elif self.public is not None:
                raise InputError(
                    "A schema says which columns are public: beside it, public is a function of "
                    "rows whose values are public too, or None."
                )
            encoder = Encoder.fit(schema, frame)
            names = list(self.schema.read)
            self.n_features_in_, self.feature_names_in_ = len(names), np.array(names, dtype=object)
            return encoder, encoder.encode(frame)
        if y is None:
            raise InputError(
                f"{type(self).__name__} requires y to be passed, but the target y is None: pass "
                "fit(X, y), or a schema that names the label column."
            )
        if self._task == "classification":
            refuse_missing_labels(y)
        X, y = without_values(lambda: self._checked(X, y), X=X, y=y)
        table = Table.from_arrays(
            X, y, row_norm=self.row_norm, task=self._task, label_bounds=self._label_bounds()
        )
        return None, with_public_part(table, X, self.public)

    def _judged(
        self, X: Any, y: Any, weights: Any
    ) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any] | None]:
        """True labels, predicted ones and weights of the rows that have a label.

        With a schema, labels are read by its rules, as `fit` reads them, whether they come as `y`
        or as a column of the frame.
        """
        check_is_fitted(self)
        encoder = self.model_.encoder
        if encoder is None:
            if y is None:
                raise InputError("Pass y: a bare array has no label column.")
            return y, self.predict(X), weights
        frame = self._with_public(X)
        if y is not None:
            frame = _with_label(frame, y, encoder.schema, with_unit=False)
        table = self.model_.encode(frame, with_label=True)
        kept = ~table.unlabelled
        table = table.labelled()
        assert table.label is not None
        found = table.label if table.classes is None else class_array(table.classes)[table.label]
        if weights is not None:
            weights = weights_as_numbers(weights, len(kept))
            if len(weights) != len(kept):
                raise InputError(f"Expected {len(kept)} sample_weight, got {len(weights)}.")
            weights = weights[kept]
        return found, self.model_.predict(table), weights

    def _checked(self, X: Any, y: Any) -> tuple[NDArray[np.float64], NDArray[Any]]:
        """scikit-learn's own checks of bare arrays."""
        X, y = validate_data(self, X, y, dtype=np.float64, y_numeric=self._task == "regression")
        if self._task == "classification":
            check_classification_targets(y)
        return X, y

    def _new_table(self, X: Any) -> Table:
        check_is_fitted(self)
        if self.model_.encoder is not None:
            return self.model_.encode(self._with_public(X))
        X = without_values(lambda: validate_data(self, X, dtype=np.float64, reset=False), X=X)
        return with_public_part(self.model_.encode(X), X, self.public)

    def _with_public(self, X: Any) -> Any:
        """Rows with the values of the public function beside a schema, if there is one."""
        if self.schema is None or not callable(self.public):
            return X
        return with_public_columns(X, self.schema, self.public)[0]

    def __sklearn_clone__(self) -> Self:
        params = {name: getattr(self, name) for name in self.get_params(deep=False)}
        copy = type(self)(**params)
        copy._is_clone = True
        return copy

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "model_")


class HalfmaskClassifier(ClassifierMixin, _HalfmaskEstimator):  # type: ignore[misc]
    """Classes from public and private columns, the guarantee covering exactly the private part.

    Parameters
    ----------
    schema : Schema, optional
        Roles, bounds and categories of the columns. Without one every column and the label are
        private, and rows are clipped to `row_norm`.
    epsilon : float, default=1.0
        The privacy budget: changing one row's private values makes any set of outcomes at most
        e^epsilon times as likely, but for `delta`.
    delta : float, default=1e-6
        Well below one over the number of rows.
    relation : {"replace", "withhold"}, default="replace"
        What is compared: private values exchanged for any others, or withheld.
    method : str or configuration, default="auto"
        "auto", a name of `halfmask.training.METHODS`, or a configuration such as
        `GdConfig(steps=40)` (docs/settings.md).
    row_norm : float, default=1.0
        The length to which rows of bare arrays are clipped.
    public : callable or "all", optional
        A function of rows whose value is public: of bare arrays, or of a schema's columns beside
        what it declares public. For bare arrays also "all" columns.
    public_model : scikit-learn estimator, optional
        An unfitted model of a public label on the public columns, from which the private part
        starts. By default our own free model.
    ledger : path or Ledger, optional
        A file that composes all that is spent on a data set (`halfmask ledger create`).
    options : mapping, optional
        Settings of the method by name, instead of a configuration.
    unsafe_seed : int, optional
        Makes the noise reproducible, and the model NOT private.

    Attributes
    ----------
    classes_ : ndarray
        The classes, in the order of `predict_proba`.
    privacy_ : Statement
        What is promised about the private columns.
    effects_ : Effects
        What each level of a column adds to the score, with bars for the noise in it.
    model_ : Model
        The fitted model: `model_.save(folder)` stores it without pickle.
    method_, reason_ : str
        The method that was used, and why.
    coef_, intercept_ : ndarray
        Of linear methods.
    feature_names_in_ : ndarray
        The columns of the schema, in order.

    Examples
    --------
    >>> from halfmask import HalfmaskClassifier
    >>> from halfmask.datasets import load_adult
    >>> train, test, schema = load_adult()
    >>> model = HalfmaskClassifier(schema, epsilon=1.0, delta=1e-6).fit(train.slice(0, 1000))
    >>> chances = model.predict_proba(test.slice(0, 5))
    >>> print(model.privacy_.epsilon <= 1.0)
    True
    """

    _task: Task = "classification"

    def _adopt(self, model: Model) -> None:
        super()._adopt(model)
        self.classes_ = class_array(model.classes)

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """Class probabilities, columns in the order of `classes_`."""
        table = self._new_table(X)
        return self.model_.probabilities(table)

    def decision_function(self, X: Any) -> NDArray[np.float64]:
        """Scores: one number per row for two classes, one per class otherwise."""
        table = self._new_table(X)
        scores = self.model_.scores(table)
        return scores[:, 0] if scores.shape[1] == 1 else scores

    def predict(self, X: Any) -> NDArray[Any]:
        """The likeliest class of each row."""
        table = self._new_table(X)
        return self.model_.predict(table)

    def score(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:
        """Accuracy on rows of yours, which no guarantee covers; `y` may come from the frame."""
        true, told, weights = self._judged(X, y, sample_weight)
        return without_values(
            lambda: float(accuracy_score(true, told, sample_weight=weights)), y=true
        )


class HalfmaskRegressor(RegressorMixin, _HalfmaskEstimator):  # type: ignore[misc]
    """Numbers from public and private columns, the guarantee covering exactly the private part.

    Parameters
    ----------
    schema : Schema, optional
        Roles, bounds and categories of the columns. Without one every column and the label are
        private, and rows are clipped to `row_norm`.
    epsilon : float, default=1.0
        The privacy budget: changing one row's private values makes any set of outcomes at most
        e^epsilon times as likely, but for `delta`.
    delta : float, default=1e-6
        Well below one over the number of rows.
    relation : {"replace", "withhold"}, default="replace"
        What is compared: private values exchanged for any others, or withheld.
    method : str or configuration, default="auto"
        "auto", a name of `halfmask.training.METHODS`, or a configuration such as
        `GdConfig(steps=40)` (docs/settings.md).
    row_norm : float, default=1.0
        The length to which rows of bare arrays are clipped.
    label_bounds : pair of float, default=(-1.0, 1.0)
        Between which the target of bare arrays lies; a schema declares it instead.
    public : callable or "all", optional
        A function of rows whose value is public: of bare arrays, or of a schema's columns beside
        what it declares public. For bare arrays also "all" columns.
    public_model : scikit-learn estimator, optional
        An unfitted model of a public label on the public columns, from which the private part
        starts. By default our own free model.
    ledger : path or Ledger, optional
        A file that composes all that is spent on a data set (`halfmask ledger create`).
    options : mapping, optional
        Settings of the method by name, instead of a configuration.
    unsafe_seed : int, optional
        Makes the noise reproducible, and the model NOT private.

    Attributes
    ----------
    privacy_ : Statement
        What is promised about the private columns.
    effects_ : Effects
        What each level of a column adds to the number, with bars for the noise in it.
    model_ : Model
        The fitted model: `model_.save(folder)` stores it without pickle.
    method_, reason_ : str
        The method that was used, and why.
    coef_, intercept_ : ndarray
        Of linear methods.
    feature_names_in_ : ndarray
        The columns of the schema, in order.

    Examples
    --------
    >>> import numpy as np
    >>> from halfmask import HalfmaskRegressor
    >>> rng = np.random.default_rng(0)
    >>> X = rng.uniform(-0.5, 0.5, (500, 2))
    >>> model = HalfmaskRegressor(epsilon=5.0, method="gd").fit(X, X[:, 0])
    >>> print(model.predict(X[:3]).shape)
    (3,)
    """

    _task: Task = "regression"

    def __init__(
        self,
        schema: Schema | None = None,
        *,
        epsilon: float = 1.0,
        delta: float = 1e-6,
        relation: str = "replace",
        method: str | MethodConfig = "auto",
        row_norm: float = 1.0,
        label_bounds: tuple[float, float] = (-1.0, 1.0),
        public: PublicPart | None = None,
        public_model: BaseEstimator | None = None,
        ledger: str | Path | BudgetLedger | None = None,
        options: Mapping[str, Any] | None = None,
        unsafe_seed: int | None = None,
    ) -> None:
        super().__init__(
            schema,
            epsilon=epsilon,
            delta=delta,
            relation=relation,
            method=method,
            row_norm=row_norm,
            public=public,
            public_model=public_model,
            ledger=ledger,
            options=options,
            unsafe_seed=unsafe_seed,
        )
        self.label_bounds = label_bounds

    def _label_bounds(self) -> tuple[float, float] | None:
        return self.label_bounds

    def predict(self, X: Any) -> NDArray[np.float64]:
        """The predicted number of each row, clamped to the declared bounds."""
        table = self._new_table(X)
        return self.model_.predict(table)

    def score(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:
        """R² on rows of yours, which no guarantee covers; `y` may come from the frame."""
        true, told, weights = self._judged(X, y, sample_weight)
        return without_values(lambda: float(r2_score(true, told, sample_weight=weights)), y=true)


_UNCOVERED_STEPS = (
    "The {steps} in front of this model learnt from the rows it was fitted on: through it one "
    "private value moves every row, so the guarantee does not hold for the data before that step. "
    "Scale by numbers that are known without the data, let a schema declare bounds, or fit the "
    "step on public rows and freeze it (docs/pitfalls.md)."
)


def _steps_that_learn(fitted: _HalfmaskEstimator, *, label_alone: bool) -> list[str]:
    """Steps of the pipelines that are calling us which learn from rows (or labels, `label_alone`).

    scikit-learn tells an estimator nothing of its pipeline, so the stack is asked. What was scaled
    before the call, by hand, cannot be seen. The last model of several stacked ones is handed what
    the others tell of each row, and these learnt from all rows.
    """
    found: dict[str, None] = {}
    frame = inspect.currentframe()
    while frame is not None:
        own = frame.f_locals.get("self") if frame.f_code.co_varnames[:1] == ("self",) else None
        if isinstance(own, Pipeline):
            steps = [(f"pipeline step {name!r}", step) for name, step in own.steps[:-1]]
        elif isinstance(own, TransformedTargetRegressor):
            steps = [("transformer of the target", own.transformer)]
        elif isinstance(own, BaseEstimator) and getattr(own, "final_estimator_", None) is fitted:
            below = [] if own.cv == "prefit" else own.estimators
            steps = [(f"stacked model {name!r}", model) for name, model in below]
        else:
            steps = []
        found |= dict.fromkeys(name for name, step in steps if _learns(step, label_alone))
        frame = frame.f_back
    return list(found)


def _learns(step: Any, label_alone: bool) -> bool:
    # What a model of ours tells follows from its releases, which have a guarantee of their own.
    if step is None or isinstance(step, str | FrozenEstimator | _HalfmaskEstimator):
        return False
    tags = get_tags(step)
    if not label_alone:
        return bool(tags.requires_fit)
    chooses = isinstance(step, SelectorMixin) and not isinstance(step, VarianceThreshold)
    return bool(tags.target_tags.required) or chooses


def _with_label(X: Any, y: Any, schema: Schema, *, with_unit: bool = True) -> pa.Table:
    """The frame's columns with `y` as the label column, whether or not the frame has one."""
    names = [*schema.read, *([schema.unit.column] if schema.unit and with_unit else [])]
    table = as_arrow(X, names)
    values = values_column(y, schema.label.name)
    if len(values) != table.num_rows:
        raise DataError(f"Expected one label per row: {table.num_rows} rows, {len(values)} labels.")
    words = [str(name) for name in schema.label.classes or ()]
    if words and pa.types.is_integer(values.type) and not any(map(sameness, words)):
        raise DataError(
            f"y holds whole numbers, and the classes of {schema.label.name!r} are declared as "
            "words. Some tools of scikit-learn number the classes themselves (cross_val_predict "
            "with method='predict_proba', VotingClassifier, StackingClassifier): for these, "
            "declare the classes as 0, 1, ... and number the labels before."
        )
    return table.append_column(schema.label.name, values)
