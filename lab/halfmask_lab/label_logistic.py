"""Logistic regression with private labels: excess risk against rows, columns and classes.

F's case study. Algorithm 1 keeps amplification by sampling, so its excess risk falls with d/n²;
noise in the span of one example's labels (`label-span`) is free of d, but grows with the number K
of classes and falls slowly in n. Both claims are fitted as slopes on logarithmic axes, and every
mean is held against the corrected bounds of methods.bounds. Rows are synthetic: unit vectors with a
constant, labels drawn from a softmax model, each class with weights of norm 2.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from halfmask.accounting.budget import Budget
from halfmask.accounting.calibrate import noise_multiplier
from halfmask.accounting.gaussian import gaussian_mu
from halfmask.accounting.ledger import MemoryLedger
from halfmask.mechanisms.noise import noise_source
from halfmask.mechanisms.release import Releaser
from halfmask.methods import bounds
from halfmask.methods.fitted import LinearFit, linear_method
from halfmask.methods.label_span import LabelSpanConfig, budget_shares
from halfmask.methods.sgd import SplitRows
from halfmask.settings import config_for
from halfmask.table import Table
from halfmask.types import Floats
from halfmask_lab.results import (
    Progress,
    experiment,
    log_slope,
    mean_loss,
    minimum,
    private_labels,
    result_row,
    saved,
    silent,
)

METHODS = ("sgd", "one-shot", "label-span", "dp-sgd")
DELTA = 1e-5
_CLASS_NORM = 2.0
_ROW_NORM = math.sqrt(2)  # a unit vector and the constant 1
_SLOPE = math.sqrt(2)  # of the softmax loss
_RATE = 1 / 16
_LEARNING_RATE = 0.5  # half of 1/smoothness


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One synthetic problem."""

    rows: int
    columns: int
    classes: int

    @property
    def radius(self) -> float:
        """Of the ball: a quarter further out than the weights that drew the labels."""
        return 1.25 * _CLASS_NORM * math.sqrt(self.classes)

    @property
    def parameters(self) -> int:
        """The number of coefficients, which is the d of the bounds."""
        return self.classes * (self.columns + 1)


BASE = Setting(rows=2000, columns=10, classes=3)


def run(
    data: Path | None = None,
    out: Path | None = None,
    tell: Progress = silent,
    *,
    seed: int = 0,
    draws: int = 5,
    epsilon: float = 4.0,
    steps: int = 1000,
    base: Setting = BASE,
    rows: tuple[int, ...] = (500, 1000, 2000, 4000, 8000),
    columns: tuple[int, ...] = (5, 10, 20, 40),
    classes: tuple[int, ...] = (3, 4, 6, 10, 16),
    methods: tuple[str, ...] = METHODS,
) -> dict[str, Any]:
    """Mean excess risk of each method over noise draws, its bound, and the fitted slopes."""
    series = {
        "rows": [replace(base, rows=n) for n in rows],
        "columns": [replace(base, columns=d) for d in columns],
        "classes": [replace(base, classes=k) for k in classes],
    }
    settings = list(dict.fromkeys([base, *(s for each in series.values() for s in each)]))
    measured: dict[tuple[str, Setting], list[float]] = {}
    for place, setting in enumerate(settings):
        tell(place / len(settings), f"n={setting.rows}, d={setting.columns}, K={setting.classes}")
        for draw in range(draws):
            problem = synthetic(setting, seed=1000 * seed + draw)
            split = SplitRows.of(problem)
            risk = partial(mean_loss, split.loss, split.public[:], split.target)
            least = risk(minimum(split.loss, split.public[:], split.target))
            for method in methods:
                releaser = Releaser(
                    MemoryLedger(epsilon=epsilon, delta=DELTA), noise_source(1000 * seed + draw)
                )
                config = config_for(method, options_of(method, setting, steps))
                fit = linear_method(method)(problem, releaser, config)
                excess = risk(_weights(fit)) - least
                measured.setdefault((method, setting), []).append(excess)
    excess_rows: list[dict[str, Any]] = [
        {
            **result_row(method, "train_excess_risk", values, epsilon, DELTA),
            **vars(setting),
            "bound": excess_bound(method, setting, epsilon=epsilon, steps=steps),
        }
        for (method, setting), values in measured.items()
    ]
    result = experiment(
        "label-logistic",
        [
            result_row(method, "train_objective", measured[method, base], epsilon, DELTA)
            for method in methods
        ],
        data="stand-in: synthetic rows, labels drawn from a softmax model",
        excess=excess_rows,
        slopes={
            method: {
                axis: log_slope(
                    [getattr(setting, axis) for setting in each],
                    [float(np.mean(measured[method, setting])) for setting in each],
                )
                if len(each) > 1
                else None
                for axis, each in series.items()
            }
            for method in methods
        },
        crossover=crossover(base, excess_rows, epsilon=epsilon, steps=steps),
        above_bound=sum(row["mean"] > row["bound"] for row in excess_rows),
    )
    path = out and out / "label-logistic.png"
    return {**result, "figure": saved(path, lambda: _figure(result, series))}


