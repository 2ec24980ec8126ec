"""Parties and coordinator as they are set up between organisations: one TOML file each.

A party's file names its own data, budget and method; the coordinator can ask only for what the
party's own file allows. The party is opened afresh for every message and remembers through
`RoundStore`, so a process that dies between two rounds loses nothing.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from halfmask.accounting.budget import Budget
from halfmask.accounting.events import check_relation
from halfmask.accounting.ledger import BudgetLedger, Ledger, MemoryLedger, locked, resolved
from halfmask.errors import DataError, InputError
from halfmask.mechanisms.release import MakeReleaser, Releaser, system_releaser
from halfmask.model_folder import read_json
from halfmask.schema import Schema
from halfmask.settings import config_from_words, kind_of, read_toml
from halfmask.statement import made_notes
from halfmask.storage import write_durably
from halfmask.types import Vector
from halfmask.vertical.admm import AdmmConfig
from halfmask.vertical.admm_party import open_sharing_party, share_noise
from halfmask.vertical.block import REGULARISERS
from halfmask.vertical.channel import MOST, Message, number_array, one_number, whole, word
from halfmask.vertical.experts import (
    ExpertParty,
    ExpertsConfig,
    LabelTerms,
    charge_labels,
    class_prior,
    open_expert,
    requested_excess,
)
from halfmask.vertical.files import party_schemas, read_columns
from halfmask.vertical.party import Coordinator, HiddenLabels, Party, hide_labels
from halfmask.vertical.queries import KIND, LOG, Part, QueryDesk, QueryPolicy, StatementJson
from halfmask.vertical.statements import LabelFacts, party_statement
from halfmask.vertical.store import AnsweredRound, PartyMemory, RoundStore

MOST_ROUNDS = 1_000_000_000

LABEL_HOLDERS_SETTINGS = {
    "experts": ("combine", "damping"),
    "admm": ("loss", "rho", "update", "rounds", "tolerance"),
}
PARTYS_SETTINGS = {
    "experts": ("steps", "memory", "prior_reach"),
    "admm": (
        *("strength", "regulariser", "constraint", "reach", "rounds"),
        *("noise", "noise_std", "noise_radius", "target_bound"),
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
    def config(self) -> ExpertsConfig | AdmmConfig:
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
    def config(self) -> ExpertsConfig | AdmmConfig:
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


def _config(
    method: str, own: dict[str, Any], settings: dict[str, Any]
) -> ExpertsConfig | AdmmConfig:
    config: ExpertsConfig | AdmmConfig = (
        config_from_words(method, [], {**own, **settings}) or kind_of(method)()
    )
    return config


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
    if os.path.exists(file) and not os.path.isfile(file):
        raise InputError(f"{file} is not a regular file, which is read again for every message.")
    given = read_toml(file)
    kinds = {item.name: str(item.type) for item in fields(cls)}
    unknown = [key for key in given if key not in kinds]
    if unknown:
        raise InputError(
            f"{file} has an unknown key {unknown[0]!r}: the keys are {', '.join(kinds)}."
        )
    for key, kind in kinds.items():
        if key in given:
            given[key] = _checked(file, key, kind, given[key])
    try:
        cls(**given)
    except TypeError as error:
        raise InputError(f"{file} is incomplete: {error}.") from None
    return given


def _checked(file: Path, key: str, kind: str, value: Any) -> Any:
    """The value of a key, which must be of the kind that the file's class declares."""
    text = isinstance(value, str) and bool(value) and "\0" not in value
    if kind.startswith("Path"):
        if not text:
            raise InputError(f'{file}: {key} must be the name of a file: write {key} = "...".')
        return (file.parent / value).resolve()
    if kind.startswith("str") and not text:
        raise InputError(f'{file}: {key} must be a text: write {key} = "...".')
    if kind.startswith(("float", "int")):
        plain = isinstance(value, int | float) and not isinstance(value, bool)
        if not plain or not abs(value) <= sys.float_info.max:
            raise InputError(f"{file}: {key} must be a number without quotation marks.")
        if kind.startswith("int") and not isinstance(value, int):
            raise InputError(f"{file}: {key} must be a whole number.")
    if kind == "bool" and not isinstance(value, bool):
        raise InputError(f"{file}: {key} must be true or false.")
    if kind.startswith("dict[str, str]") and not (
        isinstance(value, dict) and all(isinstance(each, str) for each in value.values())
    ):
        raise InputError(f'{file}: {key} must be a table of texts: write NAME = "..." for each.')
    return value


