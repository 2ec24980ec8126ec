"""A unit's rows: the first ones in file order count, whatever private values they hold."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from halfmask.accounting.budget import Budget
from halfmask.accounting.gaussian import gaussian_mu
from halfmask.audit.transcript import Release, recorded, replayed
from halfmask.cli.options import training_rows
from halfmask.data.units import unit_weights
from halfmask.errors import DataError, InputError
from halfmask.mechanisms.noise import noise_source
from halfmask.methods.auto import Problem
from halfmask.schema import Column, Label, Schema, Unit
from halfmask.table import Encoder
from halfmask.training import train

CLASSES = Label("y", "private", classes=("no", "yes"))
UNIT_SCHEMA = Schema(
    CLASSES,
    (Column("v", "private", "number", bounds=(0, 100), bins=0),),
    Unit(column="id", max_rows=2),
)


def test_a_unit_keeps_its_first_rows_in_file_order() -> None:
    ids = ["b", "a", "b", "b", "a", "c", "b"]
    data = pa.table({"id": ids, "v": list(range(7)), "y": ["no"] * 7})
    encoder = Encoder.fit(UNIT_SCHEMA, data)
    table = encoder.encode(data)
    np.testing.assert_array_equal(table.rows, [0, 1, 2, 4, 5])
    np.testing.assert_array_equal(table.unit, [0, 1, 0, 1, 2])
    assert (table.units, table.n, table.max_rows) == (3, 5, 2)
    assert encoder.encode(data, with_unit=False).n == 7
    assert encoder.encode(data.drop_columns(["y", "id"]), with_label=False).n == 7


@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 100)), min_size=1, max_size=40),
    st.integers(1, 3),
    st.randoms(use_true_random=False),
)
def test_which_rows_count_depends_on_ids_and_order_alone(
    pairs: list[tuple[int, int]], limit: int, shuffle: Any
) -> None:
    schema = Schema(CLASSES, UNIT_SCHEMA.columns, Unit(column="id", max_rows=limit))
    ids, values = ([pair[part] for pair in pairs] for part in (0, 1))
    kept = []
    for column in (values, shuffle.sample(values, len(values))):
        data = pa.table({"id": ids, "v": column, "y": ["no"] * len(ids)})
        table = Encoder.fit(schema, data).encode(data)
        assert table.unit is not None
        assert np.bincount(table.unit).max() <= limit
        kept.append(table.rows.tolist())
    seen: dict[int, int] = {}
    expected = []
    for row, unit in enumerate(ids):
        seen[unit] = seen.get(unit, 0) + 1
        expected += [row] if seen[unit] <= limit else []
    assert kept == [expected, expected]


def test_a_row_without_a_unit_is_an_error() -> None:
    data = pa.table({"id": ["a", None], "v": [1, 2], "y": ["no", "no"]})
    with pytest.raises(DataError, match="'id', row 2"):
        Encoder.fit(UNIT_SCHEMA, data).encode(data)


# How much noise units cost: the rows they have, not the rows they might have had.

PLAIN = Schema(
    CLASSES,
    (
        Column("v", "private", "number", bounds=(0, 100), bins=4),
        Column("open", "public", "category", categories=("a", "b")),
    ),
)
SCHEMAS = {
    "everything": PLAIN,
    "features": replace(PLAIN, label=replace(CLASSES, role="public")),
    "label": replace(
        PLAIN, columns=tuple(replace(column, role="public") for column in PLAIN.columns)
    ),
    "three classes": replace(PLAIN, label=Label("y", "private", classes=("no", "yes", "maybe"))),
    "a number": replace(PLAIN, label=Label("y", "private", bounds=(-1, 3))),
}


def unit_frame(schema: Schema, ids: list[int], rng: np.random.Generator) -> dict[str, list[Any]]:
    label = schema.label
    target = (
        rng.choice([-1.0, 3.0, 0.5], len(ids))
        if label.classes is None
        else rng.choice(list(label.classes), len(ids))
    )
    return {
        "id": ids,
        "v": rng.uniform(0, 100, len(ids)).tolist(),
        "open": rng.choice(["a", "b"], len(ids)).tolist(),
        "y": target.tolist(),
    }


def with_unit(schema: Schema, max_rows: int) -> Schema:
    return replace(schema, unit=Unit(column="id", max_rows=max_rows))


def released(
    method: str, schema: Schema, data: dict[str, list[Any]], relation: Any = "replace"
) -> tuple[Release, ...]:
    """What a fit releases, with the size of its noise."""
    frame = pa.table(data)
    table = Encoder.fit(schema, frame).encode(frame)
    budget = Budget(epsilon=1.0, delta=1e-5, relation=relation)
    return recorded(
        lambda door: train(table, budget, method=method, noise=noise_source(0), make_releaser=door)
    ).releases


@pytest.mark.parametrize(
    ("method", "roles"),
    [
        *itertools.product(
            ["gd", "one-shot", "sgd", "dp-sgd"], ["everything", "features", "label"]
        ),
        ("label-span", "label"),
    ],
)
def test_units_of_one_row_cost_no_more_noise_than_rows(method: str, roles: str) -> None:
    """`max_rows = 10` is what a person may have; the ids, which are public, say they have one."""
    data = unit_frame(SCHEMAS[roles], list(range(40)), np.random.default_rng(0))
    plain = released(method, SCHEMAS[roles], data)
    persons = released(method, with_unit(SCHEMAS[roles], 10), data)
    assert [seen.noise_std for seen in persons] == [seen.noise_std for seen in plain]


def test_the_statement_names_the_rows_that_a_unit_has() -> None:
    data = unit_frame(PLAIN, [1, 1, 2, 3, 3], np.random.default_rng(0))
    frame = pa.table(data)
    table = Encoder.fit(with_unit(PLAIN, 10), frame).encode(frame)
    assert (table.max_rows, table.rows_per_unit) == (10, 2)
    privacy = train(
        table, Budget(epsilon=1.0, delta=1e-5), method="gd", noise=noise_source(0)
    ).privacy
    assert "at most 2 rows" in privacy.text()


def test_a_table_whose_ids_were_not_read_is_not_fitted() -> None:
    """Nobody counted its units' rows, so no noise would be enough."""
    frame = pa.table(unit_frame(PLAIN, [1, 1, 1, 2], np.random.default_rng(0)))
    table = Encoder.fit(with_unit(PLAIN, 2), frame).encode(frame, with_unit=False)
    with pytest.raises(InputError, match="'id'"):
        train(table, Budget(epsilon=1.0, delta=1e-5), method="gd", noise=noise_source(0))


