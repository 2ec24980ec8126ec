"""The names a user may import, each of them once."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec

import pytest

import halfmask

PUBLIC = {
    "Schema",
    "HalfmaskClassifier",
    "HalfmaskRegressor",
    "Statement",
    "Ledger",
    "HalfmaskError",
    "InputError",
    "SchemaError",
    "DataError",
    "LedgerError",
    "AccountingError",
    "BudgetExceededError",
    "ClaimRefutedError",
    "__version__",
}


def test_public_names_are_exactly_these() -> None:
    assert set(halfmask.__all__) == set(dir(halfmask)) == PUBLIC


@pytest.mark.parametrize("name", sorted(PUBLIC - {"__version__"}))
def test_each_name_is_the_object_of_its_module(name: str) -> None:
    module = halfmask._PUBLIC[name]
    if find_spec(module) is None:
        with pytest.raises(ModuleNotFoundError):
            getattr(halfmask, name)
        return
    found = getattr(halfmask, name)
    assert isinstance(found, type)
    assert found.__name__ == name
    assert found.__module__.startswith("halfmask")


def test_unknown_names_are_attribute_errors() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        halfmask.Nothing  # noqa: B018


def test_importing_the_package_loads_nothing_heavy() -> None:
    program = (
        "import sys, halfmask; print([m for m in ('numpy', 'scipy', 'torch', 'sklearn', 'pyarrow', "
        "'dp_accounting') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.strip() == "[]"
