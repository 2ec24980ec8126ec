"""What `halfmask reproduce tables` measured of the default method: the guide of the price.

`kept` is the explained log loss (R² for a number) over that of the best model without privacy, on
held-out rows: `halfmask reproduce tables --data DIR --method auto`, docs/reproductions.md.
"""

from __future__ import annotations

from typing import NamedTuple

EPSILONS = (0.1, 0.5, 1.0, 4.0)
DELTA = 1e-6


class Facts(NamedTuple):
    """Rows to learn from, columns, those that are private in `half` and `features`, and what a
    column weighs on average (halfmask.expectation)."""

    rows: int
    columns: int
    private: int
    weight: float


TABLES = {
    "adult": Facts(32561, 13, 6, 0.92),
    "bank": Facts(27459, 19, 10, 0.83),
    "default": Facts(20000, 23, 11, 0.95),
    "diabetes": Facts(47679, 30, 15, 0.87),
    "visits": Facts(3942, 18, 8, 0.78),
}

KEPT: dict[tuple[str, str], tuple[float, float, float, float]] = {
    ("adult", "all"): (0.678, 0.831, 0.854, 0.886),
    ("adult", "half"): (0.733, 0.824, 0.842, 0.884),
    ("adult", "features"): (0.811, 0.842, 0.862, 0.889),
    ("adult", "label"): (0.833, 0.891, 0.946, 0.971),
    ("bank", "all"): (0.632, 0.880, 0.894, 0.925),
    ("bank", "half"): (0.704, 0.836, 0.914, 0.963),
    ("bank", "features"): (0.929, 0.979, 0.989, 0.994),
    ("bank", "label"): (0.805, 0.885, 0.915, 0.957),
    ("default", "all"): (0.534, 0.858, 0.889, 0.932),
    ("default", "half"): (0.564, 0.849, 0.886, 0.927),
    ("default", "features"): (0.749, 0.920, 0.943, 0.964),
    ("default", "label"): (0.854, 0.926, 0.947, 0.960),
    ("diabetes", "all"): (0.017, 0.382, 0.533, 0.750),
    ("diabetes", "half"): (0.093, 0.654, 0.745, 0.819),
    ("diabetes", "features"): (0.729, 0.857, 0.872, 0.882),
    ("diabetes", "label"): (0.288, 0.698, 0.771, 0.820),
    ("visits", "all"): (0.000, 0.543, 0.698, 0.842),
    ("visits", "half"): (0.000, 0.637, 0.796, 0.870),
    ("visits", "features"): (0.848, 0.933, 0.934, 0.964),
    ("visits", "label"): (0.000, 0.723, 0.805, 0.906),
}
"""By table and set of roles, at each of EPSILONS, means of five draws; 0 where it was below."""
