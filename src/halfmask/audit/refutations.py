"""Unsound mechanisms, kept runnable so that the audit can be seen to catch them, with their cures.

Each name stands for two games: the mistake with the epsilon that is claimed for it, and its
corrected twin with the epsilon that is true. Nothing here is used by anything that trains.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from halfmask.accounting.budget import Budget
from halfmask.accounting.calibrate import noise_multiplier
from halfmask.accounting.events import (
    Contribution,
    Event,
    GaussianEvent,
    PoissonGaussianEvent,
    RandomisedResponseEvent,
    Relation,
)
from halfmask.accounting.gaussian import gaussian_mu
from halfmask.accounting.ledger import MemoryLedger
from halfmask.audit.distinguish import Game
from halfmask.audit.games import FitGame, ScoreGame, canary_steps, enough_runs
from halfmask.audit.mechanisms_vertical import one_share
from halfmask.errors import InputError
from halfmask.mechanisms.noise import NoiseSource, UnsafeSeededNoise, add_gaussian, noise_source
from halfmask.mechanisms.release import Releaser, Sensitivity
from halfmask.schema import Column, Label, Schema
from halfmask.table import Encoder
from halfmask.types import Floats
from halfmask.vertical.admm import AdmmConfig, run_admm
from halfmask.vertical.admm_party import AdmmParty, ShareNoise
from halfmask.vertical.channel import Message
from halfmask.vertical.party import hide_labels

# --- Mistakes that leave no doubt at all: one look tells the two inputs apart.


_CERTAIN_RUNS = 4_000


def _named(name: str, corrected: bool) -> str:
    return f"{'corrected' if corrected else 'refuted'}-{name}"


def _game(
    name: str,
    corrected: bool,
    claim: Budget,
    event: Event,
    run: Callable[[bool], float],
    *,
    runs: int = _CERTAIN_RUNS,
    accounted: Relation = "replace",
) -> Game:
    """What all games here share: one row is replaced, and `event` is charged for it."""
    return ScoreGame(
        mechanism=_named(name, corrected),
        relation="replace",
        accounted=accounted,
        delta=claim.delta,
        events=(event,),
        runs=runs,
        run=run,
    )


def lemma_1(
    *, columns: int, rho: float, strength: float, curvature: float, parties: int, norm_bound: float
) -> float:
    """A's claimed sensitivity 3/(d_m ρ)·[λc₁ + (1 + Mρ)b₁]. False: unit rows do not make DᵀD = d_m
    I.
    """
    return 3 / (columns * rho) * (strength * curvature + (1 + parties * rho) * norm_bound)


def theorem_1_noise(*, epsilon: float, delta: float, sensitivity: float) -> float:
    """A's noise std for one round, √(2 ln(1.25/δ))·C/ε, for ε in (0, 1]."""
    if not 0 < epsilon <= 1:
        raise InputError(f"Theorem 1 holds for epsilon in (0, 1], got {epsilon}.")
    return math.sqrt(2 * math.log(1.25 / delta)) * sensitivity / epsilon


def column_space_noise(claim: Budget, *, corrected: bool) -> Game:
    """One share of one party with one column; two rows, so that the column space is a line."""
    blocks = np.array([[1.0], [1.0]]), np.array([[1.0], [-1.0]])
    target = np.array([1.0, 0.5])
    if corrected:
        return one_share(_named("column-space-noise", True), *blocks, target, claim)
    bound = lemma_1(
        columns=1, rho=1.0, strength=1.0, curvature=1.0, parties=2, norm_bound=math.sqrt(2)
    )
    # Theorem 1 of A is stated for epsilon up to 1; for more, its noise is larger than needed.
    std = theorem_1_noise(epsilon=min(claim.epsilon, 1.0), delta=claim.delta, sensitivity=bound)
    mu = gaussian_mu(claim.epsilon, claim.delta)

    def run(second: bool) -> float:
        party = AdmmParty(
            blocks[second],
            strength=1.0,
            noise=ShareNoise(kind="as-written", std=std),
            releaser=Releaser(MemoryLedger.of(claim), noise_source()),
        )
        share = party.share(residual=-target, dual=np.zeros(2), rho=1.0, divisor=1)
        return float(abs(share[0] - share[1]) - abs(share[0] + share[1]))

    return _game("column-space-noise", False, claim, GaussianEvent(replace=mu, withhold=mu), run)


