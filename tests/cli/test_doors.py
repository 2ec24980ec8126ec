"""Ways in and out: pipes, separators, headers, spreadsheets, and files that are there already."""

from __future__ import annotations

import bz2
import gzip
import importlib.util
import json
import lzma
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.ipc
import pytest
from click.testing import CliRunner, Result

from halfmask.cli import main
from halfmask.data.frames import check_columns
from halfmask.data.reading import column_names, read_frame
from halfmask.datasets import load_adult
from halfmask.errors import DataError
from halfmask.model import Model
from halfmask.report.facts import gather

TRAIN, TEST, CENSUS = load_adult()


def halfmask(*words: object, **given: Any) -> Result:
    return CliRunner().invoke(main, [str(word) for word in words], **given)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("doors")
    pyarrow.csv.write_csv(TRAIN.slice(0, 500), folder / "people.csv")
    pyarrow.csv.write_csv(TEST.slice(0, 20), folder / "new.csv")
    (folder / "people.toml").write_text(CENSUS.to_toml())
    words = ("--schema", folder / "people.toml", "--epsilon", 4, "--out", folder / "model")
    done = halfmask("train", folder / "people.csv", *words)
    assert done.exit_code == 0, done.output
    return folder


def test_rows_come_through_standard_input_once(model: Path) -> None:
    """A real pipe, which cannot be read a second time, for commands that look at a file twice."""
    source = [sys.executable, "-c", "from halfmask.cli import main; main()"]
    rows = (model / "people.csv").read_bytes()
    for words in (
        ["predict", str(model / "model"), "-"],
        ["check", "-", "--schema", str(model / "people.toml")],
        ["init", "-", "--label", "income"],
    ):
        done = subprocess.run([*source, *words], input=rows, capture_output=True, timeout=120)
        assert done.returncode == 0, done.stderr.decode()
        assert done.stdout


def test_a_named_pipe_is_read_once(model: Path, tmp_path: Path) -> None:
    pipe = tmp_path / "rows"
    os.mkfifo(pipe)
    writer = threading.Thread(
        target=lambda: pipe.write_bytes((model / "people.csv").read_bytes()), daemon=True
    )
    writer.start()
    words = ("--schema", model / "people.toml", "--epsilon", 4, "--out", tmp_path / "m")
    done = halfmask("train", pipe, *words)
    assert done.exit_code == 0, done.output
    writer.join(5)


def test_bars_separate_too(tmp_path: Path) -> None:
    (tmp_path / "bars.csv").write_text("a|b,c|d\n1|2|3\n")
    assert read_frame(tmp_path / "bars.csv").column_names == ["a", "b,c", "d"]


def test_a_header_twice_is_named_by_position(tmp_path: Path) -> None:
    (tmp_path / "twice.csv").write_text("a,b,a,c,b\n1,2,3,4,5\n")
    with pytest.raises(
        DataError, match="one name for columns 1 and 3, and one for columns 2 and 5"
    ):
        read_frame(tmp_path / "twice.csv")
    with pytest.raises(DataError, match="columns 1 and 3"):
        column_names(tmp_path / "twice.csv")


def test_a_column_without_a_name_is_left_out(tmp_path: Path) -> None:
    """pandas writes its index as one: a template that declares it could not be read."""
    rows = "\n".join(f"{place},{place % 7},{'yn'[place % 2]}" for place in range(600))
    (tmp_path / "rows.csv").write_text(f",dose,ill\n{rows}\n")
    for words in ((), ("--short",)):
        done = halfmask("init", tmp_path / "rows.csv", "--label", "ill", *words)
        assert done.exit_code == 0
        assert "without a name is left out" in done.stderr
        assert '""' not in done.stdout
    (tmp_path / "rows.toml").write_text(
        'label = {name = "ill", role = "private", classes = ["y", "n"]}\n'
        '[columns]\n"dos*" = {role = "private", kind = "number", bounds = [0, 7]}\n'
    )
    words = ("--schema", tmp_path / "rows.toml")
    assert halfmask("check", tmp_path / "rows.csv", *words).exit_code == 0
    words = (*words, "--epsilon", 4, "--out", tmp_path / "model")
    assert halfmask("train", tmp_path / "rows.csv", *words).exit_code == 0
    (tmp_path / "edge.csv").write_text("dose,ill,,\n1,y,,\n")
    done = halfmask("init", tmp_path / "edge.csv", "--label", "ill")
    assert done.exit_code == 2
    assert "columns without a name, 3 and 4: name or remove them" in " ".join(done.stderr.split())


