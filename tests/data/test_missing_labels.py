"""`missing = "skip"`: rows without a label take part, and whether they have one stays private."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from halfmask import HalfmaskClassifier, HalfmaskRegressor
from halfmask.accounting.budget import Budget
from halfmask.accounting.gaussian import gaussian_mu
from halfmask.accounting.ledger import MemoryLedger
from halfmask.audit.model_audit import audit_model
from halfmask.audit.transcript import recorded, replayed
from halfmask.cli import main
from halfmask.errors import DataError, InputError, SchemaError
from halfmask.mechanisms.noise import noise_source
from halfmask.mechanisms.release import Releaser
from halfmask.methods.gd import fit_gd
from halfmask.methods.one_shot import fit_one_shot
from halfmask.model import Model
from halfmask.schema import Column, Label, Schema, Unit
from halfmask.table import Encoder, Table
from halfmask.training import train
from halfmask.vertical.files import party_schemas

LABELS = {
    "two": Label("y", "private", classes=("no", "yes"), missing="skip"),
    "three": Label("y", "private", classes=("no", "yes", "maybe"), missing="skip"),
    "number": Label("y", "private", bounds=(3, 7), missing="skip"),
}
COLUMNS = (
    Column("v", "private", "number", bounds=(0, 1), bins=0),
    Column("k", "private", "category", categories=("a", "b")),
    Column("open", "public", "category", categories=("p", "q", "r")),
)
ROLES = {"all": "all", "some": "some", "label alone": "none"}


def schema_of(kind: str, roles: str = "some", role: Any = "private") -> Schema:
    """`roles` says which of the columns are private."""
    private = {"all": ("v", "k", "open"), "some": ("v", "k"), "none": ()}[roles]
    columns = [replace(c, role="private" if c.name in private else "public") for c in COLUMNS]
    return Schema(replace(LABELS[kind], role=role), tuple(columns))


def frame_of(schema: Schema, n: int, rng: np.random.Generator) -> dict[str, list[Any]]:
    """Rows of which a third have no label."""
    label = schema.label
    ends = label.bounds if label.classes is None else label.classes
    assert ends is not None
    return {
        "id": list(range(n)),
        "v": rng.choice([0.0, 1.0, 0.4], n).tolist(),
        "k": rng.choice(["a", "b"], n).tolist(),
        "open": rng.choice(["p", "q", "r"], n).tolist(),
        "y": [None if rng.random() < 1 / 3 else ends[rng.integers(len(ends))] for _ in range(n)],
    }


def fit(
    table: Table, method: str, options: Any = None, seed: int = 0, door: Any = Releaser
) -> Model:
    budget = Budget(epsilon=1.0, delta=1e-5)
    noise = noise_source(seed)
    return train(table, budget, method=method, noise=noise, options=options, make_releaser=door)


# What is declared, and how it is read.


def test_skip_is_declared_in_the_labels_table_and_nothing_else_is_known() -> None:
    schema = schema_of("two")
    assert Schema.from_dict(schema.to_dict()) == schema
    assert schema.to_dict()["label"]["missing"] == "skip"
    with pytest.raises(SchemaError, match="missing 'drop': expected \"skip\""):
        replace(schema.label, missing="drop")  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", LABELS)
def test_a_missing_label_is_an_error_whose_advice_is_safe(kind: str) -> None:
    schema = schema_of(kind)
    plain = replace(schema, label=replace(schema.label, missing=None))
    data = frame_of(schema, 5, np.random.default_rng(0))
    data["y"][0], data["y"][1] = (5 if kind == "number" else "no"), None
    frame = pa.table(data)
    with pytest.raises(DataError, match="'y', row 2: the label is missing") as caught:
        Encoder.fit(plain, frame).encode(frame)
    assert 'missing = "skip"' in str(caught.value)
    assert "remove" not in str(caught.value)
    table = Encoder.fit(schema, frame).encode(frame)
    assert table.n == 5
    np.testing.assert_array_equal(table.unlabelled, [value is None for value in data["y"]])


def test_a_foreign_class_is_still_an_error() -> None:
    schema = schema_of("two")
    data = frame_of(schema, 3, np.random.default_rng(0)) | {"y": ["no", None, "never"]}
    with pytest.raises(DataError, match="'y', row 3: the label is not among"):
        Encoder.fit(schema, pa.table(data)).encode(pa.table(data))


# Neighbours: a label and another one, a label and none, none and none.

METHODS: list[tuple[str, dict[str, Any]]] = [
    ("gd", {}),
    ("one-shot", {}),
    ("sgd", {"rate": 1.0, "steps": 3}),
    ("dp-sgd", {"rate": 1.0, "steps": 3}),
    ("label-span", {"passes": 2}),
    ("mlp", {"rate": 1.0, "steps": 2, "recipe": "dp-sgd"}),
]
CASES = [
    (method, options, kind, roles)
    for (method, options), kind, roles in itertools.product(METHODS, LABELS, ROLES)
    if not (method == "label-span" and roles != "label alone")
    and not (method == "mlp" and (kind == "number" or roles != "some"))
]


@pytest.mark.parametrize(("method", "options", "kind", "roles"), CASES)
@settings(max_examples=12, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    labels=st.sampled_from(["any", "to none", "from none"]),
    units=st.booleans(),
)
def test_a_label_that_goes_missing_never_moves_the_releases_beyond_the_budget(
    method: str, options: Any, kind: str, roles: str, seed: int, labels: str, units: bool
) -> None:
    """All releases of the real fit together, in units of their noise, against the ratio charged."""
    rng = np.random.default_rng(seed)
    schema, rows = schema_of(kind, ROLES[roles]), [0]
    if units and method != "mlp":
        schema, rows = replace(schema, unit=Unit(column="id", max_rows=5)), [0, 1, 2]
    data, fresh = frame_of(schema, 9, rng), frame_of(schema, 9, rng)
    if len(rows) > 1:
        data["id"] = [0, 0, 0, 1, 2, 3, 3, 4, 5]
    other = {name: list(values) for name, values in data.items()}
    for name, row in itertools.product((*schema.private, "y"), rows):
        other[name][row] = fresh[name][row]
    for row in rows:
        if labels != "any":
            (other if labels == "to none" else data)["y"][row] = None
    encoder = Encoder.fit(schema, pa.table(data))
    tables = [encoder.encode(pa.table(frame)) for frame in (data, other)]
    told = recorded(lambda door: fit(tables[0], method, options, door=door))
    first, second = (
        replayed(told, lambda door, table=table: fit(table, method, options, door=door), alone=0)
        for table in tables
    )
    # Single precision sums of a network are covered by a wider reserve of noise.
    slack = 2.0**-11 if method == "mlp" else 1e-6
    assert np.linalg.norm(first.moves(second)) <= gaussian_mu(1.0, 1e-5) * (1 + slack)


@pytest.mark.parametrize(("method", "options", "kind", "roles"), CASES)
def test_which_labels_are_missing_changes_nothing_that_is_told(
    method: str, options: Any, kind: str, roles: str
) -> None:
    """Noise, settings, charges and statement: equal with every label, with some, with none."""
    schema = schema_of(kind, ROLES[roles])
    data = frame_of(schema, 30, np.random.default_rng(1))
    full = [
        value if value is not None else (3 if kind == "number" else "no") for value in data["y"]
    ]
    told = []
    for labels in (data["y"], full, [None] * 30):
        column = pa.array(labels, pa.float64() if kind == "number" else pa.string())
        frame = pa.table(data).set_column(4, "y", column)
        table = Encoder.fit(schema, frame).encode(frame)
        seen = recorded(lambda door, table=table: fit(table, method, options, door=door))
        model = seen.model
        assert all(np.isfinite(array).all() for array in model.arrays().values())
        public = {
            name: value for name, value in model.details.items() if name not in FROM_THE_RELEASE
        }
        public.pop("public_start", None)
        told.append(
            (public, model.privacy.to_json(), [release.noise_std for release in seen.releases])
        )
    assert told[0] == told[1] == told[2]
    assert "Whether a row has one is protected" in " ".join(told[0][1]["notes"])


# Chosen after the release, from it and from public values.
FROM_THE_RELEASE = {"prior", "label_variance", "penalty_factor", "public_prior", "private_prior"}


@pytest.mark.parametrize(
    ("method", "options", "kind", "roles"),
    [
        case
        for case in CASES
        if case[0] not in ("one-shot", "label-span") and case[3] != "label alone"
    ],
)
def test_the_private_features_of_a_skipped_row_change_no_release(
    method: str, options: Any, kind: str, roles: str
) -> None:
    """Its slope is zero at any weights, so it pulls at nothing."""
    schema = schema_of(kind, roles)
    frame = pa.table(frame_of(schema, 30, np.random.default_rng(3)))
    table = Encoder.fit(schema, frame).encode(frame)
    private = np.where(table.unlabelled[:, None], table.private[::-1], table.private)
    # Both as blocks: of codes, the same sums have other last digits.
    table = table.with_blocks(private=table.private)
    told = recorded(lambda door: fit(table, method, options, door=door))
    other = table.with_blocks(private=private)
    again = replayed(told, lambda door: fit(other, method, options, door=door))
    for first, second in zip(told.releases, again.releases, strict=True):
        np.testing.assert_allclose(first.value, second.value, rtol=0, atol=1e-6)


@pytest.mark.parametrize("kind", LABELS)
@pytest.mark.parametrize("method", ["gd", "one-shot"])
def test_a_model_learns_from_the_rows_that_have_a_label(method: str, kind: str) -> None:
    rng = np.random.default_rng(0)
    n = 4000
    schema = schema_of(kind, "some")
    data = frame_of(schema, n, rng)
    level = np.array(data["open"])
    names: Any = (3.0, 7.0, 5.0) if kind == "number" else ("no", "yes", "maybe")
    truth = [names[0] if one == "p" else names[1] if one == "q" or kind == "two" else names[2]
             for one in level]  # fmt: skip
    data["y"] = [
        None if value is None else one for value, one in zip(data["y"], truth, strict=True)
    ]
    frame = pa.table(data)
    estimator = HalfmaskRegressor if kind == "number" else HalfmaskClassifier
    model = estimator(schema, epsilon=4.0, delta=1e-5, method=method).fit(frame)
    assert model.score(frame) > (0.5 if kind == "number" else 0.9)


# Public labels: which ones are missing is public, so those rows are left out.


@pytest.mark.parametrize(
    ("method", "options"),
    [("gd", {}), ("one-shot", {}), ("sgd", {}), ("mlp", {"recipe": "algorithm-1", "steps": 2})],
)
def test_rows_without_a_public_label_are_left_out(method: str, options: Any) -> None:
    schema = schema_of("two", "some", role="public")
    data = frame_of(schema, 40, np.random.default_rng(0))
    kept = [row for row, value in enumerate(data["y"]) if value is not None]
    frame = pa.table(data)
    encoder = Encoder.fit(schema, frame)
    models = [fit(encoder.encode(rows), method, options) for rows in (frame, frame.take(kept))]
    first, second = (model.arrays() for model in models)
    for name in first:
        np.testing.assert_array_equal(first[name], second[name])
    assert "which rows have one counts as public" in " ".join(models[0].privacy.notes)


def test_methods_refuse_public_labels_that_are_missing_before_a_charge() -> None:
    schema = schema_of("two", "some", role="public")
    frame = pa.table(frame_of(schema, 40, np.random.default_rng(0)))
    table = Encoder.fit(schema, frame).encode(frame)
    for method in (fit_gd, fit_one_shot):
        releaser = Releaser(
            MemoryLedger(epsilon=1.0, delta=1e-5, relation="replace"), noise_source(0)
        )
        with pytest.raises(InputError, match="lack their public label"):
            method(table, releaser)
        assert releaser.events == ()


# Scores are about rows of the user's own.


def test_rows_without_a_label_are_left_out_of_scores() -> None:
    schema = schema_of("two", "some")
    data = frame_of(schema, 60, np.random.default_rng(0))
    frame = pa.table(data)
    model = HalfmaskClassifier(schema, epsilon=1.0, delta=1e-5, unsafe_seed=0).fit(frame)
    kept = frame.filter(pa.compute.is_valid(frame["y"]))
    assert model.score(frame) == model.score(kept)
    weights = np.arange(60.0)
    expected = model.score(kept, sample_weight=weights[np.array(data["y"], dtype=object) != None])  # noqa: E711
    assert model.score(frame, sample_weight=weights) == expected


@pytest.mark.parametrize("skip", [True, False])
def test_train_and_evaluate_take_files_with_missing_labels(tmp_path: Path, skip: bool) -> None:
    """Evaluation leaves such rows out whatever the schema says; training asks for `skip`."""
    schema = schema_of("two", "some")
    if not skip:
        schema = replace(schema, label=replace(schema.label, missing=None))
    data = frame_of(schema, 60, np.random.default_rng(0))
    labelled = sum(value is not None for value in data["y"])
    (tmp_path / "schema.toml").write_text(schema.to_toml())
    pyarrow.csv.write_csv(pa.table(data), tmp_path / "some.csv")
    complete = data | {"y": [value or "no" for value in data["y"]]}
    pyarrow.csv.write_csv(pa.table(complete), tmp_path / "all.csv")

    def run(*arguments: str) -> Any:
        return CliRunner().invoke(main, [*arguments, "--json"])

    options = ["--schema", str(tmp_path / "schema.toml"), "--epsilon", "1", "--delta", "1e-5"]
    out = str(tmp_path / "model")
    refused = run("train", str(tmp_path / "some.csv"), *options, "--out", out)
    if skip:
        assert refused.exit_code == 0
    else:
        assert refused.exit_code == 2
        assert not Path(out).exists()
        assert run("train", str(tmp_path / "all.csv"), *options, "--out", out).exit_code == 0
    scored = run("evaluate", out, str(tmp_path / "some.csv"))
    assert scored.exit_code == 0
    assert json.loads(scored.stdout)["rows"] == labelled


def test_no_label_at_all_cannot_be_scored() -> None:
    schema = schema_of("two", "some")
    data = frame_of(schema, 6, np.random.default_rng(0)) | {"y": [None] * 6}
    frame = pa.table(data).set_column(4, "y", pa.array([None] * 6, pa.string()))
    model = HalfmaskClassifier(schema, epsilon=1.0, delta=1e-5).fit(frame)
    with pytest.raises(DataError, match="No row has a label"):
        model.score(frame)


def test_an_audit_attacks_the_rows_that_have_a_label(tmp_path: Path) -> None:
    schema = schema_of("three", "some")
    frame = pa.table(frame_of(schema, 60, np.random.default_rng(0)))
    model = HalfmaskClassifier(schema, epsilon=1.0, delta=1e-5, method="gd").fit(frame)
    model.model_.save(tmp_path)
    found = audit_model(tmp_path, frame, canaries=10)
    assert 0 <= found.finding.lower_bound <= 1
    assert {inference.column for inference in found.inferences} == {"v", "k"}


def test_vertical_methods_refuse_missing_labels_before_a_file_is_read() -> None:
    schema = schema_of("two", "some")
    columns = tuple(replace(column, party="bank") for column in schema.columns)
    with pytest.raises(SchemaError, match="label of every row"):
        party_schemas(replace(schema, columns=columns))
