"""How many calls lie between the command and the noise: a reader should be able to follow them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from test_simulate import SCHEMA, write

import halfmask
from halfmask.cli import main

PACKAGE = Path(halfmask.__file__).parent
MOST = 8


def calls_to_the_noise(arguments: list[str]) -> list[str]:
    """The deepest stack of the package's functions from `simulate` to `add_gaussian`."""
    found: list[list[str]] = []

    def watch(frame, event, _):
        if event != "call" or frame.f_code.co_name != "add_gaussian":
            return
        names = []
        while frame is not None:
            file, name = Path(frame.f_code.co_filename), frame.f_code.co_name
            if (file.name, name) == ("vertical.py", "simulate"):
                break
            # A lambda that only hands its arguments on is no step for a reader.
            if file.is_relative_to(PACKAGE) and (file.name, name) != ("release.py", "<lambda>"):
                names.append(name)
            frame = frame.f_back
        found.append(names[::-1])

    sys.setprofile(watch)
    try:
        done = CliRunner().invoke(main, ["vertical", "simulate", *arguments])
    finally:
        sys.setprofile(None)
    assert done.exit_code == 0, done.output
    return max(found, key=len)


@pytest.mark.parametrize(
    ("method", "first", "party"),
    [
        ("experts", "simulate_experts", "noisy_newton"),
        ("admm", "simulate_admm", "share"),
        ("fdml-sgd", "simulate_fdml", "_scores"),
    ],
)
def test_few_calls_lie_between_the_command_and_the_noise(tmp_path, method, first, party):
    (tmp_path / "schema.toml").write_text(SCHEMA, encoding="utf-8")
    write(tmp_path, "", 60, 1)
    files = [f"--party={name}={tmp_path / name}.csv" for name in ("bank", "telecom")]
    labels = [f"--schema={tmp_path / 'schema.toml'}", f"--label={tmp_path / 'labels.csv'}"]
    calls = calls_to_the_noise([*labels, "--id=id", *files, f"--method={method}"])
    assert calls[0] == first
    assert party in calls
    assert calls[-1] == "add_gaussian"
    assert len(calls) <= MOST, " > ".join(calls)
