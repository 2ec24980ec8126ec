"""Means of the private features by class, released once and read with care.

The label being public, the sums of the private features of each class are one Gaussian release,
and so is everything derived from them: padded rows, a network trained on such rows, any number of
times.
Without a public label there is one class, and the means are those of the columns.

Guarantee: docs/proofs/class_means.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halfmask.mechanisms.release import Releaser, Sensitivity

Floats = NDArray[np.float64]
Codes = NDArray[np.int64]

# No level is taken to be impossible on the word of noisy sums.
_LEAST = 1e-4
# Rows summed at a time.
_BLOCK = 1 << 15


@dataclass(frozen=True, kw_only=True, eq=False)
class ClassMeans:
    """`means` is (classes, private features) within [0, 1] where features are non-negative."""

    means: Floats
    noise_std: float


def sum_sensitivity(norm: float, *, non_negative: bool) -> Sensitivity:
    """How far one row of norm at most `norm` moves the sums of its own class.

    Two non-negative rows are at an angle of at most 90 degrees, so they differ by at most √2·norm.
    """
    replace = math.sqrt(2.0) * norm if non_negative else 2.0 * norm
    return Sensitivity(replace=replace, withhold=norm)


def release_class_means(
    private: NDArray[np.floating[Any]],
    codes: Codes,
    classes: int,
    *,
    norm: float,
    non_negative: bool,
    mu: float,
    releaser: Releaser,
) -> ClassMeans:
    """Release Σ rows by class with sensitivity/noise = `mu`, and shrink the means.

    `private` has rows of norm at most `norm` (see `Inputs.private`); `codes` must be public.
    Guarantee: docs/proofs/class_means.md.
    """
    sensitivity = sum_sensitivity(norm, non_negative=non_negative)
    noise_std = sensitivity.under(releaser.relation) / mu
    sums = np.zeros((classes, private.shape[1]))
    for start in range(0, len(private), _BLOCK):
        some = slice(start, start + _BLOCK)
        np.add.at(sums, codes[some], private[some].astype(np.float64))
    released = releaser.gaussian(
        sums,
        sensitivity=sensitivity,
        noise_std=noise_std,
        what="sums of the private features of each class" if classes > 1 else "column sums",
    )
    counts = releaser.shards.sum(np.bincount(codes, minlength=classes).astype(np.float64))
    means = shrunk_means(released, counts, noise_std, non_negative=non_negative)
    return ClassMeans(means=means, noise_std=noise_std)


def shrunk_means(sums: Floats, counts: Floats, noise_std: float, *, non_negative: bool) -> Floats:
    """Class means pulled towards the mean of all classes, by as much as the noise calls for.

    Empirical Bayes by feature: how far class means spread is what is left of their variance after
    the noise, half from the feature itself and half from features of its size. Only released values
    and public counts are read.
    """
    counts = np.maximum(counts, 1.0)
    overall = sums.sum(0) / counts.sum()
    if non_negative:
        overall = np.clip(overall, _LEAST, 1.0)
    if len(counts) == 1:
        alone: Floats = overall[None, :]
        return alone
    means = sums / counts[:, None]
    noise = (noise_std / counts[:, None]) ** 2
    spread = np.maximum(((means - overall) ** 2 - noise).mean(0), 0.0)
    size = np.abs(overall)
    typical = size * (spread.sum() / max(float(size.sum()), 1e-12))
    spread = (spread + typical) / 2.0
    shrunk = overall + (means - overall) * spread / (spread + noise)
    clipped: Floats = np.clip(shrunk, 0.0, 1.0) if non_negative else shrunk
    return clipped
