"""Algorithm 1 on linear models: contributions, clip norms, pairs, batches, projection."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from halfmask.accounting.events import PoissonGaussianEvent
from halfmask.accounting.ledger import MemoryLedger
from halfmask.errors import BudgetExceededError, InputError
from halfmask.mechanisms.clipping import clip_weights
from halfmask.mechanisms.noise import noise_source
from halfmask.mechanisms.private_step import PrivateStep
from halfmask.mechanisms.release import Releaser
from halfmask.methods import sgd
from halfmask.methods.fitted import linear_method
from halfmask.methods.sgd import SgdConfig, contribution_of, descend, fit_dp_sgd, fit_sgd
from halfmask.methods.split import SplitContributions, SplitRows
from halfmask.table import Table


def table_of(
    n: int = 60,
    *,
    public: int = 3,
    private: int = 2,
    classes: int = 2,
    label_private: bool = True,
    units: int | None = None,
    seed: int = 0,
) -> Table:
    rng = np.random.default_rng(seed)

    def block(width: int) -> np.ndarray:
        rows = rng.normal(size=(n, width))
        return rows / np.maximum(1.0, np.linalg.norm(rows, axis=1, keepdims=True))

    label = rng.integers(0, classes, size=n) if classes else rng.uniform(2, 5, size=n)
    return Table(
        public=block(public),
        private=block(private),
        label=label,
        unit=None if units is None else np.sort(np.arange(n) % units),
        rows=np.arange(n),
        public_norm=1.0 if public else 0.0,
        private_norm=1.0 if private else 0.0,
        public_names=tuple(f"a{i}" for i in range(public)),
        private_names=tuple(f"b{i}" for i in range(private)),
        public_sources=tuple(f"a{i}" for i in range(public)),
        private_sources=tuple(f"b{i}" for i in range(private)),
        label_private=label_private,
        task="classification" if classes else "regression",
        classes=tuple(range(classes)) if classes else None,
        label_bounds=None if classes else (2.0, 5.0),
        max_rows=1 if units is None else math.ceil(n / units),
        schema=None,
    )


def releaser_of(epsilon: float = 1.0, relation: Any = "replace", seed: int = 0) -> Releaser:
    ledger = MemoryLedger(epsilon=epsilon, delta=1e-5, relation=relation)
    return Releaser(ledger, noise_source(seed))


ROLES = [
    {"private": 0},  # label private
    {"label_private": False},  # features private
    {},  # both, some features public
    {"public": 0},  # nothing public
    {"public": 0, "label_private": False},  # the label alone is public
]


@pytest.mark.parametrize("classes", [0, 2, 4])
@pytest.mark.parametrize("roles", ROLES, ids=str)
def test_public_and_private_gradients_add_up_to_the_gradient_of_the_loss(
    roles: dict[str, Any], classes: int
) -> None:
    rows = SplitRows.of(table_of(classes=classes, **roles))
    coef = np.random.default_rng(1).normal(size=rows.shape)
    everyone = np.arange(60)
    private = SplitContributions(rows, coef).weighted_sum(everyone, np.ones(60)) / 60
    found = rows.public_gradient(coef, everyone) + private
    for index in np.ndindex(*rows.shape):
        step = np.zeros(rows.shape)
        step[index] = 1e-6
        slope = (rows.risk(coef + step) - rows.risk(coef - step)) / 2e-6
        assert found[index] == pytest.approx(slope, abs=1e-7)


@pytest.mark.parametrize("units", [None, 17])
@pytest.mark.parametrize("classes", [0, 2, 4])
@pytest.mark.parametrize("roles", ROLES, ids=str)
def test_norms_are_those_of_the_contributions_one_by_one(
    roles: dict[str, Any], classes: int, units: int | None
) -> None:
    table = table_of(classes=classes, units=units, **roles)
    rows = SplitRows.of(table)
    one = SplitContributions(rows, np.random.default_rng(2).normal(size=rows.shape))
    chosen = np.array([0, 3, 4, 16])
    alone = [one.weighted_sum(np.array([i]), np.ones(1)) for i in chosen]
    assert one.norms(chosen) == pytest.approx([np.linalg.norm(u) for u in alone])
    weights = np.array([0.5, 1.0, 0.25, 0.0])
    together = sum(w * u for w, u in zip(weights, alone, strict=True))
    assert one.weighted_sum(chosen, weights) == pytest.approx(together)
    if units is not None:
        plain = SplitContributions(replace(rows, unit=None), one.coef)
        members = np.flatnonzero(table.unit == 3)
        assert alone[1] == pytest.approx(plain.weighted_sum(members, np.ones(len(members))))


def test_public_gradient_reads_nothing_private() -> None:
    table = table_of(classes=3)
    other = replace(table, private=table.private[::-1], label=table.label[::-1])
    rows, changed = SplitRows.of(table), SplitRows.of(other)
    coef = np.random.default_rng(3).normal(size=rows.shape)
    batch = np.arange(0, 60, 2)
    assert np.array_equal(rows.public_gradient(coef, batch), changed.public_gradient(coef, batch))


@given(
    classes=st.sampled_from([0, 2, 3, 5]),
    units=st.sampled_from([None, 9]),
    scale=st.floats(0.01, 30),
    seed=st.integers(0, 10_000),
)
@settings(max_examples=60, deadline=None)
def test_label_contributions_keep_to_the_clip_norm_and_pass_the_pair_test(
    classes: int, units: int | None, scale: float, seed: int
) -> None:
    """Neighbours differ in one unit's labels; nothing is clipped, and the claimed pair holds."""
    rng = np.random.default_rng(seed)
    table = table_of(27, private=0, classes=classes, units=units, seed=seed)
    table = replace(table, public=scale * table.public)
    who = int(rng.integers(table.units))
    mine = np.arange(27) == who if table.unit is None else table.unit == who
    fresh = rng.integers(0, classes, size=27) if classes else rng.choice([2.0, 5.0], size=27)
    neighbour = replace(table, label=np.where(mine, fresh, table.label))
    clip, contribution = contribution_of(table, SplitRows.of(table), "replace", None)
    assert clip == contribution_of(neighbour, SplitRows.of(neighbour), "replace", None)[0]
    rows = SplitRows.of(table)
    coef = rng.normal(size=rows.shape)
    both = [SplitContributions(SplitRows.of(t), coef) for t in (table, neighbour)]
    everyone = np.arange(table.units)
    for side in both:
        assert side.norms(everyone).max() <= clip
    u, v = (side.weighted_sum(np.array([who]), np.ones(1)).ravel() for side in both)
    assert contribution == ("label" if classes > 2 else "general")
    if contribution == "label":
        bound = clip**2 * (1 + 1e-12)
        assert u @ u <= bound
        assert v @ v <= bound
        assert (u - v) @ (u - v) <= 2 * bound
        assert u @ u - u @ v <= bound
        assert v @ v - u @ v <= bound


