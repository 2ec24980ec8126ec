"""Options that several commands share, in one wording."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

_Function = TypeVar("_Function", bound=Callable[..., Any])


def settings_options(of: str) -> Callable[[_Function], _Function]:
    """--set and --config; `of` says how a setting is named."""
    options = (
        click.option(
            "--set",
            "settings",
            multiple=True,
            metavar=f"{of}=VALUE",
            help="A setting of the method, repeatable; an unknown one lists what there is.",
        ),
        click.option(
            "--config",
            "config_file",
            type=click.Path(path_type=Path, exists=True, dir_okay=False),
            help="A TOML file of settings, in a table per method; --set goes before it.",
        ),
    )

    def decorate(function: _Function) -> _Function:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


def training_options(*, epsilon: str, ledger: str) -> Callable[[_Function], _Function]:
    """DATA, --schema, --epsilon, --delta, --relation and --ledger of a command that trains.

    `epsilon` says whose budget it is, `ledger` which one is charged where none is named.
    """
    options = (
        click.argument("data", type=click.Path(path_type=Path)),
        click.option(
            "--schema",
            "schema_file",
            required=True,
            type=click.Path(path_type=Path),
            help="The TOML file that says which columns are private (see: halfmask init).",
        ),
        click.option("--epsilon", type=float, required=True, help=epsilon),
        click.option(
            "--delta",
            type=float,
            default=1e-6,
            show_default=True,
            help="What any set of outcomes may gain beyond epsilon; well below 1 / rows.",
        ),
        click.option(
            "--relation",
            type=click.Choice(["replace", "withhold"]),
            default="replace",
            show_default=True,
            help="What two neighbouring tables may differ in.",
        ),
        click.option(
            "--ledger",
            "ledger_file",
            type=click.Path(path_type=Path),
            help=f"Charge this data set's ledger (default: {ledger}).",
        ),
    )

    def decorate(function: _Function) -> _Function:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate
