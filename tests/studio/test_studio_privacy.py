"""Of a private column nothing reaches the page: whatever it holds, every answer is the same."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from workbench import Bench, bench, write_rows

SECRET = "melanoma-7421"
NAMES = ("age", "city", "person_id", "score", "y")
CELLS = st.one_of(
    st.just(""),
    st.just(SECRET),
    st.integers(-(10**6), 10**6).map(str),
    st.sampled_from(["NA", "true", "2024-01-31", "1e400", "no", "yes", "x" * 300, "a|b"]),
)


@st.composite
def two_tables(draw: Any) -> tuple[dict[str, list[str]], dict[str, list[str]], set[str]]:
    """Rows twice, with the same public columns and any private ones; and which are public."""
    rows = draw(st.integers(1, 12))
    public = draw(st.sets(st.sampled_from(NAMES)))
    one, other = {}, {}
    for name in NAMES:
        cells = st.lists(CELLS, min_size=rows, max_size=rows)
        one[name] = draw(cells)
        if name in public:
            one[name] = [cell.replace(SECRET, "known") for cell in one[name]]
        other[name] = one[name] if name in public else draw(cells)
    return one, other, public


def asked(studio: Bench, public: set[str], unit: bool) -> None:
    """All that a page can ask for without training, after the choices of a person."""
    places = {name: place for place, name in enumerate(NAMES)}
    studio.get("api/state")
    studio.post("api/change", {"ids": [places["y"]], "part": "label"})
    studio.post("api/change", {"ids": [places["y"]], "known": "no | yes"})
    studio.post("api/change", {"ids": [places["age"]], "known": "0..100"})
    studio.post("api/change", {"ids": [places["score"]], "known": "one"})
    studio.post("api/change", {"ids": [places[name] for name in public], "role": "public"})
    if unit and "person_id" in public:
        studio.post("api/change", {"ids": [places["person_id"]], "part": "unit"})
        studio.post("api/change", {"ids": [places["person_id"]], "known": "2"})
    for name, place in places.items():
        shown = name in public and not (unit and name == "person_id")
        assert (studio.get(f"api/picture/{place}") is not None) == shown
    for epsilon in (0.3, 30):
        studio.get(f"api/price?epsilon={epsilon}&delta=1e-6")
    studio.get("api/plan?epsilon=1&delta=1e-6&total=2")
    studio.post("api/save", code=studio.post("api/undo") and 422)
    studio.post("api/redo")
    studio.get("api/state")
    studio.get("api/results")


def answers(
    columns: dict[str, list[str]], ask: Callable[[Bench], None], schema: str | None = None
) -> tuple[Sequence[bytes], dict[str, bytes]]:
    """Every body the server sent, and every file it left."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_rows(folder, columns)
        if schema is not None:
            (folder / "rows.toml").write_text(schema)
        with bench(folder) as studio:
            ask(studio)
        left = {file.name: file.read_bytes() for file in folder.glob("*") if file.is_file()}
        del left["rows.csv"]
        return [answer.body for answer in studio.said], left


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(two_tables(), st.booleans())
def test_answers_do_not_depend_on_private_values(
    tables: tuple[dict[str, list[str]], dict[str, list[str]], set[str]], unit: bool
) -> None:
    one, other, public = tables
    said, left = answers(one, lambda studio: asked(studio, public, unit))
    again, also = answers(other, lambda studio: asked(studio, public, unit))
    assert said == again
    assert left == also
    assert not any(SECRET.encode() in body for body in (*said, *left.values()))


MADE = """
[label]
name = "y"
role = "private"
classes = ["no", "yes"]
[columns]
age = { role = "private", kind = "number", bounds = [0, 100] }
city = { role = "private", kind = "category", categories = ["one"] }
person_id = { role = "private", kind = "category", categories = ["one"] }
score = { role = "private", kind = "category", categories = ["one"] }
decade = { public = "round(age, 10)" }
group_id = { public = "band(age, 18, 65)" }
town_id = { public = "prefix(city, 1)" }
both = { public = "join(city, score)" }
"""


