"""`additive` for three classes and more: within its charge, calibrated, never below the shares."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import softmax
from tests.audit.replays import Pair, assert_within_charge, corner_pairs, neighbour_pairs

from halfmask import HalfmaskClassifier
from halfmask.audit import ReplayError
from halfmask.methods import additive_classes
from halfmask.methods.additive_classes import (
    class_moves,
    comparison_class_moves,
    errors,
    longest_slope,
)
from halfmask.model import Model
from halfmask.schema import Column, Label, Schema, Unit

LOUD = 2000.0
ROLES = ("all", "half", "features", "label")


@pytest.mark.parametrize("roles", ROLES)
@given(data=st.data())
@settings(max_examples=15, deadline=None)
def test_no_neighbour_moves_the_releases_beyond_the_charge(roles: str, data: st.DataObject) -> None:
    pair = data.draw(neighbour_pairs(roles=(roles,), labels=("three",)))
    epsilon = data.draw(st.sampled_from([1.0, LOUD]))
    estimator = pair.estimator("additive", epsilon=epsilon)
    assert_within_charge(estimator, pair.frame, pair.neighbour, replaced=pair.replaced)


@pytest.mark.parametrize("roles", ROLES)
def test_far_neighbours_stay_within_the_charge(roles: str) -> None:
    shares = []
    pairs = list(corner_pairs(roles, "three"))
    for pair in pairs[len(pairs) // 2 - 1 :: -7] + pairs[::-9]:
        repeated = _longer(pair)
        estimator = repeated.estimator("additive", epsilon=LOUD)
        shares.append(
            assert_within_charge(estimator, repeated.frame, repeated.neighbour, replaced=0)
        )
    assert max(shares) > 0.1


def _longer(pair: Pair) -> Pair:
    """The same neighbours with rows enough for every stage."""
    frame = pd.concat([pair.frame, *[pair.frame.iloc[1:]] * 5], ignore_index=True)
    neighbour = pd.concat([pair.neighbour, *[pair.frame.iloc[1:]] * 5], ignore_index=True)
    return Pair(schema=pair.schema, frame=frame, neighbour=neighbour, replaced=pair.replaced)


chances = st.integers(2, 12).flatmap(
    lambda k: st.tuples(*[st.lists(st.floats(0, 1), min_size=k, max_size=k) for _ in range(2)])
)


@given(given_chances=chances, data=st.data())
@settings(max_examples=300)
def test_no_two_slopes_are_further_apart_than_proven(
    given_chances: tuple[list[float], list[float]], data: st.DataObject
) -> None:
    classes = len(given_chances[0])
    labels = [data.draw(st.integers(0, classes - 1)) for _ in range(2)]
    slopes = []
    for numbers, label in zip(given_chances, labels, strict=True):
        # Corners as well as anything between: powers make some chances nearly 0 or 1.
        chance = (np.array(numbers) + 1e-9) ** data.draw(st.sampled_from([0, 1, 20]))
        chance = (chance / chance.sum())[:, None]
        slopes.append(errors(chance, np.array([label]))[:, 0])
        assert np.linalg.norm(slopes[-1]) <= longest_slope(classes) + 1e-9
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    rows = rng.normal(size=(2, 3))
    radius = float(np.linalg.norm(rows, axis=1).max())
    diameter = float(np.linalg.norm(rows[0] - rows[1]))
    for rows_at in (rows, rows[[0, 0]]):
        moved = np.linalg.norm(np.outer(slopes[0], rows_at[0]) - np.outer(slopes[1], rows_at[1]))
        both = class_moves(classes, radius, diameter, label_private=True)[0]
        assert moved <= both * (1 + 1e-9)
        if labels[0] == labels[1]:
            one = class_moves(classes, radius, diameter, label_private=False)[0]
            assert moved <= one * (1 + 1e-9)


@pytest.mark.parametrize("classes", [3, 5, 14, 100])
def test_slopes_come_near_the_bound(classes: int) -> None:
    """A row that is sure of a wrong class, and one that holds all but its own for possible."""
    sure, unsure = np.zeros((classes, 1)), np.full((classes, 1), 1 / (classes - 1))
    sure[0], unsure[0] = 1.0, 0.0
    apart = errors(sure, np.array([1])) - errors(unsure, np.array([0]))
    found = np.linalg.norm(apart) / class_moves(classes, 1.0, 0.0, label_private=True)[0]
    assert found > 0.97


@given(
    classes=st.integers(3, 6), size=st.sampled_from([0.1, 2.0, 20.0]), seed=st.integers(0, 10**6)
)
@settings(max_examples=200, deadline=None)
def test_no_row_moves_the_comparison_further_than_proven(
    classes: int, size: float, seed: int
) -> None:
    """Rows drawn at random, some of which are as sure as can be."""
    rng, short = np.random.default_rng(seed), 0.5
    units, (replaced, withheld) = comparison_class_moves(classes, short)
    centre = size * rng.normal(size=(classes, 1))

    def row() -> np.ndarray:
        extra, known = size * rng.normal(size=(2, classes, 1))
        label = rng.integers(0, classes, 1)
        error, alone = (errors(softmax(s, axis=0), label) for s in (known + extra, known))
        g = extra - centre
        g = g - g.mean()
        g = g * min(1.0, short / np.linalg.norm(g))
        by_score = [float(np.sum(each * g)) for each in (error, alone)]
        return np.concatenate([error[:, 0] / units[0], np.array(by_score) / units[1:]])

    first, second = row(), row()
    assert np.linalg.norm(first - second) <= replaced * (1 + 1e-9)
    assert np.linalg.norm(first) <= withheld * (1 + 1e-9)
    assert withheld < 0.54


def test_slopes_vanish_where_the_chances_are_right() -> None:
    rng = np.random.default_rng(0)
    for chance in rng.dirichlet([0.3, 1, 2, 3], 50):
        expected = sum(p * errors(chance[:, None], np.array([k])) for k, p in enumerate(chance))
        assert np.abs(expected).max() < 1e-12


@pytest.mark.parametrize("mutation", ["a smaller move", "no weight", "shares free"])
def test_mistakes_are_caught_by_a_replay(mutation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real = class_moves
    if mutation == "a smaller move":
        monkeypatch.setattr(
            additive_classes,
            "class_moves",
            lambda *given, **named: tuple(0.3 * move for move in real(*given, **named)),
        )
    elif mutation == "no weight":
        monkeypatch.setattr(
            additive_classes, "slope_weight", lambda chances: np.full(chances.shape[1:], 20.0)
        )
    else:

        def shares(self: Any) -> np.ndarray:
            counts = np.bincount(self._class, minlength=self._classes) + 0.5
            self._unclear = 0.0
            return counts / counts.sum()

        monkeypatch.setattr(additive_classes.ClassesRun, "_class_shares", shares)
    with pytest.raises((AssertionError, ReplayError)):
        _try_all_corners()


def _try_all_corners() -> None:
    for pair in corner_pairs("all", "three"):
        repeated = _longer(pair)
        estimator = repeated.estimator("additive", epsilon=LOUD)
        assert_within_charge(estimator, repeated.frame, repeated.neighbour, replaced=0)


# --- what is learnt

CLASSES = ("none", "some", "much", "rare")


def _people(rows: int, seed: int) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    age, pay = rng.uniform(18, 90, rows), rng.exponential(2000.0, rows)
    kind = rng.choice(["a", "b", "c"], rows)
    town = rng.choice(["north", "south"], rows)
    scores = np.stack(
        [
            np.zeros(rows),
            0.04 * (age - 50) + 0.8 * (kind == "a"),
            0.9 * (pay > 3000) - 0.7 * (town == "north"),
            -4.0 + 2.5 * (kind == "c"),
        ]
    )
    noisy = scores + rng.gumbel(size=scores.shape)
    label = np.array(CLASSES, dtype=object)[noisy.argmax(axis=0)]
    return pd.DataFrame({"age": age, "pay": pay, "kind": kind, "town": town, "y": label})


def _schema(private: tuple[str, ...], label: Any = "private") -> Schema:
    declared: dict[str, dict[str, Any]] = {
        "age": {"kind": "number", "bounds": (0, 120)},
        "pay": {"kind": "number", "bounds": (0, 100_000)},
        "kind": {"kind": "category", "categories": ("a", "b", "c")},
        "town": {"kind": "category", "categories": ("north", "south")},
    }
    return Schema(
        Label("y", label, classes=CLASSES),
        tuple(
            Column(name, "private" if name in private else "public", **each)
            for name, each in declared.items()
        ),
    )


def _explained(model: Any, test: pd.DataFrame) -> float:
    chance = model.predict_proba(test)
    places = [list(model.classes_).index(value) for value in test["y"]]
    own = np.maximum(chance[np.arange(len(test)), places], 1e-9)
    rates = test["y"].value_counts(normalize=True).to_numpy()
    return float(1 + np.mean(np.log(own)) / -(rates @ np.log(rates)))


ALL = ("age", "pay", "kind", "town")


@pytest.mark.parametrize(
    ("private", "label"),
    [
        (ALL, "private"),
        (("pay", "kind"), "private"),
        ((), "private"),
        (("pay", "kind"), "public"),
        (ALL, "public"),
    ],
)
def test_every_set_of_roles_is_learnt_and_calibrated_by_class(
    private: tuple[str, ...], label: str
) -> None:
    train, test = _people(20_000, 1), _people(20_000, 2)
    schema = _schema(private, label)
    model = HalfmaskClassifier(schema, epsilon=1.0, delta=1e-6, unsafe_seed=3).fit(train)
    assert model.method_ == "additive"
    # The true chances explain 0.127.
    assert _explained(model, test) > 0.1
    chance = model.predict_proba(test)
    for place, name in enumerate(model.classes_):
        own, true = chance[:, place], (test["y"] == name).to_numpy()
        gaps = [
            abs(own[rows].mean() - true[rows].mean())
            for rows in np.array_split(np.argsort(own), 10)
        ]
        assert np.mean(gaps) < 0.03
    covered = model.model_.details["covered"]
    held_out = -np.mean(
        np.log(chance[np.arange(len(test)), [list(model.classes_).index(v) for v in test["y"]]])
    )
    assert abs(covered["log_loss"] - held_out) < covered["log_loss_bar"]
    right = np.mean(model.predict(test) == test["y"])
    assert abs(covered["accuracy"] - right) < covered["accuracy_bar"]


def test_loud_noise_leaves_the_shares() -> None:
    model = HalfmaskClassifier(_schema(ALL), epsilon=0.01, delta=1e-6, unsafe_seed=1)
    train, test = _people(2_000, 1), _people(5_000, 2)
    assert _explained(model.fit(train), test) > -0.3
    assert np.ptp(model.predict_proba(test), axis=0).max() < 1e-9


def test_classes_too_rare_to_tell_share_a_score() -> None:
    many = tuple(f"c{place}" for place in range(30))
    rng = np.random.default_rng(0)
    place = np.where(rng.random(8_000) < 0.98, rng.integers(0, 2, 8_000), rng.integers(2, 30, 8000))
    frame = pd.DataFrame(
        {"x": rng.normal(size=8_000) + place.clip(0, 2), "y": np.array(many)[place]}
    )
    schema = Schema(
        Label("y", "private", classes=many),
        (Column("x", "private", kind="number", bounds=(-3, 5)),),
    )
    model = HalfmaskClassifier(schema, epsilon=1.0, delta=1e-6, unsafe_seed=2).fit(frame)
    assert model.model_.details["pooled_classes"] == 28
    chance = model.predict_proba(frame)
    rare = [list(model.classes_).index(name) for name in many[2:]]
    ratio = chance[:, rare] / chance[:, rare].sum(axis=1, keepdims=True)
    assert np.ptp(ratio, axis=0).max() < 1e-12
    assert math.isclose(chance[:, rare].sum(axis=1).mean(), 0.02, abs_tol=0.02)


@pytest.mark.parametrize("label", ["private", "public"])
def test_a_stored_model_predicts_the_same(label: str, tmp_path: Any) -> None:
    train = _people(4_000, 1)
    schema = _schema(("age", "kind"), label)
    model = HalfmaskClassifier(schema, epsilon=2.0, delta=1e-6, unsafe_seed=3).fit(train)
    model.model_.save(tmp_path / "m")
    table = model.model_.encoder.encode(train)
    again = Model.load(tmp_path / "m")
    assert np.array_equal(again.probabilities(table), model.model_.probabilities(table))


def test_private_columns_that_tell_nothing_leave_the_shares() -> None:
    """Loud noise, many classes and levels: a score that noise has made is told apart and given up.

    It was not, as long as its slope followed from the curvature where the score ends, with the mean
    of the score in it: 0.016 of log loss above the shares on average, 0.05 in two of these draws.
    """
    rng, rows, levels = np.random.default_rng(5), 20_000, tuple(range(40))
    shares = np.array([13, 12, 12, 12, 12, 11, 11, 5, 4, 3, 2, 2, 1]) / 100
    label = rng.choice(len(shares), rows, p=shares)
    frame = pd.DataFrame({"kind": [f"k{k}" for k in label]})
    for place in range(6):
        frame[f"noise{place}"] = rng.integers(0, len(levels), rows)
    schema = Schema(
        Label("kind", "public", classes=tuple(f"k{k}" for k in range(len(shares)))),
        tuple(
            Column(f"noise{place}", "private", "category", categories=levels) for place in range(6)
        ),
    )
    best = -np.mean(np.log((np.bincount(label) / rows)[label]))
    worse = []
    for seed in range(6):
        model = HalfmaskClassifier(schema, epsilon=0.1, delta=1e-6, unsafe_seed=seed).fit(frame)
        chances = model.predict_proba(frame)[np.arange(rows), label]
        worse.append(-np.mean(np.log(chances)) - best)
    assert np.mean(worse) < 0.002
    assert max(worse) < 0.01


def test_people_with_many_rows_leave_a_model_of_private_columns_calibrated() -> None:
    """Steps weigh people, so that these do not cost noise; shares of classes are those of rows."""
    rng = np.random.default_rng(4)
    sizes = rng.choice([1, 2, 12], 9000, p=[0.6, 0.25, 0.15])
    rows = np.repeat(sizes, sizes)
    dose = rng.uniform(0, 10, len(rows)) + 2 * (rows > 2)
    score = 0.25 * dose + 1.2 * (rows > 2) - 2 + rng.logistic(size=len(rows))
    frame = pd.DataFrame({"dose": dose, "y": np.array(["p", "q", "r"])[np.digitize(score, [0, 2])]})
    frame["id"] = np.repeat(np.arange(len(sizes)), sizes).astype(str)
    schema = Schema(
        label=Label("y", "private", classes=("p", "q", "r")),
        columns=(Column("dose", "private", "number", bounds=(0.0, 12.0)),),
        unit=Unit(column="id", max_rows=12),
    )
    model = HalfmaskClassifier(schema, epsilon=2.0)
    means = []
    for seed in range(8):
        model.set_params(unsafe_seed=seed).fit(frame)
        means.append(model.predict_proba(frame).mean(axis=0))
    told = [np.mean(frame["y"] == each) for each in model.classes_]
    assert np.mean(means, axis=0) == pytest.approx(told, abs=0.02)


@pytest.mark.parametrize(
    ("side", "label", "epsilon", "most"),
    [
        ("private", "private", 0.1, 0.13),
        ("public", "private", 0.1, 0.13),
        ("public", "public", 0.3, -0.0015),
    ],
)
def test_what_noise_moved_classes_by_is_taken_back(
    side: str, label: str, epsilon: float, most: float
) -> None:
    """Shares of classes are released, and a free model is right on average of each.

    Noise of private columns moved scores of whole classes: log loss above that of what the side
    tells was 0.141, 0.158 and −0.001.
    """
    rng, rows, kinds, sides = np.random.default_rng(6), 15_000, 14, ("left", "right")
    at = rng.integers(0, 2, rows)
    shares = np.array([0.75 ** np.arange(kinds), np.roll(0.75 ** np.arange(kinds), 3)])
    shares /= shares.sum(axis=1)[:, None]
    kind = (rng.random(rows)[:, None] > np.cumsum(shares[at], axis=1)).sum(axis=1)
    frame = pd.DataFrame({"kind": kind, "side": np.array(sides)[at]})
    for place in range(10):
        rate = np.where(kind % 3 == place % 3, 0.12, 0.08)
        frame[f"seldom{place}"] = (rng.random(rows) < rate).astype(int)
    columns = [
        Column(f"seldom{place}", "private", "category", categories=(0, 1)) for place in range(10)
    ]
    columns.append(Column("side", side, "category", categories=sides))
    schema = Schema(Label("kind", label, classes=tuple(range(kinds))), tuple(columns))
    worse = []
    for seed in range(6):
        model = HalfmaskClassifier(schema, epsilon=epsilon, delta=1e-6, unsafe_seed=seed).fit(frame)
        chances = model.predict_proba(frame)[np.arange(rows), kind]
        worse.append(np.mean(np.log(shares[at, kind])) - np.mean(np.log(chances)))
    assert np.mean(worse) < most
