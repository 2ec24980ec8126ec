"""Random Fourier features: a linear model on them is a Gaussian-kernel model of the public part.

Rahimi and Recht 2007. The random directions are public randomness: a fixed seed costs nothing.
"""

from __future__ import annotations

from typing import Self

import numpy as np

from halfmask.errors import InputError
from halfmask.features.base import FeatureMap, batches, rows_of

_BATCH = 4096
_PAIRS = 2000


class RandomFourier(FeatureMap):
    """`features` cosines and sines; every row has norm exactly 1.

    `gamma` is that of exp(−gamma·‖x − x'‖²); by default the inverse of the median squared distance
    between public rows.
    """

    kind = "random-fourier"
    learnt = ("directions_",)

    directions_: np.ndarray

    def __init__(self, features: int = 1000, gamma: float | None = None, seed: int = 0) -> None:
        self.features = features
        self.gamma = gamma
        self.seed = seed

    def fit(self, X: np.ndarray, y: None = None) -> Self:
        if self.features < 2:
            raise InputError(f"Expected features >= 2, got {self.features}.")
        if self.gamma is not None and not self.gamma > 0:
            raise InputError(f"Expected gamma > 0, got {self.gamma}.")
        rows = rows_of(X)
        rng = np.random.default_rng(self.seed)
        gamma = self.gamma or _median_gamma(rows, rng)
        shape = (rows.shape[1], self.features // 2)
        self.directions_ = (np.sqrt(2 * gamma) * rng.standard_normal(shape)).astype(rows.dtype)
        return self

    def transform(self, X: np.ndarray) -> np.ndarray:
        self.check_fitted()
        rows = rows_of(X, width=len(self.directions_))
        half = self.directions_.shape[1]
        out = np.empty((len(rows), 2 * half), dtype=self.directions_.dtype)
        for part in batches(len(rows), _BATCH):
            angle = rows[part] @ self.directions_
            np.cos(angle, out=out[part, :half])
            np.sin(angle, out=out[part, half:])
        out /= np.sqrt(np.array(half, dtype=out.dtype))
        return out


def _median_gamma(rows: np.ndarray, rng: np.random.Generator) -> float:
    if len(rows) == 0:
        return 1.0
    left, right = rng.integers(0, len(rows), (2, _PAIRS))
    squared = ((rows[left] - rows[right]) ** 2).sum(axis=1)
    apart = squared[squared > 0]
    return 1.0 / float(np.median(apart)) if apart.size else 1.0
