"""The embedded census, and loaders that refuse a file which is not the published one."""

from __future__ import annotations

import gzip
import lzma
import os
import struct
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from halfmask import datasets
from halfmask.datasets import normalised
from halfmask.errors import DataError
from halfmask.table import Encoder
from halfmask_lab import loaders
from halfmask_lab.loaders import read_idx

PUBLISHED = os.environ.get("HALFMASK_DATA")
LOADERS: list[Callable[..., Any]] = [
    loaders.load_a9a,
    datasets.load_adult_files,
    loaders.load_location30,
    loaders.load_mnist,
    loaders.load_gisette_rebuilt,
]


def test_the_embedded_census_is_complete_and_fits_its_schema() -> None:
    train, test, schema = datasets.load_adult()
    assert (train.num_rows, test.num_rows) == (32561, 16281)
    encoder = Encoder.fit(schema, train)
    for part, positives in ((train, 7841), (test, 3846)):
        table = encoder.encode(part)
        assert table.label is not None
        assert table.label.sum() == positives
        assert not any(table.public[:, i].any() for i in _others(encoder.public_names))
        assert not any(table.private[:, i].any() for i in _others(encoder.private_names))
    assert train.slice(0, 1).to_pylist()[0]["education"] == "Bachelors"
    assert "fnlwgt" not in [*schema.public, *schema.private]
    assert schema.label.role == "private"


def _others(names: tuple[str, ...]) -> list[int]:
    return [index for index, name in enumerate(names) if name.endswith("=<other>")]


def test_the_embedded_files_are_small_and_name_source_and_licence() -> None:
    folder = resources.files("halfmask.datasets") / "data"
    assert sum(len(file.read_bytes()) for file in folder.iterdir()) < 500_000
    source = (folder / "SOURCE.md").read_text()
    assert "UCI" in source
    assert "CC BY 4.0" in source


def test_published_adult_lines_become_plain_csv() -> None:
    line = "25, ?, 1, 11th, 7, Never-married, ?, Own-child, Black, Male, 0, 0, 40, Cuba, <=50K."
    rows = normalised(f"|1x3 Cross validator\n{line}\n\n".encode()).decode().splitlines()
    assert rows[1:] == ["25,,1,11th,7,Never-married,,Own-child,Black,Male,0,0,40,Cuba,<=50K"]
    assert rows[0].startswith("age,workclass,")


def _known(monkeypatch: pytest.MonkeyPatch, **contents: bytes) -> None:
    import hashlib

    for name, content in contents.items():
        monkeypatch.setitem(datasets.SHA256, name, hashlib.sha256(content).hexdigest())


A9A = b"-1 3:1 123:1 \n+1 1:1 \n"


