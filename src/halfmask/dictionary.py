"""Data dictionaries: a table that says of each column its kind, bounds and categories.

Such a table is written by people who know the columns without the file, so what it says may be
declared. It never says what is public: roles are the user's to give.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from halfmask.data.cells import MISSING_WORDS, moment
from halfmask.data.reading import read_frame
from halfmask.errors import DataError, suggest

# What dictionaries call their columns, lower case without other signs.
_HEADINGS = {
    "name": ("name", "column", "variable", "variablename", "field", "fieldname", "columnname"),
    "kind": ("kind", "type", "datatype", "fieldtype", "variabletype"),
    "low": ("low", "min", "minimum", "lower", "validationmin", "from"),
    "high": ("high", "max", "maximum", "upper", "validationmax", "to"),
    "bounds": ("bounds", "range", "validrange", "limits"),
    "categories": ("categories", "levels", "values", "choices", "codes", "classes", "options"),
}
_KINDS = {
    "number": "number numeric integer int int64 float float64 double decimal real continuous count",
    "category": "category categorical text string str factor enum nominal ordinal char character "
    "dropdown radio",
    "date": "date datetime timestamp time",
    "bool": "bool boolean logical flag yesno truefalse",
}
_KIND_OF = {word: kind for kind, words in _KINDS.items() for word in words.split()}
_RANGE = re.compile(r"\s*\[?\s*(.+?)\s*(?:,|;|\.\.|\bto\b|–)\s*(.+?)\s*\]?\s*")
_SEPARATORS = ("|", ";", ",")

Declared = dict[str, dict[str, Any]]
"""By column: kind, and bounds or categories where the dictionary has them."""


def read_dictionary(path: str | Path) -> Declared:
    """The dictionary of a CSV or Parquet file, one row per column of the data."""
    table = read_frame(path)
    places = _places(table.column_names, str(path))
    columns = {key: table.column(place).to_pylist() for key, place in places.items()}
    found: Declared = {}
    for row in range(table.num_rows):
        cells = {key: _cell(values[row]) for key, values in columns.items()}
        name = cells.pop("name")
        if name is None:
            raise DataError(f"{path}, row {row + 1}: no name of a column: fill it in.")
        if name in found:
            raise DataError(f"{path}, row {row + 1}: {name!r} is described twice: keep one row.")
        found[name] = _declaration(cells, f"{path}, row {row + 1} ({name!r})")
    return found


def _places(headings: Sequence[str], file: str) -> dict[str, int]:
    """Where the dictionary keeps what; only the name is required."""
    plain = [re.sub(r"[^a-z0-9]", "", heading.lower()) for heading in headings]
    found = {}
    for key, words in _HEADINGS.items():
        place = next((plain.index(word) for word in words if word in plain), None)
        if place is not None:
            found[key] = place
    if "name" not in found:
        raise DataError(
            f"{file} has no column of names: a dictionary has the headings name, kind, low, high "
            f"and categories. Its headings are: {', '.join(headings)}."
        )
    return found


def _cell(value: Any) -> str | None:
    text = "" if value is None else str(value).strip()
    return None if text in MISSING_WORDS else text


def _declaration(cells: Mapping[str, str | None], where: str) -> dict[str, Any]:
    bounds, categories = _bounds(cells, where), _categories(cells.get("categories"))
    word = cells.get("kind")
    if word is None:
        dated = bounds is not None and isinstance(bounds[0], str)
        kind = "category" if categories else "date" if dated else "number"
        if not categories and bounds is None:
            raise DataError(f"{where}: neither kind, bounds nor categories: fill one in.")
    else:
        plain = re.sub(r"[^a-z0-9]", "", word.lower())
        if plain not in _KIND_OF:
            raise DataError(
                f"{where}: the kind {word!r} is not known.{suggest(plain, _KIND_OF)} Write number, "
                "category, date or bool."
            )
        kind = _KIND_OF[plain]
        if kind in ("number", "bool") and categories and bounds is None:
            kind = "category"  # numbers that are codes, or words of their own for true and false
    made: dict[str, Any] = {"kind": kind}
    if kind in ("number", "date") and bounds is not None:
        made["bounds"] = list(bounds)
    if kind == "category" and categories:
        made["categories"] = categories
    return made


def _bounds(cells: Mapping[str, str | None], where: str) -> tuple[Any, Any] | None:
    ends = cells.get("low"), cells.get("high")
    if ends == (None, None) and cells.get("bounds") is not None:
        match = _RANGE.fullmatch(str(cells["bounds"]))
        if match is None:
            raise DataError(f"{where}: bounds that are not two ends: write them as 0..100.")
        ends = match[1], match[2]
    low, high = (_end(end, where) for end in ends)
    if (low is None) != (high is None):
        raise DataError(f"{where}: one bound without the other: fill both in.")
    return None if low is None else (low, high)


def _end(text: str | None, where: str) -> float | int | str | None:
    found = None if text is None else bound(text)
    if text is not None and found is None:
        raise DataError(f"{where}: a bound that is neither a number nor an ISO date.")
    return found


def bound(text: str) -> float | int | str | None:
    """One end of a range: a number, an ISO date as its text, or None where it is neither."""
    if moment(text) is not None:
        return text
    try:
        number = float(text.replace("_", "x"))
    except ValueError:
        return None
    if not math.isfinite(number):
        return None
    return int(number) if number.is_integer() and abs(number) < 2**53 else number


def _categories(text: str | None) -> list[str] | None:
    """`a|b`, `a; b`, `a, b`, or codes with their meaning as `0=no | 1=yes` and `0, no | 1, yes`."""
    if text is None:
        return None
    separator, parts = separated(text)
    for sign in ("=", ","):
        if parts and all(part.count(sign) >= 1 for part in parts) and sign != separator:
            parts = [part.split(sign)[0].strip() for part in parts]
            break
    return list(dict.fromkeys(parts)) or None


def separated(text: str) -> tuple[str | None, list[str]]:
    """What separates a list of levels, and the levels; nothing where there is one alone."""
    separator = next((sign for sign in _SEPARATORS if sign in text), None)
    parts = text.split(separator) if separator else [text]
    return separator, [part.strip() for part in parts if part.strip()]


def grouped(names: Sequence[str], declared: Mapping[str, Any]) -> list[tuple[list[str], Any]]:
    """Columns with one declaration together, each list as patterns where these match no other.

    `names` are all columns of the data, but for label and ids.
    """
    same: dict[str, list[str]] = {}
    for name in names:
        same.setdefault(repr(declared[name]), []).append(name)
    return [(_patterns(members, names), declared[members[0]]) for members in same.values()]


def _patterns(members: Sequence[str], names: Iterable[str]) -> list[str]:
    """Starts shared by three members or more and by no other column, then single names."""
    others = [name for name in names if name not in set(members)]
    left, made = list(members), []
    while left:
        name = left[0]
        ends = [place for place in range(1, len(name)) if _breaks(name, place)]
        for end in ends:
            start = name[:end]
            shared = [each for each in left if each.startswith(start)]
            if len(shared) >= 3 and not any(each.startswith(start) for each in others):
                made.append(f"{start}*")
                left = [each for each in left if each not in set(shared)]
                break
        else:
            made.append(left.pop(0))
    return made


def _breaks(name: str, place: int) -> bool:
    """Whether a word of the name ends before `place`: at a sign, or where digits begin."""
    before, after = name[place - 1], name[place]
    return before in "_-. " or (after.isdigit() and not before.isdigit())
