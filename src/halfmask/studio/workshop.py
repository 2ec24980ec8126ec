"""What the page can ask for: the draft, pictures of public columns, the price, trainings, results.

The files are those named at the start. Of a private column nothing leaves but its name and what was
declared about it: values are read for the kind and the picture of columns that are public, and for
nothing else.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from halfmask.accounting.budget import Budget, printed
from halfmask.accounting.relations import check_delta, check_epsilon, check_relation
from halfmask.checking import Checked, Looked, check_rows, look_at
from halfmask.errors import HalfmaskError, InputError
from halfmask.reading import FileRows
from halfmask.schema import Column, Kind, Label, Role
from halfmask.studio.draft import Draft, Part, full_text, placeholders
from halfmask.studio.glance import picture
from halfmask.studio.jobs import Job, Step, shown_command
from halfmask.studio.known import HELP, shown_name
from halfmask.studio.price import ledger_facts, price

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
            rows.column_names,
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
            about: dict[str | None, str] = {}
            for name, text in problems:
                about.setdefault(name, text)
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
        if part not in (None, *get_args(Part)) or role not in (None, *get_args(Role)):
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
        from halfmask.cli.init import column_kinds

        if not self._public(name):
            raise NotPublicError(f"{shown_name(name)} is not public: its kind has to be declared.")
        if name not in self._kinds:
            try:
                kind = column_kinds(self.rows.columns([name]))[name]
            except HalfmaskError:
                kind = "category"  # lists, bytes: check says what is wrong with it
            self._kinds[name] = kind  # type: ignore[assignment]
        return self._kinds[name]

    def picture(self, place: int) -> dict[str, Any]:
        """Of a column that is public now; refused of any other."""
        with self._lock:
            if not 0 <= place < len(self.draft.entries):
                raise InputError("There is no such column.")
            entry = self.draft.entries[place]
            if not self._public(entry.name):
                raise NotPublicError(f"{shown_name(entry.name)} is not public: nothing is shown.")
            return picture(self.rows, entry.name, entry.kind or self._guess(entry.name))

    def _look(self, rows: FileRows, part: Column | Label) -> Looked:
        """At public columns alone, each declaration once."""
        if part.role != "public":
            return Looked()
        if part not in self._looked:
            self._looked[part] = look_at(rows, part)
        return self._looked[part]

    # --- the price

    def price(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """What to expect, an attacker's gain, the ledger, and warnings of `check`."""
        epsilon, delta = _number(asked, "epsilon"), _number(asked, "delta")
        check_epsilon(epsilon)
        check_delta(delta)
        with self._lock:
            ledger = ledger_facts(self.files.ledger)
            relation = check_relation("replace" if ledger is None else ledger["relation"])
            label, columns = placeholders(self.draft.entries)
            found = price(
                label,
                columns,
                rows=self.rows.num_rows,
                epsilon=epsilon,
                delta=delta,
                relation=relation,
            )
            for change in found["if_public"]:
                change["id"] = int(change.pop("column"))
                change["name"] = shown_name(self.draft.entries[change["id"]].name)
            checked = Checked(rows=self.rows.num_rows)
            with suppress(HalfmaskError):
                check_rows(
                    checked,
                    self.draft.tables(self._guess),
                    self.rows,
                    Budget(epsilon=epsilon, delta=delta, relation=relation),
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
        epsilon, delta = _number(asked, "epsilon"), _number(asked, "delta")
        check_epsilon(epsilon)
        check_delta(delta)
        out, book = self.files.out, self.files.ledger
        taken = [
            int(path.name[6:].split(".")[0]) for path in out.glob("model-*") if _numbered(path)
        ]
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
    from halfmask.effects import Effect

    lists = ("levels", "values", "low", "high")
    effect = Effect(
        column=stored["column"],
        role=stored["role"],
        outcome=stored["outcome"],
        ordered=stored["ordered"],
        share=None if stored["share"] is None else tuple(stored["share"]),
        **{key: tuple(stored[key]) for key in lists},
    )
    rows = [row for row in effect.rows(_MOST_LEVELS)]
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
            for r in rows
        ],
    }


def _numbered(path: Path) -> bool:
    return _MODEL.fullmatch(path.name.split(".")[0]) is not None


def _number(asked: Mapping[str, Any], key: str) -> float:
    try:
        value = float(asked[key])
    except (KeyError, TypeError, ValueError):
        raise InputError(f"Expected a number for {key}.") from None
    if not 0 < value < float("inf"):
        raise InputError(f"Expected {key} above 0.")
    return value


def _shown(message: str) -> str:
    """A message with a name in it: no invisible characters, and not without end."""
    short = message if len(message) <= 600 else f"{message[:600]}…"
    return "".join(shown_name(sign) if not sign.isprintable() else sign for sign in short)
