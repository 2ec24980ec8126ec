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
from halfmask.neural.ghost import CLIP_MARGIN, GhostGradients
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


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("paired", [True, False])
def test_products_of_many_positions_do_not_hide_a_long_row(
    paired: bool, dtype: torch.dtype
) -> None:
    """So many numbers a position that norms come from Gram matrices, where terms cancel."""
    torch.manual_seed(0)
    layer = nn.Linear(40, 40, bias=False, dtype=dtype)

    def loss(outputs: torch.Tensor, slopes: torch.Tensor) -> torch.Tensor:
        return (outputs * slopes).sum((1, 2))

    for _ in range(20):
        row = 1e3 * torch.randn(1, 3, 40, dtype=dtype)
        slopes = torch.randn(1, 3, 40, dtype=dtype)
        padded = None
        if paired:
            padded = row.clone()
            padded[0, 0, 7] = torch.nextafter(row[0, 0, 7], torch.tensor(torch.inf, dtype=dtype))
            apart = row.double() - padded.double()
        else:
            row[0, 1], slopes[0, 1] = row[0, 0], -slopes[0, 0]
            row[0, 1, 7] = torch.nextafter(row[0, 0, 7], torch.tensor(torch.inf, dtype=dtype))
            row[0, 2] = 0.0
            apart = row.double()
        true = torch.einsum("to,td->od", slopes[0].double(), apart[0]).norm()
        for share in (1.0, 0.05, 1e-3, 1e-8):
            clip = float(true) * share
            got = GhostGradients(layer, loss).clipped_sum(
                row, slopes, clip, padded=padded, padded_targets=slopes
            )
            assert got.double().norm() <= clip * (1 + FLOAT32_RESERVE)


def test_wide_rows_are_measured_to_the_last_digits() -> None:
    torch.manual_seed(0)
    network = Mlp((50_000, 2))
    row = torch.full((1, 50_000), 0.1)
    row[0, 0] = 300.0
    labels = torch.tensor([0])
    got = MlpGradients(network).clipped_sum(row, labels, 1.0).double().norm()
    assert 1 - 1e-5 <= got <= 1 + CLIP_MARGIN


def test_one_row_moves_the_sum_of_many_by_what_it_adds() -> None:
    """Most rows of one class: the sum grows long, and its rounding with it."""
    torch.manual_seed(0)
    count, clip = 60_000, 1.0
    network = Mlp((10, 2))
    rows, labels = torch.randn(count, 10), (torch.arange(count) % 10 == 0).long()
    gradients = MlpGradients(network)

    def total(some: slice) -> torch.Tensor:
        return gradients.clipped_sum(rows[some], labels[some], clip).double().clone()

    for place in (0, 100, count // 2, count - 1):
        alone = slice(place, place + 1)
        whole, own, kept = total(slice(None)), total(alone), rows[place].clone()
        rows[place] *= -3.0
        error = (total(slice(None)) - whole) - (total(alone) - own)
        rows[place] = kept
        assert float(error.norm()) <= FLOAT32_RESERVE * clip / 2


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
