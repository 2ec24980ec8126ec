"""Which ledger a model was charged to: the one in its folder, or one that its folder points to."""

from __future__ import annotations

import os
from pathlib import Path

from halfmask.errors import LedgerError

OWN = "ledger.jsonl"
LINK = "ledger.path"


def link_ledger(folder: Path, ledger: Path) -> None:
    """Remember in a model folder that `ledger` was charged, by its path seen from there."""
    if ledger.resolve() != (folder / OWN).resolve():
        path = os.path.relpath(ledger.resolve(), folder.resolve())
        (folder / LINK).write_text(Path(path).as_posix() + "\n", encoding="utf-8")


def ledger_of(folder: Path) -> Path | None:
    """The model's ledger; None where none was kept. One that has moved is an error that says so."""
    if (folder / OWN).exists():
        return folder / OWN
    if not (folder / LINK).is_file():
        return None
    ledger = folder / (folder / LINK).read_text(encoding="utf-8").strip()
    if not ledger.exists():
        raise LedgerError(
            f"This model was charged to {ledger.name}, which is no longer where it was: pass it "
            "with --ledger FILE."
        )
    return ledger
