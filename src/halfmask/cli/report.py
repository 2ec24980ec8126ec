"""`halfmask report`: a model's guarantee, curves and scores as a page, Markdown, JSON or a card."""

from __future__ import annotations

from pathlib import Path

import click

from halfmask.cli.options import PATH
from halfmask.cli.output import check_target, emit, json_option, note, reporting
from halfmask.cli.predict import is_vertical
from halfmask.errors import InputError
from halfmask.storage import json_text, write_text

_NAMES = {"html": "report.html", "md": "report.md", "json": "report.json", "card": "README.md"}


@click.command()
@click.argument("model", type=PATH)
@click.option(
    "--out",
    type=PATH,
    help="The file to write (default: report.html, report.md, report.json, or README.md for card).",
)
@click.option(
    "--data",
    type=PATH,
    help="Labelled rows to score the model on; what they show is not covered by the guarantee.",
)
@click.option("--by", metavar="COLUMN", help="With --data: scores for each value of its column.")
@click.option(
    "--reference",
    type=PATH,
    help="With --data: fit models without privacy on this file, to compare: NOT PRIVATE.",
)
@click.option(
    "--ledger",
    "ledger_file",
    type=PATH,
    help="The data set's ledger, if training charged one outside the model folder.",
)
@click.option(
    "--audit",
    "audit_file",
    type=PATH,
    help="The result of `halfmask audit MODEL --out DIR` to show; it tells of private rows.",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(list(_NAMES)),
    default="html",
    show_default=True,
    help="A self-contained page, Markdown, JSON, or a model card in Hugging Face form.",
)
@click.option(
    "--facts",
    "facts_file",
    type=PATH,
    help="Also write here what --format json writes; what the model learnt is found once for both.",
)
@click.option(
    "--overwrite",
    is_flag=True,
    help="Replace the file of --facts, or a README.md that --out does not name.",
)
@json_option
def report(
    model: Path,
    out: Path | None,
    data: Path | None,
    by: str | None,
    reference: Path | None,
    ledger_file: Path | None,
    audit_file: Path | None,
    form: str,
    facts_file: Path | None,
    overwrite: bool,
    as_json: bool,
) -> None:
    """Write what MODEL (a folder that train wrote) promises, and to whom."""
    from halfmask.report import words
    from halfmask.report.facts import gather

    target = out or Path(_NAMES[form])
    read = {
        "MODEL": model,
        "--data": data,
        "--reference": reference,
        "--ledger": ledger_file,
        "--audit": audit_file,
    }
    # To write a report again is usual; a README.md that nobody named is most likely not one.
    again = out is not None or form != "card"
    check_target(target, "--out", overwrite=overwrite or again, read=read)
    if facts_file is not None:
        check_target(facts_file, "--facts", overwrite=overwrite, read=read)
        if facts_file.absolute() == target.absolute():
            raise InputError("--facts and --out name one file: name two.")
    if data is None and (by is not None or reference is not None):
        raise InputError("--by and --reference are about the rows of --data: pass them too.")
    if is_vertical(model):
        if facts_file is not None:
            raise InputError("A model of several parties has one document: leave out --facts.")
        _vertical(model, target, form, as_json)
        return
    if form == "html":
        import matplotlib  # noqa: F401  (say that it is missing before the work, not after)
    if (model / "audit.json").exists():
        note(
            f"{model / 'audit.json'} tells of private rows: move it out of the model folder before "
            "you hand that out, and pass it with --audit FILE to see it in a report."
        )
    with reporting("report") as told:
        facts = gather(
            model,
            data=data,
            ledger=ledger_file,
            audit=audit_file,
            with_effects=form in ("html", "json") or facts_file is not None,
            by=by,
            reference=reference,
            told=told,
        )
    if form == "html":
        from halfmask.report.html import page

        text = page(facts)
    elif form == "json":
        text = json_text(facts.to_json()) + "\n"
    else:
        from halfmask.report import card

        text = card.card(facts) if form == "card" else card.markdown(facts)
    write_text(target, text)
    if facts_file is not None:
        write_text(facts_file, json_text(facts.to_json()) + "\n")
    result = {
        "out": str(target),
        "format": form,
        "bytes": len(text.encode("utf-8")),
        "headline": words.headline(facts.statement),
        "privacy": facts.statement.to_json(),
        "scores": None if facts.measured is None else dict(facts.measured.scores),
    }
    emit(result, f"{words.headline(facts.statement)}.\nReport written to {target}.", as_json)


def _vertical(model: Path, target: Path, form: str, as_json: bool) -> None:
    """Every party's statement in one document."""
    from halfmask.cli.vertical import load_model
    from halfmask.vertical.statements import document

    fitted = load_model(model)
    text = document(fitted, form)
    write_text(target, text)
    result = {
        "out": str(target),
        "format": form,
        "bytes": len(text.encode("utf-8")),
        "privacy": {name: dict(told) for name, told in fitted.privacy.items()},
    }
    emit(result, f"The statements of {len(fitted.parties)} parties written to {target}.", as_json)
