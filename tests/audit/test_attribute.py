"""Guessing private values: the bound is right for two values, holds for more, and is drawn."""

import warnings
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from halfmask.accounting.budget import Budget
from halfmask.accounting.events import GaussianEvent, RandomisedResponseEvent
from halfmask.audit.model_audit import (
    FIGURE_FILE,
    GuessingGain,
    Inference,
    _candidates,
    _column,
    _drawn,
    _evidence,
    attribute_inference,
    log_likelihoods,
    take,
)
from halfmask.mechanisms.noise import noise_source
from halfmask.report.facts import most_right_guesses
from halfmask.schema import Column, Label, Schema
from halfmask.table import Encoder
from halfmask.training import train


@given(first=st.floats(0.02, 0.98), mu=st.floats(0.1, 3.0))
@settings(max_examples=30, deadline=None)
def test_two_values_agree_with_the_best_possible_test(first, mu):
    events = [GaussianEvent(replace=mu, withhold=mu)]
    gain = GuessingGain(events)(np.array([[first, 1 - first]]))[0]
    exact = most_right_guesses(events, first) - max(first, 1 - first)
    assert exact - 1e-12 <= gain <= exact + 0.06


@given(weights=st.lists(st.floats(0.01, 1.0), min_size=2, max_size=6), epsilon=st.floats(0.1, 4.0))
@settings(max_examples=10, deadline=None)
def test_randomised_response_never_beats_the_bound(weights, epsilon):
    prior = np.array(weights) / sum(weights)
    count = len(prior)
    event = RandomisedResponseEvent(epsilon=epsilon, categories=count)
    keep = np.exp(epsilon) / (np.exp(epsilon) + count - 1)
    told = np.full((count, count), (1 - keep) / (count - 1))
    np.fill_diagonal(told, keep)
    best = (prior[:, None] * told).max(axis=0).sum()
    gain = GuessingGain([event])(prior[None])[0]
    assert best <= prior.max() + gain + 1e-9


def test_no_release_no_gain():
    assert GuessingGain([])(np.array([[0.5, 0.3, 0.2]]))[0] == 0


@pytest.fixture(scope="module")
def fitted():
    generator = np.random.default_rng(5)
    n = 400
    group = generator.integers(2, size=n)
    dose = np.where(generator.random(n) < 0.8, group, 1 - group)
    ill = np.where(generator.random(n) < 0.9, dose, 1 - dose)
    frame = pa.table(
        {
            "group": np.array(["a", "b"])[group],
            "dose": np.array(["low", "high"])[dose],
            "weight": generator.random(n),
            "ill": np.array(["no", "yes"])[ill],
        }
    )
    schema = Schema(
        label=Label("ill", "public", classes=("no", "yes")),
        columns=(
            Column("group", "public", "category", categories=("a", "b")),
            Column("dose", "private", "category", categories=("low", "high")),
            Column("weight", "private", "number", bounds=(0.0, 1.0), bins=0),
        ),
    )
    encoder = Encoder.fit(schema, frame)
    table = encoder.encode(frame)
    model = train(
        table, Budget(epsilon=1.0, delta=1e-6), method="gd", noise=noise_source(), encoder=encoder
    )
    return model, table


def test_every_private_column_is_attacked(fitted):
    model, table = fitted
    found = attribute_inference(model, table)
    assert [each.column for each in found] == ["dose", "weight"]
    dose, weight = found
    assert dose.without_model > 0.7  # the label and the group tell most of it
    assert weight.without_model < 0.4
    for each in found:
        assert each.without_model <= each.bound <= 1
        assert each.with_model <= each.bound + 0.05
        assert each.rows == 200


