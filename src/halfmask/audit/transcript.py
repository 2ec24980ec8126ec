"""Everything a mechanism releases, in order, and what its observer would make of it.

A `Recorder` is a releaser that keeps, beside each noisy value, the exact one. A `Replayer` has a
transcript and gives out its noisy values and draws instead of fresh ones, so that the same code on
another input is at the same point of an adaptive method at each release. The two together give the
moves of a replay and the exact log-likelihood ratio of two inputs, for any mechanism whose releases
go through it, without a second implementation of it. Guarantee: docs/proofs/audit.md.
"""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import clone

from halfmask.accounting.events import (
    Event,
    GaussianEvent,
    PoissonGaussianEvent,
    RandomisedResponseEvent,
    Relation,
)
from halfmask.accounting.ledger import BudgetLedger
from halfmask.errors import InputError, ReplayError
from halfmask.estimators import _HalfmaskEstimator
from halfmask.mechanisms.release import MakeReleaser, Releaser
from halfmask.model import Model
from halfmask.settings import CONFIG, split_method
from halfmask.types import Floats, Integers

AUDIT_NOT_PRIVATE = (
    "Not private: an audit fitted this model, kept the exact value of every release and charged no "
    "ledger. Fit the estimator itself for a model to hand on."
)


@dataclass(frozen=True, kw_only=True, eq=False)
class Release:
    """One value that left a training, with and without its noise.

    `noise_std` is that of the noise on each number, and `mu` the most that the distance of two
    neighbours' exact values may be of it. A sampled step has the rows it drew in `rows` (of units,
    where the schema has one), its value is a sum over them, and `mu` counts if a neighbour's row is
    among them. For randomised response both are NaN: `event` has its epsilon.
    """

    what: str
    value: Floats
    noise_std: float
    noisy: Floats
    mu: float
    event: Event
    rows: Integers | None = None
    out_of: int | None = None

    @property
    def sampled(self) -> bool:
        """Whether it is about a secret draw of rows."""
        return isinstance(self.event, PoissonGaussianEvent) and self.event.rate < 1


@dataclass(frozen=True, kw_only=True, eq=False)
class Transcript:
    """All that a training released, in order, what it charged for it, and the fitted estimator.

    It holds exact private values: it is not covered by any guarantee.
    """

    releases: tuple[Release, ...]
    events: tuple[Event, ...]
    released: tuple[str, ...]
    relation: Relation
    model: Any = None
    paddings: tuple[np.random.Generator, ...] = ()

    @property
    def mu(self) -> float | None:
        """What was charged in all, where every event is an unsampled Gaussian one; else None."""
        total = 0.0
        for event in self.events:
            if not isinstance(event, GaussianEvent):
                return None
            total += event.count * getattr(event, self.relation) ** 2
        return math.sqrt(total)

    def moves(self, other: Transcript) -> Floats:
        """How far apart the exact values of each release are, in units of its noise."""
        pairs = zip(self.releases, other.releases, strict=True)
        return np.array(
            [np.linalg.norm(one.value - two.value) / one.noise_std for one, two in pairs]
        )

    def same_model(self, other: Transcript) -> bool:
        """Whether both fits ended in one model, as they must on neighbours.

        A model is made of noisy values and public ones. What differs did not pass the noise.
        """
        mine, theirs = self.model.model_, other.model.model_
        ours, others = mine.arrays(), theirs.arrays()
        return (
            _described(mine) == _described(theirs)
            and ours.keys() == others.keys()
            and all(_same(ours[name], others[name]) for name in ours)
        )


class _LastReleaseSeenError(Exception):
    """Ends a run after its last release: the rest is post-processing, which tells nothing more."""


