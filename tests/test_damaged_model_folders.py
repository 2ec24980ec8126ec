"""A damaged or hostile model folder ends in a clear error and exit 2, in little memory and time."""

from __future__ import annotations

import io
import json
import os
import resource
import shutil
import socket
import struct
import time
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from click.testing import CliRunner, Result
from pyarrow import csv

from halfmask.accounting.budget import Budget
from halfmask.cli import main
from halfmask.errors import DataError
from halfmask.mechanisms.noise import noise_source
from halfmask.model import Model
from halfmask.neural.pretrain import PretrainConfig
from halfmask.schema import Schema
from halfmask.table import Encoder
from halfmask.training import train

SCHEMA = {
    "label": {"name": "ill", "role": "private", "classes": ["no", "yes"]},
    "columns": {
        "age": {"role": "public", "kind": "number"},
        "town": {"role": "public", "kind": "category"},
        "dose": {"role": "private", "kind": "number", "bounds": [0, 10], "bins": 3},
    },
}
KINDS = ("linear", "mlp")
SECONDS = 20.0

Damage = Callable[[Path], None]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A linear model with its ledger, and a network, by real training; and rows to use them on."""
    base = tmp_path_factory.mktemp("models")
    rng = np.random.default_rng(1)
    n = 60
    frame = pa.table(
        {
            "age": rng.integers(20, 80, n),
            "town": rng.choice(["A", "B"], n),
            "dose": rng.uniform(0, 10, n),
            "ill": rng.choice(["no", "yes"], n),
        }
    )
    csv.write_csv(frame, base / "rows.csv")
    schema = Schema.from_dict(SCHEMA)
    (base / "rows.toml").write_text(schema.to_toml(), encoding="utf-8")
    done = run(
        "train", base / "rows.csv", "--schema", base / "rows.toml", "--epsilon", 1,
        "--delta", 1e-5, "--method", "gd", "--out", base / "linear",
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    encoder = Encoder.fit(schema, frame)
    train(
        encoder.encode(frame),
        Budget(epsilon=1.0, delta=1e-5),
        method="mlp",
        noise=noise_source(),
        encoder=encoder,
        options={"pretrain": PretrainConfig(hidden=5, networks=1, epochs=2)},
    ).save(base / "mlp")
    shutil.copy(base / "linear" / "ledger.jsonl", base / "mlp" / "other.jsonl")
    return base


def run(*args: object) -> Result:
    return CliRunner().invoke(main, [str(arg) for arg in args])


def commands(folder: Path, base: Path) -> dict[str, list[object]]:
    rows = base / "rows.csv"
    out = folder.parent / "out"
    return {
        "predict": ["predict", folder, rows],
        "evaluate": ["evaluate", folder, rows],
        "report": ["report", folder, "--format", "json", "--out", out, "--data", rows],
        "audit": ["audit", folder, "--data", rows, "--canaries", 20],
    }


def edited(change: Callable[[dict[str, Any]], Any]) -> Damage:
    """Change what model.json says."""

    def damage(folder: Path) -> None:
        file = folder / "model.json"
        data = json.loads(file.read_text(encoding="utf-8"))
        changed = change(data)
        file.write_text(json.dumps(data if changed is None else changed), encoding="utf-8")

    return damage


def put(*path: str, value: Any) -> Damage:
    """Set a field of model.json, however deep."""

    def change(data: dict[str, Any]) -> None:
        at: Any = data
        for name in path[:-1]:
            at = at[name]
        at[path[-1]] = value

    return edited(change)


def dropped(*path: str) -> Damage:
    def change(data: dict[str, Any]) -> None:
        at: Any = data
        for name in path[:-1]:
            at = at[name]
        del at[path[-1]]

    return edited(change)


def text(content: str | bytes, name: str = "model.json") -> Damage:
    raw = content.encode() if isinstance(content, str) else content
    return lambda folder: write(folder / name, raw)


def spelled(value: str) -> Damage:
    """Write the statement's delta in a way that json.dumps would not."""

    def damage(folder: Path) -> None:
        content = (folder / "model.json").read_text(encoding="utf-8")
        changed = content.replace('"delta": 1e-05', f'"delta": {value}')
        assert changed != content
        write(folder / "model.json", changed.encode())

    return damage


def write(file: Path, content: bytes) -> None:
    file.unlink(missing_ok=True)
    file.write_bytes(content)


