"""Parties and coordinator as they are set up between organisations: one TOML file each.

A party's file names its own data, budget and method; the coordinator can ask only for what the
party's own file allows. The party is opened afresh for every message and remembers through
`RoundStore`, so a process that dies between two rounds loses nothing.
"""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np

from halfmask.accounting.budget import Budget
from halfmask.accounting.ledger import BudgetLedger, Ledger, MemoryLedger
from halfmask.accounting.relations import Relation, check_relation
from halfmask.errors import InputError
from halfmask.frames import check_columns
from halfmask.mechanisms.release import Door, Releaser, system_door
from halfmask.schema import Schema
from halfmask.settings import config_from_words, kind_of
from halfmask.table import Encoder, read_frame
from halfmask.vertical.admm_party import AdmmParty, share_target
from halfmask.vertical.aggregate import SHARE
from halfmask.vertical.alignment import row_order
from halfmask.vertical.block import REGULARISERS
from halfmask.vertical.channel import Message
from halfmask.vertical.experts import ExpertParty, requested_excess, training_costs
from halfmask.vertical.files import label_codes, party_schemas
from halfmask.vertical.newton import ExpertRows
from halfmask.vertical.part import Part
from halfmask.vertical.party import Party, admm_party
from halfmask.vertical.queries import KIND, LOG, QueryDesk, QueryPolicy
from halfmask.vertical.statements import party_statement
from halfmask.vertical.store import RoundStore, Stored
from halfmask.vertical.stranger import whole, word

_MOST_ROUNDS = 1_000_000_000

LABEL_HOLDERS_SETTINGS = {
    "experts": ("combine", "damping"),
    "admm": ("loss", "rho", "update", "rounds", "tolerance"),
}
PARTYS_SETTINGS = {
    "experts": ("steps", "memory", "prior_reach"),
    "admm": (
        "strength",
        "regulariser",
        "constraint",
        "reach",
        "rounds",
        "noise",
        "noise_std",
        "noise_radius",
        "target_bound",
    ),
}
"""Which settings of a method each side's file may hold: the other side decides the rest."""


@dataclass(frozen=True, kw_only=True)
class PartyFile:
    """What one party decides for itself. Paths are relative to the file.

    `aggregate`: an expert's budget also pays for counts of its scores, by which to combine it.
    Without `queries` it tells no score of a row after training (halfmask.vertical.queries).
    `settings` are those of the method that a party decides (PARTYS_SETTINGS).
    """

    party: str
    schema: Path
    data: Path
    id: str
    state: Path
    method: str = "experts"
    epsilon: float = 1.0
    delta: float = 1e-6
    relation: str = "replace"
    noise: str = "row"
    rounds: int = 3
    strength: float = 10.0
    aggregate: bool = False
    ledger: Path | None = None
    queries: QueryPolicy | None = None
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def config(self) -> Any:
        """The method's configuration, of which this party follows its own part."""
        own = {"noise": self.noise, "rounds": self.rounds, "strength": self.strength}
        return _config(self.method, own if self.method == "admm" else {}, self.settings)


@dataclass(frozen=True, kw_only=True)
class RunFile:
    """What the label holder decides: labels, method, and the public keys of the parties.

    `hide_labels` is the ε of randomised labels, which are then all that is ever told of them.
    Without it, where the label is private, all that the experts of all parties and the class prior
    will spend of it is charged. Either goes to `ledger`, or to a new one in the folder `out`, which
    allows `hide_labels` or `label_epsilon`. `settings` are those of the method that the label
    holder decides (LABEL_HOLDERS_SETTINGS).
    """

    schema: Path
    label: Path
    id: str
    out: Path
    parties: dict[str, str] = field(default_factory=dict)
    method: str = "experts"
    rounds: int = 3
    rho: float = 0.1
    update: str = "sharing"
    combine: str = "fixed"
    hide_labels: float | None = None
    label_epsilon: float = 1.0
    delta: float = 1e-6
    ledger: Path | None = None
    timeout: float = 600.0
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def config(self) -> Any:
        """The method's configuration, of which the label holder follows its own part."""
        own = {"rounds": self.rounds, "rho": self.rho, "update": self.update}
        own = own if self.method == "admm" else {"combine": self.combine}
        return _config(self.method, own, self.settings)


