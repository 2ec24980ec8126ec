"""Hidden labels between organisations: what is broadcast, what is charged, what resuming does."""

from __future__ import annotations

import dataclasses
import shutil

import numpy as np
import pytest

pytest.importorskip("flwr")
from test_flower import NAMES, organisations
from test_flower_channel import Grid, identity

from halfmask.accounting.ledger import Ledger
from halfmask.errors import BudgetExceededError, InputError
from halfmask.mechanisms.noise import noise_source
from halfmask.mechanisms.release import Releaser
from halfmask.schema import Schema
from halfmask.vertical.admm import AdmmConfig, admm_loss
from halfmask.vertical.channel import LocalChannel, Message
from halfmask.vertical.experts import MOST_EXCESS, ExpertsConfig, requested_excess
from halfmask.vertical.files import read_vertical_table
from halfmask.vertical.flower_app import FlowerChannel, run_method
from halfmask.vertical.network import NetworkParty, read_party_file, read_run_file
from halfmask.vertical.simulation import SimulationBudget, simulate_admm, simulate_experts
from halfmask.vertical.store import RoundStore

__all__ = ["identity"]
SEED, EPSILON = 5, 2.0


def answering(folder, index, name):
    """A party opened afresh for every message, with the noise of the simulation's party."""
    door = seeded_door(1009 * SEED + index)
    return lambda request: NetworkParty(
        read_party_file(folder / f"{name}.toml"), make_releaser=door
    ).answer(request)


def seeded_door(seed):
    noise = noise_source(seed)
    return lambda ledger, **how: Releaser(ledger, noise, **how)


def over_flower(folder):
    """Every message goes through Flower's records and a channel of the kind `serve` uses."""
    nodes = {index: answering(folder, index, name) for index, name in enumerate(NAMES)}
    names = {name: index for index, name in enumerate(NAMES)}
    return FlowerChannel(Grid(nodes), names, timeout=20.0)


class Recording(LocalChannel):
    """All parties in this process; keeps what was sent to them."""

    def __init__(self, folder):
        class Party:
            def __init__(self, index, name):
                self.answer = answering(folder, index, name)

        super().__init__({name: Party(index, name) for index, name in enumerate(NAMES)})
        self.sent = []

    def exchange(self, request):
        self.sent += [request]
        return super().exchange(request)


def settings_of(folder, **changes):
    settings = dataclasses.replace(read_run_file(folder / "run.toml"), **changes)
    settings.out.mkdir(exist_ok=True)
    return settings


def run(channel, folder, **changes):
    settings = settings_of(folder, **{"hide_labels": EPSILON, **changes})
    return run_method(channel, settings, seeded_door(1009 * SEED + len(NAMES)))


def task_of(folder):
    return read_vertical_table(
        Schema.from_toml(folder / "schema.toml"),
        id_column="id",
        label_file=folder / "labels.csv",
        party_files={name: folder / f"{name}.csv" for name in NAMES},
    )


def train_loss(task, scores):
    return float(admm_loss("logistic").value(scores, 2 * task.labels - 1).mean())


@pytest.mark.parametrize("combine", ["fixed", "aggregate"])
def test_experts_with_hidden_labels_are_the_same_over_flower_and_in_process(tmp_path, combine):
    organisations(tmp_path, method="experts", label="private")
    aggregate = combine == "aggregate"
    for name in NAMES:
        with (tmp_path / f"{name}.toml").open("a", encoding="utf-8") as file:
            file.write(f"aggregate = {str(aggregate).lower()}\n")
    result = run(over_flower(tmp_path), tmp_path, combine=combine)
    assert aggregate == ("DP aggregate" in result["combination"]["rule"])
    assert result["label_epsilon"] == EPSILON
    task = task_of(tmp_path)
    budget = SimulationBudget(epsilon=1.0, delta=1e-6, unsafe_seed=SEED)
    expected = simulate_experts(
        task,
        ExpertsConfig(combine=combine),
        budget=budget,
        label_private=True,
        label_epsilon=EPSILON,
    )
    rule = result["combination"]
    scores = rule["intercept"] + sum(
        weight * (part.train @ np.array(result["coefficients"][part.name]))
        for weight, part in zip(rule["weights"], task.columns, strict=True)
    )
    assert train_loss(task, scores) == pytest.approx(expected.train_loss, abs=1e-9)


