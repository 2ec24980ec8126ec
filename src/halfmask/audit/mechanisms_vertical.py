"""The vertical mode's mechanisms as games: shares of ADMM, fdml, experts, and the labels' ways out.

The observer plays the coordinator: it chooses every message, as the guarantee allows it to.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from halfmask.accounting.budget import Budget
from halfmask.accounting.ledger import MemoryLedger
from halfmask.audit.distinguish import Game
from halfmask.audit.games import FitGame, enough_runs
from halfmask.audit.transcript import Recorder
from halfmask.mechanisms.release import Releaser
from halfmask.vertical.admm_party import AdmmParty, ShareNoise
from halfmask.vertical.channel import LocalChannel, Message
from halfmask.vertical.experts import (
    PRIOR_SHARE,
    ExpertParty,
    ExpertRows,
    ExpertsConfig,
    charge_labels,
    expert_costs,
    train_experts,
)
from halfmask.vertical.fdml import FdmlNoise, FdmlParty
from halfmask.vertical.party import Coordinator, hide_labels

_ROUNDS = 2


def _shares(
    name: str,
    blocks: tuple[np.ndarray, np.ndarray],
    target: np.ndarray,
    noise: ShareNoise,
    strength: float,
    *,
    claim: Budget,
    runs: int = 0,
) -> FitGame:
    """All rounds of one party; every message asks for the same target."""

    def fit(block: np.ndarray, releaser: Releaser) -> Any:
        party = AdmmParty(block, strength=strength, noise=noise, releaser=releaser)
        for _ in range(noise.rounds):
            asked = party.released - target
            party.share(residual=asked, dual=np.zeros(len(target)), rho=1.0, divisor=1)

    return FitGame(name, claim, blocks, fit, runs=runs)


def _ratio(noise: str, claim: Budget) -> float:
    """μ for a replaced row, by which parties are calibrated; withheld, `row` costs 1/√2 of it."""
    mu = claim.mu
    return mu * np.sqrt(2) if noise == "row" and claim.relation == "withhold" else mu


def one_share(
    name: str, first: np.ndarray, second: np.ndarray, target: np.ndarray, claim: Budget
) -> Game:
    """One share under row noise, for any two blocks."""
    noise = ShareNoise(kind="row", rounds=1, ratio=_ratio("row", claim))
    return _shares(name, (first, second), target, noise, 1.0, claim=claim, runs=4_000)


def admm_row(claim: Budget) -> Game:
    """Many rows agree on the coefficient, so that one row's share goes from end to end."""
    noise = ShareNoise(
        kind="row", rounds=_ROUNDS, ratio=_ratio("row", claim), radius=0.5, target_bound=1.0
    )
    first = np.ones((300, 1))
    second = first.copy()
    second[0] = -1.0 if claim.relation == "replace" else 0.0
    return _shares("admm-row", (first, second), np.ones(300), noise, 100.0, claim=claim)


def admm_column(claim: Budget) -> Game:
    """One row with hardly any regulariser: its share is the target, or nothing."""
    noise = ShareNoise(kind="column", rounds=_ROUNDS, ratio=_ratio("column", claim))
    blocks = np.array([[0.0]]), np.array([[1.0]])
    return _shares("admm-column", blocks, np.ones(1), noise, 1e-3, claim=claim)


def _trained(side: ExpertParty, targets: np.ndarray) -> Message:
    """What an expert answers to a label holder who sends these targets."""
    return side.answer(
        Message(kind="expert-train", run="audit", round=1, arrays={"targets": targets})
    )


def experts(claim: Budget) -> Game:
    """One party of the experts, asked to train; the auditor is the label holder who sent targets.

    Estimates of randomised labels reach far beyond 0 and 1, so that opposite targets have nearly
    opposite gradients; a narrow prior keeps the model at zero, where they stay so. Withheld, the
    row is zero. Gradients and curvature cannot both move by their bounds for the same two rows: the
    matrices' ninth of μ² stays unused.
    """
    config = ExpertsConfig(prior_reach=1e-12, steps=16)
    rows = ExpertRows(row_norm=1.0, nonnegative=False, label_private=True, target_excess=200.0)
    ratio = claim.mu
    if claim.relation == "withhold":
        ratio /= expert_costs(rows, 1.0, config).withhold

    def fit(given: tuple[np.ndarray, np.ndarray], releaser: Releaser) -> Any:
        matrix, targets = given
        side = ExpertParty(
            "audited", matrix, rows=rows, ratio=ratio, releaser=releaser, config=config
        )
        return _trained(side, targets)

    first = np.ones((1, 1)), np.array([201.0])
    second = (
        (first[0], np.array([-200.0])) if claim.relation == "replace" else (0 * first[0], first[1])
    )
    return FitGame("experts", claim, (first, second), fit)


