"""Settings of a method: one frozen configuration per method and recipe, and nothing else.

The same object comes from Python (`method=GdConfig(steps=40)`), from words (`--set steps=40`) and
from a TOML file (`--config`). A name that a method does not have, or a value of another type, is an
error that lists what there is. Settings are public: nothing here may hold a private value.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import Field, fields, is_dataclass, replace
from pathlib import Path
from pkgutil import resolve_name
from types import NoneType, UnionType
from typing import (
    Any,
    ClassVar,
    Literal,
    Never,
    Protocol,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from halfmask.errors import InputError
from halfmask.model_folder import damaged, rebuilt

RECIPE = "recipe"
CONFIG = "config"

# Of each method the configuration of every recipe, the default one first.
_KINDS: dict[str, dict[str, str]] = {
    "one-shot": {"": "halfmask.methods.one_shot:OneShotConfig"},
    "gd": {
        "default": "halfmask.methods.gd:GdConfig",
        "lecture": "halfmask.methods.gd:LectureConfig",
    },
    "sgd": {"": "halfmask.methods.sgd:SgdConfig"},
    "dp-sgd": {"": "halfmask.methods.sgd:DpSgdConfig"},
    "label-span": {"": "halfmask.methods.label_span:LabelSpanConfig"},
    "mlp": {
        "default": "halfmask.neural.config:MlpConfig",
        "algorithm-1": "halfmask.neural.config:Algorithm1Config",
        "dp-sgd": "halfmask.neural.config:NetworkDpSgdConfig",
    },
    "experts": {"": "halfmask.vertical.experts:ExpertsConfig"},
    "admm": {"": "halfmask.vertical.admm:AdmmConfig"},
    "fdml-sgd": {"": "halfmask.vertical.fdml:FdmlConfig"},
}
# Configurations within those of mlp.
_NESTED = (
    "halfmask.neural.pretrain:PretrainConfig",
    "halfmask.neural.config:CorrectionConfig",
    "halfmask.neural.config:StepsConfig",
)


class MethodConfig(Protocol):
    """A frozen dataclass of public values that names its method."""

    method: ClassVar[str]
    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]


def split_method(
    method: str | MethodConfig, options: Mapping[str, Any] | None
) -> tuple[str, dict[str, Any]]:
    """The method's name, and its options with the configuration among them, where one was given."""
    given = dict(options or {})
    if isinstance(method, str):
        return method, given
    if not (is_dataclass(method) and isinstance(getattr(method, "method", None), str)):
        raise InputError(
            f"Expected a method by name or its configuration, got {type(method).__name__}."
        )
    return method.method, {CONFIG: method, **given}


def kind_of(method: str, recipe: str | None = None) -> type[Any]:
    """The configuration class of a method (and recipe)."""
    if method not in _KINDS:
        raise InputError(f"Method {method!r} has no settings.")
    known = _KINDS[method]
    chosen = next(iter(known)) if recipe is None else recipe
    if chosen not in known:
        there = ", ".join(known) if len(known) > 1 else "none"
        raise InputError(f"Method {method!r} has no recipe {chosen!r}: expected {there}.")
    try:
        kind: type[Any] = resolve_name(known[chosen])
    except ModuleNotFoundError as missing:
        if missing.name != "torch":
            raise
        raise InputError(f"{method} needs torch: install halfmask[torch].") from None
    return kind


def config_for(method: str, options: Mapping[str, Any]) -> Any:
    """The configuration that `options` make: `config` itself, a recipe, fields by name.

    Settings within settings are tables, as in a TOML file. None where nothing is asked of a method
    that has no settings.
    """
    given = {name: value for name, value in options.items() if (name, value) != (CONFIG, None)}
    if method not in _KINDS:
        if given:
            raise InputError(
                f"Method {method!r} has no setting {next(iter(given))!r}: it has none at all."
            )
        return None
    config = given.pop(CONFIG, None)
    if config is None:
        kind = kind_of(method, given.pop(RECIPE, None))
        return kind(**_checked(method, kind, given))
    known = [kind_of(method, recipe) for recipe in _KINDS[method]]
    if type(config) not in known:
        names = " or ".join(kind.__name__ for kind in known)
        raise InputError(f"Method {method!r} takes {names}, got {type(config).__name__}.")
    return replace(config, **_checked(method, type(config), given))


def _checked(
    method: str, kind: type[Any], given: Mapping[str, Any], within: str = ""
) -> dict[str, Any]:
    """Fields of a configuration, each of the type that it declares."""
    hints = _hints(kind)
    made: dict[str, Any] = {}
    for name, value in given.items():
        if name not in hints:
            raise _unknown(method, kind, within + name)
        inner = _nested(hints[name])
        if inner is not None and isinstance(value, Mapping):
            made[name] = inner(**_checked(method, inner, value, f"{within}{name}."))
            continue
        if not fits(value, hints[name]):
            raise _wrong(method, within + name, hints[name], value)
        made[name] = float(value) if hints[name] is float else value
    return made


