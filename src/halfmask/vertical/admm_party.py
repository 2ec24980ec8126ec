"""A party's side of ADMM sharing: solve on its own columns, release one noisy number per row.

What leaves the party is `share`, and only through a mechanism that was fixed, and charged, before
the first round. From top to bottom: how far one row moves a share, the noise that covers it, the
method's settings, what a round asks for, the party.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from halfmask.accounting.budget import Budget
from halfmask.data.scratch import available
from halfmask.errors import InputError, check_one_of
from halfmask.mechanisms.clipping import norm_of
from halfmask.mechanisms.release import GaussianSeries, Releaser, Sensitivity
from halfmask.types import Vector
from halfmask.vertical.admm import PRIVATE_NOISES, SHARE_NOISES, AdmmConfig, ShareNoiseName
from halfmask.vertical.block import Ball, Block, Constraint, Regulariser, bounded_rows, row_parts
from halfmask.vertical.channel import MOST, Message, RefusedError, number_array, one_number, whole
from halfmask.vertical.files import PartyColumns
from halfmask.vertical.party import Party, calibrated_ratio

# Shares are computed in floating point (an eigendecomposition and a scalar root, relative error
# below 1e-9 on everything we tested); the bounds are widened by far more than that.
SLACK = 1 + 1e-6


@dataclass(frozen=True, kw_only=True)
class ShareSensitivity:
    """How far a share moves (ℓ2) for one replaced row, one withheld row, one moved column."""

    replace: float
    withhold: float
    column: float | None


def displacement_sensitivity(
    *, target_norm: float, kappa: float, displacement: float, exact_ridge: bool
) -> float:
    """‖a‖ · min{1, ‖D - D'‖/√κ}; the second branch only for the unconstrained ridge.

    `displacement` bounds the spectral norm ‖D - D'‖₂. Guarantee: docs/proofs/admm_column.md.
    """
    if not kappa >= 0:
        raise InputError(f"Expected kappa = strength/rho >= 0, got {kappa}.")
    factor = 1.0
    if exact_ridge and kappa > 0:
        factor = min(factor, displacement / math.sqrt(kappa))
    return SLACK * target_norm * factor


def column_sensitivity(
    *, target_norm: float, kappa: float, row_norm: float, exact_ridge: bool
) -> ShareSensitivity:
    """The bounds from the norm of the whole target; `row_norm` bounds every row of D.

    Guarantee: docs/proofs/admm_column.md.
    """

    def at(displacement: float) -> float:
        return displacement_sensitivity(
            target_norm=target_norm, kappa=kappa, displacement=displacement, exact_ridge=exact_ridge
        )

    return ShareSensitivity(replace=at(2 * row_norm), withhold=at(row_norm), column=at(1.0))


def row_sensitivity(
    *, target_bound: float, kappa: float, row_norm: float, radius: float
) -> ShareSensitivity:
    """Every |a_i| <= target_bound, every row norm <= row_norm, ‖x‖ <= radius, κ/2·‖x‖² added.

    Replace: Δ² <= (2rB)² + max over 0 <= h <= 2B of min{½A², 2rAh} - κh², with A = rB + b;
    withhold: half of each amplitude. Guarantee: docs/proofs/admm_row.md.
    """
    if not (target_bound > 0 and radius > 0 and row_norm > 0 and kappa >= 0):
        raise InputError(
            "Expected target_bound, radius and row_norm > 0 and kappa >= 0, got "
            f"{target_bound}, {radius}, {row_norm}, {kappa}."
        )
    reach = row_norm * radius
    amplitude = reach + target_bound
    others = _others(amplitude**2 / 2, 2 * row_norm * amplitude, kappa, 2 * radius)
    others_withheld = _others(amplitude**2 / 4, row_norm * amplitude, kappa, 2 * radius)
    return ShareSensitivity(
        replace=SLACK * math.sqrt((2 * reach) ** 2 + others),
        withhold=SLACK * math.sqrt(reach**2 + others_withheld),
        column=None,
    )


def _others(cap: float, slope: float, kappa: float, longest: float) -> float:
    """max over 0 <= h <= longest of min{cap, slope·h} - κh²: the other rows' part of the square."""
    peak = slope / (2 * kappa) if kappa > 0 else math.inf
    h = min(peak, cap / slope, longest)
    return min(cap, slope * h) - kappa * h * h


# κ relative to the largest eigenvalue that rows of the declared norm allow: at 1e-8 the relative
# error of a solution in double precision stays well below the slack of 1e-6 in every sensitivity.
_LEAST_KAPPA = 1e-8
_MOST_PARTIES = 1_000_000


@dataclass(frozen=True, kw_only=True)
class ShareNoise:
    """How a share is protected.

    none        the exact share leaves the party; no guarantee.
    as-written  Eq. (8) of A: noise of std `std` on the coefficients. Unsound, no ε exists;
                kept for figures and audits.
    column      isotropic noise scaled to the norm of the round's target
                (docs/proofs/admm_column.md).
    row         coefficients in a ball of `radius`, targets clipped to ±`target_bound`
                (docs/proofs/admm_row.md).

    `ratio` is μ = sensitivity / noise std of all rounds together, for one replaced row; rows are
    clipped to `row_norm`.
    """

    kind: ShareNoiseName = "none"
    rounds: int = 0
    ratio: float = 0.0
    std: float = 0.0
    row_norm: float = 1.0
    radius: float = 2.0
    target_bound: float = 4.0

    def __post_init__(self) -> None:
        check_one_of(self, kind=SHARE_NOISES)

    @property
    def is_private(self) -> bool:
        """Whether a guarantee exists."""
        return self.kind in PRIVATE_NOISES

    @property
    def withhold_share(self) -> float:
        """What a withheld row costs of a replaced one: proved to be less for row noise alone."""
        return math.sqrt(0.5) if self.kind == "row" else 1.0


def share_noise(config: AdmmConfig, budget: Budget | None, row_norm: float) -> ShareNoise:
    """The noise that spends `budget` on all rounds of a party whose rows have this norm."""
    noise = ShareNoise(
        kind=config.noise,
        std=config.noise_std,
        radius=config.noise_radius,
        target_bound=config.target_bound,
    )
    if not noise.is_private:
        return noise
    if budget is None:
        raise InputError(f"Noise {noise.kind!r} needs a budget.")
    ratio = calibrated_ratio(budget, noise.withhold_share)
    return replace(noise, ratio=ratio, rounds=config.chosen_rounds, row_norm=row_norm)


def share_target(
    *,
    residual: object,
    dual: object,
    rho: object,
    divisor: object,
    released: Vector,
    strength: float,
    regulariser: Regulariser,
    noise: ShareNoise,
) -> tuple[Vector, float]:
    """The target and κ of a round, from what the coordinator sent and was sent; or a refusal.

    A function of the transcript and the party's settings alone: it may be called, and may refuse,
    before anything is charged or computed from the party's rows. The target is finite, at most
    `channel.MOST`, and what would vanish when squared is zero. Guarantee:
    docs/proofs/strangers.md.
    """
    rows = len(released)
    residual = number_array(residual, (rows,), "residual")
    dual = number_array(dual, (rows,), "dual")
    penalty = one_number(rho, "rho")
    parts = whole(divisor, "divisor", least=1, most=_MOST_PARTIES)
    kappa = strength / penalty
    if not kappa <= MOST:
        raise RefusedError(f"rho must be at least {strength / MOST:g} for this party.")
    least = _LEAST_KAPPA * rows * noise.row_norm**2
    if noise.is_private and regulariser == "l2" and strength > 0 and kappa < least:
        # Rounding would exceed the slack of the sensitivity.
        raise RefusedError(
            f"Expected rho <= {strength / least:g} for a strength of {strength:g} and {rows} rows: "
            "beyond it rounding is not negligible."
        )
    target = np.empty(rows)
    for part in row_parts(rows):
        target[part] = released[part] - residual[part] / parts - dual[part] / penalty
    target = number_array(target, (rows,), "the target that residual, dual and rho make")
    if noise.kind == "row":
        target = np.clip(target, -noise.target_bound, noise.target_bound)
    return target, kappa


class AdmmParty(Party):
    """Holds the block, the coefficients and the last released share of one party.

    Guarantee: docs/proofs/admm_row.md, docs/proofs/admm_column.md.
    """

    kinds = ("admm-share",)

    def __init__(
        self,
        matrix: Any,
        *,
        strength: float,
        regulariser: Regulariser = "l2",
        constraint: Constraint = None,
        noise: ShareNoise | None = None,
        releaser: Releaser | None = None,
        name: str = "party",
        paid_rounds: int | None = None,
    ) -> None:
        if not (math.isfinite(strength) and strength >= 0):
            raise InputError(f"Expected a finite strength >= 0, got {strength}.")
        # `paid_rounds`: a run that goes on in another process; its charge was made at the start.
        self._paid_rounds = paid_rounds
        self.noise = noise or ShareNoise()
        if self.noise.kind == "row":
            if regulariser != "l2" or constraint is not None or not strength > 0:
                raise InputError(
                    "Row noise needs the l2 regulariser with a strength > 0, and brings its own "
                    "ball: leave the constraint out."
                )
            constraint = Ball(radius=self.noise.radius)
        if self.noise.is_private:
            self.block = Block(bounded_rows(matrix, self.noise.row_norm))
        else:
            # A block that was decomposed before may be passed on to the next run.
            self.block = matrix if isinstance(matrix, Block) else Block(matrix)
        _check_room(name, self.block)
        super().__init__(name, rows=self.block.rows)
        self.strength, self.regulariser, self.constraint = strength, regulariser, constraint
        self.x: Vector = np.zeros(self.block.columns)
        self.released: Vector = np.zeros(self.block.rows)
        self._releaser = releaser
        self._series = self._open_series(releaser) if self.noise.is_private else None
        if self.noise.kind == "as-written" and releaser is None:
            raise InputError("As-written noise needs a releaser, which draws it.")

    def _open_series(self, releaser: Releaser | None) -> GaussianSeries:
        if releaser is None:
            raise InputError(f"Noise {self.noise.kind!r} needs a releaser with a ledger to charge.")
        if not (self.noise.ratio > 0 and self.noise.rounds > 0):
            raise InputError(
                f"Noise {self.noise.kind!r} needs a ratio > 0 and rounds > 0, "
                f"got {self.noise.ratio} and {self.noise.rounds}."
            )
        # Shares are released in units of their own bound for a replaced row, so the series has
        # sensitivity 1 whatever the transcript does to the bound.
        return releaser.gaussian_series(
            sensitivity=Sensitivity(replace=1.0, withhold=self.noise.withhold_share),
            noise_std=math.sqrt(self.noise.rounds) / self.noise.ratio,
            count=self.noise.rounds,
            what=f"ADMM shares of {self.name} ({self.noise.kind} noise)",
            remaining=self._paid_rounds,
        )

    @property
    def _exact_ridge(self) -> bool:
        return self.regulariser == "l2" and self.constraint is None

    def answer(self, request: Message) -> Message:
        """The share of a round."""
        self.admit(request)
        share = self.share(
            residual=request.arrays.get("residual"),
            dual=request.arrays.get("dual"),
            rho=request.values.get("rho"),
            divisor=request.values.get("divisor"),
        )
        return request.reply(arrays={"share": share})

    def share(self, *, residual: object, dual: object, rho: object, divisor: object) -> Vector:
        """One round: the target from the transcript, the solution, and what is released of it.

        `residual` is Σ shares - z of the last round, `divisor` is 1 as written and the number of
        parties in the sharing form. All four come from the coordinator and may be anything.
        """
        target, kappa = share_target(
            residual=residual,
            dual=dual,
            rho=rho,
            divisor=divisor,
            released=self.released,
            strength=self.strength,
            regulariser=self.regulariser,
            noise=self.noise,
        )
        if self._releaser is not None:
            # All rounds, before the first is computed: also where its share needs no noise.
            self._releaser.pay()
        self.x = self.block.solve(
            target,
            kappa=kappa,
            regulariser=self.regulariser,
            constraint=self.constraint,
            start=self.x,
        )
        if self.noise.kind == "as-written":
            assert self._releaser is not None
            self.x = self.x + self.noise.std * self._releaser.unpaid_normal(len(self.x))
        exact = self.block.scores(self.x)
        if self._series is None:
            self.released = exact
            return exact
        bound = self._bound(target, kappa)
        if bound == 0.0:
            self.released = np.zeros_like(exact)  # whatever the table: the target is zero
            return self.released
        if self.noise.kind == "column" and (not self._exact_ridge or kappa == 0):
            # The proof puts the exact solution in this ball; putting the computed one there too
            # makes the bound hold however well the proximal solver converged.
            exact = target / 2 + Ball(radius=bound / 2).project(exact - target / 2)
        self.released = bound * self._series.release(exact / bound)
        return self.released

    def _bound(self, target: Vector, kappa: float) -> float:
        """How far one replaced row moves the share of this round."""
        noise = self.noise
        if noise.kind == "row":
            return row_sensitivity(
                target_bound=noise.target_bound,
                kappa=kappa,
                row_norm=noise.row_norm,
                radius=noise.radius,
            ).replace
        return column_sensitivity(
            target_norm=norm_of(target),
            kappa=kappa,
            row_norm=noise.row_norm,
            exact_ridge=self._exact_ridge,
        ).replace

    def training_scores(self) -> Vector:
        """Exact scores of its own rows: for the simulation, not covered by any guarantee."""
        return self.block.scores(self.x)

    def penalty(self) -> float:
        """λR(x), exact: for the simulation's objective, not covered by any guarantee."""
        if self.regulariser == "none":
            return 0.0
        size = np.abs(self.x).sum() if self.regulariser == "l1" else 0.5 * self.x @ self.x
        return self.strength * float(size)


# The Gram matrix, what its decomposition works in, and the eigenvectors.
_MATRICES = 4


def _check_room(name: str, block: Block) -> None:
    """Refuse columns whose decomposition does not fit in memory, before anything is charged."""
    size, free = min(block.rows, block.columns), available()
    if free is not None and 8 * _MATRICES * size**2 > free:
        raise InputError(
            f"Party {name!r} has {block.columns:,} features of {block.rows:,} rows: admm would "
            f"hold {_MATRICES} matrices of {size:,} x {size:,} numbers, more than is free; nothing "
            "was charged. Declare fewer bins and categories, split the columns over more parties, "
            "or in a simulation use fdml-sgd, which holds none."
        )


def open_sharing_party(
    columns: PartyColumns,
    config: AdmmConfig,
    budget: Budget | None,
    releaser: Releaser,
    *,
    paid_rounds: int | None = None,
) -> AdmmParty:
    """A party as it takes part in `admm`, in a simulation and between organisations alike.

    `budget` is its own and is spent on all rounds together; `paid_rounds` are left of them in a run
    that goes on.
    """
    return AdmmParty(
        columns.train,
        strength=config.chosen_strength,
        regulariser=config.regulariser,
        constraint=config.chosen_constraint,
        noise=share_noise(config, budget, columns.row_norm),
        releaser=releaser,
        name=columns.name,
        paid_rounds=paid_rounds,
    )
