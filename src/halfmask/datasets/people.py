"""Tables of people as published, each with a schema beside it: bank, default, diabetes, visits.

The schema states what a code book would: bounds, categories, and one half-masked set of roles.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from halfmask.datasets.files import data_dir, read_published
from halfmask.reading import read_csv
from halfmask.schema import Schema

PEOPLE = ("bank", "default", "diabetes", "visits")


def load_people(name: str, folder: str | Path | None = None) -> tuple[pa.Table, Schema]:
    """The rows of `tables/NAME.csv` in the data folder, and the schema `tables/NAME.toml`."""
    tables = data_dir(folder) / "tables"
    rows = read_csv(read_published(tables, f"{name}.csv"), f"{name}.csv")
    return rows, Schema.from_toml(tables / f"{name}.toml")
