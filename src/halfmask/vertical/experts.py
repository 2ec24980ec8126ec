"""Experts: each party trains a DP model on its own columns, the label holder combines them by a
rule.

Models are shared, or only used; scores of training rows never are. From top to bottom: the settings
and what one row can move, the noisy Newton steps, counts of scores, the party, and the label
holder's side. Guarantee: docs/proofs/experts.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import numpy as np
from scipy import sparse
from scipy.special import expit

from halfmask.accounting.budget import Budget
from halfmask.accounting.events import GaussianEvent
from halfmask.data.products import CodedRows, crossed
from halfmask.errors import InputError
from halfmask.mechanisms.release import GaussianSeries, Releaser, Sensitivity
from halfmask.types import Vector
from halfmask.vertical.block import bounded_rows
from halfmask.vertical.channel import (
    Message,
    PartyError,
    RefusedError,
    checked_replies,
    number_array,
    one_number,
)
from halfmask.vertical.files import PartyColumns
from halfmask.vertical.party import Coordinator, HiddenLabels, Party, calibrated_ratio

Combine = Literal["fixed", "aggregate"]

DAMPING = 0.7
"""Weight of every expert but one: the columns of one person repeat part of each other."""

COUNTS_SHARE = 0.05
"""The part of a party's μ² that its counts take, where they are asked for."""

PRIOR_SHARE = 0.1
"""The part of one budget's ratio that the class prior of private labels has: plenty for a count."""

BINS, REACH = 16, 4.0
"""Equal bins of log-odds from -REACH to REACH; scores beyond lie in the outermost ones."""

MOST_EXCESS = 1e4
"""Hidden labels lie at -a and 1 + a; beyond this a they say nothing."""

_MOST_RATIO, _MOST_COUNT = 1e6, 1e12
_LABEL, _WITHHOLD = "label_ratio", "withhold_ratio"
_RECALIBRATION_STEPS = 50
_ONE_LABEL = Sensitivity(replace=1.0, withhold=1.0)  # moves the count of them


@dataclass(frozen=True, kw_only=True)
class ExpertsConfig:
    """A DP model per party, and how they are added (docs/proofs/experts.md).

    Each party takes `steps` noisy Newton steps, of which one counts `memory` times a step later;
    `prior_reach` is the prior standard deviation of a coefficient times the row norm. `combine`
    adds the models by a fixed rule or by weights from DP counts; all but one count `damping` times.
    The defaults are the best of a grid on held-out training rows of a9a (docs/vertical.md).
    """

    method: ClassVar[str] = "experts"

    steps: int = 48
    memory: float = 0.85
    prior_reach: float = 2.0
    combine: Combine = "fixed"
    damping: float = DAMPING

    def __post_init__(self) -> None:
        if self.steps < 2:
            raise InputError(f"Expected at least 2 Newton steps, got {self.steps}.")
        if not (0 < self.memory <= 1 and self.prior_reach > 0):
            raise InputError("Expected memory in (0, 1] and prior_reach > 0.")
        if not 0 <= self.damping <= 1:
            raise InputError(f"Expected damping in [0, 1], got {self.damping}.")

    @property
    def releases(self) -> int:
        """The gradients, the Gram matrix and the curvature: each gets an equal share of μ²."""
        return self.steps + 2


def check_expert_label(label_bounds: tuple[float, float] | None) -> None:
    """Experts are models of a chance."""
    if label_bounds is not None:
        raise InputError(
            "experts predict one of two classes, and the label is a number: use admm (or in a "
            "simulation fdml-sgd) with loss=squared."
        )


