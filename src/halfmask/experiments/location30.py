"""Figure 1 of the feature-DP paper on Location-30: 74 of 446 columns and the label are public.

Accuracy on held-out rows against epsilon (replace, delta 1e-5) for a network without privacy,
DP-SGD with the best of a grid (chosen on test rows, which flatters it), Algorithm 1 as the paper
has it (Gaussian padding, alpha from a grid), and the package's default recipe; its constants were
chosen on other draws of this data set. Every seed draws other public columns, other test rows and
other noise.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from halfmask.datasets.binary_tables import LOCATION_CLASSES, LOCATION_COLUMNS, load_location30
from halfmask.experiments.results import Progress, result_row, silent
from halfmask.mechanisms.noise import noise_source
from halfmask.schema import Column, Label, Schema
from halfmask.table import Encoder, Table
from halfmask.training import train

TRAIN_ROWS, PUBLIC_COLUMNS, DELTA = 4000, 74, 1e-5
EPSILONS = (1.0, 2.0, 4.0, 8.0)
# Of DP-SGD: clip norm 1, momentum 0.9, rate 1/16; learning rate and steps from this grid.
DP_SGD_GRID = tuple(
    {"learning_rate": rate, "steps": steps} for rate in (0.25, 0.5, 1.0) for steps in (80, 320)
)
# Of Algorithm 1: the paper's clip norm 0.01 and learning rate 0.1; the weight of the private part.
PAPER_GRID = tuple({"alpha": alpha} for alpha in (10.0, 50.0))


def split(rows: np.ndarray, labels: np.ndarray, seed: int) -> tuple[Table, Table]:
    """Training and test tables; the seed draws the rows and the public columns."""
    generator = np.random.default_rng(seed)
    order = generator.permutation(len(labels))
    public = set(generator.choice(LOCATION_COLUMNS, PUBLIC_COLUMNS, replace=False).tolist())
    schema = Schema(
        label=Label(name="place", role="public", classes=tuple(range(LOCATION_CLASSES))),
        columns=tuple(
            Column(
                name=f"x{index}",
                role="public" if index in public else "private",
                kind="category",
                categories=("0", "1"),
            )
            for index in range(LOCATION_COLUMNS)
        ),
    )

    def frame(chosen: np.ndarray) -> pa.Table:
        columns = {f"x{index}": rows[chosen, index] for index in range(LOCATION_COLUMNS)}
        return pa.table({**columns, "place": labels[chosen]})

    train_rows, test_rows = frame(order[:TRAIN_ROWS]), frame(order[TRAIN_ROWS:])
    encoder = Encoder.fit(schema, train_rows)
    return encoder.encode(train_rows), encoder.encode(test_rows)


def accuracy(train_table: Table, test: Table, epsilon: float, seed: int, **options: Any) -> float:
    """Test accuracy of `mlp` with these options, under seeded noise."""
    model = train(
        train_table,
        epsilon=epsilon,
        delta=DELTA,
        relation="replace",
        method="mlp",
        noise=noise_source(seed),
        options={"public_seed": seed, **options},
    )
    assert test.label is not None
    return float(np.mean(model.predict(test) == test.label))


def without_privacy(train_table: Table, test: Table, seed: int) -> float:
    """The same network trained by Adam on the true rows: no guarantee at all."""
    from halfmask.neural.inputs import Inputs
    from halfmask.neural.ordinary import ordinary_network, predicted

    inputs = Inputs.of(train_table)
    assert train_table.label is not None
    assert test.label is not None
    network = ordinary_network(
        inputs.rows(train_table), train_table.label, LOCATION_CLASSES, seed=seed
    )
    return float(np.mean(predicted(network, inputs.rows(test)) == test.label))


def run(
    data: Path | None = None,
    out: Path | None = None,
    progress: Progress | None = None,
    *,
    seed: int = 0,
    draws: int = 5,
    epsilons: tuple[float, ...] = EPSILONS,
) -> dict[str, Any]:
    """All curves of the figure; baselines are tuned on the first draw."""
    tell = progress or silent
    rows, labels = load_location30(data)
    # The constants of the recipe were chosen on small seeds.
    seeds = [10_000 + 100 * seed + draw for draw in range(draws)]
    reached: dict[tuple[str, float | None], list[float]] = {}
    tuned: dict[str, dict[str, Any]] = {"dp-sgd": {}, "sgd": {}}
    for place, number in enumerate(seeds):
        tell(place / draws, f"draw {place + 1} of {draws}")
        train_table, test = split(rows, labels, number)
        reached.setdefault(("non-private", None), []).append(
            without_privacy(train_table, test, number)
        )
        for epsilon in epsilons:
            found = accuracy(train_table, test, epsilon, number)
            reached.setdefault(("auto", epsilon), []).append(found)
            for method, fixed, grid in (
                ("dp-sgd", {"recipe": "dp-sgd"}, DP_SGD_GRID),
                ("sgd", {"recipe": "algorithm-1", **_PAPER}, PAPER_GRID),
            ):
                key = f"{epsilon:g}"
                if key not in tuned[method]:
                    scores = [
                        accuracy(train_table, test, epsilon, number, **fixed, **options)
                        for options in grid
                    ]
                    tuned[method][key] = grid[int(np.argmax(scores))]
                    found = max(scores)
                else:
                    options = tuned[method][key]
                    found = accuracy(train_table, test, epsilon, number, **fixed, **options)
                reached.setdefault((method, epsilon), []).append(found)
    results = [
        result_row(
            method,
            "accuracy",
            values,
            epsilon=epsilon,
            delta=None if epsilon is None else DELTA,
            relation=None if epsilon is None else "replace",
        )
        for (method, epsilon), values in reached.items()
    ]
    return {
        "name": "location30",
        "data": "real",
        "seeded": True,
        "setting": f"{TRAIN_ROWS} rows, {PUBLIC_COLUMNS} of {LOCATION_COLUMNS} columns and the "
        "label public, replace",
        "auto": "the default recipe of mlp; its constants were chosen on other draws of this data",
        "dp_sgd_grid": list(DP_SGD_GRID),
        "algorithm_1_grid": list(PAPER_GRID),
        "tuned": tuned,
        "results": results,
        "figure": None if out is None else figure(results, out / "location30.png"),
    }


_PAPER = {"padding": "gaussian", "clip_norm": 0.01, "learning_rate": 0.1, "steps": 160}
_NAMES = {
    "auto": "default recipe",
    "dp-sgd": "DP-SGD, tuned",
    "sgd": "Algorithm 1, Gaussian padding",
}


def figure(results: list[dict[str, Any]], path: Path) -> str | None:
    """Accuracy against epsilon; None where matplotlib is not installed."""
    try:
        import matplotlib
    except ModuleNotFoundError:
        return None
    matplotlib.use("Agg")
    from matplotlib import pyplot

    fig, axes = pyplot.subplots(figsize=(5.5, 4.0))
    for method, name in _NAMES.items():
        chosen = sorted(
            (row["epsilon"], row["mean"], row["std"]) for row in results if row["method"] == method
        )
        if chosen:
            epsilon, mean, std = zip(*chosen, strict=True)
            axes.errorbar(epsilon, mean, yerr=std, marker="o", capsize=3, label=name)
    for row in results:
        if row["method"] == "non-private":
            axes.axhline(row["mean"], color="grey", linestyle="--", label="without privacy")
    axes.set_xscale("log", base=2)
    axes.set_xlabel("epsilon (replace, delta 1e-5)")
    axes.set_ylabel("test accuracy")
    axes.set_title("Location-30, 74 of 446 columns and the label public")
    axes.legend()
    fig.tight_layout()
    fig.savefig(path, dpi=150)
    pyplot.close(fig)
    return str(path)
