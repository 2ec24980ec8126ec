"""How much memory a fit takes, checked before anything is charged: a fit that dies is paid for."""

from __future__ import annotations

from halfmask.errors import InputError
from halfmask.scratch import available
from halfmask.table import Codes, Table

# Measured, docs/scale.md. Methods with blocks hold them, and up to two copies at a time.
_BY_ROW = 200
_BY_CLASS = 50
_BY_LINEAR_ROW = 700
_BY_OUTPUT = 64
_BLOCKS = 3
_BY_PRODUCT = 100


def needed(table: Table, method: str, *, blocks: bool = False) -> int:
    """Bytes that a fit of `method` will take, about; from public sizes alone.

    With `blocks` it has to make features as numbers, although the table holds codes.
    """
    if method == "mlp":
        return 0
    if method == "additive":
        classes = len(table.classes or ())
        return (_BY_ROW + _BY_CLASS * (classes if classes > 2 else 0)) * table.n
    width = len(table.public_sources) + len(table.private_sources)
    products = _BY_PRODUCT * width**2 if method == "one-shot" else 0
    if isinstance(table.features, Codes) and not blocks and method != "label-span":
        kept = 2 * 16 * sum(column.numbers is not None for column in table.features.columns)
        by_row = _BY_LINEAR_ROW + kept + _BY_OUTPUT * max(len(table.classes or ()) - 2, 0)
        return by_row * table.n + products
    copies = _BLOCKS if isinstance(table.features, Codes) else _BLOCKS - 1
    return 8 * copies * table.n * width + products


def check_memory(table: Table, method: str, *, blocks: bool = False) -> None:
    """Refuse a fit that cannot succeed."""
    need, free = needed(table, method, blocks=blocks), available()
    if free is None or need <= free:
        return
    width = len(table.public_sources) + len(table.private_sources)
    what = f"{table.n:,} rows" if method == "additive" else f"{table.n:,} rows x {width:,} features"
    raise InputError(
        f"Method {method!r} needs about {_size(need)} of memory for {what}, and {_size(free)} are "
        f"free; nothing was charged. {_instead(table, method)}"
    )


def _instead(table: Table, method: str) -> str:
    if method == "one-shot" and len(table.private_sources) > table.n // 10:
        return "It holds products of all pairs of features: use method 'gd', which holds none."
    if method != "additive" and table.features.coded:
        return (
            "Use method 'additive', which takes about "
            f"{_size(needed(table, 'additive'))}, or declare fewer bins and categories."
        )
    return "Use a machine with more memory, or spread the rows: docs/many-machines.md."


def _size(count: int) -> str:
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 2**20:.0f} MiB"
