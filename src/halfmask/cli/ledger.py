"""`halfmask ledger`: create, show and verify a data set's privacy budget."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import click

from halfmask.accounting.budget import printed
from halfmask.accounting.events import event_to_json
from halfmask.accounting.ledger import Ledger, room_in_words
from halfmask.cli.options import PATH, RELATION
from halfmask.cli.output import emit, json_option

_FIXED_BEFOREHAND = (
    "The total holds for noise levels that were fixed before looking at results charged here."
)


@click.group()
def ledger() -> None:
    """A data set's privacy budget, charged by every training that names it."""


@ledger.command()
@click.argument("file", type=PATH)
@click.option("--epsilon", type=float, required=True, help="What may be spent in all.")
@click.option("--delta", type=float, required=True, help="Between 0 and 1, well below 1/rows.")
@click.option("--relation", type=RELATION, default="replace", show_default=True)
@json_option
def create(*, file: Path, epsilon: float, delta: float, relation: str, as_json: bool) -> None:
    """Start a ledger in FILE, with FILE.head beside it; keep the two together."""
    book = Ledger.create(file, epsilon=epsilon, delta=delta, relation=relation)
    emit(_budget(file, book), f"{file}: {_words(book)}, nothing spent", as_json)


@ledger.command()
@click.argument("file", type=PATH)
@json_option
def show(*, file: Path, as_json: bool) -> None:
    """What was charged, what is spent and what is left."""
    from halfmask.statement import describe

    book = Ledger.open(file)
    entries, spent, adaptive = book.entries(), book.spent(), book.holds_if_adaptive()
    data: dict[str, Any] = {
        **_budget(file, book),
        "spent": spent,
        "left": book.room(),
        "holds_if_adaptive": adaptive,
        "entries": [
            {
                "seq": entry.seq,
                "time": entry.time,
                "what": entry.what,
                "seeded": entry.seeded,
                "events": [event_to_json(event) for event in entry.events],
            }
            for entry in entries
        ],
    }
    back = len(book.verify().refunded)
    data["taken_back"] = back
    lines = [f"{file}: {_words(book)}, created {book.created}"]
    for entry in entries:
        charged = "; ".join(describe(event) for event in entry.events) or "nothing"
        seeded = "; NOT PRIVATE: seeded noise can be drawn again" if entry.seeded else ""
        start = f"  {entry.seq:>3}  {entry.time}  "
        told = textwrap.wrap(f"{entry.what}: {charged}{seeded}", 80 - 7, break_long_words=False)
        lines += [start.rstrip(), *(f"       {line}" for line in told)]
    if back:
        lines.append(f"  charges taken back, interrupted before their first release: {back}")
    lines.append(f"spent epsilon {printed(spent)}; {room_in_words(data['left'], book.epsilon)}")
    if not adaptive:
        lines.append(_FIXED_BEFOREHAND)
    emit(data, "\n".join(lines), as_json)


@ledger.command()
@click.argument("file", type=PATH)
@json_option
def verify(*, file: Path, as_json: bool) -> None:
    """Check every line of the ledger; ends with 2 where it was edited or truncated."""
    book = Ledger.open(file)
    chain = book.verify()
    data = {
        **_budget(file, book),
        "valid": True,
        "charges": len(chain.charges),
        "torn_bytes": chain.torn_bytes,
        "head_behind": chain.head_behind,
    }
    lines = [f"{file}: intact, {len(chain.charges)} charge{'s' * (len(chain.charges) != 1)}"]
    if chain.torn_bytes:
        lines.append(
            f"A charge was interrupted while it was written ({chain.torn_bytes} bytes); nothing "
            "was released for it. The next charge removes it."
        )
    if chain.head_behind and chain.entries:
        lines.append(
            "The last line was interrupted before it was acknowledged; it counts as spent."
        )
    emit(data, "\n".join(lines), as_json)


def _budget(file: Path, book: Ledger) -> dict[str, Any]:
    return {
        "ledger": str(file),
        "epsilon": book.epsilon,
        "delta": book.delta,
        "relation": book.relation,
        "created": book.created,
    }


def _words(book: Ledger) -> str:
    return f"budget epsilon {printed(book.epsilon)} at delta {book.delta:g} ({book.relation})"
