"""A schema against a file, before anything is spent: every fault, warnings, and what to expect.

Of private columns it says whether they parse, or the first row at which they do not, and nothing
else; all other findings follow from the schema, the number of rows, public columns and ids. Even so
the result depends on private values (whether they parse): it is for whoever holds the data.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from halfmask.accounting.budget import Budget, printed
from halfmask.data.derived import Derived
from halfmask.data.encoding import MAX_LEARNT_LEVELS, Levels, declared, level_codes, with_made
from halfmask.data.frames import (
    A_NUMBER,
    CLASSES_OTHERWISE,
    OR_LEAVE_OUT,
    UNIT_NEEDED,
    dates,
    meant,
    numbered,
    numbers,
    perhaps_a_row,
    texts,
)
from halfmask.data.reading import FileRows, open_rows
from halfmask.data.units import first_rows, unit_codes, unit_weights
from halfmask.errors import DataError, HalfmaskError, SchemaError
from halfmask.errors import place as named_place
from halfmask.progress import part_of, tell
from halfmask.schema import Column, Label, Schema, Unit, patterns, read_tables, schema_parts
from halfmask.table import label_codes

# --- Whether noise will win, from the number of rows, the schema and the budget; never from a
# value. A rule of thumb for the default method on tables: noise takes the part D / (D + μ·rows) of
# what the columns could explain, μ the strength of the budget and D a sum over what is private. How
# much columns tell decides by how much D is smaller or larger, and nobody knows it beforehand: a
# prediction is therefore a range, which holds nearly all that was measured (docs/check.md).


# The parts of D.
_PER_PRIVATE, _PER_PUBLIC, _LABEL = 52.0, 12.0, 75.0
# By how much D of measured tables is larger where columns tell little, on average, and where they
# tell much; and what is kept without noise, since trees without privacy see more, too.
_TIMES = (6.0, 0.9, 0.2)
_REACHED = (0.85, 0.97, 1.0)
# Under a public label public columns are free. What they tell is this power of their part of all.
_FREE = (2.0, 1.0, 0.5)
# Numbers that a column is released as, as the default method counts them to weigh rows of a unit.
_PER_COLUMN = 16
# With μ·rows below this the default method releases the base rate of a private label alone.
_BASE_RATE = math.sqrt(8000 / 0.4)

Verdict = Literal["noise will win", "noise may win", "noise will not win"]


@dataclass(frozen=True)
class Change:
    """What is expected if one column, or the label, were public instead of private."""

    column: str
    kept: tuple[float, float]
    middle: float
    rows_needed: int


@dataclass(frozen=True)
class Expectation:
    """`kept`: the share of what columns explain without privacy that is left, from low to high.

    `middle` is what tables keep on average, `rows_needed` for half of it even where columns tell
    little.
    """

    counted: float
    kept: tuple[float, float]
    middle: float
    rows_needed: int
    base_rate_only: bool
    if_public: tuple[Change, ...]

    @property
    def verdict(self) -> Verdict:
        """In three words."""
        if self.base_rate_only or self.middle < 0.2:
            return "noise will win"
        return "noise may win" if self.kept[0] < 0.5 else "noise will not win"

    def to_json(self) -> dict[str, Any]:
        """As `halfmask check --json` prints it."""
        return {
            "verdict": self.verdict,
            "rows_counted": self.counted,
            "kept": list(self.kept),
            "middle": self.middle,
            "rows_needed": self.rows_needed,
            "base_rate_only": self.base_rate_only,
            "if_public": [{**vars(change), "kept": list(change.kept)} for change in self.if_public],
        }


def expect(
    label: Label,
    columns: Sequence[Column],
    budget: Budget,
    *,
    rows: int,
    counted: float | None = None,
) -> Expectation:
    """What to expect now, and with each private column public; the largest gain comes first.

    Of `rows` so many count as `counted_rows` says; all of them unless told.
    """
    counted = rows if counted is None else counted
    strength = counted * budget.mu
    changes = []
    for place, column in enumerate(columns):
        if column.role == "private":
            others = [*columns]
            others[place] = replace(column, role="public")
            changes.append(Change(column.name, *_expected_of(label, others, rows, strength)))
    if label.role == "private":
        public = replace(label, role="public")
        changes.append(Change(label.name, *_expected_of(public, columns, rows, strength)))
    changes.sort(key=lambda change: -change.middle)
    return Expectation(
        counted,
        *_expected_of(label, columns, rows, strength),
        base_rate_only=base_rate_alone(label, strength),
        if_public=tuple(changes),
    )


def _expected_of(
    label: Label, columns: Sequence[Column], rows: int, strength: float
) -> tuple[tuple[float, float], float, int]:
    """From low to high, the middle, and the rows that the low end needs to reach a half."""
    low, middle, high = kept(label, columns, strength)
    noise, free = _noise(label, columns), _free(label, columns) ** _FREE[0]
    by_noise = max(0.5 / _REACHED[0] - free, 0.0) / (1 - free) if free < 1 else 0.0
    least = _TIMES[0] * noise * by_noise / (1 - by_noise)
    if label.role == "private":
        least = max(least, _BASE_RATE)
    return (low, high), middle, max(math.ceil(least * rows / strength), 1)


def kept(label: Label, columns: Sequence[Column], strength: float) -> tuple[float, float, float]:
    """The part of what columns tell that is left at μ·rows: where they tell little, on average,
    and where they tell much."""
    if label.role == "public" and not any(column.role == "private" for column in columns):
        return 1.0, 1.0, 1.0
    if base_rate_alone(label, strength):
        return 0.0, 0.0, 0.0
    noise, free = _noise(label, columns), _free(label, columns)
    low, middle, high = (
        reached * (free**power + (1 - free**power) * strength / (strength + times * noise))
        for reached, power, times in zip(_REACHED, _FREE, _TIMES, strict=True)
    )
    return low, middle, high


def _noise(label: Label, columns: Sequence[Column]) -> float:
    """D."""
    found = _PER_PRIVATE * sum(_weight(column) for column in columns if column.role == "private")
    if label.role == "private":
        found += _PER_PUBLIC * sum(column.role == "public" for column in columns) + _LABEL
    return found


def _free(label: Label, columns: Sequence[Column]) -> float:
    """The part of columns that cost nothing: public ones, where the label is public."""
    if label.role == "private":
        return 0.0
    return sum(column.role == "public" for column in columns) / len(columns)


def base_rate_alone(label: Label, strength: float) -> bool:
    """Whether the default method releases the base rate of a private label and nothing else."""
    return label.role == "private" and strength < _BASE_RATE


def _weight(column: Column) -> float:
    """What a column costs, a number being 1: many levels are more to learn than two."""
    coding = declared(column) if column.kind in ("category", "bool") else None
    if coding is None:
        return 1.0
    return min(max(math.log2(coding.width) / 4, 0.5), 2.5)


_USUAL = Budget(epsilon=1.0, delta=1e-6)
HIGH_EPSILON = 10.0
"""Above this, a guarantee allows odds to change e^10 = 22,000 times: it bounds next to nothing."""
SMALL_DELTA = 0.1
"""δ should be at most this part of 1 / rows."""
_ID_NAME = re.compile(
    r"(^|[_\W])([pu]?id|ids|uuid|guid|key|ssn|mrn|e-?mail|phone"
    r"|(person|patient|customer|client|user|member|employee|account)[_\W]?(no|nr|num|number|code))"
    r"($|[_\W])|^(person|patient|customer|client|user)$",
    re.I,
)
_CAMEL_ID = re.compile(r"[a-z](Id|ID)$")
_ID_SHARE = 0.9
"""A public column of which this share of values is distinct names rows, more than it tells."""


@dataclass(frozen=True)
class Remark:
    """Something to mend or to think about; `column` is None where it is about the whole."""

    column: str | None
    message: str


@dataclass
class Checked:
    """What a check found. `states` says of each declared column that is there how it reads."""

    rows: int | None = None
    faults: list[Remark] = field(default_factory=list)
    warnings: list[Remark] = field(default_factory=list)
    states: dict[str, str] = field(default_factory=dict)
    schema: Schema | None = None
    expectation: Expectation | None = None

    def to_json(self) -> dict[str, Any]:
        """As `halfmask check --json` prints it."""
        columns = [] if self.schema is None else list(self.schema.columns)
        named = [{"column": c.name, "role": c.role, "kind": c.kind} for c in columns]
        if self.schema is not None:
            label = self.schema.label
            named.append({"column": label.name, "role": label.role, "kind": "label"})
        return {
            "rows": self.rows,
            "faults": [vars(each) for each in self.faults],
            "warnings": [vars(each) for each in self.warnings],
            "columns": [{**each, "state": self.states.get(each["column"])} for each in named],
            "expected": None if self.expectation is None else self.expectation.to_json(),
            "for_release": False,
        }


def check_file(
    data: str | Path,
    schema_file: str | Path,
    budget: Budget = _USUAL,
) -> Checked:
    """Check a file against a schema. Nothing is charged and nothing is kept."""
    found = Checked()
    try:
        tables = read_tables(Path(schema_file))
    except SchemaError as error:
        found.faults += _findings(str(error))
        tables = None
    try:
        with open_rows(data) as rows:
            found.rows = rows.num_rows
            if tables is not None:
                check_rows(found, tables, rows, budget)
    except HalfmaskError as error:
        found.faults += _findings(str(error))
    return found


@dataclass(frozen=True)
class Looked:
    """What the values of one column say: whether they parse, and what to mend or to think about."""

    state: str | None = None
    faults: tuple[Remark, ...] = ()
    warnings: tuple[Remark, ...] = ()


Look = Callable[[FileRows, Column | Label], Looked]
"""Looks at the values of one column."""


def _findings(text: str) -> list[Remark]:
    """One for each line of an error."""
    return [Remark(named_place(line)[0], line) for line in text.splitlines() if line]


def look_at(rows: FileRows, part: Column | Label) -> Looked:
    """Whether a column parses, private or not, and warnings about a public one."""
    problem = _first_problem(rows, part)
    if problem is None:
        warnings = _public_warnings(rows, part) if part.role == "public" else ()
        return Looked("parses", warnings=tuple(warnings))
    row = named_place(str(problem))[1]
    message = str(problem)
    if part.role == "private":
        message = f"Column {part.name!r}, row {row}: does not parse. Expected {_expected(part)}."
    return Looked(f"does not parse at row {row}", faults=(Remark(part.name, message),))


def check_rows(
    found: Checked,
    tables: Mapping[str, Any],
    rows: FileRows,
    budget: Budget,
    *,
    look: Look = look_at,
) -> None:
    """Add to `found` what these tables of a schema and these rows give.

    `look` is the only one to see the values of feature columns and the label.
    """
    problems: list[str] = []
    label: Label | None = None
    columns: tuple[Column, ...] = ()
    unit: Unit | None = None
    try:
        names = rows.column_names if patterns(tables) else None
        label, columns, unit = schema_parts(tables, names, problems)
        if label is not None and not problems:
            found.schema = Schema(label, columns, unit)
    except SchemaError as error:
        problems += str(error).splitlines()
    found.faults += _findings("\n".join(problems))
    if found.schema is not None:
        rows = with_made(rows, found.schema)
    _check_values(found, rows, label, columns, unit, look)
    if found.schema is None:
        # Ids are public, but a column named under [unit] may also be declared private, well or in a
        # way that cannot be read: nothing is counted of it until the schema has no fault.
        unit = None
    else:
        _check_ids(found, rows, unit)
    found.warnings += _declared_warnings(columns)
    faulty = {fault.column for fault in found.faults}
    if found.schema is not None or "unit" not in tables:
        found.warnings += _unit_warnings(rows, label, columns, unit, faulty)
    found.warnings += _budget_warnings(rows.num_rows, budget)
    if label is None:
        return
    if label.role == "public" and all(column.role == "public" for column in columns):
        problem = "No column is private: mark a column or the label, or use an ordinary library."
        found.faults.append(Remark(None, problem))
    elif columns:
        counted = None
        if unit is not None and unit.column in rows.column_names:
            with suppress(DataError):
                counted = counted_rows(rows, unit, len(columns), budget)
        found.expectation = expect(label, columns, budget, rows=rows.num_rows, counted=counted)


def counted_rows(rows: FileRows, unit: Unit, columns: int, budget: Budget) -> float:
    """How many rows of persons with one row each noise would hit as hard: ids are public."""
    codes = unit_codes(texts(rows.columns([unit.column]), unit.column), unit.column)
    _, kept_codes = first_rows(codes, unit)
    found = unit_weights(
        kept_codes, numbers=_PER_COLUMN * columns, mu=budget.mu, relation=budget.relation
    )
    return found.total / found.most


# --- values


def _check_values(
    found: Checked,
    rows: FileRows,
    label: Label | None,
    columns: Sequence[Column],
    unit: Unit | None,
    look: Look,
) -> None:
    parts: list[Column | Label] = [*columns, *([] if label is None else [label])]
    wanted = [*(part.name for part in parts), *([] if unit is None else [unit.column])]
    missing = [name for name in wanted if name not in rows.column_names]
    for name in missing:
        advice = "Add {it}." if label is not None and name == label.name else OR_LEAVE_OUT
        if unit is not None and name == unit.column:
            advice = UNIT_NEEDED
        message = f"The data has no column {name!r}.{meant(name, rows.column_names, wanted)}"
        found.faults.append(Remark(name, f"{message} {advice.format(it='it')}"))
    for at, part in enumerate(parts):
        tell("checking columns", at / len(parts))
        if part.name in missing:
            continue
        with part_of("checking columns"):
            looked = look(rows, part)
        if looked.state is not None:
            found.states[part.name] = looked.state
        found.faults += looked.faults
        found.warnings += looked.warnings


def _check_ids(found: Checked, rows: FileRows, unit: Unit | None) -> None:
    if unit is not None and unit.column in rows.column_names:
        try:
            unit_codes(texts(rows.columns([unit.column]), unit.column), unit.column)
        except DataError as error:
            found.faults += _findings(str(error))


def _first_problem(rows: FileRows, part: Column | Label) -> DataError | None:
    """Why a column cannot be read, by the same rules as training, piece by piece."""
    try:
        for start, piece in rows.pieces([part.name]):
            with numbered(start):
                if isinstance(part, Label):
                    label_codes(piece, part, skip=part.missing == "skip")
                elif part.kind == "date":
                    dates(piece, part.name)
                elif part.kind == "number":
                    numbers(piece, part.name)
                else:
                    texts(piece, part.name)
    except DataError as error:
        return error
    return None


def _expected(part: Column | Label) -> str:
    """What a private cell should hold, from the schema alone."""
    missing = "nothing, NA or NaN for a missing one"
    if isinstance(part, Label):
        what = A_NUMBER if part.classes is None else "one of the declared classes"
        end = CLASSES_OTHERWISE if part.classes is None else ""
        if part.missing == "skip":
            return f"{what}, or {missing}{end}"
        return f'{what}; a missing label needs missing = "skip" in [label]{end}'
    if part.kind == "date":
        return f"an ISO date such as 2024-01-31, or {missing}"
    if part.kind == "number":
        return f'{A_NUMBER}, or {missing}; ISO dates need kind = "date"'
    return f"a single value, or {missing}"


# --- warnings


def _declared_warnings(columns: Sequence[Column]) -> Iterator[Remark]:
    for column in columns:
        if column.categories is not None and len(column.categories) == 1:
            yield Remark(
                column.name,
                f"Column {column.name!r} has a single category: every other value is read as "
                "one more, 'other'. List all that are known.",
            )
    private = {column.name: column for column in columns if column.role == "private"}
    for column in columns:
        function = column.function
        if function is None or column.role == "private":
            continue
        for source in function.columns:
            if source in private and _tells_all(function, private[source]):
                yield Remark(
                    column.name,
                    f"Column {column.name!r} is public and tells every value that {source!r} is "
                    f"declared to have, so that nothing of {source!r} stays private: let it tell "
                    f"less, or declare {source!r} public.",
                )


def _tells_all(function: Derived, source: Column) -> bool:
    """Whether a public function has another value for each declared value of a private column."""
    if function.function == "join":
        return True
    numeric = function.function in ("round", "band")
    levels: Sequence[str] = () if numeric else source.categories or ()
    if source.kind == "number" and source.bounds is not None:
        low, high = (float(end) for end in source.bounds)
        if low.is_integer() and high.is_integer() and high - low < MAX_LEARNT_LEVELS:
            levels = [f"{value:g}" for value in np.arange(low, high + 1)]
    cells = function.cells(pa.table({source.name: pa.array(levels, pa.string())}))
    return len(levels) > 1 and len(set(cells.to_pylist())) == len(levels)


def _public_warnings(rows: FileRows, part: Column | Label) -> Iterator[Remark]:
    """About the values of a public column, which are free to look at."""
    words = texts(rows.columns([part.name]), part.name).drop_null()
    counts = pc.value_counts(words)
    distinct, total = len(counts), len(words)
    where = f"Column {part.name!r}"
    levels = part.classes if isinstance(part, Label) else part.categories
    if levels is not None and total:
        present = set(level_codes(counts.field("values"), tuple(levels)).tolist())
        lost = [level for place, level in enumerate(levels) if place not in present]
        if lost:
            some = ", ".join(repr(level) for level in lost[:5]) + (", ..." if lost[5:] else "")
            yield Remark(
                part.name,
                f"{where} is public and its "
                f"{'classes' if isinstance(part, Label) else 'categories'} {some} match no row: "
                "check their spelling.",
            )
    if isinstance(part, Label):
        return
    if part.kind == "bool" and total:
        coding = declared(part)
        assert isinstance(coding, Levels)
        words_alone = pa.table({part.name: counts.field("values")})
        if coding.codes(words_alone, part.name).min() >= len(coding.levels):
            yield Remark(
                part.name,
                f"{where} is public and no value is true or false (or yes, no, 1, 0): every one is "
                'read as "other". Declare kind = "category".',
            )
    if distinct <= 1:
        yield Remark(part.name, f"{where} is public and holds one value at most: remove it.")
    elif _id_like(part, rows, distinct, total):
        yield Remark(
            part.name,
            f"{where} is public and looks like an id: nearly every row has its own value, which "
            "tells rows apart and helps no model. Remove it, or name it under [unit].",
        )
    elif part.kind == "category" and part.categories is None and distinct > MAX_LEARNT_LEVELS:
        yield Remark(
            part.name,
            f"{where} has {distinct:,} values: the {MAX_LEARNT_LEVELS:,} most frequent are kept, "
            "the rest is read as one, 'other'. Group them beforehand if that loses too much.",
        )
    if part.bounds is not None and part.kind == "number" and total:
        values = numbers(rows.columns([part.name]), part.name)
        low, high = (float(end) for end in part.bounds)
        if not ((values >= low) & (values <= high)).any():
            yield Remark(
                part.name, f"{where} is public and no value lies within its bounds: check them."
            )


def _id_like(column: Column, rows: FileRows, distinct: int, total: int) -> bool:
    if total < 20 or distinct < _ID_SHARE * total or column.kind == "date":
        return False
    if column.kind == "category":
        return True
    values = numbers(rows.columns([column.name]), column.name)
    values = values[np.isfinite(values)]
    whole = bool((values == np.round(values)).all())
    # Measurements are often distinct too: ids are whole numbers that count, or are called so.
    counting = whole and len(values) > 0 and np.ptp(values) < 3 * len(values)
    return counting or (whole and named_like_an_id(column.name))


def named_like_an_id(name: str) -> bool:
    """Whether a column's name says that it holds ids."""
    return _ID_NAME.search(name) is not None or _CAMEL_ID.search(name) is not None


