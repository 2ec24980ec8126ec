"""The experiment's form on a few drawn digits; its numbers come from the real data, by command."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from halfmask.datasets import Split
from halfmask.features import Chain, NeighbourGraph, PatchDictionary, PublicPCA, UnitRows
from halfmask_lab import mnist_labels


def strokes(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Ten classes: a bright bar at one of ten heights, with noise."""
    rng = np.random.default_rng(seed)
    digits = np.arange(n) % 10
    images = rng.integers(0, 60, (n, 28, 28))
    for place, digit in enumerate(digits):
        images[place, 2 * digit + 3 : 2 * digit + 6, 4:24] += 180
    return images.reshape(n, -1).astype(np.uint8), digits.astype(np.int64)


def test_the_experiment_learns_and_prints_its_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (x_train, y_train), (x_test, y_test) = strokes(600, 0), strokes(100, 1)
    split = Split(x_train=x_train, y_train=y_train, x_test=x_test, y_test=y_test)
    monkeypatch.setattr(mnist_labels, "load_mnist", lambda data: split)
    small = [
        PatchDictionary(words=16, sample=2000),
        PublicPCA(components=20, whiten=0.5),
        UnitRows(),
        NeighbourGraph(components=12, neighbours=5),
    ]
    monkeypatch.setattr(mnist_labels, "image_map", lambda: Chain(small))
    told: list[float] = []
    result = mnist_labels.run(
        None, tmp_path, lambda share, text: told.append(share), draws=2, seed=0
    )
    assert Path(result["figure"]).exists()
    assert result["seeded"]
    assert told == sorted(told)
    first, *private = result["results"]
    assert first["method"] == "non-private"
    assert first["epsilon"] is None
    assert first["mean"] > 0.9
    assert [row["epsilon"] for row in private] == [0.1, 0.5, 1.0, 2.0]
    assert {row["method"] for row in private} == {"auto"}
    assert {row["draws"] for row in private} == {2}
    assert private[-1]["mean"] > 0.6 > 0.1


def test_the_shipped_map_is_the_documented_one() -> None:
    patches, pca, unit, graph = mnist_labels.image_map().maps
    assert isinstance(patches, PatchDictionary)
    assert patches.words == 256
    assert isinstance(pca, PublicPCA)
    assert pca.components == 200
    assert isinstance(unit, UnitRows)
    assert isinstance(graph, NeighbourGraph)
    assert (graph.components, graph.neighbours, graph.smoothing) == (300, 10, 4.0)