class _Silence:
    """No noise and every row: what is left of a release is the clipped sum."""

    secure = False
    description = "silence"

    def normal(self, size: int) -> np.ndarray:
        return np.zeros(size)

    def uniform(self, size: int) -> np.ndarray:
        return np.ones(size)


class _Unlimited:
    relation: Any = "replace"

    def charge(self, events: Any, what: str) -> None:
        pass


@given(
    classes=st.sampled_from([0, 2, 3]),
    units=st.sampled_from([None, 9]),
    roles=st.sampled_from(ROLES),
    clip=st.floats(1e-3, 10),
    wild=st.sampled_from([0.0, 1.0, 1e6, 1e200, math.nan, math.inf]),
    everything=st.booleans(),
    seed=st.integers(0, 10_000),
)
@settings(max_examples=80, deadline=None)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_neighbours_move_a_step_by_at_most_twice_the_clip_norm(
    classes: int,
    units: int | None,
    roles: dict[str, Any],
    clip: float,
    wild: float,
    everything: bool,
    seed: int,
) -> None:
    """Whatever a unit's private values and the weights are, replaced or withheld."""
    rng = np.random.default_rng(seed)
    table = table_of(27, classes=classes, units=units, seed=seed, **roles)
    who = int(rng.integers(table.units))
    mine = np.arange(27) == who if table.unit is None else table.unit == who
    private = np.where(mine[:, None], wild * rng.normal(size=table.private.shape), table.private)
    label = table.label
    if table.label_private:
        fresh = rng.integers(0, classes, size=27) if classes else rng.choice([2.0, 5.0], size=27)
        label = np.where(mine, fresh, label)
    neighbour = replace(table, private=private, label=label)
    rows = SplitRows.of(table, everything_private=everything)
    coef = 3 * rng.normal(size=rows.shape)
    sums = []
    for split in (rows, SplitRows.of(neighbour, everything_private=everything)):
        step = PrivateStep(
            Releaser(_Unlimited(), _Silence()), rows=table.units, rate=1.0, clip_norm=clip,
            noise_multiplier=1e-3, steps=1, what="a test",
        )  # fmt: skip
        sums.append(step.release(SplitContributions(split, coef)) * table.units)
    assert np.linalg.norm(sums[0] - sums[1]) <= 2 * clip * (1 + 1e-6)
    others = np.delete(np.arange(table.units), who)
    contributions = SplitContributions(rows, coef)
    weights = clip_weights(contributions.norms(others), clip)
    withheld = contributions.weighted_sum(others, weights)
    assert np.linalg.norm(sums[0] - withheld) <= clip * (1 + 1e-6)


