"""Comparing spends one budget, evenly, charges it, and says so."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pytest
from click.testing import CliRunner, Result

from halfmask.accounting.accountant import epsilon as account
from halfmask.accounting.budget import Budget
from halfmask.accounting.ledger import Ledger
from halfmask.cli import main
from halfmask.cli.compare import blank, plan_comparison
from halfmask.model import Model
from halfmask.schema import Schema
from halfmask.table import Encoder, Table, read_frame

SCHEMA = """
[label]
name = "y"
role = "private"
classes = ["no", "yes"]

[columns.a]
role = "public"
kind = "number"

[columns.b]
role = "private"
kind = "number"
bounds = [0, 1]
"""


@pytest.fixture
def files(tmp_path: Path) -> Path:
    for name, seed in (("train.csv", 1), ("test.csv", 2)):
        rng = np.random.default_rng(seed)
        a, b = rng.uniform(size=(2, 500))
        y = np.where(a + b + rng.normal(0, 0.2, 500) > 1, "yes", "no")
        pyarrow.csv.write_csv(pa.table({"a": a, "b": b, "y": y}), tmp_path / name)
    (tmp_path / "schema.toml").write_text(SCHEMA, encoding="utf-8")
    return tmp_path


def table_of(files: Path) -> Table:
    frame = read_frame(files / "train.csv")
    return Encoder.fit(Schema.from_toml(files / "schema.toml"), frame).encode(frame)


def compare(files: Path, *options: object, code: int = 0) -> Result:
    start = ["compare", files / "train.csv", "--schema", files / "schema.toml"]
    result = CliRunner().invoke(main, [str(word) for word in (*start, *options)])
    assert result.exit_code == code, f"exit {result.exit_code}: {result.output}"
    assert "Traceback" not in result.output
    return result


def test_table_plot_models_and_one_budget(files: Path) -> None:
    out = files / "compared"
    test = ["--test", files / "test.csv"]
    result = compare(
        files, "--methods", "auto,additive,dp-sgd", "--epsilon", 2, *test, "--out", out, "--json"
    )
    printed = json.loads(result.stdout)
    assert printed["spent"] <= 2
    assert printed["spent"] > 1.9
    assert printed["covered_by_guarantee"] is False
    methods = {row["method"]: row for row in printed["methods"]}
    # auto is additive here, and is not paid for twice
    assert list(methods) == ["additive", "dp-sgd"]
    assert methods["additive"]["auto"]
    for row in printed["methods"]:
        assert 0.5 < row["accuracy"] <= 1
        assert row["epsilon"] == pytest.approx(printed["epsilon_each"], rel=2e-3)
        assert Model.load(row["model"]).privacy.epsilon == row["epsilon"]
    book = Ledger.open(out / "ledger.jsonl")
    assert book.spent() == pytest.approx(printed["spent"])
    both = [e for row in printed["methods"] for e in Model.load(row["model"]).privacy.events]
    assert account(both, delta=1e-6, relation="replace") == pytest.approx(book.spent())
    assert "<svg" in (out / "compare.svg").read_text(encoding="utf-8")
    assert json.loads((out / "compare.json").read_text(encoding="utf-8")) == printed
    assert "Comparing spends budget" in result.stderr


def test_words_for_people(files: Path) -> None:
    result = compare(files, "--methods", "gd", "--epsilon", 1, "--test", files / "test.csv")
    assert "not covered by the guarantee" in " ".join(result.stdout.split())
    assert "No ledger keeps this" in result.stderr


def test_the_data_sets_ledger_is_charged_once_for_all(files: Path) -> None:
    file = files / "budget.jsonl"
    book = Ledger.create(file, epsilon=3.0, delta=1e-6, relation="replace")
    options = ["--methods", "gd,one-shot", "--test", files / "test.csv", "--ledger", file]
    compare(files, "--epsilon", 2, *options)
    assert 1.9 < book.spent() <= 2
    before = file.read_bytes()
    refused = compare(files, "--epsilon", 2.9, *options, code=3)
    assert "nothing was trained or charged" in refused.output
    assert file.read_bytes() == before


def test_what_is_paid_for_is_kept_even_if_the_next_method_fails(
    files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = files / "compared"
    kept = Model.save

    def interrupted(model: Model, folder: Path, **more: bool) -> None:
        kept(model, folder, **more)
        raise KeyboardInterrupt

    monkeypatch.setattr(Model, "save", interrupted)
    said = compare(files, "--methods", "gd,one-shot", "--epsilon", 2, "--out", out, code=130)
    assert "stays spent in ledger.jsonl. Models that were finished are kept." in said.stderr
    book = Ledger.open(out / "ledger.jsonl")
    paid = Model.load(out / "gd").privacy
    assert book.events() == paid.events
    assert paid.epsilon == pytest.approx(book.spent())
    assert not (out / "one-shot").exists()


def test_ctrl_c_before_the_first_release_leaves_nothing(
    files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*given: object, **named: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("halfmask.mechanisms.release.add_gaussian", interrupted)
    out = files / "compared"
    said = compare(files, "--methods", "gd,one-shot", "--epsilon", 2, "--out", out, code=130)
    assert not out.exists()
    assert "spent" not in said.stderr.replace("Comparing spends", "")


@pytest.mark.parametrize("relation", ["replace", "withhold"])
@pytest.mark.parametrize("methods", [["gd"], ["gd", "one-shot"], ["gd", "sgd", "dp-sgd"]])
def test_the_share_of_each_composes_to_the_total(
    files: Path, methods: list[str], relation: str
) -> None:
    planned = plan_comparison(
        table_of(files), methods, Budget(epsilon=1.0, delta=1e-6, relation=relation)
    )
    assert 0.97 < planned.total <= 1
    assert 1 / len(methods) < planned.each * (1 + 1e-4)
    if len(methods) == 1:
        assert planned.each == 1


def test_the_rehearsal_never_sees_a_private_value(files: Path) -> None:
    table = table_of(files)
    empty = blank(table)
    # Every row has the same private part, which follows from the declarations.
    assert (empty.private == empty.private[0]).all()
    assert not (table.private == table.private[0]).all()
    assert empty.label is not None
    assert not empty.label.any()
    assert (empty.public == table.public).all()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--epsilon", 1], "pass --test FILE to score the methods"),
        (["--epsilon", 1, "--methods", "gdd", "--out", "x"], "Unknown method 'gdd'"),
        (["--epsilon", 1, "--methods", ",", "--out", "x"], "at least one method"),
        (["--epsilon", -1, "--out", "x"], "epsilon > 0"),
        (["--epsilon", 1, "--out", "."], "name a new folder"),
        (["--epsilon", 1, "--methods", "label-span", "--out", "x"], "public"),
    ],
)
def test_mistakes_are_answered_before_anything_is_spent(
    files: Path, monkeypatch: pytest.MonkeyPatch, options: list[object], words: str
) -> None:
    monkeypatch.chdir(files)
    result = compare(files, *options, code=2)
    assert words in result.output
    assert not (files / "x").exists()


def test_methods_stand_beside_a_constant(files: Path) -> None:
    options = ("--methods", "auto,gd", "--epsilon", 1, "--test", files / "test.csv")
    found = json.loads(compare(files, *options, "--json").stdout)
    share = (read_frame(files / "test.csv")["y"].to_numpy() == "yes").mean()
    assert found["constant"]["accuracy"] == max(share, 1 - share)
    assert "To compare, a constant: accuracy" in compare(files, *options).stdout
    alone = compare(files, "--methods", "gd", "--epsilon", 1, "--out", files / "kept").stdout
    assert "constant" not in alone


def test_test_rows_without_a_label_end_it_before_anything_is_spent(files: Path) -> None:
    skipping = SCHEMA.replace("classes =", 'missing = "skip"\nclasses =')
    (files / "schema.toml").write_text(skipping, encoding="utf-8")
    frame = read_frame(files / "test.csv")
    blank_labels = frame.set_column(2, "y", pa.array([""] * frame.num_rows))
    pyarrow.csv.write_csv(blank_labels, files / "unlabelled.csv")
    budget = files / "budget"
    Ledger.create(budget, epsilon=1.0, delta=1e-6)
    options = ("--methods", "gd", "--epsilon", 1, "--ledger", budget)
    answer = compare(files, *options, "--test", files / "unlabelled.csv", code=2)
    assert "No row has a label" in answer.stderr
    assert Ledger.open(budget).entries() == ()