class Recorder(Releaser):
    """Notes what leaves, with and without noise, and what was drawn in secret.

    After release number `last` the run is ended: see `run`.
    """

    notes = (AUDIT_NOT_PRIVATE,)

    def __init__(self, *given: Any, last: int | None = None, **named: Any) -> None:
        super().__init__(*given, **named)
        self.releases: list[Release] = []
        self.paddings: list[np.random.Generator] = []
        self._last = last
        self._own_plan = True
        self._rows: Integers | None = None
        self._out_of: int | None = None

    def run(self, fit: Callable[[Any, Releaser], Any], given: Any) -> Transcript:
        """The transcript of `fit(given, self)`."""
        with suppress(_LastReleaseSeenError):
            fit(given, self)
        return self.transcript()

    def transcript(self, model: Any = None) -> Transcript:
        """What was noted so far."""
        return Transcript(
            releases=tuple(self.releases),
            events=self.events,
            released=self.released,
            relation=self.relation,
            model=model,
            paddings=tuple(self.paddings),
        )

    def beside(self, book: BudgetLedger) -> Recorder:
        """Another party's releaser, seen by the same observer: its charges are its own."""
        other = copy.copy(self)
        other._book, other._own_plan = book, False
        other._events, other._released, other._plan, other._charge = [], [], [], None
        return other

    def again(self, release: Release, count: int) -> Release:
        """A release with `count` noisy values, one below the other, of fresh noise each."""
        values = np.broadcast_to(release.value, (count, *release.value.shape))
        if isinstance(release.event, RandomisedResponseEvent):
            told = self._flip(values.reshape(-1), release.event.epsilon).reshape(values.shape)
        else:
            told = self._add(values, release.noise_std)
        return replace(release, noisy=told)

    def noisy(
        self, value: Floats, noise_std: float, event: Event | None = None, what: str = ""
    ) -> Floats:
        """The value with noise, noted."""
        assert event is not None
        self.pay()
        return self._note(value, noise_std, event, what, lambda: self._add(value, noise_std))

    def answered(self, answers: Floats, epsilon: float, what: str) -> Floats:
        """Answers of which some are flipped, noted."""
        self.pay()
        event = RandomisedResponseEvent(epsilon=epsilon, categories=2)
        return self._note(answers, math.nan, event, what, lambda: self._flip(answers, epsilon))

    def batch(self, rows: int, draw: Callable[[], Integers]) -> Integers:
        """The drawn rows, noted with the release that follows."""
        self._rows, self._out_of = self._drawn(rows, draw), rows
        return self._rows

    def padding(self) -> np.random.Generator:
        """Secret randomness, of which a copy is kept."""
        self.paddings.append(self._padding())
        return copy.deepcopy(self.paddings[-1])

    def _note(
        self,
        value: Floats,
        noise_std: float,
        event: Event,
        what: str,
        noisy: Callable[[], Floats],
    ) -> Floats:
        release = Release(
            what=what,
            value=np.array(value, dtype=np.float64),
            noise_std=noise_std,
            noisy=np.zeros(0),
            mu=_paid(event, self.relation),
            event=event,
            rows=self._rows,
            out_of=self._out_of,
        )
        self._check(release)
        self.releases.append(replace(release, noisy=np.array(noisy(), dtype=np.float64)))
        self._rows = self._out_of = None
        if len(self.releases) == self._last:
            raise _LastReleaseSeenError
        return self.releases[-1].noisy.copy()

    def _check(self, release: Release) -> None:
        """Nothing to compare a recording with."""

    def _add(self, value: Floats, noise_std: float) -> Floats:
        return super().noisy(value, noise_std)

    def _flip(self, answers: Floats, epsilon: float) -> Floats:
        return super().answered(answers, epsilon, "")

    def _drawn(self, rows: int, draw: Callable[[], Integers]) -> Integers:
        return super().batch(rows, draw)

    def _padding(self) -> np.random.Generator:
        return super().padding()