@dataclass(frozen=True, kw_only=True)
class ExpertRows:
    """What is known of the rows before they are seen: the norm, the signs, the range of targets.

    `target_excess` is a for targets in {-a, 1 + a}: 0 for true labels, more for labels that were
    randomised and debiased. `label_private`: the label is replaced together with the block.
    """

    row_norm: float
    nonnegative: bool
    label_private: bool
    target_excess: float = 0.0

    @property
    def longest(self) -> float:
        """The largest slope of a row: |p - target| times its weight (see `slope_weights`)."""
        return (1.0 if self.label_private else 0.5) + self.target_excess

    @property
    def gradient_replace(self) -> float:
        """How far a gradient sum can move when one row's private part is replaced."""
        same_orthant = self.nonnegative and not self.label_private
        return (math.sqrt(2) if same_orthant else 2) * self.longest * self.row_norm

    @property
    def withheld(self) -> float:
        """How far every release moves for a withheld row, in parts of its unit."""
        return self.longest * self.row_norm / self.gradient_replace

    @property
    def matrix_unit(self) -> float:
        """The unit of Σ xxᵀ: a withheld row moves it by `withheld`, a replaced one by at most 1."""
        return self.row_norm**2 / self.withheld

    def slope_weights(self, p: Vector) -> Vector:
        """ω(p) in (0, 1]: weighed by it, no |p - target| exceeds `longest`.

        A function of p alone, so weighed slopes still vanish on average where p is right. Slopes
        are not weighed where the label is private: noise would fall, but a label counts in full at
        p = 1/2, so that its own cost, which the label holder pays to every party, would double.
        """
        if self.label_private:
            return np.ones_like(p)
        further = np.maximum(1 + self.target_excess - p, p + self.target_excess)
        return np.asarray(self.longest / further, dtype=np.float64)


@dataclass(frozen=True, kw_only=True)
class ExpertCosts:
    """μ of one party's training when different things about one row are replaced.

    `label` alone and `person` (block and label) hold for labels that were given in clear.
    """

    block: float
    withhold: float
    label: float
    person: float


def expert_costs(rows: ExpertRows, ratio: float, config: ExpertsConfig) -> ExpertCosts:
    """All ratios that follow from calibrating one of them. Guarantee: docs/proofs/experts.md."""
    gradients = ratio * math.sqrt(config.steps / config.releases)
    matrices = ratio * math.sqrt(2 / config.releases)
    unit = gradients / rows.gradient_replace
    span = 1 + 2 * rows.target_excess
    opposite = 2 * rows.longest * rows.row_norm * unit
    return ExpertCosts(
        block=ratio,
        withhold=ratio * rows.withheld,
        label=span * rows.row_norm * unit,
        person=math.hypot(matrices, opposite),
    )


def count_costs(ratio: float, excess: float) -> ExpertCosts:
    """What counts released at `ratio` cost one row. Guarantee: docs/proofs/experts.md."""
    relabelled = ratio * (1 + 2 * excess) / math.hypot(1 + excess, excess)
    return ExpertCosts(block=ratio, withhold=ratio, label=relabelled, person=max(ratio, relabelled))


def training_costs(
    rows: ExpertRows, ratio: float, config: ExpertsConfig, aggregate_share: float = 0.0
) -> ExpertCosts:
    """What the model and the counts of one party cost a row, `ratio` being μ of a replaced one."""
    model = vars(expert_costs(rows, ratio * math.sqrt(1 - aggregate_share), config))
    counts = vars(count_costs(ratio * math.sqrt(aggregate_share), rows.target_excess))
    return ExpertCosts(**{name: math.hypot(model[name], counts[name]) for name in model})


def combined_ratio(ratios: Iterable[float]) -> float:
    """Independent Gaussian releases about one person: squares add."""
    return math.sqrt(sum(ratio**2 for ratio in ratios))


