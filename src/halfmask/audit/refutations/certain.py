"""Mistakes that leave no doubt at all: one look tells the two inputs apart."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from halfmask.accounting.budget import Budget
from halfmask.accounting.events import GaussianEvent, RandomizedResponseEvent
from halfmask.accounting.gaussian import gaussian_mu
from halfmask.accounting.ledger import MemoryLedger
from halfmask.audit.distinguish import Game
from halfmask.audit.games import ScoreGame, fit_game
from halfmask.errors import InputError
from halfmask.mechanisms.noise import UnsafeSeededNoise, add_gaussian, noise_source
from halfmask.mechanisms.release import Releaser, Sensitivity
from halfmask.vertical.channel import Message

_RUNS = 4_000


def _named(name: str, corrected: bool) -> str:
    return f"{'corrected' if corrected else 'refuted'}-{name}"


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
    from halfmask.audit.mechanisms_vertical import one_share
    from halfmask.vertical.admm_party import AdmmParty, ShareNoise

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
            releaser=Releaser(
                MemoryLedger(epsilon=claim.epsilon, delta=claim.delta), noise_source()
            ),
        )
        share = party.share(residual=-target, dual=np.zeros(2), rho=1.0, divisor=1)
        return float(abs(share[0] - share[1]) - abs(share[0] + share[1]))

    return ScoreGame(
        mechanism=_named("column-space-noise", False),
        relation="replace",
        accounted="replace",
        delta=claim.delta,
        events=(GaussianEvent(replace=mu, withhold=mu),),
        runs=_RUNS,
        run=run,
    )


def dual_labels(claim: Budget, *, corrected: bool) -> Game:
    """ADMM rounds without noise; the observer is a party and reads its own messages.

    The twin randomises the labels before the first round.
    """
    from halfmask.vertical.admm import AdmmConfig, run_admm
    from halfmask.vertical.labels import hide_labels

    def run(second: bool) -> float:
        labels = np.array([1.0 if second else 0.0, 1.0, 0.0])
        targets = 2 * labels - 1
        if corrected:
            ledger = MemoryLedger(epsilon=claim.epsilon, delta=claim.delta, relation="replace")
            door = Releaser(ledger, noise_source())
            targets = hide_labels(labels, epsilon=claim.epsilon, releaser=door).signed
        party = _Listener(np.array([[1.0], [0.5], [-0.5]]))
        run_admm(party, targets, AdmmConfig(loss="squared", rounds=2))
        # The first dual of the squared loss falls as the label rises.
        return -float(party.duals[0][0]) if len(party.duals) else 0.0

    return ScoreGame(
        mechanism=_named("dual-labels", corrected),
        relation="replace",
        accounted="replace",
        delta=claim.delta,
        events=(RandomizedResponseEvent(epsilon=claim.epsilon, categories=2),),
        runs=_RUNS,
        run=run,
    )


class _Listener:
    """A channel with one party, which keeps every dual that is broadcast to it."""

    parties = ("listener",)

    def __init__(self, block: np.ndarray) -> None:
        from halfmask.vertical.admm_party import AdmmParty
        from halfmask.vertical.party import admm_party

        self._party = admm_party("listener", AdmmParty(block, strength=0.1))
        self.duals: list[np.ndarray] = []

    def exchange(self, requests: Mapping[str, Message]) -> Mapping[str, Message]:
        """Answer as the party does, and remember the dual."""
        self.duals += [np.array(request.arrays["dual"]) for request in requests.values()]
        return {name: self._party.answer(request) for name, request in requests.items()}


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

    return ScoreGame(
        mechanism=_named("one-byte-seed", corrected),
        relation="replace",
        accounted="replace",
        delta=claim.delta,
        events=(GaussianEvent(replace=mu, withhold=mu / 2),),
        runs=_RUNS,
        run=run,
    )


def dropped_rows(claim: Budget, *, corrected: bool) -> Game:
    """A number with one missing cell; the twin encodes it with the package, which keeps the row."""
    from halfmask.schema import Column, Label, Schema
    from halfmask.table import Encoder

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
        import pyarrow as pa

        frames = [pa.table({"dose": pa.array(dose), "ill": label}) for dose in cells]
        tables = [Encoder.fit(schema, frame).encode(frame) for frame in frames]
        counts = {table.n for table in tables}
        assert len(counts) == 1, "the number of rows depends on a private cell"
        sums = tables[0].private.sum(axis=0), tables[1].private.sum(axis=0)
        return fit_game(_named("dropped-rows", True), claim, sums, released_sum, runs=_RUNS)

    def run(second: bool) -> float:
        kept = [dose for dose in cells[second] if dose is not None]
        ledger = MemoryLedger(epsilon=1.01 * claim.epsilon, delta=claim.delta, relation="replace")
        released_sum(np.array([sum(kept)]), Releaser(ledger, noise_source()))
        return 0.5 * len(label) - len(kept) + 1.0  # the number of rows is printed as public

    return ScoreGame(
        mechanism=_named("dropped-rows", False),
        relation="replace",
        accounted="replace",
        delta=claim.delta,
        events=(GaussianEvent(replace=mu, withhold=mu / 2),),
        runs=_RUNS,
        run=run,
    )
