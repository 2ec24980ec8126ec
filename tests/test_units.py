"""A unit's rows: the first ones in file order count, whatever private values they hold."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from halfmask.errors import DataError
from halfmask.schema import Column, Label, Schema, Unit
from halfmask.table import Encoder

CLASSES = Label("y", "private", classes=("no", "yes"))
UNIT_SCHEMA = Schema(
    CLASSES,
    (Column("v", "private", "number", bounds=(0, 100), bins=0),),
    Unit(column="id", max_rows=2),
)


def test_a_unit_keeps_its_first_rows_in_file_order() -> None:
    ids = ["b", "a", "b", "b", "a", "c", "b"]
    data = pa.table({"id": ids, "v": list(range(7)), "y": ["no"] * 7})
    encoder = Encoder.fit(UNIT_SCHEMA, data)
    table = encoder.encode(data)
    np.testing.assert_array_equal(table.rows, [0, 1, 2, 4, 5])
    np.testing.assert_array_equal(table.unit, [0, 1, 0, 1, 2])
    assert (table.units, table.n, table.max_rows) == (3, 5, 2)
    assert encoder.encode(data, with_unit=False).n == 7
    assert encoder.encode(data.drop_columns(["y", "id"]), with_label=False).n == 7


@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 100)), min_size=1, max_size=40),
    st.integers(1, 3),
    st.randoms(use_true_random=False),
)
def test_which_rows_count_depends_on_ids_and_order_alone(
    pairs: list[tuple[int, int]], limit: int, shuffle: Any
) -> None:
    schema = Schema(CLASSES, UNIT_SCHEMA.columns, Unit(column="id", max_rows=limit))
    ids, values = ([pair[part] for pair in pairs] for part in (0, 1))
    kept = []
    for column in (values, shuffle.sample(values, len(values))):
        data = pa.table({"id": ids, "v": column, "y": ["no"] * len(ids)})
        table = Encoder.fit(schema, data).encode(data)
        assert table.unit is not None
        assert np.bincount(table.unit).max() <= limit
        kept.append(table.rows.tolist())
    seen: dict[int, int] = {}
    expected = []
    for row, unit in enumerate(ids):
        seen[unit] = seen.get(unit, 0) + 1
        expected += [row] if seen[unit] <= limit else []
    assert kept == [expected, expected]


def test_a_row_without_a_unit_is_an_error() -> None:
    data = pa.table({"id": ["a", None], "v": [1, 2], "y": ["no", "no"]})
    with pytest.raises(DataError, match="'id', row 2"):
        Encoder.fit(UNIT_SCHEMA, data).encode(data)
