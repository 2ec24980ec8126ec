"""The additive method as games: the whole fit, and each of its stages alone.

A stage's game claims what the stage was charged; the budget of the whole fit is made so large that
this is what was asked for. What was released before the stage is given, as its guarantee allows.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import pyarrow as pa

from halfmask.accounting.budget import Budget
from halfmask.accounting.relations import Relation
from halfmask.audit.distinguish import Game
from halfmask.audit.games import enough_runs, fit_game, fit_of, furthest
from halfmask.schema import Column, Label, Schema
from halfmask.table import Encoder, Table

Make = Callable[[Budget], Game]

_STRENGTH = 1300.0


@dataclass(frozen=True, kw_only=True)
class _Kind:
    """Tables on which one row moves a stage as far as a row can, or nearly so.

    `flip`: the row's label goes from end to end; `jump`: its private level does. With `rare` its
    level is rare and tells the label, so that its score is far from the others'. With `pairs` there
    is a second private column, and both together tell a little of the label.
    """

    number: bool = True
    public: bool = False
    flip: bool = True
    jump: bool = False
    rare: bool = False
    pairs: bool = False

    @property
    def private(self) -> int:
        """The number of private columns."""
        return 2 if self.pairs else 1

    @property
    def strength(self) -> float:
        """Rows times mu: so many that each stage has its smallest share, which is a constant then,
        and that there are pairs where the game is about them.
        """
        return 7000.0 if self.pairs else _STRENGTH


# By field of AdditivePlan.
STAGES: dict[str, _Kind] = {
    "base": _Kind(),
    "spread": _Kind(),
    "public": _Kind(number=False, public=True),
    "counts": _Kind(flip=False, jump=True),
    "worth": _Kind(),
    "descent": _Kind(),
    "pairs": _Kind(pairs=True),
    "pair_descent": _Kind(pairs=True),
    "comparison": _Kind(rare=True),
    "covered": _Kind(number=False, rare=True),
}


def additive(claim: Budget) -> Game:
    """The whole fit: the label of a row turns round. No row moves all stages by their bounds."""
    from halfmask.additive_model import fit_additive

    rows = math.ceil(_STRENGTH / claim.mu)
    first, second = _tables(_Kind(), rows, claim.relation)
    return fit_game(
        "additive",
        claim,
        (first, second),
        fit_of(fit_additive),
        runs=enough_runs(claim.epsilon, least=6_000, most=12_000),
    )


def _stage(name: str, claim: Budget) -> Game:
    """One stage of the fit, `name` being a field of the plan."""
    from halfmask.additive_model import fit_additive
    from halfmask.methods.additive import AdditivePlan

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
    first, second = _tables(kind, math.ceil(kind.strength / whole.mu), claim.relation)
    runs = enough_runs(claim.epsilon)
    if name.endswith("descent"):
        runs = enough_runs(claim.epsilon, least=6_000, most=12_000)
    elif name == "comparison":  # no two rows move all of its numbers
        runs *= 3
    # What was released before is the auditor's choice too: it decides what the rare row scores.
    return furthest(
        [
            fit_game(
                f"additive-{name}",
                whole,
                (first, second),
                fit_of(fit_additive),
                runs=runs,
                stage=stage.what,
            )
            for _ in range(8 if kind.rare else 1)
        ]
    )


def _tables(kind: _Kind, rows: int, relation: Relation) -> tuple[Table, Table]:
    """Two tables that differ in row 0. Withheld, its label is missing (a level cannot be)."""
    skip: Literal["skip"] | None = "skip" if relation == "withhold" else None
    label = (
        Label("y", "private", bounds=(-1, 1), missing=skip)
        if kind.number
        else Label("y", "private", classes=("no", "yes"), missing=skip)
    )
    columns = [Column("level", "private", "category", categories=("a", "b"))]
    if kind.public:
        columns.append(Column("open", "public", "category", categories=("a", "b")))
    if kind.pairs:
        columns.append(Column("second", "private", "category", categories=("a", "b")))
    schema = Schema(label, tuple(columns))
    ends: tuple[Any, Any] = (-1.0, 1.0) if kind.number else ("no", "yes")

    def frame(level: str, end: Any) -> pa.Table:
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
            together = [ends[one == two] for one, two in zip(levels, second, strict=True)]
            labels = [together[row] if row // 4 % 11 == 0 else labels[row] for row in range(rows)]
        given = {"level": [level, *levels[1:]], "y": [end, *labels[1:]]}
        if kind.public:
            given["open"] = second
        if kind.pairs:
            given["second"] = second
        return pa.table({name: pa.array(cells) for name, cells in given.items()})

    level = "b" if kind.rare else "a"
    one = frame(level, ends[0])
    two = frame(level, None)
    if relation == "replace":
        two = frame("b" if kind.jump else level, ends[1] if kind.flip else ends[0])
    encoder = Encoder.fit(schema, one)
    return encoder.encode(one), encoder.encode(two)


ADDITIVE: dict[str, Make] = {
    "additive": additive,
    **{f"additive-{name}": partial(_stage, name) for name in STAGES},
}
