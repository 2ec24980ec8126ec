"""How long a private training step takes, as ratios to a plain torch step and to the peers."""

from __future__ import annotations

import gc
import random
import statistics
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional

from halfmask.mechanisms.noise import add_gaussian, noise_source
from halfmask.neural.ghost import MlpGradients, StructuredRows
from halfmask.neural.network import FlatParameters, Mlp
from halfmask_lab.results import Progress, ratio_row, silent

Step = Callable[[], None]

WIDTHS = (600, 300, 100)
PUBLIC = 100
CLIP = 1.0
NOISE = 1.0
RATE = 0.1


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Rows of random 0/1 features like Purchase100's, labels, and paddings of both kinds."""

    rows: Tensor
    labels: Tensor
    structured: StructuredRows
    padded: Tensor


def make_batch(size: int, *, seed: int = 0) -> Batch:
    """A batch of `size` rows; the structured padding has one line per class."""
    generator = torch.Generator().manual_seed(seed)
    rows = (torch.rand(size, WIDTHS[0], generator=generator) < 0.2).float()
    labels = torch.randint(0, WIDTHS[-1], (size,), generator=generator)
    table = torch.rand(WIDTHS[-1], WIDTHS[0] - PUBLIC, generator=generator) * 0.4
    drawn = torch.randn(size, WIDTHS[0] - PUBLIC, generator=generator)
    return Batch(
        rows=rows,
        labels=labels,
        structured=StructuredRows(rows, public=PUBLIC, table=table, codes=labels),
        padded=torch.cat([rows[:, :PUBLIC], drawn], dim=1),
    )


def non_private(batch: Batch) -> Step:
    """What everybody writes first: autograd and torch.optim.SGD."""
    return _autograd_step(batch.rows, batch.labels)


def public_batch(batch: Batch) -> Step:
    """The other half of Algorithm 1: a plain gradient on padded rows, written out."""
    return _autograd_step(batch.structured.padded(slice(None)), batch.labels)


def dp_sgd(batch: Batch) -> Step:
    return _ghost_step(batch.rows, batch.labels, None)


def paired_structured(batch: Batch) -> Step:
    return _ghost_step(batch.structured, batch.labels, None)


def paired_any(batch: Batch) -> Step:
    return _ghost_step(batch.rows, batch.labels, batch.padded)


def _autograd_step(rows: Tensor, labels: Tensor) -> Step:
    network = Mlp(WIDTHS)
    optimizer = torch.optim.SGD(network.parameters(), lr=RATE)
    return _optimized(optimizer, lambda: functional.cross_entropy(network(rows), labels))


def _optimized(optimizer: Any, loss: Callable[[], Any]) -> Step:
    def step() -> None:
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()

    return step


def _ghost_step(rows: Tensor | StructuredRows, labels: Tensor, padded: Tensor | None) -> Step:
    network = Mlp(WIDTHS)
    flat = FlatParameters(network)
    gradients = MlpGradients(network)
    source = noise_source()
    scale = RATE / len(rows)

    def step() -> None:
        total = gradients.clipped_sum(rows, labels, CLIP, padded=padded)
        released = add_gaussian(total.numpy(), CLIP * NOISE, source)
        flat.vector.add_(torch.from_numpy(released.astype(np.float32)), alpha=-scale)

    return step


def opacus_hooks(batch: Batch) -> Step:
    """Opacus as `make_private` sets it up: per-example gradients by hooks."""
    from opacus.grad_sample import GradSampleModule
    from opacus.optimizers import DPOptimizer

    network = GradSampleModule(_sequential())
    optimizer = DPOptimizer(
        torch.optim.SGD(network.parameters(), lr=RATE),
        noise_multiplier=NOISE,
        max_grad_norm=CLIP,
        expected_batch_size=len(batch.rows),
    )
    return _optimized(
        optimizer, lambda: functional.cross_entropy(network(batch.rows), batch.labels)
    )


def opacus_ghost(batch: Batch) -> Step:
    """Opacus with `grad_sample_mode="ghost"`: norms first, then a second backward pass."""
    from opacus.grad_sample.grad_sample_module_fast_gradient_clipping import (
        GradSampleModuleFastGradientClipping,
    )
    from opacus.optimizers.optimizer_fast_gradient_clipping import DPOptimizerFastGradientClipping
    from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping

    network = GradSampleModuleFastGradientClipping(
        _sequential(), max_grad_norm=CLIP, use_ghost_clipping=True
    )
    optimizer = DPOptimizerFastGradientClipping(
        torch.optim.SGD(network.parameters(), lr=RATE),
        noise_multiplier=NOISE,
        max_grad_norm=CLIP,
        expected_batch_size=len(batch.rows),
    )
    loss = DPLossFastGradientClipping(network, optimizer, nn.CrossEntropyLoss())
    return _optimized(optimizer, lambda: loss(network(batch.rows), batch.labels))


