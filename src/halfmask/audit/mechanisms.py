"""The package's own mechanisms as games, by the name that `halfmask audit --mechanism` takes."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from halfmask.accounting.budget import Budget
from halfmask.accounting.events import Relation
from halfmask.additive_model import fit_additive
from halfmask.audit.distinguish import Game
from halfmask.audit.games import (
    RATE,
    STANDSTILL,
    STEPS,
    FitGame,
    enough_runs,
    fit_of,
    furthest,
    one_row,
    sampled_fit,
    step_game,
)
from halfmask.audit.mechanisms_neural import mlp, mlp_correction, mlp_means
from halfmask.audit.mechanisms_vertical import (
    admm_column,
    admm_row,
    counts,
    expert_labels,
    experts,
    fdml,
    randomised_response,
)
from halfmask.methods.additive import AdditivePlan
from halfmask.methods.gd import GdConfig, LectureConfig, fit_gd
from halfmask.methods.label_span import LabelSpanConfig, fit_label_span
from halfmask.methods.one_shot import fit_one_shot
from halfmask.methods.sgd import SgdConfig, fit_sgd
from halfmask.schema import Column, Label, Role, Schema, Unit
from halfmask.table import Encoder, Table

# --- The additive method as games: the whole fit, and each of its stages alone.
# A stage's game claims what the stage was charged; the budget of the whole fit is made so large
# that this is what was asked for. What was released before the stage is given, as its guarantee
# allows.


Make = Callable[[Budget], Game]

# Rows times mu: so many that each stage has its smallest share, which is a constant then; that no
# noise brings a score so far that the slope of a row is not cut any more, so that what a descent
# releases follows from no noise; and that there are pairs where the game is about them.
_STRENGTH, _UNMOVED, _PAIRED = 1300.0, 5000.0, 7000.0
# Each of them fits twice: as many as are done in minutes, and tell enough of an epsilon of 4.
_ADAPTIVE_RUNS = 12_000


@dataclass(frozen=True, kw_only=True)
class _Kind:
    """Tables on which one row moves a stage as far as a row can, or nearly so.

    `flip`: the row's label goes from end to end; `jump`: its private level does. With `rare` its
    level is rare and tells the label, so that its score is far from the others'. With `pairs` there
    is a second private column. `strength`: rows times mu.
    """

    number: bool = True
    public: bool = False
    flip: bool = True
    jump: bool = False
    rare: bool = False
    pairs: bool = False
    strength: float = _STRENGTH

    @property
    def private(self) -> int:
        """The number of private columns."""
        return 2 if self.pairs else 1


# By field of AdditivePlan.
STAGES: dict[str, _Kind] = {
    "base": _Kind(),
    "spread": _Kind(),
    "public": _Kind(number=False, public=True),
    "counts": _Kind(flip=False, jump=True),
    "worth": _Kind(),
    "descent": _Kind(strength=_UNMOVED),
    "pairs": _Kind(pairs=True, strength=_PAIRED),
    "pair_descent": _Kind(pairs=True, strength=_PAIRED),
    "comparison": _Kind(rare=True),
    "covered": _Kind(number=False, public=True, rare=True),
}


def additive(claim: Budget) -> Game:
    """The whole fit: the label of a row turns round. No row moves all stages by their bounds."""
    tables = _tables(_Kind(), math.ceil(_STRENGTH / claim.mu), claim.relation)
    return FitGame("additive", claim, tables, fit_of(fit_additive), runs=_ADAPTIVE_RUNS)


def _stage(name: str, claim: Budget) -> Game:
    """One stage of the fit, `name` being a field of the plan."""
    kind = STAGES[name]
    plan = AdditivePlan.of(
        rows=kind.strength,
        private_columns=kind.private,
        public_columns=int(kind.public),
        label_private=True,
        number=kind.number,
        mu=1.0,
    )
    (stage,) = (
        each
        for each in plan.stages(private_columns=kind.private, number=kind.number)
        if each.name == name
    )
    whole = claim.scaled(1 / math.sqrt(stage.share))
    tables = _tables(kind, math.ceil(kind.strength / whole.mu), claim.relation)
    runs = enough_runs(claim.epsilon)
    if name == "comparison":  # no two rows move all of its numbers
        runs *= 3
    # What was released before is the auditor's choice too: it decides what the rare row scores.
    return furthest(
        [
            FitGame(
                f"additive-{name}", whole, tables, fit_of(fit_additive), runs=runs, stage=stage.what
            )
            for _ in range(8 if kind.rare else 1)
        ]
    )


def _tables(kind: _Kind, rows: int, relation: Relation) -> tuple[Table, Table]:
    """Two tables that differ in row 0. Withheld, its label is missing (a level cannot be)."""
    declared: dict[str, Any] = {"bounds": (-1, 1)} if kind.number else {"classes": ("no", "yes")}
    columns = [_two_levels("level", "private")]
    if kind.public:
        columns.append(_two_levels("open", "public"))
    if kind.pairs:
        columns.append(_two_levels("second", "private"))
    schema = Schema(_label(relation, **declared), tuple(columns))
    ends: tuple[Any, Any] = (-1.0, 1.0) if kind.number else ("no", "yes")

    def cells(level: str, end: Any) -> dict[str, list[Any]]:
        if kind.rare:
            # So rare that its score lies beyond the ends at which scores are cut; of a number half
            # is told, so that either end is far from its score.
            every, told = (32, 64) if kind.number else (10, 10)
            levels = ["b" if row % every == 0 else "a" for row in range(rows)]
            common = [0.0] if kind.number else ends
            labels = [common[row // 4 % len(common)] for row in range(rows)]
            labels = [ends[1] if row % told == 0 else y for row, y in enumerate(labels)]
        else:
            levels = ["ab"[row % 2] for row in range(rows)]
            labels = [ends[row // 4 % 2] for row in range(rows)]
        second = ["ab"[row // 2 % 2] for row in range(rows)]
        if kind.pairs:
            # Level a is a little rarer, so that it lies furthest from the mean, as row 0 should.
            levels, second = (
                ["b" if row % 20 == 4 else level for row, level in enumerate(column)]
                for column in (levels, second)
            )
        given = {"level": [level, *levels[1:]], "y": [end, *labels[1:]]}
        if kind.public:
            given["open"] = second
        if kind.pairs:
            given["second"] = second
        return given

    level = "b" if kind.rare else "a"
    other = cells(level, None)
    if relation == "replace":
        other = cells("b" if kind.jump else level, ends[1] if kind.flip else ends[0])
    return _read(schema, cells(level, ends[0]), other)


def _label(relation: Relation, **declared: Any) -> Label:
    """A private label, which may be missing where it is withheld."""
    return Label("y", "private", missing=None if relation == "replace" else "skip", **declared)


def _two_levels(name: str, role: Role) -> Column:
    return Column(name, role, "category", categories=("a", "b"))


ADDITIVE: dict[str, Make] = {
    "additive": additive,
    **{f"additive-{name}": partial(_stage, name) for name in STAGES},
}


def number_table(rows: np.ndarray, label: np.ndarray, *, label_private: bool) -> Table:
    """A regression on private features in the unit ball and a label in [-1, 1]."""
    table = Table.from_arrays(
        rows, label, row_norm=1.0, task="regression", label_bounds=(-1.0, 1.0)
    )
    return replace(table, label_private=label_private)


def _neighbours(relation: Relation, *, rows: int, width: int) -> tuple[Table, Table]:
    """One row against its opposite; withheld, with a public label, against a row of zeros.

    A private label cannot be withheld in a table: every label counts. So there it is public.
    """
    X = np.zeros((rows, width))
    y = np.zeros(rows)
    X[0, 0], y[0] = 1.0, 1.0
    other, label = X.copy(), y.copy()
    if relation == "replace":
        label[0] = -1.0
    else:
        other[0] = 0.0
    private = relation == "replace"
    return (
        number_table(X, y, label_private=private),
        number_table(other, label, label_private=private),
    )


def full_batch(claim: Budget) -> Game:
    """Gradient canaries in steps that every row takes part in."""
    return step_game("full-batch", claim, rate=1.0, steps=2, runs=enough_runs(claim.epsilon))


def gd(claim: Budget) -> Game:
    """Noisy gradient descent; slopes are clipped low and the ball is small, so that the gradient
    of the canary reaches the bound in every step (one, where a row is withheld).
    """
    steps = 3 if claim.relation == "replace" else 1
    config = GdConfig(clip=0.05, radius=1e-3, spread=1e6, steps=steps)
    tables = _neighbours(claim.relation, rows=1, width=2 if claim.relation == "replace" else 128)

    return FitGame("gd", claim, tables, fit_of(fit_gd, config))


def one_shot(claim: Budget) -> Game:
    """One release of moments; the auditor tries angles between the two private parts."""
    fit = fit_of(fit_one_shot)

    def game(angle: float) -> FitGame:
        first, second = _neighbours(claim.relation, rows=2, width=2)
        if claim.relation == "replace":
            private = second.private.copy()
            private[0] = np.cos(angle), np.sin(angle)
            second = second.with_blocks(private=private)
        return FitGame("one-shot", claim, (first, second), fit)

    angles = np.linspace(0, np.pi, 13) if claim.relation == "replace" else [0.0]
    return furthest([game(float(angle)) for angle in angles])


def sgd(claim: Budget) -> Game:
    """Algorithm 1 on a table of one row, all of it private; withheld, gradient canaries."""
    tables = _neighbours("replace", rows=1, width=2)
    config = SgdConfig(rate=RATE, steps=STEPS, clip_norm=0.25, learning_rate=STANDSTILL)
    return sampled_fit("sgd", fit_sgd, tables, config, claim)


def label(claim: Budget) -> Game:
    """Algorithm 1 with a private label of three classes and public features."""
    first, second = (
        replace(
            row.with_blocks(public=row.private, private=np.zeros((1, 0))),
            public_norm=1.0,
            private_norm=0.0,
            public_sources=row.private_sources,
            private_sources=(),
        )
        for row in one_row(classes=3)
    )
    config = SgdConfig(rate=RATE, steps=STEPS)
    return sampled_fit("label", fit_sgd, (first, second), config, claim)


def _read(
    schema: Schema, cells: dict[str, list[Any]], other: dict[str, list[Any]]
) -> tuple[Table, Table]:
    """Two tables as a user's frames would be read; `other` are the cells of the second."""
    frames = [pa.table(given) for given in (cells, {**cells, **other})]
    encoder = Encoder.fit(schema, frames[0])
    first, second = (encoder.encode(frame) for frame in frames)
    return first, second