def test_admm_with_hidden_labels_is_the_same_over_flower_and_in_process(tmp_path):
    organisations(tmp_path, label="private")
    run(over_flower(tmp_path), tmp_path)
    task = task_of(tmp_path)
    budget = SimulationBudget(epsilon=1.0, delta=1e-6, unsafe_seed=SEED)
    expected = simulate_admm(
        task, AdmmConfig(rounds=3, noise="none"), budget=budget, label_epsilon=EPSILON
    )
    stored = [RoundStore(tmp_path / f"{name}-state").load().memory.x for name in NAMES]
    scores = sum(part.train @ x for part, x in zip(task.columns, stored, strict=True))
    assert train_loss(task, scores) == pytest.approx(expected.train_loss, abs=1e-9)


@pytest.mark.parametrize("method", ["experts", "admm"])
def test_nothing_that_is_sent_depends_on_labels_but_through_the_randomised_ones(tmp_path, method):
    """Two sets of labels, the same randomised ones: every message is the same, bit by bit."""
    sent = []
    for folder in (tmp_path / "one", tmp_path / "two"):
        folder.mkdir()
        organisations(folder, method=method, label="private")
        if sent:
            file = folder / "labels.csv"
            swapped = {"yes": "no", "no": "yes"}
            head, *lines = file.read_text("utf-8").split("\n")
            lines = [f"{i},{swapped[word]}" for i, word in (line.split(",") for line in lines)]
            file.write_text("\n".join([head, *lines]), encoding="utf-8")
            (folder / "out").mkdir()
            shutil.copy(tmp_path / "one" / "out" / "hidden-labels.json", folder / "out")
        channel = Recording(folder)
        run(channel, folder)
        sent.append([message for message in channel.sent if message.kind != "ids"])
    assert len(sent[0]) == len(sent[1]) > 0
    for one, two in zip(*sent, strict=True):
        assert one.kind == two.kind
        assert dict(one.values) == dict(two.values)
        for name, array in one.arrays.items():
            assert np.array_equal(array, two.arrays[name])


def test_hidden_labels_are_drawn_and_charged_once(tmp_path):
    organisations(tmp_path, method="experts", label="private")
    first = run(Recording(tmp_path), tmp_path)
    again = run_method(Recording(tmp_path), settings_of(tmp_path, hide_labels=EPSILON))
    assert first["coefficients"] == again["coefficients"]
    ledger = Ledger.open(tmp_path / "out" / "labels.jsonl")
    ledger.verify()
    assert len(ledger.events()) == 1
    assert ledger.spent() == pytest.approx(EPSILON, abs=1e-4)


def test_the_label_holders_own_ledger_refuses_what_it_cannot_pay(tmp_path):
    organisations(tmp_path, method="experts")
    path = tmp_path / "own.jsonl"
    Ledger.create(path, epsilon=3.0, delta=1e-6, relation="replace")
    run(Recording(tmp_path), tmp_path, ledger=path)
    channel = Recording(tmp_path)
    with pytest.raises(BudgetExceededError):
        run(channel, tmp_path, ledger=path, out=tmp_path / "second")
    assert {message.kind for message in channel.sent} <= {"ids"}
    assert Ledger.open(path).spent() == pytest.approx(EPSILON, abs=1e-4)


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ({}, {"hide_labels": None}, "began with hidden labels"),
        ({}, {"hide_labels": 1.0}, "keep both"),
        ({"hide_labels": None}, {}, "in clear, which cannot be hidden"),
    ],
)
@pytest.mark.parametrize("method", ["experts", "admm"])
def test_a_run_cannot_change_its_mind_about_hiding(tmp_path, method, before, after, words):
    organisations(tmp_path, method=method)
    run(Recording(tmp_path), tmp_path, **before)
    channel = Recording(tmp_path)
    with pytest.raises(InputError, match=words):
        run(channel, tmp_path, **after)
    assert {message.kind for message in channel.sent} <= {"ids"}


def test_private_labels_are_never_given_away_by_a_dual(tmp_path):
    organisations(tmp_path, label="private")
    with pytest.raises(InputError, match="hide_labels"):
        run(Recording(tmp_path), tmp_path, hide_labels=None)


@pytest.mark.parametrize("excess", [-0.1, float("nan"), 2 * MOST_EXCESS])
def test_targets_that_cannot_be_are_refused(excess):
    with pytest.raises(InputError, match="hidden labels"):
        requested_excess(Message(kind="x", run="r", round=1, values={"target_excess": excess}))
