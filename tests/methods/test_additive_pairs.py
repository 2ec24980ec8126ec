"""Pairs of columns in `additive`: within their charge, found where they are, at little cost."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score
from tests.audit.replays import Pair, assert_within_charge, corner_pairs, neighbour_pairs

from halfmask import HalfmaskClassifier, HalfmaskRegressor
from halfmask.audit import ReplayError
from halfmask.effects import explain
from halfmask.methods import additive, additive_pairs, public_sums
from halfmask.methods.additive import AdditivePlan
from halfmask.methods.additive_pairs import candidates, pair_count
from halfmask.model import Model
from halfmask.schema import Column, Label, Schema

LOUD = 2000.0
ROLES = ("all", "half", "features", "label")


@contextmanager
def always_pairs() -> Iterator[pytest.MonkeyPatch]:
    """Pairs are looked for on any table, those of public columns too; some are always chosen."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(additive, "_PAIRS_FROM", 0.0)
        patch.setattr(additive_pairs, "_CLEAR", -math.inf)
        patch.setattr(additive, "_PRODUCTS_FROM", 0.0)
        patch.setattr(public_sums, "_CLEAR", 0.0)
        yield patch


@pytest.mark.parametrize("roles", ROLES)
@given(data=st.data())
@settings(max_examples=6, deadline=None)
def test_no_neighbour_moves_the_releases_beyond_the_charge(roles: str, data: st.DataObject) -> None:
    pair = data.draw(neighbour_pairs(roles=(roles,), labels=("two", "number")))
    estimator = pair.estimator("additive", epsilon=LOUD)
    with always_pairs():
        assert_within_charge(estimator, pair.frame, pair.neighbour, replaced=pair.replaced)


@given(pair=neighbour_pairs(roles=("all", "half"), labels=("two", "number"), withheld=True))
@settings(max_examples=6, deadline=None)
def test_a_withheld_label_moves_the_releases_within_the_charge(pair: Pair) -> None:
    estimator = pair.estimator("additive", epsilon=LOUD, relation="withhold")
    with always_pairs():
        assert_within_charge(estimator, pair.frame, pair.neighbour, replaced=pair.replaced)