def gd_public_label(claim: Budget) -> Game:
    """One step of gd on private levels, the label being public: a row's level changes.

    A table cannot lack a level: withheld, the label of the row is private and missing.
    """
    replaced = claim.relation == "replace"
    label = _label(claim.relation, classes=("no", "yes"))
    label = replace(label, role="public") if replaced else label
    schema = Schema(label, (_two_levels("level", "private"),))
    cells = {"level": ["a", "b"] * 2, "y": ["no", "yes"] * 2}
    other = {"level": ["b", "b", "a", "b"]} if replaced else {"y": [None, *cells["y"][1:]]}
    fit = fit_of(fit_gd, GdConfig(steps=1))
    return FitGame("gd-public-label", claim, _read(schema, cells, other), fit)


def gd_lecture(claim: Budget) -> Game:
    """The lecture's recipe of gd: the label of a row is flipped, or missing where it is withheld.

    The hinge has slope 1 at zero, where a small ball keeps the weights: the bound in every step.
    """
    replaced = claim.relation == "replace"
    label = _label(claim.relation, classes=("no", "yes"))
    schema = Schema(label, (_two_levels("level", "private"),))
    cells = {"level": ["a", "b"], "y": ["no", "yes"]}
    other: dict[str, list[str | None]] = {"y": ["yes" if replaced else None, "yes"]}
    config = LectureConfig(loss="smoothed-hinge", steps=3, radius=1e-3)
    fit = fit_of(fit_gd, config)
    return FitGame("gd-lecture", claim, _read(schema, cells, other), fit)


