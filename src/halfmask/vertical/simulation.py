"""All parties in one process: what `halfmask vertical simulate` and the reproductions run.

The simulation sees every block, so it can print objectives and losses after each round. Those
numbers are not covered by any guarantee; what the parties exchange is the same as between
organisations.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from halfmask.accounting.gaussian import gaussian_epsilon
from halfmask.accounting.ledger import MemoryLedger
from halfmask.errors import InputError
from halfmask.mechanisms.release import Releaser
from halfmask.vertical.admm import AdmmConfig, run_admm
from halfmask.vertical.admm_party import AdmmParty, ShareNoise
from halfmask.vertical.aggregate import SHARE
from halfmask.vertical.block import Constraint, Regulariser, Vector
from halfmask.vertical.channel import LocalChannel
from halfmask.vertical.coordinator import Coordinator
from halfmask.vertical.experts import (
    DAMPING,
    Combination,
    ExpertParty,
    LabelTerms,
    class_prior,
    combined_ratio,
    pay_for_labels,
    train_experts,
    training_costs,
)
from halfmask.vertical.fdml import FdmlConfig, FdmlNoise, FdmlParty, run_fdml
from halfmask.vertical.labels import (
    HiddenLabels,
    check_expert_label,
    check_hidable,
    hide_labels,
)
from halfmask.vertical.loss import LossName, loss_named
from halfmask.vertical.newton import ExpertRows, NewtonConfig
from halfmask.vertical.party import admm_party
from halfmask.vertical.sensitivity import column_sensitivity
from halfmask.vertical.task import Budget, Task


@dataclass(frozen=True, kw_only=True)
class Simulation:
    """What came of a run; `doors` hold what each party charged, `costs` are ε of wider changes."""

    method: str
    rounds: int
    parties: tuple[str, ...]
    train_loss: float
    test_loss: float | None
    history: tuple[Mapping[str, float], ...]
    doors: Mapping[str, Releaser]
    costs: Mapping[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    coefficients: Mapping[str, Vector] = field(default_factory=dict)
    combination: Combination | None = None
    run: str = ""
    traffic: Mapping[str, float] = field(default_factory=dict)

    @property
    def errors(self) -> tuple[str, ...]:
        """For a number: the names of its errors in `history`, in the label's own units."""
        return tuple(n for n in ("train_rmse", "test_rmse") if n in self.history[-1])


def _losses(
    task: Task, scores: Vector, test_scores: Vector | None, name: LossName = "logistic"
) -> dict[str, float]:
    loss = loss_named(name)
    values = {"train_loss": float(loss.value(scores, 2 * task.labels - 1).mean())}
    if test_scores is not None and task.test_labels is not None:
        values["test_loss"] = float(loss.value(test_scores, 2 * task.test_labels - 1).mean())
    if task.label_bounds is not None:
        half = (task.label_bounds[1] - task.label_bounds[0]) / 2
        for part in ("train", "test"):
            if f"{part}_loss" in values:
                # The loss is half the square, in units of half the declared range.
                values[f"{part}_rmse"] = half * math.sqrt(2 * values[f"{part}_loss"])
    return values


def _test_scores(task: Task, coefficients: Sequence[Vector]) -> Vector | None:
    if task.test_labels is None:
        return None
    parts = [part.test @ x for part, x in zip(task.columns, coefficients, strict=True)]
    return np.asarray(np.sum(parts, axis=0), dtype=np.float64)


