"""`halfmask vertical simulate` on files, as a user would call it."""

from __future__ import annotations

import json

import numpy as np
import pytest
from click.testing import CliRunner

from halfmask.accounting.ledger import Ledger, MemoryLedger
from halfmask.cli import main
from halfmask.errors import InputError
from halfmask.vertical.queries import VerticalModel
from halfmask.vertical.simulation import SimulationBudget
from kills import killed_at

SCHEMA = """
[label]
name = "churned"
role = "public"
classes = ["no", "yes"]
[columns.age]
role = "private"
kind = "number"
bounds = [18, 90]
bins = 4
party = "bank"
[columns.plan]
role = "private"
kind = "category"
categories = ["a", "b", "c"]
party = "telecom"
[columns.calls]
role = "private"
kind = "number"
bounds = [0, 100]
bins = 4
party = "telecom"
"""


def write(folder, prefix, rows, seed):
    rng = np.random.default_rng(seed)
    age, calls = rng.uniform(18, 90, rows), rng.uniform(0, 100, rows)
    plan = rng.choice(list("abc"), rows)
    score = (age - 54) / 12 + (calls - 50) / 20 + (plan == "a")
    churned = np.where(rng.random(rows) < 1 / (1 + np.exp(-score)), "yes", "no")
    ids = [f"u{seed}-{i}" for i in range(rows)]
    tables = {
        "labels": ("churned", zip(ids, churned, strict=True)),
        "bank": ("age", zip(ids, age, strict=True)),
        "telecom": ("plan,calls", zip(ids, plan, calls, strict=True)),
    }
    for name, (header, values) in tables.items():
        lines = [",".join(map(str, row)) for row in values]
        rng.shuffle(lines)
        text = "\n".join([f"id,{header}", *lines])
        (folder / f"{prefix}{name}.csv").write_text(text, encoding="utf-8")


@pytest.fixture
def files(tmp_path):
    (tmp_path / "schema.toml").write_text(SCHEMA, encoding="utf-8")
    write(tmp_path, "", 1500, 1)
    write(tmp_path, "test-", 500, 2)
    return tmp_path


def simulate(folder, *options, tested=True, as_json=True):
    command = ["vertical", "simulate", "--id", "id", *(["--json"] if as_json else [])]
    command += ["--schema", folder / "schema.toml", "--label", folder / "labels.csv"]
    command += ["--party", f"bank={folder}/bank.csv", "--party", f"telecom={folder}/telecom.csv"]
    if tested:
        command += ["--test-label", folder / "test-labels.csv"]
        command += ["--test-party", f"bank={folder}/test-bank.csv"]
        command += ["--test-party", f"telecom={folder}/test-telecom.csv"]
    return CliRunner().invoke(main, [str(word) for word in (*command, *options)])


def parsed(done):
    assert done.exit_code == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("method", ["experts", "admm", "fdml-sgd"])
def test_each_method_prints_the_agreed_fields_and_a_guarantee_per_party(files, method):
    data = parsed(simulate(files, "--method", method, "--epsilon", "1", "--delta", "1e-6"))
    assert data["method"] == method
    assert data["parties"] == ["bank", "telecom"]
    for name, own in (("bank", ["age"]), ("telecom", ["plan", "calls"])):
        statement = data["privacy"][name]
        assert statement["private"] == own
        assert statement["relation"] == "replace"
        assert 0.99 < statement["epsilon"] <= 1.0
        assert any("label" in line for line in statement["not_covered"])
    assert data["rounds"] >= 1
    assert np.isfinite([data["train_loss"], data["test_loss"]]).all()
    assert 1.3 < data["costs"]["person"] < 2.2


def test_losses_of_exact_rows_are_marked_in_words_and_in_json(files):
    assert parsed(simulate(files))["losses_covered_by_guarantee"] is False
    words = simulate(files, as_json=False).stdout
    losses, _, rest = words.partition("not covered by the guarantee")
    assert "train loss" in losses
    assert "test loss" in losses
    assert "loss" not in rest.partition("Not covered:")[0]


def test_statements_name_public_functions_and_never_round_a_cost_down(files):
    made = '[columns.decade]\npublic = "round(age, 10)"\nparty = "bank"\n'
    (files / "schema.toml").write_text(SCHEMA + made, encoding="utf-8")
    data = parsed(simulate(files, tested=False))
    notes = data["privacy"]["bank"]["notes"]
    assert any("decade = round(age, 10)" in note for note in notes)
    assert "decade" in data["privacy"]["bank"]["public"]
    assert not any("decade =" in note for note in data["privacy"]["telecom"]["notes"])
    told = [float(note.split()[1]) for note in notes if note.startswith("Epsilon ")]
    assert told
    assert all(shown >= cost for shown, cost in zip(told, data["costs"].values(), strict=True))


