"""The guarantee in plain words, shared by the page, the Markdown report and the model card."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from halfmask.accounting.budget import printed
from halfmask.accounting.events import Relation
from halfmask.report.facts import Facts
from halfmask.report.plots import percent
from halfmask.scoring import shown_score, shown_value
from halfmask.statement import NOT_PRIVATE, Statement, likelihood, short

_MOST_NAMES = 30
_WEAK = 0.9

ATTACKER = (
    "The attacker in this table knows the model, everything released with it, all public columns "
    "and every other row, and wonders whether one {unit}'s private values are these or others."
)
RELATIONS_IN_WORDS: dict[Relation, str] = {
    "replace": "one {unit}'s private values are replaced by any others; its public values stay",
    "withhold": "one {unit}'s private values are withheld, so that they contribute nothing",
}


def guarantee_number(value: float | None) -> str:
    """A number of a guarantee: rounded up, never down; `none` where nothing is promised."""
    if value is None:
        return "none"
    return printed(value) if math.isfinite(value) else "unlimited"


def unit(statement: Statement) -> str:
    """Whom the guarantee protects, in one word."""
    return "row" if statement.unit_column is None else "person"


def protected(statement: Statement) -> tuple[str, ...]:
    """The private columns, the label among them where it is private."""
    label = (statement.label,) if statement.label_private and statement.label else ()
    return (*statement.private, *label)


def unprotected(statement: Statement) -> tuple[str, ...]:
    """The public columns, the label among them where it is public."""
    label = (statement.label,) if not statement.label_private and statement.label else ()
    return (*statement.public, *label)


def listed(names: Sequence[str]) -> str:
    """Names as a sentence has them; of very many, the first ones (the table has them all)."""
    if len(names) > _MOST_NAMES:
        others = len(names) - _MOST_NAMES + 5
        return f"{', '.join(names[: _MOST_NAMES - 5])} and {others} others"
    if len(names) < 2:
        return "".join(names) or "none"
    return f"{', '.join(names[:-1])} and {names[-1]}"


def headline(statement: Statement) -> str:
    """The claim in one line."""
    if statement.seeded:
        return NOT_PRIVATE.capitalize()
    if not statement.events:
        return "Nothing about private columns was released: epsilon 0"
    return (
        f"Differentially private: epsilon {guarantee_number(statement.epsilon)} at delta "
        f"{statement.delta:g}, relation {statement.relation}"
    )


def weakness(facts: Facts) -> str | None:
    """A warning where the promise holds but an attacker may guess nearly as if there were none."""
    even = next((gain for gain in facts.gains if gain.prior == 0.5), None)
    if facts.statement.seeded or even is None or even.guess_after < _WEAK:
        return None
    return (
        "This promise is weak. Between two equally likely private values an attacker may guess "
        f"right in up to {percent(even.guess_after, up=True)} of all cases. Train with a smaller "
        "epsilon if the private values matter."
    )


def guarantee(facts: Facts) -> list[tuple[str, str]]:
    """Pairs of a question and its answer: who is protected, against whom, how far, and what not."""
    statement = facts.statement
    who = unit(statement)
    if statement.seeded:
        return [
            (
                "Who is protected?",
                "Nobody. The noise was drawn from a fixed seed, so whoever knows or guesses the "
                "seed can take it off again. Everything below is what the same training would "
                "promise without a seed; train again without one before you hand out the model.",
            ),
            ("Which columns were meant to be private?", listed(protected(statement))),
            ("Which columns are not protected at all?", listed(unprotected(statement))),
        ]
    whom = (
        "Each single row of the table."
        if statement.unit_column is None
        else f"Each person: all rows with the same value of {statement.unit_column}. No value "
        f"has more than {statement.max_rows} of the rows that were used."
    )
    return [
        ("Who is protected?", whom),
        ("Which columns are protected?", f"{listed(protected(statement))}."),
        (
            "Which columns are not protected at all?",
            f"{listed(unprotected(statement))}. They were used as they are. The number of rows is "
            "not hidden either."
            if unprotected(statement)
            else "None: every column is private. Only the number of rows is not hidden.",
        ),
        (
            "Against whom?",
            "Against anyone who sees the model and everything released with it, whatever else they "
            f"know: even all public columns and all other {who}s.",
        ),
        ("How far?", _how_far(facts)),
    ]


def _how_far(facts: Facts) -> str:
    statement = facts.statement
    if not statement.events:
        return "Completely: the model was made without the private columns."
    even = next((gain for gain in facts.gains if gain.prior == 0.5), None)
    private = f"the private values of one {unit(statement)}"
    changing = (
        f"Changing {private}"
        if statement.relation == "replace"
        else f"Using or withholding {private}"
    )
    text = f"{changing} {likelihood(statement, short)}."
    if even is not None:
        text += (
            " Between two equally likely private values, an attacker guesses right in at most "
            f"{percent(even.guess_after, up=True)} of all cases; without the model, in half of "
            "them."
        )
    return text


HeadedRows = tuple[list[str], list[list[str]]]
"""The headings of a table, and its rows."""


def gain_table(facts: Facts) -> HeadedRows:
    """The attacker's table: prior, belief after, right guesses before and after."""
    rows = [
        [
            percent(gain.prior),
            percent(gain.belief, up=True),
            percent(gain.guess_before),
            percent(gain.guess_after, up=True),
        ]
        for gain in facts.gains
    ]
    after = f"Belief after, at most (but for a probability of {facts.statement.delta:g})"
    guesses = ["Right guesses before", "Right guesses after, at most"]
    return ["Belief before", after, *guesses], rows


