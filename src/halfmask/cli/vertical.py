"""`halfmask vertical`: columns held by different organisations.

In the order of use: all parties in one process (`simulate`), the label holder (`serve`) and each
party (`join`) as processes of their own, predictions, and the processes of Flower behind them.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import click

from halfmask.accounting.budget import printed
from halfmask.accounting.events import check_relation
from halfmask.accounting.ledger import Ledger
from halfmask.cli.options import PATH, RELATION, settings_options
from halfmask.cli.output import check_target, emit, grid, json_option, keep_others_out, note
from halfmask.errors import HalfmaskError, InputError
from halfmask.storage import replacing, unfinished, write_durably

if TYPE_CHECKING:
    from halfmask.types import Vector
    from halfmask.vertical.flower_app import QueryResult, RunResult
    from halfmask.vertical.network import RunFile
    from halfmask.vertical.queries import StatementJson, VerticalModel
    from halfmask.vertical.simulation import Simulation

FILE = click.Path(path_type=Path, exists=True, dir_okay=False, resolve_path=True)
VERTICAL_METHODS = ("experts", "admm", "fdml-sgd")

SCORES = "scores.json"
"""Where the ServerApp leaves the scores that were asked for, until they are read."""

GONE_SECONDS = 15
"""A server that does not listen for so long has ended its run."""


@click.group()
def vertical() -> None:
    """Train over columns that different parties hold for the same rows."""


@vertical.command()
@click.option(
    "--schema", "schema_file", type=FILE, required=True, help="Names each column's party."
)
@click.option("--label", "label_file", type=FILE, required=True, help="File with ids and labels.")
@click.option("--party", "parties", multiple=True, required=True, metavar="NAME=FILE")
@click.option("--id", "id_column", required=True, help="The column of ids in every file.")
@click.option("--method", type=click.Choice(VERTICAL_METHODS), default="experts", show_default=True)
@settings_options("NAME")
@click.option(
    "--combine",
    type=click.Choice(("fixed", "aggregate")),
    help="How experts are added: a fixed rule, or weights from DP counts of each one's scores.",
)
@click.option("--epsilon", type=float, default=1.0, show_default=True, help="For each party.")
@click.option("--delta", type=float, default=1e-6, show_default=True)
@click.option("--relation", type=RELATION, default="replace", show_default=True)
@click.option("--test-label", "test_label_file", type=FILE)
@click.option("--test-party", "test_parties", multiple=True, metavar="NAME=FILE")
@click.option(
    "--noise",
    type=click.Choice(("row", "column", "as-written", "none")),
    help="How admm and fdml-sgd protect what is sent (default: row); the last two have no epsilon.",
)
@click.option("--noise-std", type=float, help="For --noise as-written.")
@click.option("--rounds", type=int, help="Rounds of admm, epochs of fdml-sgd.")
@click.option("--rho", type=float, help="Penalty of admm.")
@click.option("--update", type=click.Choice(("sharing", "as-written")), help="Of admm.")
@click.option("--hide-labels", type=float, metavar="EPSILON", help="Randomise labels first.")
@click.option("--ledger", "ledgers", multiple=True, metavar="NAME=FILE", help="A party's budget.")
@click.option("--label-ledger", type=FILE, help="The label holder's budget.")
@click.option("--out", type=PATH, help="A new folder for the model.")
@click.option("--unsafe-seed", type=int, help="Reproducible noise: not private.")
@json_option
def simulate(
    schema_file: Path,
    label_file: Path,
    parties: tuple[str, ...],
    id_column: str,
    method: str,
    settings: tuple[str, ...],
    config_file: Path | None,
    combine: str | None,
    epsilon: float,
    delta: float,
    relation: str,
    test_label_file: Path | None,
    test_parties: tuple[str, ...],
    noise: str | None,
    noise_std: float | None,
    rounds: int | None,
    rho: float | None,
    update: str | None,
    hide_labels: float | None,
    ledgers: tuple[str, ...],
    label_ledger: Path | None,
    out: Path | None,
    unsafe_seed: int | None,
    as_json: bool,
) -> None:
    """Run all parties in this process, as they would run apart."""
    from halfmask.model_folder import VERTICAL_FILE
    from halfmask.schema import Schema
    from halfmask.settings import config_as_json
    from halfmask.vertical.files import check_party_names, party_schemas, read_vertical_table
    from halfmask.vertical.queries import save_simulation
    from halfmask.vertical.simulation import (
        SimulationBudget,
        simulate_admm,
        simulate_experts,
        simulate_fdml,
    )
    from halfmask.vertical.statements import LabelFacts, party_statements

    shortcuts = {
        "combine": combine,
        "noise": noise,
        "noise_std": noise_std,
        "epochs" if method == "fdml-sgd" else "rounds": rounds,
        "rho": rho,
        "update": update,
    }
    config = _config(method, settings, config_file, shortcuts)
    # Parts without a model, or with an unfinished one, are what a simulation leaves that was
    # killed while it wrote them.
    left = {"parties", unfinished(Path(VERTICAL_FILE)).name}
    if (
        out is not None
        and out.exists()
        and (not out.is_dir() or any(each.name not in left for each in out.iterdir()))
    ):
        raise InputError(f"{str(out)!r} exists already: name a new folder with --out.")
    schema = Schema.from_toml(schema_file)
    private = schema.label.role == "private" and method == "experts"
    if label_ledger is not None and hide_labels is None and not private:
        raise InputError(
            f"--label-ledger would not be charged: here {method} tells every party every label, "
            "and nothing is promised of them. Hide them with --hide-labels, use experts with a "
            "private label, or leave the ledger out."
        )
    ledger_files = named_files(ledgers, "--ledger")
    check_party_names("--ledger", ledger_files, party_schemas(schema))
    table = read_vertical_table(
        schema,
        id_column=id_column,
        label_file=label_file,
        party_files=named_files(parties, "--party"),
        test_label_file=test_label_file,
        test_party_files=named_files(test_parties, "--test-party"),
    )
    budget = SimulationBudget(
        epsilon=epsilon,
        delta=delta,
        relation=check_relation(relation),
        unsafe_seed=unsafe_seed,
        ledgers={name: Ledger.open(file) for name, file in ledger_files.items()},
        label_ledger=None if label_ledger is None else Ledger.open(label_ledger),
    )
    if method == "experts":
        simulation = simulate_experts(
            table, config, budget=budget, label_private=private, label_epsilon=hide_labels
        )
    elif method == "admm":
        simulation = simulate_admm(table, config, budget=budget, label_epsilon=hide_labels)
    elif hide_labels is not None:
        raise InputError("fdml-sgd does not know --hide-labels: use admm.")
    else:
        simulation = simulate_fdml(table, config, budget=budget)
    hidden = hide_labels is not None
    label = LabelFacts(name=schema.label.name, private=private and not hidden, hidden=hidden)
    noise = getattr(config, "noise", "row")
    statements = party_statements(simulation, table, budget, label, noise)
    told = config_as_json(config)
    if out is not None:
        save_simulation(out, simulation, table, schema, id_column, statements, told)
    data = {
        "model": None if out is None else str(out),
        "method": method,
        "rounds": simulation.rounds,
        "settings": told,
        "parties": list(simulation.parties),
        "privacy": statements,
        "costs": dict(simulation.costs),
        "traffic": dict(simulation.traffic),
        "train_loss": simulation.train_loss,
        "test_loss": simulation.test_loss,
        **{name: simulation.history[-1].get(name) for name in simulation.errors},
        "history": [dict(record) for record in simulation.history],
        "losses_covered_by_guarantee": False,
    }
    emit(data, _text(simulation, statements), as_json)


def _config(
    method: str,
    settings: tuple[str, ...],
    file: Path | None,
    shortcuts: Mapping[str, str | float | None],
) -> Any:
    """The method's configuration: --config, then --set; other options are words for the same."""
    from halfmask.settings import config_from_words, kind_of

    told = [f"{name}={value}" for name, value in shortcuts.items() if value is not None]
    return config_from_words(method, [*told, *settings], file) or kind_of(method)()


