"""Maps of the public part of a row: fitted on public values only, so they cost no budget.

Anything with `fit`, `transform` and `fit_transform` can take their place; the ones here can also be
stored with a model, as arrays without pickle.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from inspect import signature
from typing import Any, ClassVar, Self

import numpy as np
from scipy import sparse
from scipy.sparse.linalg import eigsh
from sklearn.base import BaseEstimator
from sklearn.neighbors import NearestNeighbors

from halfmask.data.products import in_order, parts_of
from halfmask.errors import DataError, InputError

# --- What every map of the public part can do: fit on public rows, transform rows, be stored.
# A map sees public values only, so nothing it learns costs budget. Its state is a flat dictionary
# of arrays, stored in an npz file without pickle.


class FeatureMap(BaseEstimator, ABC):  # type: ignore[misc]
    """A transformer of public rows with the manners of scikit-learn.

    A subclass stores its constructor's arguments under their own names, writes what `fit` learns to
    the attributes listed in `learnt`, and names itself by `kind`.
    """

    kind: ClassVar[str]
    learnt: ClassVar[tuple[str, ...]] = ()

    @abstractmethod
    def fit(self, X: np.ndarray, y: None = None) -> Self:
        """Learn from public rows; there is no label, so `y` is ignored."""

    @abstractmethod
    def transform(self, X: np.ndarray) -> np.ndarray:
        """The rows in the new coordinates, in batches where the work per row is large."""

    def fit_transform(self, X: np.ndarray, y: None = None) -> np.ndarray:
        """`fit`, then the coordinates of the same rows."""
        return self.fit(X).transform(X)

    def to_arrays(self) -> dict[str, np.ndarray]:
        """Kind, parameters and what was learnt, as arrays for an npz file."""
        self.check_fitted()
        arrays = {"kind": np.array(self.kind)}
        for name, value in self.get_params(deep=False).items():
            if value is not None:
                arrays[f"param.{name}"] = np.asarray(value)
        for name in self.learnt:
            arrays[name] = np.asarray(getattr(self, name))
        return arrays

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray]) -> Self:
        """The inverse of `to_arrays`."""
        try:
            if str(arrays["kind"]) != cls.kind:
                raise DataError(f"The stored map is not of kind {cls.kind!r}.")
            params = {
                name: _plain(arrays[f"param.{name}"]) if f"param.{name}" in arrays else None
                for name in signature(cls).parameters
            }
            made = cls(**params)
            for name in cls.learnt:
                setattr(made, name, np.asarray(arrays[name]))
        except KeyError as error:
            raise DataError(f"The stored map has no array {error}: train again.") from None
        return made

    def check_fitted(self) -> None:
        """Refuse to work before `fit`."""
        if any(not hasattr(self, name) for name in self.learnt):
            raise InputError(f"This {type(self).__name__} is not fitted: call fit first.")


def _plain(value: np.ndarray) -> Any:
    """A parameter as Python wrote it: a number or text, or a tuple of them."""
    listed = value.tolist()
    return tuple(listed) if isinstance(listed, list) else listed


def rows_of(X: Any, *, width: int | None = None) -> np.ndarray:
    """`X` as a 2-d array of finite float32 or float64, of `width` columns where that is known."""
    rows = np.asarray(X)
    if rows.dtype not in (np.float32, np.float64):
        rows = rows.astype(np.float64)
    if rows.ndim != 2:
        raise DataError(f"Expected a 2-d array of rows, got {rows.ndim}-d.")
    if width is not None and rows.shape[1] != width:
        raise DataError(f"Expected rows of {width} values, got {rows.shape[1]}.")
    return rows


class UnitRows(FeatureMap):
    """Divide each row by its norm; a row of zeros stays.

    A statistic of such rows has the smallest sensitivity that their directions allow.
    """

    kind = "unit-rows"

    def fit(self, X: np.ndarray, y: None = None) -> Self:
        rows_of(X)
        return self

    def transform(self, X: np.ndarray) -> np.ndarray:
        rows = rows_of(X)
        norms = np.linalg.norm(rows, axis=1, keepdims=True)
        return rows / np.where(norms > 0, norms, 1)


# --- Principal components of the public rows, partly whitened on request.


_PCA_BATCH = 8192


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

        for found in in_order(parts_of(n, _PCA_BATCH), products, numbers=rows.size):
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

        for _ in in_order(parts_of(len(rows), _PCA_BATCH), fill, numbers=rows.size):
            pass
        return out


# --- A dictionary of small image patches, learnt from public images (Coates, Lee and Ng 2011).
# Patches are normalised for contrast and whitened; spherical k-means gives the dictionary; the
# rectified match of every patch with every word is summed over a coarse grid of pools.


_CONTRAST = 0.01
_FLAT = 0.05
_ROUNDS = 15


@dataclass(eq=False, repr=False)
class PatchDictionary(FeatureMap):
    """Images as rows of height·width values in [0, 1] to pools²·words features, in float32.

    Everything random comes from `seed`, which is public. Memory grows with `batch` images.
    """

    kind = "patch-dictionary"
    learnt = ("words_", "offset_")

    shape: tuple[int, int] = (28, 28)
    patch: int = 6
    words: int = 256
    pools: int = 3
    threshold: float = 0.25
    sample: int = 200_000
    whitening: float = 0.1
    batch: int = 200
    seed: int = 0
    words_: np.ndarray = field(init=False)
    offset_: np.ndarray = field(init=False)

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
        for part in parts_of(len(images), self.batch):
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
        return np.lib.stride_tricks.sliding_window_view(images, window, axis=(1, 2))

    def _random_patches(self, images: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Patches at random places, flat ones left out where there are enough others."""
        view = self._patches(images)
        at = [rng.integers(0, size, 3 * self.sample) for size in view.shape[:3]]
        patches = view[at[0], at[1], at[2]].reshape(-1, self.patch**2)
        marked = patches[patches.std(axis=1) > _FLAT]
        chosen = marked if len(marked) >= self.words else patches
        return chosen[: self.sample]


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


