"""Every command and code block of README and docs is run; every link leads somewhere.

How blocks are written is explained in CONTRIBUTING.md, under "Tests".
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tomllib
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pytest
from click.testing import CliRunner

from halfmask.cli import main
from halfmask.datasets import load_adult
from halfmask.schema import Schema

ROOT = Path(__file__).parent.parent
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")])
RUN = ("python", "sh")
SHOWN = ("text", "toml", "json", "csv", "yaml")
COLUMNS = [
    "age",
    "education",
    "occupation",
    "hours-per-week",
    "marital-status",
    "capital-gain",
    "income",
]
TELECOM = ("hours-per-week", "marital-status", "capital-gain")
_FENCE = re.compile(r"^```(?P<info>[^\n`]*)\n(?P<body>.*?)^```\s*$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(?<!!)\[[^\]]*\]\((?P<target>[^)\s]+)\)")
_EDIT = re.compile(r"^# edit (?P<file>[\w-]+\.\w+).*$", re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, its title and its text."""

    line: int
    language: str
    title: str | None
    body: str


def blocks(page: Path) -> list[Block]:
    """The fenced blocks of a page, in order."""
    text = page.read_text(encoding="utf-8")
    found = []
    for match in _FENCE.finditer(text):
        language, _, rest = match["info"].strip().partition(" ")
        title = re.search(r'title="([^"]+)"', rest)
        line = text.count("\n", 0, match.start()) + 1
        found.append(Block(line, language, title[1] if title else None, match["body"]))
    return found


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def needs_running(page: Path) -> bool:
    return any(block.language in RUN for block in blocks(page))


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prepared_folder(tmp_path_factory.mktemp("prepared"))


def prepared_folder(folder: Path) -> Path:
    """The files that pages speak of: rows of the embedded census, whole and split by parties."""
    train, test, schema = load_adult()
    for name, rows in (("people.csv", train.slice(0, 3000)), ("test.csv", test.slice(0, 1000))):
        pyarrow.csv.write_csv(rows.select(COLUMNS), folder / name)
    pyarrow.csv.write_csv(test.slice(1000, 200).select(COLUMNS[:-1]), folder / "new.csv")
    held = {name: "telecom" if name in TELECOM else "bank" for name in COLUMNS[:-1]}
    kept = tuple(replace(c, party=held[c.name]) for c in schema.columns if c.name in held)
    text = Schema(schema.label, kept).to_toml()
    (folder / "people.toml").write_text(text, encoding="utf-8")
    rows = train.slice(0, 3000)
    rows = rows.append_column("person", pa.array(np.arange(rows.num_rows)))
    for name in ("bank", "telecom"):
        mine = [column for column, party in held.items() if party == name]
        pyarrow.csv.write_csv(rows.select(["person", *mine]), folder / f"{name}.csv")
    pyarrow.csv.write_csv(rows.select(["person", "income"]), folder / "labels.csv")
    return folder


def run_shell(block: Block, folder: Path, prepared: Path) -> None:
    """Line by line; where the reader is told to edit a file, the filled-in one takes its place.

    A command of halfmask runs in this process, as a process of its own would take seconds to start;
    anything else by `bash -e`.
    """
    script = _EDIT.sub(rf'cp "{prepared}/\g<file>" \g<file>', block.body)
    for line in script.replace("\\\n", " ").splitlines():
        command = _ours(line)
        if command is None:
            _bash(block, line, folder)
            continue
        words, out = command
        done = CliRunner().invoke(main, words)
        assert done.exit_code == 0, f"line {block.line}: {line}\n{done.output}"
        if out is not None:
            (folder / out).write_text(done.stdout, encoding="utf-8")


def _ours(line: str) -> tuple[list[str], str | None] | None:
    """The words of a command of halfmask alone, and the file its output goes to; None otherwise."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;<>()")
    lexer.whitespace_split = True
    words = list(lexer)
    if words[:1] != ["halfmask"]:
        return None
    if len(words) > 2 and words[-2] == ">":
        words, out = words[:-2], words[-1]
    else:
        out = None
    plain = not any(set(word) <= set("|&;<>()") for word in words) and "$" not in line
    return (words[1:], out) if plain else None


def _bash(block: Block, script: str, folder: Path) -> None:
    paths = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    done = subprocess.run(
        ["bash", "-e", "-o", "pipefail", "-c", script],
        cwd=folder,
        env={**os.environ, "PATH": paths},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, f"line {block.line}: {done.stderr}"


# Two processes that each import torch take their time.
_SLOW = ("docs/many-machines.md",)


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(p, marks=[pytest.mark.slow] * (name_of(p) in _SLOW), id=name_of(p))
        for p in PAGES
        if needs_running(p)
    ],
)
def test_blocks_run(
    page: Path, prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for file in prepared.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "page"}
    for block in blocks(page):
        if block.title is not None:
            (tmp_path / block.title).write_text(block.body, encoding="utf-8")
        elif block.language == "python":
            code = compile("\n" * block.line + block.body, str(page), "exec")
            exec(code, names)
        elif block.language == "sh":
            run_shell(block, tmp_path, prepared)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_block_says_what_it_is(page: Path) -> None:
    for block in blocks(page):
        assert block.language in (*RUN, *SHOWN), (
            f"{name_of(page)}, line {block.line}: write one of {', '.join((*RUN, *SHOWN))} "
            "after the opening fence"
        )


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_schemas_shown_are_valid(page: Path) -> None:
    for block in blocks(page):
        if block.language == "toml" and "[label]" in block.body:
            Schema.from_dict(tomllib.loads(block.body))


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    text = _FENCE.sub("", page.read_text(encoding="utf-8"))
    for match in _LINK.finditer(text):
        target = match["target"].split("#")[0]
        if target and "://" not in target and not target.startswith("mailto:"):
            assert (page.parent / target).exists(), f"{name_of(page)}: {match['target']}"


def test_every_guarantee_named_in_code_is_written() -> None:
    named = {
        proof
        for source in (ROOT / "src").rglob("*.py")
        for proof in re.findall(r"docs/proofs/[a-z_0-9]+\.md", source.read_text(encoding="utf-8"))
    }
    assert named
    missing = sorted(proof for proof in named if not (ROOT / proof).is_file())
    assert missing == []


def test_the_reader_of_pages_sees_fences_and_titles(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text('a\n```toml title="x.toml"\nb = 1\n```\n```sh\nfalse\n```\n', encoding="utf-8")
    first, second = blocks(page)
    assert (first.language, first.title, first.body) == ("toml", "x.toml", "b = 1\n")
    assert (second.line, second.language) == (5, "sh")
    with pytest.raises(AssertionError, match="line 5"):
        run_shell(second, tmp_path, tmp_path)
    wrong = Block(7, "sh", None, "halfmask ledger show absent")
    with pytest.raises(AssertionError, match="line 7"):
        run_shell(wrong, tmp_path, tmp_path)


def test_only_a_command_of_ours_alone_runs_in_this_process() -> None:
    assert _ours("halfmask init a.csv --label 'x y' > b.toml  # note") == (
        ["init", "a.csv", "--label", "x y"],
        "b.toml",
    )
    for line in ("halfmask a | head", "FOO=1 halfmask a", "halfmask a && b", "ls", "halfmask $X"):
        assert _ours(line) is None
