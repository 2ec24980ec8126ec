"""What a level of a column adds to a score: smooth features of ordered levels, pooled rare ones.

Everything here reads counts of levels, exact ones of a public column or released, noisy ones of a
private column, and declared facts; never a row. Levels become vectors in a ball of radius 1, so a
row moves a sum of them by a known amount. Guarantee: docs/proofs/additive.md.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halfmask.data.encoding import even_parts
from halfmask.table import CodedColumn
from halfmask.types import Floats

# The kernel over ordered levels: a line, a wide and a narrow bump, and each level by itself. The
# shares say how far a typical effect follows each; the widths are parts of the range of positions.
_LINE, _WIDE, _NARROW, _ALONE = 0.35, 0.40, 0.23, 0.02
_WIDE_WIDTH, _NARROW_WIDTH = 0.35, 0.10
# Directions smaller than this share of the largest are left out; fewer where counts are exact.
_SMALLEST, _SMALLEST_EXACT = 2e-3, 2e-4
# The most groups of levels of a public number: finer ones would only add rough directions.
_MOST_EXACT = 32
# A level is kept apart where its noisy count stands this many standard deviations above zero.
_CLEAR = 4.0
_POOLED = 2.0
_ROUNDING = 1e-7  # for the rounding of norms and distances
# No level of a number needs fewer rows than this share, or, of large tables, so many.
_SMALLEST_LEVEL, _ENOUGH_ROWS = 0.01, 500.0


@dataclass(frozen=True, kw_only=True, eq=False)
class LevelFeatures:
    """Groups of levels and a vector for each group.

    `groups` maps a level to its group, `vectors` has a row per group, `share` is the estimated part
    of rows in each group. `size` orders directions from smooth to rough.
    """

    groups: NDArray[np.intp]
    vectors: Floats
    share: Floats
    size: Floats
    smooth: bool = False

    @cached_property
    def radius(self) -> float:
        """The longest vector, over all groups, seen or not."""
        if not self.vectors.size:
            return 0.0
        squares = np.einsum("ij,ij->i", self.vectors, self.vectors)
        return math.sqrt(float(squares.max())) * (1 + _ROUNDING)

    @cached_property
    def diameter(self) -> float:
        """The largest distance of two vectors, over all groups, seen or not."""
        if not self.vectors.size:
            return 0.0
        gram = self.vectors @ self.vectors.T
        squares = np.diag(gram)
        apart = squares[:, None] + squares[None, :] - 2 * gram
        return math.sqrt(max(float(apart.max()), 0.0)) * (1 + _ROUNDING) + _ROUNDING

    @property
    def mean(self) -> Floats:
        """The mean vector of a row."""
        return self.share @ self.vectors

    @property
    def covariance(self) -> Floats:
        """The covariance of a row's vector."""
        centred = self.vectors - self.mean
        return (centred.T * self.share) @ centred

    def sums(self, by_level: Floats) -> Floats:
        """Σ weight · vector of the level, from the weights summed by level (the last axis)."""
        if by_level.ndim > 1:
            return np.stack([self.sums(each) for each in by_level])
        by_group = np.bincount(self.groups, by_level, minlength=len(self.share))
        return by_group @ self.vectors

    def by_level(self, coefficients: Floats) -> Floats:
        """What each level adds to a score."""
        return (self.vectors @ coefficients)[self.groups]

    def smoother(self, power: float) -> tuple[LevelFeatures, float]:
        """Rough directions shortened by size^power, the ball brought back to radius 1.

        Also the factor by which lengths were divided.
        """
        if power == 0 or not self.vectors.size:
            return self, 1.0
        vectors, scale = _in_unit_ball(self.vectors * self.size**power)
        return replace(self, vectors=vectors), scale

    def whitened(self, power: float) -> LevelFeatures:
        """Centred and whitened in part, with mean square 1: for columns that are public."""
        values, axes = np.linalg.eigh(self.covariance)
        kept = values > max(values.max(initial=0.0), 1e-12) * 1e-3
        vectors = (self.vectors - self.mean) @ (axes[:, kept] * values[kept] ** (-power / 2))
        square = float(self.share @ np.einsum("ij,ij->i", vectors, vectors))
        if square > 0:
            vectors = vectors / math.sqrt(square)
        size = np.ones(vectors.shape[1])
        if self.smooth:
            size = np.sqrt(values[kept] / max(float(values.max(initial=0.0)), 1e-300))
        return replace(self, vectors=vectors, size=size)


