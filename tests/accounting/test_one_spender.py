"""One budget has one spender: copies, threads, forks and workers cannot spend it again."""

from __future__ import annotations

import copy
import multiprocessing
import os
import pickle
import threading
import warnings
from contextlib import suppress
from typing import Any

import cloudpickle
import numpy as np
import pytest
from joblib import Parallel, delayed
from sklearn.base import clone
from sklearn.model_selection import cross_val_score

from halfmask import HalfmaskClassifier
from halfmask.accounting.events import GaussianEvent
from halfmask.accounting.ledger import Ledger, MemoryLedger
from halfmask.errors import BudgetExceededError, LedgerError

EVENT = GaussianEvent(replace=0.05, withhold=0.025)


def one() -> MemoryLedger:
    return MemoryLedger(epsilon=1.0, delta=1e-6)


def rows(n: int = 60) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, 2))
    return X, (X[:, 0] > 0).astype(int)


def charge_until_refused(ledger: MemoryLedger | Ledger) -> None:
    with suppress(BudgetExceededError):
        while True:
            ledger.charge([EVENT], "a thread")


@pytest.mark.parametrize("kind", ["memory", "file"])
def test_threads_together_stay_within_the_budget(ledger: Ledger, kind: str) -> None:
    book: Any = one() if kind == "memory" else ledger
    start = threading.Barrier(4)

    def spend() -> None:
        start.wait()
        charge_until_refused(book)

    threads = [threading.Thread(target=spend) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=120)
    assert book.spent() <= 1.0 * (1 + 1e-9)
    assert book.spent() > 0.9


def test_cross_validation_in_workers_is_refused_and_in_threads_is_capped() -> None:
    X, y = rows()
    ledger = one()
    model = HalfmaskClassifier(epsilon=1.0, method="gd", ledger=ledger)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(Exception) as refused:  # noqa: PT011 - joblib wraps it
            cross_val_score(model, X, y, cv=4, n_jobs=2, error_score="raise")
        cause: BaseException | None = refused.value
        seen = []
        while cause is not None:
            seen.append(str(cause))
            cause = cause.__cause__ or cause.__context__
        assert "ledger file" in " ".join(seen)
        assert ledger.spent() == 0.0

        def fit() -> str:
            try:
                clone(model).fit(X, y)
            except BudgetExceededError:
                return "refused"
            return "fitted"

        done = Parallel(n_jobs=4, backend="threading")(delayed(fit)() for _ in range(4))
    assert sorted(done) == ["fitted", "refused", "refused", "refused"]
    assert ledger.spent() <= 1.0 * (1 + 1e-9)


@pytest.mark.parametrize("dump", [pickle.dumps, cloudpickle.dumps])
def test_a_memory_ledger_is_not_pickled_even_inside_an_estimator(dump: Any) -> None:
    for thing in (one(), HalfmaskClassifier(ledger=one())):
        with pytest.raises(LedgerError, match="ledger file"):
            dump(thing)


def test_copies_and_clones_are_the_same_spender() -> None:
    ledger = one()
    model = HalfmaskClassifier(epsilon=1.0, method="gd", ledger=ledger)
    for copied in (
        copy.copy(ledger),
        copy.deepcopy(ledger),
        copy.deepcopy({"ledger": ledger})["ledger"],
        clone(model).ledger,
        copy.deepcopy(model).ledger,
        clone(ledger, safe=False),
    ):
        assert copied is ledger
    X, y = rows()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        clone(model).fit(X, y)
        with pytest.raises(BudgetExceededError):
            clone(model).fit(X, y)


def test_a_forked_child_cannot_spend() -> None:
    ledger = one()
    ledger.charge([EVENT], "before the fork")
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            ledger.charge([EVENT], "in the child")
            answer = b"charged"
        except LedgerError as error:
            answer = b"refused" if "ledger file" in str(error) else b"other words"
        except BaseException:
            answer = b"other error"
        os.write(write, answer)
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(read, 100) == b"refused"
    ledger.charge([EVENT], "the parent goes on")
    assert len(ledger.events()) == 2


def test_a_fork_while_another_thread_charges_does_not_hang() -> None:
    ledger = one()
    with ledger._lock:
        child = os.fork()
        if child == 0:
            try:
                ledger.charge([EVENT], "in the child")
            except LedgerError:
                os._exit(7)
            os._exit(0)
        _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 7


def _spend(ledger: MemoryLedger, out: Any) -> None:
    try:
        ledger.charge([EVENT], "in a process")
        out.send("charged")
    except LedgerError:
        out.send("refused")


def test_forked_workers_of_multiprocessing_cannot_spend() -> None:
    context = multiprocessing.get_context("fork")
    ledger = one()
    here, there = context.Pipe()
    worker = context.Process(target=_spend, args=(ledger, there))
    worker.start()
    assert here.recv() == "refused"
    worker.join()
    assert ledger.spent() == 0.0
