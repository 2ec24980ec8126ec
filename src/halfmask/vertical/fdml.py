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
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal

import numpy as np

from halfmask.accounting.budget import Budget
from halfmask.data.products import block
from halfmask.errors import InputError, check_positive
from halfmask.mechanisms.release import PaidRows, Releaser, Sensitivity, batch_of
from halfmask.progress import tell
from halfmask.types import Integers, Vector
from halfmask.vertical.admm import AdmmLossName, admm_loss
from halfmask.vertical.block import bounded_rows
from halfmask.vertical.channel import (
    MOST,
    Channel,
    Message,
    checked_numbers,
    checked_replies,
    number_array,
    one_number,
)
from halfmask.vertical.party import Party, calibrated_ratio

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
    """SGD over distributed features, A's baseline. None means: by the noise.

    `strength` is λ of the ℓ2 regulariser, `score_bound` where row noise cuts scores. Steps shrink
    with the square root of the epoch.
    """

    method: ClassVar[str] = "fdml-sgd"

    loss: AdmmLossName = "logistic"
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
        check_positive(self, "epochs", "batch", "step_size", "score_bound")
        check_positive(self, "strength", "noise_std", zero=True)

    @property
    def schedule(self) -> tuple[int, int, float]:
        """Epochs, rows of a batch and the first step size; fewer and smaller ones under noise."""
        epochs, batch, size = (2, 2048, 0.05) if self.noise == "row" else (20, 128, 0.5)
        return self.epochs or epochs, self.batch or batch, self.step_size or size

    def sgd_noise(self, budget: Budget | None, row_norm: float) -> FdmlNoise:
        """The noise that spends `budget` on all epochs of a party whose rows have this norm."""
        if self.noise != "row":
            return FdmlNoise(kind=self.noise, std=self.noise_std, score_bound=self.score_bound)
        if budget is None:
            raise InputError("Row noise needs a budget.")
        return FdmlNoise(
            kind="row",
            epochs=self.schedule[0],
            ratio=calibrated_ratio(budget, 0.5),
            row_norm=row_norm,
            score_bound=self.score_bound,
        )


class FdmlParty(Party):
    """A party's coefficients and its two answers, scores and steps.

    Guarantee: docs/proofs/fdml.md: each row is scored, and enters a gradient, once per epoch.
    """

    kinds = ("fdml-scores", "fdml-step")

    def __init__(
        self,
        name: str,
        matrix: Any,
        *,
        strength: float,
        noise: FdmlNoise | None = None,
        releaser: Releaser | None = None,
        start: Vector | None = None,
    ) -> None:
        self.noise = noise or FdmlNoise()
        private = self.noise.kind == "row"
        self.matrix = bounded_rows(matrix, self.noise.row_norm) if private else matrix
        self.strength = strength
        rows, columns = (int(n) for n in self.matrix.shape)
        self.x: Vector = np.zeros(columns) if start is None else np.array(start, dtype=np.float64)
        super().__init__(name, rows=rows)
        self._releaser = releaser
        if self.noise.kind == "as-written" and releaser is None:
            raise InputError("As-written noise needs a releaser, which draws it.")
        # All that leaves under row noise; both are paid for before the first batch.
        self._paid_scores: PaidRows | None = None
        self._paid_steps: PaidRows | None = None
        if private:
            self._paid_scores = self._open("scores", self.noise.score_bound, releaser)
            self._paid_steps = self._open("gradients", self.noise.row_norm, releaser)

    def _open(self, what: str, bound: float, releaser: Releaser | None) -> PaidRows:
        """Releases that one replaced row moves by at most 2·bound, each row once per epoch."""
        if releaser is None:
            raise InputError("Row noise needs a releaser with a ledger to charge.")
        if not (self.noise.ratio > 0 and self.noise.epochs > 0):
            raise InputError("Row noise needs a ratio > 0 and epochs > 0.")
        return PaidRows(
            releaser,
            rows=self.rows,
            sensitivity=Sensitivity(replace=2 * bound, withhold=bound),
            noise_std=2 * bound * math.sqrt(2 * self.noise.epochs) / self.noise.ratio,
            count=self.noise.epochs,
            what=f"{what} of {self.name}, each row once per epoch",
        )

    def answer(self, request: Message) -> Message:
        """The scores of a batch, or a step on it."""
        self.admit(request)
        if request.kind == "fdml-scores":
            return self._scores(request)
        return self._step(request)

    def _exact_scores(self, rows: Integers) -> Vector:
        return np.asarray(block(self.matrix, rows) @ self.x, dtype=np.float64)

    def _clipped_scores(self, rows: Integers) -> Vector:
        return np.clip(self._exact_scores(rows), -self.noise.score_bound, self.noise.score_bound)

    def _scores(self, request: Message) -> Message:
        rows = batch_of(request.arrays.get("rows"), self.rows)
        if self._paid_scores is not None:
            scores = self._paid_scores.release(rows, self._clipped_scores)
        else:
            scores = self._exact_scores(rows)
        if self.noise.kind == "as-written":
            assert self._releaser is not None
            scores = scores + self.noise.std * self._releaser.unpaid_normal(len(scores))
        return request.reply(arrays={"scores": scores})

    def _exact_gradient(self, slopes: Vector, rows: Integers) -> Vector:
        return np.asarray(block(self.matrix, rows).T @ slopes, dtype=np.float64)

    def _step(self, request: Message) -> Message:
        rows = batch_of(request.arrays.get("rows"), self.rows)
        slopes = number_array(request.arrays.get("slopes"), rows.shape, "slopes")
        step_size = one_number(request.values.get("step_size"), "step_size", most=MOST_STEP)
        if self._paid_steps is not None:
            clipped = np.clip(slopes, -1.0, 1.0)
            gradient = self._paid_steps.release(rows, partial(self._exact_gradient, clipped))
        else:
            gradient = self._exact_gradient(slopes, rows)
        gradient = gradient / max(len(rows), 1) + self.strength / self.rows * self.x
        # However often it is told to overshoot, no score may overflow: by which rows do, an error
        # would tell tables apart. Post-processing of the noisy gradients.
        self.x = np.clip(self.x - step_size * gradient, -MOST, MOST)
        return request.reply()

    def training_scores(self) -> Vector:
        """Exact scores of its own rows: for the simulation, not covered by any guarantee."""
        return np.asarray(self.matrix @ self.x)

    def penalty(self) -> float:
        """λ/2·‖x‖², exact: for the simulation's objective, not covered by any guarantee."""
        return 0.5 * self.strength * float(self.x @ self.x)


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
    loss = admm_loss(config.loss)
    epochs, batch, first_step = config.schedule
    run, draw = secrets.token_hex(8), np.random.default_rng(config.shuffle_seed)
    history: list[dict[str, float]] = []
    number = 0
    for epoch in range(1, epochs + 1):
        tell("epochs with all parties", epoch / epochs)
        order = draw.permutation(len(targets))
        step_size = first_step / math.sqrt(epoch)
        for start in range(0, len(order), batch):
            rows = order[start : start + batch]
            number += 1
            ask = Message(kind="fdml-scores", run=run, round=number, arrays={"rows": rows})
            scores = checked_numbers(channel, ask, channel.exchange(ask), "scores", rows.shape)
            total = np.sum(list(scores.values()), axis=0)
            step = Message(
                kind="fdml-step",
                run=run,
                round=number,
                arrays={"rows": rows, "slopes": loss.slope(total, targets[rows])},
                values={"step_size": step_size},
            )
            checked_replies(channel, step, channel.exchange(step))
        history.append({"epoch": float(epoch), **(watch(epoch) if watch else {})})
    return history
