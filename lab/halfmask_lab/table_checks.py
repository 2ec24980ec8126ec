"""What must hold of the default on the tables, judged from measured values. Nothing fails here.

A check is left out where the results lack what it compares. In all of them a number to predict is
judged by R² where a class is judged by log loss or its explained share, within the same margins.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np


class Cell(NamedTuple):
    """One fit, up to its draws; epsilon is None without a guarantee."""

    table: str
    role: str
    method: str
    epsilon: float | None


Measured = Mapping[Cell, Mapping[str, Sequence[float]]]
"""Metrics by name, one value per draw."""

MEAN_KEPT = {"all": 0.60, "half": 0.70, "features": 0.85, "label": 0.87}
WIDER_KEPT = {"all": 0.35, "half": 0.45, "features": 0.70, "label": 0.75}
"""Of tables with several classes, or several rows of a person."""
LEAST_KEPT = {"all": 0.25, "half": 0.35, "features": 0.60, "label": 0.70}
MORE_PUBLIC = (("label", "half"), ("half", "all"), ("features", "half"))
"""Each first role set has all public columns of the second, and more."""
_EBM_BARS = (
    ("dp-ebm", 0.0, "DP-EBM as it comes, same printed epsilon"),
    ("dp-ebm lr 0.05 replace", 0.0, "DP-EBM, learning rate 0.05, noise for replace"),
    ("dp-ebm lr 0.05", 0.001, "DP-EBM, learning rate 0.05, same printed epsilon"),
)
MANY_ROWS = 20_000
OURS = "auto"
_SLACK = 0.005


@dataclass(frozen=True, kw_only=True)
class _Case:
    """A figure and the bar it must not exceed."""

    where: str
    figure: float
    bar: float


def checks(
    measured: Measured, rows: Mapping[str, int], wider: Sequence[str] = ()
) -> list[dict[str, Any]]:
    """Every bar that `measured` can be judged by; `rows` counts those of each table."""
    judged = [
        *_kept({c: m for c, m in measured.items() if c.table not in wider}, MEAN_KEPT),
        *_kept({c: m for c, m in measured.items() if c.table in wider}, WIDER_KEPT),
        *itertools.starmap(_judged, _bars(measured, rows).items()),
    ]
    return [check for check in judged if check is not None]


def _bars(measured: Measured, rows: Mapping[str, int]) -> dict[str, Iterable[_Case]]:
    """The cases of each check by its name."""
    free = "log loss above free, label public"
    many = f"calibration error, epsilon 1 and more, {MANY_ROWS:,} rows and more"
    return {
        f"{free}, mean of draws": _above(measured, "free", 0.002, np.mean),
        f"{free}, any draw": _above(measured, "free", 0.02, np.max),
        "explained below the constant, mean of draws": _lost(measured, np.mean),
        "explained below the constant, any draw": _lost(measured, np.max),
        "explained lost by more public columns": _more_public(measured),
        "explained lost by a larger epsilon": _more_epsilon(measured),
        **{
            f"log loss above {words}": _above(measured, method, bar, np.mean)
            for method, bar, words in _EBM_BARS
        },
        many: _calibration(measured, rows),
        "log loss above a method by name": _by_name(measured),
    }


def _judged(name: str, cases: Iterable[_Case]) -> dict[str, Any] | None:
    """The case nearest to its bar, or farthest beyond it."""
    found = list(cases)
    if not found:
        return None
    worst = max(found, key=lambda case: case.figure - case.bar)
    return {
        "name": name,
        "holds": bool(worst.figure <= worst.bar),
        "worst": worst.figure,
        "bar": worst.bar,
        "where": worst.where,
        "cases": len(found),
        "failed": sum(case.figure > case.bar for case in found),
    }


def _cells(measured: Measured) -> Iterator[tuple[Cell, float]]:
    for cell in measured:
        if cell.method == OURS and cell.epsilon is not None:
            yield cell, cell.epsilon


def _place(cell: Cell) -> str:
    return f"{cell.table}, {cell.role}, epsilon {cell.epsilon:g}"


def _kept(measured: Measured, bars: Mapping[str, float]) -> Iterator[dict[str, Any] | None]:
    """Shares of what the best model without privacy explains, at epsilon 1; bars are floors."""
    for role, mean_bar in bars.items():
        kept = {
            cell.table: float(np.mean(measured[cell]["kept"]))
            for cell, epsilon in _cells(measured)
            if cell.role == role and epsilon == 1
        }
        if not kept:
            continue
        mean, least = float(np.mean(list(kept.values()))), min(kept, key=lambda t: kept[t])
        for name, figure, bar, where in (
            ("mean kept", mean, mean_bar, f"mean of {', '.join(kept)}"),
            *([("least kept", kept[least], LEAST_KEPT[role], least)] if bars is MEAN_KEPT else []),
        ):
            yield {
                "name": f"{name}, role {role}, epsilon 1",
                "holds": bool(figure >= bar),
                "worst": figure,
                "bar": bar,
                "where": where,
                "cases": len(kept),
                "failed": sum(share < bar for share in kept.values())
                if name == "least kept"
                else int(not figure >= bar),
            }


def _loss(values: Mapping[str, Sequence[float]]) -> np.ndarray:
    """What is compared where log losses are: for numbers -R², so that less is better for both."""
    if "log_loss" in values:
        return np.asarray(values["log_loss"], dtype=float)
    return -np.asarray(values["r2"], dtype=float)


def _above(measured: Measured, method: str, bar: float, over_draws: Any) -> Iterator[_Case]:
    """Our loss above that of `method`, which without noise has one result for every epsilon."""
    for cell, epsilon in _cells(measured):
        peer = cell._replace(method=method, epsilon=None if method == "free" else epsilon)
        if peer in measured:
            above = float(over_draws(_loss(measured[cell])) - np.mean(_loss(measured[peer])))
            yield _Case(where=_place(cell), figure=above, bar=bar)


def _lost(measured: Measured, over_draws: Any) -> Iterator[_Case]:
    for cell, _ in _cells(measured):
        lost = float(over_draws(-np.asarray(measured[cell]["explained"])))
        yield _Case(where=_place(cell), figure=lost, bar=_SLACK)


def _standard_error(*samples: Sequence[float]) -> float:
    """Of the difference of two means."""
    return float(np.sqrt(sum(np.var(s, ddof=1) / len(s) for s in samples if len(s) > 1)))


def margin(*samples: Sequence[float]) -> float:
    """By how much the mean of one sample may exceed another's before it counts."""
    return _SLACK + 2 * min(_standard_error(*samples), _SLACK)


