"""Figures with matplotlib: every function takes Axes (or makes them) and returns them.

Colours are Okabe and Ito's and Tol's, told apart by colour-blind readers; line styles and markers
differ too, so that nothing depends on colour alone.
"""

from __future__ import annotations

import html
import io
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from halfmask.scoring import shown_value
from halfmask.storage import replacing

if TYPE_CHECKING:
    from matplotlib.axes import Axes


INK = "#1b1c20"
RULE = "#c4c6cf"
SERIES = ("#0072b2", "#c14a00", "#007a5a", "#aa4499", "#6b5b00", "#5a5a66")
_DASHES = ("-", "--", "-.", ":", "-", "--")
_MARKERS = ("o", "s", "^", "D", "v", "P")
_HATCHED: dict[str, Any] = {"color": SERIES[1], "hatch": "//", "edgecolor": "#ffffff"}
_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")

Point = tuple[float, float]


class DrawnEffect(Protocol):
    """What is drawn of an effect of `halfmask.effects`."""

    @property
    def column(self) -> str: ...
    @property
    def outcome(self) -> str: ...
    @property
    def ordered(self) -> bool: ...
    def rows(self, most: int | None = None) -> Sequence[Any]: ...


@contextmanager
def house_style() -> Iterator[None]:
    """Matplotlib settings of all our figures; names of columns are never read as formulas."""
    from matplotlib import rc_context

    settings = {
        "axes.axisbelow": True,
        "axes.edgecolor": INK,
        "axes.labelcolor": INK,
        "axes.spines.right": False,
        "axes.spines.top": False,
        "axes.grid": True,
        "axes.titlesize": 11,
        "figure.constrained_layout.use": True,
        "font.size": 10,
        "grid.color": RULE,
        "grid.linewidth": 0.6,
        "legend.frameon": False,
        "lines.linewidth": 1.8,
        "lines.markersize": 5,
        "svg.fonttype": "none",
        "svg.hashsalt": "halfmask",  # one model, one page, byte by byte
        "text.color": INK,
        "text.parse_math": False,
        "xtick.color": INK,
        "ytick.color": INK,
    }
    with rc_context(settings):
        yield


def new_axes(width: float = 4.6, height: float = 3.1) -> Axes:
    """Empty Axes on a figure of their own (inches); no window, no global state."""
    from matplotlib.figure import Figure

    with house_style():
        return Figure(figsize=(width, height)).subplots()


@contextmanager
def _drawing(ax: Axes | None, *size: float) -> Iterator[Axes]:
    """The axes to draw on in our style: those given, or new ones of this size."""
    with house_style():
        yield ax or new_axes(*size)


def save(ax: Axes, path: Path, **how: Any) -> None:
    """The figure of `ax` as a file, whole or not there."""
    drawn = ax.figure.figure  # the whole one, where axes are part of a part; also before 3.10
    with house_style(), replacing(path) as unfinished:
        drawn.savefig(unfinished, **how)


def power_of_ten(value: float, _: object = None) -> str:
    """1e-6 as 10⁻⁶; numbers that are no power of ten in the usual form."""
    if value <= 0:
        return f"{value:g}"
    exponent = math.log10(value)
    if abs(exponent - round(exponent)) > 1e-9:
        return f"{value:g}"
    return "10" + str(round(exponent)).translate(_SUPERSCRIPT)


def epsilon_curve(
    curves: Mapping[str, Sequence[Point]],
    *,
    mark: Point | None = None,
    mark_name: str = "claimed",
    ax: Axes | None = None,
) -> Axes:
    """Epsilon against delta, a line per relation; `mark` is the point that was asked for."""
    with _drawing(ax) as ax:
        for place, (name, points) in enumerate(curves.items()):
            ax.plot(*_columns(points), label=name, **_look(place))
        if mark is not None:
            ax.plot(*mark, marker="*", markersize=13, color=INK, linestyle="", label=mark_name)
        ax.set_xscale("log")
        ax.xaxis.set_major_formatter(power_of_ten)
        ax.xaxis.minorticks_off()
        ax.set_ylim(bottom=0)
        ax.set_xlabel("delta: added to the probability of any set of outcomes")
        ax.set_ylabel("epsilon")
        ax.legend()
    return ax


