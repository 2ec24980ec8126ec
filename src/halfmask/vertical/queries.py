"""A trained model, part by part, and the scores that the label holder asks for by id.

A score tells its row's own columns: no noise covers it. So each party decides in its own file
whether it answers, for which ids and how many, and writes every answer down before it leaves.
Guarantee: docs/proofs/queries.md.
"""

from __future__ import annotations

import datetime
import io
import json
import os
import secrets
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.special import expit

from halfmask import model_folder
from halfmask.accounting.ledger import locked, resolved
from halfmask.data.frames import check_columns
from halfmask.errors import DataError, InputError
from halfmask.model import class_array
from halfmask.model_folder import (
    VERTICAL_FILE,
    damaged,
    opened,
    read_arrays,
    read_json,
    rebuilt,
    without_objects,
)
from halfmask.schema import Schema
from halfmask.storage import write_durably
from halfmask.table import Encoder, read_frame
from halfmask.types import Vector
from halfmask.vertical.channel import (
    Channel,
    Message,
    PartyError,
    RefusedError,
    checked_replies,
    hashes,
    number_array,
    word,
)
from halfmask.vertical.experts import Combination
from halfmask.vertical.files import ID_NEEDED, VerticalTable, features
from halfmask.vertical.party import id_hashes, row_order

if TYPE_CHECKING:
    from halfmask.vertical.simulation import Simulation

StatementJson = Mapping[str, Any]
"""What `Statement.to_json` gives, or of a party without a guarantee a null epsilon and why."""

PART, MODEL = "halfmask-vertical-part-1", "halfmask-vertical-1"