def dual_labels(claim: Budget, *, corrected: bool) -> Game:
    """ADMM rounds without noise; the observer is a party and reads its own messages.

    The twin randomises the labels before the first round.
    """

    def run(second: bool) -> float:
        labels = np.array([1.0 if second else 0.0, 1.0, 0.0])
        targets = 2 * labels - 1
        if corrected:
            releaser = Releaser(MemoryLedger.of(claim), noise_source())
            targets = hide_labels(labels, epsilon=claim.epsilon, releaser=releaser).signed
        party = _Listener(np.array([[1.0], [0.5], [-0.5]]))
        run_admm(party, targets, AdmmConfig(loss="squared", rounds=2))
        # The first dual of the squared loss falls as the label rises.
        return -float(party.duals[0][0]) if len(party.duals) else 0.0

    event = RandomisedResponseEvent(epsilon=claim.epsilon, categories=2)
    return _game("dual-labels", corrected, claim, event, run)


class _Listener:
    """A channel with one party, which keeps every dual that is broadcast to it."""

    parties = ("listener",)

    def __init__(self, block: np.ndarray) -> None:
        self._party = AdmmParty(block, strength=0.1, name="listener")
        self.duals: list[np.ndarray] = []

    def exchange(self, request: Message) -> Mapping[str, Message]:
        """Answer as the party does, and remember the dual."""
        self.duals.append(np.array(request.arrays["dual"]))
        return {"listener": self._party.answer(request)}


def one_byte_seed(claim: Budget, *, corrected: bool) -> Game:
    """A noisy sum with the package's own noise, seeded by a byte; the twin asks the system."""
    mu = claim.mu
    std = 2.0 / mu
    inputs = np.array([-1.0, 0.0, 0.0]), np.array([1.0, 0.0, 0.0])
    guesses = [
        np.array([add_gaussian(value, std, UnsafeSeededNoise(seed)) for seed in range(256)])
        for value in inputs
    ]

    def run(second: bool) -> float:
        byte = int(np.random.default_rng().integers(256))
        source = noise_source() if corrected else UnsafeSeededNoise(byte)
        seen = add_gaussian(inputs[second], std, source)
        if corrected:
            return float(seen[0])
        first, other = (np.abs(guess - seen).max(axis=1).min() for guess in guesses)
        return float(first - other)

    event = GaussianEvent(replace=mu, withhold=mu / 2)
    return _game("one-byte-seed", corrected, claim, event, run)


def dropped_rows(claim: Budget, *, corrected: bool) -> Game:
    """A number with one missing cell; the twin encodes it with the package, which keeps the row."""
    mu = claim.mu
    std = 2.0 / mu
    column = Column("dose", "private", "number", bounds=(0.0, 1.0), bins=2)
    schema = Schema(label=Label("ill", "public", classes=("no", "yes")), columns=(column,))
    label = ["no", "yes", "yes"]
    cells: tuple[list[float | None], ...] = ([0.5, 0.2, 0.9], [None, 0.2, 0.9])

    def released_sum(values: np.ndarray, releaser: Releaser) -> np.ndarray:
        return releaser.gaussian(
            values, sensitivity=Sensitivity.of_clipped_sum(1.0), noise_std=std, what="sums"
        )

    if corrected:
        frames = [pa.table({"dose": pa.array(dose), "ill": label}) for dose in cells]
        tables = [Encoder.fit(schema, frame).encode(frame) for frame in frames]
        counts = {table.n for table in tables}
        assert len(counts) == 1, "the number of rows depends on a private cell"
        sums = tables[0].private.sum(axis=0), tables[1].private.sum(axis=0)
        return FitGame(_named("dropped-rows", True), claim, sums, released_sum, runs=_CERTAIN_RUNS)

    def run(second: bool) -> float:
        kept = [dose for dose in cells[second] if dose is not None]
        released_sum(np.array([sum(kept)]), _roomy(claim))
        return 0.5 * len(label) - len(kept) + 1.0  # the number of rows is printed as public

    return _game("dropped-rows", False, claim, GaussianEvent(replace=mu, withhold=mu / 2), run)