def belief_bars(rows: Sequence[tuple[float, float]], *, ax: Axes | None = None) -> Axes:
    """Pairs of beliefs before and at most after, as bars."""
    with _drawing(ax) as ax:
        places = range(len(rows))
        ax.bar([p - 0.2 for p in places], [b for b, _ in rows], 0.38, color=SERIES[5])
        ax.bar([p + 0.2 for p in places], [a for _, a in rows], 0.38, **_HATCHED)
        for place, pair in zip(places, rows, strict=True):
            for shift, value in zip((-0.2, 0.2), pair, strict=True):
                shown = percent(value, up=shift > 0)
                ax.text(place + shift, value + 0.015, shown, ha="center", fontsize=8)
        ax.set_xticks(list(places), [percent(before) for before, _ in rows])
        ax.set_ylim(0, 1.1)
        ax.set_yticks([0, 0.25, 0.5, 0.75, 1], ["0%", "25%", "50%", "75%", "100%"])
        ax.grid(visible=False, axis="x")
        ax.set_xlabel("belief before (plain) and at most after (hatched)")
    return ax


def budget_steps(
    spent: Sequence[float], *, limit: float | None = None, ax: Axes | None = None
) -> Axes:
    """Epsilon after each charge, with the limit of the ledger."""
    from matplotlib.ticker import MaxNLocator

    with _drawing(ax) as ax:
        ax.bar(range(1, len(spent) + 1), spent, color=SERIES[0], width=0.6)
        if limit is not None:
            ax.axhline(limit, color=SERIES[1], linestyle="--")
            ax.annotate(
                "budget", (0.4, limit), xytext=(2, 3), textcoords="offset points", color=SERIES[1]
            )
        ax.set_ylim(0, 1.15 * max([*spent, limit or 0.0, 1e-9]))
        ax.set_xlim(0.4, max(len(spent), 3) + 0.6)
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
        ax.grid(visible=False, axis="x")
        ax.set_xlabel("charge")
        ax.set_ylabel("epsilon spent so far")
    return ax


def learning_curve(points: Sequence[Point], *, ax: Axes | None = None) -> Axes:
    """The public loss against steps."""
    with _drawing(ax) as ax:
        ax.plot(*_columns(points), color=SERIES[0])
        ax.set_xlabel("step")
        ax.set_ylabel("public loss")
    return ax


def roc(curves: Mapping[str, Sequence[Point]], *, ax: Axes | None = None) -> Axes:
    """True against false positives, a line per class."""
    with _drawing(ax) as ax:
        ax.plot([0, 1], [0, 1], color=SERIES[5], linestyle=":", label="guessing")
        for place, (name, points) in enumerate(curves.items()):
            look = {**_look(place), "marker": None}
            ax.plot(*_columns(points), label=name, **look)
        ax.set_xlabel("false positive rate")
        ax.set_ylabel("true positive rate")
        _legend(ax, len(curves), "lower right")
    return ax


def calibration(curves: Mapping[str, Sequence[Point]], *, ax: Axes | None = None) -> Axes:
    """What was observed against what was predicted; on the diagonal predictions are right."""
    with _drawing(ax) as ax:
        both = [value for points in curves.values() for point in points for value in point]
        ends = [min(both), max(both)]
        ax.plot(ends, ends, color=SERIES[5], linestyle=":", label="perfect")
        for place, (name, points) in enumerate(curves.items()):
            ax.plot(*_columns(points), label=name, **_look(place))
        ax.set_xlabel("predicted")
        ax.set_ylabel("observed")
        _legend(ax, len(curves), "upper left")
    return ax