def crossover(
    base: Setting, excess: list[dict[str, Any]], *, epsilon: float, steps: int
) -> dict[str, float | None]:
    """From how many rows on Algorithm 1 has a lower excess risk than one label at a time.

    `claimed` is F's √(d/K), d counting weights; `bounds` where the corrected bounds of both methods
    cross; `measured` where the measured means do, None where they do not within the rows that were
    tried. Zero says that sgd is lower from the fewest rows on.
    """

    def ratio(rows: int) -> float:
        there = replace(base, rows=rows)
        sgd, span = (
            excess_bound(method, there, epsilon=epsilon, steps=steps)
            for method in ("sgd", "label-span")
        )
        return sgd / span

    rows = {
        method: sorted(
            (row["rows"], row["mean"])
            for row in excess
            if row["method"] == method
            and (row["columns"], row["classes"]) == (base.columns, base.classes)
        )
        for method in ("sgd", "label-span")
    }
    pairs = zip(rows["sgd"], rows["label-span"], strict=False)
    gaps = [(math.log(n), math.log(one / other)) for (n, one), (_, other) in pairs]
    return {
        "claimed": math.sqrt(base.parameters / base.classes),
        "bounds": float(bounds.rows_for_error(ratio, 1.0)),
        "measured": _first_below(gaps),
    }


def _first_below(gaps: list[tuple[float, float]]) -> float | None:
    """Where a broken line over log rows falls below 0 for good; 0 where it never is above."""
    above = [place for place, (_, gap) in enumerate(gaps) if gap > 0]
    if not gaps or (above and above[-1] == len(gaps) - 1):
        return None
    if not above:
        return 0.0
    (low, high_gap), (high, low_gap) = gaps[above[-1]], gaps[above[-1] + 1]
    return math.exp(low + (high - low) * high_gap / (high_gap - low_gap))


def synthetic(setting: Setting, *, seed: int) -> Table:
    """Rows of norm 1, all columns public, and labels from a softmax model."""
    rng = np.random.default_rng([seed, setting.rows, setting.columns, setting.classes])
    x = rng.normal(size=(setting.rows, setting.columns))
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    weights = rng.normal(size=(setting.classes, setting.columns))
    weights -= weights.mean(axis=0)
    weights *= _CLASS_NORM * math.sqrt(setting.classes) / np.linalg.norm(weights)
    scores = x @ weights.T
    labels = (scores + rng.gumbel(size=scores.shape)).argmax(axis=1)
    return private_labels(x, labels, classes=setting.classes)


def options_of(method: str, setting: Setting, steps: int) -> dict[str, Any]:
    """The settings under which the bounds were proved."""
    if method == "one-shot":
        return {}
    if method == "label-span":
        return {"order": "uniform", "aggregate": "average", "radius": setting.radius}
    options = {
        "rate": _RATE,
        "steps": steps,
        "learning_rate": _LEARNING_RATE,
        "radius": setting.radius,
        "aggregate": "tail",
    }
    # The longest gradient: clipping it would add an error that the bounds do not know.
    return options if method == "sgd" else {**options, "clip_norm": _SLOPE * _ROW_NORM}


def excess_bound(method: str, setting: Setting, *, epsilon: float, steps: int) -> float:
    """The corrected bound on the mean excess risk of `method` in `setting`."""
    mu = gaussian_mu(epsilon, DELTA)
    radius = setting.radius
    if method == "one-shot":
        std = math.sqrt(2) * _ROW_NORM / mu
        return bounds.excess_of_one_release(
            radius=radius, parameters=setting.parameters, noise_std=std, rows=setting.rows
        )
    if method == "label-span":
        _, overhead = budget_shares(setting.rows, LabelSpanConfig(order="uniform"))
        return bounds.excess_of_label_span(
            radius=radius,
            row_norm=_ROW_NORM,
            slope_bound=_SLOPE,
            directions=setting.classes - 1,
            noise_std=math.sqrt(2) / mu,
            overhead=overhead,
            steps=setting.rows,
        )
    return _descent_bound(method, setting, epsilon, steps)


