"""Numbers that another party sends: whatever they are, they neither break a bound nor tell rows
apart by what goes wrong, and they are refused before anything is charged.
"""

from __future__ import annotations

import ast
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy import sparse
from test_network import setup

import halfmask.vertical
from halfmask.accounting.ledger import Ledger, MemoryLedger
from halfmask.errors import HalfmaskError
from halfmask.mechanisms.noise import noise_source
from halfmask.mechanisms.release import Releaser
from halfmask.vertical.admm_party import AdmmParty, ShareNoise
from halfmask.vertical.channel import Message
from halfmask.vertical.experts import ExpertParty, ExpertRows
from halfmask.vertical.fdml import FdmlNoise, FdmlParty
from halfmask.vertical.network import NetworkParty, read_party_file
from halfmask.vertical.statements import statement_text

__all__ = ["setup"]

ROWS = 400


class Constant:
    """In the place of noise: the same number everywhere, so that exact values can be seen."""

    secure, description = False, "for tests"

    def __init__(self, value):
        self.value = value

    def normal(self, size):
        return np.full(size, float(self.value))

    def uniform(self, size):
        return np.full(size, 0.5)


def door(noise=None):
    return Releaser(MemoryLedger(epsilon=1e6, delta=1e-6), noise or noise_source(0))


def one_share(table, target, noise, *, rho=1.0, value=0.0, **options):
    """What a party releases for this target where every normal is `value`."""
    side = AdmmParty(
        table, **{"strength": 1.0, **options}, noise=noise, releaser=door(Constant(value))
    )
    return side.share(residual=-target, dual=np.zeros(len(target)), rho=rho, divisor=1)


def outcome(ask):
    """What the sender sees: whether numbers came, whether they are finite, and which words."""
    try:
        with np.errstate(all="ignore"):
            answer = ask()
    except Exception as error:
        return type(error).__name__, str(error)
    return "answered", bool(np.all(np.isfinite(answer)))


@pytest.mark.parametrize("size", [1e-320, 1.5e-162, 1e-161, 1e-101, 1.1e-100, 1.0, 1e90, 9e99])
@pytest.mark.parametrize("options", [{}, {"regulariser": "none"}])
def test_noise_covers_the_worst_neighbours_where_squares_of_the_target_vanish(size, options):
    """One row turns the whole share away from the target; its norm, squared, is lost in doubles."""
    rows = 20_000
    table = np.full((rows, 1), 1e-3)
    table[0] = 0.0
    other = table.copy()
    other[0] = 1.0
    target = np.full(rows, size)
    target[0], target[1] = 0.0, 1.1 * size
    noise = ShareNoise(kind="column", rounds=1, ratio=1.0)
    own = {"strength": 2.1e-4, **options}
    exact = [one_share(each, target, noise, **own) for each in (table, other)]
    std = np.abs(one_share(table, target, noise, value=1.0, **own) - exact[0]).max()
    move = float(np.linalg.norm((exact[0] - exact[1]) / size)) * size
    assert move <= std * noise.ratio * (1 + 1e-6)
    # The example can fail: it uses most of the bound wherever anything is released at all.
    assert move >= 0.9 * std
    assert (std > 0) == (size > 1e-100)


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    exponents=st.lists(st.integers(-323, 99), min_size=1, max_size=3),
    kind=st.sampled_from(["column", "row"]),
    options=st.sampled_from([{}, {"strength": 0.0}, {"regulariser": "l1"}]),
)
@example(seed=0, exponents=[-162], kind="column", options={})
@example(seed=0, exponents=[-320], kind="column", options={})
@example(seed=0, exponents=[-320, 90], kind="column", options={"regulariser": "l1"})
def test_noise_covers_the_move_of_a_share_whatever_the_size_of_the_target(
    seed, exponents, kind, options
):
    """Measured, not computed: the move of the exact share over the noise that is really added."""
    draw = np.random.default_rng(seed)
    rows = 4
    noise = ShareNoise(kind=kind, rounds=1, ratio=1.0)
    table = draw.normal(size=(rows, 3))
    table /= np.linalg.norm(table, axis=1, keepdims=True)
    other = table.copy()
    other[0] = -table[0]
    sizes = np.array([float(f"1e{exponents[i % len(exponents)]}") for i in range(rows)])
    target = draw.normal(size=rows) * sizes
    own = {} if kind == "row" else options
    exact = [one_share(each, target, noise, **own) for each in (table, other)]
    std = np.abs(one_share(table, target, noise, value=1.0, **own) - exact[0]).max()
    unit = max(float(np.abs(exact).max()), 1e-320)
    move = float(np.linalg.norm((exact[0] - exact[1]) / unit)) * unit
    assert move <= std * noise.ratio * (1 + 1e-6)


