"""The same rows and the same unsafe seed give the same model to the byte, on any number of threads.

Real processes, since the libraries read how many threads they may use when they are loaded.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

# More than the 10,000 rows from which OpenBLAS shares a sum among its threads.
ROWS = 12_000
# Enough levels for systems of equations that it shares too.
NUMBERS = {f"x{place}": "private" if place > 8 else "public" for place in range(12)}


def draw(path: Path) -> None:
    rng = np.random.default_rng(5)
    cells = {name: rng.normal(size=ROWS).round(3) for name in NUMBERS}
    score = sum(cells.values()) / 3
    kind = rng.choice(["x", "y", "z"], ROWS)
    cells["yes"] = np.where(rng.random(ROWS) < 1 / (1 + np.exp(-score - (kind == "x"))), "1", "0")
    cells["cost"] = (score + rng.normal(size=ROWS)).clip(-8, 8)
    parquet.write_table(pa.table({**cells, "kind": kind}), path)


def declared(*, label_role: str, number: bool, bins: int | None) -> str:
    target = 'name = "cost"\nbounds = [-8, 8]' if number else 'name = "yes"\nclasses = ["0", "1"]'
    lines = [f'[label]\n{target}\nrole = "{label_role}"']
    for name, role in NUMBERS.items():
        more = "" if bins is None else f"\nbins = {bins}"
        lines.append(f'[columns.{name}]\nrole = "{role}"\nkind = "number"\nbounds = [-4, 4]{more}')
    lines.append(
        '[columns.kind]\nrole = "private"\nkind = "category"\ncategories = ["x", "y", "z"]'
    )
    return "\n".join(lines)


def trained(folder: Path, name: str, method: str, threads: int) -> dict[str, bytes]:
    """The stored model, all files but the ledger, which holds the time."""
    limits = dict.fromkeys(
        ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"),
        str(threads),
    )
    out = folder / f"{name}-{threads}"
    program = "from halfmask.cli import main; main()"
    command = [sys.executable, "-c", program, "train", str(folder / "rows.parquet")]
    command += ["--schema", str(folder / "rows.toml"), "--epsilon", "1", "--delta", "1e-6"]
    command += ["--method", method, "--unsafe-seed", "3", "--out", str(out)]
    done = subprocess.run(
        command, env={**os.environ, **limits}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return {
        file.name: file.read_bytes() for file in sorted(out.iterdir()) if "ledger" not in file.name
    }


@pytest.mark.parametrize(
    ("method", "label_role", "number", "bins"),
    [
        ("additive", "private", False, None),
        pytest.param("additive", "public", True, None, marks=pytest.mark.slow),
        pytest.param("gd", "private", False, None, marks=pytest.mark.slow),
        pytest.param("one-shot", "private", False, 32, marks=pytest.mark.slow),
        pytest.param("one-shot", "public", True, 0, marks=pytest.mark.slow),
    ],
)
def test_a_model_is_the_same_to_the_byte_on_one_and_on_two_threads(
    method: str, label_role: str, number: bool, bins: int | None, tmp_path: Path
) -> None:
    draw(tmp_path / "rows.parquet")
    schema = declared(label_role=label_role, number=number, bins=bins)
    (tmp_path / "rows.toml").write_text(schema)
    first, second = (trained(tmp_path, "model", method, threads) for threads in (1, 2))
    assert {"model.json"} < set(first)
    assert first == second
