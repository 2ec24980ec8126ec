"""A score never stands alone: a constant and the public columns stand beside it."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pytest
from click.testing import CliRunner
from sklearn.metrics import confusion_matrix, precision_score, recall_score

from halfmask import HalfmaskClassifier, HalfmaskRegressor, Schema
from halfmask.cli import main
from halfmask.model import Model
from halfmask.report.card import markdown
from halfmask.report.covered import ALL_PUBLIC, WEIGHED, covered_scores
from halfmask.report.facts import gather
from halfmask.scoring import _of_pools, told_scores

SCHEMA = """
[label]
name = "y"
role = "{label}"
classes = ["a", "b"]
[columns.open]
role = "public"
kind = "number"
[columns.hidden]
role = "private"
kind = "number"
bounds = [0, 1]
"""


def rows(count: int, seed: int, told: float) -> pa.Table:
    rng = np.random.default_rng(seed)
    first, second = rng.uniform(0, 1, count), rng.uniform(0, 1, count)
    score = told * (first + second - 1) + rng.normal(0, 0.1, count)
    return pa.table({"open": first, "hidden": second, "y": np.where(score > 0, "b", "a")})


def halfmask(*words: object) -> str:
    done = CliRunner().invoke(main, [str(word) for word in words])
    assert done.exit_code == 0, done.output
    return done.stdout


@pytest.fixture(params=["private", "public"])
def trained(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    pyarrow.csv.write_csv(rows(3000, 1, 1.0), tmp_path / "train.csv")
    pyarrow.csv.write_csv(rows(800, 2, 1.0), tmp_path / "test.csv")
    pyarrow.csv.write_csv(rows(800, 3, 0.0), tmp_path / "noise.csv")
    (tmp_path / "s.toml").write_text(SCHEMA.format(label=request.param))
    words = ("--schema", tmp_path / "s.toml", "--epsilon", 2, "--out", tmp_path / "model")
    halfmask("train", tmp_path / "train.csv", *words)
    return tmp_path


def test_evaluate_gives_what_scores_are_held_against(trained: Path) -> None:
    found = json.loads(halfmask("evaluate", trained / "model", trained / "test.csv", "--json"))
    table = pyarrow.csv.read_csv(trained / "test.csv")
    truth = np.array(table["y"].to_pylist())
    share = (truth == "b").mean()
    entropy = -(share * np.log(share) + (1 - share) * np.log(1 - share))
    assert found["constant"]["log_loss"] == pytest.approx(entropy)
    assert found["constant"]["accuracy"] == pytest.approx(max(share, 1 - share))
    alone = found["public_columns_alone"]["log_loss"]
    assert found["log_loss"] < alone < entropy
    assert found["better_than_constant"] is True
    assert found["covered"]["constant_log_loss"] == pytest.approx(0.69, abs=0.02)
    model = Model.load(trained / "model")
    called = model.predict(model.encode(table))
    counts = confusion_matrix(truth, called, labels=["a", "b"])
    assert [list(line.values()) for line in found["confusion"].values()] == counts.tolist()
    assert found["classes"]["b"]["precision"] == pytest.approx(
        precision_score(truth, called, pos_label="b")
    )
    assert found["classes"]["a"]["recall"] == pytest.approx(
        recall_score(truth, called, pos_label="a")
    )


def test_training_tells_the_public_columns_alone(trained: Path) -> None:
    """Without noise where the label is public, else released with a bar; everywhere in words."""
    gathered = gather(trained / "model", with_effects=False)
    facts = gathered.to_json()["covered"]
    fresh = json.loads(halfmask("evaluate", trained / "model", trained / "test.csv", "--json"))
    told, truth = facts["public_columns_alone"], fresh["public_columns_alone"]["log_loss"]
    assert told["log_loss"] < facts["constant_log_loss"]
    private = (trained / "s.toml").read_text().count('role = "private"') == 2
    assert (told["log_loss_bar"] is not None) == private
    assert told["log_loss"] == pytest.approx(truth, abs=2 * (told["log_loss_bar"] or 0.03))
    assert f"alone have log loss {told['log_loss']:.4g}" in facts["compared"]
    assert facts["compared"] in markdown(gathered)


def test_several_classes_and_numbers_are_held_against_a_constant_and_the_public_columns() -> None:
    rng = np.random.default_rng(8)
    x = rng.uniform(0, 1, (2, 4000))
    score = x[0] - x[1] + rng.normal(0, 0.3, 4000)
    level = np.array(list("abc"))[np.digitize(score, [-0.3, 0.3])]
    frame = pa.table({"open": x[0], "shut": x[1], "level": level, "score": score})
    number = {"kind": "number", "bounds": [0, 1]}
    columns = {"open": {"role": "public", **number}, "shut": {"role": "private", **number}}
    for role in ("public", "private"):
        label: dict[str, Any] = {"name": "level", "role": role, "classes": list("abc")}
        schema = Schema.from_dict({"label": label, "columns": columns})
        model = HalfmaskClassifier(schema, epsilon=4.0).fit(frame).model_
        covered = covered_scores(model.details)
        assert covered is not None
        shares = np.unique(level, return_counts=True)[1] / 4000
        assert covered.constant == pytest.approx(-float(shares @ np.log(shares)), abs=0.05)
        assert covered.scores["log_loss"].value < covered.public_alone["log_loss"].value
        assert (covered.public_alone["log_loss"].bar is None) == (role == "public")
        label = {"name": "score", "role": role, "bounds": [-2, 2]}
        schema = Schema.from_dict({"label": label, "columns": columns})
        regressor = HalfmaskRegressor(schema, epsilon=4.0).fit(frame).model_
        covered = covered_scores(regressor.details)
        assert covered is not None
        assert covered.constant == pytest.approx(float(score.std()), rel=0.15)
        assert "the mean alone has about RMSE" in str(covered.compared)
        bar = covered.public_alone["rmse"].bar
        assert (bar is None) == (role == "public")
        left = float(np.hypot(1 / np.sqrt(12), 0.3))
        assert covered.public_alone["rmse"].value == pytest.approx(left, abs=2 * (bar or 0.02))


def test_a_large_bar_is_written_out() -> None:
    covered = covered_scores({"covered": {"rmse": 76761.2, "rmse_bar": 251.3}})
    assert covered is not None
    assert covered.score_rows() == [["RMSE", "76,760", "± 250"]]
    covered = covered_scores({"covered": {"rmse": 76.7612, "rmse_bar": 0.0251}})
    assert covered is not None
    assert covered.score_rows() == [["RMSE", "76.76", "± 0.025"]]


def test_the_mean_alone_is_written_out_like_the_scores_beside_it() -> None:
    stored = {"rmse": 19810.4, "rmse_bar": 5900.0}
    covered = covered_scores({"covered": stored, "spread": 38230.6, "base": 60000.0})
    assert covered is not None
    assert covered.compared == "To compare, the mean alone has about RMSE 38,230."


def test_where_every_column_is_public_the_model_is_theirs() -> None:
    rng = np.random.default_rng(9)
    frame = pa.table({"open": (x := rng.uniform(0, 1, 2000)), "y": np.where(x > 0.5, "b", "a")})
    label = {"name": "y", "role": "private", "classes": ["a", "b"]}
    schema = Schema.from_dict(
        {"label": label, "columns": {"open": {"role": "public", "kind": "number"}}}
    )
    covered = covered_scores(HalfmaskClassifier(schema, epsilon=4.0).fit(frame).model_.details)
    assert covered is not None
    assert covered.public_alone == {}
    assert str(covered.compared).endswith(ALL_PUBLIC)


def test_rare_classes_that_share_a_score_are_told_by_the_public_columns_too() -> None:
    """Of a pool each class has its share, so that all chances add up to one."""
    details = {"pooled_classes": 2, "pool": [0, 2, 1, 2], "base": [0.5, 0.05, 0.4, 0.05]}
    scores = np.log([[0.5, 0.1, 0.4, 0.1], [0.2, 0.2, 0.6, 0.2]])
    found = _of_pools(details, scores)
    assert found is not None
    assert found == pytest.approx(np.array([[0.5, 0.05, 0.4, 0.05], [0.2, 0.1, 0.6, 0.1]]))
    assert _of_pools({"pooled_classes": 2}, scores) is None


def test_a_model_that_is_no_better_than_a_constant_is_told_so(trained: Path) -> None:
    said = halfmask("evaluate", trained / "model", trained / "noise.csv")
    assert "NO BETTER THAN A CONSTANT" in said
    assert max(map(len, said.splitlines())) <= 90
    assert "CONSTANT" not in halfmask("evaluate", trained / "model", trained / "test.csv")


def test_scores_by_group_are_those_of_the_groups_rows(trained: Path) -> None:
    table = pyarrow.csv.read_csv(trained / "test.csv")
    side = np.where(np.asarray(table["open"]) > 0.5, "right", "left")
    pyarrow.csv.write_csv(table.append_column("side", pa.array(side)), trained / "sided.csv")
    pyarrow.csv.write_csv(table.filter(pa.array(side == "left")), trained / "left.csv")
    words = ("evaluate", trained / "model", trained / "sided.csv", "--by", "side", "--json")
    found = json.loads(halfmask(*words))["groups"]
    alone = json.loads(halfmask("evaluate", trained / "model", trained / "left.csv", "--json"))
    assert set(found) == {"left", "right"}
    assert found["left"]["log_loss"] == pytest.approx(alone["log_loss"])
    assert found["left"]["rows"] + found["right"]["rows"] == 800


def test_rows_without_a_label_are_counted_apart(tmp_path: Path) -> None:
    table = rows(600, 4, 1.0)
    label = pa.array([None if place % 6 == 0 else y.as_py() for place, y in enumerate(table["y"])])
    pyarrow.csv.write_csv(table.set_column(2, "y", label), tmp_path / "rows.csv")
    skips = SCHEMA.format(label="private").replace("classes", 'missing = "skip"\nclasses')
    (tmp_path / "s.toml").write_text(skips)
    words = ("--schema", tmp_path / "s.toml", "--epsilon", 2, "--out", tmp_path / "model")
    halfmask("train", tmp_path / "rows.csv", *words, "--method", "gd")
    found = json.loads(halfmask("evaluate", tmp_path / "model", tmp_path / "rows.csv", "--json"))
    assert (found["rows"], found["without_label"]) == (500, 100)
    said = halfmask("evaluate", tmp_path / "model", tmp_path / "rows.csv")
    assert "Left out, since they have no label: 100 rows." in said


@pytest.mark.slow
def test_the_reference_without_privacy_is_given_on_request_and_marked(
    tmp_path: Path,
) -> None:
    pyarrow.csv.write_csv(rows(3000, 1, 1.0), tmp_path / "train.csv")
    pyarrow.csv.write_csv(rows(800, 2, 1.0), tmp_path / "test.csv")
    (tmp_path / "s.toml").write_text(SCHEMA.format(label="public"))
    words = ("--schema", tmp_path / "s.toml", "--epsilon", 2, "--out", tmp_path / "model")
    said = halfmask("train", tmp_path / "train.csv", *words, "--reference")
    assert "NOT PRIVATE: computed from exact private values" in said
    assert "The public columns alone have log loss" in " ".join(said.split())
    model = (tmp_path / "model" / "model.json").read_text()
    assert "boosted" not in model, "it is printed only"
    score = ("evaluate", tmp_path / "model", tmp_path / "test.csv")
    assert "NOT PRIVATE" not in halfmask(*score)
    told = ("--reference", tmp_path / "train.csv")
    found = json.loads(halfmask(*score, *told, "--json"))
    assert found["reference"]["private"] is False
    for kind in ("boosted_trees", "linear"):
        assert found["reference"][kind]["log_loss"] < found["constant"]["log_loss"]
    assert "NOT PRIVATE" in halfmask(*score, *told)
    out = tmp_path / "report.md"
    page = ("report", tmp_path / "model", "--data", tmp_path / "test.csv", "--out", out)
    halfmask(*page, *told, "--by", "y", "--format", "md")
    text = out.read_text()
    for told_of in ("NOT PRIVATE", "Boosted trees", "| True class | Called a |", "Recall", "| y |"):
        assert told_of in text, told_of


def test_numbers_to_predict_have_a_reference_too(tmp_path: Path) -> None:
    from halfmask.schema import Schema
    from halfmask.scoring import reference
    from halfmask.table import Encoder

    rng = np.random.default_rng(1)
    x = rng.uniform(0, 10, 600)
    frame = pa.table({"x": x, "y": 3 * x + rng.normal(0, 1, 600)})
    column = {"role": "private", "kind": "number", "bounds": [0, 10]}
    label = {"name": "y", "role": "private", "bounds": [0, 40]}
    schema = Schema.from_dict({"label": label, "columns": {"x": column}})
    found = reference(Encoder.fit(schema, frame).encode(frame))
    assert found["boosted_trees"]["r2"] > 0.9
    assert found["linear"]["r2"] > 0.9


def test_a_reference_predicts_classes_that_its_rows_lack() -> None:
    """Three classes are declared, two of them are there."""
    from halfmask.schema import Schema
    from halfmask.scoring import reference
    from halfmask.table import Encoder

    frame = rows(300, 4, 1.0)
    text = SCHEMA.format(label="private").replace('["a", "b"]', '["a", "b", "c"]')
    import tomllib

    schema = Schema.from_dict(tomllib.loads(text))
    table = Encoder.fit(schema, frame).encode(frame)
    found = reference(table, [table])
    assert found["linear"]["log_loss"] < 0.69


def test_every_class_has_a_line_that_looks_like_no_other() -> None:
    pytest.importorskip("matplotlib")
    from halfmask.report import plots

    curves = {f"class {place}": [(0.0, 0.0), (1.0, 1.0)] for place in range(12)}
    for draw in (plots.roc, plots.calibration):
        lines = draw(curves).get_lines()
        named = [line for line in lines if str(line.get_label()).startswith("class")]
        assert [line.get_label() for line in named] == list(curves)
        looks = {(line.get_color(), line.get_linestyle(), line.get_marker()) for line in named}
        assert len(looks) == 12


def test_a_score_of_a_label_in_a_small_unit_is_not_shown_as_zero() -> None:
    assert told_scores({"rmse": 1.959e-6, "r2": -2e-17}) == "RMSE 1.959e-06, R² -0.0000"
    assert told_scores({"rows": 1200, "rmse": 0.5, "r2": None}) == "rows 1,200, RMSE 0.5000, R² -"


def _visits(most: int, share: float = 0.25) -> tuple[pa.Table, Schema]:
    """People of whom a share has `most` rows, and then is nearly always ill."""
    rng = np.random.default_rng(5)
    times = np.where(rng.random(2000) < share, most, 1)
    person = np.repeat(np.arange(2000), times)
    again = np.repeat(times == most, times) if most > 1 else np.zeros(len(person), dtype=bool)
    ill = rng.random(len(person)) < np.where(again, 0.9, 0.05)
    frame = pa.table(
        {
            "person": person,
            "open": rng.uniform(0, 1, len(person)),
            "hidden": rng.uniform(0, 1, len(person)),
            "y": np.where(ill, "b", "a"),
        }
    )
    tables = SCHEMA.format(label="private") + f'[unit]\ncolumn = "person"\nmax_rows = {most}\n'
    return frame, Schema.from_dict(tomllib.loads(tables))


def test_covered_scores_of_people_with_several_rows_are_those_of_rows() -> None:
    frame, schema = _visits(3)
    model = HalfmaskClassifier(schema, epsilon=8.0, unsafe_seed=3).fit(frame)
    loss = np.log(model.predict_proba(frame))
    ill = np.asarray(frame["y"]) == "b"
    by_row = -np.where(ill, loss[:, 1], loss[:, 0])
    rows = np.bincount(np.asarray(frame["person"]))
    by_person = np.average(by_row, weights=1 / rows[np.asarray(frame["person"])])
    told = model.model_.details["covered"]
    assert abs(told["log_loss"] - by_row.mean()) < told["log_loss_bar"]
    assert abs(told["log_loss"] - by_person) > told["log_loss_bar"]


@pytest.mark.parametrize("most", [1, 300], ids=["one row each", "some with hundreds"])
def test_covered_scores_say_where_rows_of_large_units_count_less(most: int) -> None:
    frame, schema = _visits(most, share=0.002)
    covered = covered_scores(HalfmaskClassifier(schema, epsilon=1.0).fit(frame).model_.details)
    assert covered is not None
    assert (WEIGHED in str(covered.compared)) == (most > 1)
    assert covered.to_json()["weighed_rows"] is (most > 1)
