"""Public weights of rows: they scale what a row adds, and the heaviest row decides the noise."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.tree import DecisionTreeClassifier
from tests.audit.replays import assert_within_charge, corner_pairs, neighbour_pairs

from halfmask import HalfmaskClassifier, HalfmaskRegressor
from halfmask.accounting.budget import Budget
from halfmask.accounting.ledger import MemoryLedger
from halfmask.audit import record
from halfmask.errors import InputError
from halfmask.mechanisms.noise import noise_source
from halfmask.methods import additive
from halfmask.schema import Column, Label, Schema, Unit
from halfmask.table import Encoder
from halfmask.training import train

LOUD = 2000.0


@pytest.mark.parametrize("roles", ["all", "half", "features", "label"])
@given(data=st.data())
@settings(max_examples=25, deadline=None)
def test_no_weighted_neighbour_moves_the_releases_beyond_the_charge(
    roles: str, data: st.DataObject
) -> None:
    pair = data.draw(neighbour_pairs(roles=(roles,), labels=("two", "three", "number")))
    estimator = pair.estimator("additive", epsilon=data.draw(st.sampled_from([1.0, LOUD])))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    rows = pair.frame.shape[0]
    weights = rng.choice([0.0, 1e-3, 1.0, 7.5, 1e6], rows)
    if data.draw(st.booleans()):
        weights = rng.exponential(size=rows)
    weights[0] = weights[0] or 1.0
    # A label that is public and missing takes its row away; one row at least has to count.
    if pair.schema.label.role == "public":
        weights = weights + 1e-6
    assert_within_charge(
        estimator, pair.frame, pair.neighbour, replaced=pair.replaced, sample_weight=weights
    )


@pytest.mark.parametrize("unit", [False, True])
@pytest.mark.parametrize("label", ["two", "number"])
def test_the_heaviest_row_reaches_a_good_part_of_the_charge(label: str, unit: bool) -> None:
    """And none passes it: weights that were not scaled down would."""
    assert max(_shares("all", label, unit)) > 0.1


def _shares(roles: str, label: str, unit: bool) -> list[float]:
    shares = []
    for pair in list(corner_pairs(roles, label, unit=unit))[::5]:
        frame = pd.concat([pair.frame, *[pair.frame.iloc[2:]] * 6], ignore_index=True)
        other = pd.concat([pair.neighbour, *[pair.frame.iloc[2:]] * 6], ignore_index=True)
        if unit:
            frame["id"] = other["id"] = [f"p{row // 2}" for row in range(len(frame))]
        weights = np.where(np.arange(len(frame)) < 2, 40.0, 1.0)
        estimator = pair.estimator("additive", epsilon=LOUD)
        share = assert_within_charge(estimator, frame, other, replaced=0, sample_weight=weights)
        shares.append(share)
    return shares


def test_weights_that_are_not_scaled_down_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    real = additive.row_weights

    def careless(
        table: Any, relation: Any, mu: float, given: Any, shards: Any, **stage: Any
    ) -> Any:
        weights, most, _ = real(table, relation, mu, **stage)
        return weights * given, most, float((weights * given).sum())

    monkeypatch.setattr(additive, "row_weights", careless)
    with pytest.raises(AssertionError, match="was charged"):
        _shares("all", "two", False)


def people(rows: int = 3_000, seed: int = 1) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    dose, age = rng.uniform(0, 10, rows), rng.integers(0, 100, rows)
    sick = rng.random(rows) < 1 / (1 + np.exp(4 - dose * 0.8))
    return pd.DataFrame({"age": age, "dose": dose, "sick": np.where(sick, "yes", "no")})


def schema(*, label: str = "private", unit: bool = False) -> Schema:
    role: Any = label
    return Schema(
        Label("sick", role, classes=("no", "yes")),
        (
            Column("age", "public", "number", bounds=(0, 100)),
            Column("dose", "private", "number", bounds=(0, 10)),
        ),
        Unit(column="id", max_rows=2) if unit else None,
    )


@pytest.mark.parametrize("label", ["private", "public"])
def test_a_weight_of_zero_is_a_row_that_does_not_count(label: str) -> None:
    """Released values are those of the other rows; the scale of weights does not matter."""
    frame = people().assign(age=50)
    estimator = HalfmaskClassifier(schema(label=label), epsilon=4.0, unsafe_seed=1)
    kept = np.arange(len(frame)) % 3 != 0
    halves = record(estimator, frame, sample_weight=np.where(kept, 8.0, 0.0))
    alone = record(estimator, frame[kept])
    assert len(halves.releases) == len(alone.releases)
    counts = [each for each in zip(halves.releases, alone.releases, strict=True)]
    first, second = counts[0]
    np.testing.assert_allclose(first.value, second.value)
    assert first.noise_std == pytest.approx(second.noise_std)


def test_weights_that_are_all_the_same_change_nothing() -> None:
    frame = people()
    scores = [
        HalfmaskClassifier(schema(), epsilon=2.0, unsafe_seed=1)
        .fit(frame, sample_weight=weights)
        .decision_function(frame)
        for weights in (None, np.full(len(frame), 3.0), 2.0)
    ]
    np.testing.assert_array_equal(scores[0], scores[1])
    np.testing.assert_array_equal(scores[0], scores[2])


@pytest.mark.parametrize("label", ["private", "public"])
def test_heavier_rows_draw_the_model_to_their_side(label: str) -> None:
    frame = people(8_000)
    heavy = np.where(frame["sick"] == "yes", 4.0, 1.0)  # for the test; a private label is no weight
    plain = HalfmaskClassifier(schema(label=label), epsilon=4.0, unsafe_seed=1).fit(frame)
    drawn = HalfmaskClassifier(schema(label=label), epsilon=4.0, unsafe_seed=1)
    drawn.fit(frame, sample_weight=heavy)
    chance = [model.predict_proba(frame)[:, 1].mean() for model in (plain, drawn)]
    true = 1 / (1 + np.exp(4 - 0.8 * frame["dose"]))
    assert chance[0] == pytest.approx(float(true.mean()), abs=0.03)
    expected = float((4 * true / (4 * true + 1 - true)).mean())
    assert chance[1] == pytest.approx(expected, abs=0.06)
    assert any("given as public" in note for note in drawn.privacy_.notes)
    assert not any("given as public" in note for note in plain.privacy_.notes)


def test_weights_follow_their_rows_where_units_drop_some_and_labels_are_missing() -> None:
    frame = people(900)
    frame["id"] = np.arange(900) // 3  # the third row of each is dropped
    weights = np.where(np.arange(900) % 3 == 2, 1e9, 1.0 + np.arange(900) % 2)
    model = HalfmaskClassifier(schema(unit=True), epsilon=4.0, unsafe_seed=1)
    told = record(model, frame, sample_weight=weights)
    kept = frame[frame.index % 3 != 2]
    again = record(model, kept, sample_weight=weights[kept.index])
    np.testing.assert_array_equal(told.releases[0].value, again.releases[0].value)


@pytest.mark.parametrize(
    ("weights", "words"),
    [
        (np.ones(99), "100 sample_weight, got 99"),
        (np.ones((100, 2)), "1D"),
        (np.where(np.arange(100) == 7, -1.0, 1.0), "row 8"),
        (np.where(np.arange(100) == 3, np.nan, 1.0), "row 4"),
        (np.where(np.arange(100) == 3, np.inf, 1.0), "row 4"),
        (np.zeros(100), "at least one row"),
        (["a"] * 100, "numbers"),
    ],
)
def test_bad_weights_are_refused_before_anything_is_charged(weights: Any, words: str) -> None:
    ledger = MemoryLedger(epsilon=1.0, delta=1e-6, relation="replace")
    with pytest.raises(InputError, match=words):
        HalfmaskClassifier(schema(), ledger=ledger).fit(people(100), sample_weight=weights)
    assert ledger.events() == ()


def test_a_method_that_has_no_weights_says_so() -> None:
    with pytest.raises(InputError, match="'gd' takes no sample_weight"):
        HalfmaskClassifier(schema(), method="gd").fit(people(100), sample_weight=np.arange(100.0))


def test_weights_reach_a_free_model_of_the_users() -> None:
    frame = people()
    weights = 1.0 + (frame["age"] > 50)
    model = HalfmaskClassifier(
        schema(label="public"), public_model=DecisionTreeClassifier(max_depth=2), unsafe_seed=1
    )
    first = model.fit(frame, sample_weight=weights).decision_function(frame)
    second = model.fit(frame).decision_function(frame)
    assert not np.array_equal(first, second)


def test_numbers_take_weights_too() -> None:
    frame = people(4_000)
    declared = Schema(
        Label("dose", "private", bounds=(0, 10)), (Column("age", "public", "number"),)
    )
    weights = np.where(frame["dose"] > 5, 3.0, 1.0)  # for the test
    model = HalfmaskRegressor(declared, epsilon=4.0, unsafe_seed=1)
    model.fit(frame, sample_weight=weights)
    expected = float(np.average(frame["dose"], weights=weights))
    assert float(model.predict(frame).mean()) == pytest.approx(expected, abs=0.3)


def test_weights_of_rows_on_several_machines_are_refused() -> None:
    """Each machine would take the heaviest of its own rows for the heaviest of all."""
    encoder = Encoder.fit(schema(), people(50))
    table = encoder.encode(people(50))
    with pytest.raises(InputError, match="sample_weight needs all rows on one machine"):
        train(
            table,
            Budget(epsilon=1.0, delta=1e-6),
            method="additive",
            noise=noise_source(),
            ranks=cast(Any, object()),
            sample_weight=np.arange(50.0),
        )
