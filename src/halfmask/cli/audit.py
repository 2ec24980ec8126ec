"""`halfmask audit`: attack a model or a mechanism, and print the epsilon it has at least."""

from __future__ import annotations

from pathlib import Path
from textwrap import fill
from typing import Any

import click

from halfmask.accounting.budget import Budget
from halfmask.accounting.events import check_relation
from halfmask.cli.options import PATH, RELATION
from halfmask.cli.output import emit, json_option, note, reporting
from halfmask.errors import InputError


@click.command()
@click.argument("model", required=False, type=PATH)
@click.option("--data", type=PATH, help="The rows to plant canaries in.")
@click.option("--mechanism", help="A mechanism by name instead of a model (see --list).")
@click.option("--epsilon", type=float, default=1.0, show_default=True, help="What it claims.")
@click.option("--delta", type=float, default=1e-5, show_default=True)
@click.option(
    "--confidence",
    type=float,
    help="How sure the lower bound shall be (default: 0.95; 0.999 for refuted-* and corrected-*).",
)
@click.option(
    "--relation",
    type=RELATION,
    default="replace",
    show_default=True,
    help="How the two inputs of a mechanism differ.",
)
@click.option("--runs", type=int, help="Runs of a mechanism (default: what a telling bound needs).")
@click.option(
    "--cases", type=int, help="Pairs of frames for --mechanism encoding (default: 10000)."
)
@click.option(
    "--canaries",
    type=int,
    help="In a model's data, half of its rows at most.  [default: 1000, or that half]",
)
@click.option(
    "--out",
    type=PATH,
    help="A folder outside the model's to keep a model's audit in; it tells of private rows "
    "(default: it is only printed).",
)
@click.option("--list", "listing", is_flag=True, help="List the mechanisms.")
@json_option
def audit(
    model: Path | None,
    data: Path | None,
    mechanism: str | None,
    epsilon: float,
    delta: float,
    confidence: float | None,
    relation: str,
    runs: int | None,
    cases: int | None,
    canaries: int | None,
    out: Path | None,
    listing: bool,
    as_json: bool,
) -> None:
    """Attack MODEL (with --data) or a --mechanism; exit 4 where its claim is refuted."""
    claim = Budget(epsilon=epsilon, delta=delta, relation=check_relation(relation))
    if confidence is not None and not 0 < confidence < 1:
        raise InputError(f"Expected a confidence strictly between 0 and 1, got {confidence}.")
    if listing:
        _list(as_json)
    elif cases is not None and mechanism != "encoding":
        raise InputError("--cases is for --mechanism encoding: others take --runs.")
    elif mechanism == "encoding" and model is None:
        _encoding(claim, runs, cases, as_json)
    elif mechanism is not None and model is None:
        _mechanism(mechanism, claim, confidence, runs, as_json)
    elif model is not None and mechanism is None:
        _model(model, data, confidence or 0.95, canaries, out, as_json)
    else:
        raise InputError("Pass a model folder with --data FILE, or --mechanism NAME (see --list).")


def _list(as_json: bool) -> None:
    from halfmask.audit.catalogue import names
    from halfmask.audit.refutations import REFUTATIONS

    mistakes = {f"refuted-{name}": found.mistake for name, found in REFUTATIONS.items()}
    lines = [f"{name:28}{mistakes.get(name, '')}".rstrip() for name in names()]
    emit({"mechanisms": list(names()), "mistakes": mistakes}, "\n".join(lines), as_json)


def _mechanism(
    name: str, claim: Budget, confidence: float | None, runs: int | None, as_json: bool
) -> None:
    from halfmask.audit.catalogue import game_named, is_twin
    from halfmask.audit.distinguish import distinguish

    sure = confidence or (0.999 if is_twin(name) else 0.95)
    with reporting(f"audit {name}") as report:
        game = game_named(name, epsilon=claim.epsilon, delta=claim.delta, relation=claim.relation)
        finding = distinguish(game, confidence=sure, runs=runs, report=report)
    result: dict[str, Any] = {**finding.to_json(), "mechanism": name}
    emit(result, finding.text(), as_json)
    _end(finding.refuted)


def _encoding(claim: Budget, runs: int | None, cases: int | None, as_json: bool) -> None:
    """No chance is involved: one pair of frames that disagrees elsewhere is a refutation."""
    from halfmask.audit.neighbours import DEFAULT_CASES, audit_encoding

    if runs is not None or claim.relation != "replace":
        raise InputError("The encoding is audited by replaced cells: pass --cases N alone.")
    with reporting("audit encoding") as report:
        finding = audit_encoding(
            cases=DEFAULT_CASES if cases is None else cases,
            claim=claim,
            report=report,
        )
    emit(finding.to_json(), finding.text(), as_json)
    _end(finding.refuted)


def _model(
    folder: Path,
    data: Path | None,
    confidence: float,
    canaries: int | None,
    out: Path | None,
    as_json: bool,
) -> None:
    from halfmask.audit.model_audit import AUDIT_FILE, ESTIMATED, audit_model
    from halfmask.table import read_frame

    if data is None:
        raise InputError(
            "Auditing a model plants canaries in its rows: pass them with --data FILE."
        )
    frame = read_frame(data)
    with reporting("audit") as report:
        found = audit_model(
            folder, frame, canaries=canaries, confidence=confidence, out=out, report=report
        )
    lines = [found.finding.text(), f"Audited: {found.to_json()['audited']}.", ""]
    if found.inferences:
        lines.append(
            f"{'guessed right':24}{'without model':>14}{'with model':>12}{'most, est.':>12}"
        )
    for each in found.inferences:
        lines.append(
            f"{each.column:24}{each.without_model:14.3f}{each.with_model:12.3f}{each.bound:12.3f}"
        )
    if found.inferences:
        lines += ["", fill(ESTIMATED, 80)]
    emit({"model": str(folder), **found.to_json()}, "\n".join(lines), as_json)
    note("Counted on private rows, not covered by the guarantee: keep it to yourself.")
    if out is not None:
        note(f"Written to {out / AUDIT_FILE}; `halfmask report --audit {out}` shows it.")
    _end(found.finding.refuted)


def _end(refuted: bool) -> None:
    if refuted:
        raise click.exceptions.Exit(4)
