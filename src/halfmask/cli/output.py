"""What a command prints: its result on standard output, everything else on standard error."""

from __future__ import annotations

import fcntl
import functools
import json
import os
import signal
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from contextvars import ContextVar
from pathlib import Path
from types import FrameType
from typing import Any, TextIO, TypeVar

import click

from halfmask.errors import InputError
from halfmask.progress import heard_by, part_of
from halfmask.storage import json_text

_Function = TypeVar("_Function", bound=Callable[..., Any])
_output: ContextVar[TextIO | None] = ContextVar("output", default=None)
_printed: ContextVar[bool] = ContextVar("printed", default=False)


def json_option(function: _Function) -> _Function:
    """Add `--json` to a command; it arrives as `as_json`.

    With it, whatever a library prints goes to standard error: only `emit` reaches standard output.
    Work that takes long shows a bar on a terminal, unless `--json` or `--quiet` is given.
    """

    @functools.wraps(function)
    def command(*args: Any, as_json: bool, quiet: bool, **kwargs: Any) -> Any:
        if not as_json:
            with bars(not quiet):
                return function(*args, as_json=False, **kwargs)
        token = _output.set(sys.stdout)
        _printed.set(False)
        try:
            with redirect_stdout(sys.stderr), bars(False):
                return function(*args, as_json=True, **kwargs)
        finally:
            _output.reset(token)

    option = click.option(
        "--json", "as_json", is_flag=True, help="Print one JSON object on standard output."
    )
    silence = click.option("--quiet", "-q", is_flag=True, help="Show no progress bar.")
    decorated: _Function = option(silence(command))  # type: ignore[assignment]
    return decorated


def emit(data: Mapping[str, Any], text: object, as_json: bool, *, a_file: bool = False) -> None:
    """Print the result: `data` as JSON, or `text` (a string or anything rich can show).

    Text that will be `a_file` is printed as it is, all else in lines that fit.
    """
    _clear_bar()
    if as_json:
        click.echo(json_text(data), file=_output.get() or sys.stdout)
        _printed.set(True)
    elif isinstance(text, str):
        click.echo(text if a_file else wrapped(text))
    else:
        from rich.console import Console

        Console(file=sys.stdout).print(text)


def emit_error(data: Mapping[str, Any], as_json: bool) -> None:
    """Print an error as the one JSON object, where no result was printed before it."""
    if as_json and not _printed.get():
        whole = {"kind": None, "message": None, "column": None, "row": None, **data}
        click.echo(json_text({"error": whole}), file=sys.stdout)
    _printed.set(False)


def grid(title: str, headings: Iterable[str], rows: Iterable[Sequence[str]]) -> Any:
    """A table for a terminal."""
    from rich.table import Table

    table = Table(title=title)
    for heading in headings:
        table.add_column(heading)
    for row in rows:
        table.add_row(*row)
    return table


_REPORTS = (".html", ".md")


def check_target(
    target: Path, option: str, *, overwrite: bool, read: Mapping[str, Path | None]
) -> None:
    """Refuse a file to write that cannot be written, or that would destroy what is there.

    `read` is what the command reads, by the words that name it. None of that is ever replaced, nor
    anything in a folder of it except an earlier report. Any other file is where `overwrite` says.
    """
    if str(target) == "-":
        raise InputError(f"{option} takes a file: standard output is for the result.")
    if target.is_dir():
        raise InputError(f"{str(target)!r} is a folder: name a file in it with {option}.")
    if not target.absolute().parent.is_dir():
        raise InputError(f"The folder of {str(target)!r} does not exist: create it first.")
    if not target.exists():
        return
    place = target.resolve()
    a_report = place.suffix in _REPORTS or place.name == "report.json"
    for word, path in read.items():
        if path is None or not path.exists():
            continue
        inside = path.is_dir() and path.resolve() in place.parents
        if path.samefile(target) or (inside and not a_report):
            raise InputError(
                f"{str(target)!r} is part of {word}, which is read: name another file with "
                f"{option}."
            )
    if not overwrite:
        raise InputError(f"{str(target)!r} exists already: name a new file, or pass --overwrite.")


def note(text: str) -> None:
    """Tell the user something that is not the result: on standard error."""
    _clear_bar()
    click.echo(wrapped(text), err=True)


def wrapped(text: str) -> str:
    """Lines of 80 columns at most, or of as many as the variable HALFMASK_WIDTH says; no word is
    broken, so that names, files and commands can be copied."""
    given = os.environ.get("HALFMASK_WIDTH", "")
    width = int(given) if given.isdecimal() and int(given) else 80
    lines = []
    for line in text.split("\n"):
        indent = " " * (len(line) - len(line.lstrip()))
        lines += textwrap.wrap(
            line,
            width,
            subsequent_indent=indent,
            break_long_words=False,
            break_on_hyphens=False,
        ) or [""]
    return "\n".join(lines)


