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
    ("adult", "all"): (0.676, 0.848, 0.856, 0.890),
    ("adult", "half"): (0.696, 0.832, 0.852, 0.891),
    ("adult", "features"): (0.798, 0.838, 0.860, 0.892),
    ("adult", "label"): (0.839, 0.891, 0.943, 0.971),
    ("bank", "label"): (0.769, 0.884, 0.913, 0.954),
    ("default", "label"): (0.754, 0.927, 0.939, 0.960),
    ("diabetes", "all"): (0.100, 0.456, 0.533, 0.737),
    ("diabetes", "half"): (0.172, 0.623, 0.709, 0.826),
    ("diabetes", "features"): (0.743, 0.847, 0.866, 0.881),
    ("diabetes", "label"): (0.233, 0.646, 0.723, 0.827),
    ("visits", "label"): (0.000, 0.729, 0.789, 0.897),
}
"""By table and set of roles, at each of EPSILONS; 0 where it was below."""

MEANS = {
    "all": (0.30, 0.64, 0.77, 0.87),
    "half": (0.36, 0.72, 0.81, 0.90),
    "features": (0.77, 0.87, 0.92, 0.95),
    "label": (0.51, 0.80, 0.86, 0.93),
}
"""Over all five tables, five draws each: what the line of the price is held against."""
