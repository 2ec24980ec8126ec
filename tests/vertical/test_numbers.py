"""A number to predict, its columns at two parties: squared loss from the command to evaluation."""

from __future__ import annotations

import json

import numpy as np
import pyarrow.csv
import pytest
from test_queries import NEW_ROWS, called, organisations, predicted, rows_here, simulated, trained
from test_simulate import SCHEMA

from halfmask.errors import HalfmaskError, InputError
from halfmask.schema import Schema
from halfmask.vertical.files import party_label_codes, read_vertical_table
from halfmask.vertical.queries import VerticalModel

NUMBERS = SCHEMA.replace(
    'name = "churned"\nrole = "public"\nclasses = ["no", "yes"]',
    'name = "spent"\nrole = "public"\nbounds = [-50, 150]',
)
EXACT = ("--method", "admm", "--set", "loss=squared", "--set", "noise=none")


def write(folder, prefix, rows, seed):
    rng = np.random.default_rng(seed)
    age, calls = rng.uniform(18, 90, rows), rng.uniform(0, 100, rows)
    plan = rng.choice(list("abc"), rows)
    spent = age - 0.5 * calls + 20 * (plan == "a") + rng.normal(0, 3, rows)
    ids = [f"u{seed}-{i}" for i in range(rows)]
    tables = {
        "labels": ("spent", zip(ids, spent, strict=True)),
        "bank": ("age", zip(ids, age, strict=True)),
        "telecom": ("plan,calls", zip(ids, plan, calls, strict=True)),
    }
    for name, (header, values) in tables.items():
        lines = [",".join(map(str, row)) for row in values]
        rng.shuffle(lines)
        text = "\n".join([f"id,{header}", *lines])
        (folder / f"{prefix}{name}.csv").write_text(text, encoding="utf-8")


@pytest.fixture
def files(tmp_path):
    (tmp_path / "schema.toml").write_text(NUMBERS, encoding="utf-8")
    write(tmp_path, "", 300, 1)
    write(tmp_path, "new-", 60, 2)
    return tmp_path


def found(folder):
    return np.array(pyarrow.csv.read_csv(folder / "scores.csv").column("prediction"))


def test_without_noise_admm_comes_to_the_ridge_regression_of_all_columns(files):
    told = simulated(files, *EXACT, "--set", "rounds=200", "--set", "strength=2")
    task = read_vertical_table(
        Schema.from_toml(files / "schema.toml"),
        id_column="id",
        label_file=files / "labels.csv",
        party_files={name: files / f"{name}.csv" for name in ("bank", "telecom")},
    )
    rows = np.hstack([part.train.block(slice(None)) for part in task.columns])
    target = 2 * task.labels - 1
    exact = np.linalg.solve(rows.T @ rows + 2 * np.eye(rows.shape[1]), rows.T @ target)
    loss = 0.5 * np.mean((rows @ exact - target) ** 2)
    assert told["train_loss"] == pytest.approx(loss, rel=1e-6)
    assert told["train_rmse"] == pytest.approx(100 * np.sqrt(2 * loss), rel=1e-6)
    # Numbers in four bins each: a constant would be off by 25 and more.
    assert told["test_rmse"] < 8
    assert told["traffic"]["messages_per_round"] == 4
    assert told["traffic"]["bytes_per_round"] >= 2 * 3 * 8 * 300


@pytest.mark.parametrize("method", ["admm", "fdml-sgd"])
def test_a_model_of_numbers_predicts_and_is_evaluated_in_the_labels_units(files, method):
    words = ["--method", method, "--set", "loss=squared", "--set", "noise=none"]
    told = simulated(files, *words)
    done = predicted(files, "model", *rows_here(files))
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["columns"] == ["prediction"]
    true = np.array(pyarrow.csv.read_csv(files / "new-labels.csv").column("spent"))
    error = np.sqrt(np.mean((found(files) - true) ** 2))
    assert error == pytest.approx(told["test_rmse"], rel=1e-6)
    done = called(
        "evaluate", files / "model", files / "new-labels.csv", *rows_here(files), "--json"
    )
    measured = json.loads(done.stdout)
    assert measured["rmse"] == pytest.approx(error, rel=1e-9)
    assert measured["r2"] > 0.9
    assert measured["constant"]["rmse"] > measured["rmse"]
    assert measured["better_than_constant"] is True
    model = VerticalModel.load(files / "model")
    assert (model.classes, model.label_bounds) == (None, (-50.0, 150.0))
    assert model.predicted(np.array([-9.0, 0.0, 9.0])).tolist() == [-50.0, 50.0, 150.0]
    assert called("report", files / "model", "--out", files / "r.html").exit_code == 0


