"""The guarantee as data and as words: what a fitted model promises, to whom, and what it does not.

The numbers, the sampler and the accountant's name are derived from the events that were charged,
and "private" from the noise that was drawn, so that a statement cannot claim more than was done.
"""

from __future__ import annotations

import html
import math
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from importlib.metadata import version
from types import NoneType
from typing import TYPE_CHECKING, Any

from halfmask.accounting.accountant import epsilon
from halfmask.accounting.budget import printed
from halfmask.accounting.events import (
    RELATIONS,
    Event,
    GaussianEvent,
    PoissonGaussianEvent,
    Relation,
    check_relation,
    counted,
    event_from_json,
    event_to_json,
    unsampled,
)
from halfmask.errors import HalfmaskError, InputError

if TYPE_CHECKING:
    from halfmask.mechanisms.noise import NoiseSource
    from halfmask.schema import Schema

NOT_COVERED = (
    "Public columns: they are used as they are, and what they reveal is not limited.",
    "The number of rows.",
    "Other runs on the same rows (tuning, comparison, earlier models), unless they were charged to "
    "the same ledger.",
    "Scores and predictions that are computed on rows of your own.",
    "Side channels: the time, memory and disk traffic of the training itself.",
)
NOT_PRIVATE = "not private: noise is reproducible"

# A stored statement with more would keep an accountant busy for hours.
_MOST_SAMPLED, _MOST_RELEASES = 256, 10**9
_NOT_A_STATEMENT = (
    KeyError,
    TypeError,
    ValueError,
    AttributeError,
    ArithmeticError,
    RecursionError,
    HalfmaskError,
)

_MEANING: dict[Relation, str] = {
    "replace": "the private part of one {unit} is replaced by any other value, while its public "
    "part stays",
    "withhold": "the private part of one {unit} is withheld, that is, it contributes exactly "
    "nothing (taken alone, this limits telling two values apart only to twice its epsilon)",
}


