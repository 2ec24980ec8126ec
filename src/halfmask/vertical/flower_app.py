"""The same parties and coordinator over Flower: a ClientApp at each party, a ServerApp at the
centre.

Messages are those of `channel`, carried as plain arrays and plain values. What goes wrong at a
party comes back as words that hold none of its data: whatever concerns the content of a party's
own files is told in the party's own log only.
"""

from __future__ import annotations

import json
import logging
import math
import secrets
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypedDict

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, RecordDict
from flwr.app import Message as Envelope
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from halfmask.accounting.gaussian import gaussian_epsilon
from halfmask.errors import BudgetExceededError, HalfmaskError
from halfmask.mechanisms.release import MakeReleaser, system_releaser
from halfmask.schema import Schema
from halfmask.storage import write_durably
from halfmask.vertical.admm import check_loss, load_state, run_admm, save_state, start_state
from halfmask.vertical.channel import Channel, Message, PartyError, checked_replies, whole, word
from halfmask.vertical.experts import (
    Combination,
    ExpertsConfig,
    check_expert_label,
    combined_ratio,
    sum_of_scores,
    train_experts,
)
from halfmask.vertical.files import party_schemas, read_labels
from halfmask.vertical.network import (
    MOST_ROUNDS,
    LabelHolder,
    NetworkParty,
    RunFile,
    read_party_file,
    read_run_file,
)
from halfmask.vertical.party import Coordinator, check_hidable
from halfmask.vertical.queries import StatementJson, VerticalModel, ask_scores

_log = logging.getLogger(__name__)
_VALUE = "value/"
_POLL_SECONDS = 0.3
_LONGEST_STATEMENT = 1_000_000

client_app = ClientApp()
server_app = ServerApp()


def to_record(message: Message) -> RecordDict:
    """A message as Flower carries it."""
    values = {_VALUE + name: value for name, value in message.values.items()}
    head = {"kind": message.kind, "run": message.run, "round": message.round, **values}
    arrays = {name: Array(np.asarray(array)) for name, array in message.arrays.items()}
    return RecordDict({"head": ConfigRecord(head), "arrays": ArrayRecord(arrays)})


def from_record(record: RecordDict) -> Message:
    """The inverse of `to_record`; anything else is an error."""
    head: Any = record["head"]
    arrays: Any = record["arrays"]
    return Message(
        kind=word(head["kind"], "kind"),
        run=word(head["run"], "run"),
        round=whole(head["round"], "round", least=0, most=MOST_ROUNDS),
        arrays={name: arrays[name].numpy() for name in arrays},
        values={k.removeprefix(_VALUE): v for k, v in head.items() if k.startswith(_VALUE)},
    )


@client_app.query()  # type: ignore[untyped-decorator,unused-ignore]
def answer(envelope: Envelope, context: Context) -> Envelope:
    """Open the party from its own file, answer, forget everything but what it stored."""
    reply = answered(envelope.content, str(context.node_config["party-file"]))
    return Envelope(content=reply, reply_to=envelope)


def answered(content: RecordDict, party_file: str) -> RecordDict:
    """The party's reply to what arrived; whatever goes wrong comes back as fixed words."""
    try:
        request = from_record(content)
        return to_record(NetworkParty(read_party_file(party_file)).answer(request))
    except Exception as error:
        # Also what nobody thought of: Flower would send its text, values and all, to the server.
        _log.error("%s", error, exc_info=not isinstance(error, HalfmaskError))
        return RecordDict({"error": ConfigRecord({"text": _disclosable(error)})})


def _disclosable(error: Exception) -> str:
    """Words for the coordinator. They never quote the error, which may quote what is private."""
    if isinstance(error, BudgetExceededError):
        return "its budget does not allow this"
    return "it does not answer this; its own log says why"


