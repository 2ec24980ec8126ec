"""Every method and command on two tables that differ in one private value, releases handed over.

Times, random names and random keys are fixed, so that nothing but the private value can differ.
Then all that is written, printed or sent is compared byte by byte: what differs is a leak. What is
let differ is in `NOT_COVERED`, each with its reason; what follows from releases is the same by
itself, because the second run is handed the noisy values of the first (docs/reliability.md).
"""

from __future__ import annotations

import itertools
import json
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from fuzz.vertical import write_files
from halfmask import training as training_module
from halfmask.accounting import ledger as ledger_module
from halfmask.audit.transcript import Recorder, Replayer
from halfmask.cli import main
from halfmask.mechanisms.noise import noise_source
from halfmask.schema import Schema
from halfmask.vertical.flower_app import run_method
from halfmask.vertical.network import NetworkParty, read_party_file, read_run_file
from test_byte_identity import Told, neighbour, people, schema

pytestmark = pytest.mark.slow

SMALL = ("--set", "pretrain.epochs=1", "--set", "pretrain.hidden=4", "--set", "pretrain.networks=1")
METHODS = {
    "additive": ("half", ()),
    "gd": ("all", ()),
    "sgd": ("half", ()),
    "one-shot": ("half", ()),
    "label-span": ("label", ()),
    "dp-sgd": ("half", ()),
    "mlp": ("half", (*SMALL, "--set", "network.steps=6")),
}
NOT_COVERED = {
    "seconds": "how long it took, rounded up: a side channel that the statement names",
}
"""Fields of printed results that are not compared."""


