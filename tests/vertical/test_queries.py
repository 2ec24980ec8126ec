"""A vertical model predicts, by each party's own rules, and every answer is written down."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pyarrow.csv
import pytest
from click.testing import CliRunner
from scipy.special import expit
from test_simulate import SCHEMA, write

from halfmask.cli import main
from halfmask.errors import DataError, InputError
from halfmask.vertical.channel import LocalChannel, Message, PartyError
from halfmask.vertical.network import NetworkParty, read_party_file, read_run_file
from halfmask.vertical.party import id_hashes
from halfmask.vertical.queries import (
    KIND,
    LOG,
    Part,
    QueryDesk,
    VerticalModel,
    answered_so_far,
    ask_scores,
)

NAMES = ("bank", "telecom")


@pytest.fixture
def files(tmp_path):
    (tmp_path / "schema.toml").write_text(SCHEMA, encoding="utf-8")
    write(tmp_path, "", 400, 1)
    write(tmp_path, "new-", 60, 2)
    return tmp_path


def called(*words):
    return CliRunner().invoke(main, [str(word) for word in words])


def simulated(folder, *options, out="model"):
    done = called(
        *("vertical", "simulate", "--id", "id", "--json", "--out", folder / out),
        *("--schema", folder / "schema.toml", "--label", folder / "labels.csv"),
        *("--party", f"bank={folder}/bank.csv", "--party", f"telecom={folder}/telecom.csv"),
        *("--test-label", folder / "new-labels.csv", "--test-party", f"bank={folder}/new-bank.csv"),
        *("--test-party", f"telecom={folder}/new-telecom.csv", *options),
    )
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def predicted(folder, run="model", *options):
    return called(
        *("vertical", "predict", folder / run, "--id-file", folder / "new-labels.csv"),
        *("--out", folder / "scores.csv", "--json", *options),
    )


def rows_here(folder):
    pairs = [f"{name}={folder}/new-{name}.csv" for name in NAMES]
    return [word for pair in pairs for word in ("--party", pair)]


@pytest.mark.parametrize("method", ["experts", "admm", "fdml-sgd"])
def test_a_simulated_model_predicts_new_rows_as_the_simulation_scored_them(files, method):
    told = simulated(files, "--method", method)
    done = predicted(files, "model", *rows_here(files))
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["columns"] == ["prediction", "p_no", "p_yes"]
    scores = pyarrow.csv.read_csv(files / "scores.csv")
    labels = pyarrow.csv.read_csv(files / "new-labels.csv").column("churned").to_pylist()
    chance = np.array(scores.column("p_yes"))
    right = np.where(np.array(labels) == "yes", chance, 1 - chance)
    # The rows of the file are in its own order, and so are the predictions.
    assert -np.log(right).mean() == pytest.approx(told["test_loss"], abs=1e-9)
    assert scores.column("prediction").to_pylist() == np.where(chance > 0.5, "yes", "no").tolist()


def test_a_folder_is_not_written_over_and_damage_is_named(files):
    simulated(files)
    again = called(
        *("vertical", "simulate", "--id", "id", "--out", files / "model"),
        *("--schema", files / "schema.toml", "--label", files / "labels.csv"),
        *("--party", f"bank={files}/bank.csv", "--party", f"telecom={files}/telecom.csv"),
    )
    assert again.exit_code == 2
    assert "new folder" in again.stderr
    missing = predicted(files, "model", "--party", f"bank={files}/new-bank.csv")
    assert missing.exit_code == 2
    assert "missing: 'telecom'" in missing.stderr
    part = files / "model" / "parties" / "bank" / "part.json"
    part.write_text(part.read_text("utf-8").replace("halfmask-vertical-part-1", "x"), "utf-8")
    assert "damaged" in predicted(files, "model", *rows_here(files)).stderr
    (files / "model" / "vertical.json").write_text("{}", "utf-8")
    assert "damaged" in predicted(files, "model", *rows_here(files)).stderr


def test_commands_for_one_table_say_which_read_a_model_of_several_parties(files):
    simulated(files)
    model, rows = files / "model", files / "new-labels.csv"
    for words in (
        ("predict", model, rows),
        ("audit", model, "--data", rows),
    ):
        done = called(*words)
        assert done.exit_code == 2
        assert "a model of several parties" in done.stderr
        assert "`halfmask vertical predict`" in done.stderr
    alone = called("evaluate", model, rows)
    assert alone.exit_code == 2
    assert "pass the rows of each with --party NAME=FILE" in alone.stderr


@pytest.mark.parametrize("huge", ["1" + "0" * 400, "-1" + "0" * 400, "1e400"])
@pytest.mark.parametrize("name", ["weights", "intercept", "label_bounds"])
def test_a_stored_number_beyond_all_floats_is_called_damage_when_it_is_read(tmp_path, name, huge):
    """JSON's whole numbers have no end: 10^400 is one, and no float."""
    model = VerticalModel(
        method="experts", run="a", weights={"bank": 1.5}, intercept=0.5, rule="sum", label="cost",
        classes=None, id="id", privacy={}, label_bounds=(0.25, 9.75),
    )  # fmt: skip
    model.save(tmp_path)
    assert VerticalModel.load(tmp_path).label_bounds == (0.25, 9.75)
    stored = tmp_path / "vertical.json"
    old = {"weights": "1.5", "intercept": "0.5", "label_bounds": "9.75"}[name]
    whole = stored.read_text("utf-8")
    assert whole.count(old) == 1
    stored.write_text(whole.replace(old, huge), "utf-8")
    with pytest.raises(DataError, match="The model is damaged"):
        VerticalModel.load(tmp_path)


