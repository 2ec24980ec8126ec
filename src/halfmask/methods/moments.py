"""What `one-shot` releases: sums of products of public, private and label columns, with one noise.

Read from the top: the release, the blocks it is made of, how far one row moves them, and the
coordinates of the public part in which a statistic suffers least from noise of one size. Partial
whitening spreads the signal over the directions without lifting those that carry little; weights
keep a few long rows from setting the noise for all. Both read public values only, and are undone in
the coefficients, so that the model stays linear in the public features.
Guarantee: docs/proofs/one_shot.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from halfmask.data.products import CodedRows, RowMatrix, Rows, block, crossed, in_order, parts_of
from halfmask.errors import InputError
from halfmask.features import PublicPCA
from halfmask.mechanisms.release import Sensitivity


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


@dataclass(frozen=True, kw_only=True, eq=False)
class MomentSums:
    """The sums to release: `exact` without noise, `sensitivity`, and `read` for their noisy copy.

    `row_weights` in [0, 1] are public and weigh whole rows. Where rows are spread over machines,
    public values are those of all rows, `private` (and a private label) those of this machine's,
    which are at `own` among all.
    """

    public: Rows
    private: Rows
    label: np.ndarray
    row_weights: np.ndarray
    bounds: RowBounds
    weights: BlockWeights
    own: slice

    def __post_init__(self) -> None:
        check_row_norms(self.public, self.row_weights, self.bounds)

    def sensitivity(self) -> Sensitivity:
        """How far one unit moves `exact`."""
        return Sensitivity(
            replace=replace_sensitivity(self.bounds, self.weights),
            withhold=withhold_sensitivity(self.bounds, self.weights),
        )

    def exact(self) -> np.ndarray:
        """The blocks that touch something private, packed into one vector, without noise."""
        own_label = self.label[self.own] if self.bounds.label == "public" else self.label
        public = self.public
        if self.own != slice(0, len(public)):
            assert isinstance(public, BasisRows | np.ndarray)
            public = public.part(self.own) if isinstance(public, BasisRows) else public[self.own]
        blocks = weighted_blocks(
            public,
            self.private,
            own_label,
            self.row_weights[self.own],
            self.bounds,
            self.weights,
        )
        return np.concatenate([piece.ravel() for piece in blocks.values()])

    def read(self, noisy: np.ndarray, noise_std: float) -> Moments:
        """The moments of a noisy copy of `exact`; what is public of them has no noise."""
        p, r, m = self.public.shape[1], self.private.shape[1], self.label.shape[1]
        shapes = block_shapes(p, r, m, self.bounds)
        released: dict[str, np.ndarray] = {}
        start = 0
        for name, shape in shapes.items():
            released[name] = noisy[start : start + math.prod(shape)].reshape(shape)
            start += math.prod(shape)

        def block(name: str, shape: tuple[int, ...]) -> tuple[np.ndarray, float]:
            if name not in released:
                return np.zeros(shape), 0.0
            weight = getattr(self.weights, name)
            return released[name] / weight, (noise_std / weight) ** 2

        cross, cross_variance = block("public_private", (p, r))
        packed, own_variance = block("private_private", (0,))
        to_public, public_variance = block("public_label", (p, m))
        to_private, private_variance = block("private_label", (r, m))
        if self.bounds.label == "public":
            to_public = crossed(self.public, self.label * self.row_weights[:, None])
        return Moments(
            rows=float(self.row_weights.sum()),
            public_public=weighed_products(self.public, self.row_weights),
            public_private=cross,
            private_private=unpack_symmetric(packed, r),
            public_label=to_public,
            private_label=to_private,
            public_private_variance=cross_variance,
            # Off-diagonal entries were released times √2 and make up nearly all of the block.
            private_private_variance=own_variance / 2,
            public_label_variance=public_variance,
            private_label_variance=private_variance,
        )


def block_shapes(
    public: int, private: int, label: int, bounds: RowBounds
) -> dict[str, tuple[int, ...]]:
    """The shapes of `weighted_blocks`, in their order: what is released, from sizes alone."""
    shapes: dict[str, tuple[int, ...]] = {}
    if private:
        shapes["public_private"] = (public, private)
        shapes["private_private"] = (private * (private + 1) // 2,)
        shapes["private_label"] = (private, label)
    if bounds.label != "public":
        shapes["public_label"] = (public, label)
    return shapes


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


def pack_symmetric(matrix: np.ndarray) -> np.ndarray:
    """The upper triangle, off-diagonal entries times √2: the norm is the Frobenius norm."""
    rows, columns = np.triu_indices(len(matrix))
    return matrix[rows, columns] * np.where(rows == columns, 1.0, math.sqrt(2))


def unpack_symmetric(packed: np.ndarray, width: int) -> np.ndarray:
    """The inverse of `pack_symmetric`."""
    matrix = np.zeros((width, width))
    if packed.size:
        rows, columns = np.triu_indices(width)
        entries = packed / np.where(rows == columns, 1.0, math.sqrt(2))
        matrix[rows, columns] = entries
        matrix[columns, rows] = entries
    return matrix


LabelCoding = Literal["public", "one-hot", "signed"]
"""What is known of two labels: equal; unit vectors, equal or orthogonal; numbers in [-1, 1]."""
_INNER: dict[LabelCoding, tuple[float, ...]] = {
    "public": (1.0,),
    "one-hot": (1.0, 0.0),
    "signed": (1.0, -1.0),
}


@dataclass(frozen=True, kw_only=True)
class RowBounds:
    """What the declaration and the public columns say about every row.

    ‖p‖ ≤ `public`, ‖r‖ ≤ `private`, ‖y‖ ≤ 1; `non_negative` promises that ⟨r, r'⟩ ≥ 0 for any two
    private parts. The weights of the rows of a unit of privacy add up to at most `rows`.
    """

    public: float
    private: float
    label: LabelCoding
    non_negative: bool = False
    rows: int = 1

    def __post_init__(self) -> None:
        if not (math.isfinite(self.public) and self.public >= 0):
            raise InputError(f"Expected a finite public norm >= 0, got {self.public}.")
        if not (math.isfinite(self.private) and self.private >= 0):
            raise InputError(f"Expected a finite private norm >= 0, got {self.private}.")
        if self.rows < 1:
            raise InputError(f"Expected at least one row per unit, got {self.rows}.")


@dataclass(frozen=True, kw_only=True)
class BlockWeights:
    """The factors of the four blocks before noise of one size is added to all of them."""

    public_private: float
    private_private: float
    public_label: float
    private_label: float


def replace_sensitivity(bounds: RowBounds, weights: BlockWeights) -> float:
    """The largest change of the weighted sum when one unit's private part takes another value."""
    norm, square = bounds.public**2, bounds.private**2
    cross = weights.public_private**2 * norm
    own = weights.private_private**2
    with_public = weights.public_label**2 * norm
    with_private = weights.private_label**2
    lowest = 0.0 if bounds.non_negative else -square
    worst = 0.0
    for same in _INNER[bounds.label]:
        # A concave parabola in the inner product t of the two private parts.
        slope = -2 * (cross + with_private * same)
        t = square if slope >= 0 else lowest
        if own > 0:
            t = min(max(slope / (4 * own), lowest), square)
        worst = max(
            worst,
            cross * (2 * square - 2 * t)
            + own * (2 * square**2 - 2 * t**2)
            + with_public * (2 - 2 * same)
            + with_private * (2 * square - 2 * t * same),
        )
    return bounds.rows * math.sqrt(worst)