@pytest.mark.parametrize("size", [1e99, 1e101, 1e154, 1e300, 1e308, -1e308])
@pytest.mark.parametrize("kind", ["column", "row"])
@pytest.mark.parametrize("form", [np.asarray, sparse.csr_array])
def test_a_huge_target_does_not_tell_whether_two_rows_hold_the_same_level(kind, size, form):
    same, different = np.eye(4)[[0, 0, 1, 2]], np.eye(4)[[0, 3, 1, 2]]
    noise = ShareNoise(kind=kind, rounds=1, ratio=1.0)
    target = np.array([size, size, 0.0, 0.0])
    seen = [outcome(lambda t=t: one_share(form(t), target, noise)) for t in (same, different)]
    assert seen[0] == seen[1]
    assert seen[0][0] != "answered" or seen[0][1]


@pytest.mark.parametrize("rho", [1e-300, 1e-160, 1e160, 1e300, 5e-324])
def test_no_rho_tells_tables_apart_by_what_goes_wrong(rho):
    tables = np.eye(4)[[0, 0, 1, 2]], np.zeros((4, 4)), np.eye(4)
    noise = ShareNoise(kind="column", rounds=1, ratio=1.0)
    for target in (np.ones(4), np.array([1e90, -1e90, 0, 0])):
        seen = {outcome(lambda t=t, a=target: one_share(t, a, noise, rho=rho)) for t in tables}
        assert len(seen) == 1
        assert seen <= {("answered", True)} or "Error" in next(iter(seen))[0]


WRONG_NUMBERS = [math.nan, math.inf, -math.inf, 1e308, -1.0, 0.0, 5e-324, "0.1", None, True, [0.1]]


@pytest.mark.parametrize("step_size", WRONG_NUMBERS)
def test_a_step_size_that_no_protocol_has_is_refused_before_a_row_is_used(columns, step_size):
    noise = FdmlNoise(kind="row", epochs=1, ratio=1.0)
    party = FdmlParty("a", columns[0], strength=1.0, noise=noise, releaser=door())
    arrays = {"rows": np.arange(9), "slopes": np.ones(9)}
    with pytest.raises(HalfmaskError):
        party.answer(
            Message(
                kind="fdml-step", run="r", round=1, arrays=arrays, values={"step_size": step_size}
            )
        )
    assert not np.any(party.x)
    # Nothing of the epoch was used up either.
    party.answer(
        Message(kind="fdml-step", run="r", round=1, arrays=arrays, values={"step_size": 0.1})
    )


@pytest.mark.parametrize("slope", [math.nan, math.inf, 1e308, -1e308])
def test_slopes_beyond_all_bounds_are_refused(columns, slope):
    party = FdmlParty("a", columns[0], strength=1.0)
    arrays = {"rows": np.arange(9), "slopes": np.full(9, slope)}
    with pytest.raises(HalfmaskError):
        party.answer(
            Message(kind="fdml-step", run="r", round=1, arrays=arrays, values={"step_size": 1.0})
        )


