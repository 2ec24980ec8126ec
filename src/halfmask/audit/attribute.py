"""Attribute inference: how well private values are guessed with a model, and how well they could
be.

The attacker knows a row's public part and label. Without the model it guesses by what is usual for
such rows; with it, it prefers values that make the label likely. The bound holds for every
attacker, however clever, who has the same prior: docs/proofs/audit.md, "Attribute inference".
Scores are computed on rows of the user's own and are not covered by any guarantee.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halfmask.accounting import accountant
from halfmask.accounting.events import Event
from halfmask.audit.one_run import log_likelihoods, take
from halfmask.errors import InputError
from halfmask.model import Model
from halfmask.model_folder import replacing
from halfmask.signs import tell
from halfmask.table import Codes, KeptColumn, Table

Floats = NDArray[np.float64]

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

    def to_json(self) -> dict[str, Any]:
        """The inference as a JSON object."""
        return asdict(self)


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
    if not isinstance(table.features, Codes):
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
    assert isinstance(table.features, Codes)
    return next(column for column in table.features.columns if column.name == name)


def _prior(known: Table, attacked: Table, codes: NDArray[np.int64], count: int) -> Floats:
    """P(value | public part, label), learnt on other rows (`codes` of `count`) and smoothed."""
    from sklearn.linear_model import LogisticRegression

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


def draw(inferences: Sequence[Inference], path: Path) -> None:
    """Bars per column, without and with the model, and the bound as a line above them."""
    from halfmask.report.plots import guess_bars, house_style

    bars = [(i.column, i.without_model, i.with_model, i.bound) for i in inferences]
    figure = guess_bars(bars).get_figure(root=True)
    assert figure is not None
    with house_style(), replacing(path) as drawn:
        figure.savefig(drawn, metadata={"Date": None} if path.suffix == ".svg" else None)
