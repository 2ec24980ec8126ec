"""Options that several commands share, in one wording."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from halfmask.accounting.events import RELATIONS
from halfmask.errors import InputError, SchemaError

if TYPE_CHECKING:
    from halfmask.data.reading import FileRows
    from halfmask.methods.auto import Choice
    from halfmask.model import Model
    from halfmask.neural.distributed import Ranks
    from halfmask.schema import Schema
    from halfmask.settings import MethodConfig
    from halfmask.table import Encoder, Table


def read_schema(schema_file: Path, *files: Path) -> Schema:
    """The schema in full, for data in `files`; these are opened only if it has patterns."""
    from halfmask.schema import Schema

    return Schema.from_toml(
        schema_file, columns=(lambda: columns_of_files(files)) if files else None
    )


def columns_of_files(files: Sequence[Path]) -> list[str]:
    """The names of all columns, each once, in order. `{rank}` stands for the first machine."""
    from halfmask.data.reading import column_names

    found: dict[str, None] = {}
    for file in files:
        path = Path(str(file).replace("{rank}", "0"))
        found.update(dict.fromkeys(column_names(path)))
    return list(found)


PATH = click.Path(path_type=Path)
RELATION = click.Choice(RELATIONS)
_Function = TypeVar("_Function", bound=Callable[..., Any])


def schema_option(function: _Function) -> _Function:
    """--schema FILE, required; it arrives as `schema_file`."""
    words = "The TOML file that says which columns are private (see: halfmask init)."
    return click.option("--schema", "schema_file", required=True, type=PATH, help=words)(function)


def _all_of(options: Sequence[Callable[[Any], Any]]) -> Callable[[_Function], _Function]:
    """All options as one decorator, the first one listed first."""

    def decorate(function: _Function) -> _Function:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


def settings_options(of: str) -> Callable[[_Function], _Function]:
    """--set and --config; `of` says how a setting is named."""
    options = (
        click.option(
            "--set",
            "settings",
            multiple=True,
            metavar=f"{of}=VALUE",
            help="A setting of the method, repeatable; an unknown one lists what there is.",
        ),
        click.option(
            "--config",
            "config_file",
            type=click.Path(path_type=Path, exists=True, dir_okay=False),
            help="A TOML file of settings, in a table per method; --set goes before it.",
        ),
    )
    return _all_of(options)


def training_options(*, epsilon: str, ledger: str) -> Callable[[_Function], _Function]:
    """DATA, --schema, --epsilon, --delta, --relation and --ledger of a command that trains.

    `epsilon` says whose budget it is, `ledger` which one is charged where none is named.
    """
    options = (
        click.argument("data", type=PATH),
        schema_option,
        click.option("--epsilon", type=float, required=True, help=epsilon),
        click.option(
            "--delta",
            type=float,
            default=1e-6,
            show_default=True,
            help="What any set of outcomes may gain beyond epsilon; well below 1 / rows.",
        ),
        click.option(
            "--relation",
            type=RELATION,
            default="replace",
            show_default=True,
            help="What two neighbouring tables may differ in.",
        ),
        click.option(
            "--ledger",
            "ledger_file",
            type=PATH,
            help=f"Charge this data set's ledger (default: {ledger}).",
        ),
    )
    return _all_of(options)


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
    data: Path, schema: Schema, ranks: Ranks | None, *, method: str | MethodConfig
) -> Iterator[tuple[Encoder, Table, Choice]]:
    """The encoder and the rows of this process, and the method for them, chosen once.

    A path with {rank} in it names a file of each machine; of any other every machine takes its
    part. Files are decoded piece by piece.
    """
    from halfmask.data.frames import numbered
    from halfmask.data.reading import open_rows
    from halfmask.table import Encoder
    from halfmask.training import choose_method

    apart = RANK in str(data)
    if apart and ranks is None:
        raise InputError(f"{data}: {RANK} in a file's name needs torchrun, which numbers machines.")
    if ranks is not None:
        data = Path(str(data).replace(RANK, str(ranks.rank)))
    if apart:
        _check_declared(schema)
    shared = None if apart else ranks
    # Which rows of a unit count is known once all ids were read; rows without a public label go.
    label = schema.label
    whole = schema.unit is not None or (label.role == "public" and label.missing is not None)
    alone = ranks is None
    choice = None
    if schema.unit is None:
        choice = choose_method(method, schema, spread=not alone)
    numbers = any(column.scaled for column in schema.columns)
    with open_rows(data) as found_rows:
        if choice is not None and choice.method == "mlp" and numbers and not whole:
            from halfmask.neural.mapped import mapped_rows

            spread: dict[str, Any] = {} if ranks is None else {"shards": ranks}
            own = None if shared is None else shared.own(found_rows.num_rows)
            with mapped_rows(found_rows, schema, own=own, **spread) as found:
                yield *found, choice
            return
        encoder = Encoder.fit(schema, found_rows)
        own = range(found_rows.num_rows) if shared is None else shared.own(found_rows.num_rows)
        with numbered(own.start):
            table = encoder.encode(found_rows if shared is None else found_rows.part(own))
    yield encoder, table, choice or choose_method(method, table, spread=not alone)


def encoded_pieces(
    model: Model, rows: FileRows, *, with_label: bool
) -> Iterator[tuple[int, Table]]:
    """The rows of a file as tables for `model`, with the position of each one's first row."""
    from halfmask.data.frames import numbered

    names = rows.column_names
    if model.encoder is not None:
        schema = model.encoder.schema
        wanted = {*schema.read, schema.label.name}
        names = [name for name in names if name in wanted]
    for start, piece in rows.pieces(names):
        with numbered(start):
            table = model.encode(piece, with_label=with_label)
        yield start, table


def _check_declared(schema: Schema) -> None:
    """Levels and ranges learnt from the rows of one machine would differ from the others'."""
    from halfmask.data.encoding import declared

    for column in schema.columns:
        if declared(column) is None:
            raise SchemaError(
                f"Column {column.name!r}: declare its bounds or categories. No machine sees all "
                "rows where each has a file of its own."
            )
