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
from halfmask.derived import PublicLabel
from halfmask.errors import InputError
from halfmask.model import Model
from halfmask.table import Codes, Table

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
    """Rows of a table with two private parts each, and the coins that chose between them.

    `first` and `second` are the canaries alone, with the one and with the other private part.
    """

    rows: NDArray[np.int64]
    first: Table
    second: Table
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
        first, second = _two_values(take(table, rows), generator)
        if table.label_private:
            one, other = _two_labels(table, count, generator)
            first = replace(first, label=one)
            second = replace(second, label=one if table.private_sources else other)
        coins = np.frombuffer(os.urandom(count), dtype=np.uint8) % 2 == 1
        return cls(rows=rows, first=first, second=second, coins=coins)

    @property
    def private(self) -> tuple[Floats, Floats]:
        """The two private parts of every canary, as features."""
        return self.first.private, self.second.private

    def table(self, table: Table) -> Table:
        """`table` with every canary's private part as its coin says."""
        chosen = np.flatnonzero(self.coins)
        mixed = self.first.planted(chosen, self.second.kept(chosen))
        return table.planted(self.rows, mixed)

    def alone(self, second: bool) -> Table:
        """The canaries alone, all with their first or all with their second value."""
        return self.second if second else self.first


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
    lean = _lean(lambda rows: log_likelihoods(model, rows), planted)
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
    return replace(table.kept(rows), unit=None, rows=np.arange(len(rows)))


def _lean(score: Callable[[Table], Floats], planted: Canaries) -> Floats:
    """How much better the second value of each canary fits than the first."""
    lean: Floats = score(planted.alone(True)) - score(planted.alone(False))
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
    expected = _lean(score, planted)
    size = float(expected @ expected)
    return expected * (float(expected @ lean) / size) if size > 0 else expected


def _two_values(rows: Table, generator: np.random.Generator) -> tuple[Table, Table]:
    """The rows with two private parts: other levels, or the two ends of a column kept as a number.

    Two codes differ in their feature and in their level wherever the column has two such, so that
    a canary differs for every method, whichever of both it reads.
    """
    if not isinstance(rows.features, Codes):
        # A bare array has no levels: opposite directions at the declared norm.
        direction = generator.normal(size=rows.private.shape)
        length = np.linalg.norm(direction, axis=1, keepdims=True)
        private = rows.private_norm * direction / np.maximum(length, 1e-300)
        return rows.with_blocks(private=private), rows.with_blocks(private=-private)
    first = second = rows
    for column in rows.features.columns:
        if not column.private:
            continue
        places = column.cells.places
        if places is None:
            one = np.where(generator.random(rows.n) < 0.5, 1.0, -1.0)
            other = -one
        else:
            # A feature by chance, then one of its codes.
            often = 1 / np.bincount(places)[places]
            one = generator.choice(len(places), size=rows.n, p=often / often.sum())
            apart = _apart(places, column.cells.level_of)[one] * often
            other = (
                apart.cumsum(axis=1)
                < generator.random((rows.n, 1)) * apart.sum(axis=1, keepdims=True)
            ).sum(axis=1)
        first, second = first.filled(column.name, one), second.filled(column.name, other)
    return first, second


def _apart(places: NDArray[Any], level_of: NDArray[Any] | None) -> NDArray[np.bool_]:
    """For each code, the codes that differ from it in feature and level, else in feature."""
    features: NDArray[np.bool_] = places[:, None] != places
    if level_of is None:
        return features
    both = features & (level_of[:, None] != level_of)
    return np.where(both.any(axis=1, keepdims=True), both, features)


def _two_labels(
    table: Table, count: int, generator: np.random.Generator
) -> tuple[NDArray[Any], NDArray[Any]]:
    known = None if table.schema is None else PublicLabel.of(table.schema.label)
    if known is not None:
        # What is public of the label stays.
        return known.two_labels(count, generator)
    if table.classes is None:
        assert table.label_bounds is not None
        ends = np.array(table.label_bounds)
        coin = generator.integers(2, size=count)
        return ends[coin], ends[1 - coin]
    size = len(table.classes)
    first = generator.integers(size, size=count)
    return first, (first + generator.integers(1, size, size=count)) % size
