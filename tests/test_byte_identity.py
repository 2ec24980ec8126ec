"""Two tables that differ in one private value, same noisy releases: all else is the same bytes.

The second training is handed the noisy values of the first one (as in halfmask.audit.transcript).
Whatever is stored or printed then follows from releases and public values, or it is a leak.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner

from halfmask import HalfmaskClassifier, HalfmaskRegressor
from halfmask import training as training_module
from halfmask.audit import record, replay
from halfmask.audit.transcript import Recorder, Replayer
from halfmask.cli import main
from halfmask.methods import additive
from halfmask.report.covered import covered_scores
from halfmask.schema import Schema

ROWS = 700
ROLES = {
    "all": (("age", "pay", "kind"), "private"),
    "half": (("pay", "kind"), "private"),
    "features": (("pay", "kind"), "public"),
    "label": ((), "private"),
}
DECLARED = {
    "age": {"kind": "number", "bounds": [0, 100]},
    "pay": {"kind": "number", "bounds": [0, 9000]},
    "kind": {"kind": "category", "categories": ["a", "b", "c"]},
}
FAR = {"age": 99.5, "pay": 8999.0, "kind": "c"}


def people(seed: int = 1) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    age, pay = rng.uniform(18, 90, ROWS).round(2), rng.exponential(2000.0, ROWS).clip(0, 9000)
    kind = rng.choice(["a", "b", "c"], ROWS)
    score = 0.05 * (age - 50) + (kind == "a") + 1.2 * (pay > 3000) - 1.0
    frame = pd.DataFrame({"age": age, "pay": pay.round(1), "kind": kind})
    frame["sick"] = np.where(rng.random(ROWS) < 1 / (1 + np.exp(-score)), "yes", "no")
    frame["cost"] = (score + rng.normal(size=ROWS)).clip(-8, 8).round(3)
    frame["id"] = [f"p{row // 3}" for row in range(ROWS)]
    return frame


def schema(roles: str, *, number: bool, unit: bool) -> dict[str, Any]:
    private, label = ROLES[roles]
    target: dict[str, Any] = {"name": "cost", "bounds": [-8, 8]}
    if not number:
        target = {"name": "sick", "classes": ["no", "yes"]}
    columns = {
        name: {"role": "private" if name in private else "public", **each}
        for name, each in DECLARED.items()
    }
    declared: dict[str, Any] = {"label": {"role": label, **target}, "columns": columns}
    if unit:
        declared["unit"] = {"column": "id", "max_rows": 3}
    return declared


def neighbour(frame: pd.DataFrame, roles: str, *, row: int = 4) -> Iterator[pd.DataFrame]:
    """The same rows but for one private value of one row, each in turn."""
    private, label = ROLES[roles]
    changes: dict[str, Any] = {name: FAR[name] for name in private}
    if label == "private":
        changes |= {"sick": "no" if frame.loc[row, "sick"] == "yes" else "yes", "cost": 7.9}
    for name, value in changes.items():
        other = frame.copy()
        other.loc[row, name] = value
        yield other


@contextmanager
def releasers(monkeypatch: pytest.MonkeyPatch, door: Any) -> Iterator[list[Any]]:
    """The command line trains through `door`, as an audit does; what it made is kept."""
    made: list[Any] = []
    real = training_module.train

    def opened(*given: Any, **named: Any) -> Any:
        made.append(door(*given, **named))
        return made[-1]

    with monkeypatch.context() as patched:
        patched.setattr(
            training_module,
            "train",
            lambda *given, **named: real(*given, **named, make_releaser=opened),
        )
        yield made


class Told:
    """What a replay needs of a transcript."""

    def __init__(self, recorder: Recorder) -> None:
        self.releases, self.events = tuple(recorder.releases), recorder.events
        self.released, self.relation = recorder.released, recorder.relation
        self.paddings = tuple(recorder.paddings)


@pytest.mark.parametrize(
    "roles",
    # Each of several trainings with a public label fits a free model.
    [pytest.param(role, marks=[pytest.mark.slow] * (role == "features")) for role in ROLES],
)
@pytest.mark.parametrize("number", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("unit", "form"), [(False, ()), pytest.param(True, ("--json",), marks=pytest.mark.slow)]
)
def test_all_that_train_stores_and_prints_is_the_same_to_the_byte(
    roles: str,
    number: bool,
    unit: bool,
    form: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    frame = people()
    toml = tmp_path / "rows.toml"
    toml.write_text(Schema.from_dict(schema(roles, number=number, unit=unit)).to_toml())
    told, first = trained(frame, toml, tmp_path / "first", Recorder, monkeypatch, form)
    door = partial(Replayer, Told(told))
    moved = 0.0
    for place, other in enumerate(neighbour(frame, roles)):
        again, second = trained(other, toml, tmp_path / str(place), door, monkeypatch, form)
        assert second == first
        pairs = zip(told.releases, again.releases, strict=True)
        moved += sum(float(np.abs(one.value - two.value).sum()) for one, two in pairs)
    assert moved > 0, "no neighbour changed anything: the test would see no leak"


def trained(
    frame: pd.DataFrame,
    toml: Path,
    place: Path,
    door: Any,
    monkeypatch: pytest.MonkeyPatch,
    form: tuple[str, ...] = (),
) -> tuple[Recorder, dict[str, bytes]]:
    """Train by the command line; every byte it wrote and printed, under names without the place."""
    place.mkdir()
    data = place / "rows.csv"
    frame.to_csv(data, index=False)
    found: dict[str, bytes] = {}
    with releasers(monkeypatch, door) as made:
        asked = ["train", str(data), "--schema", str(toml), "--epsilon", "8", "--delta", "1e-6"]
        done = CliRunner().invoke(main, [*asked, *form, "--out", str(place / "model")])
    assert done.exit_code == 0, done.output
    found["stdout"], found["stderr"] = _without(done.stdout, place), _without(done.stderr, place)
    for file in sorted((place / "model").iterdir()):
        content = file.read_bytes()
        # The ledger holds times, a random id, and a chain of hashes over them.
        found[file.name] = _charges(content) if file.name.startswith("ledger") else content
    report = CliRunner().invoke(
        main, ["report", str(place / "model"), "--format", "json", "--out", str(place / "r.json")]
    )
    assert report.exit_code == 0, report.output
    facts = json.loads((place / "r.json").read_text())
    facts["written"] = ""
    for charge in facts["budget"]["charges"]:
        charge["time"] = ""
    found["report"] = json.dumps(facts).encode()
    return made[0], found


def _without(text: str, place: Path) -> bytes:
    """Printed text without the names of this run's folder and the seconds it took."""
    lines = text.replace(str(place), "").splitlines()
    lines = [line for line in lines if " s)." not in line and '"seconds"' not in line]
    return "\n".join(lines).encode()