@dataclass(frozen=True, kw_only=True, eq=False)
class Part:
    """One party's side of the model. `covered`: its coefficients are released values.

    Guarantee: docs/proofs/queries.md.
    """

    party: str
    method: str
    run: str
    encoder: Encoder
    coefficients: Vector
    covered: bool
    statement: StatementJson = field(default_factory=dict)

    def scores(self, frame: Any) -> Vector:
        """⟨coefficients, row⟩ of every row of this party's columns."""
        rows = features(self.encoder, frame)
        if rows.shape[1] != len(self.coefficients):
            damaged("a part has not one coefficient per feature")
        return np.asarray(rows @ self.coefficients, dtype=np.float64)

    def save(self, folder: Path) -> None:
        """part.npz, then part.json, each as a whole."""
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        buffer = io.BytesIO()
        np.savez(buffer, **without_objects({"coefficients": self.coefficients}))
        write_durably(folder / "part.npz", buffer.getvalue())
        told = {
            "format": PART,
            "party": self.party,
            "method": self.method,
            "run": self.run,
            "covered": self.covered,
            "encoder": self.encoder.to_json(),
            "statement": dict(self.statement),
        }
        write_durably(folder / "part.json", json.dumps(told, indent=2).encode())

    @classmethod
    def load(cls, folder: Path) -> Part:
        """The inverse of `save`; a damaged folder is an error that says what is wrong."""
        if not (folder / "part.json").is_file():
            raise InputError(f"There is no part of a model in {str(folder)!r}: train first.")
        told = read_json(folder / "part.json")
        if not isinstance(told, dict) or told.get("format") != PART:
            damaged("part.json does not describe a part of a model")
        coefficients = read_arrays(folder / "part.npz").get("coefficients")
        if coefficients is None or coefficients.ndim != 1 or coefficients.dtype != np.float64:
            damaged("the coefficients of a part")
        return cls(
            party=model_folder.field(told, "party", str),
            method=model_folder.field(told, "method", str),
            run=model_folder.field(told, "run", str),
            covered=model_folder.field(told, "covered", bool),
            encoder=rebuilt(lambda: Encoder.from_json(told["encoder"]), "part.json"),
            coefficients=coefficients,
            statement=model_folder.field(told, "statement", dict),
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class VerticalModel:
    """How the parties' scores become a prediction: score = intercept + Σ weight · score of a party.

    `privacy` holds every party's statement as JSON; `details` are public facts of the training.
    """

    method: str
    run: str
    weights: Mapping[str, float]
    intercept: float
    rule: str
    label: str
    classes: tuple[Any, ...] | None
    id: str
    privacy: Mapping[str, StatementJson]
    details: Mapping[str, Any] = field(default_factory=dict)
    label_bounds: tuple[float, float] | None = None

    @property
    def parties(self) -> tuple[str, ...]:
        """The names of the parties, in the order of the sum."""
        return tuple(self.weights)

    def score(self, scores: Mapping[str, Vector]) -> Vector:
        """The log-odds of the second class, or the number in units of half its range."""
        total = sum(weight * scores[name] for name, weight in self.weights.items())
        return np.asarray(self.intercept + total, dtype=np.float64)

    def probabilities(self, score: Vector) -> Vector:
        """One column per class."""
        second = expit(score)
        return np.column_stack([1 - second, second])

    def predicted(self, score: Vector) -> Any:
        """The likeliest class of each row, or the number within its bounds."""
        if self.classes is None:
            assert self.label_bounds is not None
            low, high = self.label_bounds
            return np.clip((high + low) / 2 + (high - low) / 2 * score, low, high)
        return class_array(self.classes)[(score > 0).astype(int)]

    @classmethod
    def trained(
        cls,
        schema: Schema,
        combination: Combination,
        privacy: Mapping[str, StatementJson],
        *,
        method: str,
        run: str,
        id: str,
        details: Mapping[str, Any],
    ) -> VerticalModel:
        """The label holder's side after training; statements are in the order of the parties."""
        return cls(
            method=method,
            run=run,
            weights=dict(zip(privacy, combination.weights, strict=True)),
            intercept=combination.intercept,
            rule=combination.rule,
            label=schema.label.name,
            classes=schema.label.classes,
            id=id,
            privacy=privacy,
            details=details,
            label_bounds=schema.label.bounds,
        )

    def save(self, folder: Path) -> None:
        """Write vertical.json."""
        folder.mkdir(parents=True, exist_ok=True)
        told = {"format": MODEL, **vars(self), "classes": self.classes and list(self.classes)}
        told = {name: dict(v) if isinstance(v, Mapping) else v for name, v in told.items()}
        text = json.dumps(told, indent=2, allow_nan=False)
        write_durably(folder / VERTICAL_FILE, text.encode())

    @classmethod
    def load(cls, folder: Path) -> VerticalModel:
        """Read what `save` has written."""
        if not (folder / VERTICAL_FILE).is_file():
            raise InputError(
                f"There is no vertical model in {str(folder)!r}: pass the folder of "
                "`vertical simulate --out`, or the run file of a run that has ended."
            )
        told = read_json(folder / VERTICAL_FILE)
        if not isinstance(told, dict) or told.pop("format", None) != MODEL:
            damaged(f"{VERTICAL_FILE} does not describe a vertical model")
        return rebuilt(lambda: _checked(cls, told), VERTICAL_FILE)


def _checked(kind: type[VerticalModel], told: dict[str, Any]) -> VerticalModel:
    words = ("method", "run", "rule", "label", "id")
    for name in words:
        model_folder.field(told, name, str)
    weights = model_folder.field(told, "weights", dict)
    if not weights or not all(type(weight) in (int, float) for weight in weights.values()):
        damaged("its weights")
    # JSON's whole numbers have no end; what is no float is no weight.
    told["weights"] = {name: float(weight) for name, weight in weights.items()}
    told["intercept"] = float(model_folder.field(told, "intercept", int, float))
    model_folder.field(told, "privacy", dict)
    model_folder.field(told, "details", dict)
    if told.get("classes") is None:
        bounds = model_folder.field(told, "label_bounds", list)
        plain = all(type(end) in (int, float) for end in bounds)
        if len(bounds) != 2 or not plain or not bounds[0] < bounds[1]:
            damaged("the bounds of its label")
        return kind(**{**told, "classes": None, "label_bounds": tuple(map(float, bounds))})
    classes = tuple(model_folder.field(told, "classes", list))
    if len(classes) != 2:
        damaged("its classes")
    return kind(**{**told, "classes": classes, "label_bounds": None})


def save_simulation(
    folder: Path,
    simulation: Simulation,
    table: VerticalTable,
    schema: Schema,
    id_column: str,
    statements: Mapping[str, StatementJson],
    settings: Mapping[str, Any],
) -> None:
    """The parts of all parties, and then the label holder's file, which makes it a model."""
    # Exact coefficients under noisy shares are outside the guarantee (docs/proofs/queries.md).
    covered = simulation.method != "admm" or not simulation.releasers
    for part in table.columns:
        assert part.encoder is not None
        Part(
            party=part.name,
            method=simulation.method,
            run=simulation.run,
            encoder=part.encoder,
            coefficients=simulation.coefficients[part.name],
            covered=covered,
            statement=statements[part.name],
        ).save(folder / "parties" / part.name)
    VerticalModel.trained(
        schema,
        simulation.combination,
        statements,
        method=simulation.method,
        run=simulation.run,
        id=id_column,
        details={
            "rounds": simulation.rounds,
            "costs": dict(simulation.costs),
            "settings": settings,
        },
    ).save(folder)


KIND = "query-scores"
LOG = "queries.jsonl"
_LONGEST_LOG = 1 << 32
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
    """Answers requests for scores from the part in `folder`.

    Without a `log` nothing is counted: all is here.

    Guarantee: docs/proofs/queries.md.
    """

    folder: Path
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
        part = Part.load(self.folder)
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
        self._write(request, len(asked), told, scored=bool(known.all()))
        if not known.all():
            return request.reply(arrays={"known": known.astype(np.float64)})
        scores = part.scores(frame.take(rows))
        return request.reply(arrays={"known": np.ones(len(asked)), "scores": scores})

    def _rows(self) -> tuple[Any, list[Any]]:
        policy = self.policy
        file = self.data if policy is None or policy.data is None else policy.data
        frame, ids = _with_ids(file, self.id)
        row_order(ids, "The file of rows to be asked for")  # none missing, none twice
        if policy is not None and policy.ids is not None:
            allowed = {str(value) for value in read_ids(policy.ids, self.id)}
            kept = [index for index, value in enumerate(ids) if str(value) in allowed]
            frame, ids = frame.take(kept), [ids[index] for index in kept]
        if not ids:
            raise DataError("No row may be asked for: the ids of [queries] are not in its data.")
        return frame, ids

    def _write(self, request: Message, asked: int, told: list[str], *, scored: bool) -> None:
        """Count and log before anything leaves; two requests at once are counted one by one.

        Of a request with an unknown id no score leaves, but which of the others are known does.
        """
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
                "answered": told if scored else [],
                "known": [] if scored else told,
            }
            with os.fdopen(
                os.open(self.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), "ab"
            ) as file:
                file.write(json.dumps(line).encode() + b"\n")
                file.flush()
                os.fsync(file.fileno())