def test_no_steps_make_scores_that_tell_tables_apart_by_an_error():
    """The largest steps that are allowed, again and again: scores stay finite for every table."""
    noise = FdmlNoise(kind="row", epochs=60, ratio=1.0)
    seen = []
    for table in (np.eye(3)[[0, 1, 2, 2]], np.eye(3)[[0, 1, 2, 0]], np.zeros((4, 3))):
        party = FdmlParty("a", table, strength=1e9, noise=noise, releaser=door())
        rows = {"rows": np.arange(4)}
        for number in range(60):
            step = {"step_size": 1e3}
            arrays = {**rows, "slopes": np.array([1, -1, 1, -1.0])}
            ask = Message(kind="fdml-step", run="r", round=number, arrays=arrays, values=step)
            seen.append(outcome(lambda p=party, a=ask: p.answer(a) and 0.0))
            scores = Message(kind="fdml-scores", run="r", round=number, arrays=rows)
            seen.append(outcome(lambda p=party, s=scores: p.answer(s).arrays["scores"]))
    assert set(seen) == {("answered", True)}


WRONG_TARGETS = {
    "NaN": np.r_[math.nan, np.ones(299)],
    "infinity": np.r_[math.inf, np.ones(299)],
    "huge": np.r_[1e308, np.ones(299)],
    "short": np.ones(299),
    "two-dimensional": np.ones((300, 1)),
    "text": np.full(300, "1"),
    "objects": np.ones(300).astype(object),
    "truth values": np.ones(300, dtype=bool),
    "complex": np.ones(300, dtype=complex),
    "nothing": None,
}


@pytest.mark.parametrize("kind", WRONG_TARGETS)
@pytest.mark.parametrize("form", [np.asarray, sparse.csr_array])
def test_labels_that_cannot_be_are_refused_before_the_charge(columns, kind, form):
    releaser = door()
    rows = ExpertRows(row_norm=1.0, nonnegative=False, label_private=False)
    side = ExpertParty("a", form(columns[0]), rows=rows, ratio=1.0, releaser=releaser)
    arrays = {"targets": WRONG_TARGETS[kind]}
    with pytest.raises(HalfmaskError):
        side.answer(Message(kind="expert-train", run="r", round=1, arrays=arrays))
    assert releaser.events == ()


ZEROS = np.zeros(ROWS)
WRONG_REQUESTS = {
    "NaN": {"residual": np.r_[math.nan, ZEROS[1:]]},
    "huge": {"dual": np.r_[1e308, ZEROS[1:]]},
    "huge together": {"dual": np.full(ROWS, 1e90), "rho": 1e-90},
    "short": {"residual": ZEROS[1:]},
    "two-dimensional": {"dual": np.zeros((ROWS, 1))},
    "objects": {"dual": ZEROS.astype(object)},
    "text": {"residual": np.full(ROWS, "0")},
    "complex": {"residual": ZEROS.astype(complex)},
    "nothing": {"residual": None},
    "rho of zero": {"rho": 0.0},
    "rho of rounding": {"rho": 1e9},
    "a tiny rho": {"rho": 5e-324},
    "rho in words": {"rho": "0.1"},
    "half a divisor": {"divisor": 0.5},
    "a part of a divisor": {"divisor": 2.5},
    "a huge divisor": {"divisor": 10**30},
    "an infinite divisor": {"divisor": math.inf},
    "round 0": {"round": 0},
    "a round before": {"round": -100},
    "a later round": {"round": 2},
    "a round in words": {"round": "1"},
    "a run that is no text": {"run": 7},
    "a run without end": {"run": "r" * 100_000},
}


def share_request(**changes):
    plain = {"run": "r", "round": 1, "rho": 0.1, "divisor": 2, "residual": ZEROS + 1, "dual": ZEROS}
    asked = {**plain, **changes}
    return Message(
        kind="admm-share",
        run=asked["run"],
        round=asked["round"],
        arrays={name: asked[name] for name in ("residual", "dual")},
        values={name: asked[name] for name in ("rho", "divisor")},
    )