def config_from_words(
    method: str, words: Sequence[str] = (), file: Path | Mapping[str, Any] | None = None
) -> Any:
    """The configuration from `NAME=VALUE` words over the settings of a file; None without any.

    `file` is a TOML file, or what was read of one.
    """
    told = read_config(file, method) if isinstance(file, Path) else dict(file or {})
    if not words and not told:
        return None
    texts = _pairs(words)
    if RECIPE in {**told, **texts}:
        told[RECIPE] = str(texts.pop(RECIPE, told.get(RECIPE)))
    kind = kind_of(method, told.get(RECIPE))
    for name, text in texts.items():
        _put(told, name, _value(method, kind, name, text))
    return config_for(method, told)


def read_config(path: Path, method: str) -> dict[str, Any]:
    """The settings of one method in a TOML file: the table of its name, or the whole file."""
    told = read_toml(path)
    if isinstance(told.get(method), dict) and set(told) <= set(_KINDS):
        return dict(told[method])
    if told and set(told) <= set(_KINDS):
        return {}
    return told


def read_toml(path: Path) -> dict[str, Any]:
    """The tables of a TOML file."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"Cannot read {str(path)!r}: {error.strerror}.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{str(path)!r} is not valid TOML: {error}.") from None
    except (ValueError, RecursionError):
        raise InputError(
            f"{str(path)!r} nests too deeply, or holds a number of too many digits."
        ) from None


def configs_for_methods(
    methods: Sequence[str], words: Sequence[str], file: Path | None
) -> dict[str, Any]:
    """Configurations of several methods: words are METHOD.NAME=VALUE, a file has a table each."""
    told = {} if file is None else read_toml(file)
    for name in told:
        if name not in methods or not isinstance(told[name], dict):
            raise InputError(
                f"{str(file)!r} has {name!r}: expected one table for each method that is compared, "
                f"among {', '.join(methods)}."
            )
    sorted_words: dict[str, list[str]] = {name: [] for name in methods}
    for word in words:
        method, dot, setting = word.partition(".")
        if not dot or method not in sorted_words:
            raise InputError(
                f"--set {word}: expected METHOD.NAME=VALUE, the method among {', '.join(methods)}."
            )
        sorted_words[method].append(setting)
    return {
        name: config_from_words(name, sorted_words[name], told.get(name))
        for name in methods
        if sorted_words[name] or told.get(name)
    }


def config_as_json(config: Any) -> dict[str, Any]:
    """The settings as plain values, by name; functions by their name."""
    values: dict[str, Any] = {}
    for each in fields(config):
        value = getattr(config, each.name)
        if is_dataclass(value) and not isinstance(value, type):
            values[each.name] = config_as_json(value)
        elif value is None or isinstance(value, bool | int | float | str):
            values[each.name] = value
        else:
            values[each.name] = getattr(value, "__name__", type(value).__name__)
    return values


def settings_in_words(kind: type[Any]) -> str:
    """Every setting of a configuration with the values it takes, in words."""
    hints = _hints(kind)
    return "; ".join(f"{name} ({_kind_words(hint)})" for name, hint in hints.items())


def fits(value: Any, hint: Any) -> bool:
    """Whether `value` is of the type that a configuration declares."""
    origin, inner = get_origin(hint), get_args(hint)
    if hint is Any:
        return True
    if origin in (Union, UnionType):
        return any(fits(value, each) for each in inner)
    if origin is Literal:
        return value in inner
    if origin in (tuple, list, Sequence):
        return isinstance(value, list | tuple)
    if origin is Callable:
        return callable(value)
    if hint is float:
        return isinstance(value, float) or fits(value, int)
    if hint is int:  # what no float holds is no setting
        return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63
    if getattr(hint, "_is_protocol", False):
        return value is not None
    return isinstance(hint, type) and isinstance(value, hint)


def _hints(kind: type[Any]) -> dict[str, Any]:
    hints = get_type_hints(kind)
    return {each.name: hints[each.name] for each in fields(kind)}


def _pairs(words: Sequence[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for word in words:
        name, sign, text = word.partition("=")
        name = name.strip()
        if not (name and sign):
            raise InputError(f"--set {word}: expected NAME=VALUE.")
        if name in found:
            raise InputError(f"--set names {name!r} twice: keep one.")
        found[name] = text.strip()
    return found


def _put(told: dict[str, Any], name: str, value: Any) -> None:
    """Set a dotted name in nested tables."""
    first, dot, rest = name.partition(".")
    if not dot:
        told[name] = value
        return
    inner = told.get(first)
    told[first] = dict(inner) if isinstance(inner, dict) else {}
    _put(told[first], rest, value)


def _value(method: str, kind: type[Any], name: str, text: str) -> Any:
    """The value that a text names, for the setting of a (dotted) name."""
    first, dot, rest = name.partition(".")
    hints = _hints(kind)
    if first not in hints:
        raise _unknown(method, kind, first)
    inner = _nested(hints[first])
    if dot and inner is not None:
        return _value(method, inner, rest, text)
    if dot or inner is not None:
        within = (
            f": name one of its settings, {settings_in_words(inner)}" if inner else " has no parts"
        )
        raise InputError(f"Method {method!r}: {first!r}{within}.")
    found = _parsed(text, hints[first])
    if found is _NONE:
        raise _wrong(method, name, hints[first], text)
    return found


_NONE = object()


def _parsed(text: str, hint: Any) -> Any:
    """The value of `hint` that `text` names; `_NONE` where there is none."""
    if get_origin(hint) in (Union, UnionType):
        plain = (each for each in get_args(hint) if each is not NoneType)
        found = next((v for v in (_parsed(text, each) for each in plain) if v is not _NONE), _NONE)
        if found is _NONE and NoneType in get_args(hint) and text.lower() == "none":
            return None
        return found
    if get_origin(hint) is Literal:
        return next((each for each in get_args(hint) if str(each) == text), _NONE)
    if hint is bool:
        return {"true": True, "false": False}.get(text.lower(), _NONE)
    if hint in (int, float):
        return _number(text, hint)
    return text if hint is str else _NONE


def _number(text: str, kind: type[Any]) -> Any:
    above, stroke, below = text.partition("/")
    try:
        if stroke and kind is float:
            return float(above) / float(below)
        return kind(text)
    except (ValueError, ZeroDivisionError):
        return _NONE


def _nested(hint: Any) -> type[Any] | None:
    """The configuration within a configuration; other objects come from Python only."""
    own = isinstance(hint, type) and is_dataclass(hint) and hint.__name__.endswith("Config")
    return hint if own else None


def _unknown(method: str, kind: type[Any], name: str) -> InputError:
    recipe = getattr(kind, RECIPE, None)
    which = f"Method {method!r}" + (f" with recipe {recipe!r}" if recipe else "")
    return InputError(f"{which} has no setting {name!r}. There are: {settings_in_words(kind)}.")


def _wrong(method: str, name: str, hint: Any, value: Any) -> InputError:
    given = repr(value) if isinstance(value, bool | int | float | str) else type(value).__name__
    return InputError(f"Method {method!r}: {name} expects {_kind_words(hint)}, got {given}.")


def _kind_words(hint: Any) -> str:
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        words = dict.fromkeys(_kind_words(each) for each in inner if each is not NoneType)
        return ", ".join(words) + (" or none" if NoneType in inner else "")
    if origin is Literal:
        return ", ".join(str(each) for each in inner)
    if _nested(hint) is not None:
        return "its own settings: " + ", ".join(each.name for each in fields(hint))
    names = {int: "a whole number", float: "a number", bool: "true or false", str: "a name"}
    return names.get(hint, "from Python only")


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
    if is_dataclass(value) and _places().get(kind.__name__) == kind.__module__:
        held = {each.name: _stored(getattr(value, each.name)) for each in fields(value)}
        return {CONFIG: f"{kind.__module__}:{kind.__name__}", "fields": held}
    raise _CannotStoreError


def _restored(value: Any) -> Any:
    if isinstance(value, list):
        return [_restored(item) for item in value]
    if not isinstance(value, dict):
        return value
    # A model file must not be able to call, or to load, anything but our own configurations. They
    # are found by name: a file of an earlier version may have them in another module.
    name = str(value.get(CONFIG)).rpartition(":")[2]
    held = value.get("fields")
    if name not in _places() or not isinstance(held, dict):
        damaged("its training options")
    kind = resolve_name(f"{_places()[name]}:{name}")
    hints = get_type_hints(kind)
    restored = options_from_json(held)
    for field, item in restored.items():
        if not fits(item, hints.get(field, Never)):
            damaged(f"its training option {str(field)!r}")
    return rebuilt(lambda: kind(**restored), "its training options")


def _places() -> dict[str, str]:
    """The module of every configuration, nested ones included, by its name."""
    known = [place for kinds in _KINDS.values() for place in kinds.values()]
    pairs = (place.split(":") for place in (*known, *_NESTED))
    return {name: module for module, name in pairs}
