"""Maps one after another, stored as one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Self

import numpy as np

from halfmask.errors import DataError, InputError
from halfmask.features.base import FeatureMap


class Chain(FeatureMap):
    """Feed each map's rows to the next."""

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
        from halfmask.features import feature_map_from_arrays

        if str(arrays.get("kind")) != cls.kind or "length" not in arrays:
            raise DataError(f"The stored map is not of kind {cls.kind!r}.")
        maps = []
        for place in range(int(arrays["length"])):
            start = f"{place}."
            own = {n.removeprefix(start): a for n, a in arrays.items() if n.startswith(start)}
            maps.append(feature_map_from_arrays(own))
        return cls(maps)
