"""What two neighbouring tables may differ in.

Every printed guarantee names one of the two relations; `label` is only a name for accounting.
"""

from __future__ import annotations

from typing import Literal, get_args

from halfmask.errors import InputError

Relation = Literal["replace", "withhold"]
"""replace: the private part of one row (or unit) takes another value; its public part stays.
withhold: the private part of one row (or unit) contributes exactly zero."""

Pair = Literal["replace", "withhold", "label"]
"""What `halfmask account` takes: `label` is replacement where the two contributions are orthogonal,
as they are for the split softmax loss with a private label and public features."""

RELATIONS: tuple[Relation, ...] = get_args(Relation)
PAIRS: tuple[Pair, ...] = get_args(Pair)


def check_relation(relation: str) -> Relation:
    """Return `relation`, or say which ones exist."""
    for known in RELATIONS:
        if relation == known:
            return known
    raise InputError(f"Unknown relation {relation!r}: expected one of {', '.join(RELATIONS)}.")
