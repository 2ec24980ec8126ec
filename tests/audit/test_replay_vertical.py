"""Parties and the label holder, replayed on neighbours: no statistics, so a failure is a leak."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from replays import PLAIN, STRANGE, assert_noise_is_as_large_as_said

from halfmask.accounting.gaussian import gaussian_epsilon, gaussian_mu
from halfmask.accounting.ledger import MemoryLedger
from halfmask.audit import ReplayError, Transcript
from halfmask.audit.transcript import Recorder, Replayer
from halfmask.mechanisms import release
from halfmask.mechanisms.noise import add_gaussian, noise_source
from halfmask.schema import Column, Label, Schema
from halfmask.vertical import admm_party, experts
from halfmask.vertical import experts as aggregate
from halfmask.vertical import experts as newton
from halfmask.vertical import fdml as fdml_module
from halfmask.vertical.admm import AdmmConfig
from halfmask.vertical.experts import ExpertsConfig
from halfmask.vertical.fdml import FdmlConfig
from halfmask.vertical.files import PartyColumns, VerticalTable, read_vertical_table
from halfmask.vertical.simulation import (
    SimulationBudget,
    simulate_admm,
    simulate_experts,
    simulate_fdml,
)

DELTA = 1e-6
Releasers = dict[int, Transcript]


@dataclass(frozen=True, kw_only=True)
class Watched(SimulationBudget):
    """A budget whose releasers record, or replay what was recorded of the same parties."""

    told: Mapping[int, Transcript] | None = None
    opened: dict[int, Recorder] = field(default_factory=dict)

    def releaser(self, ledger: Any, index: int) -> Recorder:
        if self.told is None:
            made = Recorder(ledger, noise_source(), whole_plan=True)
        else:
            made = Replayer(self.told[index], ledger, noise_source(), whole_plan=True)
        self.opened[index] = made
        return made


@dataclass(frozen=True, kw_only=True)
class Run:
    """A simulation, what each door released, and the ledger of the label holder."""

    releasers: Releasers
    costs: Mapping[str, float]
    rule: tuple[str, ...]
    combination: Any
    labels: MemoryLedger


Simulate = Callable[[VerticalTable, SimulationBudget], Any]


def run_of(
    simulate: Simulate,
    task: VerticalTable,
    relation: str = "replace",
    told: Releasers | None = None,
) -> Run:
    labels = MemoryLedger(epsilon=1e6, delta=DELTA)
    budget = Watched(epsilon=1.0, delta=DELTA, relation=relation, told=told, label_ledger=labels)  # type: ignore[arg-type]
    found = simulate(task, budget)
    releasers = {index: door.transcript() for index, door in budget.opened.items()}
    return Run(
        releasers=releasers,
        costs=found.costs,
        rule=found.notes,
        combination=found.combination,
        labels=labels,
    )


def moved(told: Run, again: Run, index: int) -> float:
    """How far a door's releases are apart in all, each being within its own charge."""
    first, second = told.releasers[index], again.releasers[index]
    assert len(first.releases) == len(second.releases)
    moves = first.moves(second)
    assert np.isfinite(moves).all()
    for each, move in zip(first.releases, moves, strict=True):
        assert move <= each.mu, f"{each.what!r} moved by {move}, {each.mu} was charged"
    return float(np.linalg.norm(moves))


def assert_only_party(told: Run, again: Run, *, party: int = 0) -> float:
    """The party stays within its charge and nobody else's releases move; the share it reached."""
    for index, door in told.releasers.items():
        if any(math.isnan(each.noise_std) for each in door.releases):
            pairs = zip(door.releases, again.releasers[index].releases, strict=True)
            assert all(np.array_equal(one.value, two.value) for one, two in pairs)
            continue
        assert_noise_is_as_large_as_said(door)
        if index != party:
            assert moved(told, again, index) == 0, f"door {index} moved with another's columns"
    mu = told.releasers[party].mu
    assert mu is not None
    assert mu <= gaussian_mu(1.0, DELTA)
    reached = moved(told, again, party)
    # A batch that lacks the row does not move, so that fdml's epochs each count a row once.
    assert reached <= mu * (1 + 1e-12), f"moved by {reached} in all, {mu} was charged"
    return reached / mu


BLOCKS = st.sampled_from(["levels", "numbers", "wild"])


def a_block(kind: str, rows: int, rng: np.random.Generator) -> np.ndarray:
    """Rows of two one-hot columns, of numbers, or of whatever a careless encoder might hand on."""
    if kind == "levels":
        return np.hstack([np.eye(k)[rng.integers(k, size=rows)] for k in (3, 2)])
    if kind == "numbers":
        return rng.normal(size=(rows, 3)) * rng.choice([0.1, 1.0, 30.0], size=(rows, 1))
    cells = [0.0, 1.0, -1.0, 1e308, -1e308, 5e-324, math.nan, math.inf]
    return rng.choice(cells, size=(rows, 3))


