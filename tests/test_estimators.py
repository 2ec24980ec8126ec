"""The scikit-learn face: scikit-learn's own checks, frames of every kind, clones and pipelines."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from sklearn.base import clone
from sklearn.compose import TransformedTargetRegressor
from sklearn.decomposition import PCA
from sklearn.ensemble import StackingClassifier
from sklearn.feature_selection import SelectKBest
from sklearn.frozen import FrozenEstimator
from sklearn.model_selection import GridSearchCV, cross_val_predict, cross_val_score
from sklearn.pipeline import FeatureUnion, make_pipeline
from sklearn.preprocessing import FunctionTransformer, MaxAbsScaler, Normalizer, StandardScaler
from sklearn.tree import DecisionTreeClassifier
from sklearn.utils.estimator_checks import parametrize_with_checks

from halfmask import HalfmaskClassifier, HalfmaskRegressor
from halfmask.accounting.ledger import Ledger, MemoryLedger
from halfmask.audit import record
from halfmask.errors import AccountingError, BudgetExceededError, DataError, InputError
from halfmask.estimators import SpendsAgainWarning, UncoveredStepWarning, with_public_part
from halfmask.model import Model
from halfmask.schema import Column, Label, Schema
from halfmask.statement import Statement
from halfmask.table import Table

# Noise is seeded and small, and rows keep their length: the checks ask whether an estimator behaves
# like one, on a few dozen rows; what noise costs is measured elsewhere.
CHECKED: dict[str, Any] = {"epsilon": 1e6, "delta": 1e-3, "row_norm": 10.0, "unsafe_seed": 0}

METHODS = ["auto", "one-shot", "gd", "sgd", "dp-sgd"]
INSTANCES = [HalfmaskClassifier(**CHECKED, method=method) for method in METHODS]
INSTANCES += [HalfmaskClassifier(**CHECKED, method=m, public="all") for m in ("auto", "label-span")]
INSTANCES += [
    HalfmaskRegressor(**CHECKED, method=method, label_bounds=(-300.0, 300.0)) for method in METHODS
]


_UNWEIGHTED = (
    "a bare array has no levels, so it is never fitted by additive, which alone weighs rows"
)
EXCUSED = {
    "check_sample_weights_not_overwritten": _UNWEIGHTED,
    "check_sample_weight_equivalence_on_dense_data": _UNWEIGHTED,
}


@parametrize_with_checks(INSTANCES, expected_failed_checks=lambda estimator: EXCUSED)
def test_scikit_learn_accepts_it(estimator: Any, check: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SpendsAgainWarning)
        check(estimator)


def frame(n: int = 300) -> pd.DataFrame:
    rng = np.random.default_rng(1)
    age, dose = rng.integers(0, 100, n), rng.uniform(0, 10, n)
    return pd.DataFrame(
        {
            "age": age,
            "dose": dose,
            "town": np.where(age % 2, "A", "B"),
            "sick": np.where(dose > 5, "yes", "no"),
        }
    )


SCHEMA = Schema(
    label=Label("sick", "private", classes=("no", "yes")),
    columns=(
        Column("age", "public", "number", bounds=(0, 100)),
        Column("dose", "private", "number", bounds=(0, 10)),
        Column("town", "private", "category", categories=("A", "B")),
    ),
)


@pytest.mark.parametrize("kind", [lambda f: f, pl.from_pandas, pa.Table.from_pandas])
def test_every_frame_gives_the_same_model(kind: Any) -> None:
    first = HalfmaskClassifier(SCHEMA, epsilon=5, unsafe_seed=1).fit(frame())
    second = HalfmaskClassifier(SCHEMA, epsilon=5, unsafe_seed=1).fit(kind(frame()))
    scores = second.decision_function(kind(frame()))
    np.testing.assert_array_equal(first.decision_function(frame()), scores)
    np.testing.assert_array_equal(first.predict(frame()), second.predict(kind(frame())))


def test_the_label_may_come_apart() -> None:
    people = frame()
    first = HalfmaskClassifier(SCHEMA, epsilon=5, unsafe_seed=1).fit(people)
    second = HalfmaskClassifier(SCHEMA, epsilon=5, unsafe_seed=1)
    second.fit(people.drop(columns="sick"), people["sick"])
    scores = second.decision_function(people)
    np.testing.assert_array_equal(first.decision_function(people), scores)
    assert first.score(people) == second.score(people.drop(columns="sick"), people["sick"])


def declared(**label: Any) -> Schema:
    return replace(SCHEMA, label=replace(SCHEMA.label, **label))


@pytest.mark.parametrize("public", [None, lambda rows: rows["age"] > 50])
def test_labels_of_rows_to_score_are_read_as_those_to_train_on(public: Any) -> None:
    people = frame()
    given = " " + people["sick"]
    model = HalfmaskClassifier(SCHEMA, epsilon=50, method="gd", public=public).fit(people)
    bare = people.drop(columns="sick")
    assert model.score(bare, given) == model.score(people.assign(sick=given)) > 0.3


def test_numbers_are_scored_against_classes_declared_as_text() -> None:
    people = frame()
    bare, ones = people.drop(columns="sick"), (people["sick"] == "yes").astype(int)
    model = HalfmaskClassifier(declared(classes=("0", "1")), epsilon=50, method="gd")
    with pytest.warns(SpendsAgainWarning):
        assert (cross_val_score(model, bare, ones, cv=2) > 0.3).all()


def test_a_label_to_score_that_is_no_declared_class_is_named_by_its_row() -> None:
    people = frame()
    model = HalfmaskClassifier(SCHEMA, epsilon=50, method="gd").fit(people)
    given = people["sick"].to_list()
    given[6] = "secret"
    with pytest.raises(DataError, match="Column 'sick', row 7: the label is not among") as caught:
        model.score(people.drop(columns="sick"), given)
    assert "secret" not in str(caught.value)
    with pytest.raises(DataError, match="300 rows, 2 labels"):
        model.score(people, ["yes", "no"])


def test_rows_to_score_without_a_label_are_left_out() -> None:
    people = frame()
    schema = declared(missing="skip")
    model = HalfmaskClassifier(schema, epsilon=50, method="gd").fit(people)
    given = people["sick"].where(people.index >= 100, None)
    rest = people[100:]
    weights = np.where(people.index < 200, 1.0, 3.0)
    found = model.score(people.drop(columns="sick"), given, sample_weight=weights)
    assert found == model.score(rest, sample_weight=weights[100:])
    assert found == model.score(people.assign(sick=given), sample_weight=weights)


@pytest.mark.parametrize(
    ("weights", "words"),
    [([1, 2], "300 sample_weight, got 2"), (["a"] * 300, "numbers"), ([-1.0] * 300, "row 1")],
)
def test_bad_weights_of_rows_to_score_are_refused(weights: Any, words: str) -> None:
    people = frame()
    model = HalfmaskClassifier(SCHEMA, epsilon=50, method="gd").fit(people)
    with pytest.raises(InputError, match=words):
        model.score(people, sample_weight=weights)
    with pytest.raises(InputError, match=words):
        model.score(people.drop(columns="sick"), people["sick"], sample_weight=weights)
    assert model.score(people, sample_weight=2) == model.score(people)


def test_a_budget_that_is_no_number_is_named() -> None:
    people = frame()
    for epsilon in ("1", None, [1.0]):
        with pytest.raises(AccountingError, match="Expected a finite epsilon > 0, got"):
            HalfmaskClassifier(SCHEMA, epsilon=epsilon).fit(people)
    for delta in ("x", None):
        with pytest.raises(AccountingError, match=f"between 0 and 1, got {delta!r}"):
            HalfmaskClassifier(SCHEMA, delta=delta).fit(people)


def test_numbers_to_score_are_clamped_to_the_declared_bounds() -> None:
    label = Label("age", "private", bounds=(0, 100))
    schema = Schema(label, (Column("town", "private", "category", categories=("A", "B")),))
    people = frame()
    model = HalfmaskRegressor(schema, epsilon=50, method="gd").fit(people)
    beyond = people["age"].where(people.index >= 5, 1e9)
    clamped = people["age"].where(people.index >= 5, 100)
    assert model.score(people, beyond) == model.score(people.assign(age=clamped))


def test_the_statement_says_what_was_promised() -> None:
    model = HalfmaskClassifier(SCHEMA, epsilon=2.0, delta=1e-5).fit(frame())
    stated = model.privacy_
    assert stated.relation == "replace"
    assert stated.epsilon is not None
    assert 0 < stated.epsilon <= 2.0
    assert stated.public == ("age",)
    assert stated.private == ("dose", "town")
    assert stated.label_private


def test_a_bare_array_is_private_throughout() -> None:
    X = frame()[["age", "dose"]].to_numpy(float)
    model = HalfmaskClassifier(epsilon=5).fit(X, frame()["sick"])
    assert model.privacy_.public == ()
    assert model.privacy_.private == ("x0", "x1")
    assert any("labels present" in note for note in model.privacy_.notes)
    assert set(model.predict(X)) <= {"no", "yes"}


def test_a_public_function_makes_its_value_public() -> None:
    X = frame()[["age", "dose"]].to_numpy(float) / 100
    model = HalfmaskClassifier(epsilon=5, public=lambda rows: rows[:, :1] > 0.5)
    model.fit(X, frame()["sick"])
    assert model.privacy_.public == ("public0",)
    assert model.predict_proba(X).shape == (300, 2)


def two_columns(rows: Any) -> Any:
    """An age and whether it is high, of arrays and of frames."""
    age = np.asarray(rows[:, 0] if isinstance(rows, np.ndarray) else rows["age"], dtype=float)
    return np.stack([age, age > 0.5], axis=1)


PRIVATE = Schema(
    SCHEMA.label,
    (Column("age", "private", "number", bounds=(0, 100)), *SCHEMA.columns[1:]),
)


def about_functions(statement: Statement) -> list[str]:
    told = [note for note in statement.notes if "unction" in note]
    assert all(note in " ".join(statement.text(10_000).split()) for note in told)
    return told


@pytest.mark.parametrize("method", ["auto", "gd", "additive"])
def test_the_statement_says_that_a_public_function_tells_of_private_columns(
    method: str, tmp_path: Path
) -> None:
    model = HalfmaskClassifier(PRIVATE, epsilon=5, method=method, public=two_columns)
    model.fit(frame())
    assert model.privacy_.private == ("age", "dose", "town")
    (note,) = about_functions(model.privacy_)
    for words in ("public0, public1", "function", "all columns of the row", "known of every row"):
        assert words in note
    assert "What they tell of private columns is not protected." in note
    model.model_.save(tmp_path / "model")
    assert about_functions(Model.load(tmp_path / "model").privacy) == [note]
    # An audit of it says the same.
    assert about_functions(record(model, frame()).model.privacy_) == [note]
    assert about_functions(model.set_params(public=None).fit(frame()).privacy_) == []


def test_the_statement_of_a_bare_array_says_it_too() -> None:
    X = frame()[["age", "dose"]].to_numpy(float) / 100
    beside = HalfmaskClassifier(PRIVATE, epsilon=5, public=two_columns).fit(frame())
    model = HalfmaskClassifier(epsilon=5, method="gd", public=two_columns)
    model.fit(X, frame()["sick"])
    (note,) = about_functions(model.privacy_)
    assert about_functions(beside.privacy_) == [note]
    number = HalfmaskRegressor(epsilon=5, method="gd", public=two_columns).fit(X, X[:, 1])
    assert about_functions(number.privacy_) == [note]
    for public in (None, "all", lambda rows: np.zeros((len(rows), 0))):
        model.set_params(public=public).fit(X, frame()["sick"])
        assert about_functions(model.privacy_) == []


def test_functions_of_a_schema_and_of_python_are_told_in_the_same_words() -> None:
    decade = Schema(PRIVATE.label, (*PRIVATE.columns, Column("decade", public="round(age, 10)")))
    model = HalfmaskClassifier(decade, epsilon=5, method="gd", public=two_columns).fit(frame())
    named, own = about_functions(model.privacy_)
    assert "decade = round(age, 10)" in named
    assert "public0, public1" in own
    for words in ("Public functions of other columns, known of every row", "is not protected."):
        assert words in named
        assert words in own


def test_all_columns_public_leaves_the_label_private() -> None:
    X = frame()[["age", "dose"]].to_numpy(float) / 100
    model = HalfmaskClassifier(epsilon=5, public="all").fit(X, frame()["sick"])
    assert model.privacy_.private == ()
    assert model.privacy_.label_private
    assert model.method_ == "one-shot"


def test_a_public_function_that_mixes_rows_is_refused() -> None:
    X = frame()[["age", "dose"]].to_numpy(float)
    with pytest.raises(InputError, match="one row at a time"):
        HalfmaskClassifier(public=lambda rows: rows - rows.mean(axis=0)).fit(X, frame()["sick"])


def both_halves_hold_the_extremes() -> pd.DataFrame:
    people = frame()
    people.loc[[0, 1, 298, 299], "age"] = [0, 99, 0, 99]
    return people


MIXING = {
    "equal parts of its range": lambda a: pd.cut(pd.Series(a), 6, labels=False),
    "between the extremes": lambda a: (a - a.min()) / (a.max() - a.min()),
    "above half of the largest": lambda a: a > a.max() / 2,
    "against the largest": lambda a: a / max(a.max(), 1),
    "how many rows": lambda a: np.full(len(a), len(a) >= 100),
    "no single row": lambda a: a if len(a) > 1 else a[5],
    "other columns for a single row": lambda a: np.stack([a, a], 1) if len(a) < 2 else a,
    "two rows for one": lambda a: np.repeat(a, 2 if len(a) == 1 else 1),
}


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("kind", MIXING)
@pytest.mark.parametrize("given", ["bare", "pandas", "polars", "arrow"])
def test_a_function_that_looks_at_other_rows_is_refused_though_halves_agree(
    kind: str, given: str
) -> None:
    function, people = MIXING[kind], both_halves_hold_the_extremes()
    ages = people["age"].to_numpy(float)
    halves = [np.asarray(function(ages[part])) for part in (slice(150), slice(150, 300))]
    np.testing.assert_array_equal(np.concatenate(halves), np.asarray(function(ages)))
    if given == "bare":
        model = HalfmaskClassifier(public=lambda X: function(X[:, 0]))
        rows: Any = (people[["age", "dose"]].to_numpy(float), people["sick"])
    else:
        model = HalfmaskClassifier(SCHEMA, public=lambda X: function(np.asarray(X["age"], float)))
        kinds = {"pandas": pd.DataFrame, "polars": pl.from_pandas, "arrow": pa.Table.from_pandas}
        rows = (kinds[given](people),)
    with pytest.raises(InputError, match="one row at a time") as caught:
        model.fit(*rows)
    assert caught.value.__context__ is None


_WEIGHTS = np.random.default_rng(0).normal(size=(2, 5))


def by_layers(rows: Any) -> Any:
    """A small network in single precision, whose rounding hangs on the number of rows."""
    hidden = rows.astype(np.float32)
    for layer in range(4):
        width = hidden.shape[1]
        weights = np.random.default_rng(layer).normal(size=(width, 300)).astype(np.float32)
        hidden = np.tanh(hidden @ weights / np.float32(10))
    return hidden[:, :3]


ROW_BY_ROW = {
    "a comparison": lambda X: X[:, :1] > 0.5,
    "a table of one column, squeezed": lambda X: np.squeeze(X[:, :1] > 0.5),
    "two columns, squeezed": lambda X: np.squeeze(X[:, :2]),
    "a product": lambda X: X @ _WEIGHTS,
    "a product with large terms": lambda X: (X * 1e9) @ (_WEIGHTS - _WEIGHTS.mean(axis=1)[:, None]),
    "a network": by_layers,
    "a network, converted": lambda X: by_layers(X).astype(float),
    "a list": lambda X: [float(row[0]) for row in X],
    "pandas": lambda X: pd.DataFrame(X).apply(lambda row: row[0] // 10, axis=1),
    "edges that are known": lambda X: pd.cut(X[:, 0], [-1, 0.3, 0.6, 2], labels=False),
    "a constant": lambda X: np.ones(len(X)),
    "no column": lambda X: np.zeros((len(X), 0)),
}


@pytest.mark.parametrize("kind", ROW_BY_ROW)
def test_a_function_that_acts_row_by_row_is_welcome(kind: str) -> None:
    X = frame()[["age", "dose"]].to_numpy(float) / 100
    model = HalfmaskClassifier(epsilon=5, method="gd", public=ROW_BY_ROW[kind])
    model.fit(X, frame()["sick"])
    whole = model.decision_function(X)
    for rows in (1, 2, 3, 11, 299):
        np.testing.assert_allclose(model.decision_function(X[:rows]), whole[:rows], atol=1e-3)


def test_a_function_is_tried_on_few_single_rows_at_places_that_follow_from_their_number() -> None:
    seen: list[list[float]] = []

    def age(rows: Any) -> Any:
        seen.append(rows[:, 0].tolist())
        return rows[:, 0] > 3

    numbers = np.arange(10_000.0)
    rows = np.stack([numbers, -numbers], axis=1)
    with_public_part(Table.from_arrays(rows, None), rows, age)
    tried = [part[0] for part in seen if len(part) == 1]
    assert len(tried) == 10
    assert (tried[0], tried[-1]) == (0, 9_999)
    assert sorted({round(step, -2) for step in np.diff(tried)}) == [1100]
    assert sum(map(len, seen)) <= 2 * len(rows) + 10


def test_cross_validation_warns_that_each_fold_spends() -> None:
    model = HalfmaskClassifier(SCHEMA, epsilon=5)
    people = frame()
    with pytest.warns(SpendsAgainWarning, match="once more"):
        scores = cross_val_score(model, people.drop(columns="sick"), people["sick"], cv=3)
    assert len(scores) == 3
    with warnings.catch_warnings():
        warnings.simplefilter("error", SpendsAgainWarning)
        model.fit(people)


def test_a_ledger_caps_what_clones_spend(tmp_path: Any) -> None:
    ledger = Ledger.create(tmp_path / "l.jsonl", epsilon=1.2, delta=1e-6, relation="replace")
    model = HalfmaskClassifier(SCHEMA, epsilon=1.0, ledger=ledger).fit(frame())
    assert model.ledger is ledger
    with pytest.warns(SpendsAgainWarning), pytest.raises(BudgetExceededError):
        clone(clone(model)).fit(frame())


ROWS, SICK = frame()[["age", "dose"]].to_numpy(float), frame()["sick"]


def fixed_scale(rows: np.ndarray) -> np.ndarray:
    """By numbers that are known without the data."""
    return rows / [100.0, 10.0]


def test_it_works_behind_steps_that_learn_nothing() -> None:
    steps = [FunctionTransformer(fixed_scale), Normalizer(), "passthrough"]
    model = make_pipeline(*steps, HalfmaskClassifier(epsilon=20, unsafe_seed=0))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert model.fit(ROWS, SICK).score(ROWS, SICK) > 0.5
    assert not any("step" in line for line in model[-1].privacy_.not_covered)


def test_a_scaler_carries_one_persons_private_value_to_every_row() -> None:
    """Why a scaler in front breaks the guarantee: one cell moves what the estimator is handed."""
    one, two = ROWS.copy(), ROWS.copy()
    two[0, 1] = 1e6
    moved = MaxAbsScaler().fit_transform(one) != MaxAbsScaler().fit_transform(two)
    assert moved.any(axis=1).mean() > 0.9


@pytest.mark.parametrize(
    "scaler", [MaxAbsScaler(), StandardScaler(), PCA(), FeatureUnion([("scale", StandardScaler())])]
)
def test_a_step_that_learns_from_private_rows_is_named(scaler: Any) -> None:
    model = make_pipeline(scaler, HalfmaskClassifier(epsilon=20))
    name = model.steps[0][0]
    with pytest.warns(UncoveredStepWarning, match=name):
        model.fit(ROWS, SICK)
    stated = model[-1].privacy_
    assert any(name in line and "every row" in line for line in stated.not_covered)
    assert name in stated.text()


def test_a_step_is_found_through_searches_and_nested_pipelines() -> None:
    inner = make_pipeline(FunctionTransformer(), HalfmaskClassifier(epsilon=20))
    outer = make_pipeline(StandardScaler(), inner)
    with pytest.warns(UncoveredStepWarning, match="standardscaler"):
        outer.fit(ROWS, SICK)
    search = GridSearchCV(outer, {"pipeline__halfmaskclassifier__epsilon": [5, 20]}, cv=2)
    with pytest.warns(UncoveredStepWarning, match="standardscaler"):
        search.fit(ROWS, SICK)


def test_a_scaled_target_is_found_too() -> None:
    model = TransformedTargetRegressor(HalfmaskRegressor(epsilon=20), transformer=StandardScaler())
    with pytest.warns(UncoveredStepWarning, match="transformer of the target"):
        model.fit(ROWS, ROWS[:, 1])


def test_models_stacked_below_the_estimator_are_found_and_those_of_ours_pass() -> None:
    ours = HalfmaskClassifier(epsilon=20)
    below = [("tree", DecisionTreeClassifier(max_depth=2)), ("ours", ours)]
    model = StackingClassifier(below, final_estimator=HalfmaskClassifier(epsilon=20), cv=2)
    with pytest.warns(UncoveredStepWarning, match="The stacked model 'tree' in front"):
        model.fit(ROWS, SICK)
    stated = model.final_estimator_.privacy_.not_covered
    assert any("'tree'" in line and "'ours'" not in line for line in stated)
    assert not any("tree" in line for line in model.named_estimators_["ours"].privacy_.not_covered)


def test_steps_of_public_columns_pass_where_only_the_label_is_private() -> None:
    model = make_pipeline(StandardScaler(), HalfmaskClassifier(epsilon=20, public="all"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.fit(ROWS, SICK)
    choosing = make_pipeline(SelectKBest(k=1), HalfmaskClassifier(epsilon=20, public="all"))
    with pytest.warns(UncoveredStepWarning, match="selectkbest"):
        choosing.fit(ROWS, SICK)


def test_a_step_fitted_elsewhere_passes() -> None:
    public_rows = np.array([[0.0, 0.0], [100.0, 10.0]])
    ready = FrozenEstimator(MaxAbsScaler().fit(public_rows))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        make_pipeline(ready, HalfmaskClassifier(epsilon=20)).fit(ROWS, SICK)


def test_many_classes_and_mixed_class_types() -> None:
    people = frame()
    people["sick"] = np.digitize(people["dose"], [3, 6])
    label = Label("sick", "private", classes=(0, 1, 2))
    model = HalfmaskClassifier(Schema(label, SCHEMA.columns), epsilon=50, unsafe_seed=0)
    model.fit(people)
    assert model.predict(people).dtype.kind == "i"
    assert model.score(people) > 0.6
    np.testing.assert_allclose(model.predict_proba(people).sum(axis=1), 1)


def test_a_regressor_stays_within_its_bounds() -> None:
    schema = Schema(
        label=Label("dose", "private", bounds=(0, 10)),
        columns=(Column("age", "public", "number", bounds=(0, 100)),),
    )
    people = frame()
    model = HalfmaskRegressor(schema, epsilon=5).fit(people)
    predicted = model.predict(people)
    assert 0 <= predicted.min() <= predicted.max() <= 10
    assert model.score(people) > -1


def test_a_schema_for_the_other_task_is_refused() -> None:
    with pytest.raises(InputError, match="HalfmaskRegressor is for regression"):
        HalfmaskRegressor(SCHEMA).fit(frame())


def test_labels_of_another_length_are_refused() -> None:
    with pytest.raises(DataError, match="one label per row"):
        HalfmaskClassifier(SCHEMA).fit(frame(), ["no"])


@pytest.mark.parametrize("method", ["gd", "one-shot", "sgd", "label-span"])
def test_an_unknown_option_is_refused_before_a_charge(method: str) -> None:
    budget = MemoryLedger(epsilon=1.0, delta=1e-6)
    model = HalfmaskClassifier(SCHEMA, method=method, options={"stpes": 3}, ledger=budget)
    with pytest.raises(InputError, match="stpes"):
        model.fit(frame())
    assert budget.events() == ()


@pytest.mark.parametrize("missing", [None, float("nan"), pd.NA], ids=["None", "nan", "NA"])
def test_a_missing_label_among_words_is_named_by_its_row(missing: Any) -> None:
    labels = np.array(["SECRET", "b", missing, "b"] * 10, dtype=object)
    with pytest.raises(DataError, match=r"^y, row 3: the label is missing\. Fill it in") as caught:
        HalfmaskClassifier().fit(np.eye(40), labels)
    assert "SECRET" not in str(caught.value)


@pytest.mark.parametrize(
    "form",
    [
        lambda y: y.reshape(-1, 1),
        lambda y: pd.DataFrame({"anything": y}),
        lambda y: pl.DataFrame({"anything": y}),
        lambda y: pa.table({"anything": y}),
    ],
    ids=["array", "pandas", "polars", "pyarrow"],
)
def test_labels_may_be_a_frame_of_one_column_beside_a_schema(form: Any) -> None:
    schema = Schema(Label("y", "private", classes=(0, 1)), (Column("x", "public", "number"),))
    X, y = pd.DataFrame({"x": np.arange(200.0)}), (np.arange(200) > 99).astype(int)
    model = HalfmaskClassifier(schema, epsilon=20.0, unsafe_seed=1)
    flat = clone(model).fit(X, y)
    tall = model.fit(X, form(y))
    assert np.array_equal(flat.predict_proba(X), tall.predict_proba(X))
    assert tall.score(X, form(y)) == flat.score(X, y)
    wide = np.column_stack([y, y])
    for two in (wide, pd.DataFrame(wide)):
        with pytest.raises(DataError, match=r"one value of 'y' per row, got shape \(200, 2\)"):
            model.fit(X, two)


@pytest.mark.filterwarnings("ignore::halfmask.estimators.SpendsAgainWarning")
def test_tools_that_number_the_classes_need_classes_that_are_numbers() -> None:
    X, y = pd.DataFrame({"x": np.arange(200.0)}), (np.arange(200) > 99).astype(int)
    column = Column("x", "public", "number")

    def chances(classes: tuple[Any, ...], labels: Any) -> np.ndarray:
        schema = Schema(Label("y", "private", classes=classes), (column,))
        model = HalfmaskClassifier(schema, epsilon=20.0)
        return cross_val_predict(model, X, labels, cv=2, method="predict_proba")

    assert chances((0, 1), y).shape == (200, 2)
    assert chances(("0", "1"), y.astype(str)).shape == (200, 2)
    with pytest.raises(DataError, match="number the classes themselves"):
        chances(("no", "yes"), np.where(y == 1, "yes", "no"))
