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
from halfmask.accounting.budget import Budget
from halfmask.accounting.events import RandomisedResponseEvent
from halfmask.accounting.ledger import MemoryLedger
from halfmask.errors import BudgetExceededError, InputError
from halfmask.mechanisms import noise as noise_module
from halfmask.mechanisms.noise import noise_source
from halfmask.mechanisms.release import Releaser, Sensitivity, SharedReleaser
from halfmask.table import Table
from halfmask.training import train
from halfmask.vertical.party import hide_labels

PACKAGE = Path(halfmask.__file__).parent
# All that may be had of the files that draw: a source is made and handed on, never drawn from.
HANDED_ON = {"noise": {"NoiseSource", "UnsafeSeededNoise", "noise_source", "public_generator"}}
# What draws or samples, under whatever name its file was imported.
DRAWS = {
    "SystemNoise",
    "SystemRandom",
    "RAND_bytes",
    "add_gaussian",
    "noise_grid",
    "padding_generator",
    "poisson_rows",
    "widened_std",
    "normals",
    "uniforms",
}
# What a releaser does after the charge: for mechanisms, which charge first.
AFTER_THE_CHARGE = {"answered", "batch", "noisy"}
# Attacks on unsound variants, and bare speed: no guarantee hangs on them.
OUTSIDE = ("audit/refutations.py",)
# Recording and replaying are releasers, and draw through the door they inherit from.
RECORDS = "audit/transcript.py"


def drawn_by_hand(text: str) -> Iterator[str]:
    """What a file draws without the door: forbidden names, and draws from a source of noise."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom | ast.Import):
            module = (getattr(node, "module", "") or "").split(".")
            names = {name.name.rsplit(".", 1)[-1] for name in node.names}
            yield from ({*names, *module}) & DRAWS
            if module[:-1] == ["halfmask", "mechanisms"]:
                yield from names - HANDED_ON.get(module[-1], names)
        if isinstance(node, ast.Attribute) and node.attr in DRAWS:
            yield node.attr
        if isinstance(node, ast.Attribute) and node.attr in ("normal", "uniform"):
            owner = ast.unparse(node.value).rsplit(".", 1)[-1].lower()
            if "noise" in owner or "source" in owner:
                yield ast.unparse(node)


def doors(text: str) -> Iterator[str]:
    """Releasers of a file's own, and calls of what a releaser does after the charge."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ClassDef):
            bases = {ast.unparse(base).rsplit(".", 1)[-1] for base in node.bases}
            if any(base.endswith(("Releaser", "Recorder", "Replayer")) for base in bases):
                yield node.name
        if isinstance(node, ast.Attribute) and node.attr in AFTER_THE_CHARGE:
            owner = ast.unparse(node.value).lower()
            if "releaser" in owner or "door" in owner or "super()" in owner:
                yield ast.unparse(node)


def test_no_file_outside_mechanisms_draws_private_noise() -> None:
    found = {}
    for file in PACKAGE.rglob("*.py"):
        name = file.relative_to(PACKAGE).as_posix()
        if name.startswith(("mechanisms/", *OUTSIDE)):
            continue
        text = file.read_text(encoding="utf-8")
        drawn = sorted({*drawn_by_hand(text), *(doors(text) if name != RECORDS else ())})
        if drawn:
            found[name] = drawn
    assert not found


@pytest.mark.parametrize(
    "text",
    [
        "from halfmask.mechanisms.noise import add_gaussian",
        "from halfmask.mechanisms.noise import uniforms",
        "from halfmask.mechanisms.noise import normals",
        "from halfmask.mechanisms.release import poisson_rows",
        "import halfmask.mechanisms.noise as n\nn.add_gaussian(value, 1.0, source)",
        "def f(self): return self._noise.normal(3)",
        "def f(releaser): return releaser.noise.uniform(3)",
        "x = noise_source.normal(3)",
        "from halfmask.mechanisms.noise import SystemNoise",
        "from halfmask.mechanisms.noise import padding_generator",
        "import halfmask.mechanisms.noise as n\nn.SystemNoise()",
        "class Mine(Releaser): pass",
        "class Mine(release.SharedReleaser): pass",
        "class Mine(Replayer): pass",
        "def f(releaser): return releaser.noisy(value, 1.0)",
        "def f(self): return self._releaser.answered(answers, 1.0, 'x')",
        "def f(self): return super().noisy(value, 1.0)",
    ],
)
def test_the_search_finds_what_it_is_for(text: str) -> None:
    assert [*drawn_by_hand(text), *doors(text)]


