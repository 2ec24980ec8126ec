"""The schema of a command: its patterns are matched against the columns of the files it reads."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from halfmask.schema import Schema


def read_schema(schema_file: Path, *files: Path) -> Schema:
    """The schema in full, for data in `files`; these are opened only if it has patterns."""
    from halfmask.schema import Schema

    return Schema.from_toml(schema_file, columns=(lambda: names_of(files)) if files else None)


def names_of(files: Sequence[Path]) -> list[str]:
    """The names of all columns, each once, in order. `{rank}` stands for the first machine."""
    from halfmask.reading import column_names

    found: dict[str, None] = {}
    for file in files:
        path = Path(str(file).replace("{rank}", "0"))
        found.update(dict.fromkeys(column_names(path)))
    return list(found)
