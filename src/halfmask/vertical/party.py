"""Who takes part: a party with its rows, and the label holder, who coordinates.

A party answers only the kinds of request it was opened for; what each may cost is fixed, and
charged to the party's own ledger, before the first answer. The coordinator cannot ask for more.
Rows are aligned by keyed hashes of their ids, and labels may be hidden before any is sent.
"""

from __future__ import annotations

import hashlib
import math
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from halfmask.accounting.budget import Budget
from halfmask.errors import DataError, InputError
from halfmask.mechanisms.release import Releaser
from halfmask.types import Vector
from halfmask.vertical.channel import (
    Channel,
    Message,
    PartyError,
    RefusedError,
    checked_replies,
    hashes,
    word,
)

Hashes = npt.NDArray[np.uint64]
LABEL_HOLDER = "label holder"


def row_order(ids: Sequence[Any], who: str) -> npt.NDArray[np.intp]:
    """The order that sorts `ids` as text; an error says how many are missing or repeated."""
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


def _as_text(value: Any) -> str:
    if value is None or (isinstance(value, float) and value != value):
        return ""
    return str(value)


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


def calibrated_ratio(budget: Budget, withhold_share: float) -> float:
    """μ of one replaced row within `budget`, where a withheld row has `withhold_share` of it."""
    return budget.mu if budget.relation == "replace" else budget.mu / withhold_share


class Party:
    """The rows of one organisation in the order of their ids, which it tells as hashes.

    Each method has a kind of party that answers other requests instead: `kinds` names them.
    """

    kinds: ClassVar[tuple[str, ...]] = ("ids",)

    def __init__(self, name: str, *, rows: int, ids: Sequence[Any] | None = None) -> None:
        self.name = name
        self.rows = rows
        self._ids = None if ids is None else list(ids)
        if self._ids is not None and len(self._ids) != rows:
            raise InputError(f"Party {name!r} has {rows} rows and {len(self._ids)} ids.")
        self._run: str | None = None

    def admit(self, request: Message) -> None:
        """Refuse kinds that were not agreed to, and other runs than the one joined first."""
        if request.kind not in self.kinds:
            raise InputError(f"Party {self.name!r} does not answer {request.kind!r}.")
        word(request.run, "run")
        if self._run is None:
            self._run = request.run
        if request.run != self._run:
            raise InputError(f"Party {self.name!r} takes part in another run.")

    def answer(self, request: Message) -> Message:
        """The hashes of the ids."""
        self.admit(request)
        if self._ids is None:
            raise InputError(f"Party {self.name!r} has no ids to align by.")
        return request.reply(arrays={"ids": id_hashes(self._ids, request.run)})


class Coordinator:
    """The label holder's side: labels (0 and 1, or numbers) in the order of their ids."""

    def __init__(self, channel: Channel, labels: Any, *, ids: Sequence[Any] | None = None) -> None:
        self.channel = channel
        self.labels: Vector = np.asarray(labels, dtype=np.float64)
        self.ids = None if ids is None else list(ids)
        self.run = secrets.token_hex(8)
        if self.ids is not None and len(self.ids) != len(self.labels):
            raise InputError(f"Got {len(self.labels)} labels and {len(self.ids)} ids.")

    @property
    def signed(self) -> Vector:
        """The labels as -1 and +1."""
        return 2 * self.labels - 1

    def align(self) -> int:
        """Check that every party holds exactly the label holder's rows; return how many."""
        if self.ids is None:
            raise InputError("The label holder has no ids to align by.")
        request = Message(kind="ids", run=self.run, round=0)
        replies = checked_replies(self.channel, request, self.channel.exchange(request))
        found = {LABEL_HOLDER: id_hashes(self.ids, self.run)}
        for name, reply in replies.items():
            try:
                found[name] = hashes(reply.arrays.get("ids"), "ids")
            except RefusedError as error:
                raise PartyError(f"Party {name!r} does not name its rows: {error}") from None
        return check_alignment(found, against=LABEL_HOLDER)


@dataclass(frozen=True, kw_only=True)
class HiddenLabels:
    """Unbiased estimates of 0/1 labels: every value is -excess or 1 + excess."""

    targets: Vector
    excess: float
    epsilon: float

    @property
    def signed(self) -> Vector:
        """The same estimates for labels -1 and +1."""
        return 2 * self.targets - 1


def check_hidable(label_bounds: tuple[float, float] | None) -> None:
    """Randomised response is for classes."""
    if label_bounds is not None:
        raise InputError(
            "Labels are hidden by randomised response, which is for two classes: a number cannot "
            "be hidden. Learn whether it lies above a limit, or do without hidden labels."
        )


def hide_labels(labels: Vector, *, epsilon: float, releaser: Releaser) -> HiddenLabels:
    """Flip every 0/1 label with probability 1/(1 + e^ε); charged to the label holder's ledger.

    E[estimate] is the label: with flip probability q the estimate is (flipped - q)/(1 - 2q).
    """
    flipped = releaser.randomised_response(
        labels, epsilon=epsilon, what="labels by randomised response"
    )
    flip = 1 / (1 + math.exp(epsilon))
    return HiddenLabels(
        targets=(flipped - flip) / (1 - 2 * flip), excess=flip / (1 - 2 * flip), epsilon=epsilon
    )
