"""No difference of two gradients leaves with more than the clip norm, however its terms cancel."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from halfmask.neural.ghost import CLIP_MARGIN, MlpGradients
from halfmask.neural.network import Mlp
from halfmask.neural.trainer import FLOAT32_RESERVE


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
    got = MlpGradients(network).clipped_sum(row, labels, clip, padded=padded)
    assert got.double().norm() <= allowed


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
    got = MlpGradients(network).clipped_sum(row, torch.tensor([0]), 1e-3, padded=padded)
    assert got.double().norm() <= 1e-3 * (1 + FLOAT32_RESERVE)
