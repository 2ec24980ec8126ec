"""Train models on tables in which only part of each row is private."""

from __future__ import annotations

from importlib import import_module

TYPE_CHECKING = False  # that of typing, whose import takes a while
if TYPE_CHECKING:
    from typing import Any

    from halfmask.accounting.ledger import Ledger as Ledger
    from halfmask.estimators import HalfmaskClassifier as HalfmaskClassifier
    from halfmask.estimators import HalfmaskRegressor as HalfmaskRegressor
    from halfmask.schema import Schema as Schema
    from halfmask.statement import Statement as Statement

    __version__: str

# Loaded when first used, so that `import halfmask` and `halfmask --help` stay quick.
_PUBLIC = {
    "Schema": "halfmask.schema",
    "HalfmaskClassifier": "halfmask.estimators",
    "HalfmaskRegressor": "halfmask.estimators",
    "Statement": "halfmask.statement",
    "Ledger": "halfmask.accounting.ledger",
    "HalfmaskError": "halfmask.errors",
    "InputError": "halfmask.errors",
    "SchemaError": "halfmask.errors",
    "DataError": "halfmask.errors",
    "LedgerError": "halfmask.errors",
    "AccountingError": "halfmask.errors",
    "BudgetExceededError": "halfmask.errors",
    "ClaimRefutedError": "halfmask.errors",
}

__all__ = [*_PUBLIC, "__version__"]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("halfmask")
    if name in _PUBLIC:
        return getattr(import_module(_PUBLIC[name]), name)
    raise AttributeError(f"module 'halfmask' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
