"""ADMM sharing over parties that hold different columns of the same rows (A; Boyd et al. 2011,
section 7.3).

    minimise  Σ_i l(z_i, Y_i) + λ Σ_m R(x_m)   subject to  Σ_m D_m x_m = z

One round: the central node finds z and the dual y from the shares it has, broadcasts Σ shares - z
and y, and every party answers with its new share D_m x_m. `as-written` is Algorithm 1 of A, in
which all parties move at once against the whole residual; it can diverge from three parties on.
`sharing`, the default, gives each party 1/M of the residual and converges for any number. A's
first round from zeros sends zeros; the rounds here start after it.
"""

from __future__ import annotations

import math
import os
import secrets
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal, cast, get_args

import numpy as np
from scipy.special import expit

from halfmask.errors import DataError, InputError, check_one_of, check_positive
from halfmask.model_folder import MOST_ARRAYS, opened, rebuilt
from halfmask.model_folder import field as field_of
from halfmask.progress import tell
from halfmask.storage import write_durably
from halfmask.types import Vector
from halfmask.vertical.block import Ball, Box, Constraint, Regulariser, row_parts
from halfmask.vertical.channel import (
    Channel,
    Message,
    checked_numbers,
    number_array,
    one_number,
    whole,
    word,
)
from halfmask.vertical.store import packed, unpacked

AdmmLossName = Literal["logistic", "squared", "hinge", "smoothed-hinge"]
ADMM_LOSSES: tuple[AdmmLossName, ...] = get_args(AdmmLossName)

_NEWTON_STEPS = 100
_TOLERANCE = 1e-13


class ProximalLoss(ABC):
    """A convex loss of one score per row; the targets are -1 and +1, or numbers for `squared`.

    `linear_in_target`: an unbiased estimate of the target gives an unbiased loss, so that labels
    can be hidden.
    """

    linear_in_target: ClassVar[bool]

    @abstractmethod
    def value(self, scores: Vector, targets: Vector) -> Vector:
        """The loss of every row."""

    @abstractmethod
    def slope(self, scores: Vector, targets: Vector) -> Vector:
        """A (sub)derivative by the score of every row."""

    @abstractmethod
    def prox(self, points: Vector, targets: Vector, c: float, start: Vector) -> Vector:
        """argmin over z of value(z) + c/2 (z - points)², row by row."""


class ProximalLogistic(ProximalLoss):
    """log(1 + e^z) - z (1 + target)/2: log loss for targets -1 and +1, linear in any other."""

    linear_in_target = True

    def value(self, scores: Vector, targets: Vector) -> Vector:
        softplus = np.maximum(scores, 0) + np.log1p(np.exp(-np.abs(scores)))
        return cast(Vector, softplus - scores * (1 + targets) / 2)

    def slope(self, scores: Vector, targets: Vector) -> Vector:
        return cast(Vector, expit(scores) - (1 + targets) / 2)

    def prox(self, points: Vector, targets: Vector, c: float, start: Vector) -> Vector:
        # The derivative expit(z) + c z - (level) is increasing and expit lies in (0, 1), so the
        # root lies in [low, low + 1/c]; Newton steps that leave the shrinking bracket are replaced
        # by bisection.
        level = c * points + (1 + targets) / 2
        low = (level - 1) / c
        high = level / c
        z = np.clip(start, low, high)
        scale = _TOLERANCE * (1 + np.abs(level))
        last = high - low
        for _ in range(_NEWTON_STEPS):
            p = expit(z)
            residual = p + c * z - level
            settled = np.abs(residual) <= scale
            if settled.all():
                break
            above = residual > 0
            np.copyto(high, z, where=above)
            np.copyto(low, z, where=~above)
            step = -residual / (c + p * (1 - p))
            # Bisect where Newton leaves the bracket, and where its steps do not shrink: far from
            # the root it can jump from one end to the other for ever.
            poor = (z + step <= low) | (z + step >= high) | (np.abs(step) > 0.5 * last)
            if poor.any():
                step = np.where(poor, 0.5 * (low + high) - z, step)
            # Rows that have settled stay: at rounding level steps no longer shrink, and a bisection
            # would throw them back.
            step[settled] = 0.0
            z = z + step
            last = np.abs(step)
        return z


class ProximalSquared(ProximalLoss):
    """(z - target)²/2."""

    linear_in_target = True

    def value(self, scores: Vector, targets: Vector) -> Vector:
        return 0.5 * (scores - targets) ** 2

    def slope(self, scores: Vector, targets: Vector) -> Vector:
        return scores - targets

    def prox(self, points: Vector, targets: Vector, c: float, start: Vector) -> Vector:
        return (targets + c * points) / (1 + c)


