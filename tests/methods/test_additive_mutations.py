"""One line of `additive` changed at a time: a replay on neighbours finds each mistake.

A mistake is a text of a function that is exchanged for another; the neighbours below are those that
show it. What is found shows without statistics: a release that moves further than was charged, a
model, a plan or noise that follows from private values.
"""

from __future__ import annotations

import inspect
import sys
import textwrap
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pytest
from tests.audit.replays import (
    FAR,
    LABELS,
    EdgePair,
    as_pandas,
    assert_within_charge,
    share_withheld,
)

from halfmask.audit import ReplayError
from halfmask.mechanisms import release
from halfmask.methods import additive, additive_classes, additive_descent, covered, public_sums
from halfmask.methods.additive import AdditiveRun
from halfmask.methods.additive_classes import ClassesRun
from halfmask.schema import Column, Schema, Unit

EPSILON = 2000.0
ROWS = 24
_TRIES = 8


def pair(
    label: str,
    *,
    role: Any = "private",
    roles: tuple[Any, ...] = ("private", "private"),
    jump: bool = False,
    flip: bool = True,
    skip: bool = False,
    rare: bool = False,
    odd: bool = False,
    unit: int = 1,
    epsilon: float = EPSILON,
    weights: bool = False,
) -> EdgePair:
    """The first `unit` rows change: labels turn round (`flip`), levels `jump`.

    With `skip` labels may be missing, although none is. With `rare` these rows and a few more have
    a level that tells their label, unless they are `odd`.
    """
    low, high = FAR[label]
    names = [f"c{place}" for place in range(len(roles))]
    first = [row < unit + 6 if rare else row % 2 == 0 for row in range(ROWS)]
    values: dict[str, list[Any]] = {
        name: [
            "a" if (one or (row // 2 % 2 == 0 and place and not rare)) else "b"
            for row, one in enumerate(first)
        ]
        for place, name in enumerate(names)
    }
    values["y"] = [
        low if (row < unit + 6 if rare else row // 3 % 2 == 0) else (low, high)[row % 2]
        for row in range(ROWS)
    ]
    values["id"] = ["p" if row < unit else f"p{row}" for row in range(ROWS)]
    other = {name: list(cells) for name, cells in values.items()}
    for row in range(unit):
        values["y"][row] = other["y"][row] = high if odd else low
        if role == "private" and flip:
            other["y"][row] = low if odd else high
        for name, own in zip(names, roles, strict=True):
            if jump and own == "private":
                other[name][row] = "b" if values[name][row] == "a" else "a"
    columns = tuple(
        Column(name, own, "category", categories=("a", "b"))
        for name, own in zip(names, roles, strict=True)
    )
    target = replace(LABELS[label], role=role, missing="skip" if skip else None)
    return EdgePair(
        schema=Schema(target, columns, Unit(column="id", max_rows=9) if unit > 1 else None),
        frame=as_pandas(values),
        neighbour=as_pandas(other),
        replaced=None,
        rows=tuple(range(unit)),
        epsilon=epsilon,
        sample_weight=np.where(np.arange(ROWS) < unit, 40.0, 1.0) if weights else None,
    )


def replaced(neighbours: EdgePair) -> float:
    return assert_within_charge(
        neighbours.estimator("additive", epsilon=neighbours.epsilon),
        neighbours.frame,
        neighbours.neighbour,
        sample_weight=neighbours.sample_weight,
    )


Attack = tuple[Callable[[EdgePair], float], EdgePair]
PUBLIC = {"role": "public", "jump": True, "roles": ("private", "public")}
UNITS = {"unit": 6, "epsilon": 100.0}
ATTACKS: dict[str, Attack] = {
    "two flip": (replaced, pair("two")),
    "two jump": (replaced, pair("two", jump=True, flip=False)),
    "two rare": (replaced, pair("two", rare=True)),
    "two skip": (replaced, pair("two", skip=True)),
    "two public": (replaced, pair("two", **PUBLIC)),
    "two all public": (replaced, pair("two", role="public", jump=True)),
    "two unit": (replaced, pair("two", **UNITS)),
    "two weights": (replaced, pair("two", weights=True)),
    "two odd": (share_withheld, pair("two", rare=True, odd=True)),
    "three odd": (share_withheld, pair("three", rare=True, odd=True)),
    "number odd": (share_withheld, pair("number", rare=True, odd=True)),
    "three flip": (replaced, pair("three")),
    "three alone": (replaced, pair("three", roles=("private",))),
    "number flip": (replaced, pair("number")),
    "number mixed": (replaced, pair("number", roles=("public", "private"))),
    "two known": (replaced, pair("two", roles=("public", "public"))),
}


class Mistake(NamedTuple):
    """The attack that finds it; a function, what it says, and what it says by mistake."""

    attack: str
    where: Any
    name: str
    right: str
    wrong: str


def make(mistake: Mistake, patch: pytest.MonkeyPatch) -> None:
    """Exchange the function wherever a module of the package has it."""
    real = getattr(mistake.where, mistake.name)
    source = textwrap.dedent(inspect.getsource(real))
    assert source.count(mistake.right) == 1, mistake
    names = dict(real.__globals__)
    exec(source.replace(mistake.right, mistake.wrong), names)
    patch.setattr(mistake.where, mistake.name, names[mistake.name])
    for module in [each for name, each in sys.modules.items() if name.startswith("halfmask.")]:
        for name, held in list(vars(module).items()):
            if held is real:
                patch.setattr(module, name, names[mistake.name])


RUN, DESCENT = AdditiveRun, additive_descent.Descent
MISTAKES: dict[str, Mistake] = {
    "half the noise": Mistake(
        "two flip",
        release.Releaser,
        "noisy",
        "add_gaussian(value, noise_std,",
        "add_gaussian(value, noise_std / 2,",
    ),
    "half the deviation": Mistake(
        "two flip", release, "widened_std", "return noise_std *", "return 0.5 * noise_std *"
    ),
    "half a unit": Mistake(
        "two flip", additive_descent.Stage, "_unit", "self._most *", "0.5 * self._most *"
    ),
    "no clip: slope of a number": Mistake(
        "number flip",
        DESCENT,
        "_slopes",
        "np.clip(scores - target[rows], -low, high)",
        "scores - target[rows]",
    ),
    "no clip: slope of two classes": Mistake(
        "two odd",
        DESCENT,
        "_slopes",
        "(chance - target[rows]) * bounded_weight(chance, low, high)\n"
        "        slope = np.clip(bounded, -low, high)",
        "chance - target[rows]\n        slope = bounded",
    ),
    "no clip: slopes of classes": Mistake(
        "three odd", additive_classes, "errors", "found * slope_weight(chances)", "found"
    ),
    "no clip: mean of a number": Mistake(
        "number flip",
        RUN,
        "_base_rate",
        "np.clip((self._target - middle) / half, -1, 1)",
        "(self._target - middle) / half * 2",
    ),
    "no clip: scores compared": Mistake(
        "two rare",
        RUN,
        "_errors",
        "np.clip(extra / unit, -long, long), np.clip(extra / unit, -short, short)",
        "extra / unit, extra / unit",
    ),
    "no clip: errors compared": Mistake(
        "number odd",
        RUN,
        "_errors",
        "np.clip(target / unit - score, -cut, cut)",
        "target / unit - score",
    ),
    "no clip: scores of classes compared": Mistake(
        "three odd", ClassesRun, "_compared_classes", "g * np.minimum(1.0, short / length)", "g"
    ),
    "no clip: a number in public sums": Mistake(
        "number mixed",
        public_sums,
        "fit_public_sums",
        "np.clip(target - known, left * low, left * high)",
        "target - known",
    ),
    "no clip: covered losses": Mistake(
        "three flip",
        covered,
        "covered_many",
        "np.clip(-(chances[pool[target], every] + within[target]), 0.0, longest)",
        "-3 * (chances[pool[target], every] + within[target])",
    ),
    "no clip: covered errors": Mistake(
        "number odd",
        covered,
        "covered_numbers",
        "np.minimum((errors / limit) ** 2, 1.0)",
        "(16 * (errors / limit) ** 2)",
    ),
    "corner: opposite slopes": Mistake(
        "two flip",
        additive_descent,
        "slope_moves",
        "max(longest * diameter, (low + high) * radius)",
        "longest * max(diameter, radius)",
    ),
    "corner: levels that move": Mistake(
        "two all public",
        additive_descent,
        "public_label_moves",
        "most * max(radius, diameter)",
        "most * radius",
    ),
    "corner: two labels of classes": Mistake(
        "three alone",
        additive_classes,
        "class_moves",
        "max(math.sqrt(apart) * radius, longest * diameter)",
        "max(0.1 * radius, longest * diameter)",
    ),
    "corner: label that may be missing": Mistake(
        "two skip", RUN, "_base_rate", "moves = (math.sqrt(2), 1.0)", "moves = (1.0, 1.0)"
    ),
    "corner: level that goes": Mistake(
        "two jump", RUN, "_counts", "(math.sqrt(2 * len(hidden)),", "(math.sqrt(len(hidden)),"
    ),
    "corner: two signs of a mean": Mistake(
        "number flip",
        RUN,
        "_base_rate",
        "np.array([held.sum()]), (2.0, 1.0))",
        "np.array([held.sum()]), (1.0, 1.0))",
    ),
    "corner: classes counted": Mistake(
        "three flip",
        ClassesRun,
        "_class_shares",
        "moves = (math.sqrt(2), 1.0)",
        "moves = (1.0, 1.0)",
    ),
    "corner: withheld comparison": Mistake(
        "two odd",
        additive,
        "comparison_moves",
        "_COMPARISON @ halves**2",
        "0.2 * _COMPARISON @ halves**2",
    ),
    "corner: withheld slope": Mistake(
        "two odd",
        additive_descent,
        "slope_moves",
        ", longest * radius",
        ", min(low, high) * radius / 2",
    ),
    "observed levels": Mistake("two jump", RUN, "_counts", "np.split(noisy, ends[:-1])", "exact"),
    "observed window of a number": Mistake(
        "number flip",
        RUN,
        "_label_window",
        "noisy = self._spread_stage.release(counts.astype(np.float64), moves)",
        "noisy = counts + 0 * self._spread_stage.release(counts.astype(np.float64), moves)",
    ),
    "private start": Mistake(
        "two flip",
        RUN,
        "_base_rate",
        "second = self._base_stage.release(np.array([second]), moves)[0]",
        "self._base_stage.release(np.array([second]), moves)",
    ),
    "products by private labels": Mistake(
        "two known",
        public_sums,
        "fit_public_sums",
        "space = solver.widened(_CLEAR / (strength * bend))",
        "space = solver.widened(0.0 if target[0] > 0.5 else 1e9)",
    ),
    "private shares of classes": Mistake(
        "three flip",
        ClassesRun,
        "_class_shares",
        "counts = self._base_stage.release(counts, moves)",
        "self._base_stage.release(counts, moves)",
    ),
    "labels counted": Mistake(
        "two odd",
        RUN,
        "_base_rate",
        "weights, n = self._even, self._even_n",
        "weights, n = self._even, float(self._even @ self._labelled)",
    ),
    "unit: rows forgotten": Mistake(
        "two unit",
        additive,
        "row_weights",
        "weights, most = found.rows, float(found.most)",
        "most = 1.0",
    ),
    "unit: base rate and comparison charged as others": Mistake(
        "two unit", RUN, "_open", '("base", "comparison", "covered")', '("covered",)'
    ),
    "unit: covered scores charged as others": Mistake(
        "two unit", RUN, "_open", '("base", "comparison", "covered")', '("base", "comparison")'
    ),
    "weights not scaled": Mistake(
        "two weights", additive, "row_weights", "(given / given.max())", "given"
    ),
    "free model of private columns": Mistake(
        "two public",
        RUN,
        "_beside_free_model",
        "free, places = None, tuple(self._public)",
        "free, places = None, tuple(range(len(self._columns)))",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_found_by_a_replay(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make(MISTAKES[name], monkeypatch)
    attack, neighbours = ATTACKS[MISTAKES[name].attack]
    with pytest.raises((AssertionError, ReplayError)):
        _often(attack, neighbours)


def _often(attack: Callable[[EdgePair], float], neighbours: EdgePair) -> None:
    """Noise decides how far neighbours move a release: one draw in six does not show a mistake."""
    for _ in range(_TRIES):
        attack(neighbours)


@pytest.mark.parametrize("name", ATTACKS)
def test_without_a_mistake_no_attack_finds_one(name: str) -> None:
    attack, neighbours = ATTACKS[name]
    assert attack(neighbours) > 0.05