@pytest.mark.parametrize("cell", ["1,5", "1.234,5", "12%", "EUR 3"])
def test_numbers_written_otherwise_are_told_how_to_be_written(tmp_path: Path, cell: str) -> None:
    (tmp_path / "rows.csv").write_text(f"dose;ill\n2;y\n{cell};n\n")
    (tmp_path / "rows.toml").write_text(
        'label = {name = "ill", role = "private", classes = ["y", "n"]}\n'
        '[columns.dose]\nrole = "private"\nkind = "number"\nbounds = [0, 7]\n'
    )
    words = (tmp_path / "rows.csv", "--schema", tmp_path / "rows.toml")
    more = ("--epsilon", 1, "--out", tmp_path / "m")
    for done in (halfmask("check", *words), halfmask("train", *words, *more)):
        assert done.exit_code == 2
        told = " ".join(done.output.split())
        assert "row 2" in told
        assert "such as 1234.5, with a point and without a unit" in told
        assert cell not in told


@pytest.mark.parametrize("role", ["private", "public"])
def test_a_cell_that_is_no_number_gets_advice_for_a_column_or_for_a_label(
    tmp_path: Path, role: str
) -> None:
    rows, schema = tmp_path / "rows.csv", tmp_path / "rows.toml"

    def told(seen: str, ill: str) -> Iterator[str]:
        rows.write_text("seen,ill\n" + f"2024-01-31,{ill}\n" * 30)
        schema.write_text(
            f'label = {{name = "ill", role = "{role}", bounds = [0, 1]}}\n'
            f'[columns.seen]\nrole = "private"\nkind = "{seen}"\n'
            f"bounds = {'[0, 7]' if seen == 'number' else '[2024-01-01, 2024-12-31]'}\n"
        )
        for words in (("check", rows), ("train", rows, "--epsilon", 1, "--out", tmp_path / "m")):
            done = halfmask(*words, "--schema", schema)
            assert done.exit_code == 2
            yield " ".join(done.output.split())

    for answer in told("number", "1"):
        assert 'kind = "date"' in answer
    for answer in told("date", "well"):
        assert "if the labels are classes, write classes = [...] in [label], not bounds" in answer
        assert "as a category" not in answer


def test_all_missing_columns_are_named_at_once(model: Path, tmp_path: Path) -> None:
    pyarrow.csv.write_csv(TEST.slice(0, 5).select(["age", "sex"]), tmp_path / "few.csv")
    done = halfmask("predict", model / "model", tmp_path / "few.csv")
    assert done.exit_code == 2
    for name in ("'workclass'", "'education'", "'race'"):
        assert name in done.stderr
    # A model needs its columns: only before training may one be left out.
    assert "Add them." in done.stderr
    assert "schema" not in done.stderr


def test_a_column_that_is_wanted_itself_is_not_suggested_for_another() -> None:
    frame = pa.table({"education": ["a"], "occupatoin": ["b"]})
    with pytest.raises(DataError, match="Did you mean 'occupatoin'"):
        check_columns(frame, ["education", "occupation"])
    with pytest.raises(DataError) as told:
        check_columns(frame.drop_columns("occupatoin"), ["education", "occupation"])
    assert "Did you mean" not in str(told.value)


CELLS = "86.0,3.18,cityhall,smoker_heavy,2020-12-29,outcomes"
ROW_SCHEMA = """
[label]
name = "outcome"
role = "private"
classes = ["well", "sick"]
[columns]
dose = {role = "private", kind = "number", bounds = [0, 200]}
city = {role = "public", kind = "category"}
smoker = {role = "private", kind = "category", categories = ["yes", "no"]}
"""