@pytest.mark.parametrize("roles", list(SCHEMAS))
@pytest.mark.parametrize("method", ["gd", "one-shot"])
@settings(max_examples=15, deadline=None)
@given(
    counts=st.lists(st.sampled_from([1, 1, 1, 2, 3, 12]), min_size=2, max_size=6),
    seed=st.integers(0, 2**32 - 1),
)
def test_replacing_a_whole_unit_never_moves_the_releases_beyond_the_budget(
    method: str, roles: str, counts: list[int], seed: int
) -> None:
    """All releases of the real fit together, in units of their noise, against the ratio charged."""
    rng = np.random.default_rng(seed)
    schema = with_unit(SCHEMAS[roles], 8)
    ids = rng.permutation(np.repeat(np.arange(len(counts)), counts)).tolist()
    data = unit_frame(schema, ids, rng)
    # The unit with most rows is the one that weights are about.
    who = int(np.argmax(counts)) if rng.random() < 0.5 else int(rng.integers(len(counts)))
    other = {name: list(values) for name, values in data.items()}
    fresh = unit_frame(schema, ids, rng)
    private = [*schema.private, *(["y"] if schema.label.role == "private" else [])]
    for name in private:
        for row, owner in enumerate(ids):
            if owner == who:
                # Rows of a unit that move together move the sum furthest.
                other[name][row] = fresh[name][ids.index(who)]
    encoder = Encoder.fit(schema, pa.table(data))
    tables = [encoder.encode(pa.table(frame)) for frame in (data, other)]
    budget = Budget(epsilon=1.0, delta=1e-5)
    options: Any = {"method": method, "noise": noise_source(0)}
    told = recorded(lambda door: train(tables[0], budget, **options, make_releaser=door))
    again = replayed(told, lambda door: train(tables[1], budget, **options, make_releaser=door))
    assert np.linalg.norm(told.moves(again)) <= gaussian_mu(1.0, 1e-5) * (1 + 1e-6)


