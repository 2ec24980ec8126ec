"""Writing files whole: what is read later is the old content or the new one, never half of it.

`replacing` and `write_text` are for results, which could be made again. `write_durably` is for what
could not: it returns when the disk holds content and name.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def replacing(target: Path) -> Iterator[Path]:
    """A temporary path beside `target`, moved over it when all is written, otherwise gone."""
    temporary = target.with_name(f"{target.stem}.part{target.suffix}")
    try:
        yield temporary
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)


def write_text(target: Path, text: str) -> None:
    """A text file that is whole or not there."""
    with replacing(target) as path:
        path.write_text(text, encoding="utf-8")


def unfinished(path: Path) -> Path:
    """What `write_durably` leaves beside `path` where it is killed before it has ended."""
    return path.with_name(path.name + ".new")


def write_durably(path: Path, content: bytes, *, mode: int = 0o600) -> None:
    """Replace a file as a whole, on the disk too; by default only its owner can read it."""
    fresh = unfinished(path)
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
    fd = os.open(fresh, flags, mode)
    try:
        write_all(fd, content)
        os.fsync(fd)
    finally:
        os.close(fd)
    os.replace(fresh, path)
    sync_folder(path.parent)


def write_all(fd: int, content: bytes) -> None:
    """All of `content`, however much of it one call takes."""
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(fd, rest) :]


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def plain(value: Any) -> Any:
    """`value` as JSON knows it: NaN and infinities become null, arrays and tuples become lists."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in value]
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, Path):
        return str(value)
    if hasattr(value, "tolist"):  # numpy scalars and arrays
        return plain(value.tolist())
    raise TypeError(f"{type(value).__name__} is not a value that JSON knows")


def json_text(data: Any) -> str:
    """`data` as people and programs read it: an object over several lines, every number finite."""
    return json.dumps(plain(data), indent=2, allow_nan=False)
