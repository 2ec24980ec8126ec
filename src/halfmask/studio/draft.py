"""A schema in the making: every change can be undone, and is on the disk before it is answered.

A column is private until somebody says otherwise. Roles come from clicks and from the schema file,
bounds and categories also from a dictionary or another schema; nothing comes from private values.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal, get_args

from halfmask.data.cells import level_text
from halfmask.data.frames import meant
from halfmask.dictionary import bound, read_dictionary, separated
from halfmask.errors import InputError, SchemaError
from halfmask.schema import (
    Column,
    Kind,
    Label,
    Level,
    Role,
    Schema,
    expanded,
    patterns,
    read_tables,
    schema_parts,
)
from halfmask.storage import write_durably

# --- What a person types about a column, and how it is shown again.
# `0..120`, `2000-01-01..2024-12-31`, `no | yes`, or a kind alone: number, category, date, bool. All
# of it comes from what is known without the data; nothing here sees a row.


HELP = (
    "0..120 (a number), 2000-01-01..2024-12-31 (a date), no | yes (categories), bool, or for a "
    "public column a kind alone: number, category, date"
)
_RANGE = re.compile(r"(\S+?)\s*(?:\.\.|…|\bto\b)\s*(\S+)")
_BRACKETS = re.compile(r"\[\s*(\S+?)\s*,\s*(\S+?)\s*\]")
_MOST_TEXT = 200_000
_SHOWN_NAME = 60


@dataclass(frozen=True, kw_only=True)
class Known:
    """A kind, and bounds or categories where they were given."""

    kind: Kind | None = None
    bounds: tuple[float, float] | tuple[str, str] | None = None
    categories: tuple[Level, ...] | None = None


UNDECLARED = Known()


def read_known(text: str) -> Known:
    """What was typed, or an error that says how to write it."""
    text = text.strip()
    if not text:
        return UNDECLARED
    if len(text) > _MOST_TEXT:
        raise InputError("That is too long to be bounds or categories.")
    if text.lower() in get_args(Kind):
        return Known(kind=text.lower())  # type: ignore[arg-type]
    match = _RANGE.fullmatch(text) or _BRACKETS.fullmatch(text)
    ends = None if match is None else (bound(match[1]), bound(match[2]))
    if ends is not None and None not in ends:
        low, high = ends
        if isinstance(low, str) != isinstance(high, str):
            raise InputError("One end is a date and the other a number: write two of a kind.")
        kind: Kind = "date" if isinstance(low, str) else "number"
        return Known(kind=kind, bounds=(low, high))  # type: ignore[arg-type]
    levels = _levels(text)
    if len(levels) == 1 and bound(levels[0]) is not None:
        raise InputError(f"Expected two ends, such as 0..{levels[0]}, or categories as a | b.")
    if len({level_text(level) for level in levels}) < len(levels):
        raise InputError("A category is listed twice: keep one.")
    return Known(kind="category", categories=tuple(levels))


def _levels(text: str) -> list[str]:
    if text.startswith("["):
        try:
            listed = json.loads(text)
        except (ValueError, RecursionError):
            listed = None
        if isinstance(listed, list) and listed and all(isinstance(each, str) for each in listed):
            return [each.strip() for each in listed]
    _, levels = separated(text)
    if not levels:
        raise InputError(f"Expected {HELP}.")
    return levels


def written(known: Known) -> str:
    """The text that `read_known` reads back as the same."""
    if known.bounds is not None:
        low, high = (end if isinstance(end, str) else _number(end) for end in known.bounds)
        return f"{low}..{high}"
    if known.categories is not None:
        words = [level_text(level) for level in known.categories]
        plain = " | ".join(words)
        try:
            if read_known(plain).categories == tuple(words):
                return plain
        except InputError:
            pass
        return json.dumps(words, ensure_ascii=False)
    return known.kind or ""


def _number(value: float) -> str:
    return str(int(value)) if float(value).is_integer() and abs(value) < 2**53 else repr(value)


def shown_name(name: str) -> str:
    """A column's name for the page: one short line in which no character is invisible."""
    kept = name if len(name) <= _SHOWN_NAME else f"{name[:_SHOWN_NAME]}…"
    return "".join(map(_visible, kept)) or "(no name)"