def _text(simulation: Simulation, statements: Mapping[str, StatementJson]) -> object:
    from rich.console import Group

    def cells(told: tuple[str, StatementJson]) -> tuple[str, ...]:
        name, statement = told
        epsilon = statement["epsilon"]
        promise = "none" if epsilon is None else printed(epsilon)
        return name, str(len(statement["private"])), promise, str(statement["relation"])

    rounds = "1 round" if simulation.rounds == 1 else f"{simulation.rounds} rounds"
    title = f"{simulation.method}, {rounds}"
    headings = ("party", "private columns", "epsilon", "relation")
    table = grid(title, headings, map(cells, statements.items()))
    lines = [f"train loss {simulation.train_loss:.4f}"]
    if simulation.test_loss is not None:
        lines.append(f"test loss  {simulation.test_loss:.4f}")
    for name in simulation.errors:
        lines.append(f"{name.replace('_', ' ')} {simulation.history[-1][name]:.4f}")
    lines.append("Computed from exact columns and labels: not covered by the guarantee.")
    per_round = simulation.traffic
    lines.append(
        f"{per_round['messages_per_round']:g} messages and {per_round['bytes_per_round']:,.0f} "
        "bytes of numbers per round"
    )
    first = next(iter(statements.values()))
    lines += [*first.get("notes", []), "Not covered:"]
    lines += [f"- {line}" for line in first["not_covered"]]
    return Group(table, *lines)