class Replayer(Recorder):
    """Hands out what a transcript has instead of drawing, and refuses to leave its plan.

    With `alone`, a sampled step is about that row alone, whether or not it was drawn: what it would
    add. After the first `until` releases it records afresh.
    """

    def __init__(
        self,
        transcript: Transcript,
        *given: Any,
        alone: int | None = None,
        until: int | None = None,
        **named: Any,
    ) -> None:
        super().__init__(*given, **named)
        self._told, self._alone, self._until = transcript, alone, until
        if transcript.relation != self.relation:
            raise ReplayError(
                f"The transcript is of a training under {transcript.relation!r}, this one is under "
                f"{self.relation!r}."
            )

    def open(self, event: Event, what: str, *, in_parts: bool = False) -> None:
        """As recorded, or a ReplayError."""
        if not self._own_plan:
            super().open(event, what, in_parts=in_parts)
            return
        place = len(self.events) + len(self._plan)
        recorded = list(zip(self._told.events, self._told.released, strict=True))[place:]
        check_equal(f"plan, part {place + 1}", (event, what), recorded[0] if recorded else None)
        super().open(event, what, in_parts=in_parts)

    def _check(self, release: Release) -> None:
        recorded = self._next()
        where = f"release {len(self.releases) + 1}"
        check_equal(f"{where}, its name", release.what, recorded.what)
        check_equal(f"{where}, its shape", release.value.shape, recorded.value.shape)
        if not math.isnan(recorded.noise_std):
            check_equal(f"{where}, its noise_std", release.noise_std, recorded.noise_std)

    def _next(self) -> Release:
        if len(self.releases) == len(self._told.releases):
            raise ReplayError(
                f"The recorded training made {len(self.releases)} releases, this one makes more. "
                + LEAK
            )
        return self._told.releases[len(self.releases)]

    @property
    def _afresh(self) -> bool:
        return self._until is not None and len(self.releases) >= self._until

    def _add(self, value: Floats, noise_std: float) -> Floats:
        return super()._add(value, noise_std) if self._afresh else self._next().noisy

    def _flip(self, answers: Floats, epsilon: float) -> Floats:
        return super()._flip(answers, epsilon) if self._afresh else self._next().noisy

    def _drawn(self, rows: int, draw: Callable[[], Integers]) -> Integers:
        if self._afresh:
            return super()._drawn(rows, draw)
        recorded = self._next()
        where = f"release {len(self.releases) + 1}, rows to draw from"
        check_equal(where, rows, recorded.out_of)
        assert recorded.rows is not None
        if self._alone is not None and recorded.sampled:
            return np.array([self._alone])
        return recorded.rows

    def _padding(self) -> np.random.Generator:
        place = len(self.paddings)
        if place == len(self._told.paddings):
            raise ReplayError("The recorded training padded fewer rows than this one. " + LEAK)
        return copy.deepcopy(self._told.paddings[place])


def recorded(run: Callable[[MakeReleaser], Any]) -> Transcript:
    """What `run` releases by the releaser that it makes, with what it returns as the model."""
    return _through(Recorder, run)


def replayed(
    transcript: Transcript, run: Callable[[MakeReleaser], Any], *, alone: int | None = None
) -> Transcript:
    """The same for a run that is handed the noisy values and draws of `transcript`.

    A run that plans other releases raises ReplayError.
    """
    told = _through(partial(Replayer, transcript, alone=alone), run)
    check_equal("plan", len(told.events), len(transcript.events))
    check_equal("number of releases", len(told.releases), len(transcript.releases))
    return told


def _through(make: Callable[..., Recorder], run: Callable[[MakeReleaser], Any]) -> Transcript:
    opened: list[Recorder] = []

    def opening(*given: Any, **named: Any) -> Releaser:
        opened.append(make(*given, **named))
        return opened[-1]

    model = run(opening)
    (recorder,) = opened
    return recorder.transcript(model)


LEAK = (
    "Between frames that differ in private values alone this shows without any noise, and is a "
    "leak; other frames, options or versions cannot be replayed."
)


def check_equal(where: str, found: object, recorded: object) -> None:
    """Raise a ReplayError where a replay is not what was recorded."""
    if found != recorded:
        raise ReplayError(f"The {where}: recorded {recorded}, replayed {found}. {LEAK}")


def learnt_encoding(model: Model) -> str:
    """What the encoding of a model learnt: levels, bins, classes."""
    encoder = None if model.encoder is None else model.encoder.to_json()
    return json.dumps([encoder, repr(model.classes)], sort_keys=True)


