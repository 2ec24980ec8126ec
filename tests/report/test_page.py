"""The page says what the statement says, first things first, and user text stays text."""

from __future__ import annotations

import json
import re
import shutil
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import pytest
from hostile import HOSTILE, SCRIPT, Trained, run

from halfmask.model import Model
from halfmask.report.html import write_report


class Reader(HTMLParser):
    """Collects elements, the visible text and the embedded JSON."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text, self.embedded = "", ""
        self._inside: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag in ("script", "style"):
            self._inside.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if self._inside and self._inside[-1] == tag:
            self._inside.pop()

    def handle_data(self, data: str) -> None:
        if self._inside == ["script"]:
            self.embedded += data
        elif not self._inside:
            self.text += data

    def headings(self) -> list[int]:
        return [int(tag[1]) for tag, _ in self.elements if re.fullmatch("h[1-6]", tag)]


@pytest.fixture(scope="module")
def page(trained: Trained, tmp_path_factory: pytest.TempPathFactory) -> str:
    out = tmp_path_factory.mktemp("page") / "report.html"
    run("report", trained.folder, "--out", out, "--data", trained.data)
    return out.read_text(encoding="utf-8")


def test_embedded_statement_equals_the_models(page: str, trained: Trained) -> None:
    assert json.loads(Reader(page).embedded) == Model.load(trained.folder).privacy.to_json()


def test_hostile_names_stay_text(page: str) -> None:
    read = Reader(page)
    scripts = [attributes for tag, attributes in read.elements if tag == "script"]
    assert scripts == [{"type": "application/json", "id": "statement"}]
    assert not [tag for tag, _ in read.elements if tag in ("img", "b", "iframe", "object")]
    for name in HOSTILE:
        assert name in read.text
    assert SCRIPT not in page


def test_the_guarantee_comes_first(page: str) -> None:
    text = " ".join(Reader(page).text.split())
    order = [
        "Differentially private: epsilon 2 at delta 1e-05, relation replace",
        "Who is protected?",
        "Which columns are not protected at all?",
        "Not covered by this promise",
        "What an attacker can gain at most",
        "Epsilon at every delta",
        "Budget spent over time",
        "The statement in full",
    ]
    text = text[text.index("What is promised", text.index("The statement in full")) :]
    places = [text.index(words) for words in order]
    assert places == sorted(places)


def test_headings_descend_one_level_at_a_time(page: str) -> None:
    levels = Reader(page).headings()
    assert levels.count(1) == 1
    assert levels[0] == 1
    assert all(after - before <= 1 for before, after in pairwise(levels))


def test_nothing_is_fetched(page: str) -> None:
    read = Reader(page)
    for tag, attributes in read.elements:
        for name in ("src", "href", "xlink:href", "action"):
            value = attributes.get(name)
            assert value is None or value.startswith(("#", "data:")), (tag, value)
    assert "url(http" not in page
    assert "@import" not in page


def test_ids_are_unique_and_all_references_lead_somewhere(page: str) -> None:
    read = Reader(page)
    ids = [attributes["id"] for _, attributes in read.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    targets = re.findall(r'(?:href="|url\()#([^")]+)', page)
    assert targets
    assert set(targets) <= set(ids)


def test_every_figure_is_named_and_has_its_numbers(page: str) -> None:
    read = Reader(page)
    figures = [attributes for tag, attributes in read.elements if tag == "svg"]
    # How many columns have effects that noise cannot have made is up to the noise.
    effects = [f for f in figures if "add to the score" in str(f["aria-label"])]
    assert len(figures) - len(effects) == 5
    assert all(f["role"] == "img" and f["aria-label"] for f in figures)
    # The attacker's table stands beside it.
    assert page.count("The numbers of this figure") == 4 + len(effects)


def test_scores_on_the_users_rows_are_marked(page: str) -> None:
    text = " ".join(Reader(page).text.split())
    assert text.index("not covered by the guarantee") < text.index("accuracy")


def test_a_seeded_model_is_called_not_private(trained: Trained, tmp_path: Path) -> None:
    folder, out = tmp_path / "seeded", tmp_path / "report.html"
    options = ["--schema", trained.schema, "--epsilon", 1, "--out", folder, "--unsafe-seed", 1]
    run("train", trained.data, *options)
    write_report(folder, out)
    text = " ".join(Reader(out.read_text(encoding="utf-8")).text.split())
    assert "Not private: noise is reproducible" in text
    assert "Nobody. The noise was drawn from a fixed seed" in text
    assert "Differentially private:" not in text
    assert 'class="verdict bad"' in out.read_text(encoding="utf-8")


def test_a_refuted_claim_is_shown_beside_the_guarantee(trained: Trained, tmp_path: Path) -> None:
    file = tmp_path / "audit.json"
    audit = {
        "mechanism": "gd",
        "claimed": 2.0,
        "lower_bound": 3.5,
        "confidence": 0.95,
        "relation": "replace",
        "refuted": True,
    }
    file.write_text(json.dumps([audit]), encoding="utf-8")
    write_report(trained.folder, tmp_path / "report.html", audit=file)
    text = Reader((tmp_path / "report.html").read_text(encoding="utf-8")).text
    assert text.index("An audit has refuted") < text.index("Who is protected?")
    assert "REFUTED" in text
    assert "private rows that were passed to the audit: not covered" in text
    file.write_text("{}", encoding="utf-8")
    asked = ["report", trained.folder, "--out", tmp_path / "again.html", "--audit", file]
    assert "audit.json" in run(*asked, code=2).output


def test_an_audit_that_lies_in_the_model_folder_is_pointed_out(
    trained: Trained, tmp_path: Path
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(trained.folder, folder)
    (folder / "audit.json").write_text("{}", encoding="utf-8")
    result = run("report", folder, "--out", tmp_path / "report.html")
    assert "move it out of the model folder" in result.output


def test_budget_and_curve_come_from_the_ledger(trained: Trained) -> None:
    from halfmask.report.facts import gather

    facts = gather(trained.folder)
    assert facts.budget.epsilon == 2.0
    assert facts.budget.charges[-1].epsilon == pytest.approx(2.0, rel=1e-3)
    assert facts.budget.charges[0].time is not None
    for relation, points in facts.curve.items():
        values = [value for _, value in points]
        assert values == sorted(values, reverse=True)
        at_delta = dict(points)[facts.statement.delta]
        assert at_delta == facts.statement.calibrated[relation]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--out", "."], "is a folder: name a file"),
        (["--out", "missing/report.html"], "does not exist: create it first"),
        (["--data", "nowhere.csv"], "nowhere.csv"),
        (["--ledger", "nowhere.jsonl"], "no ledger nowhere.jsonl"),
        (["--format", "pdf"], "'html', 'md', 'json', 'card'"),
    ],
)
def test_mistakes_are_answered(
    trained: Trained,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: list[str],
    words: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    result = run("report", trained.folder, *options, code=2)
    assert words in result.output
    assert "Traceback" not in result.output


def test_a_folder_without_a_model_is_named(tmp_path: Path) -> None:
    assert "There is no model" in run("report", tmp_path, code=2).output


@pytest.mark.slow
def test_facts_beside_a_report_are_those_of_the_json_report(
    trained: Trained, tmp_path: Path
) -> None:
    out, facts = tmp_path / "report.md", tmp_path / "facts.json"
    run("report", trained.folder, "--format", "md", "--out", out, "--facts", facts)
    found = json.loads(facts.read_text(encoding="utf-8"))
    stated = Model.load(trained.folder).privacy.to_json()
    assert found["statement"] == json.loads(json.dumps(stated))
    assert {effect["column"] for effect in found["effects"]} == set(HOSTILE)
    assert out.read_text(encoding="utf-8").startswith("#")
