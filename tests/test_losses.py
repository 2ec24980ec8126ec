"""Losses: slopes against finite differences, constants against attack, splits that add up."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from halfmask.errors import InputError
from halfmask.losses import (
    LOSSES,
    Huber,
    Logistic,
    Loss,
    SmoothedHinge,
    Softmax,
    Squared,
    clip_slopes,
    default_loss,
    in_ball,
    loss_named,
    public_slope,
)

ALL: list[Loss] = [Logistic(), Softmax(2), Softmax(5), Squared(), Huber(0.3), SmoothedHinge(0.7)]
LINEAR = [loss for loss in ALL if loss.linear_in_target]
seeds = st.integers(0, 2**32 - 1)


def draw(loss: Loss, seed: int, rows: int = 8, size: float = 4.0) -> tuple[np.ndarray, np.ndarray]:
    """Scores and targets of the kind the loss takes."""
    rng = np.random.default_rng(seed)
    scores = rng.normal(size=(rows, loss.outputs)) * size
    if isinstance(loss, Squared | Huber):
        return scores, rng.uniform(-1, 1, size=(rows, 1))
    if loss.outputs == 1:
        return scores, rng.integers(0, 2, size=(rows, 1)).astype(float)
    return scores, np.eye(loss.outputs)[rng.integers(0, loss.outputs, rows)]


@pytest.mark.parametrize("loss", ALL, ids=repr)
@settings(deadline=None)
@given(seed=seeds)
def test_slope_is_the_derivative_of_the_value(loss: Loss, seed: int) -> None:
    scores, targets = draw(loss, seed)
    step = 1e-6
    slopes = loss.slope(scores, targets)
    for output in range(loss.outputs):
        shift = np.zeros_like(scores)
        shift[:, output] = step
        rise = loss.value(scores + shift, targets) - loss.value(scores - shift, targets)
        np.testing.assert_allclose(slopes[:, output], rise / (2 * step), atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("loss", ALL, ids=repr)
@settings(deadline=None)
@given(seed=seeds, size=st.floats(0.01, 50))
def test_constants_hold(loss: Loss, seed: int, size: float) -> None:
    scores, targets = draw(loss, seed, rows=30, size=size)
    slopes = loss.slope(scores, targets)
    others = scores + np.random.default_rng(seed + 1).normal(size=scores.shape)
    lengths = np.linalg.norm(slopes, axis=1)
    assert lengths.max() <= loss.lipschitz * (1 + 1e-12)
    moved = np.linalg.norm(loss.slope(others, targets) - slopes, axis=1)
    distance = np.linalg.norm(others - scores, axis=1)
    assert (moved <= loss.smoothness * distance * (1 + 1e-9) + 1e-12).all()
    reach = np.linalg.norm(scores, axis=1)
    bounds = np.array([loss.slope_bound(float(value)) for value in reach])
    assert (lengths <= bounds * (1 + 1e-12)).all()


@pytest.mark.parametrize("loss", [loss for loss in ALL if loss.one_sided], ids=repr)
@settings(deadline=None)
@given(seed=seeds, size=st.floats(0.01, 50))
def test_one_sided_slopes_never_point_apart(loss: Loss, seed: int, size: float) -> None:
    scores, targets = draw(loss, seed, rows=30, size=size)
    others, _ = draw(loss, seed + 1, rows=30, size=size)
    first = clip_slopes(loss.slope(scores, targets), loss.clip)
    second = clip_slopes(loss.slope(others, targets), loss.clip)
    assert (np.einsum("ij,ij->i", first, second) >= -1e-12).all()


@pytest.mark.parametrize("loss", LINEAR, ids=repr)
@settings(deadline=None)
@given(seed=seeds)
def test_free_and_fixed_slopes_add_up_and_keep_their_bounds(loss: Loss, seed: int) -> None:
    scores, targets = draw(loss, seed, rows=12)
    whole = loss.free_slope(scores) + loss.fixed_slope(targets)
    np.testing.assert_allclose(whole, loss.slope(scores, targets), atol=1e-12)
    np.testing.assert_array_equal(public_slope(loss, scores, None), loss.free_slope(scores))
    apart, longest = loss.fixed_bounds()
    fixed = loss.fixed_slope(targets)
    assert np.linalg.norm(fixed, axis=1).max() <= longest + 1e-12
    gaps = np.linalg.norm(fixed[:, None] - fixed[None], axis=2)
    assert gaps.max() <= apart + 1e-12


@pytest.mark.parametrize("loss", LINEAR, ids=repr)
def test_bounds_on_fixed_slopes_are_reached(loss: Loss) -> None:
    extremes = np.eye(loss.outputs) if loss.outputs > 1 else np.array([[0.0], [1.0]])
    if isinstance(loss, Squared):
        extremes = np.array([[-1.0], [1.0]])
    fixed = loss.fixed_slope(extremes)
    apart, longest = loss.fixed_bounds()
    assert np.linalg.norm(fixed[0] - fixed[1]) == pytest.approx(apart)
    assert np.linalg.norm(fixed[0]) == pytest.approx(longest)


@pytest.mark.parametrize("loss", [Huber(), SmoothedHinge()], ids=repr)
def test_a_loss_that_cannot_be_split_says_so(loss: Loss) -> None:
    for part in (loss.free_slope, loss.fixed_slope):
        with pytest.raises(InputError, match="not linear in its target"):
            part(np.zeros((1, 1)))
    with pytest.raises(InputError, match="not linear in its target"):
        loss.fixed_bounds()


def test_public_slope_uses_a_public_label() -> None:
    scores, targets = draw(Huber(), 3)
    np.testing.assert_array_equal(
        public_slope(Huber(), scores, targets), Huber().slope(scores, targets)
    )


@settings(deadline=None)
@given(seed=seeds, bound=st.floats(0.01, 3), outputs=st.integers(1, 4))
def test_clipped_slopes_keep_bound_and_direction(seed: int, bound: float, outputs: int) -> None:
    slopes = np.random.default_rng(seed).normal(size=(9, outputs)) * 3
    clipped = clip_slopes(slopes, bound)
    lengths = np.linalg.norm(slopes, axis=1)
    np.testing.assert_allclose(np.linalg.norm(clipped, axis=1), np.minimum(lengths, bound))
    assert (np.einsum("ij,ij->i", clipped, slopes) >= 0).all()


@pytest.mark.parametrize("outputs", [1, 3])
def test_a_slope_that_is_not_a_number_contributes_nothing(outputs: int) -> None:
    slopes = np.full((2, outputs), 0.1)
    slopes[0, 0] = np.nan
    clipped = clip_slopes(slopes, 1.0)
    assert not clipped[0].any()
    np.testing.assert_allclose(clipped[1], 0.1)


def test_ball_projects_only_what_is_outside() -> None:
    np.testing.assert_allclose(in_ball(np.array([3.0, 4.0]), 1.0), [0.6, 0.8])
    inside = np.array([0.3, 0.4])
    assert in_ball(inside, 1.0) is inside


def test_losses_are_found_by_name_and_kind() -> None:
    assert default_loss(0) == "squared"
    assert default_loss(2) == "logistic"
    assert default_loss(7) == "softmax"
    assert loss_named("softmax", classes=7) == Softmax(7)
    assert isinstance(loss_named("huber", classes=0), Huber)
    with pytest.raises(InputError, match="does not fit a number"):
        loss_named("logistic", classes=0)
    with pytest.raises(InputError, match="does not fit 3 classes"):
        loss_named("smoothed-hinge", classes=3)
    with pytest.raises(InputError, match="one class"):
        loss_named("logistic", classes=1)
    with pytest.raises(InputError, match="Unknown loss"):
        loss_named("absolute", classes=0)
    assert {name for name in LOSSES} == {
        "logistic",
        "softmax",
        "squared",
        "huber",
        "smoothed-hinge",
    }


def test_two_class_softmax_clips_where_logistic_does() -> None:
    z = np.linspace(-6, 6, 41)[:, None]
    ones = np.ones_like(z)
    single = clip_slopes(Logistic().slope(z, ones), Logistic().clip)
    pair = Softmax(2)
    double = clip_slopes(
        pair.slope(np.hstack([-z / 2, z / 2]), np.hstack([0 * ones, ones])), pair.clip
    )
    np.testing.assert_allclose(double[:, 1:], single, atol=1e-12)
    assert Softmax(2).clip == pytest.approx(math.sqrt(2) * Logistic().clip)
