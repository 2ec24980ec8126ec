"""Our rounds and the copy of A's prototype are the same algorithm."""

from __future__ import annotations

from halfmask.bench.admm import random_table, tight_gap


def test_iterates_equal_the_tight_prototype():
    assert tight_gap(*random_table(120, 6), rounds=4) < 1e-6
