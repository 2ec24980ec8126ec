"""Real SuperLink and SuperNode processes on loopback, with TLS and registered keys."""

from __future__ import annotations

import datetime
import ipaddress
import json
import os
import signal
import socket
import subprocess
import sys
import time

import numpy as np
import pytest

pytest.importorskip("flwr")
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from halfmask.accounting.ledger import Ledger
from halfmask.errors import DataError
from halfmask.schema import Schema
from halfmask.vertical.admm import AdmmConfig, run_admm
from halfmask.vertical.admm_party import AdmmParty
from halfmask.vertical.channel import LocalChannel, Message
from halfmask.vertical.files import read_vertical_table
from halfmask.vertical.flower_app import _disclosable, from_record, run_method, to_record
from halfmask.vertical.network import NetworkParty, read_party_file, read_run_file
from halfmask.vertical.store import RoundStore

NAMES = ("bank", "shop", "telecom")
LABEL = """
[label]
name = "churned"
role = "{label}"
classes = ["no", "yes"]
"""
COLUMN = """
[columns.{name}_score]
role = "private"
kind = "number"
bounds = [0, 1]
bins = 4
party = "{name}"
"""


def organisations(
    folder, *, rows=300, method="admm", noise="none", label="public", rounds=3, names=NAMES
):
    """Files of the parties and the label holder."""
    rng = np.random.default_rng(0)
    text = LABEL.format(label=label) + "".join(COLUMN.format(name=name) for name in names)
    (folder / "schema.toml").write_text(text, encoding="utf-8")
    scores = rng.random((rows, len(names)))
    chance = 1 / (1 + np.exp(-6 * (scores.mean(1) - 0.5) * 3))
    labels = np.where(rng.random(rows) < chance, "yes", "no")
    lines = [f"u{i},{word}" for i, word in enumerate(labels)]
    (folder / "labels.csv").write_text("\n".join(["id,churned", *lines]), encoding="utf-8")
    for index, name in enumerate(names):
        order = rng.permutation(rows)
        lines = [f"u{i},{scores[i, index]}" for i in order]
        text = "\n".join([f"id,{name}_score", *lines])
        (folder / f"{name}.csv").write_text(text, encoding="utf-8")
        (folder / f"{name}.toml").write_text(
            f'party = "{name}"\nschema = "schema.toml"\ndata = "{name}.csv"\nid = "id"\n'
            f'state = "{name}-state"\nmethod = "{method}"\nnoise = "{noise}"\n'
            f"rounds = {rounds}\nstrength = 1.0\n",
            encoding="utf-8",
        )
    keys = "".join(f'{name} = "{name}.pub"\n' for name in names)
    (folder / "run.toml").write_text(
        f'schema = "schema.toml"\nlabel = "labels.csv"\nid = "id"\nout = "out"\n'
        f'method = "{method}"\nrounds = {rounds}\ntimeout = 240.0\n[parties]\n{keys}',
        encoding="utf-8",
    )


def credentials(folder, names=NAMES):
    """A certificate authority, a server certificate for loopback, and a key pair per party."""
    now = datetime.datetime.now(datetime.UTC)
    day = datetime.timedelta(days=1)
    pem, raw = serialization.Encoding.PEM, serialization.NoEncryption()

    def certificate(name, key, issuer, signer, *extensions):
        builder = (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
            .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, issuer)]))
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - day)
            .not_valid_after(now + day)
        )
        for extension, critical in extensions:
            builder = builder.add_extension(extension, critical)
        return builder.sign(signer, hashes.SHA256()).public_bytes(pem)

    authority, server = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    basic = (x509.BasicConstraints(ca=True, path_length=None), True)
    addresses = x509.SubjectAlternativeName(
        [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    )
    ca_id = x509.SubjectKeyIdentifier.from_public_key(authority.public_key())
    by_ca = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key())
    (folder / "ca.pem").write_bytes(
        certificate("test", authority, "test", authority, basic, (ca_id, False))
    )
    (folder / "server.pem").write_bytes(
        certificate("localhost", server, "test", authority, (addresses, False), (by_ca, False))
    )
    kind = serialization.PrivateFormat
    (folder / "server.key").write_bytes(server.private_bytes(pem, kind.PKCS8, raw))
    for name in (*names, "stranger"):
        key = ec.generate_private_key(ec.SECP384R1())
        (folder / f"{name}.key").write_bytes(key.private_bytes(pem, kind.OpenSSH, raw))
        public = key.public_key().public_bytes(
            serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
        )
        (folder / f"{name}.pub").write_bytes(public)


