"""`halfmask plan`: fields, words, plot, errors; nothing heavy is imported."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from halfmask.cli import main

ADULT = ("plan", "--rows", "32561", "--columns", "120", "--epsilon", "1", "--delta", "1e-6")


def run(*args: str) -> Result:
    return CliRunner().invoke(main, list(args))


def test_json_has_the_fields_and_the_numbers_agree() -> None:
    done = run(*ADULT, "--target-error", "0.02", "--json")
    assert done.exit_code == 0, done.stderr
    found = json.loads(done.stdout)
    assert {"method", "noise_multiplier", "steps", "error_bound", "rows_needed", "reason"} <= set(
        found
    )
    assert found["method"] == "gd"
    assert found["relation"] == "replace"
    assert found["target_error"] == 0.02
    assert len(found["table"]) == 25
    again = json.loads(
        run(
            "plan", "--rows", str(found["rows_needed"]), "--columns", "120", "--epsilon", "1",
            "--delta", "1e-6", "--json",
        ).stdout
    )  # fmt: skip
    assert again["error_bound"] == pytest.approx(0.02, rel=0.02)


def test_public_columns_and_classes_change_the_method() -> None:
    done = run(*ADULT, "--public", "120", "--classes", "10", "--json")
    found = json.loads(done.stdout)
    # One release of sums by label, whatever the number of classes.
    assert (found["method"], found["steps"]) == ("additive", 1)


@pytest.mark.parametrize("extra", [("--public", "60"), ("--method", "additive")])
def test_a_target_error_that_is_not_used_is_called_so(extra: tuple[str, str]) -> None:
    assert run(*ADULT, *extra).stderr == ""
    asked = run(*ADULT, *extra, "--target-error", "0.02", "--json")
    assert json.loads(asked.stdout) == json.loads(run(*ADULT, *extra, "--json").stdout)
    assert "--target-error is not used" in " ".join(asked.stderr.split())
    assert run(*ADULT, "--target-error", "0.02").stderr == ""


def _public(stage: dict[str, Any]) -> bool:
    return "public features" in stage["what"]


def test_how_many_are_public_changes_the_answer() -> None:
    table = ("plan", "--rows", "30000", "--columns", "14", "--epsilon", "1", "--delta", "1e-6")
    found = [
        json.loads(run(*table, "--public", public, "--json").stdout) for public in ("3", "7", "14")
    ]
    assert {each["method"] for each in found} == {"additive"}
    shares = [
        next(s["releases"] / s["noise_multiplier"] ** 2 for s in each["stages"] if _public(s))
        for each in found
    ]
    assert shares[0] < shares[1] < shares[2], "more public columns get more of the budget"


def test_words_name_the_method_the_error_and_what_it_assumes() -> None:
    done = run(*ADULT)
    assert done.exit_code == 0
    flat = " ".join(done.stdout.split())
    for words in ("method gd", "rows needed", "unit ball", "epsilon 0.25", "32561"):
        assert words in flat


def test_a_plot_is_written_where_it_is_asked_for(tmp_path: Path) -> None:
    done = run(*ADULT, "--plot", str(tmp_path / "plan.png"), "--json")
    assert done.exit_code == 0, done.stderr
    assert json.loads(done.stdout)["plot"].endswith("plan.png")
    assert (tmp_path / "plan.png").read_bytes().startswith(b"\x89PNG")
    done = run(*ADULT, "--plot", str(tmp_path / "plan.docx"))
    assert done.exit_code == 2
    assert "use .png, .svg or .pdf" in done.stderr


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        (("--public", "121"), "between 0 and 120 public columns"),
        (("--public", "120", "--public-label"), "nothing to protect"),
        (("--target-error", "0"), "target error > 0"),
        (("--method", "label-span"), "label alone is private"),
        (("--classes", "1"), "2 classes or more"),
        (("--epsilon", "-1"), "epsilon > 0"),
    ],
)
def test_bad_input_ends_with_2_and_says_what_to_do(extra: tuple[str, ...], words: str) -> None:
    done = run(*ADULT, *extra)
    assert done.exit_code == 2
    assert done.stdout == ""
    assert words in done.stderr


SCHEMA = """
[label]
name = "sick"
role = "{label}"
classes = ["no", "yes"]
[columns.age]
role = "public"
kind = "number"
[columns.dose]
role = "private"
kind = "number"
bounds = [0, 10]
"""
UNIT = '[unit]\ncolumn = "id"\nmax_rows = 3\n'


@pytest.mark.parametrize("label", ["private", "public"])
@pytest.mark.parametrize("unit", ["", UNIT])
def test_the_plan_of_a_table_is_the_one_that_training_carries_out(
    label: str, unit: str, tmp_path: Path
) -> None:
    lines = [
        f"{row // 2},{row % 70},{row % 11},{'yes' if row % 11 > 4 else 'no'}" for row in range(900)
    ]
    data, schema = tmp_path / "rows.csv", tmp_path / "rows.toml"
    data.write_text("\n".join(["id,age,dose,sick", *lines]) + "\n")
    schema.write_text(SCHEMA.format(label=label) + unit)
    given = ("--schema", str(schema), "--epsilon", "4", "--delta", "1e-6", "--json")
    planned = json.loads(run("plan", "--data", str(data), *given).stdout)
    assert {"method", "noise_multiplier", "steps", "error_bound", "rows_needed", "reason"} <= set(
        planned
    )
    assert planned["method"] == "additive"
    trained = run("train", str(data), *given, "--out", str(tmp_path / "model"))
    assert trained.exit_code == 0, trained.stderr
    details = json.loads((tmp_path / "model" / "model.json").read_text())["details"]
    shown = [
        {name: stage[name] for name in ("name", "what", "share", "releases")}
        for stage in planned["stages"]
    ]
    assert shown == details["stages"]
    privacy = json.loads(trained.stdout)["privacy"]
    assert [stage["what"] for stage in shown] == privacy["released"]
    (noted,) = [note for note in privacy["notes"] if note.startswith("The plan")]
    assert all(f"{stage['what']} {100 * stage['share']:.3g}%" in noted for stage in shown)
    charged = [event["replace"] for event in privacy["events"]]
    assert [1 / stage["noise_multiplier"] for stage in planned["stages"]] == pytest.approx(charged)
    if not unit:
        counted = json.loads(run("plan", "--rows", "900", *given).stdout)
        assert counted["stages"] == planned["stages"]


def test_the_plan_of_a_table_says_where_only_the_base_rate_is_left(tmp_path: Path) -> None:
    schema = tmp_path / "rows.toml"
    schema.write_text(SCHEMA.format(label="private"))
    given = ("plan", "--schema", str(schema), "--epsilon", "1", "--delta", "1e-6")
    few = json.loads(run(*given, "--rows", "50", "--json").stdout)
    assert few["base_rate_only"]
    assert "base rate alone" in run(*given, "--rows", "50").stdout
    enough = json.loads(run(*given, "--rows", str(few["rows_needed"]), "--json").stdout)
    assert not enough["base_rate_only"]
    less = json.loads(run(*given, "--rows", str(few["rows_needed"] - 1), "--json").stdout)
    assert less["base_rate_only"]


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        (("--schema", "{schema}"), "either --rows or --data"),
        (("--schema", "{schema}", "--rows", "9", "--columns", "3"), "leave out --columns"),
        (("--schema", "{schema}", "--rows", "9", "--method", "gd"), "--rows and --columns"),
        (("--schema", "{schema}", "--rows", "9", "--plot", "p.png"), "leave out --plot"),
        (("--data", "rows.csv"), "--schema"),
        ((), "--rows and --columns"),
    ],
)
def test_a_plan_that_lacks_or_doubles_a_fact_is_refused(
    extra: tuple[str, ...], words: str, tmp_path: Path
) -> None:
    schema = tmp_path / "rows.toml"
    schema.write_text(SCHEMA.format(label="private"))
    asked = [word.format(schema=schema) for word in extra]
    done = run("plan", "--epsilon", "1", "--delta", "1e-6", *asked)
    assert done.exit_code == 2
    assert done.stdout == ""
    assert words in done.stderr


def test_help_loads_nothing_heavy() -> None:
    program = (
        "import sys\nfrom click.testing import CliRunner\nfrom halfmask.cli import main\n"
        "assert CliRunner().invoke(main, ['plan', '--help']).exit_code == 0\n"
        "print([m for m in ('torch', 'dp_accounting', 'sklearn', 'pandas', 'scipy') "
        "if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr
