"""Maps of the public part: what they promise, and that they survive storage without pickle."""

from __future__ import annotations

import io

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.base import clone

from halfmask.errors import DataError, InputError
from halfmask.features import (
    Chain,
    FeatureMap,
    NeighbourGraph,
    PatchDictionary,
    PublicPCA,
    UnitRows,
    feature_map_from_arrays,
)


def rows(n: int = 60, width: int = 5, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return rng.standard_normal((n, width)) @ np.diag(np.arange(1, width + 1)) + 3


def images(n: int = 30, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).random((n, 100)).astype(np.float32)


def patches() -> PatchDictionary:
    return PatchDictionary(shape=(10, 10), patch=4, words=8, pools=2, sample=500, batch=7)


MAPS: dict[str, tuple[FeatureMap, np.ndarray]] = {
    "pca": (PublicPCA(components=3, whiten=0.5), rows()),
    "unit-rows": (UnitRows(), rows()),
    "patches": (patches(), images()),
    "graph": (NeighbourGraph(components=6, neighbours=4), rows()),
    "chain": (Chain([patches(), PublicPCA(components=5), UnitRows()]), images()),
}


@pytest.mark.parametrize("name", MAPS)
def test_a_stored_map_transforms_as_before_without_pickle(name: str) -> None:
    made, X = MAPS[name]
    made.fit(X)
    buffer = io.BytesIO()
    np.savez(buffer, **made.to_arrays())
    buffer.seek(0)
    with np.load(buffer, allow_pickle=False) as stored:
        again = feature_map_from_arrays(dict(stored))
    assert type(again) is type(made)
    np.testing.assert_array_equal(again.transform(X), made.transform(X))


@pytest.mark.parametrize("name", [name for name in MAPS if name not in ("unit-rows", "chain")])
def test_an_unfitted_map_says_so(name: str) -> None:
    made, X = MAPS[name]
    with pytest.raises(InputError, match="not fitted"):
        clone(made).transform(X)


@pytest.mark.parametrize("name", MAPS)
def test_refitting_gives_the_same_map(name: str) -> None:
    made, X = MAPS[name]
    first = clone(made).fit(X).transform(X)
    np.testing.assert_allclose(clone(made).fit(X).transform(X), first, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", [name for name in MAPS if name != "graph"])
def test_rows_are_mapped_one_by_one(name: str) -> None:
    made, X = MAPS[name]
    whole = made.fit(X).transform(X)
    np.testing.assert_allclose(made.transform(X[3:9]), whole[3:9], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("whiten", [0.0, 0.5, 1.0])
def test_components_are_uncorrelated_with_the_promised_variances(whiten: float) -> None:
    made = PublicPCA(whiten=whiten).fit(rows(500))
    out = made.transform(rows(500))
    expected = np.diag(made.variance_ ** (1 - whiten))
    np.testing.assert_allclose(np.cov(out.T, bias=True), expected, atol=1e-9)
    assert (np.diff(made.variance_) <= 0).all()


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 8), st.integers(1, 6), st.integers(0, 99))
def test_unit_rows_have_norm_one_and_zero_rows_stay(n: int, width: int, seed: int) -> None:
    X = np.random.default_rng(seed).standard_normal((n, width))
    X[0] = 0
    norms = np.linalg.norm(UnitRows().transform(X), axis=1)
    assert norms[0] == 0
    np.testing.assert_allclose(norms[1:], 1, rtol=1e-12)


def test_patch_features_see_shapes_not_brightness() -> None:
    made = patches().fit(images())
    one = images(1, seed=5)
    np.testing.assert_allclose(made.transform(one + 0.5), made.transform(one), rtol=1e-2, atol=1e-2)
    assert np.abs(made.transform(one) - made.transform(one[:, ::-1])).max() > 0.1
    assert made.transform(one).shape == (1, 2 * 2 * 8)
    assert made.transform(one).dtype == np.float32


def test_graph_coordinates_separate_groups_and_place_new_rows_with_their_group() -> None:
    rng = np.random.default_rng(0)
    middle = np.array([[0, 0], [20, 0], [0, 20]])
    group = np.repeat(np.arange(3), 40)
    X = middle[group] + rng.standard_normal((120, 2))
    made = NeighbourGraph(components=3, neighbours=5)
    own = made.fit_transform(X)
    new = made.transform(middle + 0.1)
    nearest = ((new[:, None] - own[None]) ** 2).sum(axis=2).argmin(axis=1)
    assert group[nearest].tolist() == [0, 1, 2]
    spread = max(own[group == place].std(axis=0).max() for place in range(3))
    assert spread < 1e-2


@pytest.mark.parametrize(
    ("made", "X"),
    [
        (PublicPCA(whiten=2.0), rows()),
        (PublicPCA(components=0), rows()),
        (PatchDictionary(shape=(10, 10), patch=12), images()),
        (NeighbourGraph(neighbours=0), rows()),
        (NeighbourGraph(neighbours=100), rows()),
        (Chain([]), rows()),
        (PublicPCA(), rows()[0]),
    ],
)
def test_wrong_settings_are_named_before_work_starts(made: FeatureMap, X: np.ndarray) -> None:
    with pytest.raises((InputError, DataError), match=r"Expected|needs"):
        made.fit(X)


def test_rows_of_another_width_are_refused() -> None:
    with pytest.raises(DataError, match="Expected rows of 5 values, got 4"):
        PublicPCA().fit(rows()).transform(rows(width=4))


def test_an_unknown_stored_map_is_refused() -> None:
    with pytest.raises(DataError, match="Unknown kind"):
        feature_map_from_arrays({"kind": np.array("pickle")})


def test_a_stored_map_that_lost_an_array_is_refused() -> None:
    arrays = PublicPCA().fit(rows()).to_arrays()
    del arrays["mean_"]
    with pytest.raises(DataError, match="mean_"):
        feature_map_from_arrays(arrays)