def read_party_file(path: str | Path) -> PartyFile:
    """Read a party's file; unknown and missing keys are named."""
    told = _settings(PartyFile, path)
    if "queries" in told:
        if not isinstance(told["queries"], dict):
            raise InputError(f"{path}: queries must be a table [queries].")
        told["queries"] = QueryPolicy.of(told["queries"], Path(path).resolve())
    party = PartyFile(**told)
    _check_settings(path, told, party.method, PARTYS_SETTINGS, party)
    return party


def read_run_file(path: str | Path) -> RunFile:
    """Read the label holder's file; unknown and missing keys are named."""
    told = _settings(RunFile, path)
    run = RunFile(**told)
    if run.combine not in ("fixed", "aggregate"):
        raise InputError(f"{path}: combine must be fixed or aggregate, got {run.combine!r}.")
    _check_settings(path, told, run.method, LABEL_HOLDERS_SETTINGS, run)
    return run


def _config(method: str, own: dict[str, Any], settings: dict[str, Any]) -> Any:
    return config_from_words(method, [], {**own, **settings}) or kind_of(method)()


def _check_settings(
    path: str | Path,
    told: dict[str, Any],
    method: str,
    known: dict[str, tuple[str, ...]],
    made: PartyFile | RunFile,
) -> None:
    """Refuse settings of the other side, settings that are said twice, and wrong values."""
    if method not in known:
        raise InputError(f"{path}: method must be one of {', '.join(known)}, got {method!r}.")
    settings = told.get("settings", {})
    if not isinstance(settings, dict):
        raise InputError(f"{path}: settings must be a table [settings].")
    for name in settings:
        if name not in known[method]:
            raise InputError(
                f"{path}: [settings] has {name!r}, which this file does not decide for {method}: "
                f"the settings are {', '.join(known[method])}."
            )
        if name in told:
            raise InputError(f"{path}: {name} is said twice: keep the one under [settings].")
    try:
        _ = made.config
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


def _settings(cls: type[Any], path: str | Path) -> dict[str, Any]:
    file = Path(path)
    try:
        given = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"Cannot read {file}: {error.strerror}.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{file} is not valid TOML: {error}.") from None
    kinds = {item.name: str(item.type) for item in fields(cls)}
    unknown = [key for key in given if key not in kinds]
    if unknown:
        raise InputError(
            f"{file} has an unknown key {unknown[0]!r}: the keys are {', '.join(kinds)}."
        )
    for key, kind in kinds.items():
        if key in given and kind.startswith("Path"):
            given[key] = (file.parent / str(given[key])).resolve()
        number = isinstance(given.get(key, 0), int | float) and not isinstance(given.get(key), bool)
        if kind.startswith(("float", "int")) and not number:
            raise InputError(f"{file}: {key} must be a number without quotation marks.")
        if kind == "bool" and not isinstance(given.get(key, False), bool):
            raise InputError(f"{file}: {key} must be true or false.")
    try:
        cls(**given)
    except TypeError as error:
        raise InputError(f"{file} is incomplete: {error}.") from None
    return given


def sorted_rows(frame: Any, id_column: str, who: str) -> tuple[Any, list[Any]]:
    """The frame and its ids in the order of the ids."""
    check_columns(frame, [id_column])
    ids = frame.column(id_column).to_pylist()
    order = row_order(ids, who)
    return frame.take(order), [ids[index] for index in order]


