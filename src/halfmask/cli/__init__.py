"""The command line: `halfmask COMMAND`, each command loaded only when it is called.

Exit codes: 0, 2 for bad input, 3 where the budget would be exceeded, 4 where an audit refutes a
claim; 130 after Ctrl-C, 141 where the reader of a pipe has left, 1 for a defect of ours.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pkgutil import resolve_name
from typing import Any, NoReturn

import click

from halfmask.cli.output import asked, emit_error, heard, wrapped
from halfmask.data.spool import forget
from halfmask.errors import HalfmaskError, InputError, raised_at

# name: (module:attribute, what `halfmask --help` says), so that help needs no import of the command
COMMANDS: dict[str, tuple[str, str]] = {
    "init": (
        "halfmask.cli.schema:init",
        "Write a schema template for a file: names and types only.",
    ),
    "derive": ("halfmask.cli.schema:derive", "Make functions of private columns public."),
    "check": (
        "halfmask.cli.schema:check",
        "Every fault and warning of a schema and a file, before spending.",
    ),
    "studio": (
        "halfmask.cli.studio:studio",
        "A page on this machine: roles, price, training and report.",
    ),
    "plan": ("halfmask.cli.plan:plan", "Noise, steps and error to expect, before touching data."),
    "train": ("halfmask.cli.train:train", "Train a model under a privacy budget."),
    "predict": ("halfmask.cli.predict:predict", "Predict with a trained model."),
    "evaluate": ("halfmask.cli.predict:evaluate", "Score a model on rows of yours."),
    "compare": ("halfmask.cli.compare:compare", "Several methods side by side under one budget."),
    "report": ("halfmask.cli.report:report", "Write a model's guarantee and curves as a web page."),
    "audit": ("halfmask.cli.audit:audit", "Attack a model or mechanism and test its epsilon."),
    "account": (
        "halfmask.cli.plan:account",
        "Epsilon from noise and steps, or noise from epsilon.",
    ),
    "vertical": ("halfmask.cli.vertical:vertical", "Columns held by different organisations."),
    "reproduce": ("halfmask.cli.research:reproduce", "Run a published experiment again."),
    "bench": ("halfmask.cli.research:bench", "Time us against other packages, side by side."),
    "ledger": ("halfmask.cli.ledger:ledger", "Create, show and verify a data set's budget."),
    "demo": ("halfmask.cli.demo:demo", "All of it in a minute, on the embedded census data."),
}

_EXTRAS = {
    "torch": "torch",
    "flwr": "flower",
    "matplotlib": "plot",
    "starlette": "studio",
    "uvicorn": "studio",
}


class LazyGroup(click.Group):
    """A group that imports a command when it is called, and turns errors into exit codes."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The commands whose module is part of this installation."""
        return [name for name, (target, _) in COMMANDS.items() if find_spec(target.split(":")[0])]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command."""
        if cmd_name not in self.list_commands(ctx):
            return None
        command = resolve_name(COMMANDS[cmd_name][0])
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, COMMANDS[name][1]) for name in self.list_commands(ctx)])

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **extra: Any,
    ) -> click.Context:
        """click's, except that with --json an error in the first words is an object too."""
        if "--json" not in args:
            return super().make_context(info_name, args, parent, **extra)
        with _errors_for_the_user(True):
            try:
                return super().make_context(info_name, args, parent, **extra)
            except click.NoSuchOption as error:
                if error.option_name != "--json":
                    raise
                raise InputError(
                    "--json goes after a command: `halfmask --help` lists the commands."
                ) from None

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command."""
        forget()
        words = [*getattr(ctx, "_protected_args", ()), *ctx.args]
        with _errors_for_the_user("--json" in words), _interruptions():
            return super().invoke(ctx)

    def main(self, *args: Any, **given: Any) -> Any:
        """click's, except that Ctrl-C ends with 130 wherever it comes."""
        try:
            # Without arguments of its own it is the program itself, not a call from Python.
            with heard(to_the_end=not args and given.get("args") is None):
                return super().main(*args, **given)
        except (KeyboardInterrupt, SystemExit) as end:
            if isinstance(end, SystemExit) and (end.code == 130 or not asked()):
                raise
            click.echo("Interrupted.", err=True)
            sys.exit(130)


@contextmanager
def _interruptions() -> Iterator[None]:
    """What a library has made of Ctrl-C, an error of reading or of an import, is still Ctrl-C."""
    try:
        yield
    except (click.exceptions.Exit, KeyboardInterrupt):
        raise
    except Exception as error:
        if asked():
            raise KeyboardInterrupt from error
        raise


@contextmanager
def _errors_for_the_user(as_json: bool) -> Iterator[None]:
    """Words and an exit code for every error; with --json, unless a result is there, one object."""
    try:
        yield
    except click.exceptions.Exit:
        raise
    except BrokenPipeError:
        _silence_stdout()
        raise click.exceptions.Exit(141) from None
    except HalfmaskError as error:
        emit_error(error.to_json(), as_json)
        _end(str(error), error.exit_code)
    except (KeyboardInterrupt, click.Abort):
        emit_error({"kind": "interrupted", "message": "Interrupted."}, as_json)
        click.echo("Interrupted.", err=True)
        raise click.exceptions.Exit(130) from None
    except click.ClickException as error:
        emit_error({"kind": "usage", "message": error.format_message()}, as_json)
        if isinstance(error, click.UsageError) and error.ctx is not None:
            click.echo(error.ctx.get_usage(), err=True)
            click.echo(f"Try '{error.ctx.command_path} --help' for help.\n", err=True)
        _end(error.format_message(), max(error.exit_code, 2))
    except OSError as error:
        emit_error({"kind": "file", "message": _of_file(error)}, as_json)
        _end(_of_file(error), 2)
    except Exception as error:
        needed = _missing(error)
        known = {"kind": "not-installed", "message": needed} if needed else _UNKNOWN
        emit_error(known, as_json)
        if needed is None:
            _defect(error)
        _end(needed, 2)


_UNKNOWN = {"kind": "defect", "message": "This is a defect of halfmask: see standard error."}


def _of_file(error: OSError) -> str:
    name = f"{error.filename}: " if error.filename else ""
    return f"{name}{error.strerror or 'cannot be read or written'}."


def _missing(error: Exception) -> str | None:
    """What to install; None where it is no extra of ours."""
    package = (getattr(error, "name", None) or "").split(".")[0]
    if not isinstance(error, ModuleNotFoundError) or package not in _EXTRAS:
        return None
    return f"This needs {package}: run pip install 'halfmask[{_EXTRAS[package]}]'."


def _end(message: str, exit_code: int) -> NoReturn:
    click.echo(wrapped(f"Error: {message}"), err=True)
    raise click.exceptions.Exit(exit_code)


def _defect(error: Exception) -> NoReturn:
    """Say where, not what: the text of a foreign exception may quote a private value."""
    if os.environ.get("HALFMASK_DEBUG"):
        raise error
    _end(
        f"Unexpected {type(error).__name__} at {raised_at(error)}. This is a defect of halfmask; "
        "please report it. HALFMASK_DEBUG=1 shows the traceback, which may quote your data.",
        1,
    )


def _silence_stdout() -> None:
    # The interpreter flushes standard output once more when it ends.
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="halfmask", message="halfmask %(version)s")
def main() -> None:
    """Train models on tables in which only part of each row is private.

    Start with `halfmask demo`, or with `halfmask init FILE --label COLUMN > schema.toml`.
    Every command takes --json and --help.
    """