def test_the_label_pair_is_claimed_only_where_it_is_proved() -> None:
    def pair(table: Table, clip_norm: float | None = None, relation: Any = "replace") -> str:
        return contribution_of(table, SplitRows.of(table), relation, clip_norm)[1]

    labels = table_of(private=0, classes=4)
    assert pair(labels) == "label"
    assert pair(labels, clip_norm=0.1) == "general"  # clipped contributions are not covered
    assert pair(labels, relation="withhold") == "general"
    assert pair(table_of(private=0, classes=2)) == "general"  # one weight vector: collinear
    assert pair(table_of(classes=4)) == "general"
    everything = SplitRows.of(labels, everything_private=True)
    assert contribution_of(labels, everything, "replace", None)[1] == "general"


@pytest.mark.parametrize("relation", ["replace", "withhold"])
def test_a_fit_spends_its_budget_and_not_more(relation: Any) -> None:
    releaser = releaser_of(relation=relation)
    table = table_of(private=0, classes=3)
    fit = fit_sgd(table, releaser, epsilon=1.0, delta=1e-5, rate=0.2, steps=20)
    (event,) = releaser.events
    assert isinstance(event, PoissonGaussianEvent)
    assert event.contribution == ("label" if relation == "replace" else "general")
    assert (event.rate, event.steps) == (0.2, 20)
    assert fit.coef.shape == (3, 3)
    assert fit.intercept.shape == (3,)
    with pytest.raises(BudgetExceededError):
        fit_sgd(table, releaser, epsilon=1.0, delta=1e-5, rate=0.2, steps=20)