@pytest.mark.parametrize(
    "text",
    [
        "from halfmask.mechanisms.noise import NoiseSource, noise_source, public_generator",
        "generator.normal(3)",
        "from halfmask.mechanisms.release import Releaser, SharedReleaser",
        "from halfmask.mechanisms.release import PrivateStep, uniform_rows",
        "Releaser(ledger, noise_source())",
        "releaser.gaussian(value, sensitivity=bound, noise_std=1.0, what='sum')",
        "class Mine(Model): pass",
    ],
)
def test_handing_a_source_on_is_allowed(text: str) -> None:
    assert not [*drawn_by_hand(text), *doors(text)]


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
        table, Budget(epsilon=1.0, delta=1e-6), method=method, noise=noise_source(), options=options
    )
    assert callers
    assert all(name.startswith("halfmask.mechanisms.") for name in callers), callers


def test_randomised_response_is_charged_before_it_is_drawn_and_flips_at_its_rate() -> None:
    ledger = MemoryLedger(epsilon=3.0, delta=1e-6)
    releaser = Releaser(ledger, noise_source(1))
    answers = np.repeat([0.0, 1.0], 20_000)
    told = releaser.randomised_response(answers, epsilon=1.0, what="answers")
    assert ledger.events() == (RandomisedResponseEvent(epsilon=1.0, categories=2),)
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
    assert ledger.events() == (RandomisedResponseEvent(epsilon=1.0, categories=2),)
    assert set(np.round(hidden.targets, 9)) <= set(np.round([-hidden.excess, 1 + hidden.excess], 9))


class OtherMachines:
    """One machine that runs the code, and others that answer with what they hold."""

    count = 3

    def __init__(self, rank: int, others: np.ndarray) -> None:
        self.rank, self._others, self.sent = rank, others, [np.zeros(0)]

    @property
    def leads(self) -> bool:
        return self.rank == 0

    def first(self, value: np.ndarray) -> np.ndarray:
        self.sent.append(np.array(value))
        return value if self.leads else np.ones(value.shape)

    sum = gather = first

    def to_first(self, value: np.ndarray) -> np.ndarray:
        return value + self._others if self.leads else np.zeros(value.shape)


def test_what_machines_share_is_charged_once_and_has_the_noise_of_one_release() -> None:
    others = np.array([10.0, 20.0])
    for rank in (0, 1):
        ledger = MemoryLedger(epsilon=5.0, delta=1e-6)
        machines = OtherMachines(rank, others)
        releaser = SharedReleaser(ledger, noise_source(3, machine=rank), machines)
        told = releaser.gaussian(
            np.array([1.0, 2.0]),
            sensitivity=Sensitivity(replace=2.0, withhold=1.0),
            noise_std=2.0,
            what="sums",
        )
        # Nothing but the word that the charge was made, and the noisy sum, leaves for all.
        assert len(ledger.events()) == (rank == 0)
        if rank:
            assert all((sent == 0).all() for sent in machines.sent)
            continue
        alone = Releaser(MemoryLedger(epsilon=5.0, delta=1e-6), noise_source(3))
        expected = alone.gaussian(
            others + np.array([1.0, 2.0]),
            sensitivity=Sensitivity(replace=2.0, withhold=1.0),
            noise_std=2.0,
            what="sums",
        )
        assert np.array_equal(told, expected)
        assert np.array_equal(machines.sent[-1], expected)
