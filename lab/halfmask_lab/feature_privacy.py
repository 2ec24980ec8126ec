"""Accuracy against epsilon where some columns and the label are public: Figure 1 of the paper.

Five curves: a network without privacy, DP-SGD, DP-SGD at the paper's rate 1/16 and noise multiplier
1.0 (as many steps as an epsilon allows), Algorithm 1 as the paper has it (Gaussian padding,
clip norm 0.01, rate 1/16, momentum 0.9), and what `auto` chooses. The paper's padding is a map, so
one draw serves all rows and steps; drawn afresh each time it does far worse.

The baselines are tuned for each epsilon by a climb over their settings, on rows held out from
the training rows; a climb ends where no neighbour on any axis does better, so that the best setting
never lies on the edge of a grid. `auto` is not tuned. All of them read the same inputs, and none is
scored on a test row before its settings are fixed.

The tables are at the end: Location-30 (74 of 446 columns and the label are public), the paper's own
Purchase100 (100 of 600), and digits of which a fixed random sixth of the pixels is public.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from halfmask.accounting.budget import Budget
from halfmask.accounting.calibrate import most_steps
from halfmask.datasets import data_dir, find_file
from halfmask.errors import DataError, InputError
from halfmask.progress import side_by_side
from halfmask.schema import Column, Label, Role, Schema
from halfmask.table import Encoder, Table
from halfmask_lab.loaders import (
    LOCATION_CLASSES,
    LOCATION_COLUMNS,
    PURCHASE_CLASSES,
    PURCHASE_COLUMNS,
    load_location30,
    load_mnist,
    load_purchase100,
    make_purchase_like,
)
from halfmask_lab.results import Progress, accuracy_figure, experiment, models, result_row, silent

TestPart = Literal["held-out", "test"]
Settings = dict[str, float | int]
Tables = Callable[[int, TestPart], tuple[Table, Table]]

EPSILONS = (8.0, 4.0, 2.0, 1.0)
DELTA = 1e-5
NAMES = {
    "auto": "default (auto)",
    "dp-sgd": "DP-SGD, tuned",
    "dp-sgd-paper": "DP-SGD, rate 1/16 and noise 1.0, tuned",
    "sgd": "Algorithm 1, Gaussian padding, tuned",
}


@dataclass(frozen=True, kw_only=True)
class Baseline:
    """Options of `mlp` that stay, the setting a climb starts from, and the largest values of axes.

    Along an axis a value is doubled or halved, and the other that `against` names beside it goes
    the other way, which keeps their product. With `noise` the noise multiplier is fixed, and the
    steps are as many as an epsilon allows at the fixed rate: none, where not one step fits.
    """

    method: str
    fixed: dict[str, Any]
    start: Settings
    longest: Settings = field(default_factory=dict)
    against: dict[str, str] = field(default_factory=dict)
    noise: float | None = None

    def at(self, epsilon: float) -> dict[str, Any] | None:
        """The options that stay, at an epsilon; None where the noise is too small for it."""
        if self.noise is None:
            return self.fixed
        steps = _steps(epsilon, self.fixed["rate"], self.noise)
        return {**self.fixed, "steps": steps} if steps else None


@cache
def _steps(epsilon: float, rate: float, noise: float) -> int:
    budget = Budget(epsilon=epsilon, delta=DELTA)
    return most_steps(budget, rate=rate, noise_multiplier=noise)


DP_SGD = Baseline(
    method="dp-sgd",
    fixed={"recipe": "dp-sgd"},
    start={"learning_rate": 0.25, "steps": 160, "rate": 0.5, "clip_norm": 1.0},
    longest={"rate": 1.0, "steps": 1280},
)
DP_SGD_OF_THE_PAPER = Baseline(
    method="dp-sgd-paper",
    fixed={"recipe": "dp-sgd", "rate": 1 / 16},
    start={"learning_rate": 0.1, "clip_norm": 1.0},
    noise=1.0,
)
ALGORITHM_1 = Baseline(
    method="sgd",
    fixed={"recipe": "algorithm-1", "padding": "gaussian-once", "clip_norm": 0.01, "rate": 1 / 16},
    start={"alpha": 100.0, "learning_rate": 0.1, "steps": 160},
    longest={"steps": 1280},
    # The private part moves the weights by their product.
    against={"alpha": "learning_rate"},
)
# For tables of more rows than Location-30, where a step takes longer.
FEWER_AXES = (
    replace(
        DP_SGD,
        fixed={"recipe": "dp-sgd", "rate": 1 / 8, "clip_norm": 1.0},
        start={"learning_rate": 0.25, "steps": 160},
    ),
    replace(
        DP_SGD_OF_THE_PAPER,
        fixed={**DP_SGD_OF_THE_PAPER.fixed, "clip_norm": 1.0},
        start={"learning_rate": 0.1},
    ),
    replace(
        ALGORITHM_1,
        fixed={**ALGORITHM_1.fixed, "steps": 160},
        start={"alpha": 100.0, "learning_rate": 0.1},
    ),
)


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One experiment: `tables(seed, part)` gives rows to fit and rows to score.

    With the part "held-out" both are training rows; with "test" they are all training rows and the
    test rows. The seed draws the public columns.
    """

    name: str
    title: str
    data: str
    setting: str
    tables: Tables
    baselines: tuple[Baseline, ...] = (DP_SGD, DP_SGD_OF_THE_PAPER, ALGORITHM_1)
    epsilons: tuple[float, ...] = EPSILONS
    draws: int = 3