@pytest.mark.parametrize("cells", [CELLS, "cityhall,smoker_heavy,outcomes,patient-id"])
def test_no_message_quotes_a_row_that_stands_where_the_header_should(
    model: Path, tmp_path: Path, cells: str
) -> None:
    rows, schema = tmp_path / "rows.csv", tmp_path / "rows.toml"
    rows.write_text(f"{cells}\n" + "\n".join([cells] * 30) + "\n")
    schema.write_text(ROW_SCHEMA)
    commands = [
        ("check", rows, "--schema", schema),
        ("train", rows, "--schema", schema, "--epsilon", 1, "--out", tmp_path / "m"),
        ("predict", model / "model", rows),
        ("evaluate", model / "model", rows),
        ("plan", "--schema", schema, "--data", rows, "--epsilon", 1),
    ]
    if cells == CELLS:
        commands += [("init", rows, "--label", "outcome"), ("init", rows, "--label", "o")]
    for words in commands:
        done = halfmask(*words)
        assert done.exit_code == 2, done.output
        told = " ".join(done.output.split())
        assert not [cell for cell in cells.split(",") if cell in told], told
        if words[0] in ("check", "train", "predict", "init"):
            assert "(Is the line with the names of the columns there?)" in told, told


def test_a_template_is_not_made_of_a_row(tmp_path: Path) -> None:
    rows = tmp_path / "rows.csv"

    def of(header: str) -> Result:
        rows.write_text(f"{header}\n" + ",".join("1" * len(header.split(","))) + "\n")
        return halfmask("init", rows)

    refused = of("86.0,3.18,2020-12-29,true,Bern")
    assert refused.exit_code == 2
    assert refused.stdout == ""
    assert "seems to be a row" in refused.stderr
    assert "3.18" not in refused.stderr
    warned = of("86.0,3.18,true,Bern")
    assert warned.exit_code == 0
    assert "Is the line with the names of the columns there?" in warned.stderr
    for names in ("age,city,ill", "country,2019,2020,2021", "0,1,2,3,y", "1st,2nd.visit,e1"):
        fine = of(names)
        assert fine.exit_code == 0, names
        assert fine.stderr == "", names


def test_a_missing_column_gets_advice_that_fits_what_it_is(model: Path, tmp_path: Path) -> None:
    """To take [unit] out of a schema drops protection, and no model does without its columns."""
    rows, schema = tmp_path / "rows.csv", tmp_path / "rows.toml"
    rows.write_text("dose,city,outcome\n" + "1,a,well\n2,b,sick\n" * 30)
    whole = ROW_SCHEMA.split("smoker")[0]
    train = ("--epsilon", 1, "--out", tmp_path / "m")

    def told(*words: object) -> str:
        done = halfmask(*words)
        assert done.exit_code == 2, done.output
        return " ".join(done.output.split())

    schema.write_text(f'{whole}\n[unit]\ncolumn = "pers"\nmax_rows = 2\n')
    for words in (("check", rows), ("train", rows, *train)):
        answer = told(*words, "--schema", schema)
        assert "no column 'pers'. Add it: without [unit] the guarantee protects one row" in answer
        assert "out of the schema" not in answer
    schema.write_text(whole.replace('"outcome"', '"result"'))
    for words in (("check", rows), ("train", rows, *train)):
        answer = told(*words, "--schema", schema)
        assert "no column 'result'. Add it." in answer
        assert "out of the schema" not in answer
    schema.write_text(whole.replace("dose =", "weight ="))
    for words in (("check", rows), ("train", rows, *train)):
        answer = told(*words, "--schema", schema)
        assert "no column 'weight'. Add it, or leave it out of the schema." in answer
    by = told("evaluate", model / "model", model / "new.csv", "--by", "zzz")
    assert "no column 'zzz'. Name a column of the data with --by." in by


def test_a_spreadsheet_is_answered_with_advice(tmp_path: Path) -> None:
    (tmp_path / "people.xlsx").write_bytes(b"PK\x03\x04rest of a zip file")
    done = halfmask("init", tmp_path / "people.xlsx", "--label", "y")
    assert done.exit_code == 2
    assert "save the sheet as CSV" in done.stderr


