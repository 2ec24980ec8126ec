"""Scores of rows that the label holder asks for by id, after training.

A score tells its row's own columns: no noise covers it. So each party decides in its own file
whether it answers, for which ids and how many, and writes every answer down before it leaves.
Guarantee: docs/proofs/queries.md.
"""

from __future__ import annotations

import datetime
import json
import os
import secrets
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from halfmask.accounting.ledger_file import locked, resolved
from halfmask.errors import DataError, InputError
from halfmask.frames import check_columns
from halfmask.table import read_frame
from halfmask.vertical.alignment import id_hashes, row_order
from halfmask.vertical.block import Vector
from halfmask.vertical.channel import Channel, Message, PartyError, ask_all
from halfmask.vertical.part import Part, VerticalModel
from halfmask.vertical.stranger import RefusedError, hashes, numbers, word

KIND = "query-scores"
LOG = "queries.jsonl"
REVEALS = (
    "The score of a row tells that row's own columns at the party that sends it: no guarantee "
    "covers a queried row."
)


@dataclass(frozen=True, kw_only=True)
class QueryPolicy:
    """What a party answers: the table [queries] of its file. Paths are relative to the file.

    `data` holds the rows that may be asked for (None: those it was trained on), `ids` a column of
    the ids among them that may (None: all). `most` bounds the ids that are ever asked for, known
    or not. `uncovered` allows answers from coefficients that the training's guarantee does not
    cover, as those of admm under noise.
    """

    most: int
    data: Path | None = None
    ids: Path | None = None
    uncovered: bool = False

    @classmethod
    def of(cls, told: Mapping[str, Any], file: Path) -> QueryPolicy:
        """From the table of a party's file; mistakes are named."""
        known = [each.name for each in fields(cls)]
        for name, value in told.items():
            if name not in known:
                raise InputError(
                    f"{file}: [queries] has an unknown key {name!r}: the keys are "
                    f"{', '.join(known)}."
                )
            wanted: type = {"most": int, "uncovered": bool}.get(name, str)
            if not isinstance(value, wanted) or (wanted is int and isinstance(value, bool)):
                raise InputError(f"{file}: [queries] {name} must be of type {wanted.__name__}.")
        if "most" not in told or told["most"] < 0:
            raise InputError(f"{file}: [queries] needs most = the number of ids ever answered.")
        paths = {n: (file.parent / told[n]).resolve() for n in ("data", "ids") if n in told}
        return cls(**{**told, **paths})


@dataclass(frozen=True, kw_only=True)
class QueryDesk:
    """Answers requests for scores from one part. Without a `log` nothing is counted: all is here.

    Guarantee: docs/proofs/queries.md.
    """

    part: Callable[[], Part]
    data: Path
    id: str
    policy: QueryPolicy | None = None
    log: Path | None = None

    def answer(self, request: Message) -> Message:
        """Which ids are known and, if all are, their scores."""
        if self.log is not None and self.policy is None:
            raise InputError("This party answers no queries: its file has no [queries].")
        asked = hashes(request.arrays.get("ids"), "ids")
        if request.kind != KIND or not len(asked):
            raise RefusedError("A query asks for the scores of one id or more.")
        part = self.part()
        if word(request.values.get("of"), "of") != part.run:
            raise InputError("The query is about another training than this part's.")
        if self.policy is not None and not (part.covered or self.policy.uncovered):
            raise InputError(
                "Scores of this part would tell its exact coefficients, which the guarantee of its "
                "training does not cover: write uncovered = true under [queries] to allow that."
            )
        frame, ids = self._rows()
        own = id_hashes(ids, request.run)
        order = np.argsort(own, kind="stable")
        place = np.minimum(np.searchsorted(own[order], asked), len(own) - 1)
        rows = order[place]
        known = own[rows] == asked
        told = [str(ids[row]) for row in rows[known]]
        self._write(request, len(asked), told if known.all() else [])
        if not known.all():
            return request.reply(arrays={"known": known.astype(np.float64)})
        scores = part.scores(frame.take(rows))
        return request.reply(arrays={"known": np.ones(len(asked)), "scores": scores})

    def _rows(self) -> tuple[Any, list[Any]]:
        policy = self.policy
        frame = read_frame(self.data if policy is None or policy.data is None else policy.data)
        check_columns(frame, [self.id])
        ids = frame.column(self.id).to_pylist()
        row_order(ids, "The file of rows to be asked for")  # none missing, none twice
        if policy is not None and policy.ids is not None:
            chosen = read_frame(policy.ids)
            check_columns(chosen, [self.id])
            allowed = {str(value) for value in chosen.column(self.id).to_pylist()}
            kept = [index for index, value in enumerate(ids) if str(value) in allowed]
            frame, ids = frame.take(kept), [ids[index] for index in kept]
        if not ids:
            raise DataError("No row may be asked for: the ids of [queries] are not in its data.")
        return frame, ids

    def _write(self, request: Message, asked: int, answered: list[str]) -> None:
        """Count and log before anything leaves; two requests at once are counted one by one."""
        if self.log is None or self.policy is None:
            return
        self.log.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with locked(resolved(self.log).with_name(LOG + ".lock"), write=True, create=True):
            before = answered_so_far(self.log)
            if before + asked > self.policy.most:
                raise InputError(
                    f"{before} ids were asked for before and {asked} are asked for now, but "
                    f"[queries] allows {self.policy.most} in all."
                )
            line = {
                "time": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
                "query": request.run,
                "asked": asked,
                "answered": answered,
            }
            with os.fdopen(
                os.open(self.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), "ab"
            ) as file:
                file.write(json.dumps(line).encode() + b"\n")
                file.flush()
                os.fsync(file.fileno())


