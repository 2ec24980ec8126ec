"""Short schemas: defaults, patterns, groups, files that include others, written out in full.

What is stored with a model, printed in a statement and used by every method is the full schema, one
declaration per column; the short forms exist in the user's file alone. Nothing here may make a
column public by a default: what is public is named, or matched by a pattern that names something.
"""

from __future__ import annotations

import datetime as dt
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from halfmask.errors import SchemaError

SHORT_KEYS = ("defaults", "groups", "ignore", "include")
_COLUMN_KEYS = ("role", "kind", "bounds", "categories", "bins", "party")
_RANGED = ("number", "date")
_SHOWN = 8


def read_tables(path: Path, above: tuple[Path, ...] = ()) -> dict[str, Any]:
    """The tables of a schema file, with those of the files it includes under its own."""
    path = path.absolute()
    if path in above:
        raise SchemaError(f"{path.name} includes itself: remove one `include`.")
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise SchemaError(
            f"Cannot read the schema {path.name if above else path}: {error.strerror}. "
            + (
                f"It is included by {above[-1].name}: paths count from that file's folder."
                if above
                else "`halfmask init FILE --label NAME` writes a template."
            )
        ) from None
    except UnicodeDecodeError:
        raise SchemaError(f"The schema {path} is not UTF-8 text: save it as UTF-8.") from None
    try:
        own = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise SchemaError(f"The schema {path} is not valid TOML: {error}.") from None
    except RecursionError:
        raise SchemaError(f"The schema {path} nests too deeply to be one.") from None
    files = own.pop("include", [])
    files = [files] if isinstance(files, str) else files
    if not isinstance(files, list) or not all(isinstance(each, str) and each for each in files):
        raise SchemaError('`include` is not a list of files: write include = ["common.toml"].')
    under: dict[str, Any] = {}
    for each in files:
        _check_same(under, found := read_tables(path.parent / each, (*above, path)), each)
        under = _over(under, found)
    return _over(under, own)


def _over(under: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """Both, key by key; what `own` says wins. Lists of ignored columns are joined."""
    joined = dict(under)
    for key, value in own.items():
        below = joined.get(key)
        if isinstance(below, Mapping) and isinstance(value, Mapping):
            joined[key] = _over(below, value)
        elif key == "ignore" and isinstance(below, list) and isinstance(value, list):
            joined[key] = [*below, *value]
        else:
            joined[key] = value
    return joined


def _check_same(one: Mapping[str, Any], other: Mapping[str, Any], file: str) -> None:
    """Two included files may both speak of a table, but must not say different things."""
    for place, value in _leaves(other):
        below: Any = one
        for part in place:
            below = below.get(part) if isinstance(below, Mapping) else None
        if below is not None and below != value and place != ("ignore",):
            raise SchemaError(
                f"The included {file} and another included file disagree on {'.'.join(place)}: "
                "keep one, or write it in the file that includes them."
            )


def _leaves(data: Mapping[str, Any], above: tuple[str, ...] = ()) -> Iterator[tuple[Any, Any]]:
    for key, value in data.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, (*above, key))
        else:
            yield (*above, key), value


@dataclass(frozen=True)
class _Part:
    """A declaration of one name or pattern: where it stands, and its keys."""

    where: str
    name: str
    keys: Mapping[str, Any]

    def matches(self, column: str) -> bool:
        return _matches(self.name, column)


def _matches(pattern: str, column: str) -> bool:
    """`*` stands for any text; everything else for itself, since names hold ? and [ too."""
    parts = map(re.escape, pattern.split("*"))
    return re.fullmatch(".*".join(parts), column, re.DOTALL) is not None


def patterns(data: Mapping[str, Any]) -> list[str]:
    """The names with a star in a schema's tables."""
    named = [*_table(data, "columns"), *_listed(data, "ignore")]
    for group in _table(data, "groups").values():
        named += _listed(group, "columns") if isinstance(group, Mapping) else []
    return [name for name in named if "*" in name]