def member(name: str, content: bytes | None, **more: bytes) -> Damage:
    """Replace (None: remove) members of model.npz by raw bytes."""

    def damage(folder: Path) -> None:
        file = folder / "model.npz"
        with zipfile.ZipFile(file) as archive:
            held = {info.filename: archive.read(info) for info in archive.infolist()}
        own = weight(folder) if name == "*" else name
        held[f"{own}.npy"] = content or b""
        if content is None:
            del held[f"{own}.npy"]
        held |= {f"{key}.npy": value for key, value in more.items()}
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
            for key, value in held.items():
                archive.writestr(key, value)

    return damage


def weight(folder: Path) -> str:
    """The name of the first array of weights: of a linear model, or of a network."""
    with zipfile.ZipFile(folder / "model.npz") as archive:
        return "coef" if "coef.npy" in archive.namelist() else "weight0"


def array(change: Callable[[np.ndarray], Any], name: str = "*") -> Damage:
    """Replace an array (by default of weights) by a function of it."""

    def damage(folder: Path) -> None:
        own = weight(folder) if name == "*" else name
        with np.load(folder / "model.npz") as stored:
            arrays = {key: stored[key] for key in stored.files}
        arrays[own] = np.asarray(change(arrays[own].copy()))
        np.savez_compressed(folder / "model.npz", **arrays)  # type: ignore[arg-type]

    return damage


def filled(value: float) -> Callable[[np.ndarray], np.ndarray]:
    def change(stored: np.ndarray) -> np.ndarray:
        stored.flat[0] = value
        return stored

    return change


def npy(values: Any, **keywords: Any) -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array(file, np.asarray(values), **keywords)
    return file.getvalue()


def header(shape: str, dtype: str = "<f8", content: bytes = b"\0" * 64) -> bytes:
    """An array file whose header says anything."""
    words = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}}}".encode()
    words += b" " * (117 - len(words)) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(words)) + words + content


def bomb(folder: Path) -> None:
    """Half a gigabyte of zeros in half a megabyte, as one array of the right name."""
    whole = 1 << 29
    name = weight(folder)
    with (
        zipfile.ZipFile(folder / "model.npz", "w", zipfile.ZIP_DEFLATED) as archive,
        archive.open(f"{name}.npy", "w", force_zip64=True) as stream,
    ):
        stream.write(header(f"(1, {whole // 8})", content=b""))
        for _ in range(whole >> 20):
            stream.write(b"\0" * (1 << 20))


def many_members(folder: Path) -> None:
    with zipfile.ZipFile(folder / "model.npz", "w") as archive:
        for place in range(20_000):
            archive.writestr(f"a{place}.npy", b"")


def declared_sizes(folder: Path) -> None:
    """The directory says that every member unpacks to two gigabytes."""
    content = bytearray((folder / "model.npz").read_bytes())
    at = content.find(b"PK\x01\x02")
    while at >= 0:
        struct.pack_into("<I", content, at + 24, 2 << 30)
        at = content.find(b"PK\x01\x02", at + 4)
    write(folder / "model.npz", bytes(content))


def encrypted(folder: Path) -> None:
    content = bytearray((folder / "model.npz").read_bytes())
    for mark, place in ((b"PK\x01\x02", 8), (b"PK\x03\x04", 6)):
        at = content.find(mark)
        content[at + place] |= 1
    write(folder / "model.npz", bytes(content))


def flipped(folder: Path) -> None:
    """One bit within packed weights."""
    content = bytearray((folder / "model.npz").read_bytes())
    content[120] ^= 4
    write(folder / "model.npz", bytes(content))


def cut(share: float) -> Damage:
    def damage(folder: Path) -> None:
        content = (folder / "model.npz").read_bytes()
        write(folder / "model.npz", content[: int(share * len(content))])

    return damage


def instead(name: str, make: Callable[[Path], Any]) -> Damage:
    """Put something else in a file's place."""

    def damage(folder: Path) -> None:
        (folder / name).unlink(missing_ok=True)
        make(folder / name)

    return damage


def unix_socket(path: Path) -> None:
    here = os.getcwd()
    os.chdir(path.parent)  # the name of a socket may not be long
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(path.name)
    finally:
        os.chdir(here)


def sparse(path: Path) -> None:
    """A file of eight gigabytes that takes no room on the disk."""
    with path.open("wb") as file:
        file.truncate(8 << 30)


DEEP = "[" * 100_000 + "]" * 100_000
EVENT = {"kind": "gaussian", "replace": 0.2, "withhold": 0.1, "count": 1}
SAMPLED = {"kind": "poisson-gaussian", "noise_multiplier": 2.0, "rate": 0.1, "steps": 1}

