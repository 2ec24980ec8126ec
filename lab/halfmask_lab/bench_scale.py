"""Millions of rows: our default method against boosted trees, from the same Parquet file.

Half of the columns are public, the label is private, epsilon is 1. Every contender reads the file
and fits in a process of its own; its processor time and the growth of its peak memory count from
the end of its imports. A logistic model without privacy, which is what rows are drawn from, says
how good a model can be.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from halfmask.errors import InputError
from halfmask_lab.results import Progress, models, silent

ROWS, COLUMNS = 2_000_000, 20
_TEST_ROWS = 200_000
_DRAWN_AT_ONCE = 1 << 18
OURS, TREES, PLAIN = "halfmask", "boosted trees", "logistic regression"


def run(tell: Progress = silent, rows: int = ROWS, columns: int = COLUMNS) -> dict[str, Any]:
    """Measure everything and return what `halfmask bench scale --json` prints."""
    if rows < 1000 or columns < 2:
        raise InputError("Expected at least 1,000 rows and 2 columns.")
    found: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        tell(0.02, "drawing rows")
        draw(Path(folder) / "train.parquet", rows, columns, seed=1)
        draw(Path(folder) / "test.parquet", _TEST_ROWS, columns, seed=2)
        for place, name in enumerate((OURS, PLAIN, TREES)):
            tell(0.1 + 0.3 * place, name)
            found[name] = _alone(name, Path(folder))
    setting = f"{rows:,} x {columns}, half of the columns public, label private, epsilon 1"
    ratios = [
        {
            "what": f"{OURS}, {what}",
            "against": f"scikit-learn HistGradientBoostingClassifier, {what}",
            "setting": setting,
            **dict.fromkeys(
                ("ratio", "low", "high"), found[OURS][key] / max(found[TREES][key], 1e-9)
            ),
        }
        for what, key in (("processor time", "seconds"), ("memory", "grown"))
    ]
    return {
        "name": "scale",
        "rows": rows,
        "columns": columns,
        "ratios": ratios,
        "seconds": {name: each["seconds"] for name, each in found.items()},
        "bytes_a_row": {name: each["grown"] / rows for name, each in found.items()},
        "log_loss": {name: each["log_loss"] for name, each in found.items()},
    }


def draw(path: Path, rows: int, columns: int, *, seed: int) -> None:
    """A Parquet file of normal columns x0, x1, ... and labels of one logistic model."""
    import pyarrow as pa
    from pyarrow import parquet

    weights = 1.5 * np.random.default_rng(0).normal(size=columns) / np.sqrt(columns)
    rng = np.random.default_rng(seed)
    kinds = [(name, pa.float64()) for name in names(columns)]
    with parquet.ParquetWriter(path, pa.schema([*kinds, ("y", pa.string())])) as file:
        for start in range(0, rows, _DRAWN_AT_ONCE):
            X = rng.normal(size=(min(_DRAWN_AT_ONCE, rows - start), columns))
            yes = rng.random(len(X)) < 1 / (1 + np.exp(0.5 - X @ weights))
            cells = {name: X[:, place] for place, name in enumerate(names(columns))}
            file.write_table(pa.table({**cells, "y": np.where(yes, "yes", "no")}))


def names(columns: int) -> list[str]:
    """The names of the drawn columns; the first half is public."""
    return [f"x{place}" for place in range(columns)]


def _alone(name: str, folder: Path) -> dict[str, float]:
    """The contender in a process of its own."""
    # Threads that wait without work would count as processor time.
    environment = {**os.environ, "OMP_WAIT_POLICY": "passive"}
    command = [sys.executable, "-m", "halfmask_lab.bench_scale", name, str(folder)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise InputError(f"The contender {name!r} failed: {done.stderr.strip()[-500:]}")
    measured: dict[str, float] = json.loads(done.stdout)
    return measured


def _ours(folder: Path) -> Callable[[], Callable[[], float]]:
    from halfmask import additive_model  # noqa: F401  (its import is not what is measured)
    from halfmask.data.reading import open_rows
    from halfmask.schema import Column, Label, Schema
    from halfmask.scoring import scores
    from halfmask.table import Encoder

    def fit() -> Callable[[], float]:
        with open_rows(folder / "train.parquet") as file:
            known = names(len(file.column_names) - 1)
            half = len(known) // 2
            columns = [Column(name, "public", "number") for name in known[:half]]
            columns += [Column(n, "private", "number", bounds=(-4, 4)) for n in known[half:]]
            schema = Schema(Label("y", "private", classes=("no", "yes")), tuple(columns))
            encoder = Encoder.fit(schema, file)
            table = encoder.encode(file)
        [model] = models(table, 1.0, 1 / table.n**2, draws=1, seed=None, encoder=encoder)

        def score() -> float:
            with open_rows(folder / "test.parquet") as test:
                found = scores(model, encoder.encode(test))["log_loss"]
            assert found is not None
            return found

        return score

    return fit


def _theirs(folder: Path, make: Callable[[], Any]) -> Callable[[], Callable[[], float]]:
    from pyarrow import parquet
    from sklearn.metrics import log_loss

    def read(name: str) -> tuple[np.ndarray, np.ndarray]:
        table = parquet.read_table(folder / name)
        X = np.empty((table.num_rows, table.num_columns - 1))
        for place in range(X.shape[1]):
            X[:, place] = table.column(place)
        return X, np.asarray(table.column("y")) == "yes"

    def fit() -> Callable[[], float]:
        model = make().fit(*read("train.parquet"))

        def score() -> float:
            X, y = read("test.parquet")
            return float(log_loss(y, model.predict_proba(X)[:, 1]))

        return score

    return fit


def _contender(name: str, folder: Path) -> dict[str, float]:
    from sklearn.ensemble import HistGradientBoostingClassifier
    from sklearn.linear_model import LogisticRegression

    fits = {
        OURS: lambda: _ours(folder),
        TREES: lambda: _theirs(folder, lambda: HistGradientBoostingClassifier(max_iter=100)),
        PLAIN: lambda: _theirs(folder, lambda: LogisticRegression(solver="newton-cholesky")),
    }
    fit = fits[name]()
    before, started = _peak(), time.process_time()
    score = fit()
    seconds, grown = time.process_time() - started, _peak() - before
    return {"seconds": seconds, "grown": grown, "log_loss": score()}


def _peak() -> int:
    """The most memory this process has held, in bytes."""
    size = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return size if sys.platform == "darwin" else 1024 * size


if __name__ == "__main__":
    json.dump(_contender(sys.argv[1], Path(sys.argv[2])), sys.stdout)
