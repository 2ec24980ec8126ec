"""No difference of two gradients leaves with more than the clip norm, however its terms cancel."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from one_by_one import cross_entropy
from torch import nn

from halfmask.neural.contributions import FLOAT32_RESERVE
from halfmask.neural.ghost import GhostGradients
from halfmask.neural.mlp_ghost import MlpGradients
from halfmask.neural.network import Mlp


@settings(max_examples=150, deadline=None)
@given(
    classes=st.integers(2, 4),
    hidden=st.sampled_from([(), (3,)]),
    size=st.floats(-3, 12),
    close=st.one_of(st.floats(-8, 0), st.none()),
    weights=st.floats(-3, 3),
    clip=st.sampled_from([1e-3, 1.0, 30.0]),
    seed=st.integers(0, 2**16),
)
def test_one_row_adds_at_most_the_clip_norm(
    classes: int,
    hidden: tuple[int, ...],
    size: float,
    close: float | None,
    weights: float,
    clip: float,
    seed: int,
) -> None:
    """Inputs up to 10¹² and padded rows near them, or near zero: scaled scores can be both."""
    generator = torch.Generator().manual_seed(seed)
    network = Mlp((classes, *hidden, classes), generator=generator)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.mul_(10.0**weights)
    row = 10.0**size * torch.randn(1, classes, generator=generator)
    other = torch.randn(1, classes, generator=generator)
    padded = other if close is None else row * (1 + 10.0**close * other)
    labels = torch.randint(0, classes, (1,), generator=generator)
    allowed = clip * (1 + FLOAT32_RESERVE)
    for gradients in (MlpGradients(network), GhostGradients(network, cross_entropy)):
        got = gradients.clipped_sum(row, labels, clip, padded=padded)
        assert got.double().norm() <= allowed


@pytest.mark.parametrize("kind", ["sequence", "convolution", "embedding", "by hand"])
@pytest.mark.filterwarnings("ignore:.*no ghost clipping rule")
def test_one_row_of_any_network_adds_at_most_the_clip_norm(kind: str) -> None:
    """Sums in single precision alone exceed it up to 800,000 times on these rows."""
    layers: dict[str, Callable[[], nn.Module]] = {
        "sequence": lambda: nn.Linear(3, 4),
        "convolution": lambda: nn.Conv1d(3, 4, 2),
        "embedding": lambda: nn.Embedding(5, 4),
        "by hand": nn.PReLU,
    }
    clip = 1e-9
    for seed in range(96):
        torch.manual_seed(seed)
        network = nn.Sequential(layers[kind](), nn.Flatten(), nn.LazyLinear(4))
        if kind == "embedding":
            row = torch.randint(0, 5, (1, 6))
            padded = (row + torch.eye(6, dtype=torch.int64)[:1]) % 5
        else:
            row = 10.0 ** (seed % 8 - 3) * torch.randn(1, 3, 3)
            padded = row * (1 + 10.0 ** (seed // 8 % 6 - 8) * torch.randn(1, 3, 3))
        network(row)
        for pair in (None, padded):
            gradients = GhostGradients(network, cross_entropy)
            got = gradients.clipped_sum(row, torch.tensor([0]), clip, padded=pair)
            assert got.double().norm() <= clip * (1 + FLOAT32_RESERVE)


@pytest.mark.parametrize("size", [1e5, 1e7, 1e9, 1e12])
def test_terms_that_cancel_do_not_hide_a_long_row(size: float) -> None:
    """A sure row (u = 0) far from a padded row near zero: (u−v)⊗a and v⊗(a−b) are opposite."""
    network = Mlp((2, 2))
    with torch.no_grad():
        network.linear[0].weight.copy_(torch.eye(2))
        network.linear[0].bias.zero_()
    row, padded = torch.tensor([[size, -size / 3]]), torch.tensor([[1e-3, 2e-3]])
    for gradients in (MlpGradients(network), GhostGradients(network, cross_entropy)):
        got = gradients.clipped_sum(row, torch.tensor([0]), 1e-3, padded=padded)
        assert got.double().norm() <= 1e-3 * (1 + FLOAT32_RESERVE)