def accuracy(
    fit: Table, scored: Table, *, epsilon: float, seed: int, method: str, options: dict[str, Any]
) -> tuple[float, str]:
    """Share of rows classified rightly under seeded noise, and the method that was chosen."""
    [model] = models(fit, epsilon, DELTA, draws=1, seed=seed, method=method, options=options)
    return float(np.mean(model.predict(scored) == scored.label)), model.method


def climb(
    score: Callable[[Settings], float],
    start: Settings,
    longest: Settings,
    against: dict[str, str] | None = None,
) -> tuple[Settings, list[dict[str, Any]]]:
    """The best setting found by doubling or halving one axis at a time, and all that was tried."""
    tried: dict[tuple[float | int, ...], float] = {}

    def found(setting: Settings) -> float:
        key = tuple(setting.values())
        if key not in tried:
            tried[key] = score(setting)
        return tried[key]

    best, moved = start, True
    while moved:
        moved = False
        for axis in start:
            for factor in (2, 0.5):
                while True:
                    value = best[axis] * factor
                    kept = int(value) if isinstance(start[axis], int) else value
                    beyond = kept > longest.get(axis, np.inf) or kept <= 0
                    other = (against or {}).get(axis)
                    moving: Settings = {} if other is None else {other: best[other] / factor}
                    there = {**best, **moving, axis: kept}
                    if beyond or found(there) <= found(best):
                        break
                    best, moved = there, True
    names = list(start)
    listed = [{**dict(zip(names, key, strict=True)), "held_out": s} for key, s in tried.items()]
    return best, listed


def run_figure(figure: Figure, out: Path | None, tell: Progress, *, seed: int) -> dict[str, Any]:
    """All curves; every draw has other public columns and other noise."""
    count = len(figure.baselines)
    chains = side_by_side(
        lambda baseline: _climbs(figure, baseline, seed),
        figure.baselines,
        lambda done: tell(0.5 * done / count, f"tuned {done} of {count} baselines"),
    )
    tuned = {b.method: best for b, (best, _) in zip(figure.baselines, chains, strict=True)}
    grids = {b.method: tried for b, (_, tried) in zip(figure.baselines, chains, strict=True)}
    seeds = [10_000 + 100 * seed + draw for draw in range(figure.draws)]
    drawn = side_by_side(
        lambda number: _one_draw(figure, number, tuned),
        seeds,
        lambda done: tell(0.5 + 0.5 * done / len(seeds), f"draw {done} of {len(seeds)}"),
    )
    reached = {key: [draw.reached[key] for draw in drawn] for key in drawn[0].reached}
    steps = {
        f"{epsilon:g}": (b.at(epsilon) or {}).get("steps", 0)
        for b in figure.baselines
        if b.noise is not None
        for epsilon in figure.epsilons
    }
    chosen = {draw.chosen for draw in drawn}
    results = [
        result_row(method, "accuracy", values, epsilon, DELTA)
        for (method, epsilon), values in reached.items()
    ]
    return experiment(
        figure.name,
        results,
        figure=accuracy_figure(
            out and out / f"{figure.name}.png",
            results,
            NAMES,
            title=figure.title if figure.data == "real" else f"{figure.title}\n{figure.data}",
            budget=f"replace, delta = {DELTA:g}",
        ),
        data=figure.data,
        setting=figure.setting,
        chosen=sorted(chosen),
        test_rows=drawn[0].test_rows,
        fixed={baseline.method: baseline.fixed for baseline in figure.baselines},
        steps_at_the_papers_noise=steps,
        tuned=tuned,
        tried=grids,
    )


