"""What a simulation is about: the parties' columns, the labels, and what each party may spend."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from halfmask.accounting import budget
from halfmask.accounting.ledger import BudgetLedger, MemoryLedger
from halfmask.errors import InputError
from halfmask.mechanisms.noise import noise_source
from halfmask.mechanisms.release import Releaser
from halfmask.table import Encoder
from halfmask.vertical.block import Vector


@dataclass(frozen=True, kw_only=True)
class Columns:
    """One party's encoded columns, and what is known of them without looking.

    `column_names` are promised to be protected; `public_names` are not, although noise covers them
    too, because their levels and ranges may have been learnt. `encoder` made the columns, where
    they were read from a file.
    """

    name: str
    train: Any
    test: Any = None
    row_norm: float
    nonnegative: bool
    column_names: tuple[str, ...] = ()
    public_names: tuple[str, ...] = ()
    encoder: Encoder | None = None


@dataclass(frozen=True, kw_only=True)
class Task:
    """The parties' columns and the label holder's labels, in one order of rows.

    Labels are 0 and 1, or with `label_bounds` places of a number between them, from 0 to 1.
    """

    columns: tuple[Columns, ...]
    labels: Vector
    test_labels: Vector | None = None
    label_bounds: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        if self.label_bounds is None and not np.isin(self.labels, (0.0, 1.0)).all():
            raise InputError(
                "Vertical methods predict one of two classes, or a number within declared bounds."
            )

    def check_loss(self, name: str) -> None:
        """A number is learnt by the squared loss, and by no other here."""
        check_loss(name, self.label_bounds)


def check_loss(name: str, label_bounds: tuple[float, float] | None) -> None:
    """Refuse the losses of two classes where the label is a number."""
    if label_bounds is not None and name != "squared":
        raise InputError(
            f"The label is a number, and the loss {name} is for two classes: set loss=squared."
        )


@dataclass(frozen=True, kw_only=True)
class Budget(budget.Budget):
    """What each party may spend; a seed makes the noise reproducible and not private.

    `ledgers` are the parties' own, by name; `label_ledger` is the label holder's. Where one is not
    given, a budget of this run alone takes its place.
    """

    unsafe_seed: int | None = None
    ledgers: Mapping[str, BudgetLedger] = field(default_factory=dict)
    label_ledger: BudgetLedger | None = None

    def releaser(self, name: str, index: int) -> Releaser:
        """The door of one party: its own ledger, its own noise; what it opens is one charge."""
        return self.door(self.ledgers.get(name) or MemoryLedger.of(self), index)

    def door(self, ledger: BudgetLedger, index: int) -> Releaser:
        """A door with noise of its own; unsafe seeds differ between parties."""
        seed = None if self.unsafe_seed is None else 1009 * self.unsafe_seed + index
        return Releaser(ledger, noise_source(seed), whole_plan=True)

    def ratio(self, withhold_share: float) -> float:
        """μ for one replaced row, where a withheld row has `withhold_share` of it."""
        return self.mu if self.relation == "replace" else self.mu / withhold_share