@dataclass(frozen=True)
class FlowerChannel:
    """Requests to named parties over a Flower grid.

    `unreached` collects why Flower could not reach a node, where that is no error of a party's.
    """

    grid: Grid
    nodes: Mapping[str, int]
    timeout: float
    unreached: list[str] | None = None

    @property
    def parties(self) -> tuple[str, ...]:
        return tuple(self.nodes)

    def exchange(self, request: Message) -> dict[str, Message]:
        """One reply per party that answered in time; a party that reports an error is named."""
        sent = [Envelope(to_record(request), node, "query") for node in self.nodes.values()]
        waiting = dict(zip(self.grid.push_messages(sent), self.nodes, strict=True))
        deadline = time.monotonic() + self.timeout
        replies: dict[str, Message] = {}
        while waiting and time.monotonic() < deadline:
            for message_id, name in list(waiting.items()):
                # One at a time: whatever goes wrong is then known to be this party's.
                for envelope in self._pulled(message_id, name):
                    waiting.pop(message_id, None)
                    if self.unreached is not None and not envelope.has_content():
                        self.unreached.append(_shown(envelope.error.reason))
                    else:
                        replies[name] = _opened(envelope, name)
            time.sleep(_POLL_SECONDS)
        return replies

    def _pulled(self, message_id: str, name: str) -> list[Envelope]:
        try:
            return list(self.grid.pull_messages([message_id]))
        except Exception as error:
            raise PartyError(
                f"The answer of party {name!r} did not arrive whole ({type(error).__name__}): "
                "check that the party runs, then resume from the last finished round."
            ) from error


def _opened(envelope: Envelope, name: str) -> Message:
    if not envelope.has_content():
        raise PartyError(f"Party {name!r} failed: {_shown(envelope.error.reason)}.")
    try:
        if "error" in envelope.content:
            record: Any = envelope.content["error"]
            raise PartyError(f"Party {name!r} says: {_shown(record['text'])}")
        return from_record(envelope.content)
    except PartyError:
        raise
    except Exception as error:  # the bytes of an array may be anything
        raise PartyError(
            f"Party {name!r} sent something that is not a message ({type(error).__name__})."
        ) from error


def _shown(text: object) -> str:
    """Another side's words, cut to a line, without what a terminal would obey."""
    words = str(text)[:200]
    return words if words.isprintable() else repr(words)


def find_parties(grid: Grid, expected: Collection[str], timeout: float) -> dict[str, int]:
    """Ask every connected node for its name until all expected parties are there.

    Flower lists a node for a while after it has gone: one that cannot be reached is not there.
    """
    deadline = time.monotonic() + timeout
    run = secrets.token_hex(8)
    found: dict[str, int] = {}
    unreached: list[str] = []
    while True:
        fresh = [node for node in grid.get_node_ids() if node not in found.values()]
        names = {str(node): node for node in fresh}
        hello = Message(kind="hello", run=run, round=0)
        wait = max(deadline - time.monotonic(), 1.0)
        for node, reply in FlowerChannel(grid, names, wait, unreached).exchange(hello).items():
            name = word(reply.values.get("party"), "party")
            if name not in expected:
                raise PartyError(f"A party named {name!r} has joined that the run does not name.")
            if name in found:
                raise PartyError(f"Two parties named {name!r} have joined: stop one of them.")
            found[name] = names[node]
        if set(found) == set(expected):
            # In the order of the run file: a fixed rule takes the first party in full.
            return {name: found[name] for name in expected}
        if time.monotonic() > deadline:
            lacking = ", ".join(repr(name) for name in sorted(set(expected) - set(found)))
            why = f" ({unreached[-1]})" if unreached else ""
            raise PartyError(
                f"No answer from {lacking} within {timeout:g} seconds{why}: check that the party "
                "runs, then start again."
            )
        time.sleep(1.0)


@server_app.main()  # type: ignore[untyped-decorator,unused-ignore]
def coordinate(grid: Grid, context: Context) -> None:
    """Run what the label holder's file says and write the result, or the error, to its folder.

    With a query file the run is one of queries: the scores of its ids are the result.
    """
    settings = read_run_file(str(context.run_config["run-file"]))
    query = str(context.run_config.get("query-file", ""))
    settings.out.mkdir(parents=True, exist_ok=True, mode=0o700)
    try:
        nodes = find_parties(grid, tuple(settings.parties), settings.timeout)
        channel = FlowerChannel(grid, nodes, settings.timeout)
        if query:
            ids = json.loads(Path(query).read_text("utf-8"))
            asked = ask_scores(channel, VerticalModel.load(settings.out), ids)
            result: RunResult | QueryResult = {"scores": asked.tolist()}
        else:
            result = run_method(channel, settings)
    except HalfmaskError as error:
        _finish(settings, "error.json", {"error": str(error), "exit_code": error.exit_code})
        raise
    except Exception as error:
        told = f"The run failed ({type(error).__name__}); the SuperLink's log says more."
        _finish(settings, "error.json", {"error": told, "exit_code": 1})
        raise
    _finish(settings, "scores.json" if query else "result.json", result)


