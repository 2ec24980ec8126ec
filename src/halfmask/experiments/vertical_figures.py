"""A's Figures 1 to 3 as one picture: objective, test loss, and noise with its true price."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

Curves = Mapping[str, Sequence[Mapping[str, float]]]


def draw(
    out: Path | None,
    name: str,
    *,
    title: str,
    curves: Curves,
    noisy: Curves,
    levels: Mapping[str, float],
) -> str | None:
    """Write NAME.png to `out`: curves without noise, test loss under noise, baselines as lines."""
    if out is None:
        return None
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13, 4), layout="constrained")
    objective, test, noise = figure.subplots(1, 3)
    for label, history in curves.items():
        epochs = range(1, len(history) + 1)
        objective.plot(epochs, [record["objective"] for record in history], label=label)
        test.plot(epochs, [record["test_loss"] for record in history], label=label)
    for label, history in noisy.items():
        values = [record["test_loss"] for record in history]
        noise.plot(
            range(1, len(history) + 1), values, label=label, marker="." if len(values) < 6 else ""
        )
    ends = [history[-1]["test_loss"] for history in (*curves.values(), *noisy.values())]
    reached = [*levels.values(), *ends]
    for axis in (test, noise):
        for place, (label, level) in enumerate(levels.items()):
            axis.axhline(
                level, linestyle="--", linewidth=0.8, color=f"C{7 + place % 3}", label=label
            )
        axis.set_ylim(0.93 * min(reached), 1.6 * max(levels.values()))
    for axis, what in (
        (objective, "training objective"),
        (test, "test log loss"),
        (noise, "test log loss under noise"),
    ):
        axis.set_xlabel("epoch")
        axis.set_title(what)
        axis.legend(fontsize=7)
    objective.set_yscale("log")
    figure.suptitle(title)
    path = out / f"{name}.png"
    figure.savefig(path, dpi=150)
    return str(path)
