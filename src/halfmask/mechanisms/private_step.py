"""One step of a private optimiser: sampler, clip, noise, event and relation in one object.

A caller hands over what each row would contribute and gets back a noisy mean; which rows took part,
how many, how large they were and how long they took stay inside. Guarantee:
docs/proofs/poisson_gaussian.md.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import partial
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from halfmask.accounting.events import Contribution, PoissonGaussianEvent
from halfmask.errors import AccountingError, InputError
from halfmask.mechanisms.clipping import check_clip_norm, clip_weights
from halfmask.mechanisms.noise import noise_grid
from halfmask.mechanisms.release import SUM_RESERVE, Releaser, Sensitivity, widened_std
from halfmask.mechanisms.sampling import Indices, poisson_rows

Floats = NDArray[np.float64]


class RowContributions(Protocol):
    """What each row (or each unit, where units are protected) adds to the sum."""

    def clipped_sum(self, rows: Indices, clip_norm: float) -> Floats:
        """Σ of the contributions of `rows`, each scaled down to norm at most `clip_norm`.

        One that is not finite adds zero; without rows it is zeros of the right shape.
        """


class WeighedRows(ABC):
    """Contributions whose norms are found first and whose sum takes weights: clipped here."""

    @abstractmethod
    def norms(self, rows: Indices) -> Floats:
        """The Euclidean norm of each row's contribution."""

    @abstractmethod
    def weighted_sum(self, rows: Indices, weights: Floats) -> Floats:
        """Σ weight·contribution over `rows`; zeros of the right shape where there are none."""

    def clipped_sum(self, rows: Indices, clip_norm: float) -> Floats:
        """The sum with the weights that bring every norm to at most `clip_norm`."""
        weights = clip_weights(self.norms(rows), clip_norm)
        kept = weights > 0
        return self.weighted_sum(rows[kept], weights[kept])


class PrivateStep:
    """`steps` Poisson-sampled, clipped and noised means, paid for before the first is drawn.

    `rows` is the number of protected units (rows, or persons). The divisor is the expected batch
    size rate·rows; an empty batch releases noise. Contributions that are not finite count as zero.
    Where rows are spread over machines, `rows` are those of this one and `rows_in_all` all of them:
    each machine draws from its own rows, and together these draws are one Poisson batch.
    """

    def __init__(
        self,
        releaser: Releaser,
        *,
        rows: int,
        rate: float,
        clip_norm: float,
        noise_multiplier: float,
        steps: int,
        contribution: Contribution = "general",
        what: str,
        reserve: float = SUM_RESERVE,
        rows_in_all: int | None = None,
        in_parts: bool = False,
    ) -> None:
        if rows < 1:
            raise InputError(f"Expected at least one row, got {rows}.")
        check_clip_norm(clip_norm)
        if not rate > 0:
            raise InputError(f"Expected a sampling rate in (0, 1], got {rate}.")
        noise_grid(noise_multiplier * clip_norm)  # refuses what cannot be drawn before charging
        event = PoissonGaussianEvent(
            noise_multiplier=noise_multiplier, rate=rate, steps=steps, contribution=contribution
        )
        releaser.open(event, what, in_parts=in_parts)
        self._noise, self._batch, self._pay = releaser.noise, releaser.batch, releaser.pay
        self._noisy = partial(releaser.noisy, event=event, what=what)
        self._rows = rows
        self._rows_in_all = rows if rows_in_all is None else rows_in_all
        self._rate = rate
        self._clip_norm = clip_norm
        self._noise_std = noise_multiplier * clip_norm
        self._left = steps
        self._reserve = reserve

    def release(self, contributions: RowContributions) -> Floats:
        """The next noisy mean: (Σ clipped rows of a Poisson batch + noise) / (rate·rows)."""
        if self._left < 1:
            raise AccountingError("All steps that were paid for are used up.")
        self._pay()  # before a row is drawn
        self._left -= 1
        batch = self._batch(self._rows, lambda: poisson_rows(self._rows, self._rate, self._noise))
        total = contributions.clipped_sum(batch, self._clip_norm)
        std = widened_std(
            self._noise_std,
            total.size,
            Sensitivity.of_clipped_sum(self._clip_norm),
            reserve=self._reserve,
        )
        return self._noisy(total, std) / (self._rate * self._rows_in_all)
