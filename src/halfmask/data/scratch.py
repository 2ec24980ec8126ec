"""Room for numbers by row: in memory, or in a temporary file that is mapped where memory is short.

The file has no name: nobody else can open it, and it is gone when the process ends, however it
ends. Its folder is TMPDIR's. What it holds may be private: docs/threat-model.md.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import IO, Any, Self

import numpy as np

from halfmask.errors import DataError

# Of the memory that is free: what a fit holds by row beside its codes has to fit too.
_SHARE = 0.25
# So little is held without asking.
_LITTLE = 1 << 26


class Room:
    """Arrays of zeros of `size` bytes in all; mapped if these are more than a share of memory."""

    def __init__(self, size: int) -> None:
        self._store: IO[bytes] | None = None
        self._used = 0
        free = available() if size > _LITTLE else None
        if free is not None and size > _SHARE * free:
            self._store = tempfile.TemporaryFile()  # noqa: SIM115  (closed by __exit__)
            reserve(self._store, size)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._store is not None:
            self._store.close()

    def zeros(self, count: int, dtype: Any) -> np.ndarray:
        """The next `count` numbers."""
        if self._store is None or not count:
            return np.zeros(count, dtype=dtype)
        start, size = self._used, count * np.dtype(dtype).itemsize
        self._used += size
        # A plain array: its base keeps the map, which outlives the open file, while it is in use.
        return np.asarray(
            np.memmap(self._store, dtype=dtype, mode="r+", offset=start, shape=(count,))
        )


def reserve(store: IO[bytes], size: int, folder: str | Path | None = None) -> None:
    """The file at its full size: a disk that is too small has to show before a write to the map."""
    try:
        os.posix_fallocate(store.fileno(), 0, max(size, 1))
    except OSError:
        where = folder or tempfile.gettempdir()
        raise DataError(
            f"Decoding needs {size / 2**30:.1f} GiB in {where}: set TMPDIR to a folder on a disk "
            "with more room."
        ) from None


def available() -> int | None:
    """Bytes that this process may still take: of the machine or of its control group."""
    found = [_free_of_machine(), _free_of_group()]
    known = [free for free in found if free is not None]
    return min(known) if known else None


def _free_of_machine() -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    sizes = dict(line.split(":", 1) for line in lines)
    free = sizes.get("MemAvailable")
    return None if free is None else 1024 * int(free.split()[0])


def _free_of_group() -> int | None:
    """What a container may still take (control groups, version 2)."""
    folder = Path("/sys/fs/cgroup")
    try:
        limit = (folder / "memory.max").read_text(encoding="ascii").strip()
        used = int((folder / "memory.current").read_text(encoding="ascii"))
        # Pages of files count as used, and are given up when asked for.
        stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
        cached = int(stat.get("inactive_file", 0))
    except (OSError, ValueError):
        return None
    return None if limit == "max" else max(int(limit) - used + cached, 0)
