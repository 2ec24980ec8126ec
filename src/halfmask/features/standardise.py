"""Public columns to mean 0 and standard deviation 1."""

from __future__ import annotations

from typing import Self

import numpy as np

from halfmask.features.base import FeatureMap, rows_of


class Standardise(FeatureMap):
    """Centre and scale each public column; a constant column becomes 0."""

    kind = "standardise"
    learnt = ("mean_", "scale_")

    mean_: np.ndarray
    scale_: np.ndarray

    def fit(self, X: np.ndarray, y: None = None) -> Self:
        rows = rows_of(X)
        self.mean_ = rows.mean(axis=0, dtype=np.float64)
        spread = rows.std(axis=0, dtype=np.float64)
        # A column that only rounding moves is constant.
        constant = spread <= 1e-9 * np.maximum(1.0, np.abs(self.mean_))
        self.scale_ = np.where(constant, 0.0, 1.0 / np.where(constant, 1.0, spread))
        return self

    def transform(self, X: np.ndarray) -> np.ndarray:
        self.check_fitted()
        rows = rows_of(X, width=len(self.mean_))
        centred: np.ndarray = rows - self.mean_.astype(rows.dtype)
        centred *= self.scale_.astype(rows.dtype)
        return centred
