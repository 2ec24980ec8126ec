"""What each party is promised, and what every party learns all the same."""

from __future__ import annotations

import html
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from halfmask.accounting.relations import Relation
from halfmask.errors import HalfmaskError
from halfmask.mechanisms.release import Releaser
from halfmask.statement import Statement
from halfmask.vertical.part import VerticalModel
from halfmask.vertical.queries import REVEALS
from halfmask.vertical.task import Columns

if TYPE_CHECKING:
    from halfmask.vertical.simulation import Simulation

_LABELS_IN_CLEAR = {
    "admm": "The broadcast dual tells every party every label: its sign tells a class, its value a "
    "number.",
    "fdml-sgd": "The broadcast slopes tell every party every label: their sign tells a class, "
    "their value a number.",
    "experts": "Labels are sent to the parties in clear: there is no label privacy among them.",
}
_LEARNS = {
    "admm": "Each party keeps its exact coefficients; they, and scores computed from them, are not "
    "covered by the guarantee of the shares: answers to queries tell them.",
    "fdml-sgd": "The coordinator learns one noisy score per row and epoch.",
    "experts": "To predict, each party sends the score of the queried row: it is disclosed.",
}
_QUERIES = (
    "The score that a party sends of a queried row tells that row's own columns; of a training row "
    "too, whatever this statement promises for training."
)
NO_GUARANTEE = {
    "none": "exact values leave the party",
    "as-written": "noise lies in the column space of the party's table, which one share reveals",
}


def party_statements(
    simulation: Simulation,
    columns: tuple[Columns, ...],
    *,
    delta: float,
    relation: Relation,
    label: str,
    label_private: bool,
    label_hidden: bool,
    noise: str = "row",
) -> dict[str, dict[str, Any]]:
    """One statement per party as JSON; a party without a guarantee gets a null epsilon and why."""
    return {
        part.name: party_statement(
            simulation.method,
            simulation.doors.get(part.name),
            public=(
                *part.public_names,
                *(
                    name
                    for other in columns
                    if other is not part
                    for name in (*other.column_names, *other.public_names)
                ),
            ),
            private=part.column_names,
            delta=delta,
            relation=relation,
            label=label,
            label_private=label_private,
            label_hidden=label_hidden,
            noise=noise,
            notes=(*_costs(simulation.costs, delta), *simulation.notes),
        )
        for part in columns
    }


def party_statement(
    method: str,
    door: Releaser | None,
    *,
    public: Sequence[str],
    private: Sequence[str],
    delta: float,
    relation: Relation,
    label: str,
    label_private: bool,
    label_hidden: bool,
    noise: str,
    notes: Sequence[str] = (),
) -> dict[str, Any]:
    """The statement of one party, whose releases went through `door` (None: unprotected)."""
    learns = [_LEARNS[method]]
    if not label_hidden:
        learns.insert(0, _LABELS_IN_CLEAR[method])
    learns.append(_QUERIES)
    learns.append("The ids of the rows are known to all: alignment compares keyed hashes of them.")
    if door is None:
        return {
            "epsilon": None,
            "delta": None,
            "relation": relation,
            "guarantee": f"none: {NO_GUARANTEE.get(noise, 'no noise was asked for')}",
            "private": list(private),
            "not_covered": learns,
        }
    statement = Statement.build(
        events=door.events,
        delta=delta,
        relation=relation,
        public=public,
        private=private,
        label=label,
        label_private=label_private,
        released=door.released,
        noise=door.noise,
        notes=[
            "The columns of the other parties count as public: this is the guarantee of one party.",
            *notes,
        ],
        not_covered=learns,
    )
    return statement.to_json()


def _costs(costs: Mapping[str, float], delta: float) -> list[str]:
    words = {
        "person": "one person's columns at all parties together (and the label, where it is used)",
        "columns at all parties": "one person's columns at all parties, the label unchanged",
        "label": "one label",
        "column": "one column of one party moved by a vector of norm at most 1 (A's adjacency)",
    }
    return [
        f"Epsilon {value:.4g} at delta {delta:g}: {words[name]}." for name, value in costs.items()
    ]


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
