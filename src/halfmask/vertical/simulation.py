"""All parties in one process: what `halfmask vertical simulate` and the reproductions run.

Parties are opened by the functions that also open them between organisations, and exchange the same
messages. The simulation sees every block, so it can print objectives and losses after each round;
those numbers are not covered by any guarantee.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypedDict

import numpy as np

from halfmask.accounting.budget import Budget
from halfmask.accounting.gaussian import gaussian_epsilon
from halfmask.accounting.ledger import BudgetLedger, MemoryLedger
from halfmask.mechanisms.noise import noise_source
from halfmask.mechanisms.release import Releaser
from halfmask.types import Vector
from halfmask.vertical.admm import AdmmConfig, AdmmLossName, admm_loss, check_loss, run_admm
from halfmask.vertical.admm_party import AdmmParty, column_sensitivity, open_sharing_party
from halfmask.vertical.channel import LocalChannel
from halfmask.vertical.experts import (
    Combination,
    ExpertsConfig,
    LabelTerms,
    charge_labels,
    check_expert_label,
    class_prior,
    combined_ratio,
    open_expert,
    sum_of_scores,
    train_experts,
)
from halfmask.vertical.fdml import FdmlConfig, FdmlParty, run_fdml
from halfmask.vertical.files import VerticalTable, check_party_names
from halfmask.vertical.party import Coordinator, HiddenLabels, check_hidable, hide_labels


@dataclass(frozen=True, kw_only=True)
class SimulationBudget(Budget):
    """What each party may spend; a seed makes the noise reproducible and not private.

    `ledgers` are the parties' own, by name; `label_ledger` is the label holder's. Where one is not
    given, a budget of this run alone takes its place.
    """

    unsafe_seed: int | None = None
    ledgers: Mapping[str, BudgetLedger] = field(default_factory=dict)
    label_ledger: BudgetLedger | None = None

    def of_parties(self, names: Sequence[str]) -> dict[str, Releaser]:
        """What each party releases through; a ledger that is no party's is an error.

        It would not be charged, although its owner gave it to be.
        """
        check_party_names("ledgers", self.ledgers, names)
        return {
            name: self.releaser(self.ledgers.get(name) or MemoryLedger.of(self), index)
            for index, name in enumerate(names)
        }

    def of_label_holder(self, index: int, *, least: float) -> Releaser:
        """The same for the label holder, whose ledger, if it has none, allows `least`."""
        ledger = self.label_ledger or MemoryLedger(epsilon=least, delta=self.delta)
        return self.releaser(ledger, index)

    def releaser(self, ledger: BudgetLedger, index: int) -> Releaser:
        """Charges one plan to `ledger`; unsafe seeds differ between parties."""
        seed = None if self.unsafe_seed is None else 1009 * self.unsafe_seed + index
        return Releaser(ledger, noise_source(seed), whole_plan=True)


class Traffic(TypedDict):
    """What all parties and the label holder sent each other."""

    messages: int
    bytes: int
    messages_per_round: float
    bytes_per_round: float


@dataclass(frozen=True, kw_only=True)
class Simulation:
    """What came of a run; `releasers` hold what parties charged, `costs` are ε of wider changes.

    All of these are of something replaced, also where parties have a budget for what is withheld.
    """

    method: str
    run: str
    parties: tuple[str, ...]
    history: tuple[Mapping[str, float], ...]
    releasers: Mapping[str, Releaser]
    costs: Mapping[str, float]
    coefficients: Mapping[str, Vector]
    combination: Combination
    traffic: Traffic
    notes: tuple[str, ...] = ()

    @property
    def rounds(self) -> int:
        """Rounds of admm, epochs of fdml-sgd, and one of experts."""
        return len(self.history)

    @property
    def train_loss(self) -> float:
        """The loss after the last round."""
        return self.history[-1]["train_loss"]

    @property
    def test_loss(self) -> float | None:
        """The same on rows that were not trained on, where there are any."""
        return self.history[-1].get("test_loss")

    @property
    def errors(self) -> tuple[str, ...]:
        """For a number: the names of its errors in `history`, in the label's own units."""
        return tuple(n for n in ("train_rmse", "test_rmse") if n in self.history[-1])


_NO_BUDGET = SimulationBudget(epsilon=1.0, delta=1e-6)
# Without a ledger of the label holder's, what labels cost is stated and not limited.
_UNLIMITED = 1e6


