"""A folder of Parquet files is one table: its files one after the other, in order of names."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as csv
import pytest
from click.testing import CliRunner
from pyarrow import parquet

from halfmask.cli import main
from halfmask.data import reading
from halfmask.data.reading import open_rows, read_frame
from halfmask.errors import DataError

SCHEMA = """
[label]
name = "y"
role = "private"
classes = ["no", "yes"]

[columns.a]
role = "private"
kind = "number"
bounds = [0, 1]

[columns.kind]
role = "public"
kind = "category"
"""


def people(n: int = 600) -> pa.Table:
    rng = np.random.default_rng(3)
    a = rng.random(n)
    label = np.where(rng.random(n) < a, "yes", "no")
    return pa.table({"a": a, "kind": rng.choice(["u", "v", "w"], n), "y": label})


def in_parts(frame: pa.Table, folder: Path) -> Path:
    """Three files whose order by name is not that of writing, and notes of another tool."""
    folder.mkdir()
    ends = [0, 200, 210, frame.num_rows]
    for place in (2, 0, 1):
        part = frame.slice(ends[place], ends[place + 1] - ends[place])
        # Columns in another order are the same columns.
        part = part.select(part.column_names[:: -1 if place == 1 else 1])
        parquet.write_table(part, folder / f"part-{place}.parquet", row_group_size=37)
    parquet.write_table(frame.slice(0, 0), folder / "part-3.parquet")
    (folder / "_SUCCESS").write_text("")
    (folder / ".part-0.parquet.crc").write_text("x")
    return folder


def command(*words: str | Path) -> str:
    done = CliRunner().invoke(main, [str(word) for word in words])
    assert done.exit_code == 0, done.output
    return done.stdout


def test_rows_of_a_folder_are_those_of_its_files_in_order(tmp_path: Path) -> None:
    frame = people()
    folder = in_parts(frame, tmp_path / "rows")
    assert read_frame(folder).equals(frame)
    with open_rows(folder) as rows:
        assert rows.num_rows == frame.num_rows
        assert rows.columns(["y", "a"]).equals(frame.select(["y", "a"]))
        starts = [start for start, _ in rows.pieces(["a"])]
    assert {0, 200, 210} <= set(starts)


@pytest.mark.parametrize(
    "method", ["additive", "gd", "sgd", "dp-sgd", "one-shot", "label-span", "mlp"]
)
def test_commands_take_a_folder_and_a_csv_in_pieces_as_they_take_a_file(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    frame = people()
    folder, file = in_parts(frame, tmp_path / "rows"), tmp_path / "rows.parquet"
    parquet.write_table(frame, file)
    csv.write_csv(frame, tmp_path / "rows.csv")
    monkeypatch.setattr(reading, "_LARGE_CSV", 0)
    monkeypatch.setattr(reading, "_CSV_BLOCK", 1 << 12)
    declared = SCHEMA.replace('"private"\nkind', '"public"\nkind')
    (tmp_path / "rows.toml").write_text(declared if method == "label-span" else SCHEMA)
    told = []
    for place, data in enumerate((folder, file, tmp_path / "rows.csv")):
        model = tmp_path / f"model{place}"
        command(
            *("train", data, "--schema", tmp_path / "rows.toml", "--epsilon", "1"),
            *("--delta", "1e-6", "--method", method, "--unsafe-seed", "1", "--out", model),
        )
        scores = json.loads(command("evaluate", model, data, "--json"))
        told.append(((model / "model.npz").read_bytes(), scores, command("predict", model, data)))
    models, scores, predictions = zip(*told, strict=True)
    assert models[0] == models[1] == models[2]
    if method == "mlp":
        # Single precision: the last digits of a row's score depend on the rows beside it.
        losses = [each["log_loss"] for each in scores]
        assert losses == pytest.approx([losses[0]] * 3, rel=1e-5)
    else:
        assert scores[0] == scores[1] == scores[2]
        assert predictions[0] == predictions[1] == predictions[2]


def test_an_error_names_the_file_and_its_row(tmp_path: Path) -> None:
    folder = tmp_path / "rows"
    folder.mkdir()
    for name, cells in (("a", ["1", "0"]), ("b", ["1", "SECRET"])):
        parquet.write_table(pa.table({"a": cells, "y": ["no", "no"]}), folder / f"{name}.parquet")
    (tmp_path / "rows.toml").write_text(SCHEMA[: SCHEMA.index("[columns.kind]")])
    done = CliRunner().invoke(
        main,
        [
            *("train", str(folder), "--schema", str(tmp_path / "rows.toml"), "--epsilon", "1"),
            *("--delta", "1e-6", "--out", str(tmp_path / "model")),
        ],
    )
    assert done.exit_code == 2
    assert "row 4 (row 2 of b.parquet)" in done.output
    assert "SECRET" not in done.output


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({}, "no Parquet file"),
        ({"a.csv": b"a,y\n1,no\n"}, "'a.csv', which is not a Parquet file"),
        ({"a": pa.table({"a": [1]}), "b": pa.table({"b": [1]})}, "Column 'a' is in a but not in b"),
        (
            {"a": pa.table({"a": [1]}), "b": pa.table({"a": ["1"]})},
            "Column 'a' is int64 in a and string in b",
        ),
        ({"a": pa.table({"a": pa.array([], pa.int64())})}, "no data rows"),
        ({"a": b"PAR1 and no more"}, "write it again"),
    ],
)
def test_what_is_not_one_table_is_refused(
    files: dict[str, pa.Table | bytes], words: str, tmp_path: Path
) -> None:
    for name, content in files.items():
        if isinstance(content, bytes):
            (tmp_path / name).write_bytes(content)
        else:
            parquet.write_table(content, tmp_path / name)
    with pytest.raises(DataError, match=words), open_rows(tmp_path):
        pass


def test_a_folder_in_a_folder_is_refused(tmp_path: Path) -> None:
    in_parts(people(), tmp_path / "year=2025")
    with pytest.raises(DataError, match="not a Parquet file"):
        read_frame(tmp_path)
