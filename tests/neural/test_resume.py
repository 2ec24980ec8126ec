"""An interrupted training goes on where it was, within its budget, and says what it charged."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from halfmask.accounting.events import Event, PoissonGaussianEvent
from halfmask.accounting.ledger import Ledger
from halfmask.cli import main
from halfmask.model import Model
from halfmask.neural import trainer
from halfmask.neural.checkpoint import Checkpoint
from halfmask.schema import Column, Label, Schema

STEPS, BLOCK = 160, 20
EPSILON = 2.0


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A table of which one column and a label of two classes are public."""
    generator = np.random.default_rng(0)
    rows = ["shown,hidden,kind"]
    for _ in range(400):
        kind = generator.integers(0, 2)
        shown, hidden = generator.normal(kind, 1, 2)
        rows.append(f"{shown:.3f},{hidden:.3f},{kind}")
    (tmp_path / "rows.csv").write_text("\n".join(rows) + "\n")
    schema = Schema(
        label=Label(name="kind", role="public", classes=("0", "1")),
        columns=(
            Column(name="shown", role="public", kind="number", bins=4),
            Column(name="hidden", role="private", kind="number", bounds=(-3.0, 4.0), bins=4),
        ),
    )
    (tmp_path / "schema.toml").write_text(schema.to_toml())
    return tmp_path


def arguments(folder: Path, *more: str) -> list[str]:
    return [
        "train",
        str(folder / "rows.csv"),
        *("--schema", str(folder / "schema.toml"), "--method", "mlp"),
        *("--epsilon", str(EPSILON), "--out", str(folder / "model"), *more),
    ]


def run(folder: Path, *more: str) -> Result:
    return CliRunner().invoke(main, arguments(folder, *more))


def stop_after(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, calls: int) -> None:
    """Interrupt the process right after a number of calls."""
    real, count = getattr(owner, name), [0]

    def counted(*given: Any, **named: Any) -> Any:
        result = real(*given, **named)
        count[0] += 1
        if count[0] == calls:
            raise KeyboardInterrupt
        return result

    monkeypatch.setattr(owner, name, counted)


def steps_of(events: Sequence[Event]) -> int:
    assert all(isinstance(event, PoissonGaussianEvent) for event in events)
    return sum(event.steps for event in events if isinstance(event, PoissonGaussianEvent))


def begun_steps(folder: Path) -> int:
    """Steps of which the ledger was told that they begin; the charge is that of the whole plan."""
    chain = Ledger.open(folder / "model" / "ledger.jsonl").verify()
    (charge,) = chain.charges
    assert charge.run is not None
    assert steps_of(charge.events) == STEPS
    return steps_of(chain.begun(charge.seq))


def finished(folder: Path) -> None:
    """The model's statement is what its ledger holds, once, and that is within the budget."""
    ledger = Ledger.open(folder / "model" / "ledger.jsonl")
    assert begun_steps(folder) == STEPS
    assert ledger.spent() <= EPSILON
    statement = Model.load(folder / "model").privacy
    assert statement.events == ledger.events()
    assert statement.calibrated_epsilon == pytest.approx(ledger.spent())
    assert statement.calibrated_epsilon > 0.98 * EPSILON
    assert not (folder / "model" / "checkpoint.npz").exists()


@pytest.mark.slow
def test_a_training_that_was_not_interrupted_charges_its_steps_once(folder: Path) -> None:
    done = run(folder)
    assert done.exit_code == 0, done.output
    finished(folder)
    assert "160 noisy mean gradients" in " ".join(done.output.split())
    assert "interrupted" not in done.output


