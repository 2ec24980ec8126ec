"""The promises of the audit over many repetitions, at 0.999."""

import pytest

from halfmask.accounting.budget import Budget
from halfmask.audit.distinguish import distinguish
from halfmask.audit.mechanisms import MECHANISMS

DELTA = 1e-5
CONFIDENCE = 0.999
# A true claim is refuted as rarely with few runs as with many, so twenty repetitions have few.
RUNS = {1.0: 1000, 4.0: 600}
# Dozens of adaptive steps a run, and as many to replay it: at the larger epsilon alone.
ADAPTIVE = ("additive", "additive-descent", "additive-pair_descent")
# A fit for each run; those below are variants of `sgd`, for which fewer repeated runs do.
SAMPLED = ("sgd", "label", "mlp", "sgd-public", "sgd-units")
FEWER = ("mlp", "sgd-public", "sgd-units")
# By hand: minutes each. Their figures are in docs/audit.md.
BY_HAND = (*ADAPTIVE, "mlp")


def repeated():
    for name in MECHANISMS:
        for epsilon, runs in RUNS.items():
            if name in ADAPTIVE:
                if epsilon > 1:
                    yield name, epsilon, 110
            else:
                yield name, epsilon, runs // (3 if name in FEWER else 1)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "epsilon", "runs"), list(repeated()))
def test_never_above_the_claim_over_twenty_repetitions(name, epsilon, runs):
    game = MECHANISMS[name](Budget(epsilon=epsilon, delta=DELTA))
    found = [distinguish(game, confidence=CONFIDENCE, runs=runs) for _ in range(20)]
    assert max(finding.lower_bound for finding in found) <= game.claimed
    # Guesses are better than chance, so that bounds above the claim would be seen.
    right = sum(finding.details["right_guesses"] * finding.runs for finding in found)
    assert right > 0.51 * sum(finding.runs for finding in found)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "epsilon"),
    [
        (name, epsilon)
        for name in MECHANISMS
        for epsilon in RUNS
        if name not in BY_HAND and (epsilon > 1 or name == "sgd" or name not in SAMPLED)
    ],
)
def test_close_to_the_claim_and_not_above_it(name, epsilon):
    game = MECHANISMS[name](Budget(epsilon=epsilon, delta=DELTA))
    finding = distinguish(game, confidence=CONFIDENCE)
    least = 0.6 if name in SAMPLED else 0.8
    assert least * game.claimed <= finding.lower_bound <= game.claimed
