"""Everything a report says about a model folder, as data: gathered once, shown in any format."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from halfmask.accounting.accountant import epsilon as epsilon_at
from halfmask.accounting.events import Event, GaussianEvent, PoissonGaussianEvent
from halfmask.accounting.relations import RELATIONS, Relation
from halfmask.errors import DataError, LedgerError
from halfmask.model import Model
from halfmask.model_folder import damaged, read_json, rebuilt
from halfmask.report.attacker import Gain, attacker_gains
from halfmask.report.covered import Covered, covered_scores
from halfmask.schema import Column
from halfmask.statement import Statement

if TYPE_CHECKING:
    from halfmask.accounting.ledger import Ledger
    from halfmask.effects import Effect
    from halfmask.report.measured import Measured

_FINE = tuple(10.0**-place for place in range(12, 1, -1))
_COARSE = (1e-12, 1e-10, 1e-8, 1e-6, 1e-4, 1e-2)
_MOST_CHARGES = 12


@dataclass(frozen=True, kw_only=True)
class ColumnFacts:
    """One column: its role, and what was declared about it."""

    name: str
    role: str
    kind: str
    known: str


@dataclass(frozen=True, kw_only=True)
class Charge:
    """One charge of the ledger, and epsilon of everything up to it."""

    time: str | None
    what: str
    epsilon: float


@dataclass(frozen=True, kw_only=True)
class Budget:
    """The charges in order; `epsilon` is the ledger's limit, None where there is no ledger file."""

    epsilon: float | None
    delta: float
    relation: Relation
    charges: tuple[Charge, ...]
    left_out: int


@dataclass(frozen=True, kw_only=True)
class Audit:
    """What an attack has shown about the model or its mechanism."""

    mechanism: str
    claimed: float | None
    lower_bound: float
    confidence: float
    relation: str
    refuted: bool


@dataclass(frozen=True, kw_only=True)
class Inference:
    """Shares of right guesses of a private column: without the model, with it, and at most."""

    column: str
    without_model: float
    with_model: float
    bound: float


@dataclass(frozen=True, kw_only=True)
class Facts:
    """All of it."""

    name: str
    written: str
    model: Model
    curve: Mapping[Relation, tuple[tuple[float, float], ...]]
    gains: tuple[Gain, ...]
    columns: tuple[ColumnFacts, ...]
    budget: Budget
    learning: tuple[tuple[int, float], ...]
    learning_of: str
    covered: Covered | None
    effects: tuple[Effect, ...]
    audits: tuple[Audit, ...]
    inferences: tuple[Inference, ...]
    measured: Measured | None

    @property
    def statement(self) -> Statement:
        """The model's statement."""
        return self.model.privacy

    def to_json(self) -> dict[str, Any]:
        """The facts as a JSON object."""
        return {
            "name": self.name,
            "written": self.written,
            "task": self.model.task,
            "method": self.model.method,
            "reason": self.model.reason,
            "statement": self.statement.to_json(),
            "curve": {
                relation: [{"delta": delta, "epsilon": value} for delta, value in points]
                for relation, points in self.curve.items()
            },
            "attacker": [asdict(gain) for gain in self.gains],
            "columns": [asdict(column) for column in self.columns],
            "budget": asdict(self.budget),
            "learning": [{"step": step, "loss": loss} for step, loss in self.learning],
            "learning_of": self.learning_of,
            "covered": None if self.covered is None else self.covered.to_json(),
            "effects": [effect.to_json() for effect in self.effects],
            "audits": [asdict(audit) for audit in self.audits],
            "attribute_inference": [asdict(inference) for inference in self.inferences],
            "measured": None if self.measured is None else self.measured.to_json(),
        }


