"""The report finds the ledger a model was charged to, wherever it is."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from hostile import Trained, run

from halfmask.accounting.ledger import Ledger
from halfmask.errors import LedgerError
from halfmask.model_folder import ledger_of, link_ledger
from halfmask.report.facts import gather


@pytest.fixture
def charged(trained: Trained, tmp_path: Path) -> Path:
    """A model that was charged to a ledger of its own place, after another release."""
    (tmp_path / "books").mkdir()
    book = tmp_path / "books" / "rows.jsonl"
    run("ledger", "create", book, "--epsilon", 4, "--delta", 1e-5)
    for name in ("first", "second"):
        run(
            "train", trained.data, "--schema", trained.schema, "--epsilon", 1, "--delta", 1e-5,
            "--ledger", book, "--out", tmp_path / "models" / name,
        )  # fmt: skip
    return tmp_path


def test_a_model_remembers_its_ledger(charged: Path) -> None:
    budget = gather(charged / "models" / "second").budget
    assert budget.epsilon == 4
    assert len(budget.charges) >= 2
    assert budget.charges[-1].epsilon > 1.2
    assert not (charged / "models" / "second" / "ledger.jsonl").exists()


def test_models_and_ledger_may_move_together(charged: Path, tmp_path: Path) -> None:
    moved = tmp_path / "elsewhere"
    moved.mkdir()
    for name in ("models", "books"):
        shutil.move(charged / name, moved / name)
    assert gather(moved / "models" / "first").budget.epsilon == 4


def test_a_ledger_that_moved_alone_is_asked_for(charged: Path) -> None:
    shutil.move(charged / "books", charged / "archive")
    result = run("report", charged / "models" / "first", "--format", "json", code=2)
    assert "--ledger FILE" in result.output
    out = charged / "report.json"
    run(
        "report", charged / "models" / "first", "--format", "json", "--out", out,
        "--ledger", charged / "archive" / "rows.jsonl",
    )  # fmt: skip
    assert json.loads(out.read_text())["budget"]["epsilon"] == 4


def test_a_ledger_of_other_rows_is_refused(charged: Path) -> None:
    other = Ledger.create(charged / "other.jsonl", epsilon=4.0, delta=1e-5)
    with pytest.raises(LedgerError, match="does not hold the charges of this model"):
        gather(charged / "models" / "first", ledger=other.path)


def test_a_ledger_in_the_folder_needs_no_link(tmp_path: Path) -> None:
    (tmp_path / "ledger.jsonl").touch()
    link_ledger(tmp_path, tmp_path / "ledger.jsonl")
    assert [path.name for path in tmp_path.iterdir()] == ["ledger.jsonl"]
    assert ledger_of(tmp_path) == tmp_path / "ledger.jsonl"


def test_compared_models_remember_it_too(trained: Trained, tmp_path: Path) -> None:
    run(
        "compare", trained.data, "--schema", trained.schema, "--epsilon", 2, "--delta", 1e-5,
        "--methods", "gd,one-shot", "--out", tmp_path / "both",
    )  # fmt: skip
    budget = gather(tmp_path / "both" / "gd").budget
    assert budget.epsilon == 2
    assert len(budget.charges) >= 2
