"""Rows of results in the form every experiment prints."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

Progress = Callable[[float, str], None]


def silent(share: float, text: str) -> None:
    """Report progress to nobody."""


def result_row(
    method: str,
    metric: str,
    values: Sequence[float],
    *,
    epsilon: float | None = None,
    delta: float | None = None,
    relation: str | None = None,
    **more: Any,
) -> dict[str, Any]:
    """Mean and deviation of `metric` over noise draws; epsilon None without a guarantee."""
    return {
        "method": method,
        "epsilon": epsilon,
        "delta": delta,
        "relation": relation,
        "metric": metric,
        "mean": float(np.mean(values)),
        "std": float(np.std(values, ddof=1)) if len(values) > 1 else 0.0,
        "draws": len(values),
        **more,
    }
