"""A full disk, a folder that may not be written, a clock that goes back, two trainings at once."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow.csv
import pytest
from click.testing import CliRunner, Result

from halfmask.accounting import ledger as ledger_module
from halfmask.accounting.ledger import Ledger
from halfmask.cli import main
from halfmask.datasets import load_adult
from halfmask.errors import InputError
from halfmask.model import Model
from halfmask.model_folder import ledger_of
from halfmask.training import run_name
from kills import killed_at
from ledgers import charged

PROGRAM = [sys.executable, "-c", "from halfmask.cli import main; main()"]


@pytest.fixture(scope="module")
def people(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("people")
    rows, _, schema = load_adult()
    pyarrow.csv.write_csv(rows.slice(0, 300), folder / "people.csv")
    (folder / "people.toml").write_text(schema.to_toml())
    return folder


def words(people: Path, out: Path, method: str = "gd", *more: str) -> list[str]:
    asked = ["train", str(people / "people.csv"), "--schema", str(people / "people.toml")]
    return [*asked, "--epsilon", "1", "--method", method, "--out", str(out), *more]


def train(people: Path, out: Path, *more: str) -> Result:
    return CliRunner().invoke(main, words(people, out, "gd", *more))


def test_a_model_knows_the_ledger_it_was_charged_to_wherever_a_kill_fell(
    people: Path, tmp_path: Path
) -> None:
    place, killed = 0, True
    while killed:
        book, out = tmp_path / f"book{place}", tmp_path / str(place)
        Ledger.create(book, epsilon=2.0, delta=1e-6)

        def ask(out: Path = out, book: Path = book) -> Result:
            return train(people, out, "--ledger", str(book))

        code = killed_at(place, ask)
        assert code in (0, 9)
        killed = code == 9
        if (out / "model.json").exists():
            linked = ledger_of(out)
            assert linked is not None
            assert linked.samefile(book)
        if killed:
            again = train(people, out, "--resume", "--ledger", str(book))
            assert again.exit_code == 0, again.output
        place += 1
    assert place > 3


@pytest.mark.parametrize("name", ["model.part.npz", "model.part.json"])
def test_a_disk_that_is_full_when_the_model_is_written_is_named(
    people: Path, tmp_path: Path, name: str
) -> None:
    out = tmp_path / "model"
    out.mkdir()
    (out / name).symlink_to("/dev/full")
    done = train(people, out, "--resume")
    assert done.exit_code == 2
    assert "No space left on device" in done.output
    assert "stays spent" in done.output
    with pytest.raises(InputError):
        Model.load(out)
    assert Ledger.open(out / "ledger.jsonl").spent() > 0


def test_a_model_that_cannot_be_written_leaves_no_folder_that_points_to_a_ledger(
    people: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    book = Ledger.create(tmp_path / "book", epsilon=2.0, delta=1e-6)
    monkeypatch.setattr(Model, "save", full)
    done = train(people, tmp_path / "model", "--ledger", str(book.path))
    assert done.exit_code == 2
    assert "No space left on device" in done.output
    assert not (tmp_path / "model").exists()
    assert Ledger.open(book.path).spent() > 0


def test_a_disk_that_is_full_when_scores_are_written_is_named(people: Path, tmp_path: Path) -> None:
    assert train(people, tmp_path / "model").exit_code == 0
    (tmp_path / "s.part.csv").symlink_to("/dev/full")
    asked = ["predict", str(tmp_path / "model"), str(people / "people.csv")]
    done = CliRunner().invoke(main, [*asked, "--out", str(tmp_path / "s.csv")])
    assert done.exit_code == 2
    assert "No space left on device" in done.output


def test_a_folder_that_may_not_be_written_is_named_before_a_charge(
    people: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a file system mounted for reading says it: permissions do not stop the root user."""
    real = os.open

    def refused(path: object, flags: int, *more: int, **named: int) -> int:
        if flags & os.O_CREAT and str(path).startswith(str(tmp_path)):
            raise OSError(30, "Read-only file system", str(path))
        return real(path, flags, *more, **named)  # type: ignore[arg-type]

    with monkeypatch.context() as patched:
        patched.setattr(os, "open", refused)
        done = train(people, tmp_path / "model")
    assert done.exit_code == 2
    assert "Read-only file system" in done.output
    assert not (tmp_path / "model").exists()


def test_a_clock_that_goes_back_disturbs_no_ledger(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    for year in (2030, 2020, 1970, 2040):
        monkeypatch.setattr(ledger_module, "_now", lambda year=year: f"{year}-01-01T00:00:00+00:00")
        charged(ledger, 1)
        assert Ledger.open(ledger.path).verify().torn_bytes == 0
    assert [entry.seq for entry in ledger.entries()] == [1, 2, 3, 4]
    number = ledger.charge([], "a run", run="name")
    ledger.refund(number)
    assert len(Ledger.open(ledger.path).entries()) == 4


def test_a_second_training_into_one_folder_is_told_of_the_first(
    people: Path, tmp_path: Path
) -> None:
    out = tmp_path / "model"
    out.mkdir()
    held = os.open(out, os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_EX)
    try:
        done = train(people, out, "--resume")
    finally:
        os.close(held)
    assert done.exit_code == 2
    assert "Another training is at work" in done.output
    assert list(out.iterdir()) == []
    assert train(people, out, "--resume").exit_code == 0


@pytest.mark.slow
def test_two_trainings_into_one_folder_at_once_make_one_model(people: Path, tmp_path: Path) -> None:
    for method in ("gd", "one-shot"):
        out = tmp_path / method
        asked = [*PROGRAM, *words(people, out, method, "--json")]
        both = [subprocess.Popen(asked, stdout=-1, stderr=-1, text=True) for _ in range(2)]
        told = [each.communicate() for each in both]
        codes = sorted(each.returncode for each in both)
        assert codes == [0, 2], told
        failed = next(json.loads(o) for (o, _), e in zip(told, both, strict=True) if e.returncode)
        message = failed["error"]["message"]
        assert "Another training" in message or "not empty" in message or "finished" in message
        Model.load(out)
        assert len(Ledger.open(out / "ledger.jsonl").entries()) == 1


def test_the_name_of_a_run_that_was_cut_off_is_not_a_name(tmp_path: Path) -> None:
    """Two trainings without a name would pass for each other in a shared ledger."""
    file = tmp_path / "checkpoint.run"
    file.write_text("")
    first = run_name(tmp_path / "checkpoint.npz")
    assert len(first) == 32
    assert run_name(tmp_path / "checkpoint.npz") == first
    file.write_text(first[:10])
    assert run_name(tmp_path / "checkpoint.npz") not in (first, first[:10])
