"""Reading the files of a model folder, which may be damaged or made to harm.

Every file is read through here: regular files only, of bounded size, and arrays of plain numbers
whose header says no more than the file holds. Whatever else is wrong ends as one clear error.
"""

from __future__ import annotations

import io
import json
import math
import os
import stat
import struct
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, NoReturn, TypeVar

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from halfmask.errors import DataError, HalfmaskError, LedgerError
from halfmask.storage import write_text

VERTICAL_FILE = "vertical.json"
"""What the label holder keeps of a model whose columns several parties hold."""

# Ten thousand public columns with a hundred learnt edges each take 80 MB.
MOST_TEXT = 256 << 20
MOST_ARRAYS = 4 << 30
# Weights hardly shrink when they are packed; an archive that grows more than this was made to.
_GROWTH, _SMALL = 100, 64 << 20
_MOST_MEMBERS, _MOST_DIRECTORY = 4096, 4 << 20
_KINDS = "biufUS"

_END = b"PK\x05\x06"
_END_64 = b"PK\x06\x07"

_Read = TypeVar("_Read")


def damaged(what: str) -> NoReturn:
    """The one error for a folder that holds something other than what was stored."""
    raise DataError(f"The model is damaged ({what}): restore the folder, or train it again.")


@contextmanager
def opened(path: Path, most: int) -> Iterator[IO[bytes]]:
    """A regular file of at most `most` bytes; a pipe or device is refused without waiting."""
    try:
        # Without O_NONBLOCK, opening a pipe would wait for somebody to write into it.
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise DataError(f"Cannot read {str(path)!r}: {error.strerror}.") from None
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode):
        os.close(fd)
        damaged(f"{path.name} is not a regular file")
    with os.fdopen(fd, "rb") as file:
        if status.st_size > most:
            damaged(f"{path.name} is too large to be what training wrote")
        yield file


def read_text(path: Path, most: int = MOST_TEXT) -> str:
    """A text file."""
    with opened(path, most) as file:
        content = file.read(most + 1)
    try:
        return content[: most + 1].decode("utf-8")
    except UnicodeDecodeError:
        damaged(f"{path.name} is not UTF-8 text")


def read_json(path: Path) -> Any:
    """A JSON file in which every number is finite."""
    text = read_text(path)
    try:
        return json.loads(text, parse_constant=_finite, parse_float=_finite)
    except (ValueError, RecursionError):
        pass
    damaged(f"{path.name} is not JSON as training writes it")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError
    return value


def read_arrays(path: Path) -> dict[str, NDArray[Any]]:
    """The arrays of an npz file: numbers and texts, every number finite."""
    with opened(path, MOST_ARRAYS) as file:
        return arrays_of(file, os.fstat(file.fileno()).st_size, path.name)


def arrays_of(file: IO[bytes], size: int, name: str) -> dict[str, NDArray[Any]]:
    """The arrays of an npz file of `size` bytes that is open already."""
    _check_directory(file, size, name)
    arrays = rebuilt(lambda: _unpacked(file, size, name), name)
    for key, array in arrays.items():
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            damaged(f"the array {key!r} holds NaN or infinity")
    return arrays


def packed(head: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> bytes:
    """An npz archive of arrays, with plain facts as JSON in `head`."""
    buffer = io.BytesIO()
    np.savez(buffer, head=np.array(json.dumps(head)), **without_objects(arrays))
    return buffer.getvalue()


def without_objects(arrays: Mapping[str, NDArray[Any]]) -> dict[str, Any]:
    """`arrays`, none of which numpy would pickle: an older one cannot be told so by `savez`."""
    for name, array in arrays.items():
        if np.asarray(array).dtype.hasobject:
            raise TypeError(f"The array {name!r} holds objects, which are not stored.")
    return dict(arrays)


def unpacked(content: bytes, name: str) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """The inverse of `packed`; a file called `name` that holds anything else is an error."""
    arrays = arrays_of(io.BytesIO(content), len(content), name)
    return json.loads(str(arrays.pop("head"))), arrays


def rebuilt(make: Callable[[], _Read], what: str) -> _Read:
    """What `make` returns from stored values alone; any failure means that these are damaged."""
    try:
        return make()
    except HalfmaskError as error:
        reason = str(error).removesuffix(".")
        if isinstance(error, DataError) and reason.startswith("The model is damaged"):
            raise
    except Exception:
        # Whatever a library makes of such values: the list of its errors has no end.
        reason = ""
    damaged(f"{what}: {reason}" if reason else what)


def _check_directory(file: IO[bytes], size: int, name: str) -> None:
    """Refuse archives whose list of members alone would fill the memory, before it is read."""
    if size < 42:
        damaged(f"{name} is cut off")
    file.seek(size - 42)
    tail = file.read(42)
    members, length, comment = struct.unpack("<10xHI4xH", tail[20:])
    if tail[20:24] != _END or comment or tail[:4] == _END_64:
        damaged(f"{name} is cut off, or no archive of arrays")
    if members > _MOST_MEMBERS or length > _MOST_DIRECTORY:
        damaged(f"{name} lists too many arrays")
    file.seek(0)


def _unpacked(file: IO[bytes], size: int, name: str) -> dict[str, NDArray[Any]]:
    arrays: dict[str, NDArray[Any]] = {}
    with zipfile.ZipFile(file) as archive:
        members = archive.infolist()
        whole = sum(member.file_size for member in members)
        if whole > MOST_ARRAYS or whole > max(_SMALL, _GROWTH * size):
            damaged(f"{name} would unpack to {whole >> 20} MiB")
        for member in members:
            key = member.filename.removesuffix(".npy")
            if key == member.filename or key in arrays:
                damaged(f"{name} holds something other than arrays")
            with archive.open(member) as stream:
                arrays[key] = _array(stream, key)
    return arrays


def _array(stream: IO[bytes], name: str) -> NDArray[Any]:
    """One array, whose header is believed only if it says what the member holds."""
    version = npy.read_magic(stream)
    if version == (1, 0):
        shape, by_columns, dtype = npy.read_array_header_1_0(stream)
    elif version == (2, 0):
        shape, by_columns, dtype = npy.read_array_header_2_0(stream)
    else:
        damaged(f"the array {name!r} is of another format")
    if dtype.kind not in _KINDS or dtype.hasobject or any(not 0 <= n < 1 << 40 for n in shape):
        damaged(f"the array {name!r} holds neither numbers nor text")
    content = stream.read()
    if math.prod(shape) * dtype.itemsize != len(content):
        damaged(f"the array {name!r} is not as long as it says")
    # A bytearray, so that the array can be written to, as one from np.load can.
    flat: NDArray[Any] = np.frombuffer(bytearray(content), dtype=dtype)
    return flat.reshape(shape, order="F" if by_columns else "C")


def field(data: Mapping[str, Any], name: str, *kinds: type) -> Any:
    """A field that must be there and of one of `kinds`; truth values are not numbers."""
    if name not in data:
        damaged(f"the field {name!r} is missing")
    value = data[name]
    known = isinstance(value, kinds) and (bool in kinds or not isinstance(value, bool))
    if not known:
        damaged(f"the field {name!r} is not what training writes")
    return value


# --- Which ledger a model was charged to: the one in its folder, or one that its folder points to.


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