def fdml(claim: Budget) -> Game:
    """Scores and gradients of one row: large coefficients take its scores from end to end."""
    mu = claim.mu
    noise = FdmlNoise(
        kind="row", epochs=_ROUNDS, ratio=mu if claim.relation == "replace" else 2 * mu
    )

    def fit(block: np.ndarray, releaser: Releaser) -> Any:
        start = np.array([1e6])
        side = FdmlParty(
            "audited", block, strength=0.0, noise=noise, releaser=releaser, start=start
        )
        rows = {"rows": np.array([0])}
        steps: dict[str, Any] = {
            "arrays": {**rows, "slopes": np.ones(1)},
            "values": {"step_size": 1e-12},
        }
        for number in range(noise.epochs):
            place: dict[str, Any] = {"run": "audit", "round": number + 1}
            side.answer(Message(kind="fdml-scores", arrays=rows, **place))
            side.answer(Message(kind="fdml-step", **steps, **place))

    other = -1.0 if claim.relation == "replace" else 0.0
    return FitGame("fdml", claim, (np.array([[1.0]]), np.array([[other]])), fit)


def counts(claim: Budget) -> Game:
    """The counts of an expert's scores by class, its model being given: a row changes its bin."""
    # Half of the budget's square is for the model before it.
    whole = claim.scaled(math.sqrt(2))
    known = ExpertRows(row_norm=1.0, nonnegative=False, label_private=False)
    targets = np.repeat([0.0, 1.0], 50)

    def fit(matrix: np.ndarray, releaser: Releaser) -> Any:
        side = ExpertParty(
            "audited", matrix, rows=known, ratio=whole.mu, releaser=releaser, aggregate_share=0.5
        )
        return _trained(side, targets)

    first = np.repeat([-1.0, 1.0], 50)[:, None]
    second = first.copy()
    second[0] = 1.0 if claim.relation == "replace" else 0.0
    return FitGame(
        "counts",
        whole,
        (first, second),
        fit,
        runs=enough_runs(claim.epsilon),
        stage="counts of the scores of audited by class",
    )


def expert_labels(claim: Budget) -> Game:
    """All that two parties and the label holder tell of a label that is sent in clear.

    The claim is what the label holder's ledger was charged; weights stay at zero, where a label
    counts most. Withheld, a label is none: the same two labels, under the ratio of a withheld row.
    """
    config = ExpertsConfig(prior_reach=1e-12, steps=4)
    rows = ExpertRows(row_norm=1.0, nonnegative=False, label_private=True)
    mu = claim.mu
    unit = expert_costs(rows, 1.0, config)
    cost = unit.label if claim.relation == "replace" else unit.withhold
    ratio = mu * math.sqrt((1 - PRIOR_SHARE**2) / 2) / cost
    blocks = {"one": np.array([[1.0], [1.0]]), "two": np.array([[-1.0], [1.0]])}

    def fit(labels: np.ndarray, releaser: Releaser) -> Any:
        assert isinstance(releaser, Recorder)
        parties = {
            name: ExpertParty(
                name,
                block,
                rows=rows,
                ratio=ratio,
                releaser=releaser.beside(
                    MemoryLedger(epsilon=1e6, delta=claim.delta, relation=claim.relation)
                ),
                config=config,
            )
            for name, block in blocks.items()
        }
        coordinator = Coordinator(LocalChannel(parties), labels)
        terms = charge_labels(coordinator, releaser, claim)
        return train_experts(coordinator, terms=terms)

    return FitGame("expert-labels", claim, (np.array([0.0, 1.0]), np.array([1.0, 1.0])), fit)


def randomised_response(claim: Budget) -> Game:
    """Labels that were flipped by chance: the label of one row is the other one."""

    def fit(labels: np.ndarray, releaser: Releaser) -> Any:
        return hide_labels(labels, epsilon=claim.epsilon, releaser=releaser)

    return FitGame("randomised-response", claim, (np.array([0.0, 1.0]), np.array([1.0, 1.0])), fit)