@pytest.mark.parametrize("label", ["two", "number"])
@pytest.mark.parametrize("roles", ROLES)
def test_far_neighbours_stay_within_the_charge(roles: str, label: str) -> None:
    pairs, shares = list(corner_pairs(roles, label)), []
    with always_pairs():
        for pair in pairs[len(pairs) // 2 - 1 :: -25] + pairs[::-29]:
            estimator = (longer := _longer(pair)).estimator("additive", epsilon=LOUD)
            shares.append(
                assert_within_charge(estimator, longer.frame, longer.neighbour, replaced=0)
            )
    assert max(shares) > 0.1


def _longer(pair: Pair) -> Pair:
    frames = [
        pd.concat([first, *[pair.frame.iloc[1:]] * 5], ignore_index=True)
        for first in (pair.frame, pair.neighbour)
    ]
    return replace(pair, frame=frames[0], neighbour=frames[1])


@pytest.mark.parametrize("mutation", ["exact counts", "chosen by exact sums", "a shorter row"])
def test_mistakes_are_caught_by_a_replay(mutation: str) -> None:
    with always_pairs() as patch:
        if mutation == "exact counts":
            real = additive_pairs.PairSearch._counted

            def counted(self: Any, chosen: Any, sums: Any) -> Any:
                features = real(self, chosen, sums)
                exact = sums.sums(self.weights)
                pairs = zip(features, exact, strict=True)
                return [replace(f, share=(own + 1) / (own + 1).sum()) for f, own in pairs]

            patch.setattr(additive_pairs.PairSearch, "_counted", counted)
        elif mutation == "chosen by exact sums":

            def likelier(self: Any) -> Any:
                self._worth.release(np.zeros(1), (1.0, 1.0))
                slopes = self._slopes(0.5, 0.5, self._start)
                sums, _ = self._sums.sums_at([], slopes)
                return np.array([np.abs(own).max() for own in sums])

            patch.setattr(additive_pairs._Finder, "likelier", likelier)
        else:
            patch.setattr(additive_pairs._Finder, "_lengths", lambda self, factors: (0.3, 0.3))
        with pytest.raises((AssertionError, ReplayError)):
            _try_all_corners()


def _try_all_corners() -> None:
    for pair in corner_pairs("all", "two"):
        estimator = (longer := _longer(pair)).estimator("additive", epsilon=LOUD)
        assert_within_charge(estimator, longer.frame, longer.neighbour, replaced=0)


@given(
    rows=st.floats(1, 1e9),
    private=st.integers(0, 100),
    public=st.integers(0, 100),
    label_private=st.booleans(),
    number=st.booleans(),
    mu=st.floats(1e-3, 1e3),
)
def test_pairs_are_planned_only_where_noise_lets_them_be_heard(
    rows: float, private: int, public: int, label_private: bool, number: bool, mu: float
) -> None:
    if not (label_private or private):
        return
    facts: dict[str, Any] = {
        "rows": rows,
        "private_columns": private,
        "public_columns": public,
        "label_private": label_private,
        "number": number,
        "mu": mu,
    }
    plan = AdditivePlan.of(**facts)
    count = pair_count(private, public, label_private=label_private)
    hidden = [True] * private + [False] * public
    assert count == len(candidates(hidden, label_private=label_private))
    heard = count and count <= 2000 and mu * rows >= 6000 * math.sqrt(count)
    assert (plan.pairs > 0) == (plan.pair_descent > 0) == bool(heard and plan.steps)
    several = AdditivePlan.of(**facts, several=True)
    assert several.pairs == several.pair_descent == several.pair_looks == 0
    # Products of public columns take part in some of the releases that there are.
    assert plan.pair_looks in (0, plan.looks // 2)
    assert not plan.pair_looks or (label_private and public > 1 and plan.public > 0)
    if not heard:
        # Several classes have no products of public columns either.
        assert plan == replace(several, looks=plan.looks, pair_looks=plan.pair_looks)
    elif plan.steps and private:
        assert plan.descent >= 0.79 * several.descent


def _people(rows: int, seed: int, *, number: bool = False, product: float = 1.5) -> pd.DataFrame:
    """The label depends on a product of two columns, which tell nothing one by one."""
    rng = np.random.default_rng(seed)
    one, two, three = rng.normal(size=(3, rows))
    kind = rng.choice(list("abc"), rows)
    score = product * one * two + 0.6 * three + 0.5 * (kind == "a") - 0.8
    y: Any = np.where(rng.random(rows) < 1 / (1 + np.exp(-score)), "yes", "no")
    if number:
        y = np.clip(score + rng.normal(size=rows), -6, 6)
    return pd.DataFrame({"one": one, "two": two, "three": three, "kind": kind, "y": y})


def _schema(
    public: tuple[str, ...] = (), *, label: str = "private", number: bool = False
) -> Schema:
    role: Any = label
    target: dict[str, Any] = {"bounds": (-6, 6)} if number else {"classes": ("no", "yes")}
    kinds: dict[str, dict[str, Any]] = {
        name: {"kind": "number", "bounds": (-4, 4)} for name in ("one", "two", "three")
    }
    kinds["kind"] = {"kind": "category", "categories": tuple("abc")}
    columns = [
        Column(name, "public" if name in public else "private", **kind)
        for name, kind in kinds.items()
    ]
    return Schema(Label("y", role, **target), tuple(columns))


def _auc(model: Any, test: pd.DataFrame) -> float:
    return float(roc_auc_score(test["y"] == "yes", model.predict_proba(test)[:, 1]))


ASKED = {"epsilon": 4.0, "delta": 1e-6, "unsafe_seed": 3, "method": "additive"}


@pytest.mark.parametrize(
    ("public", "label"),
    [((), "private"), (("one", "three"), "private"), (("one", "kind"), "public")],
)
def test_a_product_of_two_columns_is_learnt(public: tuple[str, ...], label: str) -> None:
    train, test = _people(20_000, 1), _people(10_000, 2)
    model = HalfmaskClassifier(_schema(public, label=label), **ASKED).fit(train)
    assert ["two", "one"] in model.model_.details["pairs"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(additive, "_PAIRS_FROM", math.inf)
        alone = HalfmaskClassifier(_schema(public, label=label), **ASKED).fit(train)
    assert _auc(model, test) > _auc(alone, test) + 0.08
    yes = (test["y"] == "yes").to_numpy()
    chance = model.predict_proba(test)[:, 1]
    parts = np.array_split(np.argsort(chance), 10)
    assert np.mean([abs(chance[part].mean() - yes[part].mean()) for part in parts]) < 0.03
    covered = model.model_.details["covered"]
    assert abs(covered["auc"] - _auc(model, test)) < 0.03


def test_a_product_is_learnt_for_numbers() -> None:
    train, test = _people(20_000, 1, number=True), _people(5_000, 2, number=True)
    model = HalfmaskRegressor(_schema(number=True), **ASKED).fit(train)
    assert ["two", "one"] in model.model_.details["pairs"]
    assert model.score(test) > 0.55


def test_a_table_without_interactions_loses_nearly_nothing() -> None:
    train, test = _people(20_000, 1, product=0.0), _people(20_000, 2, product=0.0)
    found = []
    for least in (6000.0, math.inf):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(additive, "_PAIRS_FROM", least)
            found.append(_auc(HalfmaskClassifier(_schema(), **ASKED).fit(train), test))
    assert found[0] > found[1] - 0.002


def test_a_table_whose_columns_but_one_are_constant_has_no_pairs() -> None:
    frame = pd.DataFrame(
        {
            "day": ["2000-01-01"] * 14,
            "kind": ["a", "b", "c", None, "a", "b", "c"] * 2,
            "y": ["yes", "no"] * 7,
        }
    )
    columns = (Column("day", "public", kind="date"), Column("kind", "public", kind="category"))
    schema = Schema(Label("y", "private", classes=("no", "yes")), columns)
    model = HalfmaskClassifier(schema, epsilon=1e5, delta=1e-6, method="additive").fit(frame)
    assert model.model_.details["plan"]["pairs"] > 0
    assert model.model_.details["pairs"] == []


def test_a_stored_model_and_an_explanation_know_the_pairs(tmp_path: Any) -> None:
    train = _people(20_000, 1)
    model = HalfmaskClassifier(_schema(), **ASKED).fit(train)
    model.model_.save(tmp_path / "model")
    again = Model.load(tmp_path / "model")
    assert np.array_equal(again.scores(again.encode(train))[:, 0], model.decision_function(train))
    told = [explain(again, train[row : row + 1]) for row in range(6)]
    scores = model.decision_function(train[:6])
    for each, score in zip(told, scores, strict=True):
        assert "one and two" in each.added
        assert each.average + sum(each.added.values()) == pytest.approx(score)
    # What an average row gets does not depend on the row that is explained.
    assert np.ptp([each.average for each in told]) < 1e-9
    assert np.ptp([each.added["one and two"] for each in told]) > 0.1


def test_a_damaged_pair_is_refused(tmp_path: Any) -> None:
    model = HalfmaskClassifier(_schema(), **ASKED).fit(_people(20_000, 1)).model_
    arrays = dict(model.arrays())
    common = {"details": {}, "classes": model.classes}
    for name, value in (
        ("pair.0.columns", np.array([1, 9])),
        ("pair.0.first", arrays["pair.0.first"] + 50),
        ("pair.0.weights", arrays["pair.0.weights"] * math.nan),
    ):
        with pytest.raises(ValueError, match="pair"):
            type(model).from_arrays({**arrays, name: value}, **common)


# --- products of public columns under a private label

PUBLIC = ("one", "two", "three", "kind")
ASKED_ONE = {**ASKED, "epsilon": 1.0}


def _bought(rows: int, seed: int, *, number: bool = False) -> pd.DataFrame:
    """The label depends on two columns, and on their product."""
    frame = _people(rows, seed, product=0.0)
    rng = np.random.default_rng(seed + 100)
    score = 0.8 * frame["one"] + 0.8 * frame["two"] + 1.2 * frame["one"] * frame["two"]
    drawn = np.where(rng.random(rows) < 1 / (1 + np.exp(-score)), "yes", "no")
    noisy = np.clip(score + rng.normal(size=rows), -6, 6)
    return frame.assign(y=noisy if number else drawn)


@pytest.mark.parametrize("public", [PUBLIC, ("one", "two")], ids=["label", "half"])
def test_a_product_of_public_columns_is_learnt_under_a_private_label(
    public: tuple[str, ...],
) -> None:
    train, test = _bought(8_000, 1), _bought(8_000, 2)
    model = HalfmaskClassifier(_schema(public), **ASKED_ONE).fit(train)
    assert model.model_.details["plan"]["pairs"] == 0
    assert ["two", "one"] in model.model_.details["public_pairs"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(additive, "_PRODUCTS_FROM", math.inf)
        alone = HalfmaskClassifier(_schema(public), **ASKED_ONE).fit(train)
    assert "public_pairs" not in alone.model_.details
    assert _auc(model, test) > _auc(alone, test) + 0.02


def test_a_product_of_public_columns_is_learnt_for_numbers() -> None:
    train, test = _bought(8_000, 1, number=True), _bought(8_000, 2, number=True)
    model = HalfmaskRegressor(_schema(PUBLIC, number=True), **ASKED_ONE).fit(train)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(additive, "_PRODUCTS_FROM", math.inf)
        alone = HalfmaskRegressor(_schema(PUBLIC, number=True), **ASKED_ONE).fit(train)
    assert model.score(test) > alone.score(test) + 0.1


def test_columns_that_tell_nothing_clear_have_no_products() -> None:
    frame = _people(8_000, 1, product=0.0)
    frame["y"] = np.random.default_rng(0).choice(["yes", "no"], len(frame))
    model = HalfmaskClassifier(_schema(PUBLIC), **ASKED_ONE).fit(frame)
    assert model.model_.details["plan"]["pair_looks"] == 2
    assert "public_pairs" not in model.model_.details


def _told_alike(rows: int, seed: int) -> tuple[pd.DataFrame, Schema]:
    """Public columns of several kinds, no two alike, some cells missing, and labels by chance."""
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "one": rng.normal(size=rows),
            "two": np.where(rng.random(rows) < 0.2, np.nan, rng.normal(size=rows)),
            "kind": rng.choice(list("abcde"), rows),
            "is": rng.random(rows) < 0.3,
            "y": rng.choice(["no", "yes"], rows),
        }
    )
    kinds: dict[str, Any] = {"one": "number", "two": "number", "kind": "category", "is": "bool"}
    columns = tuple(Column(name, "public", kind) for name, kind in kinds.items())
    return frame, Schema(Label("y", "private", classes=("no", "yes")), columns)


def _turn_labels(frame: pd.DataFrame, schema: Schema, rows: range) -> None:
    """The label of one row after the other turns round, and moves no release beyond its charge."""
    for row in rows:
        other = frame.assign(y=frame["y"].where(frame.index != row, _OTHER[frame["y"][row]]))
        asked: dict[str, Any] = {"epsilon": LOUD, "delta": 1e-6, "method": "additive"}
        assert_within_charge(HalfmaskClassifier(schema, **asked), frame, other, replaced=row)


_OTHER = {"no": "yes", "yes": "no"}


@pytest.mark.parametrize("wrong", [False, True])
def test_labels_beside_products_move_their_sums_by_the_length_of_the_longest_row(
    wrong: bool,
) -> None:
    frame, schema = _told_alike(60, 1)
    real, seen = public_sums._Space.look, []

    def look(self: Any, doubt: Any) -> Any:
        found = real(self, doubt)
        parts = [
            feature.vectors[feature.groups[column.codes]]
            for feature, column in zip(self.features, self.columns, strict=True)
        ]
        rows = np.hstack([*parts, np.ones((len(found.weights), 1))]) @ found.turn
        longest = float((found.weights * np.linalg.norm(rows, axis=1)).max())
        assert 0.999 * found.longest < longest <= found.longest
        seen.append(len(self.pairs))
        # Not much too short, as if products were forgotten.
        return replace(found, longest=0.97 * found.longest) if wrong and self.pairs else found

    with always_pairs() as patch:
        patch.setattr(public_sums._Space, "look", look)
        if wrong:
            with pytest.raises(AssertionError, match=r"public features .* moved by"):
                _turn_labels(frame, schema, range(4))
        else:
            _turn_labels(frame, schema, range(4))
    assert {0, 6} == set(seen)


def _copied(part: float, rows: int, seed: int) -> tuple[pd.DataFrame, Schema]:
    """A truth value of which so many rows are true, a copy of it, and a number."""
    rng = np.random.default_rng(seed)
    true = rng.permutation(np.arange(rows) < part * rows)
    number = rng.normal(size=rows)
    score = 2.4 * true + number - 1.2
    y = np.where(rng.random(rows) < 1 / (1 + np.exp(-score)), "yes", "no")
    frame = pd.DataFrame({"is": true, "copy": true, "number": number, "y": y})
    columns = (
        Column("is", "public", "bool"),
        Column("copy", "public", "bool"),
        Column("number", "public", "number"),
    )
    return frame, Schema(Label("y", "private", classes=("no", "yes")), columns)


@pytest.mark.parametrize("part", [0.5, 0.499, 0.4])
def test_levels_that_no_row_has_together_add_nothing_together(part: float) -> None:
    frame, schema = _copied(part, 8_000, 1)
    model = HalfmaskClassifier(schema, **ASKED_ONE).fit(frame)
    asked = pd.DataFrame({"is": [True, False] * 2, "copy": [True, False, False, True]})
    scores = model.decision_function(asked.assign(number=0.0))
    assert model.model_.details["public_pairs"]
    assert scores[1] < scores[2:].min()
    assert scores[2:].max() < scores[0]


@pytest.mark.filterwarnings("error")
def test_a_product_that_is_the_same_for_all_rows_is_left_out() -> None:
    frame, schema = _copied(0.5, 8_000, 1)
    schema = Schema(schema.label, schema.columns[:2])
    model = HalfmaskClassifier(schema, **ASKED_ONE).fit(frame.drop(columns="number"))
    assert model.model_.details["plan"]["pair_looks"] > 0
    assert "public_pairs" not in model.model_.details


def test_hardly_any_rows_with_products_and_hardly_any_noise_make_a_model() -> None:
    frame = pd.DataFrame(
        {"number": [-2.449067, -0.133475, 1.277121, -0.068545], "kind": list("igee")}
    ).assign(one="z", two="z", y=["yes"] * 3 + ["no"])
    columns = (
        Column("number", "public", "number"),
        Column("kind", "public", "category"),
        Column("one", "private", "category", categories=tuple("absuv")),
        Column("two", "public", "category"),
    )
    schema = Schema(Label("y", "private", classes=("no", "yes")), columns)
    asked: dict[str, Any] = {"epsilon": 1e5, "delta": 1e-6, "method": "additive"}
    with always_pairs() as patch:
        patch.setattr(additive, "_PAIRS_FROM", math.inf)
        for seed in range(20):
            model = HalfmaskClassifier(schema, unsafe_seed=seed, **asked)
            model.fit(frame, sample_weight=[1 / 3, 1e6, 0, 1e6])
            assert np.isfinite(model.decision_function(frame)).all()


@pytest.mark.parametrize("public", [PUBLIC, ("one", "two")], ids=["label", "half"])
def test_a_stored_model_and_an_explanation_know_the_products(
    public: tuple[str, ...], tmp_path: Any
) -> None:
    train = _bought(8_000, 1)
    model = HalfmaskClassifier(_schema(public), **ASKED_ONE).fit(train)
    model.model_.save(tmp_path / "model")
    again = Model.load(tmp_path / "model")
    assert np.array_equal(again.scores(again.encode(train))[:, 0], model.decision_function(train))
    told = [explain(again, train[row : row + 1]) for row in range(6)]
    for each, score in zip(told, model.decision_function(train[:6]), strict=True):
        assert "one and two" in each.added
        assert each.average + sum(each.added.values()) == pytest.approx(score)
    assert np.ptp([each.added["one and two"] for each in told]) > 0.1
    arrays = dict(model.model_.arrays())
    for name, value in (
        ("offset_pair.0.columns", np.array([1, 9])),
        ("offset_pair.0.second", arrays["offset_pair.0.second"] - 50),
        ("offset_pair.0.weights", arrays["offset_pair.0.weights"] * math.nan),
        ("offset_pair.0.columns", None),
        ("offset_weights", None),
    ):
        damaged = {key: held for key, held in arrays.items() if key != name}
        if value is not None:
            damaged[name] = value
        with pytest.raises(ValueError, match="pair"):
            type(model.model_).from_arrays(damaged, details={}, classes=again.classes)


@pytest.mark.slow
def test_a_product_in_a_million_rows_is_learnt_as_boosted_trees_learn_it() -> None:
    from sklearn.ensemble import HistGradientBoostingClassifier

    train, test = _people(1_000_000, 1), _people(100_000, 2)
    asked = {**ASKED, "epsilon": 1.0}
    model = HalfmaskClassifier(_schema(), **asked).fit(train)
    names = ["one", "two", "three"]
    made = [frame[names].assign(kind=frame["kind"].map(ord)) for frame in (train, test)]
    trees = HistGradientBoostingClassifier().fit(made[0], train["y"])
    best = roc_auc_score(test["y"] == "yes", trees.predict_proba(made[1])[:, 1])
    assert _auc(model, test) > best - 0.02
