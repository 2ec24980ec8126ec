"""What tests of several files need."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

# The last digits of linear algebra differ between kinds of processors, and with them the axes along
# which `additive` draws its noise. Recorded numbers are those of instructions that all x86
# processors of the last ten years have; it has to be said before numpy is there.
os.environ.setdefault("OPENBLAS_CORETYPE", "Haswell")
os.environ.setdefault("NPY_DISABLE_CPU_FEATURES", "X86_V4 AVX512_ICL AVX512_SPR")

from halfmask.accounting.ledger import Ledger

# How long an example takes says more of the machine than of the code.
if hypothesis.settings().deadline is not None:
    hypothesis.settings.register_profile("halfmask", deadline=None)
    hypothesis.settings.load_profile("halfmask")

# Messages are looked for as they were written; that lines fit 80 columns is tested by new users.
os.environ["HALFMASK_WIDTH"] = "1000"

# Tests of networks need the extra `torch`, which not every version of Python has a build of.
_NO_TORCH = importlib.util.find_spec("torch") is None
if _NO_TORCH:
    collect_ignore = ["neural", "lab/test_bench_step.py", "test_damaged_model_folders.py",
                      "test_public_loss.py", "test_stored_options.py"]  # fmt: skip


def _wants_torch(error: BaseException | None) -> bool:
    while error is not None:
        if isinstance(error, ImportError) and error.name in ("torch", "opacus"):
            return True
        if "needs torch: install halfmask[torch]" in str(error):
            return True
        error = error.__cause__ or error.__context__
    return False


def _without_networks() -> Iterator[None]:
    try:
        return (yield)
    except Exception as error:
        if _NO_TORCH and _wants_torch(error):
            pytest.skip("needs torch")
        raise


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    """Without torch, a test of every method leaves out the networks, and no other."""
    return (yield from _without_networks())


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """As at the setup."""
    return (yield from _without_networks())


# Minutes of waiting for network processes, and dozens of adaptive fits: they start first, so that
# at the end no worker is left alone with them.
LONGEST = ("test_flower.py", "test_flower_predict.py", "test_join.py", "test_repeated_audits.py")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    places = {name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(item.path.name, len(LONGEST)))


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    """A new ledger with a budget of epsilon 1."""
    return Ledger.create(tmp_path / "data.jsonl", epsilon=1.0, delta=1e-6, relation="replace")
