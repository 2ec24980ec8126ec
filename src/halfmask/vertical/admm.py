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

import io
import json
import math
import secrets
import warnings
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal, get_args

import numpy as np

from halfmask.errors import DataError, InputError
from halfmask.signs import tell
from halfmask.vertical.block import Vector
from halfmask.vertical.channel import Channel, Message, ask_numbers
from halfmask.vertical.loss import Loss, LossName, loss_named
from halfmask.vertical.rows import row_parts
from halfmask.vertical.store import write_durably

Update = Literal["sharing", "as-written"]
UPDATES: tuple[Update, ...] = get_args(Update)


class DivergenceWarning(UserWarning):
    """The residual of ADMM grows instead of shrinking."""


@dataclass(frozen=True, kw_only=True)
class AdmmConfig:
    """What the coordinator decides; strength, regulariser and noise are the parties' own.

    `tolerance` > 0 stops when both residuals are below it, relative and absolute as in Boyd et al.
    2011, section 3.3.1.
    """

    loss: LossName = "logistic"
    rho: float = 0.1
    update: Update = "sharing"
    rounds: int = 30
    tolerance: float = 0.0

    def __post_init__(self) -> None:
        loss_named(self.loss)
        if self.update not in UPDATES:
            raise InputError(
                f"Unknown update {self.update!r}: expected one of {', '.join(UPDATES)}."
            )
        if not (math.isfinite(self.rho) and self.rho > 0):
            raise InputError(f"Expected rho > 0, got {self.rho}.")
        if self.rounds < 1:
            raise InputError(f"Expected rounds >= 1, got {self.rounds}.")
        if not self.tolerance >= 0:
            raise InputError(f"Expected tolerance >= 0, got {self.tolerance}.")


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
    """All the coordinator knows: z, the dual, the last shares. Enough to resume after any finished
    round.
    """

    z: Vector
    dual: Vector
    shares: dict[str, Vector]
    rho: float
    run: str
    history: list[Round] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class AdmmResult:
    """The rounds that were run, and the state after the last one."""

    history: tuple[Round, ...]
    converged: bool
    state: AdmmState


Watch = Callable[[int], Mapping[str, float]]


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
    head = {
        "rho": state.rho,
        "run": state.run,
        "history": [{**asdict(r), "watched": dict(r.watched)} for r in state.history],
    }
    shares = {f"share/{name}": share for name, share in state.shares.items()}
    buffer = io.BytesIO()
    np.savez(
        buffer,
        head=np.array(json.dumps(head)),
        z=state.z,
        dual=state.dual,
        **shares,  # type: ignore[arg-type]
    )
    write_durably(path, buffer.getvalue())


def load_state(path: Path, parties: tuple[str, ...]) -> AdmmState | None:
    """The stored state, or nothing if there is none; other parties than these are an error."""
    if not path.exists():
        return None
    with np.load(path, allow_pickle=False) as held:
        head = json.loads(str(held["head"]))
        shares = {k.removeprefix("share/"): held[k] for k in held.files if k.startswith("share/")}
        z, dual = held["z"], held["dual"]
    if set(shares) != set(parties):
        raise DataError(
            f"The stored run in {path.parent} has other parties: choose another folder."
        )
    return AdmmState(
        z=z,
        dual=dual,
        shares={name: shares[name] for name in parties},
        rho=float(head["rho"]),
        run=str(head["run"]),
        history=[Round(**record) for record in head["history"]],
    )


def run_admm(
    channel: Channel,
    targets: Vector,
    config: AdmmConfig,
    *,
    state: AdmmState | None = None,
    watch: Watch | None = None,
) -> AdmmResult:
    """Run the rounds that remain after `state` (or all of them); `watch` adds numbers to each
    round's record.

    `targets` are -1 and +1 (numbers for the squared loss) and are known to the coordinator only,
    but for what the broadcast dual tells: y_i = l'(z_i), whose sign is the label's. Pass hidden
    targets to prevent that.
    """
    targets = np.asarray(targets, dtype=np.float64)
    names = channel.parties
    state = state or start_state(names, len(targets), config.rho)
    divisor = len(names) if config.update == "sharing" else 1
    warned = False
    for number in range(len(state.history) + 1, config.rounds + 1):
        tell("rounds with all parties", number / config.rounds)
        record, settled = _one_round(channel, targets, config, state, number, divisor)
        if watch is not None:
            record = Round(**{**vars(record), "watched": dict(watch(number))})
        state.history.append(record)
        if not warned and _grows(state.history):
            warned = True
            warnings.warn(
                _growth_advice(config, len(names), number), DivergenceWarning, stacklevel=2
            )
        if settled:
            return AdmmResult(history=tuple(state.history), converged=True, state=state)
    return AdmmResult(history=tuple(state.history), converged=False, state=state)


def _one_round(
    channel: Channel,
    targets: Vector,
    config: AdmmConfig,
    state: AdmmState,
    number: int,
    divisor: int,
) -> tuple[Round, bool]:
    """z and dual from the last shares, then new shares; `state` changes only when every party has
    answered.
    """
    z, dual, residual = _centre(loss_named(config.loss), targets, state, state.rho / divisor)
    request = Message(
        kind="admm-share",
        run=state.run,
        round=number,
        arrays={"residual": residual, "dual": dual},
        values={"rho": state.rho, "divisor": divisor},
    )
    shares = ask_numbers(channel, request, "share", targets.shape)

    parties = len(shares)
    primal, dual_square = _moved(state, shares, z)
    record = Round(
        number=number,
        primal_residual=primal / math.sqrt(parties),
        dual_residual=state.rho * math.sqrt(dual_square),
        rho=state.rho,
    )
    scale = config.tolerance * math.sqrt(parties * len(targets))
    size = math.sqrt(sum(float(s @ s) for s in shares.values()))
    dual_size = math.sqrt(parties) * float(np.linalg.norm(dual))
    settled = (
        config.tolerance > 0
        and record.primal_residual <= scale + config.tolerance * size
        and record.dual_residual <= scale + config.tolerance * dual_size
    )
    state.z, state.dual, state.shares = z, dual, shares
    return record, settled


def _centre(
    loss: Loss, targets: Vector, state: AdmmState, penalty: float
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
