"""One file per party, one for the labels: read, encoded by the schema, aligned by id.

A simulation reads all of them, a party between organisations its own: by the same functions.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from halfmask.data.encoding import level_codes
from halfmask.data.frames import CLASSES_OTHERWISE, as_arrow, check_columns, numbers, texts
from halfmask.data.products import CodedRows
from halfmask.data.reading import FileRows, open_rows
from halfmask.errors import DataError, InputError, SchemaError, suggest
from halfmask.schema import Schema
from halfmask.table import CodedFeatures, Encoder
from halfmask.types import Vector
from halfmask.vertical.party import check_alignment, id_hashes, row_order


@dataclass(frozen=True, kw_only=True)
class PartyColumns:
    """One party's encoded columns, and what is known of them without looking.

    Columns that were read from a file are codes (`CodedRows`), others an array or a sparse matrix.
    `column_names` are promised to be protected; `public_names` are not, although noise covers them
    too, because their levels and ranges may have been learnt. `encoder` made the columns, and `ids`
    order them, where they were read from a file.
    """

    name: str
    train: Any
    test: Any = None
    row_norm: float
    nonnegative: bool
    column_names: tuple[str, ...] = ()
    public_names: tuple[str, ...] = ()
    encoder: Encoder | None = None
    ids: tuple[Any, ...] = ()


@dataclass(frozen=True, kw_only=True)
class VerticalTable:
    """The parties' columns and the label holder's labels, in one order of rows.

    Labels are 0 and 1, or with `label_bounds` places of a number between them, from 0 to 1.
    """

    columns: tuple[PartyColumns, ...]
    labels: Vector
    test_labels: Vector | None = None
    label_bounds: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        if self.label_bounds is None and not np.isin(self.labels, (0.0, 1.0)).all():
            raise InputError(
                "Vertical methods predict one of two classes, or a number within declared bounds."
            )


LABELS = "the label file"
ID_NEEDED = "Every file needs the column of ids, under one name."


def party_schemas(schema: Schema) -> dict[str, Schema]:
    """The schema of each party's own columns; every column must name its party."""
    homeless = [column.name for column in schema.columns if column.party is None]
    if homeless:
        raise SchemaError(
            f'Column {homeless[0]!r} names no party: write party = "..." for every column.'
        )
    if schema.unit is not None:
        raise SchemaError("Vertical learning takes one row per id: remove [unit] from the schema.")
    if schema.label.missing is not None:
        raise SchemaError(
            "Vertical methods need the label of every row: fill the missing ones in, choose the "
            'rows by public facts, and remove missing = "skip" from [label].'
        )
    if schema.label.classes is not None and len(schema.label.classes) != 2:
        raise SchemaError(
            "Vertical methods predict one of two classes, or a number: declare two label classes, "
            "or bounds."
        )
    names = dict.fromkeys(column.party for column in schema.columns if column.party)
    return {
        name: replace(schema, columns=tuple(c for c in schema.columns if c.party == name))
        for name in names
    }


def id_order(rows: FileRows, id_column: str, who: str) -> tuple[np.ndarray, list[Any]]:
    """The order of the ids, and the ids in that order."""
    check_columns(rows, [id_column], advice=ID_NEEDED)
    ids = as_arrow(rows, [id_column]).column(id_column).to_pylist()
    order = row_order(ids, who)
    return order, [ids[index] for index in order]


def features(encoder: Encoder, rows: Any, order: np.ndarray | None = None) -> CodedRows:
    """The rows of one party's columns, public ones first; in `order` if given."""
    found = encoder.encode(rows, with_label=False).features
    assert isinstance(found, CodedFeatures)
    kept = found if order is None else found.kept(order)
    return CodedRows(sorted(kept.columns, key=lambda column: column.private), kept.n)


def read_columns(schema: Schema, name: str, file: str | Path, id_column: str) -> PartyColumns:
    """One party's columns in the order of its ids; `schema` is that of its own columns.

    The file is read piece by piece. Its encoder learns nothing from private columns.
    """
    with open_rows(file) as rows:
        encoder = Encoder.fit(schema, rows)
        order, ids = id_order(rows, id_column, f"The file of party {name!r}")
        train = features(encoder, rows, order)
    return PartyColumns(
        name=name,
        train=train,
        row_norm=math.sqrt(len(schema.columns)),
        nonnegative=not any(column.scaled for column in schema.columns),
        column_names=schema.private,
        public_names=schema.public,
        encoder=encoder,
        ids=tuple(ids),
    )


