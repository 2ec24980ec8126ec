"""The method mlp: sensitivities attacked, budgets met, models stored, mistakes named."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from halfmask.accounting.budget import Budget
from halfmask.accounting.gaussian import gaussian_mu
from halfmask.accounting.ledger import MemoryLedger
from halfmask.errors import BudgetExceededError, InputError
from halfmask.estimators import HalfmaskClassifier
from halfmask.mechanisms.noise import noise_source, public_generator
from halfmask.mechanisms.shards import ALONE
from halfmask.model import Model
from halfmask.neural.class_means import sum_sensitivity
from halfmask.neural.config import StepsConfig
from halfmask.neural.default_recipe import _calibrate
from halfmask.neural.ghost import MlpGradients
from halfmask.neural.inputs import Inputs
from halfmask.neural.method import (
    LENGTH,
    NeuralModel,
    hidden_features,
    learn_public_features,
    regulariser_of,
)
from halfmask.neural.network import FlatParameters, Mlp
from halfmask.neural.padding import PADDINGS, Padding, free_padding
from halfmask.neural.pretrain import NetworkRows, PretrainConfig, PublicRows, as_rows, summed
from halfmask.neural.trainer import TrainerConfig, public_gradient
from halfmask.schema import Column, Label, Schema
from halfmask.table import Encoder, Table
from halfmask.training import train

N, CLASSES = 300, 3
FAST = PretrainConfig(hidden=16, networks=2, epochs=6, batch=32)


def schema(label: str = "public", private: bool = True) -> Schema:
    role = "private" if private else "public"
    roles = ["public"] * 3 + [role] * 5
    binary = [
        Column(name=f"b{i}", role=role, kind="category", categories=("0", "1"))  # type: ignore[arg-type]
        for i, role in enumerate(roles)
    ]
    number = Column(name="size", role=role, kind="number", bounds=(0.0, 10.0), bins=0)  # type: ignore[arg-type]
    classes = tuple(range(CLASSES))
    return Schema(
        label=Label(name="kind", role=label, classes=classes),  # type: ignore[arg-type]
        columns=(*binary, number),
    )


def frame(seed: int = 0) -> pa.Table:
    generator = np.random.default_rng(seed)
    kind = generator.integers(0, CLASSES, N)
    columns: dict[str, Any] = {
        f"b{i}": (generator.random(N) < np.where(kind == i % CLASSES, 0.9, 0.1)).astype(int)
        for i in range(8)
    }
    return pa.table({**columns, "size": generator.random(N) * 10, "kind": kind})


def tables(label: str = "public") -> Table:
    encoder = Encoder.fit(schema(label), frame())
    return encoder.encode(frame())


def fitted(table: Table, epsilon: float = 4.0, **options: Any) -> Model:
    default = options.get("recipe", "default") == "default"
    own: dict[str, Any] = {"pretrain": FAST} if default else {"hidden": FAST.hidden}
    return train(
        table,
        Budget(epsilon=epsilon, delta=1e-5, relation=options.pop("relation", "replace")),
        method="mlp",
        noise=noise_source(options.pop("seed", 1)),
        options=own | options,
    )


@pytest.mark.parametrize("relation", ["replace", "withhold"])
def test_the_default_recipe_keeps_to_its_budget_and_learns(relation: str) -> None:
    table = tables()
    model = fitted(table, relation=relation)
    assert model.privacy.calibrated[relation] <= 4.0  # type: ignore[index]
    assert model.privacy.calibrated[relation] > 3.9  # type: ignore[index]
    assert len(model.privacy.events) == 1  # 300 rows are too few for private steps
    assert np.mean(model.predict(table) == table.label) > 0.75


@pytest.mark.parametrize("relation", ["replace", "withhold"])
def test_a_share_of_the_budget_corrects_the_scores(relation: str) -> None:
    table = tables()
    model = fitted(table, relation=relation, release_share=0.8)
    assert 3.9 < model.privacy.calibrated[relation] <= 4.0  # type: ignore[index]
    assert len(model.privacy.events) == 2
    assert model.details["steps"] == 10
    assert np.mean(model.predict(table) == table.label) > 0.75


@pytest.mark.parametrize("padding", PADDINGS)
def test_algorithm_1_runs_with_every_padding_within_its_budget(padding: str) -> None:
    model = fitted(tables(), recipe="algorithm-1", padding=padding, steps=5)
    assert 3.9 < model.privacy.calibrated["replace"] <= 4.0


@pytest.mark.parametrize("label", ["public", "private"])
def test_dp_sgd_is_there_by_name_and_where_the_label_is_private(label: str) -> None:
    recipe = "dp-sgd" if label == "public" else "default"
    steps = {"steps": 5} if label == "public" else {"network": StepsConfig(steps=5)}
    model = fitted(tables(label), recipe=recipe, **steps)
    assert model.details["recipe"] == "dp-sgd"
    assert len(model.privacy.events) == 1


def test_a_stored_model_predicts_the_same(tmp_path: Path) -> None:
    table = tables()
    model = fitted(table)
    model.save(tmp_path / "model")
    again = Model.load(tmp_path / "model")
    assert np.array_equal(model.scores(table), again.scores(table))
    assert again.method == "mlp"


def test_a_seeded_run_is_the_same_run() -> None:
    table = tables()
    assert np.array_equal(fitted(table).scores(table), fitted(table).scores(table))


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**16), scale=st.floats(0.1, 20.0))
def test_no_row_moves_the_class_sums_by_more_than_their_sensitivity(
    seed: int, scale: float
) -> None:
    generator = np.random.default_rng(seed)
    table = tables()
    inputs = Inputs.of(table, private_norm=float(generator.uniform(0.2, 3.0)))
    wild = generator.standard_normal((2, table.private.shape[1])) * scale
    wild[:, generator.random(wild.shape[1]) < 0.3] = 1e12
    pair = inputs.private(_with_private(table, wild))
    bound = sum_sensitivity(inputs.private_norm, non_negative=inputs.non_negative)
    assert np.linalg.norm(pair[0] - pair[1]) <= bound.replace * (1 + 1e-9)
    assert np.linalg.norm(pair, axis=1).max() <= bound.withhold * (1 + 1e-9)


def test_values_that_are_not_finite_contribute_nothing() -> None:
    table = tables()
    wild = np.full((2, table.private.shape[1]), np.nan)
    assert not Inputs.of(table).private(_with_private(table, wild)).any()


def _with_private(table: Table, private: np.ndarray) -> Table:
    from dataclasses import replace

    return replace(table.with_blocks(private=private), rows=np.arange(len(private)))


def test_the_norm_of_private_rows_follows_public_columns_alone() -> None:
    table = tables()
    other = _with_private(table, np.zeros_like(table.private))
    assert Inputs.of(table).private_norm == Inputs.of(other).private_norm


def test_drawn_levels_have_the_released_frequencies() -> None:
    table = tables()
    inputs = Inputs.of(table, private_norm=1e6)
    means = np.linspace(0.1, 0.9, len(inputs.kept))[None, :].repeat(CLASSES, 0)
    padding = Padding(name="class-samples", table=means, inputs=inputs)
    labels = np.zeros(20_000, dtype=np.int64)
    drawn = padding.fill(labels, np.random.default_rng(0))
    assert np.allclose(drawn.mean(0), means[0], atol=0.02)
    assert set(np.unique(drawn[:, inputs.sampled])) == {0.0, 1.0}


def test_crossed_rows_keep_their_class_and_mix_within_it() -> None:
    labels = np.array([0, 1, 0, 1, 0, 1])
    rows = PublicRows(
        features=labels[:, None] * 10.0 + np.arange(6)[:, None],
        columns=np.zeros(1, dtype=np.int64),
        labels=labels,
    )
    crossed = rows.crossed(1.0, np.random.default_rng(0))[:, 0]
    assert np.array_equal(crossed >= 10, labels == 1)
    assert not np.array_equal(crossed, rows.features[:, 0])


def test_an_averaged_network_has_the_mean_of_the_scores() -> None:
    members = [Mlp((5, 4, 3)) for _ in range(3)]
    rows = torch.randn(7, 5)
    expected = torch.stack([member(rows) for member in members]).mean(0)
    assert torch.allclose(
        summed(members, [1 / len(members)] * len(members))(rows), expected, atol=1e-6
    )


def test_mistakes_are_named_before_anything_is_charged() -> None:
    table = tables()
    ledger = MemoryLedger(epsilon=4.0, delta=1e-5, relation="replace")
    for options in (
        {"recipe": "best"},
        {"hidden": 3},
        {"release_share": 1.5},
        {"padding": "gaussian"},  # of another recipe
        {"steps": 3},  # of which steps?
        {"recipe": "dp-sgd", "steps": 0},
        {"recipe": "dp-sgd", "alpha": 2.0},
        {"recipe": "algorithm-1", "alpha": math.nan},
    ):
        with pytest.raises(InputError):
            train(
                table,
                Budget(epsilon=4.0, delta=1e-5),
                method="mlp",
                noise=noise_source(1),
                ledger=ledger,
                options=options,
            )
    with pytest.raises(InputError, match="paid for"):
        free_padding("class-means", Inputs.of(table), np.random.default_rng(0))
    assert ledger.events() == ()


@pytest.mark.parametrize("padding", ["class-means", "class-samples"])
def test_padding_by_class_needs_a_public_label(padding: str) -> None:
    with pytest.raises(InputError, match="label is private"):
        fitted(tables("private"), recipe="algorithm-1", padding=padding)


@pytest.mark.parametrize("padding", [name for name in PADDINGS if not name.startswith("class")])
def test_algorithm_1_takes_a_private_label(padding: str) -> None:
    model = fitted(tables("private"), recipe="algorithm-1", padding=padding, steps=5)
    assert model.details["recipe"] == "algorithm-1"
    assert model.privacy.label_private
    assert model.privacy.epsilon is None  # seeded
    assert 3.9 < model.privacy.calibrated_epsilon <= 4.0
    assert "every class alike" in model.details["public_loss_of"]


def test_a_label_alone_may_be_private_for_networks() -> None:
    """With every feature public a row and its padded row are the same: only the label is left."""
    encoder = Encoder.fit(schema("private", private=False), frame())
    table = encoder.encode(frame())
    assert not table.private.shape[1]
    for options in ({"recipe": "algorithm-1", "padding": "zero"}, {"recipe": "dp-sgd"}, {}):
        model = fitted(table, epsilon=50.0, **options)
        right = float((model.predict(table) == np.array(table.label)).mean())
        assert right > 0.8
    X = np.random.default_rng(0).normal(size=(200, 3))
    for recipe in ("algorithm-1", "dp-sgd"):
        options = {"recipe": recipe, "steps": 3}
        bare = HalfmaskClassifier(method="mlp", public="all", options=options)
        assert bare.fit(X, (X[:, 0] > 0).astype(int)).predict(X).shape == (200,)


def test_the_public_loss_and_the_private_part_add_up_to_the_loss() -> None:
    torch.manual_seed(0)
    network = Mlp((6, 5, 3)).double()
    rows, padded = torch.randn(9, 6).double(), torch.randn(9, 6).double()
    labels = torch.arange(9) % 3
    private = MlpGradients(network, label_private=True).clipped_sum(
        rows, labels, 1e9, padded=padded
    )
    flat = FlatParameters(network)
    config = TrainerConfig(
        steps=1, rate=1.0, clip_norm=1.0, noise_multiplier=1.0, learning_rate=1.0
    )
    _, public = public_gradient(network, flat, padded, None, config)
    _, whole = public_gradient(network, flat, rows, labels, config)
    assert torch.allclose(private / 9 + public, whole, atol=1e-9)


@pytest.mark.parametrize("name", ["reconstruct", "decorrelate"])
def test_regularisers_are_differentiable_and_see_rows_and_weights_alone(name: str) -> None:
    network = Mlp((6, 5, 3), generator=torch.Generator().manual_seed(1))
    rows = torch.randn(20, 6, generator=torch.Generator().manual_seed(2))
    made = regulariser_of(name)
    assert made is not None
    loss = made(network, rows)
    loss.backward()
    grad = network.linear[0].weight.grad
    assert grad is not None
    assert bool(torch.isfinite(grad).all())
    assert float(grad.abs().sum()) > 0
    assert float(loss.detach()) >= 0
    plain, helped = (
        fitted(tables("private"), recipe="algorithm-1", steps=3, regulariser=each)
        for each in ("none", name)
    )
    assert plain.privacy.calibrated_epsilon == helped.privacy.calibrated_epsilon
    table = tables("private")
    assert not np.array_equal(plain.scores(table), helped.scores(table))


def test_weights_stay_in_the_ball_that_was_asked_for() -> None:
    model = fitted(tables(), recipe="dp-sgd", steps=4, radius=0.5, aggregate="last")
    assert isinstance(model, NeuralModel)
    size = sum(float((part**2).sum()) for part in (*model.weights, *model.biases))
    assert math.sqrt(size) <= 0.5 * (1 + 1e-5)


def test_scores_that_are_too_sure_are_scaled_down() -> None:
    data = NetworkRows.of(tables())
    width = data.public_features.shape[1] + data.private_features.shape[1]
    network = Mlp((width, 5, data.classes), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        network.linear[-1].weight.mul_(200.0)
    padding = free_padding("zero", data.inputs, np.random.default_rng(0))
    padded = as_rows(data.public_features, padding.fill(data.labels, np.random.default_rng(0)))
    labels = torch.from_numpy(data.labels)
    with torch.no_grad():
        before = network(padded)
        _calibrate(network, data, padding, ALONE)
        after = network(padded)
    assert torch.equal(before.argmax(1), after.argmax(1))
    assert functional.cross_entropy(before, labels) > 2.0
    assert functional.cross_entropy(after, labels) < 1.5 * math.log(data.classes)


def test_a_spent_ledger_refuses() -> None:
    ledger = MemoryLedger(epsilon=1.0, delta=1e-5, relation="replace")
    budget = Budget(epsilon=1.0, delta=1e-5)
    given: dict[str, Any] = {"noise": noise_source(1), "options": {"pretrain": FAST}}
    train(tables(), budget, method="mlp", ledger=ledger, **given)
    spent = ledger.events()
    assert spent
    assert ledger.spent() > 0.9
    with pytest.raises(BudgetExceededError):
        train(tables(), budget, method="mlp", ledger=ledger, **given)
    assert ledger.events() == spent


def test_sensitivity_of_signed_rows_is_twice_the_norm() -> None:
    assert sum_sensitivity(3.0, non_negative=False).replace == 6.0
    assert math.isclose(sum_sensitivity(3.0, non_negative=True).replace, 3.0 * math.sqrt(2))


def test_noise_outside_of_the_public_span_is_dropped_and_costs_nothing_more() -> None:
    rng = np.random.default_rng(0)
    plane = rng.normal(size=(2, 6))
    X = rng.normal(size=(200, 2)) @ plane
    y = (X[:, 0] > 0).astype(int)
    options = {"recipe": "algorithm-1", "steps": 3, "hidden": 4, "aggregate": "last"}
    runs = {
        span: HalfmaskClassifier(
            method="mlp", public="all", options={**options, "span": span}, unsafe_seed=3
        ).fit(X, y)
        for span in (None, 2)
    }
    narrow, wide = runs[2].model_, runs[None].model_
    assert narrow.privacy.calibrated_epsilon == wide.privacy.calibrated_epsilon
    start = Mlp(
        (6, 4, 2),
        generator=torch.Generator().manual_seed(int(public_generator(0).integers(2**62))),
    )
    moved = narrow.weights[0] - start.linear[0].weight.detach().numpy()
    inside, *_ = np.linalg.lstsq(plane.T, moved.T, rcond=None)
    # Rows lie in a plane of six dimensions: so do all the steps of the first layer.
    assert np.allclose(plane.T @ inside, moved.T, atol=1e-5)
    assert not np.allclose(narrow.weights[0], wide.weights[0])


def clusters(rows: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Six clusters around a ring in ten columns, whose classes alternate: no line parts them."""
    rng = np.random.default_rng(seed)
    which = rng.integers(0, 6, rows)
    ring = np.column_stack([np.cos(which * np.pi / 3), np.sin(which * np.pi / 3)])
    plane = np.linalg.qr(np.random.default_rng(7).normal(size=(10, 2)))[0]
    return ring @ plane.T + 0.03 * rng.normal(size=(rows, 10)), which % 2


