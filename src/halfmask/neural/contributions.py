"""Gradients of a network in the form a private step asks for: norms first, then a weighted sum.

Both come from one pass: the weights a private step will choose follow from the norms and the clip
norm, so the sum is made at once and handed over when the step asks with those very weights.
Guarantee: docs/proofs/ghost.md.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from halfmask.mechanisms.sampling import Indices
from halfmask.neural.mlp_ghost import CLIP_MARGIN, MlpGradients
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
        clip_norm: float,
        *,
        padded: Draw | None = None,
        device: torch.device = CPU,
    ) -> None:
        self._device = device
        self._gradients = gradients
        self._rows = rows
        self._targets = targets
        self._clip_norm = clip_norm
        self._padded = padded
        self._labelled: NDArray[np.bool_] | None = None
        if bool((targets < 0).any()):
            self._labelled = (targets >= 0).cpu().numpy()
        self._batch: Indices = np.zeros(0, dtype=np.int64)
        self._pair: Tensor | None = None
        self._weights: Floats = np.zeros(0)
        self._sum: Tensor | None = None

    def norms(self, rows: Indices) -> Floats:
        """Norms, a hair too large: the weights that follow keep to the bound after rounding."""
        has_label = self._has_label(rows)
        every, rows = len(rows), rows[has_label]
        chosen = torch.from_numpy(rows)
        self._batch = rows
        self._pair = None if self._padded is None else self._padded(rows).to(self._device)
        found, self._sum = self._gradients.fused(
            self._take(chosen), self._classes(chosen), self._clip_norm, padded=self._pair
        )
        norms: Floats = found.cpu().numpy() / (1.0 - CLIP_MARGIN)
        finite = np.isfinite(norms)
        safe = np.where(finite & (norms > self._clip_norm), norms, self._clip_norm)
        self._weights = np.where(finite, self._clip_norm / safe, 0.0)
        all_norms = np.zeros(every)
        all_norms[has_label] = norms
        return all_norms

    def weighted_sum(self, rows: Indices, weights: Floats) -> Floats:
        """Σ weight · contribution of rows of the batch last passed to `norms`."""
        has_label = self._has_label(rows)
        rows, weights = rows[has_label], weights[has_label]
        kept = self._weights > 0
        expected = self._sum is not None and np.array_equal(rows, self._batch[kept])
        if not expected or not np.allclose(weights, self._weights[kept], rtol=1e-9, atol=0.0):
            chosen = torch.from_numpy(rows)
            pair = None
            if self._pair is not None:
                pair = self._pair[torch.from_numpy(np.searchsorted(self._batch, rows))]
            self._sum = self._gradients.weighted_sum(
                self._take(chosen),
                self._classes(chosen),
                torch.from_numpy(weights).to(self._device),
                padded=pair,
            )
        assert self._sum is not None
        total: Floats = self._sum.double().cpu().numpy()
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
