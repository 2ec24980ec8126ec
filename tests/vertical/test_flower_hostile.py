"""Organisations that misbehave over real processes: each ends as docs/vertical.md says.

The shop runs software of its own, a copy of ours that answers as the file `how` beside its party
file says. All cases share one SuperLink and one run, which goes on where the last case left it.
By hand: pytest -m hand -s tests/vertical/test_flower_hostile.py (figures in docs/reliability.md).
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import time
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr")

from click.testing import CliRunner
from flwr.app import Error
from test_flower import credentials, free_port, join, organisations, stop
from test_flower_channel import Grid, identity  # noqa: F401

import halfmask
from halfmask.accounting.ledger import Ledger
from halfmask.cli.vertical import (
    _child,
    _environment,
    _flwr,
    _tool,
    _wait_for_port,
    _wait_for_result,
    _write_app,
    vertical,
)
from halfmask.errors import HalfmaskError, InputError
from halfmask.vertical import flower_app
from halfmask.vertical.channel import PartyError
from halfmask.vertical.flower_app import FlowerChannel, run_method, to_record
from halfmask.vertical.network import read_run_file
from halfmask.vertical.queries import VerticalModel

NAMES = ("bank", "shop")
PATIENCE = float(os.environ.get("PATIENCE", "120"))
"""Seconds that an answer may take; more on a busy machine."""
SOFTWARE = """

import os
import signal

_honest = answered


def answered(content, party_file):
    file = Path(party_file).parent / "how"
    how = file.read_text() if file.exists() else ""
    reply = _honest(content, party_file)
    request = from_record(content)
    if request.kind != "admm-share" or not how:
        return reply
    share = from_record(reply).arrays["share"]
    given = {
        "nan": np.where(np.arange(len(share)) == 7, np.nan, share),
        "short": share[:-1],
    }
    if how in given:
        return to_record(request.reply(arrays={"share": given[how]}))
    if how == "another run":
        return to_record(Message(kind=request.kind, run="r", round=1, arrays={"share": share}))
    if how == "old reply" and request.round > 1:
        return to_record(Message(kind=request.kind, run=request.run, round=request.round - 1,
                                 arrays={"share": share}))
    if how == "no words":
        return RecordDict({"error": ConfigRecord({})})
    if how == "crash":
        os.kill(os.getpid(), signal.SIGKILL)
    while how == "silent" and file.read_text() == how:
        time.sleep(0.5)
    return reply
