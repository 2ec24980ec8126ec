"""What a person types about a column, and how it is shown again.

`0..120`, `2000-01-01..2024-12-31`, `no | yes`, or a kind alone: number, category, date, bool. All
of it comes from what is known without the data; nothing here sees a row.
"""

from __future__ import annotations

import json
import math
import re
import unicodedata
from dataclasses import dataclass
from typing import Any, get_args

from halfmask.cells import moment
from halfmask.errors import InputError
from halfmask.schema import Kind, Level, level_text

HELP = (
    "0..120 (a number), 2000-01-01..2024-12-31 (a date), no | yes (categories), bool, or for a "
    "public column a kind alone: number, category, date"
)
_RANGE = re.compile(r"(\S+?)\s*(?:\.\.|…|\bto\b)\s*(\S+)")
_BRACKETS = re.compile(r"\[\s*(\S+?)\s*,\s*(\S+?)\s*\]")
_SEPARATORS = ("|", ";", ",")
_MOST_TEXT = 200_000
_SHOWN_NAME = 60


@dataclass(frozen=True, kw_only=True)
class Known:
    """A kind, and bounds or categories where they were given."""

    kind: Kind | None = None
    bounds: tuple[float, float] | tuple[str, str] | None = None
    categories: tuple[Level, ...] | None = None


NOTHING = Known()


def read_known(text: str) -> Known:
    """What was typed, or an error that says how to write it."""
    text = text.strip()
    if not text:
        return NOTHING
    if len(text) > _MOST_TEXT:
        raise InputError("That is too long to be bounds or categories.")
    if text.lower() in get_args(Kind):
        return Known(kind=text.lower())  # type: ignore[arg-type]
    match = _RANGE.fullmatch(text) or _BRACKETS.fullmatch(text)
    ends = None if match is None else (_end(match[1]), _end(match[2]))
    if ends is not None and None not in ends:
        low, high = ends
        if isinstance(low, str) != isinstance(high, str):
            raise InputError("One end is a date and the other a number: write two of a kind.")
        kind: Kind = "date" if isinstance(low, str) else "number"
        return Known(kind=kind, bounds=(low, high))  # type: ignore[arg-type]
    levels = _levels(text)
    if len(levels) == 1 and _end(levels[0]) is not None:
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
    separator = next((sign for sign in _SEPARATORS if sign in text), None)
    parts = text.split(separator) if separator else [text]
    levels = [part.strip() for part in parts if part.strip()]
    if not levels:
        raise InputError(f"Expected {HELP}.")
    return levels


def _end(text: str) -> float | int | str | None:
    """A number, an ISO date as its text, or None."""
    if moment(text) is not None:
        return text
    try:
        number = float(text.replace("_", "x"))
    except ValueError:
        return None
    if not math.isfinite(number):
        return None
    return int(number) if number.is_integer() and abs(number) < 2**53 else number


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


def as_json(known: Known) -> dict[str, Any]:
    """The declaration as keys of a schema."""
    made: dict[str, Any] = {}
    if known.kind is not None:
        made["kind"] = known.kind
    if known.bounds is not None:
        made["bounds"] = list(known.bounds)
    if known.categories is not None:
        made["categories"] = list(known.categories)
    return made
