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
from halfmask.methods.additive import comparison_moves
from halfmask.methods.additive_classes import class_moves, comparison_class_moves
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
from halfmask.methods.moments import (
    BlockWeights,
    MomentSums,
    RowBounds,
    check_row_norms,
    replace_sensitivity,
    withhold_sensitivity,
)
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
    # Numbers lie in [-1, 1]: two of them are two apart, and one of them one from nothing.
    rows = SimpleNamespace(loss=Squared(), rows_per_unit=9)
    assert label_sensitivity(rows) == Sensitivity(replace=6.0, withhold=3.0)


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
    assert spectral_norm(np.array([[-3.0]])) == 3.0
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
    assert gd._bounded(np.array([[1 + 8e-10, 0.0]]), 1.0, False)[0, 0] <= 1.0
    assert np.allclose(gd._bounded(rows, 4.0, True), [[2.4, 3.2], [0.3, 0.4]])
    # What is within its bounds is not copied, zeros among it.
    zero = np.array([[0.0, 0.4]])
    assert gd._bounded(zero, 5.0, True) is zero


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
    # Only the ratio of the two lengths counts; from 0.35 on a class is not rare.
    assert slope_bounds(0.1, 2.0, 3.0) == (pytest.approx(0.9), pytest.approx(0.45))
    assert slope_bounds(0.35, 1.0, 1.5) == (0.65, 0.65)


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
    # A billionth is rounding.
    check_row_norms(np.array([[1 + 1e-9, 0.0]]), np.ones(1), bounds)
    with pytest.raises(InputError, match="longer"):
        check_row_norms(np.array([[1 + 1.5e-9, 0.0]]), np.ones(1), bounds)
    for weights in ([1.1, 0.0], [-0.1, 0.0], [math.nan, 0.0]):
        with pytest.raises(InputError, match="weights"):
            check_row_norms(rows, np.array(weights), bounds)


def test_rows_of_a_unit_are_weighed_down_and_rows_without_units_are_left_alone():
    rows = SimpleNamespace(d=1)
    table = SimpleNamespace(unit=None)
    assert gd.weighed_by_unit(rows, table, outputs=1, mu=1.0, relation="replace") is rows


@pytest.mark.parametrize("number", [False, True])
@pytest.mark.parametrize(("short", "long", "cut"), [(0.5, 1.5, 2.0), (2.0, 3.0, 0.7)])
def test_sums_of_the_comparison_have_the_units_of_their_farthest_rows(number, short, long, cut):
    """docs/proofs/additive.md: e·(1, g), z·(1, z), c·(1, g, z, g·z) of all rows there can be."""
    shares = np.array([0.10, 0.70, 0.03, 0.06, 0.02, 0.03, 0.02, 0.04])
    error, bend = (1.6 * cut, 1.0) if number else (0.5, 0.25)
    rows = []
    for e in (-error, error):
        for c in (0.0, bend):
            for z in np.linspace(-long, long, 13):
                g = float(np.clip(z, -short, short))
                rows.append([e, e * g, z, z * z, c, c * g, c * z, c * g * z])
    ends = np.array(rows)
    apart, alone = np.ptp(ends, axis=0), np.abs(ends).max(axis=0)
    units, (replaced, withheld) = comparison_moves(short, long, number=number, cut=cut)
    assert units == pytest.approx(apart / np.sqrt(shares), rel=1e-12)
    assert replaced == 1.0
    assert withheld == pytest.approx(math.sqrt(float(shares @ (alone / apart) ** 2)), rel=1e-12)
    assert withheld == pytest.approx(math.sqrt(0.34), rel=1e-12)


@pytest.mark.parametrize("classes", [3, 4, 7])
@pytest.mark.parametrize("short", [0.5, 2.0])
def test_sums_of_the_comparison_of_classes_written_out(classes, short):
    """docs/proofs/additive.md: ρ² = K/(K + 1) is the longest slope, A how far two are apart."""
    least = 1 / (classes + 1)
    square = max(2.5 - least, 2 + 2 * least - 4 * least**2)
    longest = classes * least
    units, (replaced, withheld) = comparison_class_moves(classes, short)
    wanted = [math.sqrt(square), *[2 * math.sqrt(longest) * short] * 2]
    assert units == pytest.approx(wanted / np.sqrt([0.15, 0.425, 0.425]), rel=1e-12)
    assert replaced == 1.0
    assert withheld == pytest.approx(math.sqrt(0.15 * longest / square + 0.2125), rel=1e-12)


