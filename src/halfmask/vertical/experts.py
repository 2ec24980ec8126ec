"""Experts: each party trains a DP model on its own columns, the label holder combines them by a
rule.

Models are shared, or only used; scores of training rows never are. Guarantee:
docs/proofs/experts.md.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from halfmask.accounting.budget import Budget
from halfmask.accounting.events import GaussianEvent
from halfmask.errors import InputError
from halfmask.mechanisms.release import GaussianSeries, Releaser, Sensitivity
from halfmask.vertical.aggregate import (
    BINS,
    count_costs,
    count_scores,
    count_sensitivity,
    weights_from_counts,
)
from halfmask.vertical.block import Vector
from halfmask.vertical.channel import Message, PartyError, ask_all
from halfmask.vertical.coordinator import Coordinator
from halfmask.vertical.labels import HiddenLabels
from halfmask.vertical.newton import (
    ExpertCosts,
    ExpertRows,
    NewtonConfig,
    expert_costs,
    noisy_newton,
)
from halfmask.vertical.party import Party
from halfmask.vertical.stranger import RefusedError, number, numbers

DAMPING = 0.7
"""Weight of every expert but the first: the columns of one person repeat part of each other."""

MOST_EXCESS = 1e4
"""Hidden labels lie at -a and 1 + a; beyond this a they say nothing."""

PRIOR_SHARE = 0.1
"""The part of one budget's ratio that the class prior of private labels has: plenty for a count."""

_MOST_RATIO, _MOST_COUNT = 1e6, 1e12
_UNIT = Sensitivity(replace=1.0, withhold=1.0)  # of a count of labels


class ExpertParty:
    """A party's side: it trains once, and tells no score of a row.

    `ratio` is μ of everything released for one replaced row; `aggregate_share` is the part of μ²
    that counts of its training scores take (0: none are released).
    Guarantee: docs/proofs/experts.md.
    """

    def __init__(
        self,
        name: str,
        matrix: Any,
        *,
        rows: ExpertRows,
        ratio: float,
        releaser: Releaser,
        config: NewtonConfig | None = None,
        release_model: bool = True,
        aggregate_share: float = 0.0,
        ids: Sequence[Any] | None = None,
    ) -> None:
        if not 0 <= aggregate_share < 1:
            raise InputError(f"Expected 0 <= aggregate_share < 1, got {aggregate_share}.")
        self.name = name
        self.matrix = matrix
        self.known = rows
        # μ² is shared between the model and, where they are asked for, the counts of its scores.
        self._ratio, self._share = ratio, aggregate_share
        self.config = config or NewtonConfig()
        self.coefficients: Vector | None = None
        self._releaser = releaser
        self._release_model = release_model
        self.party = Party(name, rows=int(matrix.shape[0]), ids=ids)
        self.party.answers("expert-terms", self._terms)
        self.party.answers("expert-train", self._train)

    @property
    def costs(self) -> ExpertCosts:
        """What training costs one row, in ratios."""
        return training_costs(self.known, self._ratio, self.config, self._share)

    @property
    def trained(self) -> Vector:
        """The coefficients, once there are any."""
        if self.coefficients is None:
            raise InputError(f"Party {self.name!r} has not trained yet.")
        return self.coefficients

    def scores(self, matrix: Any) -> Vector:
        """wᵀx of rows of this party's columns: log-odds of the second class."""
        return np.asarray(matrix @ self.trained, dtype=np.float64)

    def _terms(self, request: Message) -> Message:
        """What training will cost one label: the label holder pays before it sends any."""
        costs = self.costs
        return request.reply(values={_LABEL: costs.label, _WITHHOLD: costs.withhold})

    def _train(self, request: Message) -> Message:
        if self.coefficients is not None:
            raise InputError(f"Party {self.name!r} has trained already: its budget was for once.")
        targets = self._targets(request)
        if _paid_by(self.name) in request.values:
            paid = number(request.values[_paid_by(self.name)], _LABEL, most=_MOST_RATIO)
            if self.costs.label > paid:
                raise InputError(
                    f"Party {self.name!r} would spend more of each label than it said before: its "
                    "file has changed, so start a new run."
                )
        # Opened before the model is trained: what does not fit together costs nothing.
        series = self._open_counts() if self._share > 0 else None
        self.coefficients = noisy_newton(
            self.matrix,
            targets,
            rows=self.known,
            ratio=self._ratio * math.sqrt(1 - self._share),
            releaser=self._releaser,
            config=self.config,
            what=f"expert of {self.name}",
        )
        arrays = {"coefficients": self.coefficients} if self._release_model else {}
        if series is not None:
            arrays["counts"] = series.release(self._counts(targets))
        return request.reply(arrays=arrays, values={"trained": 1})

    def _open_counts(self) -> GaussianSeries:
        bound = count_sensitivity(self.known.target_excess)
        return self._releaser.gaussian_series(
            sensitivity=bound,
            noise_std=bound.replace / (self._ratio * math.sqrt(self._share)),
            count=1,
            what=f"counts of the scores of {self.name} by class",
        )

    def _counts(self, targets: Vector) -> Vector:
        """Exact counts of the scores of training rows by class, to be released with noise."""
        excess = self.known.target_excess
        return count_scores(self.scores(self.matrix), np.clip(targets, -excess, 1 + excess))

    def _targets(self, request: Message) -> Vector:
        targets = numbers(request.arrays.get("targets"), (self.party.rows,), "targets")
        if requested_excess(request) > self.known.target_excess:
            raise InputError(
                f"Party {self.name!r} was opened for labels nearer to 0 and 1: hidden ones of this "
                "epsilon would be cut off."
            )
        return targets