def asked_of_made(studio: Bench, public: set[str]) -> None:
    """What a page asks for where a schema makes columns of others."""
    studio.get("api/state")
    ids = [place for place, name in enumerate(NAMES) if name in public]
    studio.post("api/change", {"ids": ids, "role": "public"})
    for epsilon in (0.3, 30):
        studio.get(f"api/price?epsilon={epsilon}&delta=1e-6")
    studio.get("api/plan?epsilon=1&delta=1e-6&total=2")
    # What was seen while a column was public is not told of it afterwards.
    studio.post("api/change", {"ids": list(range(len(NAMES))), "role": "public"})
    studio.get("api/price?epsilon=1&delta=1e-6")
    studio.post("api/change", {"ids": list(range(len(NAMES))), "role": "private"})
    studio.get("api/price?epsilon=1&delta=1e-6")


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(two_tables())
def test_answers_do_not_depend_on_private_values_through_a_made_column(
    tables: tuple[dict[str, list[str]], dict[str, list[str]], set[str]],
) -> None:
    one, other, public = tables
    said, left = answers(one, lambda studio: asked_of_made(studio, public), MADE)
    again, also = answers(other, lambda studio: asked_of_made(studio, public), MADE)
    # Two answers were given while every column was public.
    assert (said[:-4], said[-2:]) == (again[:-4], again[-2:])
    assert left == also


@pytest.mark.parametrize(
    "made", ["decade", "person_id"], ids=["a made column", "one that is named like an id"]
)
def test_a_bad_private_cell_is_not_told_through_a_column_that_is_made_of_it(
    tmp_path: Path, made: str
) -> None:
    schema = (
        '[label]\nname = "y"\nrole = "private"\nclasses = ["no", "yes"]\n'
        '[columns.age]\nrole = "private"\nkind = "number"\nbounds = [0, 100]\n'
        f'[columns.{made}]\npublic = "round(age, 10)"\n'
    )
    told = []
    for cell in ("33", SECRET):
        ages = [str(20 + place % 50) for place in range(60)]
        ages[7] = cell
        (tmp_path / "rows.toml").write_text(schema)
        write_rows(tmp_path, {"age": ages, "y": ["no", "yes"] * 30})
        with bench(tmp_path) as studio:
            told.append(studio.get("api/price?epsilon=1&delta=0.5"))
    assert told[0] == told[1]
    assert told[0]["faults"] == []
    assert any("delta" in each for each in told[0]["warnings"])  # the check went to its end


def test_a_column_made_of_public_ones_is_looked_at(tmp_path: Path) -> None:
    write_rows(tmp_path, {"age": ["20", "30", "x"], "y": ["no", "yes", "no"]})
    (tmp_path / "rows.toml").write_text(
        '[label]\nname = "y"\nrole = "private"\nclasses = ["no", "yes"]\n'
        '[columns.age]\nrole = "public"\nkind = "number"\n'
        '[columns.decade]\npublic = "round(age, 10)"\n'
    )
    with bench(tmp_path) as studio:
        faults = studio.get("api/price?epsilon=1&delta=1e-6")["faults"]
        assert ["row 3" in fault for fault in faults] == [True, True]


def test_the_check_can_fail() -> None:
    """A public column with the same cells does reach the page."""
    columns = {name: [SECRET, "no"] for name in NAMES}
    said, _ = answers(columns, lambda studio: asked(studio, {"city"}, False))
    assert any(SECRET.encode() in body for body in said)


def test_what_was_seen_of_a_public_column_is_gone_when_it_is_private_again(tmp_path: Path) -> None:
    write_rows(tmp_path, {"age": ["20", "30", SECRET], "y": ["no", "yes", "no"]})
    with bench(tmp_path) as studio:
        before = studio.get("api/state")["columns"][0]
        assert (before["role"], before["kind"]) == ("private", None)
        open_now = studio.post("api/change", {"ids": [0], "role": "public"})["columns"][0]
        assert open_now["kind"] == "category"
        assert SECRET in json.dumps(studio.get("api/picture/0"))
        after = studio.post("api/change", {"ids": [0], "role": "private"})["columns"][0]
        assert after == before
        assert studio.get("api/picture/0") is None
        for part in ("out", "unit"):
            studio.post("api/change", {"ids": [0], "part": part})
            assert studio.get("api/picture/0") is None


