"""The audit of a fitted model: trained again on the user's rows with canaries, and its columns."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_softmax, softmax
from scipy.stats import beta, binom
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.exceptions import ConvergenceWarning
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
    score = _explained_by(take(table, others))
    if score is None:
        return np.zeros_like(lean)
    expected = _lean(score, planted)
    size = float(expected @ expected)
    return expected * (float(expected @ lean) / size) if size > 0 else expected


def _explained_by(rows: Table) -> Callable[[Table], Floats] | None:
    """How well a plain model of these rows explains labels of others; None where all are alike.

    As `log_likelihoods`, with a regression's squares in units of its error on `rows`.
    """
    label = np.asarray(rows.label)
    if len(np.unique(label)) < 2:
        return None
    inputs = np.hstack([rows.public, rows.private])
    if rows.task == "regression":
        ridge = Ridge().fit(inputs, label)
        spread = max(float(np.mean((ridge.predict(inputs) - label) ** 2)), 1e-12)

        def squares(asked: Table) -> Floats:
            X = np.hstack([asked.public, asked.private])
            errors: Floats = ridge.predict(X) - asked.label
            return -0.5 * errors**2 / spread

        return squares
    with warnings.catch_warnings():
        # Not quite converged is good enough here.
        warnings.simplefilter("ignore", ConvergenceWarning)
        learner = LogisticRegression(max_iter=30, tol=1e-2).fit(inputs, label)

    def logs(asked: Table) -> Floats:
        told = learner.predict_log_proba(np.hstack([asked.public, asked.private]))
        # A class that the sample lacks is as unlikely as the rarest one it holds.
        place = np.searchsorted(learner.classes_, np.asarray(asked.label)).clip(
            0, len(learner.classes_) - 1
        )
        found: Floats = told[np.arange(asked.n), place]
        return found

    return logs


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


# --- Attribute inference: how well a private cell is guessed with a model, and how well it could
# be. The attacker knows the rest of the row, its label included, and other rows in full. Without
# the model it guesses by what those rows teach; with it, it also asks which value the model finds
# likely for the label. Both know the same but for the model. The bound holds for every attacker,
# however clever, whose guess without the model is no better than ours, so it is an estimate:
# docs/proofs/audit.md, "Attribute inference". Scores are computed on rows of the user's own and
# are not covered by any guarantee; they refute nothing.


_LEVELS_OF_A_NUMBER = 8
_GRID = 49
_ATTACKED = 2000  # rows, as many as teach the prior
_MOST_BOOSTED = 24  # values of a cell, beyond which trees take too long
_LABEL_WEIGHT = 10.0  # its range in what is learnt from; levels of columns have 1
_TRUST = (0.0, 0.25, 0.5, 1.0)  # how far what explains the label is believed
_SURE = 0.95  # of the share without the model, in the bound


@dataclass(frozen=True, kw_only=True)
class Inference:
    """Shares of right guesses of one private column: without the model and with it.

    `bound` is the share without the model, at the upper end of its 95% confidence interval for so
    many rows, and the most that the charged events add to such guesses: an estimate of what any
    attacker could reach, as good as the guess without the model.
    """

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
    others = _Others.of(known)
    names, found = list(dict.fromkeys(table.private_sources)), []
    for place, name in enumerate(names):
        tell("guessing private columns", place / len(names))
        found.append(_attack(model, name, others, attacked, gain))
    return found


@dataclass(frozen=True, kw_only=True, eq=False)
class _Others:
    """Rows that the attacker knows in full, and what they say of labels.

    The first `cut` of them judge what the rest teaches: `by_rest` explains labels by the rest.
    """

    rows: Table
    cut: int
    by_rest: Callable[[Table], Floats] | None
    by_all: Callable[[Table], Floats] | None

    @classmethod
    def of(cls, rows: Table) -> _Others:
        cut = max(1, rows.n // 4)
        rest = take(rows, np.arange(cut, rows.n))
        return cls(rows=rows, cut=cut, by_rest=_explained_by(rest), by_all=_explained_by(rows))

    @property
    def judges(self) -> Table:
        return take(self.rows, np.arange(self.cut))


def _attack(
    model: Model, column: str, others: _Others, attacked: Table, gain: GuessingGain
) -> Inference:
    values, codes, truth = _candidates(others.rows, attacked, column)
    cut, judges = others.cut, others.judges
    known = _knowledge(others.rows, column, values[0])
    asked = _knowledge(attacked, column, values[0])
    plain = [
        _evidence(by, rows, column, values)
        for by, rows in ((others.by_rest, judges), (others.by_all, attacked))
    ]

    def misses(chances: Floats, evidence: Floats, trust: float) -> float:
        logs = log_softmax(np.log(chances) + trust * evidence, axis=1)
        return -float(logs[np.arange(cut), codes[:cut]].sum())

    # Without the model: the learner, and the trust in a plain model of the label, that judge best.
    tried = [
        (_chances(make, known[cut:], known[:cut], codes[cut:], len(values)), make)
        for make in _learners(known[cut:], codes[cut:])
    ]
    (chances, make), trust = min(
        product(tried, _TRUST), key=lambda each: misses(each[0][0], plain[0], each[1])
    )
    judged = np.log(chances) + trust * plain[0]
    prior = softmax(
        np.log(_chances(make, known, asked, codes, len(values))) + trust * plain[1], axis=1
    )
    # With it: as far as it helped with the rows that judge.
    scale = 1.0
    if model.task == "regression":
        # The spread of a regression's error is part of what the attacker knows.
        scale = 1 / max(float(np.mean(-2 * log_likelihoods(model, others.rows))), 1e-12)

    def told(rows: Table) -> Floats:
        return scale * _evidence(lambda each: log_likelihoods(model, each), rows, column, values)

    asserted = told(judges)
    belief = min(_TRUST, key=lambda each: misses(softmax(judged, axis=1), asserted, each))
    posterior = np.log(prior) + belief * told(attacked)
    right = int(np.sum(prior.argmax(axis=1) == truth))
    most = float(beta.ppf(_SURE, right + 1, attacked.n - right)) if right < attacked.n else 1.0
    return Inference(
        column=column,
        without_model=right / attacked.n,
        with_model=float(np.mean(posterior.argmax(axis=1) == truth)),
        bound=min(1.0, most + float(np.mean(gain(prior)))),
        rows=attacked.n,
    )


def _evidence(
    explained: Callable[[Table], Floats] | None, rows: Table, column: str, values: Floats
) -> Floats:
    """How well each row's label is explained if its cell were each of `values`."""
    if explained is None:
        return np.zeros((rows.n, len(values)))
    filled = (rows.filled(column, np.full(rows.n, value)) for value in values)
    return np.column_stack([explained(each) for each in filled])


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


