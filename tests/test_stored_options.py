"""Options survive storing, functions do not, and a file cannot name anything but configurations."""

from __future__ import annotations

import json

import pytest

from halfmask.errors import DataError
from halfmask.methods.gd import GdConfig, LectureConfig
from halfmask.neural.pretrain import PretrainConfig
from halfmask.settings import options_from_json, options_to_json


def test_options_survive_storing() -> None:
    options = {
        "steps": 3,
        "rate": 0.5,
        "recipe": "dp-sgd",
        "padding": None,
        "widths": [4, 5],
        "config": GdConfig(steps=7, clip=0.5),
        "pretrain": PretrainConfig(hidden=8),
    }
    stored = json.loads(json.dumps(options_to_json(options)))
    assert options_from_json(stored) == options


def test_a_function_cannot_be_stored() -> None:
    assert options_to_json({"regulariser": lambda coef, rows: coef}) is None


@pytest.mark.parametrize(
    "name",
    ["os:system", "halfmask.training:train", "halfmask.methods.gd:nothing", "builtins:dict", ""],
)
def test_a_file_cannot_name_anything_but_a_configuration(name: str) -> None:
    with pytest.raises(DataError, match="damaged"):
        options_from_json({"config": {"config": name, "fields": {}}})


def test_a_file_of_an_earlier_version_names_another_module() -> None:
    stored = {"config": "halfmask.methods.gd_lecture:LectureConfig", "fields": {"radius": 2.0}}
    assert options_from_json({"config": stored}) == {"config": LectureConfig(radius=2.0)}
