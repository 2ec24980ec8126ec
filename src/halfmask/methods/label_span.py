"""`label-span`: one example per step, noise only where labels can differ (Ghazi et al. 2021).

The gradients of one example under all labels differ by (fixed slope) ⊗ row, so noise is needed in
the span of those slopes alone: K - 1 directions, not one for each coefficient. Seen from the label,
that is a noisy copy of its slope, whatever the weights. A pass over the table needs one copy of
each label, and copies of different labels compose in parallel. There is no amplification: the error
falls with √n, where that of sampled sums falls with n. Guarantee: docs/proofs/label_span.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binom

from halfmask.data.units import seen_before
from halfmask.errors import InputError, check_one_of, check_positive
from halfmask.losses import LossName, in_ball
from halfmask.mechanisms.noise import public_generator
from halfmask.mechanisms.release import Releaser, Sensitivity
from halfmask.methods.fitted import LinearFit
from halfmask.methods.sgd import SplitRows, as_fit
from halfmask.table import Table
from halfmask.types import Floats

Order = Literal["passes", "uniform"]

_RADIUS = 6.0
# Draws of one example beyond this likelihood are left out: no noise is planned for them.
_RARE = 1e-12
# Rows whose features are made at a time.
_MADE = 1 << 12


@dataclass(frozen=True, kw_only=True)
class LabelSpanConfig:
    """Settings of `label-span`; None means: derived from public facts.

    `order` "passes" goes through a new random order of all rows `passes` times; "uniform" draws
    rows·passes examples with repetition, as the theory of stochastic gradients assumes.
    """

    method: ClassVar[str] = "label-span"

    loss: LossName | None = None
    passes: int = 1
    order: Order = "passes"
    learning_rate: float | None = None
    radius: float | None = None
    aggregate: Literal["last", "average", "tail"] = "tail"
    public_seed: int = 0

    def __post_init__(self) -> None:
        if self.passes < 1:
            raise InputError(f"Expected passes >= 1, got {self.passes}.")
        check_one_of(self, order=("passes", "uniform"), aggregate=("last", "average", "tail"))
        check_positive(self, "learning_rate", "radius")


def fit_label_span(
    table: Table, releaser: Releaser, config: LabelSpanConfig | None = None
) -> LinearFit:
    """Fit within the releaser's budget; the label must be private and every feature public.

    Guarantee: docs/proofs/label_span.md.
    """
    config = config or LabelSpanConfig()
    rows = _label_rows(table, config)
    generator = public_generator(config.public_seed)
    examples, uses = draw_examples(table.n, config, generator)
    shares, overhead = budget_shares(table.n, config)
    planned = uses < len(shares)
    examples, uses = examples[planned], uses[planned]
    sensitivity = label_sensitivity(rows)
    std = sensitivity.under(releaser.relation) / releaser.budget.mu
    series = [
        releaser.gaussian_series(
            sensitivity=sensitivity,
            noise_std=std / math.sqrt(share),
            count=1,
            what=f"noisy copy {use + 1} of the labels",
        )
        for use, share in enumerate(shares)
    ]
    copies = np.zeros((len(examples), rows.shape[0]))
    for use, one in enumerate(series):
        here = uses == use
        copies[here] = one.release(rows.loss.fixed_slope(rows.target[examples[here]]))
    if rows.shape[0] > 1:
        # Slopes of all labels sum to zero over the classes: noise outside their span is dropped.
        copies -= copies.mean(axis=1, keepdims=True)
    radius = config.radius or _RADIUS * math.sqrt(rows.shape[0])
    longest = float(np.sqrt(rows.public.squares()).max())
    directions = max(1, rows.shape[0] - 1)
    moment = rows.loss.slope_bound(radius * longest) ** 2 + directions * overhead * std**2
    rate = config.learning_rate or radius / (longest * math.sqrt(len(examples) * moment))
    details = {
        "steps": len(examples),
        "passes": config.passes,
        "order": config.order,
        "learning_rate": rate,
        "radius": radius,
        "noise_std": std,
        "second_moment": moment * longest**2,
        "aggregate": config.aggregate,
    }
    return as_fit(table, _descend(rows, examples, copies, rate, radius, config.aggregate), details)


def label_sensitivity(rows: SplitRows) -> Sensitivity:
    """How far the copies of all labels, as one vector, move when one unit's labels change."""
    apart, longest = rows.loss.fixed_bounds()
    many = math.sqrt(rows.rows_per_unit)
    return Sensitivity(replace=many * apart, withhold=many * longest)


def draw_examples(
    n: int, config: LabelSpanConfig, generator: np.random.Generator
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Which example each step uses, and how often it was used before: public randomness alone."""
    if config.order == "passes":
        orders = [generator.permutation(n) for _ in range(config.passes)]
        return np.concatenate(orders), np.repeat(np.arange(config.passes), n)
    examples = generator.integers(0, n, size=n * config.passes)
    return examples, seen_before(examples)


def budget_shares(n: int, config: LabelSpanConfig) -> tuple[Floats, float]:
    """The share of μ² that an example's first, second, ... use gets, and the mean of 1/share.

    Shares sum to 1. Where uses are random they follow the root of how many steps are a j-th use,
    which makes the mean of 1/share over all steps the least, (Σ√frequency)².
    """
    if config.order == "passes":
        return np.full(config.passes, 1 / config.passes), float(config.passes)
    steps = n * config.passes
    # A step is a j-th use for n·P(Bin(steps, 1/n) >= j) of all steps.
    most = min(steps, config.passes + 12 * math.isqrt(config.passes) + 40)
    frequency = binom.sf(np.arange(most), steps, 1 / n) / config.passes
    roots = np.sqrt(frequency[frequency > _RARE])
    return roots / roots.sum(), float(roots.sum() ** 2)


def _label_rows(table: Table, config: LabelSpanConfig) -> SplitRows:
    if table.widths[1] or not table.label_private:
        names = ", ".join(dict.fromkeys(table.private_sources)) or "none"
        role = "private" if table.label_private else "public"
        raise InputError(
            "Method 'label-span' needs public features and a private label, but the label is "
            f"{role} and the private columns are: {names}. Use gd, sgd or one-shot instead."
        )
    rows = SplitRows.of(table, loss=config.loss)
    if not rows.loss.linear_in_target:
        raise InputError(
            "Method 'label-span' needs a loss whose slope splits: logistic, softmax or squared."
        )
    return rows


def _descend(
    rows: SplitRows,
    examples: NDArray[np.int64],
    copies: Floats,
    learning_rate: float,
    radius: float,
    aggregate: str,
) -> Floats:
    """One projected step per example; the label is read through its noisy copy only."""
    coef = np.zeros(rows.shape)
    total, count = np.zeros(rows.shape), 0
    first = {"average": 0, "tail": len(examples) // 2, "last": len(examples)}[aggregate]
    made = rows.public[examples[:_MADE]]
    for step in range(len(examples)):
        if step >= first:
            total += coef
            count += 1
        at = step % _MADE
        if step and not at:
            made = rows.public[examples[step : step + _MADE]]
        row = made[at]
        slope = rows.loss.free_slope((coef @ row)[None, :])[0] + copies[step]
        coef = in_ball(coef - learning_rate * np.outer(slope, row), radius)
    return coef if aggregate == "last" else total / count
