"""Whatever changes in a ledger, its head or its place is noticed and named."""

from __future__ import annotations

import fcntl
import json
import math
import os
from pathlib import Path

import pytest

from halfmask.accounting.budget import Budget
from halfmask.accounting.ledger import (
    Head,
    Ledger,
    MemoryLedger,
    _is_at,
    _sealed,
    entry_line,
    head_path,
    header_line,
    left_unfinished,
    locked,
    parse_chain,
    parse_entry,
    parse_header,
    read_head,
)
from halfmask.errors import LedgerError
from ledgers import SMALL, charged


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
    from halfmask.accounting import ledger as ledger_chain

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


def header_with(**changed: object) -> bytes:
    fields = json.loads(header_line(Budget(epsilon=1.0, delta=1e-6), created="now"))
    fields.pop("hash")
    return _sealed({**fields, **changed})


@pytest.mark.parametrize(
    "changed",
    [
        {"epsilon": 0}, {"epsilon": -1.0}, {"epsilon": 10**400}, {"epsilon": True},
        {"epsilon": 1e300}, {"epsilon": 1.5e300},
        {"epsilon": "1"}, {"delta": 0}, {"delta": 1}, {"delta": 1.5}, {"delta": None},
        {"relation": "other"}, {"created": 3}, {"version": 0},
    ],
)  # fmt: skip
def test_a_header_that_was_sealed_again_still_has_to_name_a_budget(changed: dict) -> None:
    assert parse_header(header_with(), "book").budget.epsilon == 1.0
    with pytest.raises(LedgerError):
        parse_header(header_with(**changed), "book")


def test_a_line_that_was_sealed_again_still_has_to_follow_its_place_and_its_line() -> None:
    head = Head(count=2, hash="a" * 64)
    line = entry_line(head=head, time="now", what="release", events=(SMALL,))
    assert parse_entry(line, head, "book, line 4,").seq == 3
    for other in (Head(count=1, hash=head.hash), Head(count=2, hash="b" * 64)):
        with pytest.raises(LedgerError, match="does not follow"):
            parse_entry(line, other, "book, line 4,")
    for text in (b"[]\n", b"3\n", b'"a"\n', b"null\n"):
        with pytest.raises(LedgerError, match="not a line of a ledger"):
            parse_entry(text, head, "book, line 4,")


def test_what_lies_beyond_the_head_is_one_line_or_torn() -> None:
    first = header_with()
    head = Head(count=0, hash=parse_header(first, "book").hash)
    lines = []
    at = head
    for _ in range(2):
        lines.append(entry_line(head=at, time="now", what="release", events=(SMALL,)))
        made = parse_entry(lines[-1], at, "")
        at = Head(count=made.seq, hash=made.hash)
    one = parse_chain(first + lines[0], head, "book")
    assert (len(one.entries), one.torn_bytes, one.head_behind) == (1, 0, True)
    torn = parse_chain(first + lines[0][:-9], head, "book")
    assert (len(torn.entries), torn.torn_bytes) == (0, len(lines[0]) - 9)
    assert torn.size == len(first)
    assert not torn.head_behind
    with pytest.raises(LedgerError, match="older than the ledger"):
        parse_chain(first + lines[0] + lines[1], head, "book")


def test_a_ledger_in_memory_is_not_charged_by_a_child() -> None:
    book = MemoryLedger(epsilon=1.0, delta=1e-6)
    book._process += 1
    with pytest.raises(LedgerError, match="another process"):
        book.charge([SMALL], "in a child")


def test_a_sealed_line_of_another_kind_is_no_header() -> None:
    fields = json.loads(header_line(Budget(epsilon=1.0, delta=1e-6), created="now"))
    fields.pop("hash")
    assert len(fields["id"]) == 32  # 128 random bits: no two ledgers have lines in common
    moved = {**{name: fields[name] for name in fields if name != "kind"}, "kind": "header"}
    with pytest.raises(LedgerError, match="no ledger header"):
        parse_header(_sealed(moved), "book")


@pytest.mark.parametrize("name", ["part_of", "refunds"])
def test_a_line_speaks_of_a_charge_that_comes_before_it(name: str) -> None:
    head = Head(count=2, hash="a" * 64)
    how = {"head": head, "time": "now", "what": "release", "events": ()}
    for earlier in (1, 2):
        assert (
            getattr(parse_entry(entry_line(**how, **{name: earlier}), head, "book"), name)
            == earlier
        )  # type: ignore[arg-type]
    for wrong in (0, -1, 3, "1", True, 1.0, [1]):
        with pytest.raises(LedgerError, match="does not come before it"):
            parse_entry(entry_line(**how, **{name: wrong}), head, "book")  # type: ignore[arg-type]


