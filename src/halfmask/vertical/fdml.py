"""SGD over distributed features: the baseline A compares with (FDML, Hu et al. 2019).

For each batch every party sends its scores, the coordinator answers with the slope of the loss at
their sum, and every party takes a step on its own coefficients. Noise, each way named:

    none        no guarantee.
    as-written  FDML's: noise on the scores only. The coefficients still depend on every row without
                noise, so no ε exists.
    row         scores clipped to ±score_bound and noised, *and* noise on every gradient, so that
                the coefficients are post-processing. Guarantee: docs/proofs/fdml.md.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from halfmask.errors import InputError
from halfmask.mechanisms.paid_rows import PaidRows, Rows, batch_of
from halfmask.mechanisms.release import Releaser, Sensitivity
from halfmask.signs import tell
from halfmask.vertical.block import Vector
from halfmask.vertical.channel import Channel, Message, ask_all, ask_numbers
from halfmask.vertical.loss import LossName, loss_named
from halfmask.vertical.party import Party
from halfmask.vertical.rows import bounded_rows
from halfmask.vertical.stranger import MOST, number, numbers

MOST_STEP = 1e3
"""The largest step size that a party takes; those that work are a thousand times smaller."""


@dataclass(frozen=True, kw_only=True)
class FdmlNoise:
    """`ratio` is μ of all epochs together for one replaced row; half of μ² goes to scores."""

    kind: Literal["none", "as-written", "row"] = "none"
    epochs: int = 1
    ratio: float = 0.0
    std: float = 0.0
    row_norm: float = 1.0
    score_bound: float = 2.0

    def __post_init__(self) -> None:
        if self.kind not in ("none", "as-written", "row"):
            raise InputError(f"Unknown noise {self.kind!r}: expected none, as-written or row.")


@dataclass(frozen=True, kw_only=True)
class FdmlConfig:
    """What the coordinator decides. Steps shrink with the square root of the epoch."""

    loss: LossName = "logistic"
    epochs: int = 20
    batch: int = 128
    step_size: float = 0.5
    shuffle_seed: int = 0


class FdmlParty:
    """A party's coefficients and its two answers, scores and steps.

    Guarantee: docs/proofs/fdml.md: each row is scored, and enters a gradient, once per epoch.
    """

    def __init__(
        self,
        name: str,
        matrix: Any,
        *,
        strength: float,
        noise: FdmlNoise | None = None,
        releaser: Releaser | None = None,
        start: Vector | None = None,
        ids: Sequence[Any] | None = None,
    ) -> None:
        self.noise = noise or FdmlNoise()
        private = self.noise.kind == "row"
        self.matrix = bounded_rows(matrix, self.noise.row_norm) if private else matrix
        self.strength = strength
        rows, columns = (int(n) for n in self.matrix.shape)
        self.x: Vector = np.zeros(columns) if start is None else np.array(start, dtype=np.float64)
        self.party = Party(name, rows=rows, ids=ids)
        self.party.answers("fdml-scores", self._scores)
        self.party.answers("fdml-step", self._step)
        self._releaser = releaser
        if self.noise.kind == "as-written" and releaser is None:
            raise InputError("As-written noise needs a releaser, which draws it.")
        # The only two doors of row noise: both are paid for before the first batch.
        self._score_door: PaidRows | None = None
        self._step_door: PaidRows | None = None
        if private:
            self._score_door = self._door("scores", self.noise.score_bound, releaser)
            self._step_door = self._door("gradients", self.noise.row_norm, releaser)

    def _door(self, what: str, bound: float, releaser: Releaser | None) -> PaidRows:
        """Releases that one replaced row moves by at most 2·bound, each row once per epoch."""
        if releaser is None:
            raise InputError("Row noise needs a releaser with a ledger to charge.")
        if not (self.noise.ratio > 0 and self.noise.epochs > 0):
            raise InputError("Row noise needs a ratio > 0 and epochs > 0.")
        return releaser.paid_rows(
            rows=self.party.rows,
            sensitivity=Sensitivity(replace=2 * bound, withhold=bound),
            noise_std=2 * bound * math.sqrt(2 * self.noise.epochs) / self.noise.ratio,
            count=self.noise.epochs,
            what=f"{what} of {self.party.name}, each row once per epoch",
        )

    def _exact_scores(self, rows: Rows) -> Vector:
        return np.asarray(self.matrix[rows] @ self.x, dtype=np.float64)

    def _scores(self, request: Message) -> Message:
        rows = batch_of(request.arrays.get("rows"), self.party.rows)
        if self._score_door is not None:
            bound = self.noise.score_bound
            scores = self._score_door.release(
                rows, lambda batch: np.clip(self._exact_scores(batch), -bound, bound)
            )
        else:
            scores = self._exact_scores(rows)
        if self.noise.kind == "as-written":
            assert self._releaser is not None
            scores = scores + self.noise.std * self._releaser.unpaid_normal(len(scores))
        return request.reply(arrays={"scores": scores})

    def _step(self, request: Message) -> Message:
        rows = batch_of(request.arrays.get("rows"), self.party.rows)
        slopes = numbers(request.arrays.get("slopes"), rows.shape, "slopes")
        step_size = number(request.values.get("step_size"), "step_size", most=MOST_STEP)

        def total(weights: Vector) -> Callable[[Rows], Vector]:
            return lambda batch: np.asarray(self.matrix[batch].T @ weights, dtype=np.float64)

        if self._step_door is not None:
            gradient = self._step_door.release(rows, total(np.clip(slopes, -1.0, 1.0)))
        else:
            gradient = total(slopes)(rows)
        gradient = gradient / max(len(rows), 1) + self.strength / self.party.rows * self.x
        # However often it is told to overshoot, no score may overflow: by which rows do, an error
        # would tell tables apart. Post-processing of the noisy gradients.
        self.x = np.clip(self.x - step_size * gradient, -MOST, MOST)
        return request.reply()


def run_fdml(
    channel: Channel,
    targets: Vector,
    config: FdmlConfig,
    *,
    watch: Callable[[int], Mapping[str, float]] | None = None,
) -> list[dict[str, float]]:
    """Run all epochs; one record of watched numbers per epoch. Targets are -1 and +1.

    The slopes tell every party the labels, as the dual of ADMM does.
    """
    loss = loss_named(config.loss)
    run, draw = secrets.token_hex(8), np.random.default_rng(config.shuffle_seed)
    history: list[dict[str, float]] = []
    number = 0
    for epoch in range(1, config.epochs + 1):
        tell("epochs with all parties", epoch / config.epochs)
        order = draw.permutation(len(targets))
        step_size = config.step_size / math.sqrt(epoch)
        for start in range(0, len(order), config.batch):
            rows = order[start : start + config.batch]
            number += 1
            ask = Message(kind="fdml-scores", run=run, round=number, arrays={"rows": rows})
            scores = ask_numbers(channel, ask, "scores", rows.shape)
            total = np.sum(list(scores.values()), axis=0)
            step = Message(
                kind="fdml-step",
                run=run,
                round=number,
                arrays={"rows": rows, "slopes": loss.slope(total, targets[rows])},
                values={"step_size": step_size},
            )
            ask_all(channel, step)
        history.append({"epoch": float(epoch), **(watch(epoch) if watch else {})})
    return history