def answered_so_far(log: Path) -> int:
    """How many ids were asked for, by the log; a line that cannot be read is an error."""
    if not log.exists():
        return 0
    total = 0
    for number, line in enumerate(log.read_bytes().split(b"\n"), start=1):
        if not line:
            continue
        try:
            count = json.loads(line)["asked"]
        except (ValueError, KeyError, TypeError):
            raise DataError(
                f"Line {number} of {log} cannot be read: nothing is answered before it is mended."
            ) from None
        total += int(count)
    return total


def ask_scores(channel: Channel, model: VerticalModel, ids: Sequence[Any]) -> Vector:
    """The model's score of each id, from the parties' scores; unknown ids are named by row."""
    if set(channel.parties) != set(model.weights):
        lacking = ", ".join(repr(name) for name in model.weights if name not in channel.parties)
        extra = ", ".join(repr(name) for name in channel.parties if name not in model.weights)
        raise InputError(
            "The model needs every one of its parties and no other"
            + (f"; missing: {lacking}" if lacking else "")
            + (f"; not of this model: {extra}" if extra else "")
            + "."
        )
    run = secrets.token_hex(8)
    request = Message(
        kind=KIND, run=run, round=0, arrays={"ids": id_hashes(ids, run)}, values={"of": model.run}
    )
    replies = ask_all(channel, request, shapes={"known": (len(ids),)})
    scores: dict[str, Vector] = {}
    for name, reply in replies.items():
        try:
            known = numbers(reply.arrays.get("known"), (len(ids),), "known")
            unknown = np.flatnonzero(known != 1.0)
            if len(unknown):
                raise PartyError(
                    f"Party {name!r} has no row that it answers for {len(unknown)} of the ids, the "
                    f"first in row {unknown[0] + 1} of the id file: take them out, or ask the "
                    "party."
                )
            scores[name] = numbers(reply.arrays.get("scores"), (len(ids),), "scores")
        except RefusedError as error:
            raise PartyError(f"Party {name!r} did not send scores: {error}") from None
    return model.score(scores)


def read_ids(file: Path, column: str) -> list[Any]:
    """The ids of a file in their order."""
    frame = read_frame(file)
    check_columns(frame, [column])
    ids = frame.column(column).to_pylist()
    if not ids:
        raise DataError(f"{str(file)!r} has no row: name the ids to predict.")
    missing = next((row for row, value in enumerate(ids, start=1) if value in (None, "")), None)
    if missing is not None:
        raise DataError(f"Column {column!r}, row {missing} of {str(file)!r} has no id.")
    return list(ids)


def is_party_file(file: Path) -> bool:
    """Whether a file is a party's own TOML file rather than its data."""
    if file.suffix != ".toml":
        return False
    try:
        return "party" in tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
