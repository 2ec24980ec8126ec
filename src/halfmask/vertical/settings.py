"""Settings of the vertical methods, one configuration each; see halfmask.settings.

What the label holder and what a party decides is in one place here, as in a simulation; between
organisations each side reads its own part (docs/vertical.md).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

from halfmask.errors import InputError
from halfmask.vertical.admm import AdmmConfig, Update
from halfmask.vertical.admm_party import ShareNoise, ShareNoiseName
from halfmask.vertical.block import Ball, Box, Constraint, Regulariser
from halfmask.vertical.experts import DAMPING
from halfmask.vertical.fdml import FdmlConfig, FdmlNoise
from halfmask.vertical.loss import LossName
from halfmask.vertical.newton import NewtonConfig

Combine = Literal["fixed", "aggregate"]
ConstraintName = Literal["none", "box", "ball"]


@dataclass(frozen=True, kw_only=True)
class ExpertsConfig:
    """A DP model per party, and how they are added (docs/proofs/experts.md).

    `steps`, `memory` and `prior_reach` are those of each party's noisy Newton steps. `combine` adds
    the models by a fixed rule or by weights from DP counts; all but one count `damping` times.
    """

    method: ClassVar[str] = "experts"

    steps: int = NewtonConfig.steps
    memory: float = NewtonConfig.memory
    prior_reach: float = 2.0
    combine: Combine = "fixed"
    damping: float = DAMPING

    def __post_init__(self) -> None:
        _ = self.newton
        if not 0 <= self.damping <= 1:
            raise InputError(f"Expected damping in [0, 1], got {self.damping}.")

    @property
    def newton(self) -> NewtonConfig:
        """The part that each party follows."""
        return NewtonConfig(steps=self.steps, memory=self.memory, prior_reach=self.prior_reach)


@dataclass(frozen=True, kw_only=True)
class SharingConfig:
    """ADMM sharing: A's problem, its algorithm and its noise. None means: by the noise.

    The problem: `loss`, `regulariser` times `strength` (λ), and a `constraint` of each party's
    coefficients: a box or a ball around zero that reaches to `reach`. The algorithm: `rho`,
    `update`, `rounds` (3 under noise with a guarantee, else 30), `tolerance`. The noise: its kind,
    `noise_std` for as-written; for row noise the ball of the coefficients, of radius
    `noise_radius`, and the bound of the targets (docs/proofs/admm_row.md).
    """

    method: ClassVar[str] = "admm"

    loss: LossName = "logistic"
    regulariser: Regulariser = "l2"
    strength: float | None = None
    constraint: ConstraintName = "none"
    reach: float = 1.0
    rho: float = 0.1
    update: Update = "sharing"
    rounds: int | None = None
    tolerance: float = 0.0
    noise: ShareNoiseName = "row"
    noise_std: float = 0.1
    noise_radius: float = 2.0
    target_bound: float = 4.0

    def __post_init__(self) -> None:
        _ = self.admm
        for name in ("strength", "reach", "noise_std", "noise_radius", "target_bound"):
            _check_positive(name, getattr(self, name), zero=name in ("strength", "noise_std"))
        if self.noise == "row" and (self.regulariser != "l2" or self.constraint != "none"):
            raise InputError(
                "noise=row brings its own ball and needs regulariser=l2 and constraint=none: use "
                "noise=column for the others."
            )

    @property
    def is_private(self) -> bool:
        """Whether the noise has a guarantee."""
        return self.share_noise.is_private

    @property
    def share_noise(self) -> ShareNoise:
        """The kind and limits of the noise."""
        return ShareNoise(
            kind=self.noise,
            std=self.noise_std,
            radius=self.noise_radius,
            target_bound=self.target_bound,
        )

    @property
    def admm(self) -> AdmmConfig:
        """What the coordinator follows."""
        # Few rounds under noise: every round is paid for.
        rounds = self.rounds if self.rounds is not None else (3 if self.is_private else 30)
        return AdmmConfig(
            loss=self.loss,
            rho=self.rho,
            update=self.update,
            rounds=rounds,
            tolerance=self.tolerance,
        )

    @property
    def chosen_strength(self) -> float:
        """λ: given, or more where noise has to be borne."""
        if self.strength is not None:
            return self.strength
        return 10.0 if self.is_private else 1.0

    @property
    def chosen_constraint(self) -> Constraint:
        """The set that each party's coefficients stay in."""
        if self.constraint == "ball":
            return Ball(radius=self.reach)
        return Box(low=-self.reach, high=self.reach) if self.constraint == "box" else None


@dataclass(frozen=True, kw_only=True)
class SgdSharingConfig:
    """SGD over distributed features, A's baseline. None means: by the noise.

    `strength` is λ of the ℓ2 regulariser, `score_bound` where row noise cuts scores.
    """

    method: ClassVar[str] = "fdml-sgd"

    loss: LossName = "logistic"
    strength: float = 1.0
    epochs: int | None = None
    batch: int | None = None
    step_size: float | None = None
    shuffle_seed: int = 0
    start_seed: int = 0
    noise: Literal["none", "as-written", "row"] = "row"
    noise_std: float = 0.1
    score_bound: float = 2.0

    def __post_init__(self) -> None:
        for name in ("epochs", "batch", "step_size", "score_bound", "strength", "noise_std"):
            _check_positive(name, getattr(self, name), zero=name in ("strength", "noise_std"))

    @property
    def sgd(self) -> FdmlConfig:
        """What the coordinator follows."""
        private = self.noise == "row"
        return FdmlConfig(
            loss=self.loss,
            epochs=self.epochs or (2 if private else 20),
            batch=self.batch or (2048 if private else 128),
            step_size=self.step_size or (0.05 if private else 0.5),
            shuffle_seed=self.shuffle_seed,
        )

    @property
    def fdml_noise(self) -> FdmlNoise:
        """The kind and limits of the noise."""
        return FdmlNoise(kind=self.noise, std=self.noise_std, score_bound=self.score_bound)


def _check_positive(name: str, value: float | None, *, zero: bool) -> None:
    if value is None:
        return
    if not (math.isfinite(value) and (value > 0 or (zero and value == 0))):
        raise InputError(f"Expected a finite {name} {'>=' if zero else '>'} 0, got {value}.")
