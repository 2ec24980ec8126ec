"""A ledger survives the end of its process, a full disk and a torn line."""

from __future__ import annotations

import os
import stat
import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from halfmask.accounting import ledger as ledger_file
from halfmask.accounting.ledger import Ledger
from halfmask.errors import LedgerError
from ledgers import SMALL, charged


class Crash(BaseException):
    """Stands for the process ending between two system calls."""


def crash_at(monkeypatch: pytest.MonkeyPatch, step: int, part: float) -> list[str]:
    """Let the `step`-th writing system call end the process, a write after `part` of its bytes."""
    done: list[str] = []

    def wrap(name: str) -> None:
        real = getattr(os, name)

        def call(*args: object) -> object:
            done.append(name)
            if len(done) == step + 1:
                if name == "write":
                    fd, data = args
                    real(fd, bytes(data)[: int(part * len(data))])  # type: ignore[call-overload]
                raise Crash
            return real(*args)

        monkeypatch.setattr(ledger_file.os, name, call)

    for name in ("write", "fsync", "replace", "ftruncate"):
        wrap(name)
    return done


@pytest.mark.parametrize("part", [0.0, 0.5, 0.999, 1.0])
def test_a_crash_between_any_two_calls_of_a_charge_is_survived(
    ledger: Ledger, part: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    charged(ledger)
    released, crashes, step = 3, 0, 0
    while True:
        with monkeypatch.context() as patch:
            crash_at(patch, step, part)
            try:
                Ledger.open(ledger.path).charge([SMALL], "perhaps")
                released += 1
                finished = True
            except Crash:
                crashes += 1
                finished = False
        check = Ledger.open(ledger.path).verify()
        assert released <= len(check.entries) <= released + crashes
        Ledger.open(ledger.path).charge([SMALL], "afterwards")
        released += 1
        check = Ledger.open(ledger.path).verify()
        assert check.torn_bytes == 0
        assert not check.head_behind
        assert released <= len(check.entries) <= released + crashes
        if finished:
            break
        step += 1
    assert crashes >= 6


@pytest.mark.parametrize("part", [0.0, 0.3, 1.0])
def test_a_crash_between_any_two_calls_of_create_is_survived(
    tmp_path: Path, part: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    crashes = 0
    for step in range(20):
        path = tmp_path / f"ledger{step}"
        with monkeypatch.context() as patch:
            crash_at(patch, step, part)
            try:
                Ledger.create(path, epsilon=1.0, delta=1e-6)
                break
            except Crash:
                crashes += 1
        try:
            book = Ledger.create(path, epsilon=1.0, delta=1e-6)
        except LedgerError:
            book = Ledger.open(path)
        book.charge([SMALL], "after the crash")
        assert Ledger.open(path).events() == (SMALL,)
    assert crashes >= 6


def test_the_line_is_durable_before_the_head_and_the_head_before_the_return(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = crash_at(monkeypatch, 10_000, 0.0)
    ledger.charge([SMALL], "one")
    assert done == ["write", "fsync", "write", "fsync", "replace", "fsync"]


@settings(
    max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(tail=st.binary(max_size=80))
def test_any_torn_tail_is_reported_then_cut_off(tail: bytes, tmp_path_factory) -> None:
    folder = tmp_path_factory.mktemp("torn")
    book = charged(Ledger.create(folder / "l", epsilon=1.0, delta=1e-6), 2)
    tail = tail.replace(b"\n", b"") + b"\x00"
    with book.path.open("ab") as file:
        file.write(tail)
    assert Ledger.open(book.path).verify().torn_bytes == len(tail)
    assert len(book.events()) == 2
    book.charge([SMALL], "next")
    assert book.verify().torn_bytes == 0
    assert [entry.seq for entry in book.entries()] == [1, 2, 3]


def test_a_full_disk_charges_nothing_and_leaves_the_ledger_whole(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    charged(ledger)
    before = ledger.path.read_bytes()
    real = os.write

    def full(fd: int, data: bytes) -> int:
        real(fd, bytes(data)[:10])
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(ledger_file.os, "write", full)
        with pytest.raises(LedgerError, match="No space left"):
            ledger.charge([SMALL], "does not fit")
    assert ledger.path.read_bytes() == before
    charged(ledger, 1)


def test_a_ledger_that_may_not_be_written_can_still_be_read(ledger: Ledger) -> None:
    charged(ledger)
    ledger.path.chmod(stat.S_IRUSR)
    try:
        assert len(Ledger.open(ledger.path).events()) == 3
        if os.geteuid() != 0:
            with pytest.raises(LedgerError, match="Permission"):
                ledger.charge([SMALL], "not allowed")
    finally:
        ledger.path.chmod(0o600)


def test_a_ledger_exchanged_while_waiting_for_its_lock_is_not_charged(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    charged(ledger)
    backup = ledger.path.read_bytes()
    real, swapped = ledger_file.fcntl.flock, []

    def slow(fd: int, how: int) -> None:
        if not swapped:
            swapped.append(True)
            fresh = ledger.path.with_name("restored")
            fresh.write_bytes(backup)
            fresh.replace(ledger.path)
        real(fd, how)

    monkeypatch.setattr(ledger_file.fcntl, "flock", slow)
    ledger.charge([SMALL], "must land in the file that is there")
    assert len(Ledger.open(ledger.path).events()) == 4


def test_a_child_process_does_not_keep_the_lock(ledger: Ledger) -> None:
    with ledger_file.locked(ledger.path, write=True) as fd:
        child = subprocess.Popen(["sleep", "60"], pass_fds=(fd,))
    try:
        with ledger.path.open("rb") as file:
            ledger_file.fcntl.flock(file, ledger_file.fcntl.LOCK_EX | ledger_file.fcntl.LOCK_NB)
    finally:
        child.kill()
        child.wait()
    charged(ledger, 1)