@vertical.command()
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
    from halfmask.vertical.statements import label_sentence, statement_text

    run = read_run_file(run_file)
    if not run.parties:
        raise InputError(f"{run_file} names no [parties]: write NAME = PUBLIC_KEY_FILE for each.")
    link = Link(ca=ca, cert=cert, key=key, host=host, port=port)
    result: RunResult = coordinated(run_file, run, link)
    model = load_model(run_file)
    parts = [f"Party {name}:\n{statement_text(told)}" for name, told in model.privacy.items()]
    parts.append(label_sentence(result.get("label_epsilon"), run.hide_labels is not None))
    rounds = "1 round" if result["rounds"] == 1 else f"{result['rounds']} rounds"
    parts.append(f"{run.method}, {rounds}. Model written to {run.out}.")
    data = {**result, "model": str(run.out), "privacy": model.privacy}
    emit(data, "\n\n".join(parts), as_json)


@vertical.command()
@click.argument("party_file", type=FILE)
@click.option("--server", required=True, metavar="HOST:PORT", help="The label holder's address.")
@click.option("--ca", type=FILE, required=True, help="Certificate authority of the server, PEM.")
@click.option("--key", type=FILE, required=True, help="This party's private key (ECDSA, OpenSSH).")
@click.option("--local-port", default=9094, show_default=True, help="For this machine only.")
@click.option(
    "--patience",
    type=click.IntRange(min=0),
    default=120,
    show_default=True,
    help="Seconds to wait until the server listens and has registered this party's key.",
)
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
    from halfmask.vertical.statements import statement_text

    settings = read_party_file(party_file)
    # Errors in a party's own files are for its own eyes: find them before anyone asks.
    party = NetworkParty(settings)
    party.check_memory()
    settings.state.mkdir(parents=True, exist_ok=True, mode=0o700)
    command = [_tool("flower-supernode"), "--superlink", server, "--root-certificates", str(ca)]
    command += ["--auth-supernode-private-key", str(key), "--port", str(local_port)]
    command += ["--max-wait-time", str(GONE_SECONDS)]
    command += ["--node-config", f'party-file="{party_file}"']
    _take_part(command, _environment(settings.state / "flower"), server, patience)
    told = party.part().statement if party.has_part else None
    words = "Nothing was trained with this party." if told is None else statement_text(told)
    result = {"server": server, "state": str(settings.state), "privacy": told}
    emit(result, f"{words}\n\nThe run at {server} has ended.", as_json)