def _charges(content: bytes) -> bytes:
    entries = [json.loads(line) for line in content.decode().splitlines()]
    kept = [
        {
            name: value
            for name, value in each.items()
            if name not in ("time", "created", "id", "hash", "previous")
        }
        for each in entries
    ]
    return json.dumps(kept).encode()


@pytest.mark.parametrize(
    "roles", [pytest.param(role, marks=[pytest.mark.slow] * (role == "features")) for role in ROLES]
)
@pytest.mark.parametrize("number", [False, True])
def test_uneven_weights_leave_no_trace_in_the_last_digit(roles: str, number: bool) -> None:
    """Sums of weights that are no whole numbers depend on their order, which must be public."""
    frame = people(2)
    kind = HalfmaskRegressor if number else HalfmaskClassifier
    declared = Schema.from_dict(schema(roles, number=number, unit=False))
    estimator = kind(declared, epsilon=8.0, method="additive")
    weights = np.random.default_rng(3).exponential(size=ROWS)
    told = record(estimator, frame, sample_weight=weights)
    for other in neighbour(frame, roles, row=int(weights.argmax())):
        assert told.same_model(replay(estimator, other, told, sample_weight=weights))


LEAKS = {
    "an exact score": lambda self, fit: {
        "loss": float(np.sum(fit._target * fit._columns[1].codes))
    },
    "a sum": lambda self, fit: {"rows": int(fit._columns[1].codes.astype(int).sum())},
}


@pytest.mark.parametrize("leak", LEAKS)
def test_a_detail_that_passed_no_noise_is_seen(
    leak: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = additive.AdditiveRun.run

    def leaking(self: Any) -> Any:
        fit = real(self)
        self.details |= LEAKS[leak](None, self)
        return fit

    monkeypatch.setattr(additive.AdditiveRun, "run", leaking)
    frame = people()
    toml = tmp_path / "rows.toml"
    toml.write_text(Schema.from_dict(schema("all", number=False, unit=False)).to_toml())
    told, first = trained(frame, toml, tmp_path / "first", Recorder, monkeypatch)
    door = partial(Replayer, Told(told))
    different = []
    for place, other in enumerate(neighbour(frame, "all")):
        _, second = trained(other, toml, tmp_path / str(place), door, monkeypatch)
        different.append(second != first)
    assert any(different)


def test_covered_scores_follow_from_releases_alone() -> None:
    frame = people()
    estimator = HalfmaskClassifier(
        Schema.from_dict(schema("all", number=False, unit=False)), epsilon=8.0
    )
    told = record(estimator, frame)
    other = next(neighbour(frame, "all"))
    first, second = (each.model.model_.details for each in (told, replay(estimator, other, told)))
    assert covered_scores(first) is not None
    assert covered_scores(first) == covered_scores(second)
