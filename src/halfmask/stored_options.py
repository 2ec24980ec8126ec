"""Training options as JSON, so that a stored model can be trained again in the same way.

Plain values, lists of them and the package's own frozen configurations can be stored; a function
(a regulariser, say) cannot, and then the options as a whole are not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from importlib import import_module
from typing import Any

from halfmask.errors import DataError

_CONFIG, _PACKAGE = "config", "halfmask."


class _CannotStoreError(Exception):
    """A value that JSON has no form for."""


def options_to_json(options: Mapping[str, Any]) -> dict[str, Any] | None:
    """The options as a JSON object; None where one of them cannot be stored."""
    try:
        return {name: _stored(value) for name, value in options.items()}
    except _CannotStoreError:
        return None


def options_from_json(stored: Mapping[str, Any]) -> dict[str, Any]:
    """The inverse of `options_to_json`."""
    return {name: _restored(value) for name, value in stored.items()}


def _stored(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple):
        return [_stored(item) for item in value]
    kind = type(value)
    if is_dataclass(value) and kind.__module__.startswith(_PACKAGE):
        held = {each.name: _stored(getattr(value, each.name)) for each in fields(value)}
        return {_CONFIG: f"{kind.__module__}:{kind.__qualname__}", "fields": held}
    raise _CannotStoreError


def _restored(value: Any) -> Any:
    if isinstance(value, list):
        return [_restored(item) for item in value]
    if not isinstance(value, dict):
        return value
    module, _, name = str(value.get(_CONFIG)).partition(":")
    # A model file must not be able to call anything but the package's own configurations.
    kind = getattr(import_module(module), name, None) if module.startswith(_PACKAGE) else None
    if not (isinstance(kind, type) and is_dataclass(kind)):
        raise DataError("The model's training options are damaged: train it again.")
    return kind(**options_from_json(value["fields"]))
