"""Clipped sums equal gradients computed one by one, for every layer, plain and paired."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from one_by_one import clipped, cross_entropy, differences
from torch import Tensor, nn
from torch.nn import functional

from halfmask.errors import InputError
from halfmask.neural.ghost import CLIP_MARGIN, GhostGradients, clip_weights

CLASSES = 4


class Pool(nn.Module):
    """Average over everything between row and channels, then a linear layer."""

    def __init__(self, body: nn.Module, width: int, channels: int = 1) -> None:
        super().__init__()
        self.body = body
        self.channels = channels
        self.out = nn.Linear(width, CLASSES)

    def forward(self, rows: Tensor) -> Tensor:
        hidden = torch.tanh(self.body(rows))
        axes = [axis for axis in range(1, hidden.dim()) if axis != self.channels % hidden.dim()]
        return self.out(hidden.mean(axes) if axes else hidden)


class SharedAndTied(nn.Module):
    """One layer used twice, an embedding tied to the output, a frozen and an unused layer."""

    def __init__(self, words: int, width: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, width, padding_idx=0)
        self.mix = nn.Linear(width, width)
        self.norm = nn.LayerNorm(width)
        self.frozen = nn.Linear(width, width).requires_grad_(False)
        self.unused = nn.Linear(3, 2)
        self.out = nn.Linear(width, words)
        self.out.weight = self.embed.weight

    def forward(self, words: Tensor) -> Tensor:
        hidden = self.mix(functional.relu(self.mix(self.embed(words))))
        return self.out(self.norm(self.frozen(hidden)).mean(1))


def check(model: nn.Module, draw: Callable[[], Any], rows: int, classes: int = CLASSES) -> None:
    """Against the definition in the same precision: float64, then float32.

    A network may itself lose digits in float32 (a norm over two nearly equal numbers): that is not
    the sums' doing, so those are compared with gradients one by one that lose the same digits.
    """
    labels = torch.randint(0, classes, (rows,))
    single = draw(), draw()
    double = [_as(given, torch.float64) for given in single]
    model = model.double()
    halves = [differences(model, cross_entropy, given, labels).norm(dim=1) for given in double]
    for paired in (False, True):
        pair = double[1] if paired else None
        expected = differences(model, cross_entropy, double[0], labels, pair)
        norms = expected.norm(dim=1)
        for clip in (0.5 * float(norms.max()) + 1e-3, 2.0 * float(norms.max()) + 1.0):
            right = clipped(expected, clip)
            ghost = GhostGradients(model, cross_entropy)
            assert torch.allclose(ghost.norms(double[0], labels, padded=pair), norms, atol=1e-7)
            whole = ghost.clipped_sum(double[0], labels, clip, padded=pair)
            assert float((whole - right).norm()) <= 1e-5 * float(right.norm()) + 1e-12
            parts = ghost.clipped_sum(double[0], labels, clip, padded=pair, microbatch=2)
            scale = float(halves[0].sum() + halves[1].sum()) + 1e-3
            assert float((parts - whole).norm()) < 1e-12 * scale
            model.float()
            other = single[1] if paired else None
            short = GhostGradients(model, cross_entropy).clipped_sum(
                single[0], labels, clip, padded=other
            )
            right = clipped(differences(model, cross_entropy, single[0], labels, other), clip)
            model.double()
            assert float((short.double() - right).norm()) <= 1e-5 * scale


def _as(given: Any, kind: torch.dtype) -> Any:
    if isinstance(given, tuple):
        return tuple(_as(part, kind) for part in given)
    return given.to(kind) if given.is_floating_point() else given


small = st.integers(1, 6)
seeds = st.integers(0, 2**16)


@settings(max_examples=12, deadline=None)
@given(rows=small, width=small, hidden=small, length=st.integers(0, 5), seed=seeds)
def test_linear_layers_on_tables_and_sequences(
    rows: int, width: int, hidden: int, length: int, seed: int
) -> None:
    torch.manual_seed(seed)
    body = nn.Sequential(nn.Linear(width, hidden), nn.ReLU(inplace=True), nn.Linear(hidden, 3))
    shape = (rows, length, width) if length else (rows, width)
    check(Pool(body, 3, channels=-1), lambda: torch.randn(shape), rows)


@settings(max_examples=12, deadline=None)
@given(
    rows=small,
    length=st.integers(5, 12),
    kernel=st.integers(1, 3),
    stride=st.integers(1, 2),
    dilation=st.integers(1, 2),
    groups=st.integers(1, 2),
    bias=st.booleans(),
    mode=st.sampled_from(["zeros", "reflect", "circular", "replicate", "same"]),
    seed=seeds,
)
def test_convolutions_of_one_dimension(
    rows: int,
    length: int,
    kernel: int,
    stride: int,
    dilation: int,
    groups: int,
    bias: bool,
    mode: str,
    seed: int,
) -> None:
    torch.manual_seed(seed)
    same = mode == "same"
    layer = nn.Conv1d(
        2,
        4,
        kernel,
        stride=1 if same else stride,
        dilation=dilation,
        groups=groups,
        bias=bias,
        padding="same" if same else 1,
        padding_mode="zeros" if same else mode,
    )
    check(Pool(layer, 4), lambda: torch.randn(rows, 2, length), rows)


@settings(max_examples=12, deadline=None)
@given(
    rows=small,
    height=st.integers(4, 9),
    width=st.integers(4, 9),
    kernel=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    groups=st.integers(1, 2),
    normed=st.booleans(),
    seed=seeds,
)
def test_convolutions_of_two_dimensions_and_group_norm(
    rows: int,
    height: int,
    width: int,
    kernel: tuple[int, int],
    groups: int,
    normed: bool,
    seed: int,
) -> None:
    torch.manual_seed(seed)
    layers: list[nn.Module] = [nn.Conv2d(2, 4, kernel, padding=(1, 0), groups=groups)]
    layers += [nn.GroupNorm(2, 4)] if normed else []
    layers += [nn.ReLU(inplace=True), nn.Conv2d(4, 3, 2, padding="valid", stride=(1, 2))]
    check(Pool(nn.Sequential(*layers), 3), lambda: torch.randn(rows, 2, height, width), rows)


@settings(max_examples=12, deadline=None)
@given(rows=small, length=small, width=st.integers(2, 6), words=st.integers(4, 9), seed=seeds)
def test_embeddings_shared_layers_and_tied_weights(
    rows: int, length: int, width: int, words: int, seed: int
) -> None:
    torch.manual_seed(seed)
    model = SharedAndTied(words, width)
    check(model, lambda: torch.randint(0, words, (rows, length)), rows, classes=words)


def test_sums_of_rows_that_cancel_are_as_exact_as_their_rows() -> None:
    torch.manual_seed(48000)
    model = SharedAndTied(7, 2)
    check(model, lambda: torch.randint(0, 7, (5, 5)), 5, classes=7)


@settings(max_examples=8, deadline=None)
@given(rows=small, shape=st.lists(st.integers(2, 4), min_size=1, max_size=3), seed=seeds)
def test_layer_norms_of_any_shape(rows: int, shape: list[int], seed: int) -> None:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.LayerNorm(shape), nn.Flatten(), nn.LazyLinear(CLASSES))
    model(torch.randn(1, *shape))
    check(model, lambda: torch.randn(rows, *shape), rows)


def test_layers_without_a_rule_are_exact_and_warn_by_name() -> None:
    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.PReLU()
            self.memory = nn.LSTM(5, 3, batch_first=True)
            self.out = nn.Linear(3, CLASSES)

        def forward(self, rows: Tensor) -> Tensor:
            return self.out(self.memory(self.scale(rows))[0][:, -1])

    torch.manual_seed(0)
    model = Recurrent()
    with pytest.warns(UserWarning, match=r"'memory' \(LSTM\)"):
        GhostGradients(model, cross_entropy)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check(model, lambda: torch.randn(5, 4, 5), 5)


def test_a_parameter_used_outside_its_layer_is_found_and_exact() -> None:
    class Transposed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.code = nn.Linear(5, 3)
            self.out = nn.Linear(5, CLASSES)

        def forward(self, rows: Tensor) -> Tensor:
            return self.out(functional.linear(torch.tanh(self.code(rows)), self.code.weight.t()))

    torch.manual_seed(0)
    model = Transposed()
    with pytest.warns(UserWarning, match=r"'code\.weight', which is used outside its layer"):
        GhostGradients(model, cross_entropy).norms(torch.randn(3, 5), torch.zeros(3).long())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check(model, lambda: torch.randn(4, 5), 4)


def test_networks_of_several_arguments() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.number, self.word = nn.Linear(3, CLASSES), nn.Embedding(6, CLASSES)

        def forward(self, numbers: Tensor, words: Tensor) -> Tensor:
            return self.number(input=numbers) + self.word(words)

    torch.manual_seed(0)
    check(Two(), lambda: (torch.randn(5, 3), torch.randint(0, 6, (5,))), 5)


def test_the_public_loss_may_differ_and_needs_no_label() -> None:
    def entropy(scores: Tensor, labels: Tensor) -> Tensor:
        return torch.logsumexp(scores, dim=1)

    torch.manual_seed(0)
    model = nn.Linear(5, CLASSES)
    rows, labels = torch.randn(6, 5), torch.randint(0, CLASSES, (6,))
    ghost = GhostGradients(model, cross_entropy, public_loss=entropy)
    got = ghost.norms(rows, labels, padded=rows)
    # ∇ℓ − ∇ℓ_pub = −(x, 1) ⊗ e_y, whatever the weights are.
    assert torch.allclose(got, (rows.double().square().sum(1) + 1).sqrt(), rtol=1e-5)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 1e30])
def test_a_row_without_a_finite_norm_contributes_exactly_zero(bad: float) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, CLASSES))
    rows, padded = torch.randn(5, 5), torch.randn(5, 5)
    labels = torch.randint(0, CLASSES, (5,))
    poisoned = rows.clone()
    poisoned[2, 1] = bad
    kept = torch.tensor([0, 1, 3, 4])
    for pair in (None, padded):
        ghost = GhostGradients(model, cross_entropy)
        assert not torch.isfinite(ghost.norms(poisoned, labels, padded=pair)[2])
        got = ghost.clipped_sum(poisoned, labels, 0.5, padded=pair)
        expected = ghost.clipped_sum(
            rows[kept], labels[kept], 0.5, padded=None if pair is None else pair[kept]
        )
        assert torch.allclose(got, expected, rtol=1e-5, atol=1e-7)


def test_an_empty_batch_is_a_zero_sum() -> None:
    ghost = GhostGradients(nn.Linear(5, CLASSES), cross_entropy)
    total = ghost.clipped_sum(torch.zeros(0, 5), torch.zeros(0).long(), 1.0)
    assert total.shape == (ghost.size,)
    assert not total.any()


def test_nearly_equal_rows_are_clipped_as_their_difference_and_not_as_rounding() -> None:
    """The expanded formula would return 0 or garbage here, and clip nothing."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(50, 30), nn.Tanh(), nn.Linear(30, CLASSES))
    rows = torch.randn(40, 50) * 10
    padded = rows.clone()
    padded[:, 0] += 1e-3
    labels = torch.randint(0, CLASSES, (40,))
    expected = differences(
        model.double(), cross_entropy, rows.double(), labels, padded.double()
    ).norm(dim=1)
    got = GhostGradients(model.float(), cross_entropy).norms(rows, labels, padded=padded)
    assert torch.allclose(got, expected, rtol=2e-2, atol=1e-6)


