"""Public functions of private columns, by name: a rounded number, a band, a prefix, a presence.

Definition 1.1 of feature privacy lets any function f of a row be public. A function that is named
here becomes a public column beside the private one it is made of; the rest of the private column
stays private. Each cell is a function of its own row alone, and nothing is learnt from the data.
A schema names them (`public = "round(age, 10)"`), and rows are read with them: `with_made`.
Of the label a function can be public too: `PublicLabel`, a coarser label that is known.
Guarantee: docs/proofs/encoding.md, "Public functions" and "A public function of the label".
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from halfmask.data.cells import level_text
from halfmask.data.frames import check_columns, numbers, texts
from halfmask.errors import InputError, SchemaError

FUNCTIONS = {
    "round": "round(column, step): the nearest multiple of step",
    "band": "band(column, edge, edge, ...): between which of the rising edges",
    "prefix": "prefix(column, k): the first k characters",
    "presence": "presence(column): yes where there is a value, no where it is missing",
    "top": 'top(column, "a", "b", ...): the value if it is among these, else other',
    "join": "join(column, column): both values together",
}
_ONE_OF = "with one of " + "; ".join(FUNCTIONS.values())
# Of a label: what sorts its values into groups, each with more than one.
_LABEL_FUNCTIONS = {"number": ("round", "band"), "class": ("prefix", "top")}


@dataclass(frozen=True, kw_only=True)
class Derived:
    """A public column `name` = function(columns, *arguments); `text` is the call as written."""

    name: str
    text: str
    function: str
    columns: tuple[str, ...]
    arguments: tuple[Any, ...]

    @property
    def kind(self) -> str:
        """What the new column holds."""
        return "number" if self.function == "round" else "category"

    def cells(self, frame: pa.Table) -> pa.Array:
        """The new column, row by row; a missing value stays missing."""
        check_columns(frame, list(self.columns))
        made: Callable[..., pa.Array] = _MAKE[self.function]
        return made(frame, self.columns, self.arguments)


def parse(text: str) -> Derived:
    """`NAME = function(column, ...)`; column names that are not plain words are quoted."""
    name, sign, rest = (part.strip() for part in text.partition("="))
    if not (name and sign):
        raise InputError(f"{text!r}: expected NAME = FUNCTION(COLUMN, ...), {_ONE_OF}.")
    return function_of(name, rest)


def function_of(name: str, rest: str) -> Derived:
    """`function(column, ...)` as the public column `name`."""
    wanted = f"{rest!r}: expected FUNCTION(COLUMN, ...), {_ONE_OF}"
    try:
        call = ast.parse(rest, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise InputError(f"{wanted}.") from None
    if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Name)):
        raise InputError(f"{wanted}.")
    function = call.func.id
    if function not in FUNCTIONS or call.keywords:
        raise InputError(f"{wanted}.")
    given = [_argument(each, wanted) for each in call.args]
    many = 2 if function == "join" else 1
    columns, arguments = tuple(map(str, given[:many])), tuple(given[many:])
    if len(columns) < many or not _fits(function, arguments):
        raise InputError(f"{rest!r}: expected {FUNCTIONS[function]}.")
    return Derived(
        name=name, text=rest.strip(), function=function, columns=columns, arguments=arguments
    )


class DeclaredLabel(Protocol):
    """What is read of the label of a schema."""

    @property
    def name(self) -> str: ...
    @property
    def public(self) -> str | None: ...
    @property
    def bounds(self) -> tuple[float, float] | None: ...
    @property
    def classes(self) -> Sequence[str | int | bool] | None: ...


@dataclass(frozen=True, kw_only=True)
class PublicLabel:
    """g(y) of a private label y, public for every row of the training data.

    Of a number within `bounds`: which multiple of `step` is nearest, or between which of `edges` it
    lies. Of classes: `groups[code]` numbers the group of a class.
    Guarantee: docs/proofs/encoding.md, "A public function of the label".
    """

    bounds: tuple[float, float] = (0.0, 0.0)
    step: float | None = None
    edges: tuple[float, ...] = ()
    groups: tuple[int, ...] = ()

    @classmethod
    def of(cls, label: DeclaredLabel) -> PublicLabel | None:
        """What the schema declares; None where nothing of the label is public."""
        if label.public is None:
            return None
        made = function_of(label.name, label.public)
        known = _LABEL_FUNCTIONS["class" if label.bounds is None else "number"]
        where = f"[label] has public = {label.public!r}"
        if made.function not in known or made.columns != (label.name,):
            raise SchemaError(
                f"{where}: expected {' or '.join(FUNCTIONS[each] for each in known)}, of the label "
                f"{label.name!r} itself."
            )
        if label.bounds is not None:
            found = cls._of_number(made, label.bounds)
            low, high = (found.middles(np.array([end]))[0][0] for end in label.bounds)
            told = bool(low < high)
        else:
            classes = label.classes or ()
            words = pa.table({label.name: [level_text(each) for each in classes]})
            cells = made.cells(words).to_pylist()
            order = list(dict.fromkeys(cells))
            found, told = cls(groups=tuple(map(order.index, cells))), len(order) > 1
            if len(order) == len(classes):
                raise SchemaError(
                    f'{where}, which tells every class: write role = "public", or group more.'
                )
        if not told:
            raise SchemaError(f"{where}, which is the same for every label: remove it.")
        return found

    @classmethod
    def _of_number(cls, made: Derived, bounds: tuple[float, float]) -> PublicLabel:
        if made.function == "round":
            return cls(bounds=bounds, step=float(made.arguments[0]))
        edges = (float(edge) for edge in made.arguments)
        return cls(bounds=bounds, edges=tuple(e for e in edges if bounds[0] < e < bounds[1]))

    def middles(self, values: NDArray[Any]) -> tuple[NDArray[np.float64], float]:
        """The middle of what g leaves open of each number, and half the longest that it leaves.

        `values` lie within the bounds. Both are functions of g(y) and of the declaration.
        """
        least, most = self.intervals(values)
        low, high = self.bounds
        longest = max(b - a for a, b in pairwise((low, *self.edges, high)))
        if self.step is not None:
            longest = min(self.step, high - low)
        return (least + most) / 2, longest / 2

    def intervals(self, values: NDArray[Any]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Between which two numbers g leaves each number."""
        low, high = self.bounds
        if self.step is None:
            ends = np.array([low, *self.edges, high])
            place = np.searchsorted(ends[1:-1], values, side="right")
            return ends[:-1][place], ends[1:][place]
        # The same rounding as that of the named function, ties included.
        near = np.round(np.asarray(values, dtype=np.float64) / self.step)
        least = np.maximum((near - 0.5) * self.step, low)
        return least, np.minimum((near + 0.5) * self.step, high)

    def two_labels(
        self, count: int, generator: np.random.Generator
    ) -> tuple[NDArray[Any], NDArray[Any]]:
        """Pairs of different labels (numbers, or codes of classes) with equal g, for an audit."""
        if self.groups:
            groups = np.array(self.groups)
            shared = np.flatnonzero(np.bincount(groups)[groups] > 1)
            first = generator.choice(shared, count)
            others = [np.setdiff1d(np.flatnonzero(groups == groups[code]), code) for code in first]
            return first, np.array([generator.choice(each) for each in others])
        least, most = self.intervals(generator.uniform(*self.bounds, count))
        margin = 1e-6 * (most - least)
        swap = generator.random(count) < 0.5
        ends = np.where(swap, most - margin, least + margin)
        return ends, np.where(swap, least + margin, most - margin)


