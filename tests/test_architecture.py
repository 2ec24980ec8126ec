"""The shape of the package: short ways from a command to the noise, and imports in one direction.

docs/architecture.md lists the ways that are traced here, function by function.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from click.testing import CliRunner
from pyarrow import csv

import halfmask
from halfmask.cli import main

ROOT = Path(__file__).parent.parent
PACKAGE = Path(halfmask.__file__).parent
COMMAND, NOISE = "cli/train.py: train", "mechanisms/noise.py: add_gaussian"
COLUMNS, ROWS = 36, 120
Way = tuple[str, ...]


def place(frame: FrameType) -> str | None:
    """`file.py: function` of a frame of ours; None of any other."""
    file = Path(frame.f_code.co_filename)
    if not file.is_relative_to(PACKAGE):
        return None
    name = frame.f_code.co_qualname.replace("<locals>.", "")
    return f"{file.relative_to(PACKAGE).as_posix()}: {name}"


@contextmanager
def ways_to_the_noise() -> Iterator[set[Way]]:
    """Collects the calls between the command and each drawing of noise, the latter included."""
    found: set[Way] = set()

    def called(frame: FrameType, event: str, argument: Any) -> None:
        if event != "call" or frame.f_code.co_name != "add_gaussian" or place(frame) != NOISE:
            return
        way: list[str] = []
        at: FrameType | None = frame
        while at is not None and (here := place(at)) != COMMAND:
            way += [] if here is None else [here]
            at = at.f_back
        assert at is not None, "noise was drawn outside the command"
        found.add(tuple(reversed(way)))

    sys.setprofile(called)
    try:
        yield found
    finally:
        sys.setprofile(None)


def traced(folder: Path, private: range, label: str, *options: str) -> set[Way]:
    """What a training of columns of which those numbered in `private` are private goes through."""
    generator = np.random.default_rng(0)
    frame = {f"x{i}": generator.integers(0, 2, ROWS) for i in range(COLUMNS)}
    frame["kind"] = np.arange(ROWS) % 3
    csv.write_csv(pa.table(frame), folder / "rows.csv")
    columns = "".join(
        f'[columns.x{i}]\nkind = "category"\ncategories = ["0", "1"]\n'
        f'role = "{"private" if i in private else "public"}"\n'
        for i in range(COLUMNS)
    )
    head = f'[label]\nname = "kind"\nrole = "{label}"\nclasses = [0, 1, 2]\n'
    (folder / "schema.toml").write_text(head + columns)
    words = ["train", str(folder / "rows.csv"), "--schema", str(folder / "schema.toml")]
    words += ["--epsilon", "4", "--out", str(folder / "model"), *options]
    with ways_to_the_noise() as found:
        result = CliRunner().invoke(main, words, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    assert found
    return found


def listed(method: str) -> list[Way]:
    """The ways of a method in docs/architecture.md, one for each block of text."""
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    heading = f"From `halfmask train` to the noise: {method}\n"
    assert heading in text
    section = re.split(r"\n#+ ", text.split(heading)[1])[0]
    blocks = re.findall(r"```text\n(.*?)```", section, re.DOTALL)
    return [tuple(line.strip() for line in block.splitlines()) for block in blocks]


ALL, HALF, NONE = range(COLUMNS), range(18, COLUMNS), range(0)
FAST = [f"--set={word}" for word in ("pretrain.epochs=1", "pretrain.hidden=4", "network.steps=2")]
FAST += ["--set=warm_start.steps=2", "--set=correction.steps=2"]
STEPS = ["--set=steps=2", "--set=hidden=4"]
ALGORITHM_1 = ["--set=recipe=algorithm-1", *STEPS]
RUNS: list[tuple[str, range, str, list[str]]] = [
    ("gd", ALL, "private", []),
    ("gd", HALF, "private", []),
    ("gd", HALF, "public", []),
    ("gd", NONE, "private", []),
    ("gd", ALL, "private", ["--set=recipe=lecture"]),
    ("mlp", HALF, "public", FAST),
    ("mlp", HALF, "public", [*FAST, "--set=release_share=0.5"]),
    ("mlp", range(30, COLUMNS), "public", FAST),
    ("mlp", ALL, "private", FAST),
    ("mlp", ALL, "private", ["--set=recipe=dp-sgd", *STEPS]),
    ("mlp", HALF, "private", ALGORITHM_1),
    ("mlp", NONE, "private", [*ALGORITHM_1, "--set=padding=zero"]),
    ("mlp", HALF, "public", [*ALGORITHM_1, "--set=padding=class-means"]),
]


@pytest.mark.parametrize(("method", "most"), [("gd", 6), ("mlp", 7)])
def test_ways_to_the_noise_are_short_and_those_of_the_docs(
    method: str, most: int, tmp_path: Path
) -> None:
    """Of every recipe and role set: all private, half public, the label alone, a public label."""
    taken: set[Way] = set()
    for number, (name, private, label, options) in enumerate(RUNS):
        if name == method:
            folder = tmp_path / str(number)
            folder.mkdir()
            taken |= traced(folder, private, label, "--method", method, *options)
    assert max(map(len, taken)) <= most
    assert taken == set(listed(method))


@cache
def imports() -> dict[str, frozenset[str]]:
    """The modules that each module names in an import statement, wherever that stands."""
    files = {
        ".".join(["halfmask", *file.relative_to(PACKAGE).with_suffix("").parts]).removesuffix(
            ".__init__"
        ): file
        for file in PACKAGE.rglob("*.py")
    }
    found = {}
    for module, file in files.items():
        named: set[str] = set()
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                named |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module is not None:
                assert node.level == 0, f"{module}: a relative import"
                for alias in node.names:
                    inner = f"{node.module}.{alias.name}"
                    named.add(inner if inner in files else node.module)
        found[module] = frozenset(named - {module})
    return found


def test_no_module_imports_itself_by_way_of_others() -> None:
    """Imports within functions and for type checkers count as well."""
    own = {module: named & imports().keys() for module, named in imports().items()}
    assert len(list(TopologicalSorter(own).static_order())) == len(own)


def test_few_modules_and_few_that_serve_one_other_alone() -> None:
    assert len(imports()) <= 130
    importers = Counter(name for named in imports().values() for name in named & imports().keys())
    alone = [name for name, count in importers.items() if count == 1 and ".cli." not in name]
    assert len(alone) <= 12, sorted(alone)


def users_of(package: str) -> set[str]:
    return {
        module
        for module, named in imports().items()
        if any(name == package or name.startswith(f"{package}.") for name in named)
    }


def test_torch_and_flower_stay_where_they_are_optional() -> None:
    assert users_of("flwr") == {"halfmask.vertical.flower_app"}
    outside = {name for name in users_of("torch") if not name.startswith("halfmask.neural.")}
    assert outside <= {"halfmask.audit.mechanisms_neural"}