def level_features(
    column: CodedColumn, counts: Floats, noise_std: float, rows: float, *, alone: float = _ALONE
) -> LevelFeatures:
    """The features of a column from `counts` of its levels, each with noise of `noise_std`.

    `alone` is the share of a number's effect that its levels have by themselves.
    """
    if column.values is None:
        groups = _pooled(counts, noise_std)
        kernel = np.eye(int(groups.max()) + 1)
        share = _shares(np.bincount(groups, counts), noise_std, rows)
    else:
        ordered = len(column.values)
        inner = _merged(counts[:ordered], noise_std, rows)
        share = _shares(np.bincount(inner, counts[:ordered]), noise_std, rows)
        kernel = _kernel(_positions(inner, column.values, counts[:ordered], share), alone)
        missing = counts[ordered] > _POOLED * noise_std
        groups = np.append(inner, len(kernel))
        kernel = np.pad(kernel, (0, 1))
        kernel[-1, -1] = 1.0
        share = np.append(share, max(counts[ordered] / rows, 0.0) if missing else 0.0)
        if not missing:
            # Nobody seen: no direction of its own, the place of the average row.
            kernel = kernel[:-1, :-1]
    least = _SMALLEST if noise_std > 0 else _SMALLEST_EXACT
    return _features(groups, kernel, share, least, smooth=column.values is not None)


def _features(
    groups: NDArray[np.intp], kernel: Floats, share: Floats, least: float, *, smooth: bool
) -> LevelFeatures:
    """A vector per group; a last group that the kernel lacks has the average one."""
    values, axes = np.linalg.eigh(kernel)
    kept = values > values.max(initial=0.0) * least
    vectors, _ = _in_unit_ball(axes[:, kept] * np.sqrt(values[kept]))
    left, lengths, _ = np.linalg.svd(vectors, full_matrices=False)
    kept = lengths > max(lengths.max(initial=0.0) * 1e-3, 1e-9)
    vectors, lengths = left[:, kept] * lengths[kept], lengths[kept]
    share = share / max(float(share.sum()), 1e-300)
    if len(kernel) < len(share):
        vectors = np.vstack([vectors, share[:-1] @ vectors])
    size = lengths / lengths.max(initial=1e-300) if smooth else np.ones(len(lengths))
    return LevelFeatures(groups=groups, vectors=vectors, share=share, size=size, smooth=smooth)


_STEPS = 199


def _in_unit_ball(vectors: Floats) -> tuple[Floats, float]:
    """Moved to the centre of their smallest ball (nearly), scaled to radius 1; and its radius.

    Bădoiu and Clarkson: step towards the farthest point, ever less.
    """
    if not vectors.size:
        return vectors, 1.0
    # Squared distances from the centre, less its own square: they are linear in the centre.
    squares = np.einsum("ij,ij->i", vectors, vectors)
    from_each = squares - 2 * (vectors @ vectors.T)
    away, far = from_each.mean(axis=0), []
    # Where all are as far away, as categories are, the mean is the centre.
    if np.ptp(away) > 1e-12 * squares.max():
        for step in range(2, _STEPS + 1):
            far.append(int(away.argmax()))
            away += (from_each[far[-1]] - away) / step
    weights = np.bincount(np.array(far, dtype=np.intp), minlength=len(vectors)) + 1 / len(vectors)
    centre = weights @ vectors / weights.sum()
    moved = vectors - centre
    radius = math.sqrt(float(np.einsum("ij,ij->i", moved, moved).max()))
    return (moved / radius, radius) if radius > 0 else (moved[:, :0], 1.0)


def _kernel(positions: Floats, alone: float) -> Floats:
    apart = (positions[:, None] - positions[None, :]) ** 2
    line = 2 * positions - 1
    kernel: Floats = (
        _LINE * np.outer(line, line)
        + _WIDE * np.exp(-apart / (2 * _WIDE_WIDTH**2))
        + _NARROW * np.exp(-apart / (2 * _NARROW_WIDTH**2))
        + alone * np.eye(len(positions))
    )
    return kernel


