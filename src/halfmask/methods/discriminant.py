"""Probabilities for linear scores, from moments alone.

The scores f = zW of a linear model are a few numbers a row. Their class means and common covariance
follow from the released moments, and a Gaussian model of them (linear discriminant analysis) turns
scores into log-odds with a scale and an offset that fit. Everything read was released or is public.
"""

from __future__ import annotations

import numpy as np

_LEAST_SHARE = 1e-3


def discriminant(
    coef: np.ndarray, gram: np.ndarray, sums: np.ndarray, counts: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """(width x classes) coefficients and offsets of class log-probabilities, up to a constant.

    `coef` is width x scores, `gram` the second moment of z, `sums` (width x classes) the sum of z
    over each class, and `counts` the number of rows (or total weight) of each class.
    """
    total = max(float(counts.sum()), 1.0)
    shares = np.maximum(counts / total, _LEAST_SHARE)
    shares = shares / shares.sum()
    means = (coef.T @ sums) / (shares * total)
    second = coef.T @ gram @ coef / total
    within = second - (means * shares) @ means.T
    values, vectors = np.linalg.eigh((within + within.T) / 2)
    # Noise can make the variance within classes vanish; some of all variance always remains.
    floor = max(0.05 * float(np.trace(second)) / max(len(second), 1), 1e-12)
    inverse = (vectors / np.maximum(values, floor)) @ vectors.T
    slopes = inverse @ means
    offsets = np.log(shares) - 0.5 * np.einsum("ij,ij->j", means, slopes)
    return coef @ slopes, offsets
