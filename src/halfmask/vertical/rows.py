"""Rows of a party's block, bounded before anything is computed from them."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import sparse

from halfmask.mechanisms.clipping import clip_rows


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
