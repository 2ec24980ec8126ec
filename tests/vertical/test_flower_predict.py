"""Two organisations over Flower: train, stop everything, start again, predict new rows by id."""

from __future__ import annotations

import json

import numpy as np
import pyarrow.csv
import pytest

pytest.importorskip("flwr")

from test_flower import credentials, free_port, join, launch, serve, stop, wait_for
from test_queries import NAMES, NEW_ROWS, organisations, predicted, rows_here, simulated
from test_simulate import SCHEMA, write

from halfmask.vertical.queries import LOG

ROWS = 1000


def session(folder, start):
    """A server process with both parties until it has ended: its exit code and what it printed."""
    port = free_port()
    log = folder / "serve.log"
    log.unlink(missing_ok=True)
    server = start(port)
    parties = []
    try:
        wait_for(
            lambda: (
                server.poll() is not None
                or (log.exists() and "Registered party 'telecom'" in log.read_text("utf-8"))
            )
        )
        parties = [join(folder, name, port) for name in NAMES]
        out, _ = server.communicate(timeout=600)
        return server.returncode, out.decode(), log.read_text("utf-8")
    finally:
        for process in (server, *parties):
            stop(process)


def asking(folder):
    def start(port):
        return launch(
            folder,
            "serve.log",
            *("predict", "run.toml", "--id-file", "new-labels.csv", "--out", "scores.csv"),
            *("--ca", "ca.pem", "--cert", "server.pem", "--key", "server.key"),
            *("--port", port, "--json"),
        )

    return start


@pytest.mark.slow
def test_organisations_that_start_again_predict_what_the_simulation_does(tmp_path):
    (tmp_path / "schema.toml").write_text(SCHEMA, encoding="utf-8")
    write(tmp_path, "", 400, 1)
    write(tmp_path, "new-", ROWS, 2)
    settings = ("--noise", "none", "--rounds", "2", "--set", "strength=1")
    simulated(tmp_path, "--method", "admm", *settings)
    assert predicted(tmp_path, "model", *rows_here(tmp_path)).exit_code == 0
    expected = np.array(pyarrow.csv.read_csv(tmp_path / "scores.csv").column("p_yes"))
    (tmp_path / "scores.csv").unlink()

    rules = NEW_ROWS.replace("130", "5000")
    organisations(tmp_path, method="admm", queries=rules)
    run = (tmp_path / "run.toml").read_text("utf-8")
    keys = run.replace("a.pub", "bank.pub").replace("b.pub", "telecom.pub")
    timed = keys.replace("[parties]", "timeout = 240.0\n[parties]")
    (tmp_path / "run.toml").write_text(timed, encoding="utf-8")
    credentials(tmp_path)
    code, out, log = session(tmp_path, lambda port: serve(tmp_path, port))
    assert code == 0, log
    assert json.loads(out)["rounds"] == 2

    code, out, log = session(tmp_path, asking(tmp_path))
    assert code == 0, log
    assert json.loads(out)["rows"] == ROWS
    found = np.array(pyarrow.csv.read_csv(tmp_path / "scores.csv").column("p_yes"))
    assert np.allclose(found, expected, atol=1e-9)
    # Scores are handed on, not kept, and each party has written down what it answered.
    assert not (tmp_path / "out" / "scores.json").exists()
    assert not (tmp_path / "out" / "query.json").exists()
    for name in NAMES:
        line = json.loads((tmp_path / f"{name}-state" / LOG).read_text("utf-8"))
        assert (line["asked"], len(line["answered"])) == (ROWS, ROWS)
    (tmp_path / "scores.csv").unlink()

    # An id that one party does not know: the row of the id file is named, and no score is told.
    rows = (tmp_path / "new-bank.csv").read_text("utf-8").splitlines()
    (tmp_path / "new-bank.csv").write_text("\n".join(rows[:-1]), encoding="utf-8")
    code, out, log = session(tmp_path, asking(tmp_path))
    assert code == 2
    assert "Party 'bank' has no row that it answers for 1 of the ids" in log
    # A party that refuses: the reason stays with it.
    organisations(tmp_path, method="admm", queries="")
    (tmp_path / "run.toml").write_text(timed, encoding="utf-8")
    code, out, log = session(tmp_path, asking(tmp_path))
    assert code == 2
    assert "its own log says why" in log
    assert "[queries]" not in log
    assert not (tmp_path / "scores.csv").exists()
