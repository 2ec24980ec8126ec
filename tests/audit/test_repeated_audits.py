"""The promises of the audit over many repetitions, at 0.999."""

import pytest

from halfmask.audit.distinguish import distinguish
from halfmask.audit.mechanisms import MECHANISMS

DELTA = 1e-5
TIGHT = ("gd", "one-shot", "full-batch")
SAMPLED = ("sgd",)


@pytest.mark.slow
@pytest.mark.parametrize("epsilon", [1.0, 4.0])
@pytest.mark.parametrize("name", MECHANISMS)
def test_never_above_the_claim_over_twenty_repetitions(name, epsilon):
    game = MECHANISMS[name](epsilon, DELTA, "replace")
    for _ in range(20):
        finding = distinguish(game, confidence=0.999, runs=200)
        assert finding.lower_bound <= game.claimed


@pytest.mark.slow
@pytest.mark.parametrize("epsilon", [1.0, 4.0])
@pytest.mark.parametrize(("name", "least"), [(n, 0.8) for n in TIGHT] + [(n, 0.6) for n in SAMPLED])
def test_close_enough_to_the_claim(name, least, epsilon):
    game = MECHANISMS[name](epsilon, DELTA, "replace")
    finding = distinguish(game, confidence=0.95)
    assert least * game.claimed <= finding.lower_bound
