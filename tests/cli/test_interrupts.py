"""Ctrl-C ends every command with 130; what was not released costs nothing, no file is half there.

Guarantee: docs/proofs/ledger.md.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.csv
import pytest

from halfmask.accounting import ledger as ledger_file
from halfmask.accounting.budget import Budget
from halfmask.accounting.events import GaussianEvent
from halfmask.accounting.ledger import BudgetLedger, Ledger, MemoryLedger
from halfmask.datasets import load_adult
from halfmask.errors import AccountingError, DataError, LedgerError
from halfmask.mechanisms import release
from halfmask.mechanisms.noise import noise_source
from halfmask.model import Model
from halfmask.table import Encoder, Table
from halfmask.training import train
from ledgers import SMALL, charged

TRAIN, _, CENSUS = load_adult()
PROGRAM = [sys.executable, "-P", "-m", "halfmask"]


def test_ctrl_c_while_the_program_is_imported(tmp_path: Path) -> None:
    # Where tests run in the background, Ctrl-C may be ignored from the start.
    (tmp_path / "click.py").write_text(
        "import os, signal\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "os.kill(os.getpid(), signal.SIGINT)\n"
    )
    path = os.pathsep.join([str(tmp_path), *sys.path])
    found = subprocess.run(
        [*PROGRAM, "--help"], env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True
    )
    assert (found.returncode, found.stdout, found.stderr) == (130, "", "Interrupted.\n")


def test_ctrl_c_within_an_exec_ends_with_130_too(tmp_path: Path) -> None:
    """Python remembers it, and would end by the signal; what was to be done at the end is done."""
    program = (
        "import atexit, click, sys, halfmask.cli as cli\nfrom halfmask.__main__ import main\n"
        "@click.command()\ndef probe():\n    atexit.register(print, 'cleaned up')\n"
        "    exec('import signal; signal.raise_signal(signal.SIGINT)')\n"
        "cli.probe = probe\ncli.COMMANDS['probe'] = ('halfmask.cli:probe', '')\n"
        "sys.argv[1:] = ['probe']\nmain()"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (found.returncode, found.stdout, found.stderr) == (130, "cleaned up\n", "Interrupted.\n")


def test_a_charge_that_was_taken_back_is_as_if_it_had_not_been(ledger: Ledger) -> None:
    charged(ledger, 2)
    spent = ledger.spent()
    number = ledger.charge([SMALL], "interrupted", run="name")
    other = Ledger.open(ledger.path)
    ledger.refund(number)
    assert ledger.spent() == spent
    assert len(other.entries()) == 2
    with pytest.raises(AccountingError, match="no charge 3"):
        other.refund(number)
    with pytest.raises(AccountingError):
        ledger.begin_part(number, [SMALL], "a part of it")
    charged(other, 1)
    assert [entry.seq for entry in ledger.entries()] == [1, 2, 5]


def test_a_line_that_takes_back_what_does_not_precede_it_is_refused(ledger: Ledger) -> None:
    charged(ledger, 1)
    with ledger_file.locked(ledger.path, write=True) as fd:
        chain = ledger._verified(fd)
        with pytest.raises(LedgerError, match="does not come before"):
            ledger._write(fd, chain, "forged", (), seeded=False, refunds=2)


@pytest.mark.parametrize("part", [0.0, 0.5, 1.0])
def test_ctrl_c_at_any_call_of_a_charge_leaves_no_charge(
    ledger: Ledger, part: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before each writing system call, after a part of a write, and after the last of them."""
    charged(ledger)
    before = ledger.path.read_bytes()
    for step in range(50):
        book, done = Ledger.open(ledger.path), 0

        def interrupting(name: str, real: Any) -> Any:
            def call(*args: Any) -> Any:
                nonlocal done
                done += 1
                if done == step + 1:  # noqa: B023
                    if name == "write":
                        real(args[0], bytes(args[1])[: int(part * len(args[1]))])
                    elif part:
                        real(*args)
                    raise KeyboardInterrupt
                return real(*args)

            return call

        with monkeypatch.context() as patch:
            for name in ("write", "fsync", "replace", "close"):
                patch.setattr(ledger_file.os, name, interrupting(name, getattr(os, name)))
            try:
                book.charge([SMALL], "perhaps")
                break
            except KeyboardInterrupt:
                pass
        assert len(Ledger.open(ledger.path).entries()) == 3
        assert book.events() == Ledger.open(ledger.path).events()
    assert step > 6
    assert ledger.path.read_bytes().startswith(before)


