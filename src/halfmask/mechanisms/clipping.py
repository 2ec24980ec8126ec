"""Bounds on what one row can contribute. Guarantee: docs/proofs/gaussian.md."""

from __future__ import annotations

import math

import numpy as np

from halfmask.errors import InputError
from halfmask.types import Floats


def check_clip_norm(clip_norm: float) -> None:
    """Refuse anything but a finite bound > 0: an infinite one would bound nothing."""
    if not (math.isfinite(clip_norm) and clip_norm > 0):
        raise InputError(f"Expected a finite clip_norm > 0, got {clip_norm}.")


def clip_weights(norms: Floats, clip_norm: float) -> Floats:
    """The factor in [0, 1] that brings each norm to at most `clip_norm`.

    A norm that is NaN or infinite gives 0: such a row contributes exactly nothing.
    """
    check_clip_norm(clip_norm)
    norms = np.asarray(norms, dtype=np.float64)
    finite = np.isfinite(norms)
    safe = np.where(finite & (norms > clip_norm), norms, clip_norm)
    weights = np.where(finite, clip_norm / safe, 0.0)
    # A subnormal factor has lost digits and could leave the row too long.
    return np.where(weights >= np.finfo(np.float64).tiny, weights, 0.0)


def clip_rows(rows: Floats, norm: float) -> Floats:
    """Each row scaled down to norm at most `norm`; rows with NaN or infinity become zero."""
    rows = np.asarray(rows, dtype=np.float64)
    check_clip_norm(norm)
    finite = np.isfinite(rows).all(axis=1, keepdims=True)
    rows = np.where(finite, rows, 0.0)
    largest, scaled, lengths = _scaled(rows)
    with np.errstate(over="ignore"):
        inside = largest * lengths <= norm
    # Of a row that is not zero the length is at least 1: its largest entry is.
    outside = scaled * (norm / np.maximum(lengths, 1.0))[:, None]
    return np.where(inside[:, None], rows, outside)


def norm_of(vector: Floats) -> float:
    """The norm of finite numbers, also where their squares overflow or vanish."""
    largest, _, lengths = _scaled(np.asarray(vector, dtype=np.float64).reshape(1, -1))
    return float(largest[0] * lengths[0])


def _scaled(rows: Floats) -> tuple[Floats, Floats, Floats]:
    """Each row's largest entry, the row divided by it, and the norm of that.

    Squares of very large or very small entries leave the range of doubles; these do not.
    """
    largest = np.abs(rows).max(axis=1, initial=0.0)
    scaled = rows / np.where(largest > 0, largest, 1.0)[:, None]
    return largest, scaled, np.sqrt(np.einsum("ij,ij->i", scaled, scaled))