def _positions(groups: NDArray[np.intp], values: Floats, counts: Floats, share: Floats) -> Floats:
    """Where a group lies in [0, 1]: half by its rank, half by its number (1st to 99th percent)."""
    weights = np.maximum(counts, 1e-9)
    totals = np.bincount(groups, weights)
    # Halves, since a public number may be as large as numbers get.
    numbers = np.bincount(groups, weights / totals[groups] * (values / 2))
    if len(numbers) == 1:
        return np.zeros(1)
    cumulated = np.cumsum(share)
    ranks = cumulated - share / 2
    last = len(numbers) - 1
    low = numbers[min(int(np.searchsorted(cumulated, 0.01)), last)]
    high = numbers[min(int(np.searchsorted(cumulated, 0.99)), last)]
    place = np.clip((numbers - low) / (high - low), 0, 1) if high > low else np.zeros(last + 1)
    return (ranks + place) / 2


def _shares(counts: NDArray[Any], noise_std: float, rows: float) -> Floats:
    """Shares of rows: small noisy counts are shrunk, none is negative, all add up to one."""
    counts = np.maximum(np.asarray(counts, dtype=np.float64), 0.0)
    if noise_std > 0:
        counts = np.where(counts < noise_std, counts**2 / noise_std, counts)
    counts = counts + 1e-6 * max(rows, 1.0) / len(counts)
    shares: Floats = counts / counts.sum()
    return shares


def _pooled(counts: Floats, noise_std: float) -> NDArray[np.intp]:
    """Levels whose count is clear keep a group of their own; all others share one."""
    if noise_std == 0:
        return np.arange(len(counts))
    clear = np.flatnonzero(counts > _POOLED * noise_std)
    groups = np.full(len(counts), len(clear))
    groups[clear] = np.arange(len(clear))
    return groups


def _merged(counts: Floats, noise_std: float, rows: float) -> NDArray[np.intp]:
    """Neighbouring levels in groups: of halves of halves, those that rise above the noise."""
    levels = len(counts)
    if noise_std == 0:
        if levels <= _MOST_EXACT:
            return np.arange(levels)
        begins = np.zeros(levels, dtype=np.intp)
        begins[even_parts(counts, _MOST_EXACT) + 1] = 1
        return np.cumsum(begins)
    total = np.concatenate([[0.0], np.cumsum(counts)])
    cells: list[tuple[int, int]] = []

    def divide(start: int, end: int) -> None:
        if end - start == 1:
            cells.append((start, end))
            return
        middle = start + (1 << ((end - start - 1).bit_length() - 1))
        inside = total[end] - total[start]
        clear = 1.5 * _CLEAR * noise_std * math.sqrt(end - start)
        if inside > clear or end - start >= levels / 4:
            divide(start, middle)
            divide(middle, end)
        else:
            cells.append((start, end))

    divide(0, levels)
    enough = max(min(rows * _SMALLEST_LEVEL, _ENOUGH_ROWS), _CLEAR * noise_std)
    starts = [0]
    held = 0.0
    for start, end in cells:
        inside = max(float(total[end] - total[start]), 0.0)
        if start > starts[-1] and inside >= enough and held >= 0.3 * enough:
            starts.append(start)
            held = 0.0
        held += inside
        if held >= enough and end < levels:
            starts.append(end)
            held = 0.0
    if len(starts) > 1 and held < 0.5 * enough:
        starts.pop()
    groups = np.zeros(levels, dtype=np.intp)
    groups[starts[1:]] = 1
    return np.cumsum(groups)


def noise_by_level(feature: LevelFeatures, covariance: Floats) -> Floats:
    """Standard deviations of centred effects by level, of coefficients with this covariance."""
    centred = feature.vectors - feature.mean
    variances = np.einsum("ij,jk,ik->i", centred, covariance, centred)
    found: Floats = np.sqrt(np.maximum(variances, 0.0))[feature.groups]
    return found


def share_by_level(feature: LevelFeatures) -> Floats:
    """The part of rows with each level, as far as it is known: groups of levels share theirs."""
    members = np.bincount(feature.groups, minlength=len(feature.share))
    return (feature.share / np.maximum(members, 1))[feature.groups]


def described_levels(
    shares: Mapping[int, Floats], noises: Mapping[int, Floats], columns: int
) -> list[dict[str, Any]]:
    """By column: `share` of rows and `noise` of effects by level, where they are known."""
    found: list[dict[str, Any]] = [{} for _ in range(columns)]
    for name, known in (("share", shares), ("noise", noises)):
        for place, values in known.items():
            found[place][name] = [float(f"{value:.4g}") for value in values]
    return found
