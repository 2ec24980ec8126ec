"""The simulation that reproductions run, on a small table of the shape of a9a."""

from __future__ import annotations

import math
import os

import numpy as np
import pytest
from scipy import sparse

from halfmask.accounting.gaussian import gaussian_epsilon, gaussian_mu
from halfmask.errors import InputError
from halfmask.vertical.admm import AdmmConfig
from halfmask.vertical.experts import ExpertsConfig
from halfmask.vertical.fdml import FdmlConfig
from halfmask.vertical.files import PartyColumns, VerticalTable
from halfmask.vertical.simulation import (
    SimulationBudget,
    column_share,
    simulate_admm,
    simulate_experts,
    simulate_fdml,
)
from halfmask_lab import a9a, gisette
from halfmask_lab.results import saved
from halfmask_lab.vertical_runs import choose_rho, choose_step_size, held_out, panels


@pytest.fixture
def task():
    """Two parties with two and one categories, 3,000 rows to train and 1,000 to test."""
    rng = np.random.default_rng(2)
    blocks = [np.eye(k)[rng.integers(k, size=4000)] for k in (5, 3, 4)]
    truth = [rng.normal(size=k) for k in (5, 3, 4)]
    score = sum(block @ w for block, w in zip(blocks, truth, strict=True))
    labels = (rng.random(4000) < 1 / (1 + np.exp(-1.5 * score))).astype(float)
    first, second = np.hstack(blocks[:2]), blocks[2]
    return VerticalTable(
        columns=tuple(
            PartyColumns(
                name=name,
                train=sparse.csr_array(block[:3000]),
                test=sparse.csr_array(block[3000:]),
                row_norm=norm,
                nonnegative=True,
                column_names=(name,),
            )
            for name, block, norm in (("a", first, math.sqrt(2)), ("b", second, 1.0))
        ),
        labels=labels[:3000],
        test_labels=labels[3000:],
    )


def spent(simulation, relation="replace", delta=1e-6):
    """The ε that each party's events compose to."""
    return {
        name: gaussian_epsilon(
            math.sqrt(sum(e.count * getattr(e, relation) ** 2 for e in door.events)), delta
        )
        for name, door in simulation.releasers.items()
    }


@pytest.mark.parametrize("relation", ["replace", "withhold"])
def test_every_private_method_spends_exactly_what_was_asked_under_either_relation(task, relation):
    budget = SimulationBudget(epsilon=1.0, delta=1e-6, relation=relation, unsafe_seed=0)
    runs = [
        simulate_experts(task, budget=budget),
        simulate_experts(task, budget=budget, label_private=True),
        simulate_experts(task, ExpertsConfig(combine="aggregate"), budget=budget),
        simulate_fdml(task, FdmlConfig(epochs=1, batch=500), budget=budget),
        *(
            simulate_admm(task, AdmmConfig(rounds=2, noise=kind), budget=budget)
            for kind in ("row", "column")
        ),
    ]
    for run in runs:
        for epsilon in spent(run, relation).values():
            assert epsilon <= 1.0
            assert epsilon == pytest.approx(1.0, abs=1e-6)


def test_experts_are_near_central_training_and_admm_reaches_it(task):
    levels = a9a.baselines(task)
    admm = simulate_admm(task, AdmmConfig(noise="none"))
    assert admm.test_loss == pytest.approx(levels["central"], abs=0.001)
    budget = SimulationBudget(epsilon=1.0, delta=1e-6, unsafe_seed=1)
    experts = simulate_experts(task, budget=budget)
    assert experts.test_loss < levels["central"] + 0.05
    assert experts.costs["columns at all parties"] == pytest.approx(1.4547, abs=1e-3)
    # The label is public here, and the prior tells it exactly: no epsilon is stated for it.
    assert "label" not in experts.costs
    assert experts.costs["person"] == experts.costs["columns at all parties"]
    assert a9a.rounds_to(admm, levels["central"] + 0.001) <= 30
    assert a9a.rounds_to(admm, 0.0) is None


