"""Our rounds and the copy of A's prototype are the same algorithm; growth is measured fairly."""

from __future__ import annotations

import math

import numpy as np
import pytest

from halfmask_lab import bench_admm as admm
from halfmask_lab.bench_admm import tight_gap


def test_iterates_equal_the_tight_prototype():
    draw = np.random.default_rng(0)
    matrix = draw.normal(size=(120, 6))
    targets = np.where(matrix @ draw.normal(size=6) + draw.normal(size=120) > 0, 1.0, -1.0)
    assert tight_gap([matrix[:, :3], matrix[:, 3:]], targets, rounds=4) < 1e-6


def test_growth_is_measured_on_equal_work(monkeypatch):
    """Every size runs as many rounds a turn as brings it to the largest; both clocks are told."""
    monkeypatch.setattr(admm, "TURNS", 2)
    rounds = {}
    whole = admm.run_admm

    def counted(channel, targets, config, state=None):
        done = 0 if state is None else len(state.history)
        rounds.setdefault(len(targets), []).append((done, config.rounds))
        return whole(channel, targets, config, state=state)

    monkeypatch.setattr(admm, "run_admm", counted)
    found = admm.growth((100, 400), lambda rows: (rows, 2))
    third, turns = (2, 3), 2
    assert rounds == {
        size: [(0, 2), *[third] * (turns * admm.LARGEST_ROUNDS * 400 // size)]
        for size in (100, 400)
    }
    for clock in ("wall", "processor"):
        seconds = found[f"{clock}_seconds"]
        slope = math.log(seconds["400"] / seconds["100"]) / math.log(4)
        assert found[f"{clock}_exponent"] == pytest.approx(slope)
