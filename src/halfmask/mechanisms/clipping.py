"""Bounds on what one row can contribute."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from halfmask.errors import InputError

Floats = NDArray[np.float64]


def clip_weights(norms: Floats, clip_norm: float) -> Floats:
    """The factor in [0, 1] that brings each norm to at most `clip_norm`.

    A norm that is NaN or infinite gives 0: such a row contributes exactly nothing.
    """
    if not clip_norm > 0:
        raise InputError(f"Expected clip_norm > 0, got {clip_norm}.")
    norms = np.asarray(norms, dtype=np.float64)
    finite = np.isfinite(norms)
    safe = np.where(finite & (norms > clip_norm), norms, clip_norm)
    return np.where(finite, clip_norm / safe, 0.0)


def clip_rows(rows: Floats, norm: float) -> Floats:
    """Each row scaled down to norm at most `norm`; rows with NaN or infinity become zero."""
    rows = np.asarray(rows, dtype=np.float64)
    norms = np.sqrt(np.einsum("ij,ij->i", rows, rows))
    # A row may overflow in its square although its entries are finite.
    weights = clip_weights(norms, norm)
    finite = np.isfinite(norms)
    return np.where(finite[:, None], rows, 0.0) * weights[:, None]
