"""Bounds, noise and targets of a share, each written out by hand or searched for by force."""

from __future__ import annotations

import math

import numpy as np
import pytest

from halfmask.accounting.budget import Budget
from halfmask.accounting.events import GaussianEvent
from halfmask.accounting.ledger import MemoryLedger
from halfmask.errors import InputError
from halfmask.mechanisms.noise import noise_source
from halfmask.mechanisms.release import Releaser
from halfmask.vertical import admm_party
from halfmask.vertical.admm import AdmmConfig
from halfmask.vertical.admm_party import (
    AdmmParty,
    ShareNoise,
    column_sensitivity,
    displacement_sensitivity,
    row_sensitivity,
    share_noise,
    share_target,
)
from halfmask.vertical.block import Ball
from halfmask.vertical.channel import RefusedError

SLACK = 1 + 1e-6


def test_a_moved_table_moves_a_share_by_the_least_of_two_bounds():
    def at(**changed):
        given = {"target_norm": 3.0, "kappa": 4.0, "displacement": 1.0, "exact_ridge": True}
        return displacement_sensitivity(**{**given, **changed}) / SLACK

    assert at() == pytest.approx(3.0 * 0.5)
    assert at(displacement=10.0) == pytest.approx(3.0)
    assert at(exact_ridge=False) == pytest.approx(3.0)
    assert at(kappa=0.0) == pytest.approx(3.0)
    assert displacement_sensitivity(
        target_norm=1.0, kappa=0.0, displacement=1.0, exact_ridge=False
    ) == pytest.approx(SLACK, rel=1e-12)
    for bad in (-1e-9, math.nan):
        with pytest.raises(InputError, match="kappa"):
            at(kappa=bad)


def test_a_replaced_row_moves_twice_its_norm_and_a_withheld_one_once():
    found = column_sensitivity(target_norm=2.0, kappa=100.0, row_norm=0.5, exact_ridge=True)
    assert found.replace == pytest.approx(SLACK * 2.0 * 1.0 / 10)
    assert found.withhold == pytest.approx(SLACK * 2.0 * 0.5 / 10)
    assert found.column == pytest.approx(SLACK * 2.0 * 1.0 / 10)


@pytest.mark.parametrize("kappa", [0.0, 0.3, 2.0, 50.0])
@pytest.mark.parametrize(
    ("bound", "radius", "norm"), [(4.0, 2.0, 1.0), (0.5, 3.0, 0.7), (40.0, 2.0, 1.0)]
)
def test_row_bounds_are_the_highest_point_over_all_moves(kappa, bound, radius, norm):
    """docs/proofs/admm_row.md, searched for on a grid."""
    h = np.linspace(0, 2 * radius, 2_000_001)
    amplitude = norm * radius + bound
    others = np.max(np.minimum(amplitude**2 / 2, 2 * norm * amplitude * h) - kappa * h**2)
    withheld = np.max(np.minimum(amplitude**2 / 4, norm * amplitude * h) - kappa * h**2)
    found = row_sensitivity(target_bound=bound, kappa=kappa, row_norm=norm, radius=radius)
    reach = norm * radius
    assert found.replace == pytest.approx(SLACK * math.sqrt((2 * reach) ** 2 + others), rel=5e-7)
    assert found.withhold == pytest.approx(SLACK * math.sqrt(reach**2 + withheld), rel=5e-7)
    assert found.column is None


def test_only_two_kinds_of_noise_have_a_guarantee_and_one_a_smaller_cost_of_withholding():
    assert [ShareNoise(kind=k).is_private for k in ("none", "as-written", "column", "row")] == [
        False, False, True, True
    ]  # fmt: skip
    assert ShareNoise(kind="row").withhold_share == math.sqrt(0.5)
    assert ShareNoise(kind="column").withhold_share == 1.0
    # Nothing is drawn and nothing paid for where nothing is asked for.
    none = ShareNoise()
    assert (none.kind, none.rounds, none.ratio, none.std) == ("none", 0, 0.0, 0.0)


