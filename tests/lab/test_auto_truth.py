"""The command that holds the default against every method by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from halfmask.cli import main
from halfmask.training import METHODS
from halfmask_lab import auto_truth
from halfmask_lab.auto_truth import NAMED
from halfmask_lab.table_checks import Cell


def test_every_method_but_the_default_is_held_against_it() -> None:
    assert set(NAMED) | {"auto", "additive"} == set(METHODS)


@pytest.mark.parametrize(
    ("gap", "spread", "beats"),
    [(0.004, 0.0, False), (0.006, 0.0, True), (0.006, 0.004, False), (0.02, 0.5, True)],
)
def test_a_method_beats_the_default_beyond_the_margin_only(
    gap: float, spread: float, beats: bool
) -> None:
    own, other = Cell("t", "all", "auto", 1.0), Cell("t", "all", "gd", 1.0)
    ours = [0.3 + spread, 0.3 - spread]
    found = auto_truth._beaten({own: ours, other: [0.3 - gap, 0.3 - gap]})
    assert bool(found) is beats
    if beats:
        assert found[0]["method"] == "gd"
        assert found[0]["auto_above"] == pytest.approx(gap)


def test_the_command_reports_what_beats_auto(monkeypatch: pytest.MonkeyPatch) -> None:
    """On stand-ins of fits: the report is asked, not the methods."""

    class Rows:
        task = "classification"
        test = None

        def target(self, frame: Any) -> np.ndarray:
            return np.array([0, 1] * 50)

    def fit(rows: Any, role: str, method: str, epsilon: float, *, draw: int, seed: int) -> Any:
        if method == "sgd":
            return None, "does not know these roles"
        right = 0.9 if method == "gd" else 0.7
        return np.array([1 - right, right] * 50), method

    monkeypatch.setattr(auto_truth, "load_rows", lambda name, data: Rows())
    monkeypatch.setattr(auto_truth, "fit_by_name", fit)
    asked = ["reproduce", "auto", "--table", "adult", "--role", "all", "--epsilon", "1"]
    done = CliRunner().invoke(main, [*asked, "--json"])
    assert done.exit_code == 0, done.output
    result = json.loads(done.stdout)
    assert [case["method"] for case in result["beaten"]] == ["gd"]
    assert result["left_out"][0]["method"] == "sgd"
    assert {row["method"] for row in result["results"]} == {"auto", *NAMED} - {"sgd"}
    assert "gd beats auto on adult, all" in CliRunner().invoke(main, asked).stdout


def test_the_command_runs_on_real_rows(tmp_path: Path) -> None:
    asked = ["reproduce", "auto", "--table", "adult", "--role", "label", "--epsilon", "1"]
    asked += ["--draws", "1", "--method", "one-shot", "--json", "--out", str(tmp_path)]
    done = CliRunner().invoke(main, asked)
    assert done.exit_code == 0, done.output
    result = json.loads(done.stdout)
    means = {row["method"]: row["mean"] for row in result["results"]}
    assert 0.27 < means["auto"] < 0.45
    assert 0.3 < means["one-shot"] < 0.45
    assert (tmp_path / "auto.json").is_file()
