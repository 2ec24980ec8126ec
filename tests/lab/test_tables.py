"""The experiment on small drawn tables in the published form; its numbers come by command."""

from __future__ import annotations

import json
import lzma
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from click.testing import CliRunner

from halfmask import datasets as files
from halfmask.accounting.gaussian import gaussian_mu
from halfmask.cli import main
from halfmask.errors import DataError, InputError
from halfmask.schema import Schema
from halfmask.storage import plain
from halfmask_lab import loaders as people
from halfmask_lab import table_baselines, tables
from halfmask_lab.table_baselines import EBM_VARIANTS, ebm_class
from halfmask_lab.table_checks import Cell, checks

PUBLISHED = os.environ.get("HALFMASK_DATA")

SCHEMA = """
[label]
name = "label"
role = "private"
classes = ["no", "later", "soon"]

[columns.age]
role = "public"
kind = "number"
bounds = [0, 100]

[columns.income]
role = "private"
kind = "number"
bounds = [0, 10]

[columns.job]
role = "private"
kind = "category"
categories = ["clerk", "cook", "none"]

[unit]
column = "person"
max_rows = 2
"""
NUMBER = SCHEMA.replace('classes = ["no", "later", "soon"]', "bounds = [-5, 15]")


def drawn_csv(people_count: int, *, numbers: bool = False, seed: int = 0) -> bytes:
    """Each person has two rows; the second row's label is always the first class, or -5."""
    rng = np.random.default_rng(seed)
    lines = ["person,age,income,job,label"]
    for person in range(people_count):
        age, income = rng.integers(20, 90), rng.uniform(0, 10)
        job = rng.choice(["clerk", "cook", ""])
        score = 0.06 * (age - 55) + 0.5 * (income - 5) + (1.0 if job == "cook" else -0.5)
        label: str = f"{score + rng.normal():.3f}"
        if not numbers:
            label = str("soon" if rng.random() < 1 / (1 + np.exp(-score)) else "later")
        written = "" if rng.random() < 0.1 else f"{income:.2f}"
        lines.append(f"{person},{age},{written},{job},{label}")
        lines.append(f"{person},{age},{written},{job},{-5 if numbers else 'no'}")
    return ("\n".join(lines) + "\n").encode()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data folder with a small `diabetes` and a small `visits`, known by their hashes."""
    import hashlib

    where = tmp_path / "data"
    (where / "tables").mkdir(parents=True)
    contents = {"diabetes": drawn_csv(1500), "visits": drawn_csv(900, numbers=True)}
    for name, content in contents.items():
        monkeypatch.setitem(files.SHA256, f"{name}.csv", hashlib.sha256(content).hexdigest())
        (where / "tables" / f"{name}.csv.xz").write_bytes(lzma.compress(content))
        schema = SCHEMA if name == "diabetes" else NUMBER
        (where / "tables" / f"{name}.toml").write_text(schema)
    monkeypatch.setattr(table_baselines, "MOST_TREES", 20)
    return where


def rows_by(result: dict[str, Any], **wanted: Any) -> list[dict[str, Any]]:
    return [r for r in result["results"] if all(r[key] == value for key, value in wanted.items())]


@pytest.mark.slow
def test_the_command_prints_one_row_per_fit_and_metric(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    asked = ["reproduce", "tables", "--data", str(folder), "--out", str(out), "--draws", "2"]
    asked += ["--table", "diabetes", "--table", "visits", "--epsilon", "1", "--epsilon", "4"]
    done = CliRunner().invoke(main, [*asked, "--method", "auto", "--json"])
    assert done.exit_code == 0, done.output
    result = json.loads(done.stdout)
    keys = ("table", "role", "method", "epsilon", "metric")
    found = [tuple(row[key] for key in keys) for row in result["results"]]
    assert len(found) == len(set(found))
    assert result["rows"] == {
        "diabetes": {"train": 1000, "test": 500},
        "visits": {"train": 600, "test": 300},
    }
    for table, metrics in (
        ("diabetes", {"log_loss", "auc", "accuracy"}),
        ("visits", {"rmse", "r2"}),
    ):
        metrics |= {"kept", "calibration_error", "explained"}
        for role in tables.ROLES:
            for epsilon in (1.0, 4.0):
                rows = rows_by(result, table=table, role=role, method="auto", epsilon=epsilon)
                assert {row["metric"] for row in rows} == metrics
                assert {row["draws"] for row in rows} == {2}
                assert {row["relation"] for row in rows} == {"replace"}
                assert {row["delta"] for row in rows} == {1e-6}
                explained = next(row for row in rows if row["metric"] == "explained")
                assert explained["std"] > 0  # every draw has noise of its own
            (kept,) = rows_by(result, table=table, role=role, method="best", metric="kept")
            (none,) = rows_by(result, table=table, role=role, method="constant", metric="kept")
            assert (kept["mean"], none["mean"]) == (1.0, 0.0)
            assert kept["epsilon"] is None
            free = rows_by(result, table=table, role=role, method="free", metric="kept")
            assert len(free) == (role == "features")
        (free_kept,) = free_rows = rows_by(result, table=table, method="free", metric="kept")
        assert 0 < free_kept["mean"] < 1, free_rows
    names = {check["name"] for check in result["checks"]}
    assert {"mean kept, role all, epsilon 1", "explained lost by a larger epsilon"} <= names
    assert all(isinstance(check["holds"], bool) for check in result["checks"])
    assert Path(result["figure"]).is_file()
    assert json.loads((out / "tables.json").read_text()) == result


def test_models_without_privacy_are_fitted_once_per_folder(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = tables.load_rows("diabetes", folder)
    first = tables.cached(tmp_path, "binned", rows.schema.columns, rows)

    def never(*_: object) -> None:
        raise AssertionError("fitted again")

    monkeypatch.setattr(tables, "fit_without_privacy", never)
    again = tables.cached(tmp_path, "binned", rows.schema.columns, rows)
    np.testing.assert_array_equal(first.predicted, again.predicted)
    assert (first.held_out, first.setting) == (again.held_out, again.setting)
    with pytest.raises(AssertionError, match="fitted again"):
        tables.cached(tmp_path, "binned", rows.schema.columns[:2], rows)
    shorter = replace(rows, train=rows.train.slice(1))
    with pytest.raises(AssertionError, match="fitted again"):
        tables.cached(tmp_path, "binned", rows.schema.columns, shorter)


def test_a_person_has_one_row_and_every_third_is_held_out(folder: Path) -> None:
    rows = tables.load_rows("diabetes", folder)
    assert rows.schema.unit is None
    assert rows.schema.label.classes == ("rest", "soon")
    people_in = [int(value) for value in rows.test["person"].to_pylist()]
    assert people_in == list(range(2, 1500, 3))
    assert 0.2 < rows.target(rows.train).mean() < 0.8  # every second row says no


def test_role_sets_keep_bounds_and_differ_in_roles_alone(folder: Path) -> None:
    rows = tables.load_rows("diabetes", folder)
    found = {role: rows.with_roles(role) for role in tables.ROLES}
    assert {role: schema.private for role, schema in found.items()} == {
        "all": ("age", "income", "job"),
        "half": ("income", "job"),
        "features": ("income", "job"),
        "label": (),
    }
    assert {role: schema.label.role for role, schema in found.items()} == {
        "all": "private",
        "half": "private",
        "features": "public",
        "label": "private",
    }
    for schema in found.values():
        assert [column.bounds for column in schema.columns] == [(0, 100), (0, 10), None]


def test_labels_of_held_out_rows_change_no_prediction(folder: Path) -> None:
    rows = tables.load_rows("diabetes", folder)
    place = rows.test.column_names.index("label")
    blind = replace(
        rows, test=rows.test.set_column(place, "label", pa.array(["soon"] * rows.test.num_rows))
    )
    for job in (
        tables._Job(table=0, method="binned", kind="binned"),
        tables._Job(table=0, method="boosted", kind="boosted", public_only=True),
        tables._Job(table=0, method="auto", role="half", epsilon=1.0),
    ):
        first, second = (tables._fitted(job, part, None, 0).predicted for part in (rows, blind))
        assert first is not None
        assert second is not None
        np.testing.assert_array_equal(first, second)


def test_every_draw_has_a_seed_of_its_own() -> None:
    seeds = {
        tables.unsafe_seed(0, table, role, f"{epsilon:g}", draw)
        for table in tables.TABLES
        for role in tables.ROLES
        for epsilon in tables.EPSILONS
        for draw in range(5)
    }
    assert len(seeds) == 5 * 4 * 4 * 5


def test_a_method_that_does_not_know_the_roles_is_left_out_with_its_reason(folder: Path) -> None:
    result = tables.run(
        folder,
        draws=1,
        epsilons=(1.0,),
        tables=("diabetes",),
        roles=("all",),
        methods=("auto", "label-span"),
    )
    (missing,) = result["left_out"]
    assert (missing["method"], missing["role"]) == ("label-span", "all")
    assert missing["reason"]
    assert not rows_by(result, method="label-span")
    from rich.console import Console

    console = Console(width=200)
    with console.capture() as printed:
        console.print(tables.for_terminal(plain(result)))
    assert "Left out: diabetes all label-span" in printed.get()
    assert "least kept, role all, epsilon 1" in printed.get()


def test_without_interpret_core_the_output_says_so(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "ebm_class", lambda: None)
    result = tables.run(folder, draws=1, epsilons=(1.0,), tables=("diabetes",), roles=("all",))
    (missing,) = result["left_out"]
    assert missing["method"] == "dp-ebm"
    assert "interpret-core" in missing["reason"]


@pytest.mark.skipif(ebm_class() is None, reason="interpret-core is not installed")
def test_dp_ebm_is_run_where_everything_is_private(folder: Path) -> None:
    result = tables.run(
        folder,
        draws=1,
        epsilons=(0.1, 4.0),
        tables=("diabetes", "visits"),
        roles=("all", "half"),
        methods=("auto", "dp-ebm"),
    )
    assert result["left_out"] == []
    for method, relation in (
        ("dp-ebm", "add-remove"),
        ("dp-ebm lr 0.05", "add-remove"),
        ("dp-ebm lr 0.05 replace", "replace"),
    ):
        (row,) = rows_by(result, method=method, metric="auc")
        assert (row["table"], row["role"], row["epsilon"]) == ("diabetes", "all", 4.0)
        assert row["relation"] == relation
        assert row["mean"] > 0.6
    assert sum("DP-EBM" in check["name"] for check in result["checks"]) == 3


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 4.0])
def test_dp_ebm_for_replace_has_half_the_mu(epsilon: float) -> None:
    asked = EBM_VARIANTS["dp-ebm lr 0.05 replace"].epsilon(epsilon, 1e-6)
    assert 2 * gaussian_mu(asked, 1e-6) == pytest.approx(gaussian_mu(epsilon, 1e-6), rel=1e-6)
    assert EBM_VARIANTS["dp-ebm lr 0.05"].epsilon(epsilon, 1e-6) == epsilon


def test_calibration_error_of_known_predictions() -> None:
    target = np.array([0, 1] * 50)
    assert tables.calibration_error(target, np.full(100, 0.5)) == 0
    assert tables.calibration_error(target, np.full(100, 0.7)) == pytest.approx(0.2)
    # Equal predictions stay together, whatever the order of rows.
    assert tables.calibration_error(np.sort(target), np.full(100, 0.5)) == 0
    confident = np.where(target == 1, 0.9, 0.1)
    assert tables.calibration_error(target, confident) == pytest.approx(0.1)


def test_explained_and_kept_are_shares_of_the_constant_and_of_the_best() -> None:
    target = np.array([0.0, 1.0, 2.0, 3.0])
    base = np.full(4, 1.0)
    found = tables.scores(target, target, base, "regression")
    assert (found["r2"], found["rmse"]) == (1.0, 0.0)
    assert tables.scores(target, base, base, "regression")["explained"] == 0
    classes = np.array([0, 0, 1, 0])
    assert tables.scores(classes, np.full(4, 0.25), np.full(4, 0.25), "classification") == {
        "log_loss": pytest.approx(0.5623351446),
        "auc": 0.5,
        "accuracy": 0.75,
        "explained": 0.0,
        "calibration_error": 0.0,
    }


def ideal() -> dict[Cell, dict[str, list[float]]]:
    """Results in which every bar holds: explained shares grow with epsilon and public columns."""
    measured = {}
    for role, share in (("all", 0.7), ("half", 0.8), ("features", 0.95), ("label", 0.95)):
        for epsilon, less in ((0.5, 0.1), (1.0, 0.0), (4.0, 0.0)):
            kept = share - less
            measured[Cell("bank", role, "auto", epsilon)] = _values(0.4 * kept)
    measured[Cell("bank", "features", "free", None)] = _values(0.3)
    for variant in EBM_VARIANTS:
        for epsilon in (0.5, 1.0, 4.0):
            measured[Cell("bank", "all", variant, epsilon)] = _values(0.2)
    return measured


def _values(explained: float) -> dict[str, list[float]]:
    return {
        "log_loss": [0.35 * (1 - explained)] * 2,
        "explained": [explained] * 2,
        "kept": [explained / 0.4] * 2,
        "calibration_error": [0.01] * 2,
    }


def failing(measured: dict[Cell, dict[str, list[float]]], rows: int = 40_000) -> set[str]:
    return {check["name"] for check in checks(measured, {"bank": rows}) if not check["holds"]}


def test_all_checks_hold_of_ideal_results() -> None:
    judged = checks(ideal(), {"bank": 40_000})
    assert len(judged) == 8 + 2 + 2 + 2 + 3 + 1
    assert failing(ideal()) == set()


@pytest.mark.parametrize(
    ("cell", "changed", "broken"),
    [
        (
            Cell("bank", "all", "auto", 1.0),
            {"kept": [0.55] * 2},
            {"mean kept, role all, epsilon 1"},
        ),
        (
            Cell("bank", "label", "auto", 1.0),
            {"kept": [0.6] * 2},
            {"mean kept, role label, epsilon 1", "least kept, role label, epsilon 1"},
        ),
        (
            Cell("bank", "features", "auto", 4.0),
            {"log_loss": [0.35 * 0.7 + 0.003] * 2},
            {"log loss above free, label public, mean of draws"},
        ),
        (
            Cell("bank", "features", "auto", 4.0),
            {"log_loss": [0.2, 0.35 * 0.7 + 0.021]},
            {"log loss above free, label public, any draw"},
        ),
        (
            Cell("bank", "all", "auto", 0.5),
            {"explained": [0.2, -0.006]},
            {"explained below the constant, any draw"},
        ),
        (
            Cell("bank", "all", "auto", 0.5),
            {"explained": [-0.006] * 2},
            {
                "explained below the constant, any draw",
                "explained below the constant, mean of draws",
            },
        ),
        (
            Cell("bank", "half", "auto", 4.0),
            {"explained": [0.27] * 2},
            {"explained lost by more public columns", "explained lost by a larger epsilon"},
        ),
        (
            Cell("bank", "label", "auto", 4.0),
            {"explained": [0.374] * 2},
            {"explained lost by a larger epsilon"},
        ),
        (
            Cell("bank", "all", "dp-ebm", 0.5),
            {"log_loss": [0.1] * 2},
            {"log loss above DP-EBM as it comes, same printed epsilon"},
        ),
        (
            Cell("bank", "half", "auto", 1.0),
            {"calibration_error": [0.03] * 2},
            {"calibration error, epsilon 1 and more, 20,000 rows and more"},
        ),
        (
            Cell("bank", "half", "gd", 1.0),
            {"log_loss": [0.2] * 2},
            {"log loss above a method by name"},
        ),
    ],
)
def test_a_check_fails_where_its_bar_is_missed(
    cell: Cell, changed: dict[str, list[float]], broken: set[str]
) -> None:
    measured = ideal()
    measured[cell] = {**measured.get(cell, {}), **changed}
    assert failing(measured) == broken


def test_small_tables_are_not_held_to_the_calibration_bar() -> None:
    measured = ideal()
    measured[Cell("bank", "half", "auto", 1.0)]["calibration_error"] = [0.03, 0.03]
    assert failing(measured, rows=19_999) == set()


def test_unknown_tables_roles_and_options_are_explained(folder: Path) -> None:
    with pytest.raises(InputError, match=r"Unknown table 'banc'.*'bank'"):
        tables.run(folder, tables=("banc",))
    with pytest.raises(InputError, match=r"Unknown role 'labels'.*'label'"):
        tables.run(folder, roles=("labels",))
    for option in (["--table", "bank"], ["--role", "all"], ["--method", "gd"]):
        done = CliRunner().invoke(main, ["reproduce", "adult-erm", *option])
        assert done.exit_code == 2, done.output
        assert f"no option {option[0]}" in done.output


def test_a_changed_table_is_refused(folder: Path) -> None:
    (folder / "tables" / "visits.csv.xz").write_bytes(lzma.compress(drawn_csv(10)))
    with pytest.raises(DataError, match="not the published file"):
        people.load_people("visits", folder)


if PUBLISHED:

    @pytest.mark.parametrize("name", tables.TABLES)
    def test_the_published_tables_have_their_sizes_and_schemas(name: str) -> None:
        rows = tables.load_rows(name, None)
        sizes = {
            "bank": (27459, 13729),
            "default": (20000, 10000),
            "diabetes": (47679, 23839),
            "visits": (3942, 1970),
            "adult": (32561, 16281),
        }
        assert (rows.train.num_rows, rows.test.num_rows) == sizes[name]
        assert isinstance(rows.schema, Schema)
        assert rows.schema.private
        assert rows.schema.public

    def test_a_part_of_a_published_table_is_judged(monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(table_baselines, "MOST_TREES", 40)
        whole = tables.load_rows("bank", None)
        few = [frame.take(np.arange(0, frame.num_rows, 10)) for frame in (whole.train, whole.test)]
        result = tables.judge(
            [replace(whole, train=few[0], test=few[1])],
            None,
            lambda share, text: None,
            seed=0,
            draws=1,
            epsilons=(4.0,),
            roles=("features",),
            methods=("auto",),
        )
        (best,) = rows_by(result, method="best", metric="auc")
        (free,) = rows_by(result, method="free", metric="auc")
        (auto,) = rows_by(result, method="auto", metric="auc")
        assert best["mean"] > 0.75
        assert free["mean"] > 0.7
        assert 0.5 < auto["mean"] < 0.85
