"""Principal components of the public rows, partly whitened on request."""

from __future__ import annotations

from typing import Any, Self

import numpy as np

from halfmask.errors import DataError, InputError
from halfmask.features.base import FeatureMap, batches, rows_of
from halfmask.row_products import in_order

_BATCH = 8192


class PublicPCA(FeatureMap):
    """The leading `components` directions of the public rows, each divided by variance**(whiten/2).

    `whiten=0` is plain PCA, 1 whitens fully. In between, noise of equal size on every coordinate
    meets signal that is spread more evenly without raising directions that are mostly noise.
    """

    kind = "pca"
    learnt = ("mean_", "basis_", "variance_")

    mean_: np.ndarray
    basis_: np.ndarray
    variance_: np.ndarray

    def __init__(self, components: int | None = None, whiten: float = 0.0) -> None:
        self.components = components
        self.whiten = whiten

    def fit(self, X: np.ndarray, y: None = None) -> Self:
        rows = rows_of(X)
        n, width = rows.shape
        mean = rows.mean(axis=0, dtype=np.float64)
        moment = np.zeros((width, width))
        middle = mean.astype(rows.dtype)

        def products(part: slice) -> np.ndarray:
            centred = rows[part] - middle
            found: np.ndarray = centred.T @ centred
            return found

        for found in in_order(list(batches(n, _BATCH)), products, numbers=rows.size):
            moment += found
        return self.fit_moments(mean, moment / max(n, 1), rows.dtype)

    def fit_moments(
        self, mean: np.ndarray, covariance: np.ndarray, dtype: Any = np.float64
    ) -> Self:
        """The same from the mean and the covariance of public rows."""
        if not 0 <= self.whiten <= 1:
            raise InputError(f"Expected whiten between 0 and 1, got {self.whiten}.")
        if self.components is not None and self.components < 1:
            raise InputError(f"Expected components >= 1, got {self.components}.")
        if not len(mean):
            raise DataError("Principal components need at least one public column.")
        variance, directions = np.linalg.eigh(covariance)
        variance, directions = variance[::-1], directions[:, ::-1]
        kept = variance > 1e-10 * max(float(variance[0]), 1e-300)
        count = min(int(kept.sum()), self.components or len(mean))
        # The sign of an eigenvector is arbitrary: fix it, so that a refit gives the same map.
        top = directions[:, :count]
        size = np.abs(top)
        # Two levels may be equally long: which one rounding made longer must not decide.
        longest = (size > (1 - 1e-8) * size.max(axis=0)).argmax(axis=0)
        top = top * np.where(top[longest, np.arange(count)] < 0, -1.0, 1.0)
        self.mean_ = mean.astype(dtype)
        self.variance_ = variance[:count]
        self.basis_ = (top / self.variance_ ** (self.whiten / 2)).astype(dtype)
        return self

    def transform(self, X: np.ndarray) -> np.ndarray:
        self.check_fitted()
        rows = rows_of(X, width=len(self.mean_))
        out = np.empty((len(rows), self.basis_.shape[1]), dtype=self.basis_.dtype)

        def fill(part: slice) -> None:
            out[part] = (rows[part] - self.mean_) @ self.basis_

        for _ in in_order(list(batches(len(rows), _BATCH)), fill, numbers=rows.size):
            pass
        return out