def simulate_experts(
    table: VerticalTable,
    config: ExpertsConfig | None = None,
    *,
    budget: SimulationBudget,
    label_private: bool = False,
    label_epsilon: float | None = None,
) -> Simulation:
    """One DP model per party; everything about a party's columns is private.

    `label_private` puts the label under each party's guarantee too; `label_epsilon` hides it from
    the parties by randomised response.
    """
    check_expert_label(table.label_bounds)
    config = config or ExpertsConfig()
    aggregate = config.combine == "aggregate"
    hidden = None if label_epsilon is None else _hidden(table, budget, label_epsilon)
    releasers = budget.of_parties([part.name for part in table.columns])
    parties = {
        part.name: open_expert(
            part,
            config,
            budget,
            releasers[part.name],
            label_private=label_private,
            target_excess=0.0 if hidden is None else hidden.excess,
            aggregate=aggregate,
        )
        for part in table.columns
    }
    channel = LocalChannel(parties)
    coordinator = Coordinator(channel, table.labels)
    if label_private and hidden is None:
        releaser = budget.of_label_holder(len(parties) + 1, least=_UNLIMITED)
        terms = charge_labels(coordinator, releaser, budget)
    else:
        labels = table.labels if hidden is None else hidden.targets
        terms = LabelTerms(prior=class_prior(float(labels.sum()), len(labels)))
    result = train_experts(
        coordinator, terms=terms, hidden=hidden, damping=config.damping, aggregate=aggregate
    )
    found = [parties[part.name] for part in table.columns]
    scores = result.combination.score([side.scores(side.matrix) for side in found])
    tested = None
    if table.test_labels is not None:
        each = [side.scores(part.test) for side, part in zip(found, table.columns, strict=True)]
        tested = result.combination.score(each)
    blocks = gaussian_epsilon(combined_ratio(side.costs.block for side in found), budget.delta)
    # A public label is told exactly by the prior: nothing can be claimed of it.
    costs = {"columns at all parties": blocks, "person": blocks}
    if label_epsilon is not None:
        # Given the randomised labels only the blocks are left; a pure ε is added.
        costs |= {"person": blocks + label_epsilon, "label": label_epsilon}
    elif label_private:
        for name in ("person", "label"):
            ratios = [getattr(side.costs, name) for side in found]
            total = combined_ratio([*ratios, terms.prior_ratio])
            costs[name] = gaussian_epsilon(total, budget.delta)
    history = ({"round": 1.0, **_losses(table, scores, tested, "logistic")},)
    return Simulation(
        method="experts",
        run=coordinator.run,
        parties=tuple(parties),
        history=history,
        releasers=releasers,
        costs=costs,
        coefficients={name: side.trained for name, side in parties.items()},
        combination=result.combination,
        traffic=_traffic(channel, 1),
        notes=(result.combination.rule,),
    )


def simulate_admm(
    table: VerticalTable,
    config: AdmmConfig,
    *,
    budget: SimulationBudget | None = None,
    label_epsilon: float | None = None,
) -> Simulation:
    """ADMM sharing.

    With `label_epsilon` labels are hidden by randomised response before the first broadcast.
    """
    check_loss(config.loss, table.label_bounds, hidden=label_epsilon is not None)
    spent = budget or _NO_BUDGET
    releasers = spent.of_parties([part.name for part in table.columns])
    parties = {
        part.name: open_sharing_party(part, config, budget, releasers[part.name])
        for part in table.columns
    }
    targets = 2 * table.labels - 1
    costs: dict[str, float] = {}
    if label_epsilon is not None:
        check_hidable(table.label_bounds)
        targets = _hidden(table, spent, label_epsilon).signed
        costs["label"] = label_epsilon
    if config.is_private:
        # Hidden labels are pure ε: added, where they are protected at all.
        costs["person"] = _person(parties.values(), spent.delta) + (label_epsilon or 0.0)
    if config.noise == "column":
        exact = config.regulariser == "l2" and config.constraint == "none"
        kappa = config.chosen_strength / config.rho
        ratios = (
            column_share(part.row_norm, kappa, exact) * parties[part.name].noise.ratio
            for part in table.columns
        )
        costs["column"] = gaussian_epsilon(max(ratios), spent.delta)
    channel = LocalChannel(parties)
    watch = partial(_watched, table, tuple(parties.values()), config.loss)
    state = run_admm(channel, targets, config, watch=watch)
    history = tuple({"round": float(r.number), **r.watched} for r in state.history)
    paid = releasers if config.is_private else {}
    return _summed("admm", state.run, parties, channel, history, paid, costs)