def withhold_sensitivity(bounds: RowBounds, weights: BlockWeights) -> float:
    """The largest norm of one unit's contribution, which withholding turns to zero."""
    norm, square = bounds.public**2, bounds.private**2
    with_public = 0.0 if bounds.label == "public" else weights.public_label**2 * norm
    total = (
        weights.public_private**2 * norm * square
        + weights.private_private**2 * square**2
        + with_public
        + weights.private_label**2 * square
    )
    return bounds.rows * math.sqrt(total)


def choose_weights(bounds: RowBounds, *, coefficient: float) -> BlockWeights:
    """Factors that balance the blocks, from public quantities alone.

    Noise in a block with the label moves the solution as it is; noise in a second moment is first
    multiplied by the coefficients, whose size is guessed to be `coefficient`. For independent noise
    of standard deviation 1/weight, the smallest Σ cost/weight² at a given Σ weight²·size² has
    weight² = √cost / size, where size is what the block alone can change.
    """

    def weight(cost: float, size: float) -> float:
        return math.sqrt(math.sqrt(cost) / size) if size > 0 else 0.0

    apart = math.sqrt(2.0 if bounds.non_negative else 4.0)
    label = {"public": 0.0, "one-hot": math.sqrt(2.0), "signed": 2.0}[bounds.label]
    joint = apart if bounds.label == "public" else max(apart, label)
    public, private = bounds.public, bounds.private
    return BlockWeights(
        public_private=weight(coefficient**2, apart * public * private),
        private_private=weight(coefficient**2, math.sqrt(2.0) * private**2),
        public_label=weight(1.0, label * public),
        private_label=weight(1.0, joint * private),
    )


def check_row_norms(public: Rows, row_weights: np.ndarray, bounds: RowBounds) -> None:
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


