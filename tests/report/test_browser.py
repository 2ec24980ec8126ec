"""The report of a real run in a real browser: quiet, offline, drawn, legible in both themes."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hostile import Trained, run

from chromium import BINARY, Chromium
from halfmask.losses import PublicLoss
from halfmask.model import Model

pytestmark = pytest.mark.skipif(
    BINARY is None, reason="chromium is not installed: apt-get install chromium"
)

# Contrast as in WCAG 2: every visible text against the nearest background behind it.
CONTRAST = """
(() => {
  const parse = (text) => text.match(/[\\d.]+/g).map(Number);
  const luminance = (rgb) => {
    const [r, g, b] = rgb.slice(0, 3).map((v) => v / 255)
      .map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const rgb = parse(getComputedStyle(at).backgroundColor);
      if (rgb.length < 4 || rgb[3] === 1) return rgb;
    }
    return [255, 255, 255];
  };
  const ratio = (a, b) => {
    const [low, high] = [luminance(a), luminance(b)].sort((x, y) => x - y);
    return (high + 0.05) / (low + 0.05);
  };
  const bad = [];
  let texts = 0, lines = 0;
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    if (!walker.currentNode.textContent.trim() || element.closest("script, style")) continue;
    if (!element.getClientRects().length) continue;
    const style = getComputedStyle(element);
    const drawn = element instanceof SVGElement;
    const colour = parse(drawn ? style.fill : style.color);
    const large = parseFloat(style.fontSize) >= 24;
    const found = ratio(colour, behind(element));
    texts += 1;
    if (found < (large ? 3 : 4.5)) bad.push([element.textContent.slice(0, 40), found]);
  }
  for (const path of document.querySelectorAll("svg path[style*='--series']")) {
    const style = getComputedStyle(path);
    const colour = style.stroke !== "none" ? style.stroke : style.fill;
    if (!colour.startsWith("rgb")) continue;
    lines += 1;
    const found = ratio(parse(colour), behind(path));
    if (found < 3) bad.push([path.getAttribute("style"), found]);
  }
  return { bad, texts, lines };
})()
"""

FIGURES = """
[...document.querySelectorAll("svg[role=img]")].map((svg) => {
  const box = svg.getBoundingClientRect();
  const drawn = [...svg.querySelectorAll("path")].filter((path) => {
    const own = path.getBBox();
    return own.width + own.height > 5;
  });
  return { width: box.width, height: box.height, paths: drawn.length,
           texts: svg.querySelectorAll("text").length, label: svg.getAttribute("aria-label") };
})
"""

SCHEMES = ("light", "dark")


@pytest.fixture(scope="module")
def report(trained: Trained, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a model that was audited and has every curve: every figure there is."""
    place = tmp_path_factory.mktemp("browser")
    folder, out = place / "model", place / "report.html"
    shutil.copytree(trained.folder, folder)
    kept = place / "audit"
    run(
        *("audit", folder, "--data", trained.data, "--canaries", 60),
        *("--confidence", 0.9999, "--out", kept),
    )
    model = Model.load(folder)
    curve = PublicLoss("a loss", steps=30)
    for step in range(1, 31):
        curve.note(step, 1 / step)
    parts = [{"predicted": p, "observed": 0.9 * p, "bar": 0.1, "rows": 50} for p in (0.1, 0.5)]
    covered = {**model.details["covered"], "reliability": parts}
    replace(model, details={**model.details, **curve.details(), "covered": covered}).save(
        folder, overwrite=True
    )
    run("report", folder, "--out", out, "--data", trained.data, "--audit", kept)
    return out


