"""The declaration of a table: which columns are public, which are private, and what each may hold.

Everything that is known about a private column is written here by its owner. Bounds and categories
are required because learning them from the data would leak; public columns may leave them out.
"""

from __future__ import annotations

import datetime as dt
import difflib
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, fields
from pathlib import Path
from typing import Any, Literal, get_args

from halfmask.cells import moment, moment_text
from halfmask.errors import InputError, SchemaError
from halfmask.short_schema import SHORT_KEYS, expanded, patterns, read_tables

Role = Literal["public", "private"]
Kind = Literal["number", "category", "date", "bool"]
MissingLabel = Literal["skip"]
Level = str | int | bool

DEFAULT_BINS = 16
MAX_BINS = 4096
MISSING_WORDS = ("", "NA", "NaN", "nan")
"""How a missing value is written, besides a null of the frame."""


def level_text(value: object) -> str:
    """The text by which a level is compared: 1, 1.0 and "1" are one level, as are " a " and "a"."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return str(value).strip()


def suggest(word: str, known: Iterable[str]) -> str:
    """` Did you mean 'x'?`, or nothing when no known word is close."""
    close = difflib.get_close_matches(word, list(known), n=1)
    return f" Did you mean {close[0]!r}?" if close else ""


def _chosen(where: str, key: str, value: object, allowed: Sequence[str]) -> None:
    if value is None:
        raise SchemaError(f"{where} has no {key}: write {key} = {_either(allowed)}.")
    if value not in allowed:
        hint = suggest(str(value), allowed)
        raise SchemaError(f"{where} has {key} {value!r}: expected {_either(allowed)}.{hint}")


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
        raise SchemaError(f'{where} has no name: write name = "..." with the column\'s name.')


def _party(where: str, party: object) -> None:
    if party is not None and (not isinstance(party, str) or not party):
        raise SchemaError(f'{where} has a party that is not a name: write party = "...".')


def _bounds(where: str, bounds: object) -> tuple[float, float]:
    shape = f"{where} has bounds that are not two finite numbers: write bounds = [low, high]."
    if isinstance(bounds, str) or not isinstance(bounds, Sequence) or len(bounds) != 2:
        raise SchemaError(shape)
    if any(isinstance(end, bool) or not isinstance(end, (int, float)) for end in bounds):
        raise SchemaError(shape)
    low, high = float(bounds[0]), float(bounds[1])
    if not (math.isfinite(low) and math.isfinite(high)):
        raise SchemaError(shape)
    if low >= high:
        raise SchemaError(
            f"{where} has bounds [{low:g}, {high:g}]: the first must be below the second."
        )
    if not math.isfinite(high - low):
        raise SchemaError(
            f"{where} has bounds too far apart for a number: declare a smaller range."
        )
    return low, high


def _date_bounds(where: str, bounds: object) -> tuple[str, str]:
    """Two dates of TOML or of Python, or ISO texts, as ISO texts in UTC."""
    shape = f"{where} has bounds that are not two dates: write bounds = [2000-01-01, 2024-12-31]."
    if isinstance(bounds, str) or not isinstance(bounds, Sequence) or len(bounds) != 2:
        raise SchemaError(shape)
    words = [end.isoformat() if isinstance(end, dt.date) else str(end).strip() for end in bounds]
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
        it is made of them, row by row, and is public (halfmask.derived).
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

    def __post_init__(self) -> None:
        _name("A column", self.name)
        where = f"Column {self.name!r}"
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
        from halfmask.derived import function_of

        return function_of(self.name, self.public).columns

    def _check_made(self, where: str) -> None:
        kind = _function(where, self.name, self.public).kind
        for key, only in (("role", "public"), ("kind", kind)):
            if getattr(self, key) not in (None, only):
                raise SchemaError(
                    f"{where} has public = {self.public!r} and {key} {getattr(self, key)!r}: what "
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
            raise SchemaError(f"{where} has bins {bins!r}: expected 0 (no bins) or 2 and more.")
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
        "round(income, 10)" (halfmask.derived.PublicLabel).
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
            object.__setattr__(self, "bounds", _bounds(where, self.bounds))
        else:
            classes = _levels(where, "classes", self.classes)
            if len(classes) < 2:
                raise SchemaError(f"{where} has {len(classes)} classes: name at least two.")
            object.__setattr__(self, "classes", classes)
        if self.public is not None:
            self._check_public(where)

    def _check_public(self, where: str) -> None:
        from halfmask.derived import PublicLabel

        _function(where, self.name, self.public)
        if self.role == "public":
            raise SchemaError(f"{where} is public, and so is every function of it: remove public.")
        if self.missing is not None:
            raise SchemaError(
                f'{where} has public = {self.public!r} and missing = "skip": the function would '
                "tell which rows have no label. Remove one of the two."
            )
        PublicLabel.of(self)

    @property
    def task(self) -> Literal["classification", "regression"]:
        """What a model of this label does."""
        return "regression" if self.classes is None else "classification"


def _function(where: str, name: str, text: object) -> Any:
    """The named function that `public = "..."` calls."""
    from halfmask.derived import function_of

    if not isinstance(text, str):
        raise SchemaError(f'{where} has public that is no text: write public = "round(age, 10)".')
    try:
        return function_of(name, text)
    except InputError as error:
        raise SchemaError(f"{where} has public = {error}") from None


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
                where = f"Column {column.name!r} has public = {column.public!r}"
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
