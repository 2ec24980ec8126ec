"""The written-out network gives the sums of the definition, with every kind of padding."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from one_by_one import clipped, cross_entropy, differences, relative_error
from torch import Tensor

from halfmask.errors import InputError
from halfmask.neural.ghost import CLIP_MARGIN, MlpGradients, StructuredRows, tensor_clip_weights
from halfmask.neural.network import FlatParameters, Mlp
from halfmask.neural.trainer import FLOAT32_RESERVE

small = st.integers(1, 7)


@settings(max_examples=25, deadline=None)
@given(
    rows=small,
    public=st.integers(0, 5),
    private=small,
    hidden=st.lists(small, max_size=2),
    classes=st.integers(2, 4),
    chunk=small,
    by_class=st.booleans(),
    seed=st.integers(0, 2**16),
)
def test_sums_equal_gradients_one_by_one(
    rows: int,
    public: int,
    private: int,
    hidden: list[int],
    classes: int,
    chunk: int,
    by_class: bool,
    seed: int,
) -> None:
    generator = torch.Generator().manual_seed(seed)
    network = Mlp((public + private, *hidden, classes), generator=generator).double()
    flat = FlatParameters(network)
    real = torch.randn(rows, public + private, generator=generator).double()
    labels = torch.randint(0, classes, (rows,), generator=generator)
    table = torch.randn(classes if by_class else 1, private, generator=generator)
    structured = StructuredRows(
        real, public=public, table=table, codes=labels if by_class else None
    )
    padded = structured.padded(slice(None))
    gradients = MlpGradients(network, chunk=chunk)
    assert gradients.size == len(flat)
    plain = differences(network, cross_entropy, real, labels)
    paired = differences(network, cross_entropy, real, labels, padded)
    for clip in (0.3, 100.0):
        got = gradients.clipped_sum(real, labels, clip).clone()
        assert relative_error(got, clipped(plain, clip), terms=clip) < 1e-5
        got = gradients.clipped_sum(real, labels, clip, padded=padded).clone()
        assert relative_error(got, clipped(paired, clip), terms=clip) < 1e-5
        got = gradients.clipped_sum(structured, labels, clip).clone()
        assert relative_error(got, clipped(paired, clip), terms=clip) < 1e-5


def test_float32_is_as_good_as_its_rounding() -> None:
    torch.manual_seed(0)
    network = Mlp((60, 30, 10))
    rows, labels = torch.randn(50, 60), torch.randint(0, 10, (50,))
    structured = StructuredRows(rows, public=20, table=torch.rand(10, 40), codes=labels)
    padded = structured.padded(slice(None))
    gradients = MlpGradients(network)
    expected = differences(network.double(), cross_entropy, rows.double(), labels, padded.double())
    network.float()
    for clip in (0.1, 1.0, 100.0):
        for batch, pair in ((structured, None), (rows, padded)):
            got = gradients.clipped_sum(batch, labels, clip, padded=pair)
            assert relative_error(got, clipped(expected, clip)) < 1e-5


def test_structured_products_do_not_follow_the_network() -> None:
    """They are taken once; a step of training must not need them again."""
    torch.manual_seed(0)
    network = Mlp((9, 5, 3))
    rows = StructuredRows(torch.randn(20, 9), public=4, table=torch.randn(1, 5))
    labels = torch.randint(0, 3, (20,))
    gradients = MlpGradients(network)
    before = rows.products.gap.clone()
    for _ in range(3):
        step = gradients.clipped_sum(rows, labels, 1.0)
        expected = differences(network, cross_entropy, rows.rows, labels, rows.padded(slice(None)))
        assert relative_error(step, clipped(expected, 1.0)) < 1e-5
        with torch.no_grad():
            FlatParameters(network).vector.sub_(step)
    assert torch.equal(before, rows.products.gap)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 1e30])
def test_a_row_without_a_finite_norm_contributes_exactly_zero(bad: float) -> None:
    torch.manual_seed(0)
    network = Mlp((6, 5, 3))
    gradients = MlpGradients(network, chunk=4)
    real = torch.randn(10, 6)
    labels = torch.randint(0, 3, (10,))
    poisoned = real.clone()
    poisoned[[3, 7], 5] = bad
    kept = torch.tensor([0, 1, 2, 4, 5, 6, 8, 9])
    table = torch.randn(3, 4)

    def structured(rows: Tensor, codes: Tensor) -> StructuredRows:
        return StructuredRows(rows, public=2, table=table, codes=codes)

    padded = structured(real, labels).padded(slice(None))
    pairs = [
        ((poisoned, labels, None), (real[kept], labels[kept], None)),
        ((poisoned, labels, padded), (real[kept], labels[kept], padded[kept])),
        (
            (structured(poisoned, labels), labels, None),
            (structured(real[kept], labels[kept]), labels[kept], None),
        ),
    ]
    for (rows, targets, pair), (good, good_targets, good_pair) in pairs:
        got = gradients.clipped_sum(rows, targets, 0.5, padded=pair).clone()
        expected = gradients.clipped_sum(good, good_targets, 0.5, padded=good_pair)
        assert torch.allclose(got, expected, rtol=1e-5, atol=1e-7)


def test_chunks_of_which_no_row_has_a_finite_norm_add_nothing() -> None:
    """Nor may what such a chunk left in the buffers reach the next one, or the next call."""
    torch.manual_seed(0)
    gradients = MlpGradients(Mlp((6, 5, 3)), chunk=4)
    real, labels = torch.randn(12, 6), torch.randint(0, 3, (12,))
    lost = torch.full_like(real, float("nan"))
    for padded in (None, torch.randn(12, 6)):
        assert not gradients.clipped_sum(lost, labels, 0.5, padded=padded).any()
        mixed = torch.cat([lost[:4], real[4:8], lost[8:]])
        got = gradients.clipped_sum(mixed, labels, 0.5, padded=padded).clone()
        pair = None if padded is None else padded[4:8]
        expected = gradients.clipped_sum(real[4:8], labels[4:8], 0.5, padded=pair)
        assert torch.equal(got, expected)


def test_nearly_equal_rows_are_clipped_as_their_difference_and_not_as_rounding() -> None:
    """The expanded formula would return 0 or garbage here, and clip nothing."""
    torch.manual_seed(0)
    network = Mlp((50, 30, 4))
    rows = torch.randn(40, 50) * 10
    padded = rows.clone()
    padded[:, 0] += 1e-3
    labels = torch.randint(0, 4, (40,))
    gradients = MlpGradients(network)
    expected = differences(
        network.double(), cross_entropy, rows.double(), labels, padded.double()
    ).norm(dim=1)
    network.float()
    for place in range(40):
        one, clip = slice(place, place + 1), 0.5 * float(expected[place])
        if clip > 0:
            got = gradients.clipped_sum(rows[one], labels[one], clip, padded=padded[one])
            assert float(got.double().norm()) <= clip * (1 + FLOAT32_RESERVE)


@settings(max_examples=200, deadline=None)
@given(
    norms=st.lists(st.floats(0, 1e30, allow_subnormal=False), min_size=1, max_size=5),
    clip=st.floats(1e-6, 1e6),
)
def test_no_weight_lets_a_row_exceed_the_clip_norm(norms: list[float], clip: float) -> None:
    given_norms = torch.tensor(norms, dtype=torch.float64)
    weights = tensor_clip_weights(given_norms, clip)
    assert bool((weights * given_norms <= clip).all())
    assert bool((weights <= 1.0).all())
    untouched = given_norms <= clip * (1 - CLIP_MARGIN)
    assert bool((weights[untouched] == 1.0).all())


@pytest.mark.parametrize("clip", [0.0, -1.0, float("nan"), float("inf")])
def test_a_clip_norm_that_bounds_nothing_is_refused(clip: float) -> None:
    with pytest.raises(InputError, match="clip_norm"):
        tensor_clip_weights(torch.ones(2), clip)


def test_an_empty_batch_is_a_zero_sum() -> None:
    gradients = MlpGradients(Mlp((6, 5, 3)))
    assert not gradients.clipped_sum(torch.zeros(0, 6), torch.zeros(0).long(), 1.0).any()
    empty = StructuredRows(torch.zeros(0, 6), public=2, table=torch.zeros(1, 4))
    assert not gradients.clipped_sum(empty, torch.zeros(0).long(), 1.0).any()


def test_memory_follows_the_chunk_and_never_the_parameters_times_the_rows() -> None:
    network = Mlp((200, 100, 10))
    gradients = MlpGradients(network, chunk=64)
    rows, labels = torch.randn(1000, 200), torch.zeros(1000).long()
    gradients.clipped_sum(rows, labels, 1.0, padded=rows)
    held = sum(buffer.numel() for buffer in gradients._buffers.values())
    assert held <= 2 * 64 * (100 + 10 + 100) + 64 * (200 + 100 + 10)


def test_tables_that_do_not_fit_are_refused() -> None:
    rows = torch.randn(5, 6)
    with pytest.raises(InputError, match="4 private columns"):
        StructuredRows(rows, public=2, table=torch.zeros(1, 3))
    with pytest.raises(InputError, match="2 lines"):
        StructuredRows(rows, public=2, table=torch.zeros(2, 4))
    with pytest.raises(InputError, match="5 line numbers"):
        StructuredRows(rows, public=2, table=torch.zeros(2, 4), codes=torch.zeros(4).long())


@pytest.mark.parametrize("widths", [(3,), (3, 0), ()])
def test_widths_that_make_no_network_are_refused(widths: tuple[int, ...]) -> None:
    with pytest.raises(InputError, match="widths"):
        Mlp(widths)