def _unit_warnings(
    rows: FileRows,
    label: Label | None,
    columns: Sequence[Column],
    unit: Unit | None,
    faulty: Set[str | None],
) -> Iterator[Remark]:
    """Persons with several rows: by public ids, or by the name of a column that is not read."""
    if unit is not None:
        if unit.column in rows.column_names:
            yield from _dropped_rows(rows, unit)
        return
    declared = {column.name: column for column in columns}
    wanted = [*declared, *([] if label is None else [label.name])]
    if perhaps_a_row(rows.column_names, wanted):
        return
    # Columns that the schema makes are no ids of the data, and are made of private cells.
    others = {column.name for column in columns if column.public is not None}
    others |= set() if label is None else {label.name}
    for name in rows.column_names:
        if not named_like_an_id(name) or name in others:
            continue
        remedy = (
            f'If a person has several rows, write [unit] with column = "{name}" and max_rows; '
            "without it the guarantee protects one row."
        )
        if name in faulty:
            remedy = f'Leave it out by ignore = ["{name}"] at the top of the schema. {remedy}'
        if name not in declared:
            yield Remark(name, f"Column {name!r} sounds like an id. {remedy}")
        elif declared[name].role == "public":
            words = texts(rows.columns([name]), name).drop_null()
            distinct = len(pc.unique(words))
            if distinct < len(words):
                yield Remark(
                    name,
                    f"Column {name!r} has {distinct:,} values in {len(words):,} rows. {remedy}",
                )


