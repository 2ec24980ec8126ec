"""Every sentence of statements and reports stands in docs/glossary.md, with what it means."""

from __future__ import annotations

import html
import re
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pytest

from halfmask import HalfmaskClassifier, HalfmaskRegressor, Schema
from halfmask.accounting.ledger import Ledger
from halfmask.audit.model_audit import Inference
from halfmask.methods.auto import Problem, choose
from halfmask.report.card import markdown
from halfmask.report.facts import Audit, Facts, gather
from halfmask.report.plots import meaning
from halfmask.statement import Statement
from halfmask.table import Task

pytest.importorskip("matplotlib")
from halfmask.report.html import page

GLOSSARY = Path(__file__).parents[2] / "docs" / "glossary.md"
_NUMBER = re.compile(r"(?<![a-z])[-+]?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?%?")
_NAMES = ("age", "dose", "person", "sick", "tens", "public0", "yes", "no", "result", "model")


def shape(sentence: str) -> str:
    """A sentence without what differs from table to table: numbers, names, spaces."""
    text = _NUMBER.sub("N", html.unescape(sentence).lower().replace("\\", ""))
    text = text.replace(" (N releases)", "")
    for name in _NAMES:
        text = re.sub(rf"(?<![\w-])'?{name}'?(?![\w-])", "X", text)
    text = re.sub(r"X(?:(?:, | and )X)+", "X", text)
    return " ".join(re.sub(r"[^\w\s.]", " ", text).split()).rstrip(".")


def sentences(text: str) -> list[str]:
    """Prose in parts that end with a full stop, a question mark or a colon."""
    found = re.split(r"(?<=[.?:;])\s+(?=[A-Z(\w])", " ".join(text.split()))
    return [each.strip() for each in found if len(re.findall(r"[a-z]{2,}", each)) >= 4]


def prose_of_page(text: str) -> list[str]:
    """Paragraphs, captions, answers and points; not the statement, tables, styles or figures."""
    text = re.sub(r"<(style|script|svg|pre|table|title)\b.*?</\1>", " ", text, flags=re.DOTALL)
    parts = re.findall(r"<(p|li|dt|dd|figcaption|summary)\b[^>]*>(.*?)</\1>", text, flags=re.DOTALL)
    plain = [re.sub(r"<[^>]+>", "", body) for _, body in parts]
    return [sentence for body in plain for sentence in sentences(body)]


def prose_of_statement(statement: Statement) -> list[str]:
    text = re.sub(r"^  ([\w-]+):\s", r"\n", statement.text(width=10_000), flags=re.MULTILINE)
    lines = [line.removeprefix("  - ").strip() for line in text.splitlines()]
    return [sentence for line in lines for sentence in sentences(line)]


def table(rows: int = 300) -> pa.Table:
    rng = np.random.default_rng(1)
    age, dose = rng.uniform(0, 90, rows), rng.uniform(0, 10, rows)
    sick = np.where(dose + age / 20 + rng.normal(size=rows) > 7, "yes", "no")
    person = [f"p{place // 2}" for place in range(rows)]
    return pa.table({"age": age, "dose": dose, "sick": sick, "person": person, "result": dose})


