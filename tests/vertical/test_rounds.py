"""A round that was paid for once is answered once: at once, after a crash, and from old files."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import threading

import numpy as np
import pytest
from click.testing import CliRunner
from test_network import setup
from test_strangers import share_request

from halfmask.accounting.ledger import Ledger
from halfmask.cli import main
from halfmask.errors import BudgetExceededError, DataError, HalfmaskError
from halfmask.vertical import store
from halfmask.vertical.network import NetworkParty, read_party_file
from halfmask.vertical.store import RoundStore

__all__ = ["setup"]
TRIALS = 12


def answer(file, request):
    return NetworkParty(read_party_file(file)).answer(request).arrays["share"]


def with_state(folder, name, state, ledger=None):
    """The file of a party like `bank`, with its memory elsewhere."""
    text = (folder / "bank.toml").read_text("utf-8").replace("bank-state", state)
    if ledger is not None:
        text += f'\nledger = "{ledger}"'
    (folder / name).write_text(text, encoding="utf-8")
    return folder / name


def asks(files, barrier, answers):
    """One of two processes that ask a party for the same round at the same moment."""
    for file in files:
        party = NetworkParty(read_party_file(file))
        barrier.wait(60)
        share = party.answer(share_request()).arrays["share"]
        answers.put((str(file), share.tobytes()))


@pytest.fixture
def bank(setup):
    *_, folder = setup(method="admm", rounds=3)
    return folder


def events(folder, name="bank-state/ledger.jsonl"):
    return Ledger.open(folder / name).events()


def test_two_processes_that_ask_at_once_get_one_share_for_one_charge(bank):
    files = [with_state(bank, f"b{i}.toml", f"s{i}") for i in range(TRIALS)]
    context = multiprocessing.get_context("spawn")
    barrier, answers = context.Barrier(2), context.Queue()
    workers = [context.Process(target=asks, args=(files, barrier, answers)) for _ in range(2)]
    for worker in workers:
        worker.start()
    try:
        got = [answers.get(timeout=120) for _ in range(2 * TRIALS)]
    finally:
        for worker in workers:
            worker.join(10)
            if worker.is_alive():
                worker.kill()
    shares = {file: {share for name, share in got if name == file} for file, _ in got}
    assert [len(found) for found in shares.values()] == [1] * TRIALS
    for i in range(TRIALS):
        assert len(events(bank, f"s{i}/ledger.jsonl")) == 1


def at_once(*calls):
    """The results of calls made by one thread each; an error is a result too."""
    barrier, results = threading.Barrier(len(calls)), [None] * len(calls)

    def run(index, call):
        barrier.wait(30)
        try:
            results[index] = call()
        except HalfmaskError as error:
            results[index] = error

    threads = [threading.Thread(target=run, args=pair) for pair in enumerate(calls)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return results


def test_threads_that_ask_for_a_later_round_at_once_get_one_share(bank):
    parties = [NetworkParty(read_party_file(bank / "bank.toml")) for _ in range(4)]
    for number in (1, 2, 3):
        request = share_request(round=number)
        shares = at_once(*[lambda p=p, r=request: p.answer(r).arrays["share"] for p in parties])
        assert len({share.tobytes() for share in shares}) == 1
    assert len(events(bank)) == 1


def test_an_old_memory_is_refused(bank):
    file, memory = bank / "bank.toml", bank / "bank-state" / "party.npz"
    answer(file, share_request())
    shutil.copy(memory, bank / "backup.npz")
    answer(file, share_request(round=2))
    newest = memory.read_bytes()
    shutil.copy(bank / "backup.npz", memory)
    for number in (1, 2, 3):
        with pytest.raises(DataError, match="noted last"):
            answer(file, share_request(round=number))
    with pytest.raises(DataError, match="noted last"):
        answer(file, share_request(run="another"))
    memory.write_bytes(newest)
    answer(file, share_request(round=3))


def test_no_later_round_states_its_run_without_what_the_first_one_charged(bank):
    file, part = bank / "bank.toml", bank / "bank-state" / "part"
    answer(file, share_request())
    charged = NetworkParty(read_party_file(file)).part().statement["epsilon"]
    assert 0.99 < charged <= 1.0
    part.rename(bank / "kept")
    with pytest.raises(DataError, match="part of the model"):
        answer(file, share_request(round=2))
    assert len(events(bank)) == 1
    (bank / "kept").rename(part)
    answer(file, share_request(round=2))
    assert NetworkParty(read_party_file(file)).part().statement["epsilon"] == charged


def test_a_party_with_an_old_memory_hears_of_it_before_it_joins(bank):
    pytest.importorskip("flwr")
    file, memory = bank / "bank.toml", bank / "bank-state" / "party.npz"
    answer(file, share_request())
    old = memory.read_bytes()
    answer(file, share_request(round=2))
    memory.write_bytes(old)
    (bank / "key").write_text("", encoding="utf-8")
    command = ["vertical", "join", file, "--server", "127.0.0.1:1", "--ca", bank / "key"]
    result = CliRunner().invoke(main, [str(word) for word in (*command, "--key", bank / "key")])
    assert result.exit_code == 2
    assert "noted last" in result.output


def test_a_memory_that_is_gone_buys_nothing(bank):
    file = bank / "bank.toml"
    answer(file, share_request())
    (bank / "bank-state" / "party.npz").unlink()
    with pytest.raises(HalfmaskError, match="round 1 is next"):
        answer(file, share_request(round=2))
    with pytest.raises(BudgetExceededError):
        answer(file, share_request())


def test_a_memory_without_the_ledger_that_paid_for_it_is_refused(bank):
    file, state = bank / "bank.toml", bank / "bank-state"
    answer(file, share_request())
    for name in ("ledger.jsonl", "ledger.jsonl.head"):
        (state / name).unlink()
    with pytest.raises(DataError, match="noted last"):
        answer(file, share_request(round=2))


def copies(folder):
    """A party after its first round, and a copy of its memory that is charged to one ledger."""
    one = with_state(folder, "one.toml", "one", "book.jsonl")
    two = with_state(folder, "two.toml", "two", "book.jsonl")
    answer(one, share_request())
    shutil.copytree(folder / "one", folder / "two")
    return one, two


def test_a_copy_of_the_memory_is_refused_once_the_original_went_on(bank):
    one, two = copies(bank)
    answer(one, share_request(round=2))
    with pytest.raises(DataError, match="a copy whose original went on"):
        answer(two, share_request(round=2))
    answer(one, share_request(round=3))


def test_of_two_copies_that_are_asked_at_once_only_one_answers(bank):
    one, two = copies(bank)
    parties = [NetworkParty(read_party_file(file)) for file in (one, two)]
    request = share_request(round=2)
    results = at_once(*[lambda p=p: p.answer(request).arrays["share"] for p in parties])
    assert sum(isinstance(result, np.ndarray) for result in results) == 1
    assert sum(isinstance(result, DataError) for result in results) == 1


class Stop(BaseException):
    """The process ends here."""


def stops(*arguments, **options):
    raise Stop


def test_a_crash_before_the_note_leaves_the_round_open_and_nothing_was_answered(bank, monkeypatch):
    file = bank / "bank.toml"
    answer(file, share_request())
    with monkeypatch.context() as crash:
        crash.setattr(Ledger, "charge", stops)
        with pytest.raises(Stop):
            answer(file, share_request(round=2))
    assert (bank / "bank-state" / "party.next.npz").exists()
    first = answer(file, share_request(round=2))
    assert np.array_equal(first, answer(file, share_request(round=2)))
    answer(file, share_request(round=3))
    with pytest.raises(ArithmeticError):
        answer(file, share_request(round=4))


def test_a_crash_after_the_note_answers_what_was_noted(bank, monkeypatch):
    file, state = bank / "bank.toml", bank / "bank-state"
    answer(file, share_request())
    with monkeypatch.context() as crash:
        crash.setattr(store, "sync_folder", stops)
        crash.setattr(os, "replace", lambda a, b, keep=os.replace: _unless_memory(a, b, keep))
        with pytest.raises(Stop):
            answer(file, share_request(round=2))
    held = np.load(state / "party.next.npz")["reply/share"]
    assert np.array_equal(answer(file, share_request(round=2)), held)
    assert len(events(bank)) == 1
    answer(file, share_request(round=3))


def _unless_memory(source, target, replace):
    if str(target).endswith("party.npz"):
        raise Stop
    return replace(source, target)


def test_a_torn_new_memory_is_no_obstacle(bank):
    file = bank / "bank.toml"
    answer(file, share_request())
    (bank / "bank-state" / "party.next.npz").write_bytes(b"PK\x03\x04 cut off")
    answer(file, share_request(round=2))


def test_a_memory_that_nothing_paid_for_is_not_taken_for_a_paid_one(setup):
    *_, folder = setup(method="admm", noise="none", rounds=3)
    answer(folder / "bank.toml", share_request())
    setup(method="admm", noise="row", rounds=3)
    with pytest.raises(DataError, match="noted last"):
        answer(folder / "bank.toml", share_request(round=2))


def test_notes_charge_nothing(bank):
    file = bank / "bank.toml"
    answer(file, share_request())
    ledger = Ledger.open(bank / "bank-state" / "ledger.jsonl")
    spent = ledger.spent()
    answer(file, share_request(round=2))
    answer(file, share_request(round=3))
    assert ledger.spent() == spent
    assert [len(entry.events) for entry in ledger.entries()] == [1, 0, 0, 0]
    assert RoundStore(bank / "bank-state").load(ledger).round == 3


def test_a_first_round_that_needs_no_noise_is_charged_with_all_that_follow(setup):
    """A target of zero has a share of zero for every table; the next round is another matter."""
    *_, folder = setup(method="admm", rounds=2, noise="column")
    first = answer(folder / "bank.toml", share_request(residual=np.zeros(400)))
    assert not first.any()
    assert len(events(folder)) == 1
    assert answer(folder / "bank.toml", share_request(round=2)).any()
    assert len(events(folder)) == 1
