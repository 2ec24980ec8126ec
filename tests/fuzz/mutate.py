"""Random damage to bytes, texts and trees of plain values."""

from __future__ import annotations

import copy
import datetime as dt
import json
import math
from random import Random
from typing import Any

TOKENS = (
    b"\0", b"\xff\xfe", b"\xef\xbb\xbf", b"\xed\xa0\x80", b"\n", b"\r\n", b"\r", b"\t", b",", b";",
    b'"', b'""', b"'", b"'''", b'"""', b"[", b"]", b"[[", b"{", b"}", b"=", b"*", b"#", b"..", b"-",
    b"NaN", b"nan", b"inf", b"-inf", b"NA", b"null", b"true", b"1e999", b"-1e999", b"5e-324",
    b"1e308", b"0x1F", b"1_0", b"9" * 25, b"9" * 400, b"9" * 5000, b"[" * 2000, b"{\"a\":" * 2000,
    b"a." * 1500, b"\\u0000", b"\\ud800", b"\xc3\xa9", "\u2028".encode(), "\u202e".encode(),
    b"2024-02-30", b"0000-00-00", b"-999999999-12-31", b"99999-01-01T25:61:61", b" " * 300,
)  # fmt: skip
NUMBERS: tuple[Any, ...] = (
    *(0, 1, -1, 2, 3, 255, 256, 2**31, 2**53 + 1, 2**63, -(2**63) - 1, 10**18, 10**400, -(10**400)),
    *(0.0, -0.0, 0.5, 1e-5, 5e-324, 1e-308, 1e100, 1e154, 1.7e308, -1.7e308, math.nan, math.inf),
    -math.inf,
)
WORDS = (
    *("", " ", "a", "no", "*", "**", "a*", "\0", "\n", "é", "\u202e", "NA", "nan", "true", "'"),
    *('"', "{}", "[]", "../x", "/", "x" * 300, "-1", "1e999", "9" * 400, "2024-01-31"),
    "9999-12-31",
    *("round(age, 10)", "band(age, 1, 2)", "round(age, 0)", "top(town, 'A')", "join(age, town)"),
    *("prefix(town, 1)", "presence(age)", "round(" * 200, "age.__class__"),
    "round(age, 9" + "9" * 400,
)  # fmt: skip


def damaged_bytes(rng: Random, content: bytes, most: int = 6) -> bytes:
    """The bytes after a few random edits."""
    data = bytearray(content)
    for _ in range(rng.randint(1, most)):
        at = rng.randrange(len(data) + 1)
        kind = rng.randrange(8)
        if kind == 0 and data:
            data[at % len(data)] ^= 1 << rng.randrange(8)
        elif kind == 1 and data:
            data[at % len(data)] = rng.randrange(256)
        elif kind == 2:
            data[at:at] = rng.choice(TOKENS)
        elif kind == 3:
            del data[at : at + rng.randint(1, 1 + len(data) // 4)]
        elif kind == 4:
            data[at:at] = data[rng.randrange(len(data) + 1) :][: rng.randint(1, 200)]
        elif kind == 5:
            data = data[:at]
        elif kind == 6:
            token = rng.choice(TOKENS)
            data[at : at + len(token)] = token
        else:
            data[at:at] = rng.randbytes(rng.randint(1, 9))
        del data[1 << 17 :]
    return bytes(data)


def nasty(rng: Random, *, depth: int = 2) -> Any:
    """A plain value that a reader may not expect."""
    kind = rng.randrange(9)
    if kind < 3:
        return rng.choice(NUMBERS)
    if kind < 5:
        return rng.choice(WORDS)
    if kind == 5:
        return rng.choice((True, False))
    if kind == 6 and depth:
        return [nasty(rng, depth=depth - 1) for _ in range(rng.choice((0, 1, 2, 3, 40)))]
    if kind == 7 and depth:
        return {rng.choice(WORDS): nasty(rng, depth=depth - 1) for _ in range(rng.randrange(3))}
    return rng.choice((None, dt.date(2024, 1, 31), dt.datetime(1, 1, 1), nested(rng)))


def nested(rng: Random) -> Any:
    value: Any = 1
    for _ in range(rng.choice((3, 60, 400))):
        value = [value] if rng.random() < 0.7 else {"a": value}
    return value


def _places(tree: Any, found: list[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    if len(found) < 2000:
        keys = (
            tree if isinstance(tree, dict) else range(len(tree)) if isinstance(tree, list) else ()
        )
        for key in keys:
            found.append((tree, key))
            _places(tree[key], found)
    return found


def damaged_tree(rng: Random, tree: Any, most: int = 3) -> Any:
    """A copy of nested lists and dictionaries after a few random edits."""
    changed = copy.deepcopy(tree)
    for _ in range(rng.randint(1, most)):
        places = _places(changed, [])
        if not places or rng.random() < 0.01:
            return nasty(rng)
        holder, key = rng.choice(places)
        kind = rng.randrange(7)
        if kind < 3:
            holder[key] = nasty(rng)
        elif kind == 3:
            del holder[key]
        elif kind == 4:
            source, other = rng.choice(places)
            if isinstance(source, (dict, list)) and (other in source or isinstance(source, list)):
                try:
                    holder[key] = copy.deepcopy(source[other])
                except (IndexError, KeyError, RecursionError):
                    holder[key] = None
        elif kind == 5 and isinstance(holder, dict):
            holder[rng.choice((*WORDS, *holder))] = holder.pop(key)
        elif isinstance(holder[key], (int, float)) and not isinstance(holder[key], bool):
            holder[key] = near(rng, holder[key])
        else:
            holder[key] = rng.choice(([holder[key]], str(holder[key]), {"a": holder[key]}))
    return changed


def json_bytes(value: Any) -> bytes:
    """JSON text of it; of what nests too deeply to be written, brackets as deep as that."""
    try:
        return json.dumps(value, default=str).encode()
    except RecursionError:
        return b"[" * 5000 + b"]" * 5000


def near(rng: Random, value: float) -> Any:
    """A number beside another one: what an off-by-one reads."""
    try:
        beside = (value + 1, value - 1, -value, value * 2, value / 2, float(value), value * 1e200)
        return rng.choice((*beside, int(value)))
    except (OverflowError, ValueError):
        return 0


def toml_safe(value: Any) -> Any:
    """The tree with what TOML cannot say left out."""
    if isinstance(value, dict):
        return {str(k): toml_safe(v) for k, v in value.items() if v is not None}
    if isinstance(value, list):
        return [toml_safe(v) for v in value if v is not None]
    return value
