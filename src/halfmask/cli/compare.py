"""`halfmask compare`: methods side by side on the user's file, under one budget that is charged."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click
import numpy as np

from halfmask.accounting.accountant import epsilon as account
from halfmask.accounting.budget import Budget, printed, round_down
from halfmask.accounting.events import Event, check_relation
from halfmask.accounting.gaussian import gaussian_epsilon, gaussian_mu
from halfmask.accounting.ledger import BudgetLedger, Ledger, MemoryLedger
from halfmask.cli.options import PATH, read_schema, settings_options, training_options
from halfmask.cli.output import after_this, emit, grid, json_option, note, reporting
from halfmask.errors import BudgetExceededError, InputError
from halfmask.mechanisms.noise import noise_source
from halfmask.methods.auto import Choice
from halfmask.model import Model
from halfmask.progress import part_of
from halfmask.scoring import constant_of, scores, shown_value, told_scores
from halfmask.storage import json_text, write_text
from halfmask.table import Encoder, Table, read_frame
from halfmask.training import choose_method, train, whole_seconds

_ATTEMPTS = 8


@dataclass(frozen=True, kw_only=True)
class ComparisonPlan:
    """Which methods, the epsilon of each, and what all of them together will cost."""

    choices: tuple[Choice, ...]
    auto: str | None
    each: float
    total: float
    events: tuple[Event, ...]


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


def plan_comparison(
    table: Table,
    methods: Sequence[str],
    budget: Budget,
    *,
    configs: Mapping[str, Any] | None = None,
) -> ComparisonPlan:
    """Split `budget` evenly: the largest found equal share whose composition fits.

    `configs` are configurations by method (halfmask.settings), where one is not the default.
    """
    if not methods:
        raise InputError("Name at least one method with --methods.")
    epsilon, delta = budget.epsilon, budget.delta
    choices, auto = _distinct(table, methods, configs or {})
    each = gaussian_epsilon(gaussian_mu(epsilon, delta) / len(choices) ** 0.5, delta)
    each = min(each, epsilon)
    empty = blank(table)
    for _ in range(_ATTEMPTS):
        share = round_down(each)
        events = tuple(
            event
            for choice in choices
            for event in _rehearse(empty, choice, replace(budget, epsilon=share))
        )
        total = account(events, delta=delta, relation=budget.relation)
        if total <= epsilon:
            return ComparisonPlan(
                choices=choices, auto=auto, each=share, total=total, events=events
            )
        # Sampled steps compose a little worse than Gaussians of the same epsilon.
        each *= 0.998 * epsilon / total
    raise InputError(
        "No even split of this budget was found: compare fewer methods, or raise epsilon."
    )


def _distinct(
    table: Table, methods: Sequence[str], configs: Mapping[str, Any]
) -> tuple[tuple[Choice, ...], str | None]:
    """Every method once: where `auto` picks one that is listed too, it is not paid for twice."""
    found: dict[str, Choice] = {}
    auto = None
    for name in methods:
        choice = choose_method(name, table)
        choice = replace(choice, config=configs.get(choice.method))
        if name == "auto":
            auto = choice.method
        if name == "auto" or choice.method not in found:
            found[choice.method] = choice
    return tuple(found.values()), auto


def _rehearse(empty: Table, choice: Choice, budget: Budget) -> tuple[Event, ...]:
    book = _Rehearsal.of(budget)
    with suppress(_RehearsedError):
        train(empty, budget, method=choice, noise=noise_source(), ledger=book)
    return book.events()


def check_ledger(planned: ComparisonPlan, book: Ledger) -> None:
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
    planned: ComparisonPlan,
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
                method=choice,
                noise=noise_source(),
                encoder=encoder,
                ledger=total,
            )
        seconds = whole_seconds(started)
        trained.append(Trained(choice=choice, model=model, seconds=seconds))
        if keep is not None:
            keep(trained[-1])
    return tuple(trained), total


SPENDS = (
    "Comparing spends budget: every method is trained on the same rows, and all of them together "
    "cost the total below, even if you keep one model only."
)
COMPARISON_NOT_COVERED = (
    "Scores are computed from the labels of the test rows: not covered by the guarantee."
)


@click.command()
@training_options(
    epsilon="The budget of all methods together.", ledger="a ledger in the folder of --out"
)
@click.option(
    "--methods",
    default="auto,gd,dp-sgd",
    show_default=True,
    help="Methods by name, separated by commas.",
)
@settings_options("METHOD.NAME")
@click.option(
    "--test",
    "test_file",
    type=PATH,
    help="Labelled rows that were not trained on, to score every method.",
)
@click.option(
    "--out",
    type=PATH,
    help="A new folder for the models, compare.json and compare.svg.",
)
@json_option
def compare(
    data: Path,
    schema_file: Path,
    methods: str,
    settings: tuple[str, ...],
    config_file: Path | None,
    epsilon: float,
    delta: float,
    relation: str,
    test_file: Path | None,
    ledger_file: Path | None,
    out: Path | None,
    as_json: bool,
) -> None:
    """Train several methods on DATA (CSV or Parquet) and score them side by side."""
    from halfmask.model_folder import link_ledger
    from halfmask.settings import configs_for_methods

    budget = Budget(epsilon=epsilon, delta=delta, relation=check_relation(relation))
    if test_file is None and out is None:
        raise InputError(
            "Nothing would come of it: pass --test FILE to score the methods, or --out FOLDER to "
            "keep their models."
        )
    if out is not None and out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise InputError(f"{str(out)!r} exists already: name a new folder with --out.")
    names = [name.strip() for name in methods.split(",") if name.strip()]
    configs = configs_for_methods(names, settings, config_file)
    schema = read_schema(schema_file, data)
    frame = read_frame(data)
    encoder = Encoder.fit(schema, frame)
    table = encoder.encode(frame)
    test = None
    if test_file is not None:
        test = encoder.encode(read_frame(test_file), with_label=True, with_unit=False)
    # Before anything is spent: it fails where no row has a label.
    constant = None if test is None else constant_of(test)
    note(SPENDS)
    planned = plan_comparison(table, names, budget, configs=configs)
    book = None
    if ledger_file is not None:
        book = Ledger.open(ledger_file)
        check_ledger(planned, book)
    fresh = out is not None and not out.exists()
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        if book is None:
            book = Ledger.create(
                out / "ledger.jsonl", epsilon=epsilon, delta=delta, relation=relation
            )
    if book is None:
        note("No ledger keeps this: pass --ledger FILE, or count the total by hand.")

    def keep(item: Trained) -> None:
        if out is not None:
            assert book is not None
            folder = out / item.choice.method
            with after_this():
                folder.mkdir()
                # First: no kill leaves a model that does not know its ledger.
                link_ledger(folder, book.path)
                item.model.save(folder, overwrite=True)

    try:
        with reporting("compare") as progress:
            trained, total = run(
                table, planned, budget, encoder=encoder, book=book, keep=keep, progress=progress
            )
    except BaseException as error:
        if book is not None and book.charged_here and isinstance(error, KeyboardInterrupt):
            note(
                f"Something was released by then, so epsilon {printed(book.spent())} stays spent "
                f"in {book.path.name}. Models that were finished are kept."
            )
        elif fresh and out is not None and book is not None and not book.charged_here:
            shutil.rmtree(out)
        raise
    rows = [_row(item, planned.auto, test, out) for item in trained]
    result: dict[str, Any] = {
        "epsilon": epsilon,
        "delta": delta,
        "relation": relation,
        "epsilon_each": planned.each,
        "spent": total.spent(),
        "rows": table.n,
        "methods": rows,
        "constant": constant,
        "covered_by_guarantee": False,
        "ledger": None if book is None else str(book.path),
        "figure": None,
    }
    if out is not None:
        result["figure"] = _figure(rows, out)
        write_text(out / "compare.json", json_text(result))
    emit(result, _shown(result), as_json)


def _row(item: Trained, auto: str | None, test: Any, out: Path | None) -> dict[str, Any]:
    model, name = item.model, item.choice.method
    row: dict[str, Any] = {
        "method": name,
        "auto": name == auto,
        "epsilon": model.privacy.epsilon,
        "seconds": item.seconds,
        "model": None if out is None else str(out / name),
    }
    if test is not None:
        measured = scores(model, test)
        row |= {"test_rows": measured.pop("rows"), **measured}
    return row


def _figure(rows: Sequence[Mapping[str, Any]], out: Path) -> str | None:
    """compare.svg, where there are scores to draw and matplotlib to draw them with."""
    metric = next((name for name in ("accuracy", "rmse") if name in rows[0]), None)
    if metric is None or find_spec("matplotlib") is None:
        return None
    from halfmask.report.plots import method_bars, save

    named = [(_name(row), float(row[metric])) for row in rows]
    path = out / "compare.svg"
    save(method_bars(named, metric=f"{metric} on the test rows"), path)
    return str(path)


def _name(row: Mapping[str, Any]) -> str:
    return f"{row['method']} (auto)" if row["auto"] else str(row["method"])


def _shown(result: Mapping[str, Any]) -> object:
    from rich.console import Group

    rows = result["methods"]
    left_out = {"method", "auto", "epsilon", "seconds", "model", "test_rows"}
    metrics = [name for name in rows[0] if name not in left_out]
    title = (
        f"Budget of all together: epsilon {printed(result['spent'])} of "
        f"{printed(result['epsilon'])} at delta {result['delta']:g} ({result['relation']})"
    )

    def cells(row: Mapping[str, Any]) -> list[str]:
        measured = ["undefined" if row[m] is None else shown_value(row[m]) for m in metrics]
        return [_name(row), printed(row["epsilon"]), *measured, f"{row['seconds']}"]

    headings = ("method", "epsilon", *(name.replace("_", " ") for name in metrics), "seconds")
    table = grid(title, headings, map(cells, rows))
    words: list[Any] = [table]
    if metrics:
        words += [
            f"To compare, a constant: {told_scores(result['constant'])}.",
            COMPARISON_NOT_COVERED,
        ]
    if result["ledger"]:
        words.append(f"Charged to {result['ledger']}.")
    folder = next((row["model"] for row in rows if row["model"]), None)
    if folder:
        words.append(f"The models are in {Path(folder).parent}.")
    return Group(*words)
