"""The studio in a real browser, by real clicks and keys: from a file to its report."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pyarrow.csv
import pytest
from person import Person, served, wide_file, wide_walk

from chromium import BINARY, Chromium
from halfmask.datasets import load_adult
from halfmask.schema import Schema

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        BINARY is None, reason="chromium is not installed: apt-get install chromium"
    ),
]
VIEWS = ("columns", "price", "train", "result")
MOST_ACTIONS = 60
# Roles that the embedded census is shipped with are a person's choice here.
PUBLIC = ("age", "workclass", "education", "education-num", "hours-per-week", "native-country")


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Chromium]:
    with Chromium(tmp_path / "profile") as found:
        found.view(width=1280, height=900)
        yield found


def adult(folder: Path) -> Schema:
    train, _, schema = load_adult()
    pyarrow.csv.write_csv(train, folder / "adult.csv")
    (folder / "known.toml").write_text(schema.to_toml(), encoding="utf-8")
    return schema


def quiet(person: Person, address: str) -> None:
    """No error, and no request that leaves loopback or this port."""
    assert person.browser.named("Runtime.exceptionThrown") == []
    # A report that is not there yet is no fault of the page.
    assert [e["entry"]["text"] for e in person.browser.named("Log.entryAdded")] == []
    assert {urlsplit(url).netloc for url in person.asked()} == {urlsplit(address).netloc}


def trained(person: Person) -> None:
    person.until("location.hash === '#result' && document.querySelector('#cards .card')", 900)
    person.until("document.querySelector('#effects svg, #effects p')")


def test_adult_from_file_to_report(tmp_path: Path, browser: Chromium) -> None:
    schema = adult(tmp_path)
    words = ("adult.csv", "--dictionary", "known.toml", "--label", "income")
    with served(tmp_path, *words) as address:
        person = Person(browser, address)
        assert "32,561 rows, 15 columns" in person.text("#about")
        assert person.see("document.querySelectorAll('#rows svg').length") == 0
        # One thing is to do: a column of which nothing is known is left out.
        assert "fnlwgt" in person.text("#todo")
        person.click("#rows tr[data-id='2'] button.out")
        person.until("document.querySelector('#todo').textContent.includes('complete')")
        person.go("price")
        person.until("document.querySelector('#curve svg')")
        closed = person.text("#verdict")
        curve = person.see("document.querySelector('#curve .line').getAttribute('d')")
        assert "about" in closed
        assert person.text("#matters")
        assert person.axe() == []
        person.go("columns")
        for name in PUBLIC:
            place = person.see(
                f"[...document.querySelectorAll('#rows tr')].find((row) =>"
                f" row.children[1].firstChild.textContent === {json.dumps(name)}).dataset.id"
            )
            person.click(f"#rows tr[data-id='{place}'] button.public")
        person.until("document.querySelectorAll('#rows svg').length > 0")
        assert person.axe() == []
        person.press("z", control=True)
        person.until("document.querySelectorAll('#rows .public[aria-pressed=true]').length === 5")
        person.press("y", control=True)
        person.until("document.querySelectorAll('#rows .public[aria-pressed=true]').length === 6")
        person.go("price")
        person.until(f"document.querySelector('#verdict').textContent !== {json.dumps(closed)}")
        open_now = person.see("document.querySelector('#curve .line').getAttribute('d')")
        assert open_now != curve
        assert person.see("document.querySelector('#curve .ghost').getAttribute('d')")
        person.retype("#epsilon", "0.5")
        person.until("document.querySelector('#verdict').textContent.includes('epsilon 0.5')")
        person.go("train")
        person.until("document.querySelectorAll('#commands li').length === 3")
        assert "--epsilon 0.5" in person.text("#commands")
        assert person.axe() == []
        person.click("#start")
        person.until("document.querySelector('#progress').value > 0")
        trained(person)
        assert "Epsilon 0.5" in person.text("#cards")
        assert "log loss" in person.text("#cards")
        assert person.see("document.querySelector('#effects svg circle') !== null")
        assert person.axe() == []
        # A second training with another epsilon, charged as well, beside the first.
        person.go("train")
        person.until("document.querySelector('#commands').textContent.includes('model-2')")
        assert "0.5" in person.text("#room")
        person.retype("#train-epsilon", "0.7")
        person.click("#start")
        trained(person)
        person.until("document.querySelector('#one').value === 'model-2'")
        person.until(
            "[...document.querySelector('#other').options].some((o) => o.value === 'model-1')"
        )
        person.see(
            "(() => { const o = document.querySelector('#other'); o.value = 'model-1';"
            " o.dispatchEvent(new Event('change')); })()"
        )
        person.until("document.querySelectorAll('#cards .card').length === 2")
        person.until("document.querySelector('#effects svg rect')")
        assert person.axe() == []
        person.go("price")
        person.until("document.querySelector('#verdict').textContent.includes('epsilon 0.7')")
        assert person.see("document.querySelector('#epsilon').value") == "0.7"
        quiet(person, address)
    assert person.actions < MOST_ACTIONS, (person.clicks, person.keys)
    saved = Schema.from_toml(tmp_path / "adult.toml")
    assert set(saved.public) == set(PUBLIC)
    assert {c.name for c in saved.columns} == {c.name for c in schema.columns}
    assert saved.label.role == "private"
    ledger = (tmp_path / "adult-studio" / "ledger.jsonl").read_text(encoding="utf-8")
    assert len(ledger.splitlines()) == 3
    assert (tmp_path / "adult-studio" / "model-2.html").exists()


def test_two_hundred_columns_with_a_dictionary(tmp_path: Path, browser: Chromium) -> None:
    wide_file(tmp_path)
    with served(tmp_path, "wide.csv", "--dictionary", "dictionary.csv") as address:
        person = Person(browser, address)
        assert "200 columns" in person.text("#about")
        assert person.axe() == []
        wide_walk(person)
        trained(person)
        assert person.axe() == []
        quiet(person, address)
        person.until("document.querySelector('#report').getAttribute('src') === 'report/model-1'")
    counted = (person.clicks, person.keys)
    assert sum(counted) <= MOST_ACTIONS, counted
    stated = Path(__file__).parents[2].joinpath("docs/studio.md").read_text(encoding="utf-8")
    assert f"{person.clicks} clicks and {person.keys} keys" in stated, counted
    saved = Schema.from_toml(tmp_path / "wide.toml")
    assert (len(saved.public), len(saved.private)) == (40, 119)
    assert saved.label.classes == ("no", "yes")


def test_hostile_names_are_text_and_keys_are_enough(tmp_path: Path, browser: Chromium) -> None:
    names = ["<img src=x onerror=alert(1)>", "x" * 10_000, "a\x07\u202eb", "y"]
    header = ",".join(f'"{name}"' for name in names)
    (tmp_path / "rows.csv").write_text(f"{header}\n1,2,3,no\n4,5,6,yes\n", encoding="utf-8")
    with served(tmp_path, "rows.csv") as address:
        person = Person(browser, address)
        shown = person.see(
            "[...document.querySelectorAll('#rows th')].map((e) => e.firstChild.textContent)"
        )
        assert shown[0] == names[0]
        assert shown[1] == "x" * 60 + "…"
        assert shown[2] == "a\\u0007\\u202eb"
        assert person.see("document.querySelectorAll('img').length") == 0
        # The label, a public column and a step back without a mouse.
        person.see("document.querySelector('#rows input[type=checkbox]').focus()")
        for _ in range(3):
            person.press("ArrowDown")
        person.press("l")
        person.until("document.querySelectorAll('#rows .badge:not([hidden])').length === 1")
        person.see("document.querySelector('#rows input[type=checkbox]').focus()")
        person.press("p")
        person.until("document.querySelectorAll('#rows .public[aria-pressed=true]').length === 1")
        assert "Undo takes it back" in person.text("#said")
        person.until("document.querySelector('#rows svg')")
        person.press("v")
        person.until("document.querySelectorAll('#rows .public[aria-pressed=true]').length === 0")
        assert person.see("document.querySelectorAll('#rows svg').length") == 0
        for view in VIEWS:
            person.go(view)
            person.settled()
            assert person.axe() == []
        for scheme in ("light", "dark"):
            for width in (320, 768):
                browser.view(width=width, height=800, scheme=scheme)
                for view in VIEWS:
                    person.see(f"location.hash = '#{view}'")
                    person.settled()
                    assert person.see("document.documentElement.scrollWidth") <= width, view
                    assert person.axe() == []
        quiet(person, address)


def test_every_class_has_its_effects_and_an_old_price_is_marked(
    tmp_path: Path, browser: Chromium
) -> None:
    lines = [f"{place % 7},{'abc'[place * place % 7 % 3]}" for place in range(400)]
    (tmp_path / "rows.csv").write_text("x,y\n" + "\n".join(lines) + "\n", encoding="utf-8")
    (tmp_path / "s.toml").write_text(
        '[label]\nname = "y"\nrole = "private"\nclasses = ["a", "b", "c"]\n'
        '[columns.x]\nrole = "private"\nkind = "number"\nbounds = [0, 7]\n',
        encoding="utf-8",
    )
    with served(tmp_path, "rows.csv", "--schema", "s.toml") as address:
        person = Person(browser, address)
        person.go("price")
        person.until("document.querySelector('#curve svg')")
        person.settled()
        old = person.see(
            "(() => { const e = document.querySelector('#epsilon'); e.value = '4';"
            " e.dispatchEvent(new Event('input'));"
            " return document.querySelector('#priced').matches('[aria-busy]'); })()"
        )
        assert old
        person.until("document.querySelector('#verdict').textContent.includes('epsilon 4')")
        assert not person.see("document.querySelector('#priced').matches('[aria-busy]')")
        person.go("train")
        person.until("document.querySelectorAll('#commands li').length === 3")
        person.click("#start")
        trained(person)
        told = person.see("[...document.querySelector('#effect').options].map((o) => o.text)")
        assert sorted(told) == ["x, on a", "x, on b", "x, on c"]
        assert person.axe() == []


def test_a_training_can_be_stopped_and_the_page_closed(tmp_path: Path, browser: Chromium) -> None:
    adult(tmp_path)
    words = ("adult.csv", "--schema", "known.toml")
    with served(tmp_path, *words) as address:
        person = Person(browser, address)
        person.go("train")
        person.until("document.querySelectorAll('#commands li').length === 3")
        person.click("#start")
        person.until("document.querySelector('#progress-words').textContent.includes('model-1')")
        # Closing the window and opening it again finds the training under way.
        person = Person(browser, address)
        person.go("train")
        person.until("!document.querySelector('#stop').disabled")
        person.click("#stop")
        person.until("document.querySelector('#run-message').textContent.includes('Stopped')", 60)
        assert person.see("!document.querySelector('#start').disabled")
    assert not (tmp_path / "adult-studio" / "model-1.json").exists()


@pytest.mark.skipif("HALFMASK_DATA" not in os.environ, reason="set HALFMASK_DATA for real tables")
def test_a_real_table_with_another_schema(tmp_path: Path, browser: Chromium) -> None:
    import lzma

    data = Path(os.environ["HALFMASK_DATA"]) / "tables"
    if not (data / "bank.csv.xz").exists():
        pytest.skip("bank.csv.xz is not in HALFMASK_DATA")
    rows = lzma.decompress((data / "bank.csv.xz").read_bytes())
    (tmp_path / "bank.csv").write_bytes(rows)
    with served(tmp_path, "bank.csv", "--dictionary", data / "bank.toml") as address:
        person = Person(browser, address)
        known = person.see(
            "[...document.querySelectorAll('#rows input[type=text]')].filter((e) => e.value).length"
        )
        assert known >= len(Schema.from_toml(data / "bank.toml").columns)
        assert (
            person.see("document.querySelectorAll('#rows .public[aria-pressed=true]').length") == 0
        )
        quiet(person, address)