def _learners(known: Floats, codes: NDArray[np.int64]) -> list[Callable[[], Any] | None]:
    """What may teach the prior; None stands for the frequencies alone."""
    values = len(np.unique(codes))
    if values < 2 or not known.shape[1]:
        return [None]
    linear = [partial(LogisticRegression, max_iter=300, C=strength) for strength in (1.0, 0.03)]
    boosted = partial(
        HistGradientBoostingClassifier, max_iter=40, max_leaf_nodes=8, early_stopping=False
    )
    return [None, *linear, *([boosted] if values <= _MOST_BOOSTED else [])]


def _chances(
    make: Callable[[], Any] | None,
    known: Floats,
    asked: Floats,
    codes: NDArray[np.int64],
    count: int,
) -> Floats:
    """The chance of each of `count` values for rows that are asked about, a little smoothed."""
    usual = (np.bincount(codes, minlength=count) + 1.0) / (len(codes) + count)
    prior = np.tile(usual, (len(asked), 1))
    if make is not None:
        with warnings.catch_warnings():
            # Not quite converged is good enough for a learner that is judged on other rows.
            warnings.simplefilter("ignore", ConvergenceWarning)
            learner = make().fit(known, codes)
        learnt = np.zeros_like(prior)
        learnt[:, learner.classes_] = learner.predict_proba(asked)
        prior = 0.95 * learnt + 0.05 * prior
    normal: Floats = prior / prior.sum(axis=1, keepdims=True)
    return normal


def _knowledge(table: Table, column: str, hidden: float) -> Floats:
    """What the attacker knows of a row: all but this cell, which is `hidden` in every row."""
    assert table.label is not None
    rest = table.filled(column, np.full(table.n, hidden))
    blocks = np.hstack([rest.public, rest.private])
    if table.classes is not None:
        return np.hstack([blocks, np.eye(len(table.classes))[table.label]])
    assert table.label_bounds is not None
    low, high = table.label_bounds
    # Unscaled it would drown all else, or be drowned by it.
    label = (np.asarray(table.label, dtype=np.float64) - low) / max(high - low, 1e-300)
    return np.column_stack([blocks, _LABEL_WEIGHT * (label - 0.5)])


AUDIT_FILE = "audit.json"
FIGURE_FILE = "attribute-inference.svg"
ESTIMATED = (
    "Guesses know the rest of the row, its label included. The most that any attacker could reach "
    "is estimated from the guess without the model: it is as good as that guess, and refutes "
    "nothing."
)
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
