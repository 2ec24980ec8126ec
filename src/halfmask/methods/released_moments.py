"""The moments that touch something private, released once; the public ones stay exact.

Z = [public part with a constant | private part | coded label]. Of ZᵀZ only the blocks with a
private member get noise. Each times its weight, they form one vector and one Gaussian release.

Guarantee: docs/proofs/one_shot.md, Theorems 1 and 2.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from halfmask.errors import InputError
from halfmask.mechanisms.release import Releaser, Sensitivity
from halfmask.methods.coded_rows import CodedRows
from halfmask.methods.moment_sensitivity import (
    BlockWeights,
    RowBounds,
    replace_sensitivity,
    withhold_sensitivity,
)
from halfmask.methods.public_basis import BasisRows
from halfmask.row_products import RowMatrix, Rows, block, crossed, in_order, parts_of


@dataclass(frozen=True, kw_only=True, eq=False)
class Moments:
    """Blocks of the (weighted) second-moment matrix, and the noise variance on an entry of each.

    `rows` is the total weight of the rows, which is public.
    """

    rows: float
    public_public: np.ndarray
    public_private: np.ndarray
    private_private: np.ndarray
    public_label: np.ndarray
    private_label: np.ndarray
    public_private_variance: float
    private_private_variance: float
    public_label_variance: float
    private_label_variance: float


def plan_moments(
    public: Rows,
    private: Rows,
    label: np.ndarray,
    *,
    row_weights: np.ndarray,
    bounds: RowBounds,
    weights: BlockWeights,
    releaser: Releaser,
    mu: float,
    what: str,
    own: slice = slice(None),
) -> Callable[[], Moments]:
    """Open the release, whose sensitivity is `mu` times its noise; what is returned makes it, once.

    `row_weights` in [0, 1] are public and weigh whole rows. Where rows are spread over machines,
    public values are those of all rows, `private` (and a private label) those of this machine's,
    which are at `own` among all.
    """
    check_rows(public, row_weights, bounds)
    sensitivity = Sensitivity(
        replace=replace_sensitivity(bounds, weights),
        withhold=withhold_sensitivity(bounds, weights),
    )
    std = sensitivity.under(releaser.relation) / mu
    series = releaser.gaussian_series(sensitivity=sensitivity, noise_std=std, count=1, what=what)

    def release() -> Moments:
        own_label = label[own] if bounds.label == "public" else label
        # Codes of public columns are not gathered: their rows are those of one machine.
        own_public = public if isinstance(public, RowMatrix) else public[own]
        pieces = weighted_blocks(own_public, private, own_label, row_weights[own], bounds, weights)
        noisy = series.release(np.concatenate([piece.ravel() for piece in pieces.values()]))
        return _unpacked(noisy, pieces, public, private, label, row_weights, bounds, weights, std)

    return release


def _unpacked(
    noisy: np.ndarray,
    pieces: dict[str, np.ndarray],
    public: Rows,
    private: Rows,
    label: np.ndarray,
    row_weights: np.ndarray,
    bounds: RowBounds,
    weights: BlockWeights,
    std: float,
) -> Moments:
    start = 0
    released: dict[str, np.ndarray] = {}
    for name, piece in pieces.items():
        released[name] = noisy[start : start + piece.size].reshape(piece.shape)
        start += piece.size

    def block(name: str, weight: float, shape: tuple[int, int]) -> tuple[np.ndarray, float]:
        if name not in released:
            return np.zeros(shape), 0.0
        return released[name] / weight, (std / weight) ** 2

    p, r, m = public.shape[1], private.shape[1], label.shape[1]
    cross, cross_variance = block("public_private", weights.public_private, (p, r))
    packed, own_variance = block("private_private", weights.private_private, (0, 0))
    to_public, public_variance = block("public_label", weights.public_label, (p, m))
    to_private, private_variance = block("private_label", weights.private_label, (r, m))
    if bounds.label == "public":
        to_public = crossed(public, label * row_weights[:, None])
    return Moments(
        rows=float(row_weights.sum()),
        public_public=weighed_products(public, row_weights),
        public_private=cross,
        private_private=unpack_symmetric(packed.ravel(), r),
        public_label=to_public,
        private_label=to_private,
        public_private_variance=cross_variance,
        # Off-diagonal entries were released times √2 and make up nearly all of the block.
        private_private_variance=own_variance / 2,
        public_label_variance=public_variance,
        private_label_variance=private_variance,
    )


def check_rows(public: Rows, row_weights: np.ndarray, bounds: RowBounds) -> None:
    """Refuse public rows longer than the bound that the noise is calibrated to."""
    if row_weights.size and not (row_weights.min() >= 0 and row_weights.max() <= 1):
        raise InputError("Expected row weights in [0, 1].")
    longest = _lengths(public) * row_weights
    if longest.size and not longest.max() <= bounds.public * (1 + 1e-9):
        raise InputError("A public row is longer than the bound on public rows.")


def _lengths(public: Rows) -> np.ndarray:
    """The length of each row, from the rows themselves, whatever they were made of."""
    parts = in_order(
        parts_of(len(public)),
        lambda part: np.linalg.norm(block(public, part), axis=1),
        numbers=math.prod(public.shape),
    )
    return np.concatenate([np.zeros(0), *parts])


def weighed_products(rows: Rows, weights: np.ndarray) -> np.ndarray:
    """rowsᵀ @ (weights · rows)."""
    if isinstance(rows, BasisRows | CodedRows):
        return rows.gram(weights)
    assert isinstance(rows, np.ndarray)
    even = bool((weights == 1).all())
    scaled = rows if even else rows * np.sqrt(weights)[:, None]
    # One array against itself: half the work of a general product.
    return crossed(scaled, scaled)


def _products(public: Rows, private: Rows, weights: np.ndarray) -> np.ndarray:
    """publicᵀ @ (weights · private)."""
    if isinstance(public, BasisRows) and isinstance(private, CodedRows):
        sums = public.features.crossed_with(private, weights)
        return public.folded(sums, private.crossed(weights))
    return crossed(private, block(public, slice(None)) * weights[:, None]).T


def released_numbers(public: int, private: int, label: int, bounds: RowBounds) -> int:
    """How many numbers are released: the sizes of `weighted_blocks`."""
    with_public = 0 if bounds.label == "public" else public * label
    return public * private + private * (private + 1) // 2 + private * label + with_public


def weighted_blocks(
    public: Rows,
    private: Rows,
    label: np.ndarray,
    row_weights: np.ndarray,
    bounds: RowBounds,
    weights: BlockWeights,
) -> dict[str, np.ndarray]:
    """The sums that touch something private, each times its weight; nothing here is released."""
    blocks: dict[str, np.ndarray] = {}
    labels = label * row_weights[:, None]
    if private.shape[1]:
        blocks["public_private"] = weights.public_private * _products(public, private, row_weights)
        own = pack_symmetric(weighed_products(private, row_weights))
        blocks["private_private"] = weights.private_private * own
        blocks["private_label"] = weights.private_label * crossed(private, labels)
    if bounds.label != "public":
        blocks["public_label"] = weights.public_label * crossed(public, labels)
    return blocks


def pack_symmetric(matrix: np.ndarray) -> np.ndarray:
    """The upper triangle, off-diagonal entries times √2: the norm is the Frobenius norm."""
    rows, columns = np.triu_indices(len(matrix))
    packed: np.ndarray = matrix[rows, columns] * np.where(rows == columns, 1.0, math.sqrt(2))
    return packed


def unpack_symmetric(packed: np.ndarray, width: int) -> np.ndarray:
    """The inverse of `pack_symmetric`."""
    matrix = np.zeros((width, width))
    if packed.size:
        rows, columns = np.triu_indices(width)
        entries = packed / np.where(rows == columns, 1.0, math.sqrt(2))
        matrix[rows, columns] = entries
        matrix[columns, rows] = entries
    return matrix
