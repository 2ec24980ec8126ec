"""How far one row moves a gradient: each bound written out, and attacked by random rows."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest

from halfmask.errors import InputError
from halfmask.losses import Logistic, Softmax, Squared, clip_slopes
from halfmask.mechanisms.release import Sensitivity
from halfmask.methods import gd
from halfmask.methods.additive_classes import class_moves
from halfmask.methods.additive_descent import public_label_moves, slope_bounds, slope_moves
from halfmask.methods.gd import (
    BlockMoves,
    DescentBounds,
    label_statistic,
    slope_bound,
    spectral_norm,
    whole_gradient,
)
from halfmask.methods.label_span import label_sensitivity
from halfmask.methods.moments import RowBounds, check_row_norms
from halfmask.methods.smooth_codes import LevelFeatures

PLAIN = DescentBounds(public=3.0, private=4.0, non_negative=False)
SIGNED = DescentBounds(public=3.0, private=4.0, non_negative=True, rows_per_unit=2)


def test_norms_of_whole_rows_and_distances_of_private_parts():
    assert PLAIN.whole == 5.0
    assert DescentBounds(public=3.0, private=4.0, non_negative=False, limit=4.5).whole == 4.5
    assert PLAIN.apart == 8.0
    assert SIGNED.apart == 4 * math.sqrt(2)
    assert PLAIN.rows_per_unit == 1


def test_sums_of_whole_gradients_and_of_fixed_slopes():
    assert whole_gradient(PLAIN, 0.5) == Sensitivity(replace=5.0, withhold=2.5)
    assert whole_gradient(SIGNED, 0.5) == Sensitivity(replace=10.0, withhold=5.0)
    assert label_statistic(PLAIN, Logistic()) == Sensitivity(replace=5.0, withhold=2.5)
    assert label_statistic(SIGNED, Squared()) == Sensitivity(replace=20.0, withhold=10.0)


def test_copies_of_the_labels_of_a_unit_move_by_the_root_of_their_number():
    rows = SimpleNamespace(loss=Logistic(), rows_per_unit=9)
    assert label_sensitivity(rows) == Sensitivity(replace=3.0, withhold=1.5)


def moves(bounds=PLAIN, loss=None, clip=0.5, relation="replace"):
    return BlockMoves(bounds=bounds, loss=loss or Logistic(), clip=clip, relation=relation)


def test_the_private_block_moves_by_its_norm_twice_or_by_a_right_angle():
    assert moves().private_block() == 2 * 0.5 * 4
    assert moves(SIGNED).private_block() == pytest.approx(math.sqrt(2) * 0.5 * 4 * 2)
    assert moves(SIGNED, Squared()).private_block() == 2 * 0.5 * 4 * 2
    assert moves(SIGNED, relation="withhold").private_block() == 0.5 * 4 * 2


def test_the_public_block_moves_with_the_slope():
    assert moves().public_block(0.01) == pytest.approx(0.25 * 0.01 * 8 * 3)
    assert moves().public_block(100.0) == 0.5 * 3
    assert moves(loss=Squared()).public_block(100.0) == 0.5 * 2 * 3
    assert moves(loss=Softmax(3)).public_block(100.0) == pytest.approx(0.5 * math.sqrt(2) * 3)
    assert moves(SIGNED, relation="withhold").public_block(0.01) == pytest.approx(
        0.25 * 0.01 * 4 * 3 * 2
    )


def test_both_blocks_together():
    assert moves().together() == 0.5 * max(5.0, 8.0)
    long = DescentBounds(public=40.0, private=9.0, non_negative=True)
    assert moves(long).together() == 0.5 * 41
    assert moves(long, Softmax(3)).together() == pytest.approx(0.5 * math.sqrt(2) * 41)
    assert moves(SIGNED, Squared()).together() == 2 * 5 * 0.5 * 2
    assert moves(relation="withhold").together() == 0.5 * 5
    assert moves(SIGNED, Squared(), relation="withhold").together() == pytest.approx(
        math.hypot(6, 4) * 0.5 * 2
    )


@pytest.mark.parametrize("weight", [0.0, 0.01, 3.0])
@pytest.mark.parametrize("sizes", [(1, 1), (50, 2), (2, 50)])
def test_scaled_blocks_move_by_at_most_one_with_the_least_noise(weight, sizes):
    made = moves()
    first, second = made.scales(weight, sizes)
    private = made.private_block()
    public = max(made.public_block(weight), 1e-3 * private)
    both = made.together()
    apart = public * math.sqrt(sizes[0]) + private * math.sqrt(sizes[1])
    if (first, second) == (1 / both, 1 / both):
        assert both * math.sqrt(sum(sizes)) <= apart * (1 + 1e-12)
    else:
        assert both * math.sqrt(sum(sizes)) >= apart * (1 - 1e-12)
        assert (public * first) ** 2 + (private * second) ** 2 == pytest.approx(1)
        # The noise over all coordinates is the least of all ways to share.
        noise = sizes[0] / first**2 + sizes[1] / second**2
        assert noise == pytest.approx(apart**2)


def test_scaled_blocks_have_sensitivity_one_under_their_relation():
    assert moves().sensitivity() == Sensitivity(replace=1.0, withhold=1.0)
    assert moves(relation="withhold").sensitivity() == Sensitivity(replace=2.0, withhold=1.0)


@pytest.mark.parametrize("relation", ["replace", "withhold"])
@pytest.mark.parametrize("non_negative", [False, True])
@pytest.mark.parametrize("loss", [Logistic(), Softmax(3), Squared()])
def test_no_rows_move_the_blocks_further_than_claimed(loss, non_negative, relation):
    rng = np.random.default_rng(8)
    bounds = DescentBounds(public=1.5, private=2.0, non_negative=non_negative)
    made = BlockMoves(bounds=bounds, loss=loss, clip=loss.clip, relation=relation)
    for _ in range(300):
        theta = rng.normal(size=(4, loss.outputs)) * rng.choice([0.01, 1.0, 9.0])
        public = rng.normal(size=2)
        public *= 1.5 / np.linalg.norm(public)
        private = np.abs(rng.normal(size=(2, 2))) if non_negative else rng.normal(size=(2, 2))
        private *= rng.choice([0.0, 2.0], 2)[:, None] / np.linalg.norm(private, axis=1)[:, None]
        private[1] *= relation == "replace"
        target = np.eye(loss.outputs)[[0]] if loss.outputs > 1 else np.array([[1.0]])
        rows = np.column_stack([np.tile(public, (2, 1)), private])
        slopes = clip_slopes(loss.slope(rows @ theta, np.tile(target, (2, 1))), loss.clip)
        apart = np.outer(rows[0], slopes[0]) - np.outer(rows[1], slopes[1])
        up, down = np.linalg.norm(apart[:2]), np.linalg.norm(apart[2:])
        weight = spectral_norm(theta[2:].T)
        assert up <= made.public_block(weight) * (1 + 1e-9)
        assert down <= made.private_block() * (1 + 1e-9)
        assert math.hypot(up, down) <= made.together() * (1 + 1e-9)
        first, second = made.scales(weight, (2, 2))
        assert math.hypot(first * up, second * down) <= 1 + 1e-9


def test_the_factor_of_a_matrix_is_its_largest_singular_value():
    assert spectral_norm(np.array([[3.0, 0.0], [0.0, -4.0]])) == 4.0
    assert spectral_norm(np.zeros((2, 0))) == 0.0
    assert spectral_norm(np.ones((2, 2))) == pytest.approx(2.0)


def test_the_longest_slope_is_the_losses_constant_or_that_of_its_reach():
    assert slope_bound(Logistic(), 0.3) == 1.0
    assert slope_bound(Squared(), 0.3) == Squared().slope_bound(0.3)


def test_declared_norms_and_signs_are_enforced():
    rows = np.array([[3.0, 4.0], [0.3, 0.4]])
    assert gd._bounded(rows, 5.0, True) is rows
    assert np.allclose(gd._bounded(rows, 1.0, True), [[0.6, 0.8], [0.3, 0.4]])
    assert gd._bounded(np.array([[-0.3, 0.4]]), 5.0, True).tolist() == [[0.0, 0.4]]
    assert gd._bounded(np.array([[-0.3, 0.4]]), 5.0, False).tolist() == [[-0.3, 0.4]]
    assert gd._bounded(rows, 0.0, False).tolist() == [[0.0, 0.0], [0.0, 0.0]]
    bad = gd._bounded(np.array([[math.nan, 1.0]]), 5.0, False)
    assert np.linalg.norm(bad) <= 5.0
    assert gd._bounded(np.zeros((0, 2)), 1.0, True).shape == (0, 2)
    # A hair beyond the norm is rounding.
    near = np.array([[1 + 4e-10, 0.0]])
    assert gd._bounded(near, 1.0, False) is near
    assert gd._bounded(np.array([[1 + 1e-8, 0.0]]), 1.0, False)[0, 0] <= 1.0


def test_slopes_of_a_common_and_of_a_rare_class():
    assert slope_moves(0.2, 0.7, 3.0, 5.0) == (max(0.7 * 5.0, 0.9 * 3.0), 0.7 * 3.0)
    assert slope_moves(0.7, 0.7, 3.0, 4.0) == (pytest.approx(4.2), pytest.approx(2.1))
    assert public_label_moves(0.5, 3.0, 5.0) == (2.5, 1.5)
    assert public_label_moves(0.5, 3.0, 2.0) == (1.5, 1.5)
    assert slope_bounds(0.5, 1.0, 2.0) == (0.5, 0.5)
    assert slope_bounds(0.4, 1.0, 1.2) == (0.6, 0.6)
    assert slope_bounds(0.1, 1.0, 1.5) == (pytest.approx(0.9), pytest.approx(0.45))
    assert slope_bounds(0.9, 1.0, 1.5) == (pytest.approx(0.45), pytest.approx(0.9))
    assert slope_bounds(0.1, 1.0, 3.0) == (pytest.approx(0.9), pytest.approx(0.9))
    assert slope_bounds(0.1, 1.0, 1.0) == (pytest.approx(0.9), pytest.approx(0.1))


@pytest.mark.parametrize("label_private", [True, False])
@pytest.mark.parametrize("classes", [2, 3, 5])
def test_slopes_of_several_classes_written_out(classes, label_private):
    longest = math.sqrt(classes / (classes + 1))
    replaced, withheld = class_moves(classes, 2.0, 0.0, label_private=label_private)
    assert withheld == pytest.approx(2 * longest)
    least = 1 / (classes + 1)
    square = max(2.5 - least, 2 + 2 * least - 4 * least**2) if label_private else 2 * longest**2
    assert replaced == pytest.approx(2 * math.sqrt(square))
    far, _ = class_moves(classes, 2.0, 50.0, label_private=label_private)
    assert far == pytest.approx(50 * longest)


def test_the_diameter_of_levels_is_the_largest_distance_and_a_hair():
    vectors = np.array([[0.0, 0.0], [3.0, 4.0], [-3.0, 0.0]])
    made = LevelFeatures(
        groups=np.arange(3), vectors=vectors, share=np.full(3, 1 / 3), size=np.ones(2)
    )
    apart = math.hypot(6.0, 4.0)
    assert made.diameter == pytest.approx(apart * (1 + 1e-7) + 1e-7, rel=1e-12)
    alone = LevelFeatures(
        groups=np.zeros(2, dtype=int), vectors=vectors[1:2], share=np.ones(1), size=np.ones(2)
    )
    assert alone.diameter == pytest.approx(1e-7, rel=1e-3)
    empty = LevelFeatures(
        groups=np.zeros(2, dtype=int), vectors=np.zeros((1, 0)), share=np.ones(1), size=np.ones(0)
    )
    assert empty.diameter == 0.0


@pytest.mark.parametrize(
    "wrong",
    [{"public": -0.1}, {"public": math.inf}, {"private": -0.1}, {"private": math.nan}, {"rows": 0}],
)
def test_bounds_of_rows_that_are_none_are_refused(wrong):
    with pytest.raises(InputError, match="Expected"):
        RowBounds(**{"public": 1.0, "private": 1.0, "label": "signed", **wrong})
    assert RowBounds(public=0.0, private=0.0, label="signed").rows == 1


def test_public_rows_beyond_their_bound_and_weights_beyond_one_are_refused():
    bounds = RowBounds(public=1.0, private=1.0, label="signed")
    rows = np.array([[0.6, 0.8], [0.3, 0.4]])
    check_row_norms(rows, np.array([1.0, 0.0]), bounds)
    check_row_norms(2 * rows, np.array([0.5, 1.0]), bounds)
    check_row_norms(np.zeros((0, 2)), np.zeros(0), bounds)
    with pytest.raises(InputError, match="longer"):
        check_row_norms(2 * rows, np.array([0.6, 1.0]), bounds)
    for weights in ([1.1, 0.0], [-0.1, 0.0], [math.nan, 0.0]):
        with pytest.raises(InputError, match="weights"):
            check_row_norms(rows, np.array(weights), bounds)


def test_rows_of_a_unit_are_weighed_down_and_rows_without_units_are_left_alone():
    rows = SimpleNamespace(d=1)
    table = SimpleNamespace(unit=None)
    assert gd.weighed_by_unit(rows, table, outputs=1, mu=1.0, relation="replace") is rows