def sgd_public(claim: Budget) -> Game:
    """Algorithm 1 with a public column: only what private parts change of the loss is clipped."""
    columns = (_two_levels("level", "private"), _two_levels("open", "public"))
    schema = Schema(Label("y", "private", classes=("no", "yes")), columns)
    tables = _read(schema, {"level": ["a"], "open": ["a"], "y": ["no"]}, {"y": ["yes"]})
    config = SgdConfig(rate=RATE, steps=STEPS, clip_norm=0.1, learning_rate=STANDSTILL)
    return sampled_fit("sgd-public", fit_sgd, tables, config, claim)


def _two_rows(relation: Relation, *, private: bool) -> tuple[Table, Table]:
    """One unit of two rows whose labels turn round, or are missing."""
    columns: tuple[Column, ...] = (_two_levels("level", "public"),)
    if private:
        columns += (_two_levels("hidden", "private"),)
    schema = Schema(_label(relation, bounds=(-1, 1)), columns, Unit(column="id", max_rows=3))
    cells: dict[str, list[Any]] = {"level": ["a", "a"], "y": [1.0, 1.0], "id": [1, 1]}
    if private:
        cells["hidden"] = ["a", "a"]
    end = -1.0 if relation == "replace" else None
    return _read(schema, cells, {"y": [end, end]})


