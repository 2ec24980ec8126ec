"""Arrays without a schema: all private, rows within the declared norm."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from halfmask import HalfmaskClassifier
from halfmask.errors import DataError, InputError
from halfmask.table import Table


def test_bare_arrays_are_private_and_clipped() -> None:
    table = Table.from_arrays([[3.0, 4.0], [0.1, 0.0], [1e308, 1e308]], ["u", "v", "u"])
    assert table.public.shape == (3, 0)
    np.testing.assert_allclose(table.private[:2], [[0.6, 0.8], [0.1, 0.0]])
    assert np.linalg.norm(table.private, axis=1).max() <= 1.0
    np.testing.assert_array_equal(table.label, [0, 1, 0])
    assert (table.classes, table.label_private, table.schema) == (("u", "v"), True, None)
    assert table.private_norm == 1.0


@given(st.lists(st.lists(st.floats(-1e12, 1e12), min_size=3, max_size=3), min_size=1, max_size=9))
def test_no_bare_row_is_longer_than_declared(values: list[list[float]]) -> None:
    table = Table.from_arrays(values, row_norm=0.3)
    assert np.linalg.norm(table.private, axis=1).max() <= 0.3


def test_a_bare_regression_needs_declared_bounds() -> None:
    table = Table.from_arrays([[1.0]] * 2, [5, -5], task="regression", label_bounds=(-1, 1))
    np.testing.assert_array_equal(table.label, [1, -1])
    with pytest.raises(InputError, match="label_bounds"):
        Table.from_arrays([[1.0]], [5], task="regression")


@pytest.mark.parametrize(
    ("x", "y", "words"),
    [
        ([[1.0], [float("nan")]], [0, 1], "X contains NaN or infinity at row 2"),
        ([[1.0], [float("inf")]], [0, 1], "row 2"),
        ([[1.0], [2.0]], [0.0, float("nan")], "y contains NaN or infinity at row 2"),
        ([[1.0], [2.0]], ["a", None], "missing label|different types"),
        ([[1.0], [2.0]], [1, 1], "1 class"),
        ([[1.0], [2.0]], [1], "1-d array y of 2 labels"),
        ([1.0, 2.0], [0, 1], "2-d"),
        ([["x"], ["y"]], [0, 1], "numbers only"),
    ],
)
def test_wrong_bare_arrays_are_explained(x: Any, y: Any, words: str) -> None:
    with pytest.raises(DataError, match=words):
        Table.from_arrays(x, y)


@pytest.mark.parametrize("bounds", [(0.0, 5e-324), (1e308, 1.7e308), (0.0, np.inf)])
def test_label_bounds_that_cannot_be_calculated_with_are_refused(bounds: Any) -> None:
    with pytest.raises(InputError, match="label_bounds"):
        Table.from_arrays([[1.0], [2.0]], [0.0, 1.0], task="regression", label_bounds=bounds)


def test_rows_are_said_to_be_clipped_only_where_they_are_private() -> None:
    X = np.random.default_rng(0).normal(size=(200, 2))
    y = (X[:, 0] > 0).astype(int)
    for public, clipped in (("all", False), (None, True)):
        model = HalfmaskClassifier(public=public).fit(X, y)
        assert any("clipped" in note for note in model.privacy_.notes) is clipped