def test_many_rows_of_a_few_units_do_not_set_the_noise_for_all() -> None:
    """One person of 200 rows among 400 of one row: weights keep its share, and the noise, small."""
    rng = np.random.default_rng(0)
    ids = [*range(400), *[999] * 200]
    data = unit_frame(PLAIN, ids, rng)
    alone = {name: values[:400] for name, values in data.items()}
    for method in ("gd", "one-shot"):
        skewed = released(method, with_unit(PLAIN, 200), data)
        usual = released(method, PLAIN, alone)
        assert skewed[0].noise_std <= 2 * usual[0].noise_std


@settings(max_examples=100, deadline=None)
@given(
    counts=st.lists(st.integers(1, 30), min_size=1, max_size=20),
    numbers=st.integers(1, 1000),
    mu=st.floats(0.01, 10),
    relation=st.sampled_from(["replace", "withhold"]),
)
def test_weights_are_the_best_of_their_kind_and_no_unit_exceeds_its_total(
    counts: list[int], numbers: int, mu: float, relation: Any
) -> None:
    codes = np.repeat(np.arange(len(counts)), counts)
    found = unit_weights(codes, numbers=numbers, mu=mu, relation=relation)
    totals = np.bincount(codes, weights=found.rows)
    assert totals.max() == pytest.approx(found.most)
    assert totals.max() <= found.most * (1 + 1e-12)
    assert found.rows.max() <= 1
    assert found.total == pytest.approx(totals.sum())
    noise = numbers * ((2 if relation == "replace" else 1) / mu) ** 2

    def variance(most: int) -> float:
        weights = np.minimum(1, most / np.repeat(counts, counts))
        return float((np.sum(weights**2) + noise * most**2) / np.sum(weights) ** 2)

    best = min(variance(most) for most in range(1, max(counts) + 1))
    assert variance(found.most) <= best * (1 + 1e-9)


def test_rows_that_may_lie_elsewhere_are_cut_less() -> None:
    codes = np.repeat(np.arange(300), [1, 1, 4] * 100)
    given: Any = {"numbers": 8, "mu": 0.5, "relation": "replace"}
    cut = unit_weights(codes, **given)
    less = unit_weights(codes, **given, skew=0.3)
    assert cut.most == 1
    assert less.most == 4
    assert np.bincount(codes, less.rows).max() <= less.most


def test_equal_units_weigh_alike() -> None:
    found = unit_weights(np.arange(60) // 3, numbers=50, mu=0.3, relation="replace")
    assert (found.rows == 1).all()
    assert (found.most, found.total) == (3, 60)


def test_a_network_takes_units_of_one_row_and_refuses_larger_ones() -> None:
    schema = with_unit(PLAIN, 10)
    budget = Budget(epsilon=1.0, delta=1e-5)
    options: Any = {
        "method": "mlp",
        "noise": noise_source(0),
        "options": {"recipe": "dp-sgd", "steps": 1},
    }
    for ids, several in (([1, 2, 3, 4], False), ([1, 1, 2, 3], True)):
        frame = pa.table(unit_frame(schema, ids, np.random.default_rng(0)))
        table = Encoder.fit(schema, frame).encode(frame)
        assert (table.units, Problem.of(table).rows_per_unit) == (3 + (not several), 1 + several)
        if several:
            with pytest.raises(InputError, match="where a unit has several rows"):
                train(table, budget, **options)
        else:
            fitted = train(table, budget, **options)
            assert fitted.privacy.unit == "one value of 'id' (a person with one row)"


def test_a_file_is_read_whole_where_all_rows_decide_which_ones_count(tmp_path: Path) -> None:
    """Ids, and public labels that are missing: a network's rows are not decoded piece by piece."""
    data = unit_frame(PLAIN, [1, 1, 2, 3], np.random.default_rng(0))
    parquet.write_table(pa.table(data), tmp_path / "rows.parquet")
    public = Label("y", "public", classes=("no", "yes"), missing="skip")
    for schema, rows in ((with_unit(PLAIN, 1), 3), (replace(PLAIN, label=public), 4)):
        with training_rows(tmp_path / "rows.parquet", schema, None, method="mlp") as (_, table, _):
            assert len(table.private) == table.n == rows
