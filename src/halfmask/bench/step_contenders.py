"""One training step, as each contender takes it: forward, backward, clip, noise, update.

All train the same network on the same batch of float32 rows with plain SGD. Ours draws secure noise
(the package's own source); the peers draw theirs as they do by default.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional

from halfmask.mechanisms.noise import add_gaussian, noise_source
from halfmask.neural.flat import FlatParameters
from halfmask.neural.mlp_ghost import MlpGradients
from halfmask.neural.network import Mlp
from halfmask.neural.structured import StructuredRows

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

    def step() -> None:
        optimizer.zero_grad()
        functional.cross_entropy(network(rows), labels).backward()
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

    def step() -> None:
        optimizer.zero_grad()
        functional.cross_entropy(network(batch.rows), batch.labels).backward()
        optimizer.step()

    return step


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

    def step() -> None:
        optimizer.zero_grad()
        loss(network(batch.rows), batch.labels).backward()
        optimizer.step()

    return step


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
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return function(*arguments)