def organisations(folder, *, method="experts", noise="none", queries="[queries]\nmost = 1000\n"):
    for name in NAMES:
        (folder / f"{name}.toml").write_text(
            f'party = "{name}"\nschema = "schema.toml"\ndata = "{name}.csv"\nid = "id"\n'
            f'state = "{name}-state"\nmethod = "{method}"\nnoise = "{noise}"\nrounds = 2\n'
            f"strength = 1.0\n{queries.replace('{name}', name)}",
            encoding="utf-8",
        )
    (folder / "run.toml").write_text(
        'schema = "schema.toml"\nlabel = "labels.csv"\nid = "id"\nout = "out"\n'
        f'method = "{method}"\nrounds = 2\n[parties]\nbank = "a.pub"\ntelecom = "b.pub"\n',
        encoding="utf-8",
    )
    return [word for name in NAMES for word in ("--party", f"{name}={folder}/{name}.toml")]


def trained(folder):
    """The run between organisations, in this process."""
    pytest.importorskip("flwr")
    from halfmask.vertical.flower_app import run_method

    settings = read_run_file(folder / "run.toml")
    settings.out.mkdir(exist_ok=True)
    parties = {n: NetworkParty(read_party_file(folder / f"{n}.toml")) for n in NAMES}
    run_method(LocalChannel(parties), settings)
    return VerticalModel.load(settings.out)


def test_a_partys_file_answers_under_its_own_name_only(files):
    """Under another name its scores would get that party's weight."""
    organisations(files)
    trained(files)
    swapped = ("--party", f"bank={files}/telecom.toml", "--party", f"telecom={files}/bank.toml")
    done = predicted(files, "run.toml", *swapped)
    assert done.exit_code == 2
    assert "is the file of party 'telecom'" in done.stderr


NEW_ROWS = '[queries]\ndata = "new-{name}.csv"\nmost = 130\n'


def test_parties_answer_as_their_files_allow_and_write_it_down(files):
    party = organisations(files, queries=NEW_ROWS)
    model = trained(files)
    assert model.parties == NAMES
    assert all(0.99 < told["epsilon"] <= 1.0 for told in model.privacy.values())
    assert any("tells that row's own columns" in w for w in model.privacy["bank"]["not_covered"])
    done = predicted(files, "run.toml", *party)
    assert done.exit_code == 0, done.output
    found = np.array(pyarrow.csv.read_csv(files / "scores.csv").column("p_yes"))
    parts = {name: Part.load(files / f"{name}-state" / "part") for name in NAMES}
    total = model.intercept
    ids = pyarrow.csv.read_csv(files / "new-labels.csv").column("id").to_pylist()
    for name, part in parts.items():
        frame = pyarrow.csv.read_csv(files / f"new-{name}.csv")
        place = {value: row for row, value in enumerate(frame.column("id").to_pylist())}
        order = [place[value] for value in ids]
        total = total + model.weights[name] * part.scores(frame.take(order))
    assert np.allclose(found, expit(total), atol=1e-9)
    log = files / "bank-state" / LOG
    line = json.loads(log.read_text("utf-8"))
    assert (line["asked"], sorted(line["answered"])) == (60, sorted(ids))
    assert log.stat().st_mode & 0o077 == 0
    # 60 of 130 are used: a second time fits, a third does not, and says nothing of why.
    assert predicted(files, "run.toml", *party).exit_code == 0
    third = predicted(files, "run.toml", *party)
    assert third.exit_code == 2
    assert "130" in third.stderr
    assert answered_so_far(log) == 120


