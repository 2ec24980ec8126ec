"""A ledger with a few small charges, for every test of ledgers."""

from __future__ import annotations

from halfmask.accounting.events import GaussianEvent
from halfmask.accounting.ledger import Ledger

SMALL = GaussianEvent(replace=0.02, withhold=0.01)


def charged(ledger: Ledger, times: int = 3) -> Ledger:
    for number in range(times):
        ledger.charge([SMALL], f"release {number}")
    return ledger
