"""What is known of the levels of a column once a fit is done, for whoever draws its effects.

Counts of private levels are the released ones; nothing here reads a row.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halfmask.methods.smooth_codes import LevelFeatures

Floats = NDArray[np.float64]


def noise_by_level(feature: LevelFeatures, covariance: Floats) -> Floats:
    """Standard deviations of centred effects by level, of coefficients with this covariance."""
    centred = feature.vectors - feature.mean
    variances = np.einsum("ij,jk,ik->i", centred, covariance, centred)
    found: Floats = np.sqrt(np.maximum(variances, 0.0))[feature.groups]
    return found


def share_by_level(feature: LevelFeatures) -> Floats:
    """The part of rows with each level, as far as it is known: groups of levels share theirs."""
    members = np.bincount(feature.groups, minlength=len(feature.share))
    found: Floats = (feature.share / np.maximum(members, 1))[feature.groups]
    return found


def described_levels(
    shares: Mapping[int, Floats], noises: Mapping[int, Floats], columns: int
) -> list[dict[str, Any]]:
    """By column: `share` of rows and `noise` of effects by level, where they are known."""
    found: list[dict[str, Any]] = [{} for _ in range(columns)]
    for name, known in (("share", shares), ("noise", noises)):
        for place, values in known.items():
            found[place][name] = [float(f"{value:.4g}") for value in values]
    return found