@st.composite
def tasks(draw: st.DrawFn) -> tuple[VerticalTable, np.random.Generator, str]:
    """Two parties with columns of some kind, and labels."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    rows, kind = draw(st.integers(3, 12)), draw(BLOCKS)
    labels = rng.integers(0, 2, rows).astype(float)
    labels[:2] = 0.0, 1.0
    parts = tuple(
        PartyColumns(
            name=name,
            train=a_block(kind, rows, rng),
            row_norm=math.sqrt(2),
            nonnegative=kind == "levels",
        )
        for name in ("one", "two")
    )
    return VerticalTable(columns=parts, labels=labels), rng, kind


def with_row(task: VerticalTable, row: int, cells: np.ndarray, *, party: int = 0) -> VerticalTable:
    """The task with another row of one party's columns."""
    block = task.columns[party].train.copy()
    block[row] = cells
    parts = list(task.columns)
    parts[party] = replace(parts[party], train=block)
    return replace(task, columns=tuple(parts))


def neighbour(
    task: VerticalTable, rng: np.random.Generator, kind: str, relation: str
) -> VerticalTable:
    """One row of the first party's columns is another one, or zero."""
    row = int(rng.integers(len(task.labels)))
    block = task.columns[0].train
    options = [a_block(kind, 1, rng)[0], block[rng.integers(len(block))]]
    if kind != "levels":
        options.append(-block[row])
    cells = options[rng.integers(len(options))] if relation == "replace" else 0 * block[0]
    return with_row(task, row, np.zeros_like(cells) if relation == "withhold" else cells)


def admm(noise: str, *, hidden: bool = False, rounds: int = 3) -> Simulate:
    return lambda task, budget: simulate_admm(
        task,
        AdmmConfig(rounds=rounds, rho=0.5, strength=1.0, noise=noise),  # type: ignore[arg-type]
        budget=budget,
        label_epsilon=1.0 if hidden else None,
    )


def fdml(task: VerticalTable, budget: SimulationBudget) -> Any:
    return simulate_fdml(task, FdmlConfig(epochs=2, batch=4, step_size=1.0), budget=budget)


def expert(labels: str, *, aggregate: bool = False) -> Simulate:
    return lambda task, budget: simulate_experts(
        task,
        ExpertsConfig(steps=4, combine="aggregate" if aggregate else "fixed"),
        budget=budget,
        label_private=labels == "private",
        label_epsilon=1.0 if labels == "hidden" else None,
    )


CASES: dict[str, Simulate] = {
    "admm-row": admm("row"),
    "admm-column": admm("column"),
    "admm-row-hidden": admm("row", hidden=True),
    "fdml": fdml,
    "experts-public": expert("public"),
    "experts-private": expert("private"),
    "experts-hidden": expert("hidden"),
    "experts-aggregate": expert("private", aggregate=True),
    "experts-hidden-aggregate": expert("hidden", aggregate=True),
}
EXAMPLES = 20


def over(strategy: Any, examples: int, check: Callable[[Any], object]) -> None:
    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    @given(strategy)
    def each(drawn: Any) -> None:
        with np.errstate(all="ignore"):
            check(drawn)

    each()


def check_party(name: str, relation: str) -> Callable[[Any], float]:
    def check(drawn: tuple[VerticalTable, np.random.Generator, str]) -> float:
        task, rng, kind = drawn
        simulate = CASES[name]
        told = run_of(simulate, task, relation)
        again = run_of(simulate, neighbour(task, rng, kind, relation), relation, told.releasers)
        assert told.rule == again.rule
        return assert_only_party(told, again)

    return check


@pytest.mark.parametrize("relation", ["replace", "withhold"])
@pytest.mark.parametrize("name", CASES)
def test_no_neighbour_moves_a_party_beyond_its_charge(name: str, relation: str) -> None:
    over(tasks(), EXAMPLES, check_party(name, relation))


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_many_replays_never_move_a_party_beyond_its_charge(name: str) -> None:
    over(tasks(), 3 * EXAMPLES, check_party(name, "replace"))


