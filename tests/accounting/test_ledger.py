"""The ledger's promises: durable before release, and never overspent."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from halfmask.accounting import ledger as ledger_file
from halfmask.accounting.accountant import epsilon as account
from halfmask.accounting.events import (
    GaussianEvent,
    PoissonGaussianEvent,
    RandomisedResponseEvent,
    covers,
)
from halfmask.accounting.gaussian import gaussian_epsilon, gaussian_mu
from halfmask.accounting.ledger import (
    Ledger,
    MemoryLedger,
    creation_unfinished,
    head_path,
    left_unfinished,
    parse_chain,
    parse_head,
)
from halfmask.errors import AccountingError, BudgetExceededError, InputError, LedgerError
from halfmask.storage import json_text, write_durably, write_text
from ledgers import SMALL, charged

OLD_LEDGER = b"".join(
    [
        b'{"kind":"header","version":1,"epsilon":1.0,"delta":1e-06,"relation":"replace","c',
        b'reated":"2026-11-16T21:53:44+00:00","id":"c1a58093ab0bf0ff626171c87def50ad","has',
        b'h":"5d9a66feb5d8aa270b2630479475b892ab41731a4504b3aa6aef62c9b6d2b2a0"}\n',
        b'{"seq":1,"time":"2026-11-16T21:53:47+00:00","what":"release 0","events":[{"kind"',
        b':"gaussian","replace":0.02,"withhold":0.01,"count":1}],"previous":"5d9a66feb5d8a',
        b'a270b2630479475b892ab41731a4504b3aa6aef62c9b6d2b2a0","hash":"7b0c8e2a64aaa82c469',
        b'b990ac65df2c3f3f85518be05a9d3629629d8ed746a08"}\n',
        b'{"seq":2,"time":"2026-11-16T21:53:47+00:00","what":"release 1","events":[{"kind"',
        b':"gaussian","replace":0.02,"withhold":0.01,"count":1}],"previous":"7b0c8e2a64aaa',
        b'82c469b990ac65df2c3f3f85518be05a9d3629629d8ed746a08","hash":"9b77171c767d2a79c09',
        b'008f4e2f24ea9202ccd27f093a377858818b324a1fc84"}\n',
    ]
)
OLD_HEAD = b"".join(
    [
        b'{"kind":"head","count":2,"hash":"9b77171c767d2a79c09008f4e2f24ea9202ccd27f093a37',
        b'7858818b324a1fc84"}\n',
    ]
)


def test_charges_survive_reopening_with_their_budget(ledger: Ledger) -> None:
    events = [
        SMALL,
        PoissonGaussianEvent(noise_multiplier=8.0, rate=0.01, steps=3),
        RandomisedResponseEvent(epsilon=0.1, categories=3),
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
    for word in ("Budget: epsilon 1 ", "Spent: 0.6", "Asked:", "smaller epsilon", "epsilon 0.7"):
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


def test_a_seeded_charge_says_so_in_its_line_in_json_and_in_words(ledger: Ledger) -> None:
    from click.testing import CliRunner

    from halfmask.cli import main

    ledger.charge([SMALL], "noise of the system")
    ledger.charge([SMALL], "noise from a seed", seeded=True)
    assert [entry.seeded for entry in Ledger.open(ledger.path).entries()] == [False, True]
    _, plain, marked = (json.loads(line) for line in ledger.path.read_text().splitlines())
    assert "seeded" not in plain
    assert marked["seeded"] is True
    shown = CliRunner().invoke(main, ["ledger", "show", str(ledger.path), "--json"])
    assert [entry["seeded"] for entry in json.loads(shown.stdout)["entries"]] == [False, True]
    words = CliRunner().invoke(main, ["ledger", "show", str(ledger.path)]).stdout
    first, second = " ".join(words.split()).split("noise from a seed")
    assert "noise of the system" in first
    assert "NOT PRIVATE" not in first
    assert "NOT PRIVATE" in second
    text = ledger.path.read_text().replace('"seeded":true,', "")
    ledger.path.write_text(text)
    with pytest.raises(LedgerError, match="edited or damaged"):
        Ledger.open(ledger.path)


def test_a_ledger_written_before_there_were_marks_still_verifies(tmp_path: Path) -> None:
    """These bytes were written by version 0.1."""
    (tmp_path / "old.jsonl").write_bytes(OLD_LEDGER)
    (tmp_path / "old.jsonl.head").write_bytes(OLD_HEAD)
    book = Ledger.open(tmp_path / "old.jsonl")
    assert [(entry.what, entry.seeded, entry.run) for entry in book.entries()] == [
        ("release 0", False, None),
        ("release 1", False, None),
    ]
    book.charge([SMALL], "and goes on", seeded=True)
    assert len(Ledger.open(book.path).events()) == 3


def test_what_has_begun_of_a_charge_costs_nothing_and_never_exceeds_it(tmp_path: Path) -> None:
    steps = PoissonGaussianEvent(noise_multiplier=20.0, rate=0.1, steps=10)
    part = PoissonGaussianEvent(noise_multiplier=20.0, rate=0.1, steps=4)
    louder = PoissonGaussianEvent(noise_multiplier=10.0, rate=0.1, steps=1)
    books = [
        Ledger.create(tmp_path / "l", epsilon=1.0, delta=1e-6),
        MemoryLedger(epsilon=1.0, delta=1e-6),
    ]
    for book in books:
        whole = book.charge([SMALL], "not in parts")
        number = book.charge([steps], "a run", run="name")
        spent = book.spent()
        book.begin_part(number, [part], "the first")
        book.begin_part(number, [part], "the second")
        for charge, event in ((number, part), (number, louder), (number, SMALL), (whole, SMALL)):
            with pytest.raises(AccountingError):
                book.begin_part(charge, [event], "too much")
        with pytest.raises(AccountingError):
            book.begin_part(9, [part], "of nothing")
        assert book.spent() == spent
        assert book.events() == (SMALL, steps)
    chain = Ledger.open(tmp_path / "l").verify()
    assert len(chain.entries) == 4
    assert chain.begun(2) == (part, part)


@given(
    squares=st.lists(st.floats(1e-6, 10.0), min_size=1, max_size=6),
    pieces=st.integers(1, 50),
    more=st.floats(1e-9, 1.0),
)
def test_a_plan_covers_its_parts_in_any_cut_and_nothing_beyond(
    squares: list[float], pieces: int, more: float
) -> None:
    paid = [GaussianEvent(replace=s, withhold=s / 2, count=pieces) for s in squares]
    cut = [GaussianEvent(replace=s, withhold=s / 2) for s in squares for _ in range(pieces)]
    assert covers(paid, cut)
    assert covers(cut, paid)
    assert not covers(paid, [*cut, GaussianEvent(replace=more, withhold=0.0)])
    assert not covers(paid, [RandomisedResponseEvent(epsilon=more, categories=2)])


@given(st.floats(0.05, 0.95), st.floats(0.3, 4.0), st.sampled_from(["replace", "withhold"]))
def test_what_is_left_fits_and_hardly_more_does(part: float, total: float, relation: str) -> None:
    """What is left is told as a training may ask for it, not as a difference of epsilons."""
    budget = {"epsilon": total, "delta": 1e-6, "relation": relation}

    def mu(epsilon: float) -> GaussianEvent:
        value = gaussian_mu(epsilon, 1e-6)
        return GaussianEvent(replace=value, withhold=value)

    book = MemoryLedger(**budget)
    assert book.room() == total
    book.charge([mu(part * total)], "first")
    left = book.room()
    assert left >= (1 - part) * total * (1 - 1e-3)
    with pytest.raises(BudgetExceededError):
        book.check_room([mu(1.01 * left)])
    book.charge([mu(left)], "second")
    assert book.room() < 0.02 * total


def test_where_steps_were_sampled_what_is_left_is_the_difference() -> None:
    book = MemoryLedger(epsilon=2.0, delta=1e-6)
    book.charge([PoissonGaussianEvent(noise_multiplier=4.0, rate=0.05, steps=20)], "steps")
    assert 0 < book.spent() < 1
    assert book.room() == 2.0 - book.spent()
    answers = MemoryLedger(epsilon=1.0, delta=1e-6)
    answers.charge([RandomisedResponseEvent(epsilon=1.0, categories=2)], "answers")
    # Charged to its end, and a hair beyond by rounding: nothing is left, not less than nothing.
    assert 0.0 <= answers.room() < 1e-5


def test_an_interrupted_creation_is_told_from_what_somebody_wrote() -> None:
    line = b'{"kind":"header","version":1,"epsilon":1.0}'
    for left in (b"", b"{", b'{"kind":"hea', b'{"kind":"header",', line):
        assert creation_unfinished(left)
    for written in (line + b"\n", b"\n", b"notes", b'{"kind":"head","count":1}', b"{}"):
        assert not creation_unfinished(written)


def test_a_ledger_without_charges_may_have_lost_its_head_which_is_written_again(
    ledger: Ledger,
) -> None:
    head = ledger.path.with_name(ledger.path.name + ".head")
    content = ledger.path.read_bytes()
    assert parse_chain(content, None, "data.jsonl").head_behind
    before = head.read_bytes()
    assert not parse_chain(content, parse_head(before, "data.jsonl.head"), "data.jsonl").head_behind
    head.unlink()
    Ledger.open(ledger.path).charge([SMALL], "first")
    assert [entry.seq for entry in Ledger.open(ledger.path).entries()] == [1]


OTHER = GaussianEvent(replace=0.05, withhold=0.04)


def test_a_charge_that_is_taken_back_counts_no_more(ledger: Ledger) -> None:
    first = ledger.charge([SMALL], "first", seeded=True)
    second = ledger.charge([OTHER], "second")
    assert ledger.charged_here == {first, second}
    ledger.refund(first)
    again = Ledger.open(ledger.path)
    for book in (ledger, again):
        assert book.events() == (OTHER,)
        assert [entry.seq for entry in book.entries()] == [second]
        assert book.verify().refunded == {first}
    assert ledger.charged_here == {second}
    # The line says which charge it takes back, and that its noise was seeded.
    last = again.verify().entries[-1]
    assert (last.refunds, last.seeded, last.events) == (first, True, ())
    for gone in (first, 3, 9):
        with pytest.raises(AccountingError, match="no charge"):
            ledger.refund(gone)
    assert ledger.events() == (OTHER,)


def test_a_charge_in_memory_that_is_taken_back_counts_no_more() -> None:
    book = MemoryLedger(epsilon=1.0, delta=1e-6)
    first = book.charge([SMALL], "first", run="one")
    second = book.charge([OTHER], "second", run="two")
    book.refund(first)
    assert book.events() == (OTHER,)
    with pytest.raises(AccountingError, match="not made for a run"):
        book.begin_part(first, [SMALL], "all of it")
    book.begin_part(second, [OTHER], "all of it")
    assert book.charge([SMALL], "third") == 3


def test_ctrl_c_after_the_line_was_written_takes_it_back(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    armed: list[bool] = []
    write, close = Ledger._write, os.close

    def written(self: Ledger, *args: object, **marks: object) -> int:
        number = write(self, *args, **marks)  # type: ignore[arg-type]
        if not armed:
            armed.append(True)
        return number

    def closed(fd: int) -> None:
        close(fd)
        if armed == [True]:
            armed.append(False)
            raise KeyboardInterrupt

    monkeypatch.setattr(Ledger, "_write", written)
    monkeypatch.setattr(os, "close", closed)
    with pytest.raises(KeyboardInterrupt):
        ledger.charge([SMALL], "interrupted")
    monkeypatch.undo()
    assert ledger.events() == ()
    assert Ledger.open(ledger.path).verify().refunded == {1}


def test_ctrl_c_before_the_line_was_written_leaves_no_trace(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupts(*args: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(ledger_file, "append", interrupts)
    before = ledger.path.read_bytes()
    with pytest.raises(KeyboardInterrupt):
        ledger.charge([SMALL], "interrupted at once")
    assert ledger.path.read_bytes() == before
    assert ledger.verify().entries == ()


def test_an_interrupted_creation_has_less_than_a_header_and_no_head(tmp_path: Path) -> None:
    path = tmp_path / "new.jsonl"
    for left in (b"", b'{"kind":"hea', b'{"kind":"header",' + b" " * 3000):
        path.write_bytes(left)
        assert left_unfinished(path)
        head_path(path).write_bytes(b"")
        assert not left_unfinished(path)
        head_path(path).unlink()
    for other in (b"x", b'"kind":"hea', b'{"kind":"header",\n'):
        path.write_bytes(other)
        assert not left_unfinished(path)


def test_whoever_was_slower_opens_what_the_other_has_created(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, create = tmp_path / "shared.jsonl", Ledger.create

    def too_late(*args: object, **budget: object) -> Ledger:
        if makes:
            create(path, epsilon=1.0, delta=1e-6)
        raise LedgerError("somebody else was faster, or the disk is full")

    monkeypatch.setattr(Ledger, "create", too_late)
    makes = False
    with pytest.raises(LedgerError, match="disk is full"):
        Ledger.open_or_create(path, epsilon=1.0, delta=1e-6)
    path.write_bytes(b'{"kind":"hea')
    with pytest.raises(LedgerError, match="disk is full"):
        Ledger.open_or_create(path, epsilon=1.0, delta=1e-6)
    path.unlink()
    makes = True
    assert Ledger.open_or_create(path, epsilon=1.0, delta=1e-6).epsilon == 1.0


@pytest.mark.parametrize(("beyond", "fits"), [(0.0, True), (1e-9, True), (1.5e-9, False)])
def test_a_billionth_beyond_the_budget_is_rounding_and_more_is_not(
    beyond: float, fits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    book = MemoryLedger(epsilon=2.0, delta=1e-6)
    monkeypatch.setattr(ledger_file, "_composed", lambda *_: 2.0 * (1 + beyond))
    if fits:
        assert book.charge([SMALL], "a") == 1
    else:
        with pytest.raises(BudgetExceededError):
            book.charge([SMALL], "a")


@pytest.mark.parametrize("relation", ["replace", "withhold"])
def test_what_is_left_of_gaussians_is_what_is_left_of_their_squares(relation: str) -> None:
    book = MemoryLedger(epsilon=1.0, delta=1e-6, relation=relation)  # type: ignore[arg-type]
    book.charge([GaussianEvent(replace=0.1, withhold=0.15)], "a")
    mu = {"replace": 0.1, "withhold": 0.15}[relation]
    left = math.sqrt(gaussian_mu(1.0, 1e-6) ** 2 - mu**2)
    # A millionth below, so that a training of just this epsilon is not refused.
    assert book.room() == pytest.approx(gaussian_epsilon(left * (1 - 1e-6), 1e-6), rel=1e-8)


def test_nothing_is_left_where_the_squares_are_used_up(monkeypatch: pytest.MonkeyPatch) -> None:
    book = MemoryLedger(epsilon=1.0, delta=1e-6)
    book.charge([SMALL], "a")
    monkeypatch.setattr("halfmask.accounting.gaussian.gaussian_mu", lambda *_: 1.0)
    assert book.room() == 0.0


def test_files_are_written_whole_and_read_by_their_owner_alone(tmp_path: Path) -> None:
    secret, words = tmp_path / "key", tmp_path / "words.txt"
    write_durably(secret, b"content")
    assert secret.read_bytes() == b"content"
    assert secret.stat().st_mode & 0o777 == 0o600
    write_text(words, "ü")
    assert words.read_text(encoding="utf-8") == "ü"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["key", "words.txt"]
    with pytest.raises(UnicodeEncodeError):
        write_text(words, "\ud800")
    assert words.read_text(encoding="utf-8") == "ü"
    assert len(list(tmp_path.iterdir())) == 2


def test_json_for_people_has_a_line_per_value_and_only_finite_numbers() -> None:
    made = json_text({"a": (1, math.nan, None), "b": np.float64(0.5)})
    assert made == '{\n  "a": [\n    1,\n    null,\n    null\n  ],\n  "b": 0.5\n}'


@pytest.mark.parametrize(
    ("share", "told", "advice"),
    [
        (1.0, "Left: no further training fits. Use other rows: a new", "smaller epsilon"),
        (0.5, "still fits. Ask for a smaller epsilon (more noise, fewer steps), or", "no further"),
    ],
)
def test_a_refusal_says_what_is_left_as_show_does(share: float, told: str, advice: str) -> None:
    budget = MemoryLedger(epsilon=1.0, delta=1e-6)
    mu = gaussian_mu(1.0, 1e-6)
    budget.charge([GaussianEvent(replace=share * mu, withhold=share * mu)], what="all of it")
    with pytest.raises(BudgetExceededError) as refused:
        budget.charge([GaussianEvent(replace=mu, withhold=mu)], what="more")
    assert told in str(refused.value)
    assert advice not in str(refused.value)