# --- Smooth functions on the graph of nearest neighbours among the public rows.
# Rows that look alike mostly share a label, so a label varies slowly over this graph and lies in
# the span of its few smoothest functions (Belkin and Niyogi 2003). A statistic in these coordinates
# needs far fewer numbers, hence far less noise in total, than one in the raw columns. New rows are
# placed by Nyström's rule: the weighted mean of their neighbours (Bengio et al. 2004).


_BATCH = 2000
_SMALLEST = 0.05
_DENSE = 2000


class NeighbourGraph(FeatureMap):
    """The `components` smoothest functions on the graph, each times eigenvalue**smoothing.

    The graph joins each row with its `neighbours` nearest ones, with weights scaled by the distance
    to the furthest of them (Zelnik-Manor and Perona 2004). The public rows are stored with the map.
    """

    kind = "neighbour-graph"
    learnt = ("rows_", "scale_", "values_", "functions_")

    rows_: np.ndarray
    scale_: np.ndarray
    values_: np.ndarray
    functions_: np.ndarray

    def __init__(self, components: int = 200, neighbours: int = 10, smoothing: float = 4.0) -> None:
        self.components = components
        self.neighbours = neighbours
        self.smoothing = smoothing

    def fit(self, X: np.ndarray, y: None = None) -> Self:
        rows = rows_of(X)
        n = len(rows)
        if self.neighbours < 1 or self.components < 1 or self.smoothing < 0:
            raise InputError("Expected neighbours >= 1, components >= 1 and smoothing >= 0.")
        if n <= max(self.neighbours, 2):
            raise DataError(f"Expected more than {max(self.neighbours, 2)} public rows, got {n}.")
        self.rows_ = np.array(rows)
        squared, near = self._search().kneighbors()
        self.scale_ = squared[:, -1] + 1e-12
        weights = self._weights(squared, near, self.scale_)
        ends = np.arange(0, near.size + 1, self.neighbours)
        graph = sparse.csr_matrix((weights.ravel(), near.ravel(), ends), shape=(n, n))
        graph = graph.maximum(graph.T)
        degree = np.asarray(graph.sum(axis=1)).ravel()
        root = sparse.diags(1 / np.sqrt(degree))
        values, vectors = _leading(root @ graph @ root, min(self.components, n - 1))
        order = [place for place in np.argsort(-values) if values[place] > _SMALLEST]
        self.values_ = values[order]
        functions = vectors[:, order] / np.sqrt(degree)[:, None] * np.sqrt(degree.sum())
        self.functions_ = functions.astype(np.float32)
        return self

    def fit_transform(self, X: np.ndarray, y: None = None) -> np.ndarray:
        """The functions at the fitted rows themselves, without placing each by itself."""
        functions = self.fit(X).functions_
        return functions * (self.values_**self.smoothing).astype(np.float32)

    def transform(self, X: np.ndarray) -> np.ndarray:
        self.check_fitted()
        rows = rows_of(X, width=self.rows_.shape[1])
        search = self._search()
        out = np.empty((len(rows), len(self.values_)), dtype=np.float32)
        for part in parts_of(len(rows), _BATCH):
            squared, near = search.kneighbors(rows[part].astype(self.rows_.dtype, copy=False))
            weights = self._weights(squared, near, squared[:, -1] + 1e-12)
            weights /= weights.sum(axis=1, keepdims=True)
            mean = np.einsum("ij,ijk->ik", weights.astype(np.float32), self.functions_[near])
            out[part] = mean * (self.values_ ** (self.smoothing - 1)).astype(np.float32)
        return out

    def _search(self) -> NearestNeighbors:
        search = NearestNeighbors(
            n_neighbors=self.neighbours, algorithm="brute", metric="sqeuclidean"
        )
        return search.fit(self.rows_)

    def _weights(self, squared: np.ndarray, near: np.ndarray, own: np.ndarray) -> np.ndarray:
        weights: np.ndarray = np.exp(-squared / np.sqrt(own[:, None] * self.scale_[near]))
        # Far ends of a graph must keep a positive degree.
        kept: np.ndarray = np.maximum(weights, 1e-12)
        return kept