def descent_rows(**changed):
    given = {
        "matrix": np.array([[1.0, 2.0, 0.5], [1.0, -1.0, 0.25], [1.0, 0.5, -1.0]]),
        "centre": np.array([0.0, 0.5, -0.5]), "scale": np.ones(2), "constant": 1.0,
        "public_size": 1, "row_weights": np.array([1.0, 0.5, 0.25]), "bounds": PLAIN, "n": 3.0,
    }  # fmt: skip
    return gd.DescentRows(**{**given, **changed})


def test_the_sum_of_gradients_weighs_and_centres_every_row():
    rows = descent_rows()
    slopes = np.array([[1.0, -1.0], [0.5, 2.0], [-3.0, 1.0]])
    expected = sum(
        weight * np.outer(row - rows.centre, slope)
        for row, weight, slope in zip(rows.matrix, rows.row_weights, slopes, strict=True)
    )
    assert rows.gradient_sum(slopes) == pytest.approx(expected)


@pytest.mark.parametrize("skipped", [None, [1]])
@pytest.mark.parametrize("loss", [Logistic(), Softmax(3)])
def test_what_is_released_is_the_clipped_gradient_in_the_units_of_its_blocks(loss, skipped):
    asked = []

    class Moves:
        def scales(self, weight, sizes):
            asked.append((weight, sizes))
            return 2.0, 5.0

    rows = descent_rows()
    theta = np.random.default_rng(0).normal(size=(3, loss.outputs))
    targets = np.eye(loss.outputs)[[0] * 3] if loss.outputs > 1 else np.ones((3, 1))
    run = SimpleNamespace(
        _rows=rows, _loss=loss, _once=False, _targets=targets, _clip=0.1, _skipped=skipped,
        _moves=Moves(),
    )  # fmt: skip
    found, factors = gd.GradientDescent.statistic(run, theta)
    slopes = clip_slopes(loss.slope(rows.scores(theta), targets), 0.1)
    if skipped:
        slopes[1] = 0.0
    # The constant and one public column, then a private one.
    assert factors.tolist() == [[2.0], [2.0], [5.0]]
    assert found == pytest.approx(rows.gradient_sum(slopes) * [[2.0], [2.0], [5.0]])
    assert asked == [(spectral_norm(theta[2:].T), (2 * loss.outputs, loss.outputs))]
    run._moves = None
    plain, ones = gd.GradientDescent.statistic(run, theta)
    assert plain == pytest.approx(rows.gradient_sum(slopes))
    assert ones.tolist() == [[1.0]] * 3


def test_units_weigh_their_rows_and_set_the_number_of_rows(monkeypatch):
    asked = {}

    def weights(unit, **how):
        asked.update(how)
        return SimpleNamespace(rows=np.array([0.5, 0.5, 1.0]), most=2, total=2.5)

    monkeypatch.setattr(gd, "unit_weights", weights)
    table = SimpleNamespace(unit="people")
    made = gd.weighed_by_unit(descent_rows(), table, outputs=4, mu=0.7, relation="withhold")
    assert asked == {"numbers": 12, "mu": 0.7, "relation": "withhold"}
    assert made.row_weights.tolist() == [0.5, 0.25, 0.25]
    assert (made.bounds.rows_per_unit, made.n) == (2, 2.5)


def farthest(bounds, weights):
    """The squares of all moves of two private parts at any angle, and of two labels."""
    norm, square = bounds.public**2, bounds.private**2
    inner = {"public": [1.0], "one-hot": [1.0, 0.0], "signed": [1.0, -1.0]}[bounds.label]
    t = np.linspace(0 if bounds.non_negative else -square, square, 20_001)
    return max(
        float(
            np.max(
                weights.public_private**2 * norm * 2 * (square - t)
                + weights.private_private**2 * 2 * (square**2 - t**2)
                + weights.public_label**2 * norm * 2 * (1 - same)
                + weights.private_label**2 * 2 * (square - t * same)
            )
        )
        for same in inner
    )


