"""A training is one charge: its whole plan fits and is trained, or it costs nothing."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from halfmask.accounting.accountant import epsilon as account
from halfmask.accounting.budget import Budget
from halfmask.accounting.events import Event, GaussianEvent
from halfmask.accounting.ledger import Ledger, MemoryLedger
from halfmask.cli import main
from halfmask.errors import AccountingError, BudgetExceededError
from halfmask.mechanisms.noise import noise_source
from halfmask.mechanisms.release import PrivateStep, Releaser, Sensitivity, WeighedRows
from halfmask.schema import Schema
from halfmask.table import Encoder, Table, read_frame
from halfmask.training import train

SCHEMA = """
[label]
name = "sick"
role = "{label}"
classes = ["no", "yes"]

[columns.age]
role = "{age}"
kind = "number"
bounds = [0, 100]

[columns.dose]
role = "{dose}"
kind = "number"
bounds = [0, 10]
"""
try:
    from halfmask.neural.config import CorrectionConfig, StepsConfig
except ModuleNotFoundError:
    CorrectionConfig = StepsConfig = dict  # type: ignore[assignment,misc]
# Roles by case, and the method: with public columns `gd` releases twice.
CASES = {
    "gd": ("gd", "private", "private", "private"),
    "gd-public": ("gd", "private", "public", "private"),
    "gd-public-label": ("gd", "public", "public", "private"),
    "one-shot": ("one-shot", "private", "public", "private"),
    "sgd": ("sgd", "private", "public", "private"),
    "dp-sgd": ("dp-sgd", "private", "public", "private"),
    "label-span": ("label-span", "private", "public", "public"),
    "mlp": ("mlp", "public", "public", "private"),
    "mlp-private-label": ("mlp", "private", "private", "private"),
}
OPTIONS: dict[str, list[dict[str, Any]]] = {
    "label-span": [{}, {"passes": 3}, {"passes": 2, "order": "uniform"}],
    "mlp": [
        {"warm_start": StepsConfig(steps=4)},
        {"release_share": 0.9, "correction": CorrectionConfig(steps=2)},
        {"recipe": "algorithm-1", "padding": "class-means", "steps": 3},
        {"recipe": "algorithm-1", "padding": "means", "steps": 3},
        {"recipe": "algorithm-1", "padding": "zero", "steps": 3},
        {"recipe": "dp-sgd", "steps": 3},
    ],
    "mlp-private-label": [
        {"network": StepsConfig(steps=3)},
        {"recipe": "algorithm-1", "padding": "zero", "steps": 3},
    ],
}
RUNS = [(case, options) for case in CASES for options in OPTIONS.get(case, [{}])]


def people(folder: Path, case: str, rows: int = 300) -> Path:
    rng = np.random.default_rng(0)
    age, dose = rng.integers(0, 100, rows), rng.uniform(0, 10, rows).round(2)
    sick = np.where(dose + age / 20 + rng.normal(0, 1, rows) > 7.5, "yes", "no")
    lines = [f"{a},{d},{s}" for a, d, s in zip(age, dose, sick, strict=True)]
    (folder / "people.csv").write_text("\n".join(["age,dose,sick", *lines]) + "\n")
    _, label, first, second = CASES[case]
    (folder / "people.toml").write_text(SCHEMA.format(label=label, age=first, dose=second))
    return folder


def table_of(folder: Path, case: str) -> Table:
    frame = read_frame(people(folder, case) / "people.csv")
    return Encoder.fit(Schema.from_toml(folder / "people.toml"), frame).encode(frame)


class Counted(MemoryLedger):
    """A ledger that counts how often it is charged."""

    charges = 0

    def charge(self, events: Sequence[Event], what: str, **marks: Any) -> int:
        self.charges += 1
        return super().charge(events, what, **marks)


def fit(table: Table, case: str, options: dict[str, Any], ledger: Any, epsilon: float = 1.0) -> Any:
    return train(
        table,
        Budget(epsilon=epsilon, delta=1e-6),
        method=CASES[case][0],
        noise=noise_source(),
        ledger=ledger,
        options=options,
    )


@pytest.mark.parametrize(("case", "options"), RUNS, ids=str)
def test_every_method_charges_its_whole_plan_once(
    tmp_path: Path, case: str, options: dict[str, Any]
) -> None:
    ledger = Counted(epsilon=1.0, delta=1e-6)
    model = fit(table_of(tmp_path, case), case, options, ledger)
    assert ledger.charges == 1
    assert model.privacy.events == ledger.events()
    assert 0.9 < model.privacy.epsilon <= 1.0


@pytest.mark.parametrize(("case", "options"), RUNS, ids=str)
def test_what_does_not_fit_costs_nothing(
    tmp_path: Path, case: str, options: dict[str, Any]
) -> None:
    """The budget has room for all but a hundredth of the plan."""
    ledger = MemoryLedger(epsilon=1.0, delta=1e-6)
    ledger.charge([GaussianEvent(replace=0.02, withhold=0.01)], "an earlier training")
    before = ledger.events()
    with pytest.raises(BudgetExceededError):
        fit(table_of(tmp_path, case), case, options, ledger, epsilon=0.9999)
    assert ledger.events() == before


@pytest.mark.parametrize(("case", "options"), RUNS, ids=str)
def test_a_training_that_ends_before_its_first_release_costs_nothing(
    tmp_path: Path, case: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = MemoryLedger(epsilon=1.0, delta=1e-6)

    def stop(*given: object, **named: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Releaser, "pay", stop)
    with pytest.raises(KeyboardInterrupt):
        fit(table_of(tmp_path, case), case, options, ledger)
    assert ledger.events() == ()


SENSITIVITY = Sensitivity.of_clipped_sum(1.0)


def open_series(releaser: Releaser, noise_std: float = 30.0) -> Any:
    return releaser.gaussian_series(
        sensitivity=SENSITIVITY, noise_std=noise_std, count=1, what="a sum"
    )


def test_a_plan_is_one_entry_written_before_the_first_noise(ledger: Ledger) -> None:
    class Watched:
        secure, description = True, "watched"

        def normal(self, size: int) -> np.ndarray:
            assert len(ledger.entries()) == 1
            return np.zeros(size)

        uniform = normal

    releaser = Releaser(ledger, Watched(), whole_plan=True)
    first, second = open_series(releaser), open_series(releaser)
    step = PrivateStep(
        releaser,
        rows=4,
        rate=0.5,
        clip_norm=1.0,
        noise_multiplier=60.0,
        steps=2,
        what="steps",
    )
    assert ledger.entries() == ()
    first.release(np.zeros(2))
    (entry,) = ledger.entries()
    assert entry.events == releaser.events
    assert entry.what == "a sum (2 times); steps"
    second.release(np.zeros(2))

    class Nothing(WeighedRows):
        def norms(self, rows: Any) -> Any:
            assert len(ledger.entries()) == 1
            return np.zeros(len(rows))

        def weighted_sum(self, rows: Any, weights: Any) -> Any:
            return np.zeros(2)

    step.release(Nothing())
    assert len(ledger.entries()) == 1


def test_what_was_not_in_the_plan_is_not_released_after_its_first_release(ledger: Ledger) -> None:
    releaser = Releaser(ledger, noise_source(), whole_plan=True)
    open_series(releaser).release(np.zeros(2))
    with pytest.raises(AccountingError, match="whole plan"):
        open_series(releaser)
    with pytest.raises(AccountingError, match="whole plan"):
        releaser.open(GaussianEvent(replace=0.01, withhold=0.01), "one more")
    assert len(ledger.entries()) == 1


def test_a_plan_is_refused_while_it_is_made_if_there_is_no_room_for_it(ledger: Ledger) -> None:
    releaser = Releaser(ledger, noise_source(), whole_plan=True)
    open_series(releaser)
    with pytest.raises(BudgetExceededError):
        open_series(releaser, noise_std=1.0)
    assert ledger.entries() == ()


def test_a_plan_whose_room_was_taken_meanwhile_releases_nothing(ledger: Ledger) -> None:
    releaser = Releaser(ledger, noise_source(), whole_plan=True)
    series = [open_series(releaser, 12.0) for _ in range(2)]
    ledger.charge([GaussianEvent(replace=0.2, withhold=0.1)], "another process was faster")
    for one in series:
        with pytest.raises(BudgetExceededError):
            one.release(np.zeros(2))
    assert releaser.events == ()
    assert len(ledger.entries()) == 1


# --- real processes


def price(folder: Path, case: str) -> tuple[Event, ...]:
    """What one training of the case charges, by training once beside the ledger."""
    method = CASES[case][0]
    run = CliRunner().invoke(
        main,
        [
            *("train", str(folder / "people.csv"), "--schema", str(folder / "people.toml")),
            *("--epsilon", "1", "--method", method, "--out", str(folder / "alone")),
        ],
    )
    assert run.exit_code == 0, run.output
    return Ledger.open(folder / "alone" / "ledger.jsonl").events()


def race(folder: Path, case: str, processes: int, room_for: int) -> None:
    people(folder, case)
    events = price(folder, case)
    budget = account([*events] * room_for, delta=1e-6, relation="replace") * 1.001
    file = folder / "budget.jsonl"
    Ledger.create(file, epsilon=budget, delta=1e-6, relation="replace")
    command = [
        *(sys.executable, "-c", "from halfmask.cli import main; main()", "train"),
        *(str(folder / "people.csv"), "--schema", str(folder / "people.toml"), "--json"),
        *("--epsilon", "1", "--method", CASES[case][0], "--ledger", str(file), "--out"),
    ]
    children = [
        subprocess.Popen(
            [*command, str(folder / f"model{number}")],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in range(processes)
    ]
    ends = [(child.communicate(timeout=300), child.returncode) for child in children]
    codes = sorted(code for _, code in ends)
    assert codes == [0] * room_for + [3] * (processes - room_for), [err for (_, err), _ in ends]
    book = Ledger.open(file)
    assert len(book.entries()) == room_for
    assert all(entry.events == events for entry in book.entries())
    for number, ((out, err), code) in enumerate(ends):
        finished = (folder / f"model{number}" / "model.json").exists()
        assert finished == (code == 0)
        if code == 3:
            assert "nothing was released" in " ".join((out + err).split())
            assert not (folder / f"model{number}").exists()


@pytest.mark.parametrize("case", ["gd-public"])
def test_concurrent_trainings_fit_or_cost_nothing(tmp_path: Path, case: str) -> None:
    race(tmp_path, case, processes=3, room_for=2)


@pytest.mark.slow
@pytest.mark.parametrize("case", ["gd", "gd-public", "one-shot", "sgd"])
def test_of_eight_trainings_on_a_budget_for_three_exactly_three_finish(
    tmp_path: Path, case: str
) -> None:
    race(tmp_path, case, processes=8, room_for=3)
