"""Noisy gradient descent: sensitivities attacked, budgets kept, models that learn."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from halfmask.accounting.accountant import epsilon as accounted_epsilon
from halfmask.accounting.budget import Budget
from halfmask.accounting.ledger import MemoryLedger
from halfmask.errors import BudgetExceededError, InputError
from halfmask.losses import loss_named
from halfmask.mechanisms.noise import noise_source
from halfmask.mechanisms.release import Releaser
from halfmask.methods.fitted import LinearFit, coded_targets
from halfmask.methods.gd import GdConfig, GradientDescent, PublicPenalty, descent_rows, fit_gd
from halfmask.schema import Schema
from halfmask.table import Encoder, Table

LETTERS = ("a", "b", "c")
LABELS: dict[str, dict[str, Any]] = {
    "logistic": {"classes": ["no", "yes"]},
    "smoothed-hinge": {"classes": ["no", "yes"]},
    "softmax": {"classes": ["x", "y", "z"]},
    "squared": {"bounds": [-2, 6]},
    "huber": {"bounds": [-2, 6]},
}


def releaser(epsilon: float = 1.0, relation: str = "replace", seed: int = 0) -> Releaser:
    budget = MemoryLedger(epsilon=epsilon, delta=1e-6, relation=relation)
    return Releaser(budget, noise_source(unsafe_seed=seed))


def schema(loss: str, *, label: str, columns: str, signed: bool) -> Schema:
    """Columns `level`, `number`, `open`; `columns` says which are private."""
    number = {"kind": "number", "bounds": [0, 1], "bins": 0 if signed else 4}
    parts = {"level": {"kind": "category", "categories": list(LETTERS)}, "number": number}
    roles = {
        name: {**part, "role": "private" if columns != "none" else "public"}
        for name, part in parts.items()
    }
    roles["open"] = {
        "kind": "number",
        "bounds": [0, 1],
        "bins": 3,
        "role": "private" if columns == "all" else "public",
    }
    return Schema.from_dict(
        {"label": {"name": "y", "role": label, **LABELS[loss]}, "columns": roles}
    )


def frame(loss: str, rng: np.random.Generator, rows: int) -> dict[str, list[Any]]:
    target = LABELS[loss]
    labels = (
        rng.choice(target["classes"], rows) if "classes" in target else rng.uniform(-2, 6, rows)
    )
    return {
        "level": rng.choice(LETTERS, rows).tolist(),
        "number": rng.uniform(0, 1, rows).round().tolist(),
        "open": rng.uniform(0, 1, rows).tolist(),
        "y": labels.tolist(),
    }


def neighbours(
    loss: str, *, label: str, columns: str, signed: bool, seed: int, rows: int = 6
) -> tuple[Table, Table]:
    """Two tables that differ in the private part of their first row."""
    rng = np.random.default_rng(seed)
    declared = schema(loss, label=label, columns=columns, signed=signed)
    first = frame(loss, rng, rows)
    other = frame(loss, rng, 1)
    second = {name: list(values) for name, values in first.items()}
    for name in (*declared.private, *(["y"] if label == "private" else [])):
        second[name][0] = other[name][0]
    encoder = Encoder.fit(declared, pa.table(first))
    return encoder.encode(pa.table(first)), encoder.encode(pa.table(second))


def descent(table: Table, loss: str, relation: str, clip: float | None = None) -> GradientDescent:
    classes = 0 if table.classes is None else len(table.classes)
    chosen = loss_named(loss, classes=classes)
    rows = descent_rows(table, precondition=0.25)
    config = GdConfig(clip=clip, steps=3)
    targets = coded_targets(table, chosen.outputs)
    return GradientDescent(
        rows, targets, chosen, config, table.label_private, releaser(relation=relation), 0.1
    )


CASES = [
    (loss, label, columns)
    for loss in LABELS
    for label in ("private", "public")
    for columns in ("all", "some", "none")
    if not (label == "public" and columns == "none")
]


@pytest.mark.parametrize(("loss", "label", "columns"), CASES)
@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    signed=st.booleans(),
    size=st.sampled_from([0.0, 0.1, 1.0, 5.0, 40.0]),
    clip=st.sampled_from([None, 0.2, 5.0]),
)
def test_replaced_row_never_moves_the_statistic_beyond_its_sensitivity(
    loss: str, label: str, columns: str, seed: int, signed: bool, size: float, clip: float | None
) -> None:
    tables = neighbours(loss, label=label, columns=columns, signed=signed, seed=seed)
    runs = [descent(table, loss, "replace", clip) for table in tables]
    rng = np.random.default_rng(seed)
    shape = (descent_rows(tables[0], precondition=0.25).d, runs[0]._loss.outputs)
    theta = size * rng.normal(size=shape)
    (first, scale), (second, other_scale) = (run.statistic(theta) for run in runs)
    np.testing.assert_array_equal(scale, other_scale)
    bound = runs[0].sensitivity.replace
    assert np.linalg.norm(first - second) <= bound * (1 + 1e-9)


@pytest.mark.parametrize(("loss", "label", "columns"), CASES)
@settings(max_examples=15, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    signed=st.booleans(),
    size=st.sampled_from([0.0, 0.1, 1.0, 5.0, 40.0]),
    relation=st.sampled_from(["replace", "withhold"]),
)
def test_withheld_row_never_moves_the_statistic_beyond_its_sensitivity(
    loss: str, label: str, columns: str, seed: int, signed: bool, size: float, relation: str
) -> None:
    table, _ = neighbours(loss, label=label, columns=columns, signed=signed, seed=seed)
    run = descent(table, loss, relation)
    theta = size * np.random.default_rng(seed).normal(size=(run._rows.d, run._loss.outputs))
    whole, _ = run.statistic(theta)
    if label == "public":
        # What is left of a withheld row is its public part: the private features are zero.
        hidden = table.private.copy()
        hidden[0] = 0.0
        without = descent(table.with_blocks(private=hidden), loss, relation)
    else:
        without = descent(table, loss, relation)
        weights = run._rows.row_weights.copy()
        weights[0] = 0.0
        without._rows = replace(run._rows, row_weights=weights)
    rest, _ = without.statistic(theta)
    assert np.linalg.norm(whole - rest) <= run.sensitivity.withhold * (1 + 1e-9)


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), columns=st.sampled_from(["some", "all"]))
def test_private_values_change_nothing_but_the_rows(seed: int, columns: str) -> None:
    tables = neighbours("logistic", label="private", columns=columns, signed=True, seed=seed)
    first, second = (descent_rows(table, precondition=0.25) for table in tables)
    for name in ("centre", "scale", "row_weights"):
        np.testing.assert_array_equal(getattr(first, name), getattr(second, name))
    assert (first.constant, first.bounds) == (second.constant, second.bounds)


def test_bound_for_everything_private_is_reached() -> None:
    """Otherwise the noise would be larger than it has to be: a flipped label at θ = 0 needs it."""
    table, _ = neighbours("logistic", label="private", columns="all", signed=False, seed=1)
    flipped = table.label.copy()
    flipped[0] = 1 - flipped[0]
    runs = [descent(each, "logistic", "replace") for each in (table, replace(table, label=flipped))]
    theta = np.zeros((runs[0]._rows.d, 1))
    moved = np.linalg.norm(runs[0].statistic(theta)[0] - runs[1].statistic(theta)[0])
    assert moved == pytest.approx(runs[0].sensitivity.replace, rel=1e-9)


def test_rows_longer_than_declared_are_shortened() -> None:
    table, _ = neighbours("logistic", label="private", columns="all", signed=True, seed=2)
    wild = table.private * 1e3
    wild[1] = np.nan
    rows = descent_rows(table.with_blocks(private=wild), precondition=0.25)
    dense = rows.matrix.toarray() if hasattr(rows.matrix, "toarray") else rows.matrix
    assert np.isfinite(dense).all()
    assert np.linalg.norm(dense, axis=1).max() <= 1 + 1e-9


def test_a_unit_of_several_rows_multiplies_the_sensitivity() -> None:
    for label, columns in (("private", "all"), ("private", "none")):
        table, _ = neighbours("logistic", label=label, columns=columns, signed=False, seed=3)
        one = descent(table, "logistic", "replace").sensitivity
        five = descent(replace(table, max_rows=5), "logistic", "replace").sensitivity
        assert five.replace == pytest.approx(5 * one.replace)
        assert five.withhold == pytest.approx(5 * one.withhold)
    table, _ = neighbours("logistic", label="public", columns="some", signed=False, seed=3)
    theta = np.ones((descent(table, "logistic", "replace")._rows.d, 1))
    one_scale = descent(table, "logistic", "replace").statistic(theta)[1]
    five_scale = descent(replace(table, max_rows=5), "logistic", "replace").statistic(theta)[1]
    np.testing.assert_allclose(five_scale, one_scale / 5)


def blobs(rows: int, seed: int, classes: int = 2) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    y = rng.integers(0, classes, rows)
    centres = np.random.default_rng(99).normal(size=(classes, 4))
    X = 0.4 * centres[y] + 0.2 * rng.normal(size=(rows, 4))
    return X, y


def scores(fit: LinearFit, table: Table) -> np.ndarray:
    return np.hstack([table.public, table.private]) @ fit.coef.T + fit.intercept


@pytest.mark.parametrize("relation", ["replace", "withhold"])
@pytest.mark.parametrize(
    ("label", "columns"), [("private", "all"), ("private", "none"), ("public", "some")]
)
def test_what_is_charged_is_what_was_asked_for(relation: str, label: str, columns: str) -> None:
    table, _ = neighbours("logistic", label=label, columns=columns, signed=False, seed=4, rows=300)
    source = releaser(1.0, relation)
    fit = fit_gd(table, source)
    spent = accounted_epsilon(source.events, delta=1e-6, relation=relation)
    assert 0.999 < spent <= 1.0
    assert fit.details["releases"] == sum(event.count for event in source.events)
    assert fit.coef.shape == (1, table.public.shape[1] + table.private.shape[1])


def test_an_overdrawn_budget_releases_nothing() -> None:
    table = Table.from_arrays(*blobs(50, 0))
    ledger, asked = MemoryLedger(epsilon=0.5, delta=1e-6), Budget(epsilon=1.0, delta=1e-6)
    source = Releaser(ledger, noise_source(0), budget=asked)
    with pytest.raises(BudgetExceededError):
        fit_gd(table, source)
    assert source.events == ()


@pytest.mark.parametrize(("classes", "least"), [(2, 0.9), (3, 0.85)])
def test_learns_classes_of_a_bare_array(classes: int, least: float) -> None:
    train, test = (Table.from_arrays(*blobs(4000, seed, classes)) for seed in (0, 1))
    fit = fit_gd(train, releaser(1.0))
    found = scores(fit, test)
    guess = found.argmax(axis=1) if classes > 2 else (found[:, 0] > 0).astype(int)
    assert fit.coef.shape == (classes if classes > 2 else 1, 4)
    assert (guess == test.label).mean() > least


@pytest.mark.parametrize("loss", ["smoothed-hinge", "softmax"])
def test_other_losses_learn_two_classes(loss: str) -> None:
    train, test = (Table.from_arrays(*blobs(4000, seed)) for seed in (0, 1))
    fit = fit_gd(train, releaser(1.0), GdConfig(loss=loss))
    assert fit.coef.shape == (1, 4)
    assert ((scores(fit, test)[:, 0] > 0) == test.label).mean() > 0.9


@pytest.mark.parametrize("loss", ["squared", "huber"])
def test_learns_a_number_in_its_own_units(loss: str) -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(6000, 3)) / 3
    y = 50 + 20 * X[:, 0] - 10 * X[:, 1] + rng.normal(size=6000)
    train, test = (
        Table.from_arrays(X[part], y[part], task="regression", label_bounds=(20, 80))
        for part in (slice(0, 5000), slice(5000, None))
    )
    fit = fit_gd(train, releaser(1.0), GdConfig(loss=loss))
    error = np.sqrt(np.mean((scores(fit, test)[:, 0] - test.label) ** 2))
    assert error < 0.5 * np.std(test.label)


def test_seeded_fits_repeat_and_others_differ() -> None:
    table = Table.from_arrays(*blobs(200, 0))
    fits = [fit_gd(table, releaser(seed=s)) for s in (5, 5, 6)]
    np.testing.assert_array_equal(fits[0].coef, fits[1].coef)
    assert not np.array_equal(fits[0].coef, fits[2].coef)


def test_settings_follow_from_public_sizes_alone() -> None:
    X, y = blobs(500, 0)
    plans = [
        fit_gd(Table.from_arrays(rows, labels), releaser()).details
        for rows, labels in ((X, y), (-3 * X[::-1], 1 - y))
    ]
    assert plans[0] == plans[1]


def test_public_label_starts_with_less_noise_on_public_weights() -> None:
    table, _ = neighbours("logistic", label="public", columns="some", signed=False, seed=6, rows=40)
    run = descent(table, "logistic", "replace")
    _, factors = run.statistic(np.zeros((run._rows.d, 1)))
    first = run._rows.public_columns
    assert factors[0, 0] > 3 * factors[first, 0]


def test_public_penalty_pulls_the_weights() -> None:
    table = Table.from_arrays(*blobs(2000, 0))

    def towards(public: np.ndarray, coef: np.ndarray, intercept: np.ndarray) -> Any:
        assert public.shape == (2000, 0)
        return 5 * (coef - 0.7), 5 * (intercept + 0.2)

    penalty = PublicPenalty(gradient=towards, smoothness=5.0)
    free = fit_gd(table, releaser())
    pulled = fit_gd(table, releaser(), GdConfig(penalty=penalty))
    assert np.abs(pulled.coef - 0.7).max() < 0.5 * np.abs(free.coef - 0.7).max()
    assert abs(pulled.intercept[0] + 0.2) < 0.2


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"steps": 0}, "steps"),
        ({"clip": -1.0}, "clip"),
        ({"spread": float("inf")}, "spread"),
        ({"aggregate": "best"}, "aggregate"),
    ],
)
def test_settings_that_make_no_sense_are_refused(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        GdConfig(**options)


def test_tables_that_cannot_be_fitted_are_refused_before_a_charge() -> None:
    table, _ = neighbours("logistic", label="private", columns="all", signed=False, seed=7)
    open_table = replace(
        table.with_blocks(public=table.private, private=np.zeros((table.n, 0))),
        label_private=False,
    )
    for bad, problem in (
        (replace(table, label=None), "no label"),
        (open_table, "Nothing is private"),
    ):
        source = releaser()
        with pytest.raises(InputError, match=problem):
            fit_gd(bad, source)
        assert source.events == ()


@pytest.mark.parametrize("loss", ["logistic", "softmax", "squared"])
@pytest.mark.parametrize("relation", ["replace", "withhold"])
def test_a_public_start_and_the_descent_together_cost_what_was_asked_for(
    loss: str, relation: str
) -> None:
    table, _ = neighbours(loss, label="private", columns="some", signed=False, seed=3, rows=60)
    paid = releaser(relation=relation)
    fit = fit_gd(table, paid)
    spent = accounted_epsilon(paid.events, delta=1e-6, relation=paid.relation)
    assert 0.999 < spent <= 1.0
    assert len(paid.released) == 2
    outputs = 3 if loss == "softmax" else 1
    assert fit.coef.shape == (outputs, table.public.shape[1] + table.private.shape[1])


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32 - 1), st.floats(-50, 50))
def test_an_offset_never_lifts_the_statistic_beyond_its_sensitivity(
    seed: int, offset: float
) -> None:
    tables = neighbours("logistic", label="private", columns="some", signed=False, seed=seed)
    # One public row far longer than the others: it must not count for more than a row may.
    far = np.array(tables[0].public)
    far[0] *= 40
    tables = tuple(table.with_blocks(public=far) for table in tables)
    loss = loss_named("logistic", classes=2)
    moved = []
    for table in tables:
        rows = descent_rows(table, precondition=0.25, started=True)
        rows = replace(rows, offset=offset * np.ones((table.n, 1)))
        targets = coded_targets(table, loss.outputs)
        descent = GradientDescent(
            rows, targets, loss, GdConfig(), True, releaser(epsilon=10.0), 1.0
        )
        theta = 5 * np.random.default_rng(seed).normal(size=(rows.d, 1))
        moved.append(descent.statistic(theta)[0])
    change = np.linalg.norm(moved[0] - moved[1])
    assert change <= descent.sensitivity.replace * (1 + 1e-9)


def test_public_features_are_fitted_ahead_of_private_ones() -> None:
    rng = np.random.default_rng(0)
    n = 4000
    open_, level = rng.uniform(0, 1, n), rng.choice(LETTERS, n)
    y = np.where((open_ > 0.6) | ((level == "a") & (open_ > 0.3)), "yes", "no")
    declared = schema("logistic", label="private", columns="some", signed=False)
    data = pa.table({"level": level, "number": rng.uniform(size=n), "open": open_, "y": y})
    table = Encoder.fit(declared, data).encode(data)
    accuracy, shares = {}, {}
    for epsilon in (0.1, 5.0):
        fit = fit_gd(table, releaser(epsilon))
        scores = np.hstack([table.public, table.private]) @ fit.coef[0] + fit.intercept[0]
        accuracy[epsilon] = ((scores > 0) == (table.label == 1)).mean()
        shares[epsilon] = fit.details["public_start_share"]
    assert accuracy[0.1] > 0.7
    assert accuracy[5.0] > 0.9
    # The less noise there is, the less a start is worth.
    assert 0.25 > shares[0.1] > 10 * shares[5.0] > 0
