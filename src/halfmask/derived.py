"""Public functions of private columns, by name: a rounded number, a band, a prefix, a presence.

Definition 1.1 of feature privacy lets any function f of a row be public. A function that is named
here becomes a public column beside the private one it is made of; the rest of the private column
stays private. Each cell is a function of its own row alone, and nothing is learnt from the data.
Guarantee: docs/proofs/encoding.md, "Public functions".
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import pyarrow as pa

from halfmask.errors import InputError
from halfmask.frames import check_columns, numbers, texts
from halfmask.schema import Column, Schema

FUNCTIONS = {
    "round": "round(column, step): the nearest multiple of step",
    "band": "band(column, edge, edge, ...): between which of the rising edges",
    "prefix": "prefix(column, k): the first k characters",
    "presence": "presence(column): yes where there is a value, no where it is missing",
    "top": 'top(column, "a", "b", ...): the value if it is among these, else other',
    "join": "join(column, column): both values together",
}


@dataclass(frozen=True, kw_only=True)
class Derived:
    """A public column `name` = function(columns, *arguments)."""

    name: str
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
    wanted = f"--public {text!r}: expected NAME = FUNCTION(COLUMN, ...), with one of " + "; ".join(
        FUNCTIONS.values()
    )
    try:
        call = ast.parse(rest, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise InputError(f"{wanted}.") from None
    if not (name and sign and isinstance(call, ast.Call) and isinstance(call.func, ast.Name)):
        raise InputError(f"{wanted}.")
    function = call.func.id
    if function not in FUNCTIONS or call.keywords:
        raise InputError(f"{wanted}.")
    given = [_argument(each, wanted) for each in call.args]
    many = 2 if function == "join" else 1
    columns, arguments = tuple(map(str, given[:many])), tuple(given[many:])
    if len(columns) < many or not _fits(function, arguments):
        raise InputError(f"--public {text!r}: expected {FUNCTIONS[function]}.")
    return Derived(name=name, function=function, columns=columns, arguments=arguments)


def with_derived(schema: Schema, derived: Sequence[Derived]) -> Schema:
    """The schema with the new columns declared public, in order."""
    for each in derived:
        known = {column.name: column for column in schema.columns}
        taken = {*known, schema.label.name, *([schema.unit.column] if schema.unit else [])}
        if each.name in taken:
            raise InputError(f"The schema has a column {each.name!r} already: choose another name.")
        for source in each.columns:
            if source == schema.label.name:
                raise InputError(
                    f"{each.name!r} is made of the label {source!r}: a model that reads it could "
                    "not predict rows whose label is unknown."
                )
            if source not in known:
                raise InputError(
                    f"The schema has no column {source!r}: expected one of {', '.join(known)}."
                )
        party = known[each.columns[0]].party
        column = Column(each.name, "public", each.kind, party=party)  # type: ignore[arg-type]
        schema = replace(schema, columns=(*schema.columns, column))
    return schema


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
    values = [_finite(value) for value in numbers(frame, columns[0])]
    return pa.array([None if v is None else round(v / step) * step for v in values], pa.float64())


def _band(frame: pa.Table, columns: tuple[str, ...], edges: tuple[Any, ...]) -> pa.Array:
    names = [f"below {edges[0]:g}"]
    names += [f"{low:g} to {high:g}" for low, high in pairwise(edges)]
    names.append(f"{edges[-1]:g} and more")
    values = numbers(frame, columns[0])
    cells = [None if math.isnan(v) else names[sum(v >= edge for edge in edges)] for v in values]
    return pa.array(cells, pa.string())


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


def _finite(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


_MAKE = {
    "round": _round,
    "band": _band,
    "prefix": _prefix,
    "presence": _presence,
    "top": _top,
    "join": _join,
}