def answered_so_far(log: Path) -> int:
    """How many ids were asked for, by the log; a line that cannot be read is an error."""
    if not os.path.lexists(log):
        return 0
    total = 0
    with opened(log, _LONGEST_LOG) as file:
        lines = file.read().split(b"\n")
    for number, line in enumerate(lines, start=1):
        if not line:
            continue
        try:
            count = json.loads(line)["asked"]
        except (ValueError, LookupError, TypeError, RecursionError):
            count = None
        if type(count) is not int or count < 0:
            raise DataError(
                f"Line {number} of {log} cannot be read: nothing is answered before it is mended."
            )
        total += count
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
    shapes = {"known": (len(ids),)}
    replies = checked_replies(channel, request, channel.exchange(request), shapes)
    scores: dict[str, Vector] = {}
    for name, reply in replies.items():
        try:
            known = number_array(reply.arrays.get("known"), (len(ids),), "known")
            unknown = np.flatnonzero(known != 1.0)
            if len(unknown):
                raise PartyError(
                    f"Party {name!r} has no row that it answers for {len(unknown)} of the ids, the "
                    f"first in row {unknown[0] + 1} of the id file: take them out, or ask the "
                    "party."
                )
            scores[name] = number_array(reply.arrays.get("scores"), (len(ids),), "scores")
        except RefusedError as error:
            raise PartyError(f"Party {name!r} did not send scores: {error}") from None
    return model.score(scores)


def read_ids(file: Path, column: str) -> list[Any]:
    """The ids of a file in their order."""
    _, ids = _with_ids(file, column)
    if not ids:
        raise DataError(f"{str(file)!r} has no row: name at least one id.")
    missing = next((row for row, value in enumerate(ids, start=1) if value in (None, "")), None)
    if missing is not None:
        raise DataError(f"Column {column!r}, row {missing} of {str(file)!r} has no id.")
    return ids


def _with_ids(file: Path, column: str) -> tuple[Any, list[Any]]:
    frame = read_frame(file)
    check_columns(frame, [column], advice=ID_NEEDED)
    return frame, frame.column(column).to_pylist()


def is_party_file(file: Path) -> bool:
    """Whether a file is a party's own TOML file rather than its data."""
    if file.suffix != ".toml":
        return False
    try:
        return "party" in tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
