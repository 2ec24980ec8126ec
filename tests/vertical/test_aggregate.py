"""Combination by DP counts: sensitivity attacked, charges exact, and weights that make sense."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import expit

from halfmask.accounting.gaussian import gaussian_mu
from halfmask.accounting.ledger import MemoryLedger
from halfmask.errors import BudgetExceededError, InputError
from halfmask.mechanisms.noise import noise_source
from halfmask.mechanisms.release import Releaser
from halfmask.vertical.channel import LocalChannel, PartyError
from halfmask.vertical.experts import (
    BINS,
    COUNTS_SHARE,
    ExpertParty,
    ExpertRows,
    ExpertsConfig,
    LabelTerms,
    count_costs,
    count_scores,
    count_sensitivity,
    fixed_rule,
    recalibrated,
    rule_from_counts,
    train_experts,
)
from halfmask.vertical.party import Coordinator

SCORES = st.one_of(
    st.floats(allow_nan=True, allow_infinity=True), st.sampled_from([-4.0, -3.5, 0.0, 3.5, 4.0])
)


@settings(max_examples=300, deadline=None)
@given(
    scores=st.lists(SCORES, min_size=2, max_size=6),
    other=SCORES,
    excess=st.sampled_from([0.0, 0.2, 3.0]),
    seed=st.integers(0, 1000),
)
def test_no_row_moves_the_counts_further_than_was_charged(scores, other, excess, seed):
    """Scores of any kind, targets anywhere in their range: each change against its own ratio."""
    rng = np.random.default_rng(seed)
    table = np.array(scores)
    ends = np.array([-excess, 1 + excess])
    targets = np.where(rng.random(len(table)) < 0.7, rng.choice(ends, len(table)), 0.5)
    bound, costs = count_sensitivity(excess), count_costs(1.0, excess)
    replaced, withheld, relabelled = table.copy(), table.copy(), targets.copy()
    replaced[0], withheld[0], relabelled[0] = other, 0.0, 1 - targets[0]
    base = count_scores(table, targets)
    assert base.sum() == pytest.approx(len(table))

    def moved(values, labels):
        return np.linalg.norm(base - count_scores(values, labels))

    slack = 1 + 1e-12
    assert moved(replaced, targets) <= bound.replace * slack
    assert moved(withheld, targets) <= bound.withhold * slack
    assert moved(table, relabelled) <= bound.replace * costs.label * slack
    assert moved(replaced, relabelled) <= bound.replace * costs.person * slack


@pytest.mark.parametrize("excess", [0.0, 0.7])
def test_the_bound_is_reached(excess):
    targets = np.array([1 + excess])
    gap = count_scores(np.array([-4.0]), targets) - count_scores(np.array([4.0]), targets)
    assert np.linalg.norm(gap) == pytest.approx(count_sensitivity(excess).replace)


def counts_of(scores, rng):
    return count_scores(scores, (rng.random(len(scores)) < expit(scores)).astype(float))


def test_a_calibrated_expert_is_left_as_it_is_and_an_empty_one_is_ignored():
    rng = np.random.default_rng(0)
    good = counts_of(rng.normal(-1, 1.2, 40_000), rng)
    intercept, slope, gain = recalibrated(good)
    assert slope == pytest.approx(1.0, abs=0.05)
    assert intercept == pytest.approx(0.0, abs=0.08)
    assert gain > 0.05
    ones = rng.random(40_000) < 0.3
    empty = count_scores(rng.normal(0, 1.2, 40_000), ones.astype(float))
    assert recalibrated(empty)[1] < 0.05
    for order in ((good, empty), (empty, good)):
        weights = rule_from_counts(order, 0.3, 0.7).weights
        assert sorted(weights)[0] < 0.05
        assert sorted(weights)[1] == pytest.approx(1.0, abs=0.05)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**31), size=st.sampled_from([0.0, 1.0, 1e3, 1e9]))
def test_any_noise_gives_finite_weights_that_are_never_negative(seed, size):
    noise = np.random.default_rng(seed).normal(size=(3, 2, BINS)) * size
    rule = rule_from_counts(list(noise), 0.2, 0.7)
    assert np.all(np.isfinite(rule.weights))
    assert min(rule.weights) >= 0
    assert math.isfinite(rule.intercept)


def experts(share, ratio=None, epsilon=1.0, relation="replace", columns=(4, 3)):
    """A party whose columns say nothing first, a telling one second."""
    rng = np.random.default_rng(3)
    blocks = [np.eye(k)[rng.integers(k, size=6000)] for k in columns]
    chance = expit(blocks[1] @ np.array([-2.5, 0.5, 2.0]))
    labels = (rng.random(6000) < chance).astype(float)
    rows = ExpertRows(row_norm=1.0, nonnegative=True, label_private=False)
    ledgers = [MemoryLedger(epsilon=epsilon, delta=1e-6, relation=relation) for _ in blocks]
    parties = {
        name: ExpertParty(
            name,
            block,
            rows=rows,
            ratio=ratio or gaussian_mu(epsilon, 1e-6) * (1 - 1e-9),
            releaser=Releaser(ledger, noise_source(index)),
            aggregate_share=share,
            config=ExpertsConfig(),
        )
        for index, (name, block, ledger) in enumerate(zip("ab", blocks, ledgers, strict=True))
    }
    channel = LocalChannel(parties)
    return parties, Coordinator(channel, labels), ledgers, blocks


def test_model_and_counts_together_cost_what_was_asked():
    parties, coordinator, ledgers, _ = experts(COUNTS_SHARE)
    result = train_experts(coordinator, terms=LabelTerms(prior=0.5), aggregate=True)
    assert "DP aggregate" in result.combination.rule
    for side, ledger in zip(parties.values(), ledgers, strict=True):
        assert ledger.spent() == pytest.approx(1.0, abs=1e-6)
        counts, model = ledger.events()
        assert counts.count == 1
        squares = {
            name: model.count * getattr(model, name) ** 2 + getattr(counts, name) ** 2
            for name in ("replace", "withhold")
        }
        assert math.sqrt(squares["replace"]) == pytest.approx(side.costs.block)
        assert math.sqrt(squares["withhold"]) == pytest.approx(side.costs.withhold)


def test_counts_that_cannot_be_paid_for_are_not_released():
    mu = gaussian_mu(1.0, 1e-6)
    _, coordinator, ledgers, _ = experts(COUNTS_SHARE, ratio=mu * 1.02)
    with pytest.raises(BudgetExceededError):
        train_experts(coordinator, terms=LabelTerms(prior=0.5), aggregate=True)
    assert len(ledgers[0].events()) == 1


def test_the_aggregate_finds_the_expert_that_knows_something():
    """The fixed rule takes the first party in full, whatever it knows; the aggregate does not."""
    parties, coordinator, _, blocks = experts(COUNTS_SHARE)
    prior = float(coordinator.labels.mean())
    found = train_experts(coordinator, terms=LabelTerms(prior=prior), aggregate=True)
    scores = [side.scores(block) for side, block in zip(parties.values(), blocks, strict=True)]

    def loss(rule):
        return np.mean(np.logaddexp(0, -coordinator.signed * rule.score(scores)))

    assert found.combination.weights[1] > 0.8
    assert found.combination.weights[0] < 0.5
    assert loss(found.combination) < loss(fixed_rule(2, prior)) - 0.003


def test_parties_that_count_nothing_are_named():
    _, coordinator, *_ = experts(0.0)
    with pytest.raises(PartyError, match="'a' sent no 'counts'"):
        train_experts(coordinator, terms=LabelTerms(prior=0.5), aggregate=True)
    with pytest.raises(InputError, match="aggregate_share"):
        experts(1.0)


def test_one_party_alone_is_only_recalibrated():
    rng = np.random.default_rng(1)
    rule = rule_from_counts([counts_of(rng.normal(0, 1.5, 20_000), rng)], 0.5, 0.7)
    assert rule.weights[0] == pytest.approx(1.0, abs=0.1)