@dataclass(frozen=True, kw_only=True)
class _Draw:
    """Test accuracies of one draw by method and epsilon, and what `auto` chose."""

    reached: dict[tuple[str, float | None], float]
    chosen: str
    test_rows: int


def _one_draw(figure: Figure, number: int, tuned: dict[str, dict[str, Settings]]) -> _Draw:
    fit, test = figure.tables(number, "test")
    reached: dict[tuple[str, float | None], float] = {}
    reached["non-private", None] = without_privacy(fit, test, number)
    for epsilon in figure.epsilons:
        options: dict[str, Any] = {"public_seed": number}
        reached["auto", epsilon], chosen = accuracy(
            fit, test, epsilon=epsilon, seed=number, method="auto", options=options
        )
        for baseline in figure.baselines:
            fixed = baseline.at(epsilon)
            if fixed is None:
                continue
            options = {"public_seed": number, **fixed}
            options |= tuned[baseline.method][f"{epsilon:g}"]
            reached[baseline.method, epsilon], _ = accuracy(
                fit, test, epsilon=epsilon, seed=number, method="mlp", options=options
            )
    return _Draw(reached=reached, chosen=chosen, test_rows=test.n)


def _climbs(
    figure: Figure, baseline: Baseline, seed: int
) -> tuple[dict[str, Settings], dict[str, list[dict[str, Any]]]]:
    """The best settings of a baseline on rows held out from one draw's training rows."""
    number = 20_000 + 100 * seed
    fit, held = figure.tables(number, "held-out")
    start = baseline.start
    tuned: dict[str, Settings] = {}
    grids: dict[str, list[dict[str, Any]]] = {}
    for epsilon in figure.epsilons:
        fixed = baseline.at(epsilon)
        if fixed is None:
            continue

        def score(
            setting: Settings, epsilon: float = epsilon, fixed: dict[str, Any] = fixed
        ) -> float:
            options = {"public_seed": number, **fixed, **setting}
            return accuracy(fit, held, epsilon=epsilon, seed=number, method="mlp", options=options)[
                0
            ]

        # The best of one epsilon is a good start for the next.
        start, tried = climb(score, start, baseline.longest, baseline.against)
        tuned[f"{epsilon:g}"] = start
        grids[f"{epsilon:g}"] = tried
    return tuned, grids


def without_privacy(fit: Table, test: Table, seed: int) -> float:
    """The same network trained by Adam for ten epochs on the true rows: no guarantee at all."""
    import torch
    from torch.nn import functional

    from halfmask.neural.inputs import Inputs
    from halfmask.neural.network import Mlp

    inputs = Inputs.of(fit)
    assert fit.label is not None
    assert fit.classes is not None
    rows, labels = torch.from_numpy(inputs.rows(fit)), torch.from_numpy(fit.label)
    generator = torch.Generator().manual_seed(seed)
    network = Mlp((rows.shape[1], 300, len(fit.classes)), generator=generator)
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-3)
    for epoch in range(10):
        for group in optimizer.param_groups:
            group["lr"] = 1e-3 * (1 - epoch / 10)
        for some in torch.randperm(len(rows), generator=generator).split(128):
            optimizer.zero_grad()
            functional.cross_entropy(network(rows[some]), labels[some]).backward()
            optimizer.step()
    with torch.no_grad():
        guessed = network(torch.from_numpy(inputs.rows(test))).argmax(1).numpy()
    return float(np.mean(guessed == test.label))


