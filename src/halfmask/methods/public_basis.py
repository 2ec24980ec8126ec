"""Coordinates of the public part in which a statistic suffers least from noise of one size.

Partial whitening spreads the signal over the directions without lifting those that carry little;
the weights keep a few long rows from setting the noise for all. Both read public values only, and
are undone in the coefficients, so that the model stays linear in the public features.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from halfmask.features.pca import PublicPCA


@dataclass(frozen=True, kw_only=True, eq=False)
class PublicBasis:
    """z = (constant, (x − mean) @ directions), and a weight in [0, 1] for each fitted row."""

    constant: float
    mean: np.ndarray
    directions: np.ndarray
    rows: np.ndarray
    row_weights: np.ndarray
    norm: float

    def unfold(self, coef: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Coefficients of z as coefficients of x (width x targets) and intercepts (targets)."""
        slopes = self.directions @ coef[1:]
        return slopes, self.constant * coef[0] - self.mean @ slopes


def public_basis(
    features: np.ndarray, *, whiten: float | None, constant: float, row_quantile: float
) -> PublicBasis:
    """Fit the coordinates to public features; `whiten=None` keeps them as they are.

    `constant` is the size of the constant coordinate relative to a typical row, and rows longer
    than the `row_quantile` of all rows are weighed down to its length.
    """
    n, width = features.shape
    if whiten is None or not width:
        mean, directions = np.zeros(width), np.eye(width)
        coordinates = np.asarray(features, dtype=np.float64)
    else:
        pca = PublicPCA(whiten=whiten).fit(np.asarray(features, dtype=np.float64))
        mean, directions = pca.mean_, pca.basis_
        coordinates = pca.transform(np.asarray(features, dtype=np.float64))
    squares = np.einsum("ij,ij->i", coordinates, coordinates)
    typical = float(np.sqrt(squares.mean())) if n and width else 0.0
    size = constant * typical if typical > 0 else 1.0
    rows = np.hstack([np.full((n, 1), size), coordinates])
    norms = np.sqrt(squares + size**2)
    norm = float(np.quantile(norms, row_quantile)) if n else size
    return PublicBasis(
        constant=size,
        mean=mean,
        directions=directions,
        rows=rows,
        row_weights=np.minimum(1.0, norm / norms),
        norm=norm,
    )