def noisy_newton(
    matrix: Any,
    targets: Vector,
    *,
    rows: ExpertRows,
    ratio: float,
    releaser: Releaser,
    config: ExpertsConfig | None = None,
    what: str = "expert",
) -> Vector:
    """Coefficients of a logistic model of `targets` (0 and 1, or their debiased estimates).

    `ratio` is μ for one replaced row over everything released here. The charge is made before the
    first release. Guarantee: docs/proofs/experts.md.
    """
    config = config or ExpertsConfig()
    block = bounded_rows(matrix, rows.row_norm)
    low, high = -rows.target_excess, 1 + rows.target_excess
    targets = np.clip(np.asarray(targets, dtype=np.float64), low, high)
    columns = int(block.shape[1])
    std = math.sqrt(config.releases) / ratio
    # One charge for all: every release is made in a unit that no replaced row exceeds, and of which
    # a withheld row moves each of them by the same part.
    series = releaser.gaussian_series(
        sensitivity=Sensitivity(replace=1.0, withhold=rows.withheld),
        noise_std=std,
        count=config.releases,
        what=f"{what}: Gram matrix, curvature and {config.steps} gradients",
    )
    # Both matrices are curvatures: where nothing is known p(1 - p) is a quarter for every row.
    unit = rows.matrix_unit / 4
    floor = 0.5 * unit * std * math.sqrt(columns / 2)
    w, seen, evidence = np.zeros(columns), np.zeros(columns), np.zeros(columns)
    noise = std * rows.gradient_replace
    prior = (rows.row_norm / config.prior_reach) ** 2
    for step in range(config.steps):
        p = expit(block @ w)
        weights = rows.slope_weights(p)
        if step < 2:
            # The first iterate is near enough to weigh rows by p(1 - p)ω(p); what came before it
            # is dropped.
            bends = p * (1 - p) * weights if step else np.full(len(targets), 0.25)
            released = unit * series.release(_packed_sum(block, bends) / unit)
            values, vectors = _spectrum(released, columns, floor)
            seen[:], evidence[:] = 0.0, 0.0
        exact = crossed(block, (p - targets) * weights) / rows.gradient_replace
        gradient = rows.gradient_replace * series.release(exact)
        inner = values * (values * (vectors.T @ w) - vectors.T @ gradient) / noise**2
        seen = config.memory * seen + inner
        evidence = config.memory * evidence + (values / noise) ** 2
        w = vectors @ (seen / (evidence + prior))
    return np.asarray(w, dtype=np.float64)


def _packed_sum(block: Any, weights: Vector) -> Vector:
    """Σ weight·xxᵀ as one vector: the diagonal, then √2 times the cells above it.

    These occur twice in the Frobenius norm, so that noise on the vector is isotropic in that norm.
    """
    if isinstance(block, CodedRows):
        exact = block.gram(weights)
    elif sparse.issparse(block):
        exact = (block.T @ sparse.diags_array(weights) @ block).toarray()
    else:
        exact = block.T @ (block * weights[:, None])
    upper = np.triu_indices(exact.shape[0], 1)
    return np.concatenate([np.diag(exact), math.sqrt(2) * exact[upper]])


def _spectrum(packed: Vector, size: int, floor: float) -> tuple[Vector, Vector]:
    """Eigenvalues and eigenvectors of a packed matrix, held above what noise alone would give."""
    matrix = np.diag(packed[:size])
    matrix[np.triu_indices(size, 1)] = packed[size:] / math.sqrt(2)
    values, vectors = np.linalg.eigh(matrix + np.triu(matrix, 1).T)
    return np.maximum(values, floor), vectors


def count_scores(scores: Vector, targets: Vector) -> Vector:
    """(2, BINS): the sum of 1 - target, and of the target, over the rows of each bin.

    For labels in clear these are the rows of either class. A score that is not a number counts in
    the first bin, so that every row is in exactly one.
    """
    finite = np.nan_to_num(scores, nan=-REACH, posinf=REACH, neginf=-REACH)
    place = np.floor((np.clip(finite, -REACH, REACH) + REACH) / (2 * REACH) * BINS).astype(int)
    bins = np.minimum(place, BINS - 1)
    return np.stack(
        [np.bincount(bins, weights=w, minlength=BINS) for w in (1 - targets, targets)]
    ).astype(np.float64)


def count_sensitivity(excess: float) -> Sensitivity:
    """How far one row moves the counts, its target lying in [-excess, 1 + excess].

    A row whose columns are withheld has the score 0 and is still counted, in the bin of 0: it moves
    from bin to bin like a replaced one. Guarantee: docs/proofs/experts.md, "A DP aggregate".
    """
    bound = math.sqrt(2) * math.hypot(1 + excess, excess)
    return Sensitivity(replace=bound, withhold=bound)


