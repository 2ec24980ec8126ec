"""A dictionary of small image patches, learnt from public images (Coates, Lee and Ng 2011).

Patches are normalised for contrast and whitened; spherical k-means gives the dictionary; the
rectified match of every patch with every word is summed over a coarse grid of pools.
"""

from __future__ import annotations

from typing import Self

import numpy as np

from halfmask.errors import DataError, InputError
from halfmask.features.base import FeatureMap, batches, rows_of

_CONTRAST = 0.01
_FLAT = 0.05
_ROUNDS = 15


class PatchDictionary(FeatureMap):
    """Images as rows of height·width values in [0, 1] to pools²·words features, in float32.

    Everything random comes from `seed`, which is public. Memory grows with `batch` images.
    """

    kind = "patch-dictionary"
    learnt = ("words_", "offset_")

    words_: np.ndarray
    offset_: np.ndarray

    def __init__(
        self,
        shape: tuple[int, int] = (28, 28),
        patch: int = 6,
        words: int = 256,
        pools: int = 3,
        threshold: float = 0.25,
        sample: int = 200_000,
        whitening: float = 0.1,
        batch: int = 200,
        seed: int = 0,
    ) -> None:
        self.shape = shape
        self.patch = patch
        self.words = words
        self.pools = pools
        self.threshold = threshold
        self.sample = sample
        self.whitening = whitening
        self.batch = batch
        self.seed = seed

    def fit(self, X: np.ndarray, y: None = None) -> Self:
        images = self._images(X)
        if min(self.words, self.pools, self.batch, self.sample) < 1:
            raise InputError("Expected words, pools, sample and batch >= 1.")
        if not 1 <= self.patch <= min(self.shape) - self.pools + 1:
            raise InputError(f"Expected a patch that leaves {self.pools} pools in {self.shape}.")
        if not len(images):
            raise DataError("A patch dictionary needs at least one public image.")
        rng = np.random.default_rng(self.seed)
        patches = _normalised(self._random_patches(images, rng))
        mean = patches.mean(axis=0)
        variance, axes = np.linalg.eigh(np.cov(patches.T) + 0.0)
        whiten = ((axes / np.sqrt(np.maximum(variance, 0) + self.whitening)) @ axes.T).astype("f4")
        words = _spherical_means((patches - mean) @ whiten, self.words, rng)
        self.words_ = np.ascontiguousarray((words @ whiten).T)
        self.offset_ = mean @ self.words_ + np.float32(self.threshold)
        return self

    def transform(self, X: np.ndarray) -> np.ndarray:
        self.check_fitted()
        images = self._images(X)
        words = self.words_.shape[1]
        places = [side - self.patch + 1 for side in self.shape]
        edges = [np.linspace(0, p, self.pools + 1).round().astype(int)[:-1] for p in places]
        out = np.empty((len(images), self.pools**2 * words), dtype=np.float32)
        for part in batches(len(images), self.batch):
            patches = self._patches(images[part]).reshape(-1, self.patch**2)
            match = _normalised(patches) @ self.words_
            match -= self.offset_
            np.maximum(match, 0, out=match)
            grid = match.reshape(-1, *places, words)
            pooled = np.add.reduceat(np.add.reduceat(grid, edges[0], axis=1), edges[1], axis=2)
            out[part] = pooled.reshape(len(pooled), -1)
        # Sums of rectified matches are skewed; their roots are close to Gaussian.
        np.sqrt(out, out=out)
        return out

    def _images(self, X: np.ndarray) -> np.ndarray:
        height, width = self.shape
        rows = rows_of(X, width=height * width)
        return rows.astype(np.float32, copy=False).reshape(-1, height, width)

    def _patches(self, images: np.ndarray) -> np.ndarray:
        window = (self.patch, self.patch)
        view: np.ndarray = np.lib.stride_tricks.sliding_window_view(images, window, axis=(1, 2))
        return view

    def _random_patches(self, images: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Patches at random places, flat ones left out where there are enough others."""
        view = self._patches(images)
        at = [rng.integers(0, size, 3 * self.sample) for size in view.shape[:3]]
        patches = view[at[0], at[1], at[2]].reshape(-1, self.patch**2)
        marked = patches[patches.std(axis=1) > _FLAT]
        chosen = marked if len(marked) >= self.words else patches
        kept: np.ndarray = chosen[: self.sample]
        return kept


def _normalised(patches: np.ndarray) -> np.ndarray:
    """Each patch at mean 0 and, nearly, variance 1."""
    centred: np.ndarray = patches - patches.mean(axis=1, keepdims=True)
    variance = np.einsum("ij,ij->i", centred, centred) / np.float32(centred.shape[1])
    centred /= np.sqrt(variance + np.float32(_CONTRAST))[:, None]
    return centred


def _spherical_means(points: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    """`count` unit vectors, each the direction of the points that match it best."""
    means = rng.standard_normal((count, points.shape[1])).astype(points.dtype)
    means /= np.linalg.norm(means, axis=1, keepdims=True)
    for _ in range(_ROUNDS):
        match = points @ means.T
        best = match.argmax(axis=1)
        weight = match[np.arange(len(points)), best]
        order = np.argsort(best, kind="stable")
        starts = np.searchsorted(best[order], np.arange(count))
        weighted = np.vstack([(points * weight[:, None])[order], np.zeros_like(points[:1])])
        sums = np.add.reduceat(weighted, starts, axis=0)
        # reduceat gives an empty cell the next cell's first point: such a cell starts anew.
        empty = np.bincount(best, minlength=count) == 0
        sums[empty] = points[rng.integers(0, len(points), int(empty.sum()))]
        norms = np.linalg.norm(sums, axis=1, keepdims=True)
        means = np.where(norms > 1e-6, sums / np.maximum(norms, 1e-6), means)
    return means