class ProximalHinge(ProximalLoss):
    """max(0, 1 - target·z)."""

    linear_in_target = False

    def value(self, scores: Vector, targets: Vector) -> Vector:
        return np.maximum(0.0, 1 - targets * scores)

    def slope(self, scores: Vector, targets: Vector) -> Vector:
        return np.where(targets * scores < 1, -targets, 0.0)

    def prox(self, points: Vector, targets: Vector, c: float, start: Vector) -> Vector:
        margin = targets * points
        # Either the hinge is active all the way (a shift by 1/c), or not at all, or z stops at the
        # kink.
        return targets * np.maximum(margin, np.minimum(margin + 1 / c, 1.0))


class ProximalSmoothedHinge(ProximalLoss):
    """The hinge with its kink replaced by a parabola of width `width` below 1."""

    width = 0.5
    linear_in_target = False

    def value(self, scores: Vector, targets: Vector) -> Vector:
        gap = np.maximum(0.0, 1 - targets * scores)
        return np.where(gap < self.width, gap**2 / (2 * self.width), gap - self.width / 2)

    def slope(self, scores: Vector, targets: Vector) -> Vector:
        gap = np.clip(1 - targets * scores, 0.0, self.width)
        return -targets * gap / self.width

    def prox(self, points: Vector, targets: Vector, c: float, start: Vector) -> Vector:
        margin = targets * points
        inside = (c * margin + 1 / self.width) / (c + 1 / self.width)
        moved = np.where(margin + 1 / c <= 1 - self.width, margin + 1 / c, inside)
        return targets * np.where(margin >= 1, margin, moved)


_LOSSES: dict[str, ProximalLoss] = {
    "logistic": ProximalLogistic(),
    "squared": ProximalSquared(),
    "hinge": ProximalHinge(),
    "smoothed-hinge": ProximalSmoothedHinge(),
}


def admm_loss(name: str) -> ProximalLoss:
    """The loss of that name, or an error that lists them."""
    if name not in _LOSSES:
        raise InputError(f"Unknown loss {name!r}: expected one of {', '.join(ADMM_LOSSES)}.")
    return _LOSSES[name]


def check_loss(
    name: str, label_bounds: tuple[float, float] | None, *, hidden: bool = False
) -> None:
    """Refuse losses of two classes for a number, and those not linear in hidden labels."""
    if label_bounds is not None and name != "squared":
        raise InputError(
            f"The label is a number, and the loss {name} is for two classes: set loss=squared."
        )
    if hidden and not admm_loss(name).linear_in_target:
        raise InputError(f"Labels can be hidden for logistic and squared loss, not {name}.")


_RESIDUALS = ("primal_residual", "dual_residual", "rho")
Update = Literal["sharing", "as-written"]
UPDATES: tuple[Update, ...] = get_args(Update)
ConstraintName = Literal["none", "box", "ball"]
ShareNoiseName = Literal["none", "as-written", "column", "row"]
SHARE_NOISES: tuple[ShareNoiseName, ...] = get_args(ShareNoiseName)
PRIVATE_NOISES = ("column", "row")


class DivergenceWarning(UserWarning):
    """The residual of ADMM grows instead of shrinking."""


@dataclass(frozen=True, kw_only=True)
class AdmmConfig:
    """ADMM sharing: A's problem, its algorithm and its noise. None means: by the noise.

    The problem: `loss`, `regulariser` times `strength` (λ), and a `constraint` of each party's
    coefficients: a box or a ball around zero that reaches to `reach`. The algorithm: `rho`,
    `update`, `rounds` (3 under noise with a guarantee, else 30), `tolerance` (> 0 stops when both
    residuals are below it, relative and absolute as in Boyd et al. 2011, section 3.3.1). The noise:
    its kind, `noise_std` for as-written; for row noise the ball of the coefficients, of radius
    `noise_radius`, and the bound of the targets (docs/proofs/admm_row.md).
    """

    method: ClassVar[str] = "admm"

    loss: AdmmLossName = "logistic"
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
        admm_loss(self.loss)
        check_one_of(self, update=UPDATES, noise=SHARE_NOISES)
        if self.chosen_rounds < 1:
            raise InputError(f"Expected rounds >= 1, got {self.rounds}.")
        check_positive(self, "rho", "reach", "noise_radius", "target_bound")
        check_positive(self, "strength", "tolerance", "noise_std", zero=True)
        if self.noise == "row" and (self.regulariser != "l2" or self.constraint != "none"):
            raise InputError(
                "noise=row brings its own ball and needs regulariser=l2 and constraint=none: use "
                "noise=column for the others."
            )

    @property
    def is_private(self) -> bool:
        """Whether the noise has a guarantee."""
        return self.noise in PRIVATE_NOISES

    @property
    def chosen_rounds(self) -> int:
        """Few rounds under noise: every round is paid for."""
        return self.rounds if self.rounds is not None else (3 if self.is_private else 30)

    @property
    def chosen_strength(self) -> float:
        """λ: given, or more where noise has to be borne."""
        return self.strength if self.strength is not None else (10.0 if self.is_private else 1.0)

    @property
    def chosen_constraint(self) -> Constraint:
        """The set that each party's coefficients stay in."""
        if self.constraint == "ball":
            return Ball(radius=self.reach)
        return Box(low=-self.reach, high=self.reach) if self.constraint == "box" else None


