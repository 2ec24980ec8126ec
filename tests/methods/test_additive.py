"""The method `additive`: within its charge on all neighbours, calibrated, and never below free."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import expit, logit, ndtri
from tests.audit.replays import Pair, assert_within_charge, corner_pairs, neighbour_pairs

from halfmask import HalfmaskClassifier, HalfmaskRegressor
from halfmask.audit import ReplayError, record, replay
from halfmask.data.products import CodeSums
from halfmask.methods import additive_descent
from halfmask.methods.additive import (
    AdditivePlan,
    AdditiveRun,
    _grown,
    believed_slope,
    comparison_moves,
)
from halfmask.methods.additive_descent import (
    levelled,
    public_label_moves,
    slope_bounds,
    slope_moves,
)
from halfmask.methods.smooth_codes import level_features
from halfmask.model import Model
from halfmask.schema import Column, Label, Role, Schema, Unit
from halfmask.table import CodedColumn, Encoder

# So loud a budget that even a dozen rows go through every stage.
LOUD = 2000.0
ROLES = ("all", "half", "features", "label")


# With a public label each fit has a free model; tests/audit and test_additive_edges.py replay some.
@pytest.mark.parametrize(
    "roles", [pytest.param(role, marks=[pytest.mark.slow] * (role == "features")) for role in ROLES]
)
@given(data=st.data())
@settings(max_examples=25, deadline=None)
def test_no_neighbour_moves_the_releases_beyond_the_charge(roles: str, data: st.DataObject) -> None:
    pair = data.draw(neighbour_pairs(roles=(roles,), labels=("two", "number")))
    epsilon = data.draw(st.sampled_from([1.0, LOUD]))
    estimator = pair.estimator("additive", epsilon=epsilon)
    assert_within_charge(estimator, pair.frame, pair.neighbour, replaced=pair.replaced)


@pytest.mark.parametrize("roles", ROLES)
@pytest.mark.parametrize("label", ["two", "number"])
def test_far_neighbours_stay_within_the_charge(roles: str, label: str) -> None:
    """Rows that jump from end to end in some columns, the most of them in all."""
    shares = []
    pairs = list(corner_pairs(roles, label))
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


@given(
    low=st.floats(0.01, 1.0),
    high=st.floats(0.01, 1.0),
    seed=st.integers(0, 2**32 - 1),
)
def test_corners_bound_every_pair_of_slopes(low: float, high: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    vectors = rng.normal(size=(8, 3))
    radius = float(np.linalg.norm(vectors, axis=1).max())
    gaps = np.linalg.norm(vectors[:, None] - vectors[None], axis=2)
    both, withheld = slope_moves(low, high, radius, float(gaps.max()))
    one_sign, _ = public_label_moves(max(low, high), radius, float(gaps.max()))
    slopes = np.concatenate([[-low, 0.0, high], rng.uniform(-low, high, 5)])
    for r in slopes:
        assert np.linalg.norm(r * vectors, axis=1).max() <= withheld + 1e-12
        for s in slopes:
            moved = np.linalg.norm(r * vectors[:, None] - s * vectors[None], axis=2).max()
            assert moved <= both + 1e-12
            if r * s >= 0:
                assert moved <= one_sign + 1e-12


def test_opposite_corners_are_reached() -> None:
    vector = np.array([1.0, 0.0])
    assert slope_moves(0.5, 0.3, 1.0, 0.0)[0] == pytest.approx(
        float(np.linalg.norm(-0.5 * vector - 0.3 * vector))
    )


@given(rate=st.floats(0.001, 0.999), ratio=st.floats(0.1, 2.0))
def test_weighed_slopes_vanish_where_the_chance_is_right(rate: float, ratio: float) -> None:
    low, high = slope_bounds(rate, 1.0, ratio)
    chance = np.linspace(0.001, 0.999, 200)
    weight = additive_descent.bounded_weight(chance, low, high)
    positive, negative = (chance - 1) * weight, chance * weight
    assert (positive >= -low - 1e-12).all()
    assert (negative <= high + 1e-12).all()
    expected = chance * positive + (1 - chance) * negative
    assert np.abs(expected).max() < 1e-12


MUTATIONS = ["half the noise", "no clip", "a corner forgotten", "observed levels", "a count free"]


@pytest.mark.parametrize("mutation", MUTATIONS)
def test_mistakes_are_caught_by_a_replay(mutation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from halfmask.methods import additive

    if mutation == "half the noise":
        monkeypatch.setattr(
            additive_descent.Stage, "_unit", lambda self, moves: 0.5 * self._most * moves[0]
        )
    elif mutation == "no clip":
        monkeypatch.setattr(
            additive_descent, "bounded_weight", lambda c, low, high: np.full_like(c, 50.0)
        )
        monkeypatch.setattr(additive_descent.np, "clip", lambda x, low, high: x, raising=True)
    elif mutation == "a corner forgotten":
        monkeypatch.setattr(
            additive_descent, "slope_moves", lambda low, high, r, d: (0.2 * min(low, high) * r, r)
        )
    elif mutation == "observed levels":
        real = additive.CodeSums.sums
        monkeypatch.setattr(
            additive,
            "level_features",
            lambda column, counts, noise, rows: level_features(
                column, real(CodeSums([column]), np.ones(len(column.codes)))[0], 0.0, rows
            ),
        )
    else:
        monkeypatch.setattr(
            additive.AdditiveRun,
            "_base_rate",
            lambda self, window: float(np.mean(self._target)) * 4 - 2,
        )
    with pytest.raises((AssertionError, ReplayError)):
        _try_all_corners()


def test_rows_of_a_unit_that_are_forgotten_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    from halfmask.methods import additive

    real = additive.unit_weights

    def forgotten(codes: Any, **known: Any) -> Any:
        return replace(real(codes, **known), rows=np.ones(len(codes)), most=1)

    def try_all() -> None:
        for pair in corner_pairs("label", "two", unit=True):
            estimator = pair.estimator("additive")
            assert_within_charge(estimator, pair.frame, pair.neighbour, replaced=0)

    try_all()
    monkeypatch.setattr(additive, "unit_weights", forgotten)
    with pytest.raises(AssertionError):
        try_all()


def _try_all_corners() -> None:
    for pair in corner_pairs("all", "two"):
        repeated = _longer(pair)
        estimator = repeated.estimator("additive", epsilon=LOUD)
        assert_within_charge(estimator, repeated.frame, repeated.neighbour, replaced=0)


@given(
    rows=st.floats(1, 1e9),
    private=st.integers(0, 100),
    public=st.integers(0, 100),
    label_private=st.booleans(),
    number=st.booleans(),
    mu=st.floats(1e-3, 1e3),
)
def test_shares_of_a_plan_never_exceed_the_budget(
    rows: float, private: int, public: int, label_private: bool, number: bool, mu: float
) -> None:
    if not (label_private or private):
        return
    plan = AdditivePlan.of(
        rows=rows,
        private_columns=private,
        public_columns=public,
        label_private=label_private,
        number=number,
        mu=mu,
    )
    shares = [plan.base, plan.spread, plan.public, plan.counts, plan.worth]
    shares += [plan.descent, plan.comparison, plan.covered]
    assert min(shares) >= 0
    assert sum(shares) <= 1 + 1e-12


def _compared(row: Any, short: float, *, number: bool, cut: float = 1.2) -> np.ndarray:
    """What a row (offset, rest of the score, label) adds to the comparison, in its units."""
    offset, extra, target = row
    one = np.ones(1)
    run = SimpleNamespace(_number=number, _target=target * one, _even=one, _labelled=one, _cut=cut)
    units, _ = comparison_moves(short, 3 * short, number=number, cut=cut)
    sums = AdditiveRun._errors(run, offset, extra * one, 1.0, short, 3 * short, slice(0, 1))  # type: ignore[arg-type]
    return np.asarray(sums / units)


@given(
    rows=st.lists(
        st.tuples(st.floats(-9, 9), st.floats(-9, 9), st.floats(-1, 1)), min_size=2, max_size=2
    ),
    short=st.floats(0.1, 2.0),
    number=st.booleans(),
    cut=st.floats(1.2, 3.0),
)
@settings(max_examples=300, deadline=None)
def test_no_row_moves_the_comparison_further_than_proven(
    rows: Any, short: float, number: bool, cut: float
) -> None:
    if not number:
        rows = [(offset, extra, float(label > 0)) for offset, extra, label in rows]
    first, second = (_compared(row, short, number=number, cut=cut) for row in rows)
    _, (replaced, withheld) = comparison_moves(short, 3 * short, number=number, cut=cut)
    assert np.linalg.norm(first - second) <= replaced * (1 + 1e-9)
    assert np.linalg.norm(first) <= withheld * (1 + 1e-9)


@pytest.mark.parametrize("number", [True, False])
def test_a_withheld_row_can_move_the_comparison_as_far_as_proven(number: bool) -> None:
    """All parts are at their ends together: the score as long as it counts, the row a coin toss."""
    short, (_, withheld) = 1.0, comparison_moves(1.0, 3.0, number=number)[1]
    row = (-3.0, 3.0, 1.92 - 1e-9 if number else 1.0)
    assert np.linalg.norm(_compared(row, short, number=number)) == pytest.approx(withheld)
    assert withheld < 0.6


def test_code_sums_equal_one_hot_products() -> None:
    rng = np.random.default_rng(0)
    columns = [
        CodedColumn(
            name=str(size),
            private=True,
            codes=rng.integers(0, size, 70_000).astype(np.uint16),
            levels=size,
            values=None,
        )
        for size in (3, 300, 17, 2, 900)
    ]
    sums = CodeSums(columns)
    weights = [rng.normal(size=column.levels) for column in columns]
    scores = sum(weight[column.codes] for weight, column in zip(weights, columns, strict=True))
    assert np.allclose(sums.scores(weights), scores)
    values = rng.normal(size=70_000)
    for found, column in zip(sums.sums(values), columns, strict=True):
        assert np.allclose(found, np.bincount(column.codes, values, minlength=column.levels))
    at, total = sums.sums_at(weights, lambda found, rows: found * values[rows])
    assert total == pytest.approx(float(scores @ values))
    assert np.allclose(
        at[1], np.bincount(columns[1].codes, scores * values, minlength=columns[1].levels)
    )


def _people(rows: int, seed: int, *, number: bool = False) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    age, pay = rng.uniform(18, 90, rows), rng.exponential(2000.0, rows)
    kind = rng.choice(["a", "b", "c"], rows)
    town = rng.choice(["north", "south"], rows)
    score = 0.05 * (age - 50) + 0.8 * (kind == "a") + 0.6 * (town == "north") - 2.0
    score += 1.2 * (pay > 4000)
    y: Any = np.where(rng.random(rows) < 1 / (1 + np.exp(-score)), "yes", "no")
    if number:
        y = np.clip(score + rng.normal(size=rows), -5, 5)
    return pd.DataFrame({"age": age, "pay": pay, "kind": kind, "town": town, "y": y})


def _schema(private: tuple[str, ...], *, label: str = "private", number: bool = False) -> Schema:
    declared: dict[str, dict[str, Any]] = {
        "age": {"kind": "number", "bounds": (0, 120)},
        "pay": {"kind": "number", "bounds": (0, 100_000)},
        "kind": {"kind": "category", "categories": ("a", "b", "c")},
        "town": {"kind": "category", "categories": ("north", "south")},
    }
    target = {"bounds": (-5, 5)} if number else {"classes": ("no", "yes")}
    role: Any = label
    return Schema(
        Label("y", role, **target),
        tuple(
            Column(name, "private" if name in private else "public", **each)
            for name, each in declared.items()
        ),
    )


ALL = ("age", "pay", "kind", "town")


def _explained(model: Any, test: pd.DataFrame) -> float:
    chance = np.clip(model.predict_proba(test)[:, 1], 1e-6, 1 - 1e-6)
    yes = (test["y"] == "yes").to_numpy()
    rate = yes.mean()
    loss = -np.mean(np.where(yes, np.log(chance), np.log(1 - chance)))
    return float(1 - loss / -(rate * math.log(rate) + (1 - rate) * math.log(1 - rate)))


@pytest.mark.parametrize(
    ("private", "label", "least"),
    [(ALL, "private", 0.08), (("pay", "kind"), "private", 0.09), ((), "private", 0.1)],
)
def test_a_model_learns_from_every_set_of_roles(
    private: tuple[str, ...], label: str, least: float
) -> None:
    train, test = _people(20_000, 1), _people(10_000, 2)
    schema = _schema(private, label=label)
    model = HalfmaskClassifier(schema, epsilon=2.0, delta=1e-6, unsafe_seed=3).fit(train)
    assert model.method_ == "additive"
    assert _explained(model, test) > least
    chance = model.predict_proba(test)[:, 1]
    order = np.array_split(np.argsort(chance), 10)
    yes = (test["y"] == "yes").to_numpy()
    gaps = [abs(chance[rows].mean() - yes[rows].mean()) for rows in order]
    assert np.mean(gaps) < 0.04


def test_private_columns_add_to_the_free_model_and_never_take_much() -> None:
    train, test = _people(8_000, 1), _people(8_000, 2)
    schema = _schema(("pay", "kind"), label="public")
    free = None
    for epsilon in (0.01, 0.1, 1.0, 10.0):
        model = HalfmaskClassifier(schema, epsilon=epsilon, delta=1e-6, unsafe_seed=5).fit(train)
        found = _explained(model, test)
        free = found if free is None else free
        assert found > free - 0.01
    assert found > free + 0.02


def test_loud_noise_leaves_the_base_rate() -> None:
    train, test = _people(500, 1), _people(5_000, 2)
    model = HalfmaskClassifier(_schema(ALL), epsilon=0.05, delta=1e-6, unsafe_seed=1).fit(train)
    assert len(np.unique(model.predict_proba(test)[:, 1])) == 1
    assert model.model_.details["base_rate_only"]


@pytest.mark.parametrize("label", ["private", "public"])
def test_scores_that_are_far_too_long_are_shortened_and_not_given_up(
    label: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared = AdditiveRun._compared

    def lengthened(run: Any, offset: Any, extra: Any, unit: float, expected: Any, more: Any) -> Any:
        longer = tuple(4 * each for each in expected)
        return compared(run, offset, 4 * extra, unit, longer, more)

    schema, people = _schema(ALL, label=label), _people(20_000, 1)
    model = HalfmaskClassifier(schema, epsilon=4.0, unsafe_seed=3)
    slope = model.fit(people).model_.details["slope"]["estimate"]
    monkeypatch.setattr(AdditiveRun, "_compared", lengthened)
    found = model.fit(people).model_.details["slope"]
    assert found["estimate"] == pytest.approx(slope / 4, abs=0.07)
    assert found["used"] > 0.15


@given(
    offsets=st.lists(st.floats(-6, 6), min_size=1, max_size=5),
    mean=st.floats(-2, 2),
    variance=st.floats(0, 9),
    slope=st.floats(0, 1.5),
)
def test_a_levelled_score_has_the_mean_chance_of_its_offset(
    offsets: list[float], mean: float, variance: float, slope: float
) -> None:
    known = np.array(offsets)
    level = levelled(known, mean, variance, slope)
    normal = mean + math.sqrt(variance) * ndtri((np.arange(4000) + 0.5) / 4000)
    chance = expit(known[:, None] + level + slope * normal).mean()
    assert chance == pytest.approx(expit(known).mean(), rel=0.01, abs=1e-6)
    assert levelled(known, mean, variance, 0.0) == 0.0


@pytest.mark.parametrize("public", [0, 6])
def test_noise_in_the_steps_leaves_chances_of_a_rare_class_right_on_average(
    public: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Noisy steps vary more than their average does: an intercept that fits them is too low for it.
    rng = np.random.default_rng(1)
    codes = rng.integers(0, 4, (4_000, 12))
    score = 0.4 * (codes[:, [0, 3, 6, 9]] - 1.5).sum(axis=1) - 3.0
    label = np.where(rng.random(len(codes)) < expit(score), "yes", "no")
    people = pd.DataFrame({f"x{j}": codes[:, j] for j in range(12)} | {"y": label})
    levels = {"kind": "category", "categories": (0, 1, 2, 3)}
    columns = (Column(f"x{j}", "public" if j < public else "private", **levels) for j in range(12))
    schema = Schema(Label("y", "private", classes=("no", "yes")), tuple(columns))
    compared, means = AdditiveRun._compared, []

    def noted(run: Any, offset: Any, extra: Any, *more: Any) -> Any:
        means.append(expit(offset + extra).mean())
        return compared(run, offset, extra, *more)

    monkeypatch.setattr(AdditiveRun, "_compared", noted)
    for seed in range(6):
        HalfmaskClassifier(schema, epsilon=1.5, delta=1e-6, unsafe_seed=seed).fit(people)
    off = logit(np.array(means)) - logit(np.mean(label == "yes"))
    assert np.mean(off) == pytest.approx(0.0, abs=0.1)


def test_numbers_are_learnt_and_scaled_back() -> None:
    train, test = _people(20_000, 1, number=True), _people(5_000, 2, number=True)
    for private, label in ((ALL, "private"), (("pay",), "public"), ((), "private")):
        schema = _schema(private, label=label, number=True)
        model = HalfmaskRegressor(schema, epsilon=4.0, delta=1e-6, unsafe_seed=1).fit(train)
        assert model.score(test) > 0.4


def test_scores_that_the_guarantee_covers_agree_with_held_out_rows() -> None:
    train, test = _people(30_000, 1), _people(20_000, 2)
    model = HalfmaskClassifier(_schema(ALL), epsilon=4.0, delta=1e-6, unsafe_seed=1).fit(train)
    covered = model.model_.details["covered"]
    chance = np.clip(model.predict_proba(test)[:, 1], 1e-6, 1 - 1e-6)
    yes = (test["y"] == "yes").to_numpy()
    loss = -np.mean(np.where(yes, np.log(chance), np.log(1 - chance)))
    assert abs(covered["log_loss"] - loss) < covered["log_loss_bar"] + 0.01
    assert 0.5 < covered["auc"] <= 1


def test_a_stored_model_predicts_the_same(tmp_path: Any) -> None:
    train = _people(2_000, 1)
    for private, label in ((ALL, "private"), (("pay",), "public"), (("pay",), "private")):
        schema = _schema(private, label=label)
        model = HalfmaskClassifier(schema, epsilon=5.0, delta=1e-6, unsafe_seed=1).fit(train)
        folder = tmp_path / f"{len(private)}{label}"
        model.model_.save(folder)
        again = Model.load(folder)
        table = again.encode(train)
        assert np.array_equal(again.scores(table)[:, 0], model.decision_function(train))


def test_distinct_values_come_before_quantiles() -> None:
    values = np.concatenate([np.zeros(9_400), np.arange(1, 601)])
    frame = pd.DataFrame({"x": values, "y": ["no", "yes"] * 5_000})
    schema = Schema(
        Label("y", "private", classes=("no", "yes")), (Column("x", "public", "number"),)
    )
    table = Encoder.fit(schema, frame).encode(frame)
    counts = np.bincount(table.coded[0].codes)
    assert counts[0] == 9_400
    assert len(counts) > 16


def test_a_model_and_its_plan_do_not_depend_on_what_was_not_released() -> None:
    """Same noise, one private value changed: only what follows from releases may differ."""
    train = _people(3_000, 1)
    other = train.copy()
    other.loc[7, ["age", "pay", "kind", "town", "y"]] = [20.0, 9e4, "c", "south", "yes"]
    estimator = HalfmaskClassifier(_schema(ALL), epsilon=1.0, delta=1e-6)
    told = record(estimator, train)
    again = replay(estimator, other, told)
    assert told.same_model(again)


def test_public_sums_do_not_carry_private_codes_in_their_last_digit() -> None:
    """Weights of units are fractions: summed in another order they end in another digit."""
    rng = np.random.default_rng(4)
    n = 60
    columns = (
        Column("age", "public", "number"),
        Column("pay", "private", "number", bounds=(0.0, 1.5)),
        Column("kind", "private", "category", categories=("a", "b", "c")),
    )
    label = Label("y", "public", bounds=(0.0, 1.0))
    schema = Schema(label=label, columns=columns, unit=Unit(column="id", max_rows=9))
    sizes = [1, 2, 3, 4, 5, 6, 7, 8, 9, 9, 3, 3]
    frame = pd.DataFrame(
        {
            "age": rng.choice([20.0, 30.0, 40.0], n),
            "pay": rng.random(n),
            "kind": rng.choice(["a", "b", "c"], n),
            "y": rng.random(n),
            "id": np.repeat([f"p{place}" for place in range(len(sizes))], sizes),
        }
    ).sample(frac=1, random_state=0)
    estimator = HalfmaskRegressor(schema, epsilon=LOUD, delta=1e-6, method="additive")
    told = record(estimator, frame)
    for unit in (f"p{place}" for place in range(len(sizes))):
        mine = frame["id"] == unit
        neighbour = frame.assign(pay=frame["pay"].where(~mine, rng.random(n)), kind="b")
        neighbour["kind"] = neighbour["kind"].where(mine, frame["kind"])
        assert told.same_model(replay(estimator, neighbour, told))


@pytest.mark.parametrize("role", ["private", "public"])
@pytest.mark.parametrize("classes", [("no", "yes"), ("no", "yes", "perhaps")])
def test_a_model_of_units_is_right_on_average_of_rows(role: Role, classes: tuple[str, ...]) -> None:
    """People with many rows say yes more often: a model that weighs people alike would be wrong."""
    rng = np.random.default_rng(3)
    sizes = rng.choice([1, 6], 6000, p=[0.7, 0.3])
    many = np.repeat(sizes, sizes) > 1
    n = len(many)
    label = np.where(rng.random(n) < np.where(many, 0.6, 0.2), "yes", "no")
    if len(classes) == 3:
        label = np.where(rng.random(n) < 0.2, "perhaps", label)
    frame = pd.DataFrame(
        {
            "age": rng.normal(40, 10, n),
            "kind": rng.choice(["a", "b"], n),
            "y": label,
            "id": np.repeat(np.arange(len(sizes)), sizes).astype(str),
        }
    )
    schema = Schema(
        label=Label("y", role, classes=classes),
        columns=(
            Column("age", "public", "number"),
            Column("kind", "private", "category", categories=("a", "b")),
        ),
        unit=Unit(column="id", max_rows=6),
    )
    model = HalfmaskClassifier(schema, epsilon=1.0, delta=1e-6, method="additive", unsafe_seed=1)
    chances = model.fit(frame).predict_proba(frame).mean(axis=0)
    told = [np.mean(label == each) for each in model.classes_]
    assert chances == pytest.approx(told, abs=0.03)


@pytest.mark.parametrize("label", ["private", "public"])
@pytest.mark.parametrize("shift", [4.0, -1.0])
def test_a_telling_column_and_a_rare_class_leave_the_model_calibrated(
    label: str, shift: float
) -> None:
    """A level far from the rest bends much more than the average row: steps must not outrun it."""
    rng = np.random.default_rng(1)
    n = 12_000
    dose = rng.uniform(0, 10, n)
    sick = rng.random(n) < 1 / (1 + np.exp(shift - 0.8 * dose))
    frame = pd.DataFrame({"age": rng.integers(0, 100, n), "dose": dose})
    frame["y"] = np.where(sick, "yes", "no")
    columns = (
        Column("age", "public", "number"),
        Column("dose", "private", "number", bounds=(0.0, 10.0)),
    )
    schema = Schema(Label("y", label, classes=("no", "yes")), columns)
    model = HalfmaskClassifier(schema, epsilon=4.0, delta=1e-6, unsafe_seed=1).fit(frame)
    chance = model.predict_proba(frame)[:, 1]
    tenths = np.array_split(np.argsort(chance), 10)
    off = [abs(chance[rows].mean() - sick[rows].mean()) for rows in tenths]
    assert np.mean(off) < 0.02
    assert abs(chance.mean() - sick.mean()) < 0.01


def test_a_slope_counts_as_far_as_noise_cannot_have_made_it() -> None:
    assert believed_slope(1.0, 0.1) == pytest.approx(0.99)
    assert believed_slope(0.9, 1.0) == 0.0
    assert believed_slope(-3.0, 0.5) == 0.0
    assert believed_slope(12.0, 6.0) < 0.02
    assert believed_slope(3.3, 0.86) == 1.5
    blurred = [believed_slope(slope, 1.0) for slope in np.linspace(0, 6, 61)]
    assert np.all(np.diff(blurred) >= 0)
    # Noise alone: three draws in a hundred get anything to speak of.
    noise = np.random.default_rng(4).normal(0, 2.0, 20_000)
    assert np.mean([believed_slope(slope, 2.0) > 0.1 for slope in noise]) < 0.03


@given(
    counts=st.lists(st.floats(-5, 100), min_size=2, max_size=26),
    ends=st.tuples(st.integers(0, 25), st.integers(0, 25)),
    enough=st.floats(0, 300),
)
def test_a_window_grows_until_it_holds_enough_rows(
    counts: list[float], ends: tuple[int, int], enough: float
) -> None:
    noisy = np.array(counts)
    first, last = sorted(min(end, len(counts) - 1) for end in ends)
    low, high = _grown(noisy, first, last, enough)
    assert 0 <= low <= first <= last <= high < len(counts)
    assert noisy[low : high + 1].sum() >= enough or (low, high) == (0, len(counts) - 1)


def test_a_mean_of_few_rows_does_not_pay_for_the_whole_range() -> None:
    """Most rows lie in parts of the histogram that are hardly above the noise one by one."""
    rng = np.random.default_rng(0)
    some = np.where(rng.random(2500) < 0.5, 0.0, rng.lognormal(3.0, 1.5, 2500))
    patents = np.clip(some, 0, 3000)
    frame = pd.DataFrame({"x": rng.normal(size=2500), "patents": patents})
    schema = Schema(
        Label("patents", "private", bounds=(0, 3000)),
        (Column("x", "private", "number", bounds=(-4, 4)),),
    )
    off = []
    for seed in range(30):
        asked = {"epsilon": 0.1, "delta": 1e-6, "unsafe_seed": seed, "method": "additive"}
        model = HalfmaskRegressor(schema, **asked).fit(frame)
        off.append((model.predict(frame[:1])[0] - patents.mean()) / patents.std())
    # Noise of the mean over the whole range: 3000 · 37.6 / (√0.8 · 2500) is half a spread.
    assert np.abs(off).max() < 0.4
