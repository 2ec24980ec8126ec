"""Whatever charges has a game and a replay: the list is read off the code, not written by hand."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import test_replay
import test_replay_vertical
from replays import corner_pairs
from test_replay_vertical import corner, run_of

import halfmask
from halfmask.accounting.budget import Budget
from halfmask.audit.mechanisms import MECHANISMS, STAGES
from halfmask.mechanisms.release import Releaser
from halfmask.methods.additive import AdditivePlan

PACKAGE = Path(halfmask.__file__).parent
# What a releaser charges by; `open` alone for what is released elsewhere.
CHARGING = {"gaussian", "gaussian_series", "randomised_response"}
CLASSES = {"PrivateStep", "PaidRows", "GaussianSeries"}
# Attacks, and the door itself.
OUTSIDE = ("mechanisms/", "audit/", "bench/")
Site = tuple[str, str]


def sites(text: str) -> Iterator[str]:
    """The functions of a file that charge, by their qualified names."""

    def walk(node: ast.AST, name: tuple[str, ...]) -> Iterator[str]:
        for child in ast.iter_child_nodes(node):
            inner = name
            if isinstance(child, ast.FunctionDef | ast.ClassDef):
                inner = (*name, child.name)
            if isinstance(child, ast.Call) and charges(child):
                yield ".".join(name)
            yield from walk(child, inner)

    yield from walk(ast.parse(text), ())


def charges(call: ast.Call) -> bool:
    if isinstance(call.func, ast.Attribute):
        owner = ast.unparse(call.func.value).lower()
        if call.func.attr in ("open", "charge"):
            return "releaser" in owner
        return call.func.attr in CHARGING
    return isinstance(call.func, ast.Name) and call.func.id in CLASSES


def sites_in_the_code() -> set[Site]:
    return {
        (file.relative_to(PACKAGE).as_posix(), name)
        for file in PACKAGE.rglob("*.py")
        if not file.relative_to(PACKAGE).as_posix().startswith(OUTSIDE)
        for name in sites(file.read_text(encoding="utf-8"))
    }


def test_the_search_finds_what_it_is_for() -> None:
    text = """
class Method:
    def fit(self, releaser):
        def inner():
            return PrivateStep(releaser, rows=1)
        releaser.open(event, "labels")
        Ledger.open(path)
def other(door):
    return door.gaussian(value, what="x")
"""
    assert set(sites(text)) == {"Method.fit", "Method.fit.inner", "other"}
    assert len(sites_in_the_code()) >= 10


def reached(monkeypatch: pytest.MonkeyPatch, run: Callable[[], object]) -> set[Site]:
    """The functions outside mechanisms/ that open an event while `run` runs."""
    found: set[Site] = set()
    real = Releaser.open

    def watched(self: Releaser, *given: Any, **named: Any) -> None:
        frame = sys._getframe(1)
        while frame is not None:
            file = Path(frame.f_code.co_filename)
            if file.is_relative_to(PACKAGE):
                name = file.relative_to(PACKAGE).as_posix()
                if not name.startswith(OUTSIDE):
                    function = frame.f_code.co_qualname.replace(".<locals>", "")
                    found.add((name, function.replace(".<listcomp>", "")))
                    break
            frame = frame.f_back  # type: ignore[assignment]
        real(self, *given, **named)

    monkeypatch.setattr(Releaser, "open", watched)
    run()
    return found


def test_every_mechanism_that_charges_has_a_game(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")

    def run() -> None:
        for make in MECHANISMS.values():
            make(Budget(epsilon=4.0, delta=1e-5))

    assert sites_in_the_code() <= reached(monkeypatch, run)


def test_every_mechanism_that_charges_has_a_replay(monkeypatch: pytest.MonkeyPatch) -> None:
    """One pair of each case of the replay tests; those go through many."""
    pytest.importorskip("torch")

    def run() -> None:
        for method, cases in test_replay.CASES.items():
            for options, kinds, _ in cases:
                roles, labels = kinds.get("roles", ("half",)), kinds.get("labels", ("two",))
                for role in roles:
                    pair = list(corner_pairs(role, labels[0]))[-1]
                    test_replay.share_of(pair, method, options)
        task, other = corner()
        for simulate in test_replay_vertical.CASES.values():
            told = run_of(simulate, task)
            run_of(simulate, other, told=told.releasers)

    assert sites_in_the_code() <= reached(monkeypatch, run)


def test_every_stage_of_the_additive_plan_has_a_game() -> None:
    shares = set(AdditivePlan.__dataclass_fields__) - {"steps", "looks", "pair_looks"}
    assert set(STAGES) == shares
    assert {f"additive-{name}" for name in shares} <= set(MECHANISMS)


# Two rows cannot move every release of an adaptive method by its bound: what is reached instead.
LEAST = {
    "experts": 0.9,
    "additive": 0.9,
    "additive-pair_descent": 0.9,
    "additive-comparison": 0.89,
    "additive-covered": 0.9,
}


@pytest.mark.parametrize("name", MECHANISMS)
def test_the_inputs_of_a_game_are_as_far_apart_as_was_charged(name: str) -> None:
    """No further, and nearly so far: of a game that is neither, nothing could be learnt."""
    if name.startswith("mlp"):
        pytest.importorskip("torch")
    game: Any = MECHANISMS[name](Budget(epsilon=4.0, delta=1e-5))
    if name == "randomised-response":
        exact = game._exact(game._record(False), False)
        assert [(one != two).sum() for one, two in zip(*exact, strict=True)] == [1]
    else:
        assert LEAST.get(name, 0.95) <= share_of_game(game) <= 1 + 1e-9


@pytest.mark.parametrize("relation", ["replace", "withhold"])
@pytest.mark.parametrize("name", ["additive-descent", "additive-pair_descent"])
def test_what_a_descent_of_a_game_releases_follows_from_no_noise(name: str, relation: Any) -> None:
    """So each input is fitted once; a fit for each guess would take an hour."""
    game: Any = MECHANISMS[name](Budget(epsilon=4.0, delta=1e-5, relation=relation))
    assert game._fixed is not None
    assert share_of_game(game) > 0.95


def share_of_game(game: Any) -> float:
    """How far apart the two inputs of a game are, of what was charged."""
    charged = sum(each.mu**2 for each in game._record(False).releases[game._begin :])
    if game.mechanism == "expert-labels":  # a party's charge is for a row; the label counts here
        charged = sum(each.replace**2 for each in game.events)
    return float(game.reach() / charged**0.5)
