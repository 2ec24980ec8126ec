"""Mistakes about sampling: something released shows who took part, and amplification is claimed.

The canary's contributions are ±C of clip norm C = 1 in every step. An observer who knows in which
steps it took part faces plain Gaussians in these; one who does not faces mixtures in all of them.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from halfmask.accounting.budget import Budget
from halfmask.accounting.calibrate import noise_multiplier
from halfmask.accounting.events import PoissonGaussianEvent
from halfmask.audit.distinguish import Game
from halfmask.audit.games import ScoreGame
from halfmask.mechanisms.noise import NoiseSource, add_gaussian, noise_source

Floats = NDArray[np.float64]

_RATE, _STEPS = 1 / 16, 8
_ROWS = 16
_RUNS = 8_000


def _calibrated(claim: Budget, *, rate: float = _RATE, steps: int = _STEPS) -> PoissonGaussianEvent:
    noise = noise_multiplier(
        Budget(epsilon=claim.epsilon, delta=claim.delta), rate=rate, steps=steps
    )
    return PoissonGaussianEvent(noise_multiplier=noise, rate=rate, steps=steps)


def _known(seen: Floats, took_part: NDArray[np.bool_], shift: float, std: float) -> float:
    """Log-likelihood ratio of +shift/2 against -shift/2 in the steps the canary took part in."""
    return float(seen[took_part].sum()) * shift / std**2


def _mixture(seen: Floats, mean: float, rate: float, std: float) -> Floats:
    tilt = (seen * mean - mean**2 / 2) / std**2
    mixed: Floats = np.logaddexp(math.log1p(-rate), math.log(rate) + tilt)
    return mixed


def _unknown(seen: Floats, rate: float, std: float) -> float:
    """Log-likelihood ratio of contributions +1 and -1 where nobody knows who took part."""
    difference = _mixture(seen, 1.0, rate, std) - _mixture(seen, -1.0, rate, std)
    return float(difference.sum())


def _batches(event: PoissonGaussianEvent, rows: int, source: NoiseSource) -> NDArray[np.bool_]:
    """Steps x rows: who takes part, each with the event's rate."""
    coins = source.uniform(event.steps * rows).reshape(event.steps, rows)
    took_part: NDArray[np.bool_] = coins <= event.rate
    return took_part


def shared_batch(claim: Budget, *, corrected: bool) -> Game:
    """Row 0 alone has a public feature, so a public gradient shows whether it is in its batch."""
    event = _calibrated(claim)
    std = event.noise_multiplier

    def run(second: bool) -> float:
        source = noise_source()
        private = _batches(event, _ROWS, source)
        own = np.where(private[:, 0], 1.0 if second else -1.0, 0.0)
        seen = add_gaussian(own, std, source)
        public = _batches(event, _ROWS, source) if corrected else private
        if corrected:
            # A batch drawn on its own says nothing about the other one.
            return _unknown(seen, event.rate, std)
        return _known(seen, public[:, 0], 2.0, std)

    return ScoreGame(
        mechanism=_named("shared-batch", corrected),
        relation="replace",
        accounted="replace",
        delta=claim.delta,
        events=(event,),
        runs=_RUNS,
        run=run,
    )


def lipschitz(claim: Budget, *, corrected: bool) -> Game:
    """Contributions (G, ±L_f/2) with a common part G far above the noise.

    The paper accounts σ/L_f as a noise multiplier. The twin clips the whole contribution to C = 1
    and accounts σ/C, so that the common part is the same as the rest.
    """
    steps = _STEPS
    relation = "replace" if corrected else "withhold"
    noise = noise_multiplier(
        Budget(
            epsilon=claim.epsilon,
            delta=claim.delta,
            relation="replace" if corrected else "withhold",
        ),
        rate=_RATE,
        steps=steps,
    )
    event = PoissonGaussianEvent(noise_multiplier=noise, rate=_RATE, steps=steps)
    common = 20 * noise
    contribution = np.array([common, 0.5])
    if corrected:
        contribution = contribution / np.linalg.norm(contribution)
    opposite = contribution * np.array([1.0, -1.0])

    def run(second: bool) -> float:
        source = noise_source()
        took_part = _batches(event, 1, source)[:, 0]
        value = took_part[:, None] * (contribution if second else opposite)
        seen = add_gaussian(value, noise, source)
        if not corrected:
            shown = seen[:, 0] > common / 2
            return _known(seen[:, 1], shown, 1.0, noise)
        score = 0.0
        for mean, sign in ((contribution, 1), (opposite, -1)):
            tilt = (seen @ mean - 0.5) / noise**2
            mixed = np.logaddexp(math.log1p(-event.rate), math.log(event.rate) + tilt)
            score += sign * float(mixed.sum())
        return score

    return ScoreGame(
        mechanism=_named("lipschitz", corrected),
        relation="replace",
        accounted="replace" if relation == "replace" else "withhold",
        delta=claim.delta,
        events=(event,),
        runs=_RUNS,
        run=run,
    )


def embeddings(claim: Budget, *, corrected: bool) -> Game:
    """A noisy embedding a row of the batch, with the row's place in it; the twin claims rate 1."""
    event = _calibrated(claim)
    std = event.noise_multiplier
    charged = event
    if corrected:
        charged = PoissonGaussianEvent(noise_multiplier=std, rate=1.0, steps=event.steps)

    def run(second: bool) -> float:
        source = noise_source()
        batches = _batches(event, _ROWS, source)
        embedded = np.zeros((event.steps, _ROWS))
        embedded[:, 0] = 1.0 if second else -1.0
        sent = add_gaussian(embedded, std, source)
        return _known(sent[:, 0], batches[:, 0], 2.0, std)

    return ScoreGame(
        mechanism=_named("embeddings", corrected),
        relation="replace",
        accounted="replace",
        delta=claim.delta,
        events=(charged,),
        runs=_RUNS,
        run=run,
    )


def batch_size(claim: Budget, *, corrected: bool) -> Game:
    """All other rows contribute +1; with the size known, a canary of -1 is a shift by -2.

    Without it the sum of the others is as uncertain as the batch; the observer then does what an
    observer can who is told that the others contribute nothing.
    """
    event = _calibrated(claim, rate=0.01, steps=40)
    std = event.noise_multiplier

    def run(second: bool) -> float:
        source = noise_source()
        batches = _batches(event, 2 * _ROWS, source)
        own = np.where(batches[:, 0], -1.0 if second else 1.0, 0.0)
        if corrected:
            return -_unknown(add_gaussian(own, std, source), event.rate, std)
        size = batches.sum(axis=1)
        seen = add_gaussian(batches[:, 1:].sum(axis=1) + own, std, source)
        return float(_mixture(seen - size, -2.0, event.rate, std).sum())

    return ScoreGame(
        mechanism=_named("batch-size", corrected),
        relation="replace",
        accounted="replace",
        delta=claim.delta,
        events=(event,),
        runs=4 * _RUNS,
        run=run,
    )


def _named(name: str, corrected: bool) -> str:
    return f"{'corrected' if corrected else 'refuted'}-{name}"
