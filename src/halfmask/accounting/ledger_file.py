"""Reading and writing a ledger's two files: locks, durable writes, and errors that say what to do.

The lock is taken on the ledger itself, which is never replaced by another file, so it also covers
the head file beside it. Guarantee: docs/proofs/ledger.md.
"""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from halfmask.accounting.ledger_chain import HEADER_START, Head, head_text, parse_head
from halfmask.errors import LedgerError


def resolved(path: str | os.PathLike[str]) -> Path:
    """The file itself: two links to one ledger must share one head file."""
    return Path(os.path.realpath(path))


@contextmanager
def locked(path: Path, *, write: bool, create: bool = False) -> Iterator[int]:
    """Open and lock the ledger: alone to write, together with others to read."""
    flags = os.O_RDWR | os.O_APPEND if write else os.O_RDONLY
    flags |= os.O_CLOEXEC | os.O_NONBLOCK | (os.O_CREAT if create else 0)
    try:
        while True:
            # The file may be exchanged while we wait for its lock: then the lock is on the old one.
            fd = os.open(path, flags, 0o666)
            try:
                if not stat.S_ISREG(os.fstat(fd).st_mode):
                    raise LedgerError(f"{path.name} is not a regular file. Name another one.")
                fcntl.flock(fd, fcntl.LOCK_EX if write else fcntl.LOCK_SH)
                if _is_at(fd, path):
                    yield fd
                    return
            finally:
                # A child forked meanwhile holds the file open too: closing alone would not unlock.
                with suppress(OSError):
                    fcntl.flock(fd, fcntl.LOCK_UN)
                os.close(fd)
    except FileNotFoundError:
        if not path.parent.is_dir():
            message = f"The folder of {path.name} does not exist. Create it first."
        else:
            message = f"There is no ledger {path.name}. Make one with `halfmask ledger create`."
        raise LedgerError(message) from None
    except OSError as error:
        raise LedgerError(
            f"{path.name} cannot be used as a ledger ({error.strerror}); nothing was released. "
            "Check its permissions and the space on its disk."
        ) from error


def _is_at(fd: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), os.stat(path))
    except FileNotFoundError:
        return False


def read_all(fd: int) -> bytes:
    """The whole content of a locked file."""
    pieces, offset = [], 0
    while piece := os.pread(fd, 1 << 20, offset):
        pieces.append(piece)
        offset += len(piece)
    return b"".join(pieces)


def append(fd: int, line: bytes) -> None:
    """Add a line durably; where the disk is full, take back what was written of it."""
    size = os.fstat(fd).st_size
    try:
        rest = memoryview(line)
        while rest:
            rest = rest[os.write(fd, rest) :]
    except OSError:
        with suppress(OSError):
            os.ftruncate(fd, size)
        raise
    os.fsync(fd)


def cut(fd: int, size: int) -> None:
    """Remove a torn last line durably."""
    os.ftruncate(fd, size)
    os.fsync(fd)


def head_path(path: Path) -> Path:
    """The file that remembers how far the ledger was acknowledged."""
    return path.with_name(path.name + ".head")


def read_head(path: Path) -> Head | None:
    """The head of the ledger at `path`, None where there is no head file."""
    try:
        content = head_path(path).read_bytes()
    except FileNotFoundError:
        return None
    return parse_head(content, head_path(path).name)


def write_head(path: Path, head: Head) -> None:
    """Replace the head atomically and durably; the caller holds the ledger's lock."""
    target = head_path(path)
    fresh = target.with_name(target.name + ".new")
    fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
    try:
        append(fd, head_text(head))
    finally:
        os.close(fd)
    os.replace(fresh, target)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def creation_unfinished(content: bytes) -> bool:
    """Whether `content` can be what an interrupted creation leaves: less than a header line."""
    return b"\n" not in content and (
        content.startswith(HEADER_START) or HEADER_START.startswith(content)
    )
