"""Everything a report says about a model folder, as data: gathered once, shown in any format."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import roc_curve

from halfmask.accounting.accountant import delta as delta_at
from halfmask.accounting.accountant import epsilon as epsilon_at
from halfmask.accounting.events import RELATIONS, Event, Relation, unsampled
from halfmask.accounting.ledger import Ledger
from halfmask.audit.model_audit import AUDIT_FILE, Inference
from halfmask.data.frames import as_arrow, texts
from halfmask.effects import WITH_BARS, Effect, effects
from halfmask.errors import DataError, InputError, LedgerError
from halfmask.model import Model
from halfmask.model_folder import damaged, ledger_of, read_json, rebuilt
from halfmask.report.covered import Covered, constant_words, covered_scores
from halfmask.report.plots import Point
from halfmask.schema import Column
from halfmask.scoring import CalibrationBin, calibration_bins, check_by, judge
from halfmask.scoring import reference as without_privacy
from halfmask.statement import Statement
from halfmask.table import Table, read_frame

# --- What an attacker can at most gain: bounds on beliefs and right guesses, from charged events.
# The attacker knows the model, everything released, all public columns and every other row, and
# asks whether one person's private part is a certain value or another. Derivation:
# docs/threat-model.md.


PRIORS = (0.01, 0.1, 0.5, 0.9)
_SPLITS = (0.3, 0.1, 0.03, 0.01, 0.003)


@dataclass(frozen=True, kw_only=True)
class Gain:
    """One row of the table: beliefs and shares of right guesses, before and at most after."""

    prior: float
    belief: float
    guess_before: float
    guess_after: float


def attacker_gains(
    events: Sequence[Event], *, delta: float, priors: Sequence[float] = PRIORS
) -> tuple[Gain, ...]:
    """The bounds for attackers who start from each prior, under the relation `replace`."""
    rise = most_evidence(events, delta=delta)
    return tuple(
        Gain(
            prior=prior,
            belief=belief_after(prior, rise),
            guess_before=max(prior, 1 - prior),
            guess_after=most_right_guesses(events, prior),
        )
        for prior in priors
    )


def most_evidence(events: Sequence[Event], *, delta: float) -> float:
    """How far the log odds of a private value can rise, except with probability at most `delta`.

    For every share s of delta, P[loss > t] <= δ(ε)/(1 − e^(ε−t)), with ε where δ(ε) = s·delta and
    t = ε − ln(1−s); the least t is taken. Plain ε would promise this only for delta = 0.
    """
    if not events:
        return 0.0
    return min(
        epsilon_at(events, delta=share * delta, relation="replace") - math.log1p(-share)
        for share in _SPLITS
    )


def belief_after(prior: float, rise: float) -> float:
    """The belief whose log odds lie `rise` above those of `prior`."""
    _check_prior(prior)
    return prior / (prior + (1 - prior) * math.exp(-rise))


def most_right_guesses(events: Sequence[Event], prior: float) -> float:
    """The largest share of right guesses of any attacker with this prior; no exception to it.

    With m the smaller of the two prior probabilities it is 1 − m + m·δ(ln((1−m)/m)): the most by
    which a test can exceed its cost is what the privacy curve δ(ε) bounds.
    """
    _check_prior(prior)
    least = min(prior, 1 - prior)
    odds = math.log((1 - least) / least)
    gained = delta_at(events, epsilon=odds, relation="replace") if events else 0.0
    return 1 - least + least * gained


def _check_prior(prior: float) -> None:
    if not 0 < prior < 1:
        raise InputError(f"Expected a prior strictly between 0 and 1, got {prior}.")


# --- Scores, ROC and calibration on rows of the user's own, which no guarantee covers.


SCORES_NOT_COVERED = (
    "Computed from the labels of the rows that were passed: not covered by the guarantee."
)

NO_BETTER = (
    "On these rows the model is no better than a constant. More rows, a larger epsilon or more "
    "public columns may help."
)
_SCORES = ("rows", "accuracy", "log_loss", "auc", "rmse", "r2")
_MOST_POINTS = 101


@dataclass(frozen=True, kw_only=True)
class Measured:
    """`scores` as `evaluate` prints them; curves by class, or none for a number to predict."""

    scores: Mapping[str, float | None]
    constant: Mapping[str, float | None]
    public_alone: Mapping[str, float | None]
    better_than_constant: bool
    roc: Mapping[str, tuple[Point, ...]]
    calibration: Mapping[str, tuple[CalibrationBin, ...]]
    classes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    confusion: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    groups: Mapping[str, Mapping[str, float | None]] = field(default_factory=dict)
    by: str | None = None
    reference: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """The measurement as a JSON object."""
        return {
            **self.scores,
            "constant": self.constant,
            "public_columns_alone": self.public_alone,
            "better_than_constant": self.better_than_constant,
            "covered_by_guarantee": False,
            "classes": self.classes,
            "confusion": self.confusion,
            "by": self.by,
            "groups": self.groups,
            "reference": self.reference or None,
            "roc": self.roc,
            "calibration": self.calibration,
        }


def measure(model: Model, frame: Any, *, by: str | None = None, reference: Any = None) -> Measured:
    """Score `model` on a frame that has the label; by the groups of a column of it, too.

    `reference` is a frame of training rows, for models without privacy to be compared with.
    """
    if model.encoder is None:
        raise DataError(
            "This model was fitted on a bare array, so a file cannot be scored with it: leave out "
            "--data."
        )
    table = model.encode(frame, with_label=True)
    judged = _judged(model, table, frame, by)
    if reference is not None:
        judged["reference"] = without_privacy(model.encode(reference, with_label=True), [table])
    table = table.labelled()
    assert table.label is not None
    if model.task == "regression":
        curve = calibration_bins(model.predict(table).astype(np.float64), table.label)
        return Measured(**judged, roc={}, calibration={"predicted": curve})
    probabilities = model.probabilities(table)
    classes = [str(name) for name in model.classes or ()]
    shown = [1] if len(classes) == 2 else list(range(len(classes)))
    roc, calibration = {}, {}
    for place in shown:
        truth = (table.label == place).astype(np.float64)
        calibration[classes[place]] = calibration_bins(probabilities[:, place], truth)
        if 0 < truth.mean() < 1:
            roc[classes[place]] = roc_points(probabilities[:, place], truth)
    return Measured(**judged, roc=roc, calibration=calibration)


def _judged(model: Model, table: Table, frame: Any, by: str | None) -> dict[str, Any]:
    """Scores, and what they are held against."""
    groups = None
    if by is not None:
        check_by(frame, by, model)
        groups = texts(as_arrow(frame, [by]), by).to_pylist()
    found = judge(model, [table], groups)
    return {
        "scores": {name: found[name] for name in _SCORES if name in found},
        "constant": found["constant"],
        "public_alone": found.get("public_columns_alone", {}),
        "better_than_constant": found["better_than_constant"],
        "classes": found.get("classes", {}),
        "confusion": found.get("confusion", {}),
        "groups": found.get("groups", {}),
        "by": by,
    }


def roc_points(score: NDArray[np.float64], truth: NDArray[np.float64]) -> tuple[Point, ...]:
    """(false positive rate, true positive rate), thinned to at most a hundred points."""
    false, true, _ = roc_curve(truth, score)
    kept = np.unique(np.linspace(0, len(false) - 1, min(len(false), _MOST_POINTS)).astype(int))
    return tuple((float(false[place]), float(true[place])) for place in kept)


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
class SpentBudget:
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
class Facts:
    """All of it."""

    name: str
    written: str
    model: Model
    curve: Mapping[Relation, tuple[tuple[float, float], ...]]
    gains: tuple[Gain, ...]
    columns: tuple[ColumnFacts, ...]
    budget: SpentBudget
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

    @property
    def constant(self) -> str | None:
        """What is to be said of a model that is a constant; None of any other."""
        if not self.model.details.get("base_rate_only"):
            return None
        return constant_words(self.model.details, self.model.classes)

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
            "constant": self.constant,
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
    if model.encoder is None or model.method not in WITH_BARS:
        return ()
    return rebuilt(lambda: tuple(effects(model, told=told)), "its effects")


def _curve(statement: Statement, relation: Relation) -> tuple[tuple[float, float], ...]:
    """Epsilon at several deltas; few where each point is a composition of sampled steps."""
    deltas = {*(_FINE if unsampled(statement.events) else _COARSE), statement.delta}
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


def _budget(statement: Statement, folder: Path, ledger: Path | None) -> SpentBudget:
    """From the ledger named, else from the model's own, else from the statement itself."""
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
) -> SpentBudget:
    """Compose up to each charge; of very many, only the last ones are shown."""
    first = max(0, len(entries) - _MOST_CHARGES)
    events: list[Event] = []
    charges = []
    for place, (time, what, charged) in enumerate(entries):
        events += charged
        if place >= first:
            spent = epsilon_at(events, delta=delta, relation=relation)
            charges.append(Charge(time=time, what=what, epsilon=spent))
    return SpentBudget(
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
                rows=int(each["rows"]),
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
