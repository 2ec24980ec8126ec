"""What the chosen roles cost at every epsilon: from rows, schema and budget, never from a value.

The rule is that of `halfmask check` (halfmask.expectation): noise takes D / (D + μ·rows) of what
the columns tell, D a sum over what is private. How far D lies from the rule's middle is taken from
what `halfmask reproduce tables` measured: the geometric mean of its cases is the line, four fifths
of them are the band.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from halfmask.accounting.budget import Budget, printed, printed_room
from halfmask.accounting.events import GaussianEvent
from halfmask.accounting.gaussian import gaussian_epsilon
from halfmask.accounting.relations import Relation
from halfmask.errors import HalfmaskError
from halfmask.expectation import base_rate_alone, expect, noise_ends
from halfmask.report.attacker import attacker_gains
from halfmask.schema import Column, Label
from halfmask.studio.measured import DELTA, EPSILONS, KEPT, TABLES

_FROM, _TO, _POINTS = 0.05, 10.0, 33
_SHOWN = 12
_BAND = (0.1, 0.9)
REACHED = 0.97
"""What the default method keeps without noise: trees without privacy also see what columns tell
together."""
_CASES = len(KEPT) * sum(epsilon <= 1 for epsilon in EPSILONS)
BASED_ON = (
    "Based on the rule of `halfmask check` (docs/check.md), fitted to what `halfmask reproduce "
    f"tables` measured at epsilon up to 1 in {_CASES} cases: {len(TABLES)} tables of 3,942 to "
    "47,679 people, one or more of four sets of roles each. The line is the mean of these, the "
    "band four fifths. A guide, not a bound; no value of your file is looked at."
)


def price(
    label: Label | None,
    columns: Sequence[Column],
    *,
    rows: int,
    epsilon: float,
    delta: float,
    relation: Relation,
) -> dict[str, Any]:
    """The curve, the guide behind it, columns whose role matters most, and an attacker's gain."""
    gains = attacker_gains([_event(epsilon, delta, relation)], delta=delta)
    made: dict[str, Any] = {
        "epsilon": epsilon,
        "delta": delta,
        "relation": relation,
        "rows": rows,
        "based_on": BASED_ON,
        "curve": [],
        "now": None,
        "measured": [],
        "if_public": [],
        "verdict": None,
        "gains": [
            {
                "prior": gain.prior,
                "belief": gain.belief,
                "guess_before": gain.guess_before,
                "guess_after": gain.guess_after,
            }
            for gain in gains
        ],
    }
    private = [column for column in columns if column.role == "private"]
    if label is None or not columns or (not private and label.role == "public"):
        return made
    grid = np.geomspace(_FROM, _TO, _POINTS)

    def at(value: float, label: Label = label, columns: Sequence[Column] = columns) -> Any:
        mu = Budget(epsilon=value, delta=delta, relation=relation).mu
        return kept(label, columns, rows * mu)

    made["curve"] = [_point(value, at(value)) for value in map(float, grid)]
    made["now"] = _point(epsilon, at(epsilon))
    expected = expect(
        label, columns, Budget(epsilon=epsilon, delta=delta, relation=relation), rows=rows
    )
    made["verdict"] = expected.verdict
    made["base_rate_only"] = expected.base_rate_only
    made["rows_needed"] = expected.rows_needed
    made["if_public"] = [
        {
            "column": change.column,
            **_point(epsilon, _changed(label, columns, change.column, at, epsilon)),
        }
        for change in expected.if_public[:_SHOWN]
    ]
    made["if_public"].sort(key=lambda change: -change["middle"])
    made["roles"] = nearest(label, columns)
    made["measured"] = _placed(made["roles"], rows, delta, relation)
    return made


def _changed(label: Label, columns: Sequence[Column], name: str, at: Any, epsilon: float) -> Any:
    from dataclasses import replace

    if name == label.name:
        return at(epsilon, replace(label, role="public"), columns)
    others = [replace(c, role="public") if c.name == name else c for c in columns]
    return at(epsilon, label, others)


