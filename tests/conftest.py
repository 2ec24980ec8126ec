"""What tests of several files need."""

from __future__ import annotations

from pathlib import Path

import pytest

from halfmask.accounting.ledger import Ledger


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    """A new ledger with a budget of epsilon 1."""
    return Ledger.create(tmp_path / "data.jsonl", epsilon=1.0, delta=1e-6, relation="replace")
