"""The declaration of a table: which columns are public, which are private, and what each may hold.

Everything that is known about a private column is written here by its owner. Bounds and categories
are required because learning them from the data would leak; public columns may leave them out.
"""

from __future__ import annotations

import datetime as dt
import json
import math
import re
import sys
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, fields
from pathlib import Path
from typing import Any, Literal, get_args

from halfmask.data.cells import MISSING_WORDS, level_text, moment, moment_text
from halfmask.data.derived import Derived, PublicLabel, function_of
from halfmask.errors import InputError, SchemaError, suggest

# --- Short schemas: defaults, patterns, groups, files that include others, written out in full.
# What is stored with a model, printed in a statement and used by every method is the full schema,
# one declaration per column; the short forms exist in the user's file alone. Nothing here may make
# a column public by a default: what is public is named, or matched by a pattern that names
# something.


SHORT_KEYS = ("defaults", "groups", "ignore", "include")
_COLUMN_KEYS = ("role", "kind", "bounds", "categories", "bins", "party")
_RANGED = ("number", "date")
_SHOWN = 8


def read_tables(path: Path, above: tuple[Path, ...] = ()) -> dict[str, Any]:
    """The tables of a schema file, with those of the files it includes under its own."""
    typed, path = path, path.absolute()
    if path in above:
        raise SchemaError(f"{path.name} includes itself: remove one `include`.")
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise SchemaError(f"The schema {typed} is not UTF-8 text: save it as UTF-8.") from None
    except ValueError:  # a zero in its name
        raise SchemaError(f"{str(path)!r} is not the name of a file: correct `include`.") from None
    except OSError as error:
        raise SchemaError(
            f"Cannot read the schema {path.name if above else typed}: {error.strerror}. "
            + (
                f"It is included by {above[-1].name}: paths count from that file's folder."
                if above
                else "`halfmask init FILE --label NAME` writes a template."
            )
        ) from None
    try:
        own = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise SchemaError(
            f"The schema {typed} is not valid TOML: {error}. Mend what stands there."
        ) from None
    except ValueError:
        raise SchemaError(f"The schema {path} holds a number of too many digits.") from None
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
class _Declaration:
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
        taken = [_named(data, "label", "name"), _named(data, "unit", "column")]
        names = [name for name in names if name not in taken]
        problems += _unmatched([*exact, *grouped, *starred], ignored, names, bool(starred))
    elif names is not None:
        problems += _unmatched([], ignored, names, False)
    # Tables that are none are left for the schema to refuse.
    wrong = {part.name: part.keys for part in exact if not isinstance(part.keys, Mapping)}
    columns: dict[str, Any] = {}
    for name in _in_order([*exact, *grouped, *starred], ignored, names):
        if name in wrong:  # a group or a pattern has it too
            continue
        layers = [
            [each for each in starred if each.matches(name)],
            [each for each in grouped if each.name == name],
            [each for each in exact if each.name == name],
        ]
        try:
            columns[name] = _joined(name, defaults, layers)
        except SchemaError as error:
            problems.append(str(error))
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
    known_keys("[defaults]", found, _COLUMN_KEYS)
    if found.get("role", "private") != "private":
        raise SchemaError(
            "[defaults] can only make columns private: a column becomes public by its name, "
            'its group or a pattern. Write role = "private" there.'
        )
    return found


def _declarations(
    data: Mapping[str, Any], names: Sequence[str] | None
) -> tuple[list[_Declaration], list[_Declaration], list[_Declaration], list[str]]:
    """Columns by name, columns of groups by name, patterns of both, and ignored names."""
    there = set(names or ())

    def is_pattern(name: str) -> bool:
        return names is not None and "*" in name and name not in there

    exact: list[_Declaration] = []
    grouped: list[_Declaration] = []
    starred: list[_Declaration] = []
    for name, keys in _table(data, "columns").items():
        part = _Declaration(f"[columns.{_key(name)}]", name, keys)
        if is_pattern(name):
            if not isinstance(keys, Mapping):
                raise SchemaError(f"{part.where} is not a table: write its keys below it.")
            known_keys(part.where, keys, _COLUMN_KEYS)
        (starred if is_pattern(name) else exact).append(part)
    for group, keys in _table(data, "groups").items():
        where = f"[groups.{_key(group)}]"
        if not isinstance(keys, Mapping):
            raise SchemaError(f"{where} is not a table: write its keys below it.")
        known_keys(where, keys, ("columns", *_COLUMN_KEYS))
        members = _listed(keys, "columns")
        if not members:
            raise SchemaError(f'{where} has no columns: write columns = ["a", "lab_*"].')
        own = {key: value for key, value in keys.items() if key != "columns"}
        for name in members:
            part = _Declaration(f"{where} ({name})", name, own)
            (starred if is_pattern(name) else grouped).append(part)
    for part in starred:
        if not part.name.strip("*") and part.keys.get("role") == "public":
            raise SchemaError(
                f"{part.where} would make every column public that nothing else names: "
                "name what is public."
            )
    return exact, grouped, starred, _listed(data, "ignore")


