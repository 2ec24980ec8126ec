"""`halfmask vertical serve` and `join`: SuperLink and SuperNode with TLS and registered keys.

Telemetry is off and nothing is installed at run time. A party dials out; the label holder listens.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from halfmask.cli.output import emit, json_option, note
from halfmask.errors import HalfmaskError, InputError

if TYPE_CHECKING:
    from halfmask.vertical.network import RunFile

FILE = click.Path(path_type=Path, exists=True, dir_okay=False, resolve_path=True)

SCORES = "scores.json"
"""Where the ServerApp leaves the scores that were asked for, until they are read."""

_PROJECT = """[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"
[project]
name = "halfmask-vertical"
version = "1.0.0"
description = "Vertical learning with Halfmask"
license = "Apache-2.0"
dependencies = []
[tool.hatch.build.targets.wheel]
packages = ["."]
[tool.flwr.app]
publisher = "halfmask"
[tool.flwr.app.components]
serverapp = "halfmask_vertical.app:server_app"
clientapp = "halfmask_vertical.app:client_app"
[tool.flwr.app.config]
run-file = ""
query-file = ""
"""
_APP = '''"""Everything is in the installed package."""

from halfmask.vertical.flower_app import client_app, server_app

__all__ = ["client_app", "server_app"]
'''


@click.command()
@click.argument("run_file", type=FILE)
@click.option("--ca", type=FILE, required=True, help="Certificate authority, PEM.")
@click.option("--cert", type=FILE, required=True, help="This server's certificate, PEM.")
@click.option("--key", type=FILE, required=True, help="Its private key, PEM.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", default=9443, show_default=True)
@json_option
def serve(
    run_file: Path, ca: Path, cert: Path, key: Path, host: str, port: int, as_json: bool
) -> None:
    """Coordinate the run that RUN_FILE describes; again with the same file to resume it."""
    from halfmask.vertical.network import read_run_file

    run = read_run_file(run_file)
    if not run.parties:
        raise InputError(f"{run_file} names no [parties]: write NAME = PUBLIC_KEY_FILE for each.")
    result = coordinated(run_file, run, Link(ca=ca, cert=cert, key=key, host=host, port=port))
    emit(result, json.dumps(result, indent=2), as_json)


@dataclass(frozen=True, kw_only=True)
class Link:
    """Where the label holder listens, and its certificates."""

    ca: Path
    cert: Path
    key: Path
    host: str
    port: int


def coordinated(
    run_file: Path, run: RunFile, at: Link, query: Path | None = None
) -> dict[str, Any]:
    """Start a SuperLink, let the registered parties in, run (or ask), and end it again."""
    wanted = "result.json" if query is None else SCORES
    host, port, ca = at.host, at.port, at.ca
    home = run.out / "flower"
    home.mkdir(parents=True, exist_ok=True, mode=0o700)
    for stale in (wanted, "error.json"):
        (run.out / stale).unlink(missing_ok=True)
    _write_app(home, host, port, ca)
    command = [_tool("flower-superlink"), "--ssl-ca-certfile", str(ca)]
    command += ["--ssl-certfile", str(at.cert), "--ssl-keyfile", str(at.key)]
    command += ["--host", host, "--port", str(port)]
    command += ["--enable-supernode-auth", "--disable-runtime-dependency-installation"]
    environment = _environment(home)
    with (home / "superlink.log").open("ab") as log:
        link = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
    try:
        _wait_for_port(host, port, link)
        for name, public_key in run.parties.items():
            _flwr(environment, "supernode", "register", str(run_file.parent / public_key), "here")
            note(f"Registered party {name!r}.")
        chosen = f'run-file="{run_file}" query-file="{query or ""}"'
        _flwr(environment, "run", str(home / "app"), "here", "--run-config", chosen)
        result = _wait_for_result(run, link, wanted)
    finally:
        link.terminate()
        try:
            link.wait(30)
        except subprocess.TimeoutExpired:
            link.kill()
    return result


@click.command()
@click.argument("party_file", type=FILE)
@click.option("--server", required=True, metavar="HOST:PORT", help="The label holder's address.")
@click.option("--ca", type=FILE, required=True, help="Certificate authority of the server, PEM.")
@click.option("--key", type=FILE, required=True, help="This party's private key (ECDSA, OpenSSH).")
@click.option("--local-port", default=9094, show_default=True, help="For this machine only.")
@click.option("--patience", default=120, show_default=True, help="Seconds to look for the server.")
@json_option
def join(
    party_file: Path,
    server: str,
    ca: Path,
    key: Path,
    local_port: int,
    patience: int,
    as_json: bool,
) -> None:
    """Take part as PARTY_FILE allows, until the server has gone."""
    from halfmask.vertical.network import NetworkParty, read_party_file

    settings = read_party_file(party_file)
    # Errors in a party's own files are for its own eyes: find them before anyone asks.
    NetworkParty(settings).check_memory()
    settings.state.mkdir(parents=True, exist_ok=True, mode=0o700)
    command = [_tool("flower-supernode"), "--superlink", server, "--root-certificates", str(ca)]
    command += ["--auth-supernode-private-key", str(key), "--port", str(local_port)]
    command += ["--max-wait-time", str(patience), "--node-config", f'party-file="{party_file}"']
    done = subprocess.run(command, env=_environment(settings.state / "flower"), check=False)
    if done.returncode not in (0, -15):
        raise InputError(
            f"The connection to {server} ended with code {done.returncode}: check that the key of "
            "this party is registered, and the address and certificate of the server."
        )
    result = {"server": server, "state": str(settings.state)}
    emit(result, f"The run at {server} has ended.", as_json)


def _tool(name: str) -> str:
    beside = Path(sys.executable).with_name(name)
    found = str(beside) if beside.exists() else shutil.which(name)
    if found is None:
        raise InputError("Flower is not installed: pip install 'halfmask[flower]'.")
    return found


def _environment(home: Path) -> dict[str, str]:
    home.mkdir(parents=True, exist_ok=True, mode=0o700)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    return {
        **os.environ,
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "PATH": path,
    }


def _write_app(home: Path, host: str, port: int, ca: Path) -> None:
    package = home / "app" / "halfmask_vertical"
    package.mkdir(parents=True, exist_ok=True)
    (home / "app" / "pyproject.toml").write_text(_PROJECT, encoding="utf-8")
    (package / "__init__.py").write_text("", encoding="utf-8")
    (package / "app.py").write_text(_APP, encoding="utf-8")
    address = "127.0.0.1" if host == "0.0.0.0" else host
    (home / "config.toml").write_text(
        f'[superlink]\ndefault = "here"\n[superlink.here]\naddress = "{address}:{port}"\n'
        f'root-certificates = "{ca}"\n',
        encoding="utf-8",
    )


def _wait_for_port(host: str, port: int, link: subprocess.Popen[bytes], limit: float = 120) -> None:
    deadline = time.monotonic() + limit
    address = "127.0.0.1" if host == "0.0.0.0" else host
    while time.monotonic() < deadline:
        if link.poll() is not None:
            raise InputError("The SuperLink ended at once: flower/superlink.log says why.")
        try:
            with socket.create_connection((address, port), timeout=1):
                return
        except OSError:
            time.sleep(0.5)
    raise InputError(f"The SuperLink does not listen on {address}:{port} after {limit:g} seconds.")


def _flwr(environment: dict[str, str], *arguments: str) -> None:
    done = subprocess.run(
        [_tool("flwr"), *arguments], env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise InputError(f"flwr {arguments[0]} failed: {done.stdout.strip()} {done.stderr.strip()}")


def _wait_for_result(run: RunFile, link: subprocess.Popen[bytes], wanted: str) -> dict[str, Any]:
    """The result that the ServerApp writes, or its error under its own exit code."""
    rounds = run.config.admm.rounds if run.method == "admm" else 1
    deadline = time.monotonic() + run.timeout * (rounds + 3)
    while time.monotonic() < deadline:
        if (run.out / wanted).exists():
            result: dict[str, Any] = json.loads((run.out / wanted).read_text("utf-8"))
            return result
        if (run.out / "error.json").exists():
            told = json.loads((run.out / "error.json").read_text("utf-8"))
            error = HalfmaskError(told["error"])
            error.exit_code = int(told["exit_code"])
            raise error
        if link.poll() is not None:
            raise InputError("The SuperLink has ended: flower/superlink.log says why.")
        time.sleep(0.5)
    raise InputError("The run did not end in time: run serve again to resume it.")
