"""The split of a linear loss: gradients add up, contributions keep to their clip norm."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from roles import ROLES, table_of

from halfmask.mechanisms.clipping import clip_weights
from halfmask.mechanisms.release import PrivateStep, Releaser
from halfmask.methods.sgd import SplitContributions, SplitRows, contribution_of
from halfmask.table import Table
from halfmask_lab.results import mean_loss


@pytest.mark.parametrize("classes", [0, 2, 4])
@pytest.mark.parametrize("roles", ROLES, ids=str)
def test_public_and_private_gradients_add_up_to_the_gradient_of_the_loss(
    roles: dict[str, Any], classes: int
) -> None:
    rows = SplitRows.of(table_of(classes=classes, **roles))
    coef = np.random.default_rng(1).normal(size=rows.shape)
    given = (rows.loss, np.hstack([rows.public[:], rows.private[:]]), rows.target)
    everyone = np.arange(60)
    private = SplitContributions(rows, coef).weighted_sum(everyone, np.ones(60)) / 60
    found = rows.public_gradient(coef, everyone) + private
    for index in np.ndindex(*rows.shape):
        step = np.zeros(rows.shape)
        step[index] = 1e-6
        above, below = (mean_loss(*given, coef + way * step) for way in (1, -1))
        slope = (above - below) / 2e-6
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
    other = replace(table.with_blocks(private=table.private[::-1]), label=table.label[::-1])
    rows, changed = SplitRows.of(table), SplitRows.of(other)
    coef = np.random.default_rng(3).normal(size=rows.shape)
    batch = np.arange(0, 60, 2)
    assert np.array_equal(rows.public_gradient(coef, batch), changed.public_gradient(coef, batch))


@given(
    classes=st.sampled_from([0, 2, 3, 5]),
    units=st.sampled_from([None, 9]),
    scale=st.floats(0.01, 30),
    missing=st.booleans(),
    seed=st.integers(0, 10_000),
)
@settings(max_examples=60, deadline=None)
def test_label_contributions_keep_to_the_clip_norm_and_pass_the_pair_test(
    classes: int, units: int | None, scale: float, missing: bool, seed: int
) -> None:
    """Neighbours differ in one unit's labels; nothing is clipped, and the claimed pair holds."""
    rng = np.random.default_rng(seed)
    table = table_of(27, private=0, classes=classes, units=units, seed=seed)
    table = table.with_blocks(public=scale * table.public)
    who = int(rng.integers(table.units))
    mine = np.arange(27) == who if table.unit is None else table.unit == who
    fresh = rng.integers(0, classes, size=27) if classes else rng.choice([2.0, 5.0], size=27)
    neighbour = replace(table, label=np.where(mine, fresh, table.label))
    if missing:
        # A label and none are neighbours too.
        none = -1 if classes else math.nan
        table, neighbour = (
            replace(each, label=np.where(rng.random(27) < 0.3 + 0.4 * mine, none, each.label))
            for each in (table, neighbour)
        )
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

    def charge(self, events: Any, what: str, **marks: bool) -> int:
        return 1


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
    neighbour = replace(table.with_blocks(private=private), label=label)
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