def test_noise_spends_the_budget_of_its_relation_on_all_rounds():
    config = AdmmConfig(noise="row", rounds=7, noise_radius=1.5, target_bound=2.5)
    budget = Budget(epsilon=1.0, delta=1e-6)
    made = share_noise(config, budget, 0.8)
    assert (made.kind, made.rounds, made.row_norm) == ("row", 7, 0.8)
    assert (made.radius, made.target_bound) == (1.5, 2.5)
    assert made.ratio == budget.mu
    apart = Budget(epsilon=1.0, delta=1e-6, relation="withhold")
    assert share_noise(config, apart, 0.8).ratio == pytest.approx(apart.mu * math.sqrt(2))
    with pytest.raises(InputError, match="needs a budget"):
        share_noise(config, None, 0.8)
    plain = share_noise(AdmmConfig(noise="none", rounds=7), None, 0.8)
    assert (plain.kind, plain.ratio, plain.rounds) == ("none", 0.0, 0)


def target(**changed):
    given = {
        "residual": np.array([3.0, -3.0]), "dual": np.array([1.0, 2.0]), "rho": 0.5, "divisor": 2,
        "released": np.array([10.0, 20.0]), "strength": 2.0, "regulariser": "l2",
        "noise": ShareNoise(),
    }  # fmt: skip
    return share_target(**{**given, **changed})


def test_the_target_is_what_was_released_less_residual_and_dual():
    made, kappa = target()
    assert kappa == 4.0
    assert made.tolist() == [10 - 1.5 - 2, 20 + 1.5 - 4]
    clipped, _ = target(noise=ShareNoise(kind="row", target_bound=7.0))
    assert clipped.tolist() == [6.5, 7.0]
    below, _ = target(released=np.array([-10.0, 0.0]), noise=ShareNoise(kind="row"))
    assert below.tolist() == [-4.0, -2.5]


def test_targets_are_refused_where_rounding_or_range_would_break_the_bound():
    assert target(strength=1e100, rho=1.0)[1] == 1e100
    with pytest.raises(RefusedError, match="at least"):
        target(strength=1e100, rho=0.999)
    row = ShareNoise(kind="row", row_norm=3.0)
    # kappa may be as small as 1e-8 times rows times the square of their norm, here 1.8e-7.
    assert target(strength=1.8e-7, rho=1.0, noise=row)[1] == 1.8e-7
    with pytest.raises(RefusedError, match="rounding"):
        target(strength=1.7e-7, rho=1.0, noise=row)
    assert target(strength=1.7e-7, rho=1.0)[1] == 1.7e-7
    assert target(strength=1.7e-7, rho=1.0, noise=row, regulariser="l1")[1] == 1.7e-7
    assert target(strength=0.0, rho=1.0, noise=row)[1] == 0.0
    assert target(divisor=1_000_000)[1] == 4.0
    for divisor in (0, 1_000_001):
        with pytest.raises(RefusedError):
            target(divisor=divisor)


class Quiet:
    """Draws no noise, and says how much it was to draw."""

    def __init__(self, monkeypatch):
        self.stds = []
        monkeypatch.setattr("halfmask.mechanisms.release.add_gaussian", self)

    def __call__(self, value, noise_std, source):
        self.stds.append(noise_std)
        return np.asarray(value)


def party(matrix, releaser, kind="column", **options):
    noise = ShareNoise(kind=kind, rounds=9, ratio=0.5)
    return AdmmParty(matrix, strength=2.0, noise=noise, releaser=releaser, **options)


def asked(side, rows):
    return side.share(residual=-np.ones(rows), dual=np.zeros(rows), rho=1.0, divisor=1)


@pytest.mark.parametrize("kind", ["column", "row"])
def test_without_its_noise_a_share_is_the_solution_of_its_round(releaser, monkeypatch, kind):
    quiet = Quiet(monkeypatch)
    matrix = np.random.default_rng(2).normal(size=(6, 2)) / 4
    door = releaser()
    side = party(matrix, door, kind)
    (event,) = door.events
    assert isinstance(event, GaussianEvent)
    assert (event.count, event.replace) == (9, 0.5 / 3)
    assert event.withhold == pytest.approx(event.replace * side.noise.withhold_share, rel=1e-12)
    found = asked(side, 6)
    ridge = np.linalg.solve(matrix.T @ matrix + 2 * np.eye(2), matrix.T @ np.ones(6))
    assert found == pytest.approx(matrix @ ridge, rel=1e-6)
    # In units of its bound: the noise of all rounds, whatever the target.
    assert quiet.stds == pytest.approx([math.sqrt(9) / 0.5], rel=1e-6)
    assert side._bound(np.ones(6), 2.0) == pytest.approx(
        column_sensitivity(
            target_norm=math.sqrt(6), kappa=2.0, row_norm=1.0, exact_ridge=True
        ).replace
        if kind == "column"
        else row_sensitivity(target_bound=4.0, kappa=2.0, row_norm=1.0, radius=2.0).replace
    )


