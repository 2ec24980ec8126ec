"""Algorithm 1 on a network: what is charged, released, averaged, stored and resumed."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from one_by_one import clipped, cross_entropy, differences, relative_error

from halfmask.accounting.events import PoissonGaussianEvent
from halfmask.accounting.ledger import MemoryLedger
from halfmask.errors import BudgetExceededError, DataError, InputError
from halfmask.mechanisms.noise import noise_source
from halfmask.mechanisms.release import PrivateStep, Releaser
from halfmask.neural.checkpoint import Checkpoint
from halfmask.neural.ghost import MlpGradients, StructuredRows
from halfmask.neural.network import FlatParameters, Mlp
from halfmask.neural.trainer import (
    NetworkContributions,
    TrainerConfig,
    TrainingRows,
    train_privately,
)

N, PUBLIC, WIDTH, CLASSES = 60, 3, 7, 3


def config(**changes: object) -> TrainerConfig:
    base: dict[str, object] = {
        "steps": 6,
        "rate": 0.3,
        "clip_norm": 0.5,
        "noise_multiplier": 3.0,
        "learning_rate": 0.1,
        "public_seed": 0,
    }
    return TrainerConfig(**(base | changes))  # type: ignore[arg-type]


def budget(seed: int | None = 1, epsilon: float = 50.0) -> Releaser:
    ledger = MemoryLedger(epsilon=epsilon, delta=1e-5, relation="replace")
    return Releaser(ledger, noise_source(seed))


def rows(*, kind: str = "structured") -> TrainingRows:
    generator = torch.Generator().manual_seed(3)
    real = torch.randn(N, WIDTH, generator=generator)
    labels = torch.randint(0, CLASSES, (N,), generator=generator)
    if kind == "none":
        return TrainingRows(real=real, labels=labels)
    if kind == "drawn":

        def fill(some: np.ndarray, generator: np.random.Generator) -> torch.Tensor:
            drawn = generator.standard_normal((len(some), WIDTH - PUBLIC)).astype(np.float32)
            return torch.cat([real[torch.from_numpy(some), :PUBLIC], torch.from_numpy(drawn)], 1)

        return TrainingRows(real=real, labels=labels, fill=fill)
    table = torch.zeros(CLASSES, WIDTH - PUBLIC)
    structured = StructuredRows(real, public=PUBLIC, table=table, codes=labels)
    return TrainingRows(real=structured, labels=labels)


def network() -> Mlp:
    return Mlp((WIDTH, 5, CLASSES), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("kind", ["structured", "drawn", "none"])
def test_every_step_is_charged_once_and_moves_the_network(kind: str) -> None:
    releaser, trained = budget(), network()
    before = FlatParameters(network()).vector
    train_privately(trained, rows(kind=kind), config(), releaser)
    assert releaser.events == (PoissonGaussianEvent(noise_multiplier=3.0, rate=0.3, steps=6),)
    after = FlatParameters(trained).vector
    assert bool(torch.isfinite(after).all())
    assert not torch.equal(before, after)


def test_contributions_hand_over_the_clipped_sum() -> None:
    trained, data = network(), rows()
    assert isinstance(data.real, StructuredRows)
    found = NetworkContributions(MlpGradients(trained), data.real, data.labels)
    batch = np.arange(0, N, 2)
    chosen = torch.from_numpy(batch)
    expected = differences(
        trained,
        cross_entropy,
        data.real.rows[chosen],
        data.labels[chosen],
        data.real.padded(chosen),
    )
    total = torch.from_numpy(found.clipped_sum(batch, 0.2))
    assert relative_error(total, clipped(expected, 0.2)) < 1e-5
    for row in batch[:5]:
        alone = torch.from_numpy(found.clipped_sum(np.array([row]), 0.2))
        assert float(alone.norm()) <= 0.2


def test_no_row_exceeds_the_clip_norm_through_a_private_step() -> None:
    """With noise of nearly nothing the released mean is the clipped mean."""
    trained, data = network(), rows()
    assert isinstance(data.real, StructuredRows)
    releaser = budget(epsilon=1e30)
    step = PrivateStep(
        releaser, rows=N, rate=1.0, clip_norm=0.1, noise_multiplier=1e-5, steps=1, what="test"
    )
    found = NetworkContributions(MlpGradients(trained), data.real, data.labels)
    released = torch.from_numpy(step.release(found)) * N
    everyone = torch.arange(N)
    expected = differences(
        trained, cross_entropy, data.real.rows, data.labels, data.real.padded(everyone)
    )
    assert relative_error(released, clipped(expected, 0.1)) < 1e-3
    assert float(released.norm()) <= 0.1 * N


def test_an_empty_batch_releases_noise() -> None:
    trained = network()
    before = FlatParameters(trained).vector.clone()
    train_privately(trained, rows(kind="none"), config(rate=1e-9, steps=2), budget())
    moved = FlatParameters(trained).vector - before
    assert bool(torch.isfinite(moved).all())
    assert float(moved.abs().min()) > 0


@pytest.mark.parametrize("aggregate", ["last", "average", "tail", "ema"])
@pytest.mark.parametrize("schedule", ["constant", "linear", "cosine"])
def test_averages_and_schedules(aggregate: str, schedule: str) -> None:
    trained = network()
    before = FlatParameters(trained).vector.clone()
    settings = config(aggregate=aggregate, schedule=schedule, momentum=0.5)
    train_privately(trained, rows(), settings, budget())
    after = FlatParameters(trained).vector
    assert bool(torch.isfinite(after).all())
    assert float((after - before).abs().min()) > 0


def test_the_public_batch_does_not_follow_the_private_one() -> None:
    """Other noise draws other private batches; public batches stay the same."""
    seen: dict[int, list[np.ndarray]] = {1: [], 2: []}
    for seed, kept in seen.items():
        data = rows(kind="drawn")
        inner = data.fill
        assert inner is not None

        def fill(
            some: np.ndarray,
            generator: np.random.Generator,
            kept: list[np.ndarray] = kept,
            inner: object = inner,
        ) -> torch.Tensor:
            kept.append(some.copy())
            return inner(some, generator)  # type: ignore[operator]

        settings = config(public_batch=10, steps=3)
        real = TrainingRows(real=data.real, labels=data.labels, fill=fill)
        train_privately(network(), real, settings, budget(seed))
    private = [batch for batch in seen[1][::2]], [batch for batch in seen[2][::2]]
    public = seen[1][1::2], seen[2][1::2]
    assert all(np.array_equal(one, two) for one, two in zip(*public, strict=True))
    assert not all(np.array_equal(one, two) for one, two in zip(*private, strict=True))


def test_a_run_that_was_interrupted_goes_on_bit_for_bit_under_an_unsafe_seed(
    tmp_path: Path,
) -> None:
    whole = network()
    file = Checkpoint(tmp_path / "whole.npz", every=2)
    train_privately(whole, rows(kind="drawn"), config(), budget(5), checkpoint=file)

    class StoppedError(Exception):
        pass

    class Stops(Checkpoint):
        def save(self, progress: object, noise: object, settings: object) -> None:
            super().save(progress, noise, settings)  # type: ignore[arg-type]
            if progress.step == 4:  # type: ignore[attr-defined]
                raise StoppedError

    with pytest.raises(StoppedError):
        train_privately(
            network(),
            rows(kind="drawn"),
            config(),
            budget(5),
            checkpoint=Stops(tmp_path / "run.npz", every=2),
        )
    resumed, releaser = network(), budget(5)
    train_privately(
        resumed,
        rows(kind="drawn"),
        config(),
        releaser,
        checkpoint=Checkpoint(tmp_path / "run.npz", every=2),
    )
    assert torch.equal(FlatParameters(whole).vector, FlatParameters(resumed).vector)
    assert sum(event.steps for event in releaser.events) == 2  # type: ignore[union-attr]


def test_without_a_seed_no_generator_state_is_stored(tmp_path: Path) -> None:
    path = tmp_path / "run.npz"
    train_privately(network(), rows(), config(), budget(None), checkpoint=Checkpoint(path, every=3))
    with np.load(path, allow_pickle=False) as stored:
        state = json.loads(str(stored["head"]))
    assert set(state) == {"step", "counted", "settings"}
    assert set(state["settings"]) == {
        "steps",
        "rate",
        "clip_norm",
        "rows",
        "seeded",
        "noise_multiplier",
    }


def test_a_seeded_run_does_not_go_on_as_a_private_one(tmp_path: Path) -> None:
    file = Checkpoint(tmp_path / "run.npz", every=3)
    train_privately(network(), rows(), config(), budget(5), checkpoint=file)
    with pytest.raises(DataError, match="another training"):
        train_privately(network(), rows(), config(), budget(None), checkpoint=file)


def test_a_checkpoint_of_another_network_is_refused(tmp_path: Path) -> None:
    file = Checkpoint(tmp_path / "run.npz", every=3)
    train_privately(network(), rows(), config(), budget(), checkpoint=file)
    other = Mlp((WIDTH, 4, CLASSES))
    with pytest.raises(DataError, match="another training"):
        train_privately(other, rows(), config(), budget(), checkpoint=file)


def test_a_budget_that_is_too_small_stops_before_the_network_moves() -> None:
    trained = network()
    before = FlatParameters(trained).vector.clone()
    with pytest.raises(BudgetExceededError):
        train_privately(trained, rows(), config(), budget(epsilon=0.01))
    assert torch.equal(before, FlatParameters(trained).vector)


@pytest.mark.parametrize(
    "wrong",
    [
        {"rate": 1.5},
        {"steps": 0},
        {"clip_norm": float("nan")},
        {"momentum": 1.0},
        {"aggregate": "best"},
        {"schedule": "sine"},
    ],
)
def test_settings_that_make_no_sense_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(InputError):
        config(**wrong)
