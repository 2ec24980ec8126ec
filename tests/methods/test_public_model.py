"""A free model of the user's choice: handed public values alone, cross-fitted, never pickled."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import make_column_transformer
from sklearn.ensemble import (
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
    RandomForestClassifier,
    VotingClassifier,
)
from sklearn.frozen import FrozenEstimator
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression, PoissonRegressor
from sklearn.naive_bayes import GaussianNB
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, OneHotEncoder, StandardScaler
from sklearn.svm import LinearSVC
from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor
from tests.audit.replays import assert_within_charge, neighbour_pairs

from halfmask import HalfmaskClassifier, HalfmaskRegressor
from halfmask.accounting.ledger import MemoryLedger
from halfmask.audit import ReplayError
from halfmask.errors import InputError
from halfmask.methods import additive
from halfmask.methods.free_model import cross_fitted_public
from halfmask.schema import Column, Label, Schema, Unit


def people(rows: int = 4_000, seed: int = 1) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    age, pay = rng.integers(18, 90, rows).astype(float), rng.exponential(2000.0, rows)
    town = rng.choice(["north", "south", "west"], rows)
    score = 0.06 * (age - 50) + 0.8 * (town == "north") + 1.2 * (pay > 3000) - 1.0
    return pd.DataFrame(
        {
            "id": np.arange(rows) // 2,
            "age": np.where(rng.random(rows) < 0.05, np.nan, age),
            "town": town,
            "pay": pay,
            "visits": rng.poisson(np.exp(np.clip(score / 2, -3, 2))).clip(0, 30),
            "sick": np.where(rng.random(rows) < 1 / (1 + np.exp(-score)), "yes", "no"),
        }
    )


def schema(*, label: str = "public", unit: bool = False, number: bool = False) -> Schema:
    role: Any = label
    target = Label("sick", role, classes=("no", "yes"))
    if number:
        target = Label("visits", role, bounds=(0, 30))
    columns = (
        Column("age", "public", "number"),
        Column("town", "public", "category"),
        Column("pay", "private", "number", bounds=(0, 20_000)),
    )
    return Schema(target, columns, Unit(column="id", max_rows=2) if unit else None)


SEEN: list[tuple[np.ndarray, np.ndarray | None]] = []


class Spy(ClassifierMixin, BaseEstimator):
    """Keeps what it is handed."""

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Spy:
        SEEN.append((X, y))
        self.classes_ = np.array([0, 1])
        return self

    def predict_proba(self, X: Any) -> np.ndarray:
        SEEN.append((X, None))
        return np.tile([0.5, 0.5], (len(X), 1))


def test_it_is_handed_public_values_and_labels_and_nothing_else() -> None:
    SEEN.clear()
    frame = people(600)
    frame["age"] = frame["age"] // 10 * 10
    HalfmaskClassifier(schema(), public_model=Spy(), unsafe_seed=1).fit(frame)
    (seen, label) = SEEN[-1]
    assert type(seen) is np.ndarray
    assert seen.shape == (600, 2)
    np.testing.assert_array_equal(label, (frame["sick"] == "yes").astype(int))
    np.testing.assert_allclose(seen[:, 0], frame["age"])
    places = {name: place for place, name in enumerate(sorted(set(frame["town"])))}
    np.testing.assert_array_equal(seen[:, 1], frame["town"].map(places))
    assert all(part.base is None or part.base.size <= seen.size for part in (seen, label))


@pytest.mark.parametrize("unit", [False, True])
def test_no_row_or_unit_is_scored_by_a_copy_that_saw_it(unit: bool) -> None:
    SEEN.clear()
    rows = np.arange(300)
    codes = rows // 3 if unit else rows  # the public part tells rows, or units, apart
    cross_fitted_public(
        Spy(),
        codes[:, None],
        (rows % 2).astype(float),
        values=[np.arange(300.0)],
        task="classification",
        folds=5,
        groups=rows // 3 if unit else None,
        weights=None,
    )
    fits = [set(X[:, 0]) for X, label in SEEN[:-1] if label is not None]
    scored = [set(X[:, 0]) for X, label in SEEN if label is None]
    assert len(fits) == len(scored) == 5
    assert not any(fitted & asked for fitted, asked in zip(fits, scored, strict=True))
    assert set().union(*scored) == set(codes)
    assert SEEN[-1][0].shape == (300, 1)


def test_the_default_free_model_keeps_rows_of_a_unit_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[Any] = []
    real = additive.cross_fitted

    def watched(*given: Any, **named: Any) -> Any:
        seen.append(named["groups"])
        return real(*given, **named)

    monkeypatch.setattr(additive, "cross_fitted", watched)
    frame = people(300)
    HalfmaskClassifier(schema(unit=True), unsafe_seed=1).fit(frame)
    np.testing.assert_array_equal(seen[0], frame["id"])


MODELS = {
    "boosted": HistGradientBoostingClassifier(max_iter=40),
    "forest": RandomForestClassifier(n_estimators=30),
    "linear": make_pipeline(
        make_column_transformer(
            (make_pipeline(SimpleImputer(), StandardScaler()), [0]), (OneHotEncoder(), [1])
        ),
        LogisticRegression(),
    ),
    "calibrated": CalibratedClassifierCV(
        make_pipeline(SimpleImputer(), StandardScaler(), LinearSVC())
    ),
}


def log_loss(model: Any, frame: pd.DataFrame) -> float:
    chance = model.predict_proba(frame)[:, 1]
    yes = (frame["sick"] == "yes").to_numpy()
    return float(-np.mean(np.where(yes, np.log(chance), np.log1p(-chance))))


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.slow] * (name == "boosted")) for name in MODELS],
)
def test_any_estimator_serves_and_private_columns_add_to_it(name: str) -> None:
    train, test = people(), people(6_000, 2)
    free = clone_on_public(MODELS[name], train, test)
    model = HalfmaskClassifier(
        schema(), epsilon=2.0, delta=1e-6, public_model=MODELS[name], unsafe_seed=1
    ).fit(train)
    assert log_loss(model, test) < free - 0.01
    default = HalfmaskClassifier(schema(), epsilon=2.0, delta=1e-6, unsafe_seed=1).fit(train)
    assert log_loss(model, test) < log_loss(default, test) + 0.02
    assert any(type(MODELS[name]).__name__ in note for note in model.privacy_.notes)


def clone_on_public(estimator: Any, train: pd.DataFrame, test: pd.DataFrame) -> float:
    """The estimator alone, calibrated: log loss on the test rows."""
    from sklearn.base import clone

    places = {"north": 0.0, "south": 1.0, "west": 2.0}
    X, Z = (np.column_stack([f["age"], f["town"].map(places)]) for f in (train, test))
    fitted = CalibratedClassifierCV(clone(estimator), cv=5).fit(X, train["sick"] == "yes")
    chance = np.clip(fitted.predict_proba(Z)[:, 1], 1e-4, 1 - 1e-4)
    yes = (test["sick"] == "yes").to_numpy()
    return float(-np.mean(np.where(yes, np.log(chance), np.log1p(-chance))))


def test_a_number_is_handed_over_in_its_own_units() -> None:
    train, test = people(), people(4_000, 2)
    counts = make_pipeline(SimpleImputer(), StandardScaler(), PoissonRegressor())
    for model in (counts, HistGradientBoostingRegressor(max_iter=40)):
        fitted = HalfmaskRegressor(
            schema(number=True), epsilon=4.0, public_model=model, unsafe_seed=1
        ).fit(train)
        assert fitted.score(test) > 0.1


@given(data=st.data())
@settings(max_examples=25, deadline=None)
def test_no_neighbour_moves_the_releases_beyond_the_charge(data: st.DataObject) -> None:
    pair = data.draw(neighbour_pairs(roles=("features",), labels=("two", "number")))
    estimator = pair.estimator("additive", epsilon=data.draw(st.sampled_from([1.0, 2000.0])))
    tree = DecisionTreeClassifier if pair.schema.label.classes else DecisionTreeRegressor
    estimator.set_params(public_model=tree(max_depth=3))
    assert_within_charge(estimator, pair.frame, pair.neighbour, replaced=pair.replaced)


def test_a_replay_notices_a_private_column_among_the_public_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = additive.AdditiveRun._free_model
    monkeypatch.setattr(
        additive.AdditiveRun,
        "_free_model",
        lambda self, places, *given: real(self, (*places, *self._private), *given),
    )
    monkeypatch.setattr(
        additive.AdditiveFit,
        "scores",
        lambda self, columns: np.zeros(len(columns[0].codes)),
    )
    frame = people(400).assign(age=40.0)
    other = frame.copy()
    other.loc[5, "pay"] = 19_000.0
    estimator = HalfmaskClassifier(schema(), method="additive", public_model=GaussianNB())
    with pytest.raises((AssertionError, ReplayError)):
        assert_within_charge(estimator, frame, other, replaced=5)


def fitted_tree() -> Any:
    return DecisionTreeClassifier().fit(np.zeros((2, 2)), [0, 1])


def scores_by(model: Any, rows: Any) -> Any:
    return model.predict_proba(np.nan_to_num(rows))


def first_step(function: Any) -> Any:
    """A free model that hands every row to `function`."""
    return make_pipeline(FunctionTransformer(function), LogisticRegression())


REFUSED = {
    "fitted": (fitted_tree, "fitted already"),
    "frozen": (lambda: FrozenEstimator(fitted_tree()), "fitted already"),
    "frozen within": (
        lambda: make_pipeline(
            FrozenEstimator(StandardScaler().fit(np.eye(2))), LogisticRegression()
        ),
        "fitted already",
    ),
    "fitted within a list": (
        lambda: VotingClassifier([("a", fitted_tree())], voting="soft"),
        "fitted already",
    ),
    "a method of a fitted one": (
        lambda: first_step(fitted_tree().predict_proba),
        "its DecisionTreeClassifier is fitted already",
    ),
    "fitted within a partial": (
        lambda: first_step(partial(scores_by, fitted_tree())),
        "its DecisionTreeClassifier is fitted already",
    ),
    "fitted within a partial by name": (
        lambda: first_step(partial(scores_by, model=fitted_tree())),
        "its DecisionTreeClassifier is fitted already",
    ),
    "a method within a partial": (
        lambda: first_step(partial(partial(fitted_tree().predict_proba), check_input=True)),
        "its DecisionTreeClassifier is fitted already",
    ),
    "a class": (lambda: LogisticRegression, "the class LogisticRegression"),
    "another task": (DecisionTreeRegressor, "for classification"),
    "no chances": (LinearSVC, "no predict_proba"),
    "no estimator": (lambda: "trees", "got str"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_is_fitted_or_no_estimator_is_refused_before_anything_is_charged(kind: str) -> None:
    make, words = REFUSED[kind]
    ledger = MemoryLedger(epsilon=1.0, delta=1e-6, relation="replace")
    model = HalfmaskClassifier(schema(), public_model=make(), ledger=ledger)
    with pytest.raises(InputError, match=words):
        model.fit(people(100))
    assert ledger.events() == ()


@pytest.mark.parametrize(
    ("given", "method", "words"),
    [
        (schema(label="private"), "auto", "needs a public label"),
        (schema(), "gd", "'gd' has no free model.*needs a schema and a public label.$"),
        (
            Schema(
                Label("sick", "public", classes=("no", "yes")),
                (Column("pay", "private", "number", bounds=(0, 20_000)),),
            ),
            "auto",
            "needs a public column",
        ),
    ],
)
def test_where_no_model_would_be_free_it_is_refused(given: Schema, method: str, words: str) -> None:
    model = HalfmaskClassifier(given, method=method, public_model=LogisticRegression())
    with pytest.raises(InputError, match=words):
        model.fit(people(100))


def test_functions_that_hold_no_fitted_model_are_welcome() -> None:
    plain = make_pipeline(
        FunctionTransformer(partial(np.nan_to_num, nan=40.0)),
        FunctionTransformer(StandardScaler().fit_transform),
        LogisticRegression(),
    )
    model = HalfmaskClassifier(schema(), public_model=plain, unsafe_seed=1).fit(people(300))
    assert set(model.predict(people(20))) <= {"no", "yes"}


def test_an_estimator_that_cannot_read_the_columns_says_what_they_are() -> None:
    model = HalfmaskClassifier(schema(), public_model=LogisticRegression())
    with pytest.raises(InputError, match=r"NaN.*A pipeline can impute"):
        model.fit(people(300))


def test_a_model_that_only_pickle_could_hold_is_not_stored(tmp_path: Path) -> None:
    frame = people(500)
    model = HalfmaskClassifier(
        schema(), epsilon=4.0, public_model=HistGradientBoostingClassifier(max_iter=5)
    ).fit(frame)
    with pytest.raises(InputError, match=r"HistGradientBoostingClassifier.*pickle"):
        model.model_.save(tmp_path / "model")
    assert list(tmp_path.iterdir()) == []
    assert model.predict_proba(frame).shape == (500, 2)


def test_an_estimator_is_left_as_it_was_given() -> None:
    given = RandomForestClassifier(n_estimators=5)
    HalfmaskClassifier(schema(), public_model=given).fit(people(300))
    assert given.random_state is None
    assert not hasattr(given, "estimators_")


def test_the_same_rows_give_the_same_free_model() -> None:
    frame = people(500)
    scores = [
        HalfmaskClassifier(
            schema(), public_model=RandomForestClassifier(n_estimators=5), unsafe_seed=1
        )
        .fit(frame)
        .decision_function(frame)
        for _ in range(2)
    ]
    np.testing.assert_array_equal(*scores)
