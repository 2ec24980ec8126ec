"""The same rows in the same order at every party, or an error: never a silent join.

Every party sorts its rows by id and sends one keyed hash per id, the key being fresh for every
run. The hashes of two parties agree, position by position, exactly when they hold the same ids
once each. Whoever knows an id can look for it among the hashes: the set of rows is public in
vertical learning, and the statement says so.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from halfmask.errors import DataError

Hashes = npt.NDArray[np.uint64]


def row_order(ids: Sequence[Any], who: str) -> npt.NDArray[np.intp]:
    """The order that sorts `ids` as text; a missing or repeated id is an error that names how
    many.
    """
    texts = np.array([_as_text(value) for value in ids], dtype=object)
    absent = sum(text == "" for text in texts)
    if absent:
        raise DataError(f"{who} has {absent} rows without an id: every row needs one.")
    order = np.argsort(texts, kind="stable")
    ordered = texts[order]
    repeated = int(np.sum(ordered[1:] == ordered[:-1])) if len(ordered) > 1 else 0
    if repeated:
        raise DataError(
            f"{who} has {repeated} rows whose id occurs before: "
            "each id must occur once, so remove or merge the repeated rows."
        )
    return order.astype(np.intp)


def id_hashes(ids: Sequence[Any], key: str) -> Hashes:
    """One 64-bit keyed hash per id, in the order given."""
    secret = hashlib.sha256(key.encode()).digest()
    digests = (
        hashlib.blake2b(_as_text(value).encode(), key=secret, digest_size=8).digest()
        for value in ids
    )
    return np.frombuffer(b"".join(digests), dtype=np.uint64)


def check_alignment(hashes: Mapping[str, Hashes], *, against: str) -> int:
    """The number of rows, or an error naming how many ids each party lacks or has too many."""
    reference = hashes[against]
    for name, own in hashes.items():
        if own.shape == reference.shape and np.array_equal(own, reference):
            continue
        lacking = len(np.setdiff1d(reference, own))
        extra = len(np.setdiff1d(own, reference))
        if lacking or extra:
            raise DataError(
                f"The ids of {name!r} and {against!r} differ: {name!r} lacks {lacking} of its rows "
                f"and has {extra} others. Give every party exactly the same ids; rows are never "
                "dropped silently."
            )
        raise DataError(f"The ids of {name!r} and {against!r} are in different orders: sort by id.")
    return len(reference)


def _as_text(value: Any) -> str:
    if value is None or (isinstance(value, float) and value != value):
        return ""
    return str(value)
