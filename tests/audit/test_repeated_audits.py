"""The promises of the audit over many repetitions, at 0.999."""

import pytest

from halfmask.audit.distinguish import distinguish
from halfmask.audit.mechanisms import MECHANISMS

DELTA = 1e-5
CONFIDENCE = 0.999
LEAST = {"gd": 0.8, "one-shot": 0.8, "full-batch": 0.8, "sgd": 0.6}
# A true claim is refuted as rarely with few runs as with many, so twenty repetitions have few.
RUNS = {1.0: 1000, 4.0: 600}
NETWORKS = ("mlp", "mlp-correction")


@pytest.mark.slow
@pytest.mark.parametrize("epsilon", [1.0, 4.0])
@pytest.mark.parametrize("name", MECHANISMS)
def test_never_above_the_claim_over_twenty_repetitions(name, epsilon):
    game = MECHANISMS[name](epsilon, DELTA, "replace")
    runs = RUNS[epsilon] // (3 if name in NETWORKS else 1)
    found = [distinguish(game, confidence=CONFIDENCE, runs=runs) for _ in range(20)]
    assert max(finding.lower_bound for finding in found) <= game.claimed
    # Guesses are better than chance, so that bounds above the claim would be seen.
    right = sum(finding.details["right_guesses"] * finding.runs for finding in found)
    assert right > 0.51 * sum(finding.runs for finding in found)


@pytest.mark.slow
@pytest.mark.parametrize("epsilon", [1.0, 4.0])
@pytest.mark.parametrize("name", LEAST)
def test_close_to_the_claim_and_not_above_it(name, epsilon):
    game = MECHANISMS[name](epsilon, DELTA, "replace")
    finding = distinguish(game, confidence=CONFIDENCE)
    assert LEAST[name] * game.claimed <= finding.lower_bound <= game.claimed
