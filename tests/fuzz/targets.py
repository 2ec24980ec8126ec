"""What is fuzzed: each target holds valid input and hands a damaged copy of it to its reader.

A case may return or raise an error of halfmask's own; the driver calls everything else a fault. No
message may hold `SECRET`, which stands in every private cell.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import tomli_w
from pyarrow import parquet

from fuzz.mutate import (
    NUMBERS,
    WORDS,
    damaged_bytes,
    damaged_tree,
    json_bytes,
    nasty,
    nested,
    toml_safe,
)
from halfmask.accounting.events import GaussianEvent, PoissonGaussianEvent, RandomisedResponseEvent
from halfmask.accounting.ledger import Ledger, _sealed, parse_chain, parse_head
from halfmask.data.reading import column_names, open_rows, read_frame
from halfmask.dictionary import grouped, read_dictionary
from halfmask.schema import Schema
from halfmask.settings import config_from_words, read_config
from halfmask.table import Encoder

SECRET = "zqsecret"
SCHEMA: dict[str, Any] = {
    "label": {"name": "ill", "role": "private", "classes": ["no", "yes"]},
    "columns": {
        "age": {"role": "public", "kind": "number"},
        "town": {"role": "public", "kind": "category"},
        "born": {"role": "public", "kind": "date"},
        "dose": {"role": "private", "kind": "number", "bounds": [0, 10], "bins": 3},
        "drug": {"role": "private", "kind": "category", "categories": ["a", "b"]},
        "seen": {"role": "private", "kind": "date", "bounds": ["2000-01-01", "2024-12-31"]},
        "ever": {"role": "private", "kind": "bool"},
        "decade": {"public": "round(age, 10)"},
    },
    "unit": {"column": "id", "max_rows": 2},
}
SHORT: dict[str, Any] = {
    "include": ["common.toml"],
    "ignore": ["note_*", "id"],
    "defaults": {"role": "private", "kind": "number", "bounds": [0, 1], "bins": 4},
    "label": {"name": "ill", "role": "private", "classes": [0, 1]},
    "columns": {"lab_*": {"bounds": [0, 9]}, "age": {"role": "public", "kind": "number"}},
    "groups": {"demo": {"columns": ["town", "sex_*"], "kind": "category", "categories": ["a"]}},
}
SHORT_NAMES = ["ill", "id", "age", "town", "sex_m", "lab_a", "lab_b", "note_1"]
ROWS = {
    "id": ["1", "1", "2", "3", "4", "5"],
    "age": ["20", "31.5", "", "47", "52", "NA"],
    "town": ["A", "B", "A", "é", "B", "A"],
    "born": ["1990-01-31", "1991-02-28T12:00:00", "", "1970-01-01", "2001-09-09", "1999-12-31"],
    "dose": ["1", "2.5", "9", "", "inf", "0"],
    "drug": ["a", SECRET, "b", "", "a", SECRET],
    "seen": ["2001-01-01", "2002-02-02", "", "2010-10-10", "2024-12-31", "1999-01-01"],
    "ever": ["true", "false", "True", "", "1", "0"],
    "ill": ["no", "yes", "no", "yes", "no", "yes"],
}
DICTIONARY = b"""Variable,Type,Min,Max,Range,Choices
age,integer,0,120,,
town,text,,,,A|B|C
born,date,1900-01-01,2024-12-31,,
dose,float,,,0..10,
drug,factor,,,,"0, no | 1, yes"
"""


class Target:
    """One reader with its valid input; `share` is its part of a run: more where cases are cheap."""

    share: float = 1

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.prepare()

    def prepare(self) -> None:
        """Make valid input."""

    def case(self, rng: Random) -> None:
        """Damage a copy, and read it."""
        raise NotImplementedError

    def write(self, name: str, content: bytes) -> Path:
        path = self.folder / name
        path.write_bytes(content)
        return path


def toml_bytes(rng: Random, tree: dict[str, Any]) -> bytes:
    """A TOML file: damaged as a tree, as text, or as both."""
    kind = rng.randrange(4)
    damaged = damaged_tree(rng, tree) if kind else tree
    try:
        text = tomli_w.dumps(toml_safe(damaged) if isinstance(damaged, dict) else tree)
    except (ValueError, TypeError, RecursionError, AttributeError):
        text = ""
    content = text.encode("utf-8", "surrogatepass")
    return content if kind == 1 or kind == 2 else damaged_bytes(rng, content)


class SchemaFile(Target):
    """Schemas written out in full."""

    share = 80

    def case(self, rng: Random) -> None:
        path = self.write("s.toml", toml_bytes(rng, SCHEMA))
        schema = Schema.from_toml(path)
        if rng.random() < 0.9:
            return
        again = self.write("again.toml", schema.to_toml().encode())
        assert Schema.from_toml(again) == schema
        Encoder.fit(schema, pa.table({name: ROWS.get(name, ["1"] * 6) for name in schema.read}))


class ShortSchema(Target):
    """Short schemas: patterns, groups, defaults, included files."""

    share = 15

    def prepare(self) -> None:
        self.common = tomli_w.dumps({"columns": SHORT["columns"]}).encode()
        self.plain = tomli_w.dumps(SHORT).encode()

    def case(self, rng: Random) -> None:
        which = rng.choice(("s.toml", "common.toml"))
        other = {"columns": SCHEMA["columns"], "ignore": ["x"], "include": rng.choice(WORDS)}
        self.write("common.toml", self.common)
        self.write("s.toml", self.plain)
        self.write(which, toml_bytes(rng, SHORT if which == "s.toml" else other))
        names = list(SHORT_NAMES)
        if rng.random() < 0.2:
            names += rng.sample(WORDS, 3)
        columns = rng.choice((names, lambda: names, None))
        schema = Schema.from_toml(self.folder / "s.toml", columns=columns)
        assert Schema.from_dict(schema.to_dict()) == schema


class CsvFile(Target):
    """CSV files, read whole and encoded by a schema."""

    share = 50

    def prepare(self) -> None:
        lines = [",".join(ROWS), *(",".join(row) for row in zip(*ROWS.values(), strict=True))]
        self.plain = "\n".join(lines).encode()
        self.schema = Schema.from_dict(SCHEMA)

    def case(self, rng: Random) -> None:
        content = damaged_bytes(rng, self.plain)
        name = "rows.csv"
        if rng.random() < 0.05:
            import gzip

            content, name = gzip.compress(content), "rows.csv.gz"
            content = damaged_bytes(rng, content) if rng.random() < 0.5 else content
        path = self.write(name, content)
        if rng.random() < 0.3:
            column_names(path)
        frame = read_frame(path)
        if rng.random() < 0.3:
            encoded(self.schema, frame)


def encoded(schema: Schema, frame: Any) -> None:
    encoder = Encoder.fit(schema, frame)
    table = encoder.encode(frame)
    for block in (table.public, table.private):
        assert np.isfinite(block).all()
        assert block.size == 0 or np.abs(block).max() <= 1


ARROW = (
    lambda rng, n: pa.array([rng.choice((None, 0, 1, -1, 2**62)) for _ in range(n)], pa.int64()),
    lambda rng, n: pa.array([rng.choice((None, 0, 2**64 - 1)) for _ in range(n)], pa.uint64()),
    lambda rng, n: pa.array([rng.choice((1e308, 5e-324, float("nan"), None)) for _ in range(n)]),
    lambda rng, n: pa.array(np.array([rng.choice((1.0, 65504.0)) for _ in range(n)], np.float16)),
    lambda rng, n: pa.array([rng.choice((None, "a", "", SECRET, "9" * 400)) for _ in range(n)]),
    lambda rng, n: pa.array([rng.choice((b"\xff", b"a", None)) for _ in range(n)], pa.binary()),
    lambda rng, n: broken_text(rng, n),
    lambda rng, n: pa.array([rng.choice(([1], [], None)) for _ in range(n)], pa.list_(pa.int8())),
    lambda rng, n: pa.array([rng.choice(({"x": 1}, None)) for _ in range(n)]),
    lambda rng, n: pa.array([rng.choice((True, None)) for _ in range(n)], pa.bool_()),
    lambda rng, n: pa.nulls(n),
    lambda rng, n: pa.array([rng.choice((0, -(2**31), None)) for _ in range(n)], pa.date32()),
    lambda rng, n: pa.array(
        [rng.choice((0, -(2**63), 2**63 - 1, None)) for _ in range(n)],
        pa.timestamp(rng.choice(("s", "ms", "us", "ns")), rng.choice((None, "UTC"))),
    ),
    lambda rng, n: pa.array([rng.choice((0, 2**62)) for _ in range(n)], pa.duration("ns")),
    lambda rng, n: pa.array([rng.choice((0, 86399)) for _ in range(n)], pa.time32("s")),
    lambda rng, n: pa.array([rng.choice((10**37, -1, None)) for _ in range(n)]).cast(
        pa.decimal128(38, 0)
    ),
    lambda rng, n: pa.array([rng.choice((10**75, 1, None)) for _ in range(n)], pa.decimal256(76)),
    lambda rng, n: pa.array([rng.choice(("a", SECRET)) for _ in range(n)]).dictionary_encode(),
)


def broken_text(rng: Random, n: int) -> pa.Array:
    """A column that claims to be text, with bytes that are not UTF-8."""
    words = [rng.choice((b"\xff\xfe", b"a", b"\xed\xa0\x80")) for _ in range(n)]
    raw = pa.array(words, pa.binary())
    return pa.StringArray.from_buffers(n, raw.buffers()[1], raw.buffers()[2])


class ParquetFile(Target):
    """Parquet files: other types, names that are not UTF-8, damaged bytes."""

    share = 30

    def prepare(self) -> None:
        self.schema = Schema.from_dict(SCHEMA)
        sink = io.BytesIO()
        parquet.write_table(pa.table(ROWS), sink)
        self.plain = sink.getvalue()

    def case(self, rng: Random) -> None:
        kind = rng.randrange(4)
        if kind == 0:
            content = damaged_bytes(rng, self.plain, 3)
        else:
            rows = rng.choice((0, 1, 6, 6, 6))
            held = {name: pa.array(values[:rows]) for name, values in ROWS.items()}
            for name in rng.sample(list(held), rng.randint(0, 3)):
                with contextlib.suppress(pa.ArrowException, OverflowError):
                    held[name] = rng.choice(ARROW)(rng, rows)
            names = list(held)
            if rng.random() < 0.2:
                names[rng.randrange(len(names))] = rng.choice((*WORDS, *names))
            sink = io.BytesIO()
            try:
                parquet.write_table(pa.table(list(held.values()), names=names), sink)
            except (pa.ArrowException, OverflowError):
                return  # no such file
            content = sink.getvalue()
            if kind == 1:
                # Names in the file's own words, which need not be UTF-8.
                word = rng.choice((b"\xff\xff\xff\xff", b"\0\0\0\0", b"\xed\xa0\x80x"))
                content = content.replace(b"town", word).replace(b"dose", word)
        path = self.write("rows.parquet", content)
        if rng.random() < 0.3:
            column_names(path)
        if rng.random() < 0.7:
            frame = read_frame(path)
            if rng.random() < 0.5:
                encoded(self.schema, frame)
        else:
            with open_rows(path) as rows_of:
                encoded(self.schema, rows_of)


class FolderOfParquet(Target):
    """A folder of Parquet files, some of them damaged."""

    share = 4

    def prepare(self) -> None:
        self.schema = Schema.from_dict(SCHEMA)
        sink = io.BytesIO()
        parquet.write_table(pa.table(ROWS), sink)
        self.plain = sink.getvalue()

    def case(self, rng: Random) -> None:
        folder = self.folder / "rows"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        for number in range(rng.randrange(4)):
            damaged = rng.random() < 0.3
            content = damaged_bytes(rng, self.plain, 2) if damaged else self.plain
            if rng.random() < 0.2:
                content = content.replace(b"town", rng.choice((b"\xff\xff\xff\xff", b"care")))
            (folder / rng.choice((f"{number}.parquet", f"_{number}", "é"))).write_bytes(content)
        encoded(self.schema, read_frame(folder))


class Frames(Target):
    """Frames of Python objects."""

    share = 3

    def prepare(self) -> None:
        import pandas as pd

        self.schema, self.pd = Schema.from_dict(SCHEMA), pd

    def case(self, rng: Random) -> None:
        held: dict[str, Any] = {name: list(values) for name, values in ROWS.items()}
        for _ in range(rng.randint(1, 4)):
            name = rng.choice(list(held))
            held[name][rng.randrange(6)] = rng.choice(
                (nasty(rng), rng.choice(NUMBERS), rng.choice(WORDS), object(), b"\xff", 1j)
            )
        frame = {name: self.pd.Series(values, dtype=object) for name, values in held.items()}
        encoded(self.schema, self.pd.DataFrame(frame))


class DataDictionary(Target):
    """Data dictionaries."""

    share = 50

    def case(self, rng: Random) -> None:
        path = self.write("words.csv", damaged_bytes(rng, DICTIONARY))
        declared = read_dictionary(path)
        grouped(list(declared), declared)
        columns = {name: {"role": "private", **each} for name, each in declared.items()}
        Schema.from_dict({"label": SCHEMA["label"], "columns": columns})


class Settings(Target):
    """Settings of methods: words, and TOML files."""

    share = 20

    METHODS = (
        "additive",
        "gd",
        "sgd",
        "one-shot",
        "label-span",
        "dp-sgd",
        "mlp",
        "experts",
        "admm",
    )
    NAMES = ("steps", "rounds", "noise", "loss", "memory", "clip", "batch", "batch_size", "rho",
             "epochs", "recipe", "hidden", "strength", "step_size", "reach", "seed")  # fmt: skip

    def case(self, rng: Random) -> None:
        method = rng.choice(self.METHODS)
        names = rng.sample(self.NAMES, rng.randint(1, 3))
        values = [rng.choice((nasty(rng), rng.choice(("none", "1", "1/0", "0/0", "1e999", "true"))))
                  for _ in names]  # fmt: skip
        if rng.random() < 0.5:
            words = [f"{name}={value}" for name, value in zip(names, values, strict=True)]
            config_from_words(method, [*words, *rng.sample(WORDS, rng.randrange(2))])
            return
        told = dict(zip(names, values, strict=True))
        path = self.write("c.toml", toml_bytes(rng, rng.choice((told, {method: told})) or {"a": 1}))
        config_from_words(method, [], read_config(path, method))


class LedgerFile(Target):
    """Ledgers and their heads: bytes, and lines that were sealed again after an edit."""

    share = 350

    def prepare(self) -> None:
        path = self.folder / "book"
        book = Ledger.create(path, epsilon=3.0, delta=1e-6)
        book.charge([GaussianEvent(replace=0.2, withhold=0.1)], "one")
        number = book.charge(
            [PoissonGaussianEvent(noise_multiplier=9.0, rate=0.01, steps=3)], "two", run="r"
        )
        book.begin_part(number, [PoissonGaussianEvent(noise_multiplier=9.0, rate=0.01)], "part")
        book.refund(book.charge([RandomisedResponseEvent(epsilon=0.1, categories=2)], "three"))
        self.lines = path.read_bytes().splitlines(keepends=True)
        self.head = path.with_name("book.head").read_bytes()
        self.path = path

    def case(self, rng: Random) -> None:
        lines, head = list(self.lines), self.head
        kind = rng.randrange(4)
        if kind == 0:
            content = damaged_bytes(rng, b"".join(lines), 3)
        else:
            if kind == 1:
                head = damaged_bytes(rng, head)
            at = rng.randrange(len(lines))
            lines[at] = resealed(rng, lines[at])
            if kind == 2:
                # The chain, mended after the edit, so that only the fields themselves are wrong.
                lines, head = rechained(lines)
            content = b"".join(lines)
        if rng.random() < 0.05:
            head = json.dumps(nested(rng)).encode() * rng.choice((1, 5))
        if rng.random() < 0.9:
            chain = parse_chain(content, parse_head(head, "book.head"), "book")
            assert all(entry.seq > 0 for entry in chain.charges)
            return
        self.path.write_bytes(content)
        self.path.with_name("book.head").write_bytes(head)
        book = Ledger.open(self.path)
        book.spent(), book.room(), book.holds_if_adaptive()
        book.charge([GaussianEvent(replace=0.001, withhold=0.001)], "next")


def resealed(rng: Random, line: bytes) -> bytes:
    fields = json.loads(line)
    stored = fields.pop("hash")
    changed = damaged_tree(rng, fields, 2)
    if not isinstance(changed, dict):
        return json_bytes(changed) + b"\n"
    try:
        return _sealed({key: value for key, value in changed.items() if key != "hash"})
    except (ValueError, TypeError, AttributeError, RecursionError):
        changed["hash"] = stored
        return json_bytes(changed) + b"\n"


def rechained(lines: list[bytes]) -> tuple[list[bytes], bytes]:
    made: list[bytes] = []
    last = ""
    for place, line in enumerate(lines):
        try:
            fields = json.loads(line)
            fields.pop("hash", None)
            if place and "previous" in fields:
                fields["previous"] = last
            made.append(_sealed(fields))
            last = json.loads(made[-1])["hash"]
        except (ValueError, TypeError, AttributeError, KeyError, RecursionError):
            made.append(line)
    head = {"kind": "head", "count": len(made) - 1, "hash": last}
    return made, json.dumps(head, separators=(",", ":")).encode() + b"\n"


class SpecialFiles(Target):
    """Pipes, devices, folders, links in a circle in the place of every file."""

    share = 2

    def prepare(self) -> None:
        self.places: list[tuple[str, Callable[[Path], Any]]] = []
        self.model = trained_model(self.folder / "special-model")

    def case(self, rng: Random) -> None:
        folder = self.folder / "special"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        kind = rng.choice(("fifo", "folder", "loop", "dangling", "empty", "device", "forbidden"))
        name, read = rng.choice(self.readers(folder))
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        if path.exists():
            path.unlink()
        if kind == "fifo":
            os.mkfifo(path)
        elif kind == "folder":
            path.mkdir()
        elif kind == "loop":
            path.symlink_to(path)
        elif kind == "dangling":
            path.symlink_to(folder / "nothing")
        elif kind == "device":
            path.symlink_to("/dev/null")
        else:
            path.write_bytes(b"")
            path.chmod(0 if kind == "forbidden" else 0o600)
        if kind == "fifo" and name in ("rows.csv", "s.toml", "c.toml"):
            return  # pipes are read, and wait for their writer
        read(path)

    def readers(self, folder: Path) -> list[tuple[str, Callable[[Path], Any]]]:
        from halfmask.model import Model
        from halfmask.vertical.admm import load_state
        from halfmask.vertical.network import read_party_file, read_run_file
        from halfmask.vertical.queries import Part, VerticalModel, answered_so_far
        from halfmask.vertical.store import RoundStore

        def of_ledger(path: Path) -> None:
            if path.name.endswith(".head"):
                Ledger.create(folder / "new", epsilon=1.0, delta=1e-6)
                (folder / "new").rename(folder / "book")
                (folder / "new.head").unlink()
            Ledger.open(folder / "book").spent()

        def of_model(path: Path) -> None:
            for file in self.model.iterdir():
                if not os.path.lexists(folder / file.name):
                    shutil.copy(file, folder / file.name)
            Model.load(folder)

        return [
            ("s.toml", Schema.from_toml),
            ("rows.csv", read_frame),
            ("words.csv", lambda path: None if path.is_fifo() else read_dictionary(path)),
            ("c.toml", lambda path: read_config(path, "gd")),
            ("book", of_ledger),
            ("book.head", of_ledger),
            ("model.json", of_model),
            ("model.npz", of_model),
            ("party.toml", read_party_file),
            ("run.toml", read_run_file),
            ("party.npz", lambda path: RoundStore(path.parent).load()),
            ("state.npz", lambda path: load_state(path, ("a",))),
            ("queries.jsonl", answered_so_far),
            ("part.json", lambda path: Part.load(path.parent)),
            ("part.npz", lambda path: Part.load(path.parent)),
            ("vertical.json", lambda path: VerticalModel.load(path.parent)),
        ]


def trained_model(folder: Path, method: str = "gd") -> Path:
    """A small model by real training."""
    from halfmask.accounting.budget import Budget
    from halfmask.mechanisms.noise import noise_source
    from halfmask.neural.pretrain import PretrainConfig
    from halfmask.training import train

    schema = Schema.from_dict(SCHEMA)
    frame = pa.table({name: values * 10 for name, values in ROWS.items()})
    frame = frame.set_column(0, "id", pa.array([str(number) for number in range(60)]))
    encoder = Encoder.fit(schema, frame)
    small = {"pretrain": PretrainConfig(hidden=4, networks=1, epochs=1)}
    train(
        encoder.encode(frame),
        Budget(epsilon=1.0, delta=1e-5),
        method=method,
        noise=noise_source(),
        encoder=encoder,
        options=small if method == "mlp" else {},
    ).save(folder)
    return folder


class ModelFolder(Target):
    """Model folders of every kind: the description, the arrays, the bytes of both."""

    share = 10

    def prepare(self) -> None:
        self.stored = []
        for method in ("gd", "additive", "mlp"):
            folder = trained_model(self.folder / f"model-{method}", method)
            with np.load(folder / "model.npz") as held:
                arrays = {name: held[name] for name in held.files}
            told = json.loads((folder / "model.json").read_text())
            self.stored.append((told, arrays, (folder / "model.npz").read_bytes()))
        self.frame = pa.table(ROWS)

    def case(self, rng: Random) -> None:
        from halfmask.model import Model

        told, arrays, packed = rng.choice(self.stored)
        folder = self.folder / "damaged"
        folder.mkdir(exist_ok=True)
        kind = rng.randrange(4)
        if kind < 2:
            text = json_bytes(damaged_tree(rng, told))
        elif kind == 2:
            text = json.dumps(told).encode()
            packed = damaged_bytes(rng, packed, 3) if rng.random() < 0.5 else repacked(rng, arrays)
        else:
            text = damaged_bytes(rng, json.dumps(told).encode(), 3)
        (folder / "model.json").write_bytes(text)
        (folder / "model.npz").write_bytes(packed)
        model = Model.load(folder)
        model.privacy.text(), model._repr_html_()
        table = model.encode(self.frame) if model.encoder is not None else None
        if table is not None:
            model.predict(table)
            if model.task == "classification":
                assert np.isfinite(model.probabilities(table)).all()


def repacked(rng: Random, arrays: dict[str, Any]) -> bytes:
    """An npz file with other arrays."""
    held = dict(arrays)
    for name in rng.sample(list(held), min(len(held), rng.randint(1, 2))):
        held[name] = other_array(rng, held[name])
        if rng.random() < 0.2:
            held[rng.choice(WORDS) or "x"] = held.pop(name)
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w", rng.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))) as out:
        for name, array in held.items():
            content = io.BytesIO()
            try:
                np.lib.format.write_array(content, np.asarray(array), allow_pickle=False)
            except ValueError:
                content = io.BytesIO(b"\x93NUMPY\x01\x00")
            raw = content.getvalue()
            name = name.replace("\0", "") or "x"
            out.writestr(f"{name}.npy", damaged_bytes(rng, raw, 2) if rng.random() < 0.1 else raw)
    return sink.getvalue()


def other_array(rng: Random, array: Any) -> Any:
    """An array of another type, shape or content; what numpy cannot make stays as it was."""
    try:
        return _other_array(rng, np.array(array))
    except (ValueError, TypeError, OverflowError):
        return np.zeros(3)


def _other_array(rng: Random, found: Any) -> Any:
    kind = rng.randrange(9)
    if kind == 0:
        return found.astype(
            rng.choice(("f4", "f2", "i8", "?", "U3", "S2", "c16", ">f8")), copy=True
        )
    if kind == 1:
        return found.reshape(-1)
    if kind == 2:
        return found[None]
    if kind == 3:
        return found[..., :-1] if found.ndim else found
    if kind == 4:
        return np.zeros(rng.choice(((), (0,), (1,), (0, 3), (2, 0), (3, 3), (1000, 7))))
    if kind == 5 and found.dtype.kind == "f" and found.size:
        found = found.copy()
        found.reshape(-1)[rng.randrange(found.size)] = rng.choice(
            (np.nan, np.inf, 1e308, -1e308, 5e-324, 1e200)
        )
        return found
    if kind == 6:
        return np.array([rng.choice((0.0, -1.0, 2**62, 1e308))] * rng.randrange(1, 4))
    if kind == 7:
        return np.array(rng.choice(WORDS))
    return (
        np.concatenate([found, found])
        if found.ndim
        else found + 1
        if found.dtype.kind == "f"
        else 7
    )
