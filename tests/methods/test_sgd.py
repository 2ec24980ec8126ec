"""Algorithm 1 on linear models: budget, batches, projection, averages, options."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from roles import ROLES, releaser_of, table_of

from halfmask.accounting.events import PoissonGaussianEvent
from halfmask.errors import BudgetExceededError, InputError
from halfmask.methods import sgd
from halfmask.methods.sgd import (
    DpSgdConfig,
    SgdConfig,
    SplitContributions,
    SplitRows,
    descend,
    fit_dp_sgd,
    fit_sgd,
)
from halfmask.settings import config_for


@pytest.mark.parametrize("relation", ["replace", "withhold"])
def test_a_fit_spends_its_budget_and_not_more(relation: Any) -> None:
    releaser = releaser_of(relation=relation)
    table = table_of(private=0, classes=3)
    fit = fit_sgd(table, releaser, SgdConfig(rate=0.2, steps=20))
    (event,) = releaser.events
    assert isinstance(event, PoissonGaussianEvent)
    assert event.contribution == ("label" if relation == "replace" else "general")
    assert (event.rate, event.steps) == (0.2, 20)
    assert fit.coef.shape == (3, 3)
    assert fit.intercept.shape == (3,)
    with pytest.raises(BudgetExceededError):
        fit_sgd(table, releaser, SgdConfig(rate=0.2, steps=20))


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
                table_of(label_private=False),
                releaser_of(seed=noise_seed),
                SgdConfig(rate=0.3, steps=10, public_batch=20, public_seed=public_seed),
            )
        )
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


def _settings(**changes: Any) -> sgd.SgdPlan:
    usual = {
        "rate": 1.0, "steps": 40, "learning_rate": 0.5, "radius": 1.0, "clip_norm": 1.0,
        "contribution": "general", "noise_multiplier": 1.0,
    }  # fmt: skip
    return sgd.SgdPlan(**{**usual, **changes})


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
    fit = fit_sgd(table_of(), releaser_of(), SgdConfig(rate=0.01, steps=50))
    assert np.isfinite(fit.coef).all()


def test_dp_sgd_ignores_that_columns_are_public() -> None:
    table = table_of(label_private=False)
    hidden = replace(
        table.with_blocks(
            public=np.zeros((60, 0)), private=np.hstack([table.public, table.private])
        ),
        public_norm=0.0, private_norm=math.sqrt(2), public_sources=(), label_private=True,
    )  # fmt: skip
    config = DpSgdConfig(rate=0.5, steps=5, clip_norm=1.0, learning_rate=0.1)
    fits = [fit_dp_sgd(t, releaser_of(), config) for t in (table, hidden)]
    # The constant moves to another column, so noise differs; what is charged does not.
    assert fits[0].details == fits[1].details
    rows = SplitRows.of(table, everything_private=True)
    assert not rows.public_gradient(np.ones(rows.shape), np.arange(60)).any()


def test_regression_is_handed_back_in_the_units_of_the_label() -> None:
    table = table_of(400, private=0, classes=0)
    table = replace(table, label=np.clip(3.5 + table.public[:, 0], 2, 5))
    fit = fit_sgd(table, releaser_of(100.0), SgdConfig(rate=1.0, steps=300))
    predicted = table.public @ fit.coef[0] + fit.intercept[0]
    assert np.sqrt(np.mean((predicted - table.label) ** 2)) < 0.1


def test_a_public_regulariser_is_followed_and_sees_public_rows_alone() -> None:
    seen = []

    def pull(coef: np.ndarray, public: np.ndarray) -> np.ndarray:
        seen.append(public.shape)
        return 1e3 * coef

    config = SgdConfig(rate=0.5, steps=5, learning_rate=1e-3, regulariser=pull)
    fit = fit_sgd(table_of(), releaser_of(), config)
    assert set(seen) == {(60, 4)}
    assert np.linalg.norm(fit.coef) < 0.1


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"aggregate": "best"}, "expects last, average, tail, ema"),
        ({"rate": 0.0}, "sampling rate in"),
        ({"steps": 0}, "steps >= 1"),
        ({"radius": -1.0}, "radius > 0"),
        ({"clip_norm": math.inf}, "clip_norm > 0"),
        ({"rates": 0.5}, "no setting 'rates'.*rate .a number"),
        ({"loss": "softmax-ish"}, "loss expects logistic, softmax"),
    ],
)
def test_wrong_options_are_named(options: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        config_for("sgd", options)


def test_nothing_private_is_refused() -> None:
    with pytest.raises(InputError, match="Nothing is private"):
        fit_sgd(table_of(private=0, label_private=False), releaser_of())