def _unmatched(
    parts: Sequence[_Declaration], ignored: Sequence[str], names: Sequence[str], starred: bool
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
        if name  # what has no name cannot be declared
        and not any(part.matches(name) for part in parts)
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
    parts: Sequence[_Declaration], ignored: Sequence[str], names: Sequence[str] | None
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
    name: str, defaults: Mapping[str, Any], layers: Sequence[Sequence[_Declaration]]
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
    return json.dumps(name, ensure_ascii=False)


Role = Literal["public", "private"]
Kind = Literal["number", "category", "date", "bool"]
MissingLabel = Literal["skip"]
Level = str | int | bool

DEFAULT_BINS = 16
MAX_BINS = 4096
_QUOTED = 200
_LARGEST = sys.float_info.max


def _chosen(where: str, key: str, value: object, allowed: Sequence[str]) -> None:
    if value is None:
        raise SchemaError(f"{where} has no {key}: write {key} = {_either(allowed)}.")
    if value not in allowed:
        hint = suggest(str(value), allowed)
        raise SchemaError(f"{where} has {key} {_quoted(value)}: expected {_either(allowed)}.{hint}")


def _quoted(value: object) -> str:
    """A value of a schema in a message: its beginning, where it is long."""
    text = repr(value)
    return text if len(text) <= _QUOTED else f"{text[:_QUOTED]}..."


def _either(words: Sequence[str]) -> str:
    return " or ".join(f'"{word}"' for word in words)


def known_keys(where: str, given: Mapping[str, Any], known: Sequence[str]) -> None:
    """Refuse a key that is none of `known`, with the nearest one."""
    for key, value in given.items():
        if key not in known:
            dotted = ""
            if where.startswith("[columns.") and isinstance(value, Mapping):
                name = f"{where.removeprefix('[columns.').removesuffix(']')}.{key}"
                dotted = f' If the column is called {name!r}, write [columns."{name}"].'
            raise SchemaError(
                f"{where} has an unknown key {key!r}.{suggest(key, known)} "
                f"The keys are {', '.join(known)}.{dotted}"
            )


def _name(where: str, name: object) -> None:
    if not isinstance(name, str) or not name.strip():
        raise SchemaError(
            f'{where} has no name: write name = "..." with the column\'s name; a column that has '
            "none in the file is left out."
        )


def _party(where: str, party: object) -> None:
    if party is not None and (not isinstance(party, str) or not party):
        raise SchemaError(f'{where} has a party that is not a name: write party = "...".')


def _two_ends(shape: str, bounds: object) -> Sequence[Any]:
    if isinstance(bounds, str) or not isinstance(bounds, Sequence) or len(bounds) != 2:
        raise SchemaError(shape)
    return bounds


def _bounds(where: str, bounds: object) -> tuple[float, float]:
    shape = f"{where} has bounds that are not two finite numbers: write bounds = [low, high]."
    ends = _two_ends(shape, bounds)
    if any(isinstance(end, bool) or not isinstance(end, (int, float)) for end in ends):
        raise SchemaError(shape)
    if not all(abs(end) <= _LARGEST for end in ends):
        raise SchemaError(shape)
    low, high = float(ends[0]), float(ends[1])
    if low >= high:
        raise SchemaError(
            f"{where} has bounds [{low:g}, {high:g}]: the first must be below the second."
        )
    if not math.isfinite(high - low):
        raise SchemaError(
            f"{where} has bounds too far apart for a number: declare a smaller range."
        )
    return low, high


def has_middle(low: float, high: float) -> bool:
    """Whether the middle of a range and half of it are numbers, and that half is not zero.

    Labels are divided by it. Which private label then gives no number would show without noise.
    """
    return math.isfinite(low + high) and 0 < (high - low) / 2 < math.inf


def _date_bounds(where: str, bounds: object) -> tuple[str, str]:
    """Two dates of TOML or of Python, or ISO texts, as ISO texts in UTC."""
    shape = f"{where} has bounds that are not two dates: write bounds = [2000-01-01, 2024-12-31]."
    ends = _two_ends(shape, bounds)
    words = [end.isoformat() if isinstance(end, dt.date) else str(end).strip() for end in ends]
    low, high = (moment(word) for word in words)
    if low is None or high is None:
        raise SchemaError(shape)
    if low >= high:
        raise SchemaError(
            f"{where} has bounds [{words[0]}, {words[1]}]: the first must be below the second."
        )
    return moment_text(low), moment_text(high)


def _levels(where: str, key: str, levels: object) -> tuple[Level, ...]:
    if isinstance(levels, str) or not isinstance(levels, Sequence):
        raise SchemaError(f'{where} has {key} that are not a list: write {key} = ["...", "..."].')
    seen = set()
    for level in levels:
        if not isinstance(level, (str, int, bool)):
            raise SchemaError(f"{where} has {key} that are not text or whole numbers: quote them.")
        text = level_text(level)
        if text in MISSING_WORDS:
            raise SchemaError(
                f"{where} lists {text!r} among its {key}, which is how a missing value is written: "
                f"leave it out (missing categories have a level of their own)."
            )
        if text.casefold() in ("true", "false"):
            text = text.casefold()
        if text in seen:
            raise SchemaError(f"{where} lists {text!r} twice among its {key}: keep one.")
        seen.add(text)
    return tuple(levels)


@dataclass(frozen=True)
class Column:
    """One feature column: its role, its kind and, for a private one, all that may be known of it.

    Parameters
    ----------
    name : str
        The column's name in the data.
    role : {"public", "private"}
        Whether its values are protected.
    kind : {"number", "category", "date", "bool"}
        What it holds; a truth value has nothing more to declare.
    bounds : pair, optional
        Between which a number or a date (ISO texts) lies; what lies outside is clamped. Required
        of private columns.
    categories : tuple of str, optional
        The levels of a category. Required of private columns.
    bins : int, optional
        Into how many equal parts of its bounds a number is cut; 0 keeps one scaled number.
    party : str, optional
        Who holds the column, where several organisations do (docs/vertical.md).
    public : str, optional
        A function of other columns by name such as "round(age, 10)": the data has no such column,
        it is made of them, row by row, and is public (halfmask.data.derived).
    derived : str, optional
        The function of other columns that the data's column holds, as `halfmask derive` writes it.
        It is not computed again: the statement names it, and `halfmask check` judges what it tells.
    """

    name: str
    role: Role = None  # type: ignore[assignment]  # judged below: only a function goes without
    kind: Kind = None  # type: ignore[assignment]
    _: KW_ONLY
    bounds: tuple[float, float] | tuple[str, str] | None = None
    categories: tuple[str, ...] | None = None
    bins: int | None = None
    party: str | None = None
    public: str | None = None
    derived: str | None = None

    def __post_init__(self) -> None:
        _name("A column", self.name)
        where = f"Column {self.name!r}"
        if self.derived is not None:
            self._check_derived(where)
        if self.public is not None:
            self._check_made(where)
        _chosen(where, "role", self.role, get_args(Role))
        _chosen(where, "kind", self.kind, get_args(Kind))
        _party(where, self.party)
        if self.kind in ("number", "date"):
            self._check_range(where)
        elif self.kind == "bool":
            self._check_bare(where, "bounds", "bins", "categories")
        else:
            self._check_category(where)

    @property
    def scaled(self) -> bool:
        """Whether the column becomes one scaled number instead of 0/1 features."""
        return self.kind in ("number", "date") and self.bins == 0

    @property
    def made_of(self) -> tuple[str, ...]:
        """The columns that this one is a function of; none where the data holds it."""
        if self.public is None:
            return ()
        return function_of(self.name, self.public).columns

    @property
    def function(self) -> Derived | None:
        """The function of other columns whose values are here, made by us or held by the data."""
        text = self.derived if self.public is None else self.public
        return None if text is None else function_of(self.name, text)

    def _check_derived(self, where: str) -> None:
        _function(where, self.name, self.derived, key="derived")
        if self.public is not None:
            raise SchemaError(
                f"{where} has public and derived: keep public where the column is to be made of "
                "others, or derived where the data holds it."
            )

    def _check_made(self, where: str) -> None:
        kind = _function(where, self.name, self.public).kind
        for key, only in (("role", "public"), ("kind", kind)):
            if getattr(self, key) not in (None, only):
                raise SchemaError(
                    f"{where} has public = {_quoted(self.public)} and {key} "
                    f"{_quoted(getattr(self, key))}: what "
                    f'is made by a function has {key} = "{only}"; leave {key} out.'
                )
            object.__setattr__(self, key, only)

    def _check_bare(self, where: str, *keys: str) -> None:
        article = "a truth value" if self.kind == "bool" else f"a {self.kind}"
        fitting = '"category"' if "categories" in keys else '"number" or "date"'
        for key in keys:
            if getattr(self, key) is not None:
                raise SchemaError(
                    f"{where} is {article} with {key}: remove them, or write kind = {fitting}."
                )

    def _check_range(self, where: str) -> None:
        self._check_bare(where, "categories")
        if self.bounds is not None:
            checked = _bounds if self.kind == "number" else _date_bounds
            object.__setattr__(self, "bounds", checked(where, self.bounds))
        elif self.role == "private":
            raise SchemaError(
                f"{where} is a private {self.kind} without bounds: write bounds = [low, high] from "
                f"what is known without the data; learning them from it would leak."
            )
        bins = self.bins
        if bins is None:
            return
        if isinstance(bins, bool) or not isinstance(bins, int) or bins == 1 or bins < 0:
            raise SchemaError(
                f"{where} has bins {_quoted(bins)}: expected 0 (no bins) or 2 and more."
            )
        if bins > MAX_BINS:
            raise SchemaError(f"{where} has {bins} bins: expected at most {MAX_BINS}.")

    def _check_category(self, where: str) -> None:
        self._check_bare(where, "bounds", "bins")
        if self.categories is not None:
            levels = _levels(where, "categories", self.categories)
            if not levels:
                raise SchemaError(f"{where} has an empty list of categories: name at least one.")
            object.__setattr__(self, "categories", tuple(level_text(level) for level in levels))
        elif self.role == "private":
            raise SchemaError(
                f'{where} is a private category without categories: write categories = ["..."] '
                f"from what is known without the data; learning them from it would leak."
            )


@dataclass(frozen=True)
class Label:
    """The column to predict: `classes` for a classification, `bounds` for a regression.

    Parameters
    ----------
    name : str
        The column's name in the data.
    role : {"public", "private"}
        Whether the label itself is protected.
    classes : tuple, optional
        The classes. They keep the type they were declared with and are compared as levels of a
        category are.
    bounds : pair of float, optional
        Instead of classes: between which a number to predict lies.
    party : str, optional
        Who holds the label, where several organisations hold columns.
    missing : {"skip"}, optional
        Lets rows take part without a label; otherwise a missing label is an error.
    public : str, optional
        A function of a private label that is known of every training row, such as
        "round(income, 10)" (halfmask.data.derived.PublicLabel).
    """

    name: str
    role: Role
    _: KW_ONLY
    classes: tuple[Level, ...] | None = None
    bounds: tuple[float, float] | None = None
    party: str | None = None
    missing: MissingLabel | None = None
    public: str | None = None

    def __post_init__(self) -> None:
        _name("[label]", self.name)
        where = f"Label {self.name!r}"
        _chosen(where, "role", self.role, get_args(Role))
        _party(where, self.party)
        if self.missing is not None:
            _chosen(where, "missing", self.missing, get_args(MissingLabel))
        if (self.classes is None) == (self.bounds is None):
            raise SchemaError(
                f'{where} needs either classes or bounds: write classes = ["...", "..."] for '
                f"a class, or bounds = [low, high] for a number."
            )
        if self.bounds is not None:
            low, high = _bounds(where, self.bounds)
            if not has_middle(low, high):
                raise SchemaError(
                    f"{where} has bounds [{low:g}, {high:g}], too close or too large to calculate "
                    "with: write the numbers in another unit."
                )
            object.__setattr__(self, "bounds", (low, high))
        else:
            classes = _levels(where, "classes", self.classes)
            if len(classes) < 2:
                raise SchemaError(f"{where} has {len(classes)} classes: name at least two.")
            object.__setattr__(self, "classes", classes)
        if self.public is not None:
            self._check_public(where)

    def _check_public(self, where: str) -> None:
        _function(where, self.name, self.public)
        if self.role == "public":
            raise SchemaError(f"{where} is public, and so is every function of it: remove public.")
        if self.missing is not None:
            raise SchemaError(
                f'{where} has public = {_quoted(self.public)} and missing = "skip": the function '
                "would tell which rows have no label. Remove one of the two."
            )
        PublicLabel.of(self)

    @property
    def task(self) -> Literal["classification", "regression"]:
        """What a model of this label does."""
        return "regression" if self.classes is None else "classification"


def _function(where: str, name: str, text: object, key: str = "public") -> Derived:
    """The named function that `public = "..."` (or `derived`) calls."""
    if not isinstance(text, str):
        raise SchemaError(f'{where} has {key} that is no text: write {key} = "round(age, 10)".')
    try:
        return function_of(name, text)
    except InputError as error:
        raise SchemaError(f"{where} has {key} = {error}") from None


@dataclass(frozen=True, kw_only=True)
class Unit:
    """The person behind several rows: the public column of ids, and how many rows of each count.

    Parameters
    ----------
    column : str
        The column of ids, which is public.
    max_rows : int
        How many rows of a person are used; the first ones, in the order of the data.
    """

    column: str
    max_rows: int

    def __post_init__(self) -> None:
        if not isinstance(self.column, str) or not self.column.strip():
            raise SchemaError('[unit] has no column: write column = "..." with the column of ids.')
        rows = self.max_rows
        if isinstance(rows, bool) or not isinstance(rows, int) or rows < 1:
            raise SchemaError("[unit] needs max_rows, a whole number of at least 1.")


def _build(cls: type[Any], where: str, data: object, **fixed: Any) -> Any:
    """A `cls` from a TOML table; absent keys become None and are judged by the class itself."""
    if not isinstance(data, Mapping):
        raise SchemaError(f"{where} is not a table: write [{where}] and its keys below.")
    keys = [field.name for field in fields(cls) if field.name not in fixed]
    known_keys(f"[{where}]", data, keys)
    return cls(**fixed, **{key: data.get(key) for key in keys})


@dataclass(frozen=True)
class Schema:
    """The label, the feature columns in order, and the unit of privacy (by default one row).

    Parameters
    ----------
    label : Label
        The column to predict.
    columns : tuple of Column
        The feature columns, in order.
    unit : Unit, optional
        Whom the guarantee protects, where a person may have several rows.

    Attributes
    ----------
    public, private : tuple of str
        Names of the feature columns of each role; the label is not among them.

    Examples
    --------
    >>> from halfmask import Schema
    >>> schema = Schema.from_dict({
    ...     "label": {"name": "sick", "role": "private", "classes": ["no", "yes"]},
    ...     "columns": {
    ...         "age": {"role": "public", "kind": "number"},
    ...         "dose": {"role": "private", "kind": "number", "bounds": [0, 10]},
    ...     },
    ... })
    >>> print(schema.private)
    ('dose',)
    """

    label: Label
    columns: tuple[Column, ...]
    unit: Unit | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "columns", tuple(self.columns))
        names = [column.name for column in self.columns]
        if not names:
            raise SchemaError("The schema has no column: declare at least one [columns.NAME].")
        twice = [name for name, count in Counter(names).items() if count > 1]
        if twice:
            raise SchemaError(f"Column {twice[0]!r} is declared twice: keep one declaration.")
        if self.label.name in names:
            raise SchemaError(
                f"Column {self.label.name!r} is the label and also a column: "
                f"remove [columns.{self.label.name}]."
            )
        if self.unit is not None and self.unit.column in [*names, self.label.name]:
            raise SchemaError(
                f"Column {self.unit.column!r} names the unit, so it cannot be a feature or the "
                f"label: remove its other declaration."
            )

        self._check_made()

    def _check_made(self) -> None:
        known = {column.name: column for column in self.columns}
        for column in self.columns:
            for source in column.made_of:
                where = f"Column {column.name!r} has public = {_quoted(column.public)}"
                if source == self.label.name:
                    raise SchemaError(
                        f"{where}, made of the label: a model that reads it could not predict rows "
                        "whose label is unknown. Write public in [label] instead."
                    )
                if source not in known or known[source].public is not None:
                    held = [name for name, each in known.items() if each.public is None]
                    raise SchemaError(
                        f"{where}: {source!r} is no column of the data that the schema declares."
                        f"{suggest(source, held)}"
                    )
                if known[source].party != column.party:
                    raise SchemaError(
                        f"{where}, and {source!r} is held by another party: write the party that "
                        "holds it."
                    )

    @property
    def read(self) -> tuple[str, ...]:
        """Names of the feature columns that the data must have: all that are not made of others."""
        return tuple(column.name for column in self.columns if column.public is None)

    @property
    def public(self) -> tuple[str, ...]:
        """Names of the public feature columns, in order; the label is not among them."""
        return tuple(column.name for column in self.columns if column.role == "public")

    @property
    def private(self) -> tuple[str, ...]:
        """Names of the private feature columns, in order; the label is not among them."""
        return tuple(column.name for column in self.columns if column.role == "private")

    @classmethod
    def from_toml(
        cls, path: str | Path, *, columns: Iterable[str] | Callable[[], Iterable[str]] | None = None
    ) -> Schema:
        """Read a schema file; every error names the file, the column and the fix.

        `columns` are the names of the data's columns, which patterns such as "lab_*" are matched
        against: a list, a frame's `columns`, or a function that is called where there are any.
        """
        data = read_tables(Path(path))
        try:
            found = patterns(data)
            if found and columns is None:
                raise SchemaError(
                    f"{found[0]!r} is a pattern, which needs the names of the data's columns: pass "
                    "Schema.from_toml(path, columns=frame.columns), or a file of rows on the "
                    "command line."
                )
            names = None if not found else columns() if callable(columns) else columns
            return cls.from_dict(data, columns=names)
        except SchemaError as error:
            raise SchemaError(f"{path}: {error}") from None

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], *, columns: Iterable[str] | None = None) -> Schema:
        """The schema of a dictionary in the form of the TOML file; all wrong columns are named.

        With `columns`, the names of the data's columns, a star in a name matches any text.
        """
        problems: list[str] = []
        label, built, unit = schema_parts(data, columns, problems)
        if problems or label is None:
            raise SchemaError("\n".join(problems))
        return cls(label, built, unit)

    def to_dict(self) -> dict[str, Any]:
        """The inverse of `from_dict`, as plain JSON values."""
        data = {"label": _plain(self.label)}
        data["columns"] = {column.name: _plain(column, "name") for column in self.columns}
        if self.unit is not None:
            data["unit"] = _plain(self.unit)
        return data

    def to_toml(self) -> str:
        """The schema as a TOML file."""
        import tomli_w

        return tomli_w.dumps(self.to_dict())


