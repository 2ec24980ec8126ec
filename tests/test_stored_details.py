"""A model that was paid for can be stored, whatever the noise made of it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from halfmask.accounting.budget import Budget
from halfmask.accounting.ledger import Ledger
from halfmask.errors import InputError
from halfmask.mechanisms.noise import noise_source
from halfmask.model import Model
from halfmask.model_folder import link_ledger, packed, unpacked, without_objects
from halfmask.schema import Schema
from halfmask.table import Encoder
from halfmask.training import train


def small_model(epsilon: float, seed: int, ledger: Path | None = None) -> Model:
    rng = np.random.default_rng(0)
    frame = pa.table({"x": rng.uniform(size=20), "y": rng.choice(["a", "b"], 20)})
    schema = Schema.from_dict(
        {
            "label": {"name": "y", "role": "private", "classes": ["a", "b"]},
            "columns": {"x": {"role": "public", "kind": "number", "bounds": [0, 1]}},
        }
    )
    encoder = Encoder.fit(schema, frame)
    return train(
        encoder.encode(frame),
        Budget(epsilon=epsilon, delta=1e-6),
        method="one-shot",
        noise=noise_source(seed),
        encoder=encoder,
        ledger=ledger,
    )


def test_a_release_that_says_nothing_is_stored_too(tmp_path: Path) -> None:
    """Under so much noise the constant model is often the best one, with no finite penalty."""
    factors = []
    for seed in range(5):
        small_model(0.01, seed).save(tmp_path / str(seed))
        factors.append(Model.load(tmp_path / str(seed)).details["penalty_factor"])
    assert None in factors


def test_a_number_that_is_not_finite_is_stored_as_nothing(tmp_path: Path) -> None:
    model = small_model(1.0, 0)
    trace = [1.0, float("inf"), {"deep": float("nan")}]
    replace(model, details={**model.details, "trace": trace}).save(tmp_path)
    stored = json.loads((tmp_path / "model.json").read_text())
    assert stored["details"]["trace"] == [1.0, None, {"deep": None}]


def test_a_model_is_saved_over_nothing_unless_that_is_asked_for(tmp_path: Path) -> None:
    model, folder, file = small_model(1.0, 0), tmp_path / "model", tmp_path / "note.txt"
    file.write_text("mine")
    for place in (file, file / "deeper"):
        with pytest.raises(InputError, match="is a file"):
            model.save(place)
    with pytest.raises(InputError, match="is not empty: name a new folder"):
        model.save(tmp_path)
    model.save(folder)
    other = replace(model, reason="another")
    with pytest.raises(InputError, match="holds a model: name a new folder, or pass overwrite"):
        other.save(folder)
    assert Model.load(folder).reason == model.reason
    other.save(folder, overwrite=True)
    assert Model.load(folder).reason == "another"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model", "note.txt"]


@pytest.mark.parametrize("kept", ["in the folder", "elsewhere"])
def test_no_model_is_saved_beside_a_ledger_that_was_charged_for_another_alone(
    tmp_path: Path, kept: str
) -> None:
    """Both have the same plan, so that the charge of the one looks like that of the other."""
    folder = tmp_path / "model"
    path = folder / "ledger.jsonl" if kept == "in the folder" else tmp_path / "people.jsonl"
    folder.mkdir()
    Ledger.create(path, epsilon=100.0, delta=1e-6)
    first, second = small_model(20.0, 0, path), small_model(20.0, 1)
    first.save(folder, overwrite=True)
    link_ledger(folder, path)
    assert first.privacy.events == second.privacy.events
    with pytest.raises(InputError, match="charged for the model there and not for this one"):
        second.save(folder, overwrite=True)
    replace(first, reason="described anew").save(folder, overwrite=True)
    assert Model.load(folder).reason == "described anew"
    # A model whose charge is in that ledger too may replace the first.
    small_model(20.0, 2, path).save(folder, overwrite=True)


def test_no_array_of_objects_is_stored_and_no_other_array_than_was_given(tmp_path: Path) -> None:
    """With numpy 2.0 the word `allow_pickle` of `savez` became an array of the archive."""
    head, arrays = unpacked(packed({"a": 1}, {"numbers": np.ones(2)}), "x.npz")
    assert (head, list(arrays)) == ({"a": 1}, ["numbers"])
    small_model(1.0, 0).save(tmp_path)
    with np.load(tmp_path / "model.npz") as stored:
        assert "allow_pickle" not in stored
    with pytest.raises(TypeError, match="objects"):
        without_objects({"objects": np.array([{}], dtype=object)})
