"""Messages, alignment and parties that misbehave."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from halfmask.errors import DataError, InputError
from halfmask.vertical.admm import AdmmConfig, run_admm
from halfmask.vertical.admm_party import AdmmParty
from halfmask.vertical.channel import LocalChannel, Message, PartyError
from halfmask.vertical.party import (
    Coordinator,
    Party,
    check_alignment,
    id_hashes,
    row_order,
)


class Misbehaving:
    """A party whose answer in round 3 goes through `spoil`."""

    def __init__(self, party, spoil):
        self.party, self.spoil = party, spoil

    def answer(self, request):
        reply = self.party.answer(request)
        return self.spoil(reply) if request.round == 3 else reply


class Dropping(LocalChannel):
    """A channel that loses one party's reply."""

    def exchange(self, request):
        replies = super().exchange(request)
        replies.pop("b")
        return replies


def with_share(share):
    return lambda reply: dataclasses.replace(reply, arrays={"share": share(reply.arrays["share"])})


SPOILED = {
    "a wrong length": with_share(lambda share: share[:-1]),
    "NaN": with_share(lambda share: np.where(np.arange(len(share)) == 5, np.nan, share)),
    "infinity": with_share(lambda share: share * np.inf),
    "objects": with_share(lambda share: share.astype(object)),
    "another run": lambda reply: dataclasses.replace(reply, run="0" * 16),
    "an old round": lambda reply: dataclasses.replace(reply, round=2),
    "nothing": lambda reply: dataclasses.replace(reply, arrays={}),
}


@pytest.mark.parametrize("kind", SPOILED)
def test_a_party_that_misbehaves_ends_the_round_by_name_and_the_run_resumes(columns, kind):
    matrix, labels = columns
    first = AdmmParty(matrix[:, :6], name="a", strength=1.0)
    second = AdmmParty(matrix[:, 6:], name="b", strength=1.0)
    state = run_admm(LocalChannel({"a": first, "b": second}), labels, AdmmConfig(rounds=2))
    before = (state.z.copy(), {name: share.copy() for name, share in state.shares.items()})
    bad = LocalChannel({"a": first, "b": Misbehaving(second, SPOILED[kind])})
    with np.errstate(invalid="ignore"), pytest.raises(PartyError, match="'b'"):
        run_admm(bad, labels, AdmmConfig(rounds=6), state=state)
    assert len(state.history) == 2
    assert np.array_equal(state.z, before[0])
    assert all(np.array_equal(state.shares[name], share) for name, share in before[1].items())
    good = LocalChannel({"a": first, "b": second})
    assert len(run_admm(good, labels, AdmmConfig(rounds=6), state=state).history) == 6


def test_a_silent_party_is_named(columns):
    matrix, labels = columns
    parties = {
        name: AdmmParty(matrix[:, cut], name=name, strength=1.0)
        for name, cut in (("a", slice(0, 6)), ("b", slice(6, 12)))
    }
    with pytest.raises(PartyError, match="'b'"):
        run_admm(Dropping(parties), labels, AdmmConfig())


def test_a_party_answers_only_what_it_agreed_to_and_one_run():
    party = Party("a", rows=2, ids=[1, 2])
    with pytest.raises(InputError, match="does not answer"):
        party.answer(Message(kind="admm-share", run="x", round=1))
    party.answer(Message(kind="ids", run="x", round=0))
    with pytest.raises(InputError, match="another run"):
        party.answer(Message(kind="ids", run="y", round=0))


@pytest.mark.parametrize(
    "request_",
    [
        {"arrays": {"residual": np.zeros(3), "dual": np.zeros(300)}},
        {"arrays": {"residual": np.full(300, np.nan), "dual": np.zeros(300)}},
        {"values": {"rho": -1.0, "divisor": 1}},
    ],
)
def test_a_party_refuses_a_malformed_request(columns, request_):
    party = AdmmParty(columns[0], name="a", strength=1.0)
    whole = {
        "arrays": {"residual": np.zeros(300), "dual": np.zeros(300)},
        "values": {"rho": 1.0, "divisor": 1},
    }
    with pytest.raises(InputError):
        party.answer(Message(kind="admm-share", run="x", round=1, **{**whole, **request_}))


def test_rows_are_ordered_by_id_whatever_the_file_order():
    ids = np.array([f"id{i:03d}" for i in range(50)])
    shuffled = np.random.default_rng(0).permutation(ids)
    assert np.array_equal(shuffled[row_order(shuffled, "party 'a'")], ids)


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        (["a", "b", "a", "a"], "2 rows whose id occurs before"),
        (["a", None, float("nan")], "2 rows without an id"),
    ],
)
def test_missing_and_repeated_ids_are_counted(ids, message):
    with pytest.raises(DataError, match=message):
        row_order(ids, "party 'a'")


def aligned(labels_ids, party_ids):
    party = Party("a", rows=len(party_ids), ids=party_ids)
    return Coordinator(LocalChannel({"a": party}), np.zeros(len(labels_ids)), ids=labels_ids)


def test_equal_ids_align_and_unequal_ones_are_counted():
    assert aligned(["1", "2", "3"], ["1", "2", "3"]).align() == 3
    with pytest.raises(DataError, match=r"lacks 2 .* has 1 other"):
        aligned(["1", "2", "3"], ["1", "4"]).align()
    with pytest.raises(DataError, match="different orders"):
        aligned(["1", "2", "3"], ["2", "1", "3"]).align()


def test_hashes_differ_by_run():
    assert not np.intersect1d(id_hashes(["1", "2"], "x"), id_hashes(["1", "2"], "y")).size
    assert check_alignment({"a": id_hashes([1], "x"), "b": id_hashes(["1"], "x")}, against="a") == 1


@pytest.mark.parametrize(
    "build",
    [
        lambda: LocalChannel({}),
        lambda: Party("a", rows=2, ids=["1"]),
        lambda: Coordinator(LocalChannel({"a": Party("a", rows=1)}), [0.0], ids=["1", "2"]),
        lambda: Coordinator(LocalChannel({"a": Party("a", rows=1)}), [0.0]).align(),
        lambda: Coordinator(LocalChannel({"a": Party("a", rows=1)}), [0.0], ids=["1"]).align(),
    ],
)
def test_incomplete_roles_are_refused(build):
    with pytest.raises(InputError):
        build()
