"""Rows to norm 1: a statistic of them has the smallest sensitivity its directions allow."""

from __future__ import annotations

from typing import Self

import numpy as np

from halfmask.features.base import FeatureMap, rows_of


class UnitRows(FeatureMap):
    """Divide each row by its norm; a row of zeros stays."""

    kind = "unit-rows"

    def fit(self, X: np.ndarray, y: None = None) -> Self:
        rows_of(X)
        return self

    def transform(self, X: np.ndarray) -> np.ndarray:
        rows = rows_of(X)
        norms = np.linalg.norm(rows, axis=1, keepdims=True)
        scaled: np.ndarray = rows / np.where(norms > 0, norms, 1)
        return scaled
