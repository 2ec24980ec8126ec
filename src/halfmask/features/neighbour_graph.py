"""Smooth functions on the graph of nearest neighbours among the public rows.

Rows that look alike mostly share a label, so a label varies slowly over this graph and lies in
the span of its few smoothest functions (Belkin and Niyogi 2003). A statistic in these coordinates
needs far fewer numbers, hence far less noise in total, than one in the raw columns. New rows are
placed by Nyström's rule: the weighted mean of their neighbours (Bengio et al. 2004).
"""

from __future__ import annotations

from typing import Self

import numpy as np
from scipy import sparse
from scipy.sparse.linalg import eigsh
from sklearn.neighbors import NearestNeighbors

from halfmask.errors import DataError, InputError
from halfmask.features.base import FeatureMap, batches, rows_of

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
        scaled: np.ndarray = functions * (self.values_**self.smoothing).astype(np.float32)
        return scaled

    def transform(self, X: np.ndarray) -> np.ndarray:
        self.check_fitted()
        rows = rows_of(X, width=self.rows_.shape[1])
        search = self._search()
        out = np.empty((len(rows), len(self.values_)), dtype=np.float32)
        for part in batches(len(rows), _BATCH):
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
