"""Every method, replayed on neighbouring frames: no statistics, so every failure is a leak."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from replays import (
    PRIVATE,
    Pair,
    assert_within_charge,
    corner_pairs,
    neighbour_pairs,
)

from halfmask import HalfmaskClassifier
from halfmask.accounting.ledger import Ledger, MemoryLedger
from halfmask.audit import ReplayError, record, replay
from halfmask.audit.transcript import recorded, replayed
from halfmask.errors import InputError
from halfmask.mechanisms import release
from halfmask.mechanisms import release as private_step
from halfmask.mechanisms.noise import add_gaussian, noise_source
from halfmask.methods import gd, label_span, one_shot
from halfmask.methods import moments as moment_sensitivity
from halfmask.methods.gd import GdConfig
from halfmask.table import Encoder
from halfmask.training import METHODS

try:
    from halfmask.neural.config import CorrectionConfig, StepsConfig
    from halfmask.neural.pretrain import PretrainConfig

    DEFAULT_RECIPE: dict[str, Any] = {
        "pretrain": PretrainConfig(hidden=6, networks=1, epochs=1),
        "correction": CorrectionConfig(steps=4),
        "warm_start": StepsConfig(steps=4, rate=0.5),
        "network": StepsConfig(steps=4, rate=0.5),
    }
except ModuleNotFoundError:
    DEFAULT_RECIPE = {}
SMALL = {"hidden": 6}
NETWORK: dict[str, Any] = {"units": False, "labels": ("two", "three"), "most_rows": 12}
PUBLIC_LABEL = ("features", "levels")
STEPS = {"steps": 4, "rate": 0.5}

# Each method with options and the pairs it takes; more of them are checked of faster ones.
CASES: dict[str, list[tuple[dict[str, Any] | None, dict[str, Any], int]]] = {
    "auto": [(None, {}, 15)],
    "additive": [(None, {}, 40)],
    "one-shot": [(None, {}, 60)],
    "gd": [
        (None, {}, 60),
        ({"config": GdConfig(steps=12, clip=0.3, aggregate="last")}, {}, 30),
        ({"public_start": False}, {"roles": ("half",)}, 15),
        ({"recipe": "lecture", "steps": 6}, {}, 25),
    ],
    "sgd": [(STEPS, {}, 40), ({**STEPS, "clip_norm": 0.1}, {}, 20)],
    "dp-sgd": [(STEPS, {}, 30)],
    "label-span": [
        (None, {"roles": ("label",)}, 25),
        ({"passes": 2, "order": "uniform"}, {"roles": ("label",)}, 25),
    ],
    "mlp": [
        ({"recipe": "dp-sgd", **STEPS, **SMALL}, NETWORK, 10),
        ({"recipe": "algorithm-1", **STEPS, **SMALL}, {**NETWORK, "roles": PUBLIC_LABEL}, 8),
        (
            {"recipe": "algorithm-1", "regulariser": "reconstruct", **STEPS, **SMALL},
            {**NETWORK, "roles": ("label", "half", "all")},
            8,
        ),
        (
            {"recipe": "algorithm-1", "padding": "means", **STEPS, **SMALL},
            {**NETWORK, "roles": ("half", "all")},
            5,
        ),
        (
            {"recipe": "algorithm-1", "padding": "class-means", **STEPS, **SMALL},
            {**NETWORK, "roles": PUBLIC_LABEL},
            5,
        ),
        (DEFAULT_RECIPE, {**NETWORK, "roles": PUBLIC_LABEL}, 5),
    ],
}
# What a row without a label adds is nothing, so that a missing one is a withheld one.
WITHHELD: dict[str, tuple[dict[str, Any] | None, dict[str, Any], int]] = {
    "one-shot": (None, {"roles": ("label",)}, 15),
    "gd": (None, {"roles": ("label", "all")}, 20),
    "sgd": (STEPS, {"roles": ("label", "all")}, 20),
    "dp-sgd": (STEPS, {"roles": ("label", "half", "all")}, 15),
    "label-span": (None, {"roles": ("label",)}, 15),
    "mlp": ({"recipe": "dp-sgd", **STEPS, **SMALL}, {**NETWORK, "roles": ("label", "all")}, 5),
}


def each_case() -> list[Any]:
    return [
        pytest.param(method, *case, id=f"{method}-{place}")
        for method, cases in CASES.items()
        for place, case in enumerate(cases)
    ]


def over_pairs(pairs: Any, examples: int, check: Callable[[Pair], object]) -> None:
    """Run `check` on so many pairs; slow machines are no failure."""

    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    @given(pairs)
    def each(pair: Pair) -> None:
        check(pair)

    each()


def share_of(
    pair: Pair, method: str, options: dict[str, Any] | None, relation: str = "replace"
) -> float:
    estimator = pair.estimator(method, options, relation=relation)
    return assert_within_charge(estimator, pair.frame, pair.neighbour, replaced=pair.replaced)


def test_every_method_that_charges_has_a_replay_test() -> None:
    assert set(CASES) == set(METHODS)
    assert all(cases for cases in CASES.values())


@pytest.mark.parametrize(("method", "options", "kinds", "examples"), each_case())
def test_no_neighbour_moves_a_fit_beyond_its_charge(
    method: str, options: Any, kinds: dict[str, Any], examples: int
) -> None:
    if method == "mlp":
        pytest.importorskip("torch")
    over_pairs(neighbour_pairs(**kinds), examples, lambda pair: share_of(pair, method, options))


@pytest.mark.parametrize("method", WITHHELD)
def test_no_withheld_row_moves_a_fit_beyond_its_charge(method: str) -> None:
    if method == "mlp":
        pytest.importorskip("torch")
    options, kinds, examples = WITHHELD[method]
    over_pairs(
        neighbour_pairs(withheld=True, **kinds),
        examples,
        lambda pair: share_of(pair, method, options, "withhold"),
    )


@pytest.mark.slow
@pytest.mark.parametrize(("method", "options", "kinds", "examples"), each_case())
def test_many_replays_never_move_a_fit_beyond_its_charge(
    method: str, options: Any, kinds: dict[str, Any], examples: int
) -> None:
    """As above, with more neighbours; many_replays.py has 10,000, see docs/audit.md."""
    if method == "mlp":
        pytest.importorskip("torch")
    over_pairs(neighbour_pairs(**kinds), 3 * examples, lambda pair: share_of(pair, method, options))


# Bounds are no larger than they must be: some neighbour reaches them.

ONE_STEP = {"config": GdConfig(steps=1)}
ONE_BATCH = {"steps": 1, "rate": 1.0, "clip_norm": 0.1}
TIGHT = [
    *[("one-shot", None, roles, "two", False) for roles in PRIVATE],
    ("one-shot", None, "half", "three", False),
    ("one-shot", None, "half", "number", True),
    ("one-shot", None, "label", "three", True),
    ("gd", ONE_STEP, "all", "two", False),
    ("gd", ONE_STEP, "all", "number", False),
    ("gd", ONE_STEP, "half", "two", True),
    ("gd", ONE_STEP, "levels", "two", False),
    ("gd", ONE_STEP, "levels", "three", True),
    ("gd", ONE_STEP, "label", "three", False),
    ("sgd", ONE_BATCH, "half", "two", True),
    ("sgd", {"steps": 1, "rate": 1.0}, "label", "three", False),
    ("dp-sgd", ONE_BATCH, "half", "two", False),
    ("label-span", None, "label", "three", True),
    ("label-span", {"passes": 3}, "label", "number", False),
]


@pytest.mark.parametrize(("method", "options", "roles", "label", "unit"), TIGHT)
def test_some_neighbour_reaches_the_charge(
    method: str, options: Any, roles: str, label: str, unit: bool
) -> None:
    pairs = corner_pairs(roles, label, unit=unit)
    assert any(share_of(pair, method, options) >= 0.95 for pair in pairs)


# What a replay shows, and what it refuses.


def a_pair(roles: str = "all", label: str = "two", *, unit: bool = False) -> Pair:
    """The neighbours of which everything private jumps."""
    return list(corner_pairs(roles, label, unit=unit))[-1]


def test_a_recording_is_the_fit_itself_and_a_replay_of_it_changes_nothing() -> None:
    pair = a_pair("half")
    estimator = pair.estimator("gd").set_params(unsafe_seed=3)
    told = record(estimator, pair.frame)
    again = replay(estimator, pair.frame, told)
    fitted = estimator.fit(pair.frame)
    assert np.array_equal(told.model.coef_, fitted.coef_)
    assert told.events == fitted.privacy_.events
    assert not told.moves(again).any()
    assert told.same_model(again)
    for one, two in zip(told.releases, again.releases, strict=True):
        assert (one.what, one.noise_std) == (two.what, two.noise_std)
        assert np.array_equal(one.noisy, two.noisy)
        assert not np.array_equal(one.noisy, one.value)


def test_a_sampled_step_tells_its_draws_and_a_replay_draws_the_same() -> None:
    pair = a_pair("half")
    estimator = pair.estimator("sgd", STEPS)
    told = record(estimator, pair.frame)
    assert told.mu is None
    other = replay(estimator, pair.neighbour, told)
    for one, two in zip(told.releases, other.releases, strict=True):
        assert one.rows is not None
        assert np.array_equal(one.rows, two.rows)


def test_recording_charges_no_ledger_and_says_that_its_model_is_not_private(tmp_path: Path) -> None:
    pair = a_pair()
    ledger = Ledger.create(tmp_path / "l.jsonl", epsilon=1.0, delta=1e-6, relation="replace")
    estimator = pair.estimator("one-shot").set_params(ledger=ledger)
    told = record(estimator, pair.frame)
    assert ledger.events() == ()
    assert not hasattr(estimator, "model_")
    assert "Not private: an audit" in str(told.model.privacy_.to_json())


def test_bare_arrays_are_recorded_with_their_labels() -> None:
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(20, 3)), np.arange(20) % 2
    other, flipped = X.copy(), y.copy()
    other[4], flipped[4] = [1e308, -1e308, 0.0], 1 - y[4]
    estimator = HalfmaskClassifier(epsilon=1.0, method="gd")
    told = record(estimator, X, y)
    again = replay(estimator, other, told, flipped)
    assert told.mu is not None
    assert 0 < np.linalg.norm(told.moves(again)) <= told.mu
    assert told.same_model(again)


def test_other_budgets_methods_relations_rows_and_columns_are_refused() -> None:
    pair = a_pair()
    estimator = pair.estimator("gd")
    told = record(estimator, pair.frame)
    for wrong in (
        pair.estimator("gd", epsilon=2.0),
        pair.estimator("one-shot"),
        pair.estimator("gd", relation="withhold"),
        pair.estimator("gd", {"config": GdConfig(clip=0.1)}),
        a_pair("half").estimator("gd"),
    ):
        with pytest.raises(ReplayError):
            replay(wrong, pair.frame, told)
    steps = pair.estimator("sgd", {**STEPS, "learning_rate": 0.1})
    drawn = record(steps, pair.frame)
    with pytest.raises(ReplayError, match="rows to draw from"):
        replay(steps, pair.frame.iloc[:-1], drawn)
    with pytest.raises(ReplayError, match="makes more"):
        replay(steps, pair.frame, replace(drawn, releases=drawn.releases[:2]))
    extra = (*drawn.releases, drawn.releases[0])
    with pytest.raises(ReplayError, match="number of releases"):
        replay(steps, pair.frame, replace(drawn, releases=extra))


def test_a_release_of_another_size_or_noise_is_refused() -> None:
    pair = a_pair()
    estimator = pair.estimator("one-shot")
    told = record(estimator, pair.frame)
    (one,) = told.releases
    for changed, word in (
        (replace(one, value=one.value[:-1]), "shape"),
        (replace(one, noise_std=one.noise_std * (1 + 1e-15)), "noise_std"),
        (replace(one, what="something else"), "name"),
    ):
        with pytest.raises(ReplayError, match=word):
            replay(estimator, pair.frame, replace(told, releases=(changed,)))


def test_what_cannot_be_replayed_is_refused_before_anything_is_fitted() -> None:
    pair = a_pair("features")
    with pytest.raises(InputError, match="public_seed"):
        record(pair.estimator("mlp", {"public_seed": None}), pair.frame)
    with pytest.raises(InputError, match="estimator of halfmask"):
        record(object(), pair.frame)


def test_randomised_answers_are_recorded_and_replayed() -> None:
    def run(answers: list[float], door: Any) -> None:
        releaser = door(MemoryLedger(epsilon=1.0, delta=1e-6), noise_source())
        releaser.randomised_response(np.array(answers), epsilon=1.0, what="answers")

    first = recorded(partial(run, [0.0, 1.0, 1.0] * 20))
    second = replayed(first, partial(run, [0.0, 1.0, 0.0] * 20))
    assert np.array_equal(first.releases[0].noisy, second.releases[0].noisy)
    assert np.count_nonzero(first.releases[0].value != second.releases[0].value) == 20


# Broken on purpose: each mistake is found.


def found(pairs: Iterable[Pair], method: str, options: dict[str, Any] | None = None) -> bool:
    """Whether some pair shows that more leaves than was charged for."""
    for pair in pairs:
        try:
            share_of(pair, method, options)
        except (AssertionError, ReplayError):
            return True
    return False


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("one-shot", None),
        ("gd", {"config": GdConfig(spread=100.0, steps=20)}),
        ("sgd", {"steps": 20, "rate": 0.5}),
        ("dp-sgd", {"steps": 20, "rate": 0.5}),
    ],
)
def test_half_the_noise_is_found(
    method: str, options: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not found([a_pair()], method, options)
    monkeypatch.setattr(
        release, "add_gaussian", lambda value, std, source: add_gaussian(value, std / 2, source)
    )
    assert found([a_pair()], method, options)


@pytest.mark.parametrize("method", ["one-shot", "gd"])
def test_half_the_standard_deviation_is_found(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real = release.widened_std
    monkeypatch.setattr(
        release, "widened_std", lambda std, size, most, **how: real(std, size, most, **how) / 2
    )
    assert found(corner_pairs("half", "two"), method)


def test_slopes_that_are_not_clipped_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"config": GdConfig(steps=1, clip=0.1)}
    assert not found(corner_pairs("half", "two"), "gd", options)
    monkeypatch.setattr(gd, "clip_slopes", lambda slopes, clip: slopes)
    assert found(corner_pairs("half", "two"), "gd", options)


@pytest.mark.parametrize("method", ["sgd", "dp-sgd"])
def test_contributions_that_are_not_clipped_are_found(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(private_step, "clip_weights", lambda norms, clip: np.ones_like(norms))
    assert found(corner_pairs("half", "two"), method, ONE_BATCH)


def test_a_forgotten_corner_of_the_moments_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two classes whose label turns round while the private features do not."""
    corners = {**moment_sensitivity._INNER, "signed": (1.0,)}
    monkeypatch.setattr(moment_sensitivity, "_INNER", corners)
    assert found(corner_pairs("half", "two"), "one-shot")