def _take_part(
    command: list[str], environment: dict[str, str], server: str, patience: float
) -> None:
    """Run a SuperNode until the server has gone; a server that is not ready yet is waited for."""
    host, _, port = server.rpartition(":")
    if not (host and port.isdecimal()):
        raise InputError(f"--server takes HOST:PORT, got {server!r}.")
    address = host.strip("[]"), int(port)
    deadline = time.monotonic() + patience
    note(f"Waiting for the server at {server} for up to {patience:g} seconds.")
    while not _listens(address):
        if time.monotonic() > deadline:
            raise InputError(
                f"No server listens at {server} after {patience:g} seconds: start `vertical serve` "
                "there, check the address, or wait longer with --patience."
            )
        time.sleep(1.0)
    while True:
        with _child(command, environment) as node:
            seen = time.monotonic()
            while node.poll() is None and time.monotonic() - seen < GONE_SECONDS:
                time.sleep(1.0)
                seen = time.monotonic() if _listens(address) else seen
        if node.returncode in (0, -signal.SIGTERM) or not _listens(address):
            return
        # The server listens a while before it has registered the keys of all parties.
        if time.monotonic() > deadline:
            raise InputError(
                f"The connection to {server} ended with code {node.returncode}: check that the key "
                "of this party is registered, and the address and certificate of the server."
            )
        time.sleep(2.0)


def named_files(pairs: tuple[str, ...], option: str) -> dict[str, Path]:
    """NAME=FILE words as a mapping."""
    files: dict[str, Path] = {}
    for pair in pairs:
        name, separator, file = pair.partition("=")
        if not (name and separator and file):
            raise InputError(f"{option} takes NAME=FILE, got {pair!r}.")
        if name in files:
            raise InputError(f"{option} names party {name!r} twice: keep one.")
        files[name] = Path(file)
    return files


@vertical.command()
@click.argument("run", type=click.Path(path_type=Path, exists=True, resolve_path=True))
@click.option("--id-file", type=FILE, required=True, help="A column of the ids to predict.")
@click.option("--out", type=PATH, required=True, help="The CSV to write.")
@click.option(
    "--party",
    "parties",
    multiple=True,
    metavar="NAME=FILE",
    help="A party that is here: its rows, or its own TOML file, whose [queries] then apply.",
)
@click.option("--ca", type=FILE, help="Over Flower: certificate authority, PEM.")
@click.option("--cert", type=FILE, help="Over Flower: this server's certificate, PEM.")
@click.option("--key", type=FILE, help="Over Flower: its private key, PEM.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", default=9443, show_default=True)
@json_option
def predict(
    run: Path,
    id_file: Path,
    out: Path,
    parties: tuple[str, ...],
    ca: Path | None,
    cert: Path | None,
    key: Path | None,
    host: str,
    port: int,
    as_json: bool,
) -> None:
    """Predict the rows of an id file with RUN; rows stay in order.

    RUN is the folder of `vertical simulate --out`, or the run file of `vertical serve`. Without
    --party the parties are asked over Flower: each runs `vertical join` again, and decides by the
    [queries] of its own file. A score tells its row's own columns to whoever sees it.
    """
    import pyarrow as pa
    import pyarrow.csv

    from halfmask.vertical.queries import REVEALS, read_ids

    files = named_files(parties, "--party")
    read = {"RUN": run, "--id-file": id_file, **{f"--party {n}": f for n, f in files.items()}}
    check_target(out, "--out", overwrite=True, read=read)
    model = load_model(run)
    ids = read_ids(id_file, model.id)
    note(REVEALS)
    if run.is_dir() and not parties:
        raise InputError(
            "Name the rows of each party with --party NAME=FILE, or pass the run file of "
            "`vertical serve` to ask the parties over Flower."
        )
    if parties:
        score = scores_of(run, model, ids, files)
    else:
        score = _asked(run, ids, _link(ca, cert, key, host, port))
    columns = [pa.array(model.predicted(score).tolist())]
    names = ["prediction"]
    if model.classes is not None:
        columns += [pa.array(each) for each in model.probabilities(score).T]
        names += [f"p_{name}" for name in model.classes]
    with replacing(out) as path:
        pyarrow.csv.write_csv(pa.table(columns, names=names), path)
    result = {"rows": len(ids), "out": str(out), "columns": names, "parties": list(model.parties)}
    emit(result, f"{len(ids)} predictions written to {out}.", as_json)


