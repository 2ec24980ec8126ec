"""The census beside other packages: every package that runs here is scored on the same rows."""

from __future__ import annotations

import pyarrow as pa
import pytest

from halfmask import datasets
from halfmask.datasets import load_adult
from halfmask.schema import Schema
from halfmask_lab import peers


@pytest.mark.slow
def test_every_package_is_scored_or_said_to_be_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    train, test, schema = load_adult()

    def small() -> tuple[pa.Table, pa.Table, Schema]:
        return train.slice(0, 1500), test.slice(0, 500), schema

    monkeypatch.setattr(peers, "load_adult", small)
    monkeypatch.setattr(datasets, "load_adult", small)
    found = peers.run(draws=1, epsilons=(4.0,))
    named = {row["method"] for row in found["results"]}
    left_out = {each["method"] for each in found["left_out"]}
    assert "auto" in named
    assert not named & left_out
    assert {name.split()[0] for name in named | left_out} == {
        "auto",
        "dp-ebm",
        "opacus",
        "diffprivlib",
    }
    roles = {row["roles"] for row in found["results"] if row["method"] == "auto"}
    assert len(roles) == 4
    for row in found["results"]:
        assert row["relation"] == ("replace" if row["method"] == "auto" else row["relation"])
        assert 0.5 < row["mean"] <= 1 or row["metric"] == "log_loss"
