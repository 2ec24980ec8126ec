"""Record a training, release by release, and replay it on another frame.

`record` fits a copy of an estimator and keeps, beside each noisy value, the exact one. `replay`
runs the same fit on another frame and hands it the recorded noisy values, so that both are at the
same point of an adaptive method at each release. On neighbouring frames nothing but the exact
values may differ, and these by no more than was charged for: a check without any statistics.
Guarantee: docs/proofs/audit.md.
"""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable, Sequence
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
    RandomizedResponseEvent,
)
from halfmask.accounting.relations import Relation
from halfmask.errors import InputError, ReplayError
from halfmask.estimators import _HalfmaskEstimator
from halfmask.mechanisms.release import Releaser
from halfmask.mechanisms.sampling import Indices
from halfmask.model import Model
from halfmask.training import Door

Floats = NDArray[np.float64]

NOT_PRIVATE = (
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
    rows: Indices | None = None
    out_of: int | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class Transcript:
    """All that a training released, in order, what it charged for it, and the fitted estimator.

    It holds exact private values: it is not covered by any guarantee.
    """

    releases: tuple[Release, ...]
    events: tuple[Event, ...]
    released: tuple[str, ...]
    relation: Relation
    model: Any
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


def record(estimator: Any, frame: Any, y: Any = None, *, sample_weight: Any = None) -> Transcript:
    """Fit a copy of `estimator` on `frame`, as its own `fit` would, and keep every release.

    The transcript is not private, and no ledger is charged.
    """
    return _run(estimator, frame, y, _Recorder, sample_weight)


def replay(
    estimator: Any, frame: Any, transcript: Transcript, y: Any = None, *, sample_weight: Any = None
) -> Transcript:
    """The same fit on another frame, handed the noisy values and the draws of `transcript`.

    Returns its own transcript: its exact values, the same noisy ones. A fit that plans other
    releases, of another shape or with other noise, raises ReplayError: between neighbours that
    difference would show without any noise.
    """
    told = _run(estimator, frame, y, partial(_Replayer, transcript), sample_weight)
    _check_complete(transcript, told)
    return told


def _run(
    estimator: Any, frame: Any, y: Any, door: Callable[..., _Recorder], sample_weight: Any
) -> Transcript:
    if not isinstance(estimator, _HalfmaskEstimator):
        raise InputError(
            f"Expected an estimator of halfmask, got {type(estimator).__name__}: pass the last "
            "step of a pipeline, and the frame it is given."
        )
    if (estimator.options or {}).get("public_seed", 0) is None:
        raise InputError("A replay draws public batches again: pass a number as public_seed.")
    fitted = clone(estimator).set_params(ledger=None)
    opened: list[_Recorder] = []

    def opening(*given: Any, **named: Any) -> Releaser:
        opened.append(door(*given, **named))
        return opened[-1]

    checked: Door = opening
    fitted._adopt(fitted._trained(frame, y, checked, sample_weight=sample_weight))
    (recorder,) = opened
    return Transcript(
        releases=tuple(recorder.releases),
        events=recorder.events,
        released=recorder.released,
        relation=recorder.relation,
        model=fitted,
        paddings=tuple(recorder.paddings),
    )


class _Recorder(Releaser):
    """Notes what leaves, with and without noise, and what was drawn in secret."""

    notes = (NOT_PRIVATE,)

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.releases: list[Release] = []
        self.paddings: list[np.random.Generator] = []
        self._rows: Indices | None = None
        self._out_of: int | None = None

    def noisy(
        self, value: Floats, noise_std: float, event: Event | None = None, what: str = ""
    ) -> Floats:
        """The value with noise, noted."""
        assert event is not None
        self.pay()
        self._note(value, noise_std, event, what, lambda: self._add(value, noise_std))
        return self.releases[-1].noisy.copy()

    def answered(self, answers: Floats, epsilon: float, what: str) -> Floats:
        """Answers of which some are flipped, noted."""
        self.pay()
        event = RandomizedResponseEvent(epsilon=epsilon, categories=2)
        self._note(answers, math.nan, event, what, lambda: self._flip(answers, epsilon))
        return self.releases[-1].noisy.copy()

    def batch(self, rows: int, draw: Callable[[], Indices]) -> Indices:
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
    ) -> None:
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

    def _check(self, release: Release) -> None:
        """Nothing to compare a recording with."""

    def _add(self, value: Floats, noise_std: float) -> Floats:
        return super().noisy(value, noise_std)

    def _flip(self, answers: Floats, epsilon: float) -> Floats:
        return super().answered(answers, epsilon, "")

    def _drawn(self, rows: int, draw: Callable[[], Indices]) -> Indices:
        return super().batch(rows, draw)

    def _padding(self) -> np.random.Generator:
        return super().padding()


