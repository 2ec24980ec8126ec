"""The benchmark of the step says what it promises, for batches small enough to test."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from halfmask_lab import bench_step as step


@pytest.mark.slow
def test_the_report_has_every_pair_and_restores_the_threads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(step, "SIZES", (16, 32, 64))
    monkeypatch.setattr(step, "_peak_extra_memory", lambda factory, size: 0.0)
    threads = torch.get_num_threads()
    told: list[float] = []
    report = step.run(tell=lambda share, text: told.append(share), rounds=2)
    assert torch.get_num_threads() == threads
    assert told[0] == 0.0
    assert told[-1] == 1.0
    assert report["name"] == "step"
    found = {(row["what"], row["against"], row["setting"]) for row in report["ratios"]}
    for what in step.OURS:
        for against in step.PEERS:
            for size in (16, 32, 64):
                expected = against not in step.SLOW or size != 64
                assert ((what, against, f"batch {size}, 2 threads") in found) == expected
    assert all(0 < row["low"] <= row["high"] for row in report["ratios"])


@pytest.mark.parametrize(
    "contender", [*step.OURS.values(), *step.PEERS.values(), step.public_batch]
)
def test_every_contender_takes_a_step(contender: Callable[..., Any]) -> None:
    batch = step.make_batch(8)
    take = step.quiet(contender, batch)
    step.quiet(take)
