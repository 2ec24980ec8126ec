"""The ledger's promises: durable before release, never overspent, every change noticed."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from halfmask.accounting import ledger_file
from halfmask.accounting.accountant import epsilon as account
from halfmask.accounting.events import (
    GaussianEvent,
    PoissonGaussianEvent,
    RandomizedResponseEvent,
)
from halfmask.accounting.ledger import Ledger, MemoryLedger
from halfmask.accounting.ledger_chain import parse_chain
from halfmask.accounting.ledger_file import head_path, read_head
from halfmask.errors import BudgetExceededError, InputError, LedgerError

SMALL = GaussianEvent(replace=0.02, withhold=0.01)


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger.create(tmp_path / "data.jsonl", epsilon=1.0, delta=1e-6, relation="replace")


def charged(ledger: Ledger, times: int = 3) -> Ledger:
    for number in range(times):
        ledger.charge([SMALL], f"release {number}")
    return ledger


def test_charges_survive_reopening_with_their_budget(ledger: Ledger) -> None:
    events = [
        SMALL,
        PoissonGaussianEvent(noise_multiplier=8.0, rate=0.01, steps=3),
        RandomizedResponseEvent(epsilon=0.1, categories=3),
    ]
    ledger.charge(events, 'class sums, "quoted" and über\nlines')
    again = Ledger.open(ledger.path)
    assert again.events() == tuple(events)
    assert (again.epsilon, again.delta, again.relation) == (1.0, 1e-6, "replace")
    assert again.entries()[0].what == 'class sums, "quoted" and über\nlines'
    assert again.spent() == account(events, delta=1e-6, relation="replace")


def test_composition_is_of_events_not_a_sum_of_epsilons(ledger: Ledger) -> None:
    one = account([SMALL], delta=1e-6, relation="replace")
    charged(ledger, 25)
    together = GaussianEvent(replace=0.1, withhold=0.05)
    assert ledger.spent() == pytest.approx(account([together], delta=1e-6, relation="replace"))
    assert ledger.spent() < 25 * one / 3


def test_new_ledger_has_spent_nothing(ledger: Ledger) -> None:
    assert ledger.spent() == 0.0
    assert ledger.events() == ()


@pytest.mark.parametrize("kind", ["file", "memory"])
def test_overspending_is_refused_and_leaves_no_trace(tmp_path: Path, kind: str) -> None:
    budget = {"epsilon": 1.0, "delta": 1e-6, "relation": "replace"}
    book = Ledger.create(tmp_path / "l", **budget) if kind == "file" else MemoryLedger(**budget)
    book.charge([GaussianEvent(replace=0.15, withhold=0.1)], "first")
    with pytest.raises(BudgetExceededError) as refused:
        book.charge([GaussianEvent(replace=0.3, withhold=0.1)], "second")
    assert refused.value.exit_code == 3
    for word in ("Budget: epsilon 1 ", "Spent: 0.6", "Asked:", "Left: 0.3", "smaller epsilon"):
        assert word in str(refused.value)
    assert book.events() == (GaussianEvent(replace=0.15, withhold=0.1),)
    book.charge([GaussianEvent(replace=0.1, withhold=0.1)], "smaller")
    assert book.spent() <= 1.0


def test_the_budget_is_that_of_the_ledgers_own_relation(tmp_path: Path) -> None:
    event = GaussianEvent(replace=0.3, withhold=0.15)
    kept = Ledger.create(tmp_path / "w", epsilon=1.0, delta=1e-6, relation="withhold")
    kept.charge([event], "fits under withhold")
    strict = Ledger.create(tmp_path / "r", epsilon=1.0, delta=1e-6, relation="replace")
    with pytest.raises(BudgetExceededError):
        strict.charge([event], "too much under replace")


def test_a_charge_calibrated_to_the_whole_budget_fits(tmp_path: Path) -> None:
    from halfmask.accounting.gaussian import gaussian_mu

    mu = gaussian_mu(1.0, 1e-6)
    book = Ledger.create(tmp_path / "l", epsilon=1.0, delta=1e-6, relation="replace")
    book.charge([GaussianEvent(replace=mu / 7**0.5, withhold=mu / 2, count=7)], "all of it")
    with pytest.raises(BudgetExceededError):
        book.charge([GaussianEvent(replace=1e-3, withhold=1e-3)], "a little more")


def test_numpy_numbers_in_events_are_stored_as_numbers(ledger: Ledger) -> None:
    ledger.charge([GaussianEvent(replace=np.float32(0.01), withhold=0.0, count=np.int64(2))], "np")
    (event,) = Ledger.open(ledger.path).events()
    assert isinstance(event, GaussianEvent)
    assert event.count == 2


@pytest.mark.parametrize(
    "budget",
    [
        {"epsilon": 0.0, "delta": 1e-6},
        {"epsilon": float("nan"), "delta": 1e-6},
        {"epsilon": float("inf"), "delta": 1e-6},
        {"epsilon": 1.0, "delta": 0.0},
        {"epsilon": 1.0, "delta": 1.0},
        {"epsilon": 1.0, "delta": 1e-6, "relation": "label"},
    ],
)
def test_impossible_budgets_are_refused_before_a_file_exists(tmp_path: Path, budget: dict) -> None:
    with pytest.raises(InputError):
        Ledger.create(tmp_path / "l", **budget)
    with pytest.raises(InputError):
        MemoryLedger(**budget)
    assert list(tmp_path.iterdir()) == []


def test_create_never_replaces_anything(ledger: Ledger, tmp_path: Path) -> None:
    charged(ledger)
    before = ledger.path.read_bytes()
    with pytest.raises(LedgerError, match="exists already"):
        Ledger.create(ledger.path, epsilon=9.0, delta=1e-6)
    other = tmp_path / "people.csv"
    other.write_text("age,income\n")
    with pytest.raises(LedgerError, match="exists already"):
        Ledger.create(other, epsilon=9.0, delta=1e-6)
    assert ledger.path.read_bytes() == before
    assert other.read_text() == "age,income\n"


def test_a_deleted_ledger_cannot_be_started_again_beside_its_head(ledger: Ledger) -> None:
    charged(ledger)
    ledger.path.unlink()
    with pytest.raises(LedgerError, match="exists already"):
        Ledger.create(ledger.path, epsilon=1.0, delta=1e-6)


def test_open_or_create_insists_on_the_same_budget(tmp_path: Path) -> None:
    path = tmp_path / "l"
    first = Ledger.open_or_create(path, epsilon=1.0, delta=1e-6, relation="replace")
    first.charge([SMALL], "one")
    same = Ledger.open_or_create(path, epsilon=1.0, delta=1e-6, relation="replace")
    assert same.events() == (SMALL,)
    with pytest.raises(LedgerError, match="epsilon 2"):
        Ledger.open_or_create(path, epsilon=2.0, delta=1e-6, relation="replace")


def test_every_changed_byte_is_noticed(ledger: Ledger) -> None:
    charged(ledger)
    content, head = ledger.path.read_bytes(), read_head(ledger.path)
    parse_chain(content, head, "data.jsonl")
    for position in range(len(content)):
        for flip in (0x01, 0x20, 0x80):
            edited = bytearray(content)
            edited[position] ^= flip
            with pytest.raises(LedgerError, match=r"data\.jsonl"):
                parse_chain(bytes(edited), head, "data.jsonl")


def test_every_truncation_is_noticed(ledger: Ledger) -> None:
    charged(ledger)
    content, head = ledger.path.read_bytes(), read_head(ledger.path)
    for length in range(len(content)):
        with pytest.raises(LedgerError):
            parse_chain(content[:length], head, "data.jsonl")
    ledger.path.write_bytes(content[: content.rindex(b'{"seq":3')])
    with pytest.raises(LedgerError, match="truncated: it ends after line 3, but 3 charges"):
        Ledger.open(ledger.path)
    with pytest.raises(LedgerError, match="truncated"):
        ledger.charge([SMALL], "on a truncated ledger")


def test_removed_exchanged_and_repeated_lines_are_named(ledger: Ledger) -> None:
    charged(ledger)
    header, one, two, three = ledger.path.read_bytes().splitlines(keepends=True)
    for lines, number in (
        ([header, two, three], 2),
        ([header, one, three], 3),
        ([header, two, one, three], 2),
        ([header, one, one, two, three], 3),
    ):
        ledger.path.write_bytes(b"".join(lines))
        with pytest.raises(LedgerError, match=f"line {number}, does not follow"):
            Ledger.open(ledger.path)


def test_an_edited_line_is_named_with_what_to_do(ledger: Ledger) -> None:
    charged(ledger)
    content = ledger.path.read_text().replace("release 1", "release 9")
    ledger.path.write_text(content)
    with pytest.raises(LedgerError, match=r"line 3, was edited .* Restore"):
        Ledger.open(ledger.path)


def test_a_rewritten_chain_does_not_fit_its_head(ledger: Ledger, tmp_path: Path) -> None:
    charged(ledger)
    forged = Ledger.create(tmp_path / "forged", epsilon=1.0, delta=1e-6)
    charged(forged)
    ledger.path.write_bytes(forged.path.read_bytes())
    Ledger.open(forged.path)
    with pytest.raises(
        LedgerError, match=r"line 4, is not the line that data.jsonl.head remembers"
    ):
        Ledger.open(ledger.path)


def test_a_missing_damaged_or_old_head_is_noticed(ledger: Ledger) -> None:
    head = head_path(ledger.path)
    old = head.read_bytes()
    charged(ledger)
    new = head.read_bytes()
    head.write_bytes(old)
    with pytest.raises(LedgerError, match="older than the ledger"):
        Ledger.open(ledger.path)
    for damage in (b"", b"\x00" * 20, b"[]", b'{"count":3}', new[:-1], new.replace(b"3", b"2", 1)):
        head.write_bytes(damage)
        with pytest.raises(LedgerError):
            Ledger.open(ledger.path)
    head.unlink()
    with pytest.raises(LedgerError, match=r"\.head is missing"):
        Ledger.open(ledger.path)
    head.write_bytes(new)
    assert len(Ledger.open(ledger.path).events()) == 3


def test_an_older_copy_of_both_files_is_noticed_by_whoever_has_it_open(ledger: Ledger) -> None:
    charged(ledger)
    copies = ledger.path.read_bytes(), head_path(ledger.path).read_bytes()
    ledger.charge([SMALL], "forgotten by the copies")
    ledger.path.write_bytes(copies[0])
    head_path(ledger.path).write_bytes(copies[1])
    with pytest.raises(LedgerError, match="older copy"):
        ledger.charge([SMALL], "another")


@pytest.mark.parametrize(
    "content",
    [
        b"age,income\n1,2\n",
        b'{"kind": "model"}\n',
        b"\x00" * 64,
        b"\xff\xfe\n",
        b"",
        b"[1]\n",
        b'{"kind":"header",\n',
        b'{"kind":"header","version":1}\n',
        b'{"kind":"header",' + b"[" * 100_000 + b"\n",
    ],
)
def test_other_files_are_not_ledgers(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "other"
    path.write_bytes(content)
    with pytest.raises(LedgerError, match="other"):
        Ledger.open(path)


def test_a_newer_version_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from halfmask.accounting import ledger_chain

    monkeypatch.setattr(ledger_chain, "VERSION", 2)
    Ledger.create(tmp_path / "l", epsilon=1.0, delta=1e-6)
    monkeypatch.undo()
    with pytest.raises(LedgerError, match="version 2"):
        Ledger.open(tmp_path / "l")


def test_paths_that_cannot_hold_a_ledger(tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match="There is no ledger nothing"):
        Ledger.open(tmp_path / "nothing")
    with pytest.raises(LedgerError, match="folder"):
        Ledger.create(tmp_path / "missing" / "l", epsilon=1.0, delta=1e-6)
    with pytest.raises(LedgerError):
        Ledger.open(tmp_path)
    with pytest.raises(LedgerError):
        Ledger.create(tmp_path, epsilon=1.0, delta=1e-6)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(LedgerError, match="regular file"):
        Ledger.open(tmp_path / "pipe")
    with pytest.raises(LedgerError, match="regular file"):
        Ledger.open("/dev/null")


def test_a_link_shares_the_ledger_and_its_head(ledger: Ledger, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(ledger.path)
    Ledger.open(link).charge([SMALL], "through the link")
    assert ledger.events() == (SMALL,)
    assert not (tmp_path / "link.head").exists()


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


def test_only_unsampled_gaussians_hold_under_adaptive_noise_levels(ledger: Ledger) -> None:
    charged(ledger, 1)
    assert ledger.holds_if_adaptive()
    ledger.charge([PoissonGaussianEvent(noise_multiplier=9.0, rate=0.01)], "sampled")
    assert not ledger.holds_if_adaptive()


def test_lines_are_plain_json(ledger: Ledger) -> None:
    charged(ledger, 1)
    header, entry = (json.loads(line) for line in ledger.path.read_text().splitlines())
    assert {"kind", "version", "epsilon", "delta", "relation", "created"} <= set(header)
    assert {"seq", "time", "what", "events", "previous", "hash"} == set(entry)
    assert entry["previous"] == header["hash"]


def test_reading_a_ledger_loads_no_heavy_package() -> None:
    program = (
        "import sys, halfmask.accounting.ledger;"
        "print([m for m in ('numpy', 'scipy', 'dp_accounting', 'torch') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.strip() == "[]"
