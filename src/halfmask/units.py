"""Which rows of each unit count: its first `max_rows` in the order of the file.

The ids and the order of rows are public, so the choice depends on nothing private.
Guarantee: docs/proofs/units.md.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from halfmask.errors import DataError
from halfmask.schema import Unit


def unit_codes(ids: pa.ChunkedArray, column: str) -> np.ndarray:
    """A code 0, 1, ... per id, in order of first appearance; a missing id is an error."""
    missing = np.asarray(pc.is_null(ids))
    if missing.any():
        raise DataError(
            f"Column {column!r}, row {int(missing.argmax()) + 1}: the unit's id is missing. "
            f"Every row needs one; fill it in or remove the row."
        )
    if not len(ids):
        return np.zeros(0, dtype=np.int64)
    levels = pc.unique(ids)
    return np.asarray(pc.index_in(ids, value_set=levels)).astype(np.int64)


def first_rows(codes: np.ndarray, unit: Unit) -> tuple[np.ndarray, np.ndarray]:
    """Positions of the rows kept, in order, and their unit codes."""
    order = np.argsort(codes, kind="stable")
    starts = np.searchsorted(codes[order], np.arange(codes.max(initial=-1) + 1))
    rank = np.empty(len(codes), dtype=np.int64)
    rank[order] = np.arange(len(codes)) - starts[codes[order]]
    rows = np.flatnonzero(rank < unit.max_rows)
    return rows, codes[rows]
