"""Linear methods under a seed give the numbers that they gave on dense blocks of features.

The golden numbers are those of commit 628071f, when every table was still made into blocks of
float64 before a fit: three projections of the coefficients and the sum of the intercepts.
`python tests/methods/test_golden_fits.py` prints what the fits give now.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from halfmask.accounting.budget import Budget
from halfmask.mechanisms.noise import noise_source
from halfmask.model import LinearModel
from halfmask.schema import Schema
from halfmask.table import Encoder
from halfmask.training import train

GOLDEN = Path(__file__).with_name("golden_fits.json")
ROWS = 3000
ROLES = {
    "all": ("abcdef", "private"),
    "half": ("def", "private"),
    "features": ("def", "public"),
    "label": ("", "private"),
}
LABELS: dict[str, dict[str, Any]] = {
    "two": {"name": "two", "classes": ["no", "yes"]},
    "three": {"name": "three", "classes": ["p", "q", "r"]},
    "cost": {"name": "cost", "bounds": [-6, 6]},
}
CASES = [
    (method, roles, label, more)
    for method in ("gd", "sgd", "dp-sgd", "one-shot")
    for roles in ROLES
    for label, more in (
        ("two", ""),
        ("three", ""),
        ("cost", "number"),
        ("two", "unit"),
        ("two", "number skip"),
    )
    if not (roles == "features" and "skip" in more)
]


def people() -> pa.Table:
    rng = np.random.default_rng(11)
    cells: dict[str, Any] = {name: rng.normal(size=ROWS) for name in "abde"}
    cells["a"][rng.random(ROWS) < 0.1] = np.nan
    cells["d"][rng.random(ROWS) < 0.1] = np.nan
    score = np.nansum([cells["a"], -cells["b"], cells["d"], 0.5 * cells["e"]], axis=0)
    cells["c"] = rng.choice(["u", "v", "w"], ROWS)
    cells["f"] = rng.choice(["s", "t"], ROWS)
    score = score + (cells["c"] == "u") - (cells["f"] == "s")
    drawn = score + rng.logistic(size=ROWS)
    cells["two"] = np.where(drawn > 0, "yes", "no")
    cells["three"] = np.array(["p", "q", "r"])[np.digitize(drawn, [-1, 1.5])]
    cells["cost"] = drawn
    cells["id"] = [f"p{row // 3 if row % 2 else row}" for row in range(ROWS)]
    for name in LABELS:
        lacking = np.array([str(each) for each in cells[name]], dtype=object)
        lacking[rng.random(ROWS) < 0.1] = None
        cells[f"{name}-lacking"] = lacking
    return pa.table(cells)


def schema(roles: str, label: str, more: str) -> Schema:
    private, role = ROLES[roles]
    target = {"role": role, **LABELS[label]}
    if "skip" in more:
        target |= {"name": f"{label}-lacking", "missing": "skip"}
    columns: dict[str, Any] = {}
    for name in "abcdef":
        kind: dict[str, Any] = {"kind": "number", "bounds": [-4, 4]}
        if name in "cf":
            levels = ["u", "v"] if name == "c" else ["s", "t"]
            kind = {"kind": "category", "categories": levels}
        elif name in "ae" and "number" in more:
            kind["bins"] = 0
        columns[name] = {"role": "private" if name in private else "public", **kind}
    declared: dict[str, Any] = {"label": target, "columns": columns}
    if "unit" in more:
        declared["unit"] = {"column": "id", "max_rows": 3}
    return Schema.from_dict(declared)


def fitted(method: str, roles: str, label: str, more: str) -> list[float]:
    frame = people()
    encoder = Encoder.fit(schema(roles, label, more), frame)
    options = {"steps": 60} if method in ("sgd", "dp-sgd") else {}
    model = train(
        encoder.encode(frame),
        Budget(epsilon=2.0, delta=1e-6),
        method=method,
        noise=noise_source(5),
        options=options,
    )
    assert isinstance(model, LinearModel)
    coef = model.fit.coef
    directions = np.random.default_rng(0).normal(size=(3, coef.size))
    return [*(directions @ coef.ravel()).tolist(), float(model.fit.intercept.sum())]


def name_of(case: tuple[str, ...]) -> str:
    return "/".join(case)


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_a_fit_gives_the_numbers_it_gave_on_dense_blocks(case: tuple[str, ...]) -> None:
    expected = json.loads(GOLDEN.read_text())[name_of(case)]
    np.testing.assert_allclose(fitted(*case), expected, rtol=1e-9, atol=1e-9)


if __name__ == "__main__":
    print(json.dumps({name_of(case): fitted(*case) for case in CASES}, indent=1))