def reliability(points: Sequence[tuple[float, float, float]], *, ax: Axes | None = None) -> Axes:
    """Observed against predicted shares with their bars; on the diagonal predictions are right."""
    with _drawing(ax) as ax:
        predicted, observed = _columns([point[:2] for point in points])
        bars = [point[2] for point in points]
        shown = [*predicted, *observed]
        ends = [min(shown), max(shown)]
        ax.plot(ends, ends, color=SERIES[5], linestyle=":", label="perfect")
        below = [min(bar, value) for bar, value in zip(bars, observed, strict=True)]
        above = [min(bar, 1 - value) for bar, value in zip(bars, observed, strict=True)]
        ax.errorbar(
            predicted,
            observed,
            yerr=[below, above],
            capsize=3,
            elinewidth=1.2,
            label="covered",
            **_look(0),
        )
        ax.set_xlabel("predicted")
        ax.set_ylabel("observed")
        ax.legend(loc="upper left")
    return ax


def guess_bars(rows: Sequence[tuple[str, float, float, float]], *, ax: Axes | None = None) -> Axes:
    """Right guesses per column: without the model, with it (hatched), the estimated most."""
    with _drawing(ax, 5.0, 1.2 + 0.5 * len(rows)) as ax:
        places = range(len(rows))
        ax.barh([p - 0.2 for p in places], [row[1] for row in rows], 0.36, color=SERIES[5])
        ax.barh([p + 0.2 for p in places], [row[2] for row in rows], 0.36, **_HATCHED)
        for place, row in zip(places, rows, strict=True):
            ax.plot([row[3]] * 2, [place - 0.42, place + 0.42], color=INK, linewidth=2.5)
        ax.set_yticks(list(places), [row[0] for row in rows])
        ax.set_xlim(0, 1.02)
        ax.set_xticks([0, 0.25, 0.5, 0.75, 1], ["0%", "25%", "50%", "75%", "100%"])
        ax.invert_yaxis()
        ax.grid(visible=False, axis="y")
        ax.set_xlabel("without the model (plain), with it (hatched), the most, estimated (line)")
    return ax


def method_bars(rows: Sequence[tuple[str, float]], *, metric: str, ax: Axes | None = None) -> Axes:
    """One number per method, as horizontal bars with the number beside them."""
    with _drawing(ax, 5.0, 1.0 + 0.45 * len(rows)) as ax:
        names = [name for name, _ in rows]
        ax.barh(names, [value for _, value in rows], color=SERIES[0], height=0.6)
        for place, (_, value) in enumerate(rows):
            ax.annotate(
                shown_value(value),
                (max(value, 0.0), place),
                xytext=(4, 0),
                textcoords="offset points",
                va="center",
            )
        ax.invert_yaxis()
        ax.margins(x=0.2)
        ax.grid(visible=False, axis="y")
        ax.set_xlabel(metric)
    return ax


_NAMED = 14
"""Levels that have room for their names."""


def effect_points(found: DrawnEffect, *, ax: Axes | None = None) -> Axes:
    """What each level adds to the score, with its bar; hollow where noise could have made it."""
    rows = found.rows(most=40 if found.ordered else _NAMED)
    wide = found.ordered and len(rows) > 2
    with _drawing(ax, 4.6, 2.9 if wide else 1.0 + 0.27 * len(rows)) as ax:
        places = list(range(len(rows)))
        values = [row.value for row in rows]
        errors = [[row.value - row.low for row in rows], [row.high - row.value for row in rows]]
        centre: dict[str, Any] = {"color": SERIES[5], "linewidth": 1.0, "linestyle": ":"}
        (ax.axhline if wide else ax.axvline)(0.0, **centre)
        look: dict[str, Any] = {"ecolor": SERIES[0], "elinewidth": 1.2, "capsize": 2.5}
        if wide:
            ax.plot(places, values, color=SERIES[0], linewidth=1.0)
            ax.errorbar(places, values, yerr=errors, linestyle="", **look)
        else:
            ax.errorbar(values, places, xerr=errors, linestyle="", **look)
        for place, row in zip(places, rows, strict=True):
            at = (place, row.value) if wide else (row.value, place)
            fill = "#ffffff" if row.by_noise else SERIES[0]
            size = 5.5 if len(rows) <= _NAMED else 4.0
            ax.plot(*at, marker="o", markersize=size, color=SERIES[0], markerfacecolor=fill)
        names = [_shortened(row.level) for row in rows]
        if wide:
            every = math.ceil(len(rows) / _NAMED)
            ax.set_xticks(places[::every], names[::every], rotation=40, ha="right", fontsize=8)
            ax.set_ylabel("adds to the score")
            ax.set_xlabel(_shortened(found.column, 48))
        else:
            ax.set_yticks(places, names, fontsize=8.5)
            ax.invert_yaxis()
            ax.set_xlabel("adds to the score")
            ax.set_ylabel(_shortened(found.column, 30))
            ax.margins(y=0.5 / max(len(rows), 1))
    return ax