def requested_excess(request: Message) -> float:
    """How far outside 0 and 1 the labels of a request lie; 0 if they are in clear.

    The coordinator says so, and targets are clipped to it: a party's noise is scaled to whatever it
    says, so a wrong number costs accuracy, never privacy.
    """
    try:
        return one_number(
            request.values.get("target_excess", 0.0), "target_excess", least=0.0, most=MOST_EXCESS
        )
    except RefusedError:
        raise RefusedError(
            f"Expected hidden labels of an epsilon of at least {1 / MOST_EXCESS:g} "
            f"(target_excess from 0 to {MOST_EXCESS:g})."
        ) from None


def _paid_by(party: str) -> str:
    return f"{_LABEL}/{party}"


MOST_FEATURES = 4096
"""Of one expert: its two noisy matrices are taken apart in minutes; noise of more drowns all."""


class ExpertParty(Party):
    """A party's side: it trains once, and tells no score of a row.

    `ratio` is μ of everything released for one replaced row; `aggregate_share` is the part of μ²
    that counts of its training scores take (0: none are released).
    Guarantee: docs/proofs/experts.md.
    """

    kinds = ("expert-terms", "expert-train")

    def __init__(
        self,
        name: str,
        matrix: Any,
        *,
        rows: ExpertRows,
        ratio: float,
        releaser: Releaser,
        config: ExpertsConfig | None = None,
        aggregate_share: float = 0.0,
    ) -> None:
        if not 0 <= aggregate_share < 1:
            raise InputError(f"Expected 0 <= aggregate_share < 1, got {aggregate_share}.")
        width = int(matrix.shape[1])
        if width > MOST_FEATURES:
            raise InputError(
                f"Party {name!r} has {width:,} features, and an expert holds products of all "
                f"pairs of at most {MOST_FEATURES:,}; nothing was charged. Declare fewer bins and "
                "categories, split the columns over more parties, or use admm."
            )
        super().__init__(name, rows=int(matrix.shape[0]))
        self.matrix = matrix
        self.known = rows
        # μ² is shared between the model and, where they are asked for, the counts of its scores.
        self._ratio, self._share = ratio, aggregate_share
        self.config = config or ExpertsConfig()
        self.coefficients: Vector | None = None
        self._releaser = releaser
        releaser.rows = int(matrix.shape[0])

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

    def answer(self, request: Message) -> Message:
        """What training will cost one label, so that it is paid before any is sent; or a model."""
        self.admit(request)
        if request.kind == "expert-terms":
            costs = self.costs
            return request.reply(values={_LABEL: costs.label, _WITHHOLD: costs.withhold})
        targets = self._targets(request)
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
        arrays = {"coefficients": self.coefficients}
        if series is not None:
            excess = self.known.target_excess
            clipped = np.clip(targets, -excess, 1 + excess)
            arrays["counts"] = series.release(count_scores(self.scores(self.matrix), clipped))
        return request.reply(arrays=arrays, values={"trained": 1})

    def _targets(self, request: Message) -> Vector:
        """The labels of a request to train; refused before anything is charged for them."""
        if self.coefficients is not None:
            raise InputError(f"Party {self.name!r} has trained already: its budget was for once.")
        targets = number_array(request.arrays.get("targets"), (self.rows,), "targets")
        if requested_excess(request) > self.known.target_excess:
            raise InputError(
                f"Party {self.name!r} was opened for labels nearer to 0 and 1: hidden ones of this "
                "epsilon would be cut off."
            )
        if _paid_by(self.name) in request.values:
            paid = one_number(request.values[_paid_by(self.name)], _LABEL, most=_MOST_RATIO)
            if self.costs.label > paid:
                raise InputError(
                    f"Party {self.name!r} would spend more of each label than it said before: its "
                    "file has changed, so start a new run."
                )
        return targets

    def _open_counts(self) -> GaussianSeries:
        bound = count_sensitivity(self.known.target_excess)
        return self._releaser.gaussian_series(
            sensitivity=bound,
            noise_std=bound.replace / (self._ratio * math.sqrt(self._share)),
            count=1,
            what=f"counts of the scores of {self.name} by class",
        )


