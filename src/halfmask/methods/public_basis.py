"""Coordinates of the public part in which a statistic suffers least from noise of one size.

Partial whitening spreads the signal over the directions without lifting those that carry little;
the weights keep a few long rows from setting the noise for all. Both read public values only, and
are undone in the coefficients, so that the model stays linear in the public features.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from halfmask.features.pca import PublicPCA
from halfmask.methods.coded_rows import CodedRows
from halfmask.row_products import RowMatrix, Rows


@dataclass(frozen=True, kw_only=True, eq=False)
class PublicBasis:
    """z = (constant, (x − mean) @ directions), and a weight in [0, 1] for each fitted row."""

    constant: float
    mean: np.ndarray
    directions: np.ndarray
    rows: Rows
    row_weights: np.ndarray
    norm: float

    def unfold(self, coef: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Coefficients of z as coefficients of x (width x targets) and intercepts (targets)."""
        slopes = self.directions @ coef[1:]
        return slopes, self.constant * coef[0] - self.mean @ slopes


class BasisRows(RowMatrix):
    """(constant, (x − mean) @ directions) of all rows x, by sums over the codes of x."""

    def __init__(
        self, features: CodedRows, constant: float, mean: np.ndarray, directions: np.ndarray
    ) -> None:
        self.features, self._constant = features, constant
        self._mean, self._directions = mean, directions
        self.shape = (features.shape[0], directions.shape[1] + 1)

    def times(self, weights: np.ndarray) -> np.ndarray:
        """rows @ weights."""
        slopes = self._directions @ weights[1:]
        shift = self._constant * weights[0] - self._mean @ slopes
        found: np.ndarray = self.features.times(slopes) + shift
        return found

    def crossed(self, values: np.ndarray) -> np.ndarray:
        """rowsᵀ @ values."""
        total = values.sum(axis=0)
        return self.folded(self.features.crossed(values), total)

    def folded(self, sums: np.ndarray, total: np.ndarray) -> np.ndarray:
        """rowsᵀ @ values from the features' own sums and the total of the values."""
        centred = sums - np.multiply.outer(self._mean, total)
        return np.concatenate([self._constant * total[None], self._directions.T @ centred])

    def gram(self, weights: np.ndarray) -> np.ndarray:
        """rowsᵀ @ (weights · rows)."""
        by_features = self.folded(self.features.gram(weights), self.features.crossed(weights))
        return self.folded(by_features.T, self.crossed(weights))

    def block(self, rows: slice | np.ndarray) -> np.ndarray:
        """Some of the rows."""
        made = (self.features.block(rows) - self._mean) @ self._directions
        return np.hstack([np.full((len(made), 1), self._constant), made])


def _coded_basis(
    features: CodedRows, *, whiten: float, constant: float, row_quantile: float
) -> PublicBasis:
    """`public_basis` of codes: means and products are counts, lengths are looked up."""
    n = features.shape[0]
    ones = np.ones(n)
    mean = features.crossed(ones) / max(n, 1)
    covariance = features.gram(ones) / max(n, 1) - np.outer(mean, mean)
    pca = PublicPCA(whiten=whiten).fit_moments(mean, covariance)
    directions = pca.basis_
    lengths = features.lengths(directions @ directions.T, mean)
    typical = float(np.sqrt((lengths**2).mean()))
    size = constant * typical if typical > 0 else 1.0
    norms = np.hypot(lengths, size, out=lengths)
    norm = float(np.quantile(norms, row_quantile))
    return PublicBasis(
        constant=size,
        mean=mean,
        directions=directions,
        rows=BasisRows(features, size, mean, directions),
        row_weights=np.minimum(1.0, norm / norms),
        norm=norm,
    )


def public_basis(
    features: Rows, *, whiten: float | None, constant: float, row_quantile: float
) -> PublicBasis:
    """Fit the coordinates to public features; `whiten=None` keeps them as they are.

    `constant` is the size of the constant coordinate relative to a typical row, and rows longer
    than the `row_quantile` of all rows are weighed down to its length.
    """
    if isinstance(features, CodedRows):
        if whiten is not None and features.shape[0] and features.shape[1]:
            return _coded_basis(
                features, whiten=whiten, constant=constant, row_quantile=row_quantile
            )
        features = features.block(slice(None))
    assert isinstance(features, np.ndarray)
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
