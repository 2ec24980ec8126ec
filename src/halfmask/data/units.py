"""Which rows of each unit count, its first `max_rows` in the order of the file, and how much.

The ids and the order of rows are public, so both depend on nothing private.
Guarantee: docs/proofs/units.md.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from halfmask.accounting.events import Relation
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


def seen_before(codes: np.ndarray) -> NDArray[np.int64]:
    """How often the code of each row came before it."""
    order = np.argsort(codes, kind="stable")
    starts = np.searchsorted(codes[order], np.arange(codes.max(initial=-1) + 1))
    times = np.empty(len(codes), dtype=np.int64)
    times[order] = np.arange(len(codes)) - starts[codes[order]]
    return times


def first_rows(codes: np.ndarray, unit: Unit) -> tuple[np.ndarray, np.ndarray]:
    """Positions of the rows kept, in order, and their unit codes."""
    rows = np.flatnonzero(seen_before(codes) < unit.max_rows)
    return rows, codes[rows]


@dataclass(frozen=True, kw_only=True, eq=False)
class UnitWeights:
    """A weight in (0, 1] for each row, `total` over all rows, at most `most` over a unit's rows."""

    rows: NDArray[np.float64]
    most: int
    total: float


def unit_weights(
    codes: NDArray[np.int64], *, numbers: int, mu: float, relation: Relation, skew: float = 0.0
) -> UnitWeights:
    """Weights min(1, m / rows of the unit), so that each unit counts as at most m rows in a sum.

    Noise grows with m, and so does the sum. Of all m the one that makes the variance of a weighted
    mean the least: Σ weight² for the rows and (m·Δ/μ)² for the noise on each of `numbers` released
    numbers, over (Σ weight)², a row's contribution having length 1 and moving by Δ = 2 (replace)
    or 1 (withhold). `skew` is how far rows whose weight was cut may lie from the others, in lengths
    of a contribution: the mean is off by that times the part that was cut. Rows per unit are
    public. Guarantee: docs/proofs/units.md.
    """
    counts = np.bincount(codes)
    units = np.bincount(counts)
    units[0] = 0
    rows = np.arange(len(units))
    lighter = np.cumsum(units * rows)
    heavier = units.sum() - np.cumsum(units)
    shares = units / np.maximum(rows, 1)
    shares = shares.sum() - np.cumsum(shares)
    noise = numbers * ((2.0 if relation == "replace" else 1.0) / mu) ** 2
    totals = lighter + rows * heavier
    variance = (lighter + rows**2 * (shares + noise)) / np.maximum(totals, 1) ** 2
    variance = variance + (skew * (1 - totals / max(len(codes), 1))) ** 2
    # Where several are as good, the one that changes weights least.
    most = len(rows) - 1 - int(np.argmin(variance[:0:-1]))
    return UnitWeights(
        rows=np.minimum(1.0, most / counts[codes]), most=most, total=float(totals[most])
    )