def check_rows(train_rows: int, rows: int, *, test_rows: int = 1) -> None:
    """Refuse more training rows than leave `test_rows` to be scored."""
    if train_rows + test_rows > rows:
        raise InputError(
            f"--rows {train_rows}: the data has {rows:,} rows, of which {test_rows:,} are needed "
            f"for the test: pass at most {rows - test_rows}."
        )


def public_columns(columns: int, public: int, seed: int) -> set[int]:
    """Which columns a seed makes public."""
    return set(np.random.default_rng(seed).choice(columns, public, replace=False).tolist())


def encoded(
    rows: np.ndarray, labels: np.ndarray, schema: Schema, fit: np.ndarray, scored: np.ndarray
) -> tuple[Table, Table]:
    """Tables of the chosen rows; the last declared name is that of the label."""

    def frame(chosen: np.ndarray) -> pa.Table:
        named = zip(schema.columns, rows[chosen].T, strict=True)
        columns = {column.name: np.ascontiguousarray(values) for column, values in named}
        return pa.table({**columns, schema.label.name: labels[chosen]})

    first = frame(fit)
    encoder = Encoder.fit(schema, first)
    return encoder.encode(first), encoder.encode(frame(scored))


def zero_or_one(index: int, public: set[int]) -> Column:
    """A column of absent/present values."""
    role: Role = "public" if index in public else "private"
    return Column(name=f"x{index}", role=role, kind="category", categories=("0", "1"))


# --- The tables.


_SPLIT_SEED = 2026
_PIXEL_SEED = 6
_HELD_OUT = 0.2
LOCATION_ROWS, LOCATION_PUBLIC, PURCHASE_PUBLIC = 4_000, 74, 100
PIXELS, DIGITS = 784, 10
PURCHASE_FILE = "dataset_purchase"


def tables_of(
    rows: np.ndarray,
    labels: np.ndarray,
    known: np.ndarray,
    test: np.ndarray,
    schema: Callable[[int], Schema],
    *,
    mixed: bool = True,
) -> Tables:
    """Training and scored tables by seed, which draws `schema` and, if `mixed`, held-out rows."""

    def tables(seed: int, part: TestPart) -> tuple[Table, Table]:
        if part == "test":
            return encoded(rows, labels, schema(seed), known, test)
        order = np.random.default_rng(seed).permutation(known) if mixed else known
        apart = int(_HELD_OUT * len(known))
        return encoded(rows, labels, schema(seed), order[apart:], order[:apart])

    return tables


def drawn_columns(label: str, classes: int, columns: int, public: int, seed: int) -> Schema:
    """Columns of absent/present values, of which a seed makes some public; so is the label."""
    chosen = public_columns(columns, public, seed)
    return Schema(
        label=Label(name=label, role="public", classes=tuple(range(classes))),
        columns=tuple(zero_or_one(index, chosen) for index in range(columns)),
    )


def location_tables(rows: np.ndarray, labels: np.ndarray, train_rows: int) -> Tables:
    """The test rows are the same in every draw.

    No constant of the default recipe was looked at on any of them: constants were compared on rows
    held out from the others, as the baselines' settings are here.
    """
    order = np.random.default_rng(_SPLIT_SEED).permutation(len(labels))
    columns = partial(drawn_columns, "place", LOCATION_CLASSES, LOCATION_COLUMNS, LOCATION_PUBLIC)
    return tables_of(rows, labels, order[:train_rows], order[train_rows:], columns)


