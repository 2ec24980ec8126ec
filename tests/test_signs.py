"""Long work shows a bar with the time left: on a terminal, and nowhere else."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import pyarrow.csv
import pytest

from halfmask.accounting.budget import Budget
from halfmask.datasets import load_adult
from halfmask.mechanisms.noise import noise_source
from halfmask.progress import heard_by, part_of, tell
from halfmask.schema import Schema
from halfmask.table import Encoder
from halfmask.training import train

TRAIN, _, CENSUS = load_adult()


def heard_of(schema: Schema, method: str, rows: int = 600) -> dict[str, list[float]]:
    told: dict[str, list[float]] = {}
    with heard_by(lambda what, share: told.setdefault(what, []).append(share)):
        frame = TRAIN.slice(0, rows)
        table = Encoder.fit(schema, frame).encode(frame)
        train(table, Budget(epsilon=1.0, delta=1e-6), method=method, noise=noise_source())
    return told


@pytest.mark.parametrize("method", ["additive", "gd", "sgd"])
def test_work_tells_how_far_it_is_until_it_is_done(method: str) -> None:
    told = heard_of(CENSUS, method)
    assert {"encoding rows", "releasing with noise"} <= set(told)
    for shares in told.values():
        assert shares == sorted(shares)
    assert told["releasing with noise"][-1] == pytest.approx(1.0)
    assert len(told["releasing with noise"]) > 1


def test_the_free_model_tells_too() -> None:
    from dataclasses import replace

    columns = tuple(
        replace(c, role="public" if place % 2 else "private")
        for place, c in enumerate(CENSUS.columns)
    )
    told = heard_of(Schema(replace(CENSUS.label, role="public"), columns), "additive")
    assert "fitting the free model of the public columns" in told


def test_a_part_moves_the_bar_of_the_whole() -> None:
    heard: list[tuple[str, float]] = []
    with heard_by(lambda *told: heard.append(told)):
        with part_of("compare", 0.5, 1.0):
            tell("releasing", 0.5)
        with part_of("audit"):
            tell("releasing", 0.5)
        tell("reading", 2.0)
    tell("reading", 0.1)
    assert heard == [("compare", 0.75), ("reading", 1.0)]


PROGRAM = """
import sys, time, click, halfmask.cli as cli
from halfmask.cli.output import emit, json_option
from halfmask.progress import tell
@click.command()
@json_option
def probe(as_json):
    for place in range(8):
        tell("working", place / 8)
        time.sleep(0.05)
    emit({"done": 1}, "all done", as_json)
cli.probe = probe
cli.COMMANDS["probe"] = ("halfmask.cli:probe", "")
cli.main(["probe", *sys.argv[1:]])
"""


def on_a_terminal(*words: str) -> tuple[str, str]:
    """Standard output, and what a terminal on standard error was sent."""
    ours, theirs = pty.openpty()
    child = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *words],
        stdout=subprocess.PIPE,
        stderr=theirs,
        text=True,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "80"},
    )
    os.close(theirs)
    shown = b""
    while True:
        try:
            piece = os.read(ours, 4096)
        except OSError:
            break
        if not piece:
            break
        shown += piece
    out, _ = child.communicate(timeout=30)
    os.close(ours)
    assert child.returncode == 0, shown
    return out, shown.decode()


def test_a_terminal_sees_a_bar_with_the_time_left() -> None:
    out, shown = on_a_terminal()
    assert out == "all done\n"
    assert "working" in shown
    assert "left" in shown


@pytest.mark.parametrize("word", ["--json", "--quiet"])
def test_no_bar_where_none_is_wanted(word: str) -> None:
    out, shown = on_a_terminal(word)
    assert "done" in out
    assert shown == ""


def test_no_bar_where_there_is_no_terminal(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "all done\n", "")


def test_rows_of_a_file_are_told_as_they_are_read(tmp_path: Path) -> None:
    from halfmask.data.reading import open_rows

    pyarrow.csv.write_csv(TRAIN, tmp_path / "people.csv")
    told: list[float] = []
    with heard_by(lambda what, share: told.append(share)), open_rows(tmp_path / "people.csv") as r:
        list(r.pieces(["age"]))
    assert told[-1] == 1.0
