"""Parties set up by files, opened afresh for every message, as they are between organisations."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from test_simulate import SCHEMA, write

from halfmask.accounting.ledger import Ledger
from halfmask.errors import BudgetExceededError, DataError, InputError
from halfmask.schema import Schema
from halfmask.vertical.admm import AdmmConfig, run_admm
from halfmask.vertical.admm_party import AdmmParty
from halfmask.vertical.channel import LocalChannel, Message
from halfmask.vertical.experts import LabelTerms, train_experts
from halfmask.vertical.files import read_labels, read_vertical_table
from halfmask.vertical.network import NetworkParty, read_party_file, read_run_file
from halfmask.vertical.party import Coordinator
from halfmask.vertical.store import RoundStore

NAMES = ("bank", "telecom")


class Afresh:
    """A party whose process dies after every message."""

    def __init__(self, file):
        self.file = file

    def answer(self, request):
        return NetworkParty(read_party_file(self.file)).answer(request)


@pytest.fixture
def setup(tmp_path):
    """Files of two parties and a label holder; `method` and the rest are appended by tests."""
    (tmp_path / "schema.toml").write_text(SCHEMA, encoding="utf-8")
    write(tmp_path, "", 400, 1)

    def build(**settings):
        lines = [f"{key} = {value!r}".replace("'", '"') for key, value in settings.items()]
        for name in NAMES:
            own = [f'party = "{name}"', f'data = "{name}.csv"', f'state = "{name}-state"']
            own += ['schema = "schema.toml"', 'id = "id"', *lines]
            (tmp_path / f"{name}.toml").write_text("\n".join(own), encoding="utf-8")
        run = ['schema = "schema.toml"', 'label = "labels.csv"', 'id = "id"', 'out = "out"']
        (tmp_path / "run.toml").write_text("\n".join(run), encoding="utf-8")
        channel = LocalChannel({name: Afresh(tmp_path / f"{name}.toml") for name in NAMES})
        labels, ids = read_labels(
            Schema.from_toml(tmp_path / "schema.toml"), tmp_path / "labels.csv", "id"
        )
        return channel, Coordinator(channel, labels, ids=ids), tmp_path

    return build


def coefficients(folder):
    return [RoundStore(folder / f"{name}-state").load().memory.x for name in NAMES]


def test_parties_that_die_after_every_message_give_the_same_model(setup):
    channel, coordinator, folder = setup(method="admm", noise="none", strength=1.0)
    assert coordinator.align() == 400
    config = AdmmConfig(rounds=6)
    run_admm(channel, coordinator.signed, config)
    task = read_vertical_table(
        Schema.from_toml(folder / "schema.toml"),
        id_column="id",
        label_file=folder / "labels.csv",
        party_files={name: folder / f"{name}.csv" for name in NAMES},
    )
    assert np.array_equal(task.labels, coordinator.labels)
    sides = {part.name: AdmmParty(part.train, strength=1.0) for part in task.columns}
    run_admm(
        LocalChannel(sides),
        coordinator.signed,
        config,
    )
    for stored, side in zip(coefficients(folder), sides.values(), strict=True):
        assert np.allclose(stored, side.x, atol=1e-12)


def test_a_round_asked_again_gets_the_same_noise_and_costs_nothing(setup):
    channel, coordinator, folder = setup(method="admm", rounds=2)
    request = Message(
        kind="admm-share",
        run="r",
        round=1,
        arrays={"residual": -coordinator.signed, "dual": np.zeros(400)},
        values={"rho": 0.1, "divisor": 2},
    )
    first, again = (channel.exchange(request)["bank"] for _ in range(2))
    assert np.array_equal(first.arrays["share"], again.arrays["share"])
    assert len(Ledger.open(folder / "bank-state" / "ledger.jsonl").events()) == 1
    following = dataclasses.replace(request, round=2)
    assert not np.array_equal(
        channel.exchange(following)["bank"].arrays["share"], first.arrays["share"]
    )
    for late in (1, 4):
        with pytest.raises(InputError, match="cannot"):
            channel.exchange(dataclasses.replace(request, round=late))


def test_rounds_end_where_the_budget_ends_and_another_run_is_refused(setup):
    channel, coordinator, folder = setup(method="admm", rounds=2)
    with pytest.raises(ArithmeticError):
        run_admm(channel, coordinator.signed, AdmmConfig(rounds=3))
    for name in NAMES:
        ledger = Ledger.open(folder / f"{name}-state" / "ledger.jsonl")
        ledger.verify()
        assert ledger.spent() == pytest.approx(1.0, abs=1e-3)
    with pytest.raises(BudgetExceededError):
        run_admm(channel, coordinator.signed, AdmmConfig(rounds=1))


def test_a_party_file_that_changes_during_a_run_buys_no_further_rounds(setup):
    """Rounds that were paid for had the noise of the old file; more of them would cost more."""
    channel, coordinator, _ = setup(method="admm", rounds=2)
    state = run_admm(channel, coordinator.signed, AdmmConfig(rounds=1))
    channel, *_ = setup(method="admm", rounds=6)
    with pytest.raises(InputError, match="has changed since the run began"):
        run_admm(channel, coordinator.signed, AdmmConfig(rounds=2), state=state)


def test_experts_train_once_and_answer_alike_when_asked_again(setup):
    channel, coordinator, folder = setup(method="experts")
    first = train_experts(coordinator, terms=LabelTerms(prior=0.5))
    again = train_experts(coordinator, terms=LabelTerms(prior=0.5))
    for name in NAMES:
        assert np.array_equal(first.coefficients[name], again.coefficients[name])
    with pytest.raises(BudgetExceededError):
        train_experts(Coordinator(channel, coordinator.labels), terms=LabelTerms(prior=0.5))
    assert all(np.any(x) for x in coefficients(folder))


def test_a_party_answers_only_the_method_of_its_own_file(setup):
    channel, coordinator, _ = setup(method="experts")
    with pytest.raises(InputError, match="opened for 'experts'"):
        run_admm(channel, coordinator.signed, AdmmConfig())
    hello = Message(kind="hello", run="r", round=0)
    assert channel.exchange(hello)["bank"].values["party"] == "bank"


def test_files_that_are_wrong_say_so(setup, tmp_path):
    *_, folder = setup(method="experts", colour="red")
    with pytest.raises(InputError, match="'colour'"):
        read_party_file(folder / "bank.toml")
    (folder / "short.toml").write_text('party = "bank"', encoding="utf-8")
    with pytest.raises(InputError, match="incomplete"):
        read_party_file(folder / "short.toml")
    with pytest.raises(InputError, match="Cannot read"):
        read_run_file(folder / "absent.toml")
    (folder / "broken.toml").write_text("party = ", encoding="utf-8")
    with pytest.raises(InputError, match="not valid TOML"):
        read_run_file(folder / "broken.toml")
    (folder / "text.toml").write_text('hide_labels = "2"', encoding="utf-8")
    with pytest.raises(InputError, match="hide_labels must be a number"):
        read_run_file(folder / "text.toml")


def test_a_damaged_memory_is_not_trusted(tmp_path):
    store = RoundStore(tmp_path / "state")
    assert store.load() is None
    (tmp_path / "state" / "party.npz").write_bytes(b"PK\x03\x04 not really")
    with pytest.raises(DataError, match="cannot be read"):
        store.load()