def _leading(matrix: sparse.spmatrix, count: int) -> tuple[np.ndarray, np.ndarray]:
    """The largest eigenvalues and their vectors, a function of the matrix alone."""
    n = matrix.shape[0]
    if n <= _DENSE:
        # Lanczos can miss copies of an eigenvalue, and groups without a link share the largest.
        values, vectors = np.linalg.eigh(matrix.toarray())
        return values[-count:], vectors[:, -count:]
    start = np.random.default_rng(0).standard_normal(n)
    values, vectors = eigsh(matrix, k=count, which="LA", tol=1e-3, v0=start)
    return values, vectors


class Chain(FeatureMap):
    """Maps one after another, stored as one: each is fed the rows of the one before."""

    kind = "chain"

    def __init__(self, maps: Sequence[FeatureMap]) -> None:
        self.maps = maps

    def fit(self, X: np.ndarray, y: None = None) -> Self:
        self.fit_transform(X)
        return self

    def fit_transform(self, X: np.ndarray, y: None = None) -> np.ndarray:
        if not self.maps:
            raise InputError("A chain needs at least one map.")
        for step in self.maps:
            X = step.fit_transform(X)
        return X

    def transform(self, X: np.ndarray) -> np.ndarray:
        for step in self.maps:
            X = step.transform(X)
        return X

    def check_fitted(self) -> None:
        for step in self.maps:
            step.check_fitted()

    def to_arrays(self) -> dict[str, np.ndarray]:
        arrays = {"kind": np.array(self.kind), "length": np.array(len(self.maps))}
        for place, step in enumerate(self.maps):
            arrays |= {f"{place}.{name}": part for name, part in step.to_arrays().items()}
        return arrays

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray]) -> Self:
        if str(arrays.get("kind")) != cls.kind or "length" not in arrays:
            raise DataError(f"The stored map is not of kind {cls.kind!r}.")
        maps = []
        for place in range(int(arrays["length"])):
            start = f"{place}."
            own = {n.removeprefix(start): a for n, a in arrays.items() if n.startswith(start)}
            maps.append(feature_map_from_arrays(own))
        return cls(maps)


_KINDS: dict[str, type[FeatureMap]] = {
    cls.kind: cls for cls in (Chain, NeighbourGraph, PatchDictionary, PublicPCA, UnitRows)
}


def feature_map_from_arrays(arrays: Mapping[str, np.ndarray]) -> FeatureMap:
    """The map stored by `to_arrays`, whichever it is."""
    kind = str(arrays.get("kind", ""))
    if kind not in _KINDS:
        raise DataError(f"Unknown kind of stored map {kind!r}: train the model again.")
    return _KINDS[kind].from_arrays(arrays)
