"""The audit of the encoding: silent on ours, loud on the typing by columns that it replaced."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from click.testing import CliRunner, Result

from halfmask import table
from halfmask.audit.neighbours import CONTAINERS, audit_encoding, containers
from halfmask.cli import main
from halfmask.data import encoding, frames
from halfmask.data.cells import level_text
from halfmask.data.frames import TEXT
from halfmask.errors import DataError


def run(*args: object) -> Result:
    return CliRunner().invoke(main, ["audit", "--mechanism", "encoding", *map(str, args)])


def _old_column(series: Any, name: str) -> Any:
    """A column by the type that Arrow picks for all of its cells."""
    try:
        return series.to_arrow()
    except (pa.ArrowException, TypeError, ValueError):
        return pa.array([_old_object(value) for value in series.to_list()], TEXT)


def _old_object(value: Any) -> str | None:
    missing = value is None or value != value or str(value) in ("<NA>", "NaT")
    return None if missing else level_text(value)


def _old_texts(frame: pa.Table, name: str) -> pa.ChunkedArray:
    """Texts by the type of the column."""
    values = frame.column(name)
    if pa.types.is_dictionary(values.type):
        values = values.cast(values.type.value_type)
    try:
        if pa.types.is_boolean(values.type):
            values = pc.if_else(values, pa.scalar("True", TEXT), pa.scalar("False", TEXT))
        elif pa.types.is_floating(values.type):
            values = _old_floats(values)
        values = pc.utf8_trim_whitespace(values.cast(TEXT))
    except pa.ArrowException:
        raise DataError(f"Column {name!r} holds {values.type}: convert it to text.") from None
    missing = pc.match_substring_regex(values, r"\A(|NA|NaN|nan)\z")
    return pc.if_else(missing, pa.scalar(None, TEXT), values)


def _old_floats(values: pa.ChunkedArray) -> pa.ChunkedArray:
    values = pc.if_else(pc.is_nan(values), pa.scalar(None, values.type), values).cast(pa.float64())
    whole = pc.and_(pc.less(pc.abs(values), 2.0**53), pc.equal(values, pc.floor(values)))
    as_int = pc.if_else(whole, values, 0.0).cast(pa.int64(), safe=False).cast(TEXT)
    return pc.if_else(whole, as_int, values.cast(TEXT))


def _old_codes(values: pa.ChunkedArray, levels: tuple[Any, ...]) -> np.ndarray:
    words, places = [], []
    for code, level in enumerate(levels):
        text = level_text(level)
        low = text.casefold()
        same = [low, low.title(), low.upper()] if low in ("true", "false") else [text]
        words += same
        places += [code] * len(same)
    found = pc.fill_null(pc.index_in(values, value_set=pa.array(words, TEXT)), len(words))
    return np.asarray([*places, -1], dtype=np.int64)[np.asarray(found)]


@pytest.fixture
def old_typing(monkeypatch: pytest.MonkeyPatch) -> None:
    """How columns were read when their type decided the text of a level."""
    monkeypatch.setattr(frames, "_column", _old_column)
    for module in (encoding, table):
        monkeypatch.setattr(module, "texts", _old_texts)
        monkeypatch.setattr(module, "level_codes", _old_codes)


@pytest.mark.slow
@pytest.mark.usefixtures("old_typing")
def test_the_command_finds_the_old_typing_within_10000_cases() -> None:
    # Seeded: with the old typing back, some draws crash pyarrow itself (dates beside floats).
    finding = audit_encoding(cases=2500, seed=12)
    assert finding.details["found"][0]["other_rows_changed"] > 0
    assert finding.lower_bound > finding.claimed == 1


def test_no_other_row_changes_and_the_fields_are_those_of_an_audit() -> None:
    done = run("--cases", 1500, "--json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    fields = {"mechanism", "claimed", "lower_bound", "confidence", "relation", "refuted", "cases"}
    assert fields <= set(found)
    assert (found["mechanism"], found["refuted"], found["cases"]) == ("encoding", False, 1500)
    assert (found["found"], found["cases_that_changed_other_rows"]) == ([], 0)
    assert sum(found["containers"].values()) == 1500


@pytest.mark.parametrize("container", CONTAINERS)
def test_every_container_is_audited(container: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("halfmask.audit.neighbours.containers", lambda: [container])
    finding = audit_encoding(cases=150)
    assert finding.details["found"] == []
    assert finding.details["containers"] == {container: 150}


def test_without_pandas_and_polars_the_rest_is_audited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert containers() == ["pyarrow", "parquet", "csv"]


@pytest.mark.slow
def test_no_other_row_changes_in_20000_cases() -> None:
    assert audit_encoding(cases=20_000).details["found"] == []


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["--cases", 0], "at least 1 case"),
        (["--runs", 500], "--cases N"),
        (["--relation", "withhold"], "replaced cells"),
    ],
)
def test_mistakes_of_the_user_exit_2(args: list[object], says: str) -> None:
    done = run(*args)
    assert done.exit_code == 2
    assert says in done.output


def test_cases_are_for_the_encoding_alone() -> None:
    done = CliRunner().invoke(main, ["audit", "--mechanism", "gd", "--cases", "5"])
    assert done.exit_code == 2
    assert "--runs" in done.output