class NetworkParty:
    """A party as it answers messages from elsewhere: opened from its file, durable.

    `make_releaser` is for tests; no file can ask for noise that is not secret.
    """

    def __init__(self, settings: PartyFile, make_releaser: MakeReleaser = system_releaser) -> None:
        self.settings = settings
        self._make_releaser = make_releaser
        self._whole_schema = Schema.from_toml(settings.schema)
        schemas = party_schemas(self._whole_schema)
        if settings.party not in schemas:
            raise InputError(f"The schema has no column of party {settings.party!r}.")
        self._columns = read_columns(
            schemas[settings.party], settings.party, settings.data, settings.id
        )
        self._budget = Budget(
            epsilon=settings.epsilon,
            delta=settings.delta,
            relation=check_relation(settings.relation),
        )
        self._store = RoundStore(settings.state)
        self._releaser: Releaser | None = None

    def answer(self, request: Message) -> Message:
        """The reply; a round that was answered before is answered alike."""
        word(request.run, "run")
        whole(request.round, "round", least=0, most=MOST_ROUNDS)
        if request.kind == "hello":
            return request.reply(
                values={"party": self.settings.party, "method": self.settings.method}
            )
        if request.kind == "ids":
            ids = self._columns.ids
            return Party(self.settings.party, rows=len(ids), ids=ids).answer(request)
        if request.kind == KIND:
            return self.desk().answer(request)
        if request.kind == "statement":
            # It says nothing but what was promised: public facts of the training.
            return request.reply(values={"statement": json.dumps(dict(self.part().statement))})
        if request.kind == "expert-terms" and self.settings.method == "experts":
            return self._expert(request).answer(request)
        # From the memory's first byte to its last: two requests at once would each find the round
        # unanswered.
        with self._store.alone(self._ledger_path):
            return self._answer_once(request)

    def part(self) -> Part:
        """This party's part of the model that it trained last."""
        return Part.load(self.settings.state / "part")

    @property
    def has_part(self) -> bool:
        """Whether it has trained before."""
        return (self.settings.state / "part" / "part.json").exists()

    def desk(self) -> QueryDesk:
        """What answers queries, as the party's file allows."""
        own = self.settings
        return QueryDesk(
            folder=own.state / "part",
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
        if before is not None and not self.has_part:
            # Its statement tells what the first round charged for all of them.
            raise DataError(
                f"The part of the model in {self.settings.state} is gone: restore it, or start a "
                "new run, which is charged anew, with another state folder."
            )
        reply, memory = self._compute(request, before)
        self._keep_part(request, memory.x, before)
        self._store.save(
            AnsweredRound(
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
        self, request: Message, before: AnsweredRound | None
    ) -> tuple[Message, PartyMemory]:
        config = self.settings.config
        if request.kind == "admm-share" and isinstance(config, AdmmConfig):
            return self._share(request, config, before)
        if request.kind == "expert-train" and isinstance(config, ExpertsConfig):
            expert = self._expert(request)
            return expert.answer(request), PartyMemory(x=expert.trained)
        raise InputError(
            f"Party {self.settings.party!r} was opened for {self.settings.method!r} and does not "
            f"answer {request.kind!r}."
        )

    def _keep_part(
        self, request: Message, coefficients: np.ndarray, before: AnsweredRound | None
    ) -> None:
        """Before the answer leaves, so that whatever was answered has its part here."""
        own = self.settings
        assert self._columns.encoder is not None
        Part(
            party=own.party,
            method=own.method,
            run=request.run,
            encoder=self._columns.encoder,
            coefficients=np.asarray(coefficients, dtype=np.float64),
            # Without noise there is nothing to be covered.
            covered=own.method == "experts" or not self._pays,
            # Rounds after the first are paid for already: the first one's statement holds for all.
            statement=self._statement(request) if before is None else self.part().statement,
        ).save(own.state / "part")

    def _statement(self, request: Message) -> StatementJson:
        """What this party's training promises, from what its ledger was charged for it."""
        own, schema = self.settings, self._whole_schema
        experts = own.method == "experts"
        hidden = experts and requested_excess(request) > 0
        private = experts and schema.label.role == "private" and not hidden
        others = [column.name for column in schema.columns if column.party != own.party]
        assert self._columns.encoder is not None
        return party_statement(
            own.method,
            self._releaser if self._pays else None,
            public=(*self._columns.public_names, *others),
            private=self._columns.column_names,
            budget=self._budget,
            label=LabelFacts(name=schema.label.name, private=private, hidden=hidden),
            noise=getattr(own.config, "noise", "row"),
            notes=made_notes(self._columns.encoder.schema),
        )

    @property
    def _pays(self) -> bool:
        """Whether answers are paid for; exact shares, which nothing protects, are not."""
        config = self.settings.config
        return isinstance(config, ExpertsConfig) or config.is_private

    @property
    def _ledger_path(self) -> Path:
        return self.settings.ledger or self.settings.state / "ledger.jsonl"

    def _ledger(self) -> Ledger:
        own = self._budget
        return Ledger.open_or_create(
            self._ledger_path, epsilon=own.epsilon, delta=own.delta, relation=own.relation
        )

    def _open(self, ledger: BudgetLedger) -> Releaser:
        """What the answer at hand is released through; the statement tells what it charged."""
        self._releaser = self._make_releaser(ledger, whole_plan=True)
        return self._releaser

    def _share(
        self, request: Message, config: AdmmConfig, before: AnsweredRound | None
    ) -> tuple[Message, PartyMemory]:
        noise = share_noise(config, self._budget, self._columns.row_norm)
        terms = np.array(
            [
                *(noise.rounds, noise.ratio, noise.row_norm, noise.radius, noise.target_bound),
                *(config.chosen_strength, config.reach, REGULARISERS.index(config.regulariser)),
                ("none", "box", "ball").index(config.constraint),
            ],
            dtype=np.float64,
        )
        memory = None if before is None else before.memory
        if memory is not None and (memory.terms is None or not np.array_equal(memory.terms, terms)):
            # The rounds that were paid for had the noise of the old terms.
            raise InputError(
                f"The file of party {self.settings.party!r} has changed since the run began: "
                "restore it, or start a new run."
            )
        ledger = self._ledger() if noise.is_private else MemoryLedger.of(self._budget)
        side = open_sharing_party(
            self._columns,
            config,
            self._budget,
            self._open(ledger),
            paid_rounds=None if before is None else config.chosen_rounds - before.round,
        )
        if memory is not None and memory.released is not None:
            side.released, side.x = np.array(memory.released), np.array(memory.x)
        reply = side.answer(request)
        return reply, PartyMemory(x=side.x, released=side.released, terms=terms)

    def _expert(self, request: Message) -> ExpertParty:
        config = self.settings.config
        assert isinstance(config, ExpertsConfig)
        return open_expert(
            self._columns,
            config,
            self._budget,
            self._open(self._ledger()),
            label_private=self._whole_schema.label.role == "private",
            target_excess=requested_excess(request),
            aggregate=self.settings.aggregate,
        )


_Kept = TypeVar("_Kept")
_HIDDEN = "hidden-labels.json"
_BEGUN = ("run-id.json", "state.npz")


class LabelHolder:
    """The labels (0 and 1) of one run, and what may be told of them."""

    def __init__(
        self, settings: RunFile, labels: Vector, make_releaser: MakeReleaser = system_releaser
    ) -> None:
        self._settings = settings
        self._labels = labels
        self._make_releaser = make_releaser
        self._private = Schema.from_toml(settings.schema).label.role == "private"
        if settings.ledger is not None and settings.hide_labels is None and not self._private:
            raise InputError(
                "The ledger of the run file would not be charged: the schema declares the label "
                "public, and every party is told every label. Set hide_labels, or remove the "
                "ledger."
            )
        if settings.hide_labels is None and (settings.out / _HIDDEN).exists():
            raise InputError(
                f"The run in {settings.out} began with hidden labels: keep hide_labels in the run "
                "file, or choose another folder. Nothing was sent."
            )
        begun = any((settings.out / name).exists() for name in _BEGUN)
        if settings.hide_labels is not None and begun and not (settings.out / _HIDDEN).exists():
            raise InputError(
                f"The run in {settings.out} began with labels in clear, which cannot be hidden "
                "afterwards: choose another folder."
            )
        if self._private and settings.method == "admm" and settings.hide_labels is None:
            raise InputError(
                "The schema declares the label private, and the dual that admm broadcasts tells "
                "every party every label: set hide_labels in the run file, or use experts."
            )

    def run_id(self) -> str:
        """The id under which a resumed run goes on: who has answered before answers alike."""
        return self._once(
            "run-id.json", lambda: secrets.token_hex(8), lambda kept: word(kept, "run")
        )

    def hidden(self) -> HiddenLabels | None:
        """The labels by randomised response, if the run file asks for it: drawn once, charged."""
        epsilon = self._settings.hide_labels
        if epsilon is None:
            return None
        kept = self._once(_HIDDEN, lambda: self._randomised(epsilon), _hidden)
        if kept.epsilon != epsilon or len(kept.targets) != len(self._labels):
            raise InputError(
                f"The run in {self._settings.out} hid {len(kept.targets)} labels at epsilon "
                f"{kept.epsilon}: keep both, or choose another folder. Nothing was sent."
            )
        return kept

    def terms(self, coordinator: Coordinator) -> LabelTerms:
        """The class prior: exact for public labels, from the hidden ones, or one noisy number.

        Where labels are private and in clear, all that the parties will spend of them is charged
        with it, and kept for the runs that resume this one.
        """
        hidden = self.hidden()
        kept = self._once(
            "label-terms.json", lambda: vars(self._terms(coordinator, hidden)), _label_terms
        )
        unpaid = [name for name in coordinator.channel.parties if name not in kept.ratios]
        if self._private and hidden is None and unpaid:
            raise InputError(
                f"The run in {self._settings.out} has not paid for the labels at "
                f"{', '.join(map(repr, unpaid))}: keep the parties and the schema that it began "
                "with, or choose another folder, in which a new run is charged. Nothing was sent."
            )
        return kept

    def check_models(self, models: Mapping[str, Vector]) -> None:
        """Refuse a model that a party trained anew in a run that had one of it already.

        Private labels in clear were paid for once; a party that has lost its memory would use them
        once more. To be called before a model is written or combined into one that is.
        """
        if not self._private or self._settings.hide_labels is not None:
            return
        found = {name: hashlib.sha256(w.tobytes()).hexdigest() for name, w in models.items()}
        kept = self._once("models.json", lambda: found, dict)
        again = [name for name in found if kept.get(name) != found[name]]
        if again:
            raise InputError(
                f"{', '.join(map(repr, again))} trained again in the run in {self._settings.out}, "
                "which has paid for one training of each party on the labels. Nothing was written: "
                "choose another folder, in which a new run is charged."
            )

    def _randomised(self, epsilon: float) -> dict[str, Any]:
        """Hidden labels as they are kept for the attempts that resume a run."""
        hidden = hide_labels(self._labels, epsilon=epsilon, releaser=self._releaser(epsilon))
        return {"epsilon": epsilon, "excess": hidden.excess, "targets": hidden.targets.tolist()}

    def _terms(self, coordinator: Coordinator, hidden: HiddenLabels | None) -> LabelTerms:
        if hidden is None and self._private:
            epsilon = self._settings.label_epsilon
            budget = Budget(epsilon=epsilon, delta=self._settings.delta)
            return charge_labels(coordinator, self._releaser(epsilon), budget)
        labels = self._labels if hidden is None else hidden.targets
        return LabelTerms(prior=class_prior(float(labels.sum()), len(labels)))

    def _releaser(self, epsilon: float) -> Releaser:
        own = self._settings
        if own.ledger is not None:
            ledger = Ledger.open(own.ledger)
        else:
            path = own.out / "labels.jsonl"
            ledger = Ledger.open_or_create(
                path, epsilon=epsilon, delta=own.delta, relation="replace"
            )
        return self._make_releaser(ledger, whole_plan=True)

    def _once(self, name: str, make: Callable[[], Any], check: Callable[[Any], _Kept]) -> _Kept:
        """A value that is made in the first attempt of a run and kept for the others."""
        path = self._settings.out / name
        # Two attempts at once must not draw twice.
        with locked(resolved(path).with_name(name + ".lock"), write=True, create=True):
            if not os.path.lexists(path):
                write_durably(path, json.dumps(make()).encode())
            try:
                kept = check(read_json(path))
            except (DataError, LookupError, TypeError, ValueError):
                raise DataError(
                    f"{path}, which this run drew and keeps, cannot be read: restore it, or "
                    "choose another folder, in which a new run is charged anew."
                ) from None
            return kept


def _hidden(kept: Any) -> HiddenLabels:
    return HiddenLabels(
        targets=number_array(kept["targets"], (None,), "targets"),
        excess=one_number(kept["excess"], "excess", least=0.0),
        epsilon=one_number(kept["epsilon"], "epsilon"),
    )


def _label_terms(kept: Any) -> LabelTerms:
    return LabelTerms(
        prior=one_number(kept["prior"], "prior", least=-MOST),
        prior_ratio=one_number(kept["prior_ratio"], "prior_ratio", least=0.0),
        ratios={
            word(name, "party"): one_number(ratio, "ratio", least=0.0)
            for name, ratio in dict(kept["ratios"]).items()
        },
    )
