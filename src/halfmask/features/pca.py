"""Principal components of the public rows, partly whitened on request."""

from __future__ import annotations

from typing import Self

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
        if not 0 <= self.whiten <= 1:
            raise InputError(f"Expected whiten between 0 and 1, got {self.whiten}.")
        if self.components is not None and self.components < 1:
            raise InputError(f"Expected components >= 1, got {self.components}.")
        rows = rows_of(X)
        n, width = rows.shape
        if not width:
            raise DataError("Principal components need at least one public column.")
        mean = rows.mean(axis=0, dtype=np.float64)
        moment = np.zeros((width, width))
        middle = mean.astype(rows.dtype)

        def products(part: slice) -> np.ndarray:
            centred = rows[part] - middle
            found: np.ndarray = centred.T @ centred
            return found

        for found in in_order(list(batches(n, _BATCH)), products, numbers=rows.size):
            moment += found
        variance, directions = np.linalg.eigh(moment / max(n, 1))
        variance, directions = variance[::-1], directions[:, ::-1]
        kept = variance > 1e-10 * max(float(variance[0]), 1e-300)
        count = min(int(kept.sum()), self.components or width)
        # The sign of an eigenvector is arbitrary: fix it, so that a refit gives the same map.
        top = directions[:, :count]
        top = top * np.where(top[np.abs(top).argmax(axis=0), np.arange(count)] < 0, -1.0, 1.0)
        self.mean_ = mean.astype(rows.dtype)
        self.variance_ = variance[:count]
        self.basis_ = (top / self.variance_ ** (self.whiten / 2)).astype(rows.dtype)
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
