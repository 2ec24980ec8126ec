"""What arrives over Flower is checked party by party, with a grid that misbehaves on purpose."""

from __future__ import annotations

import math
from importlib.util import find_spec

import numpy as np
import pytest

pytest.importorskip("flwr")
from flwr.app import ArrayRecord, ConfigRecord, Error, RecordDict
from flwr.app import Message as Envelope

from halfmask.errors import BudgetExceededError, DataError, InputError, LedgerError
from halfmask.vertical import flower_app
from halfmask.vertical.channel import Message, PartyError, checked_replies
from halfmask.vertical.flower_app import (
    FlowerChannel,
    _disclosable,
    find_parties,
    from_record,
    to_record,
)


@pytest.fixture(autouse=True)
def identity(monkeypatch):
    """Flower gives every app process an identity; newer versions make no message without one."""
    if find_spec("flwr.supercore.task_identity") is None:
        return
    from flwr.supercore.task_identity import TaskIdentity

    for name in ("_run_id", "_node_id", "_task_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)


REQUEST = Message(kind="admm-share", run="r", round=1)


class Grid:
    """Answers from functions, one per node; an answer of None never arrives."""

    def __init__(self, nodes):
        self.nodes = nodes
        self.sent = {}

    def get_node_ids(self):
        return list(self.nodes)

    def push_messages(self, messages):
        ids = []
        for message in messages:
            ids.append(f"m{len(self.sent)}")
            self.sent[ids[-1]] = message
        return ids

    def pull_messages(self, message_ids):
        for message_id in message_ids:
            message = self.sent[message_id]
            answer = self.nodes[message.metadata.dst_node_id](from_record(message.content))
            if isinstance(answer, Message):
                answer = to_record(answer)
            if isinstance(answer, Error):
                yield Envelope(error=answer, reply_to=message)
            elif answer is not None:
                yield Envelope(content=answer, reply_to=message)


def good(request):
    return request.reply(arrays={"share": np.ones(4)})


def raising(request):
    raise ConnectionError("gone")


def said(text):
    return lambda request: RecordDict({"error": ConfigRecord({"text": text})})


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (lambda request: None, "No answer from 'b'"),
        (raising, "'b' did not arrive whole"),
        (lambda request: Error(code=1, reason="crashed"), "'b' failed: crashed"),
        (said("its budget does not allow this"), "'b' says: its budget"),
        (said("\x1b[2Jgone"), r"'b' says: '\\x1b\[2Jgone'"),
        (lambda request: RecordDict({"other": ConfigRecord({})}), "not a message"),
        (lambda request: RecordDict({"error": ConfigRecord({})}), "'b' sent something that is not"),
        (
            lambda request: RecordDict({"head": ConfigRecord({}), "arrays": ArrayRecord({})}),
            "'b' sent something that is not",
        ),
        (lambda request: request.reply(arrays={"share": np.ones(3)}), "'b' sent 'share' of shape"),
        (lambda request: request.reply(arrays={"share": np.full(4, np.nan)}), "not finite"),
        (lambda request: request.reply(arrays={"share": np.full(4, 1e200)}), "beyond 1e\\+100"),
        (
            lambda request: Message(kind=request.kind, run="other", round=1),
            "'b' answered for another run",
        ),
    ],
)
def test_whatever_goes_wrong_names_the_party(answer, words):
    channel = FlowerChannel(Grid({1: good, 2: answer}), {"a": 1, "b": 2}, timeout=1.0)
    with pytest.raises(PartyError, match=words):
        checked_replies(channel, REQUEST, channel.exchange(REQUEST), {"share": (4,)})


def test_good_answers_arrive_under_their_names():
    channel = FlowerChannel(Grid({1: good, 2: good}), {"a": 1, "b": 2}, timeout=5.0)
    replies = checked_replies(channel, REQUEST, channel.exchange(REQUEST), {"share": (4,)})
    assert list(replies) == ["a", "b"]


def named(name):
    return lambda request: request.reply(values={"party": name})


def gone(request):
    return Error(code=1, reason="no heartbeat")


def test_a_node_that_has_gone_is_passed_over_for_the_one_that_came_back():
    grid = Grid({7: gone, 5: named("a"), 9: named("b")})
    assert find_parties(grid, {"a", "b"}, timeout=5.0) == {"a": 5, "b": 9}


def test_parties_are_found_by_the_names_they_give():
    grid = Grid({7: named("b"), 5: named("a")})
    assert find_parties(grid, {"a", "b"}, timeout=5.0) == {"a": 5, "b": 7}


@pytest.mark.parametrize(
    ("nodes", "words"),
    [
        ({1: named("a"), 2: named("a")}, "Two parties named 'a'"),
        ({1: named("a"), 2: named("c")}, "'c' has joined"),
        ({1: named("a")}, "No answer from 'b'"),
        ({1: named("a"), 2: gone}, r"No answer from 'b' within 1.5 seconds \(no heartbeat\)"),
    ],
)
def test_strangers_doubles_and_absent_parties_are_named(nodes, words):
    with pytest.raises(PartyError, match=words):
        find_parties(Grid(nodes), {"a", "b"}, timeout=1.5)


REFUSAL = "it does not answer this; its own log says why"
SECRETS = [
    DataError("Column 'age', row 17: not a number."),
    InputError("A statistic is too large: 17."),
    LedgerError("17"),
    FloatingPointError("overflow at 17"),
    np.linalg.LinAlgError("17"),
    KeyError("17"),
    RecursionError("17"),
]


def test_errors_about_a_partys_own_files_stay_at_the_party():
    assert _disclosable(BudgetExceededError("spent 0.9 of 1")) == "its budget does not allow this"
    for error in SECRETS:
        assert _disclosable(error) == REFUSAL


@pytest.mark.parametrize("error", SECRETS, ids=lambda error: type(error).__name__)
def test_what_goes_back_never_quotes_an_exception(monkeypatch, caplog, error):
    """Whatever a party trips over, the sender reads the same words; its own log has the rest."""

    def trips(*arguments):
        raise error

    monkeypatch.setattr(flower_app, "read_party_file", trips)
    reply = flower_app.answered(to_record(REQUEST), "party.toml")
    assert dict(reply) == {"error": ConfigRecord({"text": REFUSAL})}
    assert "17" in caplog.text


@pytest.mark.parametrize(
    "content",
    [
        RecordDict({}),
        RecordDict({"head": ConfigRecord({"kind": "ids", "run": "r"})}),
        RecordDict({"head": ConfigRecord({"kind": "ids", "run": 7, "round": 1})}),
        RecordDict(
            {
                "head": ConfigRecord({"kind": "ids", "run": "r", "round": math.inf}),
                "arrays": ArrayRecord({}),
            }
        ),
    ],
)
def test_what_is_no_message_is_refused_in_the_same_words(content):
    reply = flower_app.answered(content, "party.toml")
    assert dict(reply) == {"error": ConfigRecord({"text": REFUSAL})}
