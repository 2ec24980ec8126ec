"""`halfmask bench scale`: contenders in processes of their own, and the bars."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from halfmask.cli import main
from halfmask_lab import bench_scale as scale


@pytest.mark.slow
def test_every_contender_is_measured_and_the_private_model_is_nearly_as_good() -> None:
    done = CliRunner().invoke(
        main, ["bench", "scale", "--rows", "20000", "--columns", "4", "--json"]
    )
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    contenders = {scale.OURS, scale.TREES, scale.PLAIN}
    for key in ("seconds", "bytes_a_row", "log_loss"):
        assert set(found[key]) == contenders
        # So few rows may fit into memory that reading the libraries has left behind.
        assert all(value > 0 or key == "bytes_a_row" for value in found[key].values())
    assert len(found["ratios"]) == 2
    assert found["log_loss"][scale.OURS] < found["log_loss"][scale.PLAIN] + 0.03


def test_sizes_are_for_this_benchmark_alone() -> None:
    done = CliRunner().invoke(main, ["bench", "linear", "--rows", "5"])
    assert done.exit_code == 2
    assert "scale" in done.output


@pytest.mark.slow
@pytest.mark.alone
def test_two_million_rows_cost_less_than_boosted_trees() -> None:
    found = scale.run()
    times, _ = found["ratios"]
    assert times["ratio"] <= 1.0
    # At this rate, 20,000,000 rows stay within 4 GiB.
    assert found["bytes_a_row"][scale.OURS] <= 4 * 2**30 / 20_000_000
    assert found["log_loss"][scale.OURS] <= found["log_loss"][scale.PLAIN] + 0.003
