"""`additive` on tables at the edges of what is allowed, and on rows that are withheld in full."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from tests.audit.replays import (
    FAR,
    LABELS,
    EdgePair,
    as_pandas,
    assert_moves_within_charge,
    assert_within_charge,
    edge_pairs,
    share_withheld,
)

from halfmask.audit import record, replay
from halfmask.methods import additive
from halfmask.schema import Column, Schema, Unit

SLOW = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@SLOW
@given(pair=edge_pairs())
def test_no_neighbour_at_an_edge_moves_the_releases_beyond_the_charge(pair: EdgePair) -> None:
    estimator = pair.estimator("additive", epsilon=pair.epsilon)
    assert_within_charge(estimator, pair.frame, pair.neighbour, sample_weight=pair.sample_weight)


@SLOW
@given(pair=edge_pairs())
def test_no_withheld_unit_moves_the_releases_beyond_the_charge(pair: EdgePair) -> None:
    share_withheld(pair)


# Units of one row and of six: base rate and comparison count a unit as more rows than others do.

NAMES = tuple(f"c{place}" for place in range(5))
EPSILON = 100.0
OTHERS, LARGE, EACH = 20, 8, 6


def unit_pair(label: str, *, role: Any = "private", columns: int = 5) -> EdgePair:
    """A unit of six rows whose labels turn round, or, where they are public, whose levels jump."""
    low, high = FAR[label]
    persons = [*np.repeat(np.arange(LARGE), EACH), *range(LARGE, LARGE + OTHERS)]
    levels = ["ab"[person % 2] for person in persons]
    values: dict[str, list[Any]] = {name: list(levels) for name in NAMES[:columns]}
    values["y"] = [high if level == "b" else low for level in levels]
    values["id"] = [f"p{person}" for person in persons]
    other = {name: list(cells) for name, cells in values.items()}
    for row in range(EACH):
        if role == "private":
            other["y"][row] = high
        for name in NAMES[:columns] if role == "public" else ():
            other[name][row] = "b"
    schema = Schema(
        replace(LABELS[label], role=role),
        tuple(
            Column(name, "private", "category", categories=("a", "b")) for name in NAMES[:columns]
        ),
        Unit(column="id", max_rows=30),
    )
    return EdgePair(
        schema=schema,
        frame=as_pandas(values),
        neighbour=as_pandas(other),
        replaced=None,
        rows=tuple(range(EACH)),
    )


def shares_by_stage(pair: EdgePair, epsilon: float = EPSILON) -> dict[str, float]:
    """What each stage moves by, of what is charged for it; none may move by more."""
    estimator = pair.estimator("additive", epsilon=epsilon)
    told = record(estimator, pair.frame)
    other = replay(estimator, pair.neighbour, told)
    assert_moves_within_charge(told, other)
    moves = zip(told.releases, told.moves(other), strict=True)
    return {release.what: float(move / release.mu) for release, move in moves}


BASE, COMPARISON = "the number of rows of each class", "a comparison with a simpler model"


@pytest.mark.parametrize("label", ["two", "three"])
def test_a_unit_moves_the_base_rate_by_all_that_is_charged(label: str) -> None:
    assert shares_by_stage(unit_pair(label))[BASE] == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("role", ["private", "public"])
@pytest.mark.parametrize("label", ["two", "three", "number"])
def test_a_unit_of_many_rows_stays_within_each_charge(label: str, role: str) -> None:
    assert max(shares_by_stage(unit_pair(label, role=role)).values()) > 0.95


@pytest.mark.parametrize("stage", [BASE, COMPARISON])
def test_a_stage_that_is_charged_for_fewer_rows_of_a_unit_is_caught(
    stage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Noise for the two rows as which other stages count a unit, where this one counts six."""
    real, opened = additive.Stage, {}

    def careless(door: Any, mu: Any, share: Any, count: Any, most: float, what: str) -> Any:
        opened[what] = most
        return real(door, mu, share, count, 2.0 if what == stage else most, what)

    monkeypatch.setattr(additive, "Stage", careless)
    with pytest.raises(AssertionError, match="was charged"):
        shares_by_stage(unit_pair("two"))
    assert set(opened.values()) == {2.0, 6.0}
    assert opened[BASE] == opened[COMPARISON] == 6.0


@pytest.mark.parametrize("label", ["two", "three", "number"])
def test_rows_of_a_unit_that_count_in_full_in_the_base_rate_are_caught(
    label: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At this budget a unit counts as at most five rows, of numbers two, and has six."""
    real = additive.row_weights
    pair = unit_pair(label, columns=1)
    assert max(shares_by_stage(pair, 20.0).values()) == pytest.approx(1, abs=1e-5)

    def careless(table: Any, *given: Any, **named: Any) -> Any:
        weights, most, total = real(table, *given, **named)
        return (np.ones(table.n) if named else weights), most, total

    monkeypatch.setattr(additive, "row_weights", careless)
    with pytest.raises(AssertionError, match="was charged"):
        shares_by_stage(pair, 20.0)