def in_process(folder, rounds):
    task = read_vertical_table(
        Schema.from_toml(folder / "schema.toml"),
        id_column="id",
        label_file=folder / "labels.csv",
        party_files={name: folder / f"{name}.csv" for name in NAMES},
    )
    sides = {part.name: AdmmParty(part.train, strength=1.0) for part in task.columns}
    channel = LocalChannel(sides)
    run_admm(channel, 2 * task.labels - 1, AdmmConfig(rounds=rounds))
    return {name: side.x for name, side in sides.items()}


def stored(folder):
    return {name: RoundStore(folder / f"{name}-state").load().memory.x for name in NAMES}


class Carried:
    """A party behind the records that Flower carries, without the processes."""

    def __init__(self, file):
        self.file = file

    def answer(self, request):
        received = from_record(to_record(request))
        return from_record(to_record(NetworkParty(read_party_file(self.file)).answer(received)))


def carried(folder):
    return LocalChannel({name: Carried(folder / f"{name}.toml") for name in NAMES})


def test_records_carry_messages_unchanged():
    message = Message(
        kind="ids",
        run="r",
        round=3,
        arrays={"ids": np.array([2**63, 1], dtype=np.uint64), "x": np.array([0.1, -2.5])},
        values={"rho": 0.25, "divisor": 3, "rows": "public"},
    )
    back = from_record(to_record(message))
    assert (back.kind, back.run, back.round) == ("ids", "r", 3)
    assert dict(back.values) == dict(message.values)
    for name, array in message.arrays.items():
        assert np.array_equal(back.arrays[name], array)
        assert back.arrays[name].dtype == array.dtype


def test_a_run_over_records_equals_the_run_in_process_and_resumes(tmp_path):
    organisations(tmp_path)
    settings = read_run_file(tmp_path / "run.toml")
    settings.out.mkdir()

    class Dying(LocalChannel):
        """Loses the shop from the second round on."""

        def exchange(self, request):
            replies = super().exchange(request)
            if request.round >= 2:
                replies.pop("shop")
            return replies

    parties = {name: Carried(tmp_path / f"{name}.toml") for name in NAMES}
    with pytest.raises(ValueError, match="'shop'"):
        run_method(Dying(parties), settings)
    result = run_method(carried(tmp_path), settings)
    assert result["rounds"] == 3
    for name, x in in_process(tmp_path, 3).items():
        assert np.allclose(stored(tmp_path)[name], x, atol=1e-9)


def test_experts_over_records_keep_their_answer_and_pay_for_private_labels_once(tmp_path):
    organisations(tmp_path, method="experts", label="private")
    settings = read_run_file(tmp_path / "run.toml")
    settings.out.mkdir()
    first = run_method(carried(tmp_path), settings)
    again = run_method(carried(tmp_path), settings)
    assert first["coefficients"] == again["coefficients"]
    assert first["combination"] == again["combination"]
    # Three models at epsilon 1 and the class prior: see test_label_charge.py.
    ledger = Ledger.open(tmp_path / "out" / "labels.jsonl")
    assert ledger.spent() == pytest.approx(0.844, abs=1e-3)
    assert len(ledger.entries()) == 1


