"""Tables at the ends of what can be declared: an answer, or a refusal in words before a charge.

Each training is a process of its own (forked from one that has everything loaded), held to two
minutes (of one core, whatever else the machine does) and 4 GiB. All of them:
pytest -m hand -s tests/test_extremes.py (figures in docs/reliability.md).
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import tomli_w
from pyarrow import parquet

from halfmask.accounting.ledger import Ledger
from halfmask.additive_model import _joined, _parted
from kills import LOADED, Server

SECONDS, GIGABYTES = 120.0, 4.0
METHODS = ("additive", "gd", "sgd", "one-shot", "label-span", "mlp", "dp-sgd")
VERTICAL = ("experts", "admm")
LARGEST = 1.7e308


class Case:
    """Columns with their declaration, labels, and what is asked of the budget."""

    def __init__(self, rows: int = 300, *, epsilon: float = 1.0, delta: float = 1e-6) -> None:
        self.rng = np.random.default_rng(5)
        self.rows, self.epsilon, self.delta = rows, epsilon, delta
        self.values: dict[str, Any] = {}
        self.columns: dict[str, Any] = {}
        self.label = np.where(self.rng.random(rows) < 0.5, "yes", "no")
        self.classes: list[Any] = ["no", "yes"]

    def number(self, name: str, values: Any, bounds: Any, **more: Any) -> Case:
        self.values[name] = values
        self.columns[name] = {"kind": "number", "bounds": list(bounds), **more}
        return self

    def category(self, name: str, levels: int) -> Case:
        names = [f"l{level}" for level in range(levels)]
        self.values[name] = self.rng.choice(names, self.rows)
        self.columns[name] = {"kind": "category", "categories": names}
        return self

    def plain(self) -> Case:
        self.number("pay", self.rng.uniform(0, 9, self.rows), (0, 9))
        return self.category("town", 3)


def wide() -> Case:
    made = Case(200)
    for column in range(10_000):
        made.number(f"c{column}", made.rng.random(200), (0, 1), bins=0)
    return made


def many_classes() -> Case:
    made = Case(3000).plain()
    made.classes = [f"k{place}" for place in range(1000)]
    made.label = made.rng.choice(made.classes, 3000)
    return made


def constant() -> Case:
    made = Case().plain()
    made.label = np.full(made.rows, "no")
    return made


def huge() -> Case:
    made = Case().plain()
    made.number("big", made.rng.choice([1e308, -1e308, np.inf, 0.0], 300), (-8e307, 8e307))
    return made.number("flat", made.rng.choice([LARGEST, np.nan], 300), (0, LARGEST), bins=0)


def denormal() -> Case:
    made = Case().plain()
    made.number("small", made.rng.choice([0.0, 5e-324, 1e-310], 300), (0, 5e-324))
    return made.number("flat", made.rng.choice([5e-324, 1e-308], 300), (0, 1e-308), bins=0)


CASES = {
    "10,000 private columns": wide,
    "10,000 categories": lambda: Case(3000).category("code", 10_000),
    "1,000 classes": many_classes,
    "one row": lambda: Case(1).plain(),
    "constant labels": constant,
    "1e308": huge,
    "denormals": denormal,
    "epsilon 1e-3": lambda: Case(epsilon=1e-3).plain(),
    "epsilon 1e3": lambda: Case(epsilon=1e3).plain(),
    "delta 1e-300": lambda: Case(delta=1e-300).plain(),
}


def write(case: Case, folder: Path, method: str) -> list[str]:
    """The files of a training by `method`, and the words of its command."""
    frame = pa.table({**case.values, "y": case.label})
    role = "public" if method == "label-span" else "private"
    columns = {name: {"role": role, **each} for name, each in case.columns.items()}
    label = {"name": "y", "role": "private", "classes": case.classes}
    budget = ["--epsilon", repr(case.epsilon), "--delta", repr(case.delta), "--json"]
    schema = folder / "rows.toml"
    if method not in VERTICAL:
        parquet.write_table(frame, folder / "rows.parquet")
        schema.write_text(tomli_w.dumps({"label": label, "columns": columns}))
        words = ["train", str(folder / "rows.parquet"), "--method", method]
        return [*words, "--schema", str(schema), *budget, "--out", str(folder / "model")]
    ids = [f"u{row}" for row in range(case.rows)]
    names = list(columns)
    for place, name in enumerate(names):
        columns[name]["party"] = "a" if place < (len(names) + 1) // 2 else "b"
    held = sorted({each["party"] for each in columns.values()})
    label["role"] = "private" if method == "experts" else "public"
    schema.write_text(tomli_w.dumps({"label": label, "columns": columns}))
    words = ["vertical", "simulate", "--schema", str(schema), "--id", "id", "--method", method]
    for party in held:
        own = [name for name in names if columns[name]["party"] == party]
        file = folder / f"{party}.parquet"
        parquet.write_table(pa.table({"id": ids, **{n: case.values[n] for n in own}}), file)
        words += ["--party", f"{party}={file}"]
    parquet.write_table(pa.table({"id": ids, "y": case.label}), folder / "labels.parquet")
    words += ["--label", str(folder / "labels.parquet"), "--out", str(folder / "model")]
    return [*words, *budget]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    made = Server(*LOADED)
    yield made
    made.close()


def checked(server: Server, name: str, method: str, folder: Path) -> None:
    words = write(CASES[name](), folder, method)
    code, _, err = server.run(words, folder, 6 * SECONDS)
    print(
        f"{name:24} {method:11} exit {code} {server.seconds:6.1f} s {server.gigabytes:5.2f} GiB",
        flush=True,
    )
    assert code in (0, 2, 3), (code, err[-2000:])
    assert server.seconds <= SECONDS
    assert server.gigabytes <= GIGABYTES
    assert "Traceback" not in err
    assert "RuntimeWarning" not in err, err[-2000:]
    told = json.loads((folder / "stdout").read_text())
    if code == 0:
        if method not in VERTICAL:
            asked = ["predict", folder / "model", folder / "rows.parquet", "--out"]
            code, _, err = server.run([*asked, folder / "s.csv"], folder)
            assert code == 0, err
        return
    assert told["error"]["message"]
    print(f"    {told['error']['message'][:200]}", flush=True)
    for ledger in (folder / "model").rglob("*.jsonl"):
        assert Ledger.open(ledger).events() == (), "refused after a charge"


PAIRS = list(itertools.product(CASES, (*METHODS, *VERTICAL)))
QUICK = {
    ("one row", "gd"),
    ("one row", "experts"),
    ("1e308", "additive"),
    ("denormals", "one-shot"),
    ("constant labels", "sgd"),
    ("epsilon 1e3", "admm"),
}


@pytest.mark.slow
@pytest.mark.hand
@pytest.mark.parametrize(("name", "method"), PAIRS)
def test_every_method_answers_or_refuses_at_the_ends(
    server: Server, name: str, method: str, tmp_path: Path
) -> None:
    checked(server, name, method, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "method"), sorted(QUICK))
def test_some_methods_answer_or_refuse_at_the_ends(
    server: Server, name: str, method: str, tmp_path: Path
) -> None:
    checked(server, name, method, tmp_path)


@pytest.mark.parametrize("classes", [3, 1500])
def test_a_model_of_many_classes_is_stored_as_few_arrays(classes: int) -> None:
    """One archive lists a few thousand arrays: a paid model must not be lost for their number."""
    parts = [
        {"weights": np.arange(place % 3), "numbers": np.ones((1, 2)) * place}
        | ({"bend": np.zeros(place % 2)} if place % 2 else {})
        for place in range(classes)
    ]
    stored = _joined(parts)
    assert len(stored) == 6
    again = _parted(stored, classes)
    older = _parted(
        {f"{k}.{n}": a for k, part in enumerate(parts) for n, a in part.items()}, classes
    )
    for place, part in enumerate(parts):
        assert list(again[place]) == list(older[place]) == list(part)
        assert all(np.array_equal(again[place][n], array) for n, array in part.items())
    for name in stored:
        with pytest.raises((ValueError, KeyError)):
            _parted({**stored, name: stored[name][:-1]}, classes)