def test_between_two_blocks_nothing_is_lost(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        stop_after(patch, Checkpoint, "save", 3)
        assert run(folder).exit_code != 0
    assert begun_steps(folder) == 3 * BLOCK
    assert run(folder).exit_code == 2  # without --resume the folder is not touched
    done = run(folder, "--resume")
    assert done.exit_code == 0, done.output
    finished(folder)
    assert "interrupted" in done.output


def test_a_block_that_was_lost_counts_as_taken(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twice: no step is taken again, so that all of them stay within the one charge."""
    taken = [0]
    real = trainer._one_step

    def counted(*given: Any, **named: Any) -> Any:
        taken[0] += 1
        return real(*given, **named)

    monkeypatch.setattr(trainer, "_one_step", counted)
    for place, steps in enumerate((2 * BLOCK + 5, BLOCK + 5)):
        with monkeypatch.context() as patch:
            stop_after(patch, trainer, "_one_step", steps)
            assert run(folder, *(["--resume"] if place else [])).exit_code != 0
    assert begun_steps(folder) == 5 * BLOCK
    done = run(folder, "--resume")
    assert done.exit_code == 0, done.output
    finished(folder)
    assert taken[0] == STEPS - 2 * (BLOCK - 5)


def test_no_block_begins_twice_even_if_it_is_interrupted_for_ever(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nine interrupted runs: each loses a block, and then none is left to take."""
    with monkeypatch.context() as patch:
        for place in range(8):
            stop_after(patch, trainer, "_one_step", 1)
            assert run(folder, *(["--resume"] if place else [])).exit_code != 0
            assert begun_steps(folder) == (place + 1) * BLOCK
            patch.undo()
        stop_after(patch, trainer, "_one_step", 1)
        done = run(folder, "--resume")
    assert done.exit_code == 0, done.output
    finished(folder)


def test_an_older_checkpoint_gives_no_fresh_noise(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ledger, not the checkpoint, says which steps have begun."""
    stored = folder / "model" / "checkpoint.npz"
    with monkeypatch.context() as patch:
        stop_after(patch, Checkpoint, "save", 2)
        assert run(folder).exit_code != 0
    old = stored.read_bytes()
    with monkeypatch.context() as patch:
        stop_after(patch, Checkpoint, "save", 3)
        assert run(folder, "--resume").exit_code != 0
    stored.write_bytes(old)
    assert begun_steps(folder) == 5 * BLOCK
    done = run(folder, "--resume")
    assert done.exit_code == 0, done.output
    finished(folder)


def test_a_model_s_older_ledger_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    book = folder / "model" / "ledger.jsonl"
    with monkeypatch.context() as patch:
        stop_after(patch, Checkpoint, "save", 2)
        assert run(folder).exit_code != 0
    old = [file.read_bytes() for file in (book, book.with_name("ledger.jsonl.head"))]
    with monkeypatch.context() as patch:
        stop_after(patch, Checkpoint, "save", 1)
        assert run(folder, "--resume").exit_code != 0
    book.write_bytes(old[0])
    book.with_name("ledger.jsonl.head").write_bytes(old[1])
    refused = run(folder, "--resume")
    assert refused.exit_code == 2
    assert "ahead of the ledger" in " ".join(refused.output.split())


def test_a_training_goes_on_within_its_charge_in_the_data_set_s_ledger(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside a twin whose charge is just the same: each goes on within its own."""
    file = folder / "data.jsonl"
    book = Ledger.create(file, epsilon=3.3, delta=1e-6)
    shared = ("--ledger", str(file))
    with monkeypatch.context() as patch:
        stop_after(patch, Checkpoint, "save", 3)
        assert run(folder, *shared).exit_code != 0
    twin = [*arguments(folder, *shared), "--out", str(folder / "twin")]
    with monkeypatch.context() as patch:
        stop_after(patch, trainer, "_one_step", 5)
        assert CliRunner().invoke(main, twin).exit_code != 0
    third = CliRunner().invoke(main, [*arguments(folder, *shared), "--out", str(folder / "third")])
    assert third.exit_code == 3
    assert not (folder / "third").exists()
    done = run(folder, *shared, "--resume")
    assert done.exit_code == 0, done.output
    chain = book.verify()
    assert [steps_of(charge.events) for charge in chain.charges] == [STEPS, STEPS]
    first, second = chain.charges
    assert steps_of(chain.begun(first.seq)) == STEPS
    assert steps_of(chain.begun(second.seq)) == BLOCK
    assert Model.load(folder / "model").privacy.events == first.events
    assert CliRunner().invoke(main, [*twin, "--resume"]).exit_code == 0
    assert steps_of(book.verify().begun(second.seq)) == STEPS
    assert not list((folder / "model").glob("checkpoint*"))


def test_a_finished_model_of_another_method_does_not_go_on(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """gd releases without telling which parts have begun: what it has charged is spent."""
    gd = [word if word != "mlp" else "gd" for word in arguments(folder)]
    assert CliRunner().invoke(main, gd).exit_code == 0
    (folder / "model" / "model.json").unlink()
    again = CliRunner().invoke(main, [*gd, "--resume"])
    assert again.exit_code == 3
    assert run(folder, "--resume").exit_code == 3


def test_a_seeded_run_goes_on_bit_for_bit(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(folder, "--unsafe-seed", "7").exit_code == 0
    whole = Model.load(folder / "model").arrays()
    (folder / "model").rename(folder / "whole")
    with monkeypatch.context() as patch:
        stop_after(patch, Checkpoint, "save", 5)
        assert run(folder, "--unsafe-seed", "7").exit_code != 0
    assert run(folder, "--unsafe-seed", "7", "--resume").exit_code == 0
    parts = Model.load(folder / "model").arrays()
    assert all(np.array_equal(whole[name], parts[name]) for name in whole)


def test_a_checkpoint_needs_its_ledger_and_its_rows(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        stop_after(patch, Checkpoint, "save", 1)
        assert run(folder).exit_code != 0
    rows = (folder / "rows.csv").read_text()
    (folder / "rows.csv").write_text(rows + "1.0,1.0,1\n")
    other = run(folder, "--resume")
    assert other.exit_code == 2
    assert "another training" in other.output
    (folder / "rows.csv").write_text(rows)
    for file in (folder / "model").glob("ledger*"):
        file.unlink()
    gone = run(folder, "--resume")
    assert gone.exit_code != 0
    assert "ledger holds no charge" in gone.output
    (folder / "model" / "checkpoint.npz").write_bytes(b"not a checkpoint")
    torn = run(folder, "--resume")
    assert torn.exit_code == 2
    assert "damaged" in torn.output


@pytest.mark.slow
def test_a_killed_process_goes_on(folder: Path) -> None:
    """A real process, ended without warning once it has stored something."""
    command = [
        sys.executable,
        "-c",
        "from halfmask.cli import main; main()",
        *arguments(folder, "--json"),
    ]
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env={**os.environ}
    )
    stored, ends = folder / "model" / "checkpoint.npz", time.monotonic() + 120
    while not stored.exists() and process.poll() is None and time.monotonic() < ends:
        time.sleep(0.001)
    process.send_signal(signal.SIGKILL)
    process.wait()
    if (folder / "model" / "model.json").exists():
        pytest.skip("the training ended before it could be killed")
    done = subprocess.run([*command, "--resume"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    finished(folder)
    assert json.loads(done.stdout)["privacy"]["notes"]