def column_table(facts: Facts) -> HeadedRows:
    """Every column."""
    rows = [[column.name, column.role, column.kind, column.known] for column in facts.columns]
    return ["Column", "Role", "Kind", "Known beforehand"], rows


def charge_table(facts: Facts) -> HeadedRows:
    """The charges in order."""
    rows = [
        [str(place), charge.time or "not recorded", charge.what, guarantee_number(charge.epsilon)]
        for place, charge in enumerate(facts.budget.charges, start=facts.budget.left_out + 1)
    ]
    return ["Charge", "Time", "What was released", "Epsilon so far"], rows


def score_table(facts: Facts) -> HeadedRows:
    """Scores on the user's rows; a dash where nothing is compared."""
    measured = facts.measured
    assert measured is not None
    held = (measured.scores, measured.public_alone, measured.constant)
    rows = [
        [
            shown_score(name),
            *(_cell(of[name], "undefined (one class only)") if name in of else "-" for of in held),
        ]
        for name in measured.scores
    ]
    return ["Score", "This model", "Public columns alone", "A constant"], rows


def _cell(value: Any, missing: str = "-") -> str:
    if value is None:
        return missing
    return f"{value:,}" if isinstance(value, int) else shown_value(value)


def class_table(facts: Facts) -> HeadedRows:
    """Precision, recall and calibration of each class."""
    assert facts.measured is not None
    rows = [
        [name, *(_cell(each[n]) for n in ("rows", "precision", "recall", "calibration_error"))]
        for name, each in facts.measured.classes.items()
    ]
    return ["Class", "Rows", "Precision", "Recall", "Calibration"], rows


def confusion_table(facts: Facts) -> HeadedRows:
    """True classes down, what the model called them across."""
    assert facts.measured is not None
    found = facts.measured.confusion
    rows = [[name, *(f"{count:,}" for count in line.values())] for name, line in found.items()]
    return ["True class", *(f"Called {name}" for name in found)], rows


def group_table(facts: Facts) -> HeadedRows:
    """The scores of each group."""
    assert facts.measured is not None
    groups = facts.measured.groups
    names = list(next(iter(groups.values()), {}))
    shown = [title[:1].upper() + title[1:] for title in map(shown_score, names)]
    rows = [[group, *(_cell(each[name]) for name in names)] for group, each in groups.items()]
    return [str(facts.measured.by), *shown], rows


def reference_table(facts: Facts) -> HeadedRows:
    """This model beside those without privacy."""
    assert facts.measured is not None
    trees, linear = (facts.measured.reference[kind] for kind in ("boosted_trees", "linear"))
    own = facts.measured.scores
    rows = [
        [shown_score(name), _cell(own[name]), _cell(value), _cell(linear[name])]
        for name, value in trees.items()
    ]
    return ["Score", "This model", "Boosted trees", "A linear model of levels"], rows


def audit_table(facts: Facts) -> HeadedRows:
    """One audit per row."""
    rows = [
        [
            audit.mechanism,
            guarantee_number(audit.claimed),
            f"{audit.lower_bound:.4g}",
            percent(audit.confidence),
            audit.relation,
            "REFUTED"
            if audit.refuted
            else "no leak found, which proves nothing"
            if audit.lower_bound <= 0
            else "not refuted, which proves nothing",
        ]
        for audit in facts.audits
    ]
    claim = ["Mechanism", "Claimed epsilon", "Attack shows at least"]
    return [*claim, "Confidence", "Relation", "Verdict"], rows


AUDITED_ROWS = (
    "Counted on the private rows that were passed to the audit: not covered by the guarantee."
)


def inference_table(facts: Facts) -> HeadedRows:
    """How well private columns are guessed, one per row."""
    rows = [
        [
            each.column,
            percent(each.without_model),
            percent(each.with_model),
            percent(each.bound, up=True),
        ]
        for each in facts.inferences
    ]
    guessed = ["Guessed without the model", "Guessed with it"]
    return ["Private column", *guessed, "The most, estimated"], rows
