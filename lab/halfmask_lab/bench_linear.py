"""Fitting tables: our methods against scikit-learn's, in one run.

On Adult all take the same encoded rows; on the patients of `diabetes` (where HALFMASK_DATA names
the folder of published files) the default takes levels and HistGradientBoosting the same levels as
numbers. Contenders take turns, so that whatever else the machine does meets all of them alike;
`ratio` is the ratio of the medians, `low` and `high` are the 10% and 90% quantiles of the ratios of
the same round.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression

from halfmask.datasets import all_private, load_adult
from halfmask.table import Encoder, Table
from halfmask_lab.results import Progress, accuracy, models, ratio_row, silent
from halfmask_lab.tables import load_rows

Contenders = dict[str, Callable[[], Callable[[], float]]]

OURS = ("additive", "one-shot", "gd")
DATA = "HALFMASK_DATA"


def run(tell: Progress = silent, rounds: int = 7) -> dict[str, Any]:
    """Time everything and return what `halfmask bench linear --json` prints."""
    train_frame, test_frame, schema = load_adult()
    encoder = Encoder.fit(all_private(schema), train_frame)
    adult = _contenders(encoder.encode(train_frame), encoder.encode(test_frame))
    settings = {"Adult": adult}
    folder = os.environ.get(DATA)
    left_out = []
    if folder:
        settings["diabetes"] = _patients(Path(folder))
    else:
        left_out.append({"setting": "diabetes", "reason": f"{DATA} names no folder of files"})
    ratios: list[dict[str, Any]] = []
    right: dict[str, dict[str, float]] = {}
    medians: dict[str, dict[str, float]] = {}
    for place, (name, contenders) in enumerate(settings.items()):

        def told(share: float, text: str, place: int = place) -> None:
            tell((place + share) / len(settings), text)

        seconds, reached = _timed(contenders, rounds, told)
        ratios += _ratios(seconds, f"{name}, epsilon 1, every column and the label private")
        right[name] = {each: float(np.mean(values)) for each, values in reached.items()}
        medians[name] = {each: float(np.median(values)) for each, values in seconds.items()}
    return {
        "name": "linear",
        "ratios": ratios,
        "accuracy": right,
        "seconds": medians,
        "left_out": left_out,
    }


def _timed(
    contenders: Contenders, rounds: int, tell: Progress
) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """Seconds and accuracy of each contender, round by round."""
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    reached: dict[str, list[float]] = {name: [] for name in contenders}
    for turn in range(rounds):
        for name, fit in contenders.items():
            tell((turn + 0.5) / rounds, name)
            started = time.perf_counter()
            score = fit()
            seconds[name].append(time.perf_counter() - started)
            reached[name].append(score())
    return seconds, reached


def _ratios(seconds: dict[str, list[float]], setting: str) -> list[dict[str, Any]]:
    return [
        ratio_row(what, against, setting, seconds[what], seconds[against])
        for what in OURS
        if what in seconds
        for against in seconds
        if against not in OURS
    ]


def _ours(table: Table, test: Table, method: str) -> Callable[[], float]:
    [model] = models(table, 1.0, 1 / table.n**2, draws=1, seed=None, method=method)
    return lambda: accuracy(model, test)


def _theirs(model: Any, known: tuple[Any, Any], asked: tuple[Any, Any]) -> Callable[[], float]:
    model.fit(*known)
    return lambda: float(model.score(*asked))


def _patients(folder: Path) -> Contenders:
    """The default and boosted trees on the first row of each patient, readmitted soon or not."""
    rows = load_rows("diabetes", folder)
    encoder = Encoder.fit(rows.with_roles("all"), rows.train)
    table, test = encoder.encode(rows.train), encoder.encode(rows.test)

    def levels(of: Table) -> np.ndarray:
        return np.column_stack([column.codes for column in of.coded]).astype(np.float64)

    known, asked = (levels(table), table.label), (levels(test), test.label)
    return {
        "scikit-learn HistGradientBoosting": partial(
            _theirs, HistGradientBoostingClassifier(), known, asked
        ),
        "additive": lambda: _ours(table, test, "additive"),
    }


def _contenders(table: Table, test: Table) -> Contenders:
    """Each fits once and returns how to score the fit, so that scoring is not timed."""
    rows = (table.private, table.label), (test.private, test.label)
    contenders: Contenders = {
        "scikit-learn LogisticRegression": partial(
            _theirs, LogisticRegression(max_iter=1000), *rows
        ),
        **{method: partial(_ours, table, test, method) for method in OURS},
    }
    try:
        from diffprivlib.models import LogisticRegression as PeerRegression
    except Exception:  # it does not import with scikit-learn 1.9; nothing to compare with then
        return contenders
    peer = PeerRegression(epsilon=1.0, data_norm=table.private_norm)
    contenders["diffprivlib LogisticRegression"] = partial(_theirs, peer, *rows)
    return contenders