def _roomy(claim: Budget) -> Releaser:
    """For one release that spends the claim to its last digit."""
    roomy = replace(claim, epsilon=1.01 * claim.epsilon)
    return Releaser(MemoryLedger.of(roomy), noise_source())


_RATE, _STEPS = 1 / 16, 8
# --- Mistakes about sampling: something released shows who took part, and amplification is claimed.
# The canary's contributions are ±C of clip norm C = 1 in every step. An observer who knows in which
# steps it took part faces plain Gaussians in these; one who does not faces mixtures in all of them.


_ROWS = 16
_RUNS = 8_000


def _calibrated(claim: Budget, *, rate: float = _RATE, steps: int = _STEPS) -> PoissonGaussianEvent:
    noise = noise_multiplier(claim, rate=rate, steps=steps)
    return PoissonGaussianEvent(noise_multiplier=noise, rate=rate, steps=steps)


def _known(seen: Floats, took_part: NDArray[np.bool_], shift: float, std: float) -> float:
    """Log-likelihood ratio of +shift/2 against -shift/2 in the steps the canary took part in."""
    return float(seen[took_part].sum()) * shift / std**2


def _mixture(seen: Floats, mean: float, rate: float, std: float) -> Floats:
    tilt = (seen * mean - mean**2 / 2) / std**2
    return np.logaddexp(math.log1p(-rate), math.log(rate) + tilt)


def _unknown(seen: Floats, rate: float, std: float) -> float:
    """Log-likelihood ratio of contributions +1 and -1 where nobody knows who took part."""
    difference = _mixture(seen, 1.0, rate, std) - _mixture(seen, -1.0, rate, std)
    return float(difference.sum())


def _batches(event: PoissonGaussianEvent, rows: int, source: NoiseSource) -> NDArray[np.bool_]:
    """Steps x rows: who takes part, each with the event's rate."""
    coins = source.uniform(event.steps * rows).reshape(event.steps, rows)
    return coins <= event.rate


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

    return _game("shared-batch", corrected, claim, event, run, runs=_RUNS)


def lipschitz(claim: Budget, *, corrected: bool) -> Game:
    """Contributions (G, ±L_f/2) with a common part G far above the noise.

    The paper accounts σ/L_f as a noise multiplier. The twin clips the whole contribution to C = 1
    and accounts σ/C, so that the common part is the same as the rest.
    """
    accounted: Relation = "replace" if corrected else "withhold"
    event = _calibrated(replace(claim, relation=accounted))
    noise = event.noise_multiplier
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
            took_part = seen[:, 0] > common / 2
            return _known(seen[:, 1], took_part, 1.0, noise)
        # Along a contribution of norm 1.
        ours, other = (
            _mixture(seen @ mean, 1.0, event.rate, noise).sum() for mean in (contribution, opposite)
        )
        return float(ours - other)

    return _game("lipschitz", corrected, claim, event, run, runs=_RUNS, accounted=accounted)


def embeddings(claim: Budget, *, corrected: bool) -> Game:
    """One noisy embedding per row of a batch, with the row's place; the twin claims rate 1."""
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

    return _game("embeddings", corrected, claim, charged, run, runs=_RUNS)


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

    return _game("batch-size", corrected, claim, event, run, runs=4 * _RUNS)


# --- Mistakes about how far one row moves a sum: the noise is too small for it.


