"""One-shot: there is one release with calibrated noise, and it learns."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from sklearn.kernel_approximation import RBFSampler

from halfmask.accounting.budget import Budget
from halfmask.accounting.gaussian import gaussian_mu
from halfmask.accounting.ledger import MemoryLedger
from halfmask.datasets import load_adult
from halfmask.errors import BudgetExceededError, InputError
from halfmask.features import PublicPCA
from halfmask.mechanisms.noise import noise_source
from halfmask.mechanisms.release import Releaser
from halfmask.methods.moments import MomentSums, RowBounds, choose_weights
from halfmask.methods.one_shot import (
    OneShotConfig,
    discriminant,
    evidence_ridge,
    fit_one_shot,
    known_zeros,
    logistic_from_sums,
)
from halfmask.schema import Schema
from halfmask.table import Encoder, Table


class Recorder(Releaser):
    """A releaser that keeps what it was asked to release."""

    def __init__(self, *, epsilon: float, delta: float, relation: Any, seed: int = 0) -> None:
        ledger = MemoryLedger(epsilon=epsilon, delta=delta, relation=relation)
        super().__init__(ledger, noise_source(seed))
        self.asked: list[dict[str, Any]] = []

    def gaussian_series(self, **options: Any) -> Any:
        series = super().gaussian_series(**options)
        release = series.release

        def kept(value: Any) -> Any:
            noisy = release(value)
            self.asked.append({"value": value, "noisy": noisy, **options})
            return noisy

        series.release = kept  # type: ignore[method-assign]
        return series


def table(
    *, public: int, private: int, label: str, kind: str = "two", n: int = 400, seed: int = 0
) -> Table:
    """A linear problem with the asked-for roles."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-1, 1, (n, public + private)) / math.sqrt(max(private, 1))
    score = X @ np.resize([3.0, -2.0, 1.0], public + private) + 0.3 * rng.standard_normal(n)
    task: Any = "regression" if kind == "number" else "classification"
    classes: Any = {"two": (0, 1), "three": (0, 1, 2), "number": None}[kind]
    y = {
        "two": (score > 0.2).astype(int),
        "three": np.digitize(score, [-0.5, 0.5]),
        "number": np.clip(score, -4, 8),
    }[kind]
    bare = Table.from_arrays(
        X[:, public:], y, row_norm=1.5, task=task, label_bounds=(-4.0, 8.0) if not classes else None
    )
    names = tuple(f"p{place}" for place in range(public))
    return replace(
        bare.with_blocks(public=X[:, :public]),
        public_sources=names,
        classes=classes,
        label_private=label == "private",
    )


ROLES = [
    {"public": 4, "private": 0, "label": "private"},
    {"public": 2, "private": 2, "label": "public"},
    {"public": 2, "private": 2, "label": "private"},
    {"public": 0, "private": 4, "label": "private"},
    {"public": 0, "private": 4, "label": "public"},
]


@pytest.mark.parametrize("roles", ROLES, ids=str)
@pytest.mark.parametrize("kind", ["two", "three", "number"])
@pytest.mark.parametrize("relation", ["replace", "withhold"])
def test_fit_releases_once_with_calibrated_noise(roles: Any, kind: str, relation: Any) -> None:
    releaser = Recorder(epsilon=1.0, delta=1e-5, relation=relation)
    fit = fit_one_shot(table(**roles, kind=kind), releaser)
    assert len(releaser.asked) == len(releaser.events) == 1
    asked = releaser.asked[0]
    ratio = asked["sensitivity"].under(relation) / asked["noise_std"]
    assert ratio == pytest.approx(gaussian_mu(1.0, 1e-5), rel=1e-6)
    assert ratio <= gaussian_mu(1.0, 1e-5)
    outputs = {"two": 1, "three": 3, "number": 1}[kind]
    assert fit.coef.shape == (outputs, 4)
    assert fit.intercept.shape == (outputs,)
    assert np.isfinite(fit.coef).all()


