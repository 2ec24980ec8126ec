"""Noisy gradient descent as the lecture has it: its schedule, its charge, its bound."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from halfmask.accounting.budget import Budget
from halfmask.accounting.gaussian import gaussian_mu
from halfmask.accounting.ledger import MemoryLedger
from halfmask.cli import main
from halfmask.errors import InputError
from halfmask.mechanisms.noise import noise_source
from halfmask.methods.bounds import excess_of_lecture
from halfmask.methods.gd import LectureConfig
from halfmask.table import Table
from halfmask.training import train
from halfmask_lab import dp_erm


def fitted(
    config: LectureConfig, *, epsilon: float = 1.0, seed: int | None = 0, **data: Any
) -> Any:
    X, y = dp_erm.drawn(data.get("rows", 400), data.get("columns", 5), 3)
    return train(
        Table.from_arrays(X, y, row_norm=1.0, task="classification"),
        Budget(epsilon=epsilon, delta=1e-6, relation=data.get("relation", "replace")),
        method=config,
        noise=noise_source(seed),
    )


def test_the_schedule_is_the_lectures() -> None:
    model = fitted(LectureConfig(radius=2.0, steps=50))
    told = model.details
    assert (told["steps"], told["releases"], told["recipe"]) == (50, 49, "lecture")
    assert told["lipschitz"] == pytest.approx(math.sqrt(2))  # a row of norm 1 and the constant
    size = math.sqrt(told["lipschitz"] ** 2 + 6 * (told["noise_std"] / 400) ** 2)
    assert told["step_size"] == pytest.approx(2.0 / (size * math.sqrt(50)))
    assert np.linalg.norm(np.append(model.fit.coef, model.fit.intercept)) <= 2.0
    (event,) = model.privacy.events
    assert event.count == 49
    # One Gaussian of 49 releases: 2C over the noise, at most by the hair that rounding costs.
    assert event.replace == pytest.approx(2 * told["lipschitz"] / told["noise_std"], rel=1e-3)
    assert 0.999 < model.privacy.calibrated_epsilon <= 1.0


@pytest.mark.parametrize("relation", ["replace", "withhold"])
def test_the_budget_is_met_under_both_relations(relation: str) -> None:
    model = fitted(LectureConfig(), relation=relation, seed=None)
    assert 0.999 < model.privacy.epsilon <= 1.0
    assert model.privacy.relation == relation


def test_without_noise_it_is_projected_descent_from_zero_averaged() -> None:
    model = fitted(LectureConfig(radius=1.0, steps=4), epsilon=1e9)
    X, y = dp_erm.drawn(400, 5, 3)
    rows, theta = np.column_stack([X, np.ones(400)]), np.zeros(6)
    kept = [theta]
    for _ in range(3):
        slope = 1 / (1 + np.exp(-rows @ theta)) - y
        theta = theta - model.details["step_size"] * rows.T @ slope / 400
        theta = theta / max(1.0, float(np.linalg.norm(theta)))
        kept.append(theta)
    found = np.append(model.fit.coef, model.fit.intercept)
    assert np.allclose(found, np.mean(kept, axis=0), atol=1e-3)


@pytest.mark.parametrize("columns", [3, 20])
def test_the_mean_excess_risk_is_below_the_bound(columns: int) -> None:
    X, y = dp_erm.drawn(600, columns, 3)
    least = dp_erm.best_in_ball(X, y, 2.0)
    found = []
    for seed in range(8):
        config = LectureConfig(radius=2.0, steps=200)
        model = fitted(config, seed=seed, rows=600, columns=columns)
        theta = np.append(model.fit.coef, model.fit.intercept)
        found.append(dp_erm.risk(theta, X, y) - least)
    assert 0 < np.mean(found) < model.details["error_bound"]
    assert model.details["error_bound"] < 2 * 2.0 * math.sqrt(2)  # it says something


def test_the_best_of_the_ball_is_the_best_of_the_ball() -> None:
    X, y = dp_erm.drawn(300, 4, 1)
    for radius in (0.5, 100.0):
        least = dp_erm.best_in_ball(X, y, radius)
        rng = np.random.default_rng(0)
        for _ in range(300):
            theta = rng.normal(size=5)
            theta *= radius * rng.random() / np.linalg.norm(theta)
            assert dp_erm.risk(theta, X, y) >= least - 1e-9


def test_numbers_and_classes_fit_and_mistakes_cost_nothing() -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 3))
    for y, task in ((X[:, 0], "regression"), (np.arange(200) % 3, "classification")):
        table = Table.from_arrays(X, y, task=task, label_bounds=(-3.0, 3.0))  # type: ignore[arg-type]
        model = train(
            table,
            Budget(epsilon=1.0, delta=1e-6),
            method=LectureConfig(steps=5),
            noise=noise_source(0),
        )
        assert np.isfinite(model.scores(table)).all()
    budget = MemoryLedger(epsilon=1.0, delta=1e-6)
    for wrong in ({"radius": 0.0}, {"steps": 1}, {"loss": "hinge"}):
        with pytest.raises(InputError):
            train(
                table,
                Budget(epsilon=1.0, delta=1e-6),
                method="gd",
                options={"recipe": "lecture", **wrong},
                noise=noise_source(0),
                ledger=budget,
            )
    assert budget.events() == ()


def planned(*words: str) -> Any:
    start = ["plan", "--rows", "20000", "--columns", "50", "--epsilon", "1", "--delta", "1e-6"]
    return CliRunner().invoke(main, [*start, *words])


def test_plan_answers_with_the_lectures_theorem() -> None:
    done = planned("--method", "gd", "--bound", "lecture", "--target-error", "0.05", "--json")
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    common = {"radius": 1.0, "lipschitz": 1.0, "parameters": 51, "mu": gaussian_mu(1.0, 1e-6)}
    assert told["error_bound"] == pytest.approx(
        excess_of_lecture(rows=20000, steps=told["steps"], **common)
    )
    reached = excess_of_lecture(rows=told["rows_needed"], steps=told["steps_needed"], **common)
    assert reached <= 0.05 * (1 + 1e-9)
    fewer = excess_of_lecture(rows=told["rows_needed"] // 2, steps=told["steps_needed"], **common)
    assert fewer > 0.05
    # The lecture's own T = 4(RC/α)² and n = 4RCσ√d/α, σ = 1/μ being the exact one.
    assert told["steps_as_written"] == pytest.approx(4 / 0.05**2)
    wanted = 4 * np.sqrt(51) / (0.05 * gaussian_mu(1.0, 1e-6))
    assert told["rows_as_written"] == pytest.approx(wanted, abs=1)
    # Each step on its own terms costs about √k times as much as all of them as one Gaussian.
    assert told["noise_multiplier_naive"] > 10 * told["noise_multiplier"]
    assert "Theorem 1" in planned("--method", "gd", "--bound", "lecture").output
    assert planned("--method", "sgd", "--bound", "lecture").exit_code == 2


def test_reproduce_dp_erm_finds_no_mean_above_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    small = {"rows": (300, 1200), "columns": (3, 12), "epsilon": (0.5, 2.0)}
    monkeypatch.setattr(dp_erm, "SWEEPS", small)
    monkeypatch.setattr(dp_erm, "MIDDLE", {"rows": 600, "columns": 5, "epsilon": 1.0})
    monkeypatch.setattr(dp_erm, "MOST_STEPS", 200)
    done = CliRunner().invoke(main, ["reproduce", "dp-erm", "--draws", "2", "--json"])
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert told["means_above_the_bound"] == 0
    assert len(told["results"]) == 12
    assert told["slopes"]["rows"]["bound"] < 0 < told["slopes"]["columns"]["bound"]
