"""Audit of a whole training in one run: many canaries at once, each with one of two private values.

Steinke, Nasr and Jagielski 2023 (arXiv:2305.08846v1, Theorem 5.2) bound how many of m fair coins
can be guessed from the output of a mechanism that is (ε, δ)-private under flipping one of them.
Here a coin chooses between two values of a row's private part, which is what the relation
`replace` speaks of; the public part stays, and the auditor knows it. One training is all it costs.
Guarantee: docs/proofs/audit.md.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binom

from halfmask.accounting.relations import Relation
from halfmask.audit.finding import Finding
from halfmask.errors import InputError
from halfmask.model import Model
from halfmask.table import Table

Floats = NDArray[np.float64]

_GUESSED = 0.5
_REFERENCE_ROWS = 1500


def p_value(right: int, guesses: int, canaries: int, *, epsilon: float, delta: float) -> float:
    """The chance of at least `right` of `guesses`, at most, if (epsilon, delta) held for each coin.

    Figure 5 of the paper (`p_value_DP_audit`); `canaries` counts the coins, guessed or not.
    """
    chance = 1 / (1 + math.exp(-epsilon))
    certain = float(binom.sf(right - 1, guesses, chance))
    below = np.cumsum(binom.pmf(right - np.arange(1, right + 1), guesses, chance))
    slope = float(np.max(below / np.arange(1, right + 1), initial=0.0))
    return min(1.0, certain + 2 * canaries * delta * slope)


def one_run_epsilon(
    right: int,
    guesses: int,
    canaries: int,
    *,
    delta: float,
    confidence: float,
    relation: Relation = "replace",
) -> float:
    """The largest epsilon that so many right guesses refute at this confidence; 0 if none.

    A withheld row costs less than a replaced one: (ε, δ) under `withhold` allows these coins
    (2ε, (1 + e^ε)δ).
    """

    def refuted(epsilon: float) -> bool:
        allowed, failing = epsilon, delta
        if relation == "withhold":
            allowed, failing = 2 * epsilon, min(1.0, (1 + math.exp(epsilon)) * delta)
        found = p_value(right, guesses, canaries, epsilon=allowed, delta=failing)
        return found <= 1 - confidence

    if not refuted(0.0):
        return 0.0
    low, high = 0.0, 1.0
    while high < 64 and refuted(high):
        low, high = high, 2 * high
    while high - low > 1e-4:
        middle = (low + high) / 2
        low, high = (middle, high) if refuted(middle) else (low, middle)
    return low


@dataclass(frozen=True, kw_only=True, eq=False)
class Canaries:
    """Rows of a table with two private parts each, and the coins that chose between them."""

    rows: NDArray[np.int64]
    private: tuple[Floats, Floats]
    label: tuple[NDArray[Any], NDArray[Any]]
    coins: NDArray[np.bool_]

    @classmethod
    def planted(cls, table: Table, count: int) -> Canaries:
        """`count` rows of different units, two random values of each private column.

        Where the label is private, it is random too, and takes two values only if nothing else
        does: a row that changes its features and its label at once may contribute the same.
        """
        if table.label is None:
            raise InputError("Canaries need labelled rows: pass the data with its label.")
        generator = np.random.default_rng()
        _, owners = (
            (None, np.arange(table.n))
            if table.unit is None
            else np.unique(table.unit, return_index=True)
        )
        if not 1 <= count <= len(owners):
            raise InputError(f"Expected between 1 and {len(owners)} canaries, got {count}.")
        rows = np.sort(generator.choice(owners, size=count, replace=False))
        values = _two_values(table, count, generator)
        labels = table.label[rows], table.label[rows]
        if table.label_private:
            labels = _two_labels(table, count, generator)
            if table.private.shape[1]:
                labels = labels[0], labels[0]
        coins = np.frombuffer(os.urandom(count), dtype=np.uint8) % 2 == 1
        return cls(rows=rows, private=values, label=labels, coins=coins)

    def table(self, table: Table) -> Table:
        """`table` with every canary's private part as its coin says."""
        private, label = table.private.copy(), np.array(table.label)
        first, second = self.private
        private[self.rows] = np.where(self.coins[:, None], second, first)
        label[self.rows] = np.where(self.coins, self.label[1], self.label[0])
        return replace(table, private=private, label=label)

    def alone(self, table: Table, second: bool) -> Table:
        """The canaries alone, all with their first or all with their second value."""
        return replace(
            take(table, self.rows), private=self.private[second], label=self.label[second]
        )


