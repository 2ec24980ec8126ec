"""Every method under a seed gives the numbers that it gave before.

For gd, sgd, dp-sgd and one-shot those are of the time when every table was still made into blocks
of float64 before a fit: three projections of the coefficients and the sum of the intercepts. For
the others they are three projections of the predictions, for vertical methods the losses.
`python tests/methods/test_golden_fits.py` prints what the fits give now; those of `additive` need
the two settings of the processor that `tests/conftest.py` makes.
"""

from __future__ import annotations

import json
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as csv
import pytest
from click.testing import CliRunner

from halfmask.accounting.budget import Budget
from halfmask.cli import main
from halfmask.mechanisms.noise import noise_source
from halfmask.model import LinearModel, Model
from halfmask.schema import Schema
from halfmask.table import Encoder, Table
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

PREDICTED = [
    *(
        ("additive", roles, label, more)
        for roles in ROLES
        for label, more in (
            ("two", ""),
            ("three", ""),
            ("cost", "number"),
            ("two", "unit"),
            ("two", "number skip"),
        )
        if not (roles == "features" and "skip" in more)
    ),
    *(("label-span", "label", label, "") for label in ("two", "three")),
    *(("mlp", roles, "two", "") for roles in ROLES),
    ("algorithm-1", "half", "two", ""),
    ("network-dp-sgd", "half", "two", ""),
]
VERTICAL = [("vertical", "experts", role, "") for role in ("public", "private")] + [
    ("vertical", "admm", "public", ""),
    ("vertical", "fdml-sgd", "public", ""),
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


def trained(method: str, roles: str, label: str, more: str) -> tuple[Model, Table]:
    frame = people()
    encoder = Encoder.fit(schema(roles, label, more), frame)
    table = encoder.encode(frame)
    options: dict[str, Any] = {"steps": 60} if method in ("sgd", "dp-sgd") else {}
    if method in ("algorithm-1", "network-dp-sgd"):
        method, options = "mlp", {"recipe": method.removeprefix("network-"), "steps": 30}
    model = train(
        table,
        Budget(epsilon=2.0, delta=1e-6),
        method=method,
        noise=noise_source(5),
        options=options,
    )
    return model, table


def fitted(method: str, roles: str, label: str, more: str) -> list[float]:
    model, _ = trained(method, roles, label, more)
    assert isinstance(model, LinearModel)
    coef = model.fit.coef
    directions = np.random.default_rng(0).normal(size=(3, coef.size))
    return [*(directions @ coef.ravel()).tolist(), float(model.fit.intercept.sum())]


def predicted(method: str, roles: str, label: str, more: str) -> list[float]:
    model, table = trained(method, roles, label, more)
    values = np.ravel(model.predict(table) if label == "cost" else model.probabilities(table))
    directions = np.random.default_rng(0).normal(size=(3, values.size)) / np.sqrt(values.size)
    return [float(each) for each in directions @ values]


def simulated(method: str, role: str, folder: Path) -> list[float]:
    """Losses of `vertical simulate`: one party holds a to c, the other d to f."""
    frame = people().drop_columns(["id"]).append_column("id", pa.array(np.arange(ROWS)))
    parties = {"left": "abc", "right": "def"}
    toml = f'[label]\nname = "two"\nrole = "{role}"\nclasses = ["no", "yes"]\n'
    for party, names in parties.items():
        for name in names:
            levels = ["u", "v"] if name == "c" else ["s", "t"]
            kind = (
                f'kind = "category"\ncategories = {levels}'
                if name in "cf"
                else 'kind = "number"\nbounds = [-4, 4]'
            )
            toml += f'[columns.{name}]\nrole = "private"\nparty = "{party}"\n{kind}\n'
        csv.write_csv(frame.select(["id", *names]), folder / f"{party}.csv")
    (folder / "schema.toml").write_text(toml.replace("'", '"'))
    csv.write_csv(frame.select(["id", "two"]), folder / "labels.csv")
    rounds = [] if method == "experts" else ["--rounds", "3"]
    found = CliRunner().invoke(
        main,
        ["vertical", "simulate", "--schema", str(folder / "schema.toml"), "--id", "id"]
        + ["--label", str(folder / "labels.csv"), "--method", method, "--epsilon", "2", *rounds]
        + [w for each in parties for w in ("--party", f"{each}={folder / each}.csv")]
        + ["--unsafe-seed", "3", "--json"],
        catch_exceptions=False,
    )
    assert found.exit_code == 0, found.output
    result = json.loads(found.stdout)
    return [float(result["train_loss"])]


def name_of(case: tuple[str, ...]) -> str:
    return "/".join(case)


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_a_fit_gives_the_numbers_it_gave_on_dense_blocks(case: tuple[str, ...]) -> None:
    expected = json.loads(GOLDEN.read_text())[name_of(case)]
    np.testing.assert_allclose(fitted(*case), expected, rtol=1e-9, atol=1e-9)


def not_as_recorded() -> str:
    """Which of the libraries that compute eigenvectors are not those of constraints.txt."""
    pinned = (Path(__file__).parents[2] / "constraints.txt").read_text(encoding="utf-8").split()
    here = [f"{name}=={version(name)}" for name in ("numpy", "scipy", "scikit-learn")]
    return ", ".join(each for each in here if each not in pinned)


def quick(case: tuple[str, ...]) -> bool:
    """Those of each kind that are also in the fast set."""
    method, roles, label, more = case
    return roles == "half" or (method == "additive" and label != "three" and more in ("", "number"))


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, marks=() if quick(case) else pytest.mark.slow) for case in PREDICTED],
    ids=name_of,
)
def test_a_fit_predicts_what_it_predicted_before(case: tuple[str, ...]) -> None:
    if case[0] == "additive" and (other := not_as_recorded()):
        # Eigenvectors of other versions point elsewhere, and noise is drawn along them: under the
        # same seed another, equally distributed draw is added.
        pytest.skip(f"recorded with the versions of constraints.txt, not with {other}")
    expected = json.loads(GOLDEN.read_text())[name_of(case)]
    # Networks are float32: another processor's products differ in their last digits.
    network = case[0] in ("mlp", "algorithm-1", "network-dp-sgd")
    bar = 1e-4 if network else 1e-9
    np.testing.assert_allclose(predicted(*case), expected, rtol=bar, atol=bar)


@pytest.mark.parametrize("case", VERTICAL, ids=name_of)
def test_parties_reach_the_loss_they_reached_before(case: tuple[str, ...], tmp_path: Path) -> None:
    expected = json.loads(GOLDEN.read_text())[name_of(case)]
    np.testing.assert_allclose(simulated(case[1], case[2], tmp_path), expected, rtol=1e-9)


def everything() -> dict[str, list[float]]:
    found = {name_of(case): fitted(*case) for case in CASES}
    found |= {name_of(case): predicted(*case) for case in PREDICTED}
    for case in VERTICAL:
        with TemporaryDirectory() as folder:
            found[name_of(case)] = simulated(case[1], case[2], Path(folder))
    return found


if __name__ == "__main__":
    print(json.dumps(everything(), indent=1))
