"""Fits too large are refused before a charge; a file is predicted alike piece by piece."""

from __future__ import annotations

import gc
import json
import tracemalloc
from collections.abc import Callable
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
from halfmask.vertical.admm import AdmmConfig
from halfmask.vertical.experts import ExpertsConfig
from halfmask.vertical.fdml import FdmlConfig
from halfmask.vertical.files import read_vertical_table
from halfmask.vertical.simulation import (
    SimulationBudget,
    simulate_admm,
    simulate_experts,
    simulate_fdml,
)


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


def test_levels_that_no_model_folder_may_hold_are_refused_before_a_charge(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rng, book = np.random.default_rng(0), MemoryLedger(epsilon=1, delta=1e-6)
    frame = pa.table({"x": rng.random(50), "y": ["yes", "no"] * 25})
    schema = Schema(
        columns=(Column("x", "public", "number"),),
        label=Label("y", "private", classes=("no", "yes")),
    )
    encoder = Encoder.fit(schema, frame)
    budget, table = Budget(epsilon=1, delta=1e-6), encoder.encode(frame, with_label=True)
    given: dict[str, Any] = {"method": "additive", "encoder": encoder, "ledger": book}
    monkeypatch.setattr(memory, "MOST_TEXT", 100)
    with pytest.raises(InputError, match=r"levels and edges take .* nothing was charged"):
        train(table, budget, noise=noise_source(0), **given)
    assert not book.events()
    monkeypatch.undo()
    train(table, budget, noise=noise_source(0), **given)
    assert book.events()


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


def many(rows: int, *, public: int, party: bool = False) -> tuple[Schema, pa.Table]:
    """Twenty columns of whole numbers, the first of them public."""
    rng = np.random.default_rng(0)
    names = [f"c{place}" for place in range(20)]
    cells = {name: rng.integers(0, 14, rows) for name in names}
    label = np.where(rng.random(rows) < cells["c0"] / 14, "b", "a")
    levels = tuple(str(level) for level in range(14))
    columns = [
        Column(
            name,
            "public" if place < public else "private",
            "category",
            categories=levels,
            party=("left", "right")[place % 2] if party else None,
        )
        for place, name in enumerate(names)
    ]
    schema = Schema(Label("y", "private", classes=("a", "b")), tuple(columns))
    return schema, pa.table({**cells, "y": label})


WIDTH = 20 * 16  # features: each column has two more levels, for other and missing


def peak(work: Callable[[], object]) -> int:
    """The most bytes that Python and numpy hold at a time while `work` runs."""
    gc.collect()
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


METHODS: dict[str, dict[str, Any]] = {
    "additive": {},
    "gd": {"steps": 10},
    "sgd": {"steps": 20, "rate": 0.01, "public_batch": 300},
    "dp-sgd": {"steps": 20, "rate": 0.02},
    "one-shot": {},
    "label-span": {},
    "mlp": {"recipe": "dp-sgd", "steps": 4, "rate": 0.02, "hidden": 8},
    "algorithm-1": {"padding": "middle", "steps": 4, "rate": 0.02, "hidden": 8},
}


# More than the rows of one part, for which features are made.
FEW, MANY = 9_000, 15_000


def by_row(fit: Callable[[int], object]) -> float:
    """The bytes that each further row adds to the peak of fit(rows)."""
    fit(FEW)  # what is imported or computed once
    return (peak(lambda: fit(MANY)) - peak(lambda: fit(FEW))) / (MANY - FEW)


@pytest.mark.parametrize(
    "method",
    [pytest.param(m, marks=pytest.mark.slow if m in ("additive", "gd") else ()) for m in METHODS],
)
def test_no_method_makes_a_table_of_numbers(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    options = dict(METHODS[method])
    if method in ("mlp", "algorithm-1"):
        monkeypatch.setattr(pytest.importorskip("halfmask.neural.pretrain"), "_HELD", 0)
        options = {"recipe": "algorithm-1", **options}
    name = "mlp" if method == "algorithm-1" else method
    tables = {}
    for rows in (FEW, MANY):
        schema, frame = many(rows, public=20 if method == "label-span" else 10)
        encoder = Encoder.fit(schema, frame)
        tables[rows] = encoder.encode(frame)
    budget = Budget(epsilon=1.0, delta=1e-6)

    def fit(rows: int) -> None:
        table = tables[rows]
        model = train(table, budget, method=name, noise=noise_source(1), options=options)
        model.probabilities(table)

    assert sum(tables[FEW].widths) == WIDTH
    assert by_row(fit) < 8 * WIDTH / 3


@pytest.mark.parametrize("method", ["experts", "admm", "fdml-sgd"])
def test_no_party_makes_a_table_of_numbers(method: str, tmp_path: Path) -> None:
    names = {}
    for rows in (FEW, MANY):
        schema, frame = many(rows, public=0, party=True)
        frame = frame.append_column("id", pa.array(np.arange(rows)[::-1]))
        for who in ("left", "right"):
            names[who] = [c.name for c in schema.columns if c.party == who]
            own = frame.select(["id", *names[who]])
            parquet.write_table(own, tmp_path / f"{who}{rows}.parquet")
        parquet.write_table(frame.select(["id", "y"]), tmp_path / f"labels{rows}.parquet")
    budget = SimulationBudget(epsilon=1.0, delta=1e-6, unsafe_seed=1)

    def fit(rows: int) -> None:
        table = read_vertical_table(
            schema,
            id_column="id",
            label_file=tmp_path / f"labels{rows}.parquet",
            party_files={who: tmp_path / f"{who}{rows}.parquet" for who in names},
        )
        if method == "experts":
            simulate_experts(table, ExpertsConfig(steps=4), budget=budget)
        elif method == "admm":
            simulate_admm(table, AdmmConfig(rounds=2), budget=budget)
        else:
            simulate_fdml(table, FdmlConfig(epochs=1), budget=budget)

    assert by_row(fit) < 8 * WIDTH / 3