def _dropped_rows(rows: FileRows, unit: Unit) -> Iterator[Remark]:
    words = texts(rows.columns([unit.column]), unit.column).drop_null()
    counts = pc.value_counts(words).field("counts")
    most = pc.min_element_wise(counts, pa.scalar(unit.max_rows, counts.type))
    used = int(pc.sum(most).as_py() or 0)  # the sum of no ids at all is null
    if used < len(words):
        yield Remark(
            unit.column,
            f"[unit] keeps {used:,} of {len(words):,} rows: {unit.max_rows} of each id at most. "
            "A larger max_rows keeps more.",
        )


def _budget_warnings(rows: int, budget: Budget) -> Iterator[Remark]:
    epsilon, delta = budget.epsilon, budget.delta
    if delta * rows > SMALL_DELTA:
        smaller = 10.0 ** (math.floor(math.log10(SMALL_DELTA / rows)) - 1)
        yield Remark(
            None,
            f"delta={delta:g} is not well below 1 / rows ({1 / rows:.1g}): a guarantee that may "
            f"fail for one row in the table is worth little. Pass --delta {smaller:g}.",
        )
    if epsilon > HIGH_EPSILON:
        yield Remark(
            None,
            f"epsilon={printed(epsilon)} is above {HIGH_EPSILON:g}: outcomes may become over "
            "22,000 times as likely by one row, which is hardly a promise. Use 1, or a few at "
            "most.",
        )