def test_public_and_private_batches_are_drawn_independently(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The public batch is the same whatever the private noise, and the reverse."""
    drawn: list[list[bytes]] = []
    real = sgd.uniform_rows

    def recorded(rows: int, size: int, generator: np.random.Generator) -> Any:
        batch = real(rows, size, generator)
        drawn[-1].append(batch.tobytes())
        return batch

    monkeypatch.setattr(sgd, "uniform_rows", recorded)
    fits = []
    for noise_seed, public_seed in ((0, 0), (1, 0), (0, 7)):
        drawn.append([])
        fits.append(
            fit_sgd(
                table_of(label_private=False), releaser_of(seed=noise_seed), epsilon=1.0,
                delta=1e-5, rate=0.3, steps=10, public_batch=20, public_seed=public_seed,
            )
        )  # fmt: skip
    assert drawn[0] == drawn[1]
    assert drawn[0] != drawn[2]
    assert len(set(drawn[0])) == 10
    assert not np.allclose(fits[0].coef, fits[1].coef)


class _NoNoise:
    """A step that keeps the mean as it is, to see what the descent does with it."""

    def __init__(self, rows: int, answer: Any = None) -> None:
        self.rows, self.answer, self.seen = rows, answer, []  # type: ignore[var-annotated]

    def release(self, contributions: SplitContributions) -> np.ndarray:
        self.seen.append(contributions.coef.copy())
        everyone = np.arange(self.rows)
        exact = contributions.weighted_sum(everyone, np.ones(self.rows)) / self.rows
        return exact if self.answer is None else np.full(exact.shape, self.answer)


def _settings(**changes: Any) -> sgd.Settings:
    usual = {
        "rate": 1.0, "steps": 40, "learning_rate": 0.5, "radius": 1.0, "clip_norm": 1.0,
        "contribution": "general", "noise_multiplier": 1.0,
    }  # fmt: skip
    return sgd.Settings(**{**usual, **changes})


def test_every_iterate_lies_in_the_ball_and_aggregates_are_what_they_say() -> None:
    rows = SplitRows.of(table_of())
    found = {}
    for aggregate in ("last", "average", "tail"):
        step: Any = _NoNoise(60, answer=5.0)
        config = SgdConfig(aggregate=aggregate)
        found[aggregate] = descend(step, rows, _settings(), config, units_per_row=1.0)
        assert max(np.linalg.norm(coef) for coef in step.seen) <= 1 + 1e-12
        assert np.linalg.norm(step.seen[-1]) == pytest.approx(1)
    assert np.linalg.norm(found["last"]) == pytest.approx(1)
    assert found["average"] == pytest.approx(np.mean(step.seen, axis=0))
    assert found["tail"] == pytest.approx(np.mean(step.seen[20:], axis=0))


@pytest.mark.parametrize("roles", ROLES, ids=str)
@pytest.mark.parametrize("units", [None, 20])
def test_without_noise_descent_reaches_the_optimum(
    roles: dict[str, Any], units: int | None
) -> None:
    table = table_of(classes=3, units=units, **roles)
    rows = SplitRows.of(table)
    step: Any = _NoNoise(table.units)
    free = _settings(steps=1000, learning_rate=2.0, radius=100.0)
    coef = descend(
        step, rows, free, SgdConfig(aggregate="last", public_batch=60),
        units_per_row=table.units / table.n,
    )  # fmt: skip
    everyone = np.arange(table.units)
    private = SplitContributions(rows, coef).weighted_sum(everyone, np.ones(len(everyone))) / 60
    assert np.abs(rows.public_gradient(coef, np.arange(60)) + private).max() < 2e-3


def test_the_empty_batch_is_legal() -> None:
    rows = SplitRows.of(table_of(classes=3))
    none = np.zeros(0, dtype=np.int64)
    for split in (rows, replace(rows, unit=np.arange(60) // 3)):
        empty = SplitContributions(split, np.ones(rows.shape))
        assert empty.norms(none).shape == (0,)
        assert np.array_equal(empty.weighted_sum(none, np.zeros(0)), np.zeros(rows.shape))
    fit = fit_sgd(table_of(), releaser_of(), epsilon=1.0, delta=1e-5, rate=0.01, steps=50)
    assert np.isfinite(fit.coef).all()


def test_dp_sgd_ignores_that_columns_are_public() -> None:
    table = table_of(label_private=False)
    hidden = replace(
        table, public=np.zeros((60, 0)), private=np.hstack([table.public, table.private]),
        public_norm=0.0, private_norm=math.sqrt(2), public_sources=(), label_private=True,
    )  # fmt: skip
    options = {"epsilon": 1.0, "delta": 1e-5, "rate": 0.5, "steps": 5, "clip_norm": 1.0}
    fits = [fit_dp_sgd(t, releaser_of(), **options, learning_rate=0.1) for t in (table, hidden)]
    # The constant moves to another column, so noise differs; what is charged does not.
    assert fits[0].details == fits[1].details
    rows = SplitRows.of(table, everything_private=True)
    assert not rows.public_gradient(np.ones(rows.shape), np.arange(60)).any()


def test_regression_is_handed_back_in_the_units_of_the_label() -> None:
    table = table_of(400, private=0, classes=0)
    table = replace(table, label=np.clip(3.5 + table.public[:, 0], 2, 5))
    fit = fit_sgd(table, releaser_of(100.0), epsilon=100.0, delta=1e-5, rate=1.0, steps=300)
    predicted = table.public @ fit.coef[0] + fit.intercept[0]
    assert np.sqrt(np.mean((predicted - table.label) ** 2)) < 0.1


def test_a_public_regulariser_is_followed_and_sees_public_rows_alone() -> None:
    seen = []

    def pull(coef: np.ndarray, public: np.ndarray) -> np.ndarray:
        seen.append(public.shape)
        return 1e3 * coef

    fit = fit_sgd(
        table_of(), releaser_of(), epsilon=1.0, delta=1e-5, rate=0.5, steps=5,
        learning_rate=1e-3, regulariser=pull,
    )  # fmt: skip
    assert set(seen) == {(60, 4)}
    assert np.linalg.norm(fit.coef) < 0.1


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"aggregate": "best"}, "expected last, average or tail"),
        ({"rate": 0.0}, "sampling rate in"),
        ({"steps": 0}, "steps >= 1"),
        ({"radius": -1.0}, "radius > 0"),
        ({"clip_norm": math.inf}, "clip_norm > 0"),
        ({"rates": 0.5}, "Unknown option"),
        ({"loss": "softmax-ish"}, "Unknown loss"),
    ],
)
def test_wrong_options_are_named(options: dict[str, Any], words: str) -> None:
    releaser = releaser_of()
    with pytest.raises(InputError, match=words):
        linear_method("sgd")(table_of(), releaser, epsilon=1.0, delta=1e-5, **options)
    assert releaser.events == ()


def test_nothing_private_is_refused() -> None:
    with pytest.raises(InputError, match="Nothing is private"):
        fit_sgd(table_of(private=0, label_private=False), releaser_of(), epsilon=1.0, delta=1e-5)