def _point(epsilon: float, ends: tuple[float, float, float]) -> dict[str, float]:
    low, middle, high = ends
    return {"epsilon": epsilon, "low": low, "middle": middle, "high": high}


def kept(label: Label, columns: Sequence[Column], strength: float) -> tuple[float, float, float]:
    """The part of what columns tell that is left: low, middle and high, at μ·rows."""
    if label.role == "public" and not any(column.role == "private" for column in columns):
        return 1.0, 1.0, 1.0
    if base_rate_alone(label, strength):
        return 0.0, 0.0, 0.0
    middle = math.sqrt(math.prod(noise_ends(label, columns)))
    free = _free(label, columns)
    high, mid, low = (
        REACHED * (free + (1 - free) * strength / (strength + middle * ratio)) for ratio in ratios()
    )
    return low, mid, high


def _free(label: Label, columns: Sequence[Column]) -> float:
    """What costs nothing: where the label is public, what public columns tell of it.

    Taken as their part of all columns; measured tables with half of them public keep as much.
    """
    if label.role == "private":
        return 0.0
    return sum(column.role == "public" for column in columns) / len(columns)


@cache
def ratios() -> tuple[float, float, float]:
    """How D of measured tables lies to the middle of the rule, from a tenth to nine tenths."""
    found = []
    for (table, roles), values in KEPT.items():
        facts = TABLES[table]
        label, columns = _imagined(facts.columns, facts.private, facts.weight, roles)
        middle = math.sqrt(math.prod(noise_ends(label, columns)))
        for epsilon, value in zip(EPSILONS, values, strict=True):
            strength = facts.rows * Budget(epsilon=epsilon, delta=DELTA).mu
            # With a large budget the best model is missed for other reasons than noise.
            if base_rate_alone(label, strength) or epsilon > 1:
                continue
            free = _free(label, columns)
            share = min(max((value / REACHED - free) / (1 - free), 0.02), 0.995)
            found.append(strength * (1 / share - 1) / middle)
    low, high = np.quantile(found, _BAND)
    return float(low), float(np.exp(np.mean(np.log(found)))), float(high)


def _imagined(count: int, half: int, weight: float, roles: str) -> tuple[Label, tuple[Column, ...]]:
    """A table of that many columns under one of the four sets of roles."""
    private = {"all": count, "half": half, "features": half, "label": 0}[roles]
    label = Label("y", "public" if roles == "features" else "private", classes=("a", "b"))
    levels = max(2, round(2 ** (4 * weight)) - 2)
    columns = tuple(
        Column(
            f"c{place}",
            "private" if place < private else "public",
            "category",
            categories=tuple(f"{level}" for level in range(levels)),
        )
        for place in range(count)
    )
    return label, columns


def nearest(label: Label, columns: Sequence[Column]) -> str:
    """Which of the measured sets of roles is most like these."""
    private = sum(column.role == "private" for column in columns)
    if label.role == "public":
        return "features"
    share = private / max(len(columns), 1)
    return "label" if share < 0.25 else "half" if share < 0.75 else "all"


def _placed(roles: str, rows: int, delta: float, relation: Relation) -> list[dict[str, Any]]:
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


def _event(epsilon: float, delta: float, relation: Relation) -> GaussianEvent:
    """One release that spends all of it: what trainings of the default method compose to."""
    mu = Budget(epsilon=epsilon, delta=delta, relation=relation).mu
    # What may differ by a replaced row is at most two withheld ones.
    return GaussianEvent(replace=mu if relation == "replace" else 2 * mu, withhold=mu)


def ledger_facts(file: Path) -> dict[str, Any] | None:
    """Budget, spent and left; None where there is no ledger yet."""
    from halfmask.accounting.ledger import Ledger

    if not file.exists():
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