def gather(
    folder: str | Path,
    *,
    data: str | Path | None = None,
    ledger: str | Path | None = None,
    audit: str | Path | None = None,
    with_effects: bool = True,
    by: str | None = None,
    reference: str | Path | None = None,
    told: Callable[[float, str], None] | None = None,
) -> Facts:
    """Read a model folder; `data` are labelled rows to score, `ledger` the data set's ledger.

    `by` names a column of `data` by whose groups it is scored too; `reference` is a file of
    training rows on which models without privacy are fitted, to compare.

    `with_effects` finds what the model learnt, which takes seconds; `told` hears how far it is.

    `audit` is the result of an audit, which is kept apart from the model: it tells of private rows.
    """
    folder = Path(folder)
    model = Model.load(folder)
    measured = None
    if data is not None:
        from halfmask.report.measured import measure
        from halfmask.table import read_frame

        measured = measure(
            model,
            read_frame(data),
            by=by,
            reference=None if reference is None else read_frame(reference),
        )
    statement = model.privacy
    audits, inferences = ((), ()) if audit is None else _audits(Path(audit))
    return Facts(
        name=folder.resolve().name,
        written=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        model=model,
        curve={relation: _curve(statement, relation) for relation in RELATIONS},
        gains=attacker_gains(statement.events, delta=statement.delta),
        columns=_columns(model),
        budget=_budget(statement, folder, None if ledger is None else Path(ledger)),
        learning=_learning(model.details),
        learning_of=str(model.details.get("public_loss_of") or "mean loss of the public part"),
        covered=covered_scores(model.details),
        effects=_effects(model, told) if with_effects else (),
        audits=audits,
        inferences=inferences,
        measured=measured,
    )


def _effects(model: Model, told: Callable[[float, str], None] | None) -> tuple[Effect, ...]:
    """By column; none where noise cannot be followed, or without a schema."""
    from halfmask.effects import WITH_BARS, effects

    if model.encoder is None or model.method not in WITH_BARS:
        return ()
    return rebuilt(lambda: tuple(effects(model, told=told)), "its effects")


def _exact(events: Sequence[Event]) -> bool:
    return all(
        isinstance(event, GaussianEvent)
        or (isinstance(event, PoissonGaussianEvent) and event.rate == 1)
        for event in events
    )


def _curve(statement: Statement, relation: Relation) -> tuple[tuple[float, float], ...]:
    """Epsilon at several deltas; few where each point is a composition of sampled steps."""
    deltas = {*(_FINE if _exact(statement.events) else _COARSE), statement.delta}
    points = {
        delta: epsilon_at(statement.events, delta=delta, relation=relation)
        for delta in sorted(deltas)
    }
    if points[statement.delta] > statement.calibrated[relation] * (1 + 1e-6):
        damaged("its statement claims a smaller epsilon than its charges give")
    return tuple(points.items())


def _columns(model: Model) -> tuple[ColumnFacts, ...]:
    statement = model.privacy
    if model.encoder is None:
        roles = {**dict.fromkeys(statement.public, "public")}
        roles |= dict.fromkeys(statement.private, "private")
        facts = [
            ColumnFacts(name=name, role=role, kind="number", known="clipped with its row")
            for name, role in roles.items()
        ]
    else:
        facts = [
            ColumnFacts(name=c.name, role=c.role, kind=c.kind, known=_known(c))
            for c in model.encoder.schema.columns
        ]
    label = ColumnFacts(
        name=statement.label or "label",
        role="private" if statement.label_private else "public",
        kind="label",
        known=f"from {model.label_bounds[0]:g} to {model.label_bounds[1]:g}"
        if model.label_bounds is not None
        else f"{len(model.classes or ())} classes",
    )
    return (*facts, label)


def _known(column: Column) -> str:
    if column.bounds is not None:
        low, high = (end if isinstance(end, str) else f"{end:g}" for end in column.bounds)
        return f"declared from {low} to {high}"
    if column.kind == "bool":
        return "true or false"
    if column.categories is not None:
        return f"{len(column.categories)} declared categories"
    return "learnt from the data, as it is public"