def _explained_lost(measured: Measured, better: Cell, worse: Cell, where: str) -> Iterator[_Case]:
    """How much less `better` explains than `worse`, which should explain no more."""
    if better in measured and worse in measured:
        first, second = measured[better]["explained"], measured[worse]["explained"]
        lost = float(np.mean(second) - np.mean(first))
        yield _Case(where=where, figure=lost, bar=margin(first, second))


def _more_public(measured: Measured) -> Iterator[_Case]:
    for cell, epsilon in _cells(measured):
        for more, less in MORE_PUBLIC:
            if cell.role == more:
                where = f"{cell.table}, {more} against {less}, epsilon {epsilon:g}"
                yield from _explained_lost(measured, cell, cell._replace(role=less), where)


def _more_epsilon(measured: Measured) -> Iterator[_Case]:
    pairs = itertools.product(_cells(measured), repeat=2)
    for (larger, high), (smaller, low) in pairs:
        if larger[:3] == smaller[:3] and high > low:
            where = f"{larger.table}, {larger.role}, epsilon {high:g} against {low:g}"
            yield from _explained_lost(measured, larger, smaller, where)


def _calibration(measured: Measured, rows: Mapping[str, int]) -> Iterator[_Case]:
    for cell, epsilon in _cells(measured):
        if epsilon >= 1 and rows[cell.table] >= MANY_ROWS:
            if "rmse" in measured[cell]:
                continue  # of a number it is in the number's own unit
            error = float(np.mean(measured[cell]["calibration_error"]))
            yield _Case(where=_place(cell), figure=error, bar=0.02)


def _by_name(measured: Measured) -> Iterator[_Case]:
    """The default against the product's other methods, where they were asked for."""
    for cell, _ in _cells(measured):
        for other in measured:
            named = other.method != OURS and not other.method.startswith("dp-ebm")
            if named and other == cell._replace(method=other.method):
                first, second = _loss(measured[cell]), _loss(measured[other])
                above = float(np.mean(first) - np.mean(second))
                where = f"{_place(cell)}, against {other.method}"
                bar = margin(first.tolist(), second.tolist())
                yield _Case(where=where, figure=above, bar=bar)