def _visible(character: str) -> str:
    # Control, direction and format characters, separators of lines, halves of pairs.
    if unicodedata.category(character) in ("Cc", "Cf", "Zl", "Zp", "Cs", "Co", "Cn"):
        return f"\\u{ord(character):04x}"
    return character


Purpose = Literal["column", "label", "unit", "out"]
"""What a column is for: to learn from, to predict, to tell persons apart, or left out."""

_MOST_STEPS = 300
_VERSION = 1
HEAD = """\
# A schema for halfmask, written by `halfmask studio`. Columns that are not listed are left out.
"""


@dataclass(frozen=True)
class ColumnDraft:
    """One column of the file: what it is for, its role, and what was declared about it."""

    name: str
    part: Purpose = "column"
    role: Role = "private"
    kind: Kind | None = None
    bounds: tuple[Any, Any] | None = None
    categories: tuple[Any, ...] | None = None
    bins: int | None = None
    party: str | None = None
    missing: str | None = None
    max_rows: int | None = None
    public: str | None = None  # what is public of a private label, as a function
    derived: str | None = None  # the function that a column of the data was made by
    typed: str | None = None  # what could not be read, kept as it was typed
    problem: str | None = None

    @property
    def known(self) -> Known:
        """What was declared."""
        return Known(kind=self.kind, bounds=self.bounds, categories=self.categories)

    def text(self) -> str:
        """What the page shows in the field of this column."""
        if self.typed is not None:
            return self.typed
        if self.part == "unit":
            return "" if self.max_rows is None else str(self.max_rows)
        return written(self.known)

    def declared(self, text: str) -> ColumnDraft:
        """With what was typed; with the text and what is wrong where it cannot be read."""
        blank = replace(self, **vars(UNDECLARED), typed=None, problem=None)
        if self.part == "unit":
            if not text.strip():
                return replace(blank, max_rows=None)
            if not text.strip().isdecimal() or not 1 <= int(text) <= 10**9:
                problem = "Expected the most rows of one person, a whole number such as 5."
                return replace(blank, max_rows=None, typed=text, problem=problem)
            return replace(blank, max_rows=int(text))
        try:
            return blank.with_known(read_known(text))
        except InputError as error:
            return replace(blank, typed=text, problem=str(error))

    def with_known(self, known: Known) -> ColumnDraft:
        """With kind, bounds and categories as declared."""
        if known == self.known:
            return self
        bins = self.bins if known.kind in ("number", "date") else None
        return replace(self, **vars(known), bins=bins, typed=None, problem=None)


Guess = Callable[[str], Kind]
"""The kind of a public column, from its values."""


