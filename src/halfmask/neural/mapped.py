"""A file of any size as rows of a network, decoded once into a file that is mapped.

Columns that stay numbers have no codes to make rows of. Poisson batches take rows from everywhere,
so such a file is decoded once, piece by piece, into single precision numbers in a temporary file
that has no name: nobody else can open it, and it is gone when the process ends, however it ends.
Its folder is TMPDIR's unless another one is named.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from halfmask.data.encoding import declared, learnt_coding, with_made
from halfmask.data.frames import OR_LEAVE_OUT, check_columns, numbered
from halfmask.data.products import parts_of
from halfmask.data.reading import FileRows
from halfmask.data.scratch import reserve
from halfmask.errors import InputError
from halfmask.mechanisms.shards import ALONE, Shards
from halfmask.neural.inputs import Inputs, PublicFacts
from halfmask.neural.pretrain import NetworkRows, Singles
from halfmask.progress import tell
from halfmask.schema import Column, Schema
from halfmask.table import Blocks, Encoder, Table

# Encoded numbers in flight (64 MiB in double precision), and rows that stay in the cache.
_IN_FLIGHT = 1 << 23
_IN_CACHE = 256


@dataclass(frozen=True, kw_only=True, eq=False)
class MappedTable(Table):
    """A table of which a network alone can read the features: its blocks have no rows."""

    decoded: NetworkRows


def network_rows(
    table: Table, *, private_norm: float | None = None, shards: Shards = ALONE
) -> NetworkRows:
    """The rows of a table as a network reads them, decoded already or made now."""
    if not isinstance(table, MappedTable):
        return NetworkRows.of(table, private_norm=private_norm, shards=shards)
    fixed = table.decoded.inputs.private_norm
    if private_norm is not None and private_norm != fixed:
        raise InputError(f"The file was decoded with private_norm={fixed}: decode it again.")
    return table.decoded


@contextmanager
def mapped_rows(
    whole: FileRows,
    schema: Schema,
    *,
    private_norm: float | None = None,
    folder: str | Path | None = None,
    shards: Shards = ALONE,
    own: range | None = None,
) -> Iterator[tuple[Encoder, MappedTable]]:
    """The encoder and the rows of a file (those in `own` if given), while the block runs.

    Everything that can be wrong with the file is found here, before anything is charged.
    """
    if schema.unit is not None:
        raise InputError("mlp protects one row each: use gd where a unit has several rows.")
    if schema.label.classes is None:
        raise InputError("mlp predicts classes: use gd or one-shot for a number.")
    check_columns(whole, schema.read, advice=OR_LEAVE_OUT)
    check_columns(whole, [schema.label.name], beside=schema.read)
    rows = own or range(whole.num_rows)
    encoder = Encoder(schema, _learnt(whole, schema))
    file = whole if own is None else whole.part(own)
    inputs, first = _inputs(file, encoder, private_norm, shards)
    width = len(inputs.public_kept) + len(inputs.kept)
    with tempfile.TemporaryFile(dir=folder) as store:
        reserve(store, 4 * len(rows) * width, folder)
        values: Singles = np.memmap(store, np.float32, mode="r+", shape=(len(rows), width))
        with numbered(rows.start):
            label = _decode(file, encoder, inputs, values)
        bare = first.features.kept(np.arange(0))
        table = replace(first, features=bare, label=label, rows=np.arange(len(label)))
        decoded = NetworkRows.of_values(table, inputs, values)
        held = {name: getattr(table, name) for name in Table.__dataclass_fields__}
        yield encoder, MappedTable(**held, decoded=decoded)


def _names(schema: Schema) -> list[str]:
    return [*schema.read, schema.label.name]


def _learnt(file: FileRows, schema: Schema) -> dict[str, Any]:
    """What public columns that leave it open say of their levels and ranges."""
    left_open = [column for column in schema.columns if declared(column) is None]
    read = _read(schema, left_open)
    table = with_made(file.columns(read), schema) if left_open else None
    return {column.name: learnt_coding(column, table) for column in left_open}


def _read(schema: Schema, columns: Iterable[Column]) -> list[str]:
    """What has to be read of a file for these columns, and for all that are made of others."""
    own = (column.name for column in columns if column.public is None)
    made = (source for column in schema.columns for source in column.made_of)
    return list(dict.fromkeys([*own, *made]))


def _inputs(
    file: FileRows,
    encoder: Encoder,
    private_norm: float | None,
    shards: Shards,
) -> tuple[Inputs, Table]:
    """The map of the inputs from one pass over public columns, and a table of the first row."""
    size = _batch_size(encoder)
    first = encoder.encode(next(_batches(file, 1, _names(encoder.schema)))[1])
    columns = tuple(column for column in encoder.schema.columns if column.role == "public")
    facts = PublicFacts.of(first.public[:0], first.public_sources, columns)
    if columns:
        names = _read(encoder.schema, columns)
        for start, frame in _batches(file, size, names):
            with numbered(start):
                public = encoder.encode_public(frame)
            facts = facts.with_more(PublicFacts.of(public, first.public_sources, columns))
    return Inputs.of_facts(first, facts.everywhere(shards), private_norm=private_norm), first


def _decode(file: FileRows, encoder: Encoder, inputs: Inputs, values: Singles) -> np.ndarray:
    """Write every row of the file into `values`; returns the labels' codes."""
    label = np.zeros(len(values), dtype=np.int64)
    for start, frame in _batches(file, _batch_size(encoder), _names(encoder.schema)):
        with numbered(start):
            table = encoder.encode(frame)
        at = slice(start, start + table.n)
        assert table.label is not None
        label[at] = table.label
        blocks = Blocks(public=table.public, private=table.private)
        for some in parts_of(table.n, _IN_CACHE):
            values[at][some] = inputs.rows(replace(table, features=blocks.kept(some)))
        tell("reading rows", at.stop / len(values))
    return label


def _batch_size(encoder: Encoder) -> int:
    return min(max(_IN_FLIGHT // max(len(encoder.names), 1), 256), 1 << 16)


def _batches(file: FileRows, size: int, names: list[str]) -> Iterator[tuple[int, pa.Table]]:
    """The rows of the file with the position of the first of each batch."""
    for start, piece in file.pieces(names):
        for some in parts_of(piece.num_rows, size):
            yield start + some.start, piece.slice(some.start, some.stop - some.start)
