"""The rows that `halfmask train` reads: a frame, a mapped file, or a machine's share of either."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from halfmask.accounting.budget import Budget
    from halfmask.model import Model
    from halfmask.neural.distributed import Ranks
    from halfmask.reading import FileRows
    from halfmask.schema import Schema
    from halfmask.table import Encoder, Table

RANK = "{rank}"


@contextmanager
def machines() -> Iterator[Ranks | None]:
    """The machines of a run that torchrun has started; None where this process is the only one."""
    if "TORCHELASTIC_RUN_ID" not in os.environ or int(os.environ.get("WORLD_SIZE", "1")) < 2:
        yield None
        return
    from halfmask.neural.distributed import joined

    with joined() as ranks:
        yield ranks


@contextmanager
def training_rows(
    data: Path, schema: Schema, ranks: Ranks | None, budget: Budget, *, method: str
) -> Iterator[tuple[Encoder, Table]]:
    """The encoder and the rows of this process.

    A path with {rank} in it names a file of each machine; of any other every machine takes its
    part. Files are decoded piece by piece.
    """
    from halfmask.errors import InputError
    from halfmask.frames import numbered
    from halfmask.reading import is_parquet, open_rows, parquet_rows
    from halfmask.table import Encoder

    apart = RANK in str(data)
    if apart and ranks is None:
        raise InputError(f"{data}: {RANK} in a file's name needs torchrun, which numbers machines.")
    if ranks is not None:
        data = Path(str(data).replace(RANK, str(ranks.rank)))
    if apart:
        _check_declared(schema)
    shared = None if apart else ranks
    rows = parquet_rows(data) if is_parquet(data) else 0
    # Which rows of a unit count is known once all ids were read; rows without a public label go.
    label = schema.label
    whole = schema.unit is not None or (label.role == "public" and label.missing is not None)
    chosen = _chosen(method, schema, rows, budget, spread=ranks is not None)
    if rows and not whole and chosen == "mlp":
        from halfmask.neural.mapped import mapped_parquet

        spread: dict[str, Any] = {} if ranks is None else {"shards": ranks}
        own = None if shared is None else shared.own(rows)
        with mapped_parquet(data, schema, own=own, **spread) as found:
            yield found
        return
    with open_rows(data) as found_rows:
        encoder = Encoder.fit(schema, found_rows)
        own = range(found_rows.num_rows) if shared is None else shared.own(found_rows.num_rows)
        with numbered(own.start):
            table = encoder.encode(found_rows if shared is None else found_rows.part(own))
    yield encoder, table


def encoded_pieces(
    model: Model, rows: FileRows, *, with_label: bool
) -> Iterator[tuple[int, Table]]:
    """The rows of a file as tables for `model`, with the position of each one's first row."""
    from halfmask.frames import numbered

    names = rows.column_names
    if model.encoder is not None:
        schema = model.encoder.schema
        wanted = {*schema.read, schema.label.name}
        names = [name for name in names if name in wanted]
    for start, piece in rows.pieces(names):
        with numbered(start):
            table = model.encode(piece, with_label=with_label)
        yield start, table


def _chosen(method: str, schema: Schema, rows: int, budget: Budget, *, spread: bool) -> str:
    """The method by name, or what `auto` makes of the declaration before a row is read."""
    from halfmask.methods.auto import Problem, choose

    if method != "auto":
        return method
    label = schema.label
    problem = Problem(
        rows=rows,
        public_columns=len(schema.public),
        private_columns=len(schema.private),
        label_private=label.role == "private",
        label_known=label.public is not None,
        task=label.task,
        classes=len(label.classes or ()),
        epsilon=budget.epsilon,
        delta=budget.delta,
        levels=not spread,
    )
    return choose(problem).method


def _check_declared(schema: Schema) -> None:
    """Levels and ranges learnt from the rows of one machine would differ from the others'."""
    from halfmask.encoding import declared
    from halfmask.errors import SchemaError

    for column in schema.columns:
        if declared(column) is None:
            raise SchemaError(
                f"Column {column.name!r}: declare its bounds or categories. No machine sees all "
                "rows where each has a file of its own."
            )
