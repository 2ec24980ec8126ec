"""SGD over distributed features: it learns, and its row guarantee holds against the coordinator."""

from __future__ import annotations

import math

import numpy as np
import pytest

from halfmask.errors import InputError
from halfmask.mechanisms.noise import noise_source
from halfmask.vertical.channel import LocalChannel, Message
from halfmask.vertical.fdml import FdmlConfig, FdmlNoise, FdmlParty, run_fdml
from halfmask.vertical.loss import loss_named


def channel_of(parties):
    return LocalChannel({name: side.party for name, side in parties.items()})


def test_without_noise_it_descends(columns):
    matrix, labels = columns
    parties = {
        name: FdmlParty(name, matrix[:, cut], strength=1.0)
        for name, cut in (("a", slice(0, 6)), ("b", slice(6, 12)))
    }

    def watch(epoch):
        scores = sum(side.matrix @ side.x for side in parties.values())
        return {"loss": float(loss_named("logistic").value(scores, labels).mean())}

    history = run_fdml(channel_of(parties), labels, FdmlConfig(epochs=15, batch=32), watch=watch)
    assert history[-1]["loss"] < 0.6 * math.log(2)
    assert history[-1]["loss"] < history[0]["loss"]


def test_row_noise_charges_each_row_once_an_epoch(columns, releaser):
    matrix, labels = columns
    door = releaser()
    noise = FdmlNoise(kind="row", epochs=3, ratio=2.0)
    party = FdmlParty("a", matrix, strength=1.0, noise=noise, releaser=door)
    total = sum(event.count * event.replace**2 for event in door.events)
    assert total == pytest.approx(2.0**2)
    config = FdmlConfig(epochs=3, batch=50)
    run_fdml(channel_of({"a": party}), labels, config)
    request = Message(
        kind="fdml-scores", run=party.party._run, round=99, arrays={"rows": np.array([0])}
    )
    with pytest.raises(InputError, match="more often"):
        party.party.answer(request)


@pytest.mark.parametrize("rows", [[0, 0], [-1], [300]])
def test_batches_name_rows_of_the_table_once(columns, rows):
    party = FdmlParty("a", columns[0], strength=1.0)
    request = Message(kind="fdml-scores", run="x", round=1, arrays={"rows": np.array(rows)})
    with pytest.raises(InputError, match="each once"):
        party.party.answer(request)


def test_one_row_moves_scores_and_gradient_at_most_as_charged(columns, releaser):
    """Same transcript, one row replaced: exact values differ by at most the charged sensitivity."""
    matrix, _ = columns
    noise = FdmlNoise(kind="row", epochs=5, ratio=1.0, row_norm=1.0, score_bound=0.5)
    other = matrix.copy()
    other[0] = -50 * matrix[0]
    seen = []
    for table in (matrix, other):
        party = FdmlParty("a", table, strength=1.0, noise=noise, releaser=releaser())
        party.x = np.full(12, 3.0)
        party._protect = lambda value, bound, seen=seen: seen.append((value, bound)) or value
        rows = np.arange(40)
        party.party.answer(Message(kind="fdml-scores", run="x", round=1, arrays={"rows": rows}))
        party.party.answer(
            Message(
                kind="fdml-step",
                run="x",
                round=1,
                arrays={"rows": rows, "slopes": np.full(40, 77.0)},
                values={"step_size": 0.1},
            )
        )
    for (one, bound), (two, _) in zip(seen[:2], seen[2:], strict=True):
        assert np.linalg.norm(one - two) <= 2 * bound * (1 + 1e-12)
        assert np.linalg.norm(one - two) > 0


def test_as_written_noise_needs_a_source_and_has_no_charge(columns, releaser):
    matrix, labels = columns
    noise = FdmlNoise(kind="as-written", std=0.1)
    with pytest.raises(InputError):
        FdmlParty("a", matrix, strength=1.0, noise=noise)
    party = FdmlParty("a", matrix, strength=1.0, noise=noise, noise_source=noise_source(0))
    run_fdml(channel_of({"a": party}), labels, FdmlConfig(epochs=1, batch=100))
    assert np.any(party.x)


def test_wrong_settings_are_refused(columns, releaser):
    with pytest.raises(InputError):
        FdmlNoise(kind="scores")
    noise = FdmlNoise(kind="row", ratio=0.0)
    with pytest.raises(InputError):
        FdmlParty("a", columns[0], strength=1.0, noise=noise, releaser=releaser())
