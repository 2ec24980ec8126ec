"""What a model learnt, for a page or a notebook: a figure for each column, and its numbers."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from halfmask.effects import Effect

SHOWN = 8
"""Columns that are drawn; the numbers of all are in a table."""
HEADINGS = ["Column", "Level", "Adds", "Bar from", "Bar to", "Could be noise"]
NOTHING = (
    "This model learnt nothing from columns: for so few rows and so much noise, it gives the base "
    "rate to every row."
)

# A notebook has no style sheet of ours: the colours of the light page, unless it is dark.
_COLOURS = (
    "--page:#ffffff;--rule:#c4c6cf;--series-1:#0072b2;--series-2:#c14a00;--series-3:#007a5a;"
    "--series-4:#aa4499;--series-5:#6b5b00;--series-6:#5a5a66;color:#1b1c20;background:#ffffff;"
)


def meaning(outcome: str, *, classes: bool) -> str:
    """What the numbers are of."""
    what = f"the log odds of {outcome}" if classes else f"the prediction of {outcome}"
    return (
        f"What each level of a column adds to {what}, against the average row. Bars show what "
        "noise alone may have done: with other noise, training again gives on average an effect "
        "within the bar in 19 of 20 cases. Hollow points are effects that noise could have made. "
        "Bars say nothing of other rows, and an effect is not a cause."
    )


def rows(effects: Sequence[Effect]) -> list[list[str]]:
    """Cells under HEADINGS."""
    return [
        [
            effect.column,
            row.level,
            f"{row.value:+.3f}",
            f"{row.low:+.3f}",
            f"{row.high:+.3f}",
            "yes" if row.by_noise else "no",
        ]
        for effect in effects
        for row in effect.rows()
    ]


def svg(effect: Effect, name: str) -> str:
    """One column's figure."""
    from halfmask.report import plots
    from halfmask.report.figures import inline_svg

    title = f"Points with bars: what the levels of {effect.column} add to the score."
    return inline_svg(plots.effect(effect), name=name, title=title)


def picture(effects: Sequence[Effect]) -> str:
    """The columns that matter most, for a notebook; None of it needs a script."""
    drawn = "".join(
        f'<div style="width:22rem">{svg(effect, f"effect-{place}")}</div>'
        for place, effect in enumerate(effects[:SHOWN])
    )
    outcome = effects[0].outcome if effects else ""
    return (
        f'<div style="{_COLOURS}padding:.5rem"><p>Effects on the score of '
        f"<b>{html.escape(outcome)}</b>; hollow points could be noise.</p>"
        f'<div style="display:flex;flex-wrap:wrap;gap:1rem">{drawn}</div></div>'
    )