class NetworkParty:
    """A party as it answers messages from elsewhere: opened from its file, durable.

    `door` is for tests; no file can ask for noise that is not secret.
    """

    def __init__(self, settings: PartyFile, door: Door = system_door) -> None:
        self.settings = settings
        self._door = door
        schemas = party_schemas(Schema.from_toml(settings.schema))
        if settings.party not in schemas:
            raise InputError(f"The schema has no column of party {settings.party!r}.")
        self._schema = schemas[settings.party]
        frame, self._ids = sorted_rows(
            read_frame(settings.data), settings.id, f"The file of party {settings.party!r}"
        )
        self._encoder = Encoder.fit(self._schema, frame)
        table = self._encoder.encode(frame, with_label=False)
        self._matrix = np.hstack([table.public, table.private])
        self._row_norm = math.sqrt(len(self._schema.columns))
        self._relation: Relation = check_relation(settings.relation)
        self._store = RoundStore(settings.state)
        self._opened: Releaser | None = None

    def answer(self, request: Message) -> Message:
        """The reply; a round that was answered before is answered alike."""
        word(request.run, "run")
        whole(request.round, "round", least=0, most=_MOST_ROUNDS)
        if request.kind == "hello":
            return request.reply(
                values={"party": self.settings.party, "method": self.settings.method}
            )
        if request.kind == "ids":
            party = Party(self.settings.party, rows=len(self._ids), ids=self._ids)
            return party.answer(request)
        if request.kind == KIND:
            return self.desk().answer(request)
        if request.kind == "statement":
            # It says nothing but what was promised: public facts of the training.
            return request.reply(values={"statement": json.dumps(dict(self.part().statement))})
        if request.kind == "expert-terms" and self.settings.method == "experts":
            return self._expert(request).party.answer(request)
        # From the memory's first byte to its last: two requests at once would each find the round
        # unanswered.
        with self._store.alone(self._ledger_path):
            return self._answer_once(request)

    def part(self) -> Part:
        """This party's part of the model that it trained last."""
        return Part.load(self.settings.state / "part")

    def desk(self) -> QueryDesk:
        """What answers queries, as the party's file allows."""
        own = self.settings
        return QueryDesk(
            part=self.part,
            data=own.data,
            id=own.id,
            policy=own.queries,
            log=own.state / LOG,
        )

    def check_memory(self) -> None:
        """Raise `DataError` where the memory is not the newest: nothing would be answered."""
        with self._store.alone(self._ledger_path):
            self._store.load(self._ledger() if self._pays else None)

    def _answer_once(self, request: Message) -> Message:
        ledger = self._ledger() if self._pays else None
        stored = self._store.load(ledger)
        before = stored if stored is not None and stored.run == request.run else None
        if before is not None and (before.kind, before.round) == (request.kind, request.round):
            return request.reply(arrays=before.reply)
        due = 1 if before is None else before.round + 1
        if request.round != due:
            raise InputError(
                f"Party {self.settings.party!r} cannot answer round {request.round} of this run: "
                f"round {due} is next. Resume the run that it takes part in, or start a new one."
            )
        reply, memory = self._compute(request, before)
        self._keep_part(request, memory["x"], before)
        self._store.save(
            Stored(
                run=request.run,
                kind=request.kind,
                round=request.round,
                reply={name: np.asarray(array) for name, array in reply.arrays.items()},
                memory=memory,
                key="" if stored is None else stored.key,
            ),
            ledger,
        )
        return reply

    def _compute(
        self, request: Message, before: Stored | None
    ) -> tuple[Message, dict[str, np.ndarray]]:
        if request.kind == "admm-share" and self.settings.method == "admm":
            return self._share(request, before)
        if request.kind == "expert-train" and self.settings.method == "experts":
            return self._train(request)
        raise InputError(
            f"Party {self.settings.party!r} was opened for {self.settings.method!r} and does not "
            f"answer {request.kind!r}."
        )

    def _keep_part(self, request: Message, coefficients: np.ndarray, before: Stored | None) -> None:
        """Before the answer leaves, so that whatever was answered has its part here."""
        own = self.settings
        # Rounds after the first are paid for already: the first one's statement holds for all.
        first = before is None or not (own.state / "part" / "part.json").exists()
        Part(
            party=own.party,
            method=own.method,
            run=request.run,
            encoder=self._encoder,
            coefficients=np.asarray(coefficients, dtype=np.float64),
            # Without noise there is nothing to be covered.
            covered=own.method == "experts" or not self._pays,
            statement=self._statement(request) if first else self.part().statement,
        ).save(own.state / "part")

    def _statement(self, request: Message) -> dict[str, Any]:
        """What this party's training promises, from what its ledger was charged for it."""
        own, door = self.settings, self._opened
        hidden = own.method == "experts" and requested_excess(request) > 0
        whole = Schema.from_toml(own.schema)
        others = [column.name for column in whole.columns if column.party != own.party]
        return party_statement(
            own.method,
            door if self._pays else None,
            public=(*self._schema.public, *others),
            private=self._schema.private,
            delta=own.delta,
            relation=self._relation,
            label=whole.label.name,
            label_private=own.method == "experts" and whole.label.role == "private" and not hidden,
            label_hidden=hidden,
            noise=getattr(own.config, "noise", "row"),
        )

    @property
    def _pays(self) -> bool:
        """Whether answers are paid for; exact shares, which nothing protects, are not."""
        return self.settings.method == "experts" or bool(self.settings.config.is_private)

    @property
    def _ledger_path(self) -> Path:
        return self.settings.ledger or self.settings.state / "ledger.jsonl"

    def _ledger(self) -> Ledger:
        own = self.settings
        return Ledger.open_or_create(
            self._ledger_path, epsilon=own.epsilon, delta=own.delta, relation=self._relation
        )

    def _ratio(self, withhold_share: float) -> float:
        mu = Budget(epsilon=self.settings.epsilon, delta=self.settings.delta).mu
        return mu if self._relation == "replace" else mu / withhold_share

    def _share(
        self, request: Message, before: Stored | None
    ) -> tuple[Message, dict[str, np.ndarray]]:
        own, config = self.settings, self.settings.config
        noise, rounds = config.share_noise, config.admm.rounds
        strength, constraint = config.chosen_strength, config.chosen_constraint
        if noise.is_private:
            share = math.sqrt(0.5) if noise.kind == "row" else 1.0
            noise = noise.fitted(ratio=self._ratio(share), rounds=rounds, row_norm=self._row_norm)
        terms = np.array(
            [
                *(noise.rounds, noise.ratio, noise.row_norm, noise.radius, noise.target_bound),
                *(strength, config.reach, REGULARISERS.index(config.regulariser)),
                ("none", "box", "ball").index(config.constraint),
            ],
            dtype=np.float64,
        )
        if before is not None and not np.array_equal(before.memory.get("terms", ()), terms):
            # The rounds that were paid for had the noise of the old terms.
            raise InputError(
                f"The file of party {own.party!r} has changed since the run began: restore it, or "
                "start a new run."
            )
        # The same refusals as in the round itself, before it is charged.
        share_target(
            residual=request.arrays.get("residual"),
            dual=request.arrays.get("dual"),
            rho=request.values.get("rho"),
            divisor=request.values.get("divisor"),
            released=np.zeros(len(self._ids)) if before is None else before.memory["released"],
            strength=strength,
            regulariser=config.regulariser,
            noise=noise,
        )
        side = AdmmParty(
            self._matrix,
            strength=strength,
            regulariser=config.regulariser,
            constraint=constraint,
            noise=noise,
            releaser=self._releaser(
                self._ledger()
                if noise.is_private
                else MemoryLedger(epsilon=own.epsilon, delta=own.delta)
            ),
            name=own.party,
            paid_rounds=None if before is None else rounds - before.round,
        )
        if before is not None:
            side.released = np.array(before.memory["released"])
            side.x = np.array(before.memory["x"])
        reply = admm_party(own.party, side).answer(request)
        return reply, {"released": side.released, "x": side.x, "terms": terms}

    def _train(self, request: Message) -> tuple[Message, dict[str, np.ndarray]]:
        side = self._expert(request)
        reply = side.party.answer(request)
        assert side.coefficients is not None
        return reply, {"x": side.coefficients}

    def _expert(self, request: Message) -> ExpertParty:
        own = self.settings
        excess = requested_excess(request)
        rows = ExpertRows(
            row_norm=self._row_norm,
            nonnegative=not any(c.scaled for c in self._schema.columns),
            # Randomised labels are the label holder's guarantee; the party's is for its block.
            label_private=self._schema.label.role == "private" and not excess,
            target_excess=excess,
        )
        config, share = own.config.newton, SHARE if own.aggregate else 0.0
        return ExpertParty(
            own.party,
            self._matrix,
            rows=rows,
            ratio=self._ratio(training_costs(rows, 1.0, config, share).withhold),
            releaser=self._releaser(self._ledger(), whole_plan=True),
            config=config,
            aggregate_share=share,
        )

    def _releaser(self, ledger: BudgetLedger, *, whole_plan: bool = False) -> Releaser:
        """The door of the answer at hand; the statement is made of what it opened."""
        self._opened = self._door(ledger, whole_plan=whole_plan)
        return self._opened


def read_labels(run: RunFile) -> tuple[np.ndarray, Sequence[Any]]:
    """The labels as 0 and 1 and their ids, in the order of the ids."""
    schema = Schema.from_toml(run.schema)
    party_schemas(schema)
    frame, ids = sorted_rows(read_frame(run.label), run.id, "The label file")
    return label_codes(schema, frame), ids
