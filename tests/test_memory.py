"""Fits too large are refused before a charge; a file is predicted alike piece by piece."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from click.testing import CliRunner
from pyarrow import parquet

from halfmask import training as memory
from halfmask.accounting.budget import Budget
from halfmask.accounting.ledger import MemoryLedger
from halfmask.cli import main
from halfmask.data import reading
from halfmask.errors import InputError
from halfmask.mechanisms.noise import noise_source
from halfmask.schema import Column, Label, Schema
from halfmask.table import Encoder, Table
from halfmask.training import train


def refused(table: Table, method: str) -> str:
    book = MemoryLedger(epsilon=1.0, delta=1e-6, relation="replace")
    with pytest.raises(InputError, match="nothing was charged") as caught:
        train(
            table, Budget(epsilon=1.0, delta=1e-6), method=method, noise=noise_source(), ledger=book
        )
    assert book.events() == ()
    return str(caught.value)


def coded(n: int = 300) -> Table:
    rng = np.random.default_rng(0)
    names = [f"c{place}" for place in range(5)]
    frame = pa.table({**{name: rng.random(n) for name in names}, "y": rng.choice(["a", "b"], n)})
    columns = tuple(Column(name, "private", "number", bounds=(0, 1.5)) for name in names)
    return Encoder.fit(Schema(Label("y", "private", classes=("a", "b")), columns), frame).encode(
        frame
    )


def test_ten_thousand_columns_in_one_shot_say_what_to_do_instead(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(memory, "available", lambda: 8 << 30)
    rng = np.random.default_rng(0)
    table = Table.from_arrays(rng.normal(size=(20, 10_000)), np.arange(20) % 2)
    said = refused(table, "one-shot")
    assert "9.3 GiB" in said
    assert "8.0 GiB are free" in said
    assert "'gd'" in said


def test_blocks_that_do_not_fit_point_to_the_method_that_needs_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(memory, "available", lambda: 200_000)
    assert "'additive'" in refused(coded(), "gd")
    monkeypatch.setattr(memory, "available", lambda: 20_000)
    assert "more memory" in refused(coded(), "additive")


def test_memory_that_nobody_tells_of_refuses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "available", lambda: None)
    memory.check_memory(Table.from_arrays(np.ones((3, 2)), [0, 1, 0]), "one-shot")


def test_this_machine_tells_what_is_free() -> None:
    free = memory.available()
    assert free is None or free > 1 << 20


@pytest.fixture(params=["additive", "gd"])
def trained(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, Path]:
    rng = np.random.default_rng(1)
    n = 500
    x = rng.random(n)
    frame = pa.table(
        {
            "x": x,
            "kind": rng.choice(["u", "v", ""], n),
            "y": np.where(rng.random(n) < x, "yes", "no"),
            "unread": ["z"] * n,
        }
    )
    parquet.write_table(frame, tmp_path / "rows.parquet", row_group_size=200)
    schema = Schema(
        Label("y", "private", classes=("no", "yes")),
        (
            Column("x", "private", "number", bounds=(0, 1.5)),
            Column("kind", "public", "category"),
        ),
    )
    encoder = Encoder.fit(schema, frame)
    model = train(
        encoder.encode(frame),
        Budget(epsilon=5.0, delta=1e-6),
        method=request.param,
        noise=noise_source(),
        encoder=encoder,
    )
    model.save(tmp_path / "model")
    return tmp_path / "model", tmp_path / "rows.parquet"


def command(*words: str | Path) -> str:
    done = CliRunner().invoke(main, [str(word) for word in words])
    assert done.exit_code == 0, done.output
    return done.stdout


def _flat(found: Any, name: str = "") -> dict[str, Any]:
    """Objects within objects as one, by the names on the way."""
    if isinstance(found, dict):
        parts = found.items()
    elif isinstance(found, list):
        parts = enumerate(found)
    else:
        return {name: found}
    return {k: v for key, value in parts for k, v in _flat(value, f"{name}/{key}").items()}


def test_predictions_and_scores_by_pieces_are_those_of_the_whole(
    trained: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, rows = trained
    whole = command("predict", model, rows)
    scored = json.loads(command("evaluate", model, rows, "--json"))
    monkeypatch.setattr(reading, "_PIECE", 37)
    assert command("predict", model, rows) == whole
    out = tmp_path / "out.csv"
    told = json.loads(command("predict", model, rows, "--out", out, "--json"))
    assert out.read_text(encoding="utf-8") == whole
    assert told == {"rows": 500, "out": str(out), "columns": ["prediction", "p_no", "p_yes"]}
    by_pieces = json.loads(command("evaluate", model, rows, "--json"))
    assert _flat(by_pieces) == pytest.approx(_flat(scored))


def test_an_error_in_a_later_row_leaves_no_half_of_a_file(
    trained: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, _ = trained
    monkeypatch.setattr(reading, "_PIECE", 37)
    cells = ["0.5"] * 100
    cells[90] = "SECRET"
    path = tmp_path / "bad.parquet"
    parquet.write_table(pa.table({"x": cells, "kind": ["u"] * 100}), path)
    done = CliRunner().invoke(
        main, ["predict", str(model), str(path), "--out", str(tmp_path / "out.csv")]
    )
    assert done.exit_code != 0
    said = str(done.exception) + done.output
    assert "row 91" in said
    assert "SECRET" not in said
    assert not list(tmp_path.glob("out.csv*"))
