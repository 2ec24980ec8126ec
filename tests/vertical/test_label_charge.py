"""Private labels that are sent in clear to the experts: the label holder pays for every use."""

from __future__ import annotations

import dataclasses
import math
import shutil
import threading

import pytest

pytest.importorskip("flwr")
from test_flower import NAMES, organisations
from test_hidden_labels import Recording, settings_of, task_of

from halfmask.accounting.events import GaussianEvent
from halfmask.accounting.gaussian import gaussian_epsilon
from halfmask.accounting.ledger import Ledger, MemoryLedger
from halfmask.errors import BudgetExceededError, InputError
from halfmask.schema import Schema
from halfmask.vertical.channel import PartyError
from halfmask.vertical.experts import ExpertsConfig
from halfmask.vertical.files import read_labels
from halfmask.vertical.flower_app import run_method
from halfmask.vertical.network import LabelHolder, NetworkParty, read_party_file
from halfmask.vertical.simulation import SimulationBudget, simulate_experts


def with_lines(folder, text):
    for name in NAMES:
        with (folder / f"{name}.toml").open("a", encoding="utf-8") as file:
            file.write(text)


def label_ledger(folder):
    return Ledger.open(folder / "out" / "labels.jsonl")


@pytest.mark.parametrize("combine", ["fixed", "aggregate"])
@pytest.mark.parametrize("relation", ["replace", "withhold"])
def test_the_label_holders_ledger_is_the_same_over_the_network_and_in_a_simulation(
    tmp_path, combine, relation
):
    organisations(tmp_path, method="experts", label="private")
    aggregate = combine == "aggregate"
    with_lines(tmp_path, f'aggregate = {str(aggregate).lower()}\nrelation = "{relation}"\n')
    path = tmp_path / "own.jsonl"
    Ledger.create(path, epsilon=5.0, delta=1e-6)
    settings = settings_of(tmp_path, combine=combine, ledger=path, label_epsilon=1.0)
    run_method(Recording(tmp_path), settings)

    book = MemoryLedger(epsilon=5.0, delta=1e-6)
    budget = SimulationBudget(
        epsilon=1.0, delta=1e-6, relation=relation, label_ledger=book, unsafe_seed=1
    )
    found = simulate_experts(
        task_of(tmp_path), ExpertsConfig(combine=combine), budget=budget, label_private=True
    )
    assert Ledger.open(path).events() == book.events()
    assert len(book.events()) == len(NAMES) + 1
    # And it is what the statement says of one label.
    spent = gaussian_epsilon(math.sqrt(sum(event.replace**2 for event in book.events())), 1e-6)
    assert spent == pytest.approx(found.costs["label"], rel=1e-9)
    for name in NAMES:
        theirs = Ledger.open(tmp_path / f"{name}-state" / "ledger.jsonl").events()
        assert theirs == found.releasers[name].events


@pytest.mark.parametrize("seed", [None, 1])
def test_the_charge_says_whether_the_noise_can_be_drawn_again(tmp_path, seed):
    organisations(tmp_path, method="experts", label="private")
    book = Ledger.create(tmp_path / "own.jsonl", epsilon=5.0, delta=1e-6)
    budget = SimulationBudget(epsilon=1.0, delta=1e-6, label_ledger=book, unsafe_seed=seed)
    simulate_experts(task_of(tmp_path), budget=budget, label_private=True)
    (charge,) = book.entries()
    assert charge.seeded is (seed is not None)
    assert all(name in charge.what for name in (*NAMES, "class prior"))


def test_two_parties_at_one_spend_two_thirds_of_one_on_the_label(tmp_path):
    organisations(tmp_path, method="experts", label="private")
    schema = tmp_path / "schema.toml"
    schema.write_text(schema.read_text("utf-8").replace('"telecom"', '"shop"'), encoding="utf-8")

    class Two(Recording):
        parties = NAMES[:2]

    (tmp_path / "shop.csv").write_text(_joined(tmp_path), encoding="utf-8")
    run_method(Two(tmp_path), settings_of(tmp_path))
    assert label_ledger(tmp_path).spent() == pytest.approx(0.68, abs=0.02)


def _joined(folder):
    """The files of shop and telecom as one, so that two parties are left."""
    shop, telecom = (
        dict(line.split(",") for line in (folder / f"{name}.csv").read_text("utf-8").split("\n"))
        for name in ("shop", "telecom")
    )
    return "\n".join(f"{key},{value},{telecom[key]}" for key, value in shop.items())


def test_labels_whose_cost_does_not_fit_are_not_sent_and_cost_nothing(tmp_path):
    organisations(tmp_path, method="experts", label="private")
    channel = Recording(tmp_path)
    with pytest.raises(BudgetExceededError):
        run_method(channel, settings_of(tmp_path, label_epsilon=0.5))
    assert {message.kind for message in channel.sent} == {"ids", "expert-terms"}
    assert label_ledger(tmp_path).events() == ()
    # With a budget that is enough it runs, and what it resumes is paid for already.
    settings = settings_of(tmp_path, out=tmp_path / "second", label_epsilon=0.9)
    first = run_method(Recording(tmp_path), settings)
    channel = Recording(tmp_path)
    assert run_method(channel, settings)["combination"] == first["combination"]
    assert "expert-terms" not in {message.kind for message in channel.sent}
    assert len(Ledger.open(tmp_path / "second" / "labels.jsonl").entries()) == 1


