"""SGD over distributed features: it learns, and its row guarantee holds against the coordinator."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from halfmask.accounting.gaussian import gaussian_epsilon, gaussian_mu
from halfmask.accounting.ledger import MemoryLedger
from halfmask.errors import BudgetExceededError, InputError
from halfmask.mechanisms.noise import noise_source
from halfmask.mechanisms.release import PaidRows, Releaser, Sensitivity
from halfmask.vertical.admm import admm_loss
from halfmask.vertical.channel import LocalChannel, Message
from halfmask.vertical.fdml import FdmlConfig, FdmlNoise, FdmlParty, run_fdml
from halfmask.vertical.simulation import SimulationBudget


def channel_of(parties):
    return LocalChannel(parties)


def test_without_noise_it_descends(columns):
    matrix, labels = columns
    parties = {
        name: FdmlParty(name, matrix[:, cut], strength=1.0)
        for name, cut in (("a", slice(0, 6)), ("b", slice(6, 12)))
    }

    def watch(epoch):
        scores = sum(side.matrix @ side.x for side in parties.values())
        return {"loss": float(admm_loss("logistic").value(scores, labels).mean())}

    history = run_fdml(
        channel_of(parties), labels, FdmlConfig(epochs=15, batch=32, noise="none"), watch=watch
    )
    assert history[-1]["loss"] < 0.6 * math.log(2)
    assert history[-1]["loss"] < history[0]["loss"]


def test_row_noise_charges_each_row_once_an_epoch(columns, releaser):
    matrix, labels = columns
    door = releaser()
    noise = FdmlNoise(kind="row", epochs=3, ratio=2.0)
    party = FdmlParty("a", matrix, strength=1.0, noise=noise, releaser=door)
    total = sum(event.count * event.replace**2 for event in door.events)
    assert total == pytest.approx(2.0**2)
    config = FdmlConfig(epochs=3, batch=50, noise="none")
    run_fdml(channel_of({"a": party}), labels, config)
    step = {"slopes": np.ones(1)}
    for kind, more in (("fdml-scores", {}), ("fdml-step", step)):
        request = Message(
            kind=kind,
            run=party._run,
            round=99,
            arrays={"rows": np.array([0]), **more},
            values={"step_size": 0.1},
        )
        with pytest.raises(InputError, match="more often"):
            party.answer(request)


@settings(max_examples=50, deadline=None)
@given(
    count=st.integers(1, 4),
    batches=st.lists(st.sets(st.integers(0, 5), min_size=1), max_size=30),
)
def test_no_sequence_of_batches_gets_more_of_a_row_than_was_charged(count, batches):
    """Whatever is asked, each row enters at most the releases whose events are in the ledger."""
    ledger = MemoryLedger(epsilon=1e6, delta=1e-6)
    door = PaidRows(
        Releaser(ledger, noise_source(0)),
        rows=6,
        sensitivity=Sensitivity(replace=2.0, withhold=1.0),
        noise_std=4.0,
        count=count,
        what="test",
    )
    (event,) = ledger.events()
    assert (event.count, event.replace, event.withhold) == (count, 0.5, 0.25)
    entered = np.zeros(6, int)

    def statistic(rows):
        entered[rows] += 1
        return np.ones(1)

    for batch in batches:
        rows = np.array(sorted(batch))
        allowed = np.all(entered[rows] < count)
        if allowed:
            door.release(rows, statistic)
        else:
            before = entered.copy()
            with pytest.raises(InputError, match="more often"):
                door.release(rows, statistic)
            assert np.array_equal(entered, before)
    assert entered.max(initial=0) <= event.count


def test_what_the_budget_refuses_is_never_released(columns):
    """Half the budget that two doors need: the second is refused, and there is no party."""
    ledger = MemoryLedger(epsilon=gaussian_epsilon(1.5, 1e-6), delta=1e-6)
    noise = FdmlNoise(kind="row", epochs=3, ratio=2.0)
    door = Releaser(ledger, noise_source(0), whole_plan=True)
    with pytest.raises(BudgetExceededError):
        FdmlParty("a", columns[0], strength=1.0, noise=noise, releaser=door)
    assert ledger.events() == ()


def test_scores_and_steps_of_a_simulation_are_one_charge(columns):
    """Half of what one party needs is left in its ledger: nothing is charged to it."""
    mu = gaussian_mu(1.0, 1e-6)
    ledger = MemoryLedger(epsilon=gaussian_epsilon(0.9 * mu, 1e-6), delta=1e-6)
    budget = SimulationBudget(epsilon=1.0, delta=1e-6, ledgers={"a": ledger})
    door = budget.of_parties(["a"])["a"]
    noise = FdmlNoise(kind="row", epochs=3, ratio=budget.mu)
    with pytest.raises(BudgetExceededError):
        FdmlParty("a", columns[0], strength=1.0, noise=noise, releaser=door)
    assert ledger.events() == ()


@pytest.mark.parametrize("rows", [[0, 0], [-1], [300], [0.5], [[1]]])
def test_batches_name_rows_of_the_table_once(columns, rows):
    party = FdmlParty("a", columns[0], strength=1.0)
    request = Message(kind="fdml-scores", run="x", round=1, arrays={"rows": np.array(rows)})
    with pytest.raises(InputError, match="each once"):
        party.answer(request)


class Watching:
    """In the place of a door: keeps the exact statistic and the bound that is charged for it."""

    def __init__(self, seen, bound):
        self.seen, self.bound = seen, bound

    def release(self, rows, statistic):
        self.seen.append((statistic(rows), self.bound))
        return self.seen[-1][0]


def test_one_row_moves_scores_and_gradient_at_most_as_charged(columns, releaser):
    """Same transcript, one row replaced: exact values differ by at most the charged sensitivity."""
    matrix, _ = columns
    noise = FdmlNoise(kind="row", epochs=5, ratio=1.0, row_norm=1.0, score_bound=0.5)
    other = matrix.copy()
    other[0] = -50 * matrix[0]
    seen = []
    for table in (matrix, other):
        party = FdmlParty("a", table, strength=1.0, noise=noise, releaser=releaser())
        party.x = np.full(12, 3.0)
        for which, bound in (("_score_door", 0.5), ("_step_door", 1.0)):
            setattr(party, which, Watching(seen, bound))
        rows = np.arange(40)
        party.answer(Message(kind="fdml-scores", run="x", round=1, arrays={"rows": rows}))
        party.answer(
            Message(
                kind="fdml-step",
                run="x",
                round=1,
                arrays={"rows": rows, "slopes": np.full(40, 77.0)},
                values={"step_size": 0.1},
            )
        )
    for (one, bound), (two, _) in zip(seen[:2], seen[2:], strict=True):
        assert np.linalg.norm(one - two) <= 2 * bound * (1 + 1e-12)
        assert np.linalg.norm(one - two) > 0


def test_as_written_noise_needs_a_source_and_has_no_charge(columns, releaser):
    matrix, labels = columns
    noise = FdmlNoise(kind="as-written", std=0.1)
    with pytest.raises(InputError):
        FdmlParty("a", matrix, strength=1.0, noise=noise)
    door = Releaser(MemoryLedger(epsilon=1.0, delta=1e-6), noise_source(0))
    party = FdmlParty("a", matrix, strength=1.0, noise=noise, releaser=door)
    run_fdml(channel_of({"a": party}), labels, FdmlConfig(epochs=1, batch=100, noise="none"))
    assert np.any(party.x)


def test_wrong_settings_are_refused(columns, releaser):
    with pytest.raises(InputError):
        FdmlNoise(kind="scores")
    noise = FdmlNoise(kind="row", ratio=0.0)
    with pytest.raises(InputError):
        FdmlParty("a", columns[0], strength=1.0, noise=noise, releaser=releaser())
