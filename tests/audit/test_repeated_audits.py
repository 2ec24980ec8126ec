"""The promises of the audit over many repetitions, at 0.999."""

import pytest

from halfmask.audit.distinguish import distinguish
from halfmask.audit.mechanisms import MECHANISMS

DELTA = 1e-5
CONFIDENCE = 0.999
# A true claim is refuted as rarely with few runs as with many, so twenty repetitions have few.
RUNS = {1.0: 1000, 4.0: 600}
NETWORKS = ("mlp", "mlp-correction")
# Forty adaptive steps a run, and another forty to replay it: at the larger epsilon alone.
ADAPTIVE = ("additive", "additive-descent")
SAMPLED = ("sgd", "label", "sgd-public", "sgd-units")
# By hand: minutes each. Their figures are in docs/audit.md.
BY_HAND = (*NETWORKS, *ADAPTIVE, "experts", "expert-labels")
# Of several numbers of which no two rows move all: their games reach less.
PARTLY = ("additive-comparison", "additive-covered")
AT_BOTH = ("gd", "one-shot", "full-batch", "sgd")
# Variants of other games, and stages of a method: fewer runs do.
VARIANTS = (
    *(
        "gd-public-label",
        "gd-lecture",
        "sgd-public",
        "units",
        "sgd-units",
        "label-span",
        "fdml",
        "counts",
    ),
    *("expert-labels", "randomised-response"),
)


def repeated():
    for name in MECHANISMS:
        for epsilon, runs in RUNS.items():
            if name in ADAPTIVE:
                if epsilon > 1:
                    yield name, epsilon, 110
            elif name in VARIANTS or name.startswith("additive"):
                yield name, epsilon, runs // 3
            else:
                yield name, epsilon, runs // (3 if name in NETWORKS else 1)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "epsilon", "runs"), list(repeated()))
def test_never_above_the_claim_over_twenty_repetitions(name, epsilon, runs):
    game = MECHANISMS[name](epsilon, DELTA, "replace")
    found = [distinguish(game, confidence=CONFIDENCE, runs=runs) for _ in range(20)]
    assert max(finding.lower_bound for finding in found) <= game.claimed
    # Guesses are better than chance, so that bounds above the claim would be seen.
    right = sum(finding.details["right_guesses"] * finding.runs for finding in found)
    assert right > 0.51 * sum(finding.runs for finding in found)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "epsilon"),
    [
        *[(name, 1.0) for name in AT_BOTH],
        *[(name, 4.0) for name in MECHANISMS if name not in (*BY_HAND, *PARTLY)],
    ],
)
def test_close_to_the_claim_and_not_above_it(name, epsilon):
    game = MECHANISMS[name](epsilon, DELTA, "replace")
    finding = distinguish(game, confidence=CONFIDENCE)
    least = 0.6 if name in SAMPLED else 0.8
    assert least * game.claimed <= finding.lower_bound <= game.claimed
