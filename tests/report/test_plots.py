"""Every plot returns the Axes it drew on, and survives names that look like formulas."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.axes import Axes

from halfmask.report import plots
from halfmask.report.plots import inline_svg

NAME = "$\\frac{x$ <b>"
LINE = [(0.0, 0.0), (0.4, 0.7), (1.0, 1.0)]
DRAWN: dict[str, Callable[[Axes], Axes]] = {
    "epsilon": lambda ax: plots.epsilon_curve(
        {NAME: [(1e-8, 2.0), (1e-4, 1.0)]}, mark=(1e-6, 1.5), ax=ax
    ),
    "beliefs": lambda ax: plots.belief_bars([(0.1, 0.3), (0.5, 0.9)], ax=ax),
    "budget": lambda ax: plots.budget_steps([0.5, 0.8], limit=1.0, ax=ax),
    "learning": lambda ax: plots.learning_curve([(1, 0.7), (2, 0.5)], ax=ax),
    "roc": lambda ax: plots.roc({NAME: LINE}, ax=ax),
    "calibration": lambda ax: plots.calibration({NAME: LINE}, ax=ax),
    "reliability": lambda ax: plots.reliability([(0.1, 0.12, 0.05), (0.4, 0.3, 0.5)], ax=ax),
    "guesses": lambda ax: plots.guess_bars([(NAME, 0.4, 0.5, 0.6)], ax=ax),
    "methods": lambda ax: plots.method_bars([(NAME, 0.8)], metric="accuracy", ax=ax),
}


@pytest.mark.parametrize("kind", DRAWN)
def test_plots_draw_on_the_axes_they_are_given(kind: str) -> None:
    ax = plots.new_axes()
    assert DRAWN[kind](ax) is ax
    assert ax.get_xlabel()
    assert ax.has_data()
    svg = inline_svg(ax, name="f", title='a "title" <b>')
    assert svg.startswith("<svg")
    assert "&lt;b&gt;" in svg
    assert "<b>" not in svg
    assert "var(--series-" in svg
    assert "currentColor" in svg


def test_plots_without_axes_make_their_own_and_no_window() -> None:
    import matplotlib.pyplot as plt

    before = plt.get_fignums()
    assert plots.roc({"yes": LINE}).get_figure() is not None
    assert plt.get_fignums() == before


def _luminance(colour: str) -> float:
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_palette_stands_out_from_white() -> None:
    for colour in (*plots.SERIES, plots.INK):
        assert 1.05 / (_luminance(colour) + 0.05) >= 4.5


@given(st.floats(0, 1))
def test_bounds_in_percent_are_never_rounded_down(share: float) -> None:
    shown = plots.percent(share, up=True)
    if shown.startswith("over"):
        assert share > 0.999
    else:
        assert float(shown.rstrip("%")) >= 100 * share - 1e-6
    if share < 1:
        assert shown != "100%"


@pytest.mark.parametrize(
    ("value", "text"), [(1e-6, "10⁻⁶"), (100.0, "10²"), (0.5, "0.5"), (0.0, "0")]
)
def test_powers_of_ten(value: float, text: str) -> None:
    assert plots.power_of_ten(value) == text