"""
CASES = {
    "nan": "'shop' sent 'share' that is not finite",
    "short": "'shop' sent 'share' of shape (299,)",
    "another run": "'shop' answered for another run",
    "no words": "'shop' sent something that is not a message",
    "crash": "'shop'",
    "old reply": "'shop' answered 'admm-share' of round 1, expected 'admm-share' of round 2",
    "silent": "No answer from 'shop'",
}


def own_software(folder):
    """A copy of halfmask in which the shop has changed what it answers."""
    shutil.copytree(Path(halfmask.__file__).parent, folder / "halfmask")
    with (folder / "halfmask" / "vertical" / "flower_app.py").open("a") as file:
        file.write(SOFTWARE)
    return {"PYTHONPATH": str(folder)}


@contextmanager
def organisations_online(folder, names, hostile=()):
    """One SuperLink with all parties; gives a function that runs a run file to its end."""
    port = free_port()
    settings = read_run_file(folder / "run.toml")
    home = folder / "flower"
    environment = _environment(home)
    _write_app(home, "127.0.0.1", port, folder / "ca.pem")
    command = [_tool("flower-superlink"), "--ssl-ca-certfile", str(folder / "ca.pem")]
    command += ["--ssl-certfile", str(folder / "server.pem"), "--ssl-keyfile"]
    command += [str(folder / "server.key"), "--host", "127.0.0.1", "--port", str(port)]
    command += ["--enable-supernode-auth", "--disable-runtime-dependency-installation"]
    parties = {}

    def run(file="run.toml"):
        told = read_run_file(folder / file)
        told.out.mkdir(exist_ok=True)
        for stale in ("result.json", "error.json"):
            (told.out / stale).unlink(missing_ok=True)
        chosen = f'run-file="{folder / file}" query-file=""'
        _flwr(environment, "run", str(home / "app"), "here", "--run-config", chosen)
        return _wait_for_result(told, link, "result.json")

    with (folder / "link.log").open("ab") as log, _child(command, environment, log) as link:
        _wait_for_port("127.0.0.1", port, link)
        for public_key in settings.parties.values():
            _flwr(environment, "supernode", "register", str(folder / public_key), "here")
        try:
            for name in names:
                other = own_software(folder / "own") if name in hostile else None
                parties[name] = join(folder, name, port, environment=other)
            yield run, parties, lambda name: join(folder, name, port)
        finally:
            for process in parties.values():
                stop(process)


def charges(folder, name):
    return len(Ledger.open(folder / f"{name}-state" / "ledger.jsonl").events())


def tried(folder, run, how, words):
    (folder / "how").write_text(how)
    began = time.perf_counter()
    with pytest.raises(HalfmaskError) as caught:
        run()
    print(f"{how:12} {time.perf_counter() - began:6.1f} s  {caught.value}", flush=True)
    assert words in str(caught.value)
    assert caught.value.exit_code == 2
    # Nobody pays twice, whatever the shop does.
    assert {charges(folder, name) for name in NAMES} == {1}


def files(folder, names=NAMES, method="admm"):
    organisations(folder, noise="row", rounds=2, names=names, method=method)
    credentials(folder, names)
    file = folder / "run.toml"
    file.write_text(file.read_text().replace("timeout = 240.0", f"timeout = {PATIENCE}"))


def software_of_the_shop():
    """The shop's `answered`, without a process of its own."""
    names = dict(vars(flower_app))
    exec(SOFTWARE, names)
    return names


def channel(folder, how=""):
    """The parties behind Flower's records, the shop with its own software."""
    (folder / "how").write_text(how)
    own = software_of_the_shop()

    def bank(request):
        return flower_app.answered(to_record(request), str(folder / "bank.toml"))

    def shop(request):
        file = str(folder / "shop.toml")
        if request.kind == "admm-share" and how in ("crash", "silent"):
            own["_honest"](to_record(request), file)
            return Error(code=3, reason="ClientApp crashed") if how == "crash" else None
        return own["answered"](to_record(request), file)

    return FlowerChannel(Grid({1: bank, 2: shop}), {"bank": 1, "shop": 2}, timeout=0.5)


def test_every_misbehaviour_is_named_costs_once_and_the_run_goes_on(tmp_path):
    files(tmp_path)
    settings = read_run_file(tmp_path / "run.toml")
    settings.out.mkdir()
    for how, words in CASES.items():
        with pytest.raises(PartyError) as caught:
            run_method(channel(tmp_path, how), settings)
        assert words in str(caught.value)
        assert not (settings.out / "vertical.json").exists()
        assert {charges(tmp_path, name) for name in NAMES} == {1}
    assert run_method(channel(tmp_path), settings)["rounds"] == 2
    assert VerticalModel.load(settings.out).parties == NAMES
    assert {charges(tmp_path, name) for name in NAMES} == {1}
    # A second coordinator asks the same parties for a run of its own: that is not paid for.
    other = replace(settings, out=tmp_path / "other")
    other.out.mkdir()
    with pytest.raises(PartyError, match="'bank' says: its budget does not allow this"):
        run_method(channel(tmp_path), other)
    assert {charges(tmp_path, name) for name in NAMES} == {1}