@pytest.mark.parametrize("label", ["public", "one-hot", "signed"])
@pytest.mark.parametrize("non_negative", [False, True])
@pytest.mark.parametrize(
    "factors", [(0.3, 0.5, 0.7, 0.9), (0.3, 0.0, 0.7, 0.9), (0.0, 0.0, 0.0, 0.4),
                (0.02, 0.01, 0.03, 0.02), (0.1, 2.0, 0.3, 3.0), (0.1, 0.0, 0.2, 1.5)],
)  # fmt: skip
def test_moments_move_by_the_highest_point_over_all_angles(label, non_negative, factors):
    names = ("public_private", "private_private", "public_label", "private_label")
    weights = BlockWeights(**dict(zip(names, factors, strict=True)))
    bounds = RowBounds(public=1.5, private=2.0, label=label, non_negative=non_negative, rows=3)
    found = replace_sensitivity(bounds, weights)
    assert found == pytest.approx(3 * math.sqrt(farthest(bounds, weights)), rel=1e-6)
    cross, own, with_public, with_private = (factor**2 for factor in factors)
    alone = cross * 9.0 + own * 16.0 + with_private * 4.0
    alone += 0.0 if label == "public" else with_public * 2.25
    assert withhold_sensitivity(bounds, weights) == pytest.approx(3 * math.sqrt(alone), rel=1e-12)


@pytest.mark.parametrize("own", [slice(0, 4), slice(1, 3)])
@pytest.mark.parametrize("label", ["public", "signed"])
def test_moments_of_a_machine_are_those_of_its_rows(own, label):
    """Public values are those of all rows, private ones those of this machine's."""
    rng = np.random.default_rng(3)
    public, private = rng.normal(size=(4, 2)) / 9, rng.normal(size=(4, 3)) / 9
    y, weights = rng.choice([-1.0, 1.0], (4, 1)), np.array([1.0, 0.5, 0.25, 1.0])
    factors = BlockWeights(
        public_private=2.0, private_private=3.0, public_label=5.0, private_label=7.0
    )
    made = MomentSums(
        public=public, private=private[own], label=y if label == "public" else y[own],
        row_weights=weights, bounds=RowBounds(public=1.0, private=1.0, label=label),
        weights=factors, own=own,
    )  # fmt: skip
    weighed = weights[own, None] * private[own]
    square = private[own].T @ weighed
    upper = np.triu_indices(3)
    packed = square[upper] * np.where(upper[0] == upper[1], 1.0, math.sqrt(2))
    parts = [2 * public[own].T @ weighed, 3 * packed, 7 * weighed.T @ y[own]]
    if label != "public":
        parts.append(5 * public[own].T @ (weights[own, None] * y[own]))
    exact = made.exact()
    assert exact == pytest.approx(np.concatenate([part.ravel() for part in parts]))
    read = made.read(exact, 0.5)
    assert read.public_private == pytest.approx(public[own].T @ weighed)
    assert read.private_private == pytest.approx(square)
    assert read.private_label == pytest.approx(weighed.T @ y[own])
    assert read.public_public == pytest.approx(public.T @ (weights[:, None] * public))
    assert read.rows == 2.75
    # A public label's sums are of all rows and exact; a released one has its noise.
    rows = slice(0, 4) if label == "public" else own
    assert read.public_label == pytest.approx(public[rows].T @ (weights[rows, None] * y[rows]))
    assert read.public_label_variance == (0.0 if label == "public" else pytest.approx(0.01))
    assert read.public_private_variance == pytest.approx(0.0625)
    assert read.private_private_variance == pytest.approx(0.25 / 18)
    assert read.private_label_variance == pytest.approx(0.25 / 49)


def test_without_private_columns_only_the_label_has_noise():
    weights = BlockWeights(
        public_private=2.0, private_private=3.0, public_label=5.0, private_label=7.0
    )
    made = MomentSums(
        public=np.eye(2), private=np.zeros((2, 0)), label=np.ones((2, 1)), row_weights=np.ones(2),
        bounds=RowBounds(public=1.0, private=0.0, label="signed"), weights=weights, own=slice(0, 2),
    )  # fmt: skip
    exact = made.exact()
    assert exact.tolist() == [5.0, 5.0]
    read = made.read(exact, 1.0)
    assert read.private_private.shape == (0, 0)
    assert (read.public_private_variance, read.private_private_variance) == (0.0, 0.0)
    assert read.private_label_variance == 0.0
    assert read.public_label_variance == pytest.approx(0.04)
