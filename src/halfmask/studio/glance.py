"""A small picture of a public column: counts by level, or by equal parts of its range.

Whoever calls has made sure that the column is public now.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow.compute as pc

from halfmask.cells import moment_text
from halfmask.errors import DataError
from halfmask.frames import dates, numbers, texts
from halfmask.reading import FileRows
from halfmask.studio.known import shown_name

_BARS = 24
_LEVELS = 8


def picture(rows: FileRows, name: str, kind: str) -> dict[str, Any]:
    """Bars with a text each, their counts, and how many cells are missing."""
    table = rows.columns([name])
    if kind in ("number", "date"):
        try:
            values = numbers(table, name) if kind == "number" else dates(table, name)
        except DataError:
            values = None  # declared as a number, and is none: levels show what it holds
        if values is not None:
            return _ranges(values, kind)
    words = texts(table, name)
    counts = pc.value_counts(words.drop_null())
    listed = sorted(
        zip(counts.field("values").to_pylist(), counts.field("counts").to_pylist(), strict=True),
        key=lambda pair: (-pair[1], pair[0]),
    )
    bars = [{"text": shown_name(str(word)), "count": count} for word, count in listed[:_LEVELS]]
    rest = sum(count for _, count in listed[_LEVELS:])
    if rest:
        bars.append({"text": f"{len(listed) - _LEVELS:,} others", "count": rest})
    return {
        "form": "levels",
        "bars": bars,
        "levels": len(listed),
        "missing": words.null_count,
        "rows": len(words),
    }


def _ranges(values: np.ndarray, kind: str) -> dict[str, Any]:
    finite = values[np.isfinite(values)]
    made: dict[str, Any] = {
        "form": "range",
        "bars": [],
        "missing": int(len(values) - len(finite)),
        "rows": len(values),
    }
    if not len(finite):
        return made
    distinct = np.unique(finite)
    counts, edges = np.histogram(finite, bins=min(_BARS, max(len(distinct), 1)))
    words = [_end(edge, kind) for edge in edges]
    made["bars"] = [
        {"text": f"{low} to {high}", "count": int(count)}
        for low, high, count in zip(words, words[1:], counts, strict=False)
    ]
    made["low"], made["high"] = words[0], words[-1]
    return made


def _end(value: float, kind: str) -> str:
    return moment_text(int(value) * 10**9)[:10] if kind == "date" else f"{value:.4g}"
