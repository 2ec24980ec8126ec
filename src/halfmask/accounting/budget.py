"""What a training may spend, as one value, and how its numbers are rounded.

A budget is asked for its `mu` a little below what the closed form gives: charges are composed again
by the ledger, which rounds up, and must not end above what they were calibrated to. This is the one
place of that margin, and of the digits in which an epsilon is printed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from halfmask.accounting.events import Relation, check_delta, check_epsilon, check_relation
from halfmask.errors import AccountingError

DIGITS = 5
# Relative, on mu; far above the rounding of any composition here, and below what can be printed.
MARGIN = 1e-9


@dataclass(frozen=True, kw_only=True)
class Budget:
    """(epsilon, delta) under a relation. Guarantee: docs/proofs/gaussian.md."""

    epsilon: float
    delta: float
    relation: Relation = "replace"

    def __post_init__(self) -> None:
        check_epsilon(self.epsilon)
        check_delta(self.delta)
        check_relation(self.relation)

    @property
    def mu(self) -> float:
        """Sensitivity / noise of Gaussian releases that together stay within the budget."""
        from halfmask.accounting.gaussian import gaussian_mu  # loads scipy

        return gaussian_mu(self.epsilon, self.delta) * (1 - MARGIN)

    def split(self, share: float) -> tuple[Budget, Budget]:
        """Two budgets, of `share` and of the rest of mu², that compose to at most this one."""
        if not 0 < share < 1:
            raise AccountingError(f"Expected a share strictly between 0 and 1, got {share}.")
        return self.scaled(math.sqrt(share)), self.scaled(math.sqrt(1 - share))

    def scaled(self, factor: float) -> Budget:
        """The budget of `factor` times this one's mu."""
        from halfmask.accounting.gaussian import gaussian_epsilon

        return replace(self, epsilon=gaussian_epsilon(factor * self.mu, self.delta))


def printed(epsilon: float) -> str:
    """An epsilon as every page, table and message shows it: rounded up to `DIGITS` digits."""
    return f"{round_up(epsilon):.{DIGITS}g}"


def printed_room(epsilon: float) -> str:
    """What is left of a budget, or a lower bound, as it is shown: rounded down."""
    return f"{round_down(epsilon):.{DIGITS}g}"


def round_up(epsilon: float) -> float:
    """`epsilon` rounded up to `DIGITS` significant digits, for printing."""
    return _rounded(epsilon, math.ceil)


def round_down(epsilon: float) -> float:
    """`epsilon` rounded down to `DIGITS` significant digits, for calibrating."""
    return _rounded(epsilon, math.floor)


def _rounded(value: float, whole: Callable[[float], int]) -> float:
    if value == 0 or not math.isfinite(value):
        return value
    places = DIGITS - 1 - math.floor(math.log10(value))
    nearest = float(f"{value:.{DIGITS - 1}e}")
    if math.isclose(nearest, value, rel_tol=1e-12):
        return nearest  # already that short: 0.1 must not become 0.10001
    return float(f"{whole(value * 10.0**places) / 10.0**places:.{DIGITS - 1}e}")
