"""Experts: sensitivities attacked, charges exact, and models that learn."""

from __future__ import annotations

import math
import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse
from scipy.special import expit
from sklearn.linear_model import LogisticRegression

from halfmask.accounting.budget import Budget
from halfmask.accounting.gaussian import gaussian_mu
from halfmask.accounting.ledger import MemoryLedger
from halfmask.errors import BudgetExceededError, InputError
from halfmask.mechanisms.noise import noise_source
from halfmask.mechanisms.release import Releaser
from halfmask.vertical.channel import LocalChannel, Message
from halfmask.vertical.experts import (
    PRIOR_SHARE,
    ExpertParty,
    ExpertRows,
    ExpertsConfig,
    LabelTerms,
    charge_labels,
    class_prior,
    combined_ratio,
    expert_costs,
    fixed_rule,
    noisy_newton,
    train_experts,
)
from halfmask.vertical.party import Coordinator, hide_labels

SEEDS = st.integers(0, 2**32 - 1)


class Recording:
    """Takes the place of a releaser: records exact values in units of their noise."""

    def __init__(self):
        self.values = []

    def gaussian_series(self, *, sensitivity, noise_std, count, what):
        recording, left = self.values, [count]

        class Series:
            def release(self, value):
                left[0] -= 1
                assert left[0] >= 0
                recording.append(np.asarray(value) / noise_std)
                # A fixed answer: both tables see the same transcript, as the proof conditions on.
                return np.random.default_rng(len(recording)).normal(size=value.shape) * noise_std

        return Series()


def one_hot(rng, n, groups):
    return np.hstack([np.eye(k)[rng.integers(k, size=n)] for k in groups])


@settings(max_examples=60, deadline=None)
@given(
    seed=SEEDS,
    nonnegative=st.booleans(),
    label_private=st.booleans(),
    excess=st.sampled_from([0.0, 0.6]),
)
def test_no_neighbour_moves_the_releases_further_than_was_charged(
    seed, nonnegative, label_private, excess
):
    """The whole transcript, in units of noise: its movement is the true ratio for these
    neighbours.
    """
    rng = np.random.default_rng(seed)
    rows = ExpertRows(
        row_norm=math.sqrt(2),
        nonnegative=nonnegative,
        label_private=label_private,
        target_excess=excess,
    )
    n = 8
    draw = (lambda: one_hot(rng, n, (3, 2))) if nonnegative else (lambda: rng.normal(size=(n, 5)))
    matrix, other_rows = draw(), draw()
    targets = np.where(rng.random(n) < 0.5, -excess, 1 + excess)

    def transcript(table, labels):
        recorder = Recording()
        noisy_newton(table, labels, rows=rows, ratio=0.3, releaser=recorder)
        return np.concatenate([value.ravel() for value in recorder.values])

    costs = expert_costs(rows, 0.3, ExpertsConfig())
    replaced, withheld, relabelled = matrix.copy(), matrix.copy(), targets.copy()
    replaced[0] = other_rows[0] if rng.random() < 0.5 or nonnegative else -matrix[0] * 9
    withheld[0] = 0
    relabelled[0] = 1 - targets[0]
    base = transcript(matrix, targets)

    def moved(table, labels):
        return np.linalg.norm(base - transcript(table, labels))

    assert moved(replaced, targets) <= costs.block * (1 + 1e-9)
    assert moved(withheld, targets) <= costs.withhold * (1 + 1e-9)
    assert moved(matrix, relabelled) <= costs.label * (1 + 1e-9)
    assert moved(replaced, relabelled) <= costs.person * (1 + 1e-9)
    if label_private:
        assert costs.person == pytest.approx(costs.block)


