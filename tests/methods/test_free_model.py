"""The free model learns what columns say together, and never scores a row by its own target."""

from __future__ import annotations

import io
import time
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.special import expit

from halfmask.errors import InputError
from halfmask.methods import free_model
from halfmask.methods.free_model import FreeModel, cross_fitted

LEVELS, ORDERED = [9, 5, 4], [True, False, True]
TASKS = ("classification", "regression")


def table(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Codes, a two-class target and a number: one number, one category, one with missing."""
    rng = np.random.default_rng(seed)
    codes = np.stack([rng.integers(0, levels, n) for levels in LEVELS], axis=1)
    signal = truth_of(codes)
    return codes, (rng.random(n) < expit(signal)).astype(int), signal + rng.normal(size=n)


def truth_of(codes: np.ndarray) -> np.ndarray:
    of_category = np.array([1.0, -1.0, 0.5, -2.0, 0.0])[codes[:, 1]]
    truth: np.ndarray = np.sin(codes[:, 0]) + of_category + (codes[:, 2] == 3) * 1.5
    return truth


def target_of(task: str, classes: np.ndarray, numbers: np.ndarray) -> np.ndarray:
    return classes if task == "classification" else numbers


def options(task: str, **more: Any) -> dict[str, Any]:
    return {"levels": LEVELS, "ordered": ORDERED, "task": task, **more}


def fit_free(codes: np.ndarray, target: np.ndarray, **given: Any) -> FreeModel:
    """The model of all rows."""
    return cross_fitted(codes, target, **given)[1]


def log_loss(target: np.ndarray, scores: np.ndarray) -> float:
    return float(np.mean(np.logaddexp(0, scores) - target * scores))


def test_an_exclusive_or_of_two_columns_is_learnt() -> None:
    rng = np.random.default_rng(1)
    codes = rng.integers(0, 2, (2000, 5))
    target = codes[:, 1] ^ codes[:, 3]
    scores, model = cross_fitted(
        codes, target, levels=[3] * 5, ordered=[True] * 3 + [False] * 2, task="classification"
    )
    assert log_loss(target, scores) < 0.05
    assert np.array_equal(model.scores(codes) > 0, target == 1)


def test_an_exclusive_or_is_learnt_where_no_half_of_it_gains_anything() -> None:
    codes = np.tile([[0, 0], [0, 1], [1, 0], [1, 1]], (200, 1))
    target = codes[:, 0] ^ codes[:, 1]
    model = fit_free(codes, target, levels=[3, 3], ordered=[True, True], task="classification")
    assert log_loss(target, model.scores(codes)) < 0.05


@pytest.mark.parametrize("task", TASKS)
def test_held_out_loss_comes_near_that_of_the_true_signal(task: str) -> None:
    codes, classes, numbers = table(6000)
    new_codes, new_classes, new_numbers = table(6000, seed=1)
    target, new = target_of(task, classes, numbers), target_of(task, new_classes, new_numbers)

    def loss(truth: np.ndarray, scores: np.ndarray) -> float:
        if task == "classification":
            return log_loss(truth, scores)
        return float(np.mean((truth - scores) ** 2)) / 2

    scores, model = cross_fitted(codes, target, **options(task))
    assert loss(target, scores) < loss(target, truth_of(codes)) + 0.01
    assert loss(new, model.scores(new_codes)) < loss(new, truth_of(new_codes)) + 0.01


@settings(deadline=None, max_examples=25)
@given(
    row=st.integers(0, 299),
    task=st.sampled_from(TASKS),
    seed=st.integers(0, 5),
    grouped=st.booleans(),
)
def test_the_score_of_a_row_does_not_depend_on_its_own_target(
    row: int, task: str, seed: int, grouped: bool
) -> None:
    codes, classes, numbers = table(300, seed)
    groups = np.arange(300) // 3 if grouped else np.arange(300)
    target = target_of(task, classes, numbers)
    other = target.copy()
    other[row] = 1 - other[row] if task == "classification" else other[row] + 5
    kept = options(task, trees=6, seed=seed, groups=groups if grouped else None)
    before, _ = cross_fitted(codes, target, **kept)
    after, _ = cross_fitted(codes, other, **kept)
    own = groups == groups[row]
    assert np.array_equal(before[own], after[own])
    # The models of the other folds did see it.
    assert np.mean(before != after) > 0.5


@pytest.mark.parametrize("task", TASKS)
def test_an_additive_start_does_not_depend_on_rows_of_its_own_fold(
    task: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But for its penalty, which one number of all rows chooses."""
    monkeypatch.setattr(free_model, "_PENALTIES", (10.0,))
    codes, classes, numbers = table(300)
    target = target_of(task, classes, numbers)
    fold = np.arange(300) % 3
    other = np.where(fold == 1, target[::-1], target)
    kept = options(task)
    before, after = (
        free_model._additive_starts(
            free_model._read(codes, each, kept["levels"], kept["ordered"], task, None),  # type: ignore[arg-type]
            fold,
        )
        for each in (target, other)
    )
    assert np.array_equal(before[1], after[1])
    assert not any(np.array_equal(before[k], after[k]) for k in (0, 2, 3))


def test_on_few_rows_a_line_is_told_better_by_a_blend(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 30, (900, 4))
    target = (codes @ np.array([1.0, -1.0, 0.5, 2.0])) / 30 + rng.normal(0, 1.0, 900)
    kept = {"levels": [31] * 4, "ordered": [True] * 4, "task": "regression"}
    blend, model = cross_fitted(codes, target, **kept)  # type: ignore[arg-type]
    monkeypatch.setattr(free_model, "_FEW_ROWS", 0)
    alone, trees = cross_fitted(codes, target, **kept)  # type: ignore[arg-type]
    assert np.mean((blend - target) ** 2) < 0.97 * np.mean((alone - target) ** 2)
    assert model.by_level.any()
    assert not trees.by_level.any()


def test_a_model_of_an_earlier_version_has_no_additive_start() -> None:
    codes, classes, _ = table(300)
    arrays = fit_free(codes, classes, **options("classification", trees=5)).to_arrays()
    old = {name: array for name, array in arrays.items() if name != "by_level"}
    again = FreeModel.from_arrays(old)
    assert np.array_equal(again.scores(codes), FreeModel.from_arrays(arrays).scores(codes))


def test_rows_of_one_group_share_a_fold_and_folds_are_the_same_for_every_target() -> None:
    groups = np.repeat(["a", "b", "c", "d", "e", "f", "g"], 40)
    fold = free_model.fold_of_rows(len(groups), 3, groups, 0)
    assert all(len(np.unique(fold[groups == g])) == 1 for g in np.unique(groups))
    assert set(fold) == {0, 1, 2}
    sizes = np.bincount(free_model.fold_of_rows(1003, 5, None, 4))
    assert sizes.max() - sizes.min() <= 1


@pytest.mark.parametrize("task", TASKS)
def test_a_model_comes_back_from_its_stored_arrays_with_the_same_scores(task: str) -> None:
    codes, classes, numbers = table(800)
    model = fit_free(codes, target_of(task, classes, numbers), **options(task, trees=30))
    file = io.BytesIO()
    np.savez(file, **model.to_arrays())
    file.seek(0)
    with np.load(file, allow_pickle=False) as stored:
        again = FreeModel.from_arrays(stored)
    assert np.array_equal(again.scores(codes), model.scores(codes))
    for name, array in model.to_arrays().items():
        assert np.array_equal(again.to_arrays()[name], array)


@pytest.mark.parametrize("name", ["start", "order", "values", "leaf"])
def test_arrays_that_do_not_belong_together_are_refused(name: str) -> None:
    codes, classes, _ = table(300)
    arrays = fit_free(codes, classes, **options("classification", trees=5)).to_arrays()
    with pytest.raises(InputError, match=name):
        FreeModel.from_arrays({key: a for key, a in arrays.items() if key != name})
    broken = np.array(np.nan) if name == "start" else arrays[name][:-1]
    with pytest.raises(InputError, match="do not fit together"):
        FreeModel.from_arrays({**arrays, name: broken})


def test_a_code_beyond_the_levels_goes_where_the_last_level_goes() -> None:
    codes, classes, _ = table(1000)
    model = fit_free(codes, classes, **options("classification", trees=40))
    beyond, last = codes.copy(), codes.copy()
    for j, levels in enumerate(LEVELS):
        beyond[:, j], last[:, j] = levels + 1000 * j, levels - 1
        assert np.array_equal(model.scores(beyond), model.scores(last))
    assert np.all(np.isfinite(model.scores(beyond)))


@pytest.mark.slow
def test_the_missing_level_of_a_number_is_apart_from_its_neighbours() -> None:
    rng = np.random.default_rng(2)
    codes = rng.integers(0, 11, (3000, 1))
    # Missing rows are like the middle of the column, which no single threshold can say.
    target = np.where(codes[:, 0] == 10, 0.0, np.abs(codes[:, 0] - 4.5))
    target = np.where(np.isin(codes[:, 0], [4, 5]), 0.0, target)
    model = fit_free(codes, target, levels=[11], ordered=[True], task="regression")
    levels = np.arange(11)[:, None]
    assert model.scores(levels)[[4, 5, 10]] == pytest.approx(0, abs=0.1)
    assert model.scores(levels)[[0, 9]] == pytest.approx(4.5, abs=0.1)


def test_a_missing_level_that_no_row_had_goes_with_the_larger_part() -> None:
    codes = np.repeat([[0], [1]], [900, 100], axis=0)
    model = fit_free(codes, codes[:, 0], levels=[3], ordered=[True], task="classification")
    small, large, missing = model.scores(np.array([[1], [0], [2]]))
    assert missing == large != small


def test_a_category_that_no_row_had_scores_between_the_others() -> None:
    codes = np.repeat([[0], [1], [3]], 300, axis=0)
    target = np.repeat([0.0, 1.0, 5.0], 300)
    model = fit_free(codes, target, levels=[5], ordered=[False], task="regression")
    scores = model.scores(np.arange(5)[:, None])
    assert scores[[0, 1, 3]] == pytest.approx([0, 1, 5], abs=0.1)
    assert 0 <= scores[2] <= 5
    assert scores[4] == scores[2]


def test_a_category_of_many_rare_levels_does_not_hide_the_other_columns() -> None:
    rng = np.random.default_rng(3)
    codes, classes, _ = table(4000)
    names = rng.integers(0, 1000, (4000, 1))
    alone, _ = cross_fitted(codes, classes, **options("classification"))
    scores, _ = cross_fitted(
        np.hstack([codes, names]), classes, levels=[*LEVELS, 1000], ordered=[*ORDERED, False],
        task="classification",
    )  # fmt: skip
    assert log_loss(classes, scores) < log_loss(classes, alone) + 0.003


@pytest.mark.parametrize("value", [0, 1])
@pytest.mark.parametrize("task", TASKS)
def test_a_constant_target_gives_one_finite_score(task: str, value: int) -> None:
    codes, _, _ = table(400)
    scores, model = cross_fitted(codes, np.full(400, value), **options(task))
    assert np.all(np.isfinite(scores))
    assert len(np.unique(model.scores(codes))) == 1
    if task == "regression":
        assert np.all(scores == value)
    else:
        assert np.all((scores > 5) if value else (scores < -5))


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("n", [1, 2, 5, 12])
def test_a_few_rows_give_finite_scores(task: str, n: int) -> None:
    codes, classes, numbers = table(n)
    scores, model = cross_fitted(codes, target_of(task, classes, numbers), **options(task))
    assert scores.shape == (n,)
    assert np.all(np.isfinite(scores))
    assert np.all(np.isfinite(model.scores(codes)))


def test_one_column_and_no_column_work() -> None:
    codes, _, numbers = table(2000)
    scores, model = cross_fitted(
        codes[:, :1], numbers, levels=LEVELS[:1], ordered=ORDERED[:1], task="regression"
    )
    assert np.corrcoef(scores, np.sin(codes[:, 0]))[0, 1] > 0.9
    bare = fit_free(codes[:, :0], numbers, levels=[], ordered=[], task="regression")
    assert bare.scores(codes[:3, :0]) == pytest.approx(np.full(3, numbers.mean()))
    assert FreeModel.from_arrays(bare.to_arrays()).start == bare.start
    assert model.scores(codes[:0, :1]).shape == (0,)


def test_the_same_rows_give_the_same_model() -> None:
    codes, classes, _ = table(600)
    first, one = cross_fitted(codes, classes, **options("classification"))
    second, two = cross_fitted(codes.astype(np.uint8), classes, **options("classification"))
    assert np.array_equal(first, second)
    for name, array in one.to_arrays().items():
        assert np.array_equal(array, two.to_arrays()[name])
    other, _ = cross_fitted(codes, classes, **options("classification", seed=1))
    assert not np.array_equal(first, other)


@example(seed=479, task="classification")
@settings(deadline=None, max_examples=20)
@given(seed=st.integers(0, 1000), task=st.sampled_from(TASKS))
def test_a_whole_weight_is_as_many_rows(seed: int, task: str) -> None:
    codes, classes, numbers = table(400, seed)
    target = target_of(task, classes, numbers)
    weights = np.random.default_rng(seed).integers(0, 4, 400)
    weighed = fit_free(codes, target, **options(task, trees=15, weights=weights.astype(float)))
    repeated = fit_free(
        np.repeat(codes, weights, axis=0), np.repeat(target, weights), **options(task, trees=15)
    )
    assert weighed.scores(codes) == pytest.approx(repeated.scores(codes), abs=1e-8)


def test_a_number_in_other_units_gives_the_same_model_in_these_units() -> None:
    codes, _, numbers = table(1500)
    scores, _ = cross_fitted(codes, numbers, **options("regression"))
    scaled, _ = cross_fitted(codes, 1000 * numbers - 7, **options("regression"))
    assert scaled == pytest.approx(1000 * scores - 7, rel=1e-6, abs=1e-6)


def test_noise_alone_is_not_learnt() -> None:
    codes, _, _ = table(3000)
    target = np.random.default_rng(5).integers(0, 2, 3000)
    scores, _ = cross_fitted(codes, target, **options("classification"))
    assert log_loss(target, scores) < np.log(2) + 0.002


def test_many_rows_have_two_folds_and_fewer_trees(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(free_model, "_MANY_ROWS", 1000)
    codes, _, numbers = table(1001)
    assert set(free_model.fold_of_rows(1001, 5, None, 0)) == {0, 1}
    scores, model = cross_fitted(codes, numbers, **options("regression"))
    assert 0 < len(model.leaf) <= free_model._TREES // 2
    assert np.var(numbers - scores) < 0.7 * np.var(numbers)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"codes": np.array([[0, -1, 0]])}, "row 0 of column 1"),
        ({"codes": np.zeros((1, 2), dtype=int)}, "3 columns"),
        ({"codes": np.zeros((1, 3))}, "whole numbers"),
        ({"target": np.array([2])}, "0 and 1"),
        ({"target": np.array([np.nan])}, "row 0"),
        ({"target": np.array([0, 1])}, "each of 1 rows"),
        ({"weights": np.array([-1.0])}, "weights"),
        ({"ordered": [True]}, "per column"),
        ({"task": "ranking"}, "ranking"),
        ({"trees": -1}, "trees"),
        ({"folds": 1}, "folds"),
        ({"groups": np.array([1, 2])}, "one group"),
    ],
)
def test_what_does_not_fit_is_refused(change: dict[str, Any], words: str) -> None:
    arguments: dict[str, Any] = {
        "codes": np.zeros((1, 3), dtype=int), "target": np.array([1]), **options("classification")
    }  # fmt: skip
    arguments.update(change)
    codes, target = arguments.pop("codes"), arguments.pop("target")
    with pytest.raises(InputError, match=words):
        cross_fitted(codes, target, **arguments)


@pytest.mark.slow
@pytest.mark.alone
def test_thirty_thousand_rows_take_seconds() -> None:
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 33, (30_000, 10))
    signal = np.sin(codes[:, 0] / 5) + (codes[:, 1] > 9) * (codes[:, 2] > 20)
    target = (rng.random(30_000) < expit(signal)).astype(int)
    begun = time.process_time()
    cross_fitted(
        codes, target, levels=[33] * 10, ordered=[True] * 7 + [False] * 3,
        task="classification", trees=100,
    )  # fmt: skip
    # About 4 s on one core; the rest is for slower machines.
    assert time.process_time() - begun < 20