@settings(max_examples=200, deadline=None)
@given(
    norms=st.lists(st.floats(0, 1e30, allow_subnormal=False), min_size=1, max_size=5),
    clip=st.floats(1e-6, 1e6),
)
def test_no_weight_lets_a_row_exceed_the_clip_norm(norms: list[float], clip: float) -> None:
    given_norms = torch.tensor(norms, dtype=torch.float64)
    weights = clip_weights(given_norms, clip)
    assert bool((weights * given_norms <= clip).all())
    assert bool((weights <= 1.0).all())
    untouched = given_norms <= clip * (1 - CLIP_MARGIN)
    assert bool((weights[untouched] == 1.0).all())


@pytest.mark.parametrize("clip", [0.0, -1.0, float("nan"), float("inf")])
def test_a_clip_norm_that_bounds_nothing_is_refused(clip: float) -> None:
    with pytest.raises(InputError, match="clip_norm"):
        clip_weights(torch.ones(2), clip)


def test_an_averaged_loss_is_refused() -> None:
    ghost = GhostGradients(nn.Linear(5, CLASSES), nn.CrossEntropyLoss())
    with pytest.raises(InputError, match="one value per row"):
        ghost.norms(torch.randn(3, 5), torch.zeros(3).long())


def test_parameters_ask_for_gradients_as_before() -> None:
    model = nn.Sequential(nn.Linear(5, 5).requires_grad_(False), nn.Linear(5, CLASSES))
    GhostGradients(model, cross_entropy).norms(torch.randn(3, 5), torch.zeros(3).long())
    assert [value.requires_grad for value in model.parameters()] == [False, False, True, True]
    assert all(value.grad is None for value in model.parameters())
    assert not model[1]._forward_hooks
