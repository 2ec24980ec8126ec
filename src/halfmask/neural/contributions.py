"""Gradients of a network in the form a private step asks for: a sum of clipped ones, in one pass.

Guarantee: docs/proofs/ghost.md.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from halfmask.mechanisms.sampling import Indices
from halfmask.neural.mlp_ghost import MlpGradients
from halfmask.neural.structured import StructuredRows

Floats = NDArray[np.float64]
Draw = Callable[[Indices], Tensor]

# Fraction by which the noise is widened for the rounding of sums in single precision.
FLOAT32_RESERVE = 2.0**-11
CPU = torch.device("cpu")


class NetworkContributions:
    """∇ℓ(x) − ∇ℓ_pub(g(f(x))) for chosen rows; without a pair, ∇ℓ(x).

    `padded` is None (no pair, or pairs held by `StructuredRows`), or draws the padded rows of a
    batch from randomness of its own. Rows stay where they are; batches move to `device`. A row
    without a label (its target is negative) contributes zero.
    """

    def __init__(
        self,
        gradients: MlpGradients,
        rows: Tensor | StructuredRows,
        targets: Tensor,
        *,
        padded: Draw | None = None,
        device: torch.device = CPU,
    ) -> None:
        self._device = device
        self._gradients = gradients
        self._rows = rows
        self._targets = targets
        self._padded = padded
        self._labelled: NDArray[np.bool_] | None = None
        if bool((targets < 0).any()):
            self._labelled = (targets >= 0).cpu().numpy()

    def clipped_sum(self, rows: Indices, clip_norm: float) -> Floats:
        """Σ of the contributions, each scaled down to norm at most `clip_norm`, in one pass."""
        kept = self._has_label(rows)
        # Padding is drawn for all rows: what later rows get must not follow from who has a label.
        pair = None if self._padded is None else self._padded(rows)[kept].to(self._device)
        chosen = torch.from_numpy(rows[kept])
        found = self._gradients.clipped_sum(
            self._take(chosen), self._classes(chosen), clip_norm, padded=pair
        )
        total: Floats = found.double().cpu().numpy()
        return total

    def _has_label(self, rows: Indices) -> NDArray[np.bool_]:
        every = np.ones(len(rows), dtype=bool)
        return every if self._labelled is None else self._labelled[rows]

    def _take(self, chosen: Tensor) -> Tensor | StructuredRows:
        if isinstance(self._rows, StructuredRows):
            return self._rows.take(chosen).to(self._device)
        return self._rows[chosen].to(self._device)

    def _classes(self, chosen: Tensor) -> Tensor:
        return self._targets[chosen].to(self._device)
