"""One budget value: its mu fits the ledger, its parts compose to it, its numbers print one way."""

from __future__ import annotations

import ast
import inspect
import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from halfmask.accounting.accountant import epsilon as account
from halfmask.accounting.budget import Budget, printed
from halfmask.accounting.events import GaussianEvent
from halfmask.accounting.ledger import MemoryLedger
from halfmask.errors import AccountingError, HalfmaskError
from halfmask.mechanisms.noise import noise_source
from halfmask.mechanisms.release import Releaser
from halfmask.report.words import guarantee_number

BUDGETS = st.builds(Budget, epsilon=st.floats(0.05, 20.0), delta=st.floats(1e-12, 1e-3))


@given(budget=BUDGETS, releases=st.integers(1, 200))
@settings(max_examples=60, deadline=None)
def test_releases_calibrated_to_a_budget_fit_its_ledger(budget: Budget, releases: int) -> None:
    each = budget.mu / releases**0.5
    events = [GaussianEvent(replace=each, withhold=each / 2)] * releases
    MemoryLedger(epsilon=budget.epsilon, delta=budget.delta).charge(events, "all")
    spent = account(events, delta=budget.delta, relation="replace")
    assert budget.epsilon * (1 - 1e-6) <= spent <= budget.epsilon


@given(budget=BUDGETS, share=st.floats(0.05, 0.95))
@settings(max_examples=60, deadline=None)
def test_the_parts_of_a_split_compose_to_the_whole(budget: Budget, share: float) -> None:
    parts = budget.split(share)
    assert all(part.delta == budget.delta for part in parts)
    events = [GaussianEvent(replace=part.mu, withhold=part.mu) for part in parts]
    spent = account(events, delta=budget.delta, relation="replace")
    assert budget.epsilon * (1 - 1e-6) <= spent <= budget.epsilon


@pytest.mark.parametrize("wrong", [0.0, 1.0, -0.1, float("nan")])
def test_a_split_needs_a_share(wrong: float) -> None:
    with pytest.raises(AccountingError, match="share"):
        Budget(epsilon=1.0, delta=1e-6).split(wrong)


@pytest.mark.parametrize(
    "wrong", [{"epsilon": 0.0}, {"epsilon": float("inf")}, {"delta": 1.0}, {"relation": "label"}]
)
def test_impossible_budgets_are_refused(wrong: dict) -> None:
    with pytest.raises(HalfmaskError):
        Budget(**({"epsilon": 1.0, "delta": 1e-6} | wrong))


@given(st.floats(1e-9, 1e6))
def test_a_statement_and_a_report_print_the_same_number(value: float) -> None:
    assert guarantee_number(value) == printed(value)


def test_nobody_rounds_an_epsilon_or_takes_a_margin_off_a_budget_by_hand() -> None:
    package = Path(__file__).parents[2] / "src" / "halfmask"
    by_hand = re.compile(
        r"gaussian_mu\([^)]*\) \* \(?(1|_)|def _?round_up|1 - _?(ROUNDING|HAIR|MARGIN)\b"
    )
    own = {"accounting/budget.py"}
    found = {
        str(file.relative_to(package))
        for file in package.rglob("*.py")
        if by_hand.search(file.read_text(encoding="utf-8"))
    }
    assert found <= own, found - own


def test_methods_take_a_table_a_releaser_and_their_settings() -> None:
    """What may be spent is the releaser's to know; no method is told an epsilon beside it."""
    from halfmask.additive_model import fit_additive
    from halfmask.methods.fitted import LINEAR_METHODS, linear_method
    from halfmask.methods.gd import fit_lecture
    from halfmask.neural.method import fit_mlp

    methods = [linear_method(name) for name in LINEAR_METHODS]
    for fit in (*methods, fit_lecture, fit_additive, fit_mlp):
        names = list(inspect.signature(fit).parameters)
        assert names[:3] == ["table", "releaser", "config"], fit
        assert not {"epsilon", "delta", "relation", "kwargs", "options"} & set(names), fit


def test_epsilon_and_delta_go_together_as_one_budget() -> None:
    """Apart from a user's own words (commands, estimators, ledgers) and a paper's formula."""
    package = Path(__file__).parents[2] / "src" / "halfmask"
    found = set()
    for part in ("methods", "neural", "mechanisms", "vertical", "report", "features"):
        for file in (package / part).rglob("*.py"):
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
                if isinstance(node, ast.FunctionDef):
                    names = {a.arg for a in (*node.args.args, *node.args.kwonlyargs)}
                    found |= {node.name} if {"epsilon", "delta"} <= names else set()
    assert found == {"noise_of_theorem_2_1"}


def test_a_releaser_has_the_ledgers_budget_or_the_one_it_was_given() -> None:
    ledger = MemoryLedger(epsilon=2.0, delta=1e-6)
    assert Releaser(ledger, noise_source(0)).budget == Budget(epsilon=2.0, delta=1e-6)
    less = Budget(epsilon=1.0, delta=1e-7)
    assert Releaser(ledger, noise_source(0), budget=less).budget == less
    with pytest.raises(AccountingError, match="withhold"):
        Releaser(ledger, noise_source(0), budget=replace(less, relation="withhold"))
