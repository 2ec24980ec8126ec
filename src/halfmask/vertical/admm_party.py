"""A party's side of ADMM sharing: solve on its own columns, release one noisy number per row.

What leaves the party is `share`, and only through a mechanism that was fixed, and charged, before
the first round.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import numpy as np

from halfmask.errors import InputError
from halfmask.mechanisms.clipping import norm_of
from halfmask.mechanisms.release import GaussianSeries, Releaser, Sensitivity
from halfmask.vertical.block import Ball, Block, Constraint, Regulariser, Vector
from halfmask.vertical.rows import bounded_rows, row_parts
from halfmask.vertical.sensitivity import column_sensitivity, row_sensitivity
from halfmask.vertical.stranger import MOST, RefusedError, number, numbers, whole

ShareNoiseName = Literal["none", "as-written", "column", "row"]
SHARE_NOISES: tuple[ShareNoiseName, ...] = get_args(ShareNoiseName)

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
        if self.kind not in SHARE_NOISES:
            raise InputError(
                f"Unknown noise {self.kind!r}: expected one of {', '.join(SHARE_NOISES)}."
            )

    @property
    def is_private(self) -> bool:
        """Whether a guarantee exists."""
        return self.kind in ("column", "row")

    def fitted(self, *, ratio: float, rounds: int, row_norm: float) -> ShareNoise:
        """The same kind and limits with the numbers that a budget and a declaration give."""
        return replace(self, ratio=ratio, rounds=rounds, row_norm=row_norm)


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
    `stranger.MOST`, and what would vanish when squared is zero. Guarantee:
    docs/proofs/strangers.md.
    """
    rows = len(released)
    residual = numbers(residual, (rows,), "residual")
    dual = numbers(dual, (rows,), "dual")
    penalty = number(rho, "rho")
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
    target = numbers(target, (rows,), "the target that residual, dual and rho make")
    if noise.kind == "row":
        target = np.clip(target, -noise.target_bound, noise.target_bound)
    return target, kappa


class AdmmParty:
    """Holds the block, the coefficients and the last released share of one party.

    Guarantee: docs/proofs/admm_row.md, docs/proofs/admm_column.md.
    """

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
        self.strength, self.regulariser, self.constraint = strength, regulariser, constraint
        self.x: Vector = np.zeros(self.block.columns)
        self.released: Vector = np.zeros(self.block.rows)
        self._releaser = releaser
        self._series = self._open_series(releaser, name) if self.noise.is_private else None
        if self.noise.kind == "as-written" and releaser is None:
            raise InputError("As-written noise needs a releaser, which draws it.")

    def _open_series(self, releaser: Releaser | None, name: str) -> GaussianSeries:
        if releaser is None:
            raise InputError(f"Noise {self.noise.kind!r} needs a releaser with a ledger to charge.")
        if not (self.noise.ratio > 0 and self.noise.rounds > 0):
            raise InputError(
                f"Noise {self.noise.kind!r} needs a ratio > 0 and rounds > 0, "
                f"got {self.noise.ratio} and {self.noise.rounds}."
            )
        # Shares are released in units of their own bound for a replaced row, so the series has
        # sensitivity 1 whatever the transcript does to the bound; for `row` a withheld row costs
        # at most 1/√2 of it.
        withhold = math.sqrt(0.5) if self.noise.kind == "row" else 1.0
        sensitivity = Sensitivity(replace=1.0, withhold=withhold)
        std = math.sqrt(self.noise.rounds) / self.noise.ratio
        return releaser.gaussian_series(
            sensitivity=sensitivity,
            noise_std=std,
            count=self.noise.rounds,
            what=f"ADMM shares of {name} ({self.noise.kind} noise)",
            left=self._paid_rounds,
        )

    @property
    def _exact_ridge(self) -> bool:
        return self.regulariser == "l2" and self.constraint is None

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
        self.released = exact if self._series is None else self._protect(exact, target, kappa)
        return self.released

    def _protect(self, exact: Vector, target: Vector, kappa: float) -> Vector:
        assert self._series is not None
        noise = self.noise
        if noise.kind == "row":
            bound = row_sensitivity(
                target_bound=noise.target_bound,
                kappa=kappa,
                row_norm=noise.row_norm,
                radius=noise.radius,
            ).replace
        else:
            bound = column_sensitivity(
                target_norm=norm_of(target),
                kappa=kappa,
                row_norm=noise.row_norm,
                exact_ridge=self._exact_ridge,
            ).replace
            if bound == 0.0:
                return np.zeros_like(exact)  # whatever the table: the target is zero
            if not self._exact_ridge or kappa == 0:
                # The proof puts the exact solution in this ball; putting the computed one there
                # too makes the bound hold however well the proximal solver converged.
                exact = target / 2 + Ball(radius=bound / 2).project(exact - target / 2)
        return bound * self._series.release(exact / bound)

    def penalty(self) -> float:
        """λR(x), exact: for the simulation's objective, not covered by any guarantee."""
        if self.regulariser == "none":
            return 0.0
        size = np.abs(self.x).sum() if self.regulariser == "l1" else 0.5 * self.x @ self.x
        return self.strength * float(size)