@dataclass(frozen=True, kw_only=True, eq=False)
class PublicBasis:
    """z = (constant, (x − mean) @ directions), and a weight in [0, 1] for each fitted row."""

    constant: float
    mean: np.ndarray
    directions: np.ndarray
    rows: Rows
    row_weights: np.ndarray
    norm: float

    def unfold(self, coef: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Coefficients of z as coefficients of x (width x targets) and intercepts (targets)."""
        slopes = self.directions @ coef[1:]
        return slopes, self.constant * coef[0] - self.mean @ slopes


class BasisRows(RowMatrix):
    """(constant, (x − mean) @ directions) of all rows x, by sums over the codes of x."""

    def __init__(
        self, features: CodedRows, constant: float, mean: np.ndarray, directions: np.ndarray
    ) -> None:
        self.features, self._constant = features, constant
        self._mean, self._directions = mean, directions
        self.shape = (features.shape[0], directions.shape[1] + 1)

    def times(self, weights: np.ndarray) -> np.ndarray:
        """rows @ weights."""
        slopes = self._directions @ weights[1:]
        shift = self._constant * weights[0] - self._mean @ slopes
        found: np.ndarray = self.features.times(slopes) + shift
        return found

    def crossed(self, values: np.ndarray) -> np.ndarray:
        """rowsᵀ @ values."""
        total = values.sum(axis=0)
        return self.folded(self.features.crossed(values), total)

    def folded(self, sums: np.ndarray, total: np.ndarray) -> np.ndarray:
        """rowsᵀ @ values from the features' own sums and the total of the values."""
        centred = sums - np.multiply.outer(self._mean, total)
        return np.concatenate([self._constant * total[None], self._directions.T @ centred])

    def gram(self, weights: np.ndarray) -> np.ndarray:
        """rowsᵀ @ (weights · rows)."""
        by_features = self.folded(self.features.gram(weights), self.features.crossed(weights))
        return self.folded(by_features.T, self.crossed(weights))

    def part(self, rows: slice) -> BasisRows:
        """Rows that lie one after the other."""
        features = self.features.part(rows)
        return BasisRows(features, self._constant, self._mean, self._directions)

    def block(self, rows: slice | np.ndarray) -> np.ndarray:
        """Some of the rows."""
        made = (self.features.block(rows) - self._mean) @ self._directions
        return np.hstack([np.full((len(made), 1), self._constant), made])


def public_basis(
    features: Rows, *, whiten: float | None, constant: float, row_quantile: float
) -> PublicBasis:
    """Fit the coordinates to public features; `whiten=None` keeps them as they are.

    `constant` is the size of the constant coordinate relative to a typical row, and rows longer
    than the `row_quantile` of all rows are weighed down to its length.
    """
    if isinstance(features, CodedRows):
        if whiten is not None and features.shape[0] and features.shape[1]:
            return _coded_basis(
                features, whiten=whiten, constant=constant, row_quantile=row_quantile
            )
        features = features.block(slice(None))
    assert isinstance(features, np.ndarray)
    n, width = features.shape
    if whiten is None or not width:
        mean, directions = np.zeros(width), np.eye(width)
        coordinates = np.asarray(features, dtype=np.float64)
    else:
        pca = PublicPCA(whiten=whiten).fit(np.asarray(features, dtype=np.float64))
        mean, directions = pca.mean_, pca.basis_
        coordinates = pca.transform(np.asarray(features, dtype=np.float64))
    squares = np.einsum("ij,ij->i", coordinates, coordinates)
    typical = float(np.sqrt(squares.mean())) if n and width else 0.0
    size = constant * typical if typical > 0 else 1.0
    rows = np.hstack([np.full((n, 1), size), coordinates])
    norms = np.sqrt(squares + size**2)
    norm = float(np.quantile(norms, row_quantile)) if n else size
    return PublicBasis(
        constant=size,
        mean=mean,
        directions=directions,
        rows=rows,
        row_weights=np.minimum(1.0, norm / norms),
        norm=norm,
    )


def _coded_basis(
    features: CodedRows, *, whiten: float, constant: float, row_quantile: float
) -> PublicBasis:
    """`public_basis` of codes: means and products are counts, lengths are looked up."""
    n = features.shape[0]
    ones = np.ones(n)
    mean = features.crossed(ones) / max(n, 1)
    covariance = features.gram(ones) / max(n, 1) - np.outer(mean, mean)
    pca = PublicPCA(whiten=whiten).fit_moments(mean, covariance)
    directions = pca.basis_
    lengths = features.lengths(directions @ directions.T, mean)
    typical = float(np.sqrt((lengths**2).mean()))
    size = constant * typical if typical > 0 else 1.0
    norms = np.hypot(lengths, size, out=lengths)
    norm = float(np.quantile(norms, row_quantile))
    return PublicBasis(
        constant=size,
        mean=mean,
        directions=directions,
        rows=BasisRows(features, size, mean, directions),
        row_weights=np.minimum(1.0, norm / norms),
        norm=norm,
    )
