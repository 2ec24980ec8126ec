"""The central node: it holds the labels, asks the parties and combines what they answer."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Any

import numpy as np

from halfmask.errors import InputError
from halfmask.vertical.alignment import check_alignment, id_hashes
from halfmask.vertical.block import Vector
from halfmask.vertical.channel import Channel, Message, PartyError, checked_reply
from halfmask.vertical.stranger import RefusedError, hashes

LABEL_HOLDER = "label holder"


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
    def rows(self) -> int:
        """The number of rows, which is public."""
        return len(self.labels)

    @property
    def signed(self) -> Vector:
        """The labels as -1 and +1."""
        return 2 * self.labels - 1

    def align(self) -> int:
        """Check that every party holds exactly the label holder's rows; return how many."""
        if self.ids is None:
            raise InputError("The label holder has no ids to align by.")
        request = Message(kind="ids", run=self.run, round=0)
        replies = self.channel.exchange(dict.fromkeys(self.channel.parties, request))
        found = {LABEL_HOLDER: id_hashes(self.ids, self.run)}
        for name in self.channel.parties:
            if name not in replies:
                raise PartyError(f"No answer from {name!r} to the request for ids.")
            reply = checked_reply(name, request, replies[name], shapes={})
            try:
                found[name] = hashes(reply.arrays.get("ids"), "ids")
            except RefusedError as error:
                raise PartyError(f"Party {name!r} does not name its rows: {error}") from None
        return check_alignment(found, against=LABEL_HOLDER)
