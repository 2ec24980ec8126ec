"""What tests of several files need."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from halfmask.accounting.ledger import Ledger

# Messages are looked for as they were written; that lines fit 80 columns is tested by new users.
os.environ["HALFMASK_WIDTH"] = "1000"


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    """A new ledger with a budget of epsilon 1."""
    return Ledger.create(tmp_path / "data.jsonl", epsilon=1.0, delta=1e-6, relation="replace")
