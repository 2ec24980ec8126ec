"""What auto chooses, from public facts alone, and that it says why."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from halfmask.errors import InputError
from halfmask.methods import auto
from halfmask.methods.auto import Problem, choose
from halfmask.methods.planner import RunFacts, plan_run
from halfmask.schema import Column, Label, Schema
from halfmask.table import Encoder

LOCATION = Problem(
    public_columns=74,
    private_columns=372,
    label_private=False,
    task="classification",
    classes=30,
)


@pytest.mark.parametrize(
    ("change", "method"),
    [
        ({}, "mlp"),
        ({"classes": 2}, "gd"),
        ({"private_columns": 15}, "gd"),
        ({"rows_per_unit": 3}, "gd"),
        ({"label_private": True}, "gd"),
        ({"task": "regression", "classes": 0}, "gd"),
        ({"label_private": True, "private_columns": 0}, "one-shot"),
    ],
)
def test_the_choice_follows_from_roles_and_sizes(change: dict[str, Any], method: str) -> None:
    if method == "mlp":
        pytest.importorskip("torch")
    choice = choose(replace(LOCATION, **change))
    assert choice.method == method
    assert len(choice.reason) > 20


def test_columns_are_counted_not_their_features() -> None:
    """A few categories of many levels are still few columns: every machine and file must agree."""
    levels = tuple(str(level) for level in range(20))
    schema = Schema(
        label=Label(name="kind", role="public", classes=(0, 1, 2)),
        columns=tuple(
            Column(name=f"x{i}", role="private", kind="category", categories=levels)
            for i in range(3)
        ),
    )
    frame = pa.table({"x0": levels, "x1": levels, "x2": levels, "kind": [i % 3 for i in range(20)]})
    table = Encoder.fit(schema, frame).encode(frame)
    problem = Problem.of(table)
    assert (problem.private_columns, problem.public_columns) == (3, 0)
    assert choose(problem).method == "additive"


def test_without_torch_the_choice_is_a_method_that_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auto, "find_spec", lambda name: None)
    assert choose(LOCATION).method == "gd"


def test_nothing_to_protect_is_an_error() -> None:
    with pytest.raises(InputError, match="nothing to protect"):
        choose(replace(LOCATION, private_columns=0))


def test_a_plan_says_that_training_would_use_a_network() -> None:
    pytest.importorskip("torch")
    made = plan_run(
        RunFacts(
            rows=4000,
            columns=446,
            public=74,
            classes=30,
            label_private=False,
            epsilon=8.0,
            delta=1e-5,
        )
    )
    assert made.method == "gd"
    assert "mlp" in made.reason