def schema(label: str = "private", age: str = "public", **more: Any) -> Schema:
    given: dict[str, Any] = {"name": "sick", "role": label, "classes": ["no", "yes"]}
    if more.pop("number", False):
        given = {"name": "result", "role": label, "bounds": [0, 10]}
    data = {
        "label": given | ({"missing": "skip"} if more.pop("skip", False) else {}),
        "columns": {
            "age": {"role": age, "kind": "number", "bounds": [0, 90]},
            "dose": {"role": "private", "kind": "number", "bounds": [0, 10]},
        },
    }
    return Schema.from_dict({**data, **more})


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("glossary")
    pyarrow.csv.write_csv(table(200), folder / "test.csv")
    pyarrow.csv.write_csv(table(300), folder / "train.csv")
    unit = {"unit": {"column": "person", "max_rows": 2}}
    made = schema().to_dict()["columns"] | {"tens": {"public": "round(dose, 10)"}}
    fits: dict[str, Any] = {
        "usual": HalfmaskClassifier(schema(), epsilon=4.0),
        "bad": HalfmaskClassifier(schema(age="private", skip=True, **unit), method="gd"),
        "seeded": HalfmaskClassifier(
            schema("public", skip=True), method="sgd", epsilon=20.0, unsafe_seed=1
        ),
        "withheld": HalfmaskClassifier(schema("public"), relation="withhold", epsilon=9.0),
        "constant": HalfmaskClassifier(schema(age="private"), epsilon=0.2),
        "number": HalfmaskRegressor(schema(number=True), epsilon=20.0),
        "functions": HalfmaskClassifier(
            schema(columns=made), method="gd", public=lambda rows: np.asarray(rows["age"]) > 50
        ),
    }
    found: list[str] = []
    facts: list[Facts] = []
    for name, estimator in fits.items():
        model = estimator.fit(table()).model_
        model.save(folder / name)
        told: dict[str, Any] = (
            {"data": folder / "test.csv"} if name in ("usual", "bad", "number") else {}
        )
        told |= {"reference": folder / "train.csv", "by": "sick"} if name == "usual" else {}
        told["with_effects"] = name == "bad"
        facts.append(gather(folder / name, **told))
        found += prose_of_statement(model.privacy)
    first = facts[0]
    audit = Audit(
        mechanism="model", claimed=1, lower_bound=2, confidence=0.95, relation="replace",
        refuted=True,
    )  # fmt: skip
    guess = Inference(column="dose", without_model=0.1, with_model=0.2, bound=0.3, rows=9)
    ledger = Ledger.create(folder / "book", epsilon=9.0, delta=1e-6)
    for _ in range(2):
        ledger.charge(first.statement.events, "one training")
    facts.append(replace(first, audits=(audit,), inferences=(guess,)))
    facts.append(gather(folder / "usual", ledger=folder / "book", with_effects=False))
    nothing = replace(first.statement, events=(), released=(), private=())
    found += prose_of_statement(nothing)
    facts.append(replace(first, model=replace(first.model, privacy=nothing), gains=()))
    with pytest.MonkeyPatch.context() as patch:
        # Figures hold no sentences, and take most of the time.
        patch.setattr("halfmask.report.html.inline_svg", lambda *_, **__: "")
        patch.setattr("halfmask.report.plots.svg", lambda *_: "")
        for each in facts:
            found += prose_of_page(page(each))
    found += sentences(meaning("result", classes=False))
    assert "What is promised" in markdown(first)
    return list(dict.fromkeys(found))


def test_every_sentence_of_statements_and_reports_is_in_the_glossary(told: list[str]) -> None:
    text = shape(re.sub(r"[|*`\n]", " ", GLOSSARY.read_text(encoding="utf-8")))
    missing = [each for each in told if shape(each) not in text]
    assert not missing, "docs/glossary.md lacks:\n" + "\n".join(missing)


def test_every_reason_for_a_method_is_in_the_glossary() -> None:
    """They stand in the report, under how the model was trained."""
    text = shape(re.sub(r"[|*`\n]", " ", GLOSSARY.read_text(encoding="utf-8")))
    sizes = product((0, 3, 40), (0, 1, 40), (True, False), (0, 2, 5), (True, False))
    reasons = set()
    for public, private, hidden, classes, levels in sizes:
        if public + private == 0 or not (private or hidden):
            continue
        task: Task = "classification" if classes else "regression"
        problem = Problem(
            public_columns=public,
            private_columns=private,
            label_private=hidden,
            task=task,
            classes=classes,
            levels=levels,
        )
        reasons.add(choose(problem).reason)
    assert len(reasons) > 3
    missing = [each for each in sorted(reasons) if shape(each) not in text]
    assert not missing, "docs/glossary.md lacks:\n" + "\n".join(missing)


def test_the_reader_of_prose_finds_sentences(told: list[str]) -> None:
    """Fewer would mean that it has gone blind."""
    assert len(told) > 60
    assert any("private values" in each for each in told)
