"""Targets of vertical learning: party files, messages, replies, and what each side remembers."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import numpy as np

from fuzz.mutate import NUMBERS, WORDS, damaged_bytes, damaged_tree, json_bytes, nasty, nested
from fuzz.targets import SECRET, Target, other_array, repacked, toml_bytes
from halfmask.errors import HalfmaskError
from halfmask.schema import Schema
from halfmask.vertical.admm import load_state
from halfmask.vertical.channel import Message
from halfmask.vertical.files import read_labels
from halfmask.vertical.flower_app import answered, from_record, run_method, to_record
from halfmask.vertical.network import (
    LabelHolder,
    NetworkParty,
    read_party_file,
    read_run_file,
)
from halfmask.vertical.queries import Part, VerticalModel, answered_so_far
from halfmask.vertical.store import RoundStore

COUNT = 12
SCHEMA = """
[label]
name = "churned"
role = "private"
classes = ["no", "yes"]
[columns.age]
role = "private"
kind = "number"
bounds = [18, 90]
bins = 4
party = "bank"
[columns.plan]
role = "private"
kind = "category"
categories = ["a", "b"]
party = "telecom"
"""
PARTY: dict[str, Any] = {
    "party": "bank",
    "schema": "schema.toml",
    "data": "bank.csv",
    "id": "id",
    "state": "bank-state",
    "method": "experts",
    "epsilon": 1.0,
    "delta": 1e-6,
    "relation": "replace",
    "aggregate": True,
    "queries": {"most": 1000, "uncovered": True},
    "settings": {"steps": 2, "memory": 0.5},
}
RUN: dict[str, Any] = {
    "schema": "schema.toml",
    "label": "labels.csv",
    "id": "id",
    "out": "out",
    "parties": {"bank": "bank.pub", "telecom": "telecom.pub"},
    "method": "experts",
    "combine": "fixed",
    "label_epsilon": 100.0,
    "timeout": 5.0,
    "settings": {"damping": 0.5},
}
TEXTS = ("its budget does not allow this", "it does not answer this; its own log says why")


def write_files(folder: Path, method: str) -> None:
    """Two parties and a label holder with a few rows."""
    rng = np.random.default_rng(3)
    ids = [f"u{number}" for number in range(COUNT)]
    public = SCHEMA.replace('role = "private"', 'role = "public"', 1)
    (folder / "schema.toml").write_text(SCHEMA if method == "experts" else public)
    columns = {
        "bank": ("age", rng.uniform(18, 90, COUNT)),
        "telecom": ("plan", rng.choice(["a", SECRET], COUNT)),
        "labels": ("churned", rng.choice(["no", "yes"], COUNT)),
    }
    for name, (header, values) in columns.items():
        lines = [f"{each},{value}" for each, value in zip(ids, values, strict=True)]
        (folder / f"{name}.csv").write_text("\n".join([f"id,{header}", *lines]))
    import tomli_w

    for name in ("bank", "telecom"):
        own = {**PARTY, "party": name, "data": f"{name}.csv", "state": f"{name}-state"}
        own |= {"method": method, "epsilon": 50.0}
        if method == "admm":
            own.pop("settings"), own.pop("aggregate")
            own |= {"rounds": 3}
        (folder / f"{name}.toml").write_text(tomli_w.dumps(own))
    run = {**RUN, "method": method}
    if method == "admm":
        run.pop("settings"), run.pop("combine")
        run |= {"rounds": 2}
    (folder / "run.toml").write_text(tomli_w.dumps(run))


class PartyFiles(Target):
    """The TOML files of a party and of the label holder."""

    share = 100

    def case(self, rng: Random) -> None:
        if rng.random() < 0.5:
            party = read_party_file(self.write("party.toml", toml_bytes(rng, PARTY)))
            assert party.config is not None
        else:
            run = read_run_file(self.write("run.toml", toml_bytes(rng, RUN)))
            assert run.config is not None


class OpenedParty(Target):
    """A party whose file, schema or data is damaged: what it says of it when it is opened."""

    share = 3

    def prepare(self) -> None:
        write_files(self.folder, "experts")
        names = ("bank.toml", "schema.toml", "bank.csv")
        self.plain = {name: (self.folder / name).read_bytes() for name in names}

    def case(self, rng: Random) -> None:
        for name, content in self.plain.items():
            self.write(name, content)
        name = rng.choice(list(self.plain))
        self.write(name, damaged_bytes(rng, self.plain[name], 2))
        settings = read_party_file(self.folder / "bank.toml")
        if settings.state.parent == self.folder:
            NetworkParty(settings).answer(Message(kind="ids", run="r", round=0))


def strange_array(rng: Random, like: Any = None) -> Any:
    """What a message may hold in the place of an array."""
    kind = rng.randrange(6)
    if kind == 0:
        return nasty(rng)
    if kind == 1:
        return np.array([rng.choice(NUMBERS[:13]) for _ in range(COUNT)], dtype=object)
    if kind == 2:
        return np.array(
            [rng.choice((0.0, 1.0, -1.0, 1e99, 1e101, 1e308, 5e-324, np.nan, np.inf))] * COUNT
        )
    if kind == 3:
        return np.zeros(rng.choice(((0,), (COUNT, 1), (1, COUNT), (COUNT + 1,), (2, 2, 2), ())))
    return other_array(rng, np.zeros(COUNT) if like is None else like)


def strange_message(rng: Random, request: Message) -> Message:
    """A message with a few fields of another kind."""
    arrays, values = dict(request.arrays), dict(request.values)
    told: dict[str, Any] = {"kind": request.kind, "run": request.run, "round": request.round}
    for _ in range(rng.randint(1, 3)):
        what = rng.randrange(6)
        if what == 0:
            told[rng.choice(list(told))] = rng.choice((nasty(rng), rng.choice(WORDS), 1, 2, 3))
        elif what == 1 and arrays:
            del arrays[rng.choice(list(arrays))]
        elif what == 2 and values:
            values[rng.choice(list(values))] = rng.choice((nasty(rng), rng.choice(NUMBERS)))
        elif what == 3 and values:
            del values[rng.choice(list(values))]
        else:
            name = rng.choice([*arrays, "x"])
            arrays[name] = strange_array(rng, arrays.get(name))
    return Message(arrays=arrays, values=values, **told)


def requests(rng: Random) -> list[Message]:
    """One of every kind that a party knows."""
    signs = np.array([rng.choice((-1.0, 1.0)) for _ in range(COUNT)])
    small = {"rho": 0.1, "divisor": 2}
    return [
        Message(kind="hello", run="r", round=0),
        Message(kind="ids", run="r", round=0),
        Message(kind="statement", run="r", round=0),
        Message(kind="expert-terms", run="r", round=0, values={"target_excess": 0.0}),
        Message(kind="expert-train", run="r", round=1, arrays={"targets": signs},
                values={"target_excess": 0.0, "prior": 0.1}),
        Message(kind="admm-share", run="r", round=rng.randint(0, 3),
                arrays={"residual": signs, "dual": 0 * signs}, values=small),
        Message(kind="query-scores", run="r", round=0,
                arrays={"ids": np.arange(3, dtype=np.uint64)}, values={"of": "r"}),
    ]  # fmt: skip


class Messages(Target):
    """Requests to a party that is open, of either method."""

    share = 150

    def prepare(self) -> None:
        self.sides = []
        for method in ("experts", "admm"):
            folder = self.folder / method
            folder.mkdir()
            write_files(folder, method)
            self.sides.append((folder, NetworkParty(read_party_file(folder / "bank.toml"))))

    def case(self, rng: Random) -> None:
        folder, party = rng.choice(self.sides)
        if rng.random() < 0.02:
            shutil.rmtree(folder / "bank-state")
            party._store = RoundStore(folder / "bank-state")
        request = strange_message(rng, rng.choice(requests(rng)))
        with np.errstate(all="ignore"):
            reply = party.answer(request)
        for array in reply.arrays.values():
            found = np.asarray(array)
            assert found.dtype.kind != "f" or np.isfinite(found).all()


class Records(Messages):
    """What Flower carries to a party: whatever arrives, one of two texts goes back, or a reply."""

    share = 20

    def case(self, rng: Random) -> None:
        from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

        folder, _ = rng.choice(self.sides)
        request = rng.choice(requests(rng))
        record = to_record(request)
        for _ in range(rng.randint(1, 3)):
            what = rng.randrange(5)
            try:
                if what == 0 and "head" in record:
                    record["head"][rng.choice((*record["head"], "value/x"))] = rng.choice(
                        (nasty(rng), b"\xff", [1.0, 2.0], rng.choice(WORDS), rng.choice(NUMBERS))
                    )
                elif what == 1 and "arrays" in record:
                    record["arrays"][rng.choice(("x", "targets", "residual", "ids"))] = Array(
                        rng.choice(("float64", "int8", "object", "x", "O", "|V8")),
                        rng.choice(((COUNT,), (-1,), (10**9, 10**9), ())),
                        rng.choice(("numpy.ndarray", "x", "")),
                        rng.choice((b"", rng.randbytes(40), damaged_bytes(rng, npy(rng)))),
                    )
                elif what == 2:
                    del record[rng.choice(list(record))]
                elif what == 3:
                    record["arrays"] = ArrayRecord([np.asarray(other_array(rng, np.zeros(COUNT)))])
                else:
                    record[rng.choice(("head", "arrays", "x"))] = ConfigRecord({"kind": "hello"})
            except (TypeError, ValueError, KeyError, AttributeError, IndexError):
                continue  # Flower itself has no such record
        with np.errstate(all="ignore"):
            reply = answered(record, str(folder / "bank.toml"))
        assert isinstance(reply, RecordDict)
        if "error" in reply:
            assert reply["error"]["text"] in TEXTS
        else:
            from_record(reply)


def npy(rng: Random) -> bytes:
    import io

    sink = io.BytesIO()
    np.save(sink, np.zeros(rng.choice((1, COUNT))))
    return sink.getvalue()


class Tampering:
    """A channel to real parties that changes some replies on the way."""

    def __init__(self, sides: Mapping[str, NetworkParty], rng: Random, chance: float) -> None:
        self.sides, self.rng, self.chance = sides, rng, chance

    @property
    def parties(self) -> tuple[str, ...]:
        return tuple(self.sides)

    def exchange(self, request: Message) -> dict[str, Message]:
        replies = {}
        for name, side in self.sides.items():
            reply = side.answer(request)
            if self.rng.random() < 0.02:
                continue
            if self.rng.random() < self.chance:
                reply = strange_message(self.rng, reply)
                if self.rng.random() < 0.3 and "statement" in reply.values:
                    told = json.dumps(nested(self.rng))
                    reply = reply.reply(
                        values={"statement": self.rng.choice((told, "{}", "[" * 9999))}
                    )
            replies[name] = reply
        return replies


class Replies(Target):
    """Replies to the label holder, through a whole run."""

    share = 0.5

    def prepare(self) -> None:
        self.folders = []
        for method in ("experts", "admm"):
            folder = self.folder / method
            folder.mkdir()
            write_files(folder, method)
            self.folders.append(folder)

    def case(self, rng: Random) -> None:
        folder = rng.choice(self.folders)
        for name in ("out", "bank-state", "telecom-state"):
            shutil.rmtree(folder / name, ignore_errors=True)
        settings = read_run_file(folder / "run.toml")
        settings.out.mkdir()
        sides = {
            name: NetworkParty(read_party_file(folder / f"{name}.toml"))
            for name in ("bank", "telecom")
        }
        with np.errstate(all="ignore"):
            run_method(Tampering(sides, rng, rng.choice((0.1, 0.3))), settings)


class Memories(Target):
    """What parties and label holder keep between rounds."""

    share = 20

    def prepare(self) -> None:
        self.kept: dict[str, tuple[str, bytes, Any]] = {}
        for method in ("experts", "admm"):
            folder = self.folder / method
            folder.mkdir()
            write_files(folder, method)
            settings = read_run_file(folder / "run.toml")
            settings.out.mkdir()
            sides = {
                name: NetworkParty(read_party_file(folder / f"{name}.toml"))
                for name in ("bank", "telecom")
            }
            run_method(Tampering(sides, Random(1), 0.0), settings)
        found = [
            ("experts", "bank-state/party.npz"),
            ("admm", "bank-state/party.npz"),
            ("experts", "bank-state/part/part.json"),
            ("experts", "bank-state/part/part.npz"),
            ("experts", "out/vertical.json"),
            ("experts", "out/label-terms.json"),
            ("experts", "out/run-id.json"),
            ("admm", "out/state.npz"),
        ]
        self.files = [self.folder / method / name for method, name in found]
        self.plain = {path: path.read_bytes() for path in self.files}
        self.log = self.folder / "queries.jsonl"
        self.frame_file = self.folder / "experts" / "bank.csv"

    def case(self, rng: Random) -> None:
        path = rng.choice([*self.files, self.log])
        if path == self.log:
            line = {"time": "t", "query": "r", "asked": 3, "answered": ["u1"]}
            text = b"\n".join(json_bytes(damaged_tree(rng, line)) for _ in range(3))
            self.log.write_bytes(text if rng.random() < 0.7 else damaged_bytes(rng, text))
            assert answered_so_far(self.log) >= 0
            return
        plain = self.plain[path]
        try:
            path.write_bytes(self.damaged(rng, path, plain))
            self.read(path)
        finally:
            path.write_bytes(plain)

    def damaged(self, rng: Random, path: Path, plain: bytes) -> bytes:
        if rng.random() < 0.3:
            return damaged_bytes(rng, plain, 3)
        if path.suffix == ".json":
            return json.dumps(damaged_tree(rng, json.loads(plain)), default=str).encode()
        with np.load(path) as held:
            arrays = {name: held[name] for name in held.files}
        if "head" in arrays and rng.random() < 0.5:
            told = damaged_tree(rng, json.loads(str(arrays["head"])))
            arrays["head"] = np.array(json.dumps(told, default=str))
            rng = Random(0) if rng.random() < 0.5 else rng
        return repacked(rng, arrays)

    def read(self, path: Path) -> None:
        from halfmask.data.reading import read_frame

        home = path.parent
        if path.name == "party.npz":
            RoundStore(home).load()
            settings = read_party_file(home.parent / "bank.toml")
            NetworkParty(settings).answer(Message(kind="statement", run="r", round=0))
        elif home.name == "part":
            Part.load(home).scores(read_frame(self.frame_file))
        elif path.name == "vertical.json":
            model = VerticalModel.load(home)
            score = model.score(dict.fromkeys(model.parties, np.zeros(2)))
            model.predicted(score), model.probabilities(score)
        elif path.name == "state.npz":
            state = load_state(path, ("bank", "telecom"))
            assert state is not None
            assert state.z.shape == state.dual.shape
        else:
            settings = read_run_file(home.parent / "run.toml")
            schema = Schema.from_toml(settings.schema)
            labels, _ = read_labels(schema, settings.label, settings.id)
            holder = LabelHolder(settings, labels)
            holder.run_id()
            # Kept already, so that nobody is asked.
            names = SimpleNamespace(parties=("bank", "telecom"))
            holder.terms(SimpleNamespace(channel=names))  # type: ignore[arg-type]


class Told(Target):
    """What a party says of its own guarantee."""

    share = 100

    def case(self, rng: Random) -> None:
        from halfmask.vertical.flower_app import _told_statement

        told = {"epsilon": 1.0, "relation": "replace", "private": ["age"]}
        text: Any = json.dumps(damaged_tree(rng, told), default=str)
        if rng.random() < 0.3:
            text = damaged_bytes(rng, text.encode()).decode("utf-8", "replace")
        if rng.random() < 0.1:
            text = nasty(rng)
        kept = _told_statement("bank", text)
        try:
            json.dumps(kept, allow_nan=False)
        except ValueError as error:
            raise AssertionError("a statement that cannot be stored") from error


__all__ = ["HalfmaskError"]
