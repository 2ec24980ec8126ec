"""What experiments and benches share: rows of results, models of several draws, a figure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import minimize

from halfmask.accounting.budget import Budget
from halfmask.losses import Loss
from halfmask.mechanisms.noise import noise_source
from halfmask.model import Model
from halfmask.settings import MethodConfig
from halfmask.table import Table
from halfmask.training import train
from halfmask.types import Floats

Progress = Callable[[float, str], None]


def silent(share: float, text: str) -> None:
    """Report progress to nobody."""


def result_row(
    method: str,
    metric: str,
    values: Sequence[float],
    epsilon: float | None = None,
    delta: float | None = None,
    relation: str = "replace",
    **more: Any,
) -> dict[str, Any]:
    """Mean and deviation of `metric` over noise draws; epsilon None without a guarantee."""
    return {
        "method": method,
        "epsilon": epsilon,
        "delta": None if epsilon is None else delta,
        "relation": None if epsilon is None else relation,
        "metric": metric,
        "mean": float(np.mean(values)),
        "std": float(np.std(values, ddof=1)) if len(values) > 1 else 0.0,
        "draws": len(values),
        **more,
    }


def experiment(
    name: str,
    results: Sequence[Mapping[str, Any]],
    *,
    figure: str | None = None,
    data: str = "real",
    seeded: bool = True,
    **more: Any,
) -> dict[str, Any]:
    """What every experiment returns; `data` says of a stand-in what it stands in for."""
    said = {"name": name, "data": data, "seeded": seeded}
    return {**said, **more, "results": results, "figure": figure}


def saved(path: Path | None, figure: Callable[[], Any]) -> str | None:
    """Draw and write a figure of matplotlib; None without a path, or where it is not installed."""
    if path is None or find_spec("matplotlib") is None:
        return None
    figure().savefig(path, dpi=150)
    return str(path)


def models(
    table: Table,
    epsilon: float,
    delta: float,
    *,
    draws: int,
    seed: int | None,
    method: str | MethodConfig = "auto",
    **how: Any,
) -> list[Model]:
    """A model for each of several draws of the noise, seeded from `seed` on."""
    return [
        train(
            table,
            Budget(epsilon=epsilon, delta=delta),
            method=method,
            noise=noise_source(None if seed is None else seed + draw),
            **how,
        )
        for draw in range(draws)
    ]


def private_labels(public: np.ndarray, labels: np.ndarray, *, classes: int) -> Table:
    """A table whose features are public and whose label alone is private."""
    names = tuple(f"x{place}" for place in range(public.shape[1]))
    empty = Table.from_arrays(np.zeros((len(public), 0)), labels)
    return replace(
        empty.with_blocks(public=np.asarray(public, dtype=np.float64)),
        public_norm=float(np.linalg.norm(public, axis=1).max()),
        public_sources=names,
        private_norm=0.0,
        classes=tuple(range(classes)),
        label=np.asarray(labels),
    )


def accuracy(model: Model, table: Table) -> float:
    """The share of rows whose likeliest class is right."""
    return float((model.probabilities(table).argmax(axis=1) == table.label).mean())


def mean_loss(loss: Loss, rows: Floats, targets: Floats, coef: Floats) -> float:
    """The mean over all rows at coefficients (outputs x columns): not private."""
    return float(loss.value(rows @ coef.T, targets).mean())


def minimum(loss: Loss, rows: Floats, targets: Floats, ridge: float = 0.0) -> Floats:
    """The coefficients of least mean loss, without privacy."""
    shape = (loss.outputs, rows.shape[1])

    def objective(flat: Floats) -> tuple[float, Floats]:
        coef = flat.reshape(shape)
        value = mean_loss(loss, rows, targets, coef) + ridge / 2 * flat @ flat
        slope = loss.slope(rows @ coef.T, targets).T @ rows / len(rows) + ridge * coef
        return float(value), slope.ravel()

    options = {"ftol": 1e-15, "gtol": 1e-10, "maxiter": 2000}
    start = np.zeros(shape).ravel()
    found = minimize(objective, start, jac=True, method="L-BFGS-B", options=options)
    coef: Floats = found.x.reshape(shape)
    return coef


def log_slope(x: Sequence[float], y: Sequence[float]) -> float:
    """The exponent of x in y: the slope of a straight line through the logarithms."""
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])


def ratio_row(
    what: str, against: str, setting: str, ours: Sequence[float], theirs: Sequence[float]
) -> dict[str, Any]:
    """The ratio of two medians, and the 10% and 90% quantiles of the ratios of the same round."""
    each = np.array(ours) / np.array(theirs)
    return {
        "what": what,
        "against": against,
        "setting": setting,
        "ratio": float(np.median(ours) / np.median(theirs)),
        "low": float(np.quantile(each, 0.1)),
        "high": float(np.quantile(each, 0.9)),
    }


def accuracy_figure(
    path: Path | None,
    rows: Sequence[Mapping[str, Any]],
    names: Mapping[str, str],
    *,
    title: str,
    budget: str,
    level: str = "without privacy",
    besides: Callable[[Any], None] = lambda axes: None,
) -> str | None:
    """Accuracy against epsilon, a curve per method of `names`; None without a path or matplotlib.

    `level` names the line of the model without privacy, `besides` draws what else there is.
    """

    def drawn() -> Any:
        from matplotlib.figure import Figure
        from matplotlib.ticker import NullLocator

        figure = Figure(figsize=(6, 4), layout="constrained")
        axes = figure.add_subplot()
        for (method, name), marker in zip(names.items(), "os^Dv", strict=False):
            own = sorted((r["epsilon"], r["mean"], r["std"]) for r in rows if r["method"] == method)
            if own:
                epsilon, mean, std = zip(*own, strict=True)
                axes.errorbar(epsilon, mean, yerr=std, marker=marker, capsize=3, label=name)
        for row in rows:
            if row["method"] == "non-private":
                axes.axhline(row["mean"], color="black", linestyle=":", label=level)
        besides(axes)
        shown = sorted({row["epsilon"] for row in rows if row["epsilon"] is not None})
        axes.set_xscale("log")
        axes.set_xticks(shown, [f"{epsilon:g}" for epsilon in shown])
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_xlabel(f"epsilon ({budget})")
        axes.set_ylabel("test accuracy")
        axes.set_title(title, fontsize=10)
        axes.legend(fontsize=8)
        return figure

    return saved(path, drawn)