@dataclass(frozen=True, kw_only=True)
class Round:
    """One finished round: its residuals, and whatever the simulation watched."""

    number: int
    primal_residual: float
    dual_residual: float
    rho: float
    watched: Mapping[str, float] = field(default_factory=dict)


@dataclass
class AdmmState:
    """All the coordinator knows, and enough to resume: z, the dual, the last shares."""

    z: Vector
    dual: Vector
    shares: dict[str, Vector]
    rho: float
    run: str
    history: list[Round] = field(default_factory=list)
    converged: bool = False


RoundWatch = Callable[[int], Mapping[str, float]]


def start_state(parties: tuple[str, ...], rows: int, rho: float) -> AdmmState:
    """Everything at zero, whatever the data: the start is part of the guarantee's precondition."""
    return AdmmState(
        z=np.zeros(rows),
        dual=np.zeros(rows),
        shares={name: np.zeros(rows) for name in parties},
        rho=rho,
        run=secrets.token_hex(8),
    )


def save_state(path: Path, state: AdmmState) -> None:
    """Store the coordinator's side of a run: enough to go on after the last finished round."""
    history = [{**asdict(r), "watched": dict(r.watched)} for r in state.history]
    head = {"rho": state.rho, "run": state.run, "history": history}
    shares = {f"share/{name}": share for name, share in state.shares.items()}
    write_durably(path, packed(head, {"z": state.z, "dual": state.dual, **shares}))


def load_state(path: Path, parties: tuple[str, ...], rows: int | None = None) -> AdmmState | None:
    """The stored state, or nothing if there is none; other parties or rows are an error."""
    if not os.path.lexists(path):
        return None
    try:
        with opened(path, MOST_ARRAYS) as file:
            content = file.read()
        state = rebuilt(lambda: _state(*unpacked(content, path.name)), path.name)
    except DataError:
        raise DataError(
            f"The stored run {path} cannot be read: restore it, or choose another folder, in which "
            "a new run begins."
        ) from None
    if set(state.shares) != set(parties):
        raise DataError(
            f"The stored run in {path.parent} has other parties: choose another folder."
        )
    if rows is not None and len(state.z) != rows:
        raise DataError(
            f"The stored run in {path.parent} has {len(state.z)} rows, the label file {rows}: "
            "restore the file, or choose another folder."
        )
    state.shares = {name: state.shares[name] for name in parties}
    return state


def _state(head: Mapping[str, Any], arrays: Mapping[str, Vector]) -> AdmmState:
    """What `save_state` stored, checked: every vector has a number for each row."""
    shares = {k.removeprefix("share/"): v for k, v in arrays.items() if k.startswith("share/")}
    vectors = {name: number_array(arrays[name], (None,), name) for name in ("z", "dual")}
    rows = len(vectors["z"])
    return AdmmState(
        z=vectors["z"],
        dual=number_array(vectors["dual"], (rows,), "dual"),
        shares={name: number_array(share, (rows,), name) for name, share in shares.items()},
        rho=one_number(head["rho"], "rho"),
        run=word(head["run"], "run"),
        history=[_round(place, record) for place, record in enumerate(head["history"], start=1)],
    )


def _round(place: int, record: Mapping[str, object]) -> Round:
    told = {name: one_number(record[name], name, least=0.0, most=1e300) for name in _RESIDUALS}
    counted = whole(record["number"], "number", least=place, most=place)
    return Round(number=counted, watched=field_of(record, "watched", dict), **told)


