"""Mistakes about sampling: something released shows who took part, and amplification is claimed.

The canary's contributions are ±C of clip norm C = 1 in every step. An observer who knows in which steps
it took part faces plain Gaussians in these; one who does not faces mixtures in all of them.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from halfmask.accounting.calibrate import noise_multiplier
from halfmask.accounting.events import PoissonGaussianEvent
from halfmask.audit.distinguish import Game
from halfmask.audit.games import ScoreGame
from halfmask.mechanisms.noise import NoiseSource, add_gaussian, noise_source
from halfmask.mechanisms.sampling import poisson_rows, uniform_rows

Floats = NDArray[np.float64]

_RATE, _STEPS = 1 / 16, 8
_ROWS = 16
_RUNS = 4_000


def _calibrated(
    epsilon: float, delta: float, *, rate: float = _RATE, steps: int = _STEPS
) -> PoissonGaussianEvent:
    noise = noise_multiplier(
        epsilon=epsilon, delta=delta, rate=rate, steps=steps, relation="replace"
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


def _took_part(event: PoissonGaussianEvent, source: NoiseSource) -> NDArray[np.bool_]:
    took_part: NDArray[np.bool_] = source.uniform(event.steps) <= event.rate
    return took_part


def shared_batch(epsilon: float, delta: float, *, corrected: bool) -> Game:
    """Row 0 alone has a public feature, so a public gradient shows whether row 0 is in its batch."""
    event = _calibrated(epsilon, delta)
    std = event.noise_multiplier

    def run(second: bool) -> float:
        source, public = noise_source(), np.random.default_rng()
        score = 0.0
        for _ in range(event.steps):
            private_batch = poisson_rows(_ROWS, event.rate, source)
            own = float(np.any(private_batch == 0)) * (1.0 if second else -1.0)
            seen = add_gaussian(np.array([own]), std, source)
            public_batch = uniform_rows(_ROWS, 1, public) if corrected else private_batch
            shown = np.array([bool(np.any(public_batch == 0))])
            score += _unknown(seen, event.rate, std) if corrected else _known(seen, shown, 2.0, std)
        return score

    return ScoreGame(
        mechanism=_named("shared-batch", corrected),
        relation="replace",
        accounted="replace",
        delta=delta,
        events=(event,),
        runs=_RUNS,
        run=run,
    )


def lipschitz(epsilon: float, delta: float, *, corrected: bool) -> Game:
    """Contributions (G, ±L_f/2) with a common part G far above the noise.

    The paper accounts σ/L_f as a noise multiplier. The twin clips the whole contribution to C = 1
    and accounts σ/C, so that the common part is the same as the rest.
    """
    steps = _STEPS
    relation = "replace" if corrected else "withhold"
    noise = noise_multiplier(
        epsilon=epsilon,
        delta=delta,
        rate=_RATE,
        steps=steps,
        relation="replace" if corrected else "withhold",
    )
    event = PoissonGaussianEvent(noise_multiplier=noise, rate=_RATE, steps=steps)
    common = 20 * noise
    contribution = np.array([common, 0.5])
    if corrected:
        contribution = contribution / np.linalg.norm(contribution)
    opposite = contribution * np.array([1.0, -1.0])

    def run(second: bool) -> float:
        source = noise_source()
        took_part = _took_part(event, source)
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
        delta=delta,
        events=(event,),
        runs=_RUNS,
        run=run,
    )


def embeddings(epsilon: float, delta: float, *, corrected: bool) -> Game:
    """A noisy embedding a row of the batch, with the row's place in it; the twin claims rate 1."""
    event = _calibrated(epsilon, delta)
    std = event.noise_multiplier
    claim = event
    if corrected:
        claim = PoissonGaussianEvent(noise_multiplier=std, rate=1.0, steps=event.steps)

    def run(second: bool) -> float:
        source = noise_source()
        score = 0.0
        for _ in range(event.steps):
            batch = poisson_rows(_ROWS, event.rate, source)
            embedded = np.where(batch == 0, 1.0 if second else -1.0, 0.0)
            sent = add_gaussian(embedded, std, source)
            score += _known(sent, batch == 0, 2.0, std)
        return score

    return ScoreGame(
        mechanism=_named("embeddings", corrected),
        relation="replace",
        accounted="replace",
        delta=delta,
        events=(claim,),
        runs=_RUNS,
        run=run,
    )


def batch_size(epsilon: float, delta: float, *, corrected: bool) -> Game:
    """All other rows contribute +1; with the size known, a canary of -1 is a shift by -2.

    Without it the sum of the others is as uncertain as the batch; the observer then does what an
    observer can who is told that the others contribute nothing.
    """
    event = _calibrated(epsilon, delta, steps=4)
    std = event.noise_multiplier

    def run(second: bool) -> float:
        source = noise_source()
        score = 0.0
        for _ in range(event.steps):
            batch = poisson_rows(_ROWS, event.rate, source)
            present = bool(np.any(batch == 0))
            others = 0.0 if corrected else float(len(batch) - present)
            own = present * (-1.0 if second else 1.0)
            seen = add_gaussian(np.array([others + own]), std, source)
            if corrected:
                score -= _unknown(seen, event.rate, std)
            else:
                score += float(_mixture(seen - len(batch), -2.0, event.rate, std).sum())
        return score

    return ScoreGame(
        mechanism=_named("batch-size", corrected),
        relation="replace",
        accounted="replace",
        delta=delta,
        events=(event,),
        runs=4 * _RUNS,
        run=run,
    )


def _named(name: str, corrected: bool) -> str:
    return f"{'corrected' if corrected else 'refuted'}-{name}"
