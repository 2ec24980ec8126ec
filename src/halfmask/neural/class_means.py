"""Means of the private features by class: one release, read with care, and a model made of them.

The label being public, the sums of the private features of each class are one Gaussian release,
and so is everything derived from them: padded rows, a network trained on such rows, any number of
times. Without a public label there is one class, and the means are those of the columns.

Guarantee: docs/proofs/class_means.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from halfmask.accounting.budget import round_down
from halfmask.accounting.events import GaussianEvent
from halfmask.data.products import parts_of
from halfmask.mechanisms.release import Releaser, Sensitivity
from halfmask.mechanisms.shards import ALONE, Shards
from halfmask.neural.inputs import MadeRows
from halfmask.neural.network import Mlp
from halfmask.neural.pretrain import NetworkRows
from halfmask.types import Floats, Integers

# Rows summed at a time.
_BLOCK = 1 << 13
_PUBLIC_BLOCK = 1 << 14
# A variance is at least this share of a squared norm: classes never become certain.
_LEAST_SCATTER = 1e-3
_TEMPERATURES = np.geomspace(0.05, 2.0, 25)
# No level is taken to be impossible on the word of noisy sums.
_LEAST = 1e-4
# Features' worth of the belief that classes are unrelated, for tables with few columns.
_UNRELATED = 5.0


@dataclass(frozen=True, kw_only=True, eq=False)
class PublicClasses:
    """Counts and means of public features by class, and the variance per feature around them."""

    counts: Floats
    means: Floats
    variance: float

    @classmethod
    def of(
        cls,
        features: NDArray[np.floating] | MadeRows,
        labels: Integers,
        classes: int,
        shards: Shards = ALONE,
    ) -> PublicClasses:
        """From all machines' public rows."""
        width = features.shape[1]
        counts = np.bincount(labels, minlength=classes).astype(np.float64)
        sums, squares = np.zeros((classes, width)), 0.0
        for some in parts_of(len(labels), _PUBLIC_BLOCK):
            part = features[some].astype(np.float64)
            np.add.at(sums, labels[some], part)
            squares += float(np.square(part).sum())
        counts, sums = shards.sum(counts), shards.sum(sums)
        squares = float(shards.sum(np.array([squares]))[0])
        means = sums / np.maximum(counts, 1.0)[:, None]
        rows = max(float(counts.sum()), 1.0)
        between = float(counts @ np.square(means).sum(1)) / rows
        within = max(squares / rows - between, _LEAST_SCATTER * squares / rows)
        return cls(counts=counts, means=means, variance=within / max(width, 1))


@dataclass(frozen=True, kw_only=True, eq=False)
class ClassMeans:
    """Means (classes x private features), and the variance that noise leaves in one of them."""

    means: Floats
    noise_variance: float


def sum_sensitivity(norm: float, *, non_negative: bool) -> Sensitivity:
    """How far one row of norm at most `norm` moves the sums of its own class.

    Two non-negative rows are at an angle of at most 90 degrees, so they differ by at most √2·norm.
    """
    replace = math.sqrt(2.0) * norm if non_negative else 2.0 * norm
    return Sensitivity(replace=replace, withhold=norm)


def plan_class_means(
    data: NetworkRows, releaser: Releaser, *, share: float, public: PublicClasses | None
) -> tuple[GaussianEvent, Callable[[], ClassMeans]]:
    """Open a release of Σ private rows by class, for `share` of the budget's μ².

    Without `public` there is one class of all rows. Returns what it costs, for the noise of the
    steps after it, and what releases the sums, once, and shrinks the means. Labels must be public,
    as are the means of public features by class, which tell classes that are alike.
    Guarantee: docs/proofs/class_means.md.
    """
    budget, private = releaser.budget, data.private_features
    classes = 1 if public is None else data.classes
    codes = np.zeros_like(data.labels) if public is None else data.labels
    non_negative = data.inputs.non_negative
    sensitivity = sum_sensitivity(data.inputs.private_norm, non_negative=non_negative)
    mu = math.sqrt(share) * replace(budget, epsilon=round_down(budget.epsilon)).mu
    noise_std = sensitivity.under(releaser.relation) / mu
    series = releaser.gaussian_series(
        sensitivity=sensitivity,
        noise_std=noise_std,
        count=1,
        what="sums of the private features of each class" if classes > 1 else "column sums",
    )

    def release() -> ClassMeans:
        sums = np.zeros((classes, private.shape[1]))
        for some in parts_of(len(private), _BLOCK):
            np.add.at(sums, codes[some], private[some].astype(np.float64))
        released = series.release(sums)
        counts = releaser.shards.sum(np.bincount(codes, minlength=classes).astype(np.float64))
        known = None if public is None else public.means
        return shrunk_means(
            released, counts, noise_std, non_negative=non_negative, public_means=known
        )

    return sensitivity.event(noise_std), release


