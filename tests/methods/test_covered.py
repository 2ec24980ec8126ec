"""Scores that the guarantee covers: as often within their bars of fresh rows' as bars promise."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import expit, logit, softmax
from sklearn.metrics import roc_auc_score

from halfmask import HalfmaskClassifier, HalfmaskRegressor, Schema
from halfmask.accounting.ledger import MemoryLedger
from halfmask.mechanisms.noise import noise_source
from halfmask.mechanisms.release import Releaser
from halfmask.methods.additive_descent import Stage
from halfmask.methods.covered import PublicAlone, covered_classes, covered_many, covered_numbers
from halfmask.scoring import judge

Floats = np.ndarray


class Moved:
    """A stage without noise that keeps what is released, to see how far a row moves it."""

    def __init__(self) -> None:
        self.value, self.moves = np.zeros(0), (0.0, 0.0)

    def noise(self, moves: tuple[float, float]) -> float:
        return 1e-3

    def release(self, value: Floats, moves: tuple[float, float]) -> Floats:
        self.value, self.moves = value, moves
        return value


def stage(mu: float, seed: int) -> Stage:
    ledger = MemoryLedger(epsilon=100.0, delta=1e-6, relation="replace")
    return Stage(Releaser(ledger, noise_source(seed)), mu, 1.0, 1, 1.0, "scores")


def rows(count: int, rng: np.random.Generator) -> tuple[Floats, Floats]:
    scores = -1.5 + rng.normal(size=count)
    return scores, (rng.random(count) < expit(scores)).astype(float)


def log_loss(scores: Floats, target: Floats) -> float:
    return float(np.mean(np.logaddexp(0, scores) - target * scores))


@pytest.mark.parametrize("missing", [False, True])
@pytest.mark.parametrize("mu", [0.1, 1.0])
def test_fresh_rows_score_within_the_bars_as_often_as_promised(mu: float, missing: bool) -> None:
    rng, draws, count = np.random.default_rng(1), 150, 4_000
    inside = {"log_loss": 0, "auc": 0, "parts": 0}
    parts = 0
    for seed in range(draws):
        scores, target = rows(count, rng)
        weights = (rng.random(count) < 0.8).astype(float) if missing else np.ones(count)
        found = covered_classes(
            scores,
            target,
            weights,
            stage(mu, seed),
            float(logit(0.22)),
            1.0,
            rows=None if missing else float(count),
            most=1.0,
        )
        other, truth = rows(int(weights.sum()), rng)
        apart = {
            "log_loss": found["log_loss"] - log_loss(other, truth),
            "auc": found["auc"] - float(roc_auc_score(truth, other)),
        }
        for name, gap in apart.items():
            inside[name] += abs(gap) <= found[f"{name}_bar"]
        for part in found["reliability"]:
            parts += 1
            inside["parts"] += abs(part["observed"] - part["predicted"]) <= part["bar"]
    assert inside["log_loss"] / draws >= 0.9
    assert inside["auc"] / draws >= 0.9
    assert parts > 2 * draws
    assert inside["parts"] / parts >= 0.9


def test_bars_are_no_wider_than_noise_and_luck_make_them() -> None:
    """With little noise, errors are a fair part of the bars: bars that always hold say nothing."""
    rng, gaps = np.random.default_rng(2), []
    for seed in range(150):
        scores, target = rows(4_000, rng)
        found = covered_classes(
            scores,
            target,
            np.ones(4_000),
            stage(0.1, seed),
            float(logit(0.22)),
            1.0,
            rows=4_000.0,
            most=1.0,
        )
        other, truth = rows(4_000, rng)
        gaps.append((found["log_loss"] - log_loss(other, truth)) / found["log_loss_bar"])
    assert 0.35 < float(np.std(gaps)) < 0.6


def test_numbers_too() -> None:
    rng, inside, draws = np.random.default_rng(3), 0, 100
    for seed in range(draws):
        errors, fresh = rng.normal(0, 0.3, 3_000), rng.normal(0, 0.3, 3_000)
        found = covered_numbers(
            errors, np.ones(3_000), stage(0.2, seed), 0.3, 5.0, rows=3_000.0, most=1.0
        )
        inside += abs(found["rmse"] - 5 * math.sqrt(np.mean(fresh**2))) <= found["rmse_bar"]
    assert inside / draws >= 0.9


@given(
    base=st.floats(-6, 6),
    spread=st.floats(0.2, 8),
    one=st.tuples(st.floats(-60, 60), st.booleans()),
    two=st.tuples(st.floats(-60, 60), st.booleans()),
)
def test_no_row_moves_the_release_beyond_its_moves(
    base: float, spread: float, one: tuple[float, bool], two: tuple[float, bool]
) -> None:
    values = []
    for (score, yes), weight in ((one, 1.0), (two, 1.0), (one, 0.0)):
        seen = Moved()
        covered_classes(
            np.array([score, 0.0]),
            np.array([float(yes), 1.0]),
            np.array([weight, 1.0]),
            seen,  # type: ignore[arg-type]
            base,
            spread,
            rows=2.0,
            most=1.0,
        )
        values.append(seen.value)
    replaced, withheld = seen.moves
    assert np.linalg.norm(values[0] - values[1]) <= replaced + 1e-9
    assert np.linalg.norm(values[0] - values[2]) <= withheld + 1e-9


def alone(scores: Floats, base: Floats, target: Floats) -> PublicAlone:
    return PublicAlone.of(
        scores, scores, base, target.astype(np.intp), constant=0.5, constant_noise=0.01
    )


@pytest.mark.parametrize("missing", [False, True])
@pytest.mark.parametrize("mu", [0.1, 1.0])
def test_fresh_rows_score_within_the_bar_of_public_columns_alone(mu: float, missing: bool) -> None:
    """Also where public scores say too much: the gain is of labels, not of what scores expect."""
    rng, draws, count, steep = np.random.default_rng(6), 120, 4_000, 1.3
    inside, gaps = 0, []
    for seed in range(draws):
        (scores, target), (other, truth) = rows(count, rng), rows(count, rng)
        weights = (rng.random(count) < 0.8).astype(float) if missing else np.ones(count)
        base = float(logit(target.mean()))
        held = alone(base + steep * (scores + 1.5), np.array([0.0, base]), target)
        constant = log_loss(np.full(count, base), target)
        found = covered_classes(
            scores,
            target,
            weights,
            stage(mu, seed),
            base,
            1.0,
            rows=None if missing else float(count),
            most=1.0,
            public=replace(held, constant=constant, constant_noise=0.0),
        )["public_alone"]
        gap = found["log_loss"] - log_loss(base + steep * (other + 1.5), truth)
        inside += abs(gap) <= found["log_loss_bar"]
        gaps.append(gap / found["log_loss_bar"])
    assert inside / draws >= 0.9
    assert float(np.std(gaps)) > 0.25, "bars that always hold say nothing"


def test_numbers_of_public_columns_alone_too() -> None:
    rng, inside, draws = np.random.default_rng(7), 0, 100
    for seed in range(draws):
        errors, public, fresh = rng.normal(0, [[0.3], [0.4], [0.4]], (3, 3_000))
        found = covered_numbers(
            errors, np.ones(3_000), stage(0.2, seed), 0.3, 5.0, rows=3_000.0, most=1.0,
            public=public,
        )["public_alone"]  # fmt: skip
        inside += abs(found["rmse"] - 5 * math.sqrt(np.mean(fresh**2))) <= found["rmse_bar"]
    assert inside / draws >= 0.9


scores_of = st.lists(st.floats(-60, 60), min_size=3, max_size=3)


@given(
    base=st.lists(st.floats(-6, 6), min_size=3, max_size=3),
    public=scores_of,
    other=scores_of,
    one=st.tuples(scores_of, st.integers(0, 2)),
    two=st.tuples(scores_of, st.integers(0, 2)),
)
def test_no_row_moves_what_public_columns_alone_gain_beyond_its_limit(
    base: list[float],
    public: list[float],
    other: list[float],
    one: tuple[list[float], int],
    two: tuple[list[float], int],
) -> None:
    """A row keeps its public scores; its label and what private columns say may be anything."""
    known = np.array([public, other]).T
    values = []
    for (scores, label), weight in ((one, 1.0), (two, 1.0), (one, 0.0)):
        seen, target = Moved(), np.array([label, 1])
        covered_many(
            np.array([scores, [0.0, 0.0, 0.0]]).T,
            np.arange(3),
            np.zeros(3),
            target,
            np.array([weight, 1.0]),
            seen,  # type: ignore[arg-type]
            rows=2.0,
            most=1.0,
            public=alone(known, np.array(base), target),
        )
        values.append(seen.value)
    replaced, withheld = seen.moves
    assert np.linalg.norm(values[0] - values[1]) <= replaced + 1e-9
    assert np.linalg.norm(values[0] - values[2]) <= withheld + 1e-9
    assert abs(values[0][-1] - values[1][-1]) <= math.sqrt(0.1) + 1e-9
    assert abs(values[0][-1] - values[2][-1]) <= math.sqrt(0.1) + 1e-9


@given(
    errors=st.tuples(st.floats(-9, 9), st.floats(-9, 9)),
    public=st.tuples(st.floats(-9, 9), st.floats(-9, 9)),
    missing=st.booleans(),
)
def test_no_row_moves_squared_errors_beyond_their_moves(
    errors: tuple[float, float], public: tuple[float, float], missing: bool
) -> None:
    values = []
    for place, weight in ((0, 1.0), (1, 1.0), (0, 0.0)):
        seen = Moved()
        covered_numbers(
            np.array([errors[place], 0.0]),
            np.array([weight, 1.0]),
            seen,  # type: ignore[arg-type]
            0.5,
            1.0,
            rows=None if missing else 2.0,
            most=1.0,
            public=np.array([public[place], 0.0]),
        )
        values.append(seen.value)
    assert np.linalg.norm(values[0] - values[1]) <= seen.moves[0] + 1e-9
    assert np.linalg.norm(values[0] - values[2]) <= seen.moves[1] + 1e-9


def test_nothing_but_noise_leaves_no_curve() -> None:
    scores, target = rows(20, np.random.default_rng(4))
    found = covered_classes(
        scores, target, np.ones(20), stage(0.01, 1), -1.0, 1.0, rows=20.0, most=1.0
    )
    assert found["reliability"] == []
    assert (found["auc"], found["auc_bar"]) == (0.5, 0.5)


def drawn(rng: np.random.Generator, kind: str) -> pa.Table:
    """Six columns that tell a label, every second one public."""
    values = 0.5 * rng.normal(size=3_000) + 0.9 * rng.normal(size=(6, 3_000))
    score = np.array([0.6, -0.4, 0.6, 0.4, -0.6, 0.4]) @ values
    if kind == "number":
        label: Floats = np.clip(score + rng.normal(size=3_000), -6, 6)
    elif kind == "two":
        label = np.where(rng.random(3_000) < expit(score - 1.2), "b", "a")
    else:
        chances = softmax(np.stack([0 * score, score, -1 - score]), axis=0)
        label = np.array(list("abc"))[(rng.random(3_000) > np.cumsum(chances, axis=0)[:2]).sum(0)]
    return pa.table({**{f"x{place}": own for place, own in enumerate(values)}, "y": label})


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["two", "three", "number"])
def test_whole_trainings_tell_public_columns_alone_within_the_bar(kind: str) -> None:
    """Weights of public columns are fitted to other noise: their score is not told too well."""
    told = {"number": {"bounds": [-6, 6]}, "two": {"classes": ["a", "b"]}}
    label = {"name": "y", "role": "private", **told.get(kind, {"classes": ["a", "b", "c"]})}
    number = {"kind": "number", "bounds": [-4, 4]}
    columns = {f"x{p}": {"role": ("public", "private")[p % 2], **number} for p in range(6)}
    schema = Schema.from_dict({"label": label, "columns": columns})
    name = "rmse" if kind == "number" else "log_loss"
    make = HalfmaskRegressor if kind == "number" else HalfmaskClassifier
    gaps = []
    for seed in range(40):
        rng = np.random.default_rng(seed)
        estimator = make(schema, epsilon=2.0, delta=1e-6, unsafe_seed=seed)
        model = estimator.fit(drawn(rng, kind)).model_
        found = model.details["covered"]["public_alone"]
        fresh = judge(model, [model.encode(drawn(rng, kind), with_label=True)])
        truth = fresh["public_columns_alone"][name]
        gaps.append((found[name] - truth) / found[f"{name}_bar"])
    assert float(np.mean(np.abs(gaps) <= 1)) >= 0.9
    assert abs(float(np.mean(gaps))) < 0.3, "told too well, or too badly"
