"""A vertical model in words: how it adds up, and what each party is promised."""

from __future__ import annotations

import html
import json
from collections.abc import Mapping
from typing import Any

from halfmask.errors import HalfmaskError
from halfmask.statement import Statement
from halfmask.vertical.part import VerticalModel
from halfmask.vertical.queries import REVEALS


def document(model: VerticalModel, form: str) -> str:
    """The statements of all parties as html, md, card (Markdown too) or json."""
    if form == "json":
        told = {"method": model.method, "rule": model.rule, "weights": dict(model.weights)}
        privacy = {name: dict(each) for name, each in model.privacy.items()}
        return json.dumps({**told, "label": model.label, "privacy": privacy}, indent=2) + "\n"
    title = f"Vertical model of {model.label}"
    head = [
        f"Method {model.method}; {model.rule}.",
        f"Parties: {', '.join(model.parties)}. Each statement is the guarantee of one party, for "
        "its own columns, while those of the others count as public.",
        REVEALS,
    ]
    parts = [(name, statement_text(model.privacy.get(name, {}))) for name in model.parties]
    if form == "html":
        body = "".join(f"<p>{html.escape(line)}</p>" for line in head)
        for name, text in parts:
            body += f"<h2>{html.escape(name)}</h2><pre>{html.escape(text)}</pre>"
        return (
            '<!doctype html><html lang="en"><head><meta charset="utf-8">'
            f"<title>{html.escape(title)}</title></head><body><h1>{html.escape(title)}</h1>"
            f"{body}</body></html>\n"
        )
    lines = [f"# {title}", *head]
    for name, text in parts:
        lines += [f"## {name}", f"```text\n{text}\n```"]
    return "\n\n".join(lines) + "\n"


def statement_text(told: Mapping[str, Any]) -> str:
    """A party's statement in words; one without a guarantee says so."""
    if told.get("epsilon") is None and "guarantee" in told:
        lines = [f"What is promised: {told['guarantee']}.", "This does not cover:"]
        return "\n".join([*lines, *(f"- {line}" for line in told.get("not_covered", []))])
    try:
        return Statement.from_json(told).text()
    except (HalfmaskError, TypeError, ValueError, KeyError, AttributeError):
        return "This party's statement cannot be read."
