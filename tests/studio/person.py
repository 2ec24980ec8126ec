"""A person at the studio: real clicks and keys in Chromium, each of them counted."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from chromium import Chromium

AXE = Path(__file__).parent / "axe" / "axe.min.js"
_KEYS = {
    "Enter": ("Enter", "\r", 13),
    "Tab": ("Tab", "", 9),
    " ": ("Space", " ", 32),
    "ArrowDown": ("ArrowDown", "", 40),
    "Escape": ("Escape", "", 27),
}
_CONTROL = 2


@contextmanager
def served(folder: Path, *words: object) -> Iterator[str]:
    """`halfmask studio` in a process of its own; its address."""
    command = [sys.executable, "-P", "-c", "from halfmask.cli import main; main()", "studio"]
    process = subprocess.Popen(
        [*command, *map(str, words), "--no-browser", "--json"],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=dict(os.environ),
    )
    try:
        assert process.stdout is not None
        said = ""
        while not said.endswith("}\n"):
            line = process.stdout.readline()
            assert line, "the studio did not start"
            said += line
        yield json.loads(said)["address"]
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(30)
        finally:
            process.kill()
            process.communicate()


class Person:
    """Looks at the page, and acts by mouse and keyboard only."""

    def __init__(self, browser: Chromium, address: str) -> None:
        self.browser = browser
        self.clicks = self.keys = 0
        browser.go(address)
        self.until("document.documentElement.dataset.ready === 'yes'")

    @property
    def actions(self) -> int:
        return self.clicks + self.keys

    def see(self, expression: str) -> Any:
        return self.browser.evaluate(expression)

    def text(self, selector: str) -> str:
        return str(self.see(f"document.querySelector({json.dumps(selector)}).textContent"))

    def until(self, expression: str, seconds: float = 20) -> None:
        end = time.monotonic() + seconds
        while not self.see(f"Boolean({expression})"):
            assert time.monotonic() < end, f"never: {expression}; {self.text('#said')}"
            time.sleep(0.05)

    def click(self, selector: str, *, shift: bool = False) -> None:
        """The middle of an element that can be seen, with the mouse."""
        found = self.see(
            f"(() => {{ const e = document.querySelector({json.dumps(selector)});"
            " e.scrollIntoView({ block: 'center' }); const r = e.getBoundingClientRect();"
            " const at = [r.x + r.width / 2, r.y + r.height / 2];"
            " const top = document.elementFromPoint(...at);"
            " return { at, hit: top === e || e.contains(top) || top.contains(e) }; })()"
        )
        assert found["hit"], f"{selector} is covered"
        x, y = found["at"]
        for kind in ("mousePressed", "mouseReleased"):
            self.browser.call(
                "Input.dispatchMouseEvent",
                type=kind,
                x=x,
                y=y,
                button="left",
                clickCount=1,
                modifiers=8 if shift else 0,
            )
        self.clicks += 1

    def press(self, key: str, *, control: bool = False) -> None:
        # Numbers of keys are those of letters and digits alone: 46 is Delete, not a dot.
        own = ("", key, ord(key.upper()) if key.isalnum() else 0) if len(key) == 1 else None
        code, text, number = _KEYS.get(key) or own  # type: ignore[misc]
        given: dict[str, Any] = {"key": key, "code": code, "windowsVirtualKeyCode": number}
        given["modifiers"] = _CONTROL if control else 0
        pressed = "rawKeyDown" if control or not text else "keyDown"
        extra = {} if control or not text else {"text": text}
        self.browser.call("Input.dispatchKeyEvent", type=pressed, **given, **extra)
        self.browser.call("Input.dispatchKeyEvent", type="keyUp", **given)
        self.keys += 1

    def type(self, text: str) -> None:
        for sign in text:
            self.press(sign)

    def retype(self, selector: str, text: str) -> None:
        """Replace what a field holds."""
        self.click(selector)
        self.press("a", control=True)
        self.type(text)

    def go(self, view: str) -> None:
        self.click(f'nav a[href="#{view}"]')
        self.until(f"!document.getElementById('view-{view}').hidden")

    def settled(self) -> None:
        """Until figures and tables of the view are there."""
        time.sleep(0.4)
        self.until("!document.querySelector('[aria-busy]')")

    def axe(self) -> list[tuple[str, str, str]]:
        """What axe-core finds wrong: rule, why, and where."""
        if not self.see("typeof axe === 'object'"):
            self.browser.evaluate(AXE.read_text(encoding="utf-8") + "; 0")
        found = self.see(
            "axe.run(document, { iframes: false }).then((r) => ({ passes: r.passes.length, bad:"
            " r.violations.map((v) => [v.id, v.help, v.nodes.map((n) => n.html).join(' ')"
            ".slice(0, 300)]) }))"
        )
        assert found["passes"] > 15
        return [tuple(each) for each in found["bad"]]

    def asked(self) -> set[str]:
        """Where requests went, of all since the page was opened."""
        sent = self.browser.named("Network.requestWillBeSent")
        return {each["request"]["url"] for each in sent}


GROUPS = ("lab", "drug", "visit", "survey", "device")


def wide_file(folder: Path, *, columns: int = 200, rows: int = 1200) -> None:
    """`wide.csv` with its `dictionary.csv`: groups of columns, a label and an id."""
    rng = np.random.default_rng(5)
    data: dict[str, np.ndarray] = {"person_id": np.arange(rows)}
    said = ["name,type,min,max,values"]
    for place in range(columns - 2):
        group = GROUPS[place % len(GROUPS)]
        name = f"{group}_{place // len(GROUPS):03d}"
        if group in ("lab", "device"):
            data[name] = np.round(rng.normal(50, 15, rows).clip(0, 100), 1)
            said.append(f"{name},number,0,100,")
        elif group == "visit":
            data[name] = rng.integers(0, 12, rows)
            said.append(f"{name},integer,0,12,")
        else:
            data[name] = rng.choice(["never", "seldom", "often"], rows)
            said.append(f"{name},category,,,never|seldom|often")
    score = data["lab_000"] + data["lab_001"] + 10 * (data["survey_000"] == "often")
    data["ill"] = np.where(score + rng.normal(0, 8, rows) > 105, "yes", "no")
    said.append("ill,category,,,no|yes")
    (folder / "dictionary.csv").write_text("\n".join(said) + "\n", encoding="utf-8")
    lines = [",".join(data), *(",".join(map(str, row)) for row in zip(*data.values(), strict=True))]
    (folder / "wide.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")


def wide_walk(person: Person) -> None:
    """From a file of 200 columns to its report: the steps that docs/studio.md counts."""
    person.click("#search")
    person.type("ill")
    person.click("#rows input[type=checkbox]")
    person.press("l")
    person.until("document.querySelector('#rows .badge').textContent === 'label'")
    person.press("Escape")
    person.retype("#search", "_id")
    person.click("#rows input[type=checkbox]")
    person.press("o")
    person.press("Escape")
    person.retype("#search", "visit")
    person.click("#all")
    person.click('[data-do="public"]')
    person.until("document.querySelectorAll('#rows .public[aria-pressed=true]').length === 40")
    person.click("#all")
    person.retype("#search", "device")
    person.click("#all")
    person.click('[data-do="out"]')
    person.until("document.querySelectorAll('#rows tr.out').length === 39")
    person.go("price")
    person.until("document.querySelector('#curve svg')")
    person.go("train")
    person.until("document.querySelectorAll('#commands li').length === 3")
    person.retype("#train-epsilon", "3")
    person.click("#start")