def run_admm(
    channel: Channel,
    targets: Vector,
    config: AdmmConfig,
    *,
    state: AdmmState | None = None,
    watch: RoundWatch | None = None,
    keep: Callable[[AdmmState], None] | None = None,
) -> AdmmState:
    """Run the rounds that remain after `state`, or all of them.

    `watch` adds numbers to each round's record, `keep` is given the state after each round.

    `targets` are -1 and +1 (numbers for the squared loss) and are known to the coordinator only,
    but for what the broadcast dual tells: y_i = l'(z_i), whose sign is the label's. Pass hidden
    targets to prevent that.
    """
    targets = np.asarray(targets, dtype=np.float64)
    names = channel.parties
    state = state or start_state(names, len(targets), config.rho)
    divisor = len(names) if config.update == "sharing" else 1
    warned = False
    for number in range(len(state.history) + 1, config.chosen_rounds + 1):
        tell("rounds with all parties", number / config.chosen_rounds)
        # z and dual from the last shares, then new shares from every party.
        z, dual, residual = _centre(admm_loss(config.loss), targets, state, state.rho / divisor)
        request = Message(
            kind="admm-share",
            run=state.run,
            round=number,
            arrays={"residual": residual, "dual": dual},
            values={"rho": state.rho, "divisor": divisor},
        )
        replies = channel.exchange(request)
        shares = checked_numbers(channel, request, replies, "share", targets.shape)
        primal, dual_square = _moved(state, shares, z)
        record = Round(
            number=number,
            primal_residual=primal / math.sqrt(len(names)),
            dual_residual=state.rho * math.sqrt(dual_square),
            rho=state.rho,
            watched={} if watch is None else dict(watch(number)),
        )
        # Changed only when every party has answered.
        state.z, state.dual, state.shares = z, dual, shares
        state.history.append(record)
        if not warned and _grows(state.history):
            warned = True
            warnings.warn(
                _growth_advice(config, len(names), number), DivergenceWarning, stacklevel=2
            )
        if keep is not None:
            keep(state)
        state.converged = _settled(config.tolerance, record, state)
        if state.converged:
            break
    return state


def _centre(
    loss: ProximalLoss, targets: Vector, state: AdmmState, penalty: float
) -> tuple[Vector, Vector, Vector]:
    """z, the dual and Σ shares - z from the shares of the last round."""
    z, dual, residual = (np.empty(len(targets)) for _ in range(3))
    for part in row_parts(len(targets)):
        total = _sum(state.shares, part)
        point = total + state.dual[part] / penalty
        z[part] = loss.prox(point, targets[part], penalty, state.z[part])
        residual[part] = total - z[part]
        dual[part] = state.dual[part] + penalty * residual[part]
    return z, dual, residual


def _moved(state: AdmmState, shares: Mapping[str, Vector], z: Vector) -> tuple[float, float]:
    """‖Σ shares - z‖, and the square of how far the parties' copies of z have moved.

    In the sharing form party m's copy is share_m + (z - total)/M; its movement is the dual
    residual.
    """
    primal, dual_square = 0.0, 0.0
    for part in row_parts(len(z)):
        total, moved = _sum(state.shares, part), _sum(shares, part)
        gap = moved - z[part]
        primal += float(gap @ gap)
        common = (z[part] - state.z[part]) / len(shares) - (moved - total) / len(shares)
        for name, share in shares.items():
            step = share[part] - state.shares[name][part] + common
            dual_square += float(step @ step)
    return math.sqrt(primal), dual_square


def _settled(tolerance: float, record: Round, state: AdmmState) -> bool:
    """Whether both residuals are small, relative and absolute; never without a tolerance."""
    parties = len(state.shares)
    scale = tolerance * math.sqrt(parties * len(state.z))
    size = math.sqrt(sum(float(s @ s) for s in state.shares.values()))
    dual_size = math.sqrt(parties) * float(np.linalg.norm(state.dual))
    return (
        tolerance > 0
        and record.primal_residual <= scale + tolerance * size
        and record.dual_residual <= scale + tolerance * dual_size
    )


def _sum(shares: Mapping[str, Vector], part: slice) -> Vector:
    first, *others = shares.values()
    total = first[part].copy()
    for share in others:
        total += share[part]
    return total


def _grows(history: list[Round]) -> bool:
    """Whether the residual is back at three times its lowest, and not merely at rounding level."""
    residuals = [record.primal_residual for record in history]
    return residuals[-1] > max(3 * min(residuals), 1e-3 * residuals[0]) and len(residuals) >= 5


def _growth_advice(config: AdmmConfig, parties: int, number: int) -> str:
    text = f"The ADMM residual grows: after round {number} it is three times its lowest."
    if config.update == "as-written" and parties > 1:
        return (
            text
            + f" Algorithm 1 of A can diverge, most of all from three parties on (here {parties}): "
            "use update='sharing' or a larger rho."
        )
    return text + " Noise on the shares, or a rho that does not suit the data, does this."