def torch_func(batch: Batch) -> Step:
    """Per-example gradients by torch.func, clipped and summed as its tutorial shows."""
    network = _sequential()
    parameters = {name: value.detach() for name, value in network.named_parameters()}

    def loss(parameters: dict[str, Tensor], row: Tensor, label: Tensor) -> Tensor:
        scores = functional_call(network, parameters, (row.unsqueeze(0),))
        return functional.cross_entropy(scores, label.unsqueeze(0))

    each = vmap(grad(loss), in_dims=(None, 0, 0))

    def step() -> None:
        found = each(parameters, batch.rows, batch.labels)
        squares = [value.flatten(1).square().sum(1) for value in found.values()]
        weights = (CLIP / torch.stack(squares).sum(0).sqrt()).clamp_max(1.0)
        for name, value in found.items():
            total = torch.einsum("i,i...->...", weights, value)
            total += torch.randn_like(total) * (CLIP * NOISE)
            parameters[name] -= total * (RATE / len(batch.rows))

    return step


def _sequential() -> nn.Module:
    return nn.Sequential(
        nn.Linear(WIDTHS[0], WIDTHS[1]), nn.ReLU(), nn.Linear(WIDTHS[1], WIDTHS[2])
    )


def quiet(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call without the peers' warnings, which would end up in the middle of a progress bar."""
    with warnings.catch_warnings(action="ignore"):
        return function(*arguments)


# --- How long a private training step takes, as ratios to a plain torch step and to the peers.
# One run, two threads: all contenders of a batch size are built first, then timed in rounds, in an
# order shuffled anew each round, so that whatever else the machine does meets all of them alike.
# `ratio` is the ratio of the medians; `low` and `high` are the 10% and 90% quantiles of the ratios
# of the same round.


SIZES = (512, 2048, 12_333)
OURS = {
    "dp-sgd step": dp_sgd,
    "paired step, structured padding": paired_structured,
    "paired step, any padding": paired_any,
}
PEERS = {
    "non-private torch step": non_private,
    "opacus ghost": opacus_ghost,
    "opacus hooks": opacus_hooks,
    "torch.func": torch_func,
}
# These form every per-example gradient: 10 GiB at the largest batch, and seconds per step.
SLOW = ("opacus hooks", "torch.func")
SLOW_ROUNDS = 3
WARM_UP = 2
PUBLIC_BATCH = "public batch"


@dataclass(frozen=True, kw_only=True)
class _Timing:
    """Seconds per round; None where a slow contender sat the round out."""

    name: str
    seconds: list[float | None]

    def median(self) -> float:
        return statistics.median(second for second in self.seconds if second is not None)


def run(tell: Progress = silent, rounds: int = 25) -> dict[str, Any]:
    """Time everything and return what `halfmask bench step --json` prints."""
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
            apart.append(_ratio(timings[PUBLIC_BATCH], timings["non-private torch step"], size))
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
    batch = make_batch(size)
    factories = {**OURS, **PEERS, PUBLIC_BATCH: public_batch}
    if size == SIZES[-1]:
        factories = {name: value for name, value in factories.items() if name not in SLOW}
    steps = {name: quiet(factory, batch) for name, factory in factories.items()}
    seconds: dict[str, list[float | None]] = {name: [] for name in steps}
    order = list(steps)
    shuffle = random.Random(size)
    slow_rounds = set(np.linspace(0, rounds - 1, min(rounds, SLOW_ROUNDS)).astype(int).tolist())
    for name in order:
        if name not in SLOW:
            for _ in range(WARM_UP):
                quiet(steps[name])
    for turn in range(rounds):
        shuffle.shuffle(order)
        for name in order:
            if name in SLOW and turn not in slow_rounds:
                seconds[name].append(None)
                continue
            gc.collect()
            begin = time.perf_counter()
            quiet(steps[name])
            seconds[name].append(time.perf_counter() - begin)
    return {name: _Timing(name=name, seconds=values) for name, values in seconds.items()}


def _ratio(what: _Timing, against: _Timing, size: int) -> dict[str, Any]:
    both = [pair for pair in zip(what.seconds, against.seconds, strict=True) if None not in pair]
    setting = f"batch {size}, 2 threads"
    row = ratio_row(what.name, against.name, setting, *zip(*both, strict=True))
    return {**row, "ratio": what.median() / against.median()}


def _peak_extra_memory(factory: Callable[[Batch], Step], size: int) -> float:
    """MiB by which a fresh process grows at its peak while it takes steps, beyond the batch."""
    with ProcessPoolExecutor(max_workers=1, mp_context=get_context("spawn")) as pool:
        return pool.submit(_grow, factory, size).result()


def _grow(factory: Callable[[Batch], Step], size: int) -> float:
    batch = make_batch(size)
    step = factory(batch)
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
