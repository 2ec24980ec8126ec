"""Break our own code on purpose: the audit, or a contract stated here, must notice each time."""

import inspect
import textwrap

import numpy as np
import pytest

from halfmask.accounting import accountant, calibrate
from halfmask.accounting.budget import Budget
from halfmask.accounting.ledger import MemoryLedger
from halfmask.audit.distinguish import distinguish
from halfmask.audit.mechanisms import MECHANISMS
from halfmask.mechanisms import release
from halfmask.mechanisms import release as private_step
from halfmask.mechanisms.noise import SystemNoise, add_gaussian, noise_source
from halfmask.mechanisms.release import Releaser, Sensitivity
from halfmask.methods import sgd
from halfmask.table import Table

DELTA = 1e-5


# So many that the mistakes below are noticed with room to spare, whatever the noise.
RUNS = {"label": 9600, "full-batch": 6000, "admm-row": 4800}


def audit(name, relation="replace", epsilon=4.0):
    game = MECHANISMS[name](Budget(epsilon=epsilon, delta=DELTA, relation=relation))
    return distinguish(game, confidence=0.999, runs=RUNS.get(name, 2400), workers=1)


def half_the_noise(value, noise_std, source):
    return add_gaussian(value, noise_std / 2, source)


@pytest.mark.parametrize(
    "name",
    [
        "gd",
        "one-shot",
        "admm-row",
        "admm-column",
        "experts",
        "mlp-means",
        "label-span",
        "units",
        "fdml",
        "counts",
        "additive-counts",
        "additive-comparison",
    ],
)
def test_halved_noise_of_releases_is_refuted(name, monkeypatch):
    monkeypatch.setattr(release, "add_gaussian", half_the_noise)
    assert audit(name).refuted


# Sampled steps are run for each guess.
@pytest.mark.parametrize(
    "name",
    [
        "sgd",
        "full-batch",
        "mlp-correction",
        pytest.param("label", marks=pytest.mark.slow),
        pytest.param("mlp", marks=pytest.mark.slow),
    ],
)
def test_halved_noise_of_steps_is_refuted(name, monkeypatch):
    monkeypatch.setattr(release, "add_gaussian", half_the_noise)
    assert audit(name).refuted


def test_answers_that_are_flipped_half_as_often_are_refuted(monkeypatch):
    monkeypatch.setattr(SystemNoise, "uniform", lambda self, size: 2 * uniform(self, size))
    assert audit("randomised-response", epsilon=1.0).refuted


uniform = SystemNoise.uniform


@pytest.mark.parametrize(("name", "relation"), [("sgd", "replace"), ("full-batch", "withhold")])
def test_a_skipped_clip_is_refuted(name, relation, monkeypatch):
    def no_clip(norms, clip_norm):
        return np.ones_like(norms)

    monkeypatch.setattr(private_step, "clip_weights", no_clip)
    assert audit(name, relation).refuted


def test_a_forgotten_factor_two_in_the_sensitivity_is_refuted(monkeypatch):
    def halved(cls, clip_norm, *, rows_per_unit=1):
        return Sensitivity(replace=clip_norm * rows_per_unit, withhold=clip_norm * rows_per_unit)

    monkeypatch.setattr(Sensitivity, "of_clipped_sum", classmethod(halved))
    assert audit("gd").refuted


def test_a_forgotten_factor_two_in_the_accountant_is_refuted(monkeypatch):
    caches = accountant._epsilon, calibrate._least_noise
    for cache in caches:
        cache.cache_clear()
    monkeypatch.setattr(accountant, "_replace_mu", lambda event: 1 / event.noise_multiplier)
    try:
        assert audit("full-batch").refuted
    finally:
        for cache in caches:
            cache.cache_clear()


def mutated(function, old, new, **more):
    """`function` with a part of its own text exchanged, which must be there."""
    source = textwrap.dedent(inspect.getsource(function))
    assert old in source
    names = {**function.__globals__, **more}
    exec(source.replace(old, new), names)
    return names[function.__name__]


def batch_agreement(private_batches, steps=100):
    """How often row 0 counts in the public gradient exactly when it is in the private batch."""
    public_batches = []
    draw, gradient = private_step.poisson_rows, sgd.SplitRows.public_gradient

    def private(rows, rate, source):
        private_batches.append(draw(rows, rate, source))
        return private_batches[-1]

    def public(self, coef, rows):
        public_batches.append(rows)
        return gradient(self, coef, rows)

    private_step.poisson_rows, sgd.SplitRows.public_gradient = private, public
    try:
        generator = np.random.default_rng(0)
        table = Table.from_arrays(generator.normal(size=(8, 2)), np.arange(8) % 2)
        ledger = MemoryLedger(epsilon=50.0, delta=DELTA, relation="replace")
        config = sgd.SgdConfig(rate=0.5, steps=steps, public_batch=4)
        sgd.fit_sgd(table, Releaser(ledger, noise_source()), config)
    finally:
        private_step.poisson_rows, sgd.SplitRows.public_gradient = draw, gradient
    pairs = zip(private_batches, public_batches, strict=True)
    return np.mean([(0 in one) == (0 in other) for one, other in pairs])


def test_public_batches_are_drawn_apart_from_private_ones():
    assert 0.3 < batch_agreement([]) < 0.7


def test_a_reused_private_batch_is_noticed(monkeypatch):
    batches = []
    old, new = "rows.public_gradient(coef, batch)", "rows.public_gradient(coef, batches[-1])"
    monkeypatch.setattr(sgd, "descend", mutated(sgd.descend, old, new, batches=batches))
    assert batch_agreement(batches) == 1


class WatchedNoise(SystemNoise):
    """Counts draws."""

    def __init__(self):
        self.draws = 0

    def normal(self, size):
        self.draws += 1
        return super().normal(size)


class WatchedLedger(MemoryLedger):
    """Remembers how much noise had been drawn when each charge came."""

    def __init__(self, noise):
        super().__init__(epsilon=10.0, delta=DELTA, relation="replace")
        self.noise, self.before = noise, []

    def charge(self, events, what, **marks):
        self.before.append(self.noise.draws)
        return super().charge(events, what, **marks)


def draws_before_the_charge():
    noise = WatchedNoise()
    ledger = WatchedLedger(noise)
    Releaser(ledger, noise, whole_plan=True).gaussian(
        np.zeros(2),
        sensitivity=Sensitivity(replace=1.0, withhold=1.0),
        noise_std=1.0,
        what="a statistic",
    )
    assert noise.draws == 1
    return ledger.before[0]


def test_nothing_is_drawn_before_it_is_charged():
    assert draws_before_the_charge() == 0


def test_a_charge_after_the_release_is_noticed(monkeypatch):
    paid, drawn = "self.pay()\n", "    noisy = add_gaussian(value, noise_std, self.noise)\n"
    late = mutated(Releaser.noisy, paid + drawn, f"{drawn.strip()}\n    {paid}")
    monkeypatch.setattr(Releaser, "noisy", late)
    assert draws_before_the_charge() == 1
