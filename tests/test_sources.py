"""Every command of docs/sources.md runs, every test it names exists, every section has its rows."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from halfmask.cli import main
from test_docs import ROOT, prepared_folder

PAGE = ROOT / "docs" / "sources.md"
_COMMAND = re.compile(r"^`(?P<command>halfmask [^`]+)`(?P<long> †)?$")
_SCHEMA = re.compile(r'^```toml title="(?P<file>[^"]+)"\n(?P<body>.*?)^```$', re.M | re.S)
_TEST = re.compile(r"`(tests/[\w/]+\.py)`")


def rows() -> list[list[str]]:
    """The cells of every table row of the page."""
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    tables = [line.removeprefix("| ").removesuffix(" |") for line in lines if line[:2] == "| "]
    found = [[cell.strip() for cell in line.split(" | ")] for line in tables]
    # Tables of results have three columns and no commands.
    return [cells for cells in found if len(cells) != 3 and not cells[0].startswith("in ")]


def commands() -> list[tuple[str, bool]]:
    """Each command in order, and whether it takes long."""
    matched = (_COMMAND.match(cells[1]) for cells in rows())
    return [(found["command"], bool(found["long"])) for found in matched if found]


def test_every_row_has_a_command_a_test_and_a_result() -> None:
    assert len(rows()) > 40
    for cells in rows():
        assert len(cells) == 4, cells
        assert _COMMAND.match(cells[1]) or cells[1].startswith("in Python"), cells
        named = _TEST.findall(cells[2])
        assert named, cells
        assert all((ROOT / name).is_file() for name in named), named
    assert "HERE" not in PAGE.read_text(encoding="utf-8")


@pytest.mark.parametrize("command", [text for text, long in commands() if long])
def test_a_long_command_exists_and_takes_its_options(command: str) -> None:
    words = shlex.split(command)[1:]
    found: click.Command = main
    context = click.Context(main)
    while isinstance(found, click.Group):
        name, found, words = found.resolve_command(context, words)  # type: ignore[assignment]
        assert name is not None
        assert found is not None
    found.make_context("halfmask", list(words), resilient_parsing=False)


def test_every_short_command_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the order of the page, in one folder: later ones use what earlier ones wrote."""
    prepared_folder(tmp_path)
    _labels_alone(tmp_path)
    for page in ("roles", "vertical"):
        text = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
        for found in _SCHEMA.finditer(text):
            (tmp_path / found["file"]).write_text(found["body"], encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    for cells in rows():
        command = _COMMAND.match(cells[1])
        if command is None or command["long"]:
            continue
        words = shlex.split(command["command"])[1:]
        done = CliRunner().invoke(main, words)
        assert done.exit_code == 0, f"{cells[1]}\n{done.output}"
        if words[0] == "account":
            epsilon = float(done.output.split()[1])
            told = re.findall(r"\d+\.\d+", cells[3])
            assert any(round(epsilon, len(n.split(".")[1])) == float(n) for n in told), cells


def _labels_alone(folder: Path) -> None:
    """The same people with a private label and every column public: what label DP is about."""
    shutil.copy(folder / "people.csv", folder / "labels-only.csv")
    text = (folder / "people.toml").read_text(encoding="utf-8")
    text = re.sub(r'role = "\w+"', 'role = "public"', text)
    head, label, rest = text.partition("[label]")
    text = head + label + rest.replace('role = "public"', 'role = "private"', 1)
    (folder / "labels-only.toml").write_text(text, encoding="utf-8")
