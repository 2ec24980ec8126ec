"""Any public function f of a row (Definition 1.1 of feature differential privacy).

Neighbours then differ in one row x -> x' with f(x) = f(x'): the values of f form the public block,
the row itself the private one. Guarantee: docs/proofs/encoding.md, "Public functions".
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from halfmask.errors import InputError
from halfmask.table import Table

Floats = NDArray[np.float64]
PublicPart = Callable[[Floats], Floats] | Literal["all"]
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
    block = np.asarray(public(X.copy()), dtype=np.float64)
    block = block[:, None] if block.ndim == 1 else block
    if block.ndim != 2 or len(block) != len(X):
        raise InputError(
            f"The public function must return one row of numbers per row: expected {len(X)} rows, "
            f"got an array of shape {block.shape}."
        )
    if not np.isfinite(block).all():
        raise InputError("The public function returned NaN or infinity: give those rows a value.")
    _check_row_by_row(public, X, block)
    return _public_block(table, block, tuple(f"public{index}" for index in range(block.shape[1])))


def _public_block(table: Table, block: Floats, names: tuple[str, ...]) -> Table:
    # The longest row is a public fact here.
    norm = float(np.sqrt(np.einsum("ij,ij->i", block, block)).max(initial=0.0))
    table = table.with_blocks(public=block)
    return replace(table, public_norm=norm, public_names=names, public_sources=names)


def _check_row_by_row(public: Callable[[Floats], Floats], X: Floats, block: Floats) -> None:
    """A function that mixes rows (ranks, means) would carry one row's private part to another's."""
    if len(X) < 2:
        return
    half = len(X) // 2
    parts = [np.asarray(public(part.copy()), dtype=np.float64) for part in (X[:half], X[half:])]
    again = np.concatenate([part.reshape(len(part), -1) for part in parts])
    if again.shape != block.shape or not np.allclose(again, block, rtol=1e-9, atol=1e-12):
        raise InputError(
            "The public function gives other values when it sees fewer rows: it must depend on one "
            "row at a time, or it would reveal private values of other rows."
        )
