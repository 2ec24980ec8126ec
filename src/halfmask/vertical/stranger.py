"""Numbers that another party sent: checked before they touch anything private or are charged for.

Whoever is on the other side may send anything. A number so large that a sum overflows, or so small
that its square vanishes, would make what follows depend on private values in ways that no proof
covers: an error, an infinity, noise that is too small. So everything a message holds is read
through the functions here, which let pass what later arithmetic keeps finite, take for zero what is
smaller than `LEAST`, and refuse the rest. A refusal depends on the message and on public limits
alone. Guarantee: docs/proofs/strangers.md.
"""

from __future__ import annotations

import math
import numbers as kinds

import numpy as np
import numpy.typing as npt

from halfmask.errors import InputError
from halfmask.vertical.rows import row_parts

Vector = npt.NDArray[np.float64]

MOST, LEAST = 1e100, 1e-100
"""Squares of both, and sums of any number of such squares, are far inside the range of doubles."""

LONGEST_WORD = 200


class RefusedError(InputError):
    """A message that is not as the protocol says, as anyone can tell from the message alone."""


def numbers(
    value: object, shape: tuple[int | None, ...], what: str, *, most: float = MOST
) -> Vector:
    """An array of `shape` (None: any length), finite, of at most `most`; tiny ones become zero."""
    found = value if isinstance(value, np.ndarray) else np.asarray(value)
    lengths = zip(found.shape, shape, strict=False)
    if found.ndim != len(shape) or any(n is not None and have != n for have, n in lengths):
        asked = " x ".join("any number" if n is None else str(n) for n in shape)
        raise RefusedError(f"{what} has shape {found.shape}, expected {asked} numbers.")
    if found.dtype.kind not in "fiu" or found.dtype.itemsize > 8:
        raise RefusedError(f"{what} is not made of numbers in double precision or less.")
    checked = np.asarray(found, dtype=np.float64)
    flat, own = checked.reshape(-1), checked is not found
    for part in row_parts(flat.size):
        size = np.abs(flat[part])
        # Written so that NaN, which the maximum keeps and no comparison holds for, is refused too.
        if not size.max(initial=0.0) <= most:
            raise RefusedError(f"{what} is not finite or beyond {most:g}.")
        tiny = size < LEAST
        if tiny.any() and size[tiny].any():
            if not own:  # the sender's array stays as it is
                checked, own = checked.copy(), True
                flat = checked.reshape(-1)
            flat[part][tiny] = 0.0
    return checked


def number(value: object, what: str, *, least: float = LEAST, most: float = MOST) -> float:
    """One number from `least` to `most`; truth values and text are none."""
    plain = isinstance(value, kinds.Real) and not isinstance(value, bool | np.bool_)
    if not plain or not (least <= value <= most):  # type: ignore[operator]
        raise RefusedError(f"{what} must be a number from {least:g} to {most:g}.")
    found = float(value)  # type: ignore[arg-type]
    return found if abs(found) >= LEAST else 0.0


def whole(value: object, what: str, *, least: int, most: int) -> int:
    """One whole number from `least` to `most`."""
    found = number(value, what, least=least, most=most)
    if found != math.floor(found):
        raise RefusedError(f"{what} must be a whole number.")
    return int(found)


def word(value: object, what: str) -> str:
    """A short text."""
    if not isinstance(value, str) or not 0 < len(value) <= LONGEST_WORD:
        raise RefusedError(f"{what} must be a text of at most {LONGEST_WORD} characters.")
    return value


def hashes(value: object, what: str) -> npt.NDArray[np.uint64]:
    """One 64-bit hash per row, any number of rows."""
    found = value if isinstance(value, np.ndarray) else np.asarray(value)
    if found.ndim != 1 or found.dtype != np.uint64:
        raise RefusedError(f"{what} must be a list of 64-bit hashes.")
    return found
