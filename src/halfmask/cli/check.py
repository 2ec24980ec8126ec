"""`halfmask check`: a schema against a file before anything is spent."""

from __future__ import annotations

import textwrap
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import click

from halfmask.accounting.relations import RELATIONS
from halfmask.cli.output import emit, json_option

if TYPE_CHECKING:
    from halfmask.checking import Checked, Finding
    from halfmask.expectation import Expectation

_WIDTH = 80
_SHOWN = 8
FOR_THE_HOLDER = (
    "This output tells whether private values parse: it is for whoever holds the data, not for "
    "release."
)


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--schema",
    "schema_file",
    required=True,
    type=click.Path(path_type=Path),
    help="The TOML file that says which columns are private (see: halfmask init).",
)
@click.option("--epsilon", type=float, default=1.0, show_default=True, help="The budget to come.")
@click.option("--delta", type=float, default=1e-6, show_default=True, help="The budget to come.")
@click.option("--relation", type=click.Choice(RELATIONS), default="replace", show_default=True)
@click.option(
    "--full",
    type=click.Path(path_type=Path),
    help="Write the schema here with patterns, groups and includes written out.",
)
@json_option
def check(
    file: Path,
    schema_file: Path,
    epsilon: float,
    delta: float,
    relation: str,
    full: Path | None,
    as_json: bool,
) -> None:
    """Check FILE against a schema: every fault at once, and warnings. Nothing is spent.

    Of a private column it says that it parses, or the first row at which it does not. It also says
    whether noise will win, and what making each private column public would buy: from the number
    of rows, the schema and the budget, never from private values.

    The output is for whoever holds the data, not for release. Ends with 2 where there are faults.
    """
    from halfmask.accounting.budget import Budget
    from halfmask.accounting.relations import check_relation
    from halfmask.checking import check_file
    from halfmask.errors import InputError
    from halfmask.model_folder import write_text

    budget = Budget(epsilon=epsilon, delta=delta, relation=check_relation(relation))
    if full is not None and full.exists():
        raise InputError(f"{str(full)!r} exists already: name a new file with --full.")
    found = check_file(file, schema_file, budget)
    if full is not None and found.schema is not None:
        write_text(full, found.schema.to_toml())
    emit(found.to_json(), _text(found, file), as_json)
    if found.faults:
        raise click.exceptions.Exit(2)


def _text(found: Checked, file: Path) -> str:
    rows = "" if found.rows is None else f": {found.rows:,} rows"
    parts = [f"{file}{rows}, {_counted(found)}."]
    for title, findings in (("Faults", found.faults), ("Warnings", found.warnings)):
        if findings:
            parts.append("\n".join([f"{title} ({len(findings)}):", *map(_bullet, findings)]))
    if found.expectation is not None:
        parts.append(_expected(found.expectation))
    parts.append(textwrap.fill(FOR_THE_HOLDER, _WIDTH))
    return "\n\n".join(parts)


def _counted(found: Checked) -> str:
    states = Counter(state == "parses" for state in found.states.values())
    words = [f"{states[True]} of {len(found.states)} declared columns parse"]
    if not found.faults:
        words.append("no faults")
    return ", ".join(words)


def _bullet(finding: Finding) -> str:
    return textwrap.fill(finding.message, _WIDTH, initial_indent="  - ", subsequent_indent="    ")


def _expected(found: Expectation) -> str:
    low, high = (f"{100 * end:.0f}" for end in found.kept)
    sentence = {
        "noise will win": "Noise will win: expect hardly more than a constant, or than the free "
        "model of the public columns.",
        "noise may win": f"Noise may win: of what your columns tell, a model will keep {low}% "
        f"(if each tells little) to {high}% (if they tell much).",
        "noise will not win": f"Noise will not win: of what your columns tell, a model will keep "
        f"about {low}% (if each tells little) to {high}% (if they tell much).",
    }[found.verdict]
    if found.verdict != "noise will not win":
        sentence += f" About {found.rows_needed:,} rows, or a larger epsilon, would be safe."
    lines = [textwrap.fill(sentence, _WIDTH)]
    if found.if_public:
        lines.append("If one of these were public (most gained first):")
        width = min(max(len(change.column) for change in found.if_public[:_SHOWN]), 40)
        for change in found.if_public[:_SHOWN]:
            ends = " to ".join(f"{100 * end:.0f}%" for end in change.kept)
            lines.append(f"  {change.column[:40]:<{width}}  keeps {ends}")
        if len(found.if_public) > _SHOWN:
            lines.append(f"  and {len(found.if_public) - _SHOWN} more (--json shows all)")
    lines.append("A rule of thumb from rows, schema and budget: docs/check.md.")
    return "\n".join(lines)
