"""Rows, a schema and commands for reports, with names that try to break out of a page."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
from click.testing import CliRunner, Result

from halfmask.cli import main

SCRIPT = "<script>alert(1)</script>"
HOSTILE = (SCRIPT, "</script><img src=x>", "$x^2$ & \"q\" 'a'", "|`*_[a](b)")


@dataclass(frozen=True)
class Trained:
    """A model folder and the files it came from."""

    folder: Path
    data: Path
    schema: Path


def run(*arguments: object, code: int = 0) -> Result:
    """A command of the product, in this process."""
    result = CliRunner().invoke(main, [str(argument) for argument in arguments])
    assert result.exit_code == code, f"exit {result.exit_code}: {result.output}"
    return result


def write_rows(path: Path, rows: int = 400, seed: int = 3) -> None:
    """Rows whose label follows from two of four columns; two classes with hostile names."""
    rng = np.random.default_rng(seed)
    first, second = rng.uniform(0, 10, rows), rng.choice(["a", "b"], rows)
    label = np.where(first + 3 * (second == "b") + rng.normal(0, 2, rows) > 6, "<b>yes</b>", "no")
    columns = [first, second, rng.uniform(-1, 1, rows), rng.choice(["u", "v"], rows)]
    table = pa.table(dict(zip(HOSTILE, columns, strict=True)) | {"label": label})
    pyarrow.csv.write_csv(table, path)


SCHEMA = "\n".join(
    [
        '[label]\nname = "label"\nrole = "private"\nclasses = ["no", "<b>yes</b>"]',
        f'[columns.{json.dumps(HOSTILE[0])}]\nrole = "public"\nkind = "number"',
        f'[columns.{json.dumps(HOSTILE[1])}]\nrole = "private"\nkind = "category"',
        'categories = ["a", "b"]',
        f'[columns.{json.dumps(HOSTILE[2])}]\nrole = "private"\nkind = "number"\nbounds = [-1, 1]',
        f'[columns.{json.dumps(HOSTILE[3])}]\nrole = "public"\nkind = "category"',
    ]
)