class Draft:
    """The entries of all columns, with their past and future; `file` keeps them."""

    def __init__(
        self,
        entries: Sequence[ColumnDraft],
        *,
        file: Path,
        schema_file: Path,
        dictionary: Mapping[str, Known] | None = None,
    ) -> None:
        self.entries = tuple(entries)
        self.file, self.schema_file = file, schema_file
        self.dictionary = dict(dictionary or {})
        # Columns that are functions of others are not in the file; they are kept as declared.
        self.made: dict[str, Any] = {}
        self.settings: dict[str, float] = {"epsilon": 1.0, "delta": 1e-6, "total": 3.0}
        self.notes: list[str] = []
        self._before: list[tuple[ColumnDraft, ...]] = []
        self._after: list[tuple[ColumnDraft, ...]] = []

    # --- where it begins

    @classmethod
    def open(
        cls,
        names: Sequence[str],
        *,
        schema_file: Path,
        dictionaries: Sequence[Path] = (),
        label: str | None = None,
    ) -> Draft:
        """The draft of last time, else the schema file, else everything private."""
        known, strange = read_declared(dictionaries, names)
        file = schema_file.with_suffix(".draft.json")
        draft = cls(
            [ColumnDraft(name) for name in names],
            file=file,
            schema_file=schema_file,
            dictionary=known,
        )
        if strange:
            draft.notes.append(f"The dictionary describes {strange} columns that the file lacks.")
        if not draft._resume():
            if schema_file.exists():
                draft._read_schema()
            if label is not None:
                draft._choose_label(label)
            draft.entries = draft._filled(range(len(names)), over=False)
        return draft

    def _choose_label(self, label: str) -> None:
        names = [entry.name for entry in self.entries]
        if label not in names:
            raise InputError(f"The data has no column {label!r}.{meant(label, names)}")
        self.entries = tuple(_only(self.entries, names.index(label), "label"))

    def _resume(self) -> bool:
        """Take up the draft, unless the schema file was edited elsewhere since."""
        try:
            stored = json.loads(self.file.read_text(encoding="utf-8"))
        except OSError:
            return False
        except ValueError:
            self.notes.append(f"{self.file.name} cannot be read: starting without it.")
            return False
        if not isinstance(stored, dict) or stored.get("version") != _VERSION:
            self.notes.append(f"{self.file.name} is no draft of this version: starting anew.")
            return False
        if stored.get("schema") != self._mark():
            self.notes.append(
                f"{self.schema_file.name} was changed since the last draft, so it is what you see; "
                f"the draft is kept as {self.file.name}.old."
            )
            os.replace(self.file, self.file.with_name(f"{self.file.name}.old"))
            return False
        kept = {}
        for each in stored.get("columns", ()):
            with suppress(AttributeError, TypeError, KeyError, ValueError):
                kept[str(each["name"])] = _entry(each)
        self.entries = tuple(kept.get(entry.name, entry) for entry in self.entries)
        if isinstance(stored.get("made"), dict):
            self.made = stored["made"]
        for key, value in stored.get("settings", {}).items():
            if key in self.settings and isinstance(value, int | float) and value > 0:
                self.settings[key] = float(value)
        self.notes.append(f"Taken up where you left: {self.file.name}.")
        return True

    def _read_schema(self) -> None:
        """The roles and declarations of the schema file, also of one that is not complete."""
        names = [entry.name for entry in self.entries]
        tables = read_tables(self.schema_file)
        problems: list[str] = []
        full = expanded(tables, names if patterns(tables) else None, problems)
        self.notes += problems
        columns = full.get("columns", {})
        label, unit = full.get("label", {}), full.get("unit", {})
        self.made = {n: keys for n, keys in columns.items() if "public" in keys and n not in names}
        lost = [name for name in columns if name not in names and name not in self.made]
        if lost:
            self.notes.append(f"The schema declares {len(lost)} columns that the file lacks.")
        made = []
        for entry in self.entries:
            if entry.name in columns:
                made.append(_declared(entry, "column", columns[entry.name]))
            elif entry.name == label.get("name"):
                made.append(_declared(entry, "label", label))
            elif entry.name == unit.get("column"):
                made.append(replace(entry, part="unit", max_rows=unit.get("max_rows")))
            else:
                made.append(replace(entry, part="out") if columns else entry)
        self.entries = tuple(made)

    # --- changes

    def change(
        self,
        places: Iterable[int],
        *,
        part: Purpose | None = None,
        role: Role | None = None,
        known: str | None = None,
    ) -> int:
        """Change some columns as one step; returns how many are different now."""
        chosen = self._chosen(places)
        entries = list(self.entries)
        if part in ("label", "unit") and len(chosen) > 1:
            raise InputError(f"One column is the {part}, not {len(chosen)}: choose one.")
        for place in chosen:
            if part in ("label", "unit"):
                entries = _only(entries, place, part)
            elif part is not None:
                entries[place] = replace(entries[place], part=part, max_rows=None)
            if role is not None:
                entry = entries[place]
                back: Purpose = "column" if entry.part in ("out", "unit") else entry.part
                entries[place] = replace(entry, part=back, role=role)
            if known is not None:
                entries[place] = entries[place].declared(known)
        return self._step(entries)

    def fill(self, places: Iterable[int]) -> int:
        """Declare what the dictionary knows of these columns; roles are never touched."""
        return self._step(self._filled(self._chosen(places), over=True))

    def undo(self) -> bool:
        """Go one step back; False where there is none."""
        return self._turn(self._before, self._after)

    def redo(self) -> bool:
        """Take back an undo; False where there is none."""
        return self._turn(self._after, self._before)

    @property
    def steps(self) -> dict[str, int]:
        """How many steps can be undone, and done again."""
        return {"undo": len(self._before), "redo": len(self._after)}

    def _turn(
        self, source: list[tuple[ColumnDraft, ...]], target: list[tuple[ColumnDraft, ...]]
    ) -> bool:
        if not source:
            return False
        target.append(self.entries)
        self.entries = source.pop()
        self.keep()
        return True

    def _step(self, entries: Sequence[ColumnDraft]) -> int:
        changed = sum(new != old for new, old in zip(entries, self.entries, strict=True))
        if changed:
            self._before = [*self._before[-_MOST_STEPS:], self.entries]
            self._after = []
            self.entries = tuple(entries)
            self.keep()
        return changed

    def _filled(self, places: Iterable[int], *, over: bool) -> tuple[ColumnDraft, ...]:
        entries = list(self.entries)
        for place in places:
            entry = entries[place]
            found = self.dictionary.get(entry.name)
            bare = entry.known == UNDECLARED and entry.typed is None
            if found is not None and entry.part != "unit" and (over or bare):
                entries[place] = entry.with_known(found)
        return tuple(entries)

    def _chosen(self, places: Iterable[int]) -> list[int]:
        """Every place once, in order."""
        chosen = sorted(set(places))
        if not all(isinstance(place, int) and 0 <= place < len(self.entries) for place in chosen):
            raise InputError("There is no such column.")
        return chosen

    # --- what comes of it

    def tables(self, guess: Guess) -> dict[str, Any]:
        """The tables of the schema; kinds of public columns that were not declared are guessed."""
        made: dict[str, Any] = {"columns": {}}
        for entry in self.entries:
            if entry.part == "label":
                made["label"] = _label_keys(entry)
            elif entry.part == "unit":
                made["unit"] = _bare({"column": entry.name, "max_rows": entry.max_rows})
            elif entry.part == "column":
                made["columns"][entry.name] = _column_keys(entry, guess)
        made["columns"] |= self.made
        return made

    def problems(self, tables: Mapping[str, Any]) -> list[tuple[str | None, str]]:
        """What is still to be done, with the column it is about."""
        found: list[tuple[str | None, str]] = []
        parts = {part for part in get_args(Purpose) if any(e.part == part for e in self.entries)}
        if "label" not in parts:
            found.append((None, "No column is the label yet: choose what to predict."))
        for entry in self.entries:
            shown = shown_name(entry.name)
            if entry.part == "out":
                continue
            if entry.problem is not None:
                found.append((entry.name, f"{shown}: {entry.problem}"))
            elif (lacking := _lacking(entry)) is not None:
                found.append((entry.name, f"{shown}: {lacking}"))
            else:
                found += [(entry.name, f"{shown}: {text}") for text in _judged(entry, tables)]
        if not found:
            try:
                Schema.from_dict(tables)
            except SchemaError as error:
                found += [(None, line) for line in str(error).splitlines()]
        if not any(e.part in ("column", "label") and e.role == "private" for e in self.entries):
            found.append((None, "No column is private: an ordinary library will do."))
        return found

    def save(self, guess: Guess) -> str:
        """Write the schema file; an older one that we did not write is kept beside it."""
        text = self.toml(guess)
        target = self.schema_file
        if target.exists() and not target.read_text(encoding="utf-8-sig").startswith(HEAD):
            kept = target.with_name(f"{target.name}.before")
            if not kept.exists():
                kept.write_bytes(target.read_bytes())
        _write(target, text)
        self.keep()
        return text

    def toml(self, guess: Guess) -> str:
        """The schema file; an error where something is still to be done."""
        tables = self.tables(guess)
        problems = self.problems(tables)
        if problems:
            raise InputError("\n".join(text for _, text in problems))
        return full_text(tables)

    def keep(self) -> None:
        """Write the draft."""
        stored = {
            "version": _VERSION,
            "schema": self._mark(),
            "settings": self.settings,
            "made": self.made,
            "columns": [
                {key: value for key, value in asdict(entry).items() if value is not None}
                for entry in self.entries
            ],
        }
        _write(self.file, json.dumps(stored, indent=1))

    def _mark(self) -> str | None:
        """Of the schema file as it is; None where there is none."""
        try:
            return hashlib.sha256(self.schema_file.read_bytes()).hexdigest()
        except OSError:
            return None