DESCRIPTION: dict[str, Damage] = {
    # model.json as a text
    "empty json": text(""),
    "a null": text("null"),
    "a list": text("[]"),
    "a number": text("3"),
    "a text": text('"model"'),
    "no object": text("{}"),
    "cut json": lambda f: write(f / "model.json", (f / "model.json").read_bytes()[:-40]),
    "not utf-8": text(b"\xff\xfe{}"),
    "binary": text(os.urandom(2000)),
    "deep json": text(DEEP),
    "deep in a field": spelled(DEEP),
    "a NaN in json": spelled("NaN"),
    "an overflow in json": spelled("1e999"),
    "an integer of many digits": spelled("9" * 5000),
    "a huge integer": put("privacy", "delta", value=10**400),
    "a sparse json": instead("model.json", sparse),
    # fields of model.json
    **{
        f"no {name}": dropped(name)
        for name in (
            "format",
            "kind",
            "task",
            "classes",
            "label_bounds",
            "row_norm",
            "method",
            "reason",
            "details",
            "options",
            "encoder",
            "privacy",
        )
    },
    "another format": put("format", value="halfmask-model-0"),
    "a format in a list": put("format", value=["halfmask-model-1"]),
    "another kind": put("kind", value="tree"),
    "a kind in a list": put("kind", value=["linear"]),
    "a kind in an object": put("kind", value={"linear": 1}),
    "the kind of another model": edited(
        lambda d: d.update(kind="mlp" if d["kind"] == "linear" else "linear")
    ),
    "another task": put("task", value="regression"),
    "no task at all": put("task", value=None),
    "classes as a text": put("classes", value="noyes"),
    "one class": put("classes", value=["no"]),
    "three classes": put("classes", value=["no", "yes", "perhaps"]),
    "classes twice": put("classes", value=["no", "no"]),
    "classes that are lists": put("classes", value=[["no"], ["yes"]]),
    "classes gone": put("classes", value=None),
    "bounds of one number": put("label_bounds", value=[1]),
    "bounds as a text": put("label_bounds", value="01"),
    "bounds the wrong way": put("label_bounds", value=[2, 1]),
    "a row norm as a text": put("row_norm", value="1"),
    "a method that is a number": put("method", value=3),
    "a reason that is a list": put("reason", value=["because"]),
    "details that are a list": put("details", value=[1, 2]),
    "options that are a list": put("options", value=[1]),
    "options of another program": put(
        "options", value={"config": {"config": "os:system", "fields": {}}}
    ),
    "options that are no configuration": put(
        "options", value={"config": {"config": "halfmask.table:Table", "fields": {}}}
    ),
    "options without fields": put(
        "options", value={"config": {"config": "halfmask.methods.gd:GdConfig"}}
    ),
    "options with a field too many": put(
        "options",
        value={"config": {"config": "halfmask.methods.gd:GdConfig", "fields": {"speed": 1}}},
    ),
    "options of another type": put(
        "options",
        value={"config": {"config": "halfmask.methods.gd:GdConfig", "fields": {"steps": "many"}}},
    ),
    "options of a module that is not there": put(
        "options", value={"config": {"config": "halfmask.nowhere.at:AllConfig", "fields": {}}}
    ),
}
FEATURES: dict[str, Damage] = {
    "no encoder": put("encoder", value=None),
    "an encoder that is a list": put("encoder", value=[]),
    "an encoder of another format": put("encoder", "format", value="x"),
    "no schema": dropped("encoder", "schema"),
    "nothing learnt": dropped("encoder", "learnt"),
    "a schema that is a text": put("encoder", "schema", value="people.toml"),
    "a schema without columns": put("encoder", "schema", "columns", value={}),
    "columns that are a list": put("encoder", "schema", "columns", value=["age"]),
    "a column that is a number": put("encoder", "schema", "columns", "dose", value=3),
    "a column without kind": dropped("encoder", "schema", "columns", "dose", "kind"),
    "a private column without bounds": dropped("encoder", "schema", "columns", "dose", "bounds"),
    "bins without end": put("encoder", "schema", "columns", "dose", "bins", value=10**12),
    "another label": put("encoder", "schema", "label", "classes", value=["a", "b"]),
    "learnt that is a list": put("encoder", "learnt", value=[1]),
    "a column learnt of nothing": put("encoder", "learnt", "age", value={}),
    "edges that are texts": put("encoder", "learnt", "age", value={"edges": ["a"]}),
    "edges that are a number": put("encoder", "learnt", "age", value={"edges": 3}),
    "levels fewer than weights": put("encoder", "learnt", "town", value={"levels": ["A"]}),
    "levels more than weights": put(
        "encoder", "learnt", "town", value={"levels": [str(i) for i in range(50)]}
    ),
    "one column learnt too many": put("encoder", "learnt", "dose", value={"edges": [1.0]}),
    "features that are texts": put("features", value=["a", "b"]),
    "features that are fewer": put("features", value=[1, 1]),
}
STATEMENT: dict[str, Damage] = {
    "a statement that is a text": put("privacy", value="private"),
    "a statement of nothing": put("privacy", value={}),
    **{
        f"a statement without {name}": dropped("privacy", name)
        for name in ("delta", "relation", "calibrated", "private", "events", "noise", "seeded")
    },
    "a delta that is a text": put("privacy", "delta", value="small"),
    "a delta of two": put("privacy", "delta", value=2.0),
    "a negative epsilon": put("privacy", "calibrated", value={"replace": -1.0, "withhold": 0.1}),
    "an epsilon that is a list": put("privacy", "calibrated", value={"replace": [], "withhold": 1}),
    "another relation": put("privacy", "relation", value="add-remove"),
    "private columns as a number": put("privacy", "private", value=3),
    "private columns of numbers": put("privacy", "private", value=[3]),
    "seeded as a text": put("privacy", "seeded", value="no"),
    "rows as a text": put("privacy", "max_rows", value="1"),
    "an event that is a text": put("privacy", "events", value=["gaussian"]),
    "an event of another kind": put("privacy", "events", value=[{"kind": "laplace"}]),
    "an event with a field too many": put("privacy", "events", value=[{**EVENT, "more": 1}]),
    "an event of a negative ratio": put("privacy", "events", value=[{**EVENT, "replace": -1}]),
    "an event of texts": put("privacy", "events", value=[{**EVENT, "replace": "x"}]),
    "releases without end": put("privacy", "events", value=[{**EVENT, "count": 10**40}]),
    "steps without end": put("privacy", "events", value=[{**SAMPLED, "steps": 10**15}]),
    "kinds of steps without end": put(
        "privacy", "events", value=[{**SAMPLED, "rate": i / 5000} for i in range(1, 5000)]
    ),
}
ARRAYS: dict[str, Damage] = {
    # model.npz as an archive
    "no archive": lambda f: (f / "model.npz").unlink(),
    "an empty archive": text(b"", "model.npz"),
    "an archive of text": text("weights " * 100, "model.npz"),
    "an archive without members": lambda f: zipfile.ZipFile(f / "model.npz", "w").close(),
    "an archive cut at a third": cut(0.33),
    "an archive cut near its end": cut(0.95),
    "an archive without its first byte": lambda f: write(
        f / "model.npz", (f / "model.npz").read_bytes()[1:]
    ),
    "a flipped bit": flipped,
    "a zip bomb": bomb,
    "sizes that are too large": declared_sizes,
    "very many members": many_members,
    "an encrypted archive": encrypted,
    "a sparse archive": instead("model.npz", sparse),
    "a single array instead": lambda f: np.save((f / "model.npz").open("wb"), np.zeros(3)),
    # arrays
    "a NaN": array(filled(np.nan)),
    "an infinity": array(filled(np.inf)),
    "a negative infinity": array(filled(-np.inf)),
    "weights that overflow": array(lambda a: np.full_like(a, np.finfo(a.dtype).max)),
    "weights of half precision": array(lambda a: a.astype(np.float16)),
    "complex weights": array(lambda a: a.astype(complex)),
    "whole weights": array(lambda a: np.zeros(a.shape, dtype=int)),
    "weights that are texts": array(lambda a: a.astype(str)),
    "weights that are times": array(lambda a: np.zeros(a.shape, dtype="M8[s]")),
    "flat weights": array(lambda a: a.ravel()),
    "turned weights": array(lambda a: np.vstack([a.T, a.T[:1]])),
    "weights of no row": array(lambda a: a[:0]),
    "weights of one column less": array(lambda a: a[:, 1:]),
    "weights of one column more": array(lambda a: np.hstack([a, a[:, :1]])),
    "weights of one row more": array(lambda a: np.vstack([a, a[:1]])),
    "a single weight": array(lambda a: a[0, 0]),
    "no weights": member("*", None),
    "an empty member": member("*", b""),
    "a member of text": member("*", b"weights"),
    "objects": member("*", npy(np.array([{}, []], dtype=object), allow_pickle=True)),
    "a header without end": member("*", b"\x93NUMPY\x02\x00" + struct.pack("<I", 1 << 31)),
    "another version": member("*", b"\x93NUMPY\x09\x00" + b"\0" * 200),
    "a huge shape": member("*", header("(1000000, 1000000)")),
    "a shape beyond numbers": member("*", header("(99999999999999999999999, 9)")),
    "a negative shape": member("*", header("(-1, -8)")),
    "an empty huge shape": member("*", header("(0, 1000000000000000)", content=b"")),
    "a shape of texts": member("*", header("('1', 8)")),
    "a type of fields": member("*", header("(8,)", dtype="<f4,<f4")),
    "a type that is code": member("*", header("(8,)", dtype="__import__")),
    "a cut array": member("*", header("(9, 9)", content=b"\0" * 10)),
    "a map of no kind": member("*", npy(np.zeros(3)), **{"map.kind": npy(np.array("none"))}),
    # what lies in the place of a file
    "a folder as json": instead("model.json", Path.mkdir),
    "a folder as archive": instead("model.npz", Path.mkdir),
    "a pipe as json": instead("model.json", os.mkfifo),
    "a pipe as archive": instead("model.npz", os.mkfifo),
    "a socket as archive": instead("model.npz", unix_socket),
    "an endless device as json": instead("model.json", lambda p: p.symlink_to("/dev/zero")),
    "an endless device as archive": instead("model.npz", lambda p: p.symlink_to("/dev/zero")),
    "an empty device as archive": instead("model.npz", lambda p: p.symlink_to("/dev/null")),
    "a link to nothing": instead("model.npz", lambda p: p.symlink_to("/nowhere/at/all")),
    "a link to itself": instead("model.npz", lambda p: p.symlink_to("model.npz")),
}


