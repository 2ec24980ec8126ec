"""Many canaries in one training: the published numbers, a leaking fit, and a private one."""

import time
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom

from halfmask.accounting.budget import Budget
from halfmask.audit.model_audit import Canaries, one_run, one_run_epsilon, p_value, take
from halfmask.datasets import load_adult
from halfmask.errors import InputError
from halfmask.mechanisms.noise import noise_source
from halfmask.methods.additive import AdditiveFit
from halfmask.methods.fitted import LinearFit
from halfmask.model import LinearModel
from halfmask.schema import Column, Label, Schema
from halfmask.table import Encoder, Table
from halfmask.training import train


@given(
    guesses=st.integers(1, 60),
    share=st.floats(0, 1),
    epsilon=st.floats(0, 4),
)
@settings(max_examples=50, deadline=None)
def test_without_delta_guesses_are_those_of_randomised_response(guesses, share, epsilon):
    right = round(share * guesses)
    found = p_value(right, guesses, 100, epsilon=epsilon, delta=0.0)
    assert found == pytest.approx(binom.sf(right - 1, guesses, 1 / (1 + np.exp(-epsilon))))


def test_delta_adds_the_steepest_mean_below():
    # By hand: v = 2 of r = 2, q = 1/2: P[1] = 1/2 is above (P[1] + P[0])/2 = 3/8.
    found = p_value(2, 2, 10, epsilon=0.0, delta=1e-3)
    assert found == pytest.approx(0.25 + 2 * 10 * 1e-3 * 0.5)


def test_a_perfect_guesser_refutes_more_the_more_coins_there_are():
    few = one_run_epsilon(50, 50, 50, delta=1e-6, confidence=0.95)
    many = one_run_epsilon(500, 500, 500, delta=1e-6, confidence=0.95)
    assert 2.5 < few < many < 6
    assert one_run_epsilon(25, 50, 50, delta=1e-6, confidence=0.95) == 0
    assert one_run_epsilon(50, 50, 50, delta=1e-6, confidence=0.95, relation="withhold") < few


def bare_table(rows=200, width=60):
    generator = np.random.default_rng(3)
    X = generator.normal(size=(rows, width))
    return Table.from_arrays(X, np.arange(rows) % 2)


def linear_model(table, coef):
    fit = LinearFit(coef=coef[None, :], intercept=np.zeros(1))
    private = train(table, Budget(epsilon=1.0, delta=1e-6), method="gd", noise=noise_source())
    return LinearModel(
        encoder=None,
        task=table.task,
        classes=table.classes,
        label_bounds=None,
        row_norm=1.0,
        method="leaking",
        reason="a test",
        privacy=private.privacy,
        fit=fit,
    )


def audit(table, fit, canaries):
    return one_run(
        table,
        fit,
        claimed=1.0,
        delta=1e-6,
        relation="replace",
        mechanism="test",
        canaries=canaries,
        confidence=0.99,
    )


@pytest.mark.parametrize("count", [0, -1, 101, 100_000])
def test_more_canaries_than_half_of_the_rows_are_refused_as_none_are(count):
    """A count that was cut silently would pass for the audit that was asked for."""
    table = bare_table()
    with pytest.raises(InputError, match="between 1 and 100 canaries, half of the 200 rows"):
        audit(table, None, count)


def test_a_fit_without_noise_is_refuted():
    table = bare_table(width=4000)

    def leaking(planted):
        signs = 2.0 * planted.label - 1
        return linear_model(table, 20 * signs @ planted.private)

    finding = audit(table, leaking, 60)
    assert finding.refuted
    assert finding.details["right_guesses"] > 0.95


def test_a_private_fit_is_not_refuted():
    table = bare_table()

    def private(planted):
        return train(planted, Budget(epsilon=1.0, delta=1e-6), method="gd", noise=noise_source())

    assert not audit(table, private, 60).refuted


def levels_table(rows=150, columns=100, levels=60):
    """Nothing but private categories: what an additive fit without noise remembers a row by."""
    generator = np.random.default_rng(4)
    words = [f"w{level}" for level in range(levels)]
    names = [f"c{column}" for column in range(columns)]
    frame = {name: generator.choice(words, rows) for name in names}
    frame["y"] = generator.choice(["no", "yes"], rows)
    schema = Schema(
        label=Label("y", "private", classes=("no", "yes")),
        columns=tuple(
            Column(name, "private", "category", categories=tuple(words)) for name in names
        ),
    )
    encoder = Encoder.fit(schema, pa.table(frame))
    return encoder, encoder.encode(pa.table(frame))


def test_an_additive_fit_without_noise_is_refuted():
    encoder, table = levels_table()
    private = train(
        table,
        Budget(epsilon=1.0, delta=1e-6),
        method="additive",
        noise=noise_source(),
        encoder=encoder,
    )

    def leaking(planted):
        signs = (2.0 * planted.label - 1) / len(planted.coded)
        weights = [np.bincount(c.codes, signs, minlength=c.levels) for c in planted.coded]
        return replace(private, fit=AdditiveFit(weights=tuple(weights), intercept=0.0))

    finding = audit(table, leaking, 60)
    assert finding.refuted
    assert finding.details["right_guesses"] > 0.95