@pytest.mark.parametrize("aggregate", [False, True])
def test_no_label_moves_all_that_is_told_of_it_beyond_the_label_holders_charge(
    aggregate: bool,
) -> None:
    """Every party's model, its counts and the prior together, against the label holder's ledger."""
    simulate = expert("private", aggregate=aggregate)

    def check(drawn: tuple[VerticalTable, np.random.Generator, str]) -> None:
        task, rng, _ = drawn
        labels = task.labels.copy()
        row = int(rng.integers(len(labels)))
        labels[row] = 1 - labels[row]
        told = run_of(simulate, task)
        again = run_of(simulate, replace(task, labels=labels), told=told.releasers)
        charged = math.sqrt(sum(each.replace**2 for each in told.labels.events()))
        reached = math.hypot(*(moved(told, again, index) for index in told.releasers))
        assert reached <= charged
        assert gaussian_epsilon(charged, DELTA) <= told.costs["label"] * (1 + 1e-9)

    over(tasks(), 30, check)


@pytest.mark.parametrize("labels", ["public", "private", "hidden"])
@pytest.mark.parametrize("aggregate", [False, True])
def test_no_cost_is_stated_of_a_label_that_the_rule_tells_exactly(
    labels: str, aggregate: bool
) -> None:
    """With all noisy values as they were, another label may not change the model."""
    simulate = expert(labels, aggregate=aggregate)

    def check(drawn: tuple[VerticalTable, np.random.Generator, str]) -> None:
        task, rng, _ = drawn
        changed = task.labels.copy()
        row = int(rng.integers(len(changed)))
        changed[row] = 1 - changed[row]
        told = run_of(simulate, task)
        again = run_of(simulate, replace(task, labels=changed), told=told.releasers)
        if "label" in told.costs or told.costs["person"] > told.costs["columns at all parties"]:
            assert told.combination == again.combination

    over(tasks(), 10, check)


@pytest.mark.parametrize("relation", ["replace", "withhold"])
@pytest.mark.parametrize("name", CASES)
def test_no_person_replaced_at_all_parties_exceeds_the_cost_that_is_stated(
    name: str, relation: str
) -> None:
    """By the events that were charged: budgets for withheld rows have less noise."""
    task = VerticalTable(
        columns=tuple(
            PartyColumns(
                name=each,
                train=np.eye(3)[np.arange(12) % 3],
                row_norm=1.0,
                nonnegative=True,
            )
            for each in ("one", "two")
        ),
        labels=np.arange(12) % 2.0,
    )
    told = run_of(CASES[name], task, relation)
    events = [event for party in (0, 1) for event in told.releasers[party].events]
    replaced = math.sqrt(sum(event.count * event.replace**2 for event in events))
    assert gaussian_epsilon(replaced, DELTA) <= told.costs["person"] * (1 + 1e-9)


@pytest.mark.parametrize("labels", ["public", "private"])
def test_no_person_moves_all_parties_beyond_the_cost_that_is_stated(labels: str) -> None:
    simulate = expert(labels, aggregate=True)

    def check(drawn: tuple[VerticalTable, np.random.Generator, str]) -> None:
        task, rng, kind = drawn
        row = int(rng.integers(len(task.labels)))
        other = task
        for party in (0, 1):
            other = with_row(other, row, a_block(kind, 1, rng)[0], party=party)
        name = "columns at all parties"
        if labels == "private":
            changed = task.labels.copy()
            changed[row], name = 1 - changed[row], "person"
            other = replace(other, labels=changed)
        told = run_of(simulate, task)
        again = run_of(simulate, other, told=told.releasers)
        reached = math.hypot(*(moved(told, again, index) for index in told.releasers))
        assert reached <= gaussian_mu(told.costs[name], DELTA) * (1 + 1e-9)

    over(tasks(), 30, check)


def test_a_hidden_label_shows_in_its_own_answer_alone() -> None:
    simulate = expert("hidden")

    def check(drawn: tuple[VerticalTable, np.random.Generator, str]) -> None:
        task, rng, _ = drawn
        labels = task.labels.copy()
        row = int(rng.integers(len(labels)))
        labels[row] = 1 - labels[row]
        told = run_of(simulate, task)
        again = run_of(simulate, replace(task, labels=labels), told=told.releasers)
        (answers,), (others,) = told.releasers[2].releases, again.releasers[2].releases
        assert np.flatnonzero(answers.value != others.value).tolist() == [row]
        assert [event.epsilon for event in told.releasers[2].events] == [1.0]
        assert moved(told, again, 0) == moved(told, again, 1) == 0

    over(tasks(), 20, check)


SCHEMA = Schema(
    Label("y", "private", classes=("no", "yes")),
    (
        Column("age", "private", "number", bounds=(0, 100), bins=4, party="bank"),
        Column("kind", "private", "category", categories=("a", "b", "c"), party="bank"),
        Column("day", "private", "date", bounds=("2000-01-01", "2020-12-31"), party="shop"),
        Column("flag", "private", "bool", party="shop"),
    ),
)


