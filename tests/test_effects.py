"""What a model learnt is told by column, follows from the model alone, and its bars hold noise."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pytest

from halfmask import HalfmaskClassifier, HalfmaskRegressor, Schema
from halfmask.datasets import load_adult
from halfmask.effects import _View, effects
from halfmask.model import Model

TRAIN, TEST, CENSUS = load_adult()
ROWS = TRAIN.slice(0, 5000)
Role = Literal["public", "private"]


def census(private: str, label: Role = "private") -> Schema:
    """The census with all columns private, every second one, or none."""
    roles: dict[str, tuple[Role, Role]] = {
        "all": ("private", "private"),
        "half": ("public", "private"),
        "none": ("public", "public"),
    }
    columns = tuple(
        replace(column, role=roles[private][place % 2])
        for place, column in enumerate(CENSUS.columns)
    )
    return Schema(replace(CENSUS.label, role=label), columns)


def fitted(schema: Schema, method: str = "auto", rows: pa.Table = ROWS) -> HalfmaskClassifier:
    return HalfmaskClassifier(schema, epsilon=1.0, delta=1e-6, method=method).fit(rows)


@pytest.mark.parametrize(
    ("private", "method"),
    [
        pytest.param("all", "additive", marks=pytest.mark.slow),
        pytest.param("half", "additive", marks=pytest.mark.slow),
        pytest.param("none", "additive", marks=pytest.mark.slow),
        ("all", "gd"),
        pytest.param("half", "gd", marks=pytest.mark.slow),
    ],
)
def test_bars_hold_what_other_noise_gives_on_average(private: str, method: str) -> None:
    """95% bars contain the mean over fresh noise in at least 90% of levels."""
    models = [fitted(census(private), method).model_ for _ in range(12)]
    every = [np.concatenate(_View(model).effects(model))[:, 0] for model in models]
    mean = np.mean(every, axis=0)
    inside = []
    for model in models[:4]:
        found = {effect.column: effect for effect in effects(model)}
        ordered = [found[column.name] for column in CENSUS.columns]
        low = np.concatenate([effect.low for effect in ordered])
        high = np.concatenate([effect.high for effect in ordered])
        inside.append((low <= mean) & (mean <= high))
    assert np.mean(inside) >= 0.9
    spread = np.std(every, axis=0)
    assert np.median((high - low)[spread > 0] / spread[spread > 0]) < 20, "bars that hold all"


@pytest.fixture(scope="module")
def model() -> HalfmaskClassifier:
    return fitted(census("half"))


def test_effects_are_named_and_add_up(model: HalfmaskClassifier) -> None:
    names = [column.name for column in CENSUS.columns]
    assert list(model.feature_names_in_) == names
    assert {effect.column for effect in model.effects_} == set(names)
    age = model.effects_["age"]
    assert age.ordered
    assert len(age.levels) == len(age.values) == len(age.low)
    assert age.outcome == str(model.classes_[1])
    assert all(
        low <= value <= high for low, value, high in zip(age.low, age.values, age.high, strict=True)
    )
    assert age.share is not None
    assert abs(np.dot(age.values, age.share)) < 1e-6
    sizes = [effect.size for effect in model.effects_]
    assert sizes == sorted(sizes, reverse=True)
    with pytest.raises(KeyError, match="Did you mean 'age'"):
        model.effects_["agee"]


@pytest.mark.parametrize("method", ["additive", "gd", "one-shot"])
def test_an_explanation_adds_up_to_the_score(method: str) -> None:
    model = fitted(census("all"), method)
    row = TEST.slice(3, 1)
    told = model.explain(row)
    assert told.score == pytest.approx(float(model.decision_function(row)[0]))
    assert told.average + sum(told.added.values()) == pytest.approx(told.score)
    assert set(told.added) == set(model.feature_names_in_)
    other = TEST.slice(4, 1)
    assert model.explain(other).average == pytest.approx(told.average), "one average row for all"
    by_name = {name: row.column(name)[0].as_py() for name in row.column_names}
    assert model.explain(by_name).added == told.added


def test_effects_follow_from_the_stored_model_alone(
    model: HalfmaskClassifier, tmp_path: Path
) -> None:
    """No row is read: the folder gives the same effects and bars."""
    model.model_.save(tmp_path / "model")
    stored = effects(Model.load(tmp_path / "model")).to_json()
    assert [each["column"] for each in stored] == [e.column for e in model.effects_]
    for one, other in zip(stored, model.effects_, strict=True):
        np.testing.assert_allclose(one["low"], other.low, rtol=1e-3, atol=1e-3)


def noise_rows(rows: int) -> tuple[pa.Table, Schema]:
    rng = np.random.default_rng(5)
    columns: dict[str, Any] = {f"x{place}": rng.uniform(0, 1, rows) for place in range(4)}
    label = np.where(columns["x0"] + rng.normal(0, 0.2, rows) > 0.5, "yes", "no")
    declared = {name: {"role": "private", "kind": "number", "bounds": [0, 1]} for name in columns}
    data = {"label": {"name": "y", "role": "private", "classes": ["no", "yes"]}}
    return pa.table({**columns, "y": label}), Schema.from_dict({**data, "columns": declared})


def test_what_noise_made_is_called_so() -> None:
    rows, schema = noise_rows(4000)
    found = HalfmaskClassifier(schema, epsilon=1.0, delta=1e-6).fit(rows).effects_
    assert found[0].column == "x0"
    assert found[0].clear
    assert found["x0"].values[0] < 0 < found["x0"].values[-2]
    share = np.mean([level for name in ("x1", "x2", "x3") for level in found[name].by_noise])
    assert share > 0.8


def test_numbers_to_predict_have_effects_in_their_own_unit() -> None:
    rng = np.random.default_rng(2)
    x = rng.uniform(0, 10, 6000)
    rows = pa.table({"x": x, "y": 3 * x + rng.normal(0, 1, 6000)})
    label = {"name": "y", "role": "private", "bounds": [0, 40]}
    column = {"role": "private", "kind": "number", "bounds": [0, 10]}
    schema = Schema.from_dict({"label": label, "columns": {"x": column}})
    found = HalfmaskRegressor(schema, epsilon=2.0, delta=1e-6).fit(rows).effects_["x"]
    steep = np.polyfit(np.linspace(0, 10, len(found.values) - 1), found.values[:-1], 1)[0]
    assert 2 < steep < 4
    assert found.outcome == "y"


def test_several_classes_have_an_effect_each() -> None:
    rows, schema = noise_rows(3000)
    third = np.where(np.asarray(rows["x1"]) > 0.6, "maybe", np.asarray(rows["y"].to_pylist()))
    rows = rows.set_column(4, "y", pa.array(third))
    label = replace(schema.label, classes=("no", "yes", "maybe"))
    model = HalfmaskClassifier(Schema(label, schema.columns), epsilon=4.0, method="gd").fit(rows)
    outcomes = {effect.outcome for effect in model.effects_ if effect.column == "x1"}
    assert outcomes == {"no", "yes", "maybe"}


def test_methods_whose_bars_were_not_tried_have_none() -> None:
    model = fitted(census("all"), "one-shot")
    assert not hasattr(model, "effects_")
    with pytest.raises(AttributeError, match="additive or gd"):
        _ = model.effects_


def test_bare_arrays_have_no_effects_by_column() -> None:
    X = np.random.default_rng(0).normal(size=(60, 2))
    model = HalfmaskClassifier(epsilon=5.0).fit(X, (X[:, 0] > 0).astype(int))
    assert not hasattr(model, "effects_")


def test_notebooks_show_models_statements_and_effects(model: HalfmaskClassifier) -> None:
    fresh = fitted(census("all"))
    diagram = fresh._repr_html_()
    assert "epsilon 1 at" in diagram
    assert "_found" not in vars(fresh.effects_), "a diagram must not train anything"
    assert "epsilon 1 at" in fresh.model_._repr_html_()
    assert fresh.privacy_._repr_html_().startswith("<pre>")
    drawn = model.effects_._repr_html_()
    assert drawn.count("<svg") == 8
    assert "<script" not in drawn