def training_costs(
    rows: ExpertRows, ratio: float, config: NewtonConfig, aggregate_share: float = 0.0
) -> ExpertCosts:
    """What the model and the counts of one party cost a row, `ratio` being μ of a replaced one."""
    model = vars(expert_costs(rows, ratio * math.sqrt(1 - aggregate_share), config))
    counts = vars(count_costs(ratio * math.sqrt(aggregate_share), rows.target_excess))
    return ExpertCosts(**{name: math.hypot(model[name], counts[name]) for name in model})


def requested_excess(request: Message) -> float:
    """How far outside 0 and 1 the labels of a request lie; 0 if they are in clear.

    The coordinator says so, and targets are clipped to it: a party's noise is scaled to whatever it
    says, so a wrong number costs accuracy, never privacy.
    """
    try:
        return number(
            request.values.get("target_excess", 0.0), "target_excess", least=0.0, most=MOST_EXCESS
        )
    except RefusedError:
        raise RefusedError(
            f"Expected hidden labels of an epsilon of at least {1 / MOST_EXCESS:g} "
            f"(target_excess from 0 to {MOST_EXCESS:g})."
        ) from None


@dataclass(frozen=True, kw_only=True)
class Combination:
    """logit P = intercept + Σ weight_m · s_m."""

    weights: tuple[float, ...]
    intercept: float
    rule: str

    def score(self, scores: Sequence[Vector]) -> Vector:
        """Log-odds from one vector of scores per party, in the parties' order."""
        total = sum(w * s for w, s in zip(self.weights, scores, strict=True))
        return np.asarray(self.intercept + total, dtype=np.float64)


def fixed_rule(parties: int, prior: float, damping: float = DAMPING) -> Combination:
    """The first expert in full, every other one damped and freed of the prior it repeats."""
    log_odds = math.log(prior / (1 - prior))
    return Combination(
        weights=(1.0, *[damping] * (parties - 1)),
        intercept=-damping * (parties - 1) * log_odds,
        rule=f"fixed: first expert in full, others times {damping:g} less the prior",
    )


def rule_from_counts(counts: Sequence[Vector], prior: float, damping: float) -> Combination:
    """Weights from noisy counts of each party's own scores by class: a DP aggregate."""
    weights, intercept = weights_from_counts(counts, prior, damping)
    return Combination(
        weights=weights,
        intercept=intercept,
        rule=f"DP aggregate: experts recalibrated, all but the best times {damping:g}",
    )


def class_prior(labels: Vector, *, private: bool, ratio: float, releaser: Releaser | None) -> float:
    """The frequency of the second class: exact if labels are public, else one noisy number.

    One replaced label moves the count by 1. Guarantee: docs/proofs/experts.md.
    """
    count = float(np.sum(labels))
    if private:
        if releaser is None:
            raise InputError("Private labels need the label holder's ledger for the class prior.")
        released = releaser.gaussian(
            np.array([count]), sensitivity=_UNIT, noise_std=1 / ratio, what="class prior"
        )
        count = float(released[0])
    return _frequency(count, len(labels))