def test_a_start_from_neighbours_makes_hidden_features_that_tell_clusters() -> None:
    rows, labels = clusters(600)
    network = Mlp((10, 12, 2), generator=torch.Generator().manual_seed(0))
    public = rows.astype(np.float32)
    learn_public_features(network, public, torch.Generator().manual_seed(1))
    with torch.no_grad():
        hidden = hidden_features(network, torch.from_numpy(public)).numpy()
        assert torch.equal(network(torch.from_numpy(public)), torch.zeros(600, 2))
    assert np.linalg.norm(hidden, axis=1).mean() == pytest.approx(LENGTH, rel=1e-3)
    design = np.column_stack([hidden, np.ones(600)])
    target = 2.0 * labels - 1
    told = design @ np.linalg.lstsq(design, target, rcond=None)[0]
    assert np.mean((told > 0) == labels) > 0.97
    line = np.column_stack([rows, np.ones(600)])
    assert np.mean((line @ np.linalg.lstsq(line, target, rcond=None)[0] > 0) == labels) < 0.7


def test_a_start_from_neighbours_learns_with_few_steps_and_the_same_charge() -> None:
    rows, labels = clusters(1500)
    options = {"recipe": "algorithm-1", "padding": "zero", "steps": 40, "hidden": 12}
    found = {
        start: HalfmaskClassifier(
            method="mlp",
            public="all",
            epsilon=1.0,
            options={**options, "start": start, "learning_rate": 0.5, "aggregate": "tail"},
            unsafe_seed=3,
        ).fit(rows, labels)
        for start in ("random", "neighbours")
    }
    new, wanted = clusters(1000, seed=1)
    reached = {start: model.score(new, wanted) for start, model in found.items()}
    assert reached["neighbours"] > 0.9 > reached["random"] + 0.05
    charges = {model.privacy_.calibrated_epsilon for model in found.values()}
    assert len(charges) == 1