def _location30(data: Path | None, train_rows: int, test_rows: int) -> Figure:
    rows, labels = load_location30(data)
    check_rows(train_rows, len(labels))
    return Figure(
        name="location30",
        title="Location-30, 74 of 446 columns and the label public",
        data="real",
        setting=f"{train_rows} rows, {LOCATION_PUBLIC} of {LOCATION_COLUMNS} columns and the label "
        "public, replace; settings and constants were chosen on held-out training rows",
        tables=location_tables(rows, labels, train_rows),
    )


def load_purchases(data: Path | None, rows: int) -> tuple[np.ndarray, np.ndarray, str]:
    """Rows, labels and where they are from.

    The published `dataset_purchase` is read where the data folder has it (plain or packed);
    otherwise a table of the same shape is drawn, and figure and report say so.
    """
    try:
        file = find_file(data_dir(data), PURCHASE_FILE)
    except DataError:
        return *make_purchase_like(rows), "stand-in: drawn table of the same shape"
    return *load_purchase100(file), "real"


def _purchase100(data: Path | None, train_rows: int, test_rows: int) -> Figure:
    """The paper trains on 197,324 rows; here some of them are used unless more are asked for."""
    rows, labels, source = load_purchases(data, train_rows + test_rows)
    check_rows(train_rows, len(labels), test_rows=test_rows)
    order = np.random.default_rng(_SPLIT_SEED).permutation(len(labels))
    known, test = order[:train_rows], order[train_rows : train_rows + test_rows]
    columns = partial(drawn_columns, "style", PURCHASE_CLASSES, PURCHASE_COLUMNS, PURCHASE_PUBLIC)
    return Figure(
        name="purchase100",
        title="Purchase100, 100 of 600 columns and the label public",
        data=source,
        setting=f"{train_rows} of 197,324 training rows, {PURCHASE_PUBLIC} of {PURCHASE_COLUMNS} "
        "columns and the label public, replace",
        tables=tables_of(rows, labels, known, test, columns, mixed=False),
        baselines=FEWER_AXES,
    )


def _pixel_schema(seed: int) -> Schema:
    """Every pixel a number; the public ones are the same in every draw."""
    public = public_columns(PIXELS, PIXELS // 6, _PIXEL_SEED)
    pixel = {"kind": "number", "bounds": (0.0, 255.0), "bins": 0}
    return Schema(
        label=Label(name="digit", role="public", classes=tuple(range(DIGITS))),
        columns=tuple(
            Column(f"p{index}", "public" if index in public else "private", **pixel)  # type: ignore[arg-type]
            for index in range(PIXELS)
        ),
    )


def _mnist_pixels(data: Path | None, train_rows: int, test_rows: int) -> Figure:
    split = load_mnist(data)
    check_rows(train_rows, len(split.y_train), test_rows=0)
    rows = np.concatenate([split.x_train[:train_rows], split.x_test[:test_rows]])
    labels = np.concatenate([split.y_train[:train_rows], split.y_test[:test_rows]])
    known, test = np.arange(train_rows), np.arange(train_rows, len(labels))
    return Figure(
        name="mnist-pixels",
        title="MNIST, a sixth of the pixels and the digit public",
        data="real",
        setting=f"the first {train_rows} of 60,000 training images and the first {test_rows} of "
        f"10,000 test images, {PIXELS // 6} of {PIXELS} pixels and the label public, replace",
        tables=tables_of(rows, labels, known, test, _pixel_schema),
        baselines=FEWER_AXES,
    )


def run(
    make: Callable[[Path | None, int, int], Figure],
    data: Path | None = None,
    out: Path | None = None,
    tell: Progress = silent,
    *,
    seed: int = 0,
    draws: int = 3,
    epsilons: tuple[float, ...] = EPSILONS,
    train_rows: int,
    test_rows: int = 4_000,
) -> dict[str, Any]:
    """All curves of the figure that `make` describes."""
    figure = replace(make(data, train_rows, test_rows), draws=draws, epsilons=epsilons)
    return run_figure(figure, out, tell, seed=seed)


location30 = partial(run, _location30, draws=5, train_rows=LOCATION_ROWS)
purchase100 = partial(run, _purchase100, train_rows=10_000)
mnist_pixels = partial(run, _mnist_pixels, train_rows=8_000)
