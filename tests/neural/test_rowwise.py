"""Networks in which rows mix are refused, by the name of the layer."""

from __future__ import annotations

import pytest
import torch
from one_by_one import cross_entropy
from torch import Tensor, nn

from halfmask.errors import InputError
from halfmask.neural.ghost import GhostGradients


@pytest.mark.parametrize(
    "layer",
    [
        nn.BatchNorm1d(4),
        nn.BatchNorm2d(4),
        nn.SyncBatchNorm(4),
        nn.InstanceNorm1d(4, track_running_stats=True),
        nn.Embedding(4, 4, scale_grad_by_freq=True),
        nn.Embedding(4, 4, max_norm=1.0),
        nn.LSTM(4, 4),
        nn.MultiheadAttention(4, 1),
    ],
    ids=lambda layer: type(layer).__name__,
)
def test_known_layers_that_mix_rows_are_refused_by_name(layer: nn.Module) -> None:
    model = nn.Sequential()
    model.add_module("first", nn.Linear(4, 4))
    model.add_module("culprit", layer)
    with pytest.raises(InputError, match=r"'culprit' \("):
        GhostGradients(model, cross_entropy)


class Centre(nn.Module):
    def forward(self, rows: Tensor) -> Tensor:
        return rows - rows.mean(0)


def test_an_unknown_layer_that_mixes_rows_is_found_by_trying() -> None:
    model = nn.Sequential(nn.Linear(4, 4), Centre(), nn.Linear(4, 3))
    with pytest.raises(InputError, match="layer '1' gives a row another output"):
        GhostGradients(model, cross_entropy).norms(torch.randn(5, 4), torch.zeros(5).long())


def test_a_loss_that_mixes_rows_is_found() -> None:
    def contrastive(scores: Tensor, labels: Tensor) -> Tensor:
        return (scores - scores.mean(0)).square().sum(1)

    with pytest.raises(InputError, match="'Linear' gives a row another output"):
        GhostGradients(nn.Linear(4, 3), contrastive).norms(torch.randn(5, 4), torch.zeros(5))


def test_the_trial_uses_made_up_rows_and_leaves_the_generator_alone() -> None:
    seen: list[Tensor] = []

    class Spy(nn.Module):
        def forward(self, rows: Tensor) -> Tensor:
            seen.append(rows.clone())
            return rows

    model = nn.Sequential(Spy(), nn.Linear(4, 3))
    before = torch.get_rng_state()
    private = torch.full((5, 4), 7.0)
    GhostGradients(model, cross_entropy).norms(private, torch.zeros(5).long())
    assert torch.equal(before, torch.get_rng_state())
    assert all(not (rows == 7.0).any() for rows in seen[:-1])
    assert torch.equal(seen[-1], private)


def test_a_first_axis_that_is_not_the_row_is_refused() -> None:
    class Fold(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(2, 1)

        def forward(self, rows: Tensor) -> Tensor:
            return self.inner(rows.reshape(-1, 2)).reshape(len(rows), -1)

    with pytest.raises(InputError, match="layer 'inner'"):
        GhostGradients(Fold(), cross_entropy).norms(torch.randn(5, 6), torch.zeros(5).long())


def test_an_input_changed_in_place_is_refused() -> None:
    class Careless(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Linear(4, 4), nn.Linear(4, 3)

        def forward(self, rows: Tensor) -> Tensor:
            hidden = torch.tanh(self.one(rows)).clone()
            scores = self.two(hidden)
            hidden += 1.0
            return scores

    with pytest.raises(InputError, match="'two' is changed in place"):
        GhostGradients(Careless(), cross_entropy).norms(torch.randn(5, 4), torch.zeros(5).long())


def test_randomness_with_layers_that_need_two_passes_is_refused() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.PReLU(), nn.Dropout(0.5), nn.Linear(4, 3))
    with pytest.warns(UserWarning, match="PReLU"):
        ghost = GhostGradients(model, cross_entropy)
    with pytest.raises(InputError, match="random numbers"):
        ghost.norms(torch.randn(5, 4), torch.zeros(5).long())
