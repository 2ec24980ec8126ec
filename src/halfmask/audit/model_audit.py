"""The audit of a fitted model: trained again on the user's rows with canaries, and its columns."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binom
from sklearn.linear_model import LogisticRegression, Ridge

from halfmask.accounting import accountant
from halfmask.accounting.budget import Budget
from halfmask.accounting.events import Event, Relation
from halfmask.audit.distinguish import Finding
from halfmask.data.derived import PublicLabel
from halfmask.errors import HalfmaskError, InputError
from halfmask.mechanisms.noise import noise_source
from halfmask.model import Model
from halfmask.model_folder import damaged
from halfmask.progress import part_of, tell
from halfmask.storage import json_text, write_text
from halfmask.table import CodedFeatures, KeptColumn, Table
from halfmask.training import train
from halfmask.types import Floats

# --- Audit of a whole training in one run: many canaries at once, each with one of two private
# values. Steinke, Nasr and Jagielski 2023 (arXiv:2305.08846v1, Theorem 5.2) bound how many of m
# fair coins can be guessed from the output of a mechanism that is (ε, δ)-private under flipping one
# of them. Here a coin chooses between two values of a row's private part, which is what the
# relation `replace` speaks of; the public part stays, and the auditor knows it. One training is all
# it costs. Guarantee: docs/proofs/audit.md.


_CANARIES = 1000
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
        owners = np.arange(table.n)
        if table.unit is not None:
            owners = np.unique(table.unit, return_index=True)[1]
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

    def table(self, table: Table) -> Table:
        """`table` with every canary's private part as its coin says."""
        chosen = np.flatnonzero(self.coins)
        mixed = self.first.planted(chosen, self.second.kept(chosen))
        return table.planted(self.rows, mixed)