def test_a_forgotten_corner_of_the_slopes_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Private parts that move while the slope stays, as they do in the first step."""

    def together(self: Any) -> float:
        return float(self._apart_slopes() * self.bounds.whole * self.clip)

    monkeypatch.setattr(gd.BlockMoves, "together", together)
    monkeypatch.setattr(
        gd.BlockMoves, "private_block", lambda self: self.clip * self.bounds.private
    )
    assert found(corner_pairs("levels", "two"), "gd", ONE_STEP)


@pytest.mark.parametrize("method", ["one-shot", "gd", "label-span"])
def test_rows_of_a_unit_that_are_forgotten_are_found(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pairs = list(corner_pairs("label", "two", unit=True))
    assert not found(pairs, method)
    real = gd.unit_weights

    def forgotten(codes: Any, **known: Any) -> Any:
        return replace(real(codes, **known), rows=np.ones(len(codes)), most=1)

    monkeypatch.setattr(gd, "unit_weights", forgotten)
    monkeypatch.setattr(one_shot, "unit_weights", forgotten)
    one = label_span.label_sensitivity
    monkeypatch.setattr(
        label_span, "label_sensitivity", lambda rows: one(replace(rows, rows_per_unit=1))
    )
    assert found(pairs, method)


@pytest.mark.parametrize("rare", ["c", "b"])
@pytest.mark.parametrize("method", ["one-shot", "gd", "sgd"])
def test_levels_that_are_learnt_from_a_private_column_are_found(
    method: str, rare: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One level for another (which changes no shape), or one level less."""
    real = Encoder.fit.__func__  # type: ignore[attr-defined]

    def observed(cls: Any, schema: Any, frame: Any) -> Encoder:
        seen = tuple(sorted(set(frame["kind"])))
        columns = tuple(
            replace(column, categories=seen) if column.name == "kind" else column
            for column in schema.columns
        )
        return real(cls, replace(schema, columns=columns), frame)  # type: ignore[no-any-return]

    monkeypatch.setattr(Encoder, "fit", classmethod(observed))
    pair = a_pair("half")
    frame = pair.frame.assign(kind=["a", "b", "b", "b"])
    neighbour = pair.frame.assign(kind=[rare, "b", "b", "b"])
    with pytest.raises(ReplayError):
        share_of(replace(pair, frame=frame, neighbour=neighbour), method, None)


def test_a_start_from_the_private_base_rate_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    real = gd.GradientDescent.run

    def started(self: Any, *given: Any) -> Any:
        rate = (self._targets.sum(axis=0) + 1) / (len(self._targets) + 2)
        self.start_from(np.log(rate / (1 - rate)))
        return real(self, *given) + np.log(rate / (1 - rate))

    monkeypatch.setattr(gd.GradientDescent, "run", started)
    assert found([a_pair("all")], "gd")


def test_a_count_of_private_labels_beside_the_model_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = gd.GradientDescent._public_facts

    def facts(self: Any, *given: Any) -> Any:
        return {**real(self, *given), "positive": float(self._targets.sum())}

    monkeypatch.setattr(gd.GradientDescent, "_public_facts", facts)
    assert found([a_pair("all")], "gd")