def test_the_epsilon_of_a_column_is_stated_and_the_smaller_one(task):
    budget = SimulationBudget(epsilon=8.0, delta=1e-6, unsafe_seed=0)
    run = simulate_admm(
        task,
        AdmmConfig(rounds=1, rho=0.1, strength=1e4, noise="column"),
        budget=budget,
    )
    # Party b has rows of norm 1: a column moves its table by half of what a replaced row does.
    half = gaussian_epsilon(gaussian_mu(8.0, 1e-6) / 2, 1e-6)
    assert run.costs["column"] == pytest.approx(half, rel=1e-6)
    assert column_share(1.0, 0.01, True) == 1.0
    assert column_share(3.0, 1e6, False) == 1.0


def test_hidden_labels_need_a_loss_that_is_linear_in_them(task):
    squared, hinge = (
        AdmmConfig(rounds=1, loss=loss, noise="none") for loss in ("squared", "hinge")
    )
    simulate_admm(task, squared, label_epsilon=1.0)
    with pytest.raises(InputError, match="hinge"):
        simulate_admm(task, hinge, label_epsilon=1.0)


def test_private_noise_needs_a_budget_and_two_classes(task):
    with pytest.raises(InputError, match="budget"):
        simulate_admm(task, AdmmConfig(noise="row"))
    with pytest.raises(InputError, match="budget"):
        simulate_fdml(task, FdmlConfig(noise="row"))
    with pytest.raises(InputError, match="two classes"):
        VerticalTable(columns=task.columns, labels=np.array([0.0, 2.0]))


def test_settings_are_chosen_on_training_rows_that_are_held_out(task):
    inner = held_out(task)
    assert len(inner.labels) + len(inner.test_labels) == len(task.labels)
    assert np.array_equal(inner.test_labels, task.labels[4::5])
    for part, whole in zip(inner.columns, task.columns, strict=True):
        assert np.array_equal(part.test.toarray(), whole.train.toarray()[4::5])
        assert part.train.shape[0] == len(inner.labels)
    unseen = VerticalTable(
        columns=task.columns, labels=task.labels, test_labels=1 - task.test_labels
    )
    for tuned in (task, unseen):
        admm = AdmmConfig(rounds=5, strength=1.0, noise="none")
        rho = choose_rho(tuned, (1e-4, 0.1, 1e4), admm)
        sgd = FdmlConfig(epochs=2, strength=1.0, noise="none")
        step = choose_step_size(tuned, (1e-4, 0.5), sgd)
        assert (rho.value, step.value) == (0.1, 0.5)
        assert rho.losses["0.1"] == min(rho.losses.values())
        assert set(rho.to_json()["held_out_log_loss"]) == {"0.0001", "0.1", "10000"}


def test_figures_are_drawn(task, tmp_path):
    history = simulate_admm(task, AdmmConfig(rounds=3, noise="none")).history
    levels = {"central": 0.5, "local": 0.6}
    curves = {"curves": {"admm": history}, "noisy": {"n": history}}
    path = saved(tmp_path / "x.png", lambda: panels(title="t", **curves, levels=levels))
    assert path is not None
    assert (tmp_path / "x.png").stat().st_size > 10_000
    assert saved(None, lambda: panels(title="t", **curves, levels=levels)) is None


if os.environ.get("HALFMASK_DATA"):

    @pytest.mark.slow
    def test_a9a_meets_its_numbers():
        task = a9a.a9a_task(None)
        admm = simulate_admm(task, AdmmConfig(rho=a9a.RHO, rounds=a9a.ROUNDS, noise="none"))
        assert admm.test_loss < 0.325
        losses = [
            simulate_experts(
                task, budget=SimulationBudget(epsilon=1.0, delta=1e-6, unsafe_seed=seed)
            ).test_loss
            for seed in range(5)
        ]
        assert np.mean(losses) < 0.333

    @pytest.mark.slow
    def test_gisette_has_the_split_of_a():
        task, what = gisette.gisette_task(None)
        assert [part.train.shape for part in task.columns] == [
            (6000, 2000),
            (6000, 2000),
            (6000, 1000),
        ]
        assert what == "real" or what.startswith("stand-in: gisette-rebuilt")
