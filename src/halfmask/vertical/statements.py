"""What each party is promised, and what every party learns all the same."""

from __future__ import annotations

import html
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from halfmask.accounting.budget import Budget, printed
from halfmask.errors import HalfmaskError
from halfmask.mechanisms.release import Releaser
from halfmask.statement import Statement, made_notes
from halfmask.vertical.files import VerticalTable
from halfmask.vertical.queries import REVEALS, StatementJson, VerticalModel

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
_IDS = "The ids of the rows are known to all: alignment compares keyed hashes of them."
NO_GUARANTEE = {
    "none": "exact values leave the party",
    "as-written": "noise lies in the column space of the party's table, which one share reveals",
}


@dataclass(frozen=True, kw_only=True)
class LabelFacts:
    """The label's name, whether a party's guarantee covers it too, and whether it was hidden."""

    name: str
    private: bool
    hidden: bool


def party_statements(
    simulation: Simulation, table: VerticalTable, budget: Budget, label: LabelFacts, noise: str
) -> dict[str, StatementJson]:
    """One statement per party of a simulation."""
    everyone = {part.name: (*part.column_names, *part.public_names) for part in table.columns}
    notes = (*_costs(simulation.costs, budget.delta), *simulation.notes)
    return {
        part.name: party_statement(
            simulation.method,
            simulation.releasers.get(part.name),
            public=(
                *part.public_names,
                *(n for other, names in everyone.items() if other != part.name for n in names),
            ),
            private=part.column_names,
            budget=budget,
            label=label,
            noise=noise,
            notes=(*([] if part.encoder is None else made_notes(part.encoder.schema)), *notes),
        )
        for part in table.columns
    }


def party_statement(
    method: str,
    releaser: Releaser | None,
    *,
    public: Sequence[str],
    private: Sequence[str],
    budget: Budget,
    label: LabelFacts,
    noise: str,
    notes: Sequence[str] = (),
) -> StatementJson:
    """The statement of one party, by what it released (None: unprotected)."""
    learns = [] if label.hidden else [_LABELS_IN_CLEAR[method]]
    learns += [_LEARNS[method], _QUERIES, _IDS]
    if releaser is None:
        why = NO_GUARANTEE.get(noise, "no noise was asked for")
        return {
            "epsilon": None,
            "delta": None,
            "relation": budget.relation,
            "guarantee": f"none: {why}",
            "private": list(private),
            "not_covered": learns,
        }
    statement = Statement.build(
        events=releaser.events,
        delta=budget.delta,
        relation=budget.relation,
        public=public,
        private=private,
        label=label.name,
        label_private=label.private,
        released=releaser.released,
        noise=releaser.noise,
        notes=[
            "The columns of the other parties count as public: this is the guarantee of one party.",
            *notes,
        ],
        not_covered=learns,
    )
    return statement.to_json()


def _costs(costs: Mapping[str, float], delta: float) -> list[str]:
    words = {
        "person": "one person's columns replaced at all parties together, with the label where it "
        "is private or hidden",
        "columns at all parties": "one person's columns replaced at all parties, the label "
        "unchanged",
        "label": "one label replaced",
        "column": "one column of one party moved by a vector of norm at most 1 (A's adjacency)",
    }
    return [
        f"Epsilon {printed(value)} at delta {delta:g}: {words[name]}."
        for name, value in costs.items()
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


def statement_text(told: StatementJson) -> str:
    """A party's statement in words; one without a guarantee says so.

    Another party may have written them: nothing is printed that a terminal would obey.
    """
    if told.get("epsilon") is None and "guarantee" in told:
        lines = [f"What is promised: {told['guarantee']}.", "This does not cover:"]
        text = "\n".join([*lines, *(f"- {line}" for line in told.get("not_covered", []))])
    else:
        try:
            text = Statement.from_json(told).text()
        except (HalfmaskError, TypeError, ValueError, KeyError, AttributeError):
            return "This party's statement cannot be read."
    return "".join(c if c.isprintable() or c == "\n" else "?" for c in text)


def label_sentence(epsilon: float | None, hidden: bool) -> str:
    """What the label holder has spent of each label, in words."""
    if epsilon is None:
        return "Labels: every party knows them. There is no label privacy among the parties."
    how = "randomised once, and nothing else was sent of them" if hidden else "private"
    spent = f"Epsilon {printed(epsilon)} of one label was charged to the label holder."
    return f"Labels: {how}. {spent}"
