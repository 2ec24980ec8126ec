"""Algorithm 1 of the feature-DP paper on a network: two batches that never meet.

Each step adds the noisy mean of clipped private contributions, over a Poisson batch that only the
mechanism sees, to the gradient of the public loss over a batch drawn from public randomness. DP-SGD
is the case without padding. An empty batch releases noise; the divisor is the expected batch size.
Guarantee: docs/proofs/network.md.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from halfmask.accounting.events import Contribution, PoissonGaussianEvent
from halfmask.errors import InputError, LedgerError, check_below_one, check_one_of, check_positive
from halfmask.losses import LossWatch, PublicLoss
from halfmask.mechanisms.release import (
    PrivateStep,
    Releaser,
    RowContributions,
    uniform_rows,
)
from halfmask.mechanisms.shards import Shards, rows_in_all
from halfmask.methods.sgd import Schedule, SgdAggregate, scheduled
from halfmask.neural.checkpoint import Checkpoint, TrainingState
from halfmask.neural.ghost import MlpGradients, StructuredRows, TensorRows
from halfmask.neural.network import FlatParameters, Mlp, own_device
from halfmask.neural.padding import PaddingName
from halfmask.types import Floats, Integers

NetworkRegulariser = Callable[[Mlp, Tensor], Tensor]
Fill = Callable[[Integers, np.random.Generator], Tensor]
Draw = Callable[[Integers], Tensor]
# Fraction by which the noise is widened for the rounding of sums in single precision.
FLOAT32_RESERVE = 2.0**-11
CPU = torch.device("cpu")
# The clip norm is lowered by this part, far more than double precision rounds.
_MARGIN = 1e-4
_CHUNK = 2048
# Rows of a batch whose features are made at a time.
_AT_ONCE = 1 << 16


@dataclass(frozen=True, kw_only=True)
class TrainerConfig:
    """Every number of a run, fixed before a private value is read.

    `alpha` weighs the private part against the public one; `aggregate` hands back the last
    parameters, the average of all or of the second half (tail), or an exponential average.
    `public_batch` of None means all rows. `radius` is that of a ball around zero to which all
    weights are projected after each step (None: not at all). `regulariser` is a further loss of the
    network and the padded rows of a public batch: it sees nothing private. `span` has orthonormal
    columns in the space of the leading inputs, which are public: of a released gradient by the
    first layer's weights only what lies in it is kept, since rows lie there and noise does not.
    """

    steps: int
    rate: float
    clip_norm: float
    noise_multiplier: float
    learning_rate: float
    schedule: Schedule = "constant"
    momentum: float = 0.0
    alpha: float = 1.0
    radius: float | None = None
    aggregate: SgdAggregate = "last"
    ema_decay: float = 0.9
    public_batch: int | None = None
    public_seed: int | None = None
    regulariser: NetworkRegulariser | None = None
    regulariser_weight: float = 1.0
    contribution: Contribution = "general"
    span: Floats | None = None

    def __post_init__(self) -> None:
        check_positive(self, "steps", "rate", "clip_norm", "noise_multiplier", "learning_rate")
        if self.rate > 1:
            raise InputError(f"Expected a sampling rate in (0, 1], got {self.rate}.")
        check_below_one(self, "momentum", "ema_decay")
        check_one_of(self, aggregate=get_args(SgdAggregate), schedule=get_args(Schedule))


@dataclass(frozen=True, kw_only=True, eq=False)
class TrainingRows:
    """Rows and class codes, with what stands for the padded rows.

    `real` is a tensor, or `StructuredRows` with their constant padding. `fill` draws padded rows of
    the given numbers from the generator it is handed. Neither: no public part, which is DP-SGD.
    With `label_private` nothing but the private part of the loss may read `labels`; `label_alone`
    says that every feature is public besides.
    """

    real: Tensor | TensorRows | StructuredRows
    labels: Tensor
    fill: Fill | None = None
    label_private: bool = False
    label_alone: bool = False

    @property
    def paired(self) -> bool:
        return self.fill is not None or isinstance(self.real, StructuredRows)

    def padded(self, rows: Integers, generator: np.random.Generator) -> Tensor:
        """g(f(x)) of the given rows, for the public batch."""
        if isinstance(self.real, StructuredRows):
            return self.real.padded(torch.from_numpy(rows))
        assert self.fill is not None
        return self.fill(rows, generator)


@dataclass(frozen=True, kw_only=True, eq=False)
class TrainedNetwork:
    """A network, its private steps if there were any, how rows were padded, and a public curve."""

    network: Mlp
    steps: TrainerConfig | None
    padding: PaddingName | None
    curve: PublicLoss


def noise_factor(noise: float, tolerated: float) -> float:
    """The factor by which steps become shorter where a mean gradient has more noise than that."""
    return min(1.0, tolerated / noise)


def plan_steps(
    config: TrainerConfig,
    rows: int,
    releaser: Releaser,
    *,
    what: str = "noisy mean gradients of the private part of the loss",
    done: int = 0,
    in_parts: bool = False,
) -> PrivateStep:
    """Open the private steps of a run on `rows` rows of this machine, but for those `done`."""
    return PrivateStep(
        releaser,
        rows=rows,
        rate=config.rate,
        clip_norm=config.clip_norm,
        noise_multiplier=config.noise_multiplier,
        steps=config.steps - done,
        what=f"{config.steps - done} {what}",
        reserve=FLOAT32_RESERVE,
        contribution=config.contribution,
        rows_in_all=rows_in_all(rows, releaser.shards),
        in_parts=in_parts,
    )


def train_privately(
    network: Mlp,
    rows: TrainingRows,
    config: TrainerConfig,
    releaser: Releaser,
    *,
    step: PrivateStep | None = None,
    checkpoint: Checkpoint | None = None,
    watch: LossWatch | None = None,
) -> None:
    """Run Algorithm 1 on `network` in place. Guarantee: docs/proofs/network.md.

    `step` are the private steps where they were opened before. `watch` is told the loss of every
    public batch; without padded rows there is none.
    Where rows are spread over machines, `rows` are those of this one: docs/proofs/distributed.md.
    """
    shards, device = releaser.shards, own_device()
    if checkpoint is not None and shards.count > 1:
        raise InputError("A checkpoint holds the state of one machine: train without one.")
    settings = {
        "steps": config.steps,
        "rate": config.rate,
        "clip_norm": config.clip_norm,
        "rows": len(rows.labels),
        "seeded": not releaser.noise.secure,
        "noise_multiplier": config.noise_multiplier,
    }
    flat = FlatParameters(network.to(device))
    gradients = MlpGradients(network, label_private=rows.label_private)
    # Public batches are drawn from each machine's own rows, so machines draw apart.
    seed = None if config.public_seed is None else config.public_seed + shards.rank
    progress = TrainingState.start(flat.vector, releaser.padding(), seed)
    if checkpoint is not None:
        progress = checkpoint.load(progress, releaser.noise, settings)
        flat.vector.copy_(progress.parameters)
        step = _steps_left(progress, len(rows.labels), config, releaser)
    elif step is None:
        step = plan_steps(config, len(rows.labels), releaser)
    if shards.count > 1:
        flat.vector.copy_(torch.from_numpy(shards.first(flat.vector.double().cpu().numpy())))
    draw = None
    if rows.fill is not None:
        fill = rows.fill
        draw = lambda batch: fill(batch, progress.padding)  # noqa: E731
    contributions: RowContributions
    if rows.label_alone:
        public = rows.real.rows if isinstance(rows.real, StructuredRows) else rows.real
        contributions = LabelContributions(network, public, rows.labels)
    else:
        if config.contribution != "general":
            raise InputError("The label pair is for rows of which the label alone is private.")
        contributions = NetworkContributions(
            gradients, rows.real, rows.labels, padded=draw, device=device
        )
    every = config.steps if checkpoint is None else checkpoint.every
    while step is not None and progress.step < config.steps:
        block = min(every, config.steps - progress.step)
        if checkpoint is not None:
            part = replace(_event(config), steps=block)
            releaser.begin_part(part, f"the next {block} of {config.steps} steps")
        for _ in range(block):
            released = step.release(contributions)
            _one_step(network, flat, rows, config, released, progress, shards, watch)
        progress.parameters = flat.vector
        if checkpoint is not None:
            checkpoint.save(progress, releaser.noise, settings)
    releaser.pay()  # where no step was left, the statement is still that of the whole plan
    flat.vector.copy_(progress.result(flat.vector))
    network.cpu()


def _event(config: TrainerConfig) -> PoissonGaussianEvent:
    return PoissonGaussianEvent(
        noise_multiplier=config.noise_multiplier,
        rate=config.rate,
        steps=config.steps,
        contribution=config.contribution,
    )


def _steps_left(
    progress: TrainingState, rows: int, config: TrainerConfig, releaser: Releaser
) -> PrivateStep | None:
    """The steps that a run goes on with, within what it has charged if it was interrupted.

    A block of steps that had begun and was lost counts as taken: the run goes on after it.
    """
    before = releaser.goes_on([_event(config)])
    if before is None:
        if progress.step and releaser.whole_plan:
            raise LedgerError(
                "There is a checkpoint, but the ledger holds no charge of it: the ledger of an "
                "interrupted training must stay with it. Remove the folder and start over."
            )
        if progress.step == config.steps:
            return None
        return plan_steps(config, rows, releaser, done=progress.step, in_parts=True)
    begun = sum(event.steps for event in before.begun if isinstance(event, PoissonGaussianEvent))
    if progress.step > begun:
        raise LedgerError(
            "The checkpoint is ahead of the ledger, which must be an older copy: restore the "
            "newest one, or remove the folder and start over."
        )
    progress.step = begun
    return plan_steps(config, rows, releaser, in_parts=True)


def _one_step(
    network: Mlp,
    flat: FlatParameters,
    rows: TrainingRows,
    config: TrainerConfig,
    released: Floats,
    progress: TrainingState,
    shards: Shards,
    watch: LossWatch | None,
) -> None:
    gradient = torch.from_numpy(released).to(flat.vector).mul_(config.alpha)
    if config.span is not None:
        _within(gradient, network, torch.from_numpy(config.span).to(gradient))
    if rows.paired:
        loss, public = _shared_public_gradient(network, flat, rows, config, progress, shards)
        gradient += public
        if watch is not None:
            watch(progress.step + 1, loss)
    progress.velocity.mul_(config.momentum).add_(gradient)
    rate = scheduled(config.schedule, config.learning_rate, progress.step / config.steps)
    flat.vector.sub_(progress.velocity, alpha=rate)
    if config.radius is not None:
        # Post-processing of what was released: any projection is free.
        flat.vector.mul_(min(1.0, config.radius / max(float(flat.vector.norm()), 1e-12)))
    progress.step += 1
    progress.average(flat.vector, config.aggregate, config.ema_decay, config.steps)


def _within(gradient: Tensor, network: Mlp, span: Tensor) -> None:
    """Project the first layer's part of a released gradient on the span, in place."""
    first = network.linear[0]
    block = gradient[: first.weight.numel()].view_as(first.weight)[:, : len(span)]
    block.copy_((block @ span) @ span.T)


