"""`vertical join` and `vertical serve` as processes: who waits, who ends whom, what they print."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("flwr")
from test_flower import NAMES, credentials, free_port, organisations, serve, stop, wait_for

from halfmask.accounting.ledger import Ledger


def join(folder, name, port, patience):
    """A party that prints JSON to NAME.out and everything else to NAME.log."""
    credential = ("--ca", "ca.pem", "--key", f"{name}.key", "--local-port", str(free_port()))
    waiting = ("--patience", str(patience), "--json")
    arguments = ("join", f"{name}.toml", "--server", f"127.0.0.1:{port}", *credential, *waiting)
    with (folder / f"{name}.out").open("wb") as out, (folder / f"{name}.log").open("wb") as log:
        return subprocess.Popen(
            [sys.executable, "-c", "from halfmask.cli import main; main()", "vertical", *arguments],
            cwd=folder,
            stdout=out,
            stderr=log,
            start_new_session=True,
        )


def descendants(pid):
    """The processes that `pid` and its children have started and that still run."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent = stat.read_text("utf-8").rpartition(")")[2].split()[:2]
        except OSError:
            continue
        if state != "Z":
            parents[int(stat.parent.name)] = int(parent)
    found = {pid}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return found - {pid}


def is_running(pid):
    try:
        return (Path("/proc") / str(pid) / "stat").read_text("utf-8").rpartition(")")[2][1] != "Z"
    except OSError:
        return False


@pytest.mark.slow
def test_join_says_that_no_server_came_within_its_patience(tmp_path):
    organisations(tmp_path, rows=20)
    credentials(tmp_path)
    started = time.monotonic()
    party = join(tmp_path, "bank", free_port(), patience=2)
    try:
        assert party.wait(timeout=300) == 2
        assert time.monotonic() - started > 2
    finally:
        stop(party)
    words = (tmp_path / "bank.log").read_text("utf-8")
    assert "after 2 seconds" in words
    assert "--patience" in words
    assert "message" in json.loads((tmp_path / "bank.out").read_text("utf-8"))["error"]


@pytest.mark.slow
def test_a_sigterm_to_join_ends_its_flower_process_too(tmp_path):
    """The server listens and says nothing, so that the SuperNode stays as it is."""
    organisations(tmp_path, rows=20)
    credentials(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        party = join(tmp_path, "bank", silent.getsockname()[1], patience=120)
        try:
            wait_for(lambda: "Uvicorn running" in (tmp_path / "bank.log").read_text("utf-8"))
            children = descendants(party.pid)
            assert children
            party.send_signal(signal.SIGTERM)
            assert party.wait(timeout=300) == 128 + signal.SIGTERM
            wait_for(lambda: not any(is_running(child) for child in children), 120)
        finally:
            stop(party)


@pytest.mark.slow
def test_parties_that_come_first_wait_for_the_server_and_all_print_their_statements(tmp_path):
    organisations(tmp_path, method="experts", label="private")
    credentials(tmp_path)
    port = free_port()
    parties = {name: join(tmp_path, name, port, patience=600) for name in NAMES}
    server = None
    try:
        wait_for(lambda: "Waiting for the server" in (tmp_path / "bank.log").read_text("utf-8"))
        server = serve(tmp_path, port)
        out, _ = server.communicate(timeout=900)
        assert server.returncode == 0, (tmp_path / "serve.log").read_text("utf-8")
        for party in parties.values():
            assert party.wait(timeout=300) == 0
    finally:
        for process in (*parties.values(), *([server] if server else [])):
            stop(process)
    served = json.loads(out)
    assert served["label_epsilon"] == pytest.approx(0.844, abs=1e-3)
    for name in NAMES:
        told = json.loads((tmp_path / f"{name}.out").read_text("utf-8"))["privacy"]
        assert told == served["privacy"][name]
        assert told["epsilon"] == pytest.approx(1.0, abs=1e-3)
        assert told["private"] == [f"{name}_score"]
        ledger = Ledger.open(tmp_path / f"{name}-state" / "ledger.jsonl")
        assert ledger.spent() == pytest.approx(told["epsilon"], abs=1e-3)
    assert not [pid for party in parties.values() for pid in descendants(party.pid)]
    assert (tmp_path / "out" / "vertical.json").exists()