def full_text(tables: Mapping[str, Any]) -> str:
    """The schema file of tables in which nothing is left to do."""
    return f"{HEAD}\n{Schema.from_dict(tables).to_toml()}"


def read_declared(files: Sequence[Path], names: Sequence[str]) -> tuple[dict[str, Known], int]:
    """What dictionaries and other schemas declare of these columns, and of how many others."""
    found: dict[str, Known] = {}
    strange = 0
    for file in files:
        of_file = _of_schema(file, names) if file.suffix == ".toml" else read_dictionary(file)
        strange += sum(name not in names for name in of_file)
        found |= {name: _known(keys) for name, keys in of_file.items() if name in names}
    return found, strange


def _of_schema(file: Path, names: Sequence[str]) -> dict[str, Any]:
    tables = read_tables(file)
    full = expanded(tables, names if patterns(tables) else None, [])
    label = full.get("label", {})
    own = {label["name"]: label} if isinstance(label.get("name"), str) else {}
    return {**full.get("columns", {}), **own}


def _known(keys: Mapping[str, Any]) -> Known:
    levels = keys.get("categories", keys.get("classes"))
    bounds = keys.get("bounds")
    dated = bounds is not None and not isinstance(bounds[0], int | float)
    kind = keys.get("kind") or (
        "category" if levels is not None else "number" if bounds is not None else None
    )
    return Known(
        kind=kind,  # type: ignore[arg-type]
        bounds=None if bounds is None else tuple(map(str, bounds)) if dated else tuple(bounds),  # type: ignore[arg-type]
        categories=None if levels is None else tuple(levels),
    )