def expanded(
    data: Mapping[str, Any], names: Sequence[str] | None, problems: list[str]
) -> dict[str, Any]:
    """The full form of a schema's tables, for data with columns `names`, and `problems` with it.

    Without names a star is an ordinary character, as in a stored schema.
    """
    full = {key: value for key, value in data.items() if key not in SHORT_KEYS}
    if data.get("include"):
        raise SchemaError("`include` needs a file to count paths from: use Schema.from_toml.")
    if not any(key in data for key in SHORT_KEYS) and (names is None or not patterns(data)):
        return full
    defaults = _defaults(data)
    exact, grouped, starred, ignored = _declarations(data, names)
    if starred and names is not None:
        taken = {_named(data, "label", "name"), _named(data, "unit", "column")}
        names = [name for name in names if name not in taken]
        problems += _unmatched([*exact, *grouped, *starred], ignored, names, bool(starred))
    elif names is not None:
        problems += _unmatched([], ignored, names, False)
    columns: dict[str, Any] = {}
    for name in _in_order([*exact, *grouped, *starred], ignored, names):
        layers = [
            [each for each in starred if each.matches(name)],
            [each for each in grouped if each.name == name],
            [each for each in exact if each.name == name],
        ]
        try:
            columns[name] = _joined(name, defaults, layers)
        except SchemaError as error:
            problems.append(str(error))
    # Tables that are none are left for the schema to refuse.
    wrong = {part.name: part.keys for part in exact if not isinstance(part.keys, Mapping)}
    return {**full, "columns": {**columns, **wrong}}


