"""`halfmask audit` as a user meets it: fields, exit codes, and what it leaves in the folder."""

import json

import numpy as np
import pyarrow as pa
import pytest
from click.testing import CliRunner
from pyarrow import csv

from halfmask import progress
from halfmask.accounting.budget import Budget
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
        Budget(epsilon=1.0, delta=1e-5),
        method="gd",
        noise=noise_source(),
        encoder=encoder,
    )
    model.save(base / "model")
    csv.write_csv(frame, base / "rows.csv")
    return base


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_an_audit_leaves_the_model_folder_as_it_was(folder, tmp_path):
    """Whoever sees the model sees its folder: exact figures of private rows must not lie there."""
    before = contents(folder / "model")
    asked = [folder / "model", "--data", folder / "rows.csv", "--canaries", 100]
    assert run(*asked).exit_code == 0
    assert run(*asked, "--out", tmp_path / "kept").exit_code == 0
    assert contents(folder / "model") == before
    (tmp_path / "link").symlink_to(folder / "model")
    for inside in (folder / "model", folder / "model" / "audits", tmp_path / "link"):
        refused = run(*asked, "--out", inside)
        assert refused.exit_code == 2
        assert "outside it" in refused.output
    assert contents(folder / "model") == before


def test_a_model_is_audited_and_the_result_kept_for_the_report(folder, tmp_path):
    kept = tmp_path / "kept"
    result = run(
        folder / "model", "--data", folder / "rows.csv", "--canaries", 100, "--json", "--out", kept
    )
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert set(found) >= FIELDS
    assert found["canaries"] == 100
    assert [each["column"] for each in found["attribute_inference"]] == ["dose"]
    stored = json.loads((kept / "audit.json").read_text(encoding="utf-8"))
    assert stored["lower_bound"] == found["lower_bound"]
    assert (kept / "attribute-inference.svg").is_file()
    from halfmask.report.facts import _audits

    for place in (kept, kept / "audit.json"):
        audits, inferences = _audits(place)
        assert audits[0].mechanism == "gd"
        assert [each.column for each in inferences] == ["dose"]


@pytest.fixture(scope="module")
def network(folder):
    """A network on a public label, trained with options of its own."""
    from halfmask.neural.pretrain import PretrainConfig

    schema = Schema(
        label=Label("ill", "public", classes=("no", "yes")),
        columns=(Column("dose", "private", "category", categories=("none", "some", "much")),),
    )
    frame = csv.read_csv(folder / "rows.csv")
    encoder = Encoder.fit(schema, frame)
    model = train(
        encoder.encode(frame),
        Budget(epsilon=1.0, delta=1e-5),
        method="mlp",
        noise=noise_source(),
        encoder=encoder,
        options={"pretrain": PretrainConfig(hidden=5, networks=1, epochs=2)},
    )
    model.save(folder / "network")
    return folder


def test_a_network_is_trained_again_with_its_own_options(network, monkeypatch):
    from halfmask.audit import model_audit

    seen = []

    def watched(*args, **kwargs):
        seen.append(kwargs)
        return train(*args, **kwargs)

    monkeypatch.setattr(model_audit, "train", watched)
    result = run(network / "network", "--data", network / "rows.csv", "--canaries", 60, "--json")
    found = json.loads(result.stdout)
    assert result.exit_code == (4 if found["refuted"] else 0)
    assert found["mechanism"] == "mlp"
    assert "one more training of mlp" in found["audited"]
    assert seen[0]["method"] == "mlp"
    assert seen[0]["options"]["config"].pretrain.hidden == 5


def test_the_report_shows_the_audit_of_a_network(network, tmp_path):
    kept, out = tmp_path / "kept", tmp_path / "report.html"
    run(network / "network", "--data", network / "rows.csv", "--canaries", 60, "--out", kept)
    asked = ["report", str(network / "network"), "--out", str(out)]
    written = CliRunner().invoke(main, asked)
    assert "Right guesses of private columns" not in out.read_text(encoding="utf-8")
    written = CliRunner().invoke(main, [*asked, "--audit", str(kept)])
    assert written.exit_code == 0, written.output
    page = out.read_text(encoding="utf-8")
    assert "Attack shows at least" in page
    assert "Right guesses of private columns" in page
    assert "dose" in page
    assert "which proves nothing" in page


@pytest.mark.slow
def test_a_model_that_leaks_exits_4_and_the_report_says_so(folder, tmp_path, monkeypatch):
    """The noise of the second training is all but gone: the model follows every canary."""
    exact = release.add_gaussian
    monkeypatch.setattr(
        release, "add_gaussian", lambda v, std, source: exact(v, 1e-6 * std, source)
    )
    wide = _wide_rows(tmp_path)
    kept, out = tmp_path / "kept", tmp_path / "report.html"
    result = run(tmp_path / "model", "--data", wide, "--canaries", 100, "--out", kept)
    assert result.exit_code == 4, result.output
    assert "REFUTED" in result.output
    asked = ["report", str(tmp_path / "model"), "--out", str(out), "--audit", str(kept)]
    CliRunner().invoke(main, asked)
    assert "An audit has refuted a claim of this model" in out.read_text(encoding="utf-8")


def _wide_rows(folder):
    """Few rows with many private columns, and a model of them: a fit without noise knows each."""
    generator = np.random.default_rng(4)
    names = [f"c{place}" for place in range(240)]
    frame = pa.table(
        {name: generator.choice(["a", "b"], 200) for name in names}
        | {"ill": generator.choice(["no", "yes"], 200)}
    )
    schema = Schema(
        label=Label("ill", "private", classes=("no", "yes")),
        columns=tuple(Column(n, "private", "category", categories=("a", "b")) for n in names),
    )
    encoder = Encoder.fit(schema, frame)
    train(
        encoder.encode(frame),
        Budget(epsilon=1.0, delta=1e-5),
        method="gd",
        noise=noise_source(),
        encoder=encoder,
    ).save(folder / "model")
    csv.write_csv(frame, folder / "wide.csv")
    return folder / "wide.csv"


def test_a_model_with_a_function_among_its_options_says_what_to_do(folder):
    description = json.loads((folder / "model" / "model.json").read_text(encoding="utf-8"))
    (folder / "odd").mkdir()
    (folder / "odd" / "model.npz").write_bytes((folder / "model" / "model.npz").read_bytes())
    (folder / "odd" / "model.json").write_text(json.dumps(description | {"options": None}))
    result = run(folder / "odd", "--data", folder / "rows.csv")
    assert result.exit_code == 2
    assert "a file cannot hold" in result.output


def test_a_model_without_rows_asks_for_them(folder):
    result = run(folder / "model")
    assert result.exit_code == 2
    assert "--data" in result.output


def test_workers_are_gone_after_an_audit():
    import multiprocessing

    run("--mechanism", "full-batch", "--epsilon", 4, "--runs", 200)
    assert not multiprocessing.active_children()
    assert progress._shared is None
