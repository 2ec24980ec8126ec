"""Codes that do not fit in memory are mapped from a file that nobody else can open."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from halfmask.accounting.budget import Budget
from halfmask.data import products as code_sums
from halfmask.data import scratch
from halfmask.errors import DataError
from halfmask.mechanisms.noise import noise_source
from halfmask.schema import Column, Label, Schema
from halfmask.table import Encoder, Table
from halfmask.training import train

NAMES = "abcd"


def frame(n: int = 3000) -> pa.Table:
    rng = np.random.default_rng(2)
    cells = {name: rng.random(n) for name in NAMES}
    return pa.table({**cells, "y": np.where(rng.random(n) < cells["a"], "yes", "no")})


def schema(bins: int | None = None) -> Schema:
    roles = ("public", "public", "private", "private")
    columns = [
        Column(name, role, "number", bounds=(0, 1), bins=bins)  # type: ignore[arg-type]
        for name, role in zip(NAMES, roles, strict=True)
    ]
    return Schema(Label("y", "private", classes=("no", "yes")), tuple(columns))


def short_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scratch, "_LITTLE", 0)
    monkeypatch.setattr(scratch, "available", lambda: 1000)
    monkeypatch.setattr(code_sums, "_FEW_ROWS", 0)


def mapped(array: np.ndarray | None) -> bool:
    return array is not None and isinstance(array.base, np.memmap)


OPTIONS: dict[str, dict[str, Any]] = {
    "mlp": {"recipe": "algorithm-1", "padding": "middle", "steps": 5, "hidden": 8},
    "dp-sgd": {"steps": 20},
}


@pytest.mark.parametrize(
    "method", ["additive", "gd", "one-shot", "sgd", "dp-sgd", "label-span", "mlp"]
)
@pytest.mark.parametrize("bins", [None, 0])
def test_a_model_from_mapped_codes_is_that_from_codes_in_memory(
    method: str, bins: int | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def fitted(table: Table) -> dict[str, np.ndarray]:
        model = train(
            table,
            Budget(epsilon=1.0, delta=1e-6),
            method=method,
            noise=noise_source(4),
            options=OPTIONS.get(method),
        )
        assert not list(tmp_path.iterdir())
        return model.arrays()

    declared = schema(bins)
    if method == "label-span":
        public = (replace(column, role="public") for column in declared.columns)
        declared = replace(declared, columns=tuple(public))
    elif method == "mlp":
        pretrain = pytest.importorskip("halfmask.neural.pretrain")
        monkeypatch.setattr(pretrain, "_HELD", 0)
    rows, encoder = frame(), Encoder.fit(declared, frame())
    held = encoder.encode(rows)
    first = fitted(held)
    short_of_memory(monkeypatch)
    table = encoder.encode(rows)
    for column, other in zip(table.features.columns, held.features.columns, strict=True):
        assert mapped(column.codes)
        assert not mapped(other.codes)
        assert column.numbers is None or mapped(column.numbers)
    second = fitted(table)
    assert all(first[name].tobytes() == second[name].tobytes() for name in first)


def test_packed_codes_are_mapped_too(monkeypatch: pytest.MonkeyPatch) -> None:
    short_of_memory(monkeypatch)
    table = Encoder.fit(schema(), frame()).encode(frame())
    sums = code_sums.CodeSums(table.coded)
    assert all(mapped(codes) for _, codes in sums._packs)


def test_nothing_is_mapped_where_memory_suffices_or_is_unknown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    short_of_memory(monkeypatch)
    for free in (None, 1 << 40):
        monkeypatch.setattr(scratch, "available", lambda free=free: free)
        with scratch.Room(1000) as room:
            assert not mapped(room.zeros(1000, np.uint8))


def test_a_disk_that_is_too_small_shows_before_a_row_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    short_of_memory(monkeypatch)
    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(DataError, match="TMPDIR"):
        Encoder.fit(schema(), frame()).encode(frame())


PROGRAM = """
import sys, time
from halfmask.data import scratch
from halfmask.mechanisms.release import GaussianSeries
scratch._LITTLE, scratch._SHARE = 0, 0.0
def waits(*_):
    print("fitting", flush=True)
    time.sleep(60)
GaussianSeries.release = waits
from halfmask.cli import main
main()
"""


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_training_that_is_stopped_leaves_no_codes_behind(
    how: signal.Signals, tmp_path: Path
) -> None:
    store = tmp_path / "store"
    store.mkdir()
    parquet.write_table(frame(), tmp_path / "rows.parquet")
    (tmp_path / "rows.toml").write_text(schema().to_toml(), encoding="utf-8")
    words = ["train", "rows.parquet", "--schema", "rows.toml", "--epsilon", "1", "--delta", "1e-6"]
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *words, "--out", "model"],
        cwd=tmp_path,
        env={**os.environ, "TMPDIR": str(store)},
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "fitting\n"
        maps = Path(f"/proc/{process.pid}/maps").read_text(encoding="utf-8")
        # The codes are there, in a file that is deleted already.
        assert f"{store}/" in maps
        assert all(line.endswith("(deleted)") for line in maps.splitlines() if str(store) in line)
        assert not list(store.iterdir())
        process.send_signal(how)
        process.wait(timeout=20)
    time.sleep(0.1)
    assert not list(store.iterdir())
