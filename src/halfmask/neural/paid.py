"""What a run pays for: class means of the private features, and the noise of its steps."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from halfmask.accounting.accountant import epsilon as account
from halfmask.accounting.calibrate import noise_multiplier, round_down
from halfmask.accounting.events import Event, GaussianEvent, PoissonGaussianEvent
from halfmask.accounting.gaussian import gaussian_mu
from halfmask.errors import LedgerError
from halfmask.mechanisms.release import Releaser
from halfmask.neural.checkpoint import Checkpoint
from halfmask.neural.class_means import ClassMeans, release_class_means, sum_sensitivity
from halfmask.neural.discriminant import PublicClasses
from halfmask.neural.rows import NetworkRows

Spent = tuple[GaussianEvent, ...]

# A hair below the budget, so that rounding in the closed form cannot end above it.
_BELOW = 1.0 - 1e-12


def pay_for_means(
    data: NetworkRows,
    releaser: Releaser,
    *,
    epsilon: float,
    delta: float,
    share: float,
    public: PublicClasses | None = None,
) -> tuple[ClassMeans, Spent]:
    """Means by class for `share` of the budget's μ²; without `public` those of all rows."""
    norm, non_negative = data.inputs.private_norm, data.inputs.non_negative
    released = release_class_means(
        data.private,
        np.zeros_like(data.labels) if public is None else data.labels,
        1 if public is None else data.classes,
        norm=norm,
        non_negative=non_negative,
        mu=_BELOW * math.sqrt(share) * gaussian_mu(round_down(epsilon), delta),
        releaser=releaser,
        public_means=None if public is None else public.means,
    )
    moved = sum_sensitivity(norm, non_negative=non_negative)
    event = GaussianEvent(
        replace=moved.replace / released.noise_std, withhold=moved.withhold / released.noise_std
    )
    return released, (event,)


def quietness(noise: float, bearable: float) -> float:
    """By how much steps become shorter whose mean gradient has more noise than is bearable."""
    return min(1.0, bearable / noise)


def noise_of_steps(
    releaser: Releaser,
    *,
    epsilon: float,
    delta: float,
    rate: float,
    steps: int,
    spent: Spent = (),
    checkpoint: Checkpoint | None = None,
) -> float:
    """The noise multiplier of steps that may use what is left of the budget.

    A run that goes on from a checkpoint keeps its noise if what it has charged leaves room for
    that, which it does unless a block of steps was charged and lost.
    """

    def of(steps: int, spent: Sequence[Event]) -> float:
        return noise_multiplier(
            epsilon=epsilon,
            delta=delta,
            rate=rate,
            steps=steps,
            relation=releaser.relation,
            spent=spent,
        )

    if checkpoint is None:
        return of(steps, spent)
    stands, before = checkpoint.stands(), releaser.events
    if stands is not None and not before:
        raise LedgerError(
            "There is a checkpoint, but the ledger holds no charge of it: the ledger of an "
            "interrupted training must stay with it. Remove the folder and start over."
        )
    done, noise = (0, 0.0) if stands is None else stands
    left = steps - done
    if left < 1:
        return noise
    if noise:
        rest = PoissonGaussianEvent(noise_multiplier=noise, rate=rate, steps=left)
        total = account((*before, rest), delta=delta, relation=releaser.relation)
        if total <= round_down(epsilon):
            return noise
    return of(left, before)
