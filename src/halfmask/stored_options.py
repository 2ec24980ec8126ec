"""Training options as JSON, so that a stored model can be trained again in the same way.

Plain values, lists of them and the package's own frozen configurations can be stored; a function
(a regulariser, say) cannot, and then the options as a whole are not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Never, get_type_hints

from halfmask.model_folder import damaged, rebuilt
from halfmask.settings import fits

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
    # A model file must not be able to call, or to load, anything but our own configurations.
    kind = _configuration(module, name)
    held = value.get("fields")
    if kind is None or not isinstance(held, dict):
        damaged("its training options")
    hints = get_type_hints(kind)
    restored = options_from_json(held)
    for field, item in restored.items():
        if not fits(item, hints.get(field, Never)):
            damaged(f"its training option {str(field)!r}")
    return rebuilt(lambda: kind(**restored), "its training options")


def _configuration(module: str, name: str) -> type[Any] | None:
    if not (name.endswith("Config") and module.startswith(_PACKAGE)):
        return None
    known = rebuilt(lambda: find_spec(module), "its training options")
    kind = getattr(import_module(module), name, None) if known else None
    own = isinstance(kind, type) and is_dataclass(kind) and kind.__module__ == module
    return kind if own else None