def test_values_that_an_additive_model_tells_are_guessed_with_it():
    """A high dose and a weight make ill together: healthy at that weight means a low dose."""
    generator = np.random.default_rng(6)
    n = 4000
    dose, weight = (generator.random(n) < 0.7).astype(int), generator.integers(0, 2, n)
    ill = dose & weight
    frame = pa.table(
        {
            "dose": np.array(["low", "high"])[dose],
            "weight": weight,
            "other": generator.integers(0, 4, n),
            "ill": np.array(["no", "yes"])[ill],
        }
    )
    schema = Schema(
        label=Label("ill", "private", classes=("no", "yes")),
        columns=(
            Column("dose", "private", "category", categories=("low", "high")),
            Column("weight", "private", "number", bounds=(0, 1)),
            Column("other", "private", "number", bounds=(0, 3)),
        ),
    )
    encoder = Encoder.fit(schema, frame)
    table = encoder.encode(frame)
    model = train(
        table,
        Budget(epsilon=300.0, delta=1e-6),
        method="additive",
        noise=noise_source(),
        encoder=encoder,
    )
    values, _, truth = _candidates(table, table, "dose")
    told = _evidence(lambda rows: log_likelihoods(model, rows), table, "dose", values)
    assert np.mean((told.argmax(axis=1) == truth)[weight == 1]) > 0.95
    # Other rows tell as much to who knows the weight and the label, so the model adds nothing.
    found = {each.column: each for each in attribute_inference(model, table)}
    assert 0.8 < found["dose"].without_model < 0.9
    for each in found.values():
        assert abs(each.with_model - each.without_model) < 0.05


def test_no_attack_with_a_model_of_a_number_passes_the_estimate_of_the_most():
    """Who knows the label, in its own large unit, and the other columns guesses well without it."""
    generator = np.random.default_rng(7)
    n = 1200
    dose, smoker = generator.integers(3, size=n), generator.integers(2, size=n)
    age = generator.random(n)
    cost = 1000 + 400 * dose + 500 * smoker + 800 * age + generator.normal(0, 150, n)
    frame = pa.table(
        {
            "age": age,
            "dose": np.array(["none", "low", "high"])[dose],
            "smoker": np.array(["no", "yes"])[smoker],
            "cost": cost,
        }
    )
    schema = Schema(
        label=Label("cost", "private", bounds=(0, 5000)),
        columns=(
            Column("age", "public", "number", bounds=(0, 1)),
            Column("dose", "private", "category", categories=("none", "low", "high")),
            Column("smoker", "private", "category", categories=("no", "yes")),
        ),
    )
    encoder = Encoder.fit(schema, frame)
    table = encoder.encode(frame)
    budget = Budget(epsilon=2.0, delta=1e-6)
    model = train(table, budget, method="one-shot", noise=noise_source(0), encoder=encoder)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = attribute_inference(model, table)
    for each in found:
        assert each.without_model > 0.8
        assert each.with_model <= each.bound


def test_a_model_that_remembers_cells_is_caught(fitted, monkeypatch):
    """The guess with a model uses what it says of the attacked row itself."""
    model, table = fitted

    def cells(rows):
        dose, weight = _column(rows, "dose"), _column(rows, "weight")
        return weight.numbers, dose.codes

    kept = dict(zip(*cells(table), strict=True))

    def remembered(_, rows):
        same = [kept[number] == code for number, code in zip(*cells(rows), strict=True)]
        return np.where(same, 0.0, -9.0)

    monkeypatch.setattr("halfmask.audit.model_audit.log_likelihoods", remembered)
    (dose,) = attribute_inference(model, replace(table, private_sources=("dose",)))
    assert dose.with_model > 0.99 > dose.bound


def test_the_estimate_allows_for_few_rows(fitted):
    model, table = fitted
    few = attribute_inference(model, take(table, np.arange(40)))[1]
    assert few.rows == 20
    assert few.bound > few.without_model + 0.05


def test_the_figure_names_every_column(fitted, tmp_path):
    path = tmp_path / FIGURE_FILE
    names = ["age", "cost_in_$", "x<y"]
    shares = {"without_model": 0.5, "with_model": 0.6, "bound": 0.7}
    inferences = tuple(Inference(column=name, **shares, rows=10) for name in names)
    assert _drawn(inferences, tmp_path) == FIGURE_FILE
    assert path.stat().st_size > 1000
    assert path.read_text(encoding="utf-8").startswith("<?xml")
