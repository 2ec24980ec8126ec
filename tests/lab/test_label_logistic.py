"""The label-DP case study in small: slopes, bounds, and the form of the result."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from halfmask.losses import Loss
from halfmask.methods.sgd import SplitRows
from halfmask.storage import plain
from halfmask.types import Floats
from halfmask_lab.label_logistic import (
    METHODS,
    Setting,
    _first_below,
    excess_bound,
    run,
    synthetic,
)
from halfmask_lab.results import mean_loss, minimum


def problem(setting: Setting, seed: int) -> tuple[Loss, Floats, Floats]:
    split = SplitRows.of(synthetic(setting, seed=seed))
    return split.loss, split.public[:], split.target


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    told: list[float] = []
    result = run(
        None,
        tmp_path_factory.mktemp("out"),
        lambda share, text: told.append(share),
        draws=3,
        epsilon=2.0,
        steps=300,
        base=Setting(rows=500, columns=8, classes=3),
        rows=(500, 2000),
        columns=(8, 24),
        classes=(3, 9),
    )
    assert told == sorted(told)
    assert 0 <= told[0] <= told[-1] < 1
    return result


def test_the_result_has_the_form_of_every_reproduction(small: dict[str, Any]) -> None:
    assert small["name"] == "label-logistic"
    assert small["data"].startswith("stand-in: synthetic")
    assert Path(small["figure"]).read_bytes().startswith(b"\x89PNG")
    assert [row["method"] for row in small["results"]] == list(METHODS)
    for row in small["results"]:
        assert row["metric"] == "train_objective"
        assert (row["epsilon"], row["delta"], row["relation"]) == (2.0, 1e-5, "replace")
        assert row["draws"] == 3
    json.dumps(plain(small), allow_nan=False)


def test_sampled_sums_fall_faster_in_rows_than_one_label_at_a_time(small: dict[str, Any]) -> None:
    slopes = small["slopes"]
    assert slopes["sgd"]["rows"] < -1.2
    assert slopes["dp-sgd"]["rows"] < -1.2
    assert -0.9 < slopes["label-span"]["rows"] < 0
    assert slopes["sgd"]["rows"] < slopes["label-span"]["rows"] - 0.5


def test_label_span_grows_with_classes_and_not_with_columns(small: dict[str, Any]) -> None:
    slopes = small["slopes"]
    assert slopes["label-span"]["classes"] > 0.4
    assert slopes["label-span"]["columns"] < 0.4
    assert slopes["sgd"]["columns"] > 0.6


def test_hiding_public_columns_costs_more(small: dict[str, Any]) -> None:
    mean = {row["method"]: row["mean"] for row in small["results"]}
    assert mean["sgd"] < mean["dp-sgd"] < mean["label-span"]


def test_measured_excess_is_never_above_the_corrected_bound(small: dict[str, Any]) -> None:
    assert small["above_bound"] == 0
    for row in small["excess"]:
        assert 0 < row["mean"] <= row["bound"]


def test_bounds_are_worth_something_at_the_published_size() -> None:
    """Below what no model at all loses, so that staying under them says something."""
    setting = Setting(rows=8000, columns=10, classes=3)
    given = problem(setting, seed=0)
    best = minimum(*given)
    idle = mean_loss(*given, np.zeros(best.shape)) - mean_loss(*given, best)
    assert excess_bound("one-shot", setting, epsilon=4.0, steps=1000) < idle / 2
    assert excess_bound("sgd", setting, epsilon=4.0, steps=1000) < idle / 2


def test_the_crossover_with_one_label_at_a_time_is_found_and_claimed_too_early(
    small: dict[str, Any],
) -> None:
    found = small["crossover"]
    assert found["claimed"] == pytest.approx(np.sqrt(3 * 9 / 3))
    assert found["claimed"] < found["bounds"]
    there = Setting(rows=int(found["bounds"]), columns=8, classes=3)
    sgd, span = (
        excess_bound(method, there, epsilon=2.0, steps=300) for method in ("sgd", "label-span")
    )
    assert sgd <= span
    # Means: sgd is lower already at the fewest rows that were tried.
    assert found["measured"] == 0.0


def test_where_two_curves_cross_for_good() -> None:
    assert _first_below([]) is None
    assert _first_below([(0.0, -1.0), (1.0, -2.0)]) == 0.0
    assert _first_below([(0.0, -1.0), (1.0, 2.0)]) is None
    assert _first_below([(0.0, 1.0), (2.0, -1.0)]) == pytest.approx(np.e)


def test_the_minimum_is_one() -> None:
    given = problem(Setting(rows=300, columns=4, classes=3), seed=2)
    best = minimum(*given)
    rng = np.random.default_rng(0)
    for _ in range(20):
        other = best + 0.1 * rng.normal(size=best.shape)
        assert mean_loss(*given, other) > mean_loss(*given, best)
