"""Fitting Adult: our linear methods against scikit-learn's LogisticRegression, in one run.

All take the same encoded matrix. Contenders take turns, so that whatever else the machine does
meets all of them alike; `ratio` is the ratio of the medians, `low` and `high` are the 10% and 90%
quantiles of the ratios of the same round.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from halfmask.datasets import load_adult
from halfmask.experiments.adult_erm import all_private
from halfmask.mechanisms.noise import noise_source
from halfmask.table import Encoder, Table
from halfmask.training import train

Progress = Callable[[float, str], None]


def run(progress: Progress | None = None, rounds: int = 7) -> dict[str, Any]:
    """Time everything and return what `halfmask bench linear --json` prints."""
    tell = progress or (lambda share, text: None)
    train_frame, test_frame, schema = load_adult()
    encoder = Encoder.fit(all_private(schema), train_frame)
    table, test = encoder.encode(train_frame), encoder.encode(test_frame)
    contenders = _contenders(table, test)
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    reached: dict[str, list[float]] = {name: [] for name in contenders}
    for turn in range(rounds):
        for name, fit in contenders.items():
            tell((turn + 0.5) / rounds, name)
            started = time.perf_counter()
            score = fit()
            seconds[name].append(time.perf_counter() - started)
            reached[name].append(score())
    ratios = []
    for what in ("one-shot", "gd"):
        for against in contenders:
            if against in ("one-shot", "gd"):
                continue
            each = np.array(seconds[what]) / np.array(seconds[against])
            ratios.append(
                {
                    "what": what,
                    "against": against,
                    "setting": "Adult, epsilon 1, every column and the label private",
                    "ratio": float(np.median(seconds[what]) / np.median(seconds[against])),
                    "low": float(np.quantile(each, 0.1)),
                    "high": float(np.quantile(each, 0.9)),
                }
            )
    return {
        "name": "linear",
        "ratios": ratios,
        "accuracy": {name: float(np.mean(values)) for name, values in reached.items()},
        "seconds": {name: float(np.median(values)) for name, values in seconds.items()},
    }


def _contenders(table: Table, test: Table) -> dict[str, Callable[[], Callable[[], float]]]:
    """Each fits once and returns how to score the fit, so that scoring is not timed."""
    from sklearn.linear_model import LogisticRegression

    X, y = table.private, table.label

    def ours(method: str) -> Callable[[], float]:
        model = train(
            table,
            epsilon=1.0,
            delta=1 / table.n**2,
            relation="replace",
            method=method,
            noise=noise_source(),
        )
        return lambda: float((model.probabilities(test).argmax(1) == test.label).mean())

    def plain() -> Callable[[], float]:
        model = LogisticRegression(max_iter=1000).fit(X, y)
        return lambda: float(model.score(test.private, test.label))

    contenders: dict[str, Callable[[], Callable[[], float]]] = {
        "scikit-learn LogisticRegression": plain,
        "one-shot": lambda: ours("one-shot"),
        "gd": lambda: ours("gd"),
    }
    try:
        from diffprivlib.models import LogisticRegression as PeerRegression
    except Exception:  # it does not import with scikit-learn 1.9; nothing to compare with then
        return contenders

    def peer() -> Callable[[], float]:
        model = PeerRegression(epsilon=1.0, data_norm=table.private_norm).fit(X, y)
        return lambda: float(model.score(test.private, test.label))

    contenders["diffprivlib LogisticRegression"] = peer
    return contenders
