"""Reading noisy class means: better than as they come, and never by a look at anything else."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from halfmask.neural.class_means import shrunk_means

CLASSES, FEATURES, ROWS = 8, 120, 100.0


def world(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """True means of private and public features: the same classes are alike in both."""
    generator = np.random.default_rng(seed)
    kinds = generator.normal(0, 0.1, (2, FEATURES + 60))
    mixed = generator.normal(0, 1, (CLASSES, 2)) @ kinds
    means = np.clip(0.4 + mixed, 0.0, 1.0)
    return means[:, :FEATURES], means[:, FEATURES:]


def error(found: np.ndarray, true: np.ndarray) -> float:
    return float(np.square(found - true).mean())


def test_quiet_means_stay_as_they_are() -> None:
    true, public = world(0)
    counts = np.full(CLASSES, ROWS)
    found = shrunk_means(true * ROWS, counts, 1e-6, non_negative=True, public_means=public)
    assert np.allclose(found.means, true, atol=1e-5)
    assert found.noise_variance < 1e-12


def test_noisy_means_come_closer_and_classes_that_are_alike_help() -> None:
    true, public = world(1)
    counts = np.full(CLASSES, ROWS)
    noisy = true * ROWS + np.random.default_rng(2).normal(0, 30.0, true.shape)
    alone = shrunk_means(noisy, counts, 30.0, non_negative=True)
    helped = shrunk_means(noisy, counts, 30.0, non_negative=True, public_means=public)
    assert error(alone.means, true) < error(np.clip(noisy / ROWS, 0, 1), true) / 2
    assert error(helped.means, true) < 0.95 * error(alone.means, true)
    assert 0 < helped.noise_variance < 0.3**2


def test_classes_that_are_all_the_same_become_the_same() -> None:
    true = np.full((CLASSES, FEATURES), 0.3)
    noisy = true * ROWS + np.random.default_rng(3).normal(0, 20.0, true.shape)
    found = shrunk_means(noisy, np.full(CLASSES, ROWS), 20.0, non_negative=True)
    assert error(found.means, true) < error(noisy / ROWS, true) / 2.5


@settings(max_examples=50, deadline=None)
@given(
    seed=st.integers(0, 2**16),
    noise=st.floats(1e-6, 1e6),
    scale=st.floats(-1e6, 1e6),
    empty=st.booleans(),
    classes=st.integers(1, 5),
    width=st.integers(0, 3),
)
def test_any_release_gives_finite_means(
    seed: int, noise: float, scale: float, empty: bool, classes: int, width: int
) -> None:
    generator = np.random.default_rng(seed)
    sums = scale * generator.standard_normal((classes, 4))
    counts = generator.integers(0, 50, classes).astype(float)
    if empty:
        counts[:] = 0
        sums[:] = 0
    public = generator.random((classes, width))
    found = shrunk_means(sums, counts, noise, non_negative=bool(seed % 2), public_means=public)
    assert found.means.shape == sums.shape
    assert np.isfinite(found.means).all()
    assert np.isfinite(found.noise_variance)
    if seed % 2:
        assert (found.means >= 0).all()