def _arrow(rows: bytes) -> bytes:
    table = pyarrow.csv.read_csv(pa.BufferReader(rows))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema) as written:
        written.write_table(table)
    return bytes(sink.getvalue())


@pytest.mark.parametrize(
    ("packed", "advice"),
    [
        (gzip.compress, "packed by gzip: let its name end in .gz"),
        (lzma.compress, "packed by xz: unpack it"),
        (bz2.compress, "packed by bzip2: unpack it"),
        (_arrow, "an Arrow (Feather) file: write it as Parquet or CSV"),
        (lambda rows: b'[{"a": 1, "b": "x"}]', "seems to be JSON: write it as CSV or Parquet"),
        (lambda rows: b'{"a": 1}\n{"a": 2}\n', "seems to be JSON: write it as CSV or Parquet"),
        (lambda rows: b"sep=,\n" + rows, "Is the first line the one with the names"),
        (lambda rows: b"Our people\n" + rows, "expected 1 value as in the header, got 3."),
    ],
)
def test_files_of_another_form_are_called_what_they_are(
    tmp_path: Path, packed: Callable[[bytes], bytes], advice: str
) -> None:
    rows = b"".join(b"%d,%d,x\n" % (place, 7 * place) for place in range(500))
    (tmp_path / "rows.csv").write_bytes(packed(b"a,b,c\n" + rows))
    done = halfmask("init", tmp_path / "rows.csv")
    assert done.exit_code == 2
    assert advice in " ".join(done.stderr.split())
    assert done.stdout == ""


