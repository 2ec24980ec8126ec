"""Every game by name: mechanisms of the package, refuted mistakes, and their corrected twins."""

from __future__ import annotations

from halfmask.accounting.budget import Budget
from halfmask.accounting.events import Relation
from halfmask.audit.distinguish import Game
from halfmask.audit.mechanisms import MECHANISMS
from halfmask.audit.neighbours import NAME
from halfmask.audit.refutations import REFUTATIONS
from halfmask.errors import InputError, suggest

_REFUTED, _CORRECTED = "refuted-", "corrected-"


def names() -> tuple[str, ...]:
    """All names, mechanisms first."""
    twins = [prefix + name for prefix in (_REFUTED, _CORRECTED) for name in REFUTATIONS]
    return (*MECHANISMS, NAME, *twins)


def is_twin(name: str) -> bool:
    """Whether `name` is a known mistake or its corrected twin."""
    return name.startswith((_REFUTED, _CORRECTED))


def game_named(name: str, *, epsilon: float, delta: float, relation: Relation) -> Game:
    """The game called `name`, claiming (epsilon, delta)."""
    claim = Budget(epsilon=epsilon, delta=delta, relation=relation)
    if name in MECHANISMS:
        return MECHANISMS[name](claim)
    for prefix in (_REFUTED, _CORRECTED):
        found = REFUTATIONS.get(name.removeprefix(prefix)) if name.startswith(prefix) else None
        if found is not None:
            if relation != "replace":
                raise InputError(f"{name!r} is a claim about replacement: leave --relation out.")
            return found.make(claim, corrected=prefix == _CORRECTED)
    raise InputError(
        f"Unknown mechanism {name!r}.{suggest(name, names())} `halfmask audit --list` names all."
    )