def test_a_model_and_its_counts_that_do_not_fit_together_cost_the_party_nothing(tmp_path):
    organisations(tmp_path, method="experts", label="private")
    path = tmp_path / "shop.jsonl"
    book = Ledger.create(path, epsilon=1.0, delta=1e-6)
    # What is left is enough for the model, and not for the counts of its scores as well.
    book.charge([GaussianEvent(replace=0.02, withhold=0.01)], "an earlier training")
    with_lines(tmp_path, "aggregate = true\n")
    with (tmp_path / "shop.toml").open("a", encoding="utf-8") as file:
        file.write(f'ledger = "{path}"\n')
    with pytest.raises(BudgetExceededError):
        run_method(Recording(tmp_path), settings_of(tmp_path, combine="aggregate"))
    assert len(book.entries()) == 1


class Spoiling(Recording):
    """Changes one party's reply to the question what it will cost."""

    def __init__(self, folder, values):
        super().__init__(folder)
        self.values = values

    def exchange(self, request):
        replies = super().exchange(request)
        if request.kind == "expert-terms":
            told = {**replies["shop"].values, **self.values}
            replies["shop"] = dataclasses.replace(replies["shop"], values=told)
        return replies


@pytest.mark.parametrize("ratio", [math.nan, math.inf, -1.0, 0.0, 5e-324, 1e300, "0.1", None, True])
def test_a_party_that_does_not_say_what_it_costs_is_named_and_nothing_is_charged(tmp_path, ratio):
    organisations(tmp_path, method="experts", label="private")
    channel = Spoiling(tmp_path, {"label_ratio": ratio})
    with pytest.raises(PartyError, match="'shop'"):
        run_method(channel, settings_of(tmp_path))
    assert label_ledger(tmp_path).events() == ()
    assert "expert-train" not in {message.kind for message in channel.sent}


def test_a_party_never_spends_more_of_a_label_than_was_paid_for(tmp_path):
    organisations(tmp_path, method="experts", label="private")
    with pytest.raises(InputError, match="spend more of each label"):
        run_method(Spoiling(tmp_path, {"label_ratio": 1e-6}), settings_of(tmp_path))
    assert Ledger.open(tmp_path / "shop-state" / "ledger.jsonl").events() == ()


def test_a_party_that_joins_a_run_after_its_labels_were_paid_for_is_sent_none(tmp_path):
    organisations(tmp_path, method="experts", label="private")

    class Two(Recording):
        parties = NAMES[:2]

    run_method(Two(tmp_path), settings_of(tmp_path))
    paid = label_ledger(tmp_path).events()
    assert len(paid) == 3
    channel = Recording(tmp_path)
    with pytest.raises(InputError, match="'telecom'"):
        run_method(channel, settings_of(tmp_path))
    assert "expert-train" not in {message.kind for message in channel.sent}
    assert label_ledger(tmp_path).events() == paid
    # One that has left is no matter: less is spent than was paid for.
    assert run_method(Two(tmp_path), settings_of(tmp_path))["parties"] == list(NAMES[:2])


def test_labels_that_became_private_are_not_sent_by_a_run_that_began_with_public_ones(tmp_path):
    organisations(tmp_path, method="experts", label="public")
    run_method(Recording(tmp_path), settings_of(tmp_path))
    schema = tmp_path / "schema.toml"
    text = schema.read_text("utf-8").replace('role = "public"', 'role = "private"')
    schema.write_text(text, encoding="utf-8")
    channel = Recording(tmp_path)
    with pytest.raises(InputError, match="another folder"):
        run_method(channel, settings_of(tmp_path))
    assert "expert-train" not in {message.kind for message in channel.sent}


def test_a_party_that_trains_again_in_a_run_does_not_use_the_labels_unpaid(tmp_path):
    organisations(tmp_path, method="experts", label="private")
    settings = settings_of(tmp_path)
    first = run_method(Recording(tmp_path), settings)
    assert run_method(Recording(tmp_path), settings)["coefficients"] == first["coefficients"]
    # Its memory and ledger are gone: it takes the run for a new one.
    shutil.rmtree(tmp_path / "shop-state")
    stored = (tmp_path / "out" / "vertical.json").read_bytes()
    with pytest.raises(InputError, match="'shop' trained again"):
        run_method(FreshNoise(tmp_path), settings)
    assert (tmp_path / "out" / "vertical.json").read_bytes() == stored
    assert len(label_ledger(tmp_path).entries()) == 1


class FreshNoise(Recording):
    """Parties whose noise is not that of their first training."""

    def __init__(self, folder):
        super().__init__(folder)
        for name, side in self._parties.items():
            side.answer = lambda request, name=name: NetworkParty(
                read_party_file(folder / f"{name}.toml")
            ).answer(request)


@pytest.mark.parametrize("method", ["experts", "admm"])
def test_a_ledger_for_labels_that_are_told_to_all_is_refused(tmp_path, method):
    organisations(tmp_path, method=method, label="public")
    path = tmp_path / "own.jsonl"
    Ledger.create(path, epsilon=5.0, delta=1e-6)
    channel = Recording(tmp_path)
    with pytest.raises(InputError, match="would not be charged"):
        run_method(channel, settings_of(tmp_path, ledger=path))
    assert channel.sent == []


def test_two_attempts_at_once_draw_hidden_labels_once(tmp_path):
    organisations(tmp_path, method="experts", label="private")
    settings = settings_of(tmp_path, hide_labels=2.0)
    path = tmp_path / "own.jsonl"
    Ledger.create(path, epsilon=50.0, delta=1e-6)
    settings = dataclasses.replace(settings, ledger=path)
    labels, _ = read_labels(Schema.from_toml(settings.schema), settings.label, settings.id)
    barrier, drawn = threading.Barrier(4), []

    def attempt():
        holder = LabelHolder(settings, labels)
        barrier.wait(30)
        drawn.append(holder.hidden().targets.tobytes())

    threads = [threading.Thread(target=attempt) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(drawn) == 4
    assert len(set(drawn)) == 1
    assert len(Ledger.open(path).events()) == 1
