"""Experts: each party trains a DP model on its own columns, the label holder combines them by a
rule.

Models are shared, or only used; scores of training rows never are. Guarantee:
docs/proofs/experts.md.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from halfmask.errors import InputError
from halfmask.mechanisms.release import Releaser, Sensitivity
from halfmask.vertical.aggregate import (
    BINS,
    count_costs,
    count_scores,
    count_sensitivity,
    weights_from_counts,
)
from halfmask.vertical.block import Vector
from halfmask.vertical.channel import Message, ask_all
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

DAMPING = 0.7
"""Weight of every expert but the first: the columns of one person repeat part of each other."""

MOST_EXCESS = 1e4
"""Hidden labels lie at -a and 1 + a; beyond this a they say nothing."""


class ExpertParty:
    """A party's side: trains once, then scores rows it is asked about.

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
        queries: Mapping[str, Any] | None = None,
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
        self._queries = dict(queries or {})
        self.party = Party(name, rows=int(matrix.shape[0]), ids=ids)
        self.party.answers("expert-train", self._train)
        self.party.answers("expert-score", self._score)

    @property
    def costs(self) -> ExpertCosts:
        """What training costs one row, in ratios."""
        return training_costs(self.known, self._ratio, self.config, self._share)

    def scores(self, matrix: Any) -> Vector:
        """wᵀx of rows of this party's columns: log-odds of the second class."""
        if self.coefficients is None:
            raise InputError(f"Party {self.name!r} has not trained yet.")
        return np.asarray(matrix @ self.coefficients, dtype=np.float64)

    def _train(self, request: Message) -> Message:
        if self.coefficients is not None:
            raise InputError(f"Party {self.name!r} has trained already: its budget was for once.")
        targets = self._targets(request)
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
        if self._share > 0:
            arrays["counts"] = self._counts(targets)
        return request.reply(arrays=arrays, values={"trained": 1})

    def _counts(self, targets: Vector) -> Vector:
        """Noisy counts of the scores of training rows by class; charged first."""
        excess = self.known.target_excess
        bound = count_sensitivity(excess)
        exact = count_scores(self.scores(self.matrix), np.clip(targets, -excess, 1 + excess))
        return self._releaser.gaussian(
            exact,
            sensitivity=bound,
            noise_std=bound.replace / (self._ratio * math.sqrt(self._share)),
            what=f"counts of the scores of {self.name} by class",
        )

    def _targets(self, request: Message) -> Vector:
        targets = np.asarray(request.arrays["targets"], dtype=np.float64)
        if targets.shape != (self.party.rows,):
            raise InputError(f"Party {self.name!r} got {targets.shape} labels for its rows.")
        if requested_excess(request) > self.known.target_excess:
            raise InputError(
                f"Party {self.name!r} was opened for labels nearer to 0 and 1: hidden ones of this "
                "epsilon would be cut off."
            )
        return targets

    def _score(self, request: Message) -> Message:
        """Scores of rows that were opened for queries by name; training rows never are."""
        name = str(request.values.get("rows", ""))
        if name not in self._queries:
            raise InputError(f"Party {self.name!r} opened no rows named {name!r} to score.")
        return request.reply(arrays={"scores": self.scores(self._queries[name])})


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
    excess = float(request.values.get("target_excess", 0.0))
    if not 0 <= excess <= MOST_EXCESS:
        raise InputError(
            f"Expected hidden labels of an epsilon of at least {1 / MOST_EXCESS:g} "
            f"(target_excess from 0 to {MOST_EXCESS:g})."
        )
    return excess


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


def rule_from_public_rows(scores: Sequence[Vector], labels: Vector) -> Combination:
    """Weights fitted on rows that every party and the label holder declare public."""
    from sklearn.linear_model import LogisticRegression

    fitted = LogisticRegression(C=100.0).fit(np.column_stack(scores), labels > 0.5)
    return Combination(
        weights=tuple(float(w) for w in fitted.coef_[0]),
        intercept=float(fitted.intercept_[0]),
        rule=f"fitted on {len(labels)} public rows",
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
            np.array([count]),
            sensitivity=Sensitivity(replace=1.0, withhold=1.0),
            noise_std=1 / ratio,
            what="class prior",
        )
        count = float(released[0])
    return min(max(count, 1.0), len(labels) - 1.0) / len(labels)


@dataclass(frozen=True, kw_only=True)
class ExpertsResult:
    """The combination, the models that were released, and the parties' order."""

    parties: tuple[str, ...]
    combination: Combination
    coefficients: Mapping[str, Vector]


def train_experts(
    coordinator: Coordinator,
    *,
    prior: float,
    hidden: HiddenLabels | None = None,
    damping: float = DAMPING,
    public_labels: Vector | None = None,
    aggregate: bool = False,
) -> ExpertsResult:
    """One exchange: labels out (or their randomised estimates), models back.

    With `aggregate`, parties send noisy counts of their scores along, and the combination is
    computed from these; parties that were not opened for it are named.
    With `public_labels`, a second exchange asks for scores of the rows that parties opened as
    "public" and fits the combination on them.
    """
    channel = coordinator.channel
    targets = coordinator.labels if hidden is None else hidden.targets
    request = Message(
        kind="expert-train",
        run=coordinator.run,
        round=1,
        arrays={"targets": targets},
        values={"target_excess": 0.0 if hidden is None else hidden.excess},
    )
    shapes = {"counts": (2, BINS)} if aggregate else {}
    replies = ask_all(channel, request, shapes=shapes)
    combination = fixed_rule(len(channel.parties), prior, damping)
    if aggregate:
        counts = [np.asarray(replies[name].arrays["counts"]) for name in channel.parties]
        combination = rule_from_counts(counts, prior, damping)
    if public_labels is not None:
        ask = Message(kind="expert-score", run=coordinator.run, round=2, values={"rows": "public"})
        shape = {"scores": (len(public_labels),)}
        answers = ask_all(channel, ask, shapes=shape)
        scores = [np.asarray(answers[name].arrays["scores"]) for name in channel.parties]
        combination = rule_from_public_rows(scores, np.asarray(public_labels, dtype=np.float64))
    return ExpertsResult(
        parties=channel.parties,
        combination=combination,
        coefficients={
            name: np.asarray(reply.arrays["coefficients"])
            for name, reply in replies.items()
            if "coefficients" in reply.arrays
        },
    )


def combined_ratio(ratios: Sequence[float]) -> float:
    """Independent Gaussian releases about one person: squares add."""
    return math.sqrt(sum(ratio**2 for ratio in ratios))
