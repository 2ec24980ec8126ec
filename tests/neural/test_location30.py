"""The Location-30 experiment: its tables, its report and its figure."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from halfmask.experiments import location30


def made_up() -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(0)
    rows = (generator.random((4100, location30.LOCATION_COLUMNS)) < 0.1).astype(np.uint8)
    return rows, generator.integers(0, location30.LOCATION_CLASSES, 4100)


def test_a_seed_draws_public_columns_and_test_rows() -> None:
    one, test = location30.split(*made_up(), 1)
    two, _ = location30.split(*made_up(), 2)
    assert one.schema is not None
    assert two.schema is not None
    assert one.n == location30.TRAIN_ROWS
    assert test.n == 100
    assert len(one.schema.public) == location30.PUBLIC_COLUMNS
    assert one.schema.public != two.schema.public
    assert not one.label_private


def test_the_report_has_a_row_per_curve_and_tunes_baselines_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[dict[str, Any]] = []

    def accuracy(train: Any, test: Any, epsilon: float, seed: int, **options: Any) -> float:
        asked.append(options)
        return 0.5 + options.get("learning_rate", 0.0) / 10

    monkeypatch.setattr(location30, "load_location30", lambda folder: made_up())
    monkeypatch.setattr(location30, "accuracy", accuracy)
    monkeypatch.setattr(location30, "without_privacy", lambda train, test, seed: 0.9)
    report = location30.run(out=tmp_path, draws=2, epsilons=(1.0, 8.0))
    found = {(row["method"], row["epsilon"]): row for row in report["results"]}
    assert set(found) == {
        ("non-private", None),
        *((method, epsilon) for method in ("auto", "dp-sgd", "sgd") for epsilon in (1.0, 8.0)),
    }
    assert all(row["draws"] == 2 for row in report["results"])
    assert report["tuned"]["dp-sgd"]["1"]["learning_rate"] == 1.0
    tuning = 2 * (len(location30.DP_SGD_GRID) + len(location30.PAPER_GRID))
    assert len(asked) == tuning + 2 * 2 + 2 * 2
    assert Path(report["figure"]).stat().st_size > 0
