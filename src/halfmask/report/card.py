"""The report as Markdown, and as a model card in the form of Hugging Face (YAML front matter)."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence

from halfmask.audit.model_audit import ESTIMATED
from halfmask.report import words
from halfmask.report.covered import NONE_CLEAR, RELIABILITY_HEADINGS, SCORE_HEADINGS
from halfmask.report.covered import words as covered_words
from halfmask.report.facts import NO_BETTER, SCORES_NOT_COVERED, Facts
from halfmask.scoring import REFERENCE_NOT_PRIVATE

_METRICS = {"accuracy": "accuracy", "log_loss": "log_loss", "auc": "roc_auc", "rmse": "rmse"}


def markdown(facts: Facts) -> str:
    """The report as Markdown, without figures."""
    return "\n".join([f"# Privacy report: {_text(facts.name)}", "", *_body(facts, level=2)])


def card(facts: Facts) -> str:
    """A README.md for a model repository: front matter for machines, the guarantee for readers."""
    return "\n".join(
        [
            *_front_matter(facts),
            "",
            f"# {_text(facts.name)}",
            "",
            f"A tabular {facts.model.task} model, trained with halfmask by the method "
            f"`{facts.model.method}`: {_text(facts.model.reason)}.",
            "",
            "## How to use it",
            "",
            "```text",
            f"halfmask predict {facts.name} new.csv --out scores.csv",
            "```",
            "",
            *_body(facts, level=2),
        ]
    )


def _front_matter(facts: Facts) -> list[str]:
    """YAML in which every text is written as a JSON string, which YAML reads alike."""
    statement = facts.statement
    lines = [
        "---",
        "library_name: halfmask",
        f"pipeline_tag: tabular-{facts.model.task}",
        "tags:",
        f"- {'not-private' if statement.seeded else 'differential-privacy'}",
        "- tabular",
        "differential_privacy:",
        f"  epsilon: {_number(statement.epsilon)}",
        f"  delta: {_number(statement.delta)}",
        f"  relation: {statement.relation}",
        f"  unit: {json.dumps(statement.unit)}",
        f"  private: {json.dumps(list(words.protected(statement)))}",
        f"  public: {json.dumps(list(words.unprotected(statement)))}",
    ]
    if facts.covered is not None:
        lines.append("  covered_scores:")
        for name, score in facts.covered.scores.items():
            shown = f"value: {_number(score.value)}, bar: {_number(score.bar)}"
            lines.append(f"    {name}: {{{shown}}}")
    if facts.measured is not None:
        lines += [
            "model-index:",
            f"- name: {json.dumps(facts.name)}",
            "  results:",
            f"  - task: {{type: tabular-{facts.model.task}}}",
            "    dataset: {name: rows passed to the report, type: tabular}",
            "    metrics:",
        ]
        for name, value in facts.measured.scores.items():
            if name in _METRICS and value is not None:
                lines.append(f"    - {{type: {_METRICS[name]}, value: {_number(value)}}}")
    return [*lines, "---"]


def _number(value: float | None) -> str:
    """A number that YAML 1.1 reads as one: it takes 1e-06 for text, and 1.0e-06 for a number."""
    if value is None or not math.isfinite(value):
        return "null"
    text = repr(value)
    return text.replace("e", ".0e") if "e" in text and "." not in text else text


def _body(facts: Facts, level: int) -> list[str]:
    statement = facts.statement
    head = "#" * level
    lines = [f"{head} What is promised", "", f"**{_text(words.headline(statement))}**", ""]
    weak = words.weakness(facts)
    lines += [f"**{weak}**", ""] if weak else []
    for question, answer in words.guarantee(facts):
        lines += [f"**{question}** {_text(answer)}", ""]
    lines += ["Not covered by this promise:", ""]
    lines += [f"- {_text(item)}" for item in statement.not_covered]
    lines += ["", *(_text(note) for note in statement.notes)]
    lines += [f"{head} Public and private columns", ""]
    lines += _table(*words.column_table(facts))
    lines += [f"{head} What an attacker can gain at most", ""]
    lines += [words.ATTACKER.format(unit=words.unit(statement)), ""]
    lines += _table(*words.gain_table(facts))
    lines += [f"{head} Budget", ""]
    lines += _table(*words.charge_table(facts))
    if facts.constant is not None:
        lines += [f"**{_text(facts.constant)}**", ""]
    if (covered := facts.covered) is not None:
        lines += [f"{head} Scores that the guarantee covers", ""]
        lines += [covered_words(statement.seeded), ""]
        lines += _table(SCORE_HEADINGS, covered.score_rows())
        lines += [] if covered.compared is None else [covered.compared, ""]
        if covered.reliability:
            lines += _table(RELIABILITY_HEADINGS, covered.reliability_rows())
        elif covered.classes:
            lines += [NONE_CLEAR, ""]
    if facts.measured is not None:
        lines += [f"{head} Scores", "", f"**{SCORES_NOT_COVERED}**", ""]
        lines += [] if facts.measured.better_than_constant else [f"**{NO_BETTER}**", ""]
        lines += _table(*words.score_table(facts))
        if facts.measured.classes:
            lines += _table(*words.class_table(facts))
            lines += _table(*words.confusion_table(facts))
        if facts.measured.groups:
            lines += _table(*words.group_table(facts))
        if facts.measured.reference:
            lines += [f"**{REFERENCE_NOT_PRIVATE}**", ""]
            lines += _table(*words.reference_table(facts))
    if facts.audits:
        lines += [f"{head} Audit", "", f"**{words.AUDITED_ROWS}**", ""]
        lines += _table(*words.audit_table(facts))
    if facts.inferences:
        lines += _table(*words.inference_table(facts))
        lines += [ESTIMATED, ""]
    lines += [f"{head} The statement in full", "", "```text", statement.text(), "```", ""]
    lines += ["```json", json.dumps(statement.to_json(), indent=2, allow_nan=False), "```", ""]
    return lines


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = ["| " + " | ".join(headings) + " |", "|" + "---|" * len(headings)]
    lines += ["| " + " | ".join(_text(cell) for cell in row) + " |" for row in rows]
    return [*lines, ""]


def _text(text: str) -> str:
    """Text in which nothing of the user's is read as Markdown or HTML."""
    flat = " ".join(text.split())
    for character in "\\`*_[]|<>$":
        flat = flat.replace(character, f"\\{character}")
    return flat