def small_table() -> Table:
    rows = TRAIN.slice(0, 400)
    return Encoder.fit(CENSUS, rows).encode(rows)


def fit(ledger: BudgetLedger, method: str) -> Model:
    budget = Budget(epsilon=1.0, delta=1e-6)
    return train(small_table(), budget, method=method, noise=noise_source(), ledger=ledger)


def ends_at(
    monkeypatch: pytest.MonkeyPatch, number: int, error: type[BaseException] = KeyboardInterrupt
) -> None:
    """Let the noise of release `number` (from 0) be the last thing that happens."""
    drawn = 0
    real = release.add_gaussian

    def noise(*given: Any) -> Any:
        nonlocal drawn
        drawn += 1
        if drawn > number:
            raise error
        return real(*given)

    monkeypatch.setattr(release, "add_gaussian", noise)


@pytest.mark.parametrize("method", ["additive", "gd", "sgd", "one-shot"])
def test_ctrl_c_between_the_charge_and_the_first_value_costs_nothing(
    tmp_path: Path, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = Ledger.create(tmp_path / "ledger", epsilon=1.0, delta=1e-6)
    for ledger in (file, MemoryLedger(epsilon=1.0, delta=1e-6)):
        with monkeypatch.context() as patch:
            ends_at(patch, 0)
            with pytest.raises(KeyboardInterrupt):
                fit(ledger, method)
        assert ledger.spent() == 0.0
    assert len(file.verify().entries) == 2, "it was charged, and taken back"


@pytest.mark.parametrize(("number", "error"), [(1, KeyboardInterrupt), (0, DataError)])
def test_what_may_have_left_stays_charged(
    number: int, error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the first value; and after an error, which may follow from a private value."""
    ledger = MemoryLedger(epsilon=1.0, delta=1e-6)
    ends_at(monkeypatch, number, error)
    with pytest.raises(error):
        fit(ledger, "gd")
    assert ledger.spent() > 0.9


def test_a_releaser_without_a_plan_takes_nothing_back() -> None:
    """Its charges are of several releases: which of them has left is not kept."""
    ledger = MemoryLedger(epsilon=9.0, delta=1e-6)
    door = release.Releaser(ledger, noise_source())
    door.open(GaussianEvent(replace=0.1, withhold=0.1), "one")
    door.take_back()
    assert ledger.spent() > 0
    series = door.gaussian_series(
        sensitivity=release.Sensitivity(replace=1, withhold=1), noise_std=20, count=1, what="two"
    )
    series.release(np.zeros(2))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("interrupted")
    pyarrow.csv.write_csv(TRAIN.slice(0, 1500), folder / "people.csv")
    (folder / "people.toml").write_text(CENSUS.to_toml())
    return folder


def interrupted(words: list[str], folder: Path, after: float) -> tuple[int, str, str]:
    """A real process that gets SIGINT `after` seconds; its exit code, output and errors."""
    child = subprocess.Popen(
        [*PROGRAM, *words], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    time.sleep(after)
    child.send_signal(signal.SIGINT)
    out, errors = child.communicate(timeout=60)
    return child.returncode, out, errors


def assert_whole(folder: Path, code: int, out: str, errors: str) -> None:
    """Ended by Ctrl-C, or finished before it came; no folder in between, no half of a file."""
    if "KeyboardInterrupt" in errors:
        # Python itself ends so before a line of halfmask is run; a shell calls it 130 too.
        assert code == -signal.SIGINT
        assert "cli/__init__.py" not in errors.splitlines()[-2]
        return
    assert code in (130, 0), errors
    assert "Traceback" not in errors
    assert "defect" not in errors
    assert not list(folder.rglob("*.part*"))
    model, own, shared = folder / "m", folder / "m" / "ledger.jsonl", folder / "book"
    if code == 130:
        assert json.loads(out or "{}").get("error", {}).get("kind") in (None, "interrupted")
        assert "Interrupted." in errors
    spent = Ledger.open(own if own.exists() else shared).spent()
    if (model / "model.json").exists():
        assert Model.load(model).privacy.epsilon <= spent * (1 + 1e-9)
    elif own.exists():
        assert spent > 0, "an unused ledger was left behind"
        assert "stays spent" in errors
    else:
        assert not model.exists()
        assert (spent > 0) == ("stays spent" in errors)


def tries(folder: Path, tmp_path: Path, count: int, method: str, longest: float) -> None:
    rng = random.Random()
    for number in range(count):
        here = tmp_path / str(number)
        here.mkdir()
        Ledger.create(here / "book", epsilon=1.0, delta=1e-6)
        words = ["train", str(folder / "people.csv"), "--schema", str(folder / "people.toml")]
        words += ["--epsilon", "1", "--method", method, "--out", "m", "--json"]
        words += ["--ledger", "book"] if number % 2 else []
        assert_whole(here, *interrupted(words, here, rng.uniform(0.1, longest)))


def test_ctrl_c_at_random_moments_of_a_training(folder: Path, tmp_path: Path) -> None:
    tries(folder, tmp_path, 4, "gd", 2.0)


@pytest.mark.slow
@pytest.mark.hand
@pytest.mark.parametrize("method", ["gd", "additive", "sgd", "mlp"])
def test_ctrl_c_at_many_random_moments(folder: Path, tmp_path: Path, method: str) -> None:
    tries(folder, tmp_path, 12, method, 5.0)


@pytest.mark.slow
@pytest.mark.hand
def test_ctrl_c_at_random_moments_of_other_commands(folder: Path, tmp_path: Path) -> None:
    """What they write is whole or not there."""
    given = ["people.csv", "--schema", "people.toml", "--epsilon", "4"]
    made = subprocess.run([*PROGRAM, "train", *given, "--out", "m"], cwd=folder)
    assert made.returncode == 0
    people, model = str(folder / "people.csv"), str(folder / "m")
    schema = str(folder / "people.toml")
    commands = {
        "predict": (["predict", model, people, "--out", "scores.csv"], 3.0),
        "report": (["report", model, "--data", people, "--out", "report.html"], 8.0),
        "evaluate": (["evaluate", model, people], 3.0),
        "audit": (["audit", model, "--data", people, "--out", "audit"], 8.0),
        "compare": (["compare", people, "--schema", schema, "--methods", "gd,one-shot",
                     "--epsilon", "2", "--out", "compared"], 5.0),
    }  # fmt: skip
    rng = random.Random()
    for name, (words, longest) in commands.items():
        for number in range(4):
            here = tmp_path / f"{name}{number}"
            here.mkdir()
            code, _, errors = interrupted(words, here, rng.uniform(0.3, longest))
            if code == -signal.SIGINT and "halfmask/cli/__init__.py" not in errors.splitlines()[-3]:
                continue  # before a line of halfmask was run
            assert code in (0, 130, 4), (name, errors)
            assert "Traceback" not in errors, (name, errors)
            assert not list(here.rglob("*.part*")), name
            for page in here.glob("*.html"):
                assert page.read_text().rstrip().endswith("</html>")
            for scores in here.glob("*.csv"):
                assert len(scores.read_text().splitlines()) == 1501
            for stored in here.rglob("*.json"):
                json.loads(stored.read_text())


def test_an_interruption_that_python_would_forget_is_raised_again() -> None:
    """A destructor cannot raise: Python prints what it raised, and goes on."""
    program = (
        "import click, signal, time, halfmask.cli as cli\n"
        "class Gone:\n    def __del__(self):\n        signal.raise_signal(signal.SIGINT)\n"
        "@click.command()\ndef probe():\n    made = Gone(); del made\n    time.sleep(5)\n"
        "cli.probe = probe\ncli.COMMANDS['probe'] = ('halfmask.cli:probe', '')\n"
        "cli.main(['probe'])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 130
    assert done.stderr.strip() == "Interrupted."


def test_a_second_ctrl_c_does_not_disturb_the_cleaning_up() -> None:
    program = (
        "import click, signal, halfmask.cli as cli\n"
        "@click.command()\ndef probe():\n"
        "    try:\n        signal.raise_signal(signal.SIGINT)\n"
        "    finally:\n        signal.raise_signal(signal.SIGINT)\n        print('cleaned up')\n"
        "cli.probe = probe\ncli.COMMANDS['probe'] = ('halfmask.cli:probe', '')\n"
        "cli.main(['probe'])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 130
    assert done.stdout == "cleaned up\n"


def test_an_interruption_that_a_library_made_an_error_of_is_one(
    tmp_path: Path,
) -> None:
    program = (
        "import click, signal, halfmask.cli as cli\n"
        "@click.command()\n@click.option('--json', is_flag=True)\ndef probe(json):\n"
        "    try:\n        signal.raise_signal(signal.SIGINT)\n"
        "    except KeyboardInterrupt:\n        raise ImportError('half an import')\n"
        "cli.probe = probe\ncli.COMMANDS['probe'] = ('halfmask.cli:probe', '')\n"
        "cli.main(['probe', '--json'])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 130
    assert json.loads(done.stdout)["error"]["kind"] == "interrupted"


def test_ctrl_c_while_a_model_is_written_waits_until_it_is_whole(
    folder: Path, tmp_path: Path
) -> None:
    """What is paid for is not thrown away."""
    program = (
        "import signal, sys, halfmask.model as m\nfrom halfmask.cli import main\n"
        "real = m.replacing\n"
        "def slow(target):\n    signal.raise_signal(signal.SIGINT)\n    return real(target)\n"
        "m.replacing = slow\nmain()"
    )
    words = ["train", str(folder / "people.csv"), "--schema", str(folder / "people.toml")]
    words += ["--epsilon", "1", "--method", "gd", "--out", str(tmp_path / "m")]
    done = subprocess.run([sys.executable, "-c", program, *words], capture_output=True, text=True)
    assert done.returncode == 130, done.stderr
    Model.load(tmp_path / "m")


@pytest.mark.parametrize("shared", [True, False])
def test_ctrl_c_between_the_last_release_and_the_model_says_what_it_costs(
    folder: Path, tmp_path: Path, shared: bool
) -> None:
    """The data set's ledger keeps the charge, and no empty folder stays behind."""
    Ledger.create(tmp_path / "book", epsilon=1.0, delta=1e-6)
    program = (
        "import signal, halfmask.training as t\nfrom halfmask.cli import main\n"
        "real = t.train\n"
        "def ended(*given, **named):\n"
        "    real(*given, **named)\n    signal.raise_signal(signal.SIGINT)\n"
        "t.train = ended\nmain()"
    )
    words = ["train", str(folder / "people.csv"), "--schema", str(folder / "people.toml")]
    words += ["--epsilon", "1", "--method", "gd", "--out", "m", "--json"]
    words += ["--ledger", "book"] if shared else []
    done = subprocess.run(
        [sys.executable, "-c", program, *words], cwd=tmp_path, capture_output=True, text=True
    )
    assert "stays spent" in done.stderr
    assert_whole(tmp_path, done.returncode, done.stdout, done.stderr)
    assert (tmp_path / "m").exists() != shared