def test_the_noise_that_is_added_has_the_size_that_is_charged() -> None:
    releaser = Recorder(epsilon=1.0, delta=1e-5, relation="replace")
    fit_one_shot(table(public=0, private=80, label="private", n=20), releaser)
    asked = releaser.asked[0]
    noise = asked["noisy"] - asked["value"]
    assert noise.size > 3000
    assert noise.std() == pytest.approx(asked["noise_std"], rel=0.05)


@pytest.mark.parametrize("roles", ROLES, ids=str)
def test_exact_blocks_are_not_released(roles: Any) -> None:
    made = table(**roles)
    releaser = Recorder(epsilon=1.0, delta=1e-5, relation="replace")
    fit_one_shot(made, releaser)
    wide, own = roles["public"] + 1, roles["private"]
    expected = wide * own + own * (own + 1) // 2 + own + wide * (roles["label"] == "private")
    assert releaser.asked[0]["value"].size == expected


@pytest.mark.parametrize("roles", ROLES, ids=str)
@pytest.mark.parametrize("kind", ["two", "three", "number"])
def test_with_a_large_budget_it_learns(roles: Any, kind: str) -> None:
    made, new = (table(**roles, kind=kind, n=4000, seed=seed) for seed in (1, 2))
    releaser = Recorder(epsilon=50.0, delta=1e-5, relation="replace")
    fit = fit_one_shot(made, releaser)
    scores = np.hstack([new.public, new.private]) @ fit.coef.T + fit.intercept
    assert new.label is not None
    if kind == "number":
        left = ((scores[:, 0] - new.label) ** 2).mean() / new.label.var()
        assert left < 0.2
    else:
        guess = scores.argmax(axis=1) if kind == "three" else scores[:, 0] > 0
        assert (guess == new.label).mean() > (0.75 if kind == "three" else 0.85)


def test_drowned_private_moments_leave_the_public_model() -> None:
    made = table(public=3, private=3, label="public", n=3000)
    alone = replace(made.with_blocks(private=made.private[:, :0]), label_private=True)
    noisy = Recorder(epsilon=1e-3, delta=1e-5, relation="replace")
    rich = Recorder(epsilon=1e3, delta=1e-5, relation="replace")
    fit = fit_one_shot(made, noisy)
    ideal = fit_one_shot(alone, rich)
    assert made.label is not None
    guess = np.hstack([made.public, made.private]) @ fit.coef.T + fit.intercept
    best = made.public @ ideal.coef.T + ideal.intercept
    reached = ((guess[:, 0] > 0) == made.label).mean()
    assert reached > ((best[:, 0] > 0) == made.label).mean() - 0.02


def test_a_negative_moment_matrix_is_repaired() -> None:
    gram = np.diag([4.0, -3.0, 0.0])
    fit = evidence_ridge(gram, np.ones((3, 1)), rows=10, statistic_variance=0.01, gram_variance=1.0)
    assert np.isfinite(fit.coef).all()
    assert fit.coef[0, 0] > 0
    np.testing.assert_allclose(fit.coef[1:], 0)


def test_evidence_shrinks_noise_and_keeps_signal() -> None:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((500, 20))
    w = rng.standard_normal((20, 1))
    w /= np.linalg.norm(w)
    gram, clean = X.T @ X, X.T @ (X @ w)
    kept = evidence_ridge(gram, clean, rows=500, statistic_variance=1.0)
    np.testing.assert_allclose(kept.coef, w, atol=0.05)
    noise = 1e5 * rng.standard_normal((20, 1))
    lost = evidence_ridge(gram, clean + noise, rows=500, statistic_variance=1e10)
    assert np.abs(lost.coef).max() < 0.05 * np.abs(np.linalg.solve(gram, noise)).max()