@dataclass(frozen=True, kw_only=True)
class Statement:
    """What was promised about the private columns. Make one with `Statement.build`.

    Attributes
    ----------
    epsilon : float or None
        The claim at `delta` under `relation`; None where there is none, because the noise can be
        drawn again.
    delta : float
        But for which the claim holds.
    relation : {"replace", "withhold"}
        What is compared.
    calibrated : mapping
        Epsilon by relation, as the accountant gives it.
    public, private : tuple of str
        The columns of each role.
    label, label_private : str, bool
        The label, and whether it is protected.
    unit_column, max_rows : str or None, int
        Whom the guarantee protects: one row, or all rows with one id.
    released, events : tuple
        What left the training, in words and as what was charged for it.
    noise, seeded : str, bool
        Where the noise came from, and whether it can be drawn again.
    accountant : str
        What computed epsilon.
    notes, not_covered : tuple of str
        What else a reader has to know.

    Examples
    --------
    >>> from halfmask import HalfmaskClassifier
    >>> from halfmask.datasets import load_adult
    >>> train, test, schema = load_adult()
    >>> model = HalfmaskClassifier(schema, epsilon=1.0, method="gd").fit(train.slice(0, 500))
    >>> statement = model.privacy_
    >>> words, data = statement.text(), statement.to_json()
    """

    delta: float
    relation: Relation
    calibrated: Mapping[Relation, float]
    public: tuple[str, ...]
    private: tuple[str, ...]
    label: str | None
    label_private: bool
    unit_column: str | None
    max_rows: int
    released: tuple[str, ...]
    events: tuple[Event, ...]
    noise: str
    seeded: bool
    accountant: str
    notes: tuple[str, ...]
    not_covered: tuple[str, ...]

    @classmethod
    def build(
        cls,
        *,
        events: Sequence[Event],
        delta: float,
        relation: str,
        public: Sequence[str],
        private: Sequence[str],
        label: str | None,
        label_private: bool,
        released: Sequence[str],
        noise: NoiseSource,
        unit_column: str | None = None,
        max_rows: int = 1,
        notes: Sequence[str] = (),
        not_covered: Sequence[str] = (),
    ) -> Statement:
        """Account for `events` and say what follows; `not_covered` adds to the usual list."""
        checked = check_relation(relation)
        return cls(
            delta=float(delta),
            relation=checked,
            calibrated={name: epsilon(events, delta=delta, relation=name) for name in RELATIONS},
            public=tuple(public),
            private=tuple(private),
            label=label,
            label_private=bool(label_private),
            unit_column=unit_column,
            max_rows=int(max_rows),
            released=tuple(released),
            events=tuple(events),
            noise=_noise_words(noise),
            seeded=not noise.secure,
            accountant=_accountant(events),
            notes=tuple(notes),
            not_covered=(*NOT_COVERED, *not_covered),
        )

    @property
    def epsilon(self) -> float | None:
        """The claim under the statement's relation; None where the noise is reproducible."""
        return self.epsilon_by_relation[self.relation]

    @property
    def epsilon_by_relation(self) -> dict[Relation, float | None]:
        """The claim under each relation."""
        return {name: None if self.seeded else self.calibrated[name] for name in RELATIONS}

    @property
    def calibrated_epsilon(self) -> float:
        """What the accountant gives under the statement's relation, even if noise was seeded."""
        return self.calibrated[self.relation]

    @property
    def unit(self) -> str:
        """Whom the guarantee protects."""
        if self.unit_column is None:
            return "one row"
        rows = "one row" if self.max_rows == 1 else f"at most {self.max_rows} rows"
        return f"one value of {self.unit_column!r} (a person with {rows})"

    @property
    def sampler(self) -> str:
        """How rows were drawn for the releases, read off the events."""
        rates = sorted(
            {e.rate for e in self.events if isinstance(e, PoissonGaussianEvent) and e.rate < 1}
        )
        if not rates:
            return "none: every release uses all rows"
        drawn = " and ".join(f"{rate:.6g}" for rate in rates)
        whole = any(not isinstance(event, PoissonGaussianEvent) for event in self.events)
        return f"Poisson, rate {drawn}" + ("; other releases use all rows" if whole else "")

    def to_json(self) -> dict[str, Any]:
        """The statement as a JSON object."""
        stored = {field.name: getattr(self, field.name) for field in fields(self)}
        stored = {k: list(v) if isinstance(v, tuple) else v for k, v in stored.items()}
        return {
            "epsilon": _finite(self.epsilon),
            **stored,
            "events": [event_to_json(event) for event in self.events],
            "calibrated": {name: _finite(value) for name, value in self.calibrated.items()},
            "calibrated_epsilon": _finite(self.calibrated_epsilon),
            "epsilon_by_relation": {k: _finite(v) for k, v in self.epsilon_by_relation.items()},
            "unit": self.unit,
            "sampler": self.sampler,
            "guarantee": NOT_PRIVATE
            if self.seeded
            else "differential privacy of the private columns",
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Statement:
        """The inverse of `to_json`."""
        try:
            values: dict[str, Any] = {field.name: data[field.name] for field in fields(cls)}
            values["events"] = tuple(event_from_json(event) for event in values["events"])
            calibrated = values["calibrated"]
            values["calibrated"] = {
                name: math.inf if calibrated[name] is None else float(calibrated[name])
                for name in RELATIONS
            }
            values["relation"] = check_relation(values["relation"])
            values["delta"] = float(values["delta"])
            values = {k: tuple(v) if isinstance(v, list) else v for k, v in values.items()}
            made = cls(**values)
            made._check()
        except _NOT_A_STATEMENT as error:
            reason = f"{type(error).__name__}: {error}"
        else:
            return made
        raise InputError(
            f"This is not a privacy statement ({reason[:200]}). Use the file that training has "
            "written."
        )

    def _check(self) -> None:
        """Refuse values of other types than `build` gives, and charges nobody can account for."""
        kinds: dict[str, type | tuple[type, ...]] = {
            "label": (str, NoneType),
            "unit_column": (str, NoneType),
            "label_private": bool,
            "seeded": bool,
            "max_rows": int,
            "noise": str,
            "accountant": str,
        }
        for name, kind in kinds.items():
            if not isinstance(getattr(self, name), kind):
                raise TypeError(f"the field {name!r}")
        for name in ("public", "private", "released", "notes", "not_covered"):
            lines = getattr(self, name)
            if not (isinstance(lines, tuple) and all(isinstance(line, str) for line in lines)):
                raise TypeError(f"the field {name!r}")
        if not (0 < self.delta < 1 and all(value >= 0 for value in self.calibrated.values())):
            raise ValueError("epsilon or delta")
        sampled = {event for event in self.events if isinstance(event, PoissonGaussianEvent)}
        counts = (getattr(event, "steps", getattr(event, "count", 0)) for event in self.events)
        if len(sampled) > _MOST_SAMPLED or sum(counts) > _MOST_RELEASES or self.max_rows < 1:
            raise ValueError("more releases than a training makes")

    def text(self, width: int = 80) -> str:
        """The statement in words."""
        unit = "row" if self.unit_column is None else "person"
        blocks = [("", self._claim(unit))]
        for name in RELATIONS:
            meaning = _MEANING[name].format(unit=unit)
            number = printed(self.calibrated[name])
            blocks.append(
                (name, f"{'calibrated ' if self.seeded else ''}epsilon {number}: {meaning}.")
            )
        blocks += [
            ("Protected", self.unit),
            ("Private", _listed(self.private, self.label if self.label_private else None)),
            ("Public", _listed(self.public, None if self.label_private else self.label)),
            ("Released", counted(self.released) or "nothing that depends on private columns"),
            ("Noise", self.noise),
            ("Sampling", self.sampler),
            ("Charged", counted([describe(event) for event in self.events]) or "nothing"),
            ("Accountant", self.accountant),
        ]
        blocks += [("Note", note) for note in self.notes]
        lines = [_paragraph(title, body, width) for title, body in blocks]
        lines.append("This does not cover:")
        lines += [_paragraph("-", line, width) for line in self.not_covered]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        """The statement for a notebook."""
        return f"<pre>{html.escape(self.text())}</pre>"

    def _claim(self, unit: str) -> str:
        if self.seeded:
            return (
                f"{NOT_PRIVATE.capitalize()}. A fixed seed was asked for, so whoever knows it can "
                "take the noise off again. The numbers below are what the same training would "
                "promise without the seed."
            )
        if not self.events:
            return "Nothing that depends on private columns was released (epsilon 0)."
        private = f"one {unit}'s private values"
        changing = "Changing" if self.relation == "replace" else "Using or withholding"
        return (
            f"{changing} {private} {likelihood(self, short)}. That is the meaning of epsilon "
            f"{printed(self.calibrated_epsilon)} at delta {self.delta:g} under the relation "
            f"{self.relation!r}. It holds against whoever sees all that was released here and "
            f"knows all public columns and every other {unit}. Epsilon under both relations:"
        )


def made_notes(schema: Schema) -> list[str]:
    """Which functions of other columns are public, where a schema has some."""
    functions = (c.function for c in schema.columns if c.role == "public")
    made = [f"{each.name} = {each.text}" for each in functions if each is not None]
    return [_made_note(", ".join(made), and_gaps=True)] if made else []


def python_notes(names: Sequence[str]) -> list[str]:
    """The same of a function from Python, whose values are the public columns `names`."""
    whose = "the user's own function of all columns of the row, private ones included"
    return [_made_note(f"{', '.join(names)} ({whose})", and_gaps=False)] if names else []


def _made_note(made: str, *, and_gaps: bool) -> str:
    """`and_gaps`: the functions also tell where a value is missing."""
    gaps = ", with whether there is a value at all" if and_gaps else ""
    return (
        f"Public functions of other columns, known of every row{gaps}: {made}. What they tell of "
        "private columns is not protected."
    )


def short(factor: float) -> str:
    """A factor as people read it: three digits, rounded up."""
    if not 0 < factor < 1e12:
        return f"{factor:g}"
    places = max(0, 2 - math.floor(math.log10(factor)))
    return f"{math.ceil(factor * 10**places - 1e-9) / 10**places:,.{places}f}"


def likelihood(statement: Statement, shown: Callable[[float], str]) -> str:
    """What (epsilon, delta) bounds, in words; `shown` rounds a number up.

    It bounds sets of outcomes, not single ones: the log ratio of one outcome exceeds epsilon with
    a probability that may be many times delta (docs/threat-model.md, "Beliefs").
    """
    epsilon = statement.calibrated_epsilon
    factor = math.exp(epsilon) if epsilon < 700 else math.inf
    times = f"{shown(factor)} times as likely (e to the epsilon)"
    if factor > 1e6:
        times = "e to the epsilon times as likely (over a million)"
    return f"makes any set of outcomes at most {times}, plus at most {chance(statement.delta)}"


def chance(delta: float) -> str:
    """A small probability as "one in so many", rounded up."""
    if delta < 1e-15:
        return f"{delta:g}"
    many = math.floor(1 / delta * (1 + 1e-9))
    return "one in a million" if many == 1_000_000 else f"one in {many:,}"


def describe(event: Event) -> str:
    """One event in words."""
    if isinstance(event, GaussianEvent):
        return (
            f"{event.count} Gaussian release{'s' if event.count != 1 else ''} with noise of "
            f"{_inverse(event.replace)} times the sensitivity (replace), "
            f"{_inverse(event.withhold)} (withhold)"
        )
    if isinstance(event, PoissonGaussianEvent):
        label = ", label contributions" if event.contribution == "label" else ""
        return (
            f"{event.steps} sampled Gaussian step{'s' if event.steps != 1 else ''} at rate "
            f"{event.rate:.6g} with noise of {event.noise_multiplier:.6g} times the clip norm"
            f"{label}"
        )
    return (
        f"{event.count} randomised answer{'s' if event.count != 1 else ''} among "
        f"{event.categories} with epsilon {printed(event.epsilon)}"
    )


def _noise_words(noise: NoiseSource) -> str:
    """Where the noise came from; reproducible noise is called that whatever its source says."""
    if noise.secure or NOT_PRIVATE in noise.description:
        return noise.description
    return f"{noise.description}; {NOT_PRIVATE}"


def _listed(columns: Sequence[str], label: str | None) -> str:
    return ", ".join([*columns, *([f"{label} (the label)"] if label is not None else [])]) or "none"


def _inverse(mu: float) -> str:
    return f"{1 / mu:.6g}" if mu > 0 else "unlimited"


def _accountant(events: Sequence[Event]) -> str:
    """How epsilon is computed."""
    ours = f"halfmask {version('halfmask')}"
    if unsampled(events):
        return f"{ours}, exact composition of Gaussian releases (closed form)"
    return (
        f"{ours}, privacy loss distributions by connected dots and tilted FFT, checked against "
        "dp-accounting 0.6"
    )


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _paragraph(title: str, body: str, width: int) -> str:
    if not title:
        return textwrap.fill(body, width)
    start = "  - " if title == "-" else f"  {title + ':':<12}"
    return textwrap.fill(body, width, initial_indent=start, subsequent_indent=" " * len(start))
