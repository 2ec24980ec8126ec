"""Means of the private features by class, released once and read with care.

The label being public, the sums of the private features of each class are one Gaussian release,
and so is everything derived from them: padded rows, a network trained on such rows, any number of
times.
Without a public label there is one class, and the means are those of the columns.

Guarantee: docs/proofs/class_means.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halfmask.mechanisms.release import Releaser, Sensitivity
from halfmask.neural.shrinkage import shrunk_means

Floats = NDArray[np.float64]
Codes = NDArray[np.int64]

# Rows summed at a time.
_BLOCK = 1 << 13


@dataclass(frozen=True, kw_only=True, eq=False)
class ClassMeans:
    """`means` is (classes, private features); `left` the variance that noise leaves in each."""

    means: Floats
    noise_std: float
    left: float


def sum_sensitivity(norm: float, *, non_negative: bool) -> Sensitivity:
    """How far one row of norm at most `norm` moves the sums of its own class.

    Two non-negative rows are at an angle of at most 90 degrees, so they differ by at most √2·norm.
    """
    replace = math.sqrt(2.0) * norm if non_negative else 2.0 * norm
    return Sensitivity(replace=replace, withhold=norm)


def plan_class_means(
    private: NDArray[np.floating[Any]],
    codes: Codes,
    classes: int,
    *,
    norm: float,
    non_negative: bool,
    mu: float,
    releaser: Releaser,
    public_means: Floats | None = None,
) -> tuple[float, Callable[[], ClassMeans]]:
    """Open the release of Σ rows by class with sensitivity/noise = `mu`; its noise, and what
    releases the sums, once, and shrinks the means.

    `private` has rows of norm at most `norm` (see `Inputs.private`); `codes` must be public, as are
    `public_means`, the means of public features by class, which tell classes that are alike.
    Guarantee: docs/proofs/class_means.md.
    """
    sensitivity = sum_sensitivity(norm, non_negative=non_negative)
    noise_std = sensitivity.under(releaser.relation) / mu
    series = releaser.gaussian_series(
        sensitivity=sensitivity,
        noise_std=noise_std,
        count=1,
        what="sums of the private features of each class" if classes > 1 else "column sums",
    )

    def release() -> ClassMeans:
        sums = np.zeros((classes, private.shape[1]))
        for start in range(0, len(private), _BLOCK):
            some = slice(start, start + _BLOCK)
            np.add.at(sums, codes[some], private[some].astype(np.float64))
        released = series.release(sums)
        counts = releaser.shards.sum(np.bincount(codes, minlength=classes).astype(np.float64))
        found = shrunk_means(
            released, counts, noise_std, non_negative=non_negative, public_means=public_means
        )
        return ClassMeans(means=found.means, noise_std=noise_std, left=found.variance)

    return noise_std, release
