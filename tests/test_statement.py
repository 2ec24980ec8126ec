"""A statement says what was done, no more, and survives JSON."""

from __future__ import annotations

import json
import math
from dataclasses import FrozenInstanceError, dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm

from halfmask.accounting.accountant import epsilon
from halfmask.accounting.budget import printed
from halfmask.accounting.events import (
    Event,
    GaussianEvent,
    PoissonGaussianEvent,
    RandomisedResponseEvent,
)
from halfmask.accounting.gaussian import gaussian_mu
from halfmask.errors import InputError
from halfmask.statement import Statement, chance, describe, short


@dataclass(frozen=True)
class Noise:
    secure: bool = True
    description: str = "seeded by the operating system"


GAUSSIAN = GaussianEvent(replace=0.2, withhold=0.1, count=4)
SAMPLED = PoissonGaussianEvent(noise_multiplier=4.0, rate=0.0625, steps=16)


def statement(**changes: object) -> Statement:
    given: dict[str, object] = {
        "events": [GAUSSIAN],
        "delta": 1e-6,
        "relation": "replace",
        "public": ["age", "sex"],
        "private": ["hours"],
        "label": "income",
        "label_private": True,
        "released": ["noisy sums"],
        "noise": Noise(),
    }
    return Statement.build(**{**given, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize("relation", ["replace", "withhold"])
def test_epsilons_are_those_of_the_events(relation: str) -> None:
    made = statement(relation=relation, events=[GAUSSIAN, SAMPLED])
    for name in ("replace", "withhold"):
        expected = epsilon([GAUSSIAN, SAMPLED], delta=1e-6, relation=name)
        assert made.epsilon_by_relation[name] == expected
    assert made.epsilon == made.epsilon_by_relation[relation] == made.calibrated_epsilon
    assert made.epsilon_by_relation["withhold"] < made.epsilon_by_relation["replace"]


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"events": [GAUSSIAN, SAMPLED, RandomisedResponseEvent(epsilon=0.1, categories=3)]},
        {"noise": Noise(secure=False, description="seed 1")},
        {"unit_column": "id", "max_rows": 3, "notes": ["labels present count as public"]},
        {"label": None, "label_private": False, "public": [], "events": [], "released": []},
    ],
)
def test_json_round_trip_keeps_everything(changes: dict[str, object]) -> None:
    made = statement(**changes)
    stored = json.loads(json.dumps(made.to_json(), allow_nan=False))
    assert Statement.from_json(stored) == made
    assert Statement.from_json(stored).text() == made.text()
    assert {"epsilon", "delta", "relation", "public", "private", "released"} <= set(stored)


def test_a_seed_leaves_no_claim_but_keeps_the_calibrated_number() -> None:
    made = statement(noise=Noise(secure=False, description="seed 7"))
    stored = made.to_json()
    assert made.epsilon is None
    assert stored["epsilon"] is None
    assert stored["epsilon_by_relation"] == {"replace": None, "withhold": None}
    assert stored["seeded"] is True
    assert stored["calibrated_epsilon"] == statement().epsilon
    assert "not private: noise is reproducible" in stored["noise"]
    assert made.text().startswith("Not private: noise is reproducible.")


def test_sampler_and_accountant_are_read_off_the_events() -> None:
    assert statement().sampler == "none: every release uses all rows"
    assert "closed form" in statement().accountant
    full = PoissonGaussianEvent(noise_multiplier=9.0, rate=1.0)
    assert statement(events=[full]).sampler == "none: every release uses all rows"
    assert statement(events=[SAMPLED]).sampler == "Poisson, rate 0.0625"
    both = statement(events=[GAUSSIAN, SAMPLED])
    assert both.sampler == "Poisson, rate 0.0625; other releases use all rows"
    assert "dp-accounting 0." in both.accountant


def test_text_tells_whom_what_and_what_not() -> None:
    text = statement(unit_column="id", max_rows=3, notes=["labels present are public"]).text()
    flat = " ".join(text.split())
    for words in (
        "at delta 1e-06 under the relation 'replace'",
        "one value of 'id' (a person with at most 3 rows)",
        "Private: hours, income (the label)",
        "Public: age, sex",
        "noisy sums",
        "withheld, that is, it contributes exactly nothing",
        "replaced by any other value, while its public part stays",
        "labels present are public",
        "Other runs on the same rows",
        "Side channels",
        "rows of your own",
        "4 Gaussian releases with noise of 5 times the sensitivity",
    ):
        assert words in flat
    assert all(len(line) <= 88 for line in text.splitlines())