def test_only_a_first_row_that_does_not_fit_asks_for_the_header(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("a,b\n1,2\n1,2,3\n")
    done = halfmask("init", tmp_path / "rows.csv")
    assert "data row 2: expected 2 values as in the header, got 3" in " ".join(done.stderr.split())
    assert "Is the first line" not in done.stderr
    (tmp_path / "rows.csv").write_text("[a],[b]\n1,2\n")
    assert halfmask("init", tmp_path / "rows.csv").exit_code == 0


@pytest.mark.parametrize("content", ["x", "a,b\n1,2,3\n"])
def test_a_file_that_is_only_called_parquet_is_called_so(tmp_path: Path, content: str) -> None:
    (tmp_path / "people.parquet").write_text(content)
    done = halfmask("init", tmp_path / "people.parquet")
    assert done.exit_code == 2
    assert "is named like a Parquet file and is none" in done.stderr
    (tmp_path / "people.parquet").write_text("a,b\n1,2\n")
    assert halfmask("init", tmp_path / "people.parquet").exit_code == 0


def test_a_studio_that_nobody_used_names_no_draft(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    pytest.importorskip("uvicorn")
    (tmp_path / "rows.csv").write_text("age,y\n1,no\n2,yes\n")

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("halfmask.studio.server.serve_studio", interrupted)
    before = signal.getsignal(signal.SIGTERM)
    try:
        done = halfmask("studio", "rows.csv", "--no-browser")
    finally:
        signal.signal(signal.SIGTERM, before)
    assert "Ended. Nothing was changed." in done.stderr
    assert "draft is in" not in done.stderr


def test_json_before_a_command_is_an_error_in_json() -> None:
    for words in (("--json",), ("--json", "demo"), ("--nope", "demo", "--json")):
        done = halfmask(*words)
        assert done.exit_code == 2
        assert json.loads(done.stdout)["error"]["message"]
    assert "--json goes after a command" in halfmask("--json").stderr


def test_scores_of_one_row_have_no_minus_before_zero(model: Path, tmp_path: Path) -> None:
    pyarrow.csv.write_csv(TEST.slice(0, 1), tmp_path / "one.csv")
    done = halfmask("evaluate", model / "model", tmp_path / "one.csv")
    assert done.exit_code == 0
    assert "-0.0000" not in done.stdout


def test_predictions_do_not_replace_a_file_silently(model: Path, tmp_path: Path) -> None:
    out = tmp_path / "scores.csv"
    out.write_text("mine")
    words = ("predict", model / "model", model / "new.csv", "--out", out)
    done = halfmask(*words)
    assert done.exit_code == 2
    assert "--overwrite" in done.stderr
    assert out.read_text() == "mine"
    assert halfmask(*words, "--overwrite").exit_code == 0
    assert out.read_text() != "mine"


def test_a_dash_is_standard_output_and_makes_no_file(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ("predict", model / "model", model / "new.csv")
    assert halfmask(*words, "--out", "-").stdout == halfmask(*words).stdout != ""
    assert halfmask(*words, "--out", "-", "--json").exit_code == 2
    done = halfmask("report", model / "model", "--format", "json", "--out", "-")
    assert done.exit_code == 2
    assert "--out takes a file" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_not_there_is_named_as_it_was_written(model: Path) -> None:
    done = halfmask("predict", model / "model", model / "new.csv", "--out", "nodir/x.csv")
    assert done.exit_code == 2
    assert "The folder of 'nodir/x.csv' does not exist: create it first." in done.stderr


@pytest.fixture
def whole(model: Path, tmp_path: Path) -> Iterator[Path]:
    """A copy of the model and its files, none of which a test may change."""
    shutil.copytree(model, tmp_path / "own")
    before = {f: f.read_bytes() for f in (tmp_path / "own").rglob("*") if f.is_file()}
    yield tmp_path / "own"
    assert {file: file.read_bytes() for file in before} == before


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("report model --format md --out model/model.json", "part of MODEL"),
        ("report model --format md --out model/model.npz --overwrite", "part of MODEL"),
        ("report model --format md --out model/ledger.jsonl", "part of MODEL"),
        ("report model --format md --data new.csv --out new.csv", "part of --data"),
        (
            "report model --format md --data new.csv --reference people.csv --out people.csv",
            "part of --reference",
        ),
        ("report model --format md --ledger model/ledger.jsonl --out link", "part of MODEL"),
        ("report model --format md --out r.md --facts new.csv", "exists already"),
        ("report model --format md --out r.md --facts r.md", "name one file"),
        ("report model --format card", "exists already"),
        ("predict model new.csv --out new.csv --overwrite", "part of DATA"),
        ("derive DATA --out people.csv --overwrite", "part of DATA"),
        ("derive DATA --out new.csv", "exists already"),
        ("derive DATA --out n.csv --schema-out new.csv", "exists already"),
        ("derive DATA --out n.csv --schema-out people.toml --overwrite", "part of --schema"),
        ("derive DATA --out n.csv --schema-out n.csv", "name one file"),
    ],
)
def test_no_command_destroys_what_it_reads_or_what_is_there(
    whole: Path, monkeypatch: pytest.MonkeyPatch, words: str, said: str
) -> None:
    monkeypatch.chdir(whole)
    Path("link").symlink_to("model/ledger.jsonl")
    Path("README.md").write_text("of the project")
    given = "people.csv --schema people.toml --public d=round(age,10)"
    done = halfmask(*words.replace("DATA", given).split())
    assert done.exit_code == 2, done.output
    assert said in " ".join(done.stderr.split())
    assert Path("README.md").read_text() == "of the project"
    assert not Path("n.csv").exists()


def test_a_report_is_written_again_over_an_earlier_one(
    whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(whole)
    Path("README.md").write_text("of the project")
    Path("model/report.md").write_text("an earlier one")
    for words in ("--format md --out model/report.md", "--format card --overwrite"):
        done = halfmask("report", "model", *words.split())
        assert done.exit_code == 0, done.output
    assert Path("model/report.md").read_text() != "an earlier one"
    assert Path("README.md").read_text() != "of the project"


def test_a_demo_without_figures_writes_markdown(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from halfmask.cli.demo import written_report

    real = importlib.util.find_spec
    monkeypatch.setattr(
        "halfmask.cli.demo.find_spec", lambda name: None if name == "matplotlib" else real(name)
    )
    page = written_report(model / "model")
    assert page.suffix == ".md"
    assert "What is promised" in page.read_text()


def test_an_interrupted_training_that_released_nothing_leaves_nothing(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from halfmask import training

    def interrupted(*args: Any, **given: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(training, "train", interrupted)
    words = ("--schema", model / "people.toml", "--epsilon", 4, "--out", tmp_path / "m")
    done = halfmask("train", model / "people.csv", *words)
    assert done.exit_code == 130
    assert not (tmp_path / "m").exists()


def test_a_name_with_a_dot_is_told_to_be_quoted(tmp_path: Path) -> None:
    (tmp_path / "dots.csv").write_text("a.b,y\n1,no\n2,yes\n")
    label = '[label]\nname = "y"\nrole = "private"\nclasses = ["no", "yes"]\n'
    column = 'role = "private"\nkind = "number"\nbounds = [0, 9]\n'
    (tmp_path / "s.toml").write_text(f"{label}[columns.a.b]\n{column}")
    words = ("check", tmp_path / "dots.csv", "--schema", tmp_path / "s.toml")
    told = " ".join(halfmask(*words).output.split())
    assert """write [columns."a.b"]""" in told
    (tmp_path / "s.toml").write_text(f'{label}[columns."a.b"]\n{column}')
    assert halfmask(*words).exit_code == 0
    template = halfmask("init", tmp_path / "dots.csv", "--label", "y").stdout
    assert '[columns."a.b"]' in template


def test_a_plan_follows_the_number_of_public_columns() -> None:
    size = ("plan", "--rows", 20000, "--columns", 20, "--epsilon", 1, "--delta", "1e-6")
    found = [halfmask(*size, "--public", public, "--json").stdout for public in (0, 5, 15)]
    assert len(set(found)) == 3


def test_what_is_left_in_a_ledger_is_what_still_fits(model: Path, tmp_path: Path) -> None:
    """To the last digit that is shown; and no line is longer than a terminal."""
    book = tmp_path / "book"
    halfmask("ledger", "create", book, "--epsilon", 2, "--delta", "1e-6")
    words = ("train", model / "people.csv", "--schema", model / "people.toml", "--method", "gd")
    words = (*words, "--ledger", book, "--epsilon")
    assert halfmask(*words, 1, "--out", tmp_path / "a").exit_code == 0
    shown = halfmask("ledger", "show", book).stdout
    left = float(shown.partition("a training with epsilon ")[2].split()[0])
    assert left > 1
    assert max(len(line) for line in shown.splitlines() if str(book) not in line) <= 80
    assert halfmask(*words, left + 0.001, "--out", tmp_path / "b").exit_code == 3
    assert halfmask(*words, left, "--out", tmp_path / "b").exit_code == 0


def test_a_model_that_is_a_constant_is_called_so(tmp_path: Path) -> None:
    rows = "\n".join(f"{place % 9},{'yes' if place % 3 else 'no'}" for place in range(60))
    (tmp_path / "few.csv").write_text(f"x,y\n{rows}\n")
    (tmp_path / "s.toml").write_text(
        '[label]\nname = "y"\nrole = "private"\nclasses = ["no", "yes"]\n'
        '[columns.x]\nrole = "private"\nkind = "number"\nbounds = [0, 9]\n'
    )
    words = ("--schema", tmp_path / "s.toml", "--epsilon", 0.5, "--out", tmp_path / "m")
    said = halfmask("train", tmp_path / "few.csv", *words)
    assert said.exit_code == 0, said.output
    assert "This model is a constant" in said.stdout
    told = re.search(
        r"share of 'yes', ([\d.]+): released with noise", " ".join(said.stdout.split())
    )
    assert told is not None
    base = Model.load(tmp_path / "m").details["base"]
    assert float(told[1]) == pytest.approx(base, rel=1e-3)
    facts = gather(tmp_path / "m", with_effects=False)
    assert f"share of 'yes', {base:.4g}" in facts.to_json()["constant"]
    assert max(len(line) for line in said.stdout.splitlines() if str(tmp_path) not in line) <= 80
