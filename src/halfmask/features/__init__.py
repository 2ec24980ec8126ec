"""Maps of the public part of a row: fitted on public values only, so they cost no budget.

Anything with `fit`, `transform` and `fit_transform` can take their place; the ones here can also be
stored with a model, as arrays without pickle.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from halfmask.errors import DataError
from halfmask.features.base import FeatureMap, UnitRows
from halfmask.features.chain import Chain
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
