"""The pictures of the docs, drawn anew: python docs/pictures/draw.py (needs the extra `plot`).

Noise differs from run to run, so pictures do too.
"""

from __future__ import annotations

from pathlib import Path

from matplotlib.figure import Figure

from halfmask import HalfmaskClassifier
from halfmask.datasets import load_adult
from halfmask.report import plots

HERE = Path(__file__).parent


def main() -> None:
    """Train on the census as the README does, and draw four columns of what it learnt."""
    train, _, schema = load_adult()
    model = HalfmaskClassifier(schema, epsilon=1.0, delta=1e-6).fit(train)
    with plots.house_style():
        figure = Figure(figsize=(10, 6.4))
        axes = figure.subplots(2, 2).ravel()
    for name, ax in zip(
        ("age", "hours-per-week", "relationship", "capital-gain"), axes, strict=True
    ):
        plots.effect(model.effects_[name], ax=ax)
    figure.savefig(HERE / "effects.png", dpi=90)


if __name__ == "__main__":
    main()
