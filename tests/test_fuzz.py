"""A sample of the fuzzer's cases, and what its long runs found.

The long run is a command: PYTHONPATH=tests python -m fuzz --cases 1000000.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from fuzz.__main__ import fault_of, random_of, targets
from halfmask.accounting.ledger import Ledger, _sealed, entry_line, parse_entry
from halfmask.data.reading import open_rows, read_frame
from halfmask.errors import DataError, InputError, LedgerError, SchemaError
from halfmask.schema import Schema
from halfmask.vertical.admm import load_state, save_state, start_state
from halfmask.vertical.channel import LocalChannel, Message, PartyError, checked_replies
from halfmask.vertical.network import read_party_file
from halfmask.vertical.queries import answered_so_far
from halfmask.vertical.store import RoundStore
from ledgers import SMALL

SAMPLE = {"Replies": 2, "SpecialFiles": 40, "ModelFolder": 25, "OpenedParty": 25, "Frames": 25}


@pytest.mark.parametrize("name", targets())
def test_no_case_of_a_sample_ends_in_a_foreign_error(name: str, tmp_path: Path) -> None:
    target = targets()[name](tmp_path)
    for number in range(SAMPLE.get(name, 60)):
        fault = fault_of(target, random_of(name, 0, number))
        assert fault is None, (number, fault)


def book(tmp_path: Path) -> Ledger:
    return Ledger.create(tmp_path / "book", epsilon=1.0, delta=1e-6)


def test_a_pipe_in_the_place_of_a_head_is_refused_at_once(tmp_path: Path) -> None:
    head = book(tmp_path).path.with_name("book.head")
    head.unlink()
    os.mkfifo(head)
    with pytest.raises(LedgerError, match="not a regular file"):
        Ledger.open(tmp_path / "book")


def test_a_head_that_nests_without_end_is_damaged(tmp_path: Path) -> None:
    book(tmp_path).path.with_name("book.head").write_bytes(b"[" * 4000)
    with pytest.raises(LedgerError, match="damaged or was edited"):
        Ledger.open(tmp_path / "book")


@pytest.mark.parametrize(
    "change",
    [{"epsilon": "1"}, {"delta": None}, {"epsilon": 10**400}, {"delta": 2.0}, {"created": 1}],
)
def test_a_header_that_was_sealed_again_with_other_kinds_is_refused(
    tmp_path: Path, change: dict[str, object]
) -> None:
    path = book(tmp_path).path
    fields = json.loads(path.read_bytes()) | change
    fields.pop("hash")
    path.write_bytes(_sealed(fields))
    path.with_name("book.head").unlink()
    with pytest.raises(LedgerError):
        Ledger.open(path)


@pytest.mark.parametrize("field", ["part_of", "refunds"])
@pytest.mark.parametrize("charge", [0, 2, True, "1", 1.0])
def test_a_line_about_a_charge_that_is_none_before_it_is_refused(
    tmp_path: Path, field: str, charge: object
) -> None:
    """Sealed and chained as it should be: only what it names is wrong."""
    made = book(tmp_path)
    made.charge([SMALL], "one", run="r")
    chain = made.verify()
    line = entry_line(head=chain.head, time="t", what="w", events=())
    fields = json.loads(line)
    fields.pop("hash")
    right = _sealed({**fields, field: 1})
    assert parse_entry(right, chain.head, "line 3") is not None
    with pytest.raises(LedgerError, match="does not come before"):
        parse_entry(_sealed({**fields, field: charge}), chain.head, "")


@pytest.mark.parametrize("left", [b"", b'{"kind"', b'{"kind":"header","version":1,"eps'])
def test_a_ledger_whose_creation_was_cut_off_is_created_by_the_next_use(
    tmp_path: Path, left: bytes
) -> None:
    path = tmp_path / "book"
    path.write_bytes(left)
    made = Ledger.open_or_create(path, epsilon=1.0, delta=1e-6)
    assert made.events() == ()
    assert Ledger.open_or_create(path, epsilon=1.0, delta=1e-6).created == made.created


def test_a_ledger_that_was_emptied_is_not_taken_for_an_unfinished_one(tmp_path: Path) -> None:
    path = book(tmp_path).path
    path.write_bytes(b"")
    with pytest.raises(LedgerError):
        Ledger.open_or_create(path, epsilon=1.0, delta=1e-6)


@pytest.mark.parametrize("bounds", ["[0, 1" + "0" * 400 + "]", "[0, 1" + "0" * 5000 + "]"])
def test_bounds_beyond_all_numbers_are_refused_by_words(tmp_path: Path, bounds: str) -> None:
    text = '[label]\nname="y"\nrole="public"\nclasses=[0,1]\n'
    text += f'[columns.a]\nrole="private"\nkind="number"\nbounds={bounds}\n'
    (tmp_path / "s.toml").write_text(text)
    with pytest.raises(SchemaError, match=r"bounds|digits"):
        Schema.from_toml(tmp_path / "s.toml")


def test_a_column_name_that_is_not_utf8_is_refused_by_words(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    parquet.write_table(pa.table({"town": [1], "b": [2]}), path)
    path.write_bytes(path.read_bytes().replace(b"town", b"\xff\xff\xff\xff"))
    for read in (read_frame, lambda file: open_rows(file).__enter__()):
        with pytest.raises(DataError, match="not UTF-8"):
            read(path)


def test_a_csv_row_that_is_not_utf8_prints_nothing_of_its_own(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "rows.csv"
    path.write_bytes(b"a,b\n1,2\n\xc3,1,2\n")
    with pytest.raises(DataError, match="line 3: not UTF-8"):
        read_frame(path)
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    "line",
    ["method = []", "method = 3", "party = {}", "state = 7", "rounds = 1.5", "epsilon = true"],
)
def test_a_party_file_with_values_of_other_kinds_names_the_key(tmp_path: Path, line: str) -> None:
    key = line.split()[0]
    given = {"party": '"a"', "schema": '"s"', "data": '"d"', "id": '"i"', "state": '"t"'}
    given[key] = line.split(" = ")[1]
    (tmp_path / "p.toml").write_text("\n".join(f"{k} = {v}" for k, v in given.items()))
    with pytest.raises(InputError, match=key):
        read_party_file(tmp_path / "p.toml")


def test_memories_that_are_damaged_or_no_files_are_named(tmp_path: Path) -> None:
    state = tmp_path / "state.npz"
    save_state(state, start_state(("a", "b"), 5, 0.1))
    assert load_state(state, ("a", "b"), 5) is not None
    with pytest.raises(DataError, match="5 rows"):
        load_state(state, ("a", "b"), 6)
    state.write_bytes(state.read_bytes()[:-30])
    with pytest.raises(DataError, match="cannot be read"):
        load_state(state, ("a", "b"))
    for name, read in (
        ("party.npz", lambda: RoundStore(tmp_path).load()),
        ("state.npz", lambda: load_state(state, ("a",))),
        ("queries.jsonl", lambda: answered_so_far(tmp_path / "queries.jsonl")),
    ):
        (tmp_path / name).unlink(missing_ok=True)
        os.mkfifo(tmp_path / name)
        with pytest.raises(DataError):
            read()


def test_a_reply_of_lists_of_unequal_lengths_names_the_party() -> None:
    request = Message(kind="k", run="r", round=1)
    reply = request.reply(arrays={"share": [[1.0], 2.0]})
    channel = LocalChannel({"bank": object()})
    with pytest.raises(PartyError, match="'bank'"):
        checked_replies(channel, request, {"bank": reply}, {"share": (2,)})
    whole = request.reply(arrays={"share": np.ones(2)})
    found = checked_replies(channel, request, {"bank": whole}, {"share": (2,)})
    assert found["bank"].arrays["share"].sum() == 2


def test_names_too_long_for_a_file_system_are_refused_by_words(tmp_path: Path) -> None:
    long = tmp_path / ("9" * 400)
    for read in (read_frame, lambda file: open_rows(file).__enter__(), read_party_file, RoundStore):
        with pytest.raises((DataError, InputError), match=r"too long|cannot be read|Cannot read"):
            read(long)
    with pytest.raises(LedgerError, match="too long"):
        Ledger.open_or_create(long, epsilon=1.0, delta=1e-6)
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="cannot be made"):
        RoundStore(tmp_path / "file")
