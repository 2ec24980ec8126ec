"""The warm start: chosen by public columns alone, within its budget, better than public columns."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
import torch

from halfmask.accounting.budget import Budget
from halfmask.accounting.ledger import MemoryLedger
from halfmask.mechanisms.noise import noise_source
from halfmask.mechanisms.release import Releaser
from halfmask.mechanisms.shards import ALONE
from halfmask.model import Model
from halfmask.neural import default_recipe
from halfmask.neural.config import MlpConfig
from halfmask.neural.default_recipe import _widened, columns_work_together
from halfmask.neural.network import Mlp
from halfmask.neural.pretrain import NetworkRows, PretrainConfig
from halfmask.schema import Column, Label, Schema
from halfmask.table import Encoder, Table
from halfmask.training import train

ROWS, PAIRS = 1200, 5
FAST = PretrainConfig(hidden=32, networks=1, epochs=15, batch=32, learning_rate=5e-3)


def table(*, related: bool, seed: int = 0) -> Table:
    """Ten public and four private columns of 0 and 1; the class is in pairs, or in each column."""
    generator = np.random.default_rng(seed)
    kind = generator.integers(0, 3, ROWS)
    if related:
        # Two columns of a pair are equal for class 0 and differ for class 1; each alone is a coin.
        first = generator.integers(0, 2, (ROWS, PAIRS))
        differs = generator.random((ROWS, PAIRS)) < np.array([0.1, 0.9, 0.5])[kind][:, None]
        shown = np.hstack([first, first ^ differs])
    else:
        chances = generator.random((3, 2 * PAIRS))
        shown = (generator.random((ROWS, 2 * PAIRS)) < chances[kind]).astype(int)
    hidden = (generator.random((ROWS, 4)) < np.array([0.1, 0.4, 0.9])[kind][:, None]).astype(int)
    columns = np.hstack([shown, hidden]).T
    roles = ["public"] * (2 * PAIRS) + ["private"] * 4
    schema = Schema(
        label=Label(name="kind", role="public", classes=(0, 1, 2)),
        columns=tuple(
            Column(name=f"x{i}", role=role, kind="category", categories=("0", "1"))  # type: ignore[arg-type]
            for i, role in enumerate(roles)
        ),
    )
    frame = pa.table({**{f"x{i}": values for i, values in enumerate(columns)}, "kind": kind})
    return Encoder.fit(schema, frame).encode(frame)


def fitted(data: Table, epsilon: float, relation: str = "replace") -> Model:
    return train(
        data,
        Budget(epsilon=epsilon, delta=1e-5, relation=relation),
        method="mlp",
        noise=noise_source(1),
        options={"pretrain": FAST},
    )


def test_relations_between_columns_are_seen_where_there_are_some() -> None:
    config = MlpConfig(pretrain=FAST)
    found = [
        columns_work_together(NetworkRows.of(table(related=related)), config, ALONE)
        for related in (True, False)
    ]
    assert found == [True, False]


def test_private_values_do_not_take_part_in_the_choice() -> None:
    config, data = MlpConfig(pretrain=FAST), table(related=True)
    other = data.with_blocks(private=np.roll(data.private, 7, axis=0)[::-1].copy())
    choices = {columns_work_together(NetworkRows.of(t), config, ALONE) for t in (data, other)}
    assert choices == {True}


@pytest.mark.parametrize("relation", ["replace", "withhold"])
def test_the_steps_keep_to_the_budget_and_use_private_columns(relation: str) -> None:
    data = table(related=True)
    model = fitted(data, 8.0, relation)
    assert model.details["padding"] == "zero"
    assert 7.9 < model.privacy.calibrated[relation] <= 8.0  # type: ignore[index]
    hidden = data.with_blocks(private=np.zeros_like(data.private))
    with_private, without = (np.mean(model.predict(rows) == data.label) for rows in (data, hidden))
    assert with_private > without + 0.02


@pytest.mark.parametrize("related", [True, False])
def test_few_private_columns_are_learnt_by_steps(related: bool) -> None:
    """Their means by class leave out too much, whether or not public columns show it."""
    data = table(related=related)
    model = fitted(data, 8.0)
    assert (model.details["recipe"], model.details["padding"]) == ("default", "zero")
    usual = np.bincount(data.label).max() / data.n
    assert np.mean(model.predict(data) == data.label) > usual + 0.2


def wide(rows: int) -> NetworkRows:
    """Twenty private columns and one public one, all of 0 and 1, and three classes."""
    generator = np.random.default_rng(0)
    values = generator.integers(0, 2, (rows, 21))
    schema = Schema(
        label=Label(name="kind", role="public", classes=(0, 1, 2)),
        columns=tuple(
            Column(
                name=f"x{i}",
                role="private" if i else "public",
                kind="category",
                categories=("0", "1"),
            )
            for i in range(21)
        ),
    )
    frame = pa.table(
        {**{f"x{i}": column for i, column in enumerate(values.T)}, "kind": np.arange(rows) % 3}
    )
    return NetworkRows.of(Encoder.fit(schema, frame).encode(frame))


@pytest.mark.parametrize(
    ("rows", "epsilon", "related", "steps"),
    [
        (50, 0.1, False, True),  # noise would drown the means
        (50, 20.0, True, False),  # fewer rows than means: steps would learn nothing more
        (600, 4.0, True, True),
        (600, 4.0, False, False),
        (600, 0.05, False, True),
    ],
)
def test_release_or_steps(
    rows: int, epsilon: float, related: bool, steps: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(default_recipe, "columns_work_together", lambda *given: related)
    releaser = Releaser(MemoryLedger(epsilon=epsilon, delta=1e-5), noise_source(0))
    way = default_recipe.default_way(wide(rows), releaser, MlpConfig(), label_private=False)
    assert way == ("warm-start" if steps else "class-means")


def test_without_public_columns_there_is_nothing_to_start_from() -> None:
    data = table(related=False)
    assert data.schema is not None
    columns = tuple(replace(column, role="private") for column in data.schema.columns)
    frame = pa.table(
        {
            **{c.name: np.arange(ROWS) * (i + 1) // 7 % 2 for i, c in enumerate(columns)},
            "kind": data.label,
        }
    )
    schema = replace(data.schema, columns=columns)
    model = fitted(Encoder.fit(schema, frame).encode(frame), 1.0)
    assert model.details["recipe"] == "dp-sgd"


def test_a_widened_network_ignores_new_inputs_at_first() -> None:
    network = Mlp((4, 6, 3))
    rows, more = torch.randn(5, 4), torch.randn(5, 2)
    with torch.no_grad():
        wide = _widened(network, 2)(torch.cat([rows, more], dim=1))
        assert torch.allclose(wide, network(rows), atol=1e-6)
