"""The pictures of the docs, drawn anew: python docs/pictures/draw.py [FOLDER].

Needs the extra `plot`, and Chromium for the pictures of the report. FOLDER (default: this one) also
takes views that no page shows, to be looked at: the whole report on a desk, on a phone, at night
and on paper. Noise differs from run to run, so pictures do too.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import pyarrow.csv
from matplotlib.figure import Figure

from halfmask import HalfmaskClassifier
from halfmask.datasets import load_adult
from halfmask.report import plots
from halfmask.report.html import write_report

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parents[1] / "tests"))


def main(folder: Path) -> None:
    """Train on the census as the README does; draw what was learnt, and photograph the report."""
    train, test, schema = load_adult()
    model = HalfmaskClassifier(schema, epsilon=1.0, delta=1e-6).fit(train)
    with plots.house_style():
        figure = Figure(figsize=(10, 6.4))
        axes = figure.subplots(2, 2).ravel()
    for name, ax in zip(
        ("age", "hours-per-week", "relationship", "capital-gain"), axes, strict=True
    ):
        plots.effect_points(model.effects_[name], ax=ax)
    figure.savefig(HERE / "effects.png", dpi=90)
    with tempfile.TemporaryDirectory() as kept:
        model.model_.save(Path(kept) / "census")
        pyarrow.csv.write_csv(test, Path(kept) / "test.csv")
        write_report(Path(kept) / "census", Path(kept) / "report.html", data=f"{kept}/test.csv")
        photograph(Path(kept) / "report.html", Path(kept) / "profile", folder)


def photograph(page: Path, profile: Path, folder: Path) -> None:
    """The page as readers have it; the first screen of it is a picture of the README."""
    from chromium import BINARY, Chromium

    if BINARY is None:
        print("No picture of the report: install chromium.")
        return
    with Chromium(profile) as browser:
        browser.view(width=1000, height=840)
        browser.call("Emulation.setScrollbarsHidden", hidden=True)
        browser.open(page)
        (HERE / "report.png").write_bytes(_top(browser, 1000, 840))
        if folder == HERE:
            return
        for name, width, scheme in (
            ("desk", 1100, "light"),
            ("phone", 390, "light"),
            ("night", 1100, "dark"),
        ):
            browser.view(width=width, scheme=scheme)
            browser.open(page)
            (folder / f"report-{name}.png").write_bytes(browser.screenshot())
        browser.view(width=794)
        browser.call("Emulation.setEmulatedMedia", media="print", features=[])
        browser.open(page)
        (folder / "report-paper.png").write_bytes(browser.screenshot())
        (folder / "report.pdf").write_bytes(browser.pdf())


def _top(browser: object, width: int, height: int) -> bytes:
    import base64

    clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}
    found = browser.call("Page.captureScreenshot", format="png", clip=clip)  # type: ignore[attr-defined]
    return base64.b64decode(found["data"])


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else HERE)