def test_experts_learn_from_files(files):
    data = parsed(simulate(files, "--epsilon", "3", "--unsafe-seed", "1"))
    assert data["test_loss"] < 0.66
    assert all(statement["epsilon"] is None for statement in data["privacy"].values())
    assert all(statement["seeded"] for statement in data["privacy"].values())


def test_experts_combined_by_counts_spend_the_same(files):
    data = parsed(simulate(files, "--combine", "aggregate"))
    for name, statement in data["privacy"].items():
        assert 0.99 < statement["epsilon"] <= 1.0
        assert f"counts of the scores of {name} by class" in " ".join(statement["released"])


@pytest.mark.parametrize("noise", ["none", "as-written"])
def test_no_epsilon_is_printed_where_there_is_no_guarantee(files, noise):
    data = parsed(simulate(files, "--method", "admm", "--noise", noise, tested=False))
    assert data["test_loss"] is None
    assert data["train_loss"] < 0.65
    for statement in data["privacy"].values():
        assert statement["epsilon"] is None
        assert statement["guarantee"].startswith("none: ")


def test_hidden_labels_are_stated(files):
    data = parsed(simulate(files, "--hide-labels", "2", "--unsafe-seed", "3"))
    assert data["costs"]["label"] == 2.0
    shown = " ".join(data["privacy"]["bank"]["not_covered"])
    assert "in clear" not in shown


def test_a_partys_ledger_is_charged_and_refuses_the_second_run(files):
    Ledger.create(files / "bank.jsonl", epsilon=1.0, delta=1e-6, relation="replace")
    options = ("--ledger", f"bank={files}/bank.jsonl", "--epsilon", "0.8")
    parsed(simulate(files, *options))
    again = simulate(files, *options)
    assert again.exit_code == 3
    assert json.loads(again.stdout)["error"]["kind"] == "budget-exceeded"
    assert Ledger.open(files / "bank.jsonl").spent() == pytest.approx(0.8, abs=1e-3)


@pytest.mark.parametrize("method", ["experts", "admm", "fdml-sgd"])
def test_a_ledger_that_is_no_partys_ends_the_run_before_training(files, method):
    """It would not be charged, although somebody gave it to be."""
    Ledger.create(files / "bank.jsonl", epsilon=1.0, delta=1e-6, relation="replace")
    options = ("--method", method, "--ledger", f"Bank={files}/bank.jsonl")
    done = simulate(files, *options, tested=False)
    assert done.exit_code == 2
    message = json.loads(done.stdout)["error"]["message"]
    assert "--ledger names 'Bank', which is no party: bank, telecom." in message
    assert Ledger.open(files / "bank.jsonl").spent() == 0


@pytest.mark.parametrize("method", ["experts", "admm", "fdml-sgd"])
@pytest.mark.parametrize("role", ["public", "private"])
def test_the_label_holders_ledger_is_charged_or_refused_before_a_label_is_told(files, method, role):
    schema = SCHEMA.replace('role = "public"', f'role = "{role}"', 1)
    (files / "schema.toml").write_text(schema, encoding="utf-8")
    ledger = Ledger.create(files / "own.jsonl", epsilon=5.0, delta=1e-6)
    done = simulate(files, "--method", method, "--label-ledger", ledger.path, tested=False)
    if (method, role) == ("experts", "private"):
        assert done.exit_code == 0
        assert ledger.spent() > 0
        return
    assert done.exit_code == 2
    assert "--label-ledger would not be charged" in json.loads(done.stdout)["error"]["message"]
    assert ledger.events() == ()


def test_a_budget_with_a_ledger_that_is_no_partys_is_refused():
    ledgers = {"Bank": MemoryLedger(epsilon=1.0, delta=1e-6)}
    budget = SimulationBudget(epsilon=1.0, delta=1e-6, ledgers=ledgers)
    with pytest.raises(InputError, match="ledgers names 'Bank', which is no party: bank"):
        budget.of_parties(["bank", "telecom"])


def test_a_column_of_ids_that_is_not_there_is_no_matter_of_the_schema(files):
    done = simulate(files, "--id", "nope", tested=False)
    assert done.exit_code == 2
    assert "Every file needs the column of ids, under one name." in done.stderr
    assert "schema" not in done.stderr