def _argument(node: ast.expr, wanted: str) -> Any:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        inner = _argument(node.operand, wanted)
        if isinstance(inner, int | float):
            return -inner
    if isinstance(node, ast.Constant) and isinstance(node.value, str | int | float):
        return node.value
    raise InputError(f"{wanted}.")


def _fits(function: str, arguments: tuple[Any, ...]) -> bool:
    plain = [
        isinstance(a, int | float) and not isinstance(a, bool) and math.isfinite(a)
        for a in arguments
    ]
    if function == "round":
        return len(arguments) == 1 and plain[0] and arguments[0] > 0
    if function == "band":
        rising = all(low < high for low, high in pairwise(arguments))
        return bool(arguments) and all(plain) and rising
    if function == "prefix":
        return len(arguments) == 1 and isinstance(arguments[0], int) and arguments[0] >= 1
    if function == "top":
        return bool(arguments)
    return not arguments


def _round(frame: pa.Table, columns: tuple[str, ...], arguments: tuple[Any, ...]) -> pa.Array:
    step = float(arguments[0])
    values = numbers(frame, columns[0])
    near = np.round(values / step) * step + 0.0
    return pa.array(near, pa.float64(), mask=~np.isfinite(near))


def _band(frame: pa.Table, columns: tuple[str, ...], edges: tuple[Any, ...]) -> pa.Array:
    names = [f"below {edges[0]:g}"]
    names += [f"{low:g} to {high:g}" for low, high in pairwise(edges)]
    names.append(f"{edges[-1]:g} and more")
    values = numbers(frame, columns[0])
    place = np.searchsorted(np.array(edges, dtype=np.float64), values, side="right")
    known = pa.array(place, pa.int64(), mask=np.isnan(values))
    return pa.array(names, pa.string()).take(known)


def _prefix(frame: pa.Table, columns: tuple[str, ...], arguments: tuple[Any, ...]) -> pa.Array:
    words = texts(frame, columns[0]).to_pylist()
    return pa.array([None if w is None else w[: arguments[0]] for w in words], pa.string())


def _presence(frame: pa.Table, columns: tuple[str, ...], arguments: tuple[Any, ...]) -> pa.Array:
    words = texts(frame, columns[0]).to_pylist()
    return pa.array(["no" if word is None else "yes" for word in words], pa.string())


def _top(frame: pa.Table, columns: tuple[str, ...], arguments: tuple[Any, ...]) -> pa.Array:
    kept = {str(each) for each in arguments}
    words = texts(frame, columns[0]).to_pylist()
    cells = [None if w is None else w if w in kept else "other" for w in words]
    return pa.array(cells, pa.string())


def _join(frame: pa.Table, columns: tuple[str, ...], arguments: tuple[Any, ...]) -> pa.Array:
    pairs = zip(*(texts(frame, name).to_pylist() for name in columns), strict=True)
    cells = [None if None in pair else " and ".join(pair) for pair in pairs]
    return pa.array(cells, pa.string())


_MAKE = {
    "round": _round,
    "band": _band,
    "prefix": _prefix,
    "presence": _presence,
    "top": _top,
    "join": _join,
}