def _frequency(count: float, rows: int) -> float:
    return min(max(count, 1.0), rows - 1.0) / rows


@dataclass(frozen=True, kw_only=True)
class LabelTerms:
    """The class prior, and what the label holder has paid for each party's use of the labels.

    `ratios` is empty where labels are public, or hidden, and nothing was to be paid.
    """

    prior: float
    prior_ratio: float = 0.0
    ratios: Mapping[str, float] = field(default_factory=dict)


_LABEL, _WITHHOLD = "label_ratio", "withhold_ratio"


def _paid_by(party: str) -> str:
    return f"{_LABEL}/{party}"


def pay_for_labels(coordinator: Coordinator, releaser: Releaser, budget: Budget) -> LabelTerms:
    """Charge all that a run of experts will spend of private labels in clear, then draw the prior.

    Each party's model spends every label once more, so the label holder asks what it will cost and
    charges the sum together with the prior, in one entry, before a label is sent. Simulations and
    runs between organisations both pay here. Guarantee: docs/proofs/experts.md.
    """
    channel = coordinator.channel
    request = Message(
        kind="expert-terms", run=coordinator.run, round=0, values={"target_excess": 0.0}
    )
    costs: dict[str, GaussianEvent] = {}
    for name, reply in ask_all(channel, request).items():
        try:
            label = number(reply.values.get(_LABEL), _LABEL, most=_MOST_RATIO)
            withhold = number(reply.values.get(_WITHHOLD), _WITHHOLD, most=_MOST_RATIO)
        except RefusedError as error:
            raise PartyError(f"Party {name!r} does not say what it costs: {error}") from None
        costs[name] = GaussianEvent(replace=label, withhold=withhold)
    ratio = PRIOR_SHARE * budget.mu
    for name, event in costs.items():
        releaser.open(event, f"labels in the expert of {name}")
    return LabelTerms(
        prior=class_prior(coordinator.labels, private=True, ratio=ratio, releaser=releaser),
        prior_ratio=ratio,
        ratios={name: event.replace for name, event in costs.items()},
    )


@dataclass(frozen=True, kw_only=True)
class ExpertsResult:
    """The combination, the models that were released, and the parties' order."""

    parties: tuple[str, ...]
    combination: Combination
    coefficients: Mapping[str, Vector]


def train_experts(
    coordinator: Coordinator,
    *,
    prior: float | LabelTerms,
    hidden: HiddenLabels | None = None,
    damping: float = DAMPING,
    aggregate: bool = False,
) -> ExpertsResult:
    """One exchange: labels out (or their randomised estimates), models back.

    Private labels in clear come with the terms that `pay_for_labels` has charged: a party that
    would spend more of them refuses.
    With `aggregate`, parties send noisy counts of their scores along, and the combination is
    computed from these; parties that were not opened for it are named.
    """
    channel = coordinator.channel
    terms = prior if isinstance(prior, LabelTerms) else LabelTerms(prior=prior)
    paid = {_paid_by(name): ratio for name, ratio in terms.ratios.items()}
    targets = coordinator.labels if hidden is None else hidden.targets
    request = Message(
        kind="expert-train",
        run=coordinator.run,
        round=1,
        arrays={"targets": targets},
        values={"target_excess": 0.0 if hidden is None else hidden.excess, **paid},
    )
    shapes = {"counts": (2, BINS)} if aggregate else {}
    replies = ask_all(channel, request, shapes=shapes)
    combination = fixed_rule(len(channel.parties), terms.prior, damping)
    models: dict[str, Vector] = {}
    counts: list[Vector] = []
    for name, reply in replies.items():
        try:
            if "coefficients" in reply.arrays:
                models[name] = numbers(reply.arrays["coefficients"], (None,), "coefficients")
            if aggregate:
                shape = (2, BINS)
                counts += [numbers(reply.arrays["counts"], shape, "counts", most=_MOST_COUNT)]
        except RefusedError as error:
            raise PartyError(f"Party {name!r} sent no model that can be used: {error}") from None
    if aggregate:
        combination = rule_from_counts(counts, terms.prior, damping)
    return ExpertsResult(
        parties=channel.parties,
        combination=combination,
        coefficients=models,
    )


def combined_ratio(ratios: Sequence[float]) -> float:
    """Independent Gaussian releases about one person: squares add."""
    return math.sqrt(sum(ratio**2 for ratio in ratios))
