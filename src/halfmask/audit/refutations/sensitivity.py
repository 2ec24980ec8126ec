"""Mistakes about how far one row moves a sum: the noise is too small for it."""

from __future__ import annotations

import math

import numpy as np

from halfmask.accounting.budget import Budget
from halfmask.accounting.calibrate import noise_multiplier
from halfmask.accounting.events import GaussianEvent, PoissonGaussianEvent
from halfmask.accounting.gaussian import gaussian_mu
from halfmask.accounting.ledger import MemoryLedger
from halfmask.accounting.relations import Relation
from halfmask.audit.distinguish import Game
from halfmask.audit.games import Canary, ScoreGame, enough_runs
from halfmask.mechanisms.noise import noise_source
from halfmask.mechanisms.release import Releaser, Sensitivity


def _opposite_steps(
    name: str, event: PoissonGaussianEvent, delta: float, accounted: Relation, runs: int
) -> Game:
    """One full-batch step of the package; the canary contributes +C or -C."""

    def run(second: bool) -> float:
        ledger = MemoryLedger(epsilon=1e6, delta=delta, relation="replace")
        step = Releaser(ledger, noise_source()).poisson_steps(
            rows=1,
            rate=event.rate,
            clip_norm=1.0,
            noise_multiplier=event.noise_multiplier,
            steps=1,
            contribution=event.contribution,
            what="gradient canaries",
        )
        return float(step.release(Canary(value=np.array([1.0 if second else -1.0])))[0])

    return ScoreGame(
        mechanism=name,
        relation="replace",
        accounted=accounted,
        delta=delta,
        events=(event,),
        runs=runs,
        run=run,
    )


def add_remove(claim: Budget, *, corrected: bool) -> Game:
    """Noise for a withheld row, said to protect a replaced one; the twin accounts replacement."""
    accounted: Relation = "replace" if corrected else "withhold"
    noise = noise_multiplier(
        Budget(epsilon=claim.epsilon, delta=claim.delta, relation=accounted), rate=1.0, steps=1
    )
    event = PoissonGaussianEvent(noise_multiplier=noise, rate=1.0, steps=1)
    name = f"{'corrected' if corrected else 'refuted'}-add-remove"
    return _opposite_steps(
        name, event, claim.delta, accounted, enough_runs(claim.epsilon, least=10_000, most=24_000)
    )


def label_binary(claim: Budget, *, corrected: bool) -> Game:
    """Contributions ±x/2 of one weight vector, accounted as if they were orthogonal."""
    contribution = "general" if corrected else "label"
    noise = noise_multiplier(
        Budget(epsilon=claim.epsilon, delta=claim.delta),
        rate=1.0,
        steps=1,
        contribution="general" if corrected else "label",
    )
    event = PoissonGaussianEvent(
        noise_multiplier=noise,
        rate=1.0,
        steps=1,
        contribution="general" if contribution == "general" else "label",
    )
    name = f"{'corrected' if corrected else 'refuted'}-label-binary"
    return _opposite_steps(
        name, event, claim.delta, "replace", enough_runs(claim.epsilon, least=24_000, most=80_000)
    )


def learnt_bounds(claim: Budget, *, corrected: bool) -> Game:
    """A noisy sum of a private column scaled to [-1, 1] by its own least and largest value.

    A hundred others have the value 1; the canary has 1 or a million. With declared bounds [0, 1]
    the million is clamped, and the sum moves by what one row may move it.
    """
    mu = gaussian_mu(claim.epsilon, claim.delta)
    others = np.concatenate([[0.0], np.ones(99)])

    def run(second: bool) -> float:
        column = np.append(others, 1e6 if second else 0.0)
        low, high = (0.0, 1.0) if corrected else (column.min(), column.max())
        scaled = 2 * (np.clip(column, low, high) - low) / (high - low) - 1
        ledger = MemoryLedger(epsilon=1.01 * claim.epsilon, delta=claim.delta, relation="replace")
        released = Releaser(ledger, noise_source()).gaussian(
            np.array([scaled.sum()]),
            sensitivity=Sensitivity.of_clipped_sum(1.0),
            noise_std=2.0 / mu,
            what="sum of a scaled column",
        )
        middle = (float(np.sum(2 * others - 1))) if corrected else 0.0
        sign = 1.0 if corrected else -1.0
        return sign * (float(released[0]) - middle)

    return ScoreGame(
        mechanism=f"{'corrected' if corrected else 'refuted'}-learnt-bounds",
        relation="replace",
        accounted="replace",
        delta=claim.delta,
        events=(GaussianEvent(replace=mu, withhold=mu / math.sqrt(2)),),
        runs=4_000,
        run=run,
    )
