"""Reading noisy class means: what a class has in common with its likes tells signal from noise.

Empirical Bayes. Of a feature j, the means of the classes are taken for a draw from
N(overall_j, spread_j · L), with L (classes x classes) saying which classes are alike. L is the same
for all features, so that many noisy features estimate it well; public columns say it without noise.
The posterior mean then borrows from classes that are alike as much as the noise calls for.
Only released values, public means and public counts are read.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

# No level is taken to be impossible on the word of noisy sums.
_LEAST = 1e-4
# Features' worth of the belief that classes are unrelated, for tables with few columns.
_UNRELATED = 5.0


@dataclass(frozen=True, kw_only=True, eq=False)
class Estimate:
    """Means (classes x features), and the mean over all of them of what is left of the noise."""

    means: Floats
    variance: float


def shrunk_means(
    sums: Floats,
    counts: Floats,
    noise_std: float,
    *,
    non_negative: bool,
    public_means: Floats | None = None,
) -> Estimate:
    """Posterior means of the classes, given sums that carry noise of `noise_std` each.

    `public_means` are the means of public features by class, without noise.
    """
    counts = np.maximum(counts, 1.0)
    overall = sums.sum(0) / counts.sum()
    if non_negative:
        overall = np.maximum(overall, _LEAST)
    if len(counts) == 1:
        return Estimate(means=overall[None, :], variance=(noise_std / float(counts[0])) ** 2)
    noise = np.maximum((noise_std / counts) ** 2, 1e-18)
    apart = sums / counts[:, None] - overall
    likeness = _likeness(apart, noise, counts, public_means)
    spread = _spread(apart, noise, overall)
    # With root = noise^½ and root⁻¹·L·root⁻¹ = V·diag(v)·Vᵀ, the posterior mean of a feature is
    # root·V·diag(spread·v / (1 + spread·v))·Vᵀ·root⁻¹ · apart: one decomposition for all features.
    root = np.sqrt(noise)
    values, vectors = np.linalg.eigh(likeness / np.outer(root, root))
    signal = np.outer(np.maximum(values, 0.0), spread)
    kept = signal / (1.0 + signal)
    means = overall + root[:, None] * (vectors @ (kept * (vectors.T @ (apart / root[:, None]))))
    left = noise[:, None] * (np.square(vectors) @ kept)
    clipped: Floats = np.maximum(means, 0.0) if non_negative else means
    return Estimate(means=clipped, variance=float(left.mean()))


def _likeness(apart: Floats, noise: Floats, counts: Floats, public_means: Floats | None) -> Floats:
    """The covariance of class means over features, of mean variance 1.

    Each source counts with the number of features it has, the noisy one with as many features
    without noise as would estimate a variance equally well.
    """
    classes, features = apart.shape
    total = _UNRELATED * np.eye(classes)
    weight = _UNRELATED
    raw = apart @ apart.T / features - np.diag(noise)
    size = float(np.trace(raw)) / classes
    if size > 0:
        worth = features * (size / (size + float(noise.mean()))) ** 2
        total, weight = total + worth * raw / size, weight + worth
    if public_means is not None and public_means.shape[1]:
        shown = public_means - np.average(public_means, axis=0, weights=counts)
        size = float(np.square(shown).sum()) / classes
        if size > 0:
            worth = float(public_means.shape[1])
            total, weight = total + worth * (shown @ shown.T) / size, weight + worth
    values, vectors = np.linalg.eigh(total / weight)
    positive: Floats = (vectors * np.maximum(values, 0.0)) @ vectors.T
    scaled: Floats = positive * (classes / max(float(np.trace(positive)), 1e-12))
    return scaled


def _spread(apart: Floats, noise: Floats, overall: Floats) -> Floats:
    """How far class means of a feature lie apart: half its own word, half that of its size."""
    own = np.maximum((np.square(apart) - noise[:, None]).mean(0), 0.0)
    size = np.abs(overall)
    typical = size * (own.sum() / max(float(size.sum()), 1e-12))
    spread: Floats = (own + typical) / 2.0
    return spread
