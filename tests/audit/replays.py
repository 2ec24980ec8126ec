"""Neighbouring frames of every kind of role, and the check that a method keeps within its charge.

A method's replay test is `assert_within_charge(pair.estimator(METHOD, options), pair)` over
`neighbour_pairs(...)`: no statistics, so a failure is a leak and names the release.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import strategies as st
from scipy.stats import chi2

from halfmask import HalfmaskClassifier, HalfmaskRegressor
from halfmask.accounting.accountant import epsilon as account
from halfmask.audit import Transcript, record, replay
from halfmask.methods.additive import AdditiveRun
from halfmask.methods.additive_classes import ClassesRun
from halfmask.schema import Column, Label, Schema, Unit

COLUMNS = (
    Column("age", "private", "number", bounds=(0, 100), bins=4),
    Column("pay", "private", "number", bounds=(-1, 1), bins=0),
    Column("kind", "private", "category", categories=("a", "b", "c")),
    Column("flag", "private", "bool"),
    Column("day", "private", "date", bounds=("2000-01-01", "2020-12-31"), bins=3),
)
PRIVATE = {
    "all": ("age", "pay", "kind", "flag", "day"),
    "half": ("pay", "kind"),
    "features": ("pay", "kind", "flag"),
    "levels": ("kind", "day"),
    "label": (),
}
"""Private columns by role set; the label is private in all but those named in PUBLIC_LABEL."""
PUBLIC_LABEL = ("features", "levels")
LABELS = {
    "two": Label("y", "private", classes=("no", "yes")),
    "three": Label("y", "private", classes=("no", "yes", "maybe")),
    "seven": Label("y", "private", classes=tuple("abcdefg")),
    "number": Label("y", "private", bounds=(3, 7)),
}
PLAIN: dict[str, list[Any]] = {
    "age": [0, 12.5, 26, 51, 76, 100],
    "pay": [-1.0, -0.3, 0.0, 0.7, 1.0],
    "kind": ["a", "b", "c"],
    "flag": [True, False],
    "day": ["2000-01-01", "2009-05-05", "2020-12-31"],
    "two": ["no", "yes"],
    "three": ["no", "yes", "maybe"],
    "seven": list("abcdefg"),
    "number": [3, 4.2, 7],
}
STRANGE: dict[str, list[Any]] = {
    "age": [None, math.nan, math.inf, -math.inf, 1e308, -1e308, Decimal("1E+30"), "5e-324"],
    "pay": [None, math.nan, math.inf, -math.inf, 1e308, "-0", Decimal("0.1"), 5e-324],
    "kind": [None, "", "NA", "no such level", "z" * 3000, 7, 2.5, "A", " a ", "\0", "ünï"],
    "flag": [None, "", "true", "FALSE", 1, 0],
    "day": [None, "", "NA", "1000-01-01", "9999-12-31T23:59:59"],
    "two": [" yes "],
    "three": [" maybe "],
    "seven": [" g "],
    "number": [1e308, -1e308, math.inf, -math.inf, "7.0"],
}
"""Cells that a column of the kind reads, and that a careless encoding reads wrongly."""

DELTA = 1e-6


@dataclass(frozen=True, kw_only=True, eq=False)
class Pair:
    """Two frames that differ in the private part of one row, or of one unit's rows.

    `replaced` is the number of that row or unit among those a sampled step draws from, or None
    where rows without a public label are left out and the numbers shift.
    """

    schema: Schema
    frame: Any
    neighbour: Any
    replaced: int | None

    def estimator(
        self,
        method: str,
        options: dict[str, Any] | None = None,
        *,
        epsilon: float = 1.0,
        relation: str = "replace",
    ) -> Any:
        """An estimator of `method` for these frames."""
        kind = HalfmaskClassifier if self.schema.label.classes else HalfmaskRegressor
        return kind(
            self.schema,
            epsilon=epsilon,
            delta=DELTA,
            method=method,
            options=options,
            relation=relation,
        )


def schema_of(roles: str, label: str, *, unit: bool = False, skip: bool = False) -> Schema:
    """The columns with the roles named; public ones leave open what may be learnt of them."""
    columns = []
    for column in COLUMNS:
        public = column.name not in PRIVATE[roles]
        if public:
            column = replace(column, role="public", bounds=None, categories=None)
        columns.append(column)
    role: Any = "public" if roles in PUBLIC_LABEL else "private"
    target = replace(LABELS[label], role=role, missing="skip" if skip else None)
    return Schema(target, tuple(columns), Unit(column="id", max_rows=3) if unit else None)


def private_names(roles: str) -> list[str]:
    """The private columns, the label among them if it is private."""
    return [*PRIVATE[roles], *([] if roles in PUBLIC_LABEL else ["y"])]


@st.composite
def neighbour_pairs(
    draw: st.DrawFn,
    *,
    roles: tuple[str, ...] = tuple(PRIVATE),
    labels: tuple[str, ...] = tuple(LABELS),
    units: bool = True,
    skip: bool = True,
    withheld: bool = False,
    most_rows: int = 24,
) -> Pair:
    """Frames of pandas or pyarrow and a neighbour of each, of every kind that is asked for.

    `units` and `skip` say whether units of several rows, and labels that are missing, may occur.
    With `withheld` the neighbour lacks the label of the row or unit and is equal to it otherwise:
    for a sum to which rows without a label add nothing, that is `withhold`.
    """
    role, label = draw(st.sampled_from(roles)), draw(st.sampled_from(labels))
    unit, missing = units and draw(st.booleans()), withheld or (skip and draw(st.booleans()))
    schema = schema_of(role, label, unit=unit, skip=missing)
    n, seed = draw(st.integers(3, most_rows)), draw(st.integers(0, 2**32 - 1))
    rng = np.random.default_rng(seed)
    odd = draw(st.sampled_from([0.0, 0.1, 0.5]))
    values = {column.name: _cells(column.name, n, rng, odd) for column in COLUMNS}
    values["y"] = _cells(label, n, rng, odd)
    values["id"] = [f"p{number}" for number in rng.integers(0, max(1, n // 2), n)]
    if missing:
        values["y"] = [None if rng.random() < 0.25 else cell for cell in values["y"]]
        values["y"][0] = PLAIN[label][0]  # a public label has to be there at least once
    at = draw(st.integers(0, n - 1))
    rows = [row for row in range(n) if values["id"][row] == values["id"][at]] if unit else [at]
    names = ["y"] if withheld else private_names(role)
    other = {name: list(cells) for name, cells in values.items()}
    for row in rows:
        for name in names:
            kind = label if name == "y" else name
            cells = [*PLAIN[kind], *STRANGE[kind], *([None] if name == "y" and missing else [])]
            other[name][row] = None if withheld else draw(st.sampled_from(cells))
    order = list(dict.fromkeys(values["id"]))
    replaced = order.index(values["id"][at]) if unit else at
    shifted = missing and role in PUBLIC_LABEL and None in values["y"]
    make = draw(st.sampled_from([as_pandas, as_pyarrow]))
    return Pair(
        schema=schema,
        frame=make(values),
        neighbour=make(other),
        replaced=None if shifted else replaced,
    )


FAR: dict[str, tuple[Any, Any]] = {
    "age": (0, 100),
    "pay": (-1.0, 1.0),
    "kind": ("a", "b"),
    "flag": (True, False),
    "day": ("2000-01-01", "2020-12-31"),
    "two": ("no", "yes"),
    "three": ("no", "yes"),
    "seven": ("a", "g"),
    "number": (3, 7),
}
"""Two cells of each kind that are as far apart as its declaration allows."""


def corner_pairs(roles: str, label: str, *, unit: bool = False) -> Iterator[Pair]:
    """Neighbours of which each private column jumps from end to end, or stays.

    A sensitivity that is no larger than it must be is reached by one of them.
    """
    names, rows = private_names(roles), [0, 1] if unit else [0]
    for start, jumps in itertools.product((0, 1), itertools.product((0, 1), repeat=len(names))):
        # Rows of one unit have the same public part, so that their contributions can add up.
        ends = [row // 2 % 2 if unit else row % 2 for row in range(4)]
        values = {column.name: [FAR[column.name][end] for end in ends] for column in COLUMNS}
        values["y"] = [FAR[label][end] for end in ends]
        values["id"] = ["p0", "p0", "p1", "p1"]
        for row, name in itertools.product(rows, [*names, "y"]):
            values[name][row] = FAR[label if name == "y" else name][start]
        other = {name: list(cells) for name, cells in values.items()}
        for row, (name, jump) in itertools.product(rows, zip(names, jumps, strict=True)):
            other[name][row] = FAR[label if name == "y" else name][start ^ jump]
        schema = schema_of(roles, label, unit=unit)
        frame, neighbour = as_pandas(values), as_pandas(other)
        yield Pair(schema=schema, frame=frame, neighbour=neighbour, replaced=0)


def _cells(kind: str, n: int, rng: np.random.Generator, odd: float) -> list[Any]:
    """Cells of which the share `odd` is strange."""
    plain, strange = PLAIN[kind], STRANGE[kind]
    return [
        strange[rng.integers(len(strange))]
        if rng.random() < odd
        else plain[rng.integers(len(plain))]
        for _ in range(n)
    ]


def as_pandas(values: dict[str, list[Any]]) -> pd.DataFrame:
    return pd.DataFrame({name: pd.Series(cells, dtype=object) for name, cells in values.items()})


def as_pyarrow(values: dict[str, list[Any]]) -> pa.Table:
    texts = {
        name: [None if cell is None else str(cell) for cell in cells]
        for name, cells in values.items()
    }
    return pa.table({name: pa.array(cells, pa.large_string()) for name, cells in texts.items()})


def assert_within_charge(
    estimator: Any,
    frame: Any,
    neighbour: Any,
    *,
    replaced: int | None = None,
    sample_weight: Any = None,
) -> float:
    """Fit on `frame`, replay on its neighbour, and check everything that privacy hangs on.

    The plan, shapes and noise are the same (or `replay` raises); the models are the same; no
    release moves further than was charged for it, and all together no further than in all; a
    sampled step without `replaced` does not move; and the noise is as large as was said. Returns
    the share of the charge that was reached (for sampled steps: the largest of one step).
    """
    told = record(estimator, frame, sample_weight=sample_weight)
    other = replay(estimator, neighbour, told, sample_weight=sample_weight)
    epsilon = account(told.events, delta=estimator.delta, relation=told.relation)
    assert epsilon <= estimator.epsilon * (1 + 1e-9)
    return assert_moves_within_charge(told, other, replaced=replaced)


def assert_moves_within_charge(
    told: Transcript, other: Transcript, *, replaced: int | None = None
) -> float:
    """The checks of `assert_within_charge` on a recording and its replay."""
    assert told.same_model(other), "the models differ: something private passed no noise"
    moves = told.moves(other)
    assert np.isfinite(moves).all()
    for release, move in zip(told.releases, moves, strict=True):
        assert move <= release.mu, f"{release.what!r} moved by {move}, {release.mu} was charged"
        assert np.isfinite(release.value).all()
        if release.rows is not None and replaced is not None and replaced not in release.rows:
            assert move == 0, f"{release.what!r} moved by a row that it did not draw"
    assert_noise_is_as_large_as_said(told)
    if told.mu is None:
        return float(max(move / each.mu for each, move in zip(told.releases, moves, strict=True)))
    together = float(np.linalg.norm(moves))
    assert together <= told.mu, f"moved by {together} in all, {told.mu} was charged"
    return together / told.mu


def assert_noise_is_as_large_as_said(told: Transcript) -> None:
    """What was added, in units of its standard deviation; wrong once in a billion times."""
    units = np.concatenate(
        [((each.noisy - each.value) / each.noise_std).ravel() for each in told.releases]
    )
    total = float(units @ units)
    assert chi2.cdf(total, units.size) > 1e-9, "there is less noise than was charged for"
    assert chi2.sf(total, units.size) > 1e-9, "there is more noise than was planned"


# --- Tables at the edges of what is allowed: hardly any rows, units of many rows, weights, columns
# that tell nothing, labels that are all the same, budgets of any size.

LOUD = 2000.0
"""So large an epsilon that even a dozen rows go through every stage of `additive`."""
EDGE_COLUMNS = {
    "one": Column("one", "private", "category", categories=("a",)),
    "kind": Column("kind", "private", "category", categories=("a", "b", "c")),
    "low": Column("low", "private", "number", bounds=(0, 10), bins=4),
    "pay": Column("pay", "private", "number", bounds=(-1, 1), bins=0),
    "day": Column("day", "private", "date", bounds=("2000-01-01", "2020-12-31")),
}
EDGE_CELLS: dict[str, list[Any]] = {
    "one": ["a", None, "other"],
    "kind": ["a", "b", "c", None, "other"],
    "low": [0, 10, 5.0, None, -3, 1e9],
    "pay": [-1.0, 0.0, 1.0, None, 7.0],
    "day": ["2000-01-01", "2020-12-31", "2009-05-05", None],
}
EDGE_EPSILONS = (1e-3, 1.0, 40.0, LOUD, 1e5)


@dataclass(frozen=True, kw_only=True, eq=False)
class EdgePair(Pair):
    """A pair with a budget, public weights of its rows, and the rows of the frame that differ."""

    rows: tuple[int, ...]
    epsilon: float = 1.0
    sample_weight: Any = None


@st.composite
def edge_pairs(draw: st.DrawFn, *, epsilons: tuple[float, ...] = EDGE_EPSILONS) -> EdgePair:
    """Neighbours whose rows, columns, labels, units and weights are at the edges of what may be.

    Each row of a unit has private cells and a label of its own before and after.
    """
    names = draw(st.lists(st.sampled_from(sorted(EDGE_COLUMNS)), min_size=1, unique=True))
    label, missing = draw(st.sampled_from(tuple(LABELS))), draw(st.booleans())
    private = [name for name in names if draw(st.booleans())]
    role: Any = draw(st.sampled_from(["private", "public"])) if private else "private"
    columns = tuple(
        EDGE_COLUMNS[name]
        if name in private
        else replace(EDGE_COLUMNS[name], role="public", bounds=None, categories=None)
        for name in names
    )
    target = replace(LABELS[label], role=role, missing="skip" if missing else None)
    units = draw(st.sampled_from(["none", "one", "some", "large and small"]))
    most = draw(st.sampled_from([1, 2, 3, 30]))
    schema = Schema(target, columns, None if units == "none" else Unit(column="id", max_rows=most))
    n = draw(st.one_of(st.integers(1, 3), st.integers(4, 30)))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    alike = draw(st.sets(st.sampled_from([*names, "y"])))
    values: dict[str, list[Any]] = {}
    for name in names:
        cells = EDGE_CELLS[name]
        values[name] = [cells[0 if name in alike else rng.integers(len(cells))] for _ in range(n)]
    classes = PLAIN[label]
    values["y"] = [classes[0 if "y" in alike else rng.integers(len(classes))] for _ in range(n)]
    if missing:
        values["y"] = [None if rng.random() < 0.3 else cell for cell in values["y"]]
        values["y"][0] = classes[0]
    persons = {
        "none": np.arange(n),
        "one": np.zeros(n, dtype=int),
        "some": rng.integers(0, max(1, n // 2), n),
        "large and small": np.where(rng.random(n) < 0.5, 0, np.arange(n)),
    }[units]
    values["id"] = [f"p{person}" for person in persons]
    at = draw(st.integers(0, n - 1))
    rows = tuple(int(row) for row in np.flatnonzero(persons == persons[at]))
    other = {name: list(cells) for name, cells in values.items()}
    labels_of = [*classes, *([None] if missing else [])]
    for row in rows:
        for name in private:
            other[name][row] = EDGE_CELLS[name][rng.integers(len(EDGE_CELLS[name]))]
        if role == "private":
            other["y"][row] = labels_of[rng.integers(len(labels_of))]
    weights = None
    if draw(st.booleans()):
        weights = rng.choice([0.0, 1e-300, 1e-3, 1.0, 1 / 3, 1e6], n)
        # One row at least has to count, and rows without a public label do not.
        weights[0] = weights[0] or 1.0
    return EdgePair(
        schema=schema,
        frame=as_pandas(values),
        neighbour=as_pandas(other),
        replaced=None,
        rows=rows,
        epsilon=draw(st.sampled_from(epsilons)),
        sample_weight=weights,
    )


def share_withheld(pair: EdgePair) -> float:
    """The share of the charge that `additive` moves by where the rows of `pair` add nothing."""
    estimator = pair.estimator("additive", epsilon=pair.epsilon, relation="withhold")
    told = record(estimator, pair.frame, sample_weight=pair.sample_weight)
    with withheld(pair.rows):
        other = replay(estimator, pair.frame, told, sample_weight=pair.sample_weight)
    return assert_moves_within_charge(told, other)


@contextmanager
def withheld(rows: tuple[int, ...]) -> Iterator[None]:
    """Inside, what private cells of these rows of the frame add to a statistic is zero.

    A frame cannot lack a level, so the run itself is changed: the rows have no label, and no weight
    where levels and scores are counted. What is public of them counts as before.
    """
    patch = pytest.MonkeyPatch()
    real = {
        name: getattr(AdditiveRun, name)
        for name in ("__init__", "_counts", "_known_features", "_errors", "_paired")
    }
    shares = ClassesRun._class_shares

    def begun(self: Any, table: Any, *given: Any, **named: Any) -> None:
        self.left_out = np.isin(table.rows, rows)
        real["__init__"](self, table, *given, **named)
        self.every_label, self.every_weight = self._labelled, self._weights
        self._labelled = self._labelled & ~self.left_out

    def weightless(name: str) -> Callable[..., Any]:
        def run(self: Any, *given: Any) -> Any:
            self._weights = self.every_weight * ~self.left_out
            found = real[name](self, *given)
            self._weights = self.every_weight
            return found

        return run

    def known(self: Any, *given: Any) -> Any:
        before, self._weights = self._weights, self.every_weight
        found = real["_known_features"](self, *given)
        self._weights = before
        return found

    def compared(self: Any, *given: Any) -> Any:
        before, self._even = self._even, self._even * ~self.left_out
        found = real["_errors"](self, *given)
        self._even = before
        return found

    def shared(self: Any) -> Any:
        if not self._label_private:  # exact, and public
            before, self._labelled = self._labelled, self.every_label
            found = shares(self)
            self._labelled = before
            return found
        return shares(self)

    patch.setattr(AdditiveRun, "__init__", begun)
    patch.setattr(AdditiveRun, "_counts", weightless("_counts"))
    patch.setattr(AdditiveRun, "_paired", weightless("_paired"))
    patch.setattr(AdditiveRun, "_known_features", known)
    patch.setattr(AdditiveRun, "_errors", compared)
    patch.setattr(ClassesRun, "_class_shares", shared)
    try:
        yield
    finally:
        patch.undo()
