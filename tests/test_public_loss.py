"""Learning curves: short, stored, drawn, and the same whatever the private values are."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from halfmask.accounting.budget import Budget
from halfmask.losses import MOST_POINTS, PublicLoss
from halfmask.mechanisms.noise import noise_source
from halfmask.mechanisms.release import GaussianSeries, PrivateStep
from halfmask.model import Model
from halfmask.neural.config import CorrectionConfig
from halfmask.neural.pretrain import PretrainConfig
from halfmask.table import Table
from halfmask.training import train

SMALL = PretrainConfig(hidden=4, networks=2, epochs=3)


def half_public(n: int = 300, *, label_private: bool = False) -> Table:
    generator = np.random.default_rng(0)
    X = generator.normal(size=(n, 4))
    table = Table.from_arrays(X, (X[:, 0] + X[:, 2] > 0).astype(int))
    return replace(
        table.with_blocks(public=table.private[:, :2], private=table.private[:, 2:]),
        public_norm=table.private_norm,
        public_sources=table.private_sources[:2],
        private_sources=table.private_sources[2:],
        label_private=label_private,
    )


def fit(table: Table, method: str, **options: Any) -> Model:
    return train(
        table,
        Budget(epsilon=4.0, delta=1e-5),
        method=method,
        noise=noise_source(7),
        options=options,
    )


METHODS = [
    ("sgd", {"steps": 150}),
    ("gd", {}),
    ("mlp", {"pretrain": SMALL}),
    ("mlp", {"pretrain": SMALL, "release_share": 0.5, "correction": CorrectionConfig(steps=4)}),
    ("mlp", {"recipe": "algorithm-1", "padding": "zero", "steps": 12, "hidden": SMALL.hidden}),
]


@pytest.mark.parametrize(("method", "options"), METHODS)
def test_methods_with_a_public_label_leave_a_short_curve(
    method: str, options: dict[str, Any]
) -> None:
    details = fit(half_public(), method, **options).details
    steps = [step for step, _ in details["public_loss"]]
    assert 1 <= len(steps) <= MOST_POINTS
    assert steps == sorted(set(steps))
    assert all(np.isfinite(loss) and loss > 0 for _, loss in details["public_loss"])
    assert "loss" in details["public_loss_of"]


@pytest.mark.parametrize(("method", "options"), METHODS)
def test_private_values_reach_a_curve_through_releases_only(
    method: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With every release replaced by a constant, other private values leave the same curve."""

    def series(self: GaussianSeries, value: np.ndarray) -> np.ndarray:
        return np.full_like(np.asarray(value, dtype=float), 0.3)

    def step(self: PrivateStep, contributions: Any) -> np.ndarray:
        return np.full_like(contributions.clipped_sum(np.arange(0), 1.0), 0.01)

    monkeypatch.setattr(GaussianSeries, "release", series)
    monkeypatch.setattr(PrivateStep, "release", step)
    table = half_public()
    other = table.with_blocks(private=-table.private[::-1])
    one, two = (fit(rows, method, **options).details["public_loss"] for rows in (table, other))
    assert one == two


@pytest.mark.parametrize(
    ("method", "label_private"),
    [("sgd", True), ("gd", True), ("dp-sgd", False), ("one-shot", False)],
)
def test_no_curve_where_it_would_have_to_be_paid_for(method: str, label_private: bool) -> None:
    assert "public_loss" not in fit(half_public(label_private=label_private), method).details


def test_networks_trained_in_turn_are_averaged_and_long_runs_thinned() -> None:
    curve = PublicLoss("a loss", steps=1000)
    for step in range(1, 1001):
        curve.note(step, 1.0)
        curve.note(step, 3.0)
    points = curve.details()["public_loss"]
    assert len(points) == MOST_POINTS
    assert points[0] == [1, 2.0]
    assert points[1][0] == 11


def test_nothing_noted_is_nothing_stored() -> None:
    curve = PublicLoss("a loss", steps=3)
    curve.note(1, float("nan"))
    assert curve.details() == {}