def test_a_party_tells_nothing_of_its_own_files(tmp_path):
    organisations(tmp_path)
    file = tmp_path / "bank.csv"
    file.write_text(file.read_text("utf-8").replace("0.", "zero", 1), encoding="utf-8")
    with pytest.raises(DataError, match="row") as caught:
        NetworkParty(read_party_file(tmp_path / "bank.toml"))
    assert "row" not in _disclosable(caught.value)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def launch(folder, log, *arguments, environment=None):
    program = "from halfmask.cli import main; main()"
    with (folder / log).open("wb") as file:
        return subprocess.Popen(
            [sys.executable, "-c", program, "vertical", *map(str, arguments)],
            cwd=folder,
            env={**os.environ, **(environment or {})},
            stdout=subprocess.PIPE if log == "serve.log" else file,
            stderr=file,
            start_new_session=True,
        )


def serve(folder, port):
    credential = ("--ca", "ca.pem", "--cert", "server.pem", "--key", "server.key")
    return launch(folder, "serve.log", "serve", "run.toml", *credential, "--port", port, "--json")


def join(folder, name, port, file=None, patience=300, environment=None):
    return launch(
        folder,
        f"{name}.log",
        *("join", file or f"{name}.toml", "--server", f"127.0.0.1:{port}", "--ca", "ca.pem"),
        *("--key", f"{name}.key", "--local-port", free_port(), "--patience", patience),
        environment=environment,
    )


def stop(process):
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@pytest.mark.slow
def test_three_organisations_over_tls_give_the_model_of_one_process(tmp_path):
    organisations(tmp_path, rounds=2)
    credentials(tmp_path)
    port = free_port()
    server = serve(tmp_path, port)
    wait_for(lambda: "Registered party 'telecom'" in (tmp_path / "serve.log").read_text("utf-8"))
    parties = [join(tmp_path, name, port) for name in NAMES]
    stranger = join(tmp_path, "stranger", port, file="bank.toml", patience=20)
    try:
        out, _ = server.communicate(timeout=900)
        assert server.returncode == 0, (tmp_path / "serve.log").read_text("utf-8")
        assert json.loads(out)["rounds"] == 2
        for name, x in in_process(tmp_path, 2).items():
            assert np.allclose(stored(tmp_path)[name], x, atol=1e-6)
        assert stranger.wait(timeout=300) == 2
    finally:
        for process in (server, stranger, *parties):
            stop(process)


@pytest.mark.slow
def test_a_party_killed_mid_run_is_named_ledgers_verify_and_the_run_resumes(tmp_path):
    organisations(tmp_path, noise="row", rounds=3)
    credentials(tmp_path)
    run_file = tmp_path / "run.toml"
    short = run_file.read_text("utf-8").replace("timeout = 240.0", "timeout = 90.0")
    run_file.write_text(short, encoding="utf-8")
    port = free_port()
    server = serve(tmp_path, port)
    wait_for(lambda: "Registered party 'telecom'" in (tmp_path / "serve.log").read_text("utf-8"))
    parties = {name: join(tmp_path, name, port) for name in NAMES}
    try:
        wait_for(lambda: (tmp_path / "shop-state" / "party.npz").exists())
        stop(parties["shop"])
        server.communicate(timeout=900)
        assert server.returncode == 2
        assert "'shop'" in (tmp_path / "serve.log").read_text("utf-8")
    finally:
        for process in (server, *parties.values()):
            stop(process)
    for name in NAMES:
        Ledger.open(tmp_path / f"{name}-state" / "ledger.jsonl").verify()

    run_file.write_text(short.replace("timeout = 90.0", "timeout = 240.0"), encoding="utf-8")
    port = free_port()
    server = serve(tmp_path, port)
    wait_for(lambda: "Registered party 'telecom'" in (tmp_path / "serve.log").read_text("utf-8"))
    again = [join(tmp_path, name, port) for name in NAMES]
    try:
        out, _ = server.communicate(timeout=900)
        assert server.returncode == 0, (tmp_path / "serve.log").read_text("utf-8")
        assert json.loads(out)["rounds"] == 3
        for name in NAMES:
            events = Ledger.open(tmp_path / f"{name}-state" / "ledger.jsonl").events()
            assert len(events) == 1
    finally:
        for process in (server, *again):
            stop(process)


def wait_for(condition, limit=300.0):
    deadline = time.monotonic() + limit
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.5)
