"""Every mistake is caught, and its corrected twin is not."""

import pytest

from halfmask.audit.catalogue import game_named, names
from halfmask.audit.distinguish import distinguish
from halfmask.audit.refutations import REFUTATIONS
from halfmask.errors import InputError

EXPECTED = {
    "shared-batch",
    "lipschitz",
    "column-space-noise",
    "add-remove",
    "dual-labels",
    "embeddings",
    "one-byte-seed",
    "learnt-bounds",
    "batch-size",
    "label-binary",
    "dropped-rows",
}


def test_all_mistakes_are_kept():
    assert set(REFUTATIONS) == EXPECTED
    assert {f"refuted-{name}" for name in EXPECTED} <= set(names())


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_the_mistake_is_caught_and_the_twin_passes(name):
    caught = distinguish(
        game_named(f"refuted-{name}", epsilon=3.0, delta=1e-5, relation="replace"),
        confidence=0.999,
        workers=1,
    )
    assert caught.refuted
    assert caught.lower_bound > caught.claimed
    twin = distinguish(
        game_named(f"corrected-{name}", epsilon=3.0, delta=1e-5, relation="replace"),
        confidence=0.999,
        runs=600,
        workers=1,
    )
    assert not twin.refuted


def test_an_unknown_name_is_answered_with_a_near_one():
    with pytest.raises(InputError, match="Did you mean 'refuted-batch-size'"):
        game_named("refuted-batchsize", epsilon=1.0, delta=1e-5, relation="replace")


def test_mistakes_are_claims_about_replacement():
    with pytest.raises(InputError, match="replacement"):
        game_named("refuted-lipschitz", epsilon=1.0, delta=1e-5, relation="withhold")