def load_model(run: Path) -> VerticalModel:
    """The label holder's side of a model: of a folder, or of the run that a file describes."""
    from halfmask.vertical.network import read_run_file
    from halfmask.vertical.queries import VerticalModel

    return VerticalModel.load(run if run.is_dir() else read_run_file(run).out)


def scores_of(run: Path, model: VerticalModel, ids: list[Any], files: Mapping[str, Path]) -> Vector:
    """Scores from parties that are all here: their rows with the parts in RUN, or their files."""
    from halfmask.vertical.channel import Answering, LocalChannel
    from halfmask.vertical.network import NetworkParty, read_party_file
    from halfmask.vertical.queries import QueryDesk, ask_scores, is_party_file

    desks: dict[str, Answering] = {}
    for name, file in files.items():
        if not file.is_file():
            raise InputError(f"--party {name}: there is no file {str(file)!r}.")
        if is_party_file(file):
            settings = read_party_file(file)
            if settings.party != name:
                raise InputError(
                    f"--party {name}: {str(file)!r} is the file of party {settings.party!r}."
                )
            desks[name] = NetworkParty(settings).desk()
        else:
            folder = (run if run.is_dir() else run.parent) / "parties" / name
            desks[name] = QueryDesk(folder=folder, data=file, id=model.id)
    return ask_scores(LocalChannel(desks), model, ids)


def _link(ca: Path | None, cert: Path | None, key: Path | None, host: str, port: int) -> Link:
    if ca is None or cert is None or key is None:
        given = {"--ca": ca, "--cert": cert, "--key": key}
        lacking = ", ".join(name for name, file in given.items() if file is None)
        raise InputError(f"To ask the parties over Flower, pass {lacking} as for serve.")
    return Link(ca=ca, cert=cert, key=key, host=host, port=port)


def _asked(run: Path, ids: list[Any], link: Link) -> Vector:
    """Scores over Flower: a SuperLink for the time of one question."""
    import numpy as np

    from halfmask.vertical.network import read_run_file

    settings = read_run_file(run)
    question = settings.out / "query.json"
    write_durably(question, json.dumps([str(value) for value in ids]).encode())
    try:
        result: QueryResult = coordinated(run, settings, link, query=question)
    finally:
        question.unlink(missing_ok=True)
        # Scores tell private columns: they are handed on, not kept.
        (settings.out / SCORES).unlink(missing_ok=True)
    return np.asarray(result["scores"], dtype=np.float64)


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


@dataclass(frozen=True, kw_only=True)
class Link:
    """Where the label holder listens, and its certificates."""

    ca: Path
    cert: Path
    key: Path
    host: str
    port: int


def coordinated(run_file: Path, run: RunFile, at: Link, query: Path | None = None) -> Any:
    """Start a SuperLink, let the registered parties in, run (or ask), and end it again."""
    wanted = "result.json" if query is None else SCORES
    host, port, ca = at.host, at.port, at.ca
    home = run.out / "flower"
    home.mkdir(parents=True, exist_ok=True, mode=0o700)
    keep_others_out(run.out, "coordinator", "as out in the run file")
    for stale in (wanted, "error.json"):
        (run.out / stale).unlink(missing_ok=True)
    _write_app(home, host, port, ca)
    command = [_tool("flower-superlink"), "--ssl-ca-certfile", str(ca)]
    command += ["--ssl-certfile", str(at.cert), "--ssl-keyfile", str(at.key)]
    command += ["--host", host, "--port", str(port)]
    command += ["--enable-supernode-auth", "--disable-runtime-dependency-installation"]
    environment = _environment(home)
    with (home / "superlink.log").open("ab") as log, _child(command, environment, log) as link:
        _wait_for_port(host, port, link)
        for name, public_key in run.parties.items():
            _flwr(environment, "supernode", "register", str(run_file.parent / public_key), "here")
            note(f"Registered party {name!r}.")
        chosen = f'run-file="{run_file}" query-file="{query or ""}"'
        _flwr(environment, "run", str(home / "app"), "here", "--run-config", chosen)
        return _wait_for_result(run, link, wanted)