class _Replayer(_Recorder):
    """Hands out what a transcript has instead of drawing, and refuses to leave its plan."""

    def __init__(self, transcript: Transcript, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._told = transcript
        if transcript.relation != self.relation:
            raise ReplayError(
                f"The transcript is of a training under {transcript.relation!r}, this one is under "
                f"{self.relation!r}."
            )

    def open(self, event: Event, what: str, *, in_parts: bool = False) -> None:
        """As recorded, or a ReplayError."""
        place = len(self.events) + len(self._plan)
        recorded = list(zip(self._told.events, self._told.released, strict=True))[place:]
        _equal(f"plan, part {place + 1}", (event, what), recorded[0] if recorded else None)
        super().open(event, what, in_parts=in_parts)

    def _check(self, release: Release) -> None:
        recorded = self._next()
        where = f"release {len(self.releases) + 1}"
        _equal(f"{where}, its name", release.what, recorded.what)
        _equal(f"{where}, its shape", release.value.shape, recorded.value.shape)
        if not math.isnan(recorded.noise_std):
            _equal(f"{where}, its noise_std", release.noise_std, recorded.noise_std)

    def _next(self) -> Release:
        if len(self.releases) == len(self._told.releases):
            raise ReplayError(
                f"The recorded training made {len(self.releases)} releases, this one makes more. "
                + _LEAK
            )
        return self._told.releases[len(self.releases)]

    def _add(self, value: Floats, noise_std: float) -> Floats:
        return self._next().noisy

    def _flip(self, answers: Floats, epsilon: float) -> Floats:
        return self._next().noisy

    def _drawn(self, rows: int, draw: Callable[[], Indices]) -> Indices:
        recorded = self._next()
        _equal(f"release {len(self.releases) + 1}, rows to draw from", rows, recorded.out_of)
        assert recorded.rows is not None
        return recorded.rows

    def _padding(self) -> np.random.Generator:
        place = len(self.paddings)
        if place == len(self._told.paddings):
            raise ReplayError("The recorded training padded fewer rows than this one. " + _LEAK)
        return copy.deepcopy(self._told.paddings[place])


_LEAK = (
    "Between frames that differ in private values alone this shows without any noise, and is a "
    "leak; other frames, options or versions cannot be replayed."
)


def _equal(where: str, found: object, recorded: object) -> None:
    if found != recorded:
        raise ReplayError(f"The {where}: recorded {recorded}, replayed {found}. {_LEAK}")


def _check_complete(transcript: Transcript, told: Transcript) -> None:
    _equal("plan", len(told.events), len(transcript.events))
    _equal("number of releases", len(told.releases), len(transcript.releases))
    learnt, recorded = (_learnt(each.model.model_) for each in (told, transcript))
    if learnt != recorded:
        raise ReplayError(
            "What the encoding learnt from the frame (levels, bins, classes) is not what it learnt "
            "from the recorded one. " + _LEAK
        )


def _learnt(model: Model) -> str:
    encoder = None if model.encoder is None else model.encoder.to_json()
    return json.dumps([encoder, repr(model.classes)], sort_keys=True)


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
        _learnt(model),
        model.method,
        model.reason,
        sorted(model.details.items()),
        model.privacy.to_json(),
    )
    return repr(facts)


def _same(one: NDArray[Any], two: NDArray[Any]) -> bool:
    numbers = one.dtype.kind == "f"
    return one.shape == two.shape and np.array_equal(one, two, equal_nan=numbers)
