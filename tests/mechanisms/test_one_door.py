"""Private noise is drawn in mechanisms/ and nowhere else: in the text, and when methods run."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import halfmask
from halfmask.accounting.events import RandomizedResponseEvent
from halfmask.accounting.ledger import MemoryLedger
from halfmask.errors import BudgetExceededError, InputError
from halfmask.mechanisms import noise as noise_module
from halfmask.mechanisms.noise import noise_source
from halfmask.mechanisms.release import Releaser
from halfmask.table import Table
from halfmask.training import train
from halfmask.vertical.labels import hide_labels

PACKAGE = Path(halfmask.__file__).parent
# What draws or samples; a noise source may be made and handed on, never drawn from.
DRAWS = {
    "add_gaussian",
    "poisson_rows",
    "ziggurat",
    "noise_grid",
    "widened_std",
    "RAND_bytes",
    "SystemRandom",
}
# Attacks on unsound variants, and bare speed: no guarantee hangs on them.
OUTSIDE = ("audit/refutations/", "bench/")


def drawn_by_hand(text: str) -> Iterator[str]:
    """What a file draws without the door: forbidden names, and draws from a source of noise."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom | ast.Import):
            for name in node.names:
                words = {
                    name.name.rsplit(".", 1)[-1],
                    *(getattr(node, "module", "") or "").split("."),
                }
                yield from words & DRAWS
        if isinstance(node, ast.Attribute) and node.attr in DRAWS:
            yield node.attr
        if isinstance(node, ast.Attribute) and node.attr in ("normal", "uniform"):
            owner = ast.unparse(node.value).rsplit(".", 1)[-1].lower()
            if "noise" in owner or "source" in owner:
                yield ast.unparse(node)


def test_no_file_outside_mechanisms_draws_private_noise() -> None:
    found = {}
    for file in PACKAGE.rglob("*.py"):
        name = file.relative_to(PACKAGE).as_posix()
        if name.startswith(("mechanisms/", *OUTSIDE)):
            continue
        drawn = sorted(set(drawn_by_hand(file.read_text(encoding="utf-8"))))
        if drawn:
            found[name] = drawn
    assert not found


@pytest.mark.parametrize(
    "text",
    [
        "from halfmask.mechanisms.noise import add_gaussian",
        "from halfmask.mechanisms import ziggurat",
        "from halfmask.mechanisms.ziggurat import normals",
        "from halfmask.mechanisms.sampling import poisson_rows",
        "import halfmask.mechanisms.noise as n\nn.add_gaussian(value, 1.0, source)",
        "def f(self): return self._noise.normal(3)",
        "def f(releaser): return releaser.noise.uniform(3)",
        "x = noise_source.normal(3)",
    ],
)
def test_the_search_finds_what_it_is_for(text: str) -> None:
    assert list(drawn_by_hand(text))


@pytest.mark.parametrize(
    "text",
    [
        "from halfmask.mechanisms.noise import NoiseSource, noise_source, public_generator",
        "generator.normal(3)",
        "Releaser(ledger, noise_source())",
    ],
)
def test_handing_a_source_on_is_allowed(text: str) -> None:
    assert not list(drawn_by_hand(text))


@pytest.mark.parametrize("method", ["gd", "one-shot", "sgd", "dp-sgd", "mlp"])
def test_when_a_method_runs_only_mechanisms_draw(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    callers = set()

    def watched(name: str) -> Any:
        real = getattr(noise_module.SystemNoise, name)

        def draw(self: object, size: int) -> Any:
            callers.add(sys._getframe(1).f_globals["__name__"])
            return real(self, size)

        return draw

    for name in ("normal", "uniform"):
        monkeypatch.setattr(noise_module.SystemNoise, name, watched(name))
    rng = np.random.default_rng(0)
    X = rng.normal(size=(80, 2))
    table = Table.from_arrays(X, (X[:, 0] > 0).astype(int), row_norm=1.0, task="classification")
    options: dict[str, Any] = {"steps": 3} if method in ("sgd", "dp-sgd", "mlp") else {}
    if method == "mlp":
        options["recipe"] = "dp-sgd"  # which is what the default recipe takes for these roles
    train(
        table,
        epsilon=1.0,
        delta=1e-6,
        relation="replace",
        method=method,
        noise=noise_source(),
        options=options,
    )
    assert callers
    assert all(name.startswith("halfmask.mechanisms.") for name in callers), callers


def test_randomised_response_is_charged_before_it_is_drawn_and_flips_at_its_rate() -> None:
    ledger = MemoryLedger(epsilon=3.0, delta=1e-6)
    releaser = Releaser(ledger, noise_source(1))
    answers = np.repeat([0.0, 1.0], 20_000)
    told = releaser.randomised_response(answers, epsilon=1.0, what="answers")
    assert ledger.events() == (RandomizedResponseEvent(epsilon=1.0, categories=2),)
    rate = 1 / (1 + np.e)
    for value in (0.0, 1.0):
        flipped = float(np.mean(told[answers == value] != value))
        assert flipped == pytest.approx(rate, abs=4 * (rate * (1 - rate) / 20_000) ** 0.5)
    with pytest.raises(BudgetExceededError):
        releaser.randomised_response(answers, epsilon=2.5, what="too much")
    for wrong in (
        {"answers": np.array([0.5]), "epsilon": 1.0},
        {"answers": answers, "epsilon": 0.0},
    ):
        with pytest.raises(InputError):
            releaser.randomised_response(**wrong, what="nonsense")  # type: ignore[arg-type]
    assert len(ledger.events()) == 1


def test_hidden_labels_go_through_the_door() -> None:
    ledger = MemoryLedger(epsilon=1.0, delta=1e-6)
    door = Releaser(ledger, noise_source(0))
    hidden = hide_labels(np.array([0.0, 1.0]), epsilon=1.0, releaser=door)
    assert ledger.events() == (RandomizedResponseEvent(epsilon=1.0, categories=2),)
    assert set(np.round(hidden.targets, 9)) <= set(np.round([-hidden.excess, 1 + hidden.excess], 9))