def _opposite_steps(
    name: str,
    corrected: bool,
    claim: Budget,
    *,
    runs: tuple[int, int],
    accounted: Relation = "replace",
    contribution: Contribution = "general",
) -> Game:
    """One full-batch step of the package; the canary contributes +C or -C."""
    noise = noise_multiplier(
        replace(claim, relation=accounted), rate=1.0, steps=1, contribution=contribution
    )
    event = PoissonGaussianEvent(noise_multiplier=noise, rate=1.0, contribution=contribution)

    def run(second: bool) -> float:
        releaser = Releaser(MemoryLedger(epsilon=1e6, delta=claim.delta), noise_source())
        [released] = canary_steps(event, np.array([1.0 if second else -1.0]), releaser)
        return float(released[0])

    wanted = enough_runs(claim.epsilon, least=runs[0], most=runs[1])
    return _game(name, corrected, claim, event, run, runs=wanted, accounted=accounted)


def add_remove(claim: Budget, *, corrected: bool) -> Game:
    """Noise for a withheld row, said to protect a replaced one; the twin accounts replacement."""
    accounted: Relation = "replace" if corrected else "withhold"
    return _opposite_steps(
        "add-remove", corrected, claim, runs=(10_000, 24_000), accounted=accounted
    )


def label_binary(claim: Budget, *, corrected: bool) -> Game:
    """Contributions ±x/2 of one weight vector, accounted as if they were orthogonal."""
    contribution: Contribution = "general" if corrected else "label"
    return _opposite_steps(
        "label-binary", corrected, claim, runs=(24_000, 80_000), contribution=contribution
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
        released = _roomy(claim).gaussian(
            np.array([scaled.sum()]),
            sensitivity=Sensitivity.of_clipped_sum(1.0),
            noise_std=2.0 / mu,
            what="sum of a scaled column",
        )
        middle = (float(np.sum(2 * others - 1))) if corrected else 0.0
        sign = 1.0 if corrected else -1.0
        return sign * (float(released[0]) - middle)

    event = GaussianEvent(replace=mu, withhold=mu / math.sqrt(2))
    return _game("learnt-bounds", corrected, claim, event, run)


@dataclass(frozen=True)
class Refutation:
    """A mistake in one sentence; `make(claim, corrected=...)` is its game, or its twin's."""

    make: Callable[..., Game]
    mistake: str


REFUTATIONS: dict[str, Refutation] = {
    "shared-batch": Refutation(
        shared_batch,
        "the public gradient is taken on the private batch, which it reveals, and amplification by "
        "sampling is claimed all the same",
    ),
    "lipschitz": Refutation(
        lipschitz,
        "noise is scaled to the difference L_f of two private gradients, while what they have in "
        "common is larger and shows who took part (the proof of Theorem 2.1 of F)",
    ),
    "column-space-noise": Refutation(
        column_space_noise,
        "noise on the coefficients never leaves the column space of the private block (Eq. 8 of A)",
    ),
    "add-remove": Refutation(
        add_remove,
        "the epsilon of a withheld row is quoted for a replaced one: a factor of two is missing",
    ),
    "dual-labels": Refutation(
        dual_labels,
        "labels stay at the central node, but the dual it broadcasts has their signs (A)",
    ),
    "embeddings": Refutation(
        embeddings,
        "noisy embeddings are sent row by row, which shows the batch, and amplification is claimed",
    ),
    "one-byte-seed": Refutation(
        one_byte_seed, "the noise is drawn from a seed of one byte: 256 guesses undo it"
    ),
    "learnt-bounds": Refutation(
        learnt_bounds,
        "the bounds of a private column are learnt from the column and taken as known",
    ),
    "batch-size": Refutation(
        batch_size,
        "the realised size of the private batch is printed: the batch is then one without "
        "replacement",
    ),
    "label-binary": Refutation(
        label_binary,
        "the accounting of orthogonal label contributions is used for a single-vector binary head, "
        "whose two contributions are opposite",
    ),
    "dropped-rows": Refutation(
        dropped_rows,
        "rows with a missing private cell are dropped, and the number of rows counts as public",
    ),
}