def test_eight_parties_give_one_model(tmp_path):
    names = tuple(f"org{number}" for number in range(8))
    files(tmp_path, method="experts", names=names)
    settings = read_run_file(tmp_path / "run.toml")
    settings.out.mkdir()
    nodes = {
        place: lambda request, name=name: flower_app.answered(
            to_record(request), str(tmp_path / f"{name}.toml")
        )
        for place, name in enumerate(names)
    }
    places = {name: place for place, name in enumerate(names)}
    result = run_method(FlowerChannel(Grid(nodes), places, timeout=5.0), settings)
    assert result["parties"] == list(names)
    assert VerticalModel.load(settings.out).parties == names
    assert all(charges(tmp_path, name) == 1 for name in names)


@pytest.mark.slow
def test_a_party_that_sends_nan_is_named_and_the_run_goes_on_when_it_has_stopped(tmp_path):
    files(tmp_path)
    with organisations_online(tmp_path, NAMES, hostile=("shop",)) as (run, _, _):
        tried(tmp_path, run, "nan", CASES["nan"])
        (tmp_path / "how").write_text("")
        assert run()["rounds"] == 2


@pytest.mark.slow
@pytest.mark.hand
def test_every_misbehaviour_ends_as_documented_and_the_run_goes_on(tmp_path):
    files(tmp_path)
    with organisations_online(tmp_path, NAMES, hostile=("shop",)) as (run, parties, again):
        for how, words in CASES.items():
            tried(tmp_path, run, how, words)
        # Gone altogether, in the middle of the run, and back with its memory.
        (tmp_path / "how").write_text("silent")
        stop(parties["shop"])
        with pytest.raises(HalfmaskError, match="'shop'"):
            run()
        (tmp_path / "how").write_text("")
        parties["shop"] = again("shop")
        began = time.perf_counter()
        assert run()["rounds"] == 2
        print(f"back again   {time.perf_counter() - began:6.1f} s", flush=True)
        assert {charges(tmp_path, name) for name in NAMES} == {1}
        kept = VerticalModel.load(tmp_path / "out")
        assert kept.parties == NAMES
        # A second coordinator asks the same parties for a run of its own: that is not paid for.
        other = (tmp_path / "run.toml").read_text().replace('out = "out"', 'out = "other"')
        (tmp_path / "other.toml").write_text(other)
        with pytest.raises(HalfmaskError, match="its budget does not allow this"):
            run("other.toml")
        assert not (tmp_path / "other" / "vertical.json").exists()
        assert {charges(tmp_path, name) for name in NAMES} == {1}


@pytest.mark.slow
@pytest.mark.hand
def test_eight_organisations_give_one_model(tmp_path):
    names = tuple(f"org{number}" for number in range(8))
    files(tmp_path, method="experts", names=names)
    began = time.perf_counter()
    with organisations_online(tmp_path, names) as (run, _, _):
        result = run()
    print(f"8 parties    {time.perf_counter() - began:6.1f} s", flush=True)
    assert result["parties"] == list(names)
    model = VerticalModel.load(tmp_path / "out")
    assert model.parties == names
    assert all(charges(tmp_path, name) == 1 for name in names)
    assert np.isfinite(model.intercept)
    assert set(json.loads(json.dumps(dict(model.weights)))) == set(names)


def test_a_second_coordinator_in_the_same_folder_is_refused_at_once(tmp_path):
    files(tmp_path)
    out = read_run_file(tmp_path / "run.toml").out
    out.mkdir()
    at_work = os.open(out, os.O_RDONLY)
    fcntl.flock(at_work, fcntl.LOCK_EX)
    command = ["serve", str(tmp_path / "run.toml"), "--ca", str(tmp_path / "ca.pem")]
    command += ["--cert", str(tmp_path / "server.pem"), "--key", str(tmp_path / "server.key")]
    refused = CliRunner().invoke(vertical, command)
    os.close(at_work)
    assert isinstance(refused.exception, InputError)
    assert "Another coordinator is at work in" in str(refused.exception)