def schema_parts(
    data: Mapping[str, Any], columns: Iterable[str] | None, problems: list[str]
) -> tuple[Label | None, tuple[Column, ...], Unit | None]:
    """What can be made of a schema's tables, and `problems` of all that cannot."""
    known_keys("The schema", data, ("label", "columns", "unit", *SHORT_KEYS))
    names = None if columns is None else [str(name) for name in columns]
    data = expanded(data, names, problems)
    tables = data.get("columns", {})
    if not isinstance(tables, Mapping):
        raise SchemaError("[columns] is not a table: write one [columns.NAME] per column.")
    built: list[Column] = []
    label = unit = None
    if "label" not in data:
        problems.append('The schema has no [label]: write [label] and name = "...".')
    else:
        try:
            label = _build(Label, "label", data["label"])
        except SchemaError as error:
            problems.append(str(error))
    for name, column in tables.items():
        try:
            built.append(_build(Column, f"columns.{name}", column, name=name))
        except SchemaError as error:
            problems.append(str(error))
    try:
        unit = _build(Unit, "unit", data["unit"]) if "unit" in data else None
    except SchemaError as error:
        problems.append(str(error))
    return label, tuple(built), unit


def _plain(part: Column | Label | Unit, *left_out: str) -> dict[str, Any]:
    values = {field.name: getattr(part, field.name) for field in fields(part)}
    return {
        key: list(value) if isinstance(value, tuple) else value
        for key, value in values.items()
        if value is not None and key not in left_out
    }