def _budget(statement: Statement, folder: Path, ledger: Path | None) -> Budget:
    """From the ledger named, else from the model's own, else from the statement itself."""
    from halfmask.model_ledger import ledger_of

    file = ledger or ledger_of(folder)
    if file is None:
        entries = [
            (None, what, (event,))
            for what, event in zip(statement.released, statement.events, strict=False)
        ]
        return _charges(entries, None, statement.delta, statement.relation)
    book = _book(file)
    if Counter(statement.events) - Counter(book.events()):
        raise LedgerError(
            f"{file.name} does not hold the charges of this model: pass the ledger that was named "
            "when it was trained, with --ledger FILE."
        )
    listed = [(str(entry.time), str(entry.what), entry.events) for entry in book.entries()]
    return _charges(listed, book.epsilon, book.delta, book.relation)


def _book(file: Path) -> Ledger:
    """The ledger, opened; lines that are sealed but make no sense are refused like any other."""
    from halfmask.accounting.ledger import Ledger

    try:
        return Ledger.open(file)
    except LedgerError:
        raise
    except (ArithmeticError, LookupError, RecursionError, TypeError, ValueError):
        pass
    raise LedgerError(f"{file.name} is damaged or was edited: restore it from a backup.")


def _charges(
    entries: Sequence[tuple[str | None, str, tuple[Event, ...]]],
    limit: float | None,
    delta: float,
    relation: Relation,
) -> Budget:
    """Compose up to each charge; of very many, only the last ones are shown."""
    first = max(0, len(entries) - _MOST_CHARGES)
    events: list[Event] = []
    charges = []
    for place, (time, what, charged) in enumerate(entries):
        events += charged
        if place >= first:
            spent = epsilon_at(events, delta=delta, relation=relation)
            charges.append(Charge(time=time, what=what, epsilon=spent))
    return Budget(
        epsilon=limit, delta=delta, relation=relation, charges=tuple(charges), left_out=first
    )


def _learning(details: Mapping[str, Any]) -> tuple[tuple[int, float], ...]:
    """The curve a method has stored as `public_loss`: numbers, or pairs of step and number."""
    stored = details.get("public_loss") or ()
    if not isinstance(stored, list | tuple):
        return ()

    def pairs() -> tuple[tuple[int, float], ...]:
        given = [
            (item[0], item[1]) if isinstance(item, list | tuple) else (place, item)
            for place, item in enumerate(stored, start=1)
        ]
        # A loss that was not finite is stored as null.
        return tuple((int(step), float(loss)) for step, loss in given if loss is not None)

    return rebuilt(pairs, "its learning curve")


def _audits(file: Path) -> tuple[tuple[Audit, ...], tuple[Inference, ...]]:
    """What `halfmask audit MODEL --out` has written to `file`, or to a folder."""
    from halfmask.audit.model_audit import AUDIT_FILE

    file = file / AUDIT_FILE if file.is_dir() else file
    try:
        stored = read_json(file)
        listed = stored if isinstance(stored, list) else [stored]
        audits = tuple(
            Audit(
                mechanism=str(item["mechanism"]),
                claimed=None if item["claimed"] is None else float(item["claimed"]),
                lower_bound=float(item["lower_bound"]),
                confidence=float(item["confidence"]),
                relation=str(item["relation"]),
                refuted=bool(item["refuted"]),
            )
            for item in listed
        )
        inferences = tuple(
            Inference(
                column=str(each["column"]),
                without_model=float(each["without_model"]),
                with_model=float(each["with_model"]),
                bound=float(each["bound"]),
            )
            for item in listed
            for each in item.get("attribute_inference", ())
        )
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
        raise DataError(
            f"{file.name} is not the result of an audit: pass the file or the folder that "
            "`halfmask audit MODEL --data FILE --out DIR` has written."
        ) from None
    return audits, inferences