def read_vertical_table(
    schema: Schema,
    *,
    id_column: str,
    label_file: str | Path,
    party_files: Mapping[str, str | Path],
    test_label_file: str | Path | None = None,
    test_party_files: Mapping[str, str | Path] | None = None,
) -> VerticalTable:
    """The parties' encoded columns and the labels, all in the order of their ids.

    Ids that are missing, repeated or unequal end in an error that says how many; nothing is joined
    or dropped silently.
    """
    schemas = party_schemas(schema)
    _same_parties(set(schemas), set(party_files), "--party")
    parties = [
        read_columns(own, name, party_files[name], id_column) for name, own in schemas.items()
    ]
    labels, ids = read_labels(schema, label_file, id_column)
    for part in parties:
        _check_ids(ids, part.name, part.ids)
    test_labels = None
    given = test_party_files or {}
    if given and test_label_file is None:
        raise InputError("--test-party needs the labels of its rows: pass --test-label FILE too.")
    if test_label_file is not None:
        _same_parties(set(schemas), set(given), "--test-party")
        test_labels, test_ids = read_labels(schema, test_label_file, id_column)
        for place, part in enumerate(parties):
            assert part.encoder is not None
            who = f"The file of party {part.name!r}"
            with open_rows(given[part.name]) as rows:
                order, own_ids = id_order(rows, id_column, who)
                _check_ids(test_ids, part.name, own_ids)
                parties[place] = replace(part, test=features(part.encoder, rows, order))
    return VerticalTable(
        columns=tuple(parties),
        labels=labels,
        test_labels=test_labels,
        label_bounds=schema.label.bounds,
    )


def read_labels(schema: Schema, file: str | Path, id_column: str) -> tuple[np.ndarray, list[Any]]:
    """The labels (see `party_label_codes`) and their ids, in the order of the ids."""
    with open_rows(file) as rows:
        order, ids = id_order(rows, id_column, "The label file")
        frame = as_arrow(rows, [schema.label.name])
    return party_label_codes(schema, frame)[order], ids


def _check_ids(labelled: Sequence[Any], party: str, own: Sequence[Any]) -> None:
    key = "alignment of files"
    found = {LABELS: id_hashes(labelled, key), party: id_hashes(own, key)}
    check_alignment(found, against=LABELS)


def party_label_codes(schema: Schema, frame: Any) -> np.ndarray:
    """The label column as 0 and 1, positions in the declared classes; a foreign one is an error.

    A number is its place between the declared bounds, from 0 to 1. An error says neither how many
    labels are wrong nor where: that would tell of private labels.
    """
    check_columns(frame, [schema.label.name])
    if schema.label.classes is None:
        assert schema.label.bounds is not None
        low, high = schema.label.bounds
        values = numbers(frame, schema.label.name, otherwise=CLASSES_OTHERWISE)
        if np.isnan(values).any():
            raise DataError(
                f"Column {schema.label.name!r}: expected a number in every row: fill in what is "
                "missing, or choose the rows by public facts."
            )
        places: np.ndarray = (np.clip(values, low, high) - low) / (high - low)
        return places
    codes = level_codes(texts(frame, schema.label.name), schema.label.classes)
    if (codes < 0).any():
        declared = " or ".join(repr(name) for name in schema.label.classes)
        raise DataError(
            f"Column {schema.label.name!r}: expected {declared}, the declared classes, in every "
            "row: correct the file or the schema."
        )
    return codes.astype(np.float64)


def check_party_names(option: str, given: Iterable[str], parties: Iterable[str]) -> None:
    """Refuse what is given under a name that no party has: it would be left out silently."""
    known = list(parties)
    for name in given:
        if name not in known:
            raise InputError(
                f"{option} names {name!r}, which is no party: {', '.join(known)}."
                f"{suggest(name, known)}"
            )


def _same_parties(declared: set[str], given: set[str], option: str) -> None:
    if declared == given:
        return
    lacking, extra = sorted(declared - given), sorted(given - declared)
    raise DataError(
        "The parties of the schema and the files differ: "
        + "; ".join(
            [f"no file for {name!r}" for name in lacking]
            + [f"{name!r} is not in the schema" for name in extra]
        )
        + f". Give {option} NAME=FILE for each party that the schema names."
    )
