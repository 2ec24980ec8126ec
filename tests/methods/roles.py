"""Tables with every choice of roles, small enough to check by hand."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from halfmask.accounting.ledger import MemoryLedger
from halfmask.mechanisms.noise import noise_source
from halfmask.mechanisms.release import Releaser
from halfmask.table import Blocks, Table


def table_of(
    n: int = 60,
    *,
    public: int = 3,
    private: int = 2,
    classes: int = 2,
    label_private: bool = True,
    units: int | None = None,
    seed: int = 0,
) -> Table:
    rng = np.random.default_rng(seed)

    def block(width: int) -> np.ndarray:
        rows = rng.normal(size=(n, width))
        return rows / np.maximum(1.0, np.linalg.norm(rows, axis=1, keepdims=True))

    label = rng.integers(0, classes, size=n) if classes else rng.uniform(2, 5, size=n)
    return Table(
        features=Blocks(public=block(public), private=block(private)),
        label=label,
        unit=None if units is None else np.sort(np.arange(n) % units),
        rows=np.arange(n),
        public_norm=1.0 if public else 0.0,
        private_norm=1.0 if private else 0.0,
        public_sources=tuple(f"a{i}" for i in range(public)),
        private_sources=tuple(f"b{i}" for i in range(private)),
        label_private=label_private,
        task="classification" if classes else "regression",
        classes=tuple(range(classes)) if classes else None,
        label_bounds=None if classes else (2.0, 5.0),
        max_rows=1 if units is None else math.ceil(n / units),
        schema=None,
    )


def releaser_of(epsilon: float = 1.0, relation: Any = "replace", seed: int = 0) -> Releaser:
    ledger = MemoryLedger(epsilon=epsilon, delta=1e-5, relation=relation)
    return Releaser(ledger, noise_source(seed))


ROLES = [
    {"private": 0},  # label private
    {"label_private": False},  # features private
    {},  # both, some features public
    {"public": 0},  # nothing public
    {"public": 0, "label_private": False},  # the label alone is public
]
