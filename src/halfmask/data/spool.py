"""Pipes and standard input as files that can be read more than once.

What comes through them is kept in a temporary file without a name, so nobody else can open it and
nothing is left behind.
"""

from __future__ import annotations

import shutil
import stat
import sys
import tempfile
from pathlib import Path
from typing import IO

STANDARD_INPUT = "-"
_kept: dict[str, IO[bytes]] = {}


def at_hand(path: str | Path) -> Path:
    """The path itself or, for `-` and for a pipe, that of a copy of all that comes through it."""
    name = str(path)
    if name != STANDARD_INPUT and not _is_pipe(Path(path)):
        return Path(path)
    if name not in _kept:
        copy = tempfile.TemporaryFile()  # noqa: SIM115  (kept for the whole command)
        if name == STANDARD_INPUT:
            shutil.copyfileobj(sys.stdin.buffer, copy)
        else:
            with Path(path).open("rb") as pipe:
                shutil.copyfileobj(pipe, copy)
        copy.flush()
        _kept[name] = copy
    return Path(f"/dev/fd/{_kept[name].fileno()}")


def forget() -> None:
    """Close all copies: a command begins, or has ended."""
    for copy in _kept.values():
        copy.close()
    _kept.clear()


def _is_pipe(path: Path) -> bool:
    try:
        return stat.S_ISFIFO(path.stat().st_mode)
    except OSError:
        return False
