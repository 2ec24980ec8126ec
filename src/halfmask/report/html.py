"""The report as one page: no script, no request, readable on a phone, on paper, aloud and at night.

Column names, classes and file names are the user's text: everything is escaped on its way in.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

from halfmask.audit.model_audit import ESTIMATED
from halfmask.report import plots, words
from halfmask.report.covered import NONE_CLEAR, RELIABILITY_HEADINGS, SCORE_HEADINGS
from halfmask.report.covered import words as covered_words
from halfmask.report.facts import NO_BETTER, SCORES_NOT_COVERED, ColumnFacts, Facts, gather
from halfmask.report.plots import data_table, figure, inline_svg
from halfmask.scoring import REFERENCE_NOT_PRIVATE
from halfmask.statement import Statement, describe
from halfmask.storage import write_text

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


def write_report(
    folder: str | Path,
    out: str | Path,
    *,
    data: str | Path | None = None,
    ledger: str | Path | None = None,
    audit: str | Path | None = None,
) -> Facts:
    """Write the page of the model in `folder` to `out`; returns what it says."""
    facts = gather(folder, data=data, ledger=ledger, audit=audit)
    write_text(Path(out), page(facts))
    return facts


def page(facts: Facts) -> str:
    """The whole page."""
    sections = [
        ("guarantee", "What is promised", _guarantee(facts)),
        ("columns", "Public and private columns", _columns(facts)),
        ("attacker", "What an attacker can gain at most", _attacker(facts)),
        ("curve", "Epsilon at every delta", _curve(facts)),
        ("budget", "Budget spent over time", _budget(facts)),
        ("learning", "How the model was trained", _learning(facts)),
        ("effects", "What the model learnt", _effects(facts)),
        ("covered", "Scores that the guarantee covers", _covered(facts)),
        ("scores", "Accuracy on your test data", _scores(facts)),
        ("audit", "Audit", _audit(facts)),
        ("full-statement", "The statement in full", _statement(facts.statement)),
    ]
    links = "".join(f'<li><a href="#{name}">{escape(head)}</a></li>' for name, head, _ in sections)
    body = "".join(
        f'<section aria-labelledby="{name}"><h2 id="{name}">{escape(head)}</h2>{content}</section>'
        for name, head, content in sections
    )
    style = files("halfmask.report").joinpath("page.css").read_text(encoding="utf-8")
    title = f"Privacy report: {facts.name}"
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        f'<link rel="icon" href="data:,">\n<title>{escape(title)}</title>\n'
        f"<style>\n{style}</style>\n</head>\n<body>\n<header><h1>{escape(title)}</h1>"
        f'<p class="quiet">A {escape(facts.model.task)} model by the method '
        f"{escape(facts.model.method)}. Written {escape(facts.written)}.</p></header>\n"
        f'<nav aria-label="Contents"><ul>{links}</ul></nav>\n<main>{body}</main>\n'
        f"{_embedded(facts.statement)}\n</body>\n</html>\n"
    )


def _guarantee(facts: Facts) -> str:
    statement = facts.statement
    weak = words.weakness(facts)
    kind = "verdict bad" if statement.seeded or weak else "verdict"
    answers = "".join(
        f"<dt>{escape(question)}</dt><dd>{escape(answer)}</dd>"
        for question, answer in words.guarantee(facts)
    )
    not_covered = "".join(f"<li>{escape(item)}</li>" for item in statement.not_covered)
    notes = "".join(f"<p>{escape(note)}</p>" for note in statement.notes)
    warnings = ""
    if any(audit.refuted for audit in facts.audits):
        warnings = (
            '<p class="verdict bad">An audit has refuted a claim of this model: '
            '<a href="#audit">see below</a>. Do not rely on the number above.</p>'
        )
    if weak is not None:
        warnings += f'<p class="verdict bad">{escape(weak)}</p>'
    return (
        f'<p class="{kind}">{escape(words.headline(statement))}</p>{warnings}'
        f"<dl>{answers}</dl>{notes}"
        f"<h3>Not covered by this promise</h3><ul>{not_covered}</ul>"
    )


def _columns(facts: Facts) -> str:
    private = [column for column in facts.columns if column.role == "private"]
    public = [column for column in facts.columns if column.role == "public"]

    def block(role: str, text: str, columns: Sequence[ColumnFacts]) -> str:
        names = escape(words.listed([column.name for column in columns]))
        return (
            f'<div class="{role}"><p><strong>{len(columns)} {text}</strong></p><p>{names}</p></div>'
        )

    kept = "meant to be protected" if facts.statement.seeded else "protected"
    caption = "Every column, its role and what was declared about it"
    table = data_table(caption, *words.column_table(facts))
    return (
        '<div class="roles">'
        + block("private", f"private: {kept}", private)
        + block("public", "public: not protected", public)
        + f"</div><details><summary>Every column</summary>{table}</details>"
    )


def _attacker(facts: Facts) -> str:
    statement = facts.statement
    text = escape(words.ATTACKER.format(unit=words.unit(statement)))
    table = data_table(
        "Beliefs and right guesses, by what the attacker believed before",
        *words.gain_table(facts),
    )
    ax = plots.belief_bars([(gain.prior, gain.belief) for gain in facts.gains])
    title = "Bars: the attacker's belief before, and at most after seeing the model."
    svg = inline_svg(ax, name="attacker-figure", title=title)
    warning = ""
    if statement.seeded:
        warning = (
            '<p class="warning">These bounds would hold without the seed. With it, an attacker who '
            "knows the seed may become certain.</p>"
        )
    caption = "Bounds from the events that were charged, whatever the attacker computes."
    return (
        f"<p>{text} Under the relation replace.</p>{warning}<div class='figures'>"
        f"<figure>{svg}<figcaption>{escape(caption)}</figcaption></figure>{table}</div>"
        "<p>What follows from public columns, or from regularities that hold for everybody, can "
        "still be inferred, with or without this model.</p>"
    )


def _curve(facts: Facts) -> str:
    statement = facts.statement
    if not statement.events:
        return "<p>Nothing about private columns was released: epsilon is 0 at every delta.</p>"
    who = words.unit(statement)
    meanings = "".join(
        f"<dt>{escape(name)}: {'calibrated ' if statement.seeded else ''}epsilon "
        f"{words.guarantee_number(statement.calibrated[name])} at delta {statement.delta:g}</dt>"
        f"<dd>{escape(meaning.format(unit=who))}</dd>"
        for name, meaning in words.RELATIONS_IN_WORDS.items()
    )
    mark = (statement.delta, statement.calibrated_epsilon)
    called = "calibrated" if statement.seeded else "claimed"
    curves = {str(relation): points for relation, points in facts.curve.items()}
    ax = plots.epsilon_curve(curves, mark=mark, mark_name=called)
    title = "Lines: epsilon falls as delta grows, for the relations replace and withhold."
    both = zip(facts.curve["replace"], facts.curve["withhold"], strict=True)
    rows = [
        [f"{d:.0e}", words.guarantee_number(r), words.guarantee_number(w)]
        for (d, r), (_, w) in both
    ]
    table = data_table("Epsilon by delta", ["Delta", "replace", "withhold"], rows)
    caption = f"One training gives all these pairs at once; the star is the pair that is {called}."
    return f"<dl>{meanings}</dl>{_figure(ax, 'curve-figure', title, caption, table)}"


def _budget(facts: Facts) -> str:
    budget = facts.budget
    if not budget.charges:
        return "<p>Nothing was charged.</p>"
    spent = [charge.epsilon for charge in budget.charges]
    ax = plots.budget_steps(spent, limit=budget.epsilon)
    table = data_table("Charges in order", *words.charge_table(facts))
    limit = (
        "No ledger was kept with this model: these are its own releases. If one was charged, pass "
        "it with --ledger FILE."
    )
    if budget.epsilon is not None:
        limit = (
            f"The ledger allows epsilon {words.guarantee_number(budget.epsilon)} at delta "
            f"{budget.delta:g} ({budget.relation}); {words.guarantee_number(spent[-1])} is spent."
        )
    if budget.left_out:
        limit += f" The first {budget.left_out} charges are not drawn, but counted."
    caption = "Charges compose: together they cost less than their sum."
    title = "Bars: epsilon spent after each charge."
    return f"<p>{escape(limit)}</p>{_figure(ax, 'budget-figure', title, caption, table)}"


def _learning(facts: Facts) -> str:
    why = f"<p>Method {escape(facts.model.method)}: {escape(facts.model.reason)}.</p>"
    stored = {
        k: v
        for k, v in facts.model.details.items()
        if isinstance(v, str | int | float) and not k.startswith("public_loss")
    }
    rows = [[k, f"{v:.6g}" if isinstance(v, float) else str(v)] for k, v in stored.items()]
    settings = data_table("Settings, all public", ["Setting", "Value"], rows)
    if stored:
        why += f"<details><summary>Settings of this training</summary>{settings}</details>"
    if not facts.learning:
        return why + (
            "<p>This training left no learning curve that would be free to show: a loss that reads "
            "private values, a private label among them, would have to be paid for.</p>"
        )
    ax = plots.learning_curve(facts.learning)
    rows = [[str(step), f"{loss:.6g}"] for step, loss in facts.learning]
    table = data_table("Public loss by step", ["Step", "Public loss"], rows)
    caption = (
        f"Public loss: {facts.learning_of}. Private values enter it only through what was released "
        "and paid for, so it costs nothing more."
    )
    title = "Line: the public loss, step by step."
    return why + _figure(ax, "learning-figure", title, caption, table)


def _figure(ax: Any, name: str, title: str, caption: str, table: str) -> str:
    return figure(inline_svg(ax, name=name, title=title), caption, table)


def _covered(facts: Facts) -> str:
    covered = facts.covered
    if facts.constant is not None:
        return f'<p class="verdict bad">{escape(facts.constant)}</p>'
    if covered is None:
        return (
            "<p>This training released no score of its own. The method additive does, wherever "
            "rows and budget are enough for more than a base rate.</p>"
        )
    scores = data_table("Scores covered by the guarantee", SCORE_HEADINGS, covered.score_rows())
    text = f"<p>{escape(covered_words(facts.statement.seeded))}</p>{scores}"
    if covered.compared is not None:
        text += f"<p>{escape(covered.compared)}</p>"
    if not covered.reliability:
        return text + (f"<p>{escape(NONE_CLEAR)}</p>" if covered.classes else "")
    title = "Points with bars: shares observed against shares predicted, under noise."
    ax = plots.reliability(covered.reliability)
    table = data_table(
        "Reliability covered by the guarantee", RELIABILITY_HEADINGS, covered.reliability_rows()
    )
    caption = (
        "Reliability, covered by the guarantee: rows by their predicted chance of the second "
        "class. Bars hold the noise and the luck of rows."
    )
    return text + _figure(ax, "covered-figure", title, caption, table)


def _effects(facts: Facts) -> str:
    if not facts.effects:
        return "<p>Effects by column are told of models by additive or gd with a schema.</p>"
    if all(effect.size == 0 for effect in facts.effects):
        return f"<p>{escape(plots.LEARNT_NOTHING)}</p>"
    outcomes = dict.fromkeys(effect.outcome for effect in facts.effects)
    text = plots.meaning(words.listed(list(outcomes)), classes=facts.model.classes is not None)
    drawn = [effect for effect in facts.effects if effect.clear][: plots.SHOWN]
    clear = {effect.column for effect in facts.effects if effect.clear}
    unclear = [name for name in dict.fromkeys(e.column for e in facts.effects) if name not in clear]
    named = {True: lambda e: f"{e.column} ({e.role})", False: lambda e: f"{e.column}: {e.outcome}"}
    figures = "".join(
        figure(
            plots.svg(effect, f"effect-{place}"),
            named[len(outcomes) == 1](effect),
            data_table(effect.column, plots.HEADINGS[1:], [r[1:] for r in plots.rows([effect])]),
        )
        for place, effect in enumerate(drawn)
    )
    lost = ""
    if unclear:
        lost = f"<p>Noise could have made all effects of {escape(words.listed(unclear))}.</p>"
    return f'<p>{escape(text)}</p>{lost}<div class="figures">{figures}</div>'


def _scores(facts: Facts) -> str:
    measured = facts.measured
    if measured is None:
        return (
            "<p>No rows were passed. <code>halfmask report MODEL --data FILE</code> adds scores, "
            "the ROC curve and calibration on your test data.</p>"
        )
    figures = []
    if measured.roc:
        rows = [[n, f"{x:.4f}", f"{y:.4f}"] for n, line in measured.roc.items() for x, y in line]
        headings = ["Class", "False positive rate", "True positive rate"]
        table = data_table("ROC curve", headings, rows)
        caption = "ROC curve: of the rows of a class, and of all others, the share called so."
        title = "Lines: the ROC curve of each class."
        figures.append(_figure(plots.roc(measured.roc), "roc-figure", title, caption, table))
    curves = {
        name: [(part.predicted, part.observed) for part in bins]
        for name, bins in measured.calibration.items()
    }
    title = "Lines: what was observed against what was predicted."
    rows = [
        [name, f"{part.predicted:.4f}", f"{part.observed:.4f}", f"{part.rows:,}"]
        for name, bins in measured.calibration.items()
        for part in bins
    ]
    table = data_table("Calibration", ["Class", "Predicted", "Observed", "Rows"], rows)
    caption = "Calibration, in ten parts of equally many rows."
    ax = plots.calibration(curves)
    figures.append(_figure(ax, "calibration-figure", title, caption, table))
    scores = data_table("Scores", *words.score_table(facts))
    if not measured.better_than_constant:
        scores = f'<p class="verdict bad">{escape(NO_BETTER)}</p>{scores}'
    if measured.classes:
        scores += data_table("Classes", *words.class_table(facts))
        scores += data_table("Confusion matrix, in rows", *words.confusion_table(facts))
    if measured.groups:
        scores += data_table(f"Scores by {measured.by}", *words.group_table(facts))
    if measured.reference:
        table = data_table("Without privacy", *words.reference_table(facts))
        scores += f'<p class="warning"><strong>{escape(REFERENCE_NOT_PRIVATE)}</strong></p>{table}'
    return (
        f'<p class="warning"><strong>{escape(SCORES_NOT_COVERED)}</strong></p>{scores}'
        f'<div class="figures">{"".join(figures)}</div>'
    )


def _audit(facts: Facts) -> str:
    if not facts.audits:
        return (
            "<p>No audit was passed. <code>halfmask audit MODEL --data FILE --out DIR</code> "
            "attacks the model and gives an empirical lower bound on epsilon beside the claimed "
            "one; <code>halfmask report MODEL --audit DIR</code> shows it here.</p>"
        )
    caption = "An attack can refute a claim; that it does not is no proof"
    shown = f'<p class="warning"><strong>{escape(words.AUDITED_ROWS)}</strong></p>' + data_table(
        caption, *words.audit_table(facts)
    )
    if not facts.inferences:
        return shown
    bars = [(i.column, i.without_model, i.with_model, i.bound) for i in facts.inferences]
    title = "Bars: how often each private column is guessed right, without and with the model."
    ax = plots.guess_bars(bars)
    table = data_table("Right guesses of private columns", *words.inference_table(facts))
    return shown + _figure(ax, "inference-figure", title, ESTIMATED, table)


def _statement(statement: Statement) -> str:
    content = base64.b64encode(_json(statement).encode("utf-8")).decode("ascii")
    events = "".join(f"<li>{escape(describe(event))}</li>" for event in statement.events)
    return (
        '<pre role="region" tabindex="0" aria-label="The statement in words">'
        f"{escape(statement.text())}</pre>"
        f"<h3>Charged events</h3><ul>{events or '<li>none</li>'}</ul>"
        '<p><a class="download" download="statement.json" '
        f'href="data:application/json;base64,{content}">Download the statement (JSON)</a></p>'
        "<p class='quiet'>The same JSON is part of this page, in the element with the id "
        "<code>statement</code>.</p>"
    )


def _json(statement: Statement) -> str:
    return json.dumps(statement.to_json(), indent=2, allow_nan=False)


def _embedded(statement: Statement) -> str:
    # A name such as "</script>" must not end the element: write < > & as JSON escapes.
    safe = _json(statement)
    for character in "<>&":
        safe = safe.replace(character, f"\\u{ord(character):04x}")
    return f'<script type="application/json" id="statement">{safe}</script>'
