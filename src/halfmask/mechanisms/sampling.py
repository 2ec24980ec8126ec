"""Which rows take part in a step.

The private batch is Poisson: each row takes part with probability `rate`, independently, decided
by secret randomness. The public batch is uniform, decided by public randomness of its own. Nothing
here stores how many rows a private batch has. Guarantee: docs/proofs/poisson_gaussian.md.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from halfmask.errors import InputError
from halfmask.mechanisms.noise import NoiseSource

Indices = NDArray[np.int64]


def poisson_rows(rows: int, rate: float, source: NoiseSource) -> Indices:
    """The rows of one Poisson batch, in order; it may be empty.

    Jumps between chosen rows are geometric, so the work grows with the batch, not with the table.
    """
    if not 0 < rate <= 1:
        raise InputError(f"Expected a sampling rate in (0, 1], got {rate}.")
    if rate == 1:
        return np.arange(rows)
    log_skip = math.log1p(-rate)
    chosen: list[Indices] = []
    last = -1
    while True:
        expected = (rows - 1 - last) * rate
        uniforms = source.uniform(int(expected + 6 * math.sqrt(expected) + 16))
        # A jump past the last row ends the batch, so nothing larger needs to be represented.
        jumps = np.minimum(np.floor(np.log(uniforms) / log_skip), float(rows)) + 1
        positions = last + np.cumsum(jumps)
        chosen.append(positions[positions < rows].astype(np.int64))
        if positions[-1] >= rows:
            return np.concatenate(chosen)
        last = int(positions[-1])


def uniform_rows(rows: int, size: int, generator: np.random.Generator) -> Indices:
    """A uniform public batch without repetition (all rows where size >= rows)."""
    if size >= rows:
        return np.arange(rows)
    return generator.choice(rows, size=size, replace=False, shuffle=False)
