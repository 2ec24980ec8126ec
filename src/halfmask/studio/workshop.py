"""What the page can ask for: the draft, pictures of public columns, the price, trainings, results.

The files are those named at the start. Of a private column nothing leaves but its name and what was
declared about it: values are read for the kind and the picture of columns that are public, and for
nothing else.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import pyarrow.compute as pc

from halfmask.accounting.budget import Budget, printed
from halfmask.accounting.events import check_epsilon, check_relation
from halfmask.checking import Checked, Looked, check_rows, counted_rows, look_at
from halfmask.cli.schema import column_kinds
from halfmask.data.cells import moment_text
from halfmask.data.frames import dates, numbers, texts
from halfmask.data.reading import FileRows
from halfmask.effects import Effect
from halfmask.errors import DataError, HalfmaskError, InputError
from halfmask.schema import Column, Kind, Label, Role, Unit
from halfmask.studio.draft import HELP, Draft, Purpose, full_text, placeholders, shown_name
from halfmask.studio.price import ledger_facts, price

# --- A small picture of a public column: counts by level, or by equal parts of its range.
# Whoever calls has made sure that the column is public now.


_BARS = 24
_LEVELS = 8


def column_picture(rows: FileRows, name: str, kind: str) -> dict[str, Any]:
    """Bars with a text each, their counts, and how many cells are missing."""
    table = rows.columns([name])
    if kind in ("number", "date"):
        try:
            values = numbers(table, name) if kind == "number" else dates(table, name)
        except DataError:
            values = None  # declared as a number, and is none: levels show what it holds
        if values is not None:
            return _ranges(values, kind)
    words = texts(table, name)
    counts = pc.value_counts(words.drop_null())
    listed = sorted(
        zip(counts.field("values").to_pylist(), counts.field("counts").to_pylist(), strict=True),
        key=lambda pair: (-pair[1], pair[0]),
    )
    bars = [{"text": shown_name(str(word)), "count": count} for word, count in listed[:_LEVELS]]
    rest = sum(count for _, count in listed[_LEVELS:])
    if rest:
        bars.append({"text": f"{len(listed) - _LEVELS:,} others", "count": rest})
    return {
        "form": "levels",
        "bars": bars,
        "levels": len(listed),
        "missing": words.null_count,
        "rows": len(words),
    }


def _ranges(values: np.ndarray, kind: str) -> dict[str, Any]:
    finite = values[np.isfinite(values)]
    made: dict[str, Any] = {
        "form": "range",
        "bars": [],
        "missing": int(len(values) - len(finite)),
        "rows": len(values),
    }
    if not len(finite):
        return made
    distinct = np.unique(finite)
    counts, edges = np.histogram(finite, bins=min(_BARS, max(len(distinct), 1)))
    words = [_end(edge, kind) for edge in edges]
    made["bars"] = [
        {"text": f"{low} to {high}", "count": int(count)}
        for low, high, count in zip(words, words[1:], counts, strict=False)
    ]
    made["low"], made["high"] = words[0], words[-1]
    return made


def _end(value: float, kind: str) -> str:
    return moment_text(int(value) * 10**9)[:10] if kind == "date" else f"{value:.4g}"


# --- Training as the command line does it: commands in processes of their own, shown to be copied.
# What a command says of its failure may hang on private values (which row does not parse). The page
# hears of that only where it is about a public column or about none.


# -P: a file such as numpy.py in the folder of the data must not be imported.
_HALFMASK = (sys.executable, "-P", "-m", "halfmask")
_GRACE = 10.0
# Kinds of errors that follow from files, options and the ledger, never from a value of the data.
_TOLD = ("budget-exceeded", "ledger", "schema", "usage", "file", "not-installed", "interrupted")


@dataclass(frozen=True, kw_only=True)
class Step:
    """One command, what it is for, and where its share of the whole begins."""

    words: tuple[str, ...]
    what: str
    begins: float

    @property
    def command(self) -> str:
        """As it is typed in a terminal."""
        return shown_command(self.words)


def shown_command(words: Sequence[str]) -> str:
    """`halfmask WORDS`, quoted for a shell."""
    return shlex.join(["halfmask", *words])


@dataclass
class Job:
    """Commands one after the other, in a thread that watches them."""

    name: str
    steps: Sequence[Step]
    tellable: Callable[[str | None], bool]
    check: str
    state: Literal["running", "done", "failed", "stopped"] = "running"
    share: float = 0.0
    text: str = "starting"
    at: int = 0
    message: str | None = None
    _process: subprocess.Popen[str] | None = None
    _stop: bool = False

    def __post_init__(self) -> None:
        self._started = time.monotonic()
        self._ended: float | None = None
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, daemon=True, name=f"job {self.name}")
        self._thread.start()

    def to_json(self) -> dict[str, Any]:
        """How far it is. Seconds are whole: exact times may depend on private rows."""
        until = time.monotonic() if self._ended is None else self._ended
        return {
            "name": self.name,
            "state": self.state,
            "share": round(self.share, 3),
            "text": self.text,
            "at": self.at,
            "steps": [{"what": step.what, "command": step.command} for step in self.steps],
            "message": self.message,
            "seconds": int(until - self._started) + 1,
        }

    def stop(self) -> None:
        """Ask the running command to end, as Ctrl-C does; insist after a while."""
        self._stop = True
        with self._lock:
            process = self._process
        if process is None or process.poll() is not None:
            return
        process.send_signal(signal.SIGINT)
        insist = threading.Timer(_GRACE, process.kill)
        insist.daemon = True
        insist.start()

    def wait(self, seconds: float | None = None) -> None:
        """Until it has ended."""
        self._thread.join(seconds)

    def _run(self) -> None:
        try:
            for place, step in enumerate(self.steps):
                if self._stop or not self._one(place, step):
                    break
            else:
                self.state, self.share, self.text = "done", 1.0, "done"
        except Exception as error:
            self.state, self.message = "failed", f"Unexpected {type(error).__name__}."
        finally:
            if self.state == "running":
                self.state = "stopped"
            if self.state == "stopped":
                self.text = "stopped"
                self.message = (
                    "Stopped. What the ledger was charged before stays charged: releases cannot be "
                    "taken back."
                )
            self._ended = time.monotonic()

    def _one(self, place: int, step: Step) -> bool:
        self.at, self.text, self.share = place, step.what, step.begins
        ends = self.steps[place + 1].begins if place + 1 < len(self.steps) else 1.0
        with self._lock:
            self._process = process = subprocess.Popen(
                [*_HALFMASK, *step.words, "--json"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                encoding="utf-8",
                errors="replace",
                env={**os.environ, "HALFMASK_PROGRESS": "lines"},
                start_new_session=True,
            )
        if self._stop:
            self.stop()
        assert process.stderr is not None
        assert process.stdout is not None
        said: list[str] = []
        reader = threading.Thread(target=lambda: said.append(process.stdout.read()))  # type: ignore[union-attr]
        reader.start()
        for line in process.stderr:
            told = _progress(line)
            if told is not None:
                # Each kind of work counts from 0; the bar never goes back.
                self.share = max(self.share, step.begins + (ends - step.begins) * told[0])
                self.text = told[1]
        reader.join()
        code = process.wait()
        process.stdout.close()
        process.stderr.close()
        if code == 0:
            return True
        self.state = "stopped" if self._stop else "failed"
        self.message = self._told(_parsed("".join(said)), code)
        return False

    def _told(self, found: dict[str, Any], code: int) -> str:
        error = found.get("error")
        if isinstance(error, dict):
            column, kind = error.get("column"), error.get("kind")
            public = isinstance(column, str) and self.tellable(column)
            if kind in _TOLD or public or (kind == "input" and column is None):
                return str(error.get("message"))
            if kind != "defect":
                return (
                    "A private column does not hold what was declared. Which one and where depends "
                    f"on private values, so this page is not told. In a terminal: {self.check}"
                )
        return f"The command ended with {code}. Run it in a terminal to see why."


def _progress(line: str) -> tuple[float, str] | None:
    """What `halfmask` tells with HALFMASK_PROGRESS=lines; None for any other line."""
    if not line.startswith('{"progress"'):
        return None
    found = _parsed(line)
    share, text = found.get("progress"), found.get("text")
    if not isinstance(share, int | float) or not isinstance(text, str):
        return None
    return min(max(float(share), 0.0), 1.0), text


def _parsed(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


_MODEL = re.compile(r"model-\d{1,6}")
_MOST_PROBLEMS = 60
_MOST_FACTS = 64 << 20
_MOST_LEVELS = 18


@dataclass(frozen=True, kw_only=True)
class Files:
    """Everything that is read or written, as named at the start."""

    data: Path
    schema: Path
    out: Path
    ledger: Path
    dictionaries: tuple[Path, ...] = ()


class Workshop:
    """One file of rows, one draft, one training at a time. Every call holds one lock."""

    def __init__(self, files: Files, rows: FileRows, *, label: str | None = None) -> None:
        self.files, self.rows = files, rows
        self.draft = Draft.open(
            [name for name in rows.column_names if name],  # what has no name is left out
            schema_file=files.schema,
            dictionaries=files.dictionaries,
            label=label,
        )
        self.job: Job | None = None
        self._lock = threading.RLock()
        self._kinds: dict[str, Kind] = {}
        self._looked: dict[Column | Label, Looked] = {}

    # --- the draft

    def state(self) -> dict[str, Any]:
        """All that the page shows of the draft."""
        with self._lock:
            draft = self.draft
            tables = draft.tables(self._guess)
            problems = draft.problems(tables)
            text = "" if problems else full_text(tables)
            about = dict(reversed(problems))  # the first of each column
            return {
                "file": self.files.data.name,
                "rows": self.rows.num_rows,
                "columns": [
                    {
                        "id": place,
                        "name": shown_name(entry.name),
                        "part": entry.part,
                        "role": entry.role,
                        "kind": tables["columns"].get(entry.name, {}).get("kind") or entry.kind,
                        "text": entry.text(),
                        "problem": about.get(entry.name),
                        "in_dictionary": entry.name in draft.dictionary,
                    }
                    for place, entry in enumerate(draft.entries)
                ],
                "problems": [text for _, text in problems[:_MOST_PROBLEMS]],
                "problem_count": len(problems),
                "steps": draft.steps,
                "settings": dict(draft.settings),
                "notes": draft.notes,
                "help": HELP,
                "toml": text,
                "files": {
                    "schema": str(self.files.schema),
                    "draft": str(draft.file),
                    "ledger": str(self.files.ledger),
                    "out": str(self.files.out),
                    "saved": self._saved(text),
                },
            }

    def change(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """Change roles or declarations of some columns, or fill them in from the dictionary."""
        ids = asked.get("ids")
        if not isinstance(ids, list) or not all(type(each) is int for each in ids):
            raise InputError("Expected ids, a list of columns.")
        part, role, known = asked.get("part"), asked.get("role"), asked.get("known")
        if part not in (None, *get_args(Purpose)) or role not in (None, *get_args(Role)):
            raise InputError("Expected a part or a role that exists.")
        if known is not None and not isinstance(known, str):
            raise InputError("Expected what is known as a text.")
        with self._lock:
            if asked.get("fill") is True:
                changed = self.draft.fill(ids)
            else:
                changed = self.draft.change(ids, part=part, role=role, known=known)
            return {**self.state(), "changed": changed}

    def undo(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """One step back."""
        with self._lock:
            return {"changed": int(self.draft.undo()), **self.state()}

    def redo(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """One step forward again."""
        with self._lock:
            return {"changed": int(self.draft.redo()), **self.state()}

    def settings(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """Keep epsilon, delta and the whole budget that were typed."""
        with self._lock:
            for key in self.draft.settings:
                if key in asked:
                    self.draft.settings[key] = _number(asked, key)
            self.draft.keep()
            return {"settings": dict(self.draft.settings)}

    def save(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """Write the schema file."""
        with self._lock:
            self.draft.save(self._guess)
            return self.state()

    def _saved(self, text: str) -> bool:
        """Whether the schema file holds this."""
        try:
            return bool(text) and self.files.schema.read_text(encoding="utf-8") == text
        except (OSError, UnicodeDecodeError):
            return False

    # --- public columns

    def _public(self, name: str) -> bool:
        return any(
            entry.name == name and entry.role == "public" and entry.part in ("column", "label")
            for entry in self.draft.entries
        )

    def _guess(self, name: str) -> Kind:
        """The kind that a public column's values read as."""
        if not self._public(name):
            raise NotPublicError(f"{shown_name(name)} is not public: its kind has to be declared.")
        if name not in self._kinds:
            try:
                kind = column_kinds(self.rows.columns([name]))[name]
            except HalfmaskError:
                kind = "category"  # lists, bytes: check says what is wrong with it
            self._kinds[name] = kind  # type: ignore[assignment]
        return self._kinds[name]

    def picture(self, place: int) -> dict[str, Any] | None:
        """Of a column that is public now; None of any other: a page may ask just before an undo."""
        with self._lock:
            if not 0 <= place < len(self.draft.entries):
                raise InputError("There is no such column.")
            entry = self.draft.entries[place]
            if not self._public(entry.name):
                return None
            return column_picture(self.rows, entry.name, entry.kind or self._guess(entry.name))

    def _look(self, rows: FileRows, part: Column | Label) -> Looked:
        """At public columns alone, each declaration once.

        One that is made of others is made anew of their cells: where one of them is private,
        whether that works, and at which row it does not, would tell of it.
        """
        sources = part.made_of if isinstance(part, Column) else ()
        if part.role != "public" or not all(map(self._public, sources)):
            return Looked()
        if part not in self._looked:
            self._looked[part] = look_at(rows, part)
        return self._looked[part]

    # --- the price

    def _counted_rows(self, columns: int, budget: Budget) -> float:
        for entry in self.draft.entries:
            if entry.part == "unit" and entry.max_rows is not None:
                with suppress(HalfmaskError):
                    unit = Unit(column=entry.name, max_rows=entry.max_rows)
                    return counted_rows(self.rows, unit, columns, budget)
        return self.rows.num_rows

    def price(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """What to expect, an attacker's gain, the ledger, and warnings of `check`."""
        epsilon, delta = _epsilon_and_delta(asked)
        with self._lock:
            ledger = ledger_facts(self.files.ledger)
            relation = check_relation("replace" if ledger is None else ledger["relation"])
            label, columns = placeholders(self.draft.entries)
            budget = Budget(epsilon=epsilon, delta=delta, relation=relation)
            counted = self._counted_rows(len(columns), budget)
            found = price(label, columns, budget, rows=self.rows.num_rows, counted=counted)
            for change in found["if_public"]:
                change["id"] = int(change.pop("column"))
                change["name"] = shown_name(self.draft.entries[change["id"]].name)
            checked = Checked(rows=self.rows.num_rows)
            with suppress(HalfmaskError):
                check_rows(
                    checked,
                    self.draft.tables(self._guess),
                    self.rows,
                    budget,
                    look=self._look,
                )
            incomplete = self.draft.problems(self.draft.tables(self._guess))
            return {
                **found,
                "ledger": ledger,
                "faults": [] if incomplete else [_shown(each.message) for each in checked.faults],
                "incomplete": len(incomplete),
                "warnings": [_shown(each.message) for each in checked.warnings[:_MOST_PROBLEMS]],
                "command": shown_command(
                    [
                        *("check", str(self.files.data), "--schema", str(self.files.schema)),
                        *("--epsilon", f"{epsilon:.12g}", "--delta", f"{delta:.12g}"),
                    ]
                ),
            }

    # --- training

    def plan(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """The commands that training will run."""
        with self._lock:
            name, steps = self._steps(asked)
            return {
                "name": name,
                "ledger": ledger_facts(self.files.ledger),
                "commands": [{"what": step.what, "command": step.command} for step in steps],
            }

    def _steps(self, asked: Mapping[str, Any]) -> tuple[str, list[Step]]:
        epsilon, delta = _epsilon_and_delta(asked)
        out, book = self.files.out, self.files.ledger
        there = (path.name.split(".")[0] for path in out.glob("model-*"))
        taken = (int(name[6:]) for name in there if _MODEL.fullmatch(name))
        name = f"model-{max(taken, default=0) + 1}"
        model, steps = out / name, []
        ledger = ledger_facts(book)
        relation = "replace" if ledger is None else ledger["relation"]
        if ledger is None:
            total = max(_number(asked, "total"), epsilon)
            check_epsilon(total)
            create = ("ledger", "create", str(book), "--epsilon", f"{total:.12g}")
            steps.append(
                Step(
                    words=(*create, "--delta", f"{delta:.12g}"),
                    what="a ledger for this file's whole budget",
                    begins=0.0,
                )
            )
        train = (
            *("train", str(self.files.data), "--schema", str(self.files.schema)),
            *("--epsilon", f"{epsilon:.12g}", "--delta", f"{delta:.12g}"),
            *(() if relation == "replace" else ("--relation", relation)),
            *("--ledger", str(book), "--out", str(model)),
        )
        report = ("report", str(model), "--ledger", str(book))
        facts, page = str(out / f"{name}.json"), str(out / f"{name}.html")
        steps += [
            Step(words=train, what="training", begins=0.05),
            Step(
                words=(*report, "--out", page, "--facts", facts),
                what="what the model learnt, and the report",
                begins=0.3,
            ),
        ]
        return name, steps

    def train(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """Save the schema, and train with it in another process."""
        with self._lock:
            if self.job is not None and self.job.state == "running":
                raise InputError("A training is under way: wait for it, or stop it.")
            self.draft.save(self._guess)
            self.files.out.mkdir(parents=True, exist_ok=True)
            name, steps = self._steps(asked)
            check = ("check", str(self.files.data), "--schema", str(self.files.schema))
            public = {entry.name for entry in self.draft.entries if self._public(entry.name)}
            self.job = Job(name, steps, public.__contains__, shown_command(check))
            return self.training()

    def training(self) -> dict[str, Any]:
        """How far the training is."""
        job = self.job
        return {"job": None if job is None else job.to_json()}

    def stop(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """Stop the training."""
        if self.job is not None:
            self.job.stop()
        return self.training()

    def close(self) -> None:
        """End what is under way."""
        if self.job is not None and self.job.state == "running":
            self.job.stop()
            self.job.wait(15)

    # --- results

    def results(self) -> dict[str, Any]:
        """The finished trainings of the output folder."""
        out = self.files.out
        names = sorted(
            (path.stem for path in out.glob("model-*.json") if _MODEL.fullmatch(path.stem)),
            key=lambda name: int(name[6:]),
        )
        with self._lock:
            return {"models": names, "ledger": ledger_facts(self.files.ledger)}

    def result(self, name: str) -> dict[str, Any]:
        """What a model promises, learnt and scored, all of it covered by its guarantee."""
        facts = self._stored(name, ".json")
        found = json.loads(facts)
        model = str(self.files.out / name)
        return {
            "name": name,
            "method": found["method"],
            "reason": found["reason"],
            "epsilon": None if (e := found["statement"]["epsilon"]) is None else printed(e),
            "delta": found["statement"]["delta"],
            "relation": found["statement"]["relation"],
            "columns": [
                {**column, "name": shown_name(column["name"])} for column in found["columns"]
            ],
            "constant": found.get("constant"),
            "covered": found["covered"],
            "effects": [_effect(each) for each in found["effects"][:_MOST_PROBLEMS]],
            "attacker": found["attacker"],
            "files": {
                "model": model,
                "facts": f"{model}.json",
                "report": f"{model}.html",
            },
            "commands": [
                shown_command(["predict", model, "NEW.csv", "--out", "scores.csv"]),
                shown_command(["evaluate", model, "TEST.csv"]),
                shown_command(["report", model, "--out", f"{model}.html"]),
            ],
        }

    def report(self, name: str) -> bytes:
        """The page that `halfmask report` wrote."""
        return self._stored(name, ".html")

    def _stored(self, name: str, suffix: str) -> bytes:
        file = self.files.out / f"{name}{suffix}"
        if not _MODEL.fullmatch(name) or not file.is_file() or file.is_symlink():
            raise MissingError(f"There is no training {shown_name(name)} here.")
        if file.stat().st_size > _MOST_FACTS:
            raise MissingError(f"{file.name} is too large to be what we wrote.")
        return file.read_bytes()


class NotPublicError(InputError):
    """Something of a private column was asked for."""


class MissingError(InputError):
    """Nothing of that name was made here."""


def _effect(stored: Mapping[str, Any]) -> dict[str, Any]:
    """An effect with all its levels, and `rows` as a figure shows them."""
    lists = ("levels", "values", "low", "high")
    effect = Effect(
        column=stored["column"],
        role=stored["role"],
        outcome=stored["outcome"],
        ordered=stored["ordered"],
        share=None if stored["share"] is None else tuple(stored["share"]),
        **{key: tuple(stored[key]) for key in lists},
    )
    return {
        "column": shown_name(effect.column),
        "role": effect.role,
        "outcome": shown_name(effect.outcome),
        "ordered": effect.ordered,
        "levels": [shown_name(level) for level in effect.levels],
        "values": effect.values,
        "low": effect.low,
        "high": effect.high,
        "rows": [
            {"level": shown_name(r.level), "value": r.value, "low": r.low, "high": r.high}
            for r in effect.rows(_MOST_LEVELS)
        ],
    }


def _number(asked: Mapping[str, Any], key: str) -> float:
    try:
        value = float(asked[key])
    except (KeyError, TypeError, ValueError):
        raise InputError(f"Expected a number for {key}.") from None
    if not 0 < value < float("inf"):
        raise InputError(f"Expected {key} above 0.")
    return value


def _epsilon_and_delta(asked: Mapping[str, Any]) -> tuple[float, float]:
    budget = Budget(epsilon=_number(asked, "epsilon"), delta=_number(asked, "delta"))
    return budget.epsilon, budget.delta


def _shown(message: str) -> str:
    """A message with a name in it: no invisible characters, and not without end."""
    short = message if len(message) <= 600 else f"{message[:600]}…"
    return "".join(shown_name(sign) if not sign.isprintable() else sign for sign in short)
