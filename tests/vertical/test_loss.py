"""Proximal steps against brute force, and slopes against differences."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar

from halfmask.errors import InputError
from halfmask.vertical.admm import ADMM_LOSSES, admm_loss


@pytest.mark.parametrize("name", ADMM_LOSSES)
@settings(max_examples=60, deadline=None)
@given(
    point=st.floats(-1e3, 1e3),
    log_c=st.floats(-3, 3),
    target=st.sampled_from([-1.0, 1.0]),
    start=st.floats(-1e6, 1e6),
)
def test_prox_minimises(name, point, log_c, target, start):
    loss, c = admm_loss(name), 10.0**log_c
    one = lambda value: np.array([value])  # noqa: E731
    z = loss.prox(one(point), one(target), c, one(start))[0]

    def objective(value):
        return float(loss.value(one(value), one(target))[0] + c / 2 * (value - point) ** 2)

    near = minimize_scalar(objective, bracket=(z - 1, z + 1)).fun
    assert objective(z) <= near + 1e-9 * (1 + abs(near))


@pytest.mark.parametrize("name", ADMM_LOSSES)
def test_slope_is_the_derivative(name):
    loss = admm_loss(name)
    scores = np.linspace(-3.03, 3.01, 41)
    for target in (-1.0, 1.0):
        targets = np.full_like(scores, target)
        numeric = (loss.value(scores + 1e-6, targets) - loss.value(scores - 1e-6, targets)) / 2e-6
        assert np.allclose(loss.slope(scores, targets), numeric, atol=1e-4)


def test_logistic_prox_solves_every_row_to_full_precision():
    rng = np.random.default_rng(0)
    points, targets = rng.normal(size=20_000) * 30, rng.choice([-1.0, 1.0], size=20_000)
    loss = admm_loss("logistic")
    for c in (1e-4, 0.1, 50.0):
        z = loss.prox(points, targets, c, rng.normal(size=20_000) * 100)
        residual = loss.slope(z, targets) + c * (z - points)
        assert np.max(np.abs(residual) / (1 + np.abs(c * points))) < 1e-12


@pytest.mark.parametrize("c", [0.01, 0.25, 10.0])
def test_rows_that_have_settled_are_not_disturbed(monkeypatch, c):
    """From a near start a few Newton steps settle every row; none is thrown back by rounding."""
    from halfmask.vertical import admm as module

    rng = np.random.default_rng(1)
    points, targets = rng.normal(size=5000) * 3, rng.choice([-1.0, 1.0], size=5000)
    found = admm_loss("logistic").prox(points, targets, c, points)
    steps = []
    exact = module.expit
    monkeypatch.setattr(module, "expit", lambda z: steps.append(1) or exact(z))
    again = admm_loss("logistic").prox(points, targets, c, found + 0.01 * rng.normal(size=5000))
    assert np.allclose(again, found, atol=1e-9)
    assert len(steps) <= 8


def test_unknown_loss_is_named():
    with pytest.raises(InputError, match="smoothed-hinge"):
        admm_loss("huber")
