"""Small tables that several vertical tests share."""

from __future__ import annotations

import numpy as np
import pytest

from halfmask.accounting.ledger import MemoryLedger
from halfmask.mechanisms.noise import noise_source
from halfmask.mechanisms.release import Releaser


@pytest.fixture
def columns():
    """300 rows, 12 correlated columns, labels -1 and +1 from a logistic model."""
    rng = np.random.default_rng(7)
    matrix = rng.normal(size=(300, 12)) @ (np.eye(12) + 0.3 * rng.normal(size=(12, 12)))
    truth = rng.normal(size=12)
    labels = np.where(rng.random(300) < 1 / (1 + np.exp(-matrix @ truth)), 1.0, -1.0)
    return matrix, labels


@pytest.fixture
def releaser():
    """Builds a releaser on a fresh budget."""

    def build(epsilon=1e6, delta=1e-6, seed=0, relation="replace"):
        ledger = MemoryLedger(epsilon=epsilon, delta=delta, relation=relation)
        return Releaser(ledger, noise_source(seed))

    return build