ALWAYS = DESCRIPTION | FEATURES | STATEMENT | ARRAYS
# What model.json says is read alike for every kind of model; what needs the arrays is not.
CASES = [(name, "linear") for name in ALWAYS] + [(name, "mlp") for name in FEATURES | ARRAYS]


def sealed(**changes: Any) -> Damage:
    """A ledger whose hashes are right and whose content is not."""
    import hashlib

    def damage(folder: Path) -> None:
        line = (folder / "ledger.jsonl").read_bytes().split(b"\n")[0]
        fields = json.loads(line) | changes
        del fields["hash"]
        spelled = json.dumps(fields, separators=(",", ":")).encode()
        fields["hash"] = hashlib.sha256(spelled).hexdigest()
        write(folder / "ledger.jsonl", json.dumps(fields, separators=(",", ":")).encode() + b"\n")
        (folder / "ledger.jsonl.head").unlink()

    return damage


def linked(content: bytes) -> Damage:
    def damage(folder: Path) -> None:
        (folder / "ledger.jsonl").unlink()
        (folder / "ledger.jsonl.head").unlink()
        write(folder / "ledger.path", content)

    return damage


IN_REPORTS: dict[str, Damage] = {
    "a ledger that is a pipe": instead("ledger.jsonl", os.mkfifo),
    "a head that is a pipe": instead("ledger.jsonl.head", os.mkfifo),
    "a head that is a device": instead("ledger.jsonl.head", lambda p: p.symlink_to("/dev/zero")),
    "a ledger that is a folder": instead("ledger.jsonl", Path.mkdir),
    "a ledger that is a device": instead("ledger.jsonl", lambda p: p.symlink_to("/dev/zero")),
    "an empty ledger": text(b"", "ledger.jsonl"),
    "a deep ledger": text(DEEP + "\n", "ledger.jsonl"),
    "a sparse ledger": instead("ledger.jsonl", sparse),
    "a ledger whose budget is a text": sealed(epsilon="much"),
    "a ledger without limits": sealed(epsilon=None),
    "a ledger of another relation": sealed(relation="label"),
    "a link that is a pipe": lambda f: [linked(b"")(f), instead("ledger.path", os.mkfifo)(f)],
    "a link to a device": linked(b"/dev/zero\n"),
    "a link of zeros": linked(b"\0\0\0"),
    "a link without end": linked(b"a/" * 100_000),
    "a link of a long name": linked(b"a" * 5000),
    "a link that is no text": linked(b"\xff\xfe"),
    "a curve of texts": put("details", "public_loss", value=["a", "b"]),
    "a curve of objects": put("details", "public_loss", value=[{}, []]),
    "a smaller claim than was charged": put(
        "privacy", "calibrated", value={"replace": 0.01, "withhold": 0.005}
    ),
}