def simulate_admm(
    task: Task,
    config: AdmmConfig,
    *,
    strength: float = 1.0,
    regulariser: Regulariser = "l2",
    constraint: Constraint = None,
    noise: ShareNoise | None = None,
    budget: Budget | None = None,
    label_epsilon: float | None = None,
) -> Simulation:
    """ADMM sharing. `noise` gives kind and limits; ratio, rounds and row norms are filled in.

    With `label_epsilon` labels are hidden by randomised response before the first broadcast.
    """
    task.check_loss(config.loss)
    noise = noise or ShareNoise()
    doors: dict[str, Releaser] = {}
    sides: dict[str, AdmmParty] = {}
    for index, part in enumerate(task.columns):
        own = noise
        if noise.is_private:
            if budget is None:
                raise InputError(f"Noise {noise.kind!r} needs a budget.")
            doors[part.name] = budget.releaser(part.name, index)
            share = math.sqrt(0.5) if noise.kind == "row" else 1.0
            own = noise.fitted(
                ratio=budget.ratio(share), rounds=config.rounds, row_norm=part.row_norm
            )
        sides[part.name] = AdmmParty(
            part.train,
            strength=strength,
            regulariser=regulariser,
            constraint=constraint,
            noise=own,
            releaser=doors.get(part.name) or (budget or _NO_BUDGET).releaser(part.name, index),
            name=part.name,
        )
    targets = 2 * task.labels - 1
    costs: dict[str, float] = {}
    if label_epsilon is not None:
        check_hidable(task.label_bounds)
        if not loss_named(config.loss).linear_in_target:
            raise InputError(
                f"Labels can be hidden for logistic and squared loss, not {config.loss}."
            )
        targets = _hidden(task, budget or _NO_BUDGET, label_epsilon).signed
        costs["label"] = label_epsilon
    if doors and budget is not None:
        ratios = [budget.ratio(1.0)] * len(doors)
        # Hidden labels are pure ε: added, where they are protected at all.
        together = gaussian_epsilon(combined_ratio(ratios), budget.delta)
        costs["person"] = together + (label_epsilon or 0.0)
        if noise.kind == "column":
            exact = regulariser == "l2" and constraint is None
            shares = [
                column_share(part.row_norm, strength / config.rho, exact) for part in task.columns
            ]
            costs["column"] = gaussian_epsilon(max(shares) * budget.ratio(1.0), budget.delta)

    def watch(number: int) -> dict[str, float]:
        found = list(sides.values())
        scores = np.sum([side.block.scores(side.x) for side in found], axis=0)
        tested = _test_scores(task, [side.x for side in found])
        values = _losses(task, scores, tested, config.loss)
        fit = float(loss_named(config.loss).value(scores, 2 * task.labels - 1).sum())
        return {**values, "objective": fit + sum(side.penalty() for side in found)}

    channel = LocalChannel({name: admm_party(name, side) for name, side in sides.items()})
    result = run_admm(channel, targets, config, watch=watch)
    history = tuple({"round": float(r.number), **r.watched} for r in result.history)
    found = {name: side.x for name, side in sides.items()}
    return _simulation(
        "admm",
        task,
        history,
        doors,
        costs,
        channel=channel,
        coefficients=found,
        run=result.state.run,
    )


def simulate_fdml(
    task: Task,
    config: FdmlConfig,
    *,
    strength: float = 1.0,
    noise: FdmlNoise | None = None,
    budget: Budget | None = None,
    start_seed: int = 0,
) -> Simulation:
    """SGD over distributed features, from small random coefficients as in A."""
    task.check_loss(config.loss)
    noise = noise or FdmlNoise()
    doors: dict[str, Releaser] = {}
    parties: dict[str, FdmlParty] = {}
    draw = np.random.default_rng(start_seed)
    for index, part in enumerate(task.columns):
        own = noise
        if noise.kind == "row":
            if budget is None:
                raise InputError("Row noise needs a budget.")
            doors[part.name] = budget.releaser(part.name, index)
            own = FdmlNoise(
                kind="row",
                epochs=config.epochs,
                ratio=budget.ratio(0.5),
                row_norm=part.row_norm,
                score_bound=noise.score_bound,
            )
        parties[part.name] = FdmlParty(
            part.name,
            part.train,
            strength=strength,
            noise=own,
            releaser=doors.get(part.name) or (budget or _NO_BUDGET).releaser(part.name, index),
            start=draw.normal(size=int(part.train.shape[1])) * 0.01,
        )

    def watch(epoch: int) -> dict[str, float]:
        found = list(parties.values())
        scores = np.sum([np.asarray(side.matrix @ side.x) for side in found], axis=0)
        tested = _test_scores(task, [side.x for side in found])
        values = _losses(task, scores, tested, config.loss)
        fit = values["train_loss"] * len(task.labels)
        ridge = sum(0.5 * strength * float(side.x @ side.x) for side in found)
        return {**values, "objective": fit + ridge}

    channel = LocalChannel({name: side.party for name, side in parties.items()})
    history = tuple(run_fdml(channel, 2 * task.labels - 1, config, watch=watch))
    costs = {}
    if doors and budget is not None:
        ratios = [budget.ratio(1.0)] * len(doors)
        costs["person"] = gaussian_epsilon(combined_ratio(ratios), budget.delta)
    found = {name: side.x for name, side in parties.items()}
    return _simulation("fdml-sgd", task, history, doors, costs, channel=channel, coefficients=found)


