"""A private label on a network with public inputs: every pair of labels passes the pair's test."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from halfmask.accounting.budget import Budget
from halfmask.accounting.events import PoissonGaussianEvent
from halfmask.errors import InputError
from halfmask.estimators import with_public_part
from halfmask.mechanisms.noise import noise_source
from halfmask.neural.network import FlatParameters, Mlp
from halfmask.neural.trainer import (
    LabelContributions,
    TrainerConfig,
    TrainingRows,
    network_row_weights,
    train_privately,
)
from halfmask.table import Table
from halfmask.training import train


def network_of(seed: int, scale: float, classes: int, width: int = 5) -> Mlp:
    torch.manual_seed(seed)
    network = Mlp((4, width, classes))
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.copy_(torch.randn_like(parameter) * scale)
    return network


def contributions(network: Mlp, row: torch.Tensor, classes: int, clip: float) -> np.ndarray:
    """One line per label of a single row."""
    lines = [
        LabelContributions(network, row, torch.tensor([label])).clipped_sum(np.array([0]), clip)
        for label in range(classes)
    ]
    return np.array(lines)


@settings(deadline=None, max_examples=60)
@given(
    seed=st.integers(0, 10**6),
    scale=st.sampled_from([1e-3, 0.3, 1.0, 10.0]),
    size=st.sampled_from([0.0, 1e-2, 1.0, 30.0]),
    classes=st.integers(2, 6),
    clip=st.sampled_from([0.01, 1.0, 50.0]),
)
def test_every_two_labels_of_a_row_pass_the_test_of_the_label_pair(
    seed: int, scale: float, size: float, classes: int, clip: float
) -> None:
    network = network_of(seed, scale, classes)
    row = torch.randn(1, 4) * size
    found = contributions(network, row, classes, clip)
    gram = found @ found.T
    own = np.diag(gram)
    assert (own <= clip**2).all()
    assert (own[:, None] - gram <= clip**2).all()


def test_what_is_added_is_the_gradient_of_the_scaled_private_loss() -> None:
    network = network_of(3, 0.7, 3)
    rows, labels = torch.randn(6, 4), torch.tensor([0, 2, 1, 1, -1, 0])
    found = LabelContributions(network, rows, labels).clipped_sum(np.arange(6), 0.5)
    weights = network_row_weights(network, rows, 0.5).float()
    scores = network(rows)
    kept = labels >= 0
    private = functional.cross_entropy(
        scores, labels.clamp_min(0), reduction="none"
    ) - functional.cross_entropy(scores, torch.full_like(scores, 1 / 3), reduction="none")
    (private * weights)[kept].sum().backward()
    flat = FlatParameters(network).gradient(network)
    assert np.allclose(found, flat.double().numpy(), atol=1e-5)


def test_weights_know_no_label_and_infinite_rows_count_for_nothing() -> None:
    network = network_of(0, 1.0, 4)
    rows = torch.tensor([[1.0, 2.0, 3.0, 4.0], [float("inf"), 0.0, 0.0, 0.0]])
    weights = network_row_weights(network, rows, 1.0)
    assert weights[1] == 0
    assert 0 < weights[0] <= 1


def test_the_label_pair_is_charged_only_where_the_label_alone_is_private() -> None:
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(300, 4)), rng.integers(0, 3, 300)
    bare = Table.from_arrays(X, y, row_norm=1.0, task="classification")
    label_alone = with_public_part(bare, X, "all")
    half = with_public_part(bare, X, lambda rows: rows[:, :2])

    def events(table: Table, relation: str, recipe: str = "algorithm-1") -> PoissonGaussianEvent:
        options = {"recipe": recipe, "steps": 4, "rate": 0.1, "hidden": 6}
        model = train(
            table,
            Budget(epsilon=1.0, delta=1e-5, relation=relation),
            method="mlp",
            noise=noise_source(0),
            options=options,
        )
        assert 0.99 < model.privacy.calibrated_epsilon <= 1.0
        (event,) = model.privacy.events
        assert isinstance(event, PoissonGaussianEvent)
        return event

    own = events(label_alone, "replace")
    assert own.contribution == "label"
    assert own.noise_multiplier < 0.95 * events(label_alone, "replace", "dp-sgd").noise_multiplier
    for table, relation in ((label_alone, "withhold"), (half, "replace"), (bare, "replace")):
        assert events(table, relation).contribution == "general"


def test_the_label_pair_is_refused_for_other_contributions() -> None:
    from halfmask.accounting.ledger import MemoryLedger
    from halfmask.mechanisms.release import Releaser

    config = TrainerConfig(
        steps=2,
        rate=0.5,
        clip_norm=1.0,
        noise_multiplier=1.0,
        learning_rate=0.1,
        contribution="label",
    )
    rows = TrainingRows(real=torch.randn(8, 4), labels=torch.zeros(8, dtype=torch.int64))
    door = Releaser(MemoryLedger(epsilon=100.0, delta=1e-5), noise_source(0))
    with pytest.raises(InputError, match="label alone"):
        train_privately(network_of(0, 1.0, 3), rows, config, door)