@pytest.fixture(scope="module")
def browser(report: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    with Chromium(tmp_path_factory.mktemp("profile")) as chromium:
        show(chromium, report)
        yield chromium


def show(browser: Chromium, report: Path) -> None:
    """Open the report with everything unfolded."""
    browser.view()
    browser.open(report)
    browser.evaluate("document.querySelectorAll('details').forEach((d) => (d.open = true))")


def test_no_console_message_no_error_no_request(browser: Chromium, report: Path) -> None:
    assert browser.named("Log.entryAdded") == []
    assert browser.named("Runtime.consoleAPICalled") == []
    assert browser.named("Runtime.exceptionThrown") == []
    asked = [sent["request"]["url"] for sent in browser.named("Network.requestWillBeSent")]
    assert asked == [report.resolve().as_uri()]


def test_embedded_statement_parses_and_equals_the_models(
    browser: Chromium, trained: Trained
) -> None:
    embedded = browser.evaluate("JSON.parse(document.getElementById('statement').textContent)")
    expected = Model.load(trained.folder).privacy.to_json()
    assert embedded == json.loads(json.dumps(expected))
    link = browser.evaluate("document.querySelector('a[download]').href.split(',')[1]")
    assert json.loads(browser.evaluate(f"atob({link!r})")) == json.loads(json.dumps(expected))


def test_all_figures_are_drawn(browser: Chromium) -> None:
    figures = browser.evaluate(FIGURES)
    # How many columns have effects that noise cannot have made is up to the noise.
    effects = [figure for figure in figures if "add to the score" in figure["label"]]
    assert len(figures) - len(effects) == 8, [figure["label"] for figure in figures]
    for figure in figures:
        assert figure["width"] > 200, figure
        assert figure["height"] > 100, figure
        assert figure["paths"] > 5, figure
        assert figure["texts"] > 3, figure
        assert figure["label"], figure


@pytest.mark.parametrize("scheme", SCHEMES)
def test_contrast(browser: Chromium, scheme: str) -> None:
    browser.view(scheme=scheme)
    found = browser.evaluate(CONTRAST)
    assert found["texts"] > 100
    assert found["lines"] > 5
    assert found["bad"] == []


def test_the_two_themes_differ(browser: Chromium) -> None:
    colours = []
    for scheme in SCHEMES:
        browser.view(scheme=scheme)
        colours.append(browser.evaluate("getComputedStyle(document.body).backgroundColor"))
    assert len(set(colours)) == 2


@pytest.mark.parametrize("width", [320, 375, 768, 1400])
def test_nothing_sticks_out_sideways(browser: Chromium, width: int) -> None:
    browser.view(width=width)
    wide = browser.evaluate("document.documentElement.scrollWidth")
    assert wide <= width


def test_a_screen_reader_finds_names_levels_and_tables(browser: Chromium) -> None:
    browser.view()
    nodes = browser.call("Accessibility.getFullAXTree")["nodes"]
    kept = [node for node in nodes if not node.get("ignored")]
    by_role: dict[str, list[dict[str, object]]] = {}
    for node in kept:
        by_role.setdefault(node["role"]["value"], []).append(node)
    for role in ("image", "link", "table", "main", "navigation", "region"):
        named = [node.get("name", {}).get("value") for node in by_role[role]]  # type: ignore[attr-defined]
        assert named, role
        assert role == "main" or all(named), (role, named)
    levels = [
        entry["value"]["value"]
        for node in by_role["heading"]
        for entry in node["properties"]  # type: ignore[attr-defined]
        if entry["name"] == "level"
    ]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert set(levels) == {1, 2, 3}
    assert browser.evaluate("document.documentElement.lang") == "en"


def test_it_prints(browser: Chromium) -> None:
    pdf = browser.pdf()
    assert pdf.startswith(b"%PDF")
    assert len(pdf) > 20_000
    browser.call("Emulation.setEmulatedMedia", media="print", features=[])
    assert browser.evaluate("getComputedStyle(document.querySelector('nav')).display") == "none"
    assert browser.evaluate(CONTRAST)["bad"] == []
    browser.view()


def test_the_checks_notice_what_they_look_for(
    browser: Chromium, report: Path, tmp_path: Path
) -> None:
    """The same browser on a bad page: grey on grey, a request, a message, an overflow."""
    bad = tmp_path / "bad.html"
    bad.write_text(
        "<body style='background:#fff'><p style='color:#aaa'>pale</p>"
        "<div style='width:5000px'>wide</div>"
        "<img src='missing.png'><script>console.error('loud')</script></body>",
        encoding="utf-8",
    )
    browser.view(width=375)
    browser.open(bad)
    assert [text for text, _ in browser.evaluate(CONTRAST)["bad"]] == ["pale"]
    assert len(browser.named("Network.requestWillBeSent")) == 2
    assert browser.named("Runtime.consoleAPICalled")
    assert browser.evaluate("document.documentElement.scrollWidth") > 375
    show(browser, report)