def test_a_share_that_a_solver_left_outside_is_put_into_its_ball(releaser, monkeypatch):
    """docs/proofs/admm_column.md: the solution lies in the ball around half of the target."""
    Quiet(monkeypatch)
    matrix = np.eye(4)
    side = party(matrix, releaser(), constraint=Ball(radius=5.0))
    monkeypatch.setattr(side.block, "solve", lambda *a, **k: np.array([9.0, 0.0, 0.0, 0.0]))
    half = np.ones(4) / 2
    bound = SLACK * 2.0
    beyond = np.array([9.0, 0.0, 0.0, 0.0]) - half
    expected = half + beyond / np.linalg.norm(beyond) * bound / 2
    assert asked(side, 4) == pytest.approx(expected, rel=1e-6)
    exact = party(matrix, releaser())
    monkeypatch.setattr(exact.block, "solve", lambda *a, **k: np.array([9.0, 0.0, 0.0, 0.0]))
    assert asked(exact, 4) == pytest.approx([9.0, 0.0, 0.0, 0.0], abs=1e-6)


def test_a_target_of_zero_is_a_share_of_zero_without_noise(releaser, monkeypatch):
    quiet = Quiet(monkeypatch)
    side = party(np.eye(3), releaser())
    found = side.share(residual=np.zeros(3), dual=np.zeros(3), rho=1.0, divisor=1)
    assert found.tolist() == [0.0, 0.0, 0.0]
    assert quiet.stds == []


@pytest.mark.parametrize(("ratio", "rounds"), [(0.0, 3), (0.1, 0), (-0.1, 3), (0.1, -1)])
def test_noise_of_no_ratio_or_no_rounds_is_refused(releaser, ratio, rounds):
    noise = ShareNoise(kind="column", rounds=rounds, ratio=ratio)
    with pytest.raises(InputError, match="ratio > 0"):
        AdmmParty(np.eye(2), strength=1.0, noise=noise, releaser=releaser())
    with pytest.raises(InputError, match="needs a releaser"):
        AdmmParty(np.eye(2), strength=1.0, noise=ShareNoise(kind="column", rounds=1, ratio=0.1))
    assert admm_party.SLACK == SLACK


def test_all_rounds_are_paid_before_the_first_share_even_of_nothing():
    book = MemoryLedger(epsilon=50.0, delta=1e-6)
    door = Releaser(book, noise_source(0), whole_plan=True)
    side = party(np.eye(3), door)
    assert book.spent() == 0.0
    side.share(residual=np.zeros(3), dual=np.zeros(3), rho=1.0, divisor=1)
    assert book.spent() > 0


def test_noise_as_written_is_put_on_the_coefficients(releaser, monkeypatch):
    matrix = np.random.default_rng(2).normal(size=(6, 2)) / 4
    door = releaser()
    monkeypatch.setattr(door, "unpaid_normal", lambda size: np.array([1.0, -2.0])[:size])
    noise = ShareNoise(kind="as-written", std=0.25)
    side = AdmmParty(matrix, strength=2.0, noise=noise, releaser=door)
    ridge = np.linalg.solve(matrix.T @ matrix + 2 * np.eye(2), matrix.T @ np.ones(6))
    assert asked(side, 6) == pytest.approx(matrix @ (ridge + np.array([0.25, -0.5])), rel=1e-9)
    plain = AdmmParty(matrix, strength=2.0, noise=ShareNoise(), releaser=door)
    assert asked(plain, 6) == pytest.approx(matrix @ ridge, rel=1e-9)


@pytest.mark.parametrize(("strength", "inside"), [(1.0, False), (0.0, True)])
def test_an_exact_ridge_is_left_where_it_is_and_no_ridge_is_put_into_its_ball(
    releaser, monkeypatch, strength, inside
):
    Quiet(monkeypatch)
    noise = ShareNoise(kind="column", rounds=1, ratio=0.5)
    side = AdmmParty(np.eye(4), strength=strength, noise=noise, releaser=releaser())
    monkeypatch.setattr(side.block, "solve", lambda *a, **k: np.array([9.0, 0.0, 0.0, 0.0]))
    share = asked(side, 4)
    from_half = np.linalg.norm(share - 0.5)
    assert (from_half <= 1.0 + 1e-5) == inside
    if not inside:
        assert share == pytest.approx([9.0, 0.0, 0.0, 0.0], abs=1e-6)
