"""The vertical mode's mechanisms as games: shares of ADMM under both bounds, and experts.

The observer plays the coordinator: it chooses every message, as the guarantee allows it to.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from halfmask.accounting.budget import Budget
from halfmask.accounting.relations import Relation
from halfmask.audit.distinguish import Game
from halfmask.audit.games import FitGame, enough_runs
from halfmask.mechanisms.release import Releaser
from halfmask.vertical.admm_party import AdmmParty, ShareNoise

_ROUNDS = 2


def _shares(
    name: str,
    blocks: tuple[np.ndarray, np.ndarray],
    target: np.ndarray,
    noise: ShareNoise,
    strength: float,
    *,
    epsilon: float,
    delta: float,
    relation: Relation,
    most: int = 48_000,
) -> FitGame:
    """All rounds of one party; every message asks for the same target."""

    def fit(block: np.ndarray, releaser: Releaser) -> Any:
        party = AdmmParty(block, strength=strength, noise=noise, releaser=releaser)
        for _ in range(noise.rounds):
            asked = party.released - target
            party.share(residual=asked, dual=np.zeros(len(target)), rho=1.0, divisor=1)

    return FitGame(
        mechanism=name,
        relation=relation,
        epsilon=epsilon,
        delta=delta,
        first=blocks[0],
        second=blocks[1],
        fit=fit,
        runs=enough_runs(epsilon, least=min(most, 10_000), most=most),
    )


def _ratio(noise: str, epsilon: float, delta: float, relation: Relation) -> float:
    """μ for a replaced row, by which parties are calibrated; withheld, `row` costs 1/√2 of it."""
    mu = Budget(epsilon=epsilon, delta=delta).mu
    return mu * np.sqrt(2) if noise == "row" and relation == "withhold" else mu


def one_share(
    name: str,
    first: np.ndarray,
    second: np.ndarray,
    target: np.ndarray,
    epsilon: float,
    delta: float,
) -> Game:
    """One share under row noise, for any two blocks."""
    noise = ShareNoise(kind="row", rounds=1, ratio=_ratio("row", epsilon, delta, "replace"))
    return _shares(
        name,
        (first, second),
        target,
        noise,
        1.0,
        epsilon=epsilon,
        delta=delta,
        relation="replace",
        most=4_000,
    )


def admm_row(epsilon: float, delta: float, relation: Relation) -> Game:
    """Many rows agree on the coefficient, so that one row's share goes from end to end."""
    noise = ShareNoise(
        kind="row", rounds=_ROUNDS, ratio=_ratio("row", epsilon, delta, relation), radius=0.5
    )
    first = np.ones((300, 1))
    second = first.copy()
    second[0] = -1.0 if relation == "replace" else 0.0
    return _shares(
        "admm-row",
        (first, second),
        np.ones(300),
        noise,
        100.0,
        epsilon=epsilon,
        delta=delta,
        relation=relation,
    )


def admm_column(epsilon: float, delta: float, relation: Relation) -> Game:
    """One row with hardly any regulariser: its share is the target, or nothing."""
    noise = ShareNoise(
        kind="column", rounds=_ROUNDS, ratio=_ratio("column", epsilon, delta, relation)
    )
    blocks = np.array([[0.0]]), np.array([[1.0]])
    return _shares(
        "admm-column",
        blocks,
        np.ones(1),
        noise,
        1e-3,
        epsilon=epsilon,
        delta=delta,
        relation=relation,
    )


def experts(epsilon: float, delta: float, relation: Relation) -> Game:
    """One party of the experts, asked to train; the auditor is the label holder who sent targets.

    Estimates of randomised labels reach far beyond 0 and 1, so that opposite targets have nearly
    opposite gradients; a narrow prior keeps the model at zero, where they stay so. Withheld, the
    row is zero. Gradients and curvature cannot both move by their bounds for the same two rows: the
    matrices' seventh of μ² stays unused, and the bound below 0.93 of the claim.
    """
    from halfmask.vertical.channel import Message
    from halfmask.vertical.experts import ExpertParty
    from halfmask.vertical.newton import ExpertRows, NewtonConfig, expert_costs

    config = NewtonConfig(prior_reach=1e-12)
    rows = ExpertRows(row_norm=1.0, nonnegative=False, label_private=True, target_excess=200.0)
    mu = Budget(epsilon=epsilon, delta=delta).mu
    ratio = mu
    if relation == "withhold":
        ratio = mu / expert_costs(rows, 1.0, config).withhold

    def fit(given: tuple[np.ndarray, np.ndarray], releaser: Releaser) -> Any:
        matrix, targets = given
        side = ExpertParty(
            "audited", matrix, rows=rows, ratio=ratio, releaser=releaser, config=config
        )
        asked = Message(kind="expert-train", run="audit", round=1, arrays={"targets": targets})
        return side.party.answer(asked)

    first = np.ones((1, 1)), np.array([201.0])
    second = (first[0], np.array([-200.0])) if relation == "replace" else (0 * first[0], first[1])
    return FitGame(
        mechanism="experts",
        relation=relation,
        epsilon=epsilon,
        delta=delta,
        first=first,
        second=second,
        fit=fit,
        runs=enough_runs(epsilon, least=12_000, most=32_000),
    )