@pytest.mark.parametrize("roles", ROLES, ids=str)
@pytest.mark.parametrize("epsilon", [0.01, 0.1, 1.0, 100.0])
def test_probabilities_are_hardly_worse_than_knowing_nothing(roles: Any, epsilon: float) -> None:
    made = table(**roles, n=2000)
    losses = []
    for seed in range(5):
        releaser = Recorder(epsilon=epsilon, delta=1e-5, relation="replace", seed=seed)
        fit = fit_one_shot(made, releaser)
        odds = (np.hstack([made.public, made.private]) @ fit.coef.T + fit.intercept)[:, 0]
        assert made.label is not None
        losses.append(np.logaddexp(0, -odds * (2 * made.label - 1)).mean())
    assert np.mean(losses) < (0.35 if epsilon == 100.0 else math.log(2) + 0.1)


def test_without_noise_the_logistic_path_is_logistic_regression() -> None:
    from sklearn.linear_model import LogisticRegression

    rng = np.random.default_rng(0)
    X = np.column_stack([np.ones(3000), rng.standard_normal((3000, 3))])
    y = rng.random(3000) < 1 / (1 + np.exp(-X @ [0.5, 1.0, -2.0, 0.0]))
    signed = (X.T @ (2.0 * y - 1))[:, None]
    ridge = evidence_ridge(X.T @ X, signed, rows=3000, statistic_variance=0.0)
    coef, _ = logistic_from_sums(X, np.ones(3000), signed, ridge, 0.0)
    plain = LogisticRegression(C=np.inf, fit_intercept=False).fit(X, y)
    np.testing.assert_allclose(coef[:, 0], plain.coef_[0], atol=0.05)


def test_softmax_scores_of_many_classes_are_calibrated() -> None:
    made, new = (
        table(public=4, private=0, label="private", kind="three", n=5000, seed=s) for s in (3, 4)
    )
    releaser = Recorder(epsilon=3.0, delta=1e-5, relation="replace")
    fit = fit_one_shot(made, releaser)
    scores = new.public @ fit.coef.T + fit.intercept
    chance = np.exp(scores - scores.max(axis=1, keepdims=True))
    chance /= chance.sum(axis=1, keepdims=True)
    right = scores.argmax(axis=1) == new.label
    assert abs(chance.max(axis=1).mean() - right.mean()) < 0.15


def test_one_hot_columns_get_their_zeros_back() -> None:
    noisy = np.full((4, 4), 7.0)
    cleaned = known_zeros(noisy, ("a", "a", "b", "b"))
    assert cleaned[0, 1] == cleaned[3, 2] == 0
    assert cleaned[0, 0] == cleaned[0, 2] == 7


def test_the_discriminant_of_two_gaussians_is_their_log_odds() -> None:
    rng = np.random.default_rng(0)
    y = rng.random(200_000) < 0.3
    z = rng.standard_normal(len(y)) + 2.0 * y
    Z = np.column_stack([np.ones(len(y)), z])
    classes = np.column_stack([~y, y]).astype(float)
    gram = Z.T @ Z
    coef, offset = discriminant(np.linalg.solve(gram, Z.T @ classes), gram, classes.sum(axis=0))
    odds = coef[:, 1] - coef[:, 0]
    assert odds[1] == pytest.approx(2.0, abs=0.05)
    assert odds[0] + offset[1] - offset[0] == pytest.approx(math.log(0.3 / 0.7) - 2, abs=0.05)


def test_public_rows_longer_than_the_bound_are_refused() -> None:
    made = table(public=2, private=0, label="private")
    bounds = RowBounds(public=1e-3, private=0.0, label="signed")
    with pytest.raises(InputError, match="longer than the bound"):
        MomentSums(
            public=made.public,
            private=made.private,
            label=np.ones((made.n, 1)),
            row_weights=np.ones(made.n),
            bounds=bounds,
            weights=choose_weights(bounds, coefficient=0.5),
            own=slice(None),
        )


