"""Rows spread over machines: the same sums, one noise, one ledger, and no orphans."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
import spread
from spread import FITS, N, fit, together

from halfmask.accounting.budget import Budget
from halfmask.accounting.ledger import Ledger
from halfmask.errors import InputError
from halfmask.mechanisms.release import SharedReleaser
from halfmask.neural.distributed import Ranks

TORCHRUN = [str(Path(sys.executable).parent / "torchrun"), "--standalone", "--nproc-per-node", "2"]
ENV = {**os.environ, "OMP_NUM_THREADS": "1"}
# Private steps and releases are equal; pretraining draws other public batches on two machines.
SAME = [name for name in FITS if name != "default network"]


def close(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return bool(np.allclose(one["scores"], other["scores"], rtol=1e-6, atol=1e-6))


@pytest.fixture(scope="module")
def alone() -> dict[str, Any]:
    return {name: fit(name) for name in FITS}


@pytest.mark.parametrize("name", FITS)
@pytest.mark.parametrize("count", [2, 3])
def test_spread_rows_give_the_model_of_one_machine(
    name: str, count: int, alone: dict[str, Any]
) -> None:
    found = together(count, lambda ranks: fit(name, ranks))
    for each in found:
        assert isinstance(each, dict), each
        assert each["epsilon"] == alone[name]["epsilon"]
        assert each["released"] == alone[name]["released"]
        assert each["pairs"] == alone[name]["pairs"]
        assert bool(each["pairs"]) == ("pairs" in name)
        assert each["products"] == alone[name]["products"]
        assert each["products"] or "products" not in name
        assert close(each, found[0])
        if name in SAME:
            assert close(each, alone[name])


@pytest.mark.parametrize("name", FITS)
def test_what_machines_send_without_noise_holds_nothing_private(name: str) -> None:
    one, other = (spread.traffic(name, changed=changed) for changed in (False, True))
    for sent, elsewhere in zip(one, other, strict=True):
        assert isinstance(sent, list), sent
        assert len(sent) > 1
        assert sent == elsewhere


def test_the_statement_says_who_saw_exact_sums(alone: dict[str, Any]) -> None:
    found = together(2, lambda ranks: fit("gd, label public", ranks))
    assert "2 machines that trust each other" in found[0]["notes"][0]
    assert alone["gd, label public"]["notes"] == []


def test_noise_is_added_once_and_by_the_first_machine() -> None:
    found = together(3, spread.noise_alone)
    assert found[0] == found[1] == found[2] == spread.noise_alone(None)


def test_exact_sums_reach_the_first_machine_alone() -> None:
    found = together(3, lambda ranks: ranks.to_first(np.full(2, 1.0 + ranks.rank)).tolist())
    assert found == [[6.0, 6.0], [0.0, 0.0], [0.0, 0.0]]


def test_no_machine_goes_on_where_the_ledger_refuses() -> None:
    assert together(3, spread.refused_charge) == [
        "BudgetExceededError",
        "MachineLostError",
        "MachineLostError",
    ]


def test_machines_draw_batches_of_their_own() -> None:
    first, second = together(2, spread.batches_drawn)
    assert first != second


def test_methods_and_tables_that_need_all_rows_are_refused() -> None:
    from dataclasses import replace

    from halfmask.mechanisms.noise import noise_source
    from halfmask.training import train

    ranks = Ranks(0, 2, None)  # type: ignore[arg-type]
    whole = spread.table("private")
    persons = replace(whole, unit=np.arange(N) // 2, max_rows=2)
    for rows, method, words in ((whole, "sgd", "gd, mlp"), (persons, "gd", "unit")):
        with pytest.raises(InputError, match=words):
            train(
                rows,
                Budget(epsilon=1.0, delta=1e-5),
                method=method,
                noise=noise_source(1),
                ranks=ranks,
            )


def test_machines_that_compute_differently_are_refused_before_a_charge(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from halfmask import training

    def own() -> np.ndarray:
        return np.array([float(threading.get_ident())])

    def never(*_: Any, **__: Any) -> Any:
        raise AssertionError("something was to be released")

    monkeypatch.setattr(training, "_axes_of_a_kernel", own)
    name = "additive, label alone private"
    for error in together(2, lambda ranks: fit(name, ranks, door=never)):
        assert isinstance(error, InputError)
        assert "machines of one kind" in str(error)


def test_a_checkpoint_of_several_machines_is_refused(tmp_path: Path) -> None:
    import torch

    from halfmask.accounting.ledger import MemoryLedger
    from halfmask.neural.checkpoint import Checkpoint
    from halfmask.neural.network import Mlp
    from halfmask.neural.trainer import TrainerConfig, TrainingRows, train_privately

    config = TrainerConfig(
        steps=1, rate=1.0, clip_norm=1.0, noise_multiplier=1.0, learning_rate=1.0
    )
    rows = TrainingRows(real=torch.zeros(4, 2), labels=torch.zeros(4, dtype=torch.long))
    ledger = MemoryLedger(epsilon=10.0, delta=1e-5, relation="replace")

    def train(ranks: Ranks) -> None:
        stored = Checkpoint(tmp_path / "run", every=1)
        releaser = SharedReleaser(ledger, spread.noise_of(ranks), ranks)
        train_privately(Mlp((2, 2)), rows, config, releaser, checkpoint=stored)

    assert all(isinstance(error, InputError) for error in together(2, train))
    assert ledger.events() == ()


def test_every_row_of_a_common_file_is_taken_once() -> None:
    for rows, count in ((7, 3), (1000, 7), (2, 2)):
        parts = [Ranks(rank, count, None).own(rows) for rank in range(count)]  # type: ignore[arg-type]
        assert [row for part in parts for row in part] == list(range(rows))
    with pytest.raises(InputError, match="start fewer"):
        Ranks(0, 3, None).own(2)  # type: ignore[arg-type]


@pytest.mark.slow
def test_two_ranks_under_torchrun_are_one_process(tmp_path: Path, alone: dict[str, Any]) -> None:
    done = subprocess.run(
        [*TORCHRUN, spread.__file__, str(tmp_path)],
        env=ENV,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    found = [json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in range(2)]
    for name in FITS:
        for each in found:
            assert each["fits"][name]["epsilon"] == alone[name]["epsilon"]
            assert close(each["fits"][name], found[0]["fits"][name])
        if name in SAME:
            assert close(found[0]["fits"][name], alone[name])
    assert [each["refused"] for each in found] == ["BudgetExceededError", "MachineLostError"]
    assert found[0]["batch"] != found[1]["batch"]
    assert found[0]["noise"] == found[1]["noise"] == spread.noise_alone(None)
    assert found[0]["gathered"] == [[0, 0], [1, 1], [1, 1]]
    turned = [[0, 3], [1, 4], [2, 5], [10, 13], [11, 14], [12, 15]]
    assert found[0]["turned"] == found[1]["turned"] == turned


def write_table(folder: Path) -> None:
    generator = np.random.default_rng(0)
    names = [f"x{i}" for i in range(200)]
    columns = {name: generator.random(20_000).astype(np.float32) for name in names}
    kind = generator.integers(0, 2, 20_000)
    pa.parquet.write_table(pa.table({**columns, "kind": kind}), folder / "rows.parquet")
    declared = "".join(
        f'[columns.{name}]\nrole = "private"\nkind = "number"\nbounds = [0, 1]\nbins = 0\n'
        for name in names
    )
    label = '[label]\nname = "kind"\nrole = "private"\nclasses = [0, 1]\n'
    (folder / "rows.toml").write_text(label + declared)


def rank_process(agent: int, rank: int) -> int:
    """The process that torchrun's agent has started as `rank`."""
    for child in Path(f"/proc/{agent}/task/{agent}/children").read_text().split():
        given = Path(f"/proc/{child}/environ").read_bytes().split(b"\0")
        if f"RANK={rank}".encode() in given:
            return int(child)
    raise AssertionError(f"torchrun runs no rank {rank}")