@pytest.mark.parametrize("kind", WRONG_REQUESTS)
@pytest.mark.parametrize("noise", ["row", "column"])
def test_a_request_that_cannot_be_is_refused_before_the_charge(setup, kind, noise):
    *_, folder = setup(method="admm", rounds=2, noise=noise)
    party = NetworkParty(read_party_file(folder / "bank.toml"))
    with pytest.raises(HalfmaskError):
        party.answer(share_request(**WRONG_REQUESTS[kind]))
    ledger = folder / "bank-state" / "ledger.jsonl"
    assert not ledger.exists() or Ledger.open(ledger).events() == ()
    assert not (folder / "bank-state" / "party.npz").exists()


def test_rounds_before_the_first_buy_no_further_shares(setup):
    """Two rounds are paid for: whatever numbers they go by, no third share comes."""
    *_, folder = setup(method="admm", rounds=2)
    answered = 0
    for number in (-9, -8, -7, -6, 0, 1, 2, 3, 4):
        try:
            NetworkParty(read_party_file(folder / "bank.toml")).answer(share_request(round=number))
            answered += 1
        except (HalfmaskError, ArithmeticError):
            pass
    assert answered == 2


@settings(max_examples=100, deadline=None)
@given(
    residual=st.lists(st.floats(), min_size=3, max_size=3),
    dual=st.lists(st.floats(), min_size=3, max_size=3),
    rho=st.floats(),
    divisor=st.one_of(st.floats(), st.integers()),
    kind=st.sampled_from(["column", "row"]),
)
@example(residual=[1e99] * 3, dual=[-1e99] * 3, rho=1.0, divisor=1, kind="column")
@example(residual=[1e-99] * 3, dual=[5e-324] * 3, rho=1e-100, divisor=1, kind="column")
def test_any_numbers_give_a_finite_share_or_the_same_refusal_for_all_tables(
    residual, dual, rho, divisor, kind
):
    noise = ShareNoise(kind=kind, rounds=1, ratio=1.0)
    seen = set()
    for table in (np.eye(3)[[0, 0, 1]], np.eye(3)[[0, 1, 2]], np.zeros((3, 3))):
        party = AdmmParty(table, name="a", strength=1.0, noise=noise, releaser=door())
        request = Message(
            kind="admm-share",
            run="r",
            round=1,
            arrays={"residual": np.array(residual), "dual": np.array(dual)},
            values={"rho": rho, "divisor": divisor},
        )
        seen.add(outcome(lambda p=party, r=request: p.answer(r).arrays["share"]))
    assert len(seen) == 1
    assert ("answered", False) not in seen


def test_a_statement_of_a_stranger_gives_the_terminal_no_orders():
    told = {"epsilon": None, "guarantee": "none\x1b[2J\r", "not_covered": ["\x9b31m rows"]}
    words = statement_text(told)
    assert words.startswith("What is promised: none?[2J?.")
    assert all(c.isprintable() or c == "\n" for c in words)


READERS = {
    *("number_array", "one_number", "whole", "word", "hashes"),
    *("share", "share_target", "batch_of"),
    "_told_statement",
}


def test_what_a_message_holds_is_read_through_the_checks_only():
    """`x.arrays[...]` and `x.values[...]` occur only as what a check is given, in every module."""
    folder = Path(halfmask.vertical.__file__).parent
    found = 0
    for file in sorted(folder.glob("*.py")):
        if file.name == "channel.py":  # says what a message is
            continue
        tree = ast.parse(file.read_text(encoding="utf-8"))
        checked = set()
        for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
            name = getattr(call.func, "id", getattr(call.func, "attr", ""))
            if name in READERS:
                given_ = [*call.args, *(keyword.value for keyword in call.keywords)]
                checked |= {id(node) for arg in given_ for node in ast.walk(arg)}
        for node in ast.walk(tree):
            taken = isinstance(node, ast.Subscript) and node.value
            if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "get":
                taken = node.func.value
            if isinstance(taken, ast.Attribute) and taken.attr in ("arrays", "values"):
                found += 1
                assert id(node) in checked, f"{file.name}, line {node.lineno}"
    assert found >= 8
