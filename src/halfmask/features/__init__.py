"""Maps of the public part of a row: fitted on public values only, so they cost no budget.

Anything with `fit`, `transform` and `fit_transform` can take their place; the ones here can also be
stored with a model, as arrays without pickle.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Self

import numpy as np

from halfmask.errors import DataError, InputError
from halfmask.features.base import FeatureMap, UnitRows
from halfmask.features.neighbour_graph import NeighbourGraph
from halfmask.features.patch_dictionary import PatchDictionary
from halfmask.features.pca import PublicPCA

__all__ = [
    "Chain",
    "FeatureMap",
    "NeighbourGraph",
    "PatchDictionary",
    "PublicPCA",
    "UnitRows",
    "feature_map_from_arrays",
]


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
    cls.kind: cls
    for cls in (
        Chain,
        NeighbourGraph,
        PatchDictionary,
        PublicPCA,
        UnitRows,
    )
}


def feature_map_from_arrays(arrays: Mapping[str, np.ndarray]) -> FeatureMap:
    """The map stored by `to_arrays`, whichever it is."""
    kind = str(arrays.get("kind", ""))
    if kind not in _KINDS:
        raise DataError(f"Unknown kind of stored map {kind!r}: train the model again.")
    return _KINDS[kind].from_arrays(arrays)