class _Bar:
    """One progress bar with the time left; a new one for each kind of work."""

    def __init__(self) -> None:
        self._progress: Any = None
        self._task: Any = None
        self._stage, self._share = "", 0.0

    def __call__(self, stage: str, share: float) -> None:
        """Show that `stage` is done to `share`; it never goes back."""
        if self._progress is None:
            self._start()
        if stage != self._stage:
            self._stage, self._share = stage, 0.0
            self._progress.reset(self._task, description=stage, total=1.0)
        self._share = max(self._share, share)
        self._progress.update(self._task, completed=self._share)

    def _start(self) -> None:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            Progress,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
        )

        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TextColumn("{task.percentage:>3.0f}%"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=Console(file=sys.stderr),
            transient=True,
        )
        self._task = self._progress.add_task("", total=1.0)
        self._progress.start()

    def stop(self) -> None:
        """Take the bar away, so that something can be printed."""
        if self._progress is not None:
            self._progress.stop()
            self._progress, self._stage = None, ""


class _Lines(_Bar):
    """One JSON object per line on standard error, for a program that watches."""

    def __call__(self, stage: str, share: float) -> None:
        """Tell, wherever there is something new to tell."""
        if stage != self._stage or share >= self._share + 0.01:
            self._stage, self._share = stage, share
            click.echo(json.dumps({"progress": share, "text": stage}), err=True)


_bar: ContextVar[_Bar | None] = ContextVar("bar", default=None)


@contextmanager
def bars(wanted: bool) -> Iterator[None]:
    """A bar on standard error for whatever tells how far it is, where that is a terminal.

    HALFMASK_PROGRESS=lines asks for lines instead, whatever standard error is.
    """
    bar = _Bar() if wanted and sys.stderr.isatty() else None
    if os.environ.get("HALFMASK_PROGRESS") == "lines":
        bar = _Lines()
    token = _bar.set(bar)
    try:
        with heard_by(bar):
            yield
    finally:
        _bar.reset(token)
        if bar is not None:
            bar.stop()


def _clear_bar() -> None:
    bar = _bar.get()
    if bar is not None:
        bar.stop()


@contextmanager
def reporting(label: str) -> Iterator[Callable[[float, str], None]]:
    """For work that tells by itself the share it has done (0 to 1) and what it is at."""

    def told(share: float, text: str) -> None:
        bar = _bar.get()
        if bar is not None:
            bar(label, share)

    with part_of(label):
        yield told


# --- Ctrl-C: every command ends with 130, and what it is writing is whole or not there.


class _Asked:
    """Whether Ctrl-C was pressed since the command began, and whether it has to wait."""

    now = False
    waits = 0
    raised = 0.0  # when, on the monotonic clock


_asked = _Asked()
_PATIENCE = 1.0
"""Seconds in which a second Ctrl-C does not disturb what cleans up after the first."""


@contextmanager
def heard(*, to_the_end: bool) -> Iterator[None]:
    """Within: Ctrl-C raises KeyboardInterrupt, also where Python would only print and forget it.

    `to_the_end`: nothing follows but the end of the process, where it has nothing left to stop.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    _asked.now, _asked.waits, _asked.raised = False, 0, -_PATIENCE
    before, shown = signal.signal(signal.SIGINT, _on_signal), sys.unraisablehook

    def unraised(lost: Any) -> None:
        # Raised in a destructor or a callback of C, where nobody can catch it: once more, then,
        # and from outside, since this is still the same place.
        if isinstance(lost.exc_value, KeyboardInterrupt):
            threading.Timer(0.02, _again).start()
        else:
            shown(lost)

    sys.unraisablehook = unraised
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN if to_the_end else before)
        sys.unraisablehook = shown


def _again() -> None:
    _asked.raised = -_PATIENCE
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)


def _on_signal(number: int, frame: FrameType | None) -> None:
    _asked.now = True
    if not _asked.waits and time.monotonic() - _asked.raised >= _PATIENCE:
        _asked.raised = time.monotonic()
        raise KeyboardInterrupt


def asked() -> bool:
    """Whether Ctrl-C was pressed: libraries may have turned it into an error of their own."""
    return _asked.now


@contextmanager
def after_this() -> Iterator[None]:
    """Ctrl-C waits for the end of this, which is short: what is paid for is not thrown away."""
    _asked.waits += 1
    try:
        yield
    finally:
        _asked.waits -= 1
    if _asked.now and not _asked.waits:
        raise KeyboardInterrupt


def keep_others_out(folder: Path, work: str, elsewhere: str) -> None:
    """No second `work` in this folder until the command ends, however it ends."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    click.get_current_context().call_on_close(lambda: os.close(fd))
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise InputError(
            f"Another {work} is at work in {str(folder)!r}: wait for its end, or name another "
            f"folder {elsewhere}. Nothing was charged."
        ) from None
    except OSError:
        return  # a file system without locks: the ledger itself still lets nobody overspend