@contextmanager
def nothing_random(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Random names count up, the clock stands still. Noise stays random: it is handed over."""
    count = itertools.count()
    with monkeypatch.context() as patched:
        patched.setattr(secrets, "token_hex", lambda size=16: f"{next(count):0{2 * size}x}")
        patched.setattr(ledger_module, "_now", lambda: "2020-01-01T00:00:00+00:00")
        yield


class Releasers:
    """Releasers in the order in which they are made: recording, or handed what was recorded."""

    def __init__(self, told: list[Recorder] | None = None) -> None:
        self.told, self.made = told, []

    def __call__(self, *given: Any, **named: Any) -> Recorder:
        opened: Any = Recorder
        if self.told is not None:
            opened = partial(Replayer, Told(self.told[len(self.made)]))
        book, noise = (*given, noise_source())[:2]
        self.made.append(opened(book, noise, **named))
        return self.made[-1]


def files_of(folder: Path) -> dict[str, bytes]:
    return {
        str(file.relative_to(folder)): file.read_bytes()
        for file in sorted(folder.rglob("*"))
        if file.is_file()
    }


def moved(first: list[Recorder], second: list[Recorder]) -> float:
    pairs = zip(
        [release for door in first for release in door.releases],
        [release for door in second for release in door.releases],
        strict=True,
    )
    return sum(float(np.abs(one.value - two.value).sum()) for one, two in pairs)


def said(words: list[str], place: Path) -> tuple[bytes, bytes]:
    """What a command prints on both channels, without the name of the folder."""
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 0, done.output
    return tuple(_plain(text, place) for text in (done.stdout, done.stderr))  # type: ignore[return-value]


def _plain(text: str, place: Path) -> bytes:
    text = text.replace(str(place), "")
    try:
        told = json.loads(text)
    except ValueError:
        return "\n".join(line for line in text.splitlines() if " s)." not in line).encode()
    return json.dumps(_without(told)).encode()


def _without(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {k: _without(v) for k, v in value.items() if k not in NOT_COVERED}
    return [_without(each) for each in value] if isinstance(value, list) else value


def hunted(
    frame: Any, place: Path, roles: str, method: str, more: Any, releasers: Releasers, patch: Any
) -> dict[str, Any]:
    """Train, then use the model by every command; all bytes that came of it."""
    place.mkdir()
    frame.to_csv(place / "rows.csv", index=False)
    people(9).to_csv(place / "test.csv", index=False)
    declared = Schema.from_dict(schema(roles, number=False, unit=False))
    (place / "rows.toml").write_text(declared.to_toml())
    rows, toml, model = (str(place / name) for name in ("rows.csv", "rows.toml", "model"))
    real = training_module.train
    found: dict[str, Any] = {}
    budget = ["--epsilon", "8", "--delta", "1e-6"]
    with nothing_random(patch), patch.context() as patched:
        patched.setattr(
            training_module,
            "train",
            lambda *given, **named: real(*given, **named, make_releaser=releasers),
        )
        asked = ["train", rows, "--schema", toml, *budget, "--method", method, *more, "--json"]
        found["train"] = said([*asked, "--out", model], place)
    found["check"] = said(["check", rows, "--schema", toml, "--json"], place)
    found["init"] = said(["init", rows, "--label", "sick", "--json"], place)
    found["evaluate"] = said(["evaluate", model, str(place / "test.csv"), "--json"], place)
    scores = str(place / "scores.csv")
    found["predict"] = said(["predict", model, str(place / "test.csv"), "--out", scores], place)
    found["ledger"] = said(["ledger", "show", f"{model}/ledger.jsonl", "--json"], place)
    for form in ("html", "card", "json"):
        out = place / f"report.{form}"
        said(["report", model, "--format", form, "--out", str(out)], place)
        text = out.read_text()
        if form == "json":
            text = json.dumps({**json.loads(text), "written": ""})
        found[form] = "\n".join(line for line in text.splitlines() if "written" not in line.lower())
    found["files"] = files_of(place / "model") | {"scores": (place / "scores.csv").read_bytes()}
    return found


@pytest.mark.parametrize("method", METHODS)
def test_no_method_and_no_command_tells_one_private_value(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    roles, more = METHODS[method]
    frame = people()
    told = Releasers()
    first = hunted(frame, tmp_path / "first", roles, method, more, told, monkeypatch)
    others = list(neighbour(frame, roles))
    # A number far away, and the label where it is private (its two kinds come last).
    chosen = others[:1] + others[-2:-1] * (len(others) > 2)
    distance = 0.0
    for place, other in enumerate(chosen):
        again = Releasers(told.made)
        second = hunted(other, tmp_path / str(place), roles, method, more, again, monkeypatch)
        for name in first:
            assert first[name] == second[name], name
        distance += moved(told.made, again.made)
    assert distance > 0, "no neighbour changed anything: the test would see no leak"


class Listened:
    """A channel that keeps every reply as it was sent."""

    def __init__(self, folder: Path, releasers: Releasers) -> None:
        self.folder, self.releasers, self.heard = folder, releasers, []

    @property
    def parties(self) -> tuple[str, ...]:
        return ("bank", "telecom")

    def exchange(self, request: Any) -> dict[str, Any]:
        replies = {}
        for name in self.parties:
            party = NetworkParty(read_party_file(self.folder / f"{name}.toml"), self.releasers)
            replies[name] = reply = party.answer(request)
            sent = {key: np.asarray(array).tobytes() for key, array in reply.arrays.items()}
            self.heard.append((name, request.kind, sent, dict(reply.values)))
        return replies


def run_parties(
    folder: Path, method: str, releasers: Releasers, patch: pytest.MonkeyPatch, change: str | None
) -> tuple[list[Any], dict[str, bytes]]:
    """A run between organisations; `change` is the file in which one private value differs."""
    folder.mkdir()
    write_files(folder, method)
    if change is not None:
        file = folder / f"{change}.csv"
        lines = file.read_text().splitlines()
        name, value = lines[4].split(",")
        other = {"bank": "89.5", "telecom": "a" if value != "a" else "b",
                 "labels": "no" if value == "yes" else "yes"}[change]  # fmt: skip
        lines[4] = f"{name},{other}"
        file.write_text("\n".join(lines))
    with nothing_random(patch):
        settings = read_run_file(folder / "run.toml")
        settings.out.mkdir()
        channel = Listened(folder, releasers)
        result = run_method(channel, settings, releasers)
    kept = {name: each for name, each in files_of(settings.out).items() if "lock" not in name}
    # A party's own folder is its own; what it states and what it charged is for others too.
    for name in channel.parties:
        own = folder / f"{name}-state"
        kept[f"{name}: part.json"] = (own / "part" / "part.json").read_bytes()
        charged = [e.events for e in ledger_module.Ledger.open(own / "ledger.jsonl").entries()]
        kept[f"{name}: charges"] = repr(charged).encode()
    kept["result"] = json.dumps(result).encode()
    return channel.heard, kept


@pytest.mark.parametrize(
    ("method", "change"),
    [("experts", "bank"), ("experts", "labels"), ("admm", "bank"), ("admm", "telecom")],
)
def test_what_parties_send_and_the_label_holder_keeps_tells_no_private_value(
    method: str, change: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = Releasers()
    first = run_parties(tmp_path / "first", method, told, monkeypatch, None)
    again = Releasers(told.made)
    second = run_parties(tmp_path / "second", method, again, monkeypatch, change)
    assert first[0] == second[0]
    assert first[1] == second[1]
    assert moved(told.made, again.made) > 0


def test_a_leak_in_a_reply_would_be_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = NetworkParty.answer

    def leaking(self: NetworkParty, request: Any) -> Any:
        reply = real(self, request)
        rows = self._columns.train
        size = float(np.sum(rows @ np.arange(1.0, 1 + rows.shape[1])))
        return request.reply(reply.arrays, {**reply.values, "size": size})

    monkeypatch.setattr(NetworkParty, "answer", leaking)
    told = Releasers()
    first = run_parties(tmp_path / "first", "experts", told, monkeypatch, None)
    second = run_parties(tmp_path / "second", "experts", Releasers(told.made), monkeypatch, "bank")
    assert first[0] != second[0]
