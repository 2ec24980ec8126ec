"""What a run pays for beside its steps: class means of the private features."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from halfmask.accounting.budget import round_down
from halfmask.accounting.events import GaussianEvent
from halfmask.mechanisms.release import Releaser
from halfmask.neural.class_means import ClassMeans, plan_class_means, sum_sensitivity
from halfmask.neural.discriminant import PublicClasses
from halfmask.neural.rows import NetworkRows

Spent = tuple[GaussianEvent, ...]


def plan_means(
    data: NetworkRows,
    releaser: Releaser,
    *,
    share: float,
    public: PublicClasses | None = None,
) -> tuple[Spent, Callable[[], ClassMeans]]:
    """Open a release of means by class for `share` of the budget's μ².

    Without `public` they are those of all rows. Returns what it costs, for the noise of the steps
    after it, and the release itself.
    """
    budget = releaser.budget
    norm, non_negative = data.inputs.private_norm, data.inputs.non_negative
    noise_std, release = plan_class_means(
        data.private,
        np.zeros_like(data.labels) if public is None else data.labels,
        1 if public is None else data.classes,
        norm=norm,
        non_negative=non_negative,
        mu=math.sqrt(share) * replace(budget, epsilon=round_down(budget.epsilon)).mu,
        releaser=releaser,
        public_means=None if public is None else public.means,
    )
    return (sum_sensitivity(norm, non_negative=non_negative).event(noise_std),), release


def quietness(noise: float, bearable: float) -> float:
    """By how much steps become shorter whose mean gradient has more noise than is bearable."""
    return min(1.0, bearable / noise)
