"""`label-span`: which releases are made, what they are charged, and who may use it."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from halfmask.accounting.events import GaussianEvent
from halfmask.accounting.gaussian import gaussian_mu
from halfmask.accounting.ledger import MemoryLedger
from halfmask.errors import BudgetExceededError, InputError
from halfmask.mechanisms.noise import noise_source, public_generator
from halfmask.mechanisms.release import Releaser
from halfmask.methods.fitted import linear_method
from halfmask.methods.label_span import (
    LabelSpanConfig,
    budget_shares,
    draw_examples,
    fit_label_span,
    label_sensitivity,
)
from halfmask.methods.sgd import SplitRows
from halfmask.settings import config_for
from halfmask.table import Table
from halfmask_lab.label_logistic import Setting, synthetic
from halfmask_lab.results import mean_loss


def table_of(n: int = 50, classes: int = 4, units: int | None = None) -> Table:
    table = synthetic(Setting(rows=n, columns=3, classes=max(classes, 2)), seed=1)
    if classes == 0:
        label = np.random.default_rng(0).uniform(2, 5, size=n)
        table = replace(
            table, task="regression", classes=None, label=label, label_bounds=(2.0, 5.0)
        )
    if units is not None:
        table = replace(table, unit=np.sort(np.arange(n) % units), max_rows=math.ceil(n / units))
    return table


def releaser_of(relation: Any = "replace", epsilon: float = 1.0) -> Releaser:
    return Releaser(MemoryLedger(epsilon=epsilon, delta=1e-5, relation=relation), noise_source(0))


class _Recorded(Releaser):
    """Keeps what is about to be released, before noise."""

    def __init__(self, releaser: Releaser) -> None:
        super().__init__(releaser._book, releaser.noise)
        self.values: list[np.ndarray] = []
        self.stds: list[float] = []

    def noisy(self, value: Any, noise_std: float, event: Any = None, what: str = "") -> Any:
        self.values.append(np.array(value))
        self.stds.append(noise_std)
        return super().noisy(value, noise_std, event, what)


@given(
    classes=st.sampled_from([0, 2, 3, 6]),
    units=st.sampled_from([None, 10]),
    order=st.sampled_from(["passes", "uniform"]),
    passes=st.integers(1, 3),
    seed=st.integers(0, 1000),
)
@settings(max_examples=40, deadline=None)
def test_neighbours_move_all_releases_together_by_no_more_than_was_charged(
    classes: int, units: int | None, order: Any, passes: int, seed: int
) -> None:
    """√Σ(‖change of a release‖/its noise)² over every release of a run is at most μ."""
    rng = np.random.default_rng(seed)
    table = table_of(30, classes, units)
    who = int(rng.integers(table.units))
    mine = np.arange(30) == who if table.unit is None else table.unit == who
    fresh = rng.integers(0, classes, size=30) if classes else rng.choice([2.0, 5.0], size=30)
    neighbour = replace(table, label=np.where(mine, fresh, table.label))
    runs = [_Recorded(releaser_of()) for _ in range(2)]
    for run, data in zip(runs, (table, neighbour), strict=True):
        fit_label_span(data, run, LabelSpanConfig(passes=passes, order=order))
    moved = sum(
        float(np.sum((a - b) ** 2)) / std**2
        for a, b, std in zip(runs[0].values, runs[1].values, runs[0].stds, strict=True)
    )
    assert len(runs[0].stds) >= passes
    assert runs[0].stds == runs[1].stds
    assert math.sqrt(moved) <= gaussian_mu(1.0, 1e-5)


@pytest.mark.parametrize("relation", ["replace", "withhold"])
@pytest.mark.parametrize("order", ["passes", "uniform"])
def test_the_charge_is_the_whole_budget_once(relation: Any, order: Any) -> None:
    releaser = releaser_of(relation)
    fit_label_span(table_of(), releaser, LabelSpanConfig(passes=2, order=order))
    assert all(isinstance(event, GaussianEvent) for event in releaser.events)
    square = sum(getattr(event, relation) ** 2 for event in releaser.events)
    assert math.sqrt(square) == pytest.approx(gaussian_mu(1.0, 1e-5), rel=1e-6)
    with pytest.raises(BudgetExceededError):
        fit_label_span(table_of(), releaser)


@given(
    n=st.integers(1, 200),
    passes=st.integers(1, 4),
    order=st.sampled_from(["passes", "uniform"]),
    seed=st.integers(0, 99),
)
def test_shares_add_up_and_uses_count_every_example_once(
    n: int, passes: int, order: Any, seed: int
) -> None:
    config = LabelSpanConfig(passes=passes, order=order)
    shares, overhead = budget_shares(n, config)
    assert shares.sum() == pytest.approx(1)
    assert overhead >= passes * (1 - 1e-9)
    examples, uses = draw_examples(n, config, public_generator(seed))
    assert len(examples) == n * passes
    for use in range(int(uses.max()) + 1):
        here = examples[uses == use]
        assert len(here) == len(set(here.tolist()))
    if order == "passes":
        assert np.array_equal(np.bincount(examples, minlength=n), np.full(n, passes))


def test_mean_noise_over_steps_is_the_overhead() -> None:
    config = LabelSpanConfig(passes=1, order="uniform")
    shares, overhead = budget_shares(20_000, config)
    _, uses = draw_examples(20_000, config, public_generator(3))
    assert np.mean(1 / shares[uses]) == pytest.approx(overhead, rel=0.05)


def test_noise_lies_in_the_span_of_the_labels_slopes() -> None:
    """Whatever is added to a step, over all classes it sums to zero as the slopes do."""
    fit = fit_label_span(table_of(classes=5), releaser_of())
    assert np.abs(fit.coef.sum(axis=0)).max() < 1e-9
    assert abs(fit.intercept.sum()) < 1e-9
    assert np.abs(fit.coef).max() > 0


def test_units_pay_for_all_their_rows() -> None:
    alone = label_sensitivity(SplitRows.of(table_of(40)))
    many = label_sensitivity(SplitRows.of(table_of(40, units=10)))
    assert many.replace == pytest.approx(2 * alone.replace)
    assert alone.replace == pytest.approx(math.sqrt(2))
    assert alone.withhold == pytest.approx(math.sqrt(1 - 1 / 4))


def test_it_learns_where_the_budget_is_large() -> None:
    table = synthetic(Setting(rows=4000, columns=5, classes=3), seed=0)
    split = SplitRows.of(table)
    fit = linear_method("label-span")(table, releaser_of(epsilon=50.0))
    given = (split.loss, np.hstack([split.public[:], split.private[:]]), split.target)
    reached = mean_loss(*given, np.hstack([fit.coef, fit.intercept[:, None]]))
    assert reached < mean_loss(*given, np.zeros(split.shape)) - 0.15


@pytest.mark.parametrize(
    ("changes", "options", "words"),
    [
        ({"label_private": False}, {}, "the label is public"),
        (
            {"private": np.ones((50, 1)), "private_sources": ("age",)},
            {},
            "private columns are: age.*Use gd, sgd or one-shot",
        ),
        ({}, {"passes": 0}, "passes >= 1"),
        ({}, {"order": "sorted"}, "expects passes, uniform"),
        ({}, {"aggregate": "best"}, "expects last, average, tail"),
        ({}, {"radius": 0.0}, "radius > 0"),
        ({}, {"steps": 5}, "no setting 'steps'"),
    ],
)
def test_what_it_cannot_do_is_said_before_anything_is_charged(
    changes: dict[str, Any], options: dict[str, Any], words: str
) -> None:
    releaser, table = releaser_of(), table_of()
    if "private" in changes:
        table = table.with_blocks(private=changes["private"])
    changed = {name: value for name, value in changes.items() if name != "private"}
    table = replace(table, **changed)
    with pytest.raises(InputError, match=words):
        fit_label_span(table, releaser, config_for("label-span", options))
    assert releaser.events == ()
