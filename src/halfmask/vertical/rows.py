"""Rows of a party's block, bounded before anything is computed from them; rows in parts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from scipy import sparse

from halfmask.mechanisms.clipping import clip_rows

# A dozen vectors of this length stay in the processor's cache, and their memory is used again.
# Vectors of millions of rows get fresh pages from the system each time they are made, so that with
# them a row of a large table costs several times one of a small table.
_ROWS_AT_ONCE = 8192


def row_parts(rows: int) -> Iterator[slice]:
    """The rows of a table in parts for which arithmetic needs no large vectors in between."""
    return (slice(first, first + _ROWS_AT_ONCE) for first in range(0, rows, _ROWS_AT_ONCE))


def bounded_rows(matrix: Any, norm: float) -> Any:
    """Rows scaled down to at most `norm`, rows that are not finite zero; sparse matrices stay
    sparse.
    """
    if not sparse.issparse(matrix):
        return clip_rows(np.asarray(matrix, dtype=np.float64), norm)
    rows = sparse.csr_array(matrix).astype(np.float64)
    norms = np.sqrt(np.asarray(rows.multiply(rows).sum(axis=1)).ravel())
    broken = ~np.isfinite(norms)
    scale = np.minimum(1.0, norm / np.maximum(norms, 1e-300))
    scale[broken] = 0.0
    # An error would tell whether some private cell is not finite; such rows count as zero instead.
    rows.data[~np.isfinite(rows.data)] = 0.0
    return sparse.csr_array(sparse.diags_array(scale) @ rows)
