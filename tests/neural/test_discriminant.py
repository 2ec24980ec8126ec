"""The discriminant from class means: the scores it promises, as a network, with honest odds."""

from __future__ import annotations

import numpy as np
import torch

from halfmask.neural.class_means import Discriminant, PublicClasses
from halfmask.neural.pretrain import as_rows

CLASSES, PUBLIC, PRIVATE, ROWS = 3, 6, 10, 3000


def rows(seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    means = generator.random((CLASSES, PUBLIC + PRIVATE))
    labels = generator.integers(0, CLASSES, ROWS)
    values = means[labels] + generator.normal(0, 0.4, (ROWS, PUBLIC + PRIVATE))
    return values[:, :PUBLIC], values[:, PUBLIC:], labels, means


def test_public_classes_are_means_and_the_variance_around_them() -> None:
    shown, _, labels, means = rows(0)
    found = PublicClasses.of(shown, labels, CLASSES)
    assert np.allclose(found.means, means[:, :PUBLIC], atol=0.05)
    assert np.isclose(found.variance, 0.16, rtol=0.05)
    assert np.array_equal(found.counts, np.bincount(labels))


def test_it_finds_the_nearest_class_and_the_network_says_the_same() -> None:
    shown, hidden, labels, means = rows(1)
    norm = float(np.sqrt(np.square(hidden).sum(1).mean()))
    classes = PublicClasses.of(shown, labels, CLASSES)
    made = Discriminant.of(classes, means[:, PUBLIC:], private_norm=norm, noise_variance=0.0)
    scores = np.hstack([shown, hidden]) @ made.slopes.T + made.offsets
    far = np.square(np.hstack([shown, hidden])[:, None] - means[None]).sum(2)
    assert np.mean(scores.argmax(1) == far.argmin(1)) > 0.97
    with torch.no_grad():
        assert np.allclose(made.network()(as_rows(shown, hidden)), scores, atol=1e-3)


def test_noise_that_is_left_takes_weight_from_private_features() -> None:
    shown, _, labels, means = rows(2)
    classes = PublicClasses.of(shown, labels, CLASSES)
    sure, unsure = (
        Discriminant.of(classes, means[:, PUBLIC:], private_norm=2.0, noise_variance=left)
        for left in (0.0, 1.0)
    )
    assert np.array_equal(sure.slopes[:, :PUBLIC], unsure.slopes[:, :PUBLIC])
    assert (np.abs(unsure.slopes[:, PUBLIC:]) < np.abs(sure.slopes[:, PUBLIC:])).all()


def test_columns_that_repeat_each_other_do_not_make_it_certain() -> None:
    shown, _, labels, means = rows(3)
    again = np.hstack([shown] * 8)
    classes = PublicClasses.of(again, labels, CLASSES)
    made = Discriminant.of(classes, means[:, PUBLIC:], private_norm=2.0, noise_variance=0.0)
    calibrated = made.calibrated(classes, again, labels)
    factor = float(calibrated.offsets[0] / made.offsets[0])
    assert 1 / 12 < factor < 1 / 5
    alone = PublicClasses.of(shown, labels, CLASSES)
    kept = Discriminant.of(alone, means[:, PUBLIC:], private_norm=2.0, noise_variance=0.0)
    assert 0.7 < float(kept.calibrated(alone, shown, labels).offsets[0] / kept.offsets[0]) < 1.3