@pytest.mark.parametrize("update", ["sharing", "as-written"])
def test_files_of_organisations_give_the_simulations_numbers(files, update):
    settings = ["--set", "rounds=4", "--set", "rho=0.2", "--set", f"update={update}"]
    simulated(files, *EXACT, *settings)
    assert predicted(files, "model", *rows_here(files)).exit_code == 0
    expected = found(files)
    party = organisations(files, method="admm", queries=NEW_ROWS)
    for name in ("bank", "telecom"):
        path = files / f"{name}.toml"
        path.write_text(path.read_text("utf-8").replace("rounds = 2", "rounds = 4"), "utf-8")
    run = (files / "run.toml").read_text("utf-8").replace("rounds = 2\n", "")
    settings = f'rounds = 4\nrho = 0.2\nloss = "squared"\nupdate = "{update}"\n'
    (files / "run.toml").write_text(f"{run}[settings]\n{settings}", encoding="utf-8")
    assert trained(files).label_bounds == (-50.0, 150.0)
    assert predicted(files, "run.toml", *party).exit_code == 0
    assert np.allclose(found(files), expected, atol=1e-9)


def test_row_noise_covers_the_columns_of_a_model_of_numbers(files):
    told = simulated(files, "--method", "admm", "--set", "loss=squared", "--epsilon", "8")
    for statement in told["privacy"].values():
        assert 7.9 < statement["epsilon"] <= 8
        assert any("its value a number" in line for line in statement["not_covered"])


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("--method", "experts"), "experts predict one of two classes"),
        (("--method", "admm"), "set loss=squared"),
        (("--method", "fdml-sgd", "--set", "loss=hinge"), "set loss=squared"),
        ((*EXACT, "--hide-labels", "1"), "a number cannot be hidden"),
    ],
)
def test_what_is_for_classes_is_refused_for_numbers(files, words, reason):
    done = called(
        *("vertical", "simulate", "--id", "id", "--schema", files / "schema.toml"),
        *("--label", files / "labels.csv", "--party", f"bank={files}/bank.csv"),
        *("--party", f"telecom={files}/telecom.csv", *words),
    )
    assert done.exit_code == 2
    assert reason in " ".join(done.stderr.split())


def test_organisations_refuse_it_too(files):
    organisations(files, method="admm")
    with pytest.raises(InputError, match="set loss=squared"):
        trained(files)
    organisations(files)
    with pytest.raises(InputError, match="experts predict"):
        trained(files)


def test_a_missing_or_foreign_number_is_named_and_not_shown(files):
    import pyarrow as pa

    schema = Schema.from_toml(files / "schema.toml")
    assert party_label_codes(schema, pa.table({"spent": [-50, 50, 1e9]})).tolist() == [0, 0.5, 1]
    with pytest.raises(HalfmaskError, match="'spent': expected a number in every row"):
        party_label_codes(schema, pa.table({"spent": [1.0, None]}))
    with pytest.raises(HalfmaskError, match="'spent', row 2") as caught:
        party_label_codes(schema, pa.table({"spent": ["1", "secret"]}))
    assert "secret" not in str(caught.value)


def test_damage_to_the_bounds_is_named(files):
    simulated(files, *EXACT)
    path = files / "model" / "vertical.json"
    path.write_text(path.read_text("utf-8").replace("150", "-150"), encoding="utf-8")
    done = predicted(files, "model", *rows_here(files))
    assert done.exit_code == 2
    assert "damaged" in done.stderr


def test_the_printed_text_tells_the_error_and_the_traffic(files):
    done = called(
        *("vertical", "simulate", "--id", "id", "--schema", files / "schema.toml"),
        *("--label", files / "labels.csv", "--party", f"bank={files}/bank.csv"),
        *("--party", f"telecom={files}/telecom.csv", *EXACT),
    )
    assert done.exit_code == 0, done.output
    assert "train rmse" in done.stdout
    assert "4 messages and" in done.stdout