def test_charges_add_up_to_the_ratio_and_come_first():
    rng = np.random.default_rng(0)
    matrix, labels = one_hot(rng, 200, (4, 3)), (rng.random(200) < 0.4).astype(float)
    rows = ExpertRows(row_norm=math.sqrt(2), nonnegative=True, label_private=False)
    ratio = gaussian_mu(1.0, 1e-6) * (1 - 1e-9)
    ledger = MemoryLedger(epsilon=1.0, delta=1e-6, relation="replace")
    door = Releaser(ledger, noise_source(1))
    noisy_newton(matrix, labels, rows=rows, ratio=ratio, releaser=door)
    total = math.sqrt(sum(event.count * event.replace**2 for event in door.events))
    assert total == pytest.approx(ratio, rel=1e-9)
    withheld = math.sqrt(sum(event.count * event.withhold**2 for event in door.events))
    assert withheld == pytest.approx(expert_costs(rows, ratio, ExpertsConfig()).withhold, rel=1e-9)
    with pytest.raises(BudgetExceededError):
        noisy_newton(matrix, labels, rows=rows, ratio=ratio, releaser=door)


@pytest.mark.parametrize("nonnegative", [False, True])
def test_a_withheld_row_costs_half_where_the_label_is_private(nonnegative):
    rows = ExpertRows(row_norm=3.0, nonnegative=nonnegative, label_private=True)
    assert expert_costs(rows, 0.3, ExpertsConfig()).withhold == pytest.approx(0.15)


@given(
    p=st.floats(0, 1),
    share=st.floats(0, 1),
    excess=st.floats(0, 50),
    label_private=st.booleans(),
)
def test_no_slope_is_longer_than_its_bound_and_its_mean_is_right(p, share, excess, label_private):
    rows = ExpertRows(
        row_norm=1.0, nonnegative=True, label_private=label_private, target_excess=excess
    )
    weight = float(rows.slope_weights(np.array([p]))[0])
    target = -excess + share * (1 + 2 * excess)
    assert 0 < weight <= 1 + 1e-12
    assert abs(p - target) * weight <= rows.longest * (1 + 1e-12)
    # Targets of chance p, as they come: the mean slope is zero whatever the weight.
    second = (p + excess) / (1 + 2 * excess)
    mean = second * (p - 1 - excess) + (1 - second) * (p + excess)
    assert abs(mean * weight) < 1e-9 * (1 + excess)


@pytest.mark.slow
@pytest.mark.skipif("HALFMASK_DATA" not in os.environ, reason="needs the published a9a")
@pytest.mark.parametrize(("epsilon", "most"), [(1.0, 0.3300), (0.3, 0.3350)])
def test_experts_on_a9a_reach_their_bars(epsilon, most):
    from halfmask_lab.a9a import _experts, a9a_task

    found = _experts(a9a_task(None), epsilon, False, seed=0, draws=10)
    assert found["mean"] <= most


def test_an_expert_without_much_noise_is_logistic_regression(releaser):
    rng = np.random.default_rng(1)
    matrix = one_hot(rng, 6000, (4, 3))
    truth = rng.normal(size=7)
    labels = (rng.random(6000) < expit(matrix @ truth)).astype(float)
    rows = ExpertRows(row_norm=math.sqrt(2), nonnegative=True, label_private=False)
    w = noisy_newton(matrix, labels, rows=rows, ratio=300.0, releaser=releaser(epsilon=1e9))
    again = noisy_newton(
        sparse.csr_array(matrix), labels, rows=rows, ratio=300.0, releaser=releaser(epsilon=1e9)
    )
    exact = (
        LogisticRegression(C=1e4, fit_intercept=False).fit(matrix, labels).decision_function(matrix)
    )
    assert np.max(np.abs(matrix @ w - exact)) < 0.05
    assert np.allclose(w, again, atol=1e-6)


@pytest.fixture
def experts():
    """Two parties at ε = 1 and a coordinator, on 4,000 rows."""
    rng = np.random.default_rng(3)
    matrix = one_hot(rng, 4200, (4, 3, 4, 2))
    labels = (rng.random(4200) < expit(matrix @ rng.normal(size=13) * 1.5)).astype(float)
    cuts = {"a": slice(0, 7), "b": slice(7, 13)}
    rows = ExpertRows(row_norm=math.sqrt(2), nonnegative=True, label_private=False)
    parties = {
        name: ExpertParty(
            name,
            matrix[:4000, cut],
            rows=rows,
            ratio=gaussian_mu(1.0, 1e-6) * (1 - 1e-9),
            releaser=Releaser(
                MemoryLedger(epsilon=1.0, delta=1e-6, relation="replace"), noise_source(index)
            ),
        )
        for index, (name, cut) in enumerate(cuts.items())
    }
    channel = LocalChannel(parties)
    test = ([matrix[4000:, cut] for cut in cuts.values()], labels[4000:])
    return parties, Coordinator(channel, labels[:4000]), test