def open_expert(
    columns: PartyColumns,
    config: ExpertsConfig,
    budget: Budget,
    releaser: Releaser,
    *,
    label_private: bool = False,
    target_excess: float = 0.0,
    aggregate: bool = False,
) -> ExpertParty:
    """A party as it takes part in `experts`, in a simulation and between organisations alike.

    `budget` is its own, spent on the model and with `aggregate` on counts too. With a
    `target_excess` labels come randomised: they are the label holder's guarantee, and the party's
    is for its columns.
    """
    rows = ExpertRows(
        row_norm=columns.row_norm,
        nonnegative=columns.nonnegative,
        label_private=label_private and not target_excess,
        target_excess=target_excess,
    )
    share = COUNTS_SHARE if aggregate else 0.0
    withheld = training_costs(rows, 1.0, config, share).withhold
    return ExpertParty(
        columns.name,
        columns.train,
        rows=rows,
        ratio=calibrated_ratio(budget, withheld),
        releaser=releaser,
        config=config,
        aggregate_share=share,
    )


@dataclass(frozen=True, kw_only=True)
class LabelTerms:
    """The class prior, and what the label holder has paid for each party's use of the labels.

    `ratios` is empty where labels are public, or hidden, and nothing was to be paid.
    """

    prior: float
    prior_ratio: float = 0.0
    ratios: Mapping[str, float] = field(default_factory=dict)


def class_prior(count: float, rows: int) -> float:
    """The frequency of the second class, by its count among all rows; neither class is certain."""
    return min(max(count, 1.0), rows - 1.0) / rows if rows > 1 else 0.5


def charge_labels(coordinator: Coordinator, releaser: Releaser, budget: Budget) -> LabelTerms:
    """Charge all that a run of experts will spend of private labels in clear, then draw the prior.

    Each party's model spends every label once more, so the label holder asks what it will cost and
    charges the sum together with the prior, in one entry, before a label is sent. One replaced
    label moves the count behind the prior by 1. Simulations and runs between organisations both
    pay here. Guarantee: docs/proofs/experts.md.
    """
    channel = coordinator.channel
    request = Message(
        kind="expert-terms", run=coordinator.run, round=0, values={"target_excess": 0.0}
    )
    costs: dict[str, GaussianEvent] = {}
    for name, reply in checked_replies(channel, request, channel.exchange(request)).items():
        try:
            label = one_number(reply.values.get(_LABEL), _LABEL, most=_MOST_RATIO)
            withhold = one_number(reply.values.get(_WITHHOLD), _WITHHOLD, most=_MOST_RATIO)
        except RefusedError as error:
            raise PartyError(f"Party {name!r} does not say what it costs: {error}") from None
        costs[name] = GaussianEvent(replace=label, withhold=withhold)
    ratio = PRIOR_SHARE * budget.mu
    for name, event in costs.items():
        releaser.open(event, f"labels in the expert of {name}")
    labels = coordinator.labels
    count = releaser.gaussian(
        np.array([labels.sum()]), sensitivity=_ONE_LABEL, noise_std=1 / ratio, what="class prior"
    )
    return LabelTerms(
        prior=class_prior(float(count[0]), len(labels)),
        prior_ratio=ratio,
        ratios={name: event.replace for name, event in costs.items()},
    )


@dataclass(frozen=True, kw_only=True)
class ExpertsResult:
    """The combination, and the models that were released."""

    combination: Combination
    coefficients: Mapping[str, Vector]