def test_private_rows_longer_than_declared_are_clipped() -> None:
    made = table(public=1, private=2, label="private", n=5)
    long = made.with_blocks(private=made.private * 1e6)
    releaser = Recorder(epsilon=1.0, delta=1e-5, relation="replace")
    fit_one_shot(long, releaser)
    packed = releaser.asked[0]["value"]
    assert np.linalg.norm(packed) <= 5 * releaser.asked[0]["sensitivity"].withhold * (1 + 1e-9)


def test_units_multiply_the_noise() -> None:
    made = table(public=2, private=2, label="private")
    stds = []
    for rows in (1, 3):
        releaser = Recorder(epsilon=1.0, delta=1e-5, relation="replace")
        fit_one_shot(replace(made, max_rows=rows), releaser)
        stds.append(releaser.asked[0]["noise_std"])
    assert stds[1] == pytest.approx(3 * stds[0])


def test_what_is_known_before_the_release_does_not_follow_private_values() -> None:
    made = table(public=2, private=2, label="private")
    assert made.label is not None
    other = replace(made.with_blocks(private=made.private[::-1] * 0.3), label=1 - made.label)
    asked = []
    for each in (made, other):
        releaser = Recorder(epsilon=1.0, delta=1e-5, relation="replace")
        fit_one_shot(each, releaser, OneShotConfig(feature_map=PublicPCA()))
        asked.append((releaser.asked[0]["noise_std"], releaser.asked[0]["sensitivity"]))
    assert asked[0] == asked[1]


def test_nothing_is_released_when_the_budget_is_too_small() -> None:
    releaser = Recorder(epsilon=0.5, delta=1e-5, relation="replace")
    releaser._budget = Budget(epsilon=1.0, delta=1e-5)
    with pytest.raises(BudgetExceededError):
        fit_one_shot(table(public=2, private=2, label="private"), releaser)
    assert releaser.asked == []


def test_a_table_with_nothing_private_is_refused() -> None:
    made = table(public=3, private=0, label="public")
    with pytest.raises(InputError, match="Nothing is private"):
        fit_one_shot(made, Recorder(epsilon=1.0, delta=1e-5, relation="replace"))


def test_a_map_of_the_public_part_learns_what_a_line_cannot() -> None:
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (6000, 2))
    ring = (np.linalg.norm(X, axis=1) < 0.75).astype(int)
    made = table(public=2, private=0, label="private", n=6000)
    made = replace(made.with_blocks(public=X), label=ring)
    fourier = RBFSampler(n_components=100, gamma=2.0, random_state=0)
    releaser = Recorder(epsilon=1.0, delta=1e-5, relation="replace")
    fit = fit_one_shot(made, releaser, OneShotConfig(feature_map=fourier))
    assert fit.feature_map is fourier
    scores = fourier.transform(X) @ fit.coef.T + fit.intercept
    assert ((scores[:, 0] > 0) == ring).mean() > 0.9


def private_adult() -> Table:
    frame, _, schema = load_adult()
    private = Schema(
        label=replace(schema.label, role="private"),
        columns=tuple(replace(column, role="private") for column in schema.columns),
    )
    return Encoder.fit(private, frame).encode(frame)


@pytest.mark.slow
@pytest.mark.alone
def test_adult_is_fitted_within_the_time_of_an_ordinary_logistic_regression() -> None:
    from sklearn.linear_model import LogisticRegression

    made = private_adult()
    start = time.process_time()
    fit_one_shot(made, Recorder(epsilon=1.0, delta=1e-6, relation="replace"))
    ours = time.process_time() - start
    start = time.process_time()
    LogisticRegression(max_iter=1000).fit(made.private, made.label)
    assert ours <= time.process_time() - start


def test_adult_is_learnt_with_everything_private() -> None:
    made = private_adult()
    fit = fit_one_shot(made, Recorder(epsilon=1.0, delta=1e-6, relation="replace"))
    guess = made.private @ fit.coef[0] + fit.intercept[0] > 0
    assert (guess == made.label).mean() > 0.82