def shrunk_means(
    sums: Floats,
    counts: Floats,
    noise_std: float,
    *,
    non_negative: bool,
    public_means: Floats | None = None,
) -> ClassMeans:
    """Posterior means of the classes, given sums that carry noise of `noise_std` each.

    `public_means` are the means of public features by class, without noise.
    """
    counts = np.maximum(counts, 1.0)
    overall = sums.sum(0) / counts.sum()
    if non_negative:
        overall = np.maximum(overall, _LEAST)
    if len(counts) == 1:
        return ClassMeans(
            means=overall[None, :], noise_variance=(noise_std / float(counts[0])) ** 2
        )
    noise = np.maximum((noise_std / counts) ** 2, 1e-18)
    apart = sums / counts[:, None] - overall
    likeness = _likeness(apart, noise, counts, public_means)
    spread = _spread(apart, noise, overall)
    # With root = noise^½ and root⁻¹·L·root⁻¹ = V·diag(v)·Vᵀ, the posterior mean of a feature is
    # root·V·diag(spread·v / (1 + spread·v))·Vᵀ·root⁻¹ · apart: one decomposition for all features.
    root = np.sqrt(noise)
    values, vectors = np.linalg.eigh(likeness / np.outer(root, root))
    signal = np.outer(np.maximum(values, 0.0), spread)
    kept = signal / (1.0 + signal)
    means = overall + root[:, None] * (vectors @ (kept * (vectors.T @ (apart / root[:, None]))))
    uncertain = noise[:, None] * (np.square(vectors) @ kept)
    clipped: Floats = np.maximum(means, 0.0) if non_negative else means
    return ClassMeans(means=clipped, noise_variance=float(uncertain.mean()))


def _likeness(apart: Floats, noise: Floats, counts: Floats, public_means: Floats | None) -> Floats:
    """The covariance of class means over features, of mean variance 1.

    Each source counts with the number of features it has, the noisy one with as many features
    without noise as would estimate a variance equally well.
    """
    classes, features = apart.shape
    total = _UNRELATED * np.eye(classes)
    weight = _UNRELATED
    raw = apart @ apart.T / features - np.diag(noise)
    size = float(np.trace(raw)) / classes
    if size > 0:
        worth = features * (size / (size + float(noise.mean()))) ** 2
        total, weight = total + worth * raw / size, weight + worth
    if public_means is not None and public_means.shape[1]:
        centred = public_means - np.average(public_means, axis=0, weights=counts)
        size = float(np.square(centred).sum()) / classes
        if size > 0:
            worth = float(public_means.shape[1])
            total, weight = total + worth * (centred @ centred.T) / size, weight + worth
    values, vectors = np.linalg.eigh(total / weight)
    positive: Floats = (vectors * np.maximum(values, 0.0)) @ vectors.T
    scaled: Floats = positive * (classes / max(float(np.trace(positive)), 1e-12))
    return scaled


def _spread(apart: Floats, noise: Floats, overall: Floats) -> Floats:
    """How far class means of a feature lie apart: half its own word, half that of its size."""
    own = np.maximum((np.square(apart) - noise[:, None]).mean(0), 0.0)
    size = np.abs(overall)
    typical = size * (own.sum() / max(float(size.sum()), 1e-12))
    spread: Floats = (own + typical) / 2.0
    return spread


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
        noise_variance: float,
    ) -> Discriminant:
        """From class means of rows whose private part has norm `private_norm`.

        `noise_variance` is what the noise leaves in each private mean.
        """
        rows = max(float(public.counts.sum()), 1.0)
        between = float(public.counts @ np.square(private_means).sum(1)) / rows
        within = max(private_norm**2 - between, _LEAST_SCATTER * private_norm**2)
        variance = within / max(private_means.shape[1], 1) + noise_variance
        slopes = [public.means / max(public.variance, 1e-12), private_means / variance]
        sizes = np.square(public.means).sum(1) / max(public.variance, 1e-12)
        sizes += np.square(private_means).sum(1) / variance
        return cls(slopes=np.hstack(slopes), offsets=-sizes / 2.0)

    def calibrated(
        self,
        public: PublicClasses,
        features: NDArray[np.floating] | MadeRows,
        labels: Integers,
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
        for some in parts_of(len(labels), _PUBLIC_BLOCK):
            scores = features[some].astype(np.float64) @ slopes.T + offsets
            losses += losses_at(_TEMPERATURES, scores, labels[some])
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


def losses_at(factors: Floats, scores: Floats, labels: Integers) -> Floats:
    """The loss of all rows together if scores are scaled by each of the factors."""
    apart = scores - scores[np.arange(len(labels)), labels][:, None]
    return np.array([np.logaddexp.reduce(factor * apart, axis=1).sum() for factor in factors])