def units(claim: Budget) -> Game:
    """One release about a unit of two rows, both of which change."""
    tables = _two_rows(claim.relation, private=False)
    return FitGame("units", claim, tables, fit_of(fit_one_shot))


def sgd_units(claim: Budget) -> Game:
    """Sampled steps that draw a unit of two rows, both of which change."""
    config = SgdConfig(rate=RATE, steps=STEPS, clip_norm=0.1, learning_rate=STANDSTILL)
    tables = _two_rows("replace", private=True)
    return sampled_fit("sgd-units", fit_sgd, tables, config, claim)


def label_span(claim: Budget) -> Game:
    """Noisy copies of the label of one row, which is another one, or missing."""
    label = _label(claim.relation, classes=("no", "yes", "maybe"))
    schema = Schema(label, (_two_levels("level", "public"),))
    end = "yes" if claim.relation == "replace" else None
    tables = _read(schema, {"level": ["a", "b"], "y": ["no", "no"]}, {"y": [end, "no"]})
    fit = fit_of(fit_label_span, LabelSpanConfig(passes=2))
    return FitGame("label-span", claim, tables, fit)


MECHANISMS: dict[str, Make] = {
    "sgd": sgd,
    "gd": gd,
    "one-shot": one_shot,
    "mlp": mlp,
    "mlp-means": mlp_means,
    "mlp-correction": mlp_correction,
    "label": label,
    "admm-column": admm_column,
    "admm-row": admm_row,
    "experts": experts,
    "full-batch": full_batch,
    "gd-public-label": gd_public_label,
    "gd-lecture": gd_lecture,
    "sgd-public": sgd_public,
    "units": units,
    "sgd-units": sgd_units,
    "label-span": label_span,
    "fdml": fdml,
    "counts": counts,
    "expert-labels": expert_labels,
    "randomised-response": randomised_response,
    **ADDITIVE,
}
