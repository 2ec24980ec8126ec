"""How long a private training step takes, as ratios to a plain torch step and to the peers.

One run, two threads: all contenders of a batch size are built first, then timed in rounds, in an
order shuffled anew each round, so that whatever else the machine does meets all of them alike.
`ratio` is the ratio of the medians; `low` and `high` are the 10% and 90% quantiles of the ratios of
the same round.
"""

from __future__ import annotations

import gc
import random
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

Progress = Callable[[float, str], None]

SIZES = (512, 2048, 12_333)
OURS = {
    "dp-sgd step": "dp_sgd",
    "paired step, structured padding": "paired_structured",
    "paired step, any padding": "paired_any",
}
PEERS = {
    "non-private torch step": "non_private",
    "opacus ghost": "opacus_ghost",
    "opacus hooks": "opacus_hooks",
    "torch.func": "torch_func",
}
# These form every per-example gradient: 10 GiB at the largest batch, and seconds per step.
SLOW = ("opacus hooks", "torch.func")
SLOW_ROUNDS = 3
WARM_UP = 2
PUBLIC = "public batch"


@dataclass(frozen=True, kw_only=True)
class _Timing:
    """Seconds per round; None where a slow contender sat the round out."""

    name: str
    seconds: list[float | None]

    def median(self) -> float:
        return statistics.median(second for second in self.seconds if second is not None)


def run(progress: Progress | None = None, rounds: int = 25) -> dict[str, Any]:
    """Time everything and return what `halfmask bench step --json` prints."""
    import torch

    tell = progress or (lambda share, text: None)
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    ratios: list[dict[str, Any]] = []
    apart: list[dict[str, Any]] = []
    medians: dict[str, dict[str, float]] = {}
    try:
        for i, size in enumerate(SIZES):
            tell(i / (len(SIZES) + 1), f"batch of {size}")
            timings = _time(size, rounds if size < 5_000 else max(5, rounds // 2))
            medians[str(size)] = {name: timing.median() for name, timing in timings.items()}
            for what in OURS:
                ratios += [
                    _ratio(timings[what], timings[against], size)
                    for against in PEERS
                    if against in timings
                ]
            apart.append(_ratio(timings[PUBLIC], timings["non-private torch step"], size))
    finally:
        torch.set_num_threads(threads)
    tell(len(SIZES) / (len(SIZES) + 1), f"memory at a batch of {SIZES[-1]}")
    memory = {what: _peak_extra_memory(factory, SIZES[-1]) for what, factory in OURS.items()}
    tell(1.0, "done")
    return {
        "name": "step",
        "network": "600-300-100, 100 public columns, float32",
        "threads": 2,
        "rounds": rounds,
        "ratios": ratios,
        "public_batch": apart,
        "median_seconds": medians,
        "peak_extra_memory_mib": memory,
    }


def _time(size: int, rounds: int) -> dict[str, _Timing]:
    from halfmask.bench import step_contenders as contenders

    batch = contenders.make_batch(size)
    factories = {**OURS, **PEERS, PUBLIC: "public_batch"}
    if size == SIZES[-1]:
        factories = {name: value for name, value in factories.items() if name not in SLOW}
    steps = {
        name: contenders.quiet(getattr(contenders, factory), batch)
        for name, factory in factories.items()
    }
    seconds: dict[str, list[float | None]] = {name: [] for name in steps}
    order = list(steps)
    shuffle = random.Random(size)
    slow_rounds = set(np.linspace(0, rounds - 1, min(rounds, SLOW_ROUNDS)).astype(int).tolist())
    for name in order:
        if name not in SLOW:
            for _ in range(WARM_UP):
                contenders.quiet(steps[name])
    for turn in range(rounds):
        shuffle.shuffle(order)
        for name in order:
            if name in SLOW and turn not in slow_rounds:
                seconds[name].append(None)
                continue
            gc.collect()
            begin = time.perf_counter()
            contenders.quiet(steps[name])
            seconds[name].append(time.perf_counter() - begin)
    return {name: _Timing(name=name, seconds=values) for name, values in seconds.items()}


def _ratio(what: _Timing, against: _Timing, size: int) -> dict[str, Any]:
    paired = [
        one / two
        for one, two in zip(what.seconds, against.seconds, strict=True)
        if one is not None and two is not None
    ]
    return {
        "what": what.name,
        "against": against.name,
        "setting": f"batch {size}, 2 threads",
        "ratio": what.median() / against.median(),
        "low": float(np.quantile(paired, 0.1)),
        "high": float(np.quantile(paired, 0.9)),
    }


def _peak_extra_memory(factory: str, size: int) -> float:
    """MiB by which a fresh process grows at its peak while it takes steps, beyond the batch."""
    with ProcessPoolExecutor(max_workers=1, mp_context=get_context("spawn")) as pool:
        return pool.submit(_grow, factory, size).result()


def _grow(factory: str, size: int) -> float:
    from halfmask.bench import step_contenders as contenders

    batch = contenders.make_batch(size)
    step = getattr(contenders, factory)(batch)
    gc.collect()
    before = _peak_mib(reset=True)
    for _ in range(3):
        step()
    return _peak_mib() - before


def _peak_mib(*, reset: bool = False) -> float:
    """The largest resident size so far; Linux can forget what came before this moment."""
    status = Path("/proc/self/status")
    if status.exists():
        if reset:
            Path("/proc/self/clear_refs").write_text("5")
        peak = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return int(peak.split()[1]) / 1024
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
