"""A score never stands alone: a constant and the public columns stand beside it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pytest
from click.testing import CliRunner
from sklearn.metrics import confusion_matrix, precision_score, recall_score

from halfmask.cli import main
from halfmask.model import Model

SCHEMA = """
[label]
name = "y"
role = "{label}"
classes = ["a", "b"]
[columns.open]
role = "public"
kind = "number"
[columns.hidden]
role = "private"
kind = "number"
bounds = [0, 1]
"""


def rows(count: int, seed: int, told: float) -> pa.Table:
    rng = np.random.default_rng(seed)
    first, second = rng.uniform(0, 1, count), rng.uniform(0, 1, count)
    score = told * (first + second - 1) + rng.normal(0, 0.1, count)
    return pa.table({"open": first, "hidden": second, "y": np.where(score > 0, "b", "a")})


def halfmask(*words: object) -> str:
    done = CliRunner().invoke(main, [str(word) for word in words])
    assert done.exit_code == 0, done.output
    return done.stdout


@pytest.fixture(params=["private", "public"])
def trained(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    pyarrow.csv.write_csv(rows(3000, 1, 1.0), tmp_path / "train.csv")
    pyarrow.csv.write_csv(rows(800, 2, 1.0), tmp_path / "test.csv")
    pyarrow.csv.write_csv(rows(800, 3, 0.0), tmp_path / "noise.csv")
    (tmp_path / "s.toml").write_text(SCHEMA.format(label=request.param))
    words = ("--schema", tmp_path / "s.toml", "--epsilon", 2, "--out", tmp_path / "model")
    halfmask("train", tmp_path / "train.csv", *words)
    return tmp_path


def test_evaluate_gives_what_scores_are_held_against(trained: Path) -> None:
    found = json.loads(halfmask("evaluate", trained / "model", trained / "test.csv", "--json"))
    table = pyarrow.csv.read_csv(trained / "test.csv")
    truth = np.array(table["y"].to_pylist())
    share = (truth == "b").mean()
    entropy = -(share * np.log(share) + (1 - share) * np.log(1 - share))
    assert found["constant"]["log_loss"] == pytest.approx(entropy)
    assert found["constant"]["accuracy"] == pytest.approx(max(share, 1 - share))
    alone = found["public_columns_alone"]["log_loss"]
    assert found["log_loss"] < alone < entropy
    assert found["better_than_constant"] is True
    assert found["covered"]["constant_log_loss"] == pytest.approx(0.69, abs=0.02)
    model = Model.load(trained / "model")
    called = model.predict(model.encode(table))
    counts = confusion_matrix(truth, called, labels=["a", "b"])
    assert [list(line.values()) for line in found["confusion"].values()] == counts.tolist()
    assert found["classes"]["b"]["precision"] == pytest.approx(
        precision_score(truth, called, pos_label="b")
    )
    assert found["classes"]["a"]["recall"] == pytest.approx(
        recall_score(truth, called, pos_label="a")
    )


def test_a_model_that_is_no_better_than_a_constant_is_told_so(trained: Path) -> None:
    said = halfmask("evaluate", trained / "model", trained / "noise.csv")
    assert "NO BETTER THAN A CONSTANT" in said
    assert max(map(len, said.splitlines())) <= 90
    assert "CONSTANT" not in halfmask("evaluate", trained / "model", trained / "test.csv")


def test_scores_by_group_are_those_of_the_groups_rows(trained: Path) -> None:
    table = pyarrow.csv.read_csv(trained / "test.csv")
    side = np.where(np.asarray(table["open"]) > 0.5, "right", "left")
    pyarrow.csv.write_csv(table.append_column("side", pa.array(side)), trained / "sided.csv")
    pyarrow.csv.write_csv(table.filter(pa.array(side == "left")), trained / "left.csv")
    words = ("evaluate", trained / "model", trained / "sided.csv", "--by", "side", "--json")
    found = json.loads(halfmask(*words))["groups"]
    alone = json.loads(halfmask("evaluate", trained / "model", trained / "left.csv", "--json"))
    assert set(found) == {"left", "right"}
    assert found["left"]["log_loss"] == pytest.approx(alone["log_loss"])
    assert found["left"]["rows"] + found["right"]["rows"] == 800
