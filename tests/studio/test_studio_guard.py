"""Who gets an answer: the token, our Host and our Origin, or 403; and nothing but our files."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

import pytest
from click.testing import CliRunner
from workbench import HOST, PORT, TOKEN, Bench, ask, bench, write_rows

from halfmask.cli import main

ROUTES = (
    "",
    "static/app.js",
    "static/style.css",
    "api/state",
    "api/picture/0",
    "api/price?epsilon=1&delta=1e-6",
    "api/plan?epsilon=1&delta=1e-6&total=3",
    "api/training",
    "api/results",
    "api/result/model-1",
    "report/model-1",
)
POSTS = ("change", "undo", "redo", "settings", "save", "train", "stop")
STATIC = files("halfmask.studio").joinpath("static")


@pytest.fixture(scope="module")
def studio(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    folder = tmp_path_factory.mktemp("studio")
    write_rows(folder, {"age": ["20", "30", "40"], "y": ["no", "yes", "no"]})
    with bench(folder) as found:
        yield found


@pytest.mark.parametrize("route", ROUTES)
def test_without_the_token_everything_is_403(studio: Bench, route: str) -> None:
    assert ask(studio.app, f"/{TOKEN}/{route}").status in (200, 403, 404)
    joined = "&" if "?" in route else "?"
    for path in (
        f"/{route}",
        f"/{TOKEN[:-1]}/{route}",
        f"/{TOKEN}x/{route}",
        f"//{TOKEN}/{route}",
        f"/{route}{joined}token=",
        f"/{route}{joined}token={TOKEN[:-1]}",
        f"/{route}{joined}token={TOKEN}&token=other",
    ):
        found = ask(studio.app, path)
        assert found.status == 403, path
        assert TOKEN not in found.body.decode()
    wrong = [("host", HOST), ("x-halfmask-token", "no"), ("cookie", f"token={TOKEN}")]
    assert ask(studio.app, f"/{route}", headers=wrong).status == 403


@pytest.mark.parametrize("route", POSTS)
def test_changes_without_the_token_or_from_elsewhere_are_403(studio: Bench, route: str) -> None:
    plain = [("host", HOST), ("content-type", "application/json")]
    assert ask(studio.app, f"/api/{route}", method="POST", headers=plain).status == 403
    foreign = [*plain, ("origin", "http://evil.example")]
    path = f"/{TOKEN}/api/{route}"
    assert ask(studio.app, path, method="POST", headers=foreign, body=b"{}").status == 403
    assert ask(studio.app, f"/api/{route}", method="OPTIONS", headers=foreign).status == 403


@pytest.mark.parametrize(
    "hosts",
    [
        [],
        ["evil.example"],
        [f"evil.example:{PORT}"],
        ["127.0.0.1"],
        [f"127.0.0.1:{PORT + 1}"],
        [f"127.0.0.1.evil.example:{PORT}"],
        [f"[::1]:{PORT}"],
        [f"0.0.0.0:{PORT}"],
        [HOST, "evil.example"],
        [HOST, HOST],
    ],
)
def test_a_foreign_host_is_403(studio: Bench, hosts: list[str]) -> None:
    headers = [("host", host) for host in hosts]
    for route in ROUTES:
        assert ask(studio.app, f"/{TOKEN}/{route}", headers=headers).status == 403


@pytest.mark.parametrize(
    "origin",
    [
        "null",
        "http://evil.example",
        f"https://{HOST}",
        f"http://127.0.0.1:{PORT + 1}",
        f"http://localhost:{PORT}",
        f"http://{HOST}.evil.example",
        "",
    ],
)
def test_a_foreign_origin_is_403(studio: Bench, origin: str) -> None:
    for route in ROUTES:
        headers = [("host", HOST), ("origin", origin)]
        assert ask(studio.app, f"/{TOKEN}/{route}", headers=headers).status == 403
    fetched = [("host", HOST), ("sec-fetch-site", "cross-site"), ("sec-fetch-mode", "no-cors")]
    assert ask(studio.app, f"/{TOKEN}/static/app.js", headers=fetched).status == 403


def test_the_printed_address_leads_to_the_page_and_no_cookie_is_set(studio: Bench) -> None:
    first = ask(studio.app, f"/?token={TOKEN}")
    assert (first.status, first.headers["location"]) == (303, f"/{TOKEN}/")
    page = ask(studio.app, first.headers["location"])
    assert page.status == 200
    assert b"halfmask studio" in page.body
    header = [("host", f"localhost:{PORT}"), ("x-halfmask-token", TOKEN)]
    assert ask(studio.app, "/api/state", headers=header).status == 200
    assert ask(studio.app, f"/api/state?token={TOKEN}").status == 200
    for found in (first, page, *(ask(studio.app, f"/{TOKEN}/{route}") for route in ROUTES)):
        assert "set-cookie" not in found.headers
        assert found.headers["cache-control"] == "no-store"
        assert found.headers["referrer-policy"] == "no-referrer"
        assert found.headers["x-content-type-options"] == "nosniff"
        policy = found.headers["content-security-policy"]
        assert policy.startswith("default-src 'none'")
        assert "http" not in policy
        assert "unsafe" not in policy.replace("style-src 'unsafe-inline'; img-src data:", "")


@pytest.mark.parametrize(
    "name",
    [
        "../server.py",
        "..%2fserver.py",
        "%2e%2e/server.py",
        "/etc/passwd",
        "app.js/../../x",
        "no.js",
    ],
)
def test_no_other_file_can_be_asked_for(studio: Bench, name: str) -> None:
    for path in (f"static/{name}", f"report/{name}", f"api/result/{name}"):
        assert ask(studio.app, f"/{TOKEN}/{path}").status == 404


def test_a_link_in_the_output_folder_is_not_followed(tmp_path: Path) -> None:
    write_rows(tmp_path, {"age": ["1"], "y": ["no"]})
    (tmp_path / "out").mkdir()
    (tmp_path / "secret.txt").write_text("secret")
    (tmp_path / "out" / "model-1.html").symlink_to(tmp_path / "secret.txt")
    with bench(tmp_path) as found:
        assert ask(found.app, f"/{TOKEN}/report/model-1").status == 404


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("text/plain", b"{}"),
        ("application/x-www-form-urlencoded", b"ids=0"),
        ("application/json", b"[]"),
        ("application/json", b"{" * 100_000),
        ("application/json", b'{"ids": "' + b"x" * (5 << 20) + b'"}'),
    ],
)
def test_a_body_that_is_no_small_json_object_is_refused(
    studio: Bench, kind: str, body: bytes
) -> None:
    headers = [("host", HOST), ("content-type", kind)]
    path = f"/{TOKEN}/api/change"
    assert ask(studio.app, path, method="POST", headers=headers, body=body).status == 400


@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"ids": "0"},
        {"ids": [True]},
        {"ids": [99]},
        {"ids": [-1]},
        {"ids": [0], "role": "open"},
        {"ids": [0], "part": "none"},
        {"ids": [0], "known": 3},
        {"ids": [0, 1], "part": "label"},
    ],
)
def test_a_change_that_makes_no_sense_is_an_error_in_words(
    studio: Bench, asked: dict[str, object]
) -> None:
    before = studio.get("api/state")
    assert studio.post("api/change", asked, code=422)["error"]["message"]
    assert studio.get("api/state")["columns"] == before["columns"]


def test_the_page_writes_text_and_asks_nobody_else() -> None:
    for file in STATIC.iterdir():
        text = file.read_text(encoding="utf-8")
        for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("):
            assert word not in text, (file.name, word)
        asked = set(re.findall(r"https?://[^\s\"'`)]+", text))
        assert asked <= {"http://www.w3.org/2000/svg"}, file.name


# --- a real process


def test_the_command_listens_on_loopback_and_ends_on_request(tmp_path: Path) -> None:
    write_rows(tmp_path, {"age": ["20", "30"], "y": ["no", "yes"]})
    command = [sys.executable, "-c", "from halfmask.cli import main; main()"]
    words = ["studio", "rows.csv", "--no-browser", "--json", "--label", "y"]
    process = subprocess.Popen(
        [*command, *words], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        said = ""
        while not said.endswith("}\n"):
            said += process.stdout.readline()
        address = json.loads(said)["address"]
        port = int(re.fullmatch(r"http://127\.0\.0\.1:(\d+)/\?token=[\w-]{40,}", address)[1])  # type: ignore[index]
        with urllib.request.urlopen(address, timeout=10) as page:
            assert b"halfmask studio" in page.read()
        with pytest.raises(urllib.error.HTTPError, match="403"):
            urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=10)
        others = {each[4][0] for each in socket.getaddrinfo(socket.gethostname(), None)}
        for other in others - {"127.0.0.1", "127.0.1.1"}:
            family = socket.AF_INET6 if ":" in other else socket.AF_INET
            with socket.socket(family) as elsewhere:
                elsewhere.settimeout(2)
                assert elsewhere.connect_ex((other, port)) != 0
        process.send_signal(signal.SIGINT)
        assert process.wait(15) == 130
    finally:
        process.kill()
        process.communicate()


def test_a_taken_port_a_pipe_and_an_absent_file_are_errors_in_words(tmp_path: Path) -> None:
    write_rows(tmp_path, {"age": ["20"], "y": ["no"]})
    file = tmp_path / "rows.csv"
    os.mkfifo(tmp_path / "pipe")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        for words, expected in (
            ([file, "--port", port], "cannot be used"),
            (["-"], "needs a file"),
            ([tmp_path / "pipe"], "needs a file"),
            ([tmp_path / "none.csv"], "Check the path"),
            ([file, "--label", "z"], "no column 'z'"),
        ):
            done = CliRunner().invoke(main, ["studio", *map(str, words), "--no-browser"])
            assert done.exit_code == 2, done.output
            assert expected in done.stderr