_KEPT = ("bins", "party", "missing", "public", "derived")


def _declared(entry: ColumnDraft, part: Purpose, keys: Mapping[str, Any]) -> ColumnDraft:
    """An entry as a schema has it. A role that is none, or no role, is private."""
    role: Role = "public" if keys.get("role") == "public" else "private"
    kept = {key: keys[key] for key in _KEPT if keys.get(key) is not None}
    return replace(entry, part=part, role=role, **vars(_known(keys)), **kept)


def _entry(stored: Mapping[str, Any]) -> ColumnDraft:
    """An entry of a stored draft; whatever is not as it should be is left out."""
    made: dict[str, Any] = {
        field.name: stored[field.name] for field in fields(ColumnDraft) if field.name in stored
    }
    for key in ("bounds", "categories"):
        if made.get(key) is not None:
            made[key] = tuple(made[key])
    if made.get("part", "column") not in get_args(Purpose):
        raise ValueError
    if made.get("role", "private") not in get_args(Role):
        raise ValueError
    entry = ColumnDraft(**made)
    entry.text()  # what cannot even be shown is not ours
    return entry


def _only(
    entries: Sequence[ColumnDraft], place: int, part: Literal["label", "unit"]
) -> list[ColumnDraft]:
    """One column is the label (the unit); what was it before is a column again."""
    made = []
    for at, entry in enumerate(entries):
        if at == place and entry.part != part:
            # The role stays: a label is as private as the column was.
            known = entry if part == "label" else replace(entry, **vars(UNDECLARED))
            made.append(
                replace(known, part=part, bins=None, typed=None, problem=None, max_rows=None)
            )
        elif at != place and entry.part == part:
            made.append(replace(entry, part="column", max_rows=None, missing=None, public=None))
        else:
            made.append(entry)
    return made


