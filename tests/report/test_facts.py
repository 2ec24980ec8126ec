"""What a report gathers from other kinds of model folders."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hostile import Trained, run

from halfmask import HalfmaskClassifier, HalfmaskRegressor
from halfmask.accounting.events import GaussianEvent, PoissonGaussianEvent
from halfmask.accounting.gaussian import gaussian_epsilon
from halfmask.accounting.ledger import Ledger
from halfmask.errors import DataError
from halfmask.model import Model
from halfmask.report.card import card
from halfmask.report.facts import gather, measure, roc_points
from halfmask.report.html import page
from halfmask.scoring import calibration_bins


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng = np.random.default_rng(5)
    X = rng.normal(size=(300, 3))
    folder = tmp_path_factory.mktemp("bare") / "model"
    HalfmaskClassifier(epsilon=2.0).fit(X, X[:, 0] > 0).model_.save(folder)
    return folder


def test_a_bare_array_has_private_columns_only(bare: Path) -> None:
    facts = gather(bare)
    assert {column.role for column in facts.columns} == {"private"}
    assert facts.budget.epsilon is None
    assert facts.budget.charges[-1].epsilon == pytest.approx(2.0, rel=1e-3)
    text = page(facts)
    assert "No ledger was kept with this model" in text
    assert "0 public: not protected" in text
    assert "None: every column is private." in text


def test_a_bare_array_cannot_be_scored_from_a_file(bare: Path, trained: Trained) -> None:
    result = run("report", bare, "--data", trained.data, code=2)
    assert "leave out --data" in result.output


@pytest.mark.slow
def test_the_learning_curve_is_drawn_where_a_method_left_one(
    trained: Trained, tmp_path: Path
) -> None:
    model = Model.load(trained.folder)
    for stored in ([0.7, 0.6, 0.5], [[1, 0.7], [2, 0.6], [3, 0.5]]):
        folder = tmp_path / str(len(str(stored)))
        replace(model, details={**model.details, "public_loss": stored}).save(folder)
        facts = gather(folder)
        assert facts.learning == ((1, 0.7), (2, 0.6), (3, 0.5))
        assert "the public loss, step by step" in page(facts)
        assert "mean loss of the public part" in page(facts)
    assert "no learning curve" in page(gather(trained.folder))


@pytest.mark.slow
def test_covered_scores_are_read_from_what_older_and_damaged_models_hold(
    trained: Trained, tmp_path: Path
) -> None:
    model = Model.load(trained.folder)

    def stored(name: str, covered: object) -> Path:
        replace(model, details={**model.details, "covered": covered}).save(tmp_path / name)
        return tmp_path / name

    older = gather(stored("older", {"log_loss": 0.3, "log_loss_bar": 0.02, "auc": 0.7}))
    assert "not stored" in page(older)
    part = {"predicted": 0.1, "observed": 0.2, "bar": 0.05}
    whole = {"log_loss": 0.3, "log_loss_bar": 0.02, "auc": 0.7, "auc_bar": 0.1}
    text = page(gather(stored("whole", {**whole, "reliability": [part, part]})))
    assert "covered by the guarantee" in text
    assert 'id="covered-figure' in text
    number = page(gather(stored("number", {"rmse": 3.0, "rmse_bar": 0.5})))
    assert "± 0.5" in number
    assert 'id="covered-figure' not in number
    assert "released no score of its own" in page(gather(stored("none", None)))
    for place, broken in enumerate(({"log_loss": "x"}, {"log_loss": 1, "reliability": [{}]})):
        with pytest.raises(DataError, match="covered scores"):
            gather(stored(str(place), broken))


def test_of_many_charges_the_last_are_drawn_and_all_are_counted(
    trained: Trained, tmp_path: Path
) -> None:
    book = Ledger.create(tmp_path / "book.jsonl", epsilon=8.0, delta=1e-6)
    book.charge(Model.load(trained.folder).privacy.events, "release 1")
    for place in range(1, 20):
        book.charge([GaussianEvent(replace=0.1, withhold=0.05)], f"release {place + 1}")
    facts = gather(trained.folder, ledger=book.path)
    assert facts.budget.left_out == 8
    assert facts.budget.charges[0].what == "release 9"
    assert facts.budget.charges[-1].epsilon == book.spent()
    assert "The first 8 charges are not drawn, but counted." in page(facts)


def test_sampled_steps_get_a_curve_too(trained: Trained, tmp_path: Path) -> None:
    model = Model.load(trained.folder)
    events = (PoissonGaussianEvent(noise_multiplier=3.0, rate=0.1, steps=30),)
    replace(model, privacy=replace(model.privacy, events=events)).save(tmp_path)
    curve = gather(tmp_path).curve
    for low, high in zip(curve["withhold"], curve["replace"], strict=True):
        assert low[0] == high[0]
        assert 0 <= low[1] < high[1]


def test_very_many_columns_are_named_in_part_and_listed_in_full(tmp_path: Path) -> None:
    rng = np.random.default_rng(6)
    X = rng.normal(size=(200, 80))
    HalfmaskRegressor(epsilon=1.0).fit(X, np.clip(X[:, 0], -1, 1)).model_.save(tmp_path)
    text = page(gather(tmp_path))
    assert "and 56 others" in text
    assert '<th scope="row">x79</th>' in text


@pytest.mark.parametrize(("mu", "warned"), [(0.5, False), (2.0, False), (5.0, True), (80.0, True)])
def test_a_promise_that_is_worth_little_is_called_weak(
    trained: Trained, tmp_path: Path, mu: float, warned: bool
) -> None:
    model = Model.load(trained.folder)
    events = (GaussianEvent(replace=mu, withhold=mu / 2),)
    calibrated = {"replace": gaussian_epsilon(mu, 1e-5), "withhold": gaussian_epsilon(mu / 2, 1e-5)}
    privacy = replace(model.privacy, events=events, calibrated=calibrated)
    replace(model, privacy=privacy).save(tmp_path)
    facts = gather(tmp_path)
    assert ("This promise is weak" in page(facts)) == warned
    assert ("This promise is weak" in card(facts)) == warned


def test_calibration_bins_hold_every_row_once() -> None:
    rng = np.random.default_rng(7)
    predicted, observed = rng.random(105), rng.random(105)
    bins = calibration_bins(predicted, observed)
    assert len(bins) == 10
    assert sum(part.rows for part in bins) == 105
    total = sum(part.observed * part.rows for part in bins)
    assert total == pytest.approx(observed.sum())
    assert [b.predicted for b in bins] == sorted(b.predicted for b in bins)


def test_roc_runs_from_corner_to_corner() -> None:
    truth = np.array([0.0, 1.0] * 500)
    points = roc_points(np.random.default_rng(8).random(1000), truth)
    assert points[0] == (0.0, 0.0)
    assert points[-1] == (1.0, 1.0)
    assert len(points) <= 101


def test_measuring_needs_a_schema(bare: Path) -> None:
    with pytest.raises(DataError, match="bare array"):
        measure(Model.load(bare), None)