def test_without_a_word_in_its_file_a_party_answers_nothing(files):
    party = organisations(files, queries="")
    trained(files)
    done = predicted(files, "run.toml", *party)
    assert done.exit_code == 2
    assert "answers no queries" in done.stderr
    assert not (files / "scores.csv").exists()
    assert not (files / "bank-state" / LOG).exists()


def test_unknown_and_forbidden_ids_are_counted_and_named_by_their_row(files):
    lines = (files / "new-bank.csv").read_text("utf-8").splitlines()
    kept = [line.split(",")[0] for line in lines[1:31]]
    (files / "some.csv").write_text("\n".join(["id", *kept]), encoding="utf-8")
    party = organisations(files, queries=NEW_ROWS + 'ids = "some.csv"\n')
    trained(files)
    done = predicted(files, "run.toml", *party)
    assert done.exit_code == 2
    asked = pyarrow.csv.read_csv(files / "new-labels.csv").column("id").to_pylist()
    first = next(row for row, value in enumerate(asked, 1) if value not in kept)
    assert f"30 of the ids, the first in row {first} " in done.stderr
    line = json.loads((files / "bank-state" / LOG).read_text("utf-8"))
    assert (line["asked"], line["answered"]) == (60, [])
    assert sorted(line["known"]) == sorted(kept)
    # A row without an id among those that may be asked for allows none.
    (files / "some.csv").write_text("id,note\n,all\n", encoding="utf-8")
    done = predicted(files, "run.toml", *party)
    assert done.exit_code == 2
    assert "has no id" in done.stderr
    (files / "some.csv").write_text("\n".join(["id", *kept]), encoding="utf-8")
    (files / "new-labels.csv").write_text("\n".join(["id", *kept]), encoding="utf-8")
    assert predicted(files, "run.toml", *party).exit_code == 0


@pytest.mark.parametrize("noise", ["none", "row", "column"])
def test_exact_coefficients_under_noisy_shares_are_not_told_unless_allowed(files, noise):
    party = organisations(files, method="admm", noise=noise, queries=NEW_ROWS)
    trained(files)
    done = predicted(files, "run.toml", *party)
    if noise == "none":
        assert done.exit_code == 0, done.output
        return
    assert done.exit_code == 2
    assert "uncovered = true" in done.stderr
    party = organisations(
        files, method="admm", noise=noise, queries=NEW_ROWS + "uncovered = true\n"
    )
    assert predicted(files, "run.toml", *party).exit_code == 0


def test_a_run_without_noise_predicts_what_the_simulation_does(files):
    settings = ("--noise", "none", "--rounds", "2", "--set", "strength=1")
    simulated(files, "--method", "admm", *settings)
    assert predicted(files, "model", *rows_here(files)).exit_code == 0
    apart = np.array(pyarrow.csv.read_csv(files / "scores.csv").column("p_yes"))
    party = organisations(files, method="admm", queries=NEW_ROWS)
    trained(files)
    assert predicted(files, "run.toml", *party).exit_code == 0
    between = np.array(pyarrow.csv.read_csv(files / "scores.csv").column("p_yes"))
    assert np.allclose(apart, between, atol=1e-9)


def question(ids, of, run="q"):
    return Message(
        kind=KIND, run=run, round=0, arrays={"ids": id_hashes(ids, run)}, values={"of": of}
    )


def test_answers_do_not_depend_on_training_rows_but_through_what_was_released(files):
    """Replay: another training table and the same released coefficients give the same answers."""
    organisations(files, queries=NEW_ROWS)
    model = trained(files)
    ids = pyarrow.csv.read_csv(files / "new-bank.csv").column("id").to_pylist()
    before = NetworkParty(read_party_file(files / "bank.toml")).answer(question(ids, model.run))
    rows = (files / "bank.csv").read_text("utf-8").splitlines()
    changed = [rows[0], f"{rows[1].split(',')[0]},18.0", *rows[2:]]
    (files / "bank.csv").write_text("\n".join(changed), encoding="utf-8")
    after = NetworkParty(read_party_file(files / "bank.toml")).answer(question(ids, model.run))
    assert np.array_equal(before.arrays["scores"], after.arrays["scores"])
    assert np.array_equal(before.arrays["known"], after.arrays["known"])