def _table(data: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found = data.get(key, {})
    if not isinstance(found, Mapping):
        raise SchemaError(f"[{key}] is not a table: write one [{key}.NAME] for each.")
    return found


def _listed(data: Mapping[str, Any], key: str) -> list[str]:
    found = data.get(key, [])
    if not isinstance(found, list) or not all(isinstance(each, str) and each for each in found):
        raise SchemaError(f'`{key}` is not a list of columns: write {key} = ["a", "lab_*"].')
    return found


def _named(data: Mapping[str, Any], table: str, key: str) -> Any:
    found = data.get(table)
    return found.get(key) if isinstance(found, Mapping) else None


def _defaults(data: Mapping[str, Any]) -> Mapping[str, Any]:
    found = _table(data, "defaults")
    _check_keys("[defaults]", found, _COLUMN_KEYS)
    if found.get("role", "private") != "private":
        raise SchemaError(
            "[defaults] can only make columns private: a column becomes public by its name, "
            'its group or a pattern. Write role = "private" there.'
        )
    return found


def _check_keys(where: str, given: Mapping[str, Any], known: Sequence[str]) -> None:
    from halfmask.schema import known_keys

    known_keys(where, given, known)


def _declarations(
    data: Mapping[str, Any], names: Sequence[str] | None
) -> tuple[list[_Part], list[_Part], list[_Part], list[str]]:
    """Columns by name, columns of groups by name, patterns of both, and ignored names."""
    there = set(names or ())

    def is_pattern(name: str) -> bool:
        return names is not None and "*" in name and name not in there

    exact: list[_Part] = []
    grouped: list[_Part] = []
    starred: list[_Part] = []
    for name, keys in _table(data, "columns").items():
        part = _Part(f"[columns.{_key(name)}]", name, keys)
        if is_pattern(name):
            if not isinstance(keys, Mapping):
                raise SchemaError(f"{part.where} is not a table: write its keys below it.")
            _check_keys(part.where, keys, _COLUMN_KEYS)
        (starred if is_pattern(name) else exact).append(part)
    for group, keys in _table(data, "groups").items():
        where = f"[groups.{_key(group)}]"
        if not isinstance(keys, Mapping):
            raise SchemaError(f"{where} is not a table: write its keys below it.")
        _check_keys(where, keys, ("columns", *_COLUMN_KEYS))
        members = _listed(keys, "columns")
        if not members:
            raise SchemaError(f'{where} has no columns: write columns = ["a", "lab_*"].')
        own = {key: value for key, value in keys.items() if key != "columns"}
        for name in members:
            part = _Part(f"{where} ({name})", name, own)
            (starred if is_pattern(name) else grouped).append(part)
    for part in starred:
        if not part.name.strip("*") and part.keys.get("role") == "public":
            raise SchemaError(
                f"{part.where} would make every column public that nothing else names: "
                "name what is public."
            )
    return exact, grouped, starred, _listed(data, "ignore")


def _unmatched(
    parts: Sequence[_Part], ignored: Sequence[str], names: Sequence[str], starred: bool
) -> Iterator[str]:
    """Patterns that match no column and, where patterns are used, columns that nothing matches."""
    for part in parts:
        if "*" in part.name and not any(part.matches(name) for name in names):
            yield f"{part.where} matches no column of the data: correct or remove it."
    for pattern in ignored:
        if not any(_matches(pattern, name) for name in names):
            yield f"`ignore` lists {pattern!r}, which matches no column of the data: remove it."
    if not starred:
        return
    lost = [
        name
        for name in names
        if not any(part.matches(name) for part in parts)
        and not any(_matches(pattern, name) for pattern in ignored)
    ]
    if lost:
        shown = ", ".join(repr(name) for name in lost[:_SHOWN])
        more = f" and {len(lost) - _SHOWN} more" if len(lost) > _SHOWN else ""
        yield (
            f"Nothing in the schema matches {shown}{more}: declare these columns, or leave them "
            f"out of the model with ignore = [{', '.join(_key(name) for name in lost[:2])}, ...]."
            if len(lost) > 1
            else f"Nothing in the schema matches the column {shown}: declare it, or leave it out "
            f'of the model with ignore = ["{lost[0]}"].'
        )


def _in_order(
    parts: Sequence[_Part], ignored: Sequence[str], names: Sequence[str] | None
) -> list[str]:
    """Every declared column once: declarations in their order, matches in that of the data."""
    found: dict[str, None] = {}
    for part in parts:
        if names is None or "*" not in part.name or part.name in names:
            if any(_matches(pattern, part.name) for pattern in ignored):
                raise SchemaError(
                    f"{part.where} is also in `ignore`: remove it from one of the two."
                )
            if isinstance(part.keys, Mapping):
                found[part.name] = None
            continue
        for name in names:
            if part.matches(name) and not any(_matches(pattern, name) for pattern in ignored):
                found[name] = None
    return list(found)


def _joined(
    name: str, defaults: Mapping[str, Any], layers: Sequence[Sequence[_Part]]
) -> dict[str, Any]:
    """The keys of one column: patterns under groups under its own name, all over the defaults."""
    keys: dict[str, Any] = {}
    for layer in layers:
        said: dict[str, tuple[Any, str]] = {}
        for part in layer:
            for key, value in part.keys.items():
                before = said.setdefault(key, (value, part.where))
                if before[0] != value:
                    raise SchemaError(
                        f"Column {name!r} is matched by {before[1]} and {part.where}, which "
                        f"disagree on {key}: change one of them."
                    )
        own = {key: value for key, (value, _) in said.items()}
        kind = own.get("kind", keys.get("kind", defaults.get("kind")))
        keys = {**{key: value for key, value in keys.items() if _fits(key, value, kind)}, **own}
    if "public" in keys:
        return keys  # a function of other columns: it says itself what it makes
    keys = {**{key: defaults[key] for key in ("role", "kind") if key in defaults}, **keys}
    for key in ("bins", "party", "bounds", "categories"):
        fits = key in defaults and _fits(key, defaults[key], keys.get("kind"))
        # A public column that leaves bounds or categories open learns them from the data.
        if fits and (key in ("bins", "party") or keys.get("role") == "private"):
            keys.setdefault(key, defaults[key])
    return keys


def _fits(key: str, value: Any, kind: Any) -> bool:
    """Whether a key that was meant for many columns says something about one of this kind."""
    if key == "bounds":
        dated = isinstance(value, list) and any(isinstance(end, (dt.date, str)) for end in value)
        return bool(kind == ("date" if dated else "number"))
    if key == "bins":
        return kind in _RANGED
    return kind == "category" if key == "categories" else True


def _key(name: str) -> str:
    """A name as TOML writes it."""
    if re.fullmatch(r"[A-Za-z0-9_-]+", name):
        return name
    import json

    return json.dumps(name, ensure_ascii=False)
