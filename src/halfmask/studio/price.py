"""What the chosen roles cost at every epsilon: from rows, schema and budget, never from a value.

The rule is that of `halfmask check` (halfmask.checking), line and band. Beside it stands what
`halfmask reproduce tables` measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from halfmask.accounting.budget import Budget, printed, printed_room
from halfmask.accounting.events import GaussianEvent
from halfmask.accounting.gaussian import gaussian_epsilon
from halfmask.accounting.ledger import Ledger
from halfmask.checking import expect, kept
from halfmask.errors import HalfmaskError
from halfmask.report.facts import attacker_gains
from halfmask.schema import Column, Label

# --- What `halfmask reproduce tables` measured of the default method: the guide of the price.
# `kept` is the explained log loss (R² for a number) over that of the best model without privacy, on
# held-out rows: `halfmask reproduce tables --data DIR --method auto`, docs/reproductions.md.


EPSILONS = (0.1, 0.5, 1.0, 4.0)
DELTA = 1e-6


class MeasuredTable(NamedTuple):
    """Rows to learn from, columns, those that are private in `half` and `features`, and what a
    column weighs on average (halfmask.checking)."""

    rows: int
    columns: int
    private: int
    weight: float


TABLES = {
    "adult": MeasuredTable(32561, 13, 6, 0.92),
    "bank": MeasuredTable(27459, 19, 10, 0.83),
    "default": MeasuredTable(20000, 23, 11, 0.95),
    "diabetes": MeasuredTable(47679, 30, 15, 0.87),
    "visits": MeasuredTable(3942, 18, 8, 0.78),
}

KEPT: dict[tuple[str, str], tuple[float, float, float, float]] = {
    ("adult", "all"): (0.692, 0.842, 0.869, 0.888),
    ("adult", "half"): (0.736, 0.828, 0.864, 0.880),
    ("adult", "features"): (0.815, 0.865, 0.874, 0.886),
    ("adult", "label"): (0.839, 0.895, 0.945, 0.967),
    ("bank", "all"): (0.461, 0.872, 0.897, 0.922),
    ("bank", "half"): (0.705, 0.856, 0.908, 0.944),
    ("bank", "features"): (0.939, 0.976, 0.991, 0.997),
    ("bank", "label"): (0.792, 0.875, 0.919, 0.942),
    ("default", "all"): (0.510, 0.843, 0.889, 0.926),
    ("default", "half"): (0.633, 0.844, 0.888, 0.928),
    ("default", "features"): (0.776, 0.921, 0.945, 0.966),
    ("default", "label"): (0.845, 0.927, 0.950, 0.962),
    ("diabetes", "all"): (0.008, 0.430, 0.559, 0.749),
    ("diabetes", "half"): (0.078, 0.657, 0.742, 0.818),
    ("diabetes", "features"): (0.746, 0.855, 0.873, 0.883),
    ("diabetes", "label"): (0.278, 0.701, 0.795, 0.821),
    ("visits", "all"): (0.000, 0.473, 0.681, 0.851),
    ("visits", "half"): (0.000, 0.613, 0.760, 0.871),
    ("visits", "features"): (0.839, 0.911, 0.943, 0.964),
    ("visits", "label"): (0.000, 0.731, 0.817, 0.908),
}
"""By table and set of roles, at each of EPSILONS, means of five draws; 0 where it was below."""


_FROM, _TO, _POINTS = 0.05, 10.0, 33
_SHOWN = 12
BASED_ON = (
    'Based on the rule of "halfmask check" (docs/check.md), held against what "halfmask reproduce '
    f'tables" measured in {len(KEPT) * len(EPSILONS)} cases: {len(TABLES)} tables of 3,942 to '
    "47,679 people, four sets of roles and four epsilons each. The line is their mean, nearly all "
    "lie in the band. A guide, not a bound; no value of your file is looked at."
)


def price(
    label: Label | None,
    columns: Sequence[Column],
    budget: Budget,
    *,
    rows: int,
    counted: float,
) -> dict[str, Any]:
    """The curve, the guide behind it, columns whose role matters most, and an attacker's gain."""
    made: dict[str, Any] = {
        **asdict(budget),
        "rows": rows,
        "based_on": BASED_ON,
        "curve": [],
        "now": None,
        "measured": [],
        "if_public": [],
        "verdict": None,
        "gains": [asdict(gain) for gain in attacker_gains([_event(budget)], delta=budget.delta)],
    }
    private = [column for column in columns if column.role == "private"]
    if label is None or not columns or (not private and label.role == "public"):
        return made
    grid = np.geomspace(_FROM, _TO, _POINTS)

    def at(value: float) -> dict[str, float]:
        return _point(value, kept(label, columns, counted * replace(budget, epsilon=value).mu))

    made["curve"] = [at(value) for value in map(float, grid)]
    made["now"] = at(budget.epsilon)
    expected = expect(label, columns, budget, rows=rows, counted=counted)
    made["verdict"] = expected.verdict
    made["base_rate_only"] = expected.base_rate_only
    made["rows_needed"] = expected.rows_needed
    made["if_public"] = [
        {"column": each.column, **_point(budget.epsilon, (each.kept[0], each.middle, each.kept[1]))}
        for each in expected.if_public[:_SHOWN]
    ]
    made["roles"] = nearest(label, columns)
    made["measured"] = _placed(made["roles"], counted, budget.delta)
    return made


def _point(epsilon: float, ends: tuple[float, float, float]) -> dict[str, float]:
    low, middle, high = ends
    return {"epsilon": epsilon, "low": low, "middle": middle, "high": high}


def nearest(label: Label, columns: Sequence[Column]) -> str:
    """Which of the measured sets of roles is most like these."""
    private = sum(column.role == "private" for column in columns)
    if label.role == "public":
        return "features"
    share = private / max(len(columns), 1)
    return "label" if share < 0.25 else "half" if share < 0.75 else "all"


def _placed(roles: str, rows: float, delta: float) -> list[dict[str, Any]]:
    """Measured tables, each where your rows give the same strength μ·rows as it had."""
    points = []
    for (table, measured), values in KEPT.items():
        if measured != roles:
            continue
        for epsilon, value in zip(EPSILONS, values, strict=True):
            mu = TABLES[table].rows * Budget(epsilon=epsilon, delta=DELTA).mu / rows
            try:
                same = gaussian_epsilon(mu, delta)
            except HalfmaskError:
                continue
            if _FROM <= same <= _TO:
                points.append({"table": table, "epsilon": same, "kept": max(value, 0.0)})
    return points


def _event(budget: Budget) -> GaussianEvent:
    """One release that spends all of it: what trainings of the default method compose to."""
    mu = budget.mu
    # What may differ by a replaced row is at most two withheld ones.
    return GaussianEvent(replace=mu if budget.relation == "replace" else 2 * mu, withhold=mu)


def ledger_facts(file: Path) -> dict[str, Any] | None:
    """Budget, spent and left; None where there is no ledger yet."""
    # An empty file is a ledger that a training is just creating.
    if not file.exists() or not file.stat().st_size:
        return None
    book = Ledger.open(file)
    spent, left = book.spent(), book.room()
    return {
        "file": str(file),
        "epsilon": book.epsilon,
        "delta": book.delta,
        "relation": book.relation,
        "spent": spent,
        "left": left,
        "spent_text": printed(spent),
        "left_text": printed_room(left),
        "charges": len(book.entries()),
    }
