"""Whether noise will win, from the number of rows, the schema and the budget; never from a value.

A rule of thumb for the default method on tables. Noise takes the part D / (D + μ·rows) of what the
columns could explain, μ the strength of the budget and D a sum over what is private. The small D is
what the embedded census lost (300 to 10,000 rows, epsilon 0.5 to 4, roles all, half and label:
docs/check.md), a table whose columns tell much; the large one is what tables lose whose columns
tell little. A prediction is therefore a range, and a guide, not a bound.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from halfmask.accounting.budget import Budget
from halfmask.encoding import declared
from halfmask.schema import Column, Label

# The parts of D where columns tell much, and where they tell little.
_PER_PRIVATE = (18.0, 150.0)
_PER_PUBLIC = (5.0, 30.0)
_LABEL = (40.0, 140.0)
# With μ·rows below this the default method releases the base rate of a private label alone.
_BASE_RATE = math.sqrt(8000 / 0.4)

Verdict = Literal["noise will win", "noise may win", "noise will not win"]


@dataclass(frozen=True)
class Change:
    """What is expected if one column, or the label, were public instead of private."""

    column: str
    kept: tuple[float, float]
    rows_needed: int


@dataclass(frozen=True)
class Expectation:
    """`kept`: the share of what columns explain without privacy that is left, from low to high.

    `rows_needed` is for half of it even where columns tell little.
    """

    rows: int
    kept: tuple[float, float]
    rows_needed: int
    base_rate_only: bool
    if_public: tuple[Change, ...]

    @property
    def verdict(self) -> Verdict:
        """In three words."""
        low, high = self.kept
        if self.base_rate_only or high < 1 / 3:
            return "noise will win"
        return "noise may win" if low < 0.5 else "noise will not win"

    def to_json(self) -> dict[str, Any]:
        """As `halfmask check --json` prints it."""
        return {
            "verdict": self.verdict,
            "kept": list(self.kept),
            "rows_needed": self.rows_needed,
            "base_rate_only": self.base_rate_only,
            "if_public": [
                {"column": c.column, "kept": list(c.kept), "rows_needed": c.rows_needed}
                for c in self.if_public
            ],
        }


def expect(
    label: Label,
    columns: Sequence[Column],
    budget: Budget,
    *,
    rows: int,
) -> Expectation:
    """What to expect now, and with each private column public; the largest gain comes first."""
    strength = rows * budget.mu
    kept, needed = _kept(label, columns, rows, strength)
    changes = []
    for place, column in enumerate(columns):
        if column.role == "private":
            others = [*columns]
            others[place] = replace(column, role="public")
            changes.append(Change(column.name, *_kept(label, others, rows, strength)))
    if label.role == "private":
        public = replace(label, role="public")
        changes.append(Change(label.name, *_kept(public, columns, rows, strength)))
    changes.sort(key=lambda change: -sum(change.kept))
    return Expectation(
        rows=rows,
        kept=kept,
        rows_needed=needed,
        base_rate_only=base_rate_alone(label, strength),
        if_public=tuple(changes),
    )


def _kept(
    label: Label, columns: Sequence[Column], rows: int, strength: float
) -> tuple[tuple[float, float], int]:
    ends = noise_ends(label, columns)
    if base_rate_alone(label, strength):
        kept = (0.0, 0.0)
    else:
        high, low = (strength / (strength + noise) for noise in ends)
        kept = (low, high)
    least = max(ends[1], _BASE_RATE if label.role == "private" else 0.0)
    return kept, math.ceil(least * rows / strength)


def noise_ends(label: Label, columns: Sequence[Column]) -> tuple[float, float]:
    """D where columns tell much, and where they tell little."""
    private = sum(_weight(column) for column in columns if column.role == "private")
    hidden = label.role == "private"
    public = sum(column.role == "public" for column in columns) if hidden else 0
    much, little = (
        each * private + free * public + (own if hidden else 0.0)
        for each, free, own in zip(_PER_PRIVATE, _PER_PUBLIC, _LABEL, strict=True)
    )
    return much, little


def base_rate_alone(label: Label, strength: float) -> bool:
    """Whether the default method releases the base rate of a private label and nothing else."""
    return label.role == "private" and strength < _BASE_RATE


def _weight(column: Column) -> float:
    """What a column costs, a number being 1: many levels are more to learn than two."""
    coding = declared(column) if column.kind in ("category", "bool") else None
    if coding is None:
        return 1.0
    return min(max(math.log2(coding.width) / 4, 0.5), 2.5)