@contextmanager
def _child(
    command: list[str], environment: dict[str, str], log: IO[bytes] | int = 2
) -> Iterator[subprocess.Popen[bytes]]:
    """A process that ends with this block, however it ends: by a SIGTERM to this process too.

    What it prints goes to `log`, or to standard error: standard output is for the result.
    """
    before = signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        signal.signal(signal.SIGTERM, before)


def _listens(address: tuple[str, int]) -> bool:
    try:
        with socket.create_connection(address, timeout=2):
            return True
    except OSError:
        return False


def _tool(name: str) -> str:
    beside = Path(sys.executable).with_name(name)
    found = str(beside) if beside.exists() else shutil.which(name)
    if found is None:
        raise InputError("Flower is not installed: pip install 'halfmask[flower]'.")
    return found


def _environment(home: Path) -> dict[str, str]:
    home.mkdir(parents=True, exist_ok=True, mode=0o700)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    return {**os.environ, "FLWR_HOME": str(home), "FLWR_TELEMETRY_ENABLED": "0", "PATH": path}


def _write_app(home: Path, host: str, port: int, ca: Path) -> None:
    package = home / "app" / "halfmask_vertical"
    package.mkdir(parents=True, exist_ok=True)
    (home / "app" / "pyproject.toml").write_text(_PROJECT, encoding="utf-8")
    (package / "__init__.py").write_text("", encoding="utf-8")
    (package / "app.py").write_text(_APP, encoding="utf-8")
    (home / "config.toml").write_text(
        '[superlink]\ndefault = "here"\n[superlink.here]\n'
        f'address = "{_own_address(host)}:{port}"\nroot-certificates = "{ca}"\n',
        encoding="utf-8",
    )


def _wait_for_port(host: str, port: int, link: subprocess.Popen[bytes]) -> None:
    address = _own_address(host), port
    if not _waited(120, link, lambda: _listens(address)):
        raise InputError(f"The SuperLink does not listen on {address[0]}:{port} after 120 seconds.")


def _own_address(host: str) -> str:
    return "127.0.0.1" if host == "0.0.0.0" else host


def _waited(seconds: float, link: subprocess.Popen[bytes], there: Callable[[], bool]) -> bool:
    """Whether it was there in time; a SuperLink that has ended is an error."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if there():
            return True
        if link.poll() is not None:
            raise InputError("The SuperLink has ended: flower/superlink.log says why.")
        time.sleep(0.5)
    return False


def _flwr(environment: dict[str, str], *arguments: str) -> None:
    done = subprocess.run(
        [_tool("flwr"), *arguments], env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise InputError(f"flwr {arguments[0]} failed: {done.stdout.strip()} {done.stderr.strip()}")


def _wait_for_result(run: RunFile, link: subprocess.Popen[bytes], wanted: str) -> Any:
    """The result that the ServerApp writes, or its error under its own exit code."""
    from halfmask.vertical.admm import AdmmConfig

    rounds = run.config.chosen_rounds if isinstance(run.config, AdmmConfig) else 1
    files = run.out / wanted, run.out / "error.json"
    if not _waited(run.timeout * (rounds + 3), link, lambda: any(f.exists() for f in files)):
        raise InputError("The run did not end in time: run serve again to resume it.")
    if files[0].exists():
        return json.loads(files[0].read_text("utf-8"))
    told = json.loads(files[1].read_text("utf-8"))
    error = HalfmaskError(told["error"])
    error.exit_code = int(told["exit_code"])
    raise error