def test_every_column_starts_private_whatever_a_dictionary_or_its_name_says(
    tmp_path: Path,
) -> None:
    write_rows(tmp_path, {"public": ["1"], "role": ["public"], "y": ["no"]})
    (tmp_path / "d.csv").write_text("name,kind,role,low,high\npublic,number,public,0,9\n")
    (tmp_path / "o.toml").write_text(
        '[label]\nname = "y"\nrole = "public"\nclasses = ["no", "yes"]\n'
        '[columns.role]\nrole = "public"\nkind = "category"\ncategories = ["public"]\n'
    )
    with bench(tmp_path, dictionaries=["d.csv", "o.toml"]) as studio:
        columns = studio.get("api/state")["columns"]
        assert {column["role"] for column in columns} == {"private"}
        assert [column["text"] for column in columns] == ["0..9", "public", "no | yes"]


def test_a_training_that_meets_a_bad_private_cell_does_not_say_where(tmp_path: Path) -> None:
    cells = [str(place) for place in range(40)]
    cells[23] = SECRET
    labels = ["no", "yes"] * 20
    write_rows(tmp_path, {"age": cells, "y": labels})
    with bench(tmp_path, label="y") as studio:
        studio.post("api/change", {"ids": [0], "known": "0..100"})
        studio.post("api/change", {"ids": [1], "known": "no | yes"})
        message = finished(studio)["message"]
        assert "does not hold what was declared" in message
        assert "halfmask check rows.csv" in message
        told = b"".join(answer.body for answer in studio.said).decode()
        assert SECRET not in told
        assert "row 24" not in told


@pytest.mark.slow
def test_a_whole_training_shows_no_undeclared_private_value(tmp_path: Path) -> None:
    ages = [str(place % 80) for place in range(400)]
    cities = [SECRET, "north", "south", "north"] * 100
    labels = ["no", "yes"] * 200
    write_rows(tmp_path, {"age": ages, "city": cities, "y": labels})
    with bench(tmp_path, label="y") as studio:
        for place, known in enumerate(("0..80", "north | south", "no | yes")):
            studio.post("api/change", {"ids": [place], "known": known})
        studio.post("api/change", {"ids": [0], "role": "public"})
        assert finished(studio)["state"] == "done"
        found = studio.get("api/results")
        assert found["models"] == ["model-1"]
        assert found["ledger"]["charges"] == 1
        assert studio.get("api/result/model-1")["epsilon"] == "1"
        assert b"Privacy report" in studio.get("report/model-1").body
        studio.get("api/picture/0")
        assert not any(SECRET.encode() in answer.body for answer in studio.said)
        # A budget that is used up is refused in words, and a running training can be stopped.
        studio.post("api/train", {"epsilon": 1.5, "delta": 1e-6, "total": 9})
        studio.post("api/train", {"epsilon": 1, "delta": 1e-6, "total": 9}, code=422)
        studio.post("api/stop")
        assert ended(studio)["state"] == "stopped"
        refused = finished(studio, epsilon=50)
        assert refused["state"] == "failed"
        assert "budget" in refused["message"].lower()
        assert studio.get("api/results")["models"] == ["model-1"]


def finished(studio: Bench, epsilon: float = 1) -> Any:
    studio.post("api/train", {"epsilon": epsilon, "delta": 1e-6, "total": 2})
    return ended(studio)


def ended(studio: Bench) -> Any:
    for _ in range(1200):
        job = studio.get("api/training")["job"]
        if job["state"] != "running":
            return job
        time.sleep(0.1)
    raise AssertionError("the training does not end")
