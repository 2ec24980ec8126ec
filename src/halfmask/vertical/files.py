"""One file per party, one for the labels: read, encoded by the schema, aligned by id."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from halfmask.encoding import level_codes
from halfmask.errors import DataError, SchemaError
from halfmask.frames import check_columns, numbers, texts
from halfmask.schema import Schema
from halfmask.table import Encoder, read_frame
from halfmask.vertical.alignment import check_alignment, id_hashes, row_order
from halfmask.vertical.task import Columns, Task

LABELS = "the label file"


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


def read_task(
    schema: Schema,
    *,
    id_column: str,
    label_file: str | Path,
    party_files: Mapping[str, str | Path],
    test_label_file: str | Path | None = None,
    test_party_files: Mapping[str, str | Path] | None = None,
) -> Task:
    """The parties' encoded columns and the labels, all in the order of their ids.

    Encoders learn nothing from private columns. Ids that are missing, repeated or unequal end in
    an error that says how many; nothing is joined or dropped silently.
    """
    schemas = party_schemas(schema)
    _same_parties(set(schemas), set(party_files))
    frames = {name: read_frame(file) for name, file in party_files.items()}
    encoders = {name: Encoder.fit(own, frames[name]) for name, own in schemas.items()}
    train, labels = _encoded(schema, encoders, frames, read_frame(label_file), id_column)
    tests: dict[str, Any] = dict.fromkeys(schemas)
    test_labels = None
    if test_label_file is not None:
        _same_parties(set(schemas), set(test_party_files or {}))
        test_frames = {name: read_frame(file) for name, file in (test_party_files or {}).items()}
        tests, test_labels = _encoded(
            schema, encoders, test_frames, read_frame(test_label_file), id_column
        )
    return Task(
        columns=tuple(
            Columns(
                name=name,
                train=train[name],
                test=tests[name],
                row_norm=math.sqrt(len(own.columns)),
                nonnegative=not any(c.scaled for c in own.columns),
                column_names=own.private,
                public_names=own.public,
                encoder=encoders[name],
            )
            for name, own in schemas.items()
        ),
        labels=labels,
        test_labels=test_labels,
        label_bounds=schema.label.bounds,
    )


def _encoded(
    schema: Schema,
    encoders: Mapping[str, Encoder],
    frames: Mapping[str, Any],
    label_frame: Any,
    id_column: str,
) -> tuple[dict[str, Any], np.ndarray]:
    check_columns(label_frame, [id_column, schema.label.name])
    sorted_labels, hashes = _sorted(label_frame, id_column, LABELS)
    blocks: dict[str, Any] = {}
    for name, encoder in encoders.items():
        check_columns(frames[name], [id_column])
        frame, own = _sorted(frames[name], id_column, f"The file of party {name!r}")
        check_alignment({LABELS: hashes, name: own}, against=LABELS)
        table = encoder.encode(frame, with_label=False)
        blocks[name] = np.hstack([table.public, table.private])
    return blocks, label_codes(schema, sorted_labels)


def label_codes(schema: Schema, frame: Any) -> np.ndarray:
    """The label column as 0 and 1, positions in the declared classes; a foreign one is an error.

    A number is its place between the declared bounds, from 0 to 1. An error says neither how many
    labels are wrong nor where: that would tell of private labels.
    """
    check_columns(frame, [schema.label.name])
    if schema.label.classes is None:
        assert schema.label.bounds is not None
        low, high = schema.label.bounds
        values = numbers(frame, schema.label.name)
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


def _sorted(frame: Any, id_column: str, who: str) -> tuple[Any, np.ndarray]:
    ids = frame.column(id_column).to_pylist()
    order = row_order(ids, who)
    return frame.take(order), id_hashes([ids[i] for i in order], "alignment of files")


def _same_parties(declared: set[str], given: set[str]) -> None:
    if declared == given:
        return
    lacking, extra = sorted(declared - given), sorted(given - declared)
    raise DataError(
        "The parties of the schema and the files differ: "
        + "; ".join(
            [f"no file for {name!r}" for name in lacking]
            + [f"{name!r} is not in the schema" for name in extra]
        )
        + ". Give --party NAME=FILE for each party that the schema names."
    )