def simulate_experts(
    task: Task,
    *,
    budget: Budget,
    label_private: bool = False,
    label_epsilon: float | None = None,
    config: NewtonConfig | None = None,
    damping: float = DAMPING,
    aggregate: bool = False,
) -> Simulation:
    """One DP model per party and the fixed rule; everything about a party's columns is private.

    `aggregate` takes the weights from DP counts of each party's scores instead, out of its budget.

    `label_private` puts the label under each party's guarantee too; `label_epsilon` hides it from
    the parties by randomised response.
    """
    check_expert_label(task.label_bounds)
    config = config or NewtonConfig()
    hidden = None if label_epsilon is None else _hidden(task, budget, label_epsilon)
    share = SHARE if aggregate else 0.0
    parties: dict[str, ExpertParty] = {}
    doors: dict[str, Releaser] = {}
    for index, part in enumerate(task.columns):
        rows = ExpertRows(
            row_norm=part.row_norm,
            nonnegative=part.nonnegative,
            label_private=label_private and hidden is None,
            target_excess=0.0 if hidden is None else hidden.excess,
        )
        doors[part.name] = budget.releaser(part.name, index)
        parties[part.name] = ExpertParty(
            part.name,
            part.train,
            rows=rows,
            ratio=budget.ratio(training_costs(rows, 1.0, config, share).withhold),
            releaser=doors[part.name],
            config=config,
            aggregate_share=share,
        )
    channel = LocalChannel({name: side.party for name, side in parties.items()})
    coordinator = Coordinator(channel, task.labels)
    if label_private and hidden is None:
        # Without a ledger of the label holder's, what labels cost is stated and not limited.
        ledger = budget.label_ledger or MemoryLedger(epsilon=_UNLIMITED, delta=budget.delta)
        terms = pay_for_labels(coordinator, budget.door(ledger, len(parties) + 1), budget)
    else:
        labels = task.labels if hidden is None else hidden.targets
        terms = LabelTerms(prior=class_prior(labels, private=False, ratio=1.0, releaser=None))
    result = train_experts(
        coordinator,
        prior=terms,
        hidden=hidden,
        damping=damping,
        aggregate=aggregate,
    )
    found = list(parties.values())

    def scores(which: str) -> Vector:
        blocks = [getattr(part, which) for part in task.columns]
        each = [side.scores(block) for side, block in zip(found, blocks, strict=True)]
        return result.combination.score(each)

    test = None if task.test_labels is None else scores("test")
    history = ({"round": 1.0, **_losses(task, scores("train"), test)},)
    each = [side.costs for side in found]
    blocks = gaussian_epsilon(combined_ratio([c.block for c in each]), budget.delta)
    costs = {"columns at all parties": blocks}
    if label_epsilon is not None:
        # Given the randomised labels only the blocks are left; a pure ε is added.
        costs |= {"person": blocks + label_epsilon, "label": label_epsilon}
    else:
        for name in ("person", "label"):
            ratios = [getattr(cost, name) for cost in each]
            total = combined_ratio([*ratios, terms.prior_ratio])
            costs[name] = gaussian_epsilon(total, budget.delta)
    return _simulation(
        "experts",
        task,
        history,
        doors,
        costs,
        channel=channel,
        notes=(result.combination.rule,),
        coefficients={side.name: side.trained for side in found},
        combination=result.combination,
        run=coordinator.run,
    )


def column_share(row_norm: float, kappa: float, exact_ridge: bool) -> float:
    """The ratio for A's column adjacency as a share of the one for a replaced row.

    Guarantee: docs/proofs/admm_column.md.
    """
    bounds = column_sensitivity(
        target_norm=1.0, kappa=kappa, row_norm=row_norm, exact_ridge=exact_ridge
    )
    assert bounds.column is not None
    return bounds.column / bounds.replace


_NO_BUDGET = Budget(epsilon=1.0, delta=1e-6)
_UNLIMITED = 1e6


def _hidden(task: Task, budget: Budget, epsilon: float) -> HiddenLabels:
    """Randomised labels, charged to the label holder's ledger before they are drawn."""
    ledger = budget.label_ledger or MemoryLedger(epsilon=epsilon, delta=1e-9)
    releaser = budget.door(ledger, len(task.columns))
    return hide_labels(task.labels, epsilon=epsilon, releaser=releaser)


def _simulation(
    method: str,
    task: Task,
    history: tuple[Mapping[str, float], ...],
    doors: Mapping[str, Releaser],
    costs: Mapping[str, float],
    *,
    channel: LocalChannel,
    coefficients: Mapping[str, Vector],
    notes: tuple[str, ...] = (),
    combination: Combination | None = None,
    run: str = "",
) -> Simulation:
    return Simulation(
        method=method,
        rounds=len(history),
        parties=tuple(part.name for part in task.columns),
        train_loss=history[-1]["train_loss"],
        test_loss=history[-1].get("test_loss"),
        history=history,
        doors=doors,
        costs=costs,
        notes=notes,
        coefficients=coefficients,
        # ADMM and SGD add the scores as they are.
        combination=combination
        or Combination(weights=(1.0,) * len(task.columns), intercept=0.0, rule="sum of the scores"),
        run=run or secrets.token_hex(8),
        traffic={
            "messages": channel.messages,
            "bytes": channel.bytes,
            "messages_per_round": channel.messages / len(history),
            "bytes_per_round": channel.bytes / len(history),
        },
    )