@pytest.mark.slow
@pytest.mark.parametrize("lost", [0, 1])
def test_a_killed_rank_ends_the_run_with_an_error_and_a_whole_ledger(
    lost: int, tmp_path: Path
) -> None:
    write_table(tmp_path)
    options = ["--schema", "rows.toml", "--epsilon", "4", "--method", "mlp", "--out", "model"]
    train = ["--no-python", str(Path(sys.executable).parent / "halfmask"), "train", "rows.parquet"]
    run = subprocess.Popen(
        [*TORCHRUN, *train, *options],
        env=ENV,
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    ledger = tmp_path / "model" / "ledger.jsonl"
    try:
        until = time.monotonic() + 200
        while not (ledger.exists() and ledger.read_text().count("\n") > 1):
            assert run.poll() is None, run.communicate()
            assert time.monotonic() < until
            time.sleep(0.01)
        os.kill(rank_process(run.pid, lost), signal.SIGKILL)
        printed, said = run.communicate(timeout=120)
    finally:
        if run.poll() is None:
            run.terminate()
            run.communicate(timeout=60)
    assert run.returncode != 0
    assert "Error: Another machine of this run was lost" in said or "Error: Told to stop" in said
    assert "start all machines again" in said
    assert "distributed.py" not in said
    assert printed == ""
    assert len(Ledger.open(ledger).verify().entries) == 1
    assert not (tmp_path / "model" / "model.json").exists()
