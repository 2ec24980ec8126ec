"""Markdown, JSON and the model card carry the same guarantee as the page."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from hostile import HOSTILE, SCRIPT, Trained, run

from halfmask.model import Model


def written(trained: Trained, form: str, tmp_path: Path, *more: object) -> str:
    out = tmp_path / "out"
    run("report", trained.folder, "--format", form, "--out", out, *more)
    return out.read_text(encoding="utf-8")


def test_card_has_front_matter_that_machines_read(trained: Trained, tmp_path: Path) -> None:
    text = written(trained, "card", tmp_path, "--data", trained.data)
    _, front, body = text.split("---\n", 2)
    meta = yaml.safe_load(front)
    statement = Model.load(trained.folder).privacy
    assert meta["library_name"] == "halfmask"
    assert meta["pipeline_tag"] == "tabular-classification"
    assert "differential-privacy" in meta["tags"]
    privacy = meta["differential_privacy"]
    assert privacy["epsilon"] == pytest.approx(statement.epsilon)
    assert privacy["delta"] == statement.delta
    assert privacy["public"] == [HOSTILE[0], HOSTILE[3]]
    assert privacy["private"] == [HOSTILE[1], HOSTILE[2], "label"]
    metrics = meta["model-index"][0]["results"][0]["metrics"]
    assert {metric["type"] for metric in metrics} == {"accuracy", "log_loss", "roc_auc"}
    assert "not covered by the guarantee" in body


def test_covered_scores_stand_apart_from_those_on_rows_of_the_users(
    trained: Trained, tmp_path: Path
) -> None:
    covered = Model.load(trained.folder).details["covered"]
    text = written(trained, "card", tmp_path, "--data", trained.data)
    meta = yaml.safe_load(text.split("---\n", 2)[1])
    shown = meta["differential_privacy"]["covered_scores"]
    assert shown["log_loss"] == {"value": covered["log_loss"], "bar": covered["log_loss_bar"]}
    part = text.split("Scores that the guarantee covers")[1].split("\n## ")[0]
    assert "paid for: covered by the guarantee" in part
    assert f"| log loss | {covered['log_loss']:.4g} | ± {covered['log_loss_bar']:.2g} |" in part
    facts = json.loads(written(trained, "json", tmp_path))
    assert facts["covered"]["covered_by_guarantee"] is True
    assert facts["covered"]["auc"] == covered["auc"]


@pytest.mark.parametrize("form", ["md", "card"])
def test_markdown_keeps_user_text_as_text(trained: Trained, tmp_path: Path, form: str) -> None:
    text = written(trained, form, tmp_path)
    prose = text.split("```")[::2]
    body = "".join(prose).split("---\n", 2)[-1] if form == "card" else "".join(prose)
    assert SCRIPT not in body
    assert "\\<script\\>" in body
    rows = [line for line in body.splitlines() if line.startswith("|")]
    assert all(line.replace("\\|", "").count("|") >= 3 for line in rows)


def test_markdown_holds_the_whole_statement(trained: Trained, tmp_path: Path) -> None:
    text = written(trained, "md", tmp_path)
    block = text.split("```json\n")[1].split("\n```")[0]
    assert json.loads(block) == Model.load(trained.folder).privacy.to_json()


def test_json_holds_everything_the_page_draws(trained: Trained, tmp_path: Path) -> None:
    facts = json.loads(written(trained, "json", tmp_path, "--data", trained.data))
    assert facts["statement"] == Model.load(trained.folder).privacy.to_json()
    assert facts["measured"]["covered_by_guarantee"] is False
    assert {"curve", "attacker", "columns", "budget", "learning", "audits"} <= set(facts)
    assert [gain["prior"] for gain in facts["attacker"]] == [0.01, 0.1, 0.5, 0.9]


def test_json_option_prints_one_object(trained: Trained, tmp_path: Path) -> None:
    result = run("report", trained.folder, "--out", tmp_path / "r.html", "--json")
    printed = json.loads(result.stdout)
    assert printed["out"].endswith("r.html")
    assert printed["privacy"]["epsilon"] == pytest.approx(2.0, rel=1e-3)


@pytest.mark.parametrize("form", ["md", "card", "html"])
def test_every_format_bounds_sets_of_outcomes(trained: Trained, tmp_path: Path, form: str) -> None:
    text = " ".join(written(trained, form, tmp_path).split())
    assert "makes any set of outcomes at most" in text
    assert "plus at most one in 100,000" in text
    assert "but for a probability of about" not in text
    assert "may fail" not in text