def train_experts(
    coordinator: Coordinator,
    *,
    terms: LabelTerms,
    hidden: HiddenLabels | None = None,
    damping: float = DAMPING,
    aggregate: bool = False,
) -> ExpertsResult:
    """One exchange: labels out (or their randomised estimates), models back.

    Private labels in clear come with the terms that `charge_labels` has charged: a party that
    would spend more of them refuses.
    With `aggregate`, parties send noisy counts of their scores along, and the combination is
    computed from these; parties that were not opened for it are named.
    """
    channel = coordinator.channel
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
    replies = checked_replies(channel, request, channel.exchange(request), shapes)
    models: dict[str, Vector] = {}
    counts: list[Vector] = []
    for name, reply in replies.items():
        try:
            if "coefficients" in reply.arrays:
                models[name] = number_array(reply.arrays["coefficients"], (None,), "coefficients")
            if aggregate:
                found = number_array(reply.arrays["counts"], (2, BINS), "counts", most=_MOST_COUNT)
                counts.append(found)
        except RefusedError as error:
            raise PartyError(f"Party {name!r} sent no model that can be used: {error}") from None
    if aggregate:
        combination = rule_from_counts(counts, terms.prior, damping)
    else:
        combination = fixed_rule(len(channel.parties), terms.prior, damping)
    return ExpertsResult(combination=combination, coefficients=models)


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


def sum_of_scores(parties: int) -> Combination:
    """ADMM and SGD add the scores as they are."""
    return Combination(weights=(1.0,) * parties, intercept=0.0, rule="sum of the scores")


def rule_from_counts(counts: Sequence[Vector], prior: float, damping: float) -> Combination:
    """A DP aggregate of each party's own scores: the expert that gains most in full, others damped.

    Post-processing of noisy counts by class and of the class prior.
    """
    log_odds = math.log(prior / (1 - prior))
    found = [recalibrated(each) for each in counts]
    best = max(range(len(found)), key=lambda index: found[index][2])
    factors = [1.0 if index == best else damping for index in range(len(found))]
    offsets = (f * (a - log_odds) for f, (a, _, _) in zip(factors, found, strict=True))
    return Combination(
        weights=tuple(f * slope for f, (_, slope, _) in zip(factors, found, strict=True)),
        intercept=log_odds + sum(offsets),
        rule=f"DP aggregate: experts recalibrated, all but the best times {damping:g}",
    )


def recalibrated(counts: Vector) -> tuple[float, float, float]:
    """(intercept, slope, gain): logit P = intercept + slope·score fitted to noisy counts.

    `gain` is the log loss a row saves against knowing the frequency of the classes only. Counts
    that noise made negative are taken as zero; a slope below zero is noise and becomes zero.
    """
    weights = np.maximum(counts, 0.0)
    middle = (np.arange(BINS) + 0.5) * (2 * REACH / BINS) - REACH
    total, ones = weights.sum(axis=0), weights[1]
    rows = max(float(total.sum()), 1.0)
    frequency = min(max(float(ones.sum()) / rows, 1 / (rows + 1)), rows / (rows + 1))
    design = np.column_stack([np.ones(BINS), middle])
    # One row's worth of a prior at "no information" keeps the problem strictly convex.
    base = np.array([math.log(frequency / (1 - frequency)), 0.0])
    fitted = base.copy()
    for _ in range(_RECALIBRATION_STEPS):
        p = expit(design @ fitted)
        gradient = design.T @ (total * p - ones) + (fitted - base)
        curvature = (design * (total * p * (1 - p))[:, None]).T @ design + np.eye(2)
        step = np.linalg.solve(curvature, gradient)
        # A damped Newton step: the loss is self-concordant in this sense (Bach 2010).
        fitted = fitted - step / (1 + float(np.abs(design @ step).max()))
    if fitted[1] <= 0:
        return float(base[0]), 0.0, 0.0
    gain = (_loss(base, design, total, ones) - _loss(fitted, design, total, ones)) / rows
    return float(fitted[0]), float(fitted[1]), gain


def _loss(w: Vector, design: Vector, total: Vector, ones: Vector) -> float:
    scores = design @ w
    return float(np.sum(total * np.logaddexp(0, scores) - ones * scores))
