"""train, predict and evaluate as a user runs them: real files, real exit codes, no tracebacks."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from halfmask.cli import main

SCHEMA = """
[label]
name = "sick"
role = "private"
classes = ["no", "yes"]

[columns.age]
role = "public"
kind = "number"
bounds = [0, 100]

[columns.dose]
role = "private"
kind = "number"
bounds = [0, 10]

[columns.town]
role = "private"
kind = "category"
categories = ["A", "B"]
"""


def halfmask(*args: object) -> Result:
    return CliRunner().invoke(main, [str(arg) for arg in args], catch_exceptions=False)


@pytest.fixture
def people(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    age, dose = rng.integers(0, 100, 400), rng.uniform(0, 10, 400).round(2)
    sick = np.where(dose + age / 20 + rng.normal(0, 1, 400) > 7.5, "yes", "no")
    lines = ["age,dose,town,sick"]
    lines += [
        f"{a},{d},{'A' if a % 2 else 'B'},{s}" for a, d, s in zip(age, dose, sick, strict=True)
    ]
    (tmp_path / "people.csv").write_text("\n".join(lines) + "\n")
    (tmp_path / "people.toml").write_text(SCHEMA)
    return tmp_path


def train(folder: Path, *more: object, data: str = "people.csv", out: str = "model") -> Result:
    return halfmask(
        "train", folder / data, "--schema", folder / "people.toml", "--out", folder / out,
        "--epsilon", 5, *more,
    )  # fmt: skip


def refused(result: Result, *words: str, code: int = 2) -> None:
    assert result.exit_code == code, result.output
    assert "Traceback" not in result.output
    for word in words:
        assert word in result.stderr


def test_train_predict_evaluate_end_to_end(people: Path) -> None:
    trained = train(people, "--json")
    assert trained.exit_code == 0, trained.output
    result = json.loads(trained.stdout)
    assert result["privacy"]["epsilon"] <= 5
    assert result["privacy"]["relation"] == "replace"
    assert result["privacy"]["public"] == ["age"]
    assert result["privacy"]["private"] == ["dose", "town"]
    assert {"model", "method", "reason", "seconds"} <= result.keys()
    scored = halfmask("evaluate", people / "model", people / "people.csv", "--json")
    measured = json.loads(scored.stdout)
    assert measured["rows"] == 400
    assert measured["accuracy"] > 0.6
    assert {"log_loss", "auc"} <= measured.keys()
    out = people / "scores.csv"
    assert halfmask("predict", people / "model", people / "people.csv", "--out", out).exit_code == 0
    header, *rows = out.read_text().splitlines()
    assert header.replace('"', "") == "prediction,p_no,p_yes"
    assert len(rows) == 400
    _, first, second = rows[0].split(",")
    assert float(first) + float(second) == pytest.approx(1)


def test_scores_that_the_guarantee_covers_are_printed_and_marked(people: Path) -> None:
    told = train(people, out="first").stdout
    assert "Scores covered by the guarantee" in told
    assert re.search(r"log loss +[\d.]+ ± [\d.]+", told)
    result = json.loads(train(people, "--json", out="second").stdout)
    stored = json.loads((people / "second" / "model.json").read_text())["details"]["covered"]
    assert result["covered"]["covered_by_guarantee"] is True
    for name in ("log_loss", "log_loss_bar", "auc", "auc_bar"):
        assert result["covered"][name] == stored[name]
    assert len(result["covered"]["reliability"]) == len(stored["reliability"])
    result = json.loads(train(people, "--method", "gd", "--json", out="third").stdout)
    assert result["covered"] is None
    seeded = train(people, "--unsafe-seed", 1, out="fourth").stdout
    assert "would cover them" in " ".join(seeded.split())


def test_regression_predicts_numbers(people: Path) -> None:
    schema = SCHEMA.replace('classes = ["no", "yes"]', "bounds = [0, 10]")
    schema = schema.replace('name = "sick"', 'name = "dose"')
    schema = schema.replace(
        '[columns.dose]\nrole = "private"\nkind = "number"\nbounds = [0, 10]', ""
    )
    (people / "people.toml").write_text(schema)
    assert train(people).exit_code == 0
    measured = halfmask("evaluate", people / "model", people / "people.csv", "--json")
    assert {"rows", "rmse", "r2"} <= json.loads(measured.stdout).keys()
    printed = halfmask("predict", people / "model", people / "people.csv")
    assert printed.stdout.splitlines()[0].replace('"', "") == "prediction"
    numbers = [float(line) for line in printed.stdout.splitlines()[1:]]
    assert len(numbers) == 400
    assert 0 <= min(numbers) <= max(numbers) <= 10


def test_prediction_needs_no_label(people: Path) -> None:
    assert train(people).exit_code == 0
    (people / "new.csv").write_text("age,dose,town\n30,1.5,A\n,,\n")
    assert len(halfmask("predict", people / "model", people / "new.csv").stdout.splitlines()) == 3


def test_the_ledger_beside_the_model_holds_what_was_spent(people: Path) -> None:
    assert train(people).exit_code == 0
    shown = json.loads(halfmask("ledger", "show", people / "model/ledger.jsonl", "--json").stdout)
    assert 0 < shown["spent"] <= 5


def test_a_shared_ledger_refuses_what_it_cannot_pay(people: Path) -> None:
    ledger = people / "budget.jsonl"
    halfmask("ledger", "create", ledger, "--epsilon", 6, "--delta", 1e-6, "--relation", "replace")
    assert train(people, "--ledger", ledger).exit_code == 0
    refused(train(people, "--ledger", ledger, out="second"), "epsilon", code=3)
    assert not (people / "second" / "model.json").exists()


def test_a_finished_model_is_not_overwritten(people: Path) -> None:
    assert train(people).exit_code == 0
    refused(train(people), "holds a finished model")
    refused(train(people, "--resume"), "holds a finished model")


def test_an_interrupted_training_resumes_only_within_its_budget(people: Path) -> None:
    assert train(people).exit_code == 0
    (people / "model" / "model.json").unlink()
    refused(train(people), "--resume")
    refused(train(people, "--resume"), "epsilon", code=3)


def test_a_refused_training_leaves_no_folder_behind(people: Path) -> None:
    refused(train(people, "--method", "nonsense"), "nonsense", "one-shot")
    assert not (people / "model").exists()
    refused(train(people, "--method", "label-span"), "label-span")
    assert not (people / "model").exists()


def test_an_unsafe_seed_is_reproducible_and_not_private(people: Path) -> None:
    results = [train(people, "--unsafe-seed", 3, "--json", out=f"m{i}") for i in range(2)]
    stated = json.loads(results[0].stdout)["privacy"]
    assert stated["epsilon"] is None
    assert stated["seeded"] is True
    first, second = (np.load(people / f"m{i}" / "model.npz")["weights"] for i in range(2))
    np.testing.assert_array_equal(first, second)
    third = train(people, "--unsafe-seed", 4, out="m2")
    assert third.exit_code == 0
    assert not np.array_equal(first, np.load(people / "m2" / "model.npz")["weights"])


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, ["bad.csv"]),
        (b"", ["empty"]),
        (b"age,dose,town,sick\n", ["row"]),
        (b"age,dose,town,sick\n1,2,A,no\n1,2,A\n", ["2"]),
        (b"age,dose,town,sick\n1,2,\xff\xfe,no\n", ["UTF-8"]),
        (b"age,dose,town,sick\n1,2,A,no\n1,oops,A,yes\n", ["'dose'", "row 2"]),
        (b"age,dose,town,sick\n1,2,A,no\n1,3,A,maybe\n", ["'sick'", "row 2"]),
        (b"age,dose,town,sick\n1,2,A,no\n1,3,A,\n", ["'sick'", "row 2"]),
        (b"age,dose,town\n1,2,A\n", ["'sick'"]),
        (b"age,dose,dose,town,sick\n1,2,2,A,no\n", ["columns 2 and 3"]),
    ],
    ids=["missing", "empty", "header", "ragged", "encoding", "number", "class", "no label",
         "label column", "twice"],
)  # fmt: skip
def test_bad_data_is_an_error_that_names_the_place(
    people: Path, content: bytes | None, words: list[str]
) -> None:
    if content is not None:
        (people / "bad.csv").write_bytes(content)
    result = train(people, data="bad.csv")
    refused(result, *words)
    assert "oops" not in result.output
    assert "maybe" not in result.output
    assert not (people / "model").exists()


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('classes = ["no", "yes"]', 'classes = ["no"]', ["sick"]),
        ("bounds = [0, 10]", "bounds = [10, 0]", ["dose"]),
        ("bounds = [0, 10]", "bound = [0, 10]", ["bound", "bounds"]),
        ('kind = "category"', 'kind = "categry"', ["town"]),
        ("[columns.town]", "[columns.town", ["people.toml"]),
        ("[columns.town]", "[columns.twon]", ["twon"]),
    ],
)
def test_a_schema_with_a_mistake_is_named(
    people: Path, old: str, new: str, words: list[str]
) -> None:
    (people / "people.toml").write_text(SCHEMA.replace(old, new))
    refused(train(people), *words)


@pytest.mark.parametrize(
    ("option", "value"),
    [("--epsilon", 0), ("--epsilon", -1), ("--epsilon", "nan"), ("--delta", 0), ("--delta", 1)],
)
def test_bad_budgets_are_refused(people: Path, option: str, value: object) -> None:
    refused(train(people, option, value), option[2:])


def test_a_ledger_under_another_relation_is_answered_with_the_option(people: Path) -> None:
    ledger = people / "budget.jsonl"
    halfmask("ledger", "create", ledger, "--epsilon", 6, "--delta", 1e-6, "--relation", "replace")
    refused(train(people, "--relation", "withhold", "--ledger", ledger), "--relation replace")


def test_a_broken_ledger_is_refused(people: Path) -> None:
    assert train(people).exit_code == 0
    ledger = people / "model" / "ledger.jsonl"
    ledger.write_text(ledger.read_text().replace('"delta"', '"detla"', 1))
    (people / "model" / "model.json").unlink()
    refused(train(people, "--resume"), "ledger")


def test_a_folder_without_a_model_says_what_to_pass(people: Path) -> None:
    refused(halfmask("evaluate", people, people / "people.csv"), "no model")
    (people / "model").mkdir()
    (people / "model" / "model.json").write_text("{")
    refused(halfmask("evaluate", people / "model", people / "people.csv"), "damaged")


def test_evaluating_without_the_label_says_so(people: Path) -> None:
    assert train(people).exit_code == 0
    (people / "new.csv").write_text("age,dose,town\n30,1.5,A\n")
    refused(halfmask("evaluate", people / "model", people / "new.csv"), "needs the label", "'sick'")


def test_a_delta_that_lets_one_row_fail_is_warned_about(people: Path) -> None:
    assert "below 1 / rows" in train(people, "--delta", 0.01).stderr
    assert "below 1 / rows" not in train(people, "--delta", 1e-5, out="other").stderr


def test_the_time_of_a_fit_is_told_in_whole_seconds(people: Path) -> None:
    """The exact time may depend on private rows: it is neither printed nor stored."""
    trained = train(people, "--json", out="timed")
    seconds = json.loads(trained.stdout)["seconds"]
    assert isinstance(seconds, int)
    assert seconds >= 1
    told = train(people, out="again")
    assert re.search(r"\(\d+ s\)", told.stdout)
    assert not re.search(r"\d\.\d+ s\)", told.output)
    compared = halfmask(
        "compare", people / "people.csv", "--schema", people / "people.toml", "--epsilon", 5,
        "--methods", "gd,one-shot", "--json", "--out", people / "both",
    )  # fmt: skip
    rows = json.loads(compared.stdout)["methods"]
    assert all(isinstance(row["seconds"], int) for row in rows)
    stored = json.loads((people / "both" / "compare.json").read_text(encoding="utf-8"))
    assert [row["seconds"] for row in stored["methods"]] == [row["seconds"] for row in rows]
    for folder in ("timed", "both/gd"):
        assert "seconds" not in (people / folder / "model.json").read_text(encoding="utf-8")
