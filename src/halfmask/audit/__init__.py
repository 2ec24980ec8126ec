"""Attacks on our own guarantees: lower bounds on epsilon, beside the epsilon that is claimed.

`record` and `replay` are for everyone: they lay open, release by release, what a training hides.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from halfmask.audit.transcript import Release as Release
    from halfmask.audit.transcript import Transcript as Transcript
    from halfmask.audit.transcript import record as record
    from halfmask.audit.transcript import replay as replay
    from halfmask.errors import ReplayError as ReplayError

# Loaded when first used: the other audits need no estimator.
_PUBLIC = {
    "Release": "halfmask.audit.transcript",
    "ReplayError": "halfmask.errors",
    "Transcript": "halfmask.audit.transcript",
    "record": "halfmask.audit.transcript",
    "replay": "halfmask.audit.transcript",
}

__all__ = list(_PUBLIC)


def __getattr__(name: str) -> Any:
    if name in _PUBLIC:
        return getattr(import_module(_PUBLIC[name]), name)
    raise AttributeError(f"module 'halfmask.audit' has no attribute {name!r}")