def test_a_public_label_is_listed_as_public() -> None:
    text = " ".join(statement(label_private=False).text().split())
    assert "Private: hours Public: age, sex, income (the label)" in text


def test_nothing_released_is_epsilon_zero() -> None:
    made = statement(events=[], released=[])
    assert made.epsilon == 0.0
    assert "Nothing that depends on private columns was released" in made.text()


def test_statements_cannot_be_changed() -> None:
    with pytest.raises(FrozenInstanceError):
        statement().delta = 0.1  # type: ignore[misc]


@pytest.mark.parametrize(
    "broken",
    [
        {},
        {"epsilon": 1},
        {**statement().to_json(), "events": [{"kind": "laplace"}]},
        {**statement().to_json(), "relation": "label"},
        {**statement().to_json(), "calibrated": None},
        {k: v for k, v in statement().to_json().items() if k != "released"},
    ],
)
def test_other_json_is_refused(broken: dict[str, object]) -> None:
    with pytest.raises(InputError, match="not a privacy statement"):
        Statement.from_json(broken)


def test_unknown_relations_are_refused() -> None:
    with pytest.raises(InputError, match="label"):
        statement(relation="label")


@given(st.floats(min_value=1e-9, max_value=1e9))
def test_printed_numbers_are_never_below_the_truth(value: float) -> None:
    shown = float(printed(value))
    assert shown >= value * (1 - 1e-12)
    assert shown <= value * 1.00011


@pytest.mark.parametrize(
    ("event", "words"),
    [
        (GaussianEvent(replace=0.5, withhold=0.0), "1 Gaussian release with noise of 2 times"),
        (SAMPLED, "16 sampled Gaussian steps at rate 0.0625 with noise of 4 times the clip norm"),
        (RandomisedResponseEvent(epsilon=1.0, categories=3), "1 randomised answer among 3"),
        (
            PoissonGaussianEvent(noise_multiplier=1.0, rate=0.5, contribution="label"),
            "label contributions",
        ),
    ],
)
def test_events_in_words(event: Event, words: str) -> None:
    assert words in describe(event)


def _claim(text: str) -> str:
    return " ".join(text.split()).split("Epsilon under both")[0]


def test_the_sentence_bounds_sets_of_outcomes() -> None:
    """A single outcome may be likelier than e to the epsilon far more often than delta says."""
    claim = _claim(statement(events=[GaussianEvent(replace=0.225, withhold=0.1)]).text())
    assert "any set of outcomes at most" in claim
    assert "times as likely (e to the epsilon), plus at most one in a million" in claim
    for wrong in ("except", "but for", "probability of about", "nothing more than", "may fail"):
        assert wrong not in claim


def test_the_loss_exceeds_epsilon_more_often_than_delta() -> None:
    """Why the sentence must not say "except with probability delta"."""
    one = gaussian_mu(1.0, 1e-6)
    exceeds = norm.sf(1.0 / one - one / 2)
    assert exceeds == pytest.approx(2e-5, rel=0.15)
    assert exceeds > 15 * 1e-6


def test_any_set_stays_within_the_sentence() -> None:
    """P(S) <= e^epsilon Q(S) + delta for the half lines, which are the worst sets, and reached."""
    one = gaussian_mu(1.0, 1e-6)
    ends = np.linspace(-8, 12, 4001)
    beyond = norm.sf(ends - one) - math.e * norm.sf(ends)
    assert beyond.max() <= 1e-6 * (1 + 1e-6)
    assert beyond.max() > 0.99e-6


@given(st.floats(min_value=1e-14, max_value=0.5))
def test_delta_in_words_is_never_below_delta(delta: float) -> None:
    said = chance(delta).removeprefix("one in ").replace(",", "").replace("a million", "1000000")
    assert delta * (1 - 1e-8) <= 1 / int(said) <= 2 * delta


def test_delta_in_words_reads_well() -> None:
    assert chance(1e-6) == "one in a million"
    assert chance(1e-5) == "one in 100,000"
    assert chance(1e-300) == "1e-300"


@given(st.floats(min_value=1.0, max_value=1e6))
def test_factors_are_rounded_up_to_three_digits(factor: float) -> None:
    said = float(short(factor).replace(",", ""))
    assert factor * (1 - 1e-8) <= said <= factor * 1.011


def test_the_statement_begins_with_its_meaning() -> None:
    text = " ".join(statement(events=[GaussianEvent(replace=0.225, withhold=0.1)]).text().split())
    assert text.startswith("Changing one row's private values makes any set of outcomes at most 2.")
    assert all(len(line) <= 80 for line in statement().text().splitlines())