def test_a_cell_in_a_partys_file_moves_nothing_but_its_own_row(tmp_path: Path) -> None:
    """Files with malformed and missing cells, read and encoded as a party reads them."""
    names = {"bank": ["age", "kind"], "shop": ["day", "flag"]}

    def cell(name: str, rng: np.random.Generator) -> str:
        cells = [*PLAIN[name], *STRANGE[name]]
        if name == "flag":
            cells = [*PLAIN[name], None, "", "true", "FALSE"]
        found = cells[rng.integers(len(cells))]
        return "" if found is None else str(found).replace("\0", "")

    def task_of(columns: dict[str, list[str]]) -> VerticalTable:
        for party, own in {**names, "labels": ["y"]}.items():
            part = {name: columns[name] for name in ("id", *own)}
            pa_csv.write_csv(pa.table(part), tmp_path / f"{party}.csv")
        return read_vertical_table(
            SCHEMA,
            id_column="id",
            label_file=tmp_path / "labels.csv",
            party_files={party: tmp_path / f"{party}.csv" for party in names},
        )

    def check(seed: int) -> None:
        rng = np.random.default_rng(seed)
        rows = int(rng.integers(3, 9))
        columns = {
            name: [cell(name, rng) for _ in range(rows)] for own in names.values() for name in own
        }
        columns["id"] = [f"p{row}" for row in range(rows)]
        columns["y"] = ["no", "yes", *rng.choice(["no", "yes"], rows - 2).tolist()]
        other = {name: list(cells) for name, cells in columns.items()}
        row = int(rng.integers(rows))
        for name in names["bank"]:
            other[name][row] = cell(name, rng)
        for name in ("experts-private", "fdml", "admm-row"):
            told = run_of(CASES[name], task_of(columns))
            again = run_of(CASES[name], task_of(other), told=told.releasers)
            assert_only_party(told, again)

    over(st.integers(0, 2**32 - 1), 25, check)


# Broken on purpose: each mistake is found.


def corner() -> tuple[VerticalTable, VerticalTable]:
    """A row of the first party goes from one end to the other, its label staying."""
    block = np.zeros((40, 8))
    block[:, 0] = np.tile([1.0, 1.0, -1.0, 1.0], 10)
    parts = tuple(
        PartyColumns(name=name, train=block, row_norm=1.0, nonnegative=False)
        for name in ("one", "two")
    )
    task = VerticalTable(columns=parts, labels=np.tile([0.0, 1.0, 0.0, 1.0], 10))
    return task, with_row(task, 0, -block[0])


def found(name: str) -> bool:
    """Whether some of twenty replays of the corner shows that more leaves than was charged for."""
    task, other = corner()
    for _ in range(20):
        told = run_of(CASES[name], task)
        try:
            assert_only_party(told, run_of(CASES[name], other, told=told.releasers))
        except (AssertionError, ReplayError):
            return True
    return False


@pytest.mark.parametrize("name", ["fdml", "experts-private", "experts-aggregate", "admm-column"])
def test_half_the_noise_of_a_party_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not found(name)
    monkeypatch.setattr(
        release, "add_gaussian", lambda value, std, source: add_gaussian(value, std / 2, source)
    )
    assert found(name)


@pytest.mark.parametrize("what", ["scores", "gradients"])
def test_a_bound_for_batches_that_forgets_the_other_end_is_found(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = fdml_module.FdmlParty._open

    def halved(self: Any, name: str, bound: float, releaser: Any) -> Any:
        return real(self, name, bound / 2 if name == what else bound, releaser)

    monkeypatch.setattr(fdml_module.FdmlParty, "_open", halved)
    # Coefficients that take scores from end to end.
    monkeypatch.setattr(
        fdml_module.FdmlParty, "_exact_scores", lambda self, rows: 1e3 * self.matrix[rows, 0]
    )
    assert found("fdml")


def test_counts_that_forget_the_second_bin_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    real = aggregate.count_sensitivity

    def smaller(excess: float) -> release.Sensitivity:
        bound = real(excess).replace / math.sqrt(2)
        return release.Sensitivity(replace=bound, withhold=bound)

    monkeypatch.setattr(experts, "count_sensitivity", smaller)
    assert found("experts-aggregate")


def test_a_bound_for_shares_that_forgets_the_rows_own_part_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = admm_party.column_sensitivity

    def halved(**known: Any) -> Any:
        bound = real(**known)
        return replace(bound, replace=bound.replace / 8)

    monkeypatch.setattr(admm_party, "column_sensitivity", halved)
    assert found("admm-column")


def test_gradients_that_forget_the_label_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        newton.ExpertRows, "gradient_replace", property(lambda self: 0.7 * self.row_norm)
    )
    assert found("experts-private")