def _shortened(text: str, most: int = 22) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= most else f"{flat[: most - 1]}…"


def percent(share: float, *, up: bool = False) -> str:
    """0.123 as 12.3%, a bound rounded up; never rounded to certainty."""
    value = 100 * share
    if up:
        value = min(math.ceil(10 * value - 1e-9) / 10, 99.99 if share < 1 else 100.0)
    if 0.05 <= value <= 99.95:
        text = f"{value:.1f}".rstrip("0").rstrip(".")
        return f"{text}%"
    if value > 99.95:
        return "over 99.9%" if value < 100 else "100%"
    return f"{value:.2g}%"


def _look(place: int) -> dict[str, Any]:
    """Of each of many lines one of its own: after all colours, the same with another dash."""
    index, lap = place % len(SERIES), place // len(SERIES)
    dash, marker = _DASHES[(index + lap) % 4], _MARKERS[(index + lap) % len(_MARKERS)]
    return {"color": SERIES[index], "linestyle": dash, "marker": marker}


def _legend(ax: Axes, lines: int, where: str) -> None:
    """Inside, or to the right in columns where many lines would hide what they name."""
    if lines <= 6:
        ax.legend(loc=where)
    else:
        ax.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), fontsize=7, ncols=1 + lines // 16)


def _columns(points: Sequence[Point]) -> tuple[list[float], list[float]]:
    return [point[0] for point in points], [point[1] for point in points]


# --- Axes as SVG inside a page: in the page's colours, readable aloud, with a table of its numbers.


_IDS = re.compile(r'(\bid="|\bxlink:href="#|url\(#)')
_NOT_DRAWN = re.compile(r"<metadata>.*?</metadata>|<style.*?</style>", re.DOTALL)
_SIZE = re.compile(r' width="[^"]*" height="[^"]*"')


def inline_svg(ax: Axes, *, name: str, title: str) -> str:
    """The figure of `ax` as an SVG element; colours become variables of the page's style sheet."""
    written = io.StringIO()
    drawn = ax.figure.figure  # the whole one, where axes are part of a part; also before 3.10
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


# --- What a model learnt, for a page or a notebook: a figure for each column, and its numbers.


SHOWN = 8
"""Columns that are drawn; the numbers of all are in a table."""
HEADINGS = ["Column", "Level", "Adds", "Bar from", "Bar to", "Could be noise"]
LEARNT_NOTHING = (
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


def rows(effects: Sequence[DrawnEffect]) -> list[list[str]]:
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


def svg(effect: DrawnEffect, name: str) -> str:
    """One column's figure."""
    title = f"Points with bars: what the levels of {effect.column} add to the score."
    return inline_svg(effect_points(effect), name=name, title=title)


def _on(effect: DrawnEffect) -> str:
    return f"<p>{html.escape(f'{effect.column}: {effect.outcome}')}</p>"


def effects_picture(effects: Sequence[DrawnEffect]) -> str:
    """The columns that matter most, for a notebook; None of it needs a script."""
    outcomes = list(dict.fromkeys(effect.outcome for effect in effects))
    drawn = "".join(
        f'<div style="width:22rem">{_on(effect) if len(outcomes) > 1 else ""}'
        f"{svg(effect, f'effect-{place}')}</div>"
        for place, effect in enumerate(effects[:SHOWN])
    )
    return (
        f'<div style="{_COLOURS}padding:.5rem"><p>Effects on the score of '
        f"<b>{html.escape(', '.join(outcomes))}</b>; hollow points could be noise.</p>"
        f'<div style="display:flex;flex-wrap:wrap;gap:1rem">{drawn}</div></div>'
    )