def damaged_copy(base: Path, kind: str, damage: Damage, place: Path) -> Path:
    folder = place / "model"
    shutil.copytree(base / kind, folder)
    damage(folder)
    return folder


def assert_refused(result: Result, name: str) -> None:
    assert result.exit_code == 2, f"{name}: exit {result.exit_code}\n{result.output[:500]}"
    assert result.output.startswith("Error: ") or "Error: " in result.output
    assert "defect" not in result.output
    assert "Traceback" not in result.output
    assert len(result.output) < 2000


def test_there_are_as_many_damages_as_were_tried() -> None:
    assert len(ALWAYS) + len(IN_REPORTS) >= 93


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_every_command_refuses_it(base: Path, tmp_path: Path, name: str, kind: str) -> None:
    folder = damaged_copy(base, kind, ALWAYS[name], tmp_path)
    before, started = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.monotonic()
    for command, words in commands(folder, base).items():
        assert_refused(run(*words), f"{command}, {name}")
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) >> 10
    assert grown < 400, f"{grown} MiB"
    assert time.monotonic() - started < SECONDS


@pytest.mark.parametrize("name", IN_REPORTS)
def test_the_report_refuses_it(base: Path, tmp_path: Path, name: str) -> None:
    folder = damaged_copy(base, "linear", IN_REPORTS[name], tmp_path)
    started = time.monotonic()
    words = commands(folder, base)
    assert_refused(run(*words["report"]), name)
    assert run(*words["predict"]).exit_code == 0
    assert time.monotonic() - started < SECONDS


