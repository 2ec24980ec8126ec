"""Which ledger a model was charged to: the one in its folder, or one that its folder points to."""

from __future__ import annotations

import os
from pathlib import Path

from halfmask.errors import LedgerError
from halfmask.model_folder import opened, read_text, write_text

OWN = "ledger.jsonl"
LINK = "ledger.path"
_MOST_LINK, _MOST_LEDGER = 1 << 16, 256 << 20


def link_ledger(folder: Path, ledger: Path) -> None:
    """Remember in a model folder that `ledger` was charged, by its path seen from there."""
    if ledger.resolve() != (folder / OWN).resolve():
        path = os.path.relpath(ledger.resolve(), folder.resolve())
        write_text(folder / LINK, Path(path).as_posix() + "\n")


def ledger_of(folder: Path) -> Path | None:
    """The model's ledger; None where none was kept. One that has moved is an error that says so."""
    if os.path.lexists(folder / OWN):
        return _checked(folder / OWN)
    if not os.path.lexists(folder / LINK):
        return None
    name = read_text(folder / LINK, _MOST_LINK).strip()
    ledger = folder / name
    # Without the check of its text, a NUL or a very long name would be an error of the system.
    if not name.isprintable() or not os.path.exists(ledger):
        raise LedgerError(
            f"This model was charged to {ledger.name[:100]!r}, which is no longer where it was: "
            "pass it with --ledger FILE."
        )
    return _checked(ledger)


def _checked(ledger: Path) -> Path:
    """The ledger, which is a regular file of bounded size, as is its head."""
    with opened(ledger, _MOST_LEDGER):
        pass
    head = ledger.with_name(ledger.name + ".head")
    if os.path.lexists(head):
        with opened(head, _MOST_LINK):
            pass
    return ledger
