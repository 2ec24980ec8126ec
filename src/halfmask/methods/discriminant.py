"""Probabilities for the scores of a linear model of one-hot labels, without a look at a row.

Scores f that are least-squares (or posterior mean) estimates of one-hot labels y have mean π, the
shares of the classes, and cov(f, y) = cov(f). If they are Gaussian within classes with a common
covariance, linear discriminant analysis needs nothing but π and R = Σ^-½·cov(f)·Σ^-½, the share of
the label's covariance Σ = diag(π) − ππᵀ that is explained:

    log P(k | f) = (f − π)ᵀ A (e_k − π) − ½ (e_k − π)ᵀ Σ^-½ R (1 − R)⁻¹ Σ^-½ (e_k − π) + log π_k + …

with A = Σ^-½ (1 − R)⁻¹ Σ^-½. Nothing is divided by the noisy spread of the scores, so that noise
cannot blow up the odds. Everything read was released or is public.
"""

from __future__ import annotations

import numpy as np

_LEAST_SHARE = 1e-3
_MOST_EXPLAINED = 0.75


def discriminant(
    coef: np.ndarray, gram: np.ndarray, counts: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """(width x classes) coefficients and offsets of class log-probabilities, up to a constant.

    `coef` (width x classes) gives the scores, `gram` is the second moment of the features and
    `counts` the number (or total weight) of rows of each class.
    """
    total = max(float(np.maximum(counts, 0).sum()), 1.0)
    shares = np.maximum(counts / total, _LEAST_SHARE)
    shares = shares / shares.sum()
    values, vectors = np.linalg.eigh(np.diag(shares) - np.outer(shares, shares))
    # The smallest eigenvalue is 0, along (1, …, 1): shares sum to one.
    root = (vectors[:, 1:] / np.sqrt(values[1:])) @ vectors[:, 1:].T
    spread = coef.T @ gram @ coef / total - np.outer(shares, shares)
    explained, axes = np.linalg.eigh(root @ (spread + spread.T) @ root / 2)
    explained = np.clip(explained, 0.0, _MOST_EXPLAINED)
    towards = root @ (np.eye(len(shares)) - shares[:, None])
    slopes = root @ (axes / (1 - explained)) @ axes.T @ towards
    size = (axes * (explained / (1 - explained))) @ axes.T
    offsets = np.log(shares) - 0.5 * np.einsum("ij,ik,kj->j", towards, size, towards)
    return coef @ slopes, offsets - shares @ slopes