@pytest.mark.parametrize("kind", KINDS)
def test_an_undamaged_folder_passes(base: Path, tmp_path: Path, kind: str) -> None:
    folder = damaged_copy(base, kind, lambda f: None, tmp_path)
    for command, words in commands(folder, base).items():
        result = run(*words)
        assert result.exit_code in ((0, 4) if command == "audit" else (0,)), result.output


@pytest.mark.parametrize("kind", KINDS)
def test_a_moved_or_linked_model_passes(base: Path, tmp_path: Path, kind: str) -> None:
    """A link to a regular file is no damage."""
    folder = tmp_path / "model"
    folder.mkdir()
    for name in ("model.json", "model.npz"):
        (folder / name).symlink_to(base / kind / name)
    assert run("predict", folder, base / "rows.csv").exit_code == 0


def test_a_curve_with_a_loss_that_was_not_finite_is_shown(base: Path, tmp_path: Path) -> None:
    damage = put("details", "public_loss", value=[0.7, None, 0.5])
    folder = damaged_copy(base, "linear", damage, tmp_path)
    out = tmp_path / "r.json"
    assert run("report", folder, "--format", "json", "--out", out).exit_code == 0
    learning = json.loads(out.read_text(encoding="utf-8"))["learning"]
    assert learning == [{"step": 1, "loss": 0.7}, {"step": 3, "loss": 0.5}]


def test_an_audit_file_that_is_none_is_refused(base: Path, tmp_path: Path) -> None:
    for place, content in enumerate((b"", b"{}", DEEP.encode(), b"[3]", b'{"mechanism": 1}')):
        file = tmp_path / f"{place}.json"
        file.write_bytes(content)
        assert_refused(run("report", base / "linear", "--audit", file), str(content[:10]))
    os.mkfifo(tmp_path / "pipe")
    assert_refused(run("report", base / "linear", "--audit", tmp_path / "pipe"), "pipe")


@pytest.mark.parametrize("kind", KINDS)
def test_any_flipped_byte_predicts_or_is_refused(base: Path, tmp_path: Path, kind: str) -> None:
    """Nothing but our own error, wherever a byte of the archive or of the description changes."""
    rng = np.random.default_rng(3)
    folder = damaged_copy(base, kind, lambda f: None, tmp_path)
    for name in ("model.json", "model.npz"):
        content = (folder / name).read_bytes()
        for place in rng.integers(0, len(content), 150):
            changed = bytearray(content)
            changed[place] ^= int(rng.integers(1, 256))
            (folder / name).write_bytes(changed)
            with suppress(DataError):
                Model.load(folder)
        (folder / name).write_bytes(content)
