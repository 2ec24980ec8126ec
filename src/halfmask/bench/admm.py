"""One round of ADMM sharing against A's prototype, and how a round grows with rows and parties.

Both take the same matrices and the same rounds of Algorithm 1. Our decomposition, made once per
table, is reported beside the rounds (`setup_seconds`), not inside them. The prototype is measured
at its default tolerances; at tight ones it must give the same iterates, which is checked on a
smaller table because it takes minutes.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np

from halfmask.bench.admm_prototype import Prototype
from halfmask.datasets import load_a9a, load_gisette_rebuilt
from halfmask.vertical.admm import AdmmConfig, run_admm
from halfmask.vertical.admm_party import AdmmParty
from halfmask.vertical.block import Vector
from halfmask.vertical.channel import LocalChannel
from halfmask.vertical.party import admm_party

Progress = Callable[[float, str], None]
AGAINST = "A's prototype"
RHO, STRENGTH = 0.25, 1.0
SIZES = (40_000, 80_000, 160_000, 320_000, 640_000)
PARTIES = (2, 4, 8, 16, 32)
TIGHT_ROWS = 2000


def run(progress: Progress | None = None) -> dict[str, Any]:
    """Everything that `halfmask bench admm --json` prints."""
    tell = progress or (lambda share, text: None)
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
    by_rows = [_round_seconds(rows, 4) for rows in SIZES]
    by_parties = [_round_seconds(80_000, parties) for parties in PARTIES]
    large = _large_round()
    ratios.append(large)
    return {
        "name": "admm",
        "ratios": ratios,
        "setup_seconds": setups,
        "iterates_differ_by": gap,
        "iterates_compared_on": f"the first {TIGHT_ROWS} rows of a9a, 3 rounds",
        "growth": {
            "rows": _exponent(SIZES, by_rows),
            "parties": _exponent(PARTIES, by_parties),
            "seconds_by_rows": dict(zip(map(str, SIZES), by_rows, strict=True)),
            "seconds_by_parties": dict(zip(map(str, PARTIES), by_parties, strict=True)),
        },
    }


def _against_prototype(
    name: str, blocks: list[Any], targets: Vector, rounds: int
) -> tuple[dict[str, Any], float]:
    parties = {f"p{i}": AdmmParty(block, strength=STRENGTH) for i, block in enumerate(blocks)}
    channel = LocalChannel({key: admm_party(key, side) for key, side in parties.items()})
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
        state = run_admm(channel, targets, config, state=state).state
        ours.append(time.perf_counter() - started)
        started = time.perf_counter()
        prototype.round()
        theirs.append(time.perf_counter() - started)
    each = np.array(ours) / np.array(theirs)
    row = {
        "what": "halfmask",
        "against": AGAINST,
        "setting": f"{name}, one round, {len(blocks)} parties, default tolerances",
        "ratio": float(np.median(ours) / np.median(theirs)),
        "low": float(each.min()),
        "high": float(each.max()),
        "seconds": float(np.median(ours)),
        "prototype_seconds": float(np.median(theirs)),
    }
    return row, setup


def random_table(rows: int, columns: int) -> tuple[list[Any], Vector]:
    """Two parties with normal columns, and labels from a linear model of them."""
    draw = np.random.default_rng(0)
    matrix = draw.normal(size=(rows, columns))
    targets = np.where(matrix @ draw.normal(size=columns) + draw.normal(size=rows) > 0, 1.0, -1.0)
    return [matrix[:, : columns // 2], matrix[:, columns // 2 :]], targets


def tight_gap(blocks: list[Any], targets: Vector, rounds: int) -> float:
    """The largest difference of any coefficient or z after `rounds`, the prototype being tight."""
    prototype = Prototype(blocks, targets, RHO, STRENGTH, tight=True)
    parties = {f"p{i}": AdmmParty(block, strength=STRENGTH) for i, block in enumerate(blocks)}
    channel = LocalChannel({key: admm_party(key, side) for key, side in parties.items()})
    config = AdmmConfig(rho=RHO, update="as-written", rounds=rounds)
    state = run_admm(channel, targets, config).state
    for _ in range(rounds):
        prototype.round()
    gaps = [np.abs(a.x - b).max() for a, b in zip(parties.values(), prototype.x, strict=True)]
    return float(max([*gaps, np.abs(state.z - prototype.z).max()]))


def _round_seconds(rows: int, parties: int, columns: int = 20) -> float:
    """Processor time of the shortest of several rounds on random dense columns.

    Processor time and the shortest round, because what else the machine does is not meant; sizes
    beyond the caches, because the step out of them is not growth of the algorithm.
    """
    channel, targets, _ = _random(rows, parties, columns)
    state = run_admm(channel, targets, AdmmConfig(rounds=2)).state
    times = []
    for number in range(3, 12):
        started = time.process_time()
        state = run_admm(channel, targets, AdmmConfig(rounds=number), state=state).state
        times.append(time.process_time() - started)
    return min(times)


def _random(
    rows: int, parties: int, columns: int
) -> tuple[LocalChannel, Vector, dict[str, AdmmParty]]:
    draw = np.random.default_rng(1)
    sides = {
        f"p{i}": AdmmParty(draw.normal(size=(rows, columns)), strength=1.0) for i in range(parties)
    }
    targets = np.where(draw.random(rows) < 0.4, 1.0, -1.0)
    channel = LocalChannel({name: admm_party(name, side) for name, side in sides.items()})
    return channel, targets, sides


def _large_round() -> dict[str, Any]:
    """8 parties, 200,000 rows x 400 columns: a round over the matrix products it needs."""
    channel, targets, sides = _random(200_000, 8, 50)
    state = run_admm(channel, targets, AdmmConfig(rounds=2)).state
    whole, products = [], []
    for number in range(3, 10):
        started = time.perf_counter()
        state = run_admm(channel, targets, AdmmConfig(rounds=number), state=state).state
        whole.append(time.perf_counter() - started)
        started = time.perf_counter()
        for side in sides.values():
            side.block.scores(side.block.correlate(targets))
        products.append(time.perf_counter() - started)
    each = np.array(whole) / np.array(products)
    return {
        "what": "halfmask",
        "against": "the matrix products of a round",
        "setting": "8 parties, 200,000 rows x 400 columns",
        "ratio": float(np.median(whole) / np.median(products)),
        "low": float(np.quantile(each, 0.1)),
        "high": float(np.quantile(each, 0.9)),
        "seconds": float(np.median(whole)),
    }


def _exponent(sizes: tuple[int, ...], seconds: list[float]) -> float:
    """The slope of log time over log size: 1 is linear."""
    return float(np.polyfit(np.log(sizes), np.log(seconds), 1)[0])
