"""`halfmask audit` as a user meets it: fields, exit codes, and what it leaves in the folder."""

import json

import numpy as np
import pyarrow as pa
import pytest
from click.testing import CliRunner
from pyarrow import csv

from halfmask.audit import distinguish as module
from halfmask.cli import main
from halfmask.mechanisms import release
from halfmask.mechanisms.noise import noise_source
from halfmask.schema import Column, Label, Schema
from halfmask.table import Encoder
from halfmask.training import train

FIELDS = {"mechanism", "claimed", "lower_bound", "confidence", "relation", "refuted"}


def run(*args):
    return CliRunner().invoke(main, ["audit", *map(str, args)])


def test_a_mechanism_that_stands_exits_0():
    options = ["--epsilon", 4, "--runs", 400, "--confidence", 0.9999, "--json"]
    result = run("--mechanism", "full-batch", *options)
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert set(found) >= FIELDS
    assert found["mechanism"] == "full-batch"
    assert found["claimed"] == pytest.approx(4, rel=1e-3)
    assert found["confidence"] == 0.9999
    assert found["relation"] == "replace"
    assert found["refuted"] is False


def test_without_a_confidence_it_is_0_95():
    result = run("--mechanism", "full-batch", "--epsilon", 4, "--runs", 100, "--json")
    found = json.loads(result.stdout)
    assert found["confidence"] == 0.95
    assert result.exit_code == (4 if found["refuted"] else 0)


def test_a_refuted_mechanism_exits_4_and_its_twin_0():
    caught = run("--mechanism", "refuted-one-byte-seed", "--json")
    assert caught.exit_code == 4
    found = json.loads(caught.stdout)
    assert found["refuted"] is True
    assert found["lower_bound"] > found["claimed"] == pytest.approx(1)
    assert found["confidence"] == 0.999
    assert run("--mechanism", "corrected-one-byte-seed", "--runs", 400).exit_code == 0


def test_broken_noise_of_our_own_exits_4(monkeypatch):
    exact = release.add_gaussian
    monkeypatch.setattr(release, "add_gaussian", lambda v, std, source: exact(v, std / 4, source))
    result = run("--mechanism", "one-shot", "--epsilon", 4, "--runs", 600, "--confidence", 0.999)
    assert result.exit_code == 4
    assert "REFUTED" in result.output


def test_the_list_names_every_mistake():
    result = run("--list", "--json")
    listed = json.loads(result.stdout)
    assert {"sgd", "gd", "one-shot", "label", "admm-column", "admm-row", "experts"} <= set(
        listed["mechanisms"]
    )
    assert sum(name.startswith("refuted-") for name in listed["mechanisms"]) == 11
    assert all(listed["mistakes"].values())


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["--mechanism", "gdd"], "Did you mean 'gd'"),
        ([], "--mechanism NAME"),
        (["--mechanism", "gd", "--confidence", 1], "confidence"),
        (["--mechanism", "gd", "--epsilon", -1], "epsilon"),
        (["nowhere"], "--data"),
        (["--mechanism", "gd", "--runs", 5], "100 runs"),
    ],
)
def test_mistakes_of_the_user_exit_2(args, says):
    result = run(*args)
    assert result.exit_code == 2
    assert says in result.output
    assert "Traceback" not in result.output


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    base = tmp_path_factory.mktemp("audited")
    generator = np.random.default_rng(2)
    n = 300
    dose = generator.integers(3, size=n)
    frame = pa.table(
        {
            "dose": np.array(["none", "some", "much"])[dose],
            "ill": np.array(["no", "yes"])[(dose + generator.integers(2, size=n)) // 2],
        }
    )
    schema = Schema(
        label=Label("ill", "private", classes=("no", "yes")),
        columns=(Column("dose", "private", "category", categories=("none", "some", "much")),),
    )
    encoder = Encoder.fit(schema, frame)
    model = train(
        encoder.encode(frame),
        epsilon=1.0,
        delta=1e-5,
        relation="replace",
        method="gd",
        noise=noise_source(),
        encoder=encoder,
    )
    model.save(base / "model")
    csv.write_csv(frame, base / "rows.csv")
    return base


def test_a_model_is_audited_and_the_result_kept_for_the_report(folder):
    result = run(folder / "model", "--data", folder / "rows.csv", "--canaries", 100, "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert set(found) >= FIELDS
    assert found["canaries"] == 100
    assert [each["column"] for each in found["attribute_inference"]] == ["dose"]
    stored = json.loads((folder / "model" / "audit.json").read_text(encoding="utf-8"))
    assert stored["lower_bound"] == found["lower_bound"]
    assert (folder / "model" / "attribute-inference.svg").is_file()
    from halfmask.report.facts import _audits

    assert _audits(folder / "model" / "audit.json")[0].mechanism == "gd"


def test_a_model_without_rows_asks_for_them(folder):
    result = run(folder / "model")
    assert result.exit_code == 2
    assert "--data" in result.output


def test_workers_are_gone_after_an_audit():
    import multiprocessing

    run("--mechanism", "full-batch", "--epsilon", 4, "--runs", 200)
    assert not multiprocessing.active_children()
    assert module._shared is None
