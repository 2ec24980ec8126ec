"""Training as the command line does it: commands in processes of their own, shown to be copied.

What a command says of its failure may hang on private values (which row does not parse). The page
hears of that only where it is about a public column or about none.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

# -P: a file such as numpy.py in the folder of the data must not be imported.
_HALFMASK = (sys.executable, "-P", "-c", "from halfmask.cli import main; main()")
_GRACE = 10.0
# Kinds of errors that follow from files, options and the ledger, never from a value of the data.
_TOLD = ("budget-exceeded", "ledger", "schema", "usage", "file", "not-installed", "interrupted")


@dataclass(frozen=True, kw_only=True)
class Step:
    """One command, what it is for, and where its share of the whole begins."""

    words: tuple[str, ...]
    what: str
    begins: float

    @property
    def command(self) -> str:
        """As it is typed in a terminal."""
        return shown_command(self.words)


def shown_command(words: Sequence[str]) -> str:
    """`halfmask WORDS`, quoted for a shell."""
    return shlex.join(["halfmask", *words])


@dataclass
class Job:
    """Commands one after the other, in a thread that watches them."""

    name: str
    steps: Sequence[Step]
    tellable: Callable[[str | None], bool]
    check: str
    state: Literal["running", "done", "failed", "stopped"] = "running"
    share: float = 0.0
    text: str = "starting"
    at: int = 0
    message: str | None = None
    results: list[dict[str, Any]] = field(default_factory=list)
    _process: subprocess.Popen[str] | None = None
    _stop: bool = False

    def __post_init__(self) -> None:
        self._started = time.monotonic()
        self._ended: float | None = None
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, daemon=True, name=f"job {self.name}")
        self._thread.start()

    def to_json(self) -> dict[str, Any]:
        """How far it is. Seconds are whole: exact times may depend on private rows."""
        until = time.monotonic() if self._ended is None else self._ended
        return {
            "name": self.name,
            "state": self.state,
            "share": round(self.share, 3),
            "text": self.text,
            "at": self.at,
            "steps": [{"what": step.what, "command": step.command} for step in self.steps],
            "message": self.message,
            "seconds": int(until - self._started) + 1,
        }

    def stop(self) -> None:
        """Ask the running command to end, as Ctrl-C does; insist after a while."""
        self._stop = True
        with self._lock:
            process = self._process
        if process is None or process.poll() is not None:
            return
        process.send_signal(signal.SIGINT)
        insist = threading.Timer(_GRACE, process.kill)
        insist.daemon = True
        insist.start()

    def wait(self, seconds: float | None = None) -> None:
        """Until it has ended."""
        self._thread.join(seconds)

    def _run(self) -> None:
        try:
            for place, step in enumerate(self.steps):
                if self._stop or not self._one(place, step):
                    break
            else:
                self.state, self.share, self.text = "done", 1.0, "done"
        except Exception as error:
            self.state, self.message = "failed", f"Unexpected {type(error).__name__}."
        finally:
            if self.state == "running":
                self.state = "stopped"
            if self.state == "stopped":
                self.text = "stopped"
                self.message = (
                    "Stopped. What the ledger was charged before stays charged: releases cannot be "
                    "taken back."
                )
            self._ended = time.monotonic()

    def _one(self, place: int, step: Step) -> bool:
        self.at, self.text, self.share = place, step.what, step.begins
        ends = self.steps[place + 1].begins if place + 1 < len(self.steps) else 1.0
        with self._lock:
            self._process = process = subprocess.Popen(
                [*_HALFMASK, *step.words, "--json"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                encoding="utf-8",
                errors="replace",
                env={**os.environ, "HALFMASK_PROGRESS": "lines"},
                start_new_session=True,
            )
        if self._stop:
            self.stop()
        assert process.stderr is not None
        assert process.stdout is not None
        said: list[str] = []
        reader = threading.Thread(target=lambda: said.append(process.stdout.read()))  # type: ignore[union-attr]
        reader.start()
        for line in process.stderr:
            told = _progress(line)
            if told is not None:
                # Each kind of work counts from 0; the bar never goes back.
                self.share = max(self.share, step.begins + (ends - step.begins) * told[0])
                self.text = told[1]
        reader.join()
        code = process.wait()
        process.stdout.close()
        process.stderr.close()
        found = _parsed("".join(said))
        if code == 0:
            self.results.append(found)
            return True
        self.state = "stopped" if self._stop else "failed"
        self.message = self._told(found, code)
        return False

    def _told(self, found: dict[str, Any], code: int) -> str:
        error = found.get("error")
        if isinstance(error, dict):
            column, kind = error.get("column"), error.get("kind")
            public = isinstance(column, str) and self.tellable(column)
            if kind in _TOLD or public or (kind == "input" and column is None):
                return str(error.get("message"))
            if kind != "defect":
                return (
                    "A private column does not hold what was declared. Which one and where depends "
                    f"on private values, so this page is not told. In a terminal: {self.check}"
                )
        return f"The command ended with {code}. Run it in a terminal to see why."


def _progress(line: str) -> tuple[float, str] | None:
    """What `halfmask` tells with HALFMASK_PROGRESS=lines; None for any other line."""
    if not line.startswith('{"progress"'):
        return None
    found = _parsed(line)
    share, text = found.get("progress"), found.get("text")
    if not isinstance(share, int | float) or not isinstance(text, str):
        return None
    return min(max(float(share), 0.0), 1.0), text


def _parsed(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
