"""A's losses, regularisers and constraints by command and in the files of both sides."""

from __future__ import annotations

import numpy as np
import pyarrow.csv
import pytest
from test_queries import NEW_ROWS, organisations, predicted, rows_here, simulated, trained
from test_simulate import SCHEMA, write

from halfmask.errors import InputError
from halfmask.vertical.network import read_party_file, read_run_file
from halfmask.vertical.queries import Part

PROBLEMS = [
    ("loss=hinge", "regulariser=l2"),
    ("loss=smoothed-hinge", "regulariser=none", "constraint=ball", "reach=2"),
    ("loss=squared", "regulariser=l1", "strength=3"),
    ("loss=logistic", "regulariser=l2", "constraint=box", "reach=0.3"),
]


@pytest.fixture
def files(tmp_path):
    (tmp_path / "schema.toml").write_text(SCHEMA, encoding="utf-8")
    write(tmp_path, "", 300, 1)
    write(tmp_path, "new-", 40, 2)
    return tmp_path


def words(*settings):
    return [word for setting in settings for word in ("--set", setting)]


@pytest.mark.parametrize("problem", PROBLEMS, ids=" ".join)
@pytest.mark.parametrize("noise", ["none", "column"])
def test_every_problem_of_a_runs_by_command(files, problem, noise):
    told = simulated(files, "--method", "admm", *words(*problem, f"noise={noise}", "rounds=5"))
    assert told["settings"]["loss"] == problem[0].split("=")[1]
    assert np.isfinite([told["train_loss"], told["test_loss"]]).all()
    coefficients = [
        Part.load(files / "model" / "parties" / name).coefficients for name in ("bank", "telecom")
    ]
    if "constraint=box" in problem:
        assert all(np.abs(x).max() <= 0.3 + 1e-12 for x in coefficients)
    if "constraint=ball" in problem:
        assert all(np.linalg.norm(x) <= 2 + 1e-9 for x in coefficients)
    for statement in told["privacy"].values():
        assert (statement["epsilon"] is None) == (noise == "none")


@pytest.mark.parametrize("problem", PROBLEMS, ids=" ".join)
def test_files_of_organisations_take_the_same_settings(files, problem):
    simulated(files, "--method", "admm", *words(*problem, "noise=none", "rounds=4", "rho=0.2"))
    assert predicted(files, "model", *rows_here(files)).exit_code == 0
    expected = np.array(pyarrow.csv.read_csv(files / "scores.csv").column("p_yes"))
    party = organisations(files, method="admm", queries=NEW_ROWS)
    holder, own = ["rho = 0.2\nrounds = 4"], ['noise = "none"']
    for setting in problem:
        name, value = setting.split("=")
        quoted = value if value[0].isdigit() else f'"{value}"'
        (holder if name == "loss" else own).append(f"{name} = {quoted}")
    own += [] if any("strength" in line for line in own) else ["strength = 1.0"]
    for file, lines in (("run", holder), ("bank", own), ("telecom", own)):
        path = files / f"{file}.toml"
        kept = [
            line
            for line in path.read_text("utf-8").splitlines()
            if not line.startswith(("rounds", "noise", "strength"))
        ]
        path.write_text("\n".join([*kept, "[settings]", *lines]), encoding="utf-8")
    trained(files)
    assert predicted(files, "run.toml", *party).exit_code == 0
    found = np.array(pyarrow.csv.read_csv(files / "scores.csv").column("p_yes"))
    assert np.allclose(found, expected, atol=1e-9)


def test_experts_take_their_settings_in_files(files):
    organisations(files)
    for name in ("bank", "telecom"):
        path = files / f"{name}.toml"
        text = path.read_text("utf-8").replace("[queries]", "[settings]\nsteps = 4\n[queries]")
        path.write_text(text, encoding="utf-8")
    path = files / "run.toml"
    text = path.read_text("utf-8").replace("[parties]", "[settings]\ndamping = 0.5\n[parties]")
    path.write_text(text, encoding="utf-8")
    model = trained(files)
    assert model.weights == {"bank": 1.0, "telecom": 0.5}
    assert read_party_file(files / "bank.toml").config.steps == 4
    (event,) = model.privacy["bank"]["events"]
    assert event["count"] == 4 + 2  # gradients, the Gram matrix and the curvature


@pytest.mark.parametrize(
    ("file", "lines", "wanted"),
    [
        ("bank", "[settings]\nrho = 0.1", "the settings are strength, regulariser"),
        ("run", "[settings]\nstrength = 1.0", "the settings are loss, rho, update"),
        ("run", "[settings]\nrounds = 3", "said twice"),
        ("bank", '[settings]\nregulariser = "l3"', "regulariser expects l2, l1, none"),
        ("bank", '[settings]\nregulariser = "l1"\nnoise_radius = -1.0', "noise_radius > 0"),
    ],
)
def test_settings_of_the_other_side_and_wrong_values_are_named(files, file, lines, wanted):
    organisations(files, method="admm")
    path = files / f"{file}.toml"
    path.write_text(path.read_text("utf-8") + lines, encoding="utf-8")
    with pytest.raises(InputError, match=wanted):
        (read_party_file if file == "bank" else read_run_file)(path)


def test_a_problem_that_row_noise_has_no_proof_for_is_refused(files):
    from test_queries import called

    done = called(
        *("vertical", "simulate", "--id", "id", "--method", "admm", "--set", "regulariser=l1"),
        *("--schema", files / "schema.toml", "--label", files / "labels.csv"),
        *("--party", f"bank={files}/bank.csv", "--party", f"telecom={files}/telecom.csv"),
    )
    assert done.exit_code == 2
    assert "noise=column" in done.stderr


def test_messages_and_bytes_of_a_round_are_counted(files):
    """A: one number per row and party, and the residual and the dual back to each party."""
    told = simulated(files, "--method", "admm", *words("noise=none", "rounds=3"))
    traffic = told["traffic"]
    assert traffic["messages_per_round"] == 2 * 2
    assert traffic["bytes_per_round"] == 2 * (1 + 2) * 300 * 8
    assert traffic["bytes"] == 3 * traffic["bytes_per_round"]
