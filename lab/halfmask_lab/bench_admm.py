"""A round of ADMM against the prototype that A describes, and against the products it needs."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import numpy as np
from scipy.optimize import minimize, minimize_scalar

from halfmask.types import Vector
from halfmask.vertical.admm import AdmmConfig, AdmmState, run_admm
from halfmask.vertical.admm_party import AdmmParty
from halfmask.vertical.channel import LocalChannel
from halfmask_lab.loaders import load_a9a, load_gisette_rebuilt
from halfmask_lab.results import Progress, log_slope, ratio_row, silent


@dataclass
class Prototype:
    """The parties' blocks and the state of Algorithm 1, from zeros; one call of `round` each."""

    blocks: list[Any]
    targets: Vector
    rho: float
    strength: float
    tight: bool = False
    x: list[Vector] = field(init=False)
    shares: list[Vector] = field(init=False)
    z: Vector = field(init=False)
    dual: Vector = field(init=False)

    def __post_init__(self) -> None:
        rows = len(self.targets)
        self.x = [np.zeros(block.shape[1]) for block in self.blocks]
        self.shares = [np.zeros(rows) for _ in self.blocks]
        self.z, self.dual = np.zeros(rows), np.zeros(rows)

    def centre(self) -> None:
        """Equations (9) and (10): z by one scalar minimisation per row, then the dual."""
        total = np.sum(self.shares, axis=0)
        self.z = np.array(
            [
                self._one(float(s), float(y), float(t))
                for s, y, t in zip(total, self.dual, self.targets, strict=True)
            ]
        )
        self.dual = self.dual + self.rho * (total - self.z)

    def _one(self, share: float, dual: float, target: float) -> float:
        rho = self.rho

        def objective(z: float) -> float:
            margin = -target * z
            loss = max(margin, 0.0) + math.log1p(math.exp(-abs(margin)))
            return loss - dual * z + rho / 2 * (share - z) ** 2

        options = {"xtol": 1e-12} if self.tight else {}
        return float(minimize_scalar(objective, options=options).x)

    def parties(self) -> None:
        """Equation (7) for every party, against the others' shares of the round before."""
        total = np.sum(self.shares, axis=0)
        shares = []
        for index, block in enumerate(self.blocks):
            others = total - self.shares[index] - self.z

            def objective(
                x: Vector, block: Any = block, others: Vector = others
            ) -> tuple[float, Vector]:
                scores = block @ x
                gap = others + scores
                value = self.strength / 2 * (x @ x) + self.dual @ scores + self.rho / 2 * gap @ gap
                gradient = self.strength * x + block.T @ (self.dual + self.rho * gap)
                return float(value), gradient

            limits = {"ftol": 1e-16, "gtol": 1e-10, "maxiter": 100_000, "maxfun": 100_000}
            found = minimize(
                objective,
                self.x[index],
                jac=True,
                method="L-BFGS-B",
                options={**limits, "maxcor": 50} if self.tight else {},
            )
            self.x[index] = found.x
            shares.append(np.asarray(block @ found.x))
        self.shares = shares

    def round(self) -> None:
        """One round as the coordinator of this package counts them: z and dual, then shares."""
        self.centre()
        self.parties()


# --- One round of ADMM sharing against A's prototype, and how a round grows with rows and parties.
# Both take the same matrices and the same rounds of Algorithm 1. Our decomposition, made once per
# table, is reported beside the rounds (`setup_seconds`), not inside them. The prototype is measured
# at its default tolerances; at tight ones it must give the same iterates, which is checked on a
# smaller table because it takes minutes.


AGAINST = "A's prototype"
RHO, STRENGTH = 0.25, 1.0
# Beyond the caches from the smallest on: the step out of them is no growth of the algorithm.
SIZES = (100_000, 200_000, 400_000, 800_000, 1_600_000)
PARTIES = (2, 4, 8, 16, 32)
PARTY_ROWS = 160_000
COLUMNS, TURNS, LARGEST_ROUNDS = 20, 5, 3
TIGHT_ROWS = 2000


def run(tell: Progress = silent) -> dict[str, Any]:
    """Everything that `halfmask bench admm --json` prints."""
    ratios, setups = [], {}
    for place, (name, load, cuts, rounds) in enumerate(
        (
            ("a9a", load_a9a, (0, 66, 123), 3),
            ("gisette-rebuilt", load_gisette_rebuilt, (0, 2000, 4000, 5000), 1),
        )
    ):
        tell(0.05 + 0.4 * place, f"{name} against the prototype")
        split = load()
        blocks = [split.x_train[:, a:b] for a, b in pairwise(cuts)]
        blocks = [np.ascontiguousarray(b) if isinstance(b, np.ndarray) else b for b in blocks]
        row, setups[name] = _against_prototype(name, blocks, split.y_train.astype(float), rounds)
        ratios.append(row)
    tell(0.85, "equal iterates at tight tolerances")
    split = load_a9a()
    first = slice(0, TIGHT_ROWS)
    gap = tight_gap(
        [split.x_train[first, :66], split.x_train[first, 66:]],
        split.y_train[first].astype(float),
        rounds=3,
    )
    tell(0.9, "growth with rows and parties")
    by_rows = growth(SIZES, lambda rows: (rows, 4))
    by_parties = growth(PARTIES, lambda parties: (PARTY_ROWS, parties))
    large = _large_round()
    ratios.append(large)
    return {
        "name": "admm",
        "ratios": ratios,
        "setup_seconds": setups,
        "iterates_differ_by": gap,
        "iterates_compared_on": f"the first {TIGHT_ROWS} rows of a9a, 3 rounds",
        "growth": {
            "rows": by_rows["wall_exponent"],
            "parties": by_parties["wall_exponent"],
            "by_rows": by_rows,
            "by_parties": by_parties,
        },
    }