def test_an_additive_fit_is_not_refuted():
    _, table = levels_table()

    def private(planted):
        return train(
            planted, Budget(epsilon=1.0, delta=1e-6), method="additive", noise=noise_source()
        )

    assert not audit(table, private, 60).refuted


def encoded_cells(table):
    """For each row and private column, the features and the level it has."""
    sources = np.array(table.private_sources)
    for column in table.coded:
        if column.private:
            yield column, table.private[:, sources == column.name]


def test_features_and_levels_of_a_planted_row_belong_to_one_value():
    schema = Schema(
        label=Label("y", "private", classes=("no", "yes")),
        columns=(
            Column("wide", "private", "number", bounds=(0, 1000)),
            Column("few", "private", "number", bounds=(0, 5)),
            Column("kept", "private", "number", bounds=(-2, 2), bins=0),
            Column("day", "private", "date", bounds=("2000-01-01", "2020-12-31")),
            Column("kind", "private", "category", categories=("a", "b")),
        ),
    )
    generator = np.random.default_rng(8)
    n = 20_000
    days = np.datetime64("1999-06-01") + generator.integers(0, 8000, n)
    frame = pa.table(
        {
            "wide": generator.choice([*np.linspace(-1, 1001, 3001), np.nan], n),
            "few": np.resize([*np.linspace(-1, 6, 7001), np.nan], n),
            "kept": generator.choice([*np.linspace(-2.5, 2.5, 4001), np.nan], n),
            "day": pa.array(days, mask=generator.random(n) < 0.05),
            "kind": generator.choice(["a", "b", "z", ""], n),
            "y": generator.choice(["no", "yes"], n),
        }
    )
    table = Encoder.fit(schema, frame).encode(frame)
    planted = Canaries.planted(table, 1000)
    changed = planted.table(table)
    assert not all(
        np.array_equal(before.codes, after.codes)
        for before, after in zip(table.coded, changed.coded, strict=True)
    )
    for (column, features), (new, planted_features) in zip(
        encoded_cells(table), encoded_cells(changed), strict=True
    ):
        if column.name == "kept":
            # A number of a level lies between the numbers of the levels beside it.
            missing = new.codes == new.levels - 1
            assert np.array_equal(missing, planted_features[:, 1] == 1)
            order = np.argsort(planted_features[~missing, 0], kind="stable")
            assert (np.diff(new.codes[~missing][order].astype(int)) >= 0).all()
            continue
        seen = set(zip(column.codes, features.argmax(axis=1), strict=True))
        assert set(zip(new.codes, planted_features.argmax(axis=1), strict=True)) <= seen
    for first, second in zip(planted.first.coded, planted.second.coded, strict=True):
        assert (first.codes != second.codes).all()


def adult_table(rows):
    frame, _, schema = load_adult()
    frame = frame.slice(0, rows)
    return Encoder.fit(schema, frame).encode(frame)


def test_canaries_change_private_parts_only_and_stay_in_the_declared_domain():
    table = adult_table(500)
    planted = Canaries.planted(table, 100)
    changed = planted.table(table)
    assert np.array_equal(changed.public, table.public)
    rest = np.setdiff1d(np.arange(table.n), planted.rows)
    assert np.array_equal(changed.private[rest], table.private[rest])
    assert np.linalg.norm(changed.private, axis=1).max() <= table.private_norm * (1 + 1e-12)
    first, second = planted.first.private, planted.second.private
    sources = np.array(table.private_sources)
    for name in set(table.private_sources):
        block = np.flatnonzero(sources == name)
        assert (first[:, block] != second[:, block]).any(axis=1).all()
    chosen = np.where(planted.coins[:, None], second, first)
    assert np.array_equal(changed.private[planted.rows], chosen)


def test_one_canary_a_unit():
    table = adult_table(300)
    grouped = replace(table, unit=np.arange(300) // 3, max_rows=3)
    planted = Canaries.planted(grouped, 100)
    assert len(set(planted.rows // 3)) == 100
    with pytest.raises(InputError, match="between 1 and 100 canaries"):
        Canaries.planted(grouped, 101)


def test_taking_rows_keeps_blocks_aligned():
    table = adult_table(50)
    some = take(table, np.array([4, 2]))
    assert some.n == 2
    assert np.array_equal(some.private, table.private[[4, 2]])
    for column, whole in zip(some.coded, table.coded, strict=True):
        assert np.array_equal(column.codes, whole.codes[[4, 2]])
    assert isinstance(some.schema, Schema)


@pytest.mark.slow
@pytest.mark.alone
def test_an_audit_of_adult_costs_at_most_half_a_training_more():
    table = adult_table(32_561)

    def fit(given_table):
        return train(
            given_table, Budget(epsilon=1.0, delta=1e-6), method="auto", noise=noise_source()
        )

    def seconds(run):
        started = time.process_time()
        run()
        return time.process_time() - started

    fit(table)
    # Processor time, in turns, the least of five: what else runs on the machine hardly enters.
    pairs = [
        (seconds(lambda: fit(table)), seconds(lambda: audit(table, fit, 1000))) for _ in "12345"
    ]
    training, auditing = (min(times) for times in zip(*pairs, strict=True))
    assert auditing <= 1.5 * training