def test_rows_to_test_need_their_labels_and_every_party(files):
    of_bank = ("--test-party", f"bank={files}/test-bank.csv")
    alone = simulate(files, *of_bank, tested=False)
    assert alone.exit_code == 2
    assert "pass --test-label FILE too" in alone.stderr
    lacking = simulate(files, "--test-label", files / "test-labels.csv", *of_bank, tested=False)
    assert lacking.exit_code == 2
    assert "no file for 'telecom'. Give --test-party NAME=FILE" in lacking.stderr


@pytest.mark.parametrize("method", ["experts", "admm"])
def test_hidden_labels_are_charged_to_the_label_holders_ledger(files, method):
    path = files / "labels.jsonl"
    Ledger.create(path, epsilon=3.0, delta=1e-6, relation="replace")
    options = ("--method", method, "--label-ledger", path, "--hide-labels", "2")
    parsed(simulate(files, *options))
    assert simulate(files, *options).exit_code == 3
    ledger = Ledger.open(path)
    ledger.verify()
    assert ledger.spent() == pytest.approx(2.0, abs=1e-4)


def test_a_private_label_is_charged_for_every_expert_and_the_prior(files):
    """The label holder's ledger says what one label costs over all that is released."""
    path = files / "labels.jsonl"
    Ledger.create(path, epsilon=3.0, delta=1e-6, relation="replace")
    schema = (files / "schema.toml").read_text(encoding="utf-8")
    private = schema.replace('role = "public"', 'role = "private"', 1)
    (files / "schema.toml").write_text(private, encoding="utf-8")
    data = parsed(simulate(files, "--label-ledger", path))
    ledger = Ledger.open(path)
    assert len(ledger.events()) == 3
    assert ledger.spent() == pytest.approx(data["costs"]["label"], rel=1e-4)


def edit(file, change):
    lines = file.read_text(encoding="utf-8").split("\n")
    file.write_text("\n".join(change(lines)), encoding="utf-8")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda lines: lines[:-3], "lacks 3"),
        (lambda lines: [*lines, lines[5], lines[6]], "2 rows whose id occurs before"),
        (lambda lines: [*lines, "stranger,40"], "1 other"),
        (lambda lines: [*lines[:-1], ",40"], "1 rows without an id"),
        (lambda lines: ["user," + lines[0].split(",")[1], *lines[1:]], "'id'"),
    ],
)
def test_ids_that_do_not_match_are_counted_and_nothing_is_joined(files, change, words):
    edit(files / "bank.csv", change)
    done = simulate(files)
    assert done.exit_code == 2
    assert words in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('party = "bank"', "", "'age' names no party"),
        ('party = "bank"', 'party = "shop"', "no file for 'shop'"),
        ('classes = ["no", "yes"]', 'classes = ["no", "yes", "maybe"]', "two label classes"),
    ],
)
def test_schemas_that_do_not_fit_are_explained(files, old, new, words):
    file = files / "schema.toml"
    file.write_text(file.read_text(encoding="utf-8").replace(old, new), encoding="utf-8")
    done = simulate(files)
    assert done.exit_code == 2
    assert words in done.stderr


@pytest.mark.parametrize("wrong", ["perhaps", ""])
def test_a_wrong_label_is_told_without_how_many_or_which_rows_have_one(files, wrong):
    """One wrong label and three are answered alike, with the column and what was expected."""
    file, told = files / "labels.csv", []
    lines = file.read_text(encoding="utf-8").splitlines()
    for count in (1, 3):
        ids = [line.split(",")[0] for line in lines[1 : count + 1]]
        changed = [f"{each},{wrong}" for each in ids]
        file.write_text("\n".join([lines[0], *changed, *lines[count + 1 :]]), encoding="utf-8")
        done = simulate(files, "--method", "experts")
        assert done.exit_code == 2
        told.append(json.loads(done.stdout)["error"]["message"])
    assert told[0] == told[1]
    assert "Column 'churned'" in told[0]
    assert "'no' or 'yes'" in told[0]
    assert "perhaps" not in told[0]
    assert not any(sign.isdigit() for sign in told[0])


def test_the_same_command_again_makes_the_model_wherever_a_kill_left_files(files):
    options = ("--method", "experts", "--epsilon", "1", "--delta", "1e-6", "--out")
    place = 0
    while True:
        out = files / str(place)
        code = killed_at(place, lambda out=out: simulate(files, *options, out, tested=False))
        if code != 9:
            break
        with pytest.raises(InputError):
            VerticalModel.load(out)
        done = simulate(files, *options, out, tested=False)
        assert done.exit_code == 0, (place, done.output)
        assert VerticalModel.load(out).parties == ("bank", "telecom")
        place += 1
    assert code == 0
    assert place >= 3, "a part of each party, and the model"
    again = simulate(files, *options, out, tested=False)
    assert again.exit_code == 2
    assert "exists already" in again.output