def _against_prototype(
    name: str, blocks: list[Any], targets: Vector, rounds: int
) -> tuple[dict[str, Any], float]:
    parties = {f"p{i}": AdmmParty(block, strength=STRENGTH) for i, block in enumerate(blocks)}
    channel = LocalChannel(parties)
    started = time.perf_counter()
    for side in parties.values():
        side.block.solve(np.zeros(len(targets)), kappa=1.0)
    setup = time.perf_counter() - started
    prototype = Prototype(blocks, targets, RHO, STRENGTH)
    ours: list[float] = []
    theirs: list[float] = []
    state = None
    for number in range(1, rounds + 1):
        started = time.perf_counter()
        config = AdmmConfig(rho=RHO, update="as-written", rounds=number)
        state = run_admm(channel, targets, config, state=state)
        ours.append(time.perf_counter() - started)
        started = time.perf_counter()
        prototype.round()
        theirs.append(time.perf_counter() - started)
    setting = f"{name}, one round, {len(blocks)} parties, default tolerances"
    each = np.array(ours) / np.array(theirs)
    row = {
        **ratio_row("halfmask", AGAINST, setting, ours, theirs),
        "low": float(each.min()),
        "high": float(each.max()),
        "seconds": float(np.median(ours)),
        "prototype_seconds": float(np.median(theirs)),
    }
    return row, setup


def tight_gap(blocks: list[Any], targets: Vector, rounds: int) -> float:
    """The largest difference of any coefficient or z after `rounds`, the prototype being tight."""
    prototype = Prototype(blocks, targets, RHO, STRENGTH, tight=True)
    parties = {f"p{i}": AdmmParty(block, strength=STRENGTH) for i, block in enumerate(blocks)}
    channel = LocalChannel(parties)
    config = AdmmConfig(rho=RHO, update="as-written", rounds=rounds)
    state = run_admm(channel, targets, config)
    for _ in range(rounds):
        prototype.round()
    gaps = [np.abs(a.x - b).max() for a, b in zip(parties.values(), prototype.x, strict=True)]
    return float(max([*gaps, np.abs(state.z - prototype.z).max()]))


def growth(sizes: Sequence[int], shape: Callable[[int], tuple[int, int]]) -> dict[str, Any]:
    """Seconds of a round on random dense columns at each size, and the exponents of growth.

    `shape` gives rows and parties of a size. All sizes take turns, and each turn runs as many
    rounds as bring it to the work of a few rounds of the largest, so that what else the machine
    does meets every size alike: a short measurement slips through between other programs, a long
    one does not.
    """
    cases = {}
    for size in sizes:
        rows, parties = shape(size)
        channel, targets, _ = _random(rows, parties, COLUMNS)
        # The first rounds decompose the blocks.
        state = run_admm(channel, targets, AdmmConfig(rounds=2))
        cases[size] = (channel, targets, state)
    wall: dict[int, list[float]] = {size: [] for size in sizes}
    processor: dict[int, list[float]] = {size: [] for size in sizes}
    for _ in range(TURNS):
        for size, (channel, targets, state) in cases.items():
            rounds = LARGEST_ROUNDS * max(sizes) // size
            began, began_processor = time.perf_counter(), time.process_time()
            for _ in range(rounds):
                # Always the third round: later ones start nearer to their end and take less.
                run_admm(channel, targets, AdmmConfig(rounds=3), state=_copied(state))
            wall[size].append((time.perf_counter() - began) / rounds)
            processor[size].append((time.process_time() - began_processor) / rounds)
    return {
        "wall_exponent": _exponent(wall),
        "processor_exponent": _exponent(processor),
        "wall_seconds": {str(size): float(np.median(t)) for size, t in wall.items()},
        "processor_seconds": {str(size): float(np.median(t)) for size, t in processor.items()},
    }


def _copied(state: AdmmState) -> AdmmState:
    return replace(state, shares=dict(state.shares), history=list(state.history))


def _random(
    rows: int, parties: int, columns: int
) -> tuple[LocalChannel, Vector, dict[str, AdmmParty]]:
    draw = np.random.default_rng(1)
    sides = {
        f"p{i}": AdmmParty(draw.normal(size=(rows, columns)), strength=1.0) for i in range(parties)
    }
    targets = np.where(draw.random(rows) < 0.4, 1.0, -1.0)
    channel = LocalChannel(sides)
    return channel, targets, sides


def _large_round() -> dict[str, Any]:
    """8 parties, 200,000 rows x 400 columns: a round over the matrix products it needs."""
    channel, targets, sides = _random(200_000, 8, 50)
    state = run_admm(channel, targets, AdmmConfig(rounds=2))
    whole, products = [], []
    for number in range(3, 10):
        started = time.perf_counter()
        state = run_admm(channel, targets, AdmmConfig(rounds=number), state=state)
        whole.append(time.perf_counter() - started)
        started = time.perf_counter()
        for side in sides.values():
            side.block.scores(side.block.correlate(targets))
        products.append(time.perf_counter() - started)
    setting = "8 parties, 200,000 rows x 400 columns"
    row = ratio_row("halfmask", "the matrix products of a round", setting, whole, products)
    return {**row, "seconds": float(np.median(whole))}


def _exponent(seconds: Mapping[int, Sequence[float]]) -> float:
    """The slope of log median time over log size: 1 is linear."""
    return log_slope(list(seconds), [float(np.median(times)) for times in seconds.values()])