def simulate_fdml(
    table: VerticalTable, config: FdmlConfig, *, budget: SimulationBudget | None = None
) -> Simulation:
    """SGD over distributed features, from small random coefficients as in A."""
    check_loss(config.loss, table.label_bounds)
    spent = budget or _NO_BUDGET
    draw = np.random.default_rng(config.start_seed)
    releasers = spent.of_parties([part.name for part in table.columns])
    parties = {
        part.name: FdmlParty(
            part.name,
            part.train,
            strength=config.strength,
            noise=config.sgd_noise(budget, part.row_norm),
            releaser=releasers[part.name],
            start=draw.normal(size=int(part.train.shape[1])) * 0.01,
        )
        for part in table.columns
    }
    channel = LocalChannel(parties)
    watch = partial(_watched, table, tuple(parties.values()), config.loss)
    history = tuple(run_fdml(channel, 2 * table.labels - 1, config, watch=watch))
    private = config.noise == "row"
    costs = {"person": _person(parties.values(), spent.delta)} if private else {}
    paid = releasers if private else {}
    return _summed("fdml-sgd", secrets.token_hex(8), parties, channel, history, paid, costs)


def _summed(
    method: str,
    run: str,
    parties: Mapping[str, AdmmParty] | Mapping[str, FdmlParty],
    channel: LocalChannel,
    history: tuple[Mapping[str, float], ...],
    releasers: Mapping[str, Releaser],
    costs: Mapping[str, float],
) -> Simulation:
    """A run whose prediction is the sum of the parties' scores."""
    return Simulation(
        method=method,
        run=run,
        parties=tuple(parties),
        history=history,
        releasers=releasers,
        costs=costs,
        coefficients={name: side.x for name, side in parties.items()},
        combination=sum_of_scores(len(parties)),
        traffic=_traffic(channel, len(history)),
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


def _hidden(table: VerticalTable, budget: SimulationBudget, epsilon: float) -> HiddenLabels:
    """Randomised labels, charged to the label holder's ledger before they are drawn."""
    releaser = budget.of_label_holder(len(table.columns), least=epsilon)
    return hide_labels(table.labels, epsilon=epsilon, releaser=releaser)


def _person(parties: Iterable[AdmmParty | FdmlParty], delta: float) -> float:
    """ε of one person's columns replaced at all parties, whatever relation their budgets have."""
    return gaussian_epsilon(combined_ratio(side.noise.ratio for side in parties), delta)


def _watched(
    table: VerticalTable, parties: Sequence[AdmmParty | FdmlParty], loss: AdmmLossName, number: int
) -> dict[str, float]:
    """Losses and the objective after a round, from exact coefficients."""
    scores = np.sum([side.training_scores() for side in parties], axis=0)
    tested = None
    if table.test_labels is not None:
        each = [part.test @ side.x for part, side in zip(table.columns, parties, strict=True)]
        tested = np.sum(each, axis=0)
    fit = float(admm_loss(loss).value(scores, 2 * table.labels - 1).sum())
    penalty = sum(side.penalty() for side in parties)
    return {**_losses(table, scores, tested, loss), "objective": fit + penalty}


def _losses(
    table: VerticalTable, scores: Vector, tested: Vector | None, name: AdmmLossName
) -> dict[str, float]:
    loss = admm_loss(name)
    values = {"train_loss": float(loss.value(scores, 2 * table.labels - 1).mean())}
    if tested is not None and table.test_labels is not None:
        values["test_loss"] = float(loss.value(tested, 2 * table.test_labels - 1).mean())
    if table.label_bounds is not None:
        half = (table.label_bounds[1] - table.label_bounds[0]) / 2
        for part in ("train", "test"):
            if f"{part}_loss" in values:
                # The loss is half the square, in units of half the declared range.
                values[f"{part}_rmse"] = half * math.sqrt(2 * values[f"{part}_loss"])
    return values


def _traffic(channel: LocalChannel, rounds: int) -> Traffic:
    return {
        "messages": channel.messages,
        "bytes": channel.bytes,
        "messages_per_round": channel.messages / rounds,
        "bytes_per_round": channel.bytes / rounds,
    }