def one_run(
    table: Table,
    fit: Callable[[Table], Model],
    *,
    claimed: float,
    delta: float,
    relation: Relation,
    mechanism: str,
    canaries: int | None = None,
    confidence: float = 0.95,
) -> Finding:
    """Plant canaries, fit once, guess half of the coins: those the model is clearest about.

    They are half of the rows (or persons) at most, and 1,000 of them unless told.
    """
    most = max(1, table.units // 2)
    if canaries is not None and not 1 <= canaries <= most:
        raise InputError(
            f"Expected between 1 and {most} canaries, half of the {table.units} rows or persons at "
            f"most, got {canaries}."
        )
    planted = Canaries.planted(table, min(_CANARIES, most) if canaries is None else canaries)
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
    return score(planted.second) - score(planted.first)


def _expected(lean: Floats, table: Table, planted: Canaries) -> Floats:
    """What a model of other rows leans to, brought to scale: the auditor knows all other rows."""
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
    if not isinstance(rows.features, CodedFeatures):
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


# --- Attribute inference: how well private values are guessed with a model, and how well they could
# be. The attacker knows a row's public part and label. Without the model it guesses by what is
# usual for such rows; with it, it prefers values that make the label likely. The bound holds for
# every attacker, however clever, who has the same prior: docs/proofs/audit.md, "Attribute
# inference". Scores are computed on rows of the user's own and are not covered by any guarantee.


_LEVELS_OF_A_NUMBER = 8
_GRID = 49
_ATTACKED = 2000  # rows, as many as teach the prior


@dataclass(frozen=True, kw_only=True)
class Inference:
    """Shares of right guesses of one private column: without the model, with it, and at most."""

    column: str
    without_model: float
    with_model: float
    bound: float
    rows: int


class GuessingGain:
    """The most that the charged events add to the share of right guesses, for any prior.

    Σ_{v≠0} π_v·δ(ln(π₀/π_v)), with π₀ the likeliest value; exact for two values.
    """

    def __init__(self, events: Sequence[Event]) -> None:
        self._edges = np.linspace(0.0, 12.0, _GRID)
        self._deltas = np.array(
            [
                accountant.delta(events, epsilon=float(edge), relation="replace") if events else 0.0
                for edge in self._edges
            ]
        )

    def __call__(self, prior: Floats) -> Floats:
        """One number per row of `prior`, whose rows sum to one."""
        ordered = -np.sort(-prior, axis=1)
        best, others = ordered[:, :1], ordered[:, 1:]
        odds = np.log(best / np.maximum(others, 1e-300))
        # δ falls with ε, so the edge below gives a bound that is a little too large.
        place = np.clip(np.searchsorted(self._edges, odds, side="right") - 1, 0, _GRID - 1)
        gain: Floats = (others * self._deltas[place]).sum(axis=1)
        return np.minimum(1 - best[:, 0], gain)


def attribute_inference(model: Model, table: Table) -> list[Inference]:
    """Every private column; half of the rows teach the prior, the others are attacked."""
    if not isinstance(table.features, CodedFeatures):
        raise InputError("Attribute inference needs a schema: it goes column by column.")
    generator = np.random.default_rng()
    order = generator.permutation(table.n)[: 2 * _ATTACKED]
    half = len(order) // 2
    if half < 10:
        raise InputError(f"Expected at least 20 rows to attack, got {table.n}.")
    known, attacked = take(table, order[:half]), take(table, order[half:])
    gain = GuessingGain(model.privacy.events)
    names, found = list(dict.fromkeys(table.private_sources)), []
    for place, name in enumerate(names):
        tell("guessing private columns", place / len(names))
        found.append(_attack(model, name, known, attacked, gain))
    return found


def _attack(
    model: Model, column: str, known: Table, attacked: Table, gain: GuessingGain
) -> Inference:
    values, codes, truth = _candidates(known, attacked, column)
    prior = _prior(known, attacked, codes, len(values))
    # The spread of a regression's error is part of what the attacker knows.
    scale = 1.0
    if model.task == "regression":
        scale = 1 / max(float(np.mean(-2 * log_likelihoods(model, known))), 1e-12)
    evidence = np.column_stack(
        [
            scale * log_likelihoods(model, attacked.filled(column, np.full(attacked.n, value)))
            for value in values
        ]
    )
    posterior = np.log(prior) + evidence
    without = float(np.mean(prior.argmax(axis=1) == truth))
    return Inference(
        column=column,
        without_model=without,
        with_model=float(np.mean(posterior.argmax(axis=1) == truth)),
        bound=min(1.0, without + float(np.mean(gain(prior)))),
        rows=attacked.n,
    )


def _candidates(
    known: Table, attacked: Table, column: str
) -> tuple[Floats, NDArray[np.int64], NDArray[np.int64]]:
    """The values a cell may take (see `KeptColumn.filled`), and which one each row's cell is.

    They are the column's features, each by its most frequent code among known rows, or steps of a
    column kept as a number.
    """
    mine, theirs = _column(known, column), _column(attacked, column)
    places = mine.cells.places
    if places is not None:
        counts = np.bincount(mine.codes, minlength=len(places))
        usual = np.lexsort((counts, places))[np.cumsum(np.bincount(places)) - 1]
        return usual.astype(np.float64), places[mine.codes], places[theirs.codes]
    width = 2 / _LEVELS_OF_A_NUMBER
    steps = np.append(-1 + width * (np.arange(_LEVELS_OF_A_NUMBER) + 0.5), np.nan)

    def nearest(kept: KeptColumn) -> NDArray[np.int64]:
        assert kept.numbers is not None
        step = np.clip((kept.numbers + 1) // width, 0, _LEVELS_OF_A_NUMBER - 1).astype(np.int64)
        return np.where(kept.codes == kept.cells.count - 1, _LEVELS_OF_A_NUMBER, step)

    return steps, nearest(mine), nearest(theirs)


def _column(table: Table, name: str) -> KeptColumn:
    assert isinstance(table.features, CodedFeatures)
    return next(column for column in table.features.columns if column.name == name)


def _prior(known: Table, attacked: Table, codes: NDArray[np.int64], count: int) -> Floats:
    """P(value | public part, label), learnt on other rows (`codes` of `count`) and smoothed."""
    usual = (np.bincount(codes, minlength=count) + 1.0) / (len(codes) + count)
    prior = np.tile(usual, (attacked.n, 1))
    if len(np.unique(codes)) > 1:
        learner = LogisticRegression(max_iter=100, C=1.0).fit(_knowledge(known), codes)
        learnt = np.zeros_like(prior)
        learnt[:, learner.classes_] = learner.predict_proba(_knowledge(attacked))
        prior = 0.95 * learnt + 0.05 * prior
    normal: Floats = prior / prior.sum(axis=1, keepdims=True)
    return normal


def _knowledge(table: Table) -> Floats:
    """What the attacker knows of a row: its public part and its label."""
    assert table.label is not None
    if table.classes is None:
        return np.column_stack([table.public, table.label])
    return np.column_stack([table.public, np.eye(len(table.classes))[table.label]])


AUDIT_FILE = "audit.json"
FIGURE_FILE = "attribute-inference.svg"
AUDITED = (
    "one more training of {mechanism} with the model's options and budget, on these rows with "
    "{canaries} canaries among them; the model itself was attacked column by column"
)


@dataclass(frozen=True, kw_only=True)
class ModelAudit:
    """What the one-run audit found, and how well each private column is guessed."""

    finding: Finding
    inferences: tuple[Inference, ...]
    figure: str | None

    def to_json(self) -> dict[str, Any]:
        """The finding's fields, with the columns beside them."""
        return {
            **self.finding.to_json(),
            "attribute_inference": [asdict(inference) for inference in self.inferences],
            "figure": self.figure,
            "audited": AUDITED.format(**self.finding.details, mechanism=self.finding.mechanism),
            "covered_by_guarantee": False,
        }


def audit_model(
    folder: Path,
    frame: Any,
    *,
    canaries: int | None = None,
    confidence: float = 0.95,
    out: Path | None = None,
    report: Callable[[float, str], None] = lambda share, text: None,
) -> ModelAudit:
    """Train once more as the model was trained, with canaries, and attack its columns.

    Nothing is charged, so what is found is for the owner of the data alone: it is written to the
    folder `out` if one is named, and never into the model's own, which others are handed.
    """
    model = Model.load(folder)
    _check_out(folder, out)
    if model.encoder is None:
        raise InputError(
            "This model was fitted on bare arrays: an audit with your data needs a model that was "
            "trained with a schema."
        )
    if model.options is None:
        raise InputError(
            "This model was trained with an option that a file cannot hold (a function), so it "
            "cannot be trained again from here: call one_run of halfmask.audit.model_audit on your "
            "fit."
        )
    # An attack on how labels are explained needs them; nothing that it finds is released.
    table = model.encoder.encode(frame).labelled()
    privacy = model.privacy
    epsilon, delta, relation = privacy.calibrated_epsilon, privacy.delta, privacy.relation
    budget = Budget(epsilon=epsilon, delta=delta, relation=relation)

    def fit(planted: Table) -> Model:
        try:
            return train(
                planted,
                budget,
                method=model.method,
                noise=noise_source(),
                encoder=model.encoder,
                options=model.options,
            )
        except HalfmaskError:
            raise
        except (TypeError, ValueError, AttributeError, OverflowError):
            if not model.options:
                raise
        damaged("it cannot be trained again with its stored options")

    report(0.05, "training with canaries")
    with part_of("audit", 0.05, 0.6):
        finding = one_run(
            table,
            fit,
            claimed=epsilon,
            delta=delta,
            relation=relation,
            mechanism=model.method,
            canaries=canaries,
            confidence=confidence,
        )
    report(0.6, "guessing private columns")
    with part_of("audit", 0.6, 1.0):
        inferences = tuple(attribute_inference(model, table)) if table.private_sources else ()
    if out is None:
        return ModelAudit(finding=finding, inferences=inferences, figure=None)
    out.mkdir(parents=True, exist_ok=True)
    found = ModelAudit(finding=finding, inferences=inferences, figure=_drawn(inferences, out))
    write_text(out / AUDIT_FILE, json_text(found.to_json()))
    return found


def _check_out(folder: Path, out: Path | None) -> None:
    """Refuse to write exact figures of private rows to where the attacker looks."""
    if out is None:
        return
    model, asked = folder.resolve(), out.resolve()
    if asked == model or model in asked.parents:
        raise InputError(
            "The result of an audit tells of private rows, and the model folder is what others "
            "see: name a folder outside it with --out."
        )
    if out.exists() and not out.is_dir():
        raise InputError(f"{str(out)!r} is a file: name a folder with --out.")


def _drawn(inferences: tuple[Inference, ...], folder: Path) -> str | None:
    """Bars per column, without and with the model, and the bound as a line above them.

    The figure's name; None where nothing is private but the label, or matplotlib is missing.
    """
    if not inferences or find_spec("matplotlib") is None:
        return None
    from halfmask.report.plots import guess_bars, save

    bars = [(i.column, i.without_model, i.with_model, i.bound) for i in inferences]
    save(guess_bars(bars), folder / FIGURE_FILE, metadata={"Date": None})
    return FIGURE_FILE
