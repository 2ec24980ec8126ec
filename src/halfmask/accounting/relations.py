"""What a guarantee says: what two neighbouring tables may differ in, and which numbers it may have.

Every printed guarantee names one of the two relations; `label` is only a name for accounting.
"""

from __future__ import annotations

import math
from typing import Literal, get_args

from halfmask.errors import AccountingError, InputError

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


def check_epsilon(epsilon: float) -> None:
    """Refuse anything but a finite epsilon > 0."""
    if not (math.isfinite(epsilon) and epsilon > 0):
        raise AccountingError(f"Expected a finite epsilon > 0, got {epsilon}.")


def check_delta(delta: float) -> None:
    """Refuse anything but a delta strictly between 0 and 1."""
    if not 0 < delta < 1:
        raise AccountingError(f"Expected delta strictly between 0 and 1, got {delta}.")