def _shared_public_gradient(
    network: Mlp,
    flat: FlatParameters,
    rows: TrainingRows,
    config: TrainerConfig,
    progress: TrainingState,
    shards: Shards,
) -> tuple[float, Tensor]:
    """The public gradient over a batch of which each machine draws its part from its own rows.

    The loss is that of this machine's part.
    """
    count = len(rows.labels)
    size = count
    if config.public_batch is not None:
        size = min(count, -(-config.public_batch // shards.count))
    batch = uniform_rows(count, size, progress.public)
    # A regulariser reads all rows of the batch at once.
    at_once = _AT_ONCE if config.regulariser is None else max(size, 1)
    loss, own = 0.0, torch.zeros_like(flat.vector)
    for low in range(0, max(size, 1), at_once):
        some = batch[low : low + at_once]
        padded = rows.padded(some, progress.public).to(flat.vector.device)
        labels = None
        if not rows.label_private:
            labels = rows.labels[torch.from_numpy(some)].to(flat.vector.device)
        weights = None
        if rows.label_alone:
            # As the private part has them, so that both are gradients of one weighted loss.
            weights = network_row_weights(network, padded, config.clip_norm).to(padded)
        lost, found = public_gradient(network, flat, padded, labels, config, weights)
        share = len(some) / size if size else 1.0
        loss, own = loss + share * lost, own + share * found
    if shards.count == 1:
        return loss, own
    total = shards.sum(np.append(own.double().cpu().numpy() * size, float(size)))
    return loss, torch.from_numpy(total[:-1] / total[-1]).to(flat.vector)


def public_gradient(
    network: Mlp,
    flat: FlatParameters,
    padded: Tensor,
    labels: Tensor | None,
    config: TrainerConfig,
    weights: Tensor | None = None,
) -> tuple[float, Tensor]:
    """The public loss, cross entropy on padded rows, and its gradient, with the regulariser's.

    Without labels every class is alike; `weights` weigh the rows. The loss that is returned is the
    plain mean of the cross entropy.
    """
    network.zero_grad(set_to_none=True)
    with torch.enable_grad():
        scores = network(padded)
        targets = torch.full_like(scores, 1 / scores.shape[1]) if labels is None else labels
        each = functional.cross_entropy(scores, targets, reduction="none")
        loss = each.mean()
        total = loss if weights is None else (each * weights).mean()
        if config.regulariser is not None:
            total = total + config.regulariser_weight * config.regulariser(network, padded)
        total.backward()
    found = flat.gradient(network)
    network.zero_grad(set_to_none=True)
    return float(loss.detach()), found


class NetworkContributions:
    """∇ℓ(x) − ∇ℓ_pub(g(f(x))) for chosen rows; without a pair, ∇ℓ(x).

    `padded` is None (no pair, or pairs held by `StructuredRows`), or draws the padded rows of a
    batch from randomness of its own. Rows stay where they are; batches move to `device`. A row
    without a label (its target is negative) contributes zero.
    """

    def __init__(
        self,
        gradients: MlpGradients,
        rows: Tensor | TensorRows | StructuredRows,
        targets: Tensor,
        *,
        padded: Draw | None = None,
        device: torch.device = CPU,
    ) -> None:
        self._device = device
        self._gradients = gradients
        self._rows = rows
        self._targets = targets
        self._padded = padded
        self._labelled: NDArray[np.bool_] | None = None
        if bool((targets < 0).any()):
            self._labelled = (targets >= 0).cpu().numpy()

    def clipped_sum(self, rows: Integers, clip_norm: float) -> Floats:
        """Σ of the contributions, each scaled down to norm at most `clip_norm`, in one pass."""
        total = self._part(rows[:_AT_ONCE], clip_norm)
        for low in range(_AT_ONCE, len(rows), _AT_ONCE):
            total += self._part(rows[low : low + _AT_ONCE], clip_norm)
        return total

    def _part(self, rows: Integers, clip_norm: float) -> Floats:
        kept = np.ones(len(rows), dtype=bool) if self._labelled is None else self._labelled[rows]
        # Padding is drawn for all rows: what later rows get must not follow from who has a label.
        pair = None if self._padded is None else self._padded(rows)[kept].to(self._device)
        chosen = torch.from_numpy(rows[kept])
        held = self._rows
        real = held.take(chosen) if isinstance(held, StructuredRows) else held[chosen]
        labels = self._targets[chosen].to(self._device)
        found = self._gradients.clipped_sum(real.to(self._device), labels, clip_norm, padded=pair)
        total: Floats = found.double().cpu().numpy()
        return total


class LabelContributions:
    """Scaled contributions of labels (negative: none, which adds zero) at the network's weights.

    Everything is computed in double precision. Guarantee: docs/proofs/label_pair.md.
    """

    def __init__(self, network: Mlp, rows: Tensor | TensorRows, labels: Tensor) -> None:
        if len(network.linear) != 2:
            raise InputError("Label contributions are for networks with one hidden layer.")
        self._network = network
        self._rows = rows
        self._labels = labels

    def clipped_sum(self, rows: Integers, clip_norm: float) -> Floats:
        """Σ of the scaled contributions of `rows`, in the order of `network.parameters()`."""
        total = np.zeros(sum(p.numel() for p in self._network.parameters()))
        with torch.no_grad():
            for low in range(0, len(rows), _CHUNK):
                chosen = torch.from_numpy(rows[low : low + _CHUNK])
                total += self._chunk(chosen, clip_norm).numpy()
        return total

    def _chunk(self, chosen: Tensor, clip_norm: float) -> Tensor:
        given, hidden, outside = _in_doubles(self._network, self._rows[chosen])
        weights = label_free_weights(given, hidden, outside, clip_norm)
        labels = self._labels[chosen].cpu()
        weights = torch.where(labels >= 0, weights, torch.zeros_like(weights))
        classes = outside.shape[0]
        slopes = torch.full((len(chosen), classes), 1.0 / classes, dtype=torch.float64)
        slopes[torch.arange(len(chosen)), labels.clamp_min(0)] -= 1.0
        slopes *= weights[:, None]
        below = (slopes @ outside) * (hidden > 0)
        parts = (below.T @ given, below.sum(0), slopes.T @ hidden, slopes.sum(0))
        return torch.cat([part.reshape(-1) for part in parts])


def network_row_weights(network: Mlp, rows: Tensor, clip_norm: float) -> Tensor:
    """The weights of rows at the network's weights, in double precision."""
    with torch.no_grad():
        return label_free_weights(*_in_doubles(network, rows), clip_norm)


def _in_doubles(network: Mlp, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Rows, their hidden features and the weights of the last layer."""
    first, last = network.linear
    given = rows.cpu().double()
    hidden = torch.relu(given @ first.weight.cpu().double().T + first.bias.cpu().double())
    return given, hidden, last.weight.cpu().double()


def label_free_weights(given: Tensor, hidden: Tensor, outside: Tensor, clip_norm: float) -> Tensor:
    """s = min(1, C/√m) of every row, from inputs, hidden features and weights: no label enters.

    Where m is not finite the row counts as zero.
    """
    classes = outside.shape[0]
    active = (hidden > 0).to(outside)
    gram = torch.einsum("kh,nh,lh->nkl", outside, active, outside)
    gram *= (1.0 + given.square().sum(1))[:, None, None]
    gram += (1.0 + hidden.square().sum(1))[:, None, None] * torch.eye(classes, dtype=gram.dtype)
    centred = gram - gram.mean(1, keepdim=True)
    centred = centred - centred.mean(2, keepdim=True)
    own = centred.diagonal(dim1=1, dim2=2)
    apart = own[:, :, None] - centred
    most = torch.maximum(own.amax(1), apart.amax((1, 2)))
    bound = clip_norm * (1.0 - _MARGIN)
    weights = torch.clamp(bound / most.clamp_min(1e-300).sqrt(), max=1.0)
    return torch.where(torch.isfinite(most), weights, torch.zeros_like(weights))