def test_a_libsvm_file_is_read_packed_or_plain(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _known(monkeypatch, **{"a9a": A9A, "a9a.t": A9A})
    (tmp_path / "a9a.xz").write_bytes(lzma.compress(A9A))
    (tmp_path / "a9a.t").write_bytes(A9A)
    split = loaders.load_a9a(tmp_path)
    assert split.x_train.shape == split.x_test.shape == (2, 123)
    assert split.x_train[0, 122] == 1
    assert split.y_train.tolist() == [-1, 1]


def test_a_changed_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a9a.gz").write_bytes(gzip.compress(A9A))
    with pytest.raises(DataError, match=r"a9a\.gz is not the published file"):
        loaders.load_a9a(tmp_path)
    (tmp_path / "a9a.gz").write_bytes(b"not gzip")
    with pytest.raises(DataError, match="unpacked"):
        loaders.load_a9a(tmp_path)


@pytest.mark.parametrize("load", [*LOADERS, loaders.load_gisette], ids=lambda load: load.__name__)
def test_a_missing_folder_or_file_is_explained(
    load: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HALFMASK_DATA", raising=False)
    with pytest.raises(DataError, match="HALFMASK_DATA"):
        load()
    with pytest.raises(DataError, match="not a folder"):
        load(tmp_path / "none")
    monkeypatch.setenv("HALFMASK_DATA", str(tmp_path))
    with pytest.raises(DataError, match="has no file"):
        load()


def _purchases(rows: int, label: str = "100", cell: str = "1") -> bytes:
    return "".join(f'"{label}",{",".join([cell] * 600)}\n' for _ in range(rows)).encode()


def test_purchase100_reads_the_published_format(tmp_path: Path) -> None:
    path = tmp_path / "dataset_purchase"
    path.write_bytes(_purchases(3) + _purchases(2, "1", "0").replace(b'"', b""))
    x, y = loaders.load_purchase100(path)
    assert x.shape == (5, 600)
    assert x.sum(axis=1).tolist() == [600, 600, 600, 0, 0]
    assert y.tolist() == [99, 99, 99, 0, 0]


@pytest.mark.parametrize(
    "content", [_purchases(2, "101"), _purchases(2, "0"), _purchases(2, "1", "2"), b"1,0,1\n", b""]
)
def test_another_format_is_not_taken_for_purchases(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "dataset_purchase"
    path.write_bytes(content)
    with pytest.raises(DataError, match="published format"):
        loaders.load_purchase100(path)


def test_gisette_is_checked_by_its_size(tmp_path: Path) -> None:
    (tmp_path / "gisette_scale").write_bytes(b"-1 1:0.5 5000:-1\n")
    with pytest.raises(DataError, match="1 rows, the published file 6000"):
        loaders.load_gisette(tmp_path)
    (tmp_path / "gisette_scale").write_bytes(b"words\n")
    with pytest.raises(DataError, match="LIBSVM"):
        loaders.load_gisette(tmp_path)


def test_idx_files_are_read_and_broken_ones_refused() -> None:
    good = struct.pack(">4B2I", 0, 0, 8, 2, 2, 3) + bytes(range(6))
    np.testing.assert_array_equal(read_idx(good), [[0, 1, 2], [3, 4, 5]])
    for broken in (b"", b"\1" + good[1:], good[:6], good[:-1], good + b"\0"):
        with pytest.raises(DataError, match="IDX"):
            read_idx(broken)


def _tiny_mnist(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    draw = np.random.RandomState(0)
    contents = {}
    for part, rows in (("train", 6200), ("t10k", 1200)):
        digits = np.arange(rows) % 2 * 5 + 4
        images = draw.randint(0, 256, size=(rows, 784), dtype=np.uint8)
        contents[f"mnist-{part}-images-idx3-ubyte"] = (
            struct.pack(">4B3I", 0, 0, 8, 3, rows, 28, 28) + images.tobytes()
        )
        contents[f"mnist-{part}-labels-idx1-ubyte"] = (
            struct.pack(">4BI", 0, 0, 8, 1, rows) + digits.astype(np.uint8).tobytes()
        )
    _known(monkeypatch, **contents)
    for name, content in contents.items():
        (folder / name).write_bytes(content)


def test_gisette_is_rebuilt_by_its_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _tiny_mnist(tmp_path, monkeypatch)
    split = loaders.load_gisette_rebuilt(tmp_path)
    assert split.x_train.shape == (6000, 5000)
    assert split.x_test.shape == (1000, 5000)
    assert split.y_train.sum() == split.y_test.sum() == 0
    assert np.abs(split.x_train).max() <= 1
    sums = np.sort(split.x_test.sum(axis=0))
    np.testing.assert_allclose(sums[::2], sums[1::2], atol=1e-9)


if PUBLISHED:

    def test_the_embedded_census_is_the_published_one() -> None:
        train, test, _ = datasets.load_adult()
        published = datasets.load_adult_files()
        assert train.equals(published[0])
        assert test.equals(published[1])

    def test_published_files_have_the_published_sizes() -> None:
        a9a, mnist = loaders.load_a9a(), loaders.load_mnist()
        assert (a9a.x_train.shape, a9a.x_test.shape) == ((32561, 123), (16281, 123))
        assert (mnist.x_train.shape, mnist.x_test.shape) == ((60000, 784), (10000, 784))
        x, y = loaders.load_location30()
        assert x.shape == (5010, 446)
        assert set(y.tolist()) == set(range(30))

    def test_rows_of_a9a_are_those_of_the_embedded_census() -> None:
        train, _, schema = datasets.load_adult()
        label = Encoder.fit(schema, train).encode(train).label
        assert label is not None
        np.testing.assert_array_equal(loaders.load_a9a().y_train, 2 * label - 1)

    def test_gisette_rebuilt_is_the_same_everywhere() -> None:
        split = loaders.load_gisette_rebuilt()
        assert split.y_train[:5].tolist() == [1, -1, 1, 1, -1]
        assert split.x_train[:, :5].sum() == pytest.approx(-26050.168366013073)
