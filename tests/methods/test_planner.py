"""The planner: its answers are consistent with each other and with the bounds behind them."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from halfmask.accounting.accountant import epsilon as account
from halfmask.accounting.events import GaussianEvent, PoissonGaussianEvent
from halfmask.errors import AccountingError, InputError
from halfmask.methods import planner
from halfmask.methods.auto import Choice, Problem, choose
from halfmask.methods.planner import RunFacts, expected_run, paper_plan, plan_run

ADULT = RunFacts(rows=32561, columns=120, epsilon=1.0, delta=1e-6)
MNIST = RunFacts(rows=60000, columns=784, public=784, classes=10, epsilon=1.0, delta=1e-5)


@pytest.mark.parametrize("task", [ADULT, MNIST, replace(MNIST, classes=0)])
def test_the_method_is_the_one_that_training_would_choose(task: RunFacts) -> None:
    made = plan_run(task)
    problem = Problem(
        public_columns=task.public,
        private_columns=task.columns - task.public,
        label_private=task.label_private,
        task="classification" if task.classes else "regression",
        classes=task.classes,
    )
    assert (made.method, made.reason) == (choose(problem).method, choose(problem).reason)


@given(
    rows=st.integers(50, 10**7),
    columns=st.integers(1, 500),
    epsilon=st.floats(0.05, 10),
    target=st.floats(1e-4, 0.2),
    classes=st.sampled_from([0, 2, 7]),
    labels_only=st.booleans(),
    relation=st.sampled_from(["replace", "withhold"]),
)
@settings(deadline=None, max_examples=30)
def test_rows_needed_reach_the_target_and_half_of_them_do_not(
    rows: int,
    columns: int,
    epsilon: float,
    target: float,
    classes: int,
    labels_only: bool,
    relation: Any,
) -> None:
    task = RunFacts(
        rows=rows,
        columns=columns,
        epsilon=epsilon,
        delta=1e-6,
        classes=classes,
        public=columns if labels_only else 0,
        relation=relation,
    )
    made = plan_run(task, target_error=target)
    needed = expected_run(replace(task, rows=made.rows_needed), made.method)
    assert needed.error <= target
    fewer = max(1, made.rows_needed // 2)
    assert made.rows_needed == 1 or expected_run(replace(task, rows=fewer), made.method).error > (
        target
    )
    centre = [row for row in made.table if row["rows"] == rows and row["epsilon"] == epsilon]
    assert centre[0]["error_bound"] == pytest.approx(made.error_bound)


@pytest.mark.parametrize("relation", ["replace", "withhold"])
def test_the_noise_of_gd_spends_the_budget(relation: Any) -> None:
    made = plan_run(replace(ADULT, relation=relation), method="gd")
    event = GaussianEvent(
        replace=2 / made.noise_multiplier, withhold=1 / made.noise_multiplier, count=made.steps
    )
    assert account([event], delta=1e-6, relation=relation) == pytest.approx(1.0, rel=1e-6)


def test_the_noise_of_sgd_spends_the_budget_with_sampling() -> None:
    made = expected_run(MNIST, "sgd")
    assert 0 < made.rate < 1
    event = PoissonGaussianEvent(
        noise_multiplier=made.noise_multiplier,
        rate=made.rate,
        steps=made.steps,
        contribution="label",
    )
    assert 0.995 <= account([event], delta=1e-5, relation="replace") <= 1.0


@pytest.mark.parametrize("method", ["one-shot", "gd", "label-span"])
def test_the_bound_falls_in_rows_and_epsilon_and_rises_in_columns(method: str) -> None:
    task = replace(MNIST, rows=1_000_000)

    def error(**changes: Any) -> float:
        return expected_run(replace(task, **changes), method).error

    assert error(rows=2_000_000) < error() < error(rows=500_000)
    assert error(epsilon=2.0) < error() < error(epsilon=0.5)
    assert error(relation="withhold") < error()
    wider = error(columns=1568, public=1568)
    assert wider == error() if method == "label-span" else wider > error()


def test_sampled_sums_fall_with_n_where_single_labels_fall_with_its_root() -> None:
    """F's comparison in closed form: ×4 rows divide the error by 4, or by 2."""
    task = replace(MNIST, rows=10**6)
    more = replace(MNIST, rows=4 * 10**6)
    ratios = {
        method: expected_run(task, method).error / expected_run(more, method).error
        for method in ("one-shot", "label-span")
    }
    assert ratios["one-shot"] == pytest.approx(4, rel=0.01)
    assert ratios["label-span"] == pytest.approx(2, rel=0.01)


def test_no_bound_exceeds_the_width_of_the_ball() -> None:
    tiny = RunFacts(rows=2, columns=500, epsilon=0.01, delta=1e-9)
    assert expected_run(tiny, "gd").error <= 2
    assert plan_run(tiny).steps >= 1


def test_a_method_without_closed_form_is_named_with_the_numbers_of_gd(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(planner, "choose", lambda _: Choice(method="one-shot", reason="a reason"))
    made = plan_run(ADULT)
    assert (made.method, made.numbers_of, made.reason) == ("one-shot", "gd", "a reason")
    assert made.error_bound == plan_run(ADULT, method="gd").error_bound
    assert plan_run(MNIST).numbers_of == "one-shot"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"rows": 0}, "at least one row"),
        ({"columns": 0}, "at least one column"),
        ({"public": 121}, "between 0 and 120 public columns"),
        ({"classes": 1}, "2 classes or more"),
        ({"epsilon": 0.0}, "epsilon > 0"),
        ({"delta": 1.0}, "delta strictly between"),
        ({"relation": "swap"}, "Unknown relation"),
    ],
)
def test_impossible_tasks_are_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises((InputError, AccountingError), match=words):
        replace(ADULT, **changes)


def test_impossible_wishes_are_refused() -> None:
    with pytest.raises(InputError, match="target error > 0"):
        plan_run(ADULT, target_error=0.0)
    with pytest.raises(InputError, match="target error > 0"):
        paper_plan(MNIST, target_error=-1.0)
    with pytest.raises(InputError, match="Unknown method 'magic'"):
        plan_run(ADULT, method="magic")
    with pytest.raises(InputError, match="label alone is private"):
        plan_run(ADULT, method="label-span")
    with pytest.raises(InputError, match="nothing to protect"):
        plan_run(replace(MNIST, label_private=False))


def test_the_papers_theorems_are_planned_with_the_accountants_noise() -> None:
    made = paper_plan(MNIST, target_error=0.05)
    assert made["pair_lipschitz"] == pytest.approx(math.sqrt(2))
    assert made["private_lipschitz"] == 1.0
    assert 0 < made["error_bound"] <= 2 * MNIST.gradient_bound
    # The closed form is an order of magnitude: never what is used.
    assert made["noise_of_theorem_2_1"] != made["noise_std"]
    found = made["crossover"]
    assert found["claimed_rows"] == pytest.approx(math.sqrt(10 * 785 / 10))
    # It grows with d/K rather than with its root: the paper lets the steps of both be free, but a
    # pass over n labels has n steps.
    assert found["rows"] > 2 * found["claimed_rows"]
    wider = paper_plan(replace(MNIST, columns=4 * 784, public=4 * 784), target_error=0.05)
    assert 3 < wider["crossover"]["rows"] / found["rows"] < 5
    assert paper_plan(ADULT, target_error=0.05)["crossover"] is None