def test_a_start_from_neighbours_reads_nothing_private(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every private column and every label is another: not a digit of the start moves."""
    from halfmask.neural import method

    started: list[torch.Tensor] = []

    def kept(network: Mlp, *rest: Any, **more: Any) -> None:
        started.append(torch.nn.utils.parameters_to_vector(network.parameters()).clone())

    monkeypatch.setattr(method, "train_privately", kept)
    one = frame()
    two = frame(seed=5)
    declared = schema(label="private")
    for name in declared.public:
        place = two.column_names.index(name)
        two = two.set_column(place, name, one[name])
    for each in (one, two):
        table = Encoder.fit(declared, each).encode(each)
        fitted(table, recipe="algorithm-1", padding="zero", start="neighbours", steps=2)
    assert torch.equal(*started)
    assert float(started[0].detach().abs().sum()) > 0


def test_a_start_from_neighbours_needs_public_columns() -> None:
    everything = Schema(
        label=Label(name="kind", role="private", classes=tuple(range(CLASSES))),
        columns=tuple(replace(column, role="private") for column in schema().columns),
    )
    table = Encoder.fit(everything, frame()).encode(frame())
    with pytest.raises(InputError, match="Use start=random"):
        fitted(table, recipe="algorithm-1", padding="zero", start="neighbours", steps=2)


def test_a_large_table_is_sampled_for_its_neighbours(monkeypatch: pytest.MonkeyPatch) -> None:
    from halfmask.neural import method as public_features

    monkeypatch.setattr(public_features, "_MOST_ROWS", 50)
    asked: list[int] = []
    whole = public_features.smooth_functions

    def counted(rows: Any) -> Any:
        asked.append(len(rows))
        return whole(rows)

    monkeypatch.setattr(public_features, "smooth_functions", counted)
    network = Mlp((10, 4, 2), generator=torch.Generator().manual_seed(0))
    rows = clusters(200)[0].astype(np.float32)
    learn_public_features(network, rows, torch.Generator().manual_seed(1))
    assert asked == [50]


def test_neighbours_of_one_label_move_a_start_from_public_columns_as_charged() -> None:
    from halfmask.audit import record, replay

    rng = np.random.default_rng(0)
    columns = {f"c{i}": rng.normal(size=40) for i in range(4)}
    label = rng.choice(["a", "b", "c"], 40)
    label[3] = "a"
    other = label.copy()
    other[3] = "c"
    declared = Schema(
        label=Label(name="y", role="private", classes=("a", "b", "c")),
        columns=tuple(Column(name, "public", "number", bins=0) for name in columns),
    )
    estimator = HalfmaskClassifier(
        declared,
        method="mlp",
        epsilon=1.0,
        delta=1e-5,
        options={
            **{"recipe": "algorithm-1", "padding": "zero", "start": "neighbours"},
            **{"steps": 5, "rate": 1.0, "hidden": 6},
        },
        unsafe_seed=1,
    )
    told = record(estimator, pa.table({**columns, "y": label}))
    again = replay(estimator, pa.table({**columns, "y": other}), told)
    moved = [
        float(np.linalg.norm(np.asarray(a.value) - np.asarray(b.value)) / a.noise_std)
        for a, b in zip(told.releases, again.releases, strict=True)
    ]
    assert len(moved) == 5
    total = math.sqrt(sum(each**2 for each in moved))
    assert 0.2 * gaussian_mu(1.0, 1e-5) < total <= gaussian_mu(1.0, 1e-5)
