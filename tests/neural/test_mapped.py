"""Parquet decoded into a mapped file: the same rows as in memory, and nothing left behind."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from halfmask.accounting.budget import Budget
from halfmask.cli import main
from halfmask.data.reading import open_rows
from halfmask.errors import DataError, InputError
from halfmask.mechanisms.noise import noise_source
from halfmask.neural import mapped, pretrain, trainer
from halfmask.neural.inputs import MadeRows
from halfmask.neural.mapped import MappedTable, mapped_rows, network_rows
from halfmask.neural.pretrain import NetworkRows, PretrainConfig
from halfmask.schema import Column, Label, Schema, Unit
from halfmask.table import Encoder
from halfmask.training import train

N = 1000
SCHEMA = Schema(
    label=Label(name="kind", role="public", classes=("a", "b", "c")),
    columns=(
        Column(name="town", role="public", kind="category"),
        Column(name="age", role="public", kind="number", bins=4),
        Column(name="size", role="private", kind="number", bounds=(0.0, 1.0), bins=0),
        Column(name="job", role="private", kind="category", categories=("x", "y", "z")),
    ),
)


def frame(seed: int = 0) -> pa.Table:
    generator = np.random.default_rng(seed)
    size = generator.random(N) * 1.2
    size[::50] = np.nan
    return pa.table(
        {
            "town": generator.choice(["Ulm", "Bonn", "Kiel"], N),
            "age": generator.integers(0, 90, N),
            "size": size,
            "job": generator.choice(["x", "y", "z", "?"], N),
            "kind": generator.choice(["a", "b", "c"], N),
            "unused": np.zeros(N),
        }
    )


@contextmanager
def mapped_file(path: Path, schema: Schema, **more: Any) -> Iterator[tuple[Encoder, MappedTable]]:
    with open_rows(path) as rows, mapped_rows(rows, schema, **more) as found:
        yield found


def written(folder: Path, table: pa.Table, groups: int = 300) -> Path:
    pa.parquet.write_table(table, folder / "rows.parquet", row_group_size=groups)
    return folder / "rows.parquet"


@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(groups=st.integers(1, N), ends=st.tuples(st.integers(0, N), st.integers(0, N)))
def test_mapped_rows_are_those_of_a_table_in_memory(
    groups: int, ends: tuple[int, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mapped, "_IN_FLIGHT", 1)  # the smallest batches there are
    low, high = min(ends), max(ends)
    own = range(low, high) if low < high else range(N)
    path, whole = written(tmp_path, frame(), groups), frame()
    encoder = Encoder.fit(SCHEMA, whole)
    expected = NetworkRows.of(encoder.encode(whole.slice(own.start, len(own))))
    with mapped_file(path, SCHEMA, own=own) as (same, table):
        # Grids are for methods that read levels: a mapped file is read for a network.
        assert same.to_json() == {k: v for k, v in encoder.to_json().items() if k != "grids"}
        assert np.array_equal(table.decoded.values, expected.values)
        assert np.array_equal(table.decoded.labels, expected.labels)
        assert np.array_equal(table.decoded.columns, expected.columns)
        assert table.decoded.inputs.private_norm == expected.inputs.private_norm
        norms = np.linalg.norm(table.decoded.private_features.astype(np.float64), axis=1)
        assert norms.max() <= expected.inputs.private_norm * (1 + 2.0**-23)
        assert (table.n, table.units) == (len(own), len(own))


def test_a_model_from_a_mapped_file_is_the_model_from_memory(tmp_path: Path) -> None:
    def scores(table: Any, encoder: Encoder) -> np.ndarray:
        model = train(
            table,
            Budget(epsilon=2.0, delta=1e-6),
            method="mlp",
            noise=noise_source(1),
            encoder=encoder,
            options={"pretrain": PretrainConfig(hidden=8, networks=1, epochs=2)},
        )
        return model.scores(encoder.encode(frame()))

    encoder = Encoder.fit(SCHEMA, frame())
    inside = scores(encoder.encode(frame()), encoder)
    with mapped_file(written(tmp_path, frame()), SCHEMA) as (encoder, table):
        assert np.array_equal(scores(table, encoder), inside)


def test_the_decoded_file_has_no_name_and_is_gone_with_its_block(tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    path = written(tmp_path, frame())
    with mapped_file(path, SCHEMA, folder=scratch) as (_, table):
        assert table.decoded.values.any()
        assert list(scratch.iterdir()) == []
        opened = [os.readlink(link) for link in Path("/proc/self/fd").iterdir() if link.exists()]
    assert not any(str(scratch) in target and "deleted" not in target for target in opened)
    assert list(scratch.iterdir()) == []


@pytest.mark.parametrize(
    ("column", "value", "words"),
    [
        ("kind", "d", "Column 'kind', row 778: the label is not among the declared classes"),
        ("kind", None, "Column 'kind', row 778: the label is missing"),
        ("size", "secret", "Column 'size', row 778: not a number"),
    ],
)
def test_errors_count_rows_from_the_start_of_the_file(
    column: str, value: str | None, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mapped, "_IN_FLIGHT", 1)
    table = frame()
    values = [str(each) for each in table.column(column).to_pylist()]
    values[777] = value  # type: ignore[call-overload]
    place = table.column_names.index(column)
    path = written(tmp_path, table.set_column(place, column, pa.array(values)))
    with pytest.raises(DataError, match=words) as caught, mapped_file(path, SCHEMA):
        pass
    assert "secret" not in str(caught.value)


def test_a_disk_that_is_too_small_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    path = written(tmp_path, frame())
    with (
        pytest.raises(DataError, match="TMPDIR"),
        mapped_file(path, SCHEMA, folder=tmp_path),
    ):
        pass


def test_what_a_network_cannot_read_is_refused_before_decoding(tmp_path: Path) -> None:
    path = written(tmp_path, frame())
    persons = Schema(
        label=SCHEMA.label, columns=SCHEMA.columns, unit=Unit(column="unused", max_rows=2)
    )
    number = Schema(
        label=Label(name="size", role="private", bounds=(0.0, 1.0)), columns=SCHEMA.columns[:2]
    )
    foreign = Schema(
        label=SCHEMA.label,
        columns=(*SCHEMA.columns, Column(name="jobs", role="public", kind="category")),
    )
    for schema, words in ((persons, "one row each"), (number, "classes"), (foreign, "'jobs'")):
        with pytest.raises(InputError, match=words), mapped_file(path, schema):
            pass
    for broken in (tmp_path / "missing.parquet", written_as_text(tmp_path)):
        with pytest.raises(DataError), mapped_file(broken, SCHEMA):
            pass


def written_as_text(folder: Path) -> Path:
    (folder / "text.parquet").write_text("PAR1 but no more")
    return folder / "text.parquet"


def test_other_methods_and_norms_ask_for_the_file_again(tmp_path: Path) -> None:
    with mapped_file(written(tmp_path, frame()), SCHEMA) as (_, table):
        with pytest.raises(InputError, match="decoded for mlp"):
            train(table, Budget(epsilon=1.0, delta=1e-6), method="gd", noise=noise_source(1))
        with pytest.raises(InputError, match="private_norm"):
            network_rows(table, private_norm=123.0)


@pytest.mark.parametrize(
    ("method", "kind"), [("auto", "file"), ("mlp", "file"), ("mlp", "folder"), ("mlp", "csv")]
)
def test_train_maps_a_file_with_columns_that_stay_numbers(
    method: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []
    real = mapped.mapped_rows
    monkeypatch.setattr(mapped, "mapped_rows", lambda *a, **k: calls.append(a) or real(*a, **k))
    # As many private columns as make auto take a network.
    more = {f"x{i}": np.arange(N) * (i + 1) % 2 for i in range(16)}
    coins = tuple(
        Column(name=name, role="private", kind="category", categories=("0", "1")) for name in more
    )
    wide = replace(SCHEMA, columns=SCHEMA.columns + coins)
    (tmp_path / "rows.toml").write_text(wide.to_toml())
    rows = frame()
    for name, values in more.items():
        rows = rows.append_column(name, pa.array(values))
    path, out = written(tmp_path, rows), tmp_path / "model"
    if kind == "folder":
        (tmp_path / "parts").mkdir()
        path = written(tmp_path / "parts", rows).parent
    elif kind == "csv":
        path = tmp_path / "rows.csv"
        pa.csv.write_csv(rows, path)
    asked = ["--method", method, "--epsilon", "2", "--out", str(out), "--json"]
    schema = ["--schema", str(tmp_path / "rows.toml")]
    done = CliRunner().invoke(main, ["train", str(path), *schema, *asked])
    assert done.exit_code == 0, done.output
    assert len(calls) == 1
    assert (out / "model.json").exists()


def test_a_place_for_the_rank_needs_torchrun(tmp_path: Path) -> None:
    (tmp_path / "rows.toml").write_text(SCHEMA.to_toml())
    asked = ["--epsilon", "2", "--out", str(tmp_path / "model")]
    schema = ["--schema", str(tmp_path / "rows.toml")]
    done = CliRunner().invoke(main, ["train", str(tmp_path / "rows-{rank}.csv"), *schema, *asked])
    assert done.exit_code == 2
    assert "torchrun" in done.output


CODED = replace(
    SCHEMA,
    columns=(*SCHEMA.columns[:2], replace(SCHEMA.columns[2], bins=5), SCHEMA.columns[3]),
)


@settings(max_examples=30, deadline=None)
@given(
    rows=st.one_of(
        st.slices(N),
        st.lists(st.integers(0, N - 1), max_size=50).map(lambda some: np.array(some, dtype=int)),
    ),
    schema=st.sampled_from([SCHEMA, CODED]),
)
def test_rows_made_of_codes_are_those_of_the_whole_table(
    rows: slice | np.ndarray, schema: Schema
) -> None:
    if isinstance(rows, slice) and (rows.step or 1) < 0:
        rows = slice(None)
    table = Encoder.fit(schema, frame()).encode(frame())
    data = NetworkRows.of(table)
    made = MadeRows(table, data.inputs)
    assert isinstance(data.values, np.ndarray)
    assert np.array_equal(data.values, data.inputs.rows(table))
    assert np.array_equal(made[rows], data.values[rows])
    assert np.array_equal(made.public[rows], np.asarray(data.public_features[rows]))
    assert np.array_equal(made.private[rows], np.asarray(data.private_features[rows]))


@pytest.mark.parametrize(
    "options",
    [
        {"pretrain": PretrainConfig(hidden=8, networks=1, epochs=2)},
        {"recipe": "algorithm-1", "padding": "middle", "steps": 5, "hidden": 8},
        {"recipe": "algorithm-1", "padding": "class-samples", "steps": 5, "hidden": 8},
        {"recipe": "dp-sgd", "steps": 5, "hidden": 8},
    ],
)
def test_a_model_of_rows_made_batch_by_batch_is_that_of_rows_held(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder = Encoder.fit(CODED, frame())
    table = encoder.encode(frame())

    def trained() -> np.ndarray:
        model = train(
            table,
            Budget(epsilon=2.0, delta=1e-6),
            method="mlp",
            noise=noise_source(1),
            encoder=encoder,
            options=options,
        )
        return model.scores(table)

    held = trained()
    monkeypatch.setattr(pretrain, "_HELD", 0)
    assert isinstance(NetworkRows.of(table).values, MadeRows)
    made = trained()
    assert np.array_equal(made, held)
    # In parts that are smaller than a batch, sums are the same but for their last digits.
    monkeypatch.setattr(trainer, "_AT_ONCE", 64)
    if options.get("padding") != "class-samples":  # whose draws go by parts
        np.testing.assert_allclose(trained(), held, rtol=1e-3, atol=1e-4)
