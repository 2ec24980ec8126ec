"""Axes as SVG inside a page: in the page's colours, readable aloud, with a table of its numbers."""

from __future__ import annotations

import html
import io
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from halfmask.report.plots import INK, RULE, SERIES, house_style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_IDS = re.compile(r'(\bid="|\bxlink:href="#|url\(#)')
_NOT_DRAWN = re.compile(r"<metadata>.*?</metadata>|<style.*?</style>", re.DOTALL)
_SIZE = re.compile(r' width="[^"]*" height="[^"]*"')


def inline_svg(ax: Axes, *, name: str, title: str) -> str:
    """The figure of `ax` as an SVG element; colours become variables of the page's style sheet."""
    written = io.StringIO()
    drawn = ax.get_figure(root=True)
    assert drawn is not None
    with house_style():
        drawn.savefig(written, format="svg", transparent=True)
    svg = written.getvalue()
    svg = _NOT_DRAWN.sub("", svg[svg.index("<svg") :])
    # Several figures share a page: an id must be unique in all of it.
    svg = _IDS.sub(rf"\g<1>{name}-", svg)
    svg = svg.replace(INK, "currentColor").replace(RULE, "var(--rule)")
    for place, colour in enumerate(SERIES, start=1):
        svg = svg.replace(colour, f"var(--series-{place})")
    svg = svg.replace("#ffffff", "var(--page)")
    head = f' role="img" aria-label="{html.escape(title)}"'
    return _SIZE.sub(head, svg, count=1)


def data_table(caption: str, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """An accessible table; the first cell of a row is its heading."""
    head = "".join(f'<th scope="col">{html.escape(text)}</th>' for text in headings)
    body = "".join(
        f'<tr><th scope="row">{html.escape(first)}</th>'
        + "".join(f"<td>{html.escape(cell)}</td>" for cell in rest)
        + "</tr>"
        for first, *rest in rows
    )
    return (
        f'<div class="scroll" role="region" tabindex="0" aria-label="{html.escape(caption)}">'
        f"<table><caption>{html.escape(caption)}</caption>"
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def figure(svg: str, caption: str, table: str) -> str:
    """A figure with its caption, and its numbers to unfold."""
    return (
        f"<figure>{svg}<figcaption>{html.escape(caption)}</figcaption>"
        f"<details><summary>The numbers of this figure</summary>{table}</details></figure>"
    )
