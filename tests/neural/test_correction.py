"""The correction of scores: steps no longer than padded rows bear."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from halfmask.accounting.ledger import MemoryLedger
from halfmask.mechanisms.noise import noise_source
from halfmask.mechanisms.release import Releaser
from halfmask.mechanisms.shards import ALONE
from halfmask.neural.default_recipe import Correction, _steepest
from halfmask.neural.network import Mlp
from halfmask.neural.trainer import TrainerConfig, train_privately


@settings(max_examples=20, deadline=None)
@given(classes=st.integers(2, 4), rows=st.integers(1, 30), seed=st.integers(0, 2**16))
def test_no_direction_is_steeper_than_the_bound(classes: int, rows: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    head = Mlp((classes, classes), generator=generator)
    inputs = 3 * torch.randn(rows, classes, generator=generator)
    labels = torch.randint(0, classes, (rows,), generator=generator)

    def loss(flat: torch.Tensor) -> torch.Tensor:
        weights = flat.view(classes, classes + 1)
        scores = inputs.double() @ weights[:, :-1].T + weights[:, -1]
        return functional.cross_entropy(scores, labels)

    layer = head.linear[0]
    start = torch.cat([layer.weight, layer.bias[:, None]], dim=1).detach().double().reshape(-1)
    curved = torch.autograd.functional.hessian(loss, start)
    largest = float(torch.linalg.eigvalsh(curved).max())
    found = _steepest(inputs, head, ALONE)
    assert largest * (1 - 1e-5) <= found
    if classes == 2:
        assert found <= largest * (1 + 1e-4)
    given_rows = torch.cat([inputs, torch.ones(rows, 1)], dim=1).double()
    assert found <= float(torch.linalg.eigvalsh(given_rows.T @ given_rows / rows).max()) / 2 + 1e-9


def test_steps_that_would_overshoot_are_shortened() -> None:
    """Scores that vary in one direction only: the rate asked for would throw the classes about."""
    generator = np.random.default_rng(0)
    labels = torch.from_numpy(generator.integers(0, 3, 4000))
    rows = (labels == 0)[:, None] * 2.0 + 0.7 * torch.from_numpy(generator.normal(size=(4000, 1)))
    network = Mlp((1, 3))
    with torch.no_grad():
        network.linear[0].weight.copy_(torch.tensor([[1.0], [-0.5], [-0.5]]))
        network.linear[0].bias.copy_(torch.tensor([-1.0, 0.5, 0.5]))
    asked = TrainerConfig(
        steps=10, rate=1.0, clip_norm=3.0, noise_multiplier=1e-3, learning_rate=8.3
    )
    real = rows.float()
    releaser = Releaser(MemoryLedger(epsilon=1e9, delta=1e-5, relation="replace"), noise_source(0))
    made = Correction.of(network, real, lambda some: real[some], labels, asked, ALONE)
    assert made.trainer.learning_rate < 3.0
    train_privately(made.head, made.rows, made.trainer, releaser)
    corrected = made.corrected()
    with torch.no_grad():
        before, after = (
            float(functional.cross_entropy(each(real), labels)) for each in (network, corrected)
        )
    assert after < before