def log_likelihood_ratio(
    seen: Sequence[Release], first: Sequence[Floats], second: Sequence[Floats]
) -> Floats:
    """log P[seen | second] − log P[seen | first]; a Poisson batch is a mixture with its rate.

    One number for each of the noisy values below one another (see `Recorder.again`).
    """
    total = np.zeros(1)
    for release, one, other in zip(seen, first, second, strict=True):
        total = total + _log_density(release, other) - _log_density(release, one)
    return total


def _log_density(release: Release, mean: Floats) -> Floats:
    """Up to a constant: log of the density at what was released, relative to that of mean zero."""
    event, flat = release.event, mean.reshape(-1)
    noisy = release.noisy.reshape(-1, flat.size)
    if isinstance(event, RandomisedResponseEvent):
        return np.asarray(event.epsilon * np.sum(noisy == flat, axis=1))
    tilt: Floats = (noisy @ flat - float(flat @ flat) / 2) / release.noise_std**2
    if not (isinstance(event, PoissonGaussianEvent) and event.rate < 1):
        return tilt
    return np.logaddexp(math.log1p(-event.rate), math.log(event.rate) + tilt)


def _paid(event: Event, relation: Relation) -> float:
    """The most that was charged for a move in units of noise."""
    if isinstance(event, GaussianEvent):
        return float(getattr(event, relation))
    if isinstance(event, PoissonGaussianEvent):
        apart = math.sqrt(2) if event.contribution == "label" else 2.0
        return (apart if relation == "replace" else 1.0) / event.noise_multiplier
    return math.nan


def _described(model: Model) -> str:
    facts: Sequence[object] = (
        learnt_encoding(model),
        model.method,
        model.reason,
        sorted(model.details.items()),
        model.privacy.to_json(),
    )
    return repr(facts)


def _same(one: NDArray[Any], two: NDArray[Any]) -> bool:
    numbers = one.dtype.kind == "f"
    return one.shape == two.shape and np.array_equal(one, two, equal_nan=numbers)


# --- Record a training, release by release, and replay it on another frame.
# `record` fits a copy of an estimator and keeps, beside each noisy value, the exact one. `replay`
# runs the same fit on another frame and hands it the recorded noisy values, so that both are at the
# same point of an adaptive method at each release. On neighbouring frames nothing but the exact
# values may differ, and these by no more than was charged for: a check without any statistics.
# Guarantee: docs/proofs/audit.md.


def record(estimator: Any, frame: Any, y: Any = None, *, sample_weight: Any = None) -> Transcript:
    """Fit a copy of `estimator` on `frame`, as its own `fit` would, and keep every release.

    The transcript is not private, and no ledger is charged.
    """
    return recorded(partial(_fitted, estimator, frame, y, sample_weight))


def replay(
    estimator: Any, frame: Any, transcript: Transcript, y: Any = None, *, sample_weight: Any = None
) -> Transcript:
    """The same fit on another frame, handed the noisy values and the draws of `transcript`.

    Returns its own transcript: its exact values, the same noisy ones. A fit that plans other
    releases, of another shape or with other noise, raises ReplayError: between neighbours that
    difference would show without any noise.
    """
    told = replayed(transcript, partial(_fitted, estimator, frame, y, sample_weight))
    if learnt_encoding(told.model.model_) != learnt_encoding(transcript.model.model_):
        raise ReplayError(
            "What the encoding learnt from the frame (levels, bins, classes) is not what it learnt "
            "from the recorded one. " + LEAK
        )
    return told


def _fitted(estimator: Any, frame: Any, y: Any, sample_weight: Any, make: MakeReleaser) -> Any:
    if not isinstance(estimator, _HalfmaskEstimator):
        raise InputError(
            f"Expected an estimator of halfmask, got {type(estimator).__name__}: pass the last "
            "step of a pipeline, and the frame it is given."
        )
    _, options = split_method(getattr(estimator, "method", ""), estimator.options)
    config = options.get(CONFIG)
    if options.get("public_seed", getattr(config, "public_seed", 0)) is None:
        raise InputError("A replay draws public batches again: pass a number as public_seed.")
    fitted = clone(estimator).set_params(ledger=None)
    fitted._adopt(fitted._trained(frame, y, make, sample_weight=sample_weight))
    return fitted