def test_two_questions_at_once_cannot_both_use_what_is_left(files):
    organisations(files, queries=NEW_ROWS.replace("130", "100"))
    model = trained(files)
    ids = pyarrow.csv.read_csv(files / "new-bank.csv").column("id").to_pylist()

    def ask(number):
        try:
            party = NetworkParty(read_party_file(files / "bank.toml"))
            party.answer(question(ids, model.run, run=f"q{number}"))
        except InputError:
            return 0
        return 1

    with ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(ask, range(4))) == 1
    assert answered_so_far(files / "bank-state" / LOG) == 60


def test_a_torn_log_stops_answers(files):
    organisations(files, queries=NEW_ROWS)
    model = trained(files)
    ids = pyarrow.csv.read_csv(files / "new-bank.csv").column("id").to_pylist()
    party = NetworkParty(read_party_file(files / "bank.toml"))
    party.answer(question(ids, model.run))
    log = files / "bank-state" / LOG
    log.write_bytes(log.read_bytes()[:-20])
    with pytest.raises(DataError, match="Line 1"):
        party.answer(question(ids, model.run, run="r"))


def test_a_vertical_model_is_evaluated_and_reported_with_every_partys_statement(files):
    told = simulated(files)
    done = called(
        "evaluate", files / "model", files / "new-labels.csv", "--json", *rows_here(files)
    )
    assert done.exit_code == 0, done.output
    measured = json.loads(done.stdout)
    assert measured["rows"] == 60
    assert measured["log_loss"] == pytest.approx(told["test_loss"], abs=1e-9)
    assert measured["covered_by_guarantee"] is False
    better = measured["log_loss"] < measured["constant"]["log_loss"]
    assert measured["better_than_constant"] is better
    shown = called("evaluate", files / "model", files / "new-labels.csv", *rows_here(files)).stdout
    assert "To compare, a constant: accuracy" in shown
    assert ("NO BETTER THAN A CONSTANT" in shown) is not better
    for form in ("html", "md", "json", "card"):
        out = files / f"report.{form}"
        done = called("report", files / "model", "--out", out, "--format", form, "--json")
        assert done.exit_code == 0, done.output
        assert json.loads(done.stdout)["privacy"].keys() == set(NAMES)
        text = out.read_text("utf-8")
        assert all(name in text for name in NAMES)
        assert form == "json" or text.count("relation") >= 2
    wrong = called("evaluate", files / "model", files / "new-bank.csv", *rows_here(files))
    assert wrong.exit_code == 2
    assert "churned" in wrong.stderr


@pytest.mark.parametrize(
    "arrays",
    [{}, {"ids": np.array([1.0])}, {"ids": np.array([], dtype=np.uint64)}, {"ids": "all"}],
)
def test_strange_questions_are_refused_and_not_counted(files, arrays):
    organisations(files, queries=NEW_ROWS)
    model = trained(files)
    party = NetworkParty(read_party_file(files / "bank.toml"))
    with pytest.raises(InputError):
        party.answer(Message(kind=KIND, run="q", round=0, arrays=arrays, values={"of": model.run}))
    with pytest.raises(InputError, match="another training"):
        party.answer(question(["u2-1"], "another"))
    assert not (files / "bank-state" / LOG).exists()


def test_a_party_that_sends_anything_else_is_named(files):
    simulated(files)
    model = VerticalModel.load(files / "model")
    bank, telecom = (
        QueryDesk(
            folder=files / "model" / "parties" / name,
            data=files / f"new-{name}.csv",
            id="id",
        )
        for name in NAMES
    )

    class Strange:
        def __init__(self, scores):
            self.scores = scores

        def answer(self, request):
            reply = telecom.answer(request)
            return replace(reply, arrays={**reply.arrays, "scores": self.scores})

    ids = pyarrow.csv.read_csv(files / "new-bank.csv").column("id").to_pylist()
    for wrong in (np.full(len(ids), np.nan), np.zeros(3), "high", None):
        with pytest.raises(PartyError, match="'telecom'"):
            ask_scores(LocalChannel({"bank": bank, "telecom": Strange(wrong)}), model, ids)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[queries]\n", "needs most"),
        ("[queries]\nmost = -1\n", "needs most"),
        ("[queries]\nmost = true\n", "most must be"),
        ("[queries]\nmost = 3\nanswer = 1\n", "unknown key 'answer'"),
        ("queries = 3\n", "must be a table"),
    ],
)
def test_mistakes_in_the_rules_are_named(files, text, words):
    organisations(files, queries=text)
    with pytest.raises(InputError, match=words):
        read_party_file(files / "bank.toml")