class QueryResult(TypedDict):
    """What a run of queries leaves in scores.json."""

    scores: list[float]


class RunResult(TypedDict, total=False):
    """What a training leaves in result.json.

    `label_epsilon` is what one label costs, where labels are hidden or private; `combination` and
    `coefficients` are those of experts, `primal_residual` is that of admm.
    """

    method: str
    parties: list[str]
    rows: int
    label_epsilon: float
    rounds: int
    combination: dict[str, Any]
    coefficients: dict[str, list[float]]
    primal_residual: float


def run_method(
    channel: Channel, settings: RunFile, make_releaser: MakeReleaser = system_releaser
) -> RunResult:
    """Align, then experts or ADMM round by round; every finished round is stored.

    `make_releaser` is for tests; no file can ask for noise that is not secret.
    """
    schema, config = Schema.from_toml(settings.schema), settings.config
    party_schemas(schema)
    labels, ids = read_labels(schema, settings.label, settings.id)
    if isinstance(config, ExpertsConfig):
        check_expert_label(schema.label.bounds)
    else:
        check_loss(config.loss, schema.label.bounds, hidden=settings.hide_labels is not None)
    if settings.hide_labels is not None:
        check_hidable(schema.label.bounds)
    holder = LabelHolder(settings, labels, make_releaser)
    coordinator = Coordinator(channel, labels, ids=ids)
    coordinator.align()
    hidden = holder.hidden()
    result: RunResult = {
        "method": settings.method,
        "parties": list(channel.parties),
        "rows": len(labels),
    }
    if hidden is not None:
        result["label_epsilon"] = hidden.epsilon
    if isinstance(config, ExpertsConfig):
        coordinator.run = holder.run_id()
        terms = holder.terms(coordinator)
        if terms.ratios:
            spent = combined_ratio([*terms.ratios.values(), terms.prior_ratio])
            result["label_epsilon"] = gaussian_epsilon(spent, settings.delta)
        trained = train_experts(
            coordinator,
            terms=terms,
            hidden=hidden,
            damping=config.damping,
            aggregate=config.combine == "aggregate",
        )
        holder.check_models(trained.coefficients)
        result["rounds"] = 1
        result["combination"] = vars(trained.combination)
        result["coefficients"] = {name: w.tolist() for name, w in trained.coefficients.items()}
        _keep_model(channel, settings, schema, coordinator.run, trained.combination)
    else:
        targets = coordinator.signed if hidden is None else hidden.signed
        path = settings.out / "state.npz"
        state = load_state(path, channel.parties, len(labels))
        state = state or start_state(channel.parties, len(labels), config.rho)
        # Stored before the first message: a run that dies in its first round keeps its own id.
        save_state(path, state)
        run_admm(channel, targets, config, state=state, keep=partial(save_state, path))
        result["rounds"] = len(state.history)
        result["primal_residual"] = state.history[-1].primal_residual
        _keep_model(channel, settings, schema, state.run, sum_of_scores(len(channel.parties)))
    return result


def _keep_model(
    channel: Channel, settings: RunFile, schema: Schema, run: str, combination: Combination
) -> None:
    """The label holder's side of the model, with every party's statement as the party tells it."""
    request = Message(kind="statement", run=run, round=0)
    told = {
        name: _told_statement(name, reply.values.get("statement"))
        for name, reply in checked_replies(channel, request, channel.exchange(request)).items()
    }
    VerticalModel.trained(
        schema,
        combination,
        told,
        method=settings.method,
        run=run,
        id=settings.id,
        details={"statements": "as each party tells its own"},
    ).save(settings.out)


def _told_statement(name: str, text: object) -> StatementJson:
    """A party's own words about its guarantee: kept as they are, if they are a JSON object."""
    if not isinstance(text, str) or len(text) > _LONGEST_STATEMENT:
        raise PartyError(f"Party {name!r} did not state its guarantee.")
    try:
        told = json.loads(text, parse_constant=lambda _: None, parse_float=_finite)
    except (ValueError, RecursionError):
        told = None
    if not isinstance(told, dict):
        raise PartyError(f"Party {name!r} sent something that is not a statement.")
    return told


def _finite(text: str) -> float | None:
    value = float(text)
    return value if math.isfinite(value) else None


def _finish(settings: RunFile, name: str, result: Mapping[str, Any]) -> None:
    write_durably(Path(settings.out) / name, json.dumps(result, indent=2).encode())
