"""`halfmask plan`: fields, words, plot, errors; nothing heavy is imported."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

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
    assert (found["method"], found["steps"]) == ("one-shot", 1)


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


def test_help_loads_nothing_heavy() -> None:
    program = (
        "import sys\nfrom click.testing import CliRunner\nfrom halfmask.cli import main\n"
        "assert CliRunner().invoke(main, ['plan', '--help']).exit_code == 0\n"
        "print([m for m in ('torch', 'dp_accounting', 'sklearn', 'pandas', 'scipy') "
        "if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr
