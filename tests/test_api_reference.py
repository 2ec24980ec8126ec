"""The API reference is what the docstrings say."""

from __future__ import annotations

import importlib.util
import inspect
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import halfmask
from halfmask import HalfmaskClassifier, HalfmaskRegressor, Schema
from halfmask.effects import Effect, Explanation
from halfmask.schema import Column, Label, Unit

DOCS = Path(__file__).parent.parent / "docs"


@pytest.fixture(scope="module")
def maker() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_api", DOCS / "make_api.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_up_to_date(maker: ModuleType) -> None:
    written = (DOCS / "api.md").read_text(encoding="utf-8")
    assert written == maker.page(), "run: python docs/make_api.py"


def test_every_public_name_is_in_it(maker: ModuleType) -> None:
    named = {name.partition(":")[2] for names in maker.NAMES.values() for name in names}
    assert set(halfmask.__all__) - {"__version__"} <= named


@pytest.mark.parametrize(
    "thing", [HalfmaskClassifier, HalfmaskRegressor, Schema, Column, Label, Unit]
)
def test_every_parameter_has_its_lines(thing: Any) -> None:
    """As scikit-learn has it: name, kind, and what it is for."""
    text = inspect.getdoc(thing) or ""
    section = text.partition("Parameters\n----------\n")[2].partition("\n\n")[0]
    told = re.findall(r"^(\w+) : \S", section, flags=re.MULTILINE)
    taken = [name for name in inspect.signature(thing).parameters if name != "_"]
    assert told == taken


@pytest.mark.parametrize("thing", [Effect, Explanation])
def test_every_field_has_its_lines(thing: Any) -> None:
    text = inspect.getdoc(thing) or ""
    section = text.partition("Attributes\n----------\n")[2]
    told = {
        name.strip()
        for line in re.findall(r"^(\S.*?) : ", section, flags=re.MULTILINE)
        for name in line.split(",")
    }
    assert set(inspect.signature(thing).parameters) <= told