def one_run(
    table: Table,
    fit: Callable[[Table], Model],
    *,
    claimed: float,
    delta: float,
    relation: Relation,
    mechanism: str,
    canaries: int = 1000,
    confidence: float = 0.95,
) -> Finding:
    """Plant canaries, fit once, guess half of the coins: those the model is clearest about."""
    planted = Canaries.planted(table, min(canaries, max(1, table.units // 2)))
    model = fit(planted.table(table))
    lean = _lean(lambda rows: log_likelihoods(model, rows), table, planted)
    lean -= _expected(lean, table, planted)
    count = len(planted.rows)
    guessed = np.argsort(-np.abs(lean))[: max(1, int(_GUESSED * count))]
    right = int(np.sum((lean[guessed] > 0) == planted.coins[guessed]))
    bound = one_run_epsilon(
        right, len(guessed), count, delta=delta, confidence=confidence, relation=relation
    )
    return Finding(
        mechanism=mechanism,
        claimed=claimed,
        lower_bound=bound,
        confidence=confidence,
        relation=relation,
        delta=delta,
        runs=1,
        details={"canaries": count, "guesses": len(guessed), "right_guesses": right / len(guessed)},
    )


def log_likelihoods(model: Model, table: Table) -> Floats:
    """How well the model explains each row's label: its log-probability, or minus half a square."""
    assert table.label is not None
    if model.task == "regression":
        error: Floats = model.scores(table)[:, 0] - np.asarray(table.label, dtype=np.float64)
        return -0.5 * error**2
    chances = model.probabilities(table)[np.arange(table.n), np.asarray(table.label)]
    logs: Floats = np.log(np.maximum(chances, 1e-300))
    return logs


def take(table: Table, rows: NDArray[np.int64]) -> Table:
    """Some rows of a table, each its own unit."""
    return replace(
        table,
        public=table.public[rows],
        private=table.private[rows],
        label=None if table.label is None else table.label[rows],
        unit=None,
        rows=np.arange(len(rows)),
    )


def _lean(score: Callable[[Table], Floats], table: Table, planted: Canaries) -> Floats:
    """How much better the second value of each canary fits than the first."""
    lean: Floats = score(planted.alone(table, True)) - score(planted.alone(table, False))
    return lean


def _expected(lean: Floats, table: Table, planted: Canaries) -> Floats:
    """What a model of other rows leans to, brought to scale: the auditor knows all other rows."""
    from sklearn.linear_model import LogisticRegression, Ridge

    generator = np.random.default_rng()
    others = np.setdiff1d(np.arange(table.n), planted.rows)
    others = generator.permutation(others)[:_REFERENCE_ROWS]
    reference = take(table, others)
    assert reference.label is not None
    if len(np.unique(reference.label)) < 2:
        return np.zeros_like(lean)
    inputs = np.hstack([reference.public, reference.private])

    def score(rows: Table) -> Floats:
        X = np.hstack([rows.public, rows.private])
        if rows.task == "regression":
            errors: Floats = ridge.predict(X) - rows.label
            return -0.5 * errors**2
        logs = ridge.predict_log_proba(X)
        # A class that the sample lacks is as unlikely as the rarest one it holds.
        place = np.searchsorted(ridge.classes_, np.asarray(rows.label)).clip(
            0, len(ridge.classes_) - 1
        )
        found: Floats = logs[np.arange(rows.n), place]
        return found

    ridge = Ridge() if table.task == "regression" else LogisticRegression(max_iter=30, tol=1e-2)
    ridge.fit(inputs, reference.label)
    expected = _lean(score, table, planted)
    size = float(expected @ expected)
    return expected * (float(expected @ lean) / size) if size > 0 else expected


def _two_values(table: Table, count: int, generator: np.random.Generator) -> tuple[Floats, Floats]:
    """Two encoded private parts a canary: other levels, or the two ends of a scaled number."""
    from halfmask.encoding import Scaled, declared

    first, second = np.zeros((2, count, table.private.shape[1]))
    every = np.arange(count)
    scaled = {
        column.name
        for column in (() if table.schema is None else table.schema.columns)
        if isinstance(declared(column), Scaled)
    }
    for name in dict.fromkeys(table.private_sources):
        places = np.flatnonzero([source == name for source in table.private_sources])
        if name in scaled or len(places) == 1:
            ends = np.where(generator.random(count) < 0.5, 1.0, -1.0)
            first[:, places[0]], second[:, places[0]] = ends, -ends
            continue
        one = generator.integers(len(places), size=count)
        other = (one + generator.integers(1, len(places), size=count)) % len(places)
        first[every, places[one]] = 1.0
        second[every, places[other]] = 1.0
    if table.schema is None:
        # A bare array has no levels: opposite directions at the declared norm.
        direction = generator.normal(size=first.shape)
        first = table.private_norm * direction / np.linalg.norm(direction, axis=1, keepdims=True)
        second = -first
    return first, second


def _two_labels(
    table: Table, count: int, generator: np.random.Generator
) -> tuple[NDArray[Any], NDArray[Any]]:
    if table.classes is None:
        assert table.label_bounds is not None
        ends = np.array(table.label_bounds)
        coin = generator.integers(2, size=count)
        return ends[coin], ends[1 - coin]
    size = len(table.classes)
    first = generator.integers(size, size=count)
    return first, (first + generator.integers(1, size, size=count)) % size
