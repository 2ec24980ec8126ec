"""What a command prints: its result on standard output, everything else on standard error."""

from __future__ import annotations

import functools
import json
import math
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Protocol, TextIO, TypeVar

import click

_Function = TypeVar("_Function", bound=Callable[..., Any])
_output: ContextVar[TextIO | None] = ContextVar("output", default=None)
_printed: ContextVar[bool] = ContextVar("printed", default=False)


def json_option(function: _Function) -> _Function:
    """Add `--json` to a command; it arrives as `as_json`.

    With it, whatever a library prints goes to standard error: only `emit` reaches standard output.
    """

    @functools.wraps(function)
    def command(*args: Any, as_json: bool, **kwargs: Any) -> Any:
        if not as_json:
            return function(*args, as_json=False, **kwargs)
        token = _output.set(sys.stdout)
        _printed.set(False)
        try:
            with redirect_stdout(sys.stderr):
                return function(*args, as_json=True, **kwargs)
        finally:
            _output.reset(token)

    option = click.option(
        "--json", "as_json", is_flag=True, help="Print one JSON object on standard output."
    )
    decorated: _Function = option(command)  # type: ignore[assignment]
    return decorated


def emit(data: Mapping[str, Any], text: object, as_json: bool) -> None:
    """Print the result: `data` as JSON, or `text` (a string or anything rich can show)."""
    if as_json:
        printed = json.dumps(plain(data), indent=2, allow_nan=False)
        click.echo(printed, file=_output.get() or sys.stdout)
        _printed.set(True)
    elif isinstance(text, str):
        click.echo(text)
    else:
        from rich.console import Console

        Console(file=sys.stdout).print(text)


def emit_error(data: Mapping[str, Any], as_json: bool) -> None:
    """Print an error as the one JSON object, where no result was printed before it."""
    if as_json and not _printed.get():
        whole = {"kind": None, "message": None, "column": None, "row": None, **data}
        click.echo(json.dumps({"error": plain(whole)}, indent=2), file=sys.stdout)
    _printed.set(False)


def note(text: str) -> None:
    """Tell the user something that is not the result: on standard error."""
    click.echo(text, err=True)


def plain(value: Any) -> Any:
    """`value` as JSON knows it: NaN and infinities become null, arrays and tuples become lists."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in value]
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, Path):
        return str(value)
    if hasattr(value, "tolist"):  # numpy scalars and arrays
        return plain(value.tolist())
    raise TypeError(f"{type(value).__name__} is not a value that JSON knows")


class Advance(Protocol):
    """Move a progress bar on."""

    def __call__(self, steps: int = 1) -> None: ...


@contextmanager
def reporting(label: str) -> Iterator[Callable[[float, str], None]]:
    """Like `progress`, for work that tells the share it has done (0 to 1) and what it is at.

    With HALFMASK_PROGRESS=lines it is one JSON object per line, for a program that watches.
    """
    if os.environ.get("HALFMASK_PROGRESS") == "lines":
        yield lambda share, text: note(json.dumps({"progress": share, "text": text}))
        return
    if not sys.stderr.isatty():
        yield lambda share, text: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(file=sys.stderr), transient=True) as bar:
        task = bar.add_task(label, total=1.0)
        yield lambda share, text: bar.update(task, completed=share, description=f"{label}: {text}")


@contextmanager
def progress(total: int | None, label: str) -> Iterator[Advance]:
    """A progress bar on standard error, where that is a terminal.

    Only public counts may be shown: rounds and steps, never anything about a private batch.
    """
    if not sys.stderr.isatty():
        yield lambda steps=1: None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    console = Console(file=sys.stderr)
    with Progress(*columns, TimeRemainingColumn(), console=console, transient=True) as bar:
        task = bar.add_task(label, total=total)
        yield lambda steps=1: bar.advance(task, steps)