def log_loss(combination, parties, test):
    blocks, labels = test
    score = combination.score(
        [side.scores(block) for side, block in zip(parties.values(), blocks, strict=True)]
    )
    return np.mean(np.logaddexp(0, -(2 * labels - 1) * score))


def test_experts_learn_and_release_their_models(experts):
    parties, coordinator, test = experts
    prior = class_prior(coordinator.labels.sum(), len(coordinator.labels))
    result = train_experts(coordinator, terms=LabelTerms(prior=prior))
    constant = np.mean(np.logaddexp(0, -(2 * test[1] - 1) * math.log(prior / (1 - prior))))
    assert log_loss(result.combination, parties, test) < constant - 0.02
    assert set(result.coefficients) == {"a", "b"}
    with pytest.raises(InputError, match="trained already"):
        train_experts(coordinator, terms=LabelTerms(prior=prior))


def test_training_rows_are_never_scored(experts):
    parties, coordinator, _ = experts
    train_experts(coordinator, terms=LabelTerms(prior=0.5))
    for name in ("train", "", "test"):
        with pytest.raises(InputError, match="does not answer"):
            parties["a"].answer(
                Message(kind="expert-score", run=coordinator.run, round=2, values={"rows": name})
            )


def test_experts_learn_from_hidden_labels(experts):
    parties, coordinator, test = experts
    ledger = MemoryLedger(epsilon=3.0, delta=1e-6)
    hidden = hide_labels(
        coordinator.labels, epsilon=3.0, releaser=Releaser(ledger, noise_source(9))
    )
    for side in parties.values():
        side.known = ExpertRows(
            row_norm=math.sqrt(2),
            nonnegative=True,
            label_private=False,
            target_excess=hidden.excess,
        )
    result = train_experts(coordinator, terms=LabelTerms(prior=0.5), hidden=hidden)
    assert log_loss(result.combination, parties, test) < 0.69


def test_the_prior_of_private_labels_is_charged(experts, releaser):
    _, coordinator, _ = experts
    coordinator.labels = np.repeat([0.0, 1.0], [2800, 1200])
    spender, budget = releaser(), Budget(epsilon=1.0, delta=1e-6)
    terms = charge_labels(coordinator, spender, budget)
    assert spender.released[-1] == "class prior"
    assert spender.events[-1].replace == pytest.approx(PRIOR_SHARE * budget.mu)
    assert terms.prior_ratio == PRIOR_SHARE * budget.mu
    assert terms.prior != 0.3
    assert terms.prior == pytest.approx(0.3, abs=0.05)
    assert class_prior(1200, 4000) == 0.3
    assert class_prior(-5, 4000) == 1 / 4000  # neither class is certain
    assert class_prior(1, 1) == 0.5


def test_the_fixed_rule_counts_the_prior_once():
    """Experts that know nothing but the prior, combined, know nothing but the prior."""
    log_odds = math.log(0.2 / 0.8)
    for parties in (1, 2, 5):
        score = fixed_rule(parties, 0.2).score([np.array([log_odds])] * parties)
        assert score == pytest.approx(log_odds)


def test_two_parties_at_one_cost_a_person_more():
    from halfmask.accounting.gaussian import gaussian_epsilon

    mu = gaussian_mu(1.0, 1e-6)
    assert gaussian_epsilon(combined_ratio([mu, mu]), 1e-6) == pytest.approx(1.45, abs=0.01)


@pytest.mark.parametrize(
    "wrong", [{"steps": 1}, {"memory": 0.0}, {"memory": 1.5}, {"prior_reach": 0.0}]
)
def test_wrong_settings_are_refused(wrong):
    with pytest.raises(InputError):
        ExpertsConfig(**wrong)
