"""Several methods on one table under one total budget, split so that each gets the same epsilon.

The share follows from a rehearsal on a blank table: what a method charges depends on public facts
alone, so zeros in place of every private value charge the same. The rehearsal only plans; the
ledger, which is charged for real, is what keeps the total within its budget.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from halfmask.accounting.accountant import epsilon as account
from halfmask.accounting.budget import Budget, round_down
from halfmask.accounting.events import Event
from halfmask.accounting.gaussian import gaussian_epsilon, gaussian_mu
from halfmask.accounting.ledger import BudgetLedger, Ledger, MemoryLedger
from halfmask.errors import BudgetExceededError, InputError
from halfmask.mechanisms.noise import noise_source
from halfmask.methods.auto import Choice
from halfmask.model import Model
from halfmask.signs import part_of
from halfmask.table import Encoder, Table
from halfmask.training import choose_method, train, whole_seconds

_ATTEMPTS = 8


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Which methods, the epsilon of each, and what all of them together will cost."""

    choices: tuple[Choice, ...]
    auto: str | None
    each: float
    total: float
    events: tuple[Event, ...]
    configs: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Trained:
    """One method's model and the time it took."""

    choice: Choice
    model: Model
    seconds: int


class _RehearsedError(Exception):
    """A rehearsal has come to the charge of its whole plan."""


class _Rehearsal(MemoryLedger):
    """Writes down what would be charged, and stops the method there: a training charges once."""

    def charge(
        self, events: Sequence[Event], what: str, *, seeded: bool = False, run: str | None = None
    ) -> int:
        super().charge(events, what)
        raise _RehearsedError


class _Total(BudgetLedger):
    """The comparison's own budget and, behind it, the data set's ledger: both must agree."""

    def __init__(self, own: MemoryLedger, book: Ledger | None) -> None:
        self.budget = own.budget
        self._own, self._book = own, book
        self._in_book: dict[int, int] = {}

    def charge(
        self, events: Sequence[Event], what: str, *, seeded: bool = False, run: str | None = None
    ) -> int:
        number = self._own.charge(events, what, seeded=seeded, run=run)
        if self._book is not None:
            try:
                self._in_book[number] = self._book.charge(events, what, seeded=seeded, run=run)
            except BaseException:
                self._own.refund(number)
                raise
        return number

    def refund(self, charge: int) -> None:
        if self._book is not None:
            self._book.refund(self._in_book.pop(charge))
        self._own.refund(charge)

    def begin_part(self, charge: int, events: Sequence[Event], what: str) -> None:
        self._own.begin_part(charge, events, what)

    def check_room(self, events: Sequence[Event]) -> None:
        self._own.check_room(events)
        if self._book is not None:
            self._book.check_room(events)

    def events(self) -> tuple[Event, ...]:
        return self._own.events()


def blank(table: Table) -> Table:
    """The table without a private value: the first code or zeros for all; public columns stay."""
    label = table.label
    if table.label_private and label is not None:
        label = np.zeros_like(label)
    return replace(table, features=table.features.blank(), label=label)


def plan(
    table: Table,
    methods: Sequence[str],
    budget: Budget,
    *,
    configs: Mapping[str, Any] | None = None,
) -> Plan:
    """Split `budget` evenly: the largest found equal share whose composition fits.

    `configs` are configurations by method (halfmask.settings), where one is not the default.
    """
    if not methods:
        raise InputError("Name at least one method with --methods.")
    asked, epsilon, delta = dict(configs or {}), budget.epsilon, budget.delta
    each = gaussian_epsilon(gaussian_mu(epsilon, delta) / len(methods) ** 0.5, delta)
    choices, auto = _distinct(table, methods, replace(budget, epsilon=each))
    if len(choices) < len(methods):
        each = gaussian_epsilon(gaussian_mu(epsilon, delta) / len(choices) ** 0.5, delta)
    each = min(each, epsilon)
    empty = blank(table)
    for _ in range(_ATTEMPTS):
        share = round_down(each)
        events = tuple(
            event
            for choice in choices
            for event in _rehearse(
                empty, asked.get(choice.method, choice.method), replace(budget, epsilon=share)
            )
        )
        total = account(events, delta=delta, relation=budget.relation)
        if total <= epsilon:
            return Plan(
                choices=choices,
                auto=auto,
                each=share,
                total=total,
                events=events,
                configs=asked,
            )
        # Sampled steps compose a little worse than Gaussians of the same epsilon.
        each *= 0.998 * epsilon / total
    raise InputError(
        "No even split of this budget was found: compare fewer methods, or raise epsilon."
    )


def _distinct(
    table: Table, methods: Sequence[str], budget: Budget
) -> tuple[tuple[Choice, ...], str | None]:
    """Every method once: where `auto` picks one that is listed too, it is not paid for twice."""
    found: dict[str, Choice] = {}
    auto = None
    for name in methods:
        choice = choose_method(name, table, budget)
        if name == "auto":
            auto = choice.method
        if name == "auto" or choice.method not in found:
            found[choice.method] = choice
    return tuple(found.values()), auto


def _rehearse(empty: Table, method: Any, budget: Budget) -> tuple[Event, ...]:
    book = _Rehearsal.of(budget)
    with suppress(_RehearsedError):
        train(
            empty,
            budget,
            method=method,
            noise=noise_source(),
            ledger=book,
        )
    return book.events()


def check_ledger(planned: Plan, book: Ledger) -> None:
    """Refuse before anything is spent, if the data set's ledger has no room for the whole plan."""
    try:
        book.check_room(planned.events)
    except BudgetExceededError as error:
        raise BudgetExceededError(
            f"{book.path.name} has no room for this comparison; nothing was trained or charged. "
            f"{error}"
        ) from None


def run(
    table: Table,
    planned: Plan,
    budget: Budget,
    *,
    encoder: Encoder | None = None,
    book: Ledger | None = None,
    keep: Callable[[Trained], None] | None = None,
    progress: Callable[[float, str], None] | None = None,
) -> tuple[tuple[Trained, ...], BudgetLedger]:
    """Train every method of the plan; every charge goes to the total and to `book`.

    `keep` is called as soon as a model is trained: it is paid for, whatever happens to the next.
    """
    total = _Total(MemoryLedger.of(budget), book)
    trained = []
    for place, choice in enumerate(planned.choices):
        if progress is not None:
            progress(place / len(planned.choices), choice.method)
        started = time.perf_counter()
        with part_of("compare", place / len(planned.choices), (place + 1) / len(planned.choices)):
            model = train(
                table,
                replace(budget, epsilon=planned.each),
                method=planned.configs.get(choice.method, choice.method),
                noise=noise_source(),
                encoder=encoder,
                ledger=total,
            )
        if planned.auto == choice.method:
            model = replace(model, reason=choice.reason)
        seconds = whole_seconds(started)
        trained.append(Trained(choice=choice, model=model, seconds=seconds))
        if keep is not None:
            keep(trained[-1])
    return tuple(trained), total