def _descent_bound(method: str, setting: Setting, epsilon: float, steps: int) -> float:
    """Theorem 2.4, whose tail starts anywhere in the ball (2M), or the bound for smooth losses."""
    split = method == "sgd"
    noise = noise_multiplier(
        Budget(epsilon=epsilon, delta=DELTA),
        rate=_RATE,
        steps=steps,
        contribution="label" if split else "general",
    )
    clip = _ROW_NORM if split else _SLOPE * _ROW_NORM
    std = bounds.noise_on_mean(
        noise_multiplier=noise, clip_norm=clip, rate=_RATE, rows=setting.rows
    )
    sampling = bounds.sampling_variance(
        private_lipschitz=clip,
        rate=_RATE,
        rows=setting.rows,
        public_lipschitz=_ROW_NORM if split else 0.0,
        public_batch=math.ceil(4 * _RATE * setting.rows),
    )
    theorem = bounds.excess_of_theorem_2_4(
        radius=2 * setting.radius,
        steps=steps - steps // 2,
        learning_rate=_LEARNING_RATE,
        second_moment=(_SLOPE * _ROW_NORM) ** 2 + sampling,
        parameters=setting.parameters,
        noise_std=std,
    )
    smooth = bounds.excess_of_smooth_tail(
        radius=setting.radius,
        steps=steps,
        learning_rate=_LEARNING_RATE,
        smoothness=0.5 * _ROW_NORM**2,
        variance=setting.parameters * std**2 + sampling,
    )
    return min(theorem, smooth)


def _weights(fit: LinearFit) -> Floats:
    return np.hstack([fit.coef, fit.intercept[:, None]])


def _mark(axes: Any, found: dict[str, float | None]) -> None:
    """Where sgd is said to pass label-span, and where it does."""
    names = {"claimed": "√(d/K), claimed", "bounds": "bounds cross", "measured": "means cross"}
    for (name, words), line in zip(names.items(), ("--", ":", "-"), strict=True):
        at = found[name]
        if at:
            axes.axvline(at, color="grey", linestyle=line, linewidth=1, label=f"{words}: {at:.3g}")


def _figure(result: dict[str, Any], series: dict[str, list[Setting]]) -> Any:
    from matplotlib.figure import Figure
    from matplotlib.ticker import NullFormatter

    from halfmask.report.plots import SERIES, house_style

    with house_style():
        figure = Figure(figsize=(11, 4.2))
        panels = figure.subplots(1, 3, sharey=True)
        for axes, (axis, settings) in zip(panels, series.items(), strict=True):
            for index, (method, slopes) in enumerate(result["slopes"].items()):
                points = {
                    getattr(setting, axis): row
                    for setting in settings
                    for row in result["excess"]
                    if row["method"] == method
                    and all(row[k] == getattr(setting, k) for k in ("rows", "columns", "classes"))
                }
                slope = slopes[axis]
                named = method if slope is None else f"{method}: slope {slope:+.2f}"
                colour, marker = SERIES[index], "os^D"[index]
                means = [row["mean"] for row in points.values()]
                limits = [row["bound"] for row in points.values()]
                axes.plot(list(points), means, color=colour, marker=marker, label=named)
                axes.plot(list(points), limits, color=colour, linestyle=":", linewidth=1)
            if axis == "rows":
                _mark(axes, result["crossover"])
            axes.set_xscale("log")
            axes.set_yscale("log")
            # Marks far to the left make the axis of rows long: every other number fits there.
            shown = settings[:: 2 if axis == "rows" else 1]
            axes.set_xticks([getattr(setting, axis) for setting in shown], minor=False)
            axes.xaxis.set_major_formatter("{x:g}")
            axes.xaxis.set_minor_formatter(NullFormatter())
            axes.yaxis.set_major_formatter("{x:g}")
            axes.set_xlabel(axis)
            axes.legend(fontsize=7, ncols=2, loc="upper center", bbox_to_anchor=(0.5, -0.15))
        panels[0].set_ylabel("excess risk (dotted: bound)")
        figure.suptitle("Private labels: sampled sums fall with d/n², one label at a time does not")
        return figure