def _lacking(entry: ColumnDraft) -> str | None:
    """What has to be typed before this column can be used."""
    if entry.part == "unit":
        return None if entry.max_rows else "type the most rows that one person has, such as 5."
    if entry.part == "label":
        if entry.bounds is None and entry.categories is None:
            return "type its classes, such as no | yes, or its bounds, such as 0..100."
        return None
    if entry.role == "public" or entry.kind == "bool":
        return None
    if entry.kind == "category" and entry.categories is None:
        return "a private category needs its categories, such as a | b | c."
    if entry.kind in ("number", "date") and entry.bounds is None:
        return f"a private {entry.kind} needs its bounds."
    if entry.kind is None:
        return "private, so it needs bounds or categories from what is known without the data."
    return None


def _judged(entry: ColumnDraft, tables: Mapping[str, Any]) -> list[str]:
    """What the schema itself says of one declaration."""
    problems: list[str] = []
    if entry.part == "column":
        one = {"columns": {entry.name: tables["columns"][entry.name]}}
    else:
        one = {"columns": {}, entry.part: tables[entry.part]}
    schema_parts(one, None, problems)
    own = [text for text in problems if not text.startswith("The schema has no [label]")]
    return [text.split(": ", 1)[0] if len(text) > 400 else text for text in own]


def _label_keys(entry: ColumnDraft) -> dict[str, Any]:
    keys: dict[str, Any] = {"name": entry.name, "role": entry.role}
    if entry.categories is not None:
        keys["classes"] = list(entry.categories)
    elif entry.bounds is not None:
        keys["bounds"] = list(entry.bounds)
    told = entry.public if entry.role == "private" else None
    return _bare({**keys, "party": entry.party, "missing": entry.missing, "public": told})


def _column_keys(entry: ColumnDraft, guess: Guess) -> dict[str, Any]:
    kind = entry.kind
    if kind is None and entry.role == "public":
        kind = guess(entry.name)
    levels = None if entry.categories is None else [level_text(each) for each in entry.categories]
    return _bare(
        {
            "role": entry.role,
            "kind": kind,
            "bounds": None if entry.bounds is None else list(entry.bounds),
            "categories": levels,
            "bins": entry.bins,
            "party": entry.party,
            "derived": entry.derived,
        }
    )


def _bare(keys: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in keys.items() if value is not None}


def placeholders(entries: Iterable[ColumnDraft]) -> tuple[Label | None, tuple[Column, ...]]:
    """Label and columns as far as they are declared, for what follows from their number and roles.

    They are named by their places. What is not declared yet is taken for a number, whose bounds do
    not matter to the price.
    """
    label, columns = None, []
    for place, entry in enumerate(entries):
        name = str(place)
        if entry.part == "label":
            classes = entry.categories if entry.categories and len(entry.categories) > 1 else None
            if classes is None and entry.kind == "number" and entry.bounds is not None:
                label = Label(name, entry.role, bounds=(0.0, 1.0))
                continue
            label = Label(name, entry.role, classes=("no", "yes"))
            with suppress(SchemaError):
                label = replace(label, classes=classes or label.classes)
        elif entry.part == "column":
            made = Column(name, entry.role, "number", bounds=(0.0, 1.0))
            if entry.kind == "bool":
                made = Column(name, entry.role, "bool")
            elif entry.kind == "category" and entry.categories:
                levels = tuple(level_text(each) for each in entry.categories)
                with suppress(SchemaError):
                    made = Column(name, entry.role, "category", categories=levels)
            columns.append(made)
    return label, tuple(columns)


def _write(target: Path, text: str) -> None:
    """All of it or nothing, for whoever could read the file that was there."""
    target.parent.mkdir(parents=True, exist_ok=True)
    mode = target.stat().st_mode & 0o777 if target.exists() else 0o644
    write_durably(target, text.encode("utf-8"), mode=mode)