def test_a_run_has_a_name_and_seeded_noise_a_mark() -> None:
    head = Head(count=0, hash="a" * 64)
    how = {"head": head, "time": "now", "what": "release", "events": (SMALL,)}
    plain = parse_entry(entry_line(**how), head, "book")  # type: ignore[arg-type]
    assert (plain.seeded, plain.run, plain.part_of, plain.refunds) == (False, None, None, None)
    assert b"seeded" not in entry_line(**how)  # type: ignore[arg-type]
    marked = parse_entry(entry_line(**how, seeded=True, run="first"), head, "book")  # type: ignore[arg-type]
    assert (marked.seeded, marked.run) == (True, "first")
    with pytest.raises(LedgerError, match="no text"):
        parse_entry(entry_line(**how, run=5), head, "book")  # type: ignore[arg-type]


@pytest.mark.parametrize("number", [math.nan, math.inf])
def test_no_line_holds_a_number_that_json_does_not_know(number: float) -> None:
    with pytest.raises(ValueError, match="JSON"):
        _sealed({"epsilon": number})


def test_one_charge_without_its_head_is_not_read(ledger: Ledger) -> None:
    charged(ledger, 1)
    head_path(ledger.path).unlink()
    with pytest.raises(LedgerError, match="head is missing"):
        Ledger.open(ledger.path)


def test_a_head_that_is_no_file_is_named(ledger: Ledger) -> None:
    target = head_path(ledger.path)
    target.unlink()
    for make in (target.mkdir, lambda: os.mkfifo(target)):
        make()
        with pytest.raises(LedgerError, match="not a regular file"):
            read_head(ledger.path)
        target.rmdir() if target.is_dir() else target.unlink()


def test_a_file_that_is_gone_is_not_the_one_that_is_open(ledger: Ledger) -> None:
    with locked(ledger.path, write=False) as fd:
        assert _is_at(fd, ledger.path)
        assert not _is_at(fd, ledger.path.with_name("gone"))
        assert not _is_at(fd, head_path(ledger.path))


def test_readers_share_the_lock_and_writers_do_not(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[int] = []
    usual = fcntl.flock

    def noted(fd: int, how: int) -> None:
        taken.append(how)
        usual(fd, how)

    monkeypatch.setattr(fcntl, "flock", noted)
    for read in (
        lambda: Ledger.open(ledger.path),
        ledger.verify,
        lambda: left_unfinished(ledger.path),
    ):
        taken.clear()
        read()
        assert taken == [fcntl.LOCK_SH, fcntl.LOCK_UN]
    taken.clear()
    number = ledger.charge([SMALL], "a", run="first")
    ledger.begin_part(number, [SMALL], "all of it")
    ledger.refund(ledger.charge([SMALL], "b"))
    assert taken == [fcntl.LOCK_EX, fcntl.LOCK_UN] * 4


def test_a_torn_line_is_cut_off_by_the_next_charge(ledger: Ledger) -> None:
    charged(ledger, 1)
    with ledger.path.open("ab") as file:
        file.write(b'{"seq":2,"ti')
    assert Ledger.open(ledger.path).verify().torn_bytes == 12
    ledger.charge([SMALL], "next")
    chain = ledger.verify()
    assert (len(chain.entries), chain.torn_bytes, chain.head_behind) == (2, 0, False)


def test_a_whole_line_beyond_the_head_counts_and_the_next_one_follows_it(ledger: Ledger) -> None:
    charged(ledger, 1)
    before = head_path(ledger.path).read_bytes()
    charged(ledger, 1)
    head_path(ledger.path).write_bytes(before)
    again = Ledger.open(ledger.path)
    assert again.verify().head_behind
    again.charge([SMALL], "third")
    assert [entry.seq for entry in Ledger.open(ledger.path).entries()] == [1, 2, 3]


def test_new_files_have_the_rights_that_the_system_gives(ledger: Ledger) -> None:
    mask = os.umask(0)
    os.umask(mask)
    for path in (ledger.path, head_path(ledger.path)):
        assert path.stat().st_mode & 0o777 == 0o666 & ~mask
