"""A discriminant from class means, as a network: what the means alone say, and they say it best.

Rows of a class are taken to lie around its mean equally far in every direction, one variance for
public features and one for private ones; the score of a class is then linear in the row. Far fewer
numbers are estimated than a network has, so that noise in the means hardly moves the scores.
Post-processing of released means and of public values.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from halfmask.mechanisms.shards import ALONE, Shards
from halfmask.neural.network import Mlp

Floats = NDArray[np.float64]
Codes = NDArray[np.int64]

# A variance is at least this share of a squared norm: classes never become certain.
_LEAST = 1e-3
_TEMPERATURES = np.geomspace(0.05, 2.0, 25)
_BLOCK = 1 << 14


def losses_at(factors: Floats, scores: Floats, labels: Codes) -> Floats:
    """The loss of all rows together if scores are scaled by each of the factors."""
    apart = scores - scores[np.arange(len(labels)), labels][:, None]
    return np.array([np.logaddexp.reduce(factor * apart, axis=1).sum() for factor in factors])


@dataclass(frozen=True, kw_only=True, eq=False)
class PublicClasses:
    """Counts and means of public features by class, and their variance around it, a feature."""

    counts: Floats
    means: Floats
    variance: float

    @classmethod
    def of(
        cls, features: NDArray[np.floating], labels: Codes, classes: int, shards: Shards = ALONE
    ) -> PublicClasses:
        """From all machines' public rows."""
        width = features.shape[1]
        counts = np.bincount(labels, minlength=classes).astype(np.float64)
        sums, squares = np.zeros((classes, width)), 0.0
        for start in range(0, len(labels), _BLOCK):
            some = features[start : start + _BLOCK].astype(np.float64)
            np.add.at(sums, labels[start : start + _BLOCK], some)
            squares += float(np.square(some).sum())
        counts, sums = shards.sum(counts), shards.sum(sums)
        squares = float(shards.sum(np.array([squares]))[0])
        means = sums / np.maximum(counts, 1.0)[:, None]
        rows = max(float(counts.sum()), 1.0)
        between = float(counts @ np.square(means).sum(1)) / rows
        within = max(squares / rows - between, _LEAST * squares / rows)
        return cls(counts=counts, means=means, variance=within / max(width, 1))


@dataclass(frozen=True, kw_only=True, eq=False)
class Discriminant:
    """Scores `slopes` · row + `offsets`: public features first, then private ones."""

    slopes: Floats
    offsets: Floats

    @classmethod
    def of(
        cls,
        public: PublicClasses,
        private_means: Floats,
        *,
        private_norm: float,
        left: float,
    ) -> Discriminant:
        """From class means of rows whose private part has norm `private_norm`.

        `left` is the variance that the noise leaves in each private mean.
        """
        rows = max(float(public.counts.sum()), 1.0)
        between = float(public.counts @ np.square(private_means).sum(1)) / rows
        within = max(private_norm**2 - between, _LEAST * private_norm**2)
        variance = within / max(private_means.shape[1], 1) + left
        slopes = [public.means / max(public.variance, 1e-12), private_means / variance]
        sizes = np.square(public.means).sum(1) / max(public.variance, 1e-12)
        sizes += np.square(private_means).sum(1) / variance
        return cls(slopes=np.hstack(slopes), offsets=-sizes / 2.0)

    def cooled(
        self,
        public: PublicClasses,
        features: NDArray[np.floating],
        labels: Codes,
        shards: Shards = ALONE,
    ) -> Discriminant:
        """The same classes with honest odds: features that repeat each other count only once.

        How far scores have to be scaled down is measured on public columns, where it is free.
        """
        width = features.shape[1]
        if width == 0:
            return self
        slopes = public.means / max(public.variance, 1e-12)
        offsets = -np.square(public.means).sum(1) / max(public.variance, 1e-12) / 2.0
        losses = np.zeros(len(_TEMPERATURES))
        for start in range(0, len(labels), _BLOCK):
            some = labels[start : start + _BLOCK]
            scores = features[start : start + _BLOCK].astype(np.float64) @ slopes.T + offsets
            losses += losses_at(_TEMPERATURES, scores, some)
        best = float(_TEMPERATURES[int(np.argmin(shards.sum(losses)))])
        return Discriminant(slopes=self.slopes * best, offsets=self.offsets * best)

    def network(self) -> Mlp:
        """One hidden layer that passes scores on: z = relu(z) − relu(−z)."""
        classes, width = self.slopes.shape
        network = Mlp((width, 2 * classes, classes))
        slopes, offsets = torch.from_numpy(self.slopes), torch.from_numpy(self.offsets)
        with torch.no_grad():
            first, last = network.linear
            first.weight.copy_(torch.cat([slopes, -slopes]))
            first.bias.copy_(torch.cat([offsets, -offsets]))
            last.weight.copy_(torch.cat([torch.eye(classes), -torch.eye(classes)], dim=1))
            last.bias.zero_()
        return network
