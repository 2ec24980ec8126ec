"""A party's memory between messages: the last round it answered, in a folder only it can read.

A round that is asked for again gets the *same* answer back, never fresh noise, so a repeated or
resumed message costs nothing and reveals nothing. What was paid is recorded after the ledger was
charged: a crash in between wastes budget and never loses track of it.
"""

from __future__ import annotations

import io
import json
import os
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from halfmask.errors import DataError


@dataclass(frozen=True, kw_only=True)
class Stored:
    """The run a party takes part in, the last round it answered, what it answered and remembers."""

    run: str
    kind: str
    round: int
    reply: Mapping[str, np.ndarray]
    memory: Mapping[str, np.ndarray]


class RoundStore:
    """One file, replaced as a whole after every answer."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._file = self.folder / "party.npz"

    def load(self) -> Stored | None:
        """What was stored last, or nothing before the first answer."""
        if not self._file.exists():
            return None
        try:
            with np.load(self._file, allow_pickle=False) as held:
                head = json.loads(str(held["head"]))
                arrays = {name: held[name] for name in held.files if name != "head"}
        except (ValueError, KeyError, OSError, EOFError, zipfile.BadZipFile) as error:
            raise DataError(
                f"The party's memory {self._file} cannot be read ({type(error).__name__}): "
                "restore it, or start a new run."
            ) from None
        return Stored(
            run=head["run"],
            kind=head["kind"],
            round=int(head["round"]),
            reply=_part(arrays, "reply/"),
            memory=_part(arrays, "memory/"),
        )

    def save(self, stored: Stored) -> None:
        """Durably replace what was stored; a crash leaves the old file or the new one."""
        head = {"run": stored.run, "kind": stored.kind, "round": stored.round}
        buffer = io.BytesIO()
        arrays: dict[str, Any] = {f"reply/{k}": v for k, v in stored.reply.items()}
        arrays.update({f"memory/{k}": v for k, v in stored.memory.items()})
        np.savez(buffer, head=np.array(json.dumps(head)), **arrays)
        write_durably(self._file, buffer.getvalue())


def write_durably(path: Path, content: bytes) -> None:
    """Replace a file as a whole, readable by its owner only."""
    fresh = path.with_name(path.name + ".new")
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(fresh, path)


def _part(arrays: Mapping[str, np.ndarray], prefix: str) -> dict[str, np.ndarray]:
    return {k.removeprefix(prefix): v for k, v in arrays.items() if k.startswith(prefix)}
