"""The sensitivity of one-shot's moments: it holds for every pair of neighbours, and is reached."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from halfmask.methods.moments import (
    BlockWeights,
    LabelCoding,
    MomentSums,
    RowBounds,
    choose_weights,
    pack_symmetric,
    replace_sensitivity,
    unpack_symmetric,
    weighted_blocks,
    withhold_sensitivity,
)

CODINGS: tuple[LabelCoding, ...] = ("public", "one-hot", "signed")


def label_of(coding: LabelCoding, n: int, rng: np.random.Generator) -> np.ndarray:
    if coding == "signed":
        ends = rng.choice([-1.0, 1.0, 0.0, rng.uniform(-1, 1)], n)
        return ends[:, None]
    # A missing label is the middle of all codes.
    return np.vstack([np.eye(3), np.full((1, 3), 1 / 3)])[rng.integers(0, 4, n)]


def private_of(bounds: RowBounds, n: int, width: int, rng: np.random.Generator) -> np.ndarray:
    """Rows on the sphere, opposite, equal or short: where the bound is tight."""
    rows = rng.standard_normal((n, width))
    rows[rng.random(n) < 0.5] = rng.choice([-1.0, 1.0]) * rows[0]
    rows = np.abs(rows) if bounds.non_negative else rows
    if bounds.non_negative and width > 1:
        rows[rng.random((n, width)) < 0.5] = 0.0
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    length = bounds.private * rng.choice([1.0, 1.0, rng.random()], (n, 1))
    return rows / np.where(norms > 0, norms, 1) * length


def total(blocks: dict[str, np.ndarray]) -> np.ndarray:
    return np.concatenate([block.ravel() for block in blocks.values()])


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_no_neighbour_moves_the_statistic_further_than_claimed(data: Any) -> None:
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    coding = data.draw(st.sampled_from(CODINGS))
    width = data.draw(st.integers(1 if coding == "public" else 0, 3))
    size = st.floats(0.1, 5)
    bounds = RowBounds(
        public=data.draw(size),
        private=data.draw(size) if width else 0.0,
        label=coding,
        non_negative=data.draw(st.booleans()),
        rows=data.draw(st.integers(1, 2)),
    )
    factor = st.floats(0.05, 5)
    weights = BlockWeights(
        public_private=data.draw(factor),
        private_private=data.draw(factor),
        public_label=data.draw(factor),
        private_label=data.draw(factor),
    )
    n, changed = 4, slice(0, bounds.rows)
    public = rng.standard_normal((n, 2))
    row_weights = rng.choice([1.0, 0.3], n)
    public *= (bounds.public / np.linalg.norm(public, axis=1) / row_weights)[:, None]
    private, label = private_of(bounds, n, width, rng), label_of(coding, n, rng)
    other, other_label = private.copy(), label.copy()
    other[changed] = private_of(bounds, n, width, rng)[changed]
    if coding != "public":
        other_label[changed] = label_of(coding, n, rng)[changed]

    def statistic(rows: np.ndarray, y: np.ndarray, w: np.ndarray) -> np.ndarray:
        return total(weighted_blocks(public, rows, y, w, bounds, weights))

    here = statistic(private, label, row_weights)
    moved = np.linalg.norm(here - statistic(other, other_label, row_weights))
    assert moved <= replace_sensitivity(bounds, weights) * (1 + 1e-9)
    without = row_weights.copy()
    without[changed] = 0.0
    withheld = np.linalg.norm(here - statistic(private, label, without))
    assert withheld <= withhold_sensitivity(bounds, weights) * (1 + 1e-9)


@pytest.mark.parametrize("coding", CODINGS)
@pytest.mark.parametrize("non_negative", [False, True])
def test_the_replace_bound_is_reached(coding: LabelCoding, non_negative: bool) -> None:
    bounds = RowBounds(public=1.5, private=2.0, label=coding, non_negative=non_negative)
    rng = np.random.default_rng(1)
    for _ in range(5):
        one, two, three, four = rng.uniform(0.2, 2, 4)
        weights = BlockWeights(
            public_private=one, private_private=two, public_label=three, private_label=four
        )
        labels = {
            "public": [([1.0], [1.0])],
            "signed": [([1.0], [1.0]), ([1.0], [-1.0])],
            "one-hot": [([1.0, 0.0], [1.0, 0.0]), ([1.0, 0.0], [0.0, 1.0])],
        }[coding]
        furthest = 0.0
        for angle in np.linspace(0, np.pi / 2 if non_negative else np.pi, 181):
            rows = 2.0 * np.array([[1.0, 0.0], [math.cos(angle), math.sin(angle)]])
            for first, second in labels:
                ends = [
                    total(
                        weighted_blocks(
                            np.array([[1.5]]),
                            rows[[place]],
                            np.array([y]),
                            np.ones(1),
                            bounds,
                            weights,
                        )
                    )
                    for place, y in enumerate((first, second))
                ]
                furthest = max(furthest, float(np.linalg.norm(ends[0] - ends[1])))
        assert furthest == pytest.approx(replace_sensitivity(bounds, weights), rel=1e-3)


def test_label_only_constants_are_those_of_the_literature() -> None:
    weights = BlockWeights(public_private=0, private_private=0, public_label=1, private_label=0)
    classes = RowBounds(public=3.0, private=0.0, label="one-hot")
    assert replace_sensitivity(classes, weights) == pytest.approx(3 * math.sqrt(2))
    assert withhold_sensitivity(classes, weights) == pytest.approx(3)
    number = RowBounds(public=3.0, private=0.0, label="signed")
    assert replace_sensitivity(number, weights) == pytest.approx(6)
    assert withhold_sensitivity(number, weights) == pytest.approx(3)


def test_levels_need_less_noise_than_signed_features() -> None:
    signed = RowBounds(public=1.0, private=3.0, label="public")
    weights = choose_weights(signed, coefficient=0.5)
    levels = replace(signed, non_negative=True)
    assert replace_sensitivity(levels, weights) < replace_sensitivity(signed, weights)


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 6), st.integers(0, 1000))
def test_the_packed_matrix_keeps_the_frobenius_norm(width: int, seed: int) -> None:
    square = np.random.default_rng(seed).standard_normal((width, width))
    matrix = square + square.T
    packed = pack_symmetric(matrix)
    assert np.linalg.norm(packed) == pytest.approx(np.linalg.norm(matrix))
    np.testing.assert_allclose(unpack_symmetric(packed, width), matrix)


def test_noisy_moments_are_unpacked_with_the_variance_of_their_own_noise() -> None:
    rng = np.random.default_rng(4)
    public, private = rng.uniform(-0.3, 0.3, (9, 2)), rng.uniform(-0.4, 0.4, (9, 2))
    label = rng.choice([-1.0, 1.0], (9, 1))
    weights = BlockWeights(
        public_private=0.5, private_private=0.25, public_label=2.0, private_label=4.0
    )
    sums = MomentSums(
        public=public, private=private, label=label, row_weights=np.ones(9),
        bounds=RowBounds(public=1.0, private=1.0, label="signed"), weights=weights,
        own=slice(0, 9),
    )  # fmt: skip
    found = sums.read(sums.exact(), 3.0)
    assert found.rows == 9.0
    assert found.public_public == pytest.approx(public.T @ public)
    assert found.public_private == pytest.approx(public.T @ private)
    assert found.private_private == pytest.approx(private.T @ private)
    assert found.public_label == pytest.approx(public.T @ label)
    assert found.private_label == pytest.approx(private.T @ label)
    assert found.public_private_variance == (3 / 0.5) ** 2
    # Entries off the diagonal were multiplied by √2.
    assert found.private_private_variance == (3 / 0.25) ** 2 / 2
    assert found.public_label_variance == (3 / 2.0) ** 2
    assert found.private_label_variance == (3 / 4.0) ** 2
