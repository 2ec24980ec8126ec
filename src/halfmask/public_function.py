"""Any public function f of a row (Definition 1.1 of feature differential privacy).

Neighbours then differ in one row x -> x' with f(x) = f(x'): the values of f form the public block,
the row itself the private one. With a schema they are public columns beside the declared ones.
Guarantee: docs/proofs/encoding.md, "Public functions".
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal

import narwhals as nw
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from halfmask.errors import InputError
from halfmask.frames import as_arrow, names_of
from halfmask.schema import Column, Schema
from halfmask.table import Table

Floats = NDArray[np.float64]
PublicPart = Callable[[Any], Any] | Literal["all"]
"""A function of rows whose value is public, or "all" columns (only the label is private)."""


def with_public_part(table: Table, X: Floats, public: PublicPart | None) -> Table:
    """`table` with f(X) as its public block; f takes all rows at once and must act row by row."""
    if public is None:
        return table
    if isinstance(public, str) and public == "all":
        moved = _public_block(table, X, table.private_names)
        return replace(
            moved.with_blocks(private=np.zeros((len(X), 0))),
            private_norm=0.0,
            private_names=(),
            private_sources=(),
        )
    if not callable(public):
        raise InputError(f"Expected 'all' or a function of the rows as public, got {public!r}.")
    block = _values(public, X.copy(), len(X))
    half = len(X) // 2
    _check_row_by_row(public, (X[:half].copy(), X[half:].copy()), half, block)
    return _public_block(table, block, _names(block))


def with_public_columns(
    frame: Any, schema: Schema, public: Callable[[Any], Any]
) -> tuple[pa.Table, Schema]:
    """The frame with f of its declared feature columns, and the schema with f's values public.

    f is handed a frame of the kind that was given, with these columns alone: not the label, which
    rows to predict do not have. It must act row by row.
    """
    shown = nw.from_native(frame, eager_only=True).select(list(schema.read))
    half = len(shown) // 2
    block = _values(public, shown.to_native(), len(shown))
    parts = (shown[:half].to_native(), shown[half:].to_native())
    _check_row_by_row(public, parts, half, block)
    names = _names(block)
    unit = [] if schema.unit is None else [schema.unit.column]
    there = names_of(frame)
    for name in names:
        if name in there:
            raise InputError(
                f"The data has a column {name!r}, as the public function's: rename it."
            )
    kept = dict.fromkeys([*schema.read, *unit, schema.label.name])
    table = as_arrow(frame, [name for name in kept if name in there])
    for name, values in zip(names, block.T, strict=True):
        table = table.append_column(name, pa.array(values))
    columns = (Column(name, "public", "number") for name in names)
    return table, replace(schema, columns=(*schema.columns, *columns))


def _names(block: Floats) -> tuple[str, ...]:
    return tuple(f"public{index}" for index in range(block.shape[1]))


def _values(public: Callable[[Any], Any], rows: Any, count: int) -> Floats:
    """f of the rows, one line of finite numbers each."""
    block = np.asarray(public(rows), dtype=np.float64)
    block = block[:, None] if block.ndim == 1 else block
    if block.ndim != 2 or len(block) != count:
        raise InputError(
            f"The public function must return one row of numbers per row: expected {count} rows, "
            f"got an array of shape {block.shape}."
        )
    if not np.isfinite(block).all():
        raise InputError("The public function returned NaN or infinity: give those rows a value.")
    return block


def _public_block(table: Table, block: Floats, names: tuple[str, ...]) -> Table:
    # The longest row is a public fact here.
    norm = float(np.sqrt(np.einsum("ij,ij->i", block, block)).max(initial=0.0))
    table = table.with_blocks(public=block)
    return replace(table, public_norm=norm, public_names=names, public_sources=names)


def _check_row_by_row(
    public: Callable[[Any], Any], parts: tuple[Any, Any], half: int, block: Floats
) -> None:
    """A function that mixes rows (ranks, means) would carry one row's private part to another's."""
    if len(block) < 2:
        return
    counts = (half, len(block) - half)
    again = np.concatenate([_values(public, p, n) for p, n in zip(parts, counts, strict=True)])
    if again.shape != block.shape or not np.allclose(again, block, rtol=1e-9, atol=1e-12):
        raise InputError(
            "The public function gives other values when it sees fewer rows: it must depend on one "
            "row at a time, or it would reveal private values of other rows."
        )
